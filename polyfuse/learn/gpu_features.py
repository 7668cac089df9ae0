"""What the learned cost model sees of a GPU's kernels: nodes as on a CPU, figures of a launch.

    kernels, a GPU of the tables  --gpu_graphs-->  KernelGraph for each launch

Iterations are those of all threads together; loops over blocks, rows of threads and threads are loops around
what one thread does, so that the stride between neighbouring threads is that of the loop over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from polyfuse.codegen.cuda.functions import lower_device
from polyfuse.cost.device import Device
from polyfuse.cost.figures import KernelEstimate
from polyfuse.cost.projection import since_touched
from polyfuse.cost.speed_of_light import estimate
from polyfuse.ir.kernel import Kernel, Scope, offsets, registers
from polyfuse.ir.kernel import KernelGraph as Kernels
from polyfuse.learn.features import KernelGraph
from polyfuse.learn.loop_graph import LoopGraph
from polyfuse.learn.nodes import NodeTable

GPU_FEATURES_VERSION = 1

VECTOR_BYTES = 16  # of one access of a thread
_LAUNCH = ("blocks", "threads", "rows of threads", "waves", "blocks at once", "warps", "functions", "parts")
_KEPT = ("registers", "shared bytes", "vector", "atomic", "barriers of the block", "barriers of the grid")
_BYTES = ("read bytes", "written bytes", "L2 bytes", "memory bytes", "streamed bytes")
_WORK = ("plain", "special", "weighted", "casts", "loads", "stores", "loads by data")
_ANALYTIC = ("memory ns", "cache ns", "operations ns", "latency ns", "overhead ns", "projected ns")
_DEVICE = ("multiprocessors", "clock", "bandwidth", "L2 size")
GPU_KERNEL_FEATURES: tuple[str, ...] = (*_LAUNCH, *_KEPT, *_BYTES, *_WORK, *_ANALYTIC, *_DEVICE, "library")
"""What is known of a launch, all as log2(1 + x)."""


def gpu_graphs(kernels: Kernels, device: Device) -> tuple[KernelGraph, ...]:
    """A graph for each launch of kernels whose sizes are known."""
    parts = [x for k in kernels.kernels for x in _parts(k)]
    since = {id(p): row for p, row in zip(parts, since_touched(parts), strict=True)}
    figures = estimate(kernels, device).kernels
    return tuple(_graph(k, f, since, device) for k, f in zip(kernels.kernels, figures, strict=True))


def _parts(kernel: Kernel) -> tuple[Kernel, ...]:
    """What runs in a launch: one after the other, or side by side."""
    return tuple(x for p in kernel.parts or (kernel,) for x in p.packed or (p,))


def _graph(
    kernel: Kernel, told: KernelEstimate, since: Mapping[int, Mapping[str, float]], device: Device
) -> KernelGraph:
    loops, found = LoopGraph(VECTOR_BYTES), dict.fromkeys(GPU_KERNEL_FEATURES, 0.0)
    functions = 0
    for part in _parts(kernel):
        if part.library is not None:
            found["library"] = 1.0
            continue
        for task in lower_device(part):
            loops.add_device(task.kernel, task.loops, task.body, since[id(part)])
            functions += 1
    table = loops.table()
    found |= _launch(kernel, told) | _terms(told) | _of_device(device) | _totals(table)
    found["functions"] = functions
    known = np.array([found[name] for name in GPU_KERNEL_FEATURES], np.float64)
    return KernelGraph(table.opcodes, table.nodes, table.edges, np.log2(1 + known).astype(np.float32))


def _launch(kernel: Kernel, told: KernelEstimate) -> dict[str, float]:
    parts, fits = _parts(kernel), told.occupancy
    return {
        "blocks": told.blocks,
        "threads": told.threads,
        "rows of threads": kernel.threads[1],
        "waves": told.waves,
        "blocks at once": fits.blocks_per_sm if fits else 0,
        "warps": fits.warps if fits else 0,
        "parts": len(parts),
        "registers": max(registers(p.buffers) for p in parts),
        "shared bytes": max(offsets(p.buffers)[1] for p in parts),
        "vector": max(p.vector for p in parts),
        "atomic": sum(len(p.atomic) for p in parts),
        "barriers of the block": told.block_barriers,
        "barriers of the grid": told.grid_barriers,
        "streamed bytes": sum(
            b.dtype.bytes * prod(x.value for x in b.extents if hasattr(x, "value"))
            for p in parts
            for b in p.buffers
            if b.past and b.scope in (Scope.ARGUMENT, Scope.GLOBAL)
        ),
    }


def _terms(told: KernelEstimate) -> dict[str, float]:
    t = told.terms
    seconds = (t.memory, t.cache, t.operations, t.latency, t.overhead + t.barriers, told.seconds)
    levels = dict(told.levels)
    return {
        **dict(zip(_ANALYTIC, (s * 1e9 for s in seconds), strict=True)),
        "read bytes": told.read,
        "written bytes": told.written,
        "L2 bytes": levels.get("L2", 0.0),
        "memory bytes": levels.get("memory", 0.0),
        "plain": told.work.plain,
        "special": told.work.special,
        "weighted": told.work.weighted,
    }


def _totals(table: NodeTable) -> dict[str, float]:
    return {name: table.totals.get(name, 0.0) for name in ("casts", "loads", "stores", "loads by data")}


def _of_device(device: Device) -> dict[str, float]:
    figures = (device.sms, device.clock, device.memory_bandwidth, device.l2_bytes)
    return dict(zip(_DEVICE, figures, strict=True))
