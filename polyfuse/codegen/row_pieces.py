"""Short rows as loops over vectors of the lengths that a machine has.

    for f in 0..13 @vec:  y[d[e], f] += x[e, f]     ->     f in 0..8 @vec, f in 8..12 @vec, f in 12..13
    for c in 0..13 @vec:  y[t, c] = x[t, c] - m[t]  ->     c in 0..8 @vec, c in 5..13 @vec

Of a length that fills no vector compilers make as many scalars.  Iterations of a vector loop have elements of
their own.  What is only stored, and not read, is computed again where that takes fewer steps.  Functions are
left: as scalars they take longer than vectors of which a part is in vain (`codegen.c_family`).  So are totals
of columns, which stay in registers.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.codegen.merged_rows import is_row
from polyfuse.codegen.overlapping_ends import LEAST_BYTES, repeats, takes_long
from polyfuse.codegen.tasks import Task
from polyfuse.codegen.trips import trip_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Declare, For, Node, Store, Update, map_nodes, values_of
from polyfuse.ir.tensor_graph import EXPR_TYPES, reads

# Bytes of vectors, the longest first.
WIDTHS = (64, 32, 16)


def rows_in_pieces(kernel: Kernel, task: Task) -> Task:
    """The task, with short loops of what its iterations do cut."""

    def cut(node: Node) -> Node | Block:
        return _cut(kernel, node) if isinstance(node, For) else node

    return replace(task, body=map_nodes(task.body, cut))


def _cut(kernel: Kernel, row: For) -> Block:
    sizes = {v.dtype.bytes for v in values_of(row.body)}
    size = sizes.pop() if len(sizes) == 1 else 0
    trip = trip_of(row) or 0
    counted = any(isinstance(n, Declare) and n.count for n in row.body)
    if size < LEAST_BYTES or not is_row(row) or row.window or counted or takes_long(row):
        return (row,)
    if not isinstance(row.lower, IConst) or not 0 < trip * size <= WIDTHS[0] or _adds_up(row):
        return (row,)
    first, *rest = pieces(row, size)
    if not rest:
        return (first,) if _joins_little(row) else (row,)
    steps = 1 + sum(1 if p.vector else trip_of(p) or 0 for p in rest)
    if steps < FITTED.overlapping_ends_fewest_steps or not first.vector or not repeats(kernel, row):
        return (first, *rest)
    last = row.lower.value + trip
    return first, replace(first, lower=IConst(last - (trip_of(first) or 0)), upper=IConst(last))


def _adds_up(row: For) -> bool:
    """Does it update what is the same row each time?"""
    updates = [n for n in row.body if isinstance(n, Update)]
    return any(not any(isinstance(i, EXPR_TYPES) for i in n.indices) for n in updates)


def _joins_little(row: For) -> bool:
    """Do compilers find no vector in a row that they have taken apart?  Where data name it, or it has several
    results."""
    stores = [n for n in row.body if isinstance(n, (Store, Update))]
    read = [r for v in values_of(row.body) for r in reads(v)]
    named = any(isinstance(i, EXPR_TYPES) for x in (*stores, *read) for i in x.indices)
    return named or sum(isinstance(n, Store) for n in stores) > 1


def pieces(loop: For, size: int) -> tuple[For, ...]:
    """A loop over elements of so many bytes as loops over vectors, several of the longest, and over the rest;
    as it is where its length is not known."""
    trip = trip_of(loop)
    if not isinstance(loop.lower, IConst) or trip is None or loop.step != 1:
        return (loop,)
    low, high = loop.lower.value, loop.lower.value + trip
    cuts = [low]
    for width in WIDTHS:
        if width // size <= high - cuts[-1]:
            cuts.append(high - (high - cuts[-1]) % (width // size))
    ends = zip(cuts, [*cuts[1:], high], strict=True)
    return tuple(
        replace(loop, lower=IConst(a), upper=IConst(b), vector=(b - a) * size in WIDTHS)
        for a, b in ends
        if a < b
    )
