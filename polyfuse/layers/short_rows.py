"""Results that go over short rows, and along memory elsewhere, have a statement for each element of a row.

    y[n, c] = 2.0 * x[c, n]                           for c in 0..3
becomes
    y[n, 0] = 2.0 * x[0, n];  y[n, 1] = 2.0 * x[1, n];  y[n, 2] = 2.0 * x[2, n]

Three channels fill no vector, and with a loop over them outside of the one over points each round stores to
every third element, of the same lines as others.  In one loop over points, compilers join elements of a row
to vectors.  What always goes over all of a row, as `y[n, c] = x[n, c] * m[c]` does, is one long row of
memory, and stays.  So do functions of rows, which are vectors along them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.functions import is_function
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, substitute, variables
from polyfuse.ir.linear import linear, simplify
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Expr,
    Index,
    IterDim,
    Role,
    Select,
    Statement,
    TensorGraph,
    reads,
    statement_reads,
    walk,
)
from polyfuse.layers.depending import depending
from polyfuse.layers.fresh import fresh_name
from polyfuse.layers.short_dims import LONGEST, MOST_STATEMENTS
from polyfuse.layers.short_sums import MOST_OPERATIONS, at

# Fewer points are no loop over vectors.
FEWEST_POINTS = 16


def split_short_rows(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """The graph with such statements written out."""
    for s in graph.statements:
        row = _row(graph, s)
        if row is None or len(graph.statements) + _count(row) > MOST_STATEMENTS:
            continue
        pieces = tuple(_pieces(graph, s, row))
        statements = tuple(x for t in graph.statements for x in (pieces if t is s else (t,)))
        graph = replace(graph, statements=statements)
        why = (
            f"{len(pieces)} values of {row.name} fill no vector: each has a statement, in a loop along memory"
        )
        decisions.append(Decision("unroll", s.target, True, why))
    return graph


def _pieces(graph: TensorGraph, s: Statement, row: IterDim) -> Iterator[Statement]:
    """The statements in place of one, for each value of a dim."""
    for k in range(_count(row)):
        value: dict[str, IndexExpr] = {row.name: simplify(row.lower + k, {})}
        name = fresh_name(graph, f"{s.name}__{k}")
        write = tuple(i if isinstance(i, EXPR_TYPES) else substitute(i, value) for i in s.write)
        dims = tuple(d for d in s.dims if d is not row)
        yield replace(s, name=name, dims=dims, write=write, expr=at(s.expr, value))


def _row(graph: TensorGraph, s: Statement) -> IterDim | None:
    """The dim that a statement is to be written out by; None where it stays."""
    target = graph.tensor(s.target)
    if target.role is not Role.OUTPUT or target.alias is not None or s.reduction is not None or s.accumulate:
        return None
    if s.name in depending(graph, s):
        return None
    accesses = [(s.target, s.write), *((r.tensor, r.indices) for r in statement_reads(s))]
    indices = [i for _, i in accesses if i]
    for row in s.dims:
        points = _points(s, row, indices)
        if points is not None and _may_be(graph, s, row, points, accesses):
            return row
    return None


def _count(d: IterDim) -> int:
    """How many values a short dim has; 0 where it is not short."""
    if not isinstance(d.lower, IConst) or not isinstance(d.upper, IConst):
        return 0
    count = d.upper.value - d.lower.value
    return count if 1 < count <= LONGEST else 0


def _points(s: Statement, row: IterDim, accesses: list[tuple[Index, ...]]) -> IterDim | None:
    """The dim of points, if one access goes over rows of each point and another along points."""
    if not _count(row):
        return None
    over = {i[-2] for i in accesses if i[-1] == IVar(row.name) and len(i) > 1}
    for d in s.dims:
        ends = (d.lower, d.upper)
        few = all(isinstance(e, IConst) for e in ends) and linear(d.upper - d.lower).constant < FEWEST_POINTS
        if IVar(d.name) in over and not few and any(_goes_along(i, d, row) for i in accesses):
            return d
    return None


def _goes_along(access: tuple[Index, ...], points: IterDim, row: IterDim) -> bool:
    """Is the last index that is not the same for all points and elements that of the points?"""
    for i in reversed(access):
        found = set() if isinstance(i, EXPR_TYPES) else set(variables(i)) & {points.name, row.name}
        if found:
            return found == {points.name}
    return False


def _may_be(
    graph: TensorGraph,
    s: Statement,
    row: IterDim,
    points: IterDim,
    accesses: list[tuple[str, tuple[Index, ...]]],
) -> bool:
    """Is every access one of a number along the row, without digits or data, and the statement small?"""
    if any(row.name in {*variables(d.lower), *variables(d.upper)} for d in s.dims):
        return False
    if any(_function_of_rows(e, row) for e in walk(s.expr)):
        return False
    operations = sum(isinstance(e, Apply | Select) for e in walk(s.expr))
    if operations * _count(row) > MOST_OPERATIONS:
        return False
    for tensor, indices in accesses:
        for index, extent in zip(indices, graph.tensor(tensor).shape, strict=True):
            if isinstance(index, EXPR_TYPES) or _digits(index, (row.name, points.name)):
                return False
            if row.name in variables(index) and not _inside(index, row, extent):
                return False
    return True


def _function_of_rows(e: Expr, row: IterDim) -> bool:
    """Is a function computed of what lies along the row?"""
    if not (isinstance(e, Apply) and is_function(e)):
        return False
    return any(r.indices[-1:] == (IVar(row.name),) for a in e.args for r in reads(a))


def _digits(index: IndexExpr, names: Iterable[str]) -> bool:
    """Is a variable divided in an index?"""
    if not isinstance(index, IBin):
        return False
    divided = index.op in ("//", "%") and not set(names).isdisjoint(variables(index))
    return divided or _digits(index.left, names) or _digits(index.right, names)


def _inside(index: IndexExpr, row: IterDim, extent: IndexExpr) -> bool:
    """Is an index that of an element for all values of the row?  A condition may keep it from being one."""
    values = (simplify(substitute(index, {row.name: row.lower + k}), {}) for k in range(_count(row)))
    return isinstance(extent, IConst) and all(
        isinstance(v, IConst) and 0 <= v.value < extent.value for v in values
    )
