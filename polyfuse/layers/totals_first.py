"""What is computed from totals is computed in lanes, after all of them.

    B(j)[B(k)(s); y]     becomes     B(j)B(k)(s), B(j)(y)         for  y[j] = tanh(sum[k](w[j, k] * x[k]))

In one loop each total is followed by one number at a time.  A loop of its own takes vectors of these, and a
loop of totals alone computes several of them at a time (`codegen.rows_jammed`).  Between the loops there are
as many numbers as iterations, which lie in L1.
"""

from __future__ import annotations

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.decisions import Decision
from polyfuse.ir.schedule_tree import Band, Coordinate, Sequence, Tree, sequence, statements
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.loop_order import FEWEST_LANES
from polyfuse.layers.nest import has_band, trip_of


def totals_first(graph: TensorGraph, tree: Band, decisions: list[Decision]) -> Tree:
    """The tree, or loops one after the other: over its nests with totals, and over what is behind them."""
    *outer, loop = tree.members
    inside = loop.coincident and loop.coordinate is Coordinate.SEQ
    if not inside or not isinstance(tree.child, Sequence):
        return tree
    parts = tree.child.children
    nests = max(k for k, part in enumerate(parts) if has_band(part)) + 1
    if nests == len(parts) or not _has_total(graph, parts[nests - 1]):
        return tree
    alone = [sequence([*parts[:nests]]), sequence([*parts[nests:]])]
    loops = [loop.restricted(frozenset(statements(part))) for part in alone]
    trips = [trip_of(graph, m) or 0 for m in loops]
    if not all(FEWEST_LANES <= t <= FITTED.totals_first_most_totals for t in trips):
        return tree
    names = ", ".join(statements(alone[1]))
    decisions.append(Decision("fission", names, True, "in lanes, after all of the totals that they need"))
    made = Sequence(tuple(Band((m,), part, tree.permutable) for m, part in zip(loops, alone, strict=True)))
    return Band(tuple(outer), made, tree.permutable) if outer else made


def _has_total(graph: TensorGraph, nest: Tree) -> bool:
    return any(graph.statement(n).reduction for n in statements(nest))
