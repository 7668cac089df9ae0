"""Updates of short rows that data name, in loops over vectors of the lengths that a machine has.

    for f in 0..13 @vec:  y[d[e], f] += x[e, f]     ->     f in 0..8 @vec, f in 8..12 @vec, f in 12..13

Of a length that fills no vector compilers make as many scalars.  Iterations update elements of their own.
"""

from __future__ import annotations

from polyfuse.codegen.trips import trip_of
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.loop_ir import Block, Declare, For, Node, Update, map_nodes
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES

# Bytes of a vector, at most.
LONGEST = 64
_WIDTHS = (LONGEST, LONGEST // 2, LONGEST // 4)


def rows_in_pieces(block: Block) -> Block:
    """The block, with such loops cut."""

    def cut(node: Node) -> Node | Block:
        size = _updated(node)
        short = isinstance(node, For) and 0 < (trip_of(node) or 0) * size <= LONGEST
        return pieces(node, size) if isinstance(node, For) and short else node

    return map_nodes(block, cut)


def pieces(loop: For, size: int) -> tuple[For, ...]:
    """A loop over elements of so many bytes as loops over vectors, several of the longest, and over the rest;
    as it is where its length is not known."""
    trip = trip_of(loop)
    if not isinstance(loop.lower, IConst) or trip is None or loop.step != 1:
        return (loop,)
    low, high = loop.lower.value, loop.lower.value + trip
    cuts = [low]
    for width in _WIDTHS:
        if width // size <= high - cuts[-1]:
            cuts.append(high - (high - cuts[-1]) % (width // size))
    ends = zip(cuts, [*cuts[1:], high], strict=True)
    return tuple(_over(loop, a, b) for a, b in ends if a < b)


def _over(loop: For, low: int, high: int) -> For:
    return For(loop.var, IConst(low), IConst(high), 1, loop.body, loop.coordinate)


def _updated(node: Node) -> int:
    """The bytes of the elements that a vector loop updates, if it does nothing else and data name their rows;
    else 0."""
    if not isinstance(node, For) or node.coordinate is not Coordinate.VECTOR or node.lanes or node.window:
        return 0
    updates = [n for n in node.body if isinstance(n, Update)]
    plain = all(isinstance(n, Update) or (isinstance(n, Declare) and not n.count) for n in node.body)
    named = all(any(isinstance(i, EXPR_TYPES) for i in n.indices) for n in updates)
    return max((n.value.dtype.bytes for n in updates), default=0) if plain and named else 0
