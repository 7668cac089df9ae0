"""Kernels joined into one launch, with barriers of the whole grid between them (AStitch's Global scheme).

    k0; k1     becomes     one kernel: k0, grid barrier, k1

Every block must be resident while others wait, so the grid is as small as the device holds for sure, and
blocks take the iterations in turn.  A barrier pays where a kernel is so small that launching it takes longer
than running it; otherwise a cut into two launches is as good and leaves both their own grids.

Sources: AStitch (ASPLOS'22) sections 3.2 and 4.5.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm, prod

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import evaluate, sizes
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Scope
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.layers.gpu_rows import GpuTarget, ceil

MOST_THREADS = 1024
# Registers that a thread is assumed to need at most, for the blocks that are surely resident.
REGISTERS = 64
# Shared memory of a multiprocessor that every GPU of the table has, and what combining may need of it.
SHARED_PER_SM = 96 * 1024
SCRATCH = 8 * 1024


def join_kernels(
    kernels: KernelGraph, gpu: GpuTarget, always: bool, decisions: list[Decision]
) -> KernelGraph:
    """Neighbouring kernels joined where that pays, or wherever it can be done with `always`."""
    joined: list[list[Kernel]] = []
    for k in kernels.kernels:
        reason = _refusal(joined[-1], k, gpu, always) if joined else "it is the first"
        if reason is None:
            joined[-1].append(k)
        else:
            if joined:
                decisions.append(Decision("grid barrier", k.name, False, reason))
            joined.append([k])
    return replace(kernels, kernels=tuple(_one(parts, gpu, decisions) for parts in joined))


def _refusal(parts: list[Kernel], k: Kernel, gpu: GpuTarget, always: bool) -> str | None:
    """Why a kernel is not run in the launch of those before it."""
    threads = _threads([*parts, k])
    if threads is None:
        return "the numbers of threads along rows do not fit into one block"
    if threads > gpu.resident_threads:
        return f"a multiprocessor does not hold a block of {threads} threads"
    if not always and min(sum(map(_bytes, parts)), _bytes(k)) > gpu.bandwidth * gpu.launch_s:
        return "each of the two takes longer than a launch: a cut costs little"
    return None


def _threads(parts: list[Kernel]) -> int | None:
    """Threads of a block that every part can be laid on."""
    unit = lcm(32, *(p.threads[0] for p in parts))
    wanted = max(prod(p.threads) if _has_rows(p) else p.threads[0] for p in parts)
    threads = ceil(wanted, unit) * unit
    return threads if threads <= MOST_THREADS else None


def _has_rows(k: Kernel) -> bool:
    """Has each row of a block an iteration of its own? Rows that share a loop may be any number."""
    return any(m.coordinate is Coordinate.ROW for stage in k.stages for m in stage.band)


def _bytes(k: Kernel) -> int:
    total = 0
    for b in k.arguments:
        total += 0 if sizes(b.elements) else evaluate(b.elements, {}) * b.dtype.bytes
    return total


def _one(parts: list[Kernel], gpu: GpuTarget, decisions: list[Decision]) -> Kernel:
    if len(parts) == 1:
        return parts[0]
    threads = _threads(parts)
    assert threads is not None
    graph = replace(
        parts[0].graph,
        statements=tuple(s for p in parts for s in p.graph.statements),
        tensors=tuple(dict.fromkeys(t for p in parts for t in p.graph.tensors)),
    )
    buffers: dict[str, Buffer] = {}
    for p in parts:
        for b in p.buffers:
            buffers.setdefault(b.tensor, b)
    shared = sum(
        evaluate(b.elements, {}) * b.dtype.bytes for b in buffers.values() if b.scope is Scope.SHARED
    )
    fitting = SHARED_PER_SM // (shared + SCRATCH)
    per_sm = max(1, min(gpu.resident_threads // threads, gpu.registers // (threads * REGISTERS), fitting))
    names = ", ".join(p.name for p in parts)
    why = f"{len(parts)} kernels in one launch of {gpu.sms * per_sm} resident blocks of {threads} threads"
    decisions.append(Decision("grid barrier", names, True, why))
    return Kernel(
        parts[0].name,
        graph,
        tuple(s for p in parts for s in p.stages),
        tuple(buffers.values()),
        (threads, 1),
        1,
        frozenset(n for p in parts for n in p.atomic),
        tuple(parts),
        gpu.sms * per_sm,
        per_sm,
    )
