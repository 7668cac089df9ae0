"""What is clamped to numbers of 32 bits is converted to an integer of 32 bits.

    min(max(i64(x), 0), 99)     becomes     i64(min(max(i32(x), 0), 99))

Conversions of floats go to the nearest end of the type, and NaN to 0 in each: what i32 cannot hold lies
beyond both bounds, where its end does as well.  Processors convert many floats to 32 bits at once, to 64
bits many of them only one.  Where a scatter writes to is left alone: its elements come one by one, and gcc 12
moves minima of 32 bits into vector registers and back for each.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.dtypes import I32, I64
from polyfuse.ir.tensor_graph import Apply, Cast, Const, Expr, TensorGraph, map_expr
from polyfuse.layers.cleanup.folding import constant_value


def narrow_clamps(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """The graph with such clamps in 32 bits."""
    statements = []
    for s in graph.statements:
        expr = map_expr(s.expr, _narrowed)
        statements.append(s if expr is s.expr else replace(s, expr=expr))
        if expr is not s.expr:
            why = "what is clamped to numbers of 32 bits is converted to i32, not to i64"
            decisions.append(Decision("narrow", s.name, True, why))
    if all(a is b for a, b in zip(statements, graph.statements, strict=True)):
        return graph
    return replace(graph, statements=tuple(statements))


def _narrowed(e: Expr) -> Expr:
    """The clamp of a converted float in 32 bits; other expressions as they are."""
    outer = _bounded(e)
    inner = _bounded(outer[1]) if outer is not None else None
    if outer is None or inner is None or outer[0] == inner[0]:
        return e
    value = inner[1]
    if not (isinstance(value, Cast) and value.arg.dtype.is_float):
        return e
    narrow: Expr = Cast(value.arg, I32, value.span)
    for op, _, bound in (inner, outer):
        narrow = Apply(op, (narrow, Const(bound, I32)), I32, e.span)
    return Cast(narrow, I64, e.span)


def _bounded(e: Expr) -> tuple[str, Expr, int] | None:
    """Operation, operand and bound of a minimum or maximum of i64 with a number that fits 32 bits."""
    if not (isinstance(e, Apply) and e.op in ("min", "max") and e.dtype == I64):
        return None
    for value, bound in (e.args, e.args[::-1]):
        number = constant_value(bound)
        if number is not None and -(2**31) <= number < 2**31:
            return e.op, value, int(number)
    return None
