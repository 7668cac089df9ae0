"""The scalar operations on NumPy values, as kernels compute them: in the operands' own dtype.

Every function takes NumPy scalars or arrays alike and goes through the same ufunc for both, so that one
instance at a time and many at once give the same bits.  Integers wrap; `//` and `%` floor and give 0 for
a divisor of 0; min and max propagate NaN; a float converts to an integer by truncation, saturating, and
NaN becomes 0.  Only casts round to the 16-bit floats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from polyfuse.ir.dtypes import F16, F64, QUARTERS, STORED, DType
from polyfuse.ir.ops import COMBINES, OPS
from polyfuse.ir.quarter_floats import stored
from polyfuse.runtime.reference import special
from polyfuse.runtime.reference.special import erf, power, remainder
from polyfuse.runtime.reference.values import (
    bits_float,
    bits_short,
    dot_bytes,
    dot_pairs,
    dot_words,
    float_bits,
    half,
    pair,
    philox4x32,
    short_bits,
    word,
)

# A NumPy scalar, or an array with an element for each instance.
Value = Any

UPDATES: dict[str, np.ufunc] = {r: getattr(np, OPS[op].numpy) for r, op in COMBINES.items()}


def constant(value: float | int | bool, dtype: DType) -> Value:
    if dtype in QUARTERS:
        return stored(value, dtype)[()]
    return np.asarray(value).astype(dtype.numpy)[()]


def apply_op(op: str, args: list[Value], operand: DType) -> Value:
    """One operation of `ir.ops.OPS` on operands of type `operand`."""
    return (FLOAT if operand.is_float else INTEGER)[op](*args)


# --- floats ------------------------------------------------------------------------------------------


def _rsqrt(x: Value) -> Value:
    return np.divide(x.dtype.type(1), np.sqrt(x))


def _sigmoid(x: Value) -> Value:
    """Only the exponential of -|x| is taken: no overflow, and accurate far to the left."""
    one = x.dtype.type(1)
    e = np.exp(-np.abs(x))
    return np.divide(np.where(np.less(x, 0), e, one), np.add(one, e))


def _in_f64(f: Callable[..., Value]) -> Callable[..., Value]:
    """A function of one float64, rounded."""
    return lambda x: f(np.asarray(x, np.float64)).astype(x.dtype)[()]


def _power(x: Value, y: Value) -> Value:
    """x ** 2 is x * x, whatever the library's pow does."""
    square = np.equal(y, 2)
    if np.ndim(y) == 0:
        return np.multiply(x, x) if square else power(x, y)
    return np.where(square, np.multiply(x, x), power(x, y))


# --- integers ----------------------------------------------------------------------------------------


def _floor_divide(a: Value, b: Value) -> Value:
    zero = np.equal(b, 0)
    quotient = np.floor_divide(a, np.where(zero, b.dtype.type(1), b))
    return np.where(zero, a.dtype.type(0), quotient)[()]


def _modulo(a: Value, b: Value) -> Value:
    zero = np.equal(b, 0)
    rest = np.mod(a, np.where(zero, b.dtype.type(1), b))
    return np.where(zero, a.dtype.type(0), rest)[()]


def _integer_power(a: Value, e: Value) -> Value:
    """Wrapping; a negative exponent leaves 0 except for the bases 1 and -1."""
    kind = a.dtype.type
    if np.iinfo(a.dtype).min == 0:
        return np.power(a, e)
    sign = np.where(np.equal(np.bitwise_and(e, kind(1)), 0), kind(1), kind(-1))
    unit = np.where(np.equal(a, 1), kind(1), np.where(np.equal(a, -1), sign, kind(0)))
    return np.where(np.less(e, 0), unit, np.power(a, np.maximum(e, kind(0))))[()]


def _same(x: Value) -> Value:
    return x


def _first(x: Value, low: Value, high: Value) -> Value:
    return x


def _never(x: Value) -> Value:
    return np.zeros(np.shape(x), np.bool_)[()]


_BITS: dict[str, Callable[..., Value]] = {
    "bits": float_bits, "from_bits": bits_float, "philox4x32": philox4x32,
    **{f"bits_{t}": short_bits(t) for t in (F16, *QUARTERS)},
    **{f"from_bits_{t}": bits_short(t) for t in (F16, *QUARTERS)},
}  # fmt: skip
# What NumPy has no function for, or one that gives something else than kernels do.
_OWN_FLOAT: dict[str, Callable[..., Value]] = {
    "mod": remainder, "pow": _power, "rsqrt": _rsqrt, "sigmoid": _sigmoid, "erf": _in_f64(erf),
    "erfc": _in_f64(special.erfc), "lgamma": _in_f64(special.lgamma), "digamma": _in_f64(special.digamma),
    "fmod": special.fmod, "sign": special.sign,
    "pair": pair, "dot_pairs": dot_pairs,
}  # fmt: skip
_OWN_INTEGER: dict[str, Callable[..., Value]] = {
    "floordiv": _floor_divide, "mod": _modulo, "pow": _integer_power,
    "floor": _same, "ceil": _same, "round": _same, "isnan": _never,
    "within": _first,
    "word": word, "dot_words": dot_words, "half": half, "dot_bytes": dot_bytes,
}  # fmt: skip
_NUMPY: dict[str, Callable[..., Value]] = {o.name: getattr(np, o.numpy) for o in OPS.values() if o.numpy}
FLOAT, INTEGER = _NUMPY | _BITS | _OWN_FLOAT, _NUMPY | _BITS | _OWN_INTEGER
"""The functions of floats, and of integers and bools."""


# --- casts -------------------------------------------------------------------------------------------


def cast(value: Value, source: DType, target: DType) -> Value:
    """Conversion, rounding once."""
    if source == target:
        return value
    if target.is_bool:
        return np.not_equal(value.astype(np.float32) if source in STORED else value, 0)
    if target.is_float:
        return _to_float(value, source, target)
    if source.is_float:
        return _truncated(value, target)
    return value.astype(target.numpy)


def _to_float(value: Value, source: DType, target: DType) -> Value:
    if target in QUARTERS:
        return stored(value, target)[()]
    if target.bits != 16:
        return value.astype(target.numpy)
    if source == F64:
        return _odd(value, value.astype(np.float32), np.uint32).astype(target.numpy)
    if source.is_integer and source.bits > 16:
        return _to_float(_odd_integer(value), F64, target)
    return value.astype(np.float32).astype(target.numpy)


def _odd(exact: Value, cut: Value, bits: type[np.unsignedinteger[Any]]) -> Value:
    """`cut`, the rounded `exact`, rounded to odd instead: what a second, narrower rounding can be done to.

    It is moved towards zero if it was rounded away, and its last bit says that something was cut.
    """
    inexact = (cut != exact) & np.isfinite(exact)
    pattern = np.asarray(cut).view(bits)
    pattern = np.where(inexact & (np.abs(cut) > np.abs(exact)), pattern - bits(1), pattern)
    pattern = np.where(inexact, pattern | bits(1), pattern)
    return pattern.view(np.asarray(cut).dtype)[()]


def _odd_integer(value: Value) -> Value:
    """An integer of 64 bits as an f64 that rounds to 16 bits as the integer itself would."""
    wide, kind = np.greater_equal(np.abs(value.astype(np.float64)), 2.0**53), value.dtype.type
    low = kind(0xFFF)
    cut = (value & ~low) | np.where((value & low) != 0, kind(0x800), kind(0))
    return np.where(wide, cut, value).astype(np.float64)[()]


def _truncated(value: Value, target: DType) -> Value:
    info = np.iinfo(target.numpy)
    wide = np.trunc(value.astype(np.float64))
    nan = np.isnan(wide)
    low, high = wide <= float(info.min), wide >= float(info.max)
    inside = np.where(nan | low | high, 0.0, wide).astype(target.numpy)
    kind = target.numpy.type
    limited = np.where(low, kind(info.min), np.where(high, kind(info.max), inside))
    return limited[()]


# --- what unwritten storage holds --------------------------------------------------------------------


def poison(dtype: DType) -> Value:
    """NaN, or a number that no index and hardly a result can be."""
    if dtype.is_float:
        return constant(float("nan"), dtype)
    if dtype.is_bool:
        return np.True_
    return constant(np.iinfo(dtype.numpy).max - 17, dtype)
