"""Kernels joined into one launch, with barriers of the whole grid between them (AStitch's Global scheme).

    k0; k1     becomes     one kernel: k0, grid barrier, k1

Every block must be resident while others wait, so the grid is as small as the device holds for sure, and
blocks take the iterations in turn; a part that needs fewer threads than a block has leaves the rest idle, or
gives them further iterations.  A barrier is taken where it costs less than a cut into two launches, which
leaves both their own grids (`cost.joining`).

Sources: AStitch (ASPLOS'22) sections 3.2 and 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from polyfuse.cost.joining import Choice, Work, at_once
from polyfuse.cost.nests import nests
from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import evaluate, product, sizes
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Scope
from polyfuse.ir.tensor_graph import statement_reads
from polyfuse.layers.barrier_groups import Group, grouped, one_kernel
from polyfuse.layers.gpu_rows import WARP, GpuTarget, ceil

MOST_THREADS = 1024
# Registers that a thread of a joined kernel is assumed to need at most, for the blocks that are surely
# resident (its launch bounds make that true), and those of a kernel that only moves data.
REGISTERS, FEW_REGISTERS = 64, 32
# Shared memory of a multiprocessor that every GPU of the table has, and what combining may need of it.
SHARED_PER_SM = 96 * 1024
SCRATCH = 8 * 1024


def join_kernels(
    kernels: KernelGraph, gpu: GpuTarget, always: bool, decisions: list[Decision]
) -> KernelGraph:
    """Kernels joined where that pays, or wherever it can be done with `always`."""
    planner = _Planner(gpu, always)
    groups = grouped(kernels, planner.judge, "grid barrier", decisions, apart=not always)
    return replace(kernels, kernels=tuple(g[0] if len(g) == 1 else planner.joined(g) for g in groups))


@dataclass(frozen=True, slots=True)
class _Planner:
    gpu: GpuTarget
    always: bool

    def judge(self, groups: Sequence[Group], k: Kernel) -> tuple[bool, str]:
        """Are the groups and a kernel after them joined, and why?"""
        parts = (*(p for g in groups for p in g), k)
        if any(p.packed for p in parts):
            return False, "a pack of kernels has blocks of its own for each, which do not wait for others"
        threads = _threads(parts)
        per_sm = self.per_sm(parts)
        if threads > MOST_THREADS or not per_sm:
            return False, f"a multiprocessor does not hold a block of {threads} threads for sure"
        grid = f"{len(parts)} parts on {self.gpu.sms * per_sm} resident blocks of {threads} threads"
        if self.always:
            return True, f"{grid}, as asked for"
        if any(p.graph.sizes for p in parts):
            return False, "sizes are open: what a resident grid would lose is not known"
        choice = self.choice(groups, k)
        return choice.joins, f"{grid}: {choice}" if choice.joins else str(choice)

    def choice(self, groups: Sequence[Group], k: Kernel) -> Choice:
        together = (*(p for g in groups for p in g), k)
        apart = sum(map(self.seconds, (*groups, (k,))))
        count, gpu = len(groups), self.gpu
        lost = max(0.0, self.seconds(together) - apart)
        return Choice(count * gpu.barrier_s, count * (gpu.launch_s + gpu.drain_s), lost)

    def seconds(self, parts: Group) -> float:
        """Of what one launch does, without barriers."""
        gpu = self.gpu
        if len(parts) == 1:
            (p,) = parts
            threads = _threads(parts)
            slots = gpu.sms * max(1, self._fitting(threads, FEW_REGISTERS, _shared(parts)))
            return _work(p).seconds(slots, gpu.bandwidth)
        blocks, threads = gpu.sms * max(1, self.per_sm(parts)), _threads(parts)
        total = 0.0
        for p in parts:
            total += _work(p).seconds(blocks * at_once(p, threads), gpu.bandwidth)
        return total

    def per_sm(self, parts: Group) -> int:
        """Blocks that a multiprocessor surely holds; 0 if none."""
        return self._fitting(_threads(parts), REGISTERS, _shared(parts) + SCRATCH)

    def _fitting(self, threads: int, registers: int, shared: int) -> int:
        gpu = self.gpu
        by_shared = SHARED_PER_SM // max(1, shared)
        return min(gpu.resident_threads // threads, gpu.registers // (threads * registers), by_shared)

    def joined(self, parts: Group) -> Kernel:
        per_sm = self.per_sm(parts)
        return one_kernel(parts, (_threads(parts), 1), self.gpu.sms * per_sm, per_sm)


def _threads(parts: Sequence[Kernel]) -> int:
    """Threads of a block that every part has room in."""
    return ceil(max(prod(p.threads) for p in parts), WARP) * WARP


def _shared(parts: Sequence[Kernel]) -> int:
    buffers: dict[str, Buffer] = {b.tensor: b for p in parts for b in p.buffers if b.scope is Scope.SHARED}
    return sum(evaluate(b.elements, {}) * b.dtype.bytes for b in buffers.values())


def _work(p: Kernel) -> Work:
    """What a kernel whose sizes are known moves, and on how many blocks."""
    nbytes, load = 0, 1
    read = {r.tensor for s in p.graph.statements for r in statement_reads(s)}
    for b in p.arguments:
        nbytes += 0 if sizes(b.elements) else evaluate(product(b.shape), {}) * b.dtype.bytes
        load = max(load, b.dtype.bytes) if b.tensor in read else load
    blocks = max((n.block_count for n in nests(p)), default=1.0)
    return Work(nbytes, blocks, prod(p.threads), load * p.vector)
