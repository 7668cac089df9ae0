"""Who is timed on a GPU: polyfuse, PyTorch's own kernels, torch.compile in two modes, jax.jit, Liger's
kernels; all in one process.

One process, unlike on the CPU: contenders share no cores that matter and queue their kernels one after the
other, events on the device time them, inputs are shared instead of copied four times, and a second
process would make the device switch between two contexts.  JAX is kept from taking all memory for itself.

A contender makes a `Prepared` of a case: results of the first call, and a call for each set of inputs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

import polyfuse as pf
from benchmarks.gpu_arrays import to_device
from benchmarks.gpu_cases import GpuCase
from polyfuse.runtime.cuda.compiler import compile_cuda

Call = Callable[[], object]
OURS, EAGER, LIGER, JAX = "polyfuse", "torch eager", "liger", "jax.jit"
INDUCTOR = {"torch.compile": "default", "torch.compile max-autotune": "max-autotune-no-cudagraphs"}
"""CUDA graphs would copy every input into static memory first, which is no part of what is compared."""

PEERS = (EAGER, LIGER, *INDUCTOR, JAX)
"""Those that need no compiler first."""
ASK_BACK = ("xent_fwd",)


@dataclass(frozen=True)
class Prepared:
    """results: outcome -> array.  calls: one per set of inputs.  plain: the call as users write it, where
    it differs.  own_stream: are events of torch blind to it?"""

    label: str
    first_call_s: float
    results: Mapping[str, Any]
    calls: Sequence[Call]
    plain: Call | None = None
    own_stream: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Inputs:
    """Sets of a case's arguments on the device. What an operator updates is copied for each contender."""

    case: GpuCase
    target: str
    device: str
    sets: Sequence[Mapping[str, Any]]

    @classmethod
    def make(cls, case: GpuCase, target: str, count: int, device: str = "cuda") -> Inputs:
        make = _on_device if target == "cuda" else _on_host
        return cls(case, target, device, [make(case, k, device) for k in range(max(1, count))])

    def fresh(self, number: int) -> dict[str, Any]:
        """A set whose updated parameters may be written."""
        given = dict(self.sets[number])
        for n in self.case.workload.updated:
            given[n] = given[n].clone() if hasattr(given[n], "clone") else np.array(given[n])
        return given


def _on_host(case: GpuCase, number: int, device: str) -> dict[str, Any]:
    return case.inputs(number)


def _on_device(case: GpuCase, number: int, device: str) -> dict[str, Any]:
    """A set of inputs of which the host makes some rows, which the device repeats: large arrays take longer
    to make and to copy than all that is done with them."""
    import torch

    some, rows = case.enough_rows, case.sizes[case.row]
    given = {n: to_device(a, "cuda", device) for n, a in case.inputs(number, some).items()}
    which = torch.arange(rows, device=device) % some
    return {n: a[which] if n in case.by_rows else a for n, a in given.items()}


Prepare = Callable[[GpuCase, Inputs], Prepared]


def outcomes(case: GpuCase, found: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What came out of a call, by tensor: results, then what was updated in place."""
    parts = found if isinstance(found, (tuple, list)) else () if found is None else (found,)
    return dict(zip(case.outcomes, [*parts, *(given[n] for n in case.workload.updated)], strict=True))


def wait(target: str) -> None:
    """Until the device has done everything."""
    if target == "cuda":
        import torch

        torch.cuda.synchronize()


def _timed(target: str, call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = call()
    wait(target)
    return time.perf_counter() - start, value


def prepare_ours(case: GpuCase, inputs: Inputs) -> Prepared:
    """polyfuse: bound calls, and the plain one."""
    given = inputs.fresh(0)

    def first() -> tuple[Any, Any]:
        f = pf.compile(pf.parse(case.text), case.name, target=inputs.target)
        return f, f(**given)

    seconds, (f, found) = _timed(inputs.target, first)
    results = {n: _copied(a) for n, a in outcomes(case, found, given).items()}
    built = f.built(**given)
    sets = [inputs.fresh(k) for k in range(len(inputs.sets))]
    calls = [f.bind(**s) for s in sets]
    return Prepared(
        OURS, seconds, results, calls, plain=lambda: f(**sets[0]), facts=_facts(built, inputs.target)
    )


def _copied(a: Any) -> Any:
    return a.clone() if hasattr(a, "clone") else np.array(a)


def _facts(built: Any, target: str) -> dict[str, Any]:
    """Launches, seconds of each step, and what the kernels take (in the assembler's words)."""
    facts: dict[str, Any] = {"launches": len(built.code.plan.launches), "steps_s": dict(built.seconds)}
    if target == "cuda":
        made = compile_cuda(built.code.source, built.executable.driver.properties.arch)  # from the cache
        facts["kernels_of_ours"] = {name: asdict(r) for name, r in made.resources.items()}
        facts["described"] = built.executable.describe()
    return facts


def prepare_torch(case: GpuCase, inputs: Inputs, label: str) -> Prepared:
    """torch.compile of the plain formula."""
    import torch

    plain = case.workload.function("torch")
    if label == "torch.compile":  # of each case the first: what earlier cases compiled is not needed
        torch._dynamo.reset()
    compiled = torch.compile(lambda *a: plain(torch, *a), dynamic=False, mode=INDUCTOR[label])
    return _called(case, inputs, label, compiled)


def prepare_eager(case: GpuCase, inputs: Inputs) -> Prepared:
    """What PyTorch has for it without a compiler: the function that autograd or an optimiser calls, if there
    is one, else the plain formula."""
    import torch

    library = "torch_library" if case.workload.has("torch_library") else "torch"
    return _called(case, inputs, EAGER, partial(case.workload.function(library), torch))


def prepare_liger(case: GpuCase, inputs: Inputs) -> Prepared:
    """Liger's kernels. Those that ask the device for a number are timed as what has a stream of its own."""
    sys.modules.setdefault("peft", None)  # type: ignore[arg-type]  # a second, which nothing here needs
    made = partial(case.workload.function("liger"), import_module("liger_kernel.ops"))
    return replace(_called(case, inputs, LIGER, made), own_stream=case.name in ASK_BACK)


def _called(case: GpuCase, inputs: Inputs, label: str, function: Callable[..., Any]) -> Prepared:
    """A function of tensors by position."""
    import torch

    given = inputs.fresh(0)
    with torch.no_grad():
        seconds, found = _timed(inputs.target, lambda: function(*given.values()))
    results = {n: _copied(a) for n, a in outcomes(case, found, given).items()}
    sets = [tuple(inputs.fresh(k).values()) for k in range(len(inputs.sets))]

    def call_of(arguments: tuple[Any, ...]) -> Call:
        def call() -> object:
            with torch.no_grad():
                return function(*arguments)

        return call

    return Prepared(label, seconds, results, [call_of(s) for s in sets])


def prepare_jax(case: GpuCase, inputs: Inputs) -> Prepared:
    """jax.jit; what is updated is donated, and its new values are passed on."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    plain, updated = case.workload.function("jax"), case.workload.updated
    fixed = {n: a for n, a in inputs.sets[0].items() if not _is_array(a)}
    f = jax.jit(lambda new, rest: plain(jax, **new, **rest, **fixed), donate_argnums=0)
    sets = [_JaxSet(jax, {n: a for n, a in s.items() if _is_array(a)}, updated) for s in inputs.sets]
    seconds, found = _timed(inputs.target, lambda: jax.block_until_ready(sets[0].run(f)))
    results = {n: np.array(a) for n, a in zip(case.outcomes, found, strict=True)}

    def call_of(s: _JaxSet) -> Call:
        return lambda: s.run(f)

    return Prepared(JAX, seconds, results, [call_of(s) for s in sets], own_stream=True)


def _is_array(a: Any) -> bool:
    return bool(getattr(a, "shape", ()))


class _JaxSet:
    """One set of inputs in JAX's memory."""

    def __init__(self, jax: Any, given: Mapping[str, Any], updated: Sequence[str]) -> None:
        arrays = {n: jax.numpy.array(_shared(jax, a), copy=n in updated) for n, a in given.items()}
        self._updated = updated
        self._new = {n: arrays.pop(n) for n in updated}
        self._rest = arrays

    def run(self, f: Callable[..., Any]) -> list[Any]:
        """A call; its results, then what it updated."""
        found = f(self._new, self._rest)
        parts = list(found) if isinstance(found, (tuple, list)) else [found]
        if self._updated:
            self._new = dict(zip(self._updated, parts[-len(self._updated) :], strict=True))
        return parts


def _shared(jax: Any, a: Any) -> Any:
    """A torch tensor as a JAX array in the same memory."""
    return jax.dlpack.from_dlpack(a) if hasattr(a, "detach") else a


def warm_up(target: str, peers: Sequence[str]) -> None:
    """Load everybody's compilers with something trivial."""
    text = "op warm(x: f32[N]) -> (y: f32[N]) { y[n] = 2.0 * x[n] }"
    x = to_device(np.ones(1 << 10, np.float32), target)
    pf.compile(pf.parse(text), target=target)(x)
    if target != "cuda":
        return
    try:
        if any(p in INDUCTOR for p in peers):
            import torch

            torch.compile(lambda x: x * 2)(x)
        if JAX in peers:
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
            import jax

            jax.jit(lambda x: x * 2)(jax.numpy.ones(1 << 10)).block_until_ready()
    except Exception as error:  # who fails here fails again at a case, and is named there
        print(f"a peer could not be warmed up: {error}")


def contenders(case: GpuCase, target: str, peers: Sequence[str]) -> dict[str, Prepare]:
    """Who has a way to compute a case, by label. In a rehearsal there is only polyfuse."""
    found: dict[str, Prepare] = {OURS: prepare_ours}
    if target != "cuda":
        return found
    every: dict[str, Prepare] = {EAGER: prepare_eager, LIGER: prepare_liger, JAX: prepare_jax}
    every |= {label: partial(prepare_torch, label=label) for label in INDUCTOR}
    able = {n for n in PEERS if n != LIGER or (case.workload.has("liger") and find_spec("liger_kernel"))}
    return found | {n: every[n] for n in PEERS if n in peers and n in able}
