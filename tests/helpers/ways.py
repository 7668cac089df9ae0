"""Programs compiled in many ways, and their check; and the sixteen ways that there are of layers and targets.

    check([(call, way), ...])

All programs for one target share a translation unit, so that a test run compiles few sources.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from targets import DEVICES, Array, Call

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.cuda.emit import emit_cuda_together
from polyfuse.diagnostics import PolyfuseError
from polyfuse.driver.lowering import Passes, lower_clusters
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.ir.target import CpuTarget
from polyfuse.ir.tensor_graph import Role
from polyfuse.ir.verify_kernel import verify_kernels
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.agreement import MOST_UNDECIDED, agrees
from polyfuse.runtime.reference.evaluate import evaluate


class CompiledWay(Protocol):
    """A way to compile a program, for a CPU or for the emulator."""

    @property
    def on_cpu(self) -> bool: ...

    def request(self, call: Call) -> Request:
        """The kernels of a program."""
        ...


Pair = tuple[Call, CompiledWay]


@dataclass(frozen=True)
class Way:
    """Layers, and whether the kernels run on a CPU or in the emulator."""

    loops: bool
    stitched: bool
    packed: bool
    on_cpu: bool

    def request(self, call: Call) -> Request:
        """Kernels, cut into clusters as the seed of the call has it."""
        dice = random.Random(call.name)
        cut = Clustering(most=dice.choice((2, 6, 40)), whole=dice.choice((0, 40)), library="never")
        device = DEVICES[dice.choice(list(DEVICES))]
        passes = Passes(
            cut,
            LoopFusion(partition=dice.choice(("whole", "rules"))) if self.loops else None,
            Stitching(rows=1, barriers=dice.choice((None, False))) if self.stitched else None,
            Packing(always=dice.choice((True, None))) if self.packed else None,
            CpuTarget(2) if self.on_cpu else device,
        )
        graph = fixed_graph(call.graph, call.sizes)
        low = lower_clusters(graph, cut.clusters(graph, []), passes)
        verify_kernels(low.kernels)
        return Request(low.kernels, copied=low.copied)


WAYS = [Way(bool(k & 1), bool(k & 2), bool(k & 4), bool(k & 8)) for k in range(16)]


@dataclass(frozen=True)
class Failure:
    """A program that is refused, or gives other numbers than the reference."""

    call: Call
    way: CompiledWay
    kind: str  # "wrong", or the name of the exception
    message: str

    def __str__(self) -> str:
        return f"{self.call.name} ({self.way}): {self.message}\n{self.call.text}\n{self.call.sizes}"


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


def check(chosen: Sequence[Pair], *, flush_denormals: bool = True) -> None:
    """All give the reference's numbers."""
    if failure := first_failure(chosen, flush_denormals=flush_denormals):
        raise AssertionError(str(failure))


def first_failure(
    chosen: Sequence[Pair], *, flush_denormals: bool = True, vague: bool = False
) -> Failure | None:
    """The first program that fails in its way, or None. With `vague` a program of which too many elements are
    undecided may do as it likes with them."""
    found = _first(chosen, flush_denormals, vague)
    if found is not None and found.kind == "ToolchainError" and len(chosen) > 1:
        # A compiler refuses a source, which is that of many programs: which one is it?
        alone = (_first([pair], flush_denormals, vague) for pair in chosen)
        return next((f for f in alone if f is not None), found)
    return found


def _first(chosen: Sequence[Pair], flush_denormals: bool, vague: bool) -> Failure | None:
    try:
        for on_cpu in (True, False):
            mine = [(c, w) for c, w in chosen if w.on_cpu == on_cpu]
            for (call, way), code in zip(mine, _emitted(mine, on_cpu), strict=True):
                seed = len(call.text)
                with _named(call, way):
                    made = (
                        CpuExecutable(code, {}, flush_denormals=flush_denormals)
                        if on_cpu
                        else EmulatedKernels(code, seed=seed)
                    )
                    _compare(call, way, made, vague)
    except _Failed as failed:
        return failed.failure
    return None


def _emitted(chosen: Sequence[Pair], on_cpu: bool) -> list[Any]:
    """The code of each call."""
    emit: Callable[[list[Request]], Any] = emit_together if on_cpu else emit_cuda_together
    requests = []
    for call, way in chosen:
        with _named(call, way):
            requests.append(way.request(call))
    try:
        return list(emit(requests))
    except PolyfuseError:  # which one is it?
        for (call, way), request in zip(chosen, requests, strict=True):
            with _named(call, way):
                emit([request])
        raise


@contextmanager
def _named(call: Call, way: CompiledWay) -> Iterator[None]:
    """Errors say for which program."""
    try:
        yield
    except (PolyfuseError, AssertionError, ArithmeticError, LookupError, TypeError, ValueError) as e:
        raise _Failed(Failure(call, way, type(e).__name__, f"{type(e).__name__}: {e}")) from e


def _compare(call: Call, way: CompiledWay, machine: Any, vague: bool) -> None:
    arrays = call.memory()
    inputs: dict[str, Array] = {n: a for n, a in call.memory().items() if n in call.graph.inputs}
    machine.run(arrays)
    want = evaluate(call.graph, call.sizes, inputs, checked=False, results=arrays)
    for t in call.graph.tensors:
        if t.role is Role.OUTPUT:
            found = agrees(arrays[t.name], want[t.name], t.dtype)
            if vague and not found.mismatches and found.undecided_fraction >= MOST_UNDECIDED:
                continue
            if not found:
                raise _Failed(Failure(call, way, "wrong", f"{t.name}: {found.message}"))
