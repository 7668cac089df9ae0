"""What the learned cost model sees of a kernel: a graph of its loops, and figures of all of it.

    kernels, core, choices of code generation  --kernel_graphs-->  KernelGraph for each step of the plan

Trainer and compiler share this module.  It reads the kernel IR and the loops that are printed, before any C++
compiler runs; the machine is a value (`learned_cpu`), never the one at hand.  A change of what features are,
or of their order, is a new `FEATURES_VERSION`: weights belong to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from polyfuse.codegen.cpu.emit import launch_of, scratch_bytes
from polyfuse.codegen.cpu.loop_seconds import lowered_seconds
from polyfuse.codegen.cpu.pipeline import LoweredKernel, lower
from polyfuse.codegen.transforms.outline import time_parts
from polyfuse.cost.cpu_device import CpuDevice, table_cpu
from polyfuse.cost.extents import union
from polyfuse.cost.nests import OUTSIDE
from polyfuse.cost.projection import Part, Projected, project_steps, steps_of
from polyfuse.cost.traffic import Keeping, traffic
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import Kernel, Scope, nbytes
from polyfuse.ir.kernel import KernelGraph as Kernels
from polyfuse.learn.loop_graph import LoopGraph
from polyfuse.learn.nodes import NODE_FEATURES, OPCODES, NodeTable

__all__ = ["FEATURES_VERSION", "KERNEL_FEATURES", "NODE_FEATURES", "OPCODES", "KernelGraph", "kernel_graphs"]

FEATURES_VERSION = 1

_LAUNCH = ("threads", "iterations", "instances", "work", "functions", "together", "series", "parts", "chunks")
_BYTES = ("read bytes", "written bytes", "scratch bytes", "global bytes", "streamed bytes")
_LEVELS = ("L1 bytes", "L2 bytes", "L3 bytes", "memory bytes")
_TOTALS = (
    *("plain", "functions of numbers", "divisions", "casts", "copies", "products", "transposed"),
    *("loads", "stores", "prefetches", "loads by data", "stores by data"),
    *("loads across memory", "stores across memory"),
)
_ANALYTIC = ("memory ns", "core ns", "busy ns", "overhead ns", "projected ns", "loop ns")
_CHOICES = ("accumulator bytes", "jammed", "pipelined", "rows ahead")
_CORE = ("vector bytes", "registers", "units", "latency", "loads a cycle", "L1 size", "L2 size", "L3 size")
KERNEL_FEATURES: tuple[str, ...] = (
    *_LAUNCH, *_BYTES, *_LEVELS, *_TOTALS, *_ANALYTIC, *_CHOICES, *_CORE, "library", "nodes"
)  # fmt: skip
"""What is known of a whole kernel, all as log2(1 + x)."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "launch": _LAUNCH, "bytes": (*_BYTES, *_LEVELS), "operations": _TOTALS, "analytic": _ANALYTIC,
    "choices": _CHOICES, "core": _CORE,
}  # fmt: skip
"""Kernel features by what they tell, for ablations."""

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class KernelGraph:
    """One step of a plan: a kernel, or several side by side.

    opcodes  int16 (n,): places in `OPCODES`
    nodes    float32 (n, len(NODE_FEATURES)), of half precision
    edges    int32 (2, m): producer, consumer
    kernel   float32 (len(KERNEL_FEATURES),)
    """

    opcodes: npt.NDArray[np.int16]
    nodes: npt.NDArray[np.float32]
    edges: npt.NDArray[np.int32]
    kernel: npt.NDArray[np.float32]

    @property
    def key(self) -> bytes:
        """Equal for equal graphs."""
        parts = (self.opcodes, self.nodes.astype(np.float16), self.edges, self.kernel)
        return b"|".join(p.tobytes() for p in parts)


def learned_cpu(core: Core, threads: int) -> CpuDevice:
    """A machine with this core, by the tables: caches as the core has them, rates of a common server."""
    found = table_cpu(threads, core)
    near = {"L1": core.l1, "L2": core.l2}
    return replace(
        found, levels=tuple(replace(x, capacity=near.get(x.name, x.capacity)) for x in found.levels)
    )


Lower = Callable[[Kernel, CpuKnobs], LoweredKernel]


def kernel_graphs(
    kernels: Kernels, machine: CpuDevice, knobs: CpuKnobs, lowered: Lower = lower
) -> tuple[KernelGraph, ...]:
    """A graph for each step of the plan of kernels whose sizes are known.

    `lowered` gives a kernel's loops; who has them already need not have them made again.
    """
    steps = steps_of(kernels)
    times = project_steps(steps, machine, knobs).kernels
    each = zip(steps, times, strict=True)
    return tuple(_Step(step.parts, time, machine, knobs, lowered).graph() for step, time in each)


@dataclass(slots=True)
class _Step:
    """One step of a plan: its kernels."""

    kernels: Sequence[Part]
    time: Projected
    machine: CpuDevice
    knobs: CpuKnobs
    lowered: Lower

    def graph(self) -> KernelGraph:
        loops = LoopGraph(self.machine.core.vector_bytes)
        figures = dict.fromkeys(KERNEL_FEATURES, 0.0)
        for own in self.kernels:
            kernel = own.kernel
            _add(figures, self._bytes(own))
            if kernel.library is not None:
                _add(figures, {"library": 1.0, "products": kernel.library.products})
                continue
            for part in time_parts(kernel):
                low = self.lowered(part, self.knobs)
                loops.add(low.kernel, low.functions, own.since)
                _add(figures, dict(self._launches(part, low)))
        table = loops.table()
        _add(figures, self._totals(table))
        figures |= self._analytic(figures["loop ns"]) | self._of_core()
        figures["parts"], figures["nodes"] = len(self.kernels), len(table.opcodes)
        known = np.array([figures[name] for name in KERNEL_FEATURES], np.float64)
        return KernelGraph(table.opcodes, table.nodes, table.edges, np.log2(1 + known).astype(np.float32))

    # --- figures ------------------------------------------------------------------------------------------

    def _launches(self, kernel: Kernel, low: LoweredKernel) -> Iterator[tuple[str, float]]:
        launches = [launch_of("f", "k", low, f) for f in low.functions]
        yield "functions", len(launches)
        yield "iterations", sum(max(0, evaluate(x.count, {})) for x in launches if x.parallel)
        yield "together", max((x.together[0] for x in launches if x.together), default=0)
        yield "instances", max((evaluate(x.instances, {}) for x in launches), default=0)
        yield "work", max((evaluate(x.work, {}) for x in launches), default=0)
        yield "series", sum(1 for f in low.functions if f.time)
        yield "scratch bytes", scratch_bytes(low.kernel)
        yield "loop ns", lowered_seconds(low, self.machine) * 1e9
        yield "jammed", max((f.jammed for f in low.functions), default=1)
        yield "pipelined", sum(f.pipelined for f in low.functions)

    def _bytes(self, part: Part) -> dict[str, float]:
        """What a kernel moves, by where it comes from."""
        m, kernel, own = self.machine, part.kernel, part.nests
        keeping = Keeping(lambda b: m.level(b / m.threads), m.level, m.level, True)
        moved = traffic(own, part.since, keeping)
        found = dict(zip(_LEVELS, moved.by_level, strict=False))
        past = {b.tensor for b in kernel.buffers if b.past}
        streamed = [a for n in own for a in n.accesses if a.written and a.tensor in past]
        ahead = max((b.ahead for b in kernel.buffers), default=0)
        return {
            **found,
            "read bytes": moved.read,
            "written bytes": moved.written,
            "global bytes": sum(nbytes(b) for b in kernel.buffers if b.scope is Scope.GLOBAL),
            "streamed bytes": sum(a.item * union(a.whole) for a in streamed if a.scope in OUTSIDE),
            "rows ahead": ahead,
        }

    def _totals(self, table: NodeTable) -> dict[str, float]:
        named = {"functions of numbers": "functions"}
        return {name: table.totals.get(named.get(name, name), 0.0) for name in _TOTALS}

    def _analytic(self, loop_ns: float) -> dict[str, float]:
        t = self.time
        seconds = (t.memory, t.core, t.busy, t.overhead, t.seconds)
        return {**dict(zip(_ANALYTIC, (s * 1e9 for s in seconds), strict=False)), "loop ns": loop_ns}

    def _of_core(self) -> dict[str, float]:
        core, levels = self.machine.core, self.machine.levels
        known = (core.vector_bytes, core.registers, core.units, core.latency, core.loads)
        caches = (x.capacity for x in levels[:3])
        return {
            **dict(zip(_CORE, (*known, *caches), strict=True)),
            "threads": self.time.threads,
            "chunks": self.knobs.chunks or 0,
            "accumulator bytes": self.knobs.lane_bytes or 0,
        }


def _add(figures: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        figures[name] += value
