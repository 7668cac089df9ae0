"""Vertical packing: where there are many groups of short rows, the blocks of one wave take them in turn.

    B(t // TY: blk) ...      becomes      for (block = blockIdx.x; block < groups; block += gridDim.x) ...

The grid is as large as what the device holds at once.  How many blocks these are follows from the registers
that a thread is assumed to need, in the steps in which full multiprocessors change; the launch bounds
promise as many to the compiler.

Source: AStitch (ASPLOS'22) section 4.3, vertical task packing, and 4.5, resource-aware launch.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyfuse.cost.gpu_time import BASE_REGISTERS
from polyfuse.cost.nests import nests
from polyfuse.decisions import Decision
from polyfuse.ir import shared_memory
from polyfuse.ir.index_expr import evaluate, sizes
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Scope
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.target import GpuTarget

# Registers are given to threads in multiples of this.
UNIT = 8
MOST_BLOCKS = 32


def one_wave(kernels: KernelGraph, gpu: GpuTarget, decisions: list[Decision]) -> KernelGraph:
    """Kernels of many small groups of rows on one wave of blocks."""
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


def registers(kernel: Kernel) -> int:
    """That a thread is assumed to need: what it keeps from nest to nest, and a fixed number for all else."""
    kept = sum(
        evaluate(b.elements, {}) * _words(b)
        for b in kernel.buffers
        if b.scope in (Scope.REGISTER, Scope.LOCAL)
    )
    widest = max(map(_words, kernel.buffers), default=1)
    return -(-(BASE_REGISTERS * widest + kept) // UNIT) * UNIT


def _words(b: Buffer) -> int:
    return max(1, b.dtype.bytes // 4)


def blocks_of(threads: int, taken: int, shared: int, gpu: GpuTarget) -> int:
    """Blocks that a multiprocessor holds, at least one."""
    by_shared = gpu.shared_bytes // shared if shared else MOST_BLOCKS
    fits = min(gpu.resident_threads // threads, gpu.registers // (threads * taken), by_shared, MOST_BLOCKS)
    return max(1, fits)
