"""Kernels joined into one launch, with barriers of the whole grid between them (AStitch's Global scheme).

    k0; k1     becomes     one kernel: k0, grid barrier, k1

Every block must be resident while others wait, so the grid is as small as the device holds for sure, and
blocks take the iterations in turn; a part that needs fewer threads than a block has leaves the rest idle, or
gives them further iterations.  A barrier is taken where it costs less than a cut into two launches, which
leaves both their own grids (`cost.joining`).  Where packs are joined, all that does not wait for each
other is one stage: every block comes to every barrier (`layers.barrier_stages`).

Sources: AStitch (ASPLOS'22) sections 3.2 and 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from polyfuse.cost.joining import Choice, Work, at_once, side_by_side
from polyfuse.cost.nests import nests
from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import evaluate, product, sizes
from polyfuse.ir.kernel import Kernel, KernelGraph
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import TensorGraph, statement_reads
from polyfuse.layers.barrier_groups import Group, grouped, one_kernel
from polyfuse.layers.barrier_stages import shared_bytes, stages
from polyfuse.layers.gpu_rows import WARP, ceil

MOST_THREADS = 1024
# Registers that a thread of a joined kernel is assumed to need at most, for the blocks that are surely
# resident (its launch bounds make that true), and those of a kernel that only moves data.
REGISTERS, FEW_REGISTERS = 64, 32
# Shared memory of a multiprocessor that every GPU of the table has: launches with packs in them count on no
# more, as code generation knows no device.  What combining may need besides.
SHARED_OF_ALL = 96 * 1024
SCRATCH = 8 * 1024


def join_kernels(
    kernels: KernelGraph, gpu: GpuTarget, always: bool, decisions: list[Decision]
) -> KernelGraph:
    """Kernels joined where that pays, or wherever it can be done with `always`."""
    planner = _Planner(gpu, always, kernels.graph)
    groups = grouped(kernels, planner.judge, "grid barrier", decisions, apart=not always)
    return replace(kernels, kernels=tuple(g[0] if len(g) == 1 else planner.joined(g) for g in groups))


@dataclass(frozen=True, slots=True)
class _Planner:
    gpu: GpuTarget
    always: bool
    graph: TensorGraph
    works: dict[int, tuple[Kernel, Work]] = field(default_factory=dict)

    def judge(self, groups: Sequence[Group], k: Kernel) -> tuple[bool, str]:
        """Are the groups and a kernel after them joined, and why?"""
        parts = (*(p for g in groups for p in g), k)
        if any(p.library is not None for p in parts):
            return False, "a library call is a launch of its own"
        threads = _threads(parts)
        per_sm = self.per_sm(parts)
        if threads > MOST_THREADS or not per_sm:
            return False, f"a multiprocessor does not hold a block of {threads} threads for sure"
        count = len(self.stages(parts))
        grid = f"{count} parts on {self.gpu.sms * per_sm} resident blocks of {threads} threads"
        if self.always:
            return True, f"{grid}, as asked for"
        if any(p.graph.sizes for p in parts):
            return False, "sizes are open: what a resident grid would lose is not known"
        choice = self.choice(groups, k)
        return choice.joins, f"{grid}: {choice}" if choice.joins else str(choice)

    def choice(self, groups: Sequence[Group], k: Kernel) -> Choice:
        together = (*(p for g in groups for p in g), k)
        apart = sum(map(self.seconds, (*groups, (k,))))
        cuts, gpu = len(groups), self.gpu
        barriers = len(self.stages(together)) - 1 - sum(len(self.stages(g)) - 1 for g in groups)
        lost = max(0.0, self.seconds(together) - apart)
        return Choice(barriers * gpu.barrier_s, cuts * (gpu.launch_s + gpu.drain_s), lost)

    def stages(self, parts: Group) -> Group:
        """What runs between two barriers."""
        return stages(self.graph, parts)

    def seconds(self, parts: Group) -> float:
        """Of what one launch does, without barriers."""
        gpu = self.gpu
        if len(parts) == 1:
            (p,) = parts
            threads = _threads(parts)
            slots = gpu.sms * max(1, self._fitting(threads, FEW_REGISTERS, shared_bytes(parts)))
            return self.work(p, 0).seconds(slots, gpu.bandwidth)
        blocks, threads = gpu.sms * max(1, self.per_sm(parts)), _threads(parts)
        return sum(self.work(s, threads).seconds(blocks, gpu.bandwidth) for s in self.stages(parts))

    def work(self, p: Kernel, threads: int) -> Work:
        """Of a kernel or a pack, in blocks of so many threads that take several iterations at once (0: of its
        own)."""
        found = []
        for one in p.packed or (p,):
            known = self.works.get(id(one))
            if known is None:
                known = self.works[id(one)] = one, _work(one)
            found.append(known[1].crowded(at_once(one, threads) if threads else 1))
        return side_by_side(found)

    def per_sm(self, parts: Group) -> int:
        """Blocks that a multiprocessor surely holds; 0 if none."""
        shared = shared_bytes(parts) + SCRATCH
        found = self._fitting(_threads(parts), REGISTERS, shared)
        return min(found, SHARED_OF_ALL // shared) if any(p.packed for p in parts) else found

    def _fitting(self, threads: int, registers: int, shared: int) -> int:
        gpu = self.gpu
        by_shared = gpu.shared_per_sm // max(1, shared + gpu.shared_reserved)
        return min(gpu.resident_threads // threads, gpu.registers // (threads * registers), by_shared)

    def joined(self, parts: Group) -> Kernel:
        per_sm = self.per_sm(parts)
        return one_kernel(self.stages(parts), (_threads(parts), 1), self.gpu.sms * per_sm, per_sm)


def _threads(parts: Sequence[Kernel]) -> int:
    """Threads of a block that every part has room in."""
    return ceil(max(prod(p.threads) for p in parts), WARP) * WARP


def _work(p: Kernel) -> Work:
    """What a kernel whose sizes are known moves, and on how many blocks."""
    nbytes, load = 0, 1
    read = {r.tensor for s in p.graph.statements for r in statement_reads(s)}
    for b in p.arguments:
        nbytes += 0 if sizes(b.elements) else evaluate(product(b.shape), {}) * b.dtype.bytes
        load = max(load, b.dtype.bytes) if b.tensor in read else load
    blocks = max((n.block_count for n in nests(p)), default=1.0)
    return Work(nbytes, blocks, prod(p.threads), load * p.vector)
