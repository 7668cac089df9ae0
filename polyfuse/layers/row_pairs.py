"""Pairs of rows: workers share the rows of one side, and each has a loop over all rows of the other side.

    B(i @blk, j @blk)[B(k)(d)]     becomes     B(i @blk)B(j)[B(k)(d)]

where d[i, j] = sum[k](abs(x[i, k] - z[j, k])).  A worker keeps a row of x for all rows of z, need not take
the number of a pair apart, and has a loop that vectors may run along (`layers.totals_first`).
"""

from __future__ import annotations

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IVar
from polyfuse.ir.schedule_tree import Band, Member, statements
from polyfuse.ir.tensor_graph import TensorGraph, depends_on, reads
from polyfuse.layers.nest import has_band, trip_of


def of_pairs(graph: TensorGraph, phase: Band, free: int, threads: int) -> bool:
    """Do two free loops make pairs, of one row that all of the other loop reads with each of rows that all of
    the one reads? Then workers share the one if it is long enough, and go through the other."""
    if free < 2 or (free == len(phase.members) and not has_band(phase.child)):
        return False
    one, other = phase.members[free - 2 : free]
    trips = [trip_of(graph, m) or 0 for m in (one, other)]
    if trips[0] < FITTED.row_pairs_rows_of_a_worker * threads or trips[1] < FITTED.row_pairs_fewest_others:
        return False
    found: set[tuple[bool, bool]] = set()
    for n in statements(phase):
        s = graph.statement(n)
        ours, theirs = _variable(one, n), _variable(other, n)
        used = map(depends_on, reads(s.expr)) if s.reduction else ()
        found |= {(ours in names, theirs in names) for names in used}
    return found >= {(True, False), (False, True)}


def _variable(m: Member, statement: str) -> str | None:
    (found,) = [e for n, e in m.exprs if n == statement]
    return found.name if isinstance(found, IVar) else None
