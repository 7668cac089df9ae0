"""Bounds of reductions that are data: the range that holds them all, and the condition that stands for them.

    y[n] = sum[e in ptr[n]..ptr[n + 1]](w[e])
becomes
    y[n] = sum over e in 0..E of (w[e] if ptr[n] <= e and e < ptr[n + 1] else 0.0)

The range is what the reads of the body alone would give, or the parts of the bounds that are no data:
`max(0, a[n])..min(b[n], E)`.  All proofs are those of the whole range; loops with the true bounds are made of
such conditions where code is generated (`codegen.transforms.data_ranges`).  Each end is a `within`, which
checked builds refuse outside of the range, and so they do an end before the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyfuse.frontend_dsl.semantics.expr_build import BuildError, ExprBuilder
from polyfuse.frontend_dsl.semantics.index_build import Lookup, NotIndex, is_data, to_index
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.expr_text import range_end_text
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary
from polyfuse.source import Span


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of the range of a variable, the second one exclusive; i64, data or not."""

    begin: g.Expr
    end: g.Expr

    def holds(self, dim: g.IterDim, span: Span) -> g.Expr:
        """Is an iteration of the dim between them?"""
        at = g.IndexValue(IVar(dim.name), I64, span)
        tests = (g.Apply("le", (self.begin, at), BOOL, span), g.Apply("lt", (at, self.end), BOOL, span))
        return g.Apply("and", tests, BOOL, span)

    def count(self, dim: g.IterDim, span: Span) -> g.Expr:
        """How many iterations are, as an i64."""
        low, high = number(dim.lower, span), number(dim.upper, span)
        begin, end = _apply("max", self.begin, low), _apply("min", self.end, high)
        return _apply("max", _apply("sub", end, begin), g.Const(0, I64, span))


def _apply(op: str, a: g.Expr, b: g.Expr) -> g.Expr:
    return g.Apply(op, (a, b), I64, a.span)


def number(e: IndexExpr, span: Span) -> g.Expr:
    """An index expression as an i64."""
    return g.Const(e.value, I64, span) if isinstance(e, IConst) else g.IndexValue(e, I64, span)


def has_data(r: ast.VarRange, lookup: Lookup) -> bool:
    """Is a bound of the range data?"""
    return any(b is not None and is_data(b, lookup) for b in (r.lower, r.upper))


def whole_range(
    b: ExprBuilder, r: ast.VarRange, inferred: Callable[[], IndexExpr]
) -> tuple[IndexExpr, IndexExpr]:
    """The least range that is no data; `inferred` finds what the body says of its end, or raises."""
    assert r.lower is not None and r.upper is not None
    try:
        lower, upper = _known_part(r.lower, b.lookup, "max"), _known_part(r.upper, b.lookup, "min")
    except NotIndex:
        raise BuildError from None
    return as_index(0) if lower is None else lower, inferred() if upper is None else upper


def _known_part(e: ast.Expr, lookup: Lookup, op: str) -> IndexExpr | None:
    """What a bound is at most (`op` is min) or at least (max), from its parts that are no data."""
    if not is_data(e, lookup):
        return to_index(e, lookup)
    if not (isinstance(e, ast.Call) and e.callee in ("min", "max") and not e.keywords):
        return None
    parts = [_known_part(a, lookup, op) for a in e.args]
    known = [p for p in parts if p is not None]
    if not known or (e.callee != op and len(known) < len(parts)):
        return None
    result = known[0]
    for p in known[1:]:
        result = binary(e.callee, result, p)
    return result


def beside_data(r: ast.VarRange, lookup: Lookup, known: str) -> str:
    """The text of a range with the ends of a known one beside those that are data."""
    assert r.lower is not None and r.upper is not None
    (low, high), written = known.split(".."), [range_end_text(x) for x in (r.lower, r.upper)]
    first = f"max({low}, {written[0]})" if is_data(r.lower, lookup) else written[0]
    return f"{first}..{f'min({written[1]}, {high})' if is_data(r.upper, lookup) else written[1]}"


def ends_of(b: ExprBuilder, r: ast.VarRange, dim: g.IterDim) -> Ends:
    """The ends of a range with data; `b` builds what stands before it."""
    assert r.lower is not None and r.upper is not None
    low, high = (_end(b, x) for x in (r.lower, r.upper))
    least, most = number(dim.lower, r.span), number(dim.upper, r.span)
    begin = g.Apply("within", (low, least, most), I64, r.lower.span) if is_data(r.lower, b.lookup) else low
    end = g.Apply("within", (high, low, most), I64, r.upper.span) if is_data(r.upper, b.lookup) else high
    return Ends(begin, end)


def _end(b: ExprBuilder, e: ast.Expr) -> g.Expr:
    """A bound as an i64."""
    if not is_data(e, b.lookup):
        return number(to_index(e, b.lookup), e.span)
    value = b.build(e, b.type_of(e).compute)
    return value if value.dtype is I64 else g.Cast(value, I64, e.span)
