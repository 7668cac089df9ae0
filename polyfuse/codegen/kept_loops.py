"""Vector loops whose rest compilers must not write out.

    for i in 0..61 @vec:  y[i] = t[i, i] if a[i] else w[i, i + 3]

gcc writes the rest of such a loop out, what its vectors leave of 61 iterations.  Then it looks for vectors
among reads that lie apart, and for each pair of lanes it loads all that lies between them: a hundred thousand
instructions, for which its range propagation takes half a minute (docs/targets.md).
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.codegen.c_family import UNROLLED
from polyfuse.codegen.row_pieces import WIDTHS
from polyfuse.codegen.strides_of_reads import strides_of
from polyfuse.codegen.tasks import Task
from polyfuse.codegen.trips import trip_of
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, Node, map_nodes, values_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import reads


def with_kept_loops(kernel: Kernel, task: Task) -> Task:
    """The task, with loops that read far apart marked as ones that stay as they are."""

    def kept(node: Node) -> Node | Block:
        return replace(node, vector=True) if isinstance(node, For) and _reads_apart(kernel, node) else node

    return replace(task, body=map_nodes(task.body, kept), along=map_nodes(task.along, kept))


def _reads_apart(kernel: Kernel, loop: For) -> bool:
    """Does a vector loop of so many iterations read elements that no vector has together?"""
    if loop.coordinate is not Coordinate.VECTOR or (trip_of(loop) or 0) <= UNROLLED:
        return False
    found = (r for v in values_of(loop.body) for r in reads(v))
    return any(strides_of(kernel, r, loop.var)[0] * r.dtype.bytes > WIDTHS[0] for r in found)
