"""Sums over windows: an index adds a dim that is summed to others, so that neighbours read the same elements.

y[q, c] = sum[s](x[q + s, c] * w[s, c])
"""

from __future__ import annotations

from collections.abc import Iterable

from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, variables
from polyfuse.ir.linear import linear
from polyfuse.ir.tensor_graph import Expr, Statement, TensorGraph, map_expr

# Elements of a row over windows that is not cut into strips.
LONGEST_ROW = 2048


def sums_windows(s: Statement) -> bool:
    """Does an index add a dim that is summed to others, so that neighbours read the same elements?"""
    summed = {
        d.name: d.upper.value - d.lower.value - 1
        for d in s.dims
        if d.reduce and isinstance(d.lower, IConst) and isinstance(d.upper, IConst)
    }
    for form in map(linear, indices_of(s.expr)):
        factors = [(a.name if isinstance(a, IVar) else "", abs(c)) for a, c in form.terms]
        length = max((c * summed[a] for a, c in factors if a in summed), default=0)
        if any(c <= length for a, c in factors if a not in summed):
            return True
    return False


def window_rows(graph: TensorGraph, names: Iterable[str], trip: int | None) -> bool:
    """Are all reductions of these statements over windows, wherever they begin, with a total for each element
    of rows of that length? Registers hold these (`codegen.neighbours`)."""
    sums = [s for s in map(graph.statement, names) if s.reduction is not None]
    if trip is None or trip > LONGEST_ROW or not sums:
        return False
    return all(any(_is_added(s, i) for i in indices_of(s.expr)) for s in sums)


def _is_added(s: Statement, index: IndexExpr) -> bool:
    """Does an index add a dim that is summed to another one?"""
    found = set(variables(index))
    return bool(found & set(s.reduction_dims)) and not found <= set(s.reduction_dims)


def indices_of(e: Expr) -> list[IndexExpr]:
    """All indices in an expression that are found without data."""
    found: list[IndexExpr] = []

    def look(i: IndexExpr) -> IndexExpr:
        found.append(i)
        return i

    map_expr(e, lambda x: x, look)
    return found
