"""Definitions of the language as formulas in LaTeX; where a part has no formula, the text stands alone.

y[b..., h] = e[b..., h] / s[b...]     ->     y_{b,h} = \\frac{e_{b,h}}{s_{b}}
"""

from __future__ import annotations

import re

from polyfuse.frontend_dsl.syntax import ast

# Functions that have a sign or a name of their own; all others are upright words.
_KNOWN = {"exp", "log", "tanh", "sin", "cos", "tan", "max", "min", "sinh", "cosh"}
_GREEK = {n: n for n in ("alpha", "beta", "gamma", "lambda", "mu", "sigma")} | {"eps": "varepsilon"}
_SUMS = {"sum": r"\sum", "prod": r"\prod", "max": r"\max", "min": r"\min"}
_OTHERS = ("any", "all", "mean", "argmax", "argmin")
_SIGNS = {"<=": r"\le", ">=": r"\ge", "==": "=", "!=": r"\ne", "<": "<", ">": ">"}
# How tight an operator binds; what is looser inside of it gets parentheses.
_LOOSE, _SUM, _PRODUCT, _TIGHT = 0, 1, 2, 3
LONGEST = 8


class NoFormulaError(Exception):
    """A construct that formulas of textbooks do not have."""


def formulas(op: ast.OpDef) -> list[str]:
    """The definitions of an operator as equations; none where one has no formula or there are too many."""
    lines = [d for d in op.body if isinstance(d, ast.Define)]
    if len(lines) != len(op.body) or len(lines) > LONGEST:
        return []
    try:
        return [_definition(d) for d in lines]
    except NoFormulaError:
        return []


def _definition(d: ast.Define) -> str:
    if d.op != "=" or d.ranges:
        raise NoFormulaError
    return f"{_indexed(d.target, d.indices or ())} = {_text(d.value, _LOOSE)}"


def _indexed(name: str, indices: tuple[ast.Expr, ...]) -> str:
    subscripts = ",".join(_text(i, _LOOSE) for i in indices)
    return f"{_name(name)}_{{{subscripts}}}" if subscripts else _name(name)


def _name(name: str) -> str:
    if name in _GREEK:
        return f"\\{_GREEK[name]}"
    if len(name) == 1:
        return name
    return r"\text{" + name + "}"


def _text(e: ast.Expr, around: int) -> str:
    match e:
        case ast.Number():
            return e.text.replace("_", r"\,")
        case ast.Name() | ast.Splat():
            return _name(e.id)
        case ast.Subscript():
            return _indexed(e.name, e.indices)
        case ast.Binary():
            return _binary(e, around)
        case ast.Unary(op="-"):
            return _closed(f"-{_text(e.arg, _PRODUCT)}", _SUM, around)
        case ast.Compare():
            parts = [_text(e.operands[0], _SUM)]
            parts += [f"{_SIGNS[o]} {_text(x, _SUM)}" for o, x in zip(e.ops, e.operands[1:], strict=True)]
            return _closed(" ".join(parts), _LOOSE, around)
        case ast.Conditional():
            then, cond, other = (_text(x, _LOOSE) for x in (e.then, e.cond, e.other))
            return rf"\begin{{cases}} {then} & {cond} \\ {other} & \text{{else}} \end{{cases}}"
        case ast.Reduce():
            return _closed(_reduction(e), _LOOSE, around)
        case ast.Call():
            return _call(e)
    raise NoFormulaError


def _binary(e: ast.Binary, around: int) -> str:
    match e.op:
        case "/":
            return rf"\frac{{{_text(e.left, _LOOSE)}}}{{{_text(e.right, _LOOSE)}}}"
        case "**":
            return f"{_base(e.left)}^{{{_text(e.right, _LOOSE)}}}"
        case "*":
            return _closed(f"{_text(e.left, _PRODUCT)} \\, {_text(e.right, _PRODUCT)}", _PRODUCT, around)
        case "+":
            return _closed(f"{_text(e.left, _SUM)} + {_text(e.right, _SUM)}", _SUM, around)
        case "-":
            return _closed(f"{_text(e.left, _SUM)} - {_text(e.right, _PRODUCT)}", _SUM, around)
    raise NoFormulaError


def _base(e: ast.Expr) -> str:
    plain = isinstance(e, ast.Subscript | ast.Name | ast.Number)
    return _text(e, _LOOSE) if plain else rf"\left({_text(e, _LOOSE)}\right)"


def _closed(text: str, own: int, around: int) -> str:
    return rf"\left({text}\right)" if own < around else text


def _reduction(e: ast.Reduce) -> str:
    if any(v.lower is not None for v in e.vars) or e.place is not None:
        raise NoFormulaError
    over = ",".join(_name(v.var) for v in e.vars)
    if e.op in _SUMS:
        return f"{_SUMS[e.op]}_{{{over}}} {_text(e.body, _PRODUCT)}"
    if e.op not in _OTHERS:
        raise NoFormulaError
    return rf"\operatorname{{{e.op}}}_{{{over}}} {_text(e.body, _PRODUCT)}"


def _call(e: ast.Call) -> str:
    if e.keywords:
        raise NoFormulaError
    if e.callee == "sqrt":
        return rf"\sqrt{{{_text(e.args[0], _LOOSE)}}}"
    if e.callee == "rsqrt":
        return rf"\frac{{1}}{{\sqrt{{{_text(e.args[0], _LOOSE)}}}}}"
    name = rf"\{e.callee}" if e.callee in _KNOWN else rf"\operatorname{{{re.sub('_', ' ', e.callee)}}}"
    return rf"{name}\left({', '.join(_text(a, _LOOSE) for a in e.args)}\right)"
