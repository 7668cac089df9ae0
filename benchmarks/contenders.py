"""What is timed, each in a process of its own: polyfuse, NumPy, PyTorch eager and compiled, JAX.

A contender makes a `Prepared` of a workload: the seconds of its first call, the results of that call, and
functions without arguments that repeat it (by mode: polyfuse has two).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

import polyfuse as pf
from benchmarks.workload import Workload

Call = Callable[[], object]


@dataclass(frozen=True)
class Prepared:
    """`results`: the workload's outcomes of the first call.  `calls`: what to time, by mode."""

    first_call_s: float
    results: list[Any]
    calls: Mapping[str, Call]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Contender(Protocol):
    """One way to run workloads."""

    def versions(self) -> dict[str, str]:
        """Names and versions of what is used."""
        ...

    def prepare(self, workload: Workload, sizes: Mapping[str, int]) -> Prepared:
        """Compile, call once, and be ready to be timed."""
        ...


def _results(found: Any) -> list[Any]:
    if found is None:
        return []
    return list(found) if isinstance(found, (tuple, list)) else [found]


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


class Polyfuse:
    """This project: a plain call that allocates its results, and a bound one on fixed memory."""

    def __init__(self) -> None:
        text = "op warm(x: f32[N]) -> (y: f32[N]) { y[n] = 2.0 * x[n] }"
        pf.compile(pf.parse(text))(np.ones(1 << 20, np.float32))  # loads compiler, pool and helper

    def versions(self) -> dict[str, str]:
        return {"polyfuse": pf.__version__, "numpy": np.__version__}

    def prepare(self, workload: Workload, sizes: Mapping[str, int]) -> Prepared:
        given = workload.inputs(sizes)

        def first() -> tuple[Any, Any]:
            f = pf.compile(workload.parse(), workload.name)
            return f, f(**given)

        seconds, (f, found) = _timed(first)
        outcomes = _results(found) + [given[n] for n in workload.updated]
        results = [np.array(r) for r in outcomes]
        built = f.built(**given)
        facts = {
            "launches": len(built.code.plan.launches),
            "kernels": len(built.kernels.kernels),
            "steps_s": dict(built.seconds),
        }
        arguments = tuple(given[n] for n in workload.graph.inputs if n in given)
        calls = {"call": lambda: f(*arguments), "bound": f.bind(*arguments)}
        return Prepared(seconds, results, calls, facts)


class NumPy:
    """The workload's NumPy function in float32: a check of the harness rather than a rival."""

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}

    def prepare(self, workload: Workload, sizes: Mapping[str, int]) -> Prepared:
        given = workload.inputs(sizes)
        function = workload.function("numpy")
        seconds, found = _timed(lambda: function(**given))
        return Prepared(seconds, _results(found), {"call": lambda: function(**given)})


class Torch:
    """PyTorch, as it is (`compiled=False`) or through torch.compile."""

    def __init__(self, compiled: bool, threads: int) -> None:
        import torch

        self._torch = torch
        self._compiled = compiled
        torch.set_num_threads(threads)
        if compiled:
            torch.compile(lambda x: x * 2)(torch.ones(1 << 20))  # loads the compiler

    def versions(self) -> dict[str, str]:
        return {"torch": self._torch.__version__}

    def prepare(self, workload: Workload, sizes: Mapping[str, int]) -> Prepared:
        torch = self._torch
        given = {n: self._tensor(a) for n, a in workload.inputs(sizes).items()}
        arguments = tuple(given.values())
        library = "torch_library" if workload.has("torch_library") and not self._compiled else "torch"
        plain = workload.function(library)

        def function(*args: Any) -> Any:
            return plain(torch, *args)

        f = function
        if self._compiled:
            torch._dynamo.reset()
            torch._inductor.metrics.reset()
            f = torch.compile(function, dynamic=False)
        with torch.no_grad():
            seconds, found = _timed(lambda: f(*arguments))
        outcomes = _results(found) + [given[n] for n in workload.updated]
        results = [r.numpy().copy() for r in outcomes]
        return Prepared(seconds, results, {"call": self._call(f, arguments)}, self._facts(f, arguments))

    def _tensor(self, a: Any) -> Any:
        return self._torch.from_numpy(a) if isinstance(a, np.ndarray) else a

    def _call(self, f: Callable[..., Any], arguments: Sequence[Any]) -> Call:
        no_grad = self._torch.no_grad()
        no_grad.__enter__()  # for the rest of the process: entering it takes longer than small calls
        return lambda: f(*arguments)

    def _facts(self, f: Callable[..., Any], arguments: Sequence[Any]) -> dict[str, Any]:
        """Kernels that inductor made; operators that eager mode calls."""
        if self._compiled:
            return {"launches": self._torch._inductor.metrics.generated_kernel_count}
        from torch.utils._python_dispatch import TorchDispatchMode

        class Count(TorchDispatchMode):
            calls = 0

            def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                Count.calls += not any(s in op.name() for s in ("view", "slice", "split", "unsqueeze"))
                return op(*args, **(kwargs or {}))

        with Count():
            f(*arguments)
        return {"launches": Count.calls}


class Jax:
    """jax.jit; parameters that the operator updates are donated, and their new values passed on."""

    def __init__(self) -> None:
        import jax

        self._jax = jax
        jax.jit(lambda x: x * 2)(jax.numpy.ones(1 << 20)).block_until_ready()

    def versions(self) -> dict[str, str]:
        return {"jax": self._jax.__version__}

    def prepare(self, workload: Workload, sizes: Mapping[str, int]) -> Prepared:
        jax = self._jax
        given = workload.inputs(sizes)
        fixed = {n: a for n, a in given.items() if not isinstance(a, np.ndarray)}
        state = {n: jax.numpy.array(a) for n, a in given.items() if n not in fixed}
        plain, updated = workload.function("jax"), workload.updated

        def function(new: dict[str, Any], rest: dict[str, Any]) -> Any:
            return plain(jax, **new, **rest, **fixed)

        f = jax.jit(function, donate_argnums=0)
        new = {n: state.pop(n) for n in updated}

        def call() -> Any:
            nonlocal new
            found = _results(jax.block_until_ready(f(new, state)))
            if updated:
                new = dict(zip(updated, found[-len(updated) :], strict=True))
            return found

        seconds, found = _timed(call)
        return Prepared(seconds, [np.array(r) for r in found], {"call": call})


def make(name: str, threads: int) -> Contender:
    """A contender by name. Raises ImportError where its library is missing."""
    match name:
        case "polyfuse":
            return Polyfuse()
        case "numpy":
            return NumPy()
        case "torch eager" | "torch.compile":
            return Torch(name == "torch.compile", threads)
        case "jax.jit":
            return Jax()
    raise ValueError(name)
