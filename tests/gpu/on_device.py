"""Calls of operators on a device against the float64 reference.

    check_on_device([call_of("stdlib", 0), call_of("kinds", 7)])

The kernels of all calls are compiled together, as one source.  They run on NumPy arrays, which the runtime
copies; `by_api` calls the same operators as users do, with torch tensors on the device.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from gradient_checks import backward_arguments
from kinds import KINDS, kind_call
from programs import random_program
from targets import DEVICES, Call, expected, is_placed

import polyfuse as pf
from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda.emit import CudaCode, emit_cuda_together
from polyfuse.diagnostics import DeviceError, PolyfuseError
from polyfuse.driver.targets import mapped_for
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import Role
from polyfuse.options import Options
from polyfuse.runtime.cuda.executable import load
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.agreement import MOST_UNDECIDED, Agreement, agrees

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of the package

from benchmarks.gpu_arrays import to_device, to_host  # noqa: E402
from benchmarks.gpu_cases import small_calls  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]
Try = tuple[str, Callable[[], dict[str, Array]], Callable[[], str]]
"""A name, what runs a call that way, and the source of its kernels."""


@dataclass(frozen=True)
class DeviceCall:
    """A call, and the operator that it calls."""

    call: Call
    program: pf.Program
    op: str
    options: pf.Options = field(default_factory=pf.Options)

    def given(self, f: pf.Compiled) -> dict[str, int]:
        """Size parameters, which are given by name."""
        known = self.call.sizes
        return {p.name: known[p.name] for p in f.signature.size_params if p.name in known}


@dataclass(frozen=True)
class Result:
    """One call done one way. `message` says what is wrong, "" if nothing; `ratio` is the worst difference
    over its bound, None where the operator did not run. `source`: of what is wrong, operator and kernels."""

    name: str
    how: str
    ratio: float | None
    message: str
    source: str = ""


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
    calls: Sequence[DeviceCall],
    target: str = "cuda",
    *,
    api: bool = True,
    failed: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Every call, every way; and, with `api`, as users call it. `failed` is told of what is wrong at once."""
    how = ways(target)
    requests = [[c.call.device_request(*way) for way in how.values()] for c in calls]
    codes = iter(emit_cuda_together([r for mine in requests for r in mine]))
    found: list[Result] = []
    for c, mine in zip(calls, requests, strict=True):
        tries: list[Try] = []
        for name, request in zip(how, mine, strict=True):
            tries.append((name, partial(_run, c, next(codes), target), partial(_source, request)))
        if api:
            f, inputs = compiled_for(c, target), _inputs(c)
            tries.append(("api", partial(by_api, c, f, inputs, target), partial(_api_source, c, f, inputs)))
        found += _outcomes(c, tries, failed)
    return found


def _inputs(c: DeviceCall) -> dict[str, Array]:
    return {n: a for n, a in c.call.memory().items() if n in c.call.graph.inputs}


def _source(request: Request) -> str:
    """The kernels of one way alone."""
    return str(emit_cuda_together([request])[0].source)


def _api_source(c: DeviceCall, f: pf.Compiled, inputs: Mapping[str, Array]) -> str:
    """The kernels of a compiled function, with the decisions that led there."""
    built = f.built(**inputs, **c.given(f))
    code = built.executable.code if isinstance(built.executable.code, CudaCode) else None
    return "\n".join([*(f"// {d}" for d in map(str, built.decisions)), "" if code is None else code.source])


def check_on_device(calls: Sequence[DeviceCall], target: str = "cuda") -> None:
    """Assert that every call agrees with the reference."""
    bad = [r for r in outcomes_on_device(calls, target) if r.message]
    assert not bad, "\n".join(f"{r.name} ({r.how}): {r.message}" for r in bad)


def _outcomes(c: DeviceCall, tries: Sequence[Try], failed: Callable[[Result], None]) -> Iterator[Result]:
    want = expected(c.call)
    for how, run, source in tries:
        found = Result(c.call.name, how, None, "")
        try:
            found = _compared(c, found, run(), want)
        except DeviceError as error:  # nothing that this process does on the device afterwards means anything
            failed(_with_source(c, replace(found, message=f"{type(error).__name__}: {error}"[:600]), source))
            raise
        except PolyfuseError as error:
            found = replace(found, message=f"{type(error).__name__}: {error}"[:600])
        if found.message:
            found = _with_source(c, found, source)
            failed(found)
        yield found


def _compared(c: DeviceCall, found: Result, got: dict[str, Array], want: Any) -> Result:
    want, ratio, messages = expected(c.call, got) if is_placed(c.call) else want, 0.0, []
    for t in c.call.graph.tensors:
        if t.role is Role.OUTPUT:
            outcome = agrees(got[t.name], want[t.name], t.dtype)
            ratio = max(ratio, outcome.worst_ratio)
            messages += [f"{t.name}: {outcome.message}"] if is_wrong(outcome) else []
    return replace(found, ratio=ratio, message="; ".join(messages))


def is_wrong(outcome: Agreement) -> bool:
    """Random programs may leave more undecided than a comparison allows: that says nothing of kernels."""
    return bool(not outcome and (outcome.mismatches or outcome.undecided_fraction < MOST_UNDECIDED))


def _with_source(c: DeviceCall, found: Result, source: Callable[[], str]) -> Result:
    about = f"{found.name} ({found.how}): {found.message}\n{dict(c.call.sizes)}\n{c.call.text or c.op}"
    try:
        text = source()
    except PolyfuseError as error:
        text = f"// no source: {error}"
    return replace(found, source="\n".join([*(f"// {line}" for line in about.splitlines()), text, ""]))


def _run(c: DeviceCall, code: Any, target: str) -> dict[str, Array]:
    arrays = c.call.memory()
    machine: Any = EmulatedKernels(code) if target == "emulate" else load(code)
    machine.run(arrays)
    return arrays


def compiled_for(c: DeviceCall, target: str) -> pf.Compiled:
    """The operator of a call, as users compile it."""
    return pf.compile(c.program, c.op, target=target, options=c.options)


def by_api(c: DeviceCall, f: pf.Compiled, inputs: Mapping[str, Array], target: str) -> dict[str, Array]:
    """Results and new values of inout parameters, by the name of the tensor that holds them."""
    graph = c.call.graph
    updated = {t.alias for t in graph.tensors}
    # A number cannot be updated; an array without axes can.
    for _ in range(2):  # the second call goes the short way, where there is one
        given = {
            n: np.array(a) if n in updated and not np.ndim(a) else to_device(np.array(a), target)
            for n, a in inputs.items()
        }
        found = f(**given, **c.given(f))
    parts = found if isinstance(found, tuple) else () if found is None else (found,)
    got = dict(zip(graph.outputs, parts, strict=True))
    got |= {t.name: given[t.alias] for t in graph.tensors if t.alias is not None}
    return {n: np.asarray(to_host(a), graph.tensor(n).dtype.numpy) for n, a in got.items()}


# --- where calls come from ------------------------------------------------------------------------------


def call_of(kind: str, number: int) -> DeviceCall:
    """`number` counts cases of the standard library, examples, the benchmarks' operators, or is a seed; of
    the kinds of random programs, each has one in turn."""
    makers: dict[str, Callable[[int], DeviceCall]] = {
        "stdlib": _stdlib,
        "examples": _example,
        "kinds": _kind,
        "gradients": _gradient,
        "random": _random,
        "workloads": _workload,
    }
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
    return DeviceCall(case.bound(), parsed(case.file), case.op)


def kind_count(seeds: int) -> int:
    """How many numbers `call_of("kinds", ...)` has for so many seeds."""
    return seeds * len(KINDS)


def _kind(number: int) -> DeviceCall:
    """Scans of every other program may be cut into chunks that run at once."""
    seed, k = divmod(number, len(KINDS))
    kind = list(KINDS)[k]
    call = kind_call(kind, seed)
    options = pf.Options(scan="parallel" if seed % 2 else "ordered")
    return DeviceCall(replace(call, name=f"{kind} {seed}"), pf.parse(call.text), call.graph.name, options)


def _random(seed: int) -> DeviceCall:
    p = random_program(seed)
    program = pf.parse(p.text)
    graph = instantiate(program.programs, p.op)
    scheduler: Any = "isl" if seed % 10 == 0 else "auto"
    return DeviceCall(Call(f"seed {seed}", p.text, graph, p.sizes, p.inputs, scheduler), program, p.op)


def _gradient(number: int) -> DeviceCall:
    """The derived operator of a random program, the first from a seed on that has one."""
    for seed in itertools.count(3 * number):
        p = random_program(seed)
        op = pf.parse(p.text).op()
        try:
            pair = pf.grad(op)
        except PolyfuseError:  # no gradient flows, or none can be written
            continue
        rng = np.random.default_rng(seed)
        given = backward_arguments(pair, op.graph(), p.sizes, p.inputs, rng)
        graph = pair.backward.graph()
        inputs = {n: np.asarray(a, graph.tensor(n).dtype.numpy) for n, a in given.items()}
        call = Call(f"gradient {seed}", str(pair), graph, {n: p.sizes[n] for n in graph.sizes}, inputs)
        return DeviceCall(call, pair.backward.program, pair.backward.op.name)
    raise AssertionError("there is always another seed")


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
