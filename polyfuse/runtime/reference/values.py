"""Values of the reference evaluator: float64 numbers with a bound on what a real kernel may differ by.

A `Val` holds ``v``, the value of an array of elements computed in float64 (integers in int64), and
``e``, the *bound*: a kernel that computes in the declared types is right if it is within ``e`` of
``v``.  The Agreement rule of the language is implemented by propagating this bound directly,
operation by operation, instead of by a depth and a magnitude; it is tighter, since each rounding is
scaled by the number that is rounded, and it is conditioned by construction:

* inputs, constants and index values are exact: bound 0;
* every operation in a float type T adds ``8 * eps(T) * |result| + tiny(T)``, where tiny is the
  smallest normal number (subnormals may be flushed); nothing is added where exact operands give a
  result that T holds exactly, so that integers kept in floats stay exact;
* bounds of operands pass on through derivatives (or the ends of the interval), so that
  ``(a - b)`` of large close numbers has the bound of large numbers;
* a sum of n terms adds ``8 * eps * (log2 n + sqrt(n) / 8) * sum |terms|``: covers trees, lanes, and
  n honest serial additions;
* a value beyond the largest number of T is an infinity; where the bound straddles that limit,
  or a discrete decision (comparison, floor, argmax, cast to an integer), or a zero divisor, the
  element is *undecided*.  Undecided is ``e = inf``, and flows to all that is computed from it.

``e`` is the Python float 0.0 where the whole array is exact, else an array that broadcasts to ``v``.
``nonneg`` is true where the number that a kernel computes cannot be negative either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from polyfuse.ir.dtypes import BF16, F8E4M3, F8E5M2, F16, F32, F64, QUARTERS, U64, DType
from polyfuse.ir.quarter_floats import LARGEST, stored

Array: TypeAlias = npt.NDArray[Any]
Bound: TypeAlias = Array | float

SLACK = 8.0

_LIMIT = {F64: float(np.finfo(np.float64).max), F32: float(np.finfo(np.float32).max)}
_LIMIT |= {F16: 65504.0, BF16: float.fromhex("0x1.fep127"), **LARGEST}
_TINY = {F64: 2.0**-1022, F32: 2.0**-126, F16: 2.0**-24, BF16: 2.0**-126}
_TINY |= dict.fromkeys(QUARTERS, 2.0**-126)
_INTEGERS_EXACT_TO = {F64: 2.0**52, F32: 2.0**24, F16: 2.0**11, BF16: 2.0**8, F8E4M3: 16.0, F8E5M2: 8.0}


@dataclass(slots=True)
class Val:
    """See the module docstring."""

    v: Array
    e: Bound = 0.0
    nonneg: bool = False


def limit(dtype: DType) -> float:
    """The largest finite number of a float type."""
    return _LIMIT[dtype]


def tiny(dtype: DType) -> float:
    """What a flushed subnormal may cost; for f16, whose subnormals are kept, the smallest of them."""
    return _TINY.get(dtype, 0.0)


def is_exact(e: Bound) -> bool:
    return isinstance(e, float) and e == 0.0


def join(*bounds: Bound) -> Bound:
    """The sum of bounds, exact if all are."""
    total: Bound = 0.0
    for e in bounds:
        if not is_exact(e):
            total = e if is_exact(total) else total + e
    return total


def undecided(e: Bound) -> Array:
    """Where a bound says nothing."""
    return cast(Array, ~np.isfinite(np.asarray(e)))


def growth(n: int) -> float:
    """How many roundings of the sum of magnitudes a reduction of n terms is allowed."""
    return math.log2(n) + math.sqrt(n) / 8.0 if n > 1 else 0.0


def rounded(
    v: Array,
    e: Bound,
    dtype: DType,
    operands: tuple[Bound, ...] = (),
    *,
    roundings: Bound = 1.0,
    exact_if_held: bool = False,
    magnitude: Array | None = None,
    nonneg: bool = False,
) -> Val:
    """The value `v` with bound `e` after a rounding to `dtype`.

    `operands` are the bounds it was computed from, `roundings` how often `SLACK * eps` it may be off,
    `magnitude` the number that is rounded if larger than the result.
    """
    size = np.abs(v)
    scale = size if magnitude is None else magnitude
    exact = np.asarray(e) == 0
    held = _held(v, size, dtype) & exact if exact_if_held and exact.any() else None
    if held is not None and is_exact(e) and held.all():
        e = 0.0
    else:
        more = scale * (SLACK * dtype.eps * roundings)
        more += tiny(dtype)
        more = more if held is None else np.where(held, 0.0, more)
        e = more if is_exact(e) else np.add(more, e)
    top = limit(dtype)
    in_range = bool(scale.max(initial=0.0) <= top * 0.99)
    if in_range and (is_exact(e) or bool(np.max(e, initial=0.0) < math.inf)):
        return Val(v, e, nonneg)
    return _at_the_edge(v, e, scale, dtype, operands, nonneg)


def _held(v: Array, size: Array, dtype: DType) -> Array:
    """Which numbers `dtype` holds exactly (for f64: which are integers, so surely not rounded)."""
    if dtype is F64:
        held = (np.rint(v) == v) & (size <= _INTEGERS_EXACT_TO[F64])
    else:
        held = v.astype(dtype.numpy).astype(np.float64) == v
        held &= (size >= tiny(dtype)) | (v == 0)
    return cast(Array, held | ~np.isfinite(v))


def _at_the_edge(
    v: Array, e: Bound, scale: Array, dtype: DType, operands: tuple[Bound, ...], nonneg: bool
) -> Val:
    """Infinities, NaN, overflow and undecided elements."""
    top = limit(dtype)
    size = np.abs(v)
    unknown = np.zeros(v.shape, bool)
    for o in operands:
        if not is_exact(o):
            unknown = unknown | undecided(o)
    special = ~np.isfinite(v)
    e = np.broadcast_to(np.asarray(e, np.float64), v.shape)
    over = ~special & (size - e > top * (1 + dtype.eps))
    near = ~special & ~over & (np.maximum(size, scale) + e > top) & (e > 0)
    v = np.where(over, np.copysign(np.inf, v), v)
    e = np.where(special | over, 0.0, e)
    e = np.where(unknown | near | np.isnan(e), np.inf, e)
    return Val(v, e, nonneg)


def integers_exact_to(dtype: DType) -> float:
    """Integers up to here are held exactly by a float type."""
    return _INTEGERS_EXACT_TO[dtype]


def wrapped(v: Array, dtype: DType) -> Array:
    """An integer array reduced to the range of a type."""
    return v.astype(dtype.numpy, copy=False).astype(held_as(dtype), copy=False)


def held_as(dtype: DType) -> np.dtype[Any]:
    """What values of a type are held as: float64, bool, int64, or uint64 for those that int64 has not."""
    if dtype.is_bool or dtype is U64:
        return dtype.numpy
    return np.dtype(np.float64 if dtype.is_float else np.int64)


def from_numpy(a: Array, dtype: DType) -> Val:
    """An input array as exact values; subnormals may be read as zero."""
    if dtype.is_bool:
        return Val(a.astype(np.bool_))
    if dtype.is_integer:
        return Val(a.astype(held_as(dtype)))
    v = a.astype(np.float64)
    if dtype in (F16, *QUARTERS):
        return Val(v)
    size = np.abs(v)
    low = (size < tiny(dtype)) & (v != 0)
    return Val(v, np.where(low, size, 0.0)) if low.any() else Val(v)


# --- words of short numbers (`layers.graph.quantized`) ----------------------------------------------------


# An array of numbers, or one.
Integers = Any
Floats = Any


# --- bits -------------------------------------------------------------------------------------------------


def float_bits(x: Floats) -> Integers:
    """The bits of f32 or f64."""
    return np.asarray(x).view(np.dtype(f"u{x.dtype.itemsize}"))[()]


def bits_float(x: Integers) -> Floats:
    """The float of such bits."""
    return np.asarray(x).view(np.dtype(f"f{x.dtype.itemsize}"))[()]


def short_bits(dtype: DType) -> Callable[[Floats], Integers]:
    """The bits of the short float next to an f32, in a word."""

    def function(x: Floats) -> Integers:
        with np.errstate(over="ignore"):
            held = np.asarray(x).astype(np.float16) if dtype is F16 else stored(x, dtype)
        return held.view(dtype.word.numpy).astype(np.uint32)[()]

    return function


def bits_short(dtype: DType) -> Callable[[Integers], Floats]:
    """The short float of the lowest bits of a word, as an f32."""
    kind = dtype.word.numpy
    return lambda x: np.asarray(x).astype(kind).view(dtype.numpy).astype(np.float32)[()]


def philox4x32(key: Integers, high: Integers, low: Integers, n: Integers) -> Integers:
    """Word `n` of the counter `high`, `low`: Random123's Philox of four words and ten rounds."""
    half, places = np.uint64(0xFFFFFFFF), np.uint64(32)
    key, high, low, n = (np.asarray(x).astype(np.uint64) for x in (key, high, low, n))
    a, b, c, d, k0, k1 = low & half, low >> places, high & half, high >> places, key & half, key >> places
    for _ in range(10):
        p, q = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = q >> places ^ b ^ k0, q & half, p >> places ^ d ^ k1, p & half
        k0, k1 = k0 + np.uint64(0x9E3779B9) & half, k1 + np.uint64(0xBB67AE85) & half
    odd, upper = n & np.uint64(1) != 0, n & np.uint64(2) != 0
    return np.where(upper, np.where(odd, d, c), np.where(odd, b, a)).astype(np.uint32)[()]


# --- several numbers in one -------------------------------------------------------------------------------


_UPPER = np.uint32(0xFFFF0000)


def word(low: Integers, high: Integers) -> Integers:
    """The low 16 bits of both."""
    return np.bitwise_or(np.left_shift(high, 16), np.bitwise_and(low, 0xFFFF))


def dot_words(a: Integers, b: Integers) -> Integers:
    """The products of halves, added."""
    low = np.multiply(_low(a), _low(b))
    return np.add(low, np.multiply(np.right_shift(a, 16), np.right_shift(b, 16)))


def half(low: Integers, high: Integers) -> Integers:
    """The low 8 bits of both."""
    return np.bitwise_or(np.left_shift(np.bitwise_and(high, 0xFF), 8), np.bitwise_and(low, 0xFF))


def dot_bytes(a: Integers, b: Integers) -> Integers:
    """The products of bytes, added: those of `a` have signs, those of `b` none."""
    total = np.zeros_like(a)
    for shift in range(0, 32, 8):
        one, other = (np.bitwise_and(np.right_shift(x, shift), 0xFF) for x in (a, b))
        signed = np.subtract(np.bitwise_xor(one, 0x80), 0x80)
        total = np.add(total, np.multiply(signed, other))
    return total


def pair(low: Floats, high: Floats) -> Floats:
    """The upper 16 bits of both, as an f32 that is no number."""
    return np.bitwise_or(_bits(high) & _UPPER, _bits(low) >> 16).view(np.float32)


def dot_pairs(a: Floats, b: Floats) -> Floats:
    """The products of bf16, added."""
    low = np.multiply((_bits(a) << 16).view(np.float32), (_bits(b) << 16).view(np.float32))
    upper = np.multiply((_bits(a) & _UPPER).view(np.float32), (_bits(b) & _UPPER).view(np.float32))
    return np.add(low, upper)


def _bits(x: Floats) -> Integers:
    return np.asarray(x, np.float32).view(np.uint32)


def _low(x: Integers) -> Integers:
    """The lower half with its sign."""
    return np.subtract(np.bitwise_xor(np.bitwise_and(x, 0xFFFF), 0x8000), 0x8000)
