"""Kernels joined into one launch, with barriers of the whole grid between them (AStitch's Global scheme).

    k0; k1     becomes     one kernel: k0, grid barrier, k1

Every block must be resident while others wait, so the grid is as small as the device holds for sure, and
blocks take the iterations in turn; a part that needs fewer threads than a block has leaves the rest idle, or
gives them further iterations.  A barrier is taken where it costs less than a cut into two launches, which
leaves both their own grids (`cost.packing_gain`).  Where packs are joined, all that does not wait for each
other is one stage: every block comes to every barrier (`stages`).

Sources: AStitch (ASPLOS'22) sections 3.2 and 4.5.

`join_kernels` does so for a GPU, `join_regions` for a CPU; `persistent_blocks` has blocks take rows in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from polyfuse.cost.gpu_time import BASE_REGISTERS
from polyfuse.cost.nests import Nest, nests
from polyfuse.cost.packing_gain import Choice, Work, at_once, joint_work
from polyfuse.decisions import Decision
from polyfuse.ir import kernel
from polyfuse.ir import kernel as shared_memory
from polyfuse.ir.index_expr import evaluate, product, sizes
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Scope, in_steps, nbytes, words
from polyfuse.ir.rename import kernel_form
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import TensorGraph, statement_reads
from polyfuse.layers.mapping.gpu_row_shape import WARP, ceil
from polyfuse.layers.mapping.gpu_storage import overlaid
from polyfuse.layers.packing.packing import levels, packed

# --- groups -----------------------------------------------------------------------------------------------

# Which kernels may share one launch with barriers between: those that depend on each other.
#
#     a; b; c      c reads what a and b made      ->      [a, b, c]
#     a; b; c      c reads what a made            ->      [a, c], b
#
# A kernel joins the latest group that it depends on, and where it needs several groups these are joined with
# it.  Kernels without a dependence stay apart: a barrier would make one wait for the other for nothing, and
# side by side they fill the machine better.


Group = tuple[Kernel, ...]
# Groups in order and the kernel after them -> whether they are joined, and why.
Judge = Callable[[Sequence[Group], Kernel], tuple[bool, str]]


def grouped(
    kernels: KernelGraph, judge: Judge, kind: str, decisions: list[Decision], apart: bool = True
) -> list[Group]:
    """The kernels in groups, in an order that respects dependences.

    Without `apart` a kernel also joins what it does not depend on.
    """
    groups: list[Group] = []
    reasons: dict[str, str] = {}
    uses = _Uses(kernels.graph)
    place = {k.name: n for n, k in enumerate(kernels.kernels)}
    for k in kernels.kernels:
        needed = [g for g in groups if not apart or uses.depend(g, (k,))]
        movable = _at_the_end(groups, needed, uses)
        if not needed:
            if groups:
                reason = "it needs nothing that others make before it: a barrier would only make it wait"
                decisions.append(Decision(kind, k.name, False, reason))
            groups.append((k,))
            continue
        reason = ""
        for first in range(len(movable)):  # all that it needs, else the later ones
            taken, reason = judge(movable[first:], k)
            if taken:
                parts = tuple(p for g in movable[first:] for p in g)
                groups = [g for g in groups if g not in movable[first:]]
                groups.append((*sorted(parts, key=lambda p: place[p.name]), k))
                reasons[k.name] = reason
                break
        else:
            reason = reason or "others that need what it needs come between"
            decisions.append(Decision(kind, k.name, False, reason))
            groups.append((k,))
    for g in groups:
        if len(g) > 1:
            decisions.append(Decision(kind, ", ".join(p.name for p in g), True, reasons[g[-1].name]))
    return groups


def _at_the_end(groups: list[Group], needed: list[Group], uses: _Uses) -> list[Group]:
    """Those of the needed groups that may be moved behind all others."""
    found: list[Group] = []
    for n in reversed(needed):
        later = [g for g in groups[groups.index(n) + 1 :] if g not in found]
        if not any(uses.depend(n, g) for g in later):
            found.insert(0, n)
    return found


class _Uses:
    """What kernels touch outside of themselves; an inout parameter and its new value are one memory."""

    def __init__(self, graph: TensorGraph) -> None:
        self._memory = {t.name: t.alias or t.name for t in graph.tensors}
        self._known: dict[str, tuple[set[str], set[str]]] = {}  # by the kernel's name

    def depend(self, first: Group, second: Group) -> bool:
        """Does one of the two write what the other touches?"""
        return any(self._meet(a, b) for a in first for b in second)

    def _meet(self, first: Kernel, second: Kernel) -> bool:
        (written, read), (also_written, also_read) = self._of(first), self._of(second)
        apart = written.isdisjoint(also_written) and written.isdisjoint(also_read)
        return not (apart and read.isdisjoint(also_written))

    def _of(self, k: Kernel) -> tuple[set[str], set[str]]:
        """(written, read)"""
        if k.name not in self._known:
            outside = {b.tensor for b in k.arguments}
            written = {self._memory[s.target] for s in k.graph.statements if s.target in outside}
            touched = {r.tensor for s in k.graph.statements for r in statement_reads(s)}
            self._known[k.name] = written, {self._memory[t] for t in touched & outside}
        return self._known[k.name]


def one_kernel(parts: Group, threads: tuple[int, int] = (1, 1), resident: int = 0, per_sm: int = 1) -> Kernel:
    """One kernel that runs several, one stage for each."""
    graph = replace(
        parts[0].graph,
        statements=tuple(s for p in parts for s in p.graph.statements),
        tensors=tuple(dict.fromkeys(t for p in parts for t in p.graph.tensors)),
    )
    buffers: dict[str, Buffer] = {}
    for p in parts:
        for b in p.buffers:
            buffers.setdefault(b.tensor, b)
    return Kernel(
        parts[0].name,
        graph,
        tuple(s for p in parts for s in p.stages),
        overlaid(parts, tuple(buffers.values())),
        threads,
        1,
        frozenset(n for p in parts for n in p.atomic),
        parts,
        resident,
        per_sm,
    )


# --- stages -----------------------------------------------------------------------------------------------

# Stages of a launch whose parts are packs: what runs between two barriers of the grid.
#
#     k0 | k1; k2; k3 | k4; k5      (packs side by side)      ->      [k0 k1] barrier [k2] barrier [k3 k4 k5]
#
# A block may have a task of any kernel of a stage, or none, so every block comes to every barrier, and no
# kernel has more of them than another.  Kernels are put into stages by the longest way to them, whatever pack
# they were in: those with no way from one to the other wait for the same barrier.


def stages(graph: TensorGraph, parts: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """What the parts of a launch do one after the other; parts that are no packs stay as they are."""
    if len(parts) == 1 or not any(p.packed for p in parts):
        return tuple(parts)
    inner = tuple(x for p in parts for x in (p.packed or (p,)))
    found = levels(KernelGraph(graph, inner))
    return tuple(packed([inner[k] for k in level]) for level in found)


def shared_bytes(parts: Sequence[Kernel]) -> int:
    """Shared memory that the parts of a launch declare. In packs kernels of one form share a function."""
    if not any(p.packed for p in parts):
        buffers = tuple({b.tensor: b for p in parts for b in p.buffers}.values())
        return kernel.offsets(overlaid(parts, buffers))[1]
    found: dict[object, int] = {}
    for p in parts:
        for one in p.packed or (p,):
            own = [b for b in one.buffers if b.scope is Scope.SHARED]
            if p.packed and own:
                found[kernel_form(one)] = sum(evaluate(b.elements, {}) * b.dtype.bytes for b in own)
            else:
                found |= {b.tensor: evaluate(b.elements, {}) * b.dtype.bytes for b in own}
    return sum(found.values())


# --- kernels of a GPU -------------------------------------------------------------------------------------

MOST_THREADS = 1024
# Registers that a thread of a joined kernel is given at least, for the blocks that are surely resident (its
# launch bounds make that true), and those of a kernel that only moves data.
REGISTERS, FEW_REGISTERS = 64, 32
# Shared memory of a multiprocessor that every GPU of the table has: launches with packs in them count on no
# more, as code generation knows no device.  What combining may need besides.
SHARED_OF_ALL = 96 * 1024
SCRATCH = 8 * 1024
# Loads of a thread's loop that are on their way side by side, and how much smaller than the largest a tensor
# is that caches keep.
MOST_IN_FLIGHT = 4
SMALL = 16


def join_kernels(
    kernels: KernelGraph, gpu: GpuTarget, always: bool, decisions: list[Decision]
) -> KernelGraph:
    """Kernels joined where that pays, or wherever it can be done with `always`."""
    planner = _Planner(gpu, always, kernels.graph)
    groups = grouped(kernels, planner.judge, "grid barrier", decisions, apart=not always)
    return replace(kernels, kernels=tuple(g[0] if len(g) == 1 else planner.joined(g) for g in groups))


@dataclass(frozen=True, slots=True)
class _Need:
    """Registers of a thread, where arrays may take turns too, and blocks that there is work for."""

    registers: int
    in_turn: int
    blocks: int


@dataclass(frozen=True, slots=True)
class _Planner:
    gpu: GpuTarget
    always: bool
    graph: TensorGraph
    works: dict[int, tuple[Kernel, Work]] = field(default_factory=dict)
    needs: dict[int, tuple[Kernel, _Need]] = field(default_factory=dict)

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
        return Choice(barriers * gpu.barrier_s, cuts * (gpu.launch_s + gpu.drain_s), lost, apart)

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
        return joint_work(found)

    def per_sm(self, parts: Group) -> int:
        """Blocks that a multiprocessor surely holds; 0 if none."""
        shared = shared_bytes(parts) + SCRATCH
        needs = [self.need(one) for p in parts for one in (p.packed or (p,))]
        threads = _threads(parts)
        found = self._fitting(threads, max(REGISTERS, *(n.registers for n in needs)), shared)
        # A block that has no more for a thread anyway is held once, if any one of its arrays fits: they may
        # take turns.
        least = max(n.in_turn for n in needs)
        found = found or min(1, self._fitting(threads, max(REGISTERS, least), shared))
        # Blocks that no part has work for would take registers from the others.
        blocks = max(sum(self.need(one).blocks for one in p.packed or (p,)) for p in parts)
        found = min(found, max(1, ceil(blocks, self.gpu.sms)))
        return min(found, SHARED_OF_ALL // shared) if any(p.packed for p in parts) else found

    def need(self, p: Kernel) -> _Need:
        """Of a kernel that is no pack."""
        known = self.needs.get(id(p))
        if known is None:
            blocks = int(max((n.block_count for n in nests(p)), default=1))
            known = self.needs[id(p)] = p, _Need(registers(p), registers(p, in_turn=True), blocks)
        return known[1]

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
    nbytes = {
        b.tensor: 0 if sizes(b.elements) else evaluate(product(b.shape), {}) * b.dtype.bytes
        for b in p.arguments
    }
    found = nests(p)
    blocks = max((n.block_count for n in found), default=1.0)
    load = max((_in_flight(n, nbytes) for n in found), default=1.0)
    return Work(sum(nbytes.values()), blocks, prod(p.threads), load)


def _in_flight(n: Nest, nbytes: Mapping[str, int]) -> float:
    """Bytes that a thread has on their way in a nest: a vector of each large tensor for each round."""
    large = max(nbytes.values(), default=0) / SMALL
    width = max(1, n.kernel.vector)
    each = sum(a.item * width for a in n.accesses if not a.written and nbytes.get(a.tensor, 0) > large)
    rounds = n.count(Coordinate.ROUND) if n.count(Coordinate.ROUND) > 1 else n.count(Coordinate.SEQ)
    return max(1.0, each * min(rounds, MOST_IN_FLIGHT))


# --- kernels of a CPU -------------------------------------------------------------------------------------

# Kernels of a CPU joined into one parallel region, with barriers of all workers between them.
#
#     k0; k1     becomes     one kernel: k0, barrier, k1
#
# AStitch's Global scheme: what needs all of a tensor finds it in memory, and every worker waits for it.  The
# pool runs all steps of a call in one region anyway, so that a barrier costs no more than a new kernel would:
# 0.05 to 0.3 us with two workers, by the number of chunks.  A part without a parallel loop is a call of 3 ns
# by the thread that the others wait for, so that small ones need not be merged.
#
# Sources: AStitch (ASPLOS'22) section 3.2.


def join_regions(kernels: KernelGraph, decisions: list[Decision]) -> KernelGraph:
    """Kernels that depend on each other joined, in an order that respects dependences."""
    groups = grouped(kernels, _taken, "region", decisions)
    return replace(kernels, kernels=tuple(g[0] if len(g) == 1 else one_kernel(g) for g in groups))


def _taken(groups: Sequence[Group], k: Kernel) -> tuple[bool, str]:
    parts = (*(p for g in groups for p in g), k)
    if any(p.library is not None for p in parts):
        return False, "a library call is no part of a region"
    wide = sum(map(_is_parallel, parts))
    return True, f"{len(parts)} parts of one region, {wide} of them parallel"


def _is_parallel(k: Kernel) -> bool:
    blocks = any(m.coordinate is Coordinate.BLK for s in k.stages for m in s.band)
    return bool(k.packed) or k.owners is not None or blocks or in_steps(k)


# --- persistent blocks ------------------------------------------------------------------------------------

# Vertical packing: where there are many groups of short rows, the blocks that are resident take them in turn.
#
#     B(t // TY: blk) ...      becomes      for (block = blockIdx.x; block < groups; block += gridDim.x) ...
#
# The grid is as large as what the device holds at once.  How many blocks these are follows from the registers
# that a thread is assumed to need, in the steps in which full multiprocessors change; the launch bounds
# promise as many to the compiler.
#
# Source: AStitch (ASPLOS'22) section 4.3, vertical task packing, and 4.5, resource-aware launch.


# Registers are given to threads in multiples of this.
UNIT = 8
# Elements that a thread keeps, beyond which compilers need a quarter of them for addresses and loads besides.
MANY_KEPT = 64
MOST_BLOCKS = 32


def persistent_blocks(kernels: KernelGraph, gpu: GpuTarget, decisions: list[Decision]) -> KernelGraph:
    """Kernels of many small groups of rows on blocks that are resident, where a plan asks for it.

    On an H200 (2026-11-27) rows of 32 take 7 % longer so than with a block for each group.
    """
    if not gpu.resident:
        return kernels
    return replace(kernels, kernels=tuple(_in_turn(k, gpu, decisions) for k in kernels.kernels))


def _in_turn(kernel: Kernel, gpu: GpuTarget, decisions: list[Decision]) -> Kernel:
    if kernel.parts or kernel.packed or kernel.library or kernel.threads[1] == 1:
        return kernel
    found = nests(kernel)
    shared = any(m.coordinate is Coordinate.ROUND for n in found for m in n.loops)
    if not shared or any(n.count(Coordinate.ROUND) > 1 for n in found):
        return kernel  # a block has enough to do with longer rows
    if any(sizes(b.elements) for b in kernel.arguments):
        return kernel
    groups = int(max(n.block_count for n in found))
    taken = registers(kernel)
    per_sm = blocks_of(prod(kernel.threads), taken, shared_memory.offsets(kernel.buffers)[1], gpu)
    resident = gpu.sms * per_sm
    if groups <= resident:
        return kernel
    wave = (
        f"{resident} blocks, all resident at {taken} registers a thread, take {groups} groups of rows in turn"
    )
    decisions.append(Decision("persistent blocks", kernel.name, True, wave))
    return replace(kernel, resident=resident, per_sm=per_sm)


def registers(kernel: Kernel, in_turn: bool = False) -> int:
    """That a thread is assumed to need: what it keeps from nest to nest, and a fixed number for all else.

    `in_turn`: of arrays only the largest counts.
    """
    arrays = [b for b in kernel.buffers if b.scope is Scope.LOCAL]
    if in_turn and arrays:
        arrays = [max(arrays, key=nbytes)]
    numbers = [b for b in kernel.buffers if b.scope is Scope.REGISTER]
    kept = sum(words(b.dtype.bytes, evaluate(b.elements, {})) for b in (*arrays, *numbers))
    # Some elements of 16 bits are widened before they are needed.
    kept += sum(evaluate(b.elements, {}) // 4 for b in arrays if b.dtype.bytes == 2)
    if any(b.dtype.bytes == 2 for b in arrays):  # a vector of them is there twice while it is widened
        kept = max(kept, words(2, kernel.vector) + words(4, kernel.vector))
    kept += kept // 4 if kept > MANY_KEPT else 0
    # Numbers of data, as of a row that is looked up, are few beside what is computed.
    widest = max((_words(b) for b in kernel.buffers if b.dtype.is_float), default=1)
    return -(-(BASE_REGISTERS * widest + kept) // UNIT) * UNIT


def _words(b: Buffer) -> int:
    return max(1, b.dtype.bytes // 4)


def blocks_of(threads: int, taken: int, shared: int, gpu: GpuTarget) -> int:
    """Blocks that a multiprocessor holds, at least one."""
    by_shared = gpu.shared_bytes // shared if shared else MOST_BLOCKS
    fits = min(gpu.resident_threads // threads, gpu.registers // (threads * taken), by_shared, MOST_BLOCKS)
    return max(1, fits)
