"""Reductions over a whole row are folded where another phase reads the pieces of the row side by side.

    r[t] = sum[h in 0..2H](x[t, h] * x[t, h])
    y[t, h] = f(x[t, h], x[t, h + H], r[t])                                     for h in 0..H
becomes
    r[t] = sum[h in 0..H](x[t, h] * x[t, h] + x[t, h + H] * x[t, h + H])
    y[t, h] = f(x[t, h], x[t, h + H], r[t])                                     for h in 0..H

A thread of the row then needs the same elements in both phases, and can keep them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.linear import Linear, linear
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.schedule_tree import Band, Member, Tree, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Expr,
    Statement,
    TensorGraph,
    map_expr,
    statement_reads,
)
from polyfuse.layers.mapping.nests import dim_of, innermost

MOST_PIECES = 4


def fold_rows(graph: TensorGraph, tree: Tree, decisions: list[Decision]) -> TensorGraph:
    """The graph with such reductions folded."""
    bands = innermost(tree)
    for b in bands:
        others = {p for o in bands if o is not b for m in o.members for p in _pieces(graph, o, m)}
        for m in b.members:
            length, count = _row(graph, m), _count(set(_pieces(graph, b, m)), others)
            if length is None or count is None:
                continue
            dims = {n: e.name for n, e in m.exprs if isinstance(e, IVar)}
            folded = {n: _folded(graph.statement(n), d, length // count, count) for n, d in dims.items()}
            graph = replace(graph, statements=tuple(folded.get(s.name, s) for s in graph.statements))
            why = f"other statements of the row read it in {count} pieces, side by side"
            decisions.append(Decision("fold", ", ".join(statements(b)), True, why))
    return graph


@dataclass(frozen=True, slots=True)
class _Piece:
    """The elements of a tensor that a loop reads along one place of its indices."""

    tensor: str
    place: int
    start: int
    length: int

    def parts(self, count: int) -> set[_Piece]:
        """The piece in so many of one length."""
        each = self.length // count
        return {replace(self, start=self.start + k * each, length=each) for k in range(count)}


def _pieces(graph: TensorGraph, band: Band, m: Member) -> Iterator[_Piece]:
    """What the statements of a band read along a loop that starts at 0."""
    for n in statements(band):
        e = m.of(n)
        dim = dim_of(graph.statement(n), e.name) if isinstance(e, IVar) else None
        if dim is None or dim.lower != IConst(0) or not isinstance(dim.upper, IConst):
            continue
        for r in statement_reads(graph.statement(n)):
            for k, i in enumerate(r.indices):
                form = Linear((), 0) if isinstance(i, EXPR_TYPES) else linear(i)
                if form.terms == ((IVar(dim.name), 1),):
                    yield _Piece(r.tensor, k, form.constant, dim.upper.value)


def _row(graph: TensorGraph, m: Member) -> int | None:
    """The length of a loop all of whose statements are reductions that can be folded along it."""
    lengths: set[int] = set()
    for n, e in m.exprs:
        s = graph.statement(n)
        dim = dim_of(s, e.name) if isinstance(e, IVar) else None
        if dim is None or not dim.reduce or dim.lower != IConst(0) or not isinstance(dim.upper, IConst):
            return None
        bounds: list[IndexExpr] = [b for d in s.dims for b in (d.lower, d.upper)]
        if s.reduction not in COMBINES or s.accumulate or any(dim.name in variables(b) for b in bounds):
            return None
        lengths.add(dim.upper.value)
    return lengths.pop() if len(lengths) == 1 else None


def _count(mine: set[_Piece], others: set[_Piece]) -> int | None:
    """Of how many pieces others read all that is read here whole, if it is such a row."""
    for count in range(2, MOST_PIECES + 1):
        if any(p.length and p.length % count == 0 and p.parts(count) <= others for p in mine):
            return count
    return None


def _folded(s: Statement, dim: str, length: int, count: int) -> Statement:
    """A reduction over `count` times `length` elements as one over `length`."""

    def piece(k: int) -> Expr:
        env = {dim: binary("+", IVar(dim), k * length)}
        return map_expr(s.expr, lambda e: e, lambda i: substitute(i, env))

    operation = COMBINES[str(s.reduction)]
    joined = reduce(lambda a, b: Apply(operation, (a, b), a.dtype, s.span), map(piece, range(count)))
    dims = tuple(replace(d, upper=IConst(length)) if d.name == dim else d for d in s.dims)
    return replace(s, dims=dims, expr=joined)
