"""Reductions over a few terms are written out.

    d[i, j] = sum[c](x[i, c] - y[j, c])      for c in 0..3
becomes
    d[i, j] = (x[i, 0] - y[j, 0]) + (x[i, 1] - y[j, 1]) + (x[i, 2] - y[j, 2])

Three terms fill no vector; without the reduction all loops may be lanes, and values are computed where they
are read.  Sums of windows keep their loop, for neighbours share their terms, and so do those of four terms
and more along both factors, unless something sums them up: these are tiles.  Eight terms are a vector, and
no gain for rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import product
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, substitute
from polyfuse.ir.linear import simplify
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.tensor_graph import (
    Apply,
    Expr,
    Select,
    Statement,
    TensorGraph,
    map_expr,
    statement_reads,
    walk,
)
from polyfuse.layers.products import product_of, with_followers
from polyfuse.layers.rewrites import inlinable, inline
from polyfuse.layers.windows import sums_windows

MOST_TERMS = 7
# The definition that comes of it has no more operations than a compiler keeps in registers.
MOST_OPERATIONS = 128


def write_out(graph: TensorGraph, decisions: list[Decision], core: Core) -> TensorGraph:
    """The graph with such reductions written out, in what reads each of their elements once if they are
    temporary."""
    for name in [s.name for s in graph.statements]:
        s = graph.statement(name)  # as it is by now: it may have taken what it read in
        points = _points(s)
        if 0 < len(points) <= MOST_TERMS and _may_be(graph, s, len(points), core):
            why = f"{len(points)} terms fill no vector: they are added where the sum is read"
            decisions.append(Decision("unroll", s.target, True, why))
            written = written_out(s, points)
            graph = replace(graph, statements=tuple(written if x is s else x for x in graph.statements))
            if _read_once(graph, written):
                graph = inline(graph, s.target)
    return graph


def _read_once(graph: TensorGraph, s: Statement) -> bool:
    """Is each element of a temporary read once, in an iteration of its own?"""
    if inlinable(graph, s.target) is None:
        return False
    (reader, *more) = graph.readers(s.target) or (s,)
    found = [r for r in statement_reads(reader) if r.tensor == s.target]
    return not more and len(found) == 1 and set(found[0].indices) == {IVar(d.name) for d in reader.dims}


def _points(s: Statement) -> list[dict[str, IndexExpr]]:
    """The values of the reduced dims, one after the other; none where they are not known, or many."""
    if s.reduction not in COMBINES or s.accumulate:
        return []
    spans: list[range] = []
    for d in s.dims:
        if d.reduce:
            if not (isinstance(d.lower, IConst) and isinstance(d.upper, IConst)):
                return []
            spans.append(range(d.lower.value, d.upper.value))
    if prod(map(len, spans)) > MOST_TERMS:
        return []
    return [dict(zip(s.reduction_dims, map(IConst, at), strict=True)) for at in product(*spans)]


def _may_be(graph: TensorGraph, s: Statement, terms: int, core: Core) -> bool:
    """Is a reduction short of operations, and none that loops or tiles are better for?"""
    if terms * sum(isinstance(e, Apply | Select) for e in walk(s.expr)) > MOST_OPERATIONS:
        return False
    if terms > 1 and sums_windows(s):
        return False
    p = product_of(graph, s, core)
    following = {f.statement for f in with_followers(graph, p).followers} if p else set()
    return p is None or any(t.name not in following for t in graph.readers(s.target))


def written_out(s: Statement, points: list[dict[str, IndexExpr]]) -> Statement:
    """A reduction as an expression of its terms at these values of its dims."""
    operation = COMBINES[str(s.reduction)]
    terms = [at(s.expr, values) for values in points]
    joined = reduce(lambda a, b: Apply(operation, (a, b), a.dtype, s.span), terms)
    return replace(s, dims=tuple(d for d in s.dims if not d.reduce), expr=joined, reduction=None)


def at(e: Expr, values: dict[str, IndexExpr]) -> Expr:
    """An expression with values in place of dims."""
    return map_expr(e, lambda x: x, lambda i: simplify(substitute(i, values), {}))
