"""Composition of views: pads, concatenations and slices become part of the index maps that read them.

    c[i] = a[i] for i in 0..N;  c[i] = b[i - N] for i in N..N+M
    y[i] = c[i + 1] * g[i]
becomes
    y[i] = (a[i + 1] if i + 1 < N else b[i + 1 - N]) * g[i]

and `layers.split_guards` turns the condition into bounds.  A tensor in pieces that is copied only to be read
at other places is not stored any more.  It is done where every condition it brings can be turned into
bounds, so that no inner loop is left with one.  (A padded convolution keeps its pad: a term ``0 * w`` may be
a NaN, so it may not be left out.)
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IndexExpr, IVar, substitute, variables
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Const,
    Expr,
    IndexValue,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
    map_expr,
    reads,
    walk,
)
from polyfuse.layers.split_guards import split_guards

MOST_PIECES = 5


def compose_views(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """Replace reads of tensors in pieces by what the pieces read, where that leaves no conditions."""
    for t in graph.tensors:
        pieces = graph.writers(t.name)
        if t.role is not Role.TEMP or t.exact or not 2 <= len(pieces) <= MOST_PIECES:
            continue
        if not all(map(_is_view, pieces)) or not _plain_reads(graph, t.name):
            continue
        composed = _composed(graph, t.name, pieces)
        if _guards(split_guards(composed, [])) > _guards(split_guards(graph, [])):
            reason = "its pieces would leave conditions in the loops that read it"
            decisions.append(Decision("inline pieces", t.name, False, reason))
            continue
        decisions.append(Decision("inline pieces", t.name, True, f"{len(pieces)} pieces are read in place"))
        graph = composed
    return graph


def _is_view(s: Statement) -> bool:
    """A copy of at most one element of another tensor, at a place that its dims say."""
    copies = isinstance(s.expr, (Read, Const))
    plain = all(not isinstance(i, EXPR_TYPES) and (isinstance(i, IVar) or not variables(i)) for i in s.write)
    inner = isinstance(s.expr, Read) and any(isinstance(i, EXPR_TYPES) for i in s.expr.indices)
    return s.reduction is None and not s.accumulate and copies and plain and not inner


def _plain_reads(graph: TensorGraph, tensor: str) -> bool:
    """Is every read of a tensor at affine places, and by statements other than its pieces?"""
    for s in graph.readers(tensor):
        if s.target == tensor or any(isinstance(i, EXPR_TYPES) for i in s.write):
            return False
        for r in reads(s.expr):
            if r.tensor == tensor and any(isinstance(i, EXPR_TYPES) for i in r.indices):
                return False
    return bool(graph.readers(tensor))


def _composed(graph: TensorGraph, tensor: str, pieces: tuple[Statement, ...]) -> TensorGraph:
    def expand(e: Expr) -> Expr:
        if not (isinstance(e, Read) and e.tensor == tensor):
            return e
        # The pieces cover what is read (proved), so the last one needs no condition.
        *first, last = sorted(pieces, key=lambda p: isinstance(p.expr, Const))
        value = _at(last, e)[1]
        for piece in reversed(first):
            cond, inside = _at(piece, e)
            value = Select(cond, inside, value, e.dtype, e.span)
        return value

    statements = tuple(
        replace(s, expr=map_expr(s.expr, expand)) for s in graph.statements if s.target != tensor
    )
    return replace(graph, statements=statements, tensors=tuple(t for t in graph.tensors if t.name != tensor))


def _at(piece: Statement, read: Read) -> tuple[Expr, Expr]:
    """(is the element that is read in this piece?, its value there)."""
    env: dict[str, IndexExpr] = {}
    parts: list[Expr] = []
    for place, index in zip(piece.write, read.indices, strict=True):
        assert not isinstance(place, EXPR_TYPES) and not isinstance(index, EXPR_TYPES)
        if isinstance(place, IVar):
            env[place.name] = index
        else:
            parts.append(_compare("eq", index, place))
    for d in piece.dims:
        parts.append(_compare("ge", env[d.name], substitute(d.lower, env)))
        parts.append(_compare("lt", env[d.name], substitute(d.upper, env)))
    cond = parts[0]
    for p in parts[1:]:
        cond = Apply("and", (cond, p), BOOL)
    return cond, map_expr(piece.expr, lambda x: x, lambda i: substitute(i, env))


def _compare(op: str, left: IndexExpr, right: IndexExpr) -> Expr:
    return Apply(op, (IndexValue(left, I64), IndexValue(right, I64)), BOOL)


def _guards(graph: TensorGraph) -> int:
    """How many conditions on indices are left in the graph."""
    return sum(
        isinstance(e, Select) and any(isinstance(x, IndexValue) for x in walk(e.cond))
        for s in graph.statements
        for e in walk(s.expr)
    )
