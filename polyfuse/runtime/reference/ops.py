"""The scalar operations of the reference evaluator on `Val`s: value and bound of each one of `ir.ops.OPS`.

Bounds of functions are taken at the ends of the interval that the operand may lie in, or from the
derivative with a bound on the curvature; see `runtime.reference.values` for the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np

from polyfuse.ir import quarter_floats
from polyfuse.ir.dtypes import F16, QUARTERS, U32, DType
from polyfuse.ir.ops import NEGATED, OPS
from polyfuse.runtime.reference import special
from polyfuse.runtime.reference.special import erf, power, remainder
from polyfuse.runtime.reference.values import (
    SLACK,
    Array,
    Bound,
    Val,
    bits_float,
    bits_short,
    dot_bytes,
    dot_words,
    float_bits,
    half,
    held_as,
    is_exact,
    join,
    philox4x32,
    rounded,
    short_bits,
    undecided,
    word,
    wrapped,
)

# --- arithmetic on floats --------------------------------------------------------------------------


def _add(x: Val, y: Val, t: DType) -> Val:
    ops = (x.e, y.e)
    return rounded(x.v + y.v, join(*ops), t, ops, exact_if_held=True, nonneg=x.nonneg and y.nonneg)


def _sub(x: Val, y: Val, t: DType) -> Val:
    return rounded(x.v - y.v, join(x.e, y.e), t, (x.e, y.e), exact_if_held=True)


def _mul(x: Val, y: Val, t: DType) -> Val:
    same = x is y
    e: Bound = 0.0
    if not is_exact(x.e):
        e = np.abs(y.v) * x.e
        e = 2 * e + x.e * x.e if same else e
    if not same and not is_exact(y.e):
        e = join(e, np.abs(x.v) * y.e)
        e = e if is_exact(x.e) else e + x.e * y.e
    nonneg = same or (x.nonneg and y.nonneg)
    return rounded(x.v * y.v, e, t, (x.e, y.e), exact_if_held=True, nonneg=nonneg)


def _div(x: Val, y: Val, t: DType, known: bool = True) -> Val:
    q = x.v / y.v
    nonneg = x.nonneg and y.nonneg
    size = np.abs(y.v)
    if is_exact(y.e):
        e = x.e if is_exact(x.e) else x.e / size
        exact = known and y.v.size == 1 and bool(np.abs(np.frexp(y.v)[0]).flat[0] == 0.5)
        return rounded(q, e, t, (x.e, y.e), exact_if_held=exact, nonneg=nonneg)
    e = join(np.abs(q) * y.e, x.e) / np.maximum(size - y.e, 0.0)
    return rounded(q, e, t, (x.e, y.e, np.where(_crosses(y), np.inf, 0.0)), nonneg=nonneg)


def _neg(x: Val, t: DType) -> Val:
    return Val(-x.v, x.e)


def _abs(x: Val, t: DType) -> Val:
    return Val(np.abs(x.v), x.e, True)


def _extreme(x: Val, y: Val, sign: float) -> Val:
    v = np.maximum(x.v, y.v) if sign > 0 else np.minimum(x.v, y.v)
    nonneg = (x.nonneg or y.nonneg) if sign > 0 else (x.nonneg and y.nonneg)
    if is_exact(x.e) and is_exact(y.e):
        return Val(v, 0.0, nonneg)
    d = sign * (x.v - y.v)
    near = np.asarray(join(x.e, y.e))
    e = np.where(d > near, x.e, np.where(d < -near, y.e, np.maximum(x.e, y.e)))
    return Val(v, np.where(np.isfinite(v) | undecided(near), e, 0.0), nonneg)


def _min(x: Val, y: Val, t: DType) -> Val:
    return _extreme(x, y, -1.0)


def _max(x: Val, y: Val, t: DType) -> Val:
    return _extreme(x, y, 1.0)


def _floor_divide(x: Val, y: Val, t: DType) -> Val:
    q = _div(x, y, t)
    v = np.floor_divide(x.v, y.v)
    error = np.maximum(SLACK * t.eps * np.abs(q.v), q.e)
    exact = (np.asarray(join(x.e, y.e)) == 0) & (np.rint(q.v) == q.v)
    unsure = (np.floor(q.v - error) != np.floor(q.v + error)) & ~exact & np.isfinite(v)
    return rounded(v, 0.0, t, (x.e, y.e, _undecided_where(unsure)), exact_if_held=True)


def _mod(x: Val, y: Val, t: DType) -> Val:
    whole = _floor_divide(x, y, t)
    e = join(x.e, 0.0 if is_exact(y.e) else np.abs(whole.v) * y.e)
    size = np.maximum(np.abs(x.v), np.abs(y.v))
    return rounded(remainder(x.v, y.v), e, t, (x.e, y.e, whole.e), magnitude=size)


def _pow(x: Val, y: Val, t: DType, known: bool) -> Val:
    n = float(y.v.flat[0]) if y.v.size == 1 and is_exact(y.e) else math.nan
    if known and n == 2.0:
        return _mul(x, x, t)
    if known and n == 1.0:
        return x
    f = power(x.v, y.v)
    size, ex, ey = np.abs(x.v), np.asarray(x.e), np.asarray(y.e)
    usual = np.where((size > 0) & (size < np.inf), size, 1.0)
    log = np.abs(np.log(usual))
    slope = -np.log1p(-np.minimum(ex / usual, 1.0))
    e = np.abs(f) * np.expm1(np.abs(y.v) * slope + log * ey + slope * ey)
    crossing = (ex > 0) & (ex >= size)
    tame = crossing & (y.v > ey) & (((np.rint(y.v) == y.v) & (ey == 0)) | x.nonneg)
    if crossing.any():
        reach = np.power(size + ex, y.v + ey) + np.abs(f)
        e = np.where(tame, reach, np.where((y.v == 0) & (ey == 0), 0.0, e))
    unsafe = _undecided_where(crossing & ~tame & ~((y.v == 0) & (ey == 0)))
    roundings = 1.0 + np.abs(y.v) * log
    return rounded(f, e, t, (x.e, y.e, unsafe), roundings=roundings, nonneg=x.nonneg or n % 2 == 0)


# --- functions of one float ------------------------------------------------------------------------


def _exp(x: Val, t: DType) -> Val:
    f = np.exp(x.v)
    e = 0.0 if is_exact(x.e) else f * np.expm1(x.e)
    return rounded(f, e, t, (x.e,), nonneg=True)


def _log(x: Val, t: DType) -> Val:
    if is_exact(x.e):
        return rounded(np.log(x.v), 0.0, t)
    e = -np.log1p(-np.minimum(x.e / np.where(x.e > 0, np.abs(x.v), 1.0), 1.0))
    return rounded(np.log(x.v), e, t, (x.e, np.where(_crosses(x), np.inf, 0.0)))


def _sqrt(x: Val, t: DType) -> Val:
    f = np.sqrt(np.maximum(x.v, 0.0) if x.nonneg else x.v)
    if is_exact(x.e):
        return rounded(f, 0.0, t, nonneg=True)
    e = x.e / (f + np.sqrt(np.maximum(x.v - x.e, 0.0)))
    e = np.where(x.e == 0, 0.0, np.maximum(e, np.sqrt(np.abs(x.v) + x.e) - f))
    unsafe: Bound = 0.0 if x.nonneg else np.where(_crosses(x), np.inf, 0.0)
    return rounded(f, e, t, (x.e, unsafe), nonneg=True)


def _rsqrt(x: Val, t: DType) -> Val:
    f = 1.0 / np.sqrt(x.v)
    if is_exact(x.e):
        return rounded(f, 0.0, t, nonneg=True)
    ratio = np.minimum(x.e / np.where(x.e > 0, np.abs(x.v), 1.0), 1.0)
    e = np.where(x.e == 0, 0.0, f * np.expm1(-0.5 * np.log1p(-ratio)))
    return rounded(f, e, t, (x.e, np.where(_crosses(x), np.inf, 0.0)), nonneg=True)


def _crosses(x: Val) -> Array:
    """Where the interval holds 0 although the value is not exact."""
    return cast(Array, (np.asarray(x.e) > 0) & (np.abs(x.v) <= x.e))


def _bend(x: Val, slope: Array, curve: float, most: float, span: float) -> Bound:
    """|f(x + d) - f(x)| for |d| <= e: slope, half the largest curvature, largest slope, range."""
    if is_exact(x.e):
        return 0.0
    return np.where(
        np.isinf(x.e), np.inf, np.minimum(slope * x.e + curve * x.e * x.e, most * x.e).clip(0, span)
    )


def _tanh(x: Val, t: DType) -> Val:
    f = np.tanh(x.v)
    return rounded(f, _bend(x, 1.0 - f * f, 0.385, 1.0, 2.0), t, (x.e,))


def _sigmoid(x: Val, t: DType) -> Val:
    small = np.exp(-np.abs(x.v))
    f = np.where(x.v >= 0, 1.0, small) / (1.0 + small)
    return rounded(f, _bend(x, small / (1.0 + small) ** 2, 0.0482, 0.25, 1.0), t, (x.e,), nonneg=True)


def _erf(x: Val, t: DType) -> Val:
    slope = 2.0 / math.sqrt(math.pi) * np.exp(-x.v * x.v) if not is_exact(x.e) else x.v
    return rounded(erf(x.v), _bend(x, slope, 0.485, 1.1284, 2.0), t, (x.e,))


def _sin(x: Val, t: DType) -> Val:
    e = _bend(x, np.abs(np.cos(x.v)), 0.5, 1.0, 2.0)
    return rounded(np.sin(x.v), e, t, (x.e,), magnitude=_finite_or_nan(np.minimum(np.abs(x.v), 1.0), x.v))


def _cos(x: Val, t: DType) -> Val:
    e = _bend(x, np.abs(np.sin(x.v)), 0.5, 1.0, 2.0)
    return rounded(np.cos(x.v), e, t, (x.e,), magnitude=_finite_or_nan(np.ones_like(x.v), x.v))


def _finite_or_nan(a: Array, x: Array) -> Array:
    return np.where(np.isfinite(x), a, np.nan)


def _monotone(
    f: Callable[[Array], Array], *, even: bool = False, nonneg: bool = False
) -> Callable[[Val, DType], Val]:
    """A function that only rises or only falls where it is defined, an even one on either side of 0: what it
    is at the ends of the interval bounds it.  Undecided where it ends within."""

    def op(x: Val, t: DType) -> Val:
        v = f(x.v)
        if is_exact(x.e):
            return rounded(v, 0.0, t, nonneg=nonneg)
        e, unsafe = _at_the_ends(f, x, v, even)
        return rounded(v, e + unsafe, t, (x.e, unsafe), nonneg=nonneg)

    return op


def _at_the_ends(f: Callable[[Array], Array], x: Val, v: Array, even: bool = False) -> tuple[Array, Array]:
    """How far f is from `v`, its value, at the ends of the interval of x; and an infinity where it is not
    defined at one of the three, or not finite."""
    size = np.abs(x.v) if even else x.v
    low, high = f(np.maximum(size - x.e, 0.0) if even else size - x.e), f(size + x.e)
    finite = np.isfinite(v)
    unsafe = (np.asarray(x.e) > 0) & ((np.isfinite(low) != finite) | (np.isfinite(high) != finite))
    unsafe |= np.isnan(low) != np.isnan(high)
    e = np.maximum(np.abs(low - v), np.abs(high - v)) + np.where(np.asarray(x.e) > 0, 2.0**-51 * np.abs(v), 0)
    return e, np.where(unsafe, np.inf, 0.0)


def _tan(x: Val, t: DType) -> Val:
    v = np.tan(x.v)
    size = np.maximum(np.abs(v), _finite_or_nan(np.minimum(np.abs(x.v), 1.0), x.v))
    if is_exact(x.e):
        return rounded(v, 0.0, t, magnitude=size)
    e, unsafe = _at_the_ends(np.tan, x, v)
    turn = np.rint((x.v - x.e) / np.pi) != np.rint((x.v + x.e) / np.pi)  # a pole is within
    unsafe = unsafe + np.where(turn, np.inf, 0.0)
    return rounded(v, e + unsafe, t, (x.e, unsafe), magnitude=size)


def _poles(x: Val) -> Array:
    """An infinity where one of 0, -1, -2, ... is within the interval and is not the value exactly."""
    low, high = np.floor(x.v - x.e), np.floor(x.v + x.e)
    near = (low != high) | (np.floor(x.v) == x.v)
    return np.where((np.asarray(x.e) > 0) & near & (x.v - x.e <= 0), np.inf, 0.0)


def _lgamma(x: Val, t: DType) -> Val:
    """Between two poles it is convex. Left of 0 a logarithm and its value on the right are subtracted."""
    v = special.lgamma(x.v)
    there = np.abs(special.lgamma(np.where(x.v < 0, -x.v, 1.0)))
    size = _finite_or(np.abs(v) + 2.0 * there + 1.0, v)
    if is_exact(x.e):
        return rounded(v, 0.0, t, magnitude=size)
    e, unsafe = _at_the_ends(special.lgamma, x, v)
    e, unsafe = np.maximum(e, np.abs(special.digamma(x.v)) * x.e), unsafe + _poles(x)
    return rounded(v, e + unsafe, t, (x.e, unsafe), magnitude=size)


def _digamma(x: Val, t: DType) -> Val:
    """Between two poles it rises. Left of 0 a cotangent and its value on the right are subtracted."""
    v = special.digamma(x.v)
    there = np.abs(special.digamma(np.where(x.v < 0, -x.v, 1.0)))
    size = _finite_or(np.abs(v) + 2.0 * there + 1.0, v)
    if is_exact(x.e):
        return rounded(v, 0.0, t, magnitude=size)
    e, unsafe = _at_the_ends(special.digamma, x, v)
    unsafe = unsafe + _poles(x)
    return rounded(v, e + unsafe, t, (x.e, unsafe), magnitude=size)


def _finite_or(size: Array, v: Array) -> Array:
    """What is rounded, where the result is no number the result itself."""
    return np.where(np.isfinite(v) & np.isfinite(size), size, np.abs(v))


# --- functions of two floats -----------------------------------------------------------------------


def _atan2(y: Val, x: Val, t: DType) -> Val:
    """Undecided where the origin, or a part of the negative axis, is within the intervals."""
    v = np.arctan2(y.v, x.v)
    if is_exact(x.e) and is_exact(y.e):
        return rounded(v, 0.0, t)
    near, far = np.hypot(x.e, y.e), np.hypot(x.v, y.v)
    ey = np.asarray(y.e)
    cut = (ey > 0) & (np.abs(y.v) <= ey) & (x.v - x.e < 0)
    unsafe = ((near > 0) & ~(near < far)) | cut
    e = np.arcsin(np.minimum(np.where(near > 0, near / np.where(far > 0, far, 1.0), 0.0), 1.0))
    return rounded(v, np.where(unsafe, np.inf, e), t, (x.e, y.e, np.where(unsafe, np.inf, 0.0)))


def _hypot(x: Val, y: Val, t: DType) -> Val:
    return rounded(np.hypot(x.v, y.v), join(x.e, y.e), t, (x.e, y.e), nonneg=True)


def _fmod(x: Val, y: Val, t: DType) -> Val:
    """Exact of exact operands; undecided where the whole part of the quotient is."""
    v = special.fmod(x.v, y.v)
    if is_exact(x.e) and is_exact(y.e):
        return rounded(v, 0.0, t, exact_if_held=True, nonneg=x.nonneg)
    q = _div(x, y, t)
    unsure = (np.trunc(q.v - q.e) != np.trunc(q.v + q.e)) & np.isfinite(v) & (np.asarray(join(x.e, y.e)) > 0)
    e = join(x.e, 0.0 if is_exact(y.e) else np.abs(np.trunc(q.v)) * y.e, _undecided_where(unsure))
    size = np.maximum(np.abs(v), np.where(np.isfinite(v), np.abs(x.v), 0.0))
    return rounded(v, e, t, (x.e, y.e, _undecided_where(unsure)), magnitude=size, nonneg=x.nonneg)


# --- discrete ---------------------------------------------------------------------------------------


def _undecided_where(mask: Array) -> Bound:
    return np.where(mask, np.inf, 0.0) if mask.any() else 0.0


def _stepwise(f: Callable[[Array], Array]) -> Callable[[Val, DType], Val]:
    def op(x: Val, t: DType) -> Val:
        v = f(x.v)
        if is_exact(x.e):
            return Val(v, 0.0, x.nonneg)
        unsure = f(x.v - x.e) != f(x.v + x.e)
        return Val(v, _undecided_where((unsure & np.isfinite(x.v)) | undecided(x.e)), x.nonneg)

    return op


def _whether(f: Callable[[Array], Array]) -> Callable[[Val, DType], Val]:
    """Is a number NaN, an infinity or finite?"""

    def op(x: Val, t: DType) -> Val:
        return Val(f(x.v), 0.0 if is_exact(x.e) else _undecided_where(undecided(x.e)))

    return op


def compare(f: Callable[[Array, Array], Array]) -> Callable[[Val, Val, DType], Val]:
    """A comparison; undecided where the intervals of two inexact numbers meet."""

    def op(x: Val, y: Val, t: DType) -> Val:
        near = join(x.e, y.e)
        if is_exact(near):
            return Val(f(x.v, y.v))
        if x.v.dtype != np.float64:
            return Val(f(x.v, y.v), near)
        unsure = (np.abs(x.v - y.v) <= near) & (near > 0)
        return Val(f(x.v, y.v), _undecided_where(unsure | undecided(near)))

    return op


def _and(x: Val, y: Val, t: DType) -> Val:
    v = x.v & y.v
    if is_exact(x.e) and is_exact(y.e):
        return Val(v)
    off = (~x.v & (np.asarray(x.e) == 0)) | (~y.v & (np.asarray(y.e) == 0))
    return Val(v, _undecided_where(undecided(join(x.e, y.e)) & ~off))


def _or(x: Val, y: Val, t: DType) -> Val:
    v = x.v | y.v
    if is_exact(x.e) and is_exact(y.e):
        return Val(v)
    on = (x.v & (np.asarray(x.e) == 0)) | (y.v & (np.asarray(y.e) == 0))
    return Val(v, _undecided_where(undecided(join(x.e, y.e)) & ~on))


def _not(x: Val, t: DType) -> Val:
    return Val(~x.v, x.e)


# --- integers ---------------------------------------------------------------------------------------


def _integer(f: Callable[..., Array]) -> Callable[..., Val]:
    def op(*args: Val | DType) -> Val:
        *operands, t = args
        assert isinstance(t, DType)
        vals = [x for x in operands if isinstance(x, Val)]
        return Val(wrapped(np.asarray(f(*(x.v for x in vals))), t), join(*(x.e for x in vals)))

    return op


def _bits(x: Val, t: DType) -> Val:
    """Left open where the float is, and of a zero and a NaN, whose signs are nobody's."""
    v = float_bits(x.v.astype(np.float32 if t is U32 else np.float64)).astype(held_as(t))
    return Val(v, _undecided_where((np.asarray(x.e) != 0) | np.isnan(x.v) | (x.v == 0)))


def _short_bits(dtype: DType) -> Callable[[Val, DType], Val]:
    def op(x: Val, t: DType) -> Val:
        v = short_bits(dtype)(x.v.astype(np.float32)).astype(held_as(t))
        return Val(v, _undecided_where((np.asarray(x.e) != 0) | np.isnan(x.v) | (x.v == 0)))

    return op


def _from_bits(x: Val, t: DType) -> Val:
    return Val(bits_float(x.v.astype(t.word.numpy)).astype(np.float64), x.e)


def _from_short_bits(dtype: DType) -> Callable[[Val, DType], Val]:
    return lambda x, t: Val(bits_short(dtype)(x.v).astype(np.float64), x.e)


def _divide_or_zero(f: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.where(b == 0, 0, f(a, np.where(b == 0, 1, b)))


def _integer_power(a: Array, b: Array) -> Array:
    return np.power(a, np.maximum(b, 0))


UNARY_FLOAT: dict[str, Callable[[Val, DType], Val]] = {
    "neg": _neg, "abs": _abs, "exp": _exp, "log": _log, "sqrt": _sqrt, "rsqrt": _rsqrt, "tanh": _tanh,
    "sigmoid": _sigmoid, "erf": _erf, "sin": _sin, "cos": _cos, "isnan": _whether(np.isnan),
    "isinf": _whether(np.isinf), "isfinite": _whether(np.isfinite),
    "floor": _stepwise(np.floor), "ceil": _stepwise(np.ceil), "round": _stepwise(np.rint),
    "trunc": _stepwise(np.trunc), "sign": _stepwise(special.sign),
    "exp2": _monotone(np.exp2, nonneg=True), "expm1": _monotone(np.expm1),
    "log1p": _monotone(np.log1p), "log2": _monotone(np.log2), "cbrt": _monotone(np.cbrt),
    "tan": _tan, "atan": _monotone(np.arctan), "asin": _monotone(np.arcsin),
    "acos": _monotone(np.arccos, nonneg=True),
    "sinh": _monotone(np.sinh), "cosh": _monotone(np.cosh, even=True, nonneg=True),
    "asinh": _monotone(np.arcsinh), "acosh": _monotone(np.arccosh, nonneg=True),
    "atanh": _monotone(np.arctanh), "erfc": _monotone(special.erfc, nonneg=True),
    "lgamma": _lgamma, "digamma": _digamma, "bits": _bits,
    **{f"bits_{t}": _short_bits(t) for t in (F16, *QUARTERS)},
}  # fmt: skip
BINARY_FLOAT: dict[str, Callable[[Val, Val, DType], Val]] = {
    "add": _add, "sub": _sub, "mul": _mul, "floordiv": _floor_divide, "mod": _mod,
    "min": _min, "max": _max, "atan2": _atan2, "hypot": _hypot, "fmod": _fmod,
}  # fmt: skip
# Exact for some second operands, if these are numbers of the program: compiled code knows no others.
BY_NUMBERS: dict[str, Callable[[Val, Val, DType, bool], Val]] = {"div": _div, "pow": _pow}
COMPARISONS: dict[str, Callable[[Val, Val, DType], Val]] = {
    **{name: compare(getattr(np, OPS[name].numpy)) for name in NEGATED},
    "and": _and,
    "or": _or,
}
INTEGER: dict[str, Callable[..., Val]] = {
    "add": _integer(np.add), "sub": _integer(np.subtract), "mul": _integer(np.multiply),
    "floordiv": _integer(_divide_or_zero(np.floor_divide)), "mod": _integer(_divide_or_zero(np.mod)),
    "pow": _integer(_integer_power), "min": _integer(np.minimum), "max": _integer(np.maximum),
    "bitand": _integer(np.bitwise_and), "bitor": _integer(np.bitwise_or), "bitxor": _integer(np.bitwise_xor),
    "bitnot": _integer(np.invert), "shl": _integer(np.left_shift), "shr": _integer(np.right_shift),
    "neg": _integer(np.negative), "abs": _integer(np.abs), "sign": _integer(np.sign),
    "word": _integer(word), "dot_words": _integer(dot_words),
    "half": _integer(half), "dot_bytes": _integer(dot_bytes),
    "within": lambda x, low, high, t: x,
    "from_bits": _from_bits, **{f"from_bits_{t}": _from_short_bits(t) for t in (F16, *QUARTERS)},
    "philox4x32": _integer(philox4x32),
    "floor": _integer(np.asarray), "ceil": _integer(np.asarray), "round": _integer(np.asarray),
    "isnan": lambda x, t: Val(np.zeros(x.v.shape, bool), x.e),
}  # fmt: skip


def apply_op(op: str, args: tuple[Val, ...], operand: DType, result: DType, known: bool = False) -> Val:
    """One operation of `ir.ops.OPS` on operands of type `operand`; `known`: the last one is a number of the
    program."""
    if op == "not":
        return _not(args[0], result)
    if op in COMPARISONS:
        return COMPARISONS[op](args[0], args[1], result)
    if operand.is_float:
        if len(args) == 1:
            return UNARY_FLOAT[op](args[0], result)
        if op in BY_NUMBERS:
            return BY_NUMBERS[op](args[0], args[1], result, known)
        return BINARY_FLOAT[op](args[0], args[1], result)
    if operand.is_bool and op in ("min", "max"):
        return (_and if op == "min" else _or)(args[0], args[1], result)
    return INTEGER[op](*args, result)


# --- casts and choices ------------------------------------------------------------------------------


def cast_to(x: Val, source: DType, target: DType) -> Val:
    """Conversion: floats round (bound grows, the value stays), to integers truncates, bool is != 0."""
    if source is target:
        return x
    if target.is_bool:
        zero = Val(np.zeros((), x.v.dtype))
        return COMPARISONS["ne"](x, zero, target)
    if target in QUARTERS:
        return _to_quarter(x, target)
    if source.is_float and target.is_float:
        wider = target.eps <= source.eps and target.bits > source.bits
        if wider:
            return x
        return rounded(x.v, x.e, target, (x.e,), exact_if_held=True, nonneg=x.nonneg)
    if target.is_float:
        v = x.v.astype(np.float64)
        nonneg = x.nonneg or source.is_bool
        return rounded(v, join(x.e), target, (x.e,), exact_if_held=True, nonneg=nonneg)
    if source.is_float:
        return _truncated(x, target)
    return Val(wrapped(x.v if x.v.dtype != np.bool_ else x.v.astype(np.int64), target), x.e)


def _to_quarter(x: Val, target: DType) -> Val:
    """What never falls as the number grows: the ends of the interval give the bound."""
    v = x.v.astype(np.float64)
    made = quarter_floats.rounded(v, target)
    if is_exact(x.e):
        return Val(made, 0.0, x.nonneg)
    low, high = (quarter_floats.rounded(end, target) for end in (v - x.e, v + x.e))
    e = np.where(undecided(x.e), np.inf, np.maximum(high - made, made - low))
    return Val(made, np.where(np.isnan(made), x.e, e), x.nonneg)


def _truncated(x: Val, target: DType) -> Val:
    """Float to integer, which never falls as the number grows: decided where the interval's ends agree."""
    v = _saturated(x.v, target)
    if is_exact(x.e):
        return Val(v)
    unsure = _saturated(x.v - x.e, target) != _saturated(x.v + x.e, target)
    return Val(v, _undecided_where(unsure | undecided(x.e)))


def _saturated(x: Array, target: DType) -> Array:
    """Toward zero, within the limits of the type; NaN gives 0.

    The largest of 64 bits is no float64: numbers beyond are chosen, not converted."""
    low, high = map(held_as(target).type, target.limits)
    top = float(target.limits[1] + (target.bits == 64))
    within = (x > float(low)) & (x < top)
    whole = np.where(within, x, 0.0).astype(held_as(target))
    return np.where(x >= top, high, np.where(x <= float(low), low, whole))


def choose(cond: Val, then: Val, other: Val, is_float: bool) -> Val:
    """`then if cond else other`. Where the condition is undecided but both sides nearly agree, the
    bound covers both (a kink, not a jump); else the element is undecided."""
    v = np.where(cond.v, then.v, other.v)
    e: Bound = 0.0
    if not (is_exact(then.e) and is_exact(other.e)):
        e = np.where(cond.v, then.e, other.e)
    nonneg = then.nonneg and other.nonneg
    if is_exact(cond.e):
        return Val(v, e, nonneg)
    unsure = undecided(cond.e)
    if not is_float:
        return Val(v, np.where(unsure & (then.v != other.v), np.inf, e), nonneg)
    both = np.asarray(join(then.e, other.e))
    gap = np.abs(then.v - other.v)
    hull = np.where((gap <= SLACK * both) | (then.v == other.v), gap + both, np.inf)
    return Val(v, np.where(unsure, np.maximum(hull, e), e), nonneg)
