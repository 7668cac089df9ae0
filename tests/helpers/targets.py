"""Graphs on every target, fused and unfused, against the float64 reference.

Many graphs share a translation unit, so that a test run compiles few sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.cuda.emit import emit_cuda_together
from polyfuse.diagnostics import EmulationError, ScheduleError
from polyfuse.driver.lowering import schedule
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.ir.index_expr import evaluate as value_of
from polyfuse.ir.schedule_tree import ScheduledGraph
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion, Scheduler
from polyfuse.layers.mapping.kernels import entry_copies, form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.poly.scheduling.isl_scheduler import ScheduleTimeout
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.interpreter.interpreter import InterpretedKernels
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Call:
    """A graph and what to call it with. `name` and `text` are for the message of a failure."""

    name: str
    text: str
    graph: TensorGraph
    sizes: dict[str, int]
    inputs: dict[str, Array]
    scheduler: Scheduler = "auto"
    _scheduled: dict[bool, ScheduledGraph] = field(default_factory=dict, init=False, repr=False)

    def memory(self) -> dict[str, Array]:
        """Arrays for every argument and result; results hold garbage."""
        arrays = {k: np.array(v) for k, v in self.inputs.items()}
        for t in self.graph.tensors:
            if t.role is Role.INPUT and t.default is not None and t.name not in arrays:
                arrays[t.name] = np.asarray(t.default).astype(t.dtype.numpy)
            if t.role is Role.OUTPUT:
                shape = tuple(value_of(e, self.sizes) for e in t.shape)
                arrays[t.name] = arrays[t.alias] if t.alias else np.full(shape, 77).astype(t.dtype.numpy)
        return arrays

    def requests(self) -> list[Request]:
        """Kernels with each choice of layers."""
        made = []
        for fusion, stitching in self.ways():
            kernels, _ = form_kernels(self._schedule(fusion), 2, stitching)
            copied, _ = entry_copies(kernels)
            made.append(Request(kernels, copied=copied))
        return made

    def ways(self) -> list[tuple[LoopFusion | None, Stitching | None]]:
        """The layers of `WAYS`."""
        loops, stitching = LoopFusion(scheduler=self.scheduler), Stitching(rows=1)
        return [(loops, None), (None, None), (loops, stitching), (None, stitching)]

    def device_request(
        self, device: GpuTarget, fused: bool = True, stitched: bool = False, barriers: bool | None = False
    ) -> Request:
        """Kernels for a GPU."""
        fusion = LoopFusion(scheduler=self.scheduler) if fused else None
        stitching = Stitching(rows=1, barriers=barriers) if stitched else None
        kernels, _ = form_kernels(self._schedule(fusion), device, stitching)
        request = Request(kernels, copied=entry_copies(kernels)[0])
        if any(k.resident for k in kernels.kernels):
            try:
                emit_cuda_together([request])
            except ScheduleError:  # as in the pipeline: what cannot be kept in order stays apart
                return self.device_request(device, fused, stitched)
        return request

    def _fixed(self) -> TensorGraph:
        """What is scheduled."""
        return fixed_graph(self.graph, self.sizes)

    def _schedule(self, fusion: LoopFusion | None) -> ScheduledGraph:
        """What layer I makes; once, whatever follows it."""
        key = fusion is not None
        if key not in self._scheduled:
            fixed = self._fixed()
            try:
                self._scheduled[key] = schedule(fixed, fusion)
            except ScheduleTimeout:  # it may be too much for isl alone, which says so
                self._scheduled[key] = schedule(fixed, LoopFusion())
        return self._scheduled[key]


def told_apart(requests: Sequence[Request]) -> list[tuple[int, Request]]:
    """The requests that differ in anything they say, each the first of those like it, with its place.

    Layers often have nothing to do: then what they make is the same, and its code is run once.
    """
    found: dict[str, tuple[int, Request]] = {}
    for k, r in enumerate(requests):
        # As text: numbers that are equal are not the same (0.0 and -0.0, 1 and true).
        found.setdefault(repr((r.kernels, sorted(r.strided), sorted(r.copied), r.checked, r.knobs)), (k, r))
    return list(found.values())


# Devices of different shapes: one that fills blocks as a real one does, but splits small reductions; one of
# scalars and few threads, whose blocks take rows in turn; one whose rows have a number of threads that is no
# multiple of a warp.
WAYS = ("layer I", "no layer", "layers I and II", "layer II")
DEVICES = {
    "usual": GpuTarget(sms=4, parallel=256, least=16),
    "narrow": GpuTarget(sms=2, threads=32, longest=64, vector=1, parallel=1 << 30, resident_threads=64),
    "odd": GpuTarget(sms=3, threads=64, row_threads=21, parallel=256, least=16),
}
ORDERS = ("random", "forward", "reverse")


def check_emulated(
    calls: Sequence[Call],
    *,
    devices: Sequence[str] = tuple(DEVICES),
    fused: Sequence[bool] = (True,),
    stitched: Sequence[bool] = (False,),
    orders: Sequence[Any] = ORDERS,
    barriers: bool | None = False,
) -> None:
    """Assert that every call agrees with the reference in the emulator, without a race, on several devices
    and in several orders of threads."""
    ways = [(d, f, s) for d in devices for f in fused for s in stitched]
    requests = [
        told_apart([call.device_request(DEVICES[d], f, s, barriers) for d, f, s in ways]) for call in calls
    ]
    codes = iter(emit_cuda_together([r for mine in requests for _, r in mine]))
    for call, mine in zip(calls, requests, strict=True):
        inputs = {n: a for n, a in call.memory().items() if n in call.graph.inputs}
        want = evaluate(call.graph, call.sizes, inputs)
        for way, _ in mine:
            device, loops, phases = ways[way]
            code = next(codes)
            for order in orders:
                arrays = call.memory()
                layers = WAYS[(0 if loops else 1) + (2 if phases else 0)]
                how = f"{layers}, emulated, {device}, {order}"
                try:
                    EmulatedKernels(code, order=order).run(arrays)
                except EmulationError as e:
                    raise AssertionError(f"{call.name} ({how}): {e}\n{call.text}") from e
                compare_results(call, arrays, want, how)


def check_everywhere(calls: Sequence[Call], *, interpret: bool = True) -> None:
    """Assert that every call agrees with the reference: fused and unfused, compiled and interpreted."""
    requests = [told_apart(call.requests()) for call in calls]
    codes = iter(emit_together([r for mine in requests for _, r in mine]))
    for call, mine in zip(calls, requests, strict=True):
        inputs = {n: a for n, a in call.memory().items() if n in call.graph.inputs}
        want = evaluate(call.graph, call.sizes, inputs)
        for way, request in mine:
            machines: list[Any] = [CpuExecutable(next(codes), {})]
            if interpret:
                machines.append(InterpretedKernels(request.kernels, checked=True, copied=request.copied))
            for machine in machines:
                arrays = call.memory()
                machine.run(arrays)
                compare_results(call, arrays, want, f"{WAYS[way]}, {type(machine).__name__}")


def expected(call: Call, results: dict[str, Array] | None = None) -> Any:
    """What the reference says; where elements may be put in several orders, of that of `results`; ends
    of ranges and indices that data puts outside are clamped."""
    inputs = {n: a for n, a in call.memory().items() if n in call.graph.inputs}
    return evaluate(call.graph, call.sizes, inputs, checked=False, results=results)


def is_placed(call: Call) -> bool:
    """Does it put elements in order?"""
    return any(s.place is not None for s in call.graph.statements)


def compare_results(call: Call, arrays: dict[str, Array], want: Any, how: str) -> None:
    want = expected(call, arrays) if is_placed(call) else want
    for t in call.graph.tensors:
        if t.role is Role.OUTPUT:
            outcome = agrees(arrays[t.name], want[t.name], t.dtype)
            assert outcome, f"{call.name} ({how}), {t.name}: {outcome.message}\n{call.text}"
