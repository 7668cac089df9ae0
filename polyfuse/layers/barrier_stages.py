"""Stages of a launch whose parts are packs: what runs between two barriers of the grid.

    k0 | k1; k2; k3 | k4; k5      (packs side by side)      ->      [k0 k1] barrier [k2] barrier [k3 k4 k5]

A block may have a task of any kernel of a stage, or none, so every block comes to every barrier, and no
kernel has more of them than another.  Kernels are put into stages by the longest way to them, whatever pack
they were in: those with no way from one to the other wait for the same barrier.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.ir import shared_memory
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import Kernel, KernelGraph, Scope
from polyfuse.ir.rename import kernel_form
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.packing import levels, packed
from polyfuse.layers.shared_plan import overlaid


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
        return shared_memory.offsets(overlaid(parts, buffers))[1]
    found: dict[object, int] = {}
    for p in parts:
        for one in p.packed or (p,):
            own = [b for b in one.buffers if b.scope is Scope.SHARED]
            if p.packed and own:
                found[kernel_form(one)] = sum(evaluate(b.elements, {}) * b.dtype.bytes for b in own)
            else:
                found |= {b.tensor: evaluate(b.elements, {}) * b.dtype.bytes for b in own}
    return sum(found.values())
