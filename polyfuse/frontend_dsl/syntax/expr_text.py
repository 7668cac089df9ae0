"""Expressions and types as text, with the fewest parentheses that give the same tree again.

In subscripts, extents and ranges products are tight (``x[b*S + s]``, ``1..N-1``); elsewhere every
binary operator stands between blanks.
"""

from __future__ import annotations

from enum import Enum

from polyfuse.frontend_dsl.syntax import ast

(
    _CONDITIONAL, _OR, _AND, _NOT, _COMPARE, _BIT_OR, _BIT_XOR, _BIT_AND, _SHIFT, _SUM, _PRODUCT, _NEGATION,
    _POWER, _ATOM,
) = range(14)  # fmt: skip
_LEVELS = {
    "or": _OR,
    "and": _AND,
    "|": _BIT_OR,
    "^": _BIT_XOR,
    "&": _BIT_AND,
    "<<": _SHIFT,
    ">>": _SHIFT,
    "+": _SUM,
    "-": _SUM,
    "*": _PRODUCT,
    "/": _PRODUCT,
    "//": _PRODUCT,
    "%": _PRODUCT,
    "**": _POWER,
}


class Style(Enum):
    """How much air is around operators."""

    VALUE = "a * b + c"
    INDEX = "a*b + c, a+c"
    RANGE = "a*b+c"


def expr_text(expr: ast.Expr, style: Style = Style.VALUE) -> str:
    """The expression as source text."""
    return _text(expr, style)


def type_text(type_: ast.TensorType) -> str:
    """``f32[T, 3*H]``."""
    return type_.dtype + (_subscripts(type_.extents) if type_.extents else "")


def generic_text(generic: ast.Generic) -> str:
    """``F: float`` or ``K: size = 2*N``."""
    default = "" if generic.default is None else f" = {_at(generic.default, _SUM, Style.INDEX)}"
    return f"{generic.name}: {generic.kind}{default}"


def range_text(var: ast.VarRange) -> str:
    """``i``, ``b...`` or ``i in 0..N``."""
    if var.lower is None or var.upper is None:
        return f"{var.var}..." if var.splat else var.var
    return f"{var.var} in {range_end_text(var.lower)}..{range_end_text(var.upper)}"


def range_end_text(end: ast.Expr) -> str:
    """A bound of a range."""
    return _at(end, _SUM, Style.RANGE)


def _subscripts(indices: tuple[ast.Expr, ...]) -> str:
    return f"[{', '.join(_text(i, Style.INDEX) for i in indices)}]"


def _level(expr: ast.Expr) -> int:
    match expr:
        case ast.Conditional():
            return _CONDITIONAL
        case ast.Binary():
            return _LEVELS[expr.op]
        case ast.Compare():
            return _COMPARE
        case ast.Unary():
            return _NOT if expr.op == "not" else _NEGATION
        case _:
            return _ATOM


def _at(expr: ast.Expr, level: int, style: Style) -> str:
    """The text where an operand of at least `level` must stand."""
    text = _text(expr, style)
    return text if _level(expr) >= level else f"({text})"


def _text(expr: ast.Expr, style: Style) -> str:
    match expr:
        case ast.Number():
            return expr.text
        case ast.BoolLit():
            return "true" if expr.value else "false"
        case ast.Name():
            return expr.id
        case ast.Splat():
            return f"{expr.id}..."
        case ast.Subscript():
            return expr.name + _subscripts(expr.indices)
        case ast.Padded():
            inside = ", ".join(_text(i, Style.INDEX) for i in expr.read.indices)
            return f"{expr.read.name}[{inside} else {_text(expr.outside, Style.VALUE)}]"
        case ast.Reduce():
            variables = ", ".join(range_text(v) for v in expr.vars)
            place = "" if expr.place is None else f", {_text(expr.place, Style.VALUE)}"
            return f"{expr.op}[{variables}]({_text(expr.body, Style.VALUE)}{place})"
        case ast.Call():
            return _call(expr)
        case ast.Unary():
            return (
                f"not {_at(expr.arg, _NOT, style)}"
                if expr.op == "not"
                else f"{expr.op}{_at(expr.arg, _NEGATION, style)}"
            )
        case ast.Binary():
            return _binary(expr, style)
        case ast.Compare():
            return _compare(expr, style)
        case ast.Conditional():
            then, cond = _at(expr.then, _OR, style), _at(expr.cond, _OR, style)
            return f"{then} if {cond} else {_at(expr.other, _CONDITIONAL, style)}"


def _call(call: ast.Call) -> str:
    args = [_text(arg, Style.VALUE) for arg in call.args]
    args += [f"{name}={_text(value, Style.VALUE)}" for name, value in call.keywords]
    return f"{call.callee}({', '.join(args)})"


def _compare(expr: ast.Compare, style: Style) -> str:
    text = _at(expr.operands[0], _BIT_OR, style)
    for op, operand in zip(expr.ops, expr.operands[1:], strict=True):
        text += f" {op} {_at(operand, _BIT_OR, style)}"
    return text


def _binary(expr: ast.Binary, style: Style) -> str:
    level = _LEVELS[expr.op]
    if expr.op == "**":
        left, right = _at(expr.left, _ATOM, style), _at(expr.right, _NEGATION, style)
    else:
        left, right = _at(expr.left, level, style), _at(expr.right, level + 1, style)
    tight = level >= _SUM and style is not Style.VALUE
    if tight and level == _SUM and style is Style.INDEX:
        tight = not _has_product(expr)
    return f"{left}{expr.op}{right}" if tight else f"{left} {expr.op} {right}"


def _has_product(expr: ast.Expr) -> bool:
    """Whether a term of this sum is a product."""
    while isinstance(expr, ast.Binary) and _LEVELS[expr.op] == _SUM:
        if _level(expr.right) == _PRODUCT:
            return True
        expr = expr.left
    return _level(expr) == _PRODUCT
