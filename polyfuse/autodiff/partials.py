"""Derivatives of operations, as expressions of graphs: what the table of operations has as text.

partial(Apply("tanh", (x,)), 0)    is    1.0 - tanh(x) * tanh(x)
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache

from polyfuse.autodiff.algebra import apply, factored, number
from polyfuse.ir.dtypes import DType
from polyfuse.ir.ops import BY_SIGN, OPS
from polyfuse.ir.tensor_graph import Apply, Expr, Select

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.FloorDiv: "//"}
_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def partial(e: Apply, operand: int, value: Expr | None = None) -> Expr | None:
    """The derivative by an operand; None where the table has none. `value` is what has the result."""
    row = OPS[e.op].gradient
    if not row:
        return None
    names = dict(zip("xy", e.args, strict=False)) | {"f": value or e}
    return factored(_expression(_parsed(row[operand]), names, e.dtype))


@cache
def _parsed(text: str) -> ast.expr:
    """The words of the table are Python's as well."""
    return ast.parse(text, mode="eval").body


def _expression(node: ast.expr, names: Mapping[str, Expr], dtype: DType) -> Expr:
    match node:
        case ast.Constant(value):
            return number(float(value), dtype)  # type: ignore[arg-type]
        case ast.Name(id):
            return names[id]
        case ast.UnaryOp(_, operand):
            return apply("neg", _expression(operand, names, dtype))
        case ast.BinOp(left, op, right):
            a, b = _expression(left, names, dtype), _expression(right, names, dtype)
            return factored(apply(BY_SIGN[_OPERATORS[type(op)]], a, b))
        case ast.Compare(left, [op], [right]):
            a, b = _expression(left, names, dtype), _expression(right, names, dtype)
            return apply(BY_SIGN[_SIGNS[type(op)]], a, b)
        case ast.IfExp(test, body, orelse):
            cond = _expression(test, names, dtype)
            return Select(cond, _expression(body, names, dtype), _expression(orelse, names, dtype), dtype)
        case ast.Call(ast.Name(id), args):
            return apply(id, *(_expression(a, names, dtype) for a in args))
        case _:
            raise AssertionError(
                f"the table of operations has a derivative of another kind: {ast.dump(node)}"
            )
