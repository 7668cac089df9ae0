"""Expressions made simpler, statement by statement: constants folded, identities applied, casts joined.

What a statement writes does not change by a bit, except which NaN a NaN is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from polyfuse.decisions import Decision
from polyfuse.ir.dtypes import BOOL, F8E5M2, DType
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, binary
from polyfuse.ir.intervals import of_dims
from polyfuse.ir.linear import Range, index_operand, interval, linear
from polyfuse.ir.tensor_graph import (
    Apply,
    Cast,
    Const,
    Expr,
    Select,
    Statement,
    TensorGraph,
    format_expr,
    map_expr,
    map_index,
)
from polyfuse.layers.graph.cleanup.folding import fold_node
from polyfuse.layers.graph.cleanup.identities import Rule, apply_identity

# So many passes over a statement at most: each makes it smaller, and one or two are usual.
PASSES = 8
# So many reasons are told of one statement.
MOST_TOLD = 4

_PRECISION = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "f8e4m3fn": 4, "f8e5m2": 3}


def unchecked(graph: TensorGraph) -> TensorGraph:
    """Numbers that only checked builds look at (`within`), as they are."""

    def plain(e: Expr) -> Expr:
        return e.args[0] if isinstance(e, Apply) and e.op == "within" else e

    statements = tuple(replace(s, expr=map_expr(s.expr, plain)) for s in graph.statements)
    kept = all(a.expr is b.expr for a, b in zip(statements, graph.statements, strict=True))
    return graph if kept else replace(graph, statements=statements)


def fold_constants(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """Operations on constants, done once (see `cleanup.folding`).

        y[i] = x[i] * (2.0 * 3.0)
    becomes
        y[i] = x[i] * 6.0
    """
    return _each_statement(graph, "fold", _fold, decisions)


def simplify(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """Exact identities (the table of `cleanup.identities`), and casts that change nothing.

        y[i] = x[i] * 1.0 - (-z[i])
        k[i] = i64(i32(j[i]))                (j is i16: each conversion is exact)
    becomes
        y[i] = x[i] + z[i]
        k[i] = i64(j[i])
    """
    return _each_statement(graph, "simplify", _simpler, decisions)


def fold_indices(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """Quotients, remainders and comparisons of indices, where the bounds of loops tell them.

        y[k] = x[k//32*4, k%32] if k < 40 else 0.0  for k in 0..32
    becomes
        y[k] = x[0, k] if true else 0.0  for k in 0..32
    """
    statements = []
    for s in graph.statements:
        ranges = of_dims(s.dims)
        divided, compared = partial(_divided, ranges=ranges), partial(_compared, ranges=ranges)
        expr = map_expr(s.expr, compared, divided)
        write = tuple(map_index(i, partial(map_expr, on_expr=compared), divided) for i in s.write)
        if expr is not s.expr or any(a is not b for a, b in zip(write, s.write, strict=True)):
            decisions.append(Decision("fold", s.name, True, "what the bounds of loops tell of its indices"))
            s = replace(s, expr=expr, write=write)
        statements.append(s)
    if all(a is b for a, b in zip(statements, graph.statements, strict=True)):
        return graph
    return replace(graph, statements=tuple(statements))


def _divided(e: IndexExpr, ranges: Mapping[str, Range]) -> IndexExpr:
    if not isinstance(e, IBin):
        return e
    left, right = _divided(e.left, ranges), _divided(e.right, ranges)
    if e.op in ("//", "%") and isinstance(right, IConst) and right.value > 0:
        bounds, by = interval(left, ranges), right.value
        if bounds is not None and bounds[0] // by == bounds[1] // by:
            quotient = bounds[0] // by
            return IConst(quotient) if e.op == "//" else binary("-", left, quotient * by)
    return e if left is e.left and right is e.right else binary(e.op, left, right)


def _compared(e: Expr, ranges: Mapping[str, Range]) -> Expr:
    """A comparison of indices that holds everywhere, or nowhere, as a constant."""
    if not isinstance(e, Apply) or e.op not in _ORDER:
        return e
    a, b = (index_operand(x) for x in e.args)
    if a is None or b is None or (isinstance(a, IConst) and isinstance(b, IConst)):
        return e
    bounds = interval(linear(a - b).expr(), ranges)
    answers = {_ORDER[e.op](d, 0) for d in bounds or (-1, 0, 1)}
    return Const(answers.pop(), BOOL, e.span) if len(answers) == 1 else e


_ORDER = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}

Note = Callable[[str], None]


def _each_statement(
    graph: TensorGraph, kind: str, on_expr: Callable[[Expr, Note], Expr], decisions: list[Decision]
) -> TensorGraph:
    statements = []
    for s in graph.statements:
        reasons: list[str] = []
        new = _statement(s, _noting(on_expr, reasons.append))
        if new is not s:
            why = [*dict.fromkeys(reasons)]
            told = why[:MOST_TOLD] + (["..."] if len(why) > MOST_TOLD else [])
            decisions.append(Decision(kind, s.name, True, ", ".join(told)))
        statements.append(new)
    if all(a is b for a, b in zip(statements, graph.statements, strict=True)):
        return graph
    return replace(graph, statements=tuple(statements))


def _noting(on_expr: Callable[[Expr, Note], Expr], note: Note) -> Callable[[Expr], Expr]:
    return lambda e: on_expr(e, note)


def _statement(s: Statement, on_expr: Callable[[Expr], Expr]) -> Statement:
    def mapped(e: Expr) -> Expr:
        return map_expr(e, on_expr)

    expr = mapped(s.expr)
    if isinstance(s.expr, Cast) and not isinstance(expr, Cast) and expr.dtype.compute is not expr.dtype:
        expr = replace(s.expr, arg=mapped(s.expr.arg))  # a write to a 16-bit float ends in a cast
        expr = s.expr if expr.arg is s.expr.arg else expr
    write = tuple(map_index(i, mapped, None) for i in s.write)
    if expr is s.expr and all(a is b for a, b in zip(write, s.write, strict=True)):
        return s
    return replace(s, expr=expr, write=write)


def _fold(e: Expr, note: Note) -> Expr:
    new = fold_node(e)
    if new is not e:
        note(f"{_bare(e)} is {format_expr(new)}")
    return new


def _bare(e: Expr) -> str:
    text = format_expr(e)
    return text[1:-1] if text.startswith("(") else text


def _simpler(e: Expr, note: Note) -> Expr:
    def noted(rule: Rule) -> None:
        note(str(rule))

    for _ in range(PASSES):
        match e:
            case Apply() | Select():
                new = apply_identity(e, noted)
            case Cast():
                new = _joined_casts(e, note)
            case _:
                return e
        if new is e:
            return e
        e = new
    return e


def _joined_casts(e: Cast, note: Note) -> Expr:
    """f64(f32(h)) of an f16 is f64(h), f16(f32(h)) is h: the wider type holds each value of the narrower."""
    if e.arg.dtype is e.dtype:
        note(f"{e.dtype} of {e.dtype}")
        return e.arg
    if isinstance(e.arg, Cast) and _needless(e.arg.arg.dtype, e.arg.dtype, e.dtype):
        inner = e.arg.arg
        note(f"{e.dtype}({e.arg.dtype}({inner.dtype})) is exact without {e.arg.dtype}")
        return inner if inner.dtype is e.dtype else replace(e, arg=inner)
    return e


def _needless(source: DType, between: DType, target: DType) -> bool:
    """Is a conversion the same without the type between? That must hold the source; and floats end at the
    limits of an integer type, where integers wrap: i8(f32(k)) of a u8 is 127 for 200, i8(k) is -56."""
    saturates = between.is_float and target.is_integer and not source.is_float
    if source is target is F8E5M2:  # whose infinities a cast to it brings in
        return False
    return holds(between, source) and (not saturates or holds(target, source))


def holds(wide: DType, narrow: DType) -> bool:
    """Can the first type represent each value of the second, so that a conversion to it loses nothing?"""
    if wide is narrow or narrow.is_bool:
        return True
    if wide.is_bool:
        return False
    if narrow.is_float:
        # Of two of one width, one has more digits, the other more range.
        return wide.is_float and wide.bits > narrow.bits
    if wide.is_float:
        return narrow.limits[1].bit_length() <= _PRECISION[wide.name]
    return wide.holds(narrow)
