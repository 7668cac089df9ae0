"""Kernels of a CPU joined into one parallel region, with barriers of all workers between them.

    k0; k1     becomes     one kernel: k0, barrier, k1

AStitch's Global scheme: what needs all of a tensor finds it in memory, and every worker waits for it.  The
pool runs all steps of a call in one region anyway, so that a barrier costs no more than a new kernel would:
0.05 to 0.3 us with two workers, by the number of chunks.  A part without a parallel loop is a call of 3 ns by
the thread that the others wait for, so that small ones need not be merged.

Sources: AStitch (ASPLOS'22) section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.kernel import Kernel, KernelGraph, in_steps
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.layers.barrier_groups import Group, grouped, one_kernel


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
