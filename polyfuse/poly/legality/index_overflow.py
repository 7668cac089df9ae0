"""Index arithmetic at known sizes has room in 64 bits, or wraps as integers of a program do.

    y[i] = max(i * 2**62, 0)    for i in 0..4        the product wraps: it becomes arithmetic of i64
    y[i] = x[i * 2**62 // 2**62]                     refused (PF362)

Index expressions (`ir.index_expr`) are exact integers for isl, for intervals and for what simplifies them;
machines compute them in 64 bits.  Both are the same where all parts of an expression stay below `LIMIT`,
which leaves room for the sums and products that code generation makes of them.  A number of a program with
other parts becomes an expression of i64, which no proof and no simplification takes for an exact one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from polyfuse.diagnostics import Diagnostics
from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, wrapped
from polyfuse.ir.intervals import fits
from polyfuse.ir.linear import Range, combined
from polyfuse.ir.ops import BY_SIGN
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    IterDim,
    Statement,
    TensorGraph,
    map_expr,
    map_index,
    statement_reads,
)
from polyfuse.source import Span

LIMIT = 2**53
"""Indices, ranges, extents and their parts stay below this."""

# What variables and sizes may be; a name that is not there may be anything small.
Spans = Mapping[str, Range]
# Sizes that have one value, or any of a range.
Sizes = Mapping[str, int | Range]


def spans_of(dims: tuple[IterDim, ...], sizes: Sizes) -> dict[str, Range]:
    """The values of sizes, and of variables whose ranges follow from them."""
    found = {n: v if isinstance(v, tuple) else (v, v) for n, v in sizes.items()}
    for d in dims:
        low, high = span(d.lower, found), span(d.upper, found)
        if low is not None and high is not None:
            found[d.name] = low[0], max(high[1] - 1, low[0])
    return found


def span(e: IndexExpr, spans: Spans) -> Range | None:
    """The exact values that an expression may take; None where a size is open."""
    return parts_of(e, spans)[-1][1]


def parts_of(e: IndexExpr, spans: Spans) -> list[tuple[IndexExpr, Range | None]]:
    """An expression and its parts, the smallest first, each with the values that it may take."""
    found: list[tuple[IndexExpr, Range | None]] = []

    def go(x: IndexExpr) -> Range | None:
        values: Range | None = None
        match x:
            case IConst(value):
                values = value, value
            case IVar(name) | ISize(name):
                values = spans.get(name)
            case IBin(op, left, right):
                a, b = go(left), go(right)
                if a is not None and b is not None:
                    values = combined(op, a, b) or _divided(a if op == "//" else b)
        found.append((x, values))
        return values

    go(e)
    return found


def _divided(values: Range) -> Range:
    """A quotient is not larger than what is divided, a remainder not larger than the divisor."""
    most = max(map(abs, values))
    return -most, most


def has_room(e: IndexExpr, spans: Spans) -> bool:
    """Do the expression and all parts of it stay below `LIMIT`, as far as sizes are known?"""
    return all(_is_small(values) for _, values in parts_of(e, spans))


def _is_small(values: Range | None) -> bool:
    return values is None or (values[0] > -LIMIT and values[1] < LIMIT)


def is_exact(e: IndexExpr, spans: Spans) -> bool:
    """Has a number room, and no divisor that may be 0?  A program's number is 0 there."""
    parts = parts_of(e, spans)
    if not all(_is_small(values) for _, values in parts):
        return False
    values_of = {id(x): values for x, values in parts}
    divisors = (values_of[id(x.right)] for x, _ in parts if isinstance(x, IBin) and x.op in ("//", "%"))
    return all(found is None or found[0] > 0 for found in divisors)


def wrapping(graph: TensorGraph, sizes: Sizes, casts: bool = True) -> TensorGraph:
    """The graph with numbers that have no room, or may be divided by 0, as arithmetic of i64; with `casts`,
    those of numbers that fit are left out."""
    statements = tuple(_statement(s, spans_of(s.dims, sizes), casts) for s in graph.statements)
    if all(a is b for a, b in zip(statements, graph.statements, strict=True)):
        return graph
    return replace(graph, statements=statements)


def _statement(s: Statement, spans: Spans, casts: bool) -> Statement:
    def number(e: Expr) -> Expr:
        match e:
            case IndexValue(index, dtype) if not is_exact(index, spans):
                value = arithmetic(index, spans, e)
                return value if dtype is I64 else Cast(value, dtype, e.span)
            case Cast(IndexValue(index, source), dtype) if casts and source is I64 and dtype.is_integer:
                # A cast that wraps stays one: such an index is no value of the dtype
                # (`poly.legality.ranges`).
                values = span(index, spans)
                return IndexValue(index, dtype, e.span) if values and fits(values, dtype) else e
            case _:
                return e

    expr = map_expr(s.expr, number)
    write = tuple(map_index(i, lambda x: map_expr(x, number), None) for i in s.write)
    if expr is s.expr and all(a is b for a, b in zip(write, s.write, strict=True)):
        return s
    return replace(s, expr=expr, write=write)


def arithmetic(e: IndexExpr, spans: Spans, at: IndexValue) -> Expr:
    """An index expression as operations of i64, down to the parts that have room."""
    match e:
        case IBin(op, left, right) if not is_exact(e, spans):
            args = (arithmetic(left, spans, at), arithmetic(right, spans, at))
            return Apply(BY_SIGN.get(op, op), args, I64, at.span)
        case IConst(value):
            return Const(wrapped(value), I64, at.span)
        case _:
            return IndexValue(e, I64, at.span)


def refuse_large(graph: TensorGraph, sizes: Sizes, found: Diagnostics) -> bool:
    """PF362 for extents, ranges and indices that have no room, the first of each statement. Was there any?"""
    known = spans_of((), sizes)
    large = [_large(t.shape, known, f"an extent of '{t.name}'", t.span) for t in graph.tensors]
    if not any(large):
        large = [_large_in(s, spans_of(s.dims, sizes)) for s in graph.statements]
    for text, place in (x for x in large if x is not None):
        hint = "ranges, extents and indices stay below 2**53, and so do their parts"
        found.error("PF362", text, place, hint)
    return any(large)


def _large_in(s: Statement, spans: Spans) -> tuple[str, Span] | None:
    checked: list[tuple[tuple[Index, ...], str, Span]] = [
        ((d.lower, d.upper), f"the range of '{d.name}'", s.span) for d in s.dims
    ]
    checked += [(s.write, "an index", s.span), *((r.indices, "an index", r.span) for r in statement_reads(s))]
    every = (_large(indices, spans, what, place) for indices, what, place in checked)
    return next((x for x in every if x is not None), None)


def _large(indices: Iterable[Index], spans: Spans, what: str, place: Span) -> tuple[str, Span] | None:
    """What to say of the first index that has no room."""
    for e in (i for i in indices if not isinstance(i, EXPR_TYPES)):
        found = next(((x, values) for x, values in parts_of(e, spans) if not _is_small(values)), None)
        if found is not None:
            part, (low, high) = found[0], found[1] or (0, 0)
            value = (
                "" if isinstance(part, IConst) else f" is {low}" if low == high else f" is in {low}..{high}"
            )
            return f"{what} is too large: {part}{value}", place
    return None
