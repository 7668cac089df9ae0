"""Calls of operators on a device against the float64 reference.

    check_on_device([call_of("stdlib", 0), call_of("random", 7)])

The kernels of all calls are compiled together, as one source.  They run on NumPy arrays, which the runtime
copies; `by_api` calls the same operators as users do, with torch tensors on the device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from programs import random_program
from targets import DEVICES, Call

import polyfuse as pf
from polyfuse.codegen.cuda.emit import emit_cuda_together
from polyfuse.diagnostics import DeviceError, PolyfuseError
from polyfuse.driver.targets import mapped_for
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import Role
from polyfuse.options import Options
from polyfuse.runtime.cuda.executable import load
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of the package

from benchmarks.gpu_arrays import to_device, to_host  # noqa: E402
from benchmarks.gpu_cases import small_calls  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class DeviceCall:
    """A call, and the operator that it calls."""

    call: Call
    program: pf.Program
    op: str
    given: Mapping[str, int] = field(default_factory=dict)  # size parameters


@dataclass(frozen=True)
class Result:
    """One call done one way. `message` says what is wrong, "" if nothing; `ratio` is the worst difference
    over its bound, None where the operator did not run."""

    name: str
    how: str
    ratio: float | None
    message: str


def ways(target: str) -> dict[str, tuple[GpuTarget, bool, bool, bool]]:
    """Name -> what kernels are made for; whether they are fused, stitched, and joined by barriers of the grid
    wherever that can be done. "split" cuts even small reductions."""
    mine = mapped_for(target, Options())
    assert isinstance(mine, GpuTarget)
    return {
        "fused": (mine, True, False, False),
        "unfused": (mine, False, False, False),
        "split": (DEVICES["usual"], True, False, False),
        "stitched": (mine, True, True, False),
        "one launch": (mine, True, True, True),
    }


def outcomes_on_device(
    calls: Sequence[DeviceCall], target: str = "cuda", *, api: bool = True
) -> list[Result]:
    """Every call, every way; and, with `api`, as users call it."""
    how = ways(target)
    requests = [c.call.device_request(*way) for c in calls for way in how.values()]
    codes = iter(emit_cuda_together(requests))
    found = []
    for c in calls:
        inputs = {n: a for n, a in c.call.memory().items() if n in c.call.graph.inputs}
        want = evaluate(c.call.graph, c.call.sizes, inputs)
        found += [_outcome(c, name, want, partial(_run, c, next(codes), target)) for name in how]
        if api:
            found.append(_outcome(c, "api", want, partial(by_api, c, inputs, target)))
    return found


def check_on_device(calls: Sequence[DeviceCall], target: str = "cuda") -> None:
    """Assert that every call agrees with the reference."""
    bad = [r for r in outcomes_on_device(calls, target) if r.message]
    assert not bad, "\n".join(f"{r.name} ({r.how}): {r.message}" for r in bad)


def _outcome(c: DeviceCall, how: str, want: Any, run: Callable[[], dict[str, Array]]) -> Result:
    try:
        got = run()
    except DeviceError:  # nothing that this process does on the device afterwards means anything
        raise
    except PolyfuseError as error:
        return Result(c.call.name, how, None, f"{type(error).__name__}: {error}"[:600])
    ratio, messages = 0.0, []
    for t in c.call.graph.tensors:
        if t.role is Role.OUTPUT:
            outcome = agrees(got[t.name], want[t.name], t.dtype)
            ratio = max(ratio, outcome.worst_ratio)
            messages += [f"{t.name}: {outcome.message}"] if not outcome else []
    return Result(c.call.name, how, ratio, "; ".join(messages))


def _run(c: DeviceCall, code: Any, target: str) -> dict[str, Array]:
    arrays = c.call.memory()
    machine: Any = EmulatedKernels(code) if target == "emulate" else load(code)
    machine.run(arrays)
    return arrays


def by_api(c: DeviceCall, inputs: dict[str, Array], target: str) -> dict[str, Array]:
    """Results and new values of inout parameters, by the name of the tensor that holds them."""
    graph = c.call.graph
    f = pf.compile(c.program, c.op, target=target)
    updated = {t.alias for t in graph.tensors}
    # A number cannot be updated; an array without axes can.
    for _ in range(2):  # the second call goes the short way, where there is one
        given = {
            n: np.array(a) if n in updated and not np.ndim(a) else to_device(np.array(a), target)
            for n, a in inputs.items()
        }
        found = f(**given, **c.given)
    parts = found if isinstance(found, tuple) else () if found is None else (found,)
    got = dict(zip(graph.outputs, parts, strict=True))
    got |= {t.name: given[t.alias] for t in graph.tensors if t.alias is not None}
    return {n: np.asarray(to_host(a), graph.tensor(n).dtype.numpy) for n, a in got.items()}


# --- where calls come from ------------------------------------------------------------------------------


def call_of(kind: str, number: int) -> DeviceCall:
    """`number` counts cases of the standard library, examples, the benchmarks' operators, or is a seed."""
    makers = {"stdlib": _stdlib, "examples": _example, "random": _random, "workloads": _workload}
    return makers[kind](number)


@cache
def _stdlib_cases() -> list[Any]:
    """For every operator one case of each dtype it has cases for."""
    from stdlib_cases import CASES

    found: dict[tuple[str, str], Any] = {}
    for case in CASES:
        found.setdefault((case.op, case.dtype), case)
    return list(found.values())


def stdlib_count() -> int:
    """How many cases `call_of("stdlib", ...)` knows."""
    return len(_stdlib_cases())


def _stdlib(number: int) -> DeviceCall:
    from stdlib_cases import programs_for

    case = _stdlib_cases()[number]
    graph = case.graph()
    inputs = {n: np.asarray(a) for n, a in case.inputs.items()}
    return DeviceCall(
        Call(str(case), "", graph, case.sizes(graph), inputs), pf.Program(programs_for(case.op)), case.op
    )


def example_count() -> int:
    """How many cases `call_of("examples", ...)` knows."""
    from operator_cases import CASES

    return len(CASES)


def _example(number: int) -> DeviceCall:
    from operator_cases import CASES, parsed

    case = CASES[number]
    return DeviceCall(case.bound(), parsed(case.file), case.op, case.given)


def _random(seed: int) -> DeviceCall:
    p = random_program(seed)
    program = pf.parse(p.text)
    graph = instantiate(program.programs, p.op)
    scheduler: Any = "isl" if seed % 10 == 0 else "auto"
    return DeviceCall(Call(f"seed {seed}", p.text, graph, p.sizes, p.inputs, scheduler), program, p.op)


@cache
def _small() -> list[Any]:
    return small_calls()


def workload_names() -> list[str]:
    """Of the benchmarks' operators at small sizes, in each of their dtypes."""
    return [c.label for c in _small()]


def _workload(number: int) -> DeviceCall:
    case = _small()[number]
    program = case.program
    inputs = {n: np.asarray(a) for n, a in case.inputs().items()}
    graph = case.graph
    typed = {n: a.astype(graph.tensor(n).dtype.numpy) for n, a in inputs.items()}
    return DeviceCall(Call(case.label, case.text, graph, dict(case.sizes), typed), program, case.name)
