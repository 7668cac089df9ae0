"""Divisions by a size that is 0 are taken out of statements that have no instances.

    y[a, i] = x[a, (i + 2) % 0]    for a in 0..3, i in 0..0
becomes
    y[a, i] = x[a, 0]              for a in 0..3, i in 0..0

The proofs about ranges let such a division stand, since nothing ever computes it; what comes after them takes
indices to isl, which has no text for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyfuse.diagnostics import DslError
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, binary
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    IndexValue,
    IterDim,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    map_index,
    statement_reads,
    walk,
)
from polyfuse.poly.model.isl_bridge import NotAffine, isl_lock, new_context
from polyfuse.poly.model.isl_text import IslText


def without_zero_divisions(graph: TensorGraph) -> TensorGraph:
    """The graph, its ranges proved, without divisions by 0 that nothing computes. Raises DslError PF356 for
    one in the range of a loop that is reached."""
    if not any(_by_zero(i) for s in graph.statements for i in _indices(s)):
        return graph
    statements = tuple(_harmless(graph, s) for s in graph.statements)
    return replace(graph, statements=statements, tensors=tuple(map(_defined, graph.tensors)))


def _defined(t: Tensor) -> Tensor:
    """A temporary, whose extents are the ranges of statements, without divisions by 0."""
    return replace(t, shape=tuple(map(_with_zeros, t.shape))) if t.role is Role.TEMP else t


def _harmless(graph: TensorGraph, s: Statement) -> Statement:
    """A statement that never runs, with 0 for what it divides by 0; others stay as they are."""
    if not any(map(_by_zero, _indices(s))):
        return s
    undefined = tuple(d for d in s.dims if _by_zero(d.lower) or _by_zero(d.upper))
    if not _never_runs(graph, s.dims, undefined):
        if undefined:
            message = f"division by zero in the range {undefined[0].lower}..{undefined[0].upper}"
            raise DslError(message, code="PF356", span=s.span, hint="use a divisor that is not 0")
        return s  # the division is a number of the program, which is defined

    def expr(e: Expr) -> Expr:
        return map_expr(e, lambda x: x, _with_zeros)

    return replace(
        s,
        dims=tuple(replace(d, lower=_with_zeros(d.lower), upper=_with_zeros(d.upper)) for d in s.dims),
        write=tuple(map_index(i, expr, _with_zeros) for i in s.write),
        expr=expr(s.expr),
    )


def _never_runs(graph: TensorGraph, dims: tuple[IterDim, ...], undefined: tuple[IterDim, ...]) -> bool:
    """Are the loops empty, whatever the undefined ones among them are?"""
    text = IslText(graph, {}, new_context())
    scope = {d.name: f"v{k}" for k, d in enumerate(dims)}
    known = tuple(d for d in dims if d not in undefined)
    try:
        with isl_lock:
            return text.set([*scope.values()], text.bounds(known, scope)).is_empty()
    except NotAffine:
        return False


def _indices(s: Statement) -> Iterator[IndexExpr]:
    """All index expressions of a statement."""
    for d in s.dims:
        yield from (d.lower, d.upper)
    values = [s.expr, *(i for i in s.write if isinstance(i, EXPR_TYPES))]
    for indices in (s.write, *(r.indices for r in statement_reads(s))):
        yield from (i for i in indices if not isinstance(i, EXPR_TYPES))
    for e in (x for value in values for x in walk(value) if isinstance(x, IndexValue)):
        yield e.index


def _by_zero(e: IndexExpr) -> bool:
    match e:
        case IBin("//" | "%", _, IConst(0)):
            return True
        case IBin(_, left, right):
            return _by_zero(left) or _by_zero(right)
    return False


def _with_zeros(e: IndexExpr) -> IndexExpr:
    """0 in place of each division by 0."""
    match e:
        case IBin("//" | "%", _, IConst(0)):
            return IConst(0)
        case IBin(op, left, right) if _by_zero(e):
            return binary(op, _with_zeros(left), _with_zeros(right))
    return e
