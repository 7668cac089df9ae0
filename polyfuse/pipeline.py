"""The way of the data, top to bottom.

    text --frontend_dsl--> TensorGraph --LoopFusion--> ScheduledGraph --form_kernels--> KernelGraph
         --emit--> CpuCode --CpuExecutable--> NumPy arrays in and out

Between two steps one callback sees what came out: it verifies, dumps and times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from polyfuse.codegen.cpu import CpuCode, emit
from polyfuse.decisions import Decision
from polyfuse.diagnostics import Diagnostics
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.scheduled import ScheduledGraph
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.layers.in_place import entry_copies
from polyfuse.layers.kernels import form_kernels
from polyfuse.layers.loop_fusion import LoopFusion, identity_schedule, require_legal
from polyfuse.options import Options
from polyfuse.poly.domains import specialize
from polyfuse.poly.ranges import prove_ranges
from polyfuse.runtime.cpu import CpuExecutable
from polyfuse.runtime.interpreter import InterpretedKernels
from polyfuse.runtime.pool import default_threads

Result = TypeVar("Result")
Executable = CpuExecutable | InterpretedKernels


@dataclass(slots=True)
class Watch:
    """The callback between two steps. `seconds` tells how long each step took."""

    options: Options
    seconds: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def __call__(self, step: str, make: Callable[[], Result]) -> Result:
        """Run a step; then verify what came out, write it to the dump folder, and take the time."""
        start = time.perf_counter()
        result = make()
        self.seconds[step] = time.perf_counter() - start
        if self.options.verify:
            _verify(result)
        if self.options.dump is not None:
            self._dump(step, result)
        return result

    def _dump(self, step: str, result: object) -> None:
        assert self.options.dump is not None
        self.options.dump.mkdir(parents=True, exist_ok=True)
        is_code = isinstance(result, CpuCode)
        name = f"{len(self.seconds):02d}_{step}.{'cpp' if is_code else 'txt'}"
        text = result.source if isinstance(result, CpuCode) else str(result)
        (self.options.dump / name).write_text(text + "\n", encoding="utf-8")


def _verify(result: object) -> None:
    if isinstance(result, ScheduledGraph):
        verify_graph(result.graph)
        require_legal(result.graph, result.tree)
    if isinstance(result, TensorGraph):
        verify_graph(result)


@dataclass(frozen=True, slots=True)
class Built:
    """Everything a compilation produced, for `explain()`, reports and tests."""

    scheduled: ScheduledGraph
    kernels: KernelGraph
    code: CpuCode | None
    executable: Executable
    decisions: tuple[Decision, ...]
    seconds: Mapping[str, float]


def build(
    graph: TensorGraph,
    sizes: Mapping[str, int],
    *,
    target: str = "cpu",
    fusion: LoopFusion | None,
    options: Options,
    strided: frozenset[str] = frozenset(),
) -> Built:
    """Compile a graph at known sizes for `target` ("cpu" or "interpret"); no fusion without `fusion`."""
    step = Watch(options)
    # TensorGraph (open sizes) -> TensorGraph (sizes known, ranges proved)
    fixed = step("graph", lambda: fixed_graph(graph, sizes))
    # TensorGraph -> ScheduledGraph (layer I)
    scheduled = step("schedule", lambda: schedule(fixed, fusion))
    # ScheduledGraph -> KernelGraph (mapped, storage planned, proved legal)
    kernels, decisions = step(
        "kernels", lambda: form_kernels(scheduled, options.threads or default_threads())
    )
    # inout parameters: in place, or copied first
    copied, in_place = step("in_place", lambda: entry_copies(kernels))
    every = (*scheduled.decisions, *decisions, *in_place)
    if target == "interpret":
        machine = InterpretedKernels(kernels, checked=True, copied=copied)
        return Built(scheduled, kernels, None, machine, every, step.seconds)
    # KernelGraph -> C++ and launch plan
    code = step("cpp", lambda: emit(kernels, strided=strided, copied=copied, checked=options.checked))
    # C++ -> loaded kernels
    flush = options.denormals == "flush"
    executable = step("build", lambda: CpuExecutable(code, {}, flush_denormals=flush))
    return Built(scheduled, kernels, code, executable, every, step.seconds)


def fixed_graph(graph: TensorGraph, sizes: Mapping[str, int]) -> TensorGraph:
    """The graph at the given sizes, its ranges proved. Raises DslError with an example index."""
    found = Diagnostics()
    prove_ranges(graph, sizes, found)
    found.raise_if_errors()
    return specialize(graph, sizes)


def schedule(graph: TensorGraph, fusion: LoopFusion | None) -> ScheduledGraph:
    """Layer I, or the identity schedule without it."""
    return fusion.schedule(graph) if fusion else identity_schedule(graph)
