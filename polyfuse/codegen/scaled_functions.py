"""Products with constants that disappear into the coefficients of a function.

    (0.5 * s) * (1 + erf(s * 0.707))     ->     s * (0.5 + pf_scaled_erf_f32(s, 0.707, 0.5))

`erf` and `tanh` in single precision are x P(x^2) / Q(x^2): with other coefficients that is c erf(k x), at the
same cost.  k may be any constant of a common size.  c is a power of two of at most one, so that it may move
through sums without a change of any bit: a sum with a constant in it is never so small that it would matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from polyfuse.ir.dtypes import F32, F64
from polyfuse.ir.ops import Trait, with_trait
from polyfuse.ir.tensor_graph import Apply, Const, Expr

SCALED = with_trait(Trait.SCALED)
# Beyond these constants coefficients would leave the range of floats.
SMALLEST, LARGEST = 1 / 16, 16.0
_ONE = Const(1.0, F32)


def scaled_name(op: str) -> str:
    return f"pf_scaled_{op}_f32"


def scaled(e: Apply) -> tuple[str, Expr, Const, Const] | None:
    """(f, x, k, c) if an expression is c f(k x), and not f(x)."""
    match e:
        case Apply("mul", ((Const() as c), (Apply(op, (arg,), dtype)))) if op in SCALED and _is_share(c):
            pass
        case Apply(op, (arg,), dtype) if op in SCALED:
            c = _ONE
        case _:
            return None
    if dtype != F32:
        return None
    match arg:
        case Apply("mul", (x, (Const() as k)) | ((Const() as k), x)) if _is_common(k):
            return op, x, k, c
        case Apply("div", (x, (Const() as d))) if _is_common(d):
            return op, x, Const(1 / float(np.float32(d.value)), F64), c
        case _:
            return None if c is _ONE else (op, arg, _ONE, c)


def moved(e: Apply) -> Expr:
    """A product without its factor that is a power of two, if the other factor can take it."""
    if e.op != "mul" or e.dtype != F32:
        return e
    for mine, other in (e.args, e.args[::-1]):
        match mine:
            case Const() as c:
                rest: Expr | None = None
            case Apply("mul", ((Const() as c), rest) | (rest, (Const() as c))):
                pass
            case _:
                continue
        if _is_share(c) and _takes(other, alone=rest is None):
            product = _times(other, c)
            return product if rest is None else Apply("mul", (rest, product), F32)
    return e


def _is_common(k: Const) -> bool:
    return SMALLEST <= abs(k.value) <= LARGEST


def _is_share(c: Const) -> bool:
    """Is a constant a power of two of at most one, of either sign?"""
    mantissa, exponent = math.frexp(abs(float(c.value)))
    return mantissa == 0.5 and -8 < exponent <= 1


def _takes(e: Expr, alone: bool) -> bool:
    """Is it a sum of such functions and constants? Beside other factors only with a constant: without, a
    result that is subnormal would be multiplied."""
    terms = list(_terms(e))
    functions = [t for t in terms if isinstance(t, Apply) and t.op in SCALED]
    constants = [t for t in terms if isinstance(t, Const) and t.value]
    found = len(functions) + len(constants) == len(terms) > 1 and bool(functions)
    return found and (alone or bool(constants))


def _terms(e: Expr) -> Iterator[Expr]:
    match e:
        case Apply("add" | "sub", (a, b)):
            yield from _terms(a)
            yield from _terms(b)
        case _:
            yield e


def _times(e: Expr, c: Const) -> Expr:
    match e:
        case Const(value):
            return Const(float(value) * float(c.value), F32)
        case Apply("add" | "sub" as op, (a, b)):
            return Apply(op, (_times(a, c), _times(b, c)), F32)
        case _:
            return Apply("mul", (c, e), F32)
