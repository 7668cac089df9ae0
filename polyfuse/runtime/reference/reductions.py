"""Reductions of the reference evaluator: partial results of blocks, their sum, and the bound of it.

A sum carries (sum v, sum |v|, sum e); an extreme the value and the ends of its interval; a product
(prod v, how far products of some of the terms reach, prod (|v| + e)).  Partial results of the blocks of one
reduction are merged.

Accumulation (`+=`, `max=`, `min=`) into a tensor is the last part.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from polyfuse.ir.dtypes import DType
from polyfuse.ir.ops import COMBINES, OPS
from polyfuse.runtime.reference.block import Store
from polyfuse.runtime.reference.values import (
    Array,
    Bound,
    Val,
    growth,
    integers_exact_to,
    is_exact,
    limit,
    rounded,
    tiny,
    undecided,
    wrapped,
)


@dataclass(slots=True)
class Partial:
    """What is known of a reduction after some of its terms: value, two helpers, integers only, sign."""

    v: Array
    low: Array
    high: Array
    exact: bool
    nonneg: bool


def identity(op: str, dtype: DType) -> float | int | bool:
    """What an empty reduction gives; for max and min only a start, the language has none."""
    if op in ("any", "all"):
        return op == "all"
    if op in ("sum", "prod"):
        return 0 if op == "sum" else 1
    if dtype.is_float:
        return -math.inf if op == "max" else math.inf
    if dtype.is_bool:
        return op == "min"
    info = np.iinfo(dtype.numpy)
    return int(info.min if op == "max" else info.max)


def partial(op: str, term: Val, shape: tuple[int, ...], axes: tuple[int, ...], mask: Array | None) -> Partial:
    """Reduce a block of terms over `axes`, which stay with extent 1."""
    v, e = np.broadcast_to(term.v, shape), term.e
    if not is_exact(e):
        e = np.broadcast_to(np.asarray(e), shape)
    if mask is not None:
        v = np.where(mask, v, neutral(op, v))
        e = e if is_exact(e) else np.where(mask, e, 0.0)
    reduce = functools.partial(_REDUCE[op], axis=axes, keepdims=True)
    total = np.asarray(reduce(v))
    exact = is_exact(e)
    if v.dtype != np.float64:
        lost = np.zeros(total.shape) if exact else np.sum(e, axis=axes, keepdims=True)
        if op in ("any", "all") and not exact:
            sure = (v if op == "any" else ~v) & (np.asarray(e) == 0)
            lost = np.where(sure.any(axis=axes, keepdims=True), 0.0, lost)
        return Partial(total, lost, lost, exact, False)
    if op == "sum":
        size = np.abs(v)
        whole = exact and bool((np.rint(v) == v).all())
        error = np.zeros(total.shape) if exact else np.sum(e, axis=axes, keepdims=True)
        return Partial(total, np.sum(size, axis=axes, keepdims=True), error, whole, term.nonneg)
    if op == "prod":
        whole = exact and bool((np.rint(v) == v).all())
        far = total if exact else np.prod(np.abs(v) + e, axis=axes, keepdims=True)
        reach = np.sum(_factors(v, e), axis=axes, keepdims=True)
        return Partial(total, reach, np.abs(far), whole, term.nonneg)
    low, high = (total, total) if exact else (reduce(v - e), reduce(v + e))
    return Partial(total, low, high, exact, term.nonneg)


# More than the logarithm of any number: an infinity is so far above 1, a zero so far below.
_FAR = 1e6


def _factors(v: Array, e: Bound = 0.0) -> Array:
    """How far each factor reaches above 1 (real part) and below (imaginary part), in logarithms; infinitely
    far where nothing is known."""
    size = np.abs(v)
    plain = (size > 0) & (size < np.inf)
    log = np.log(np.where(plain, size, 1.0)) + _FAR * (size == np.inf) - _FAR * (size == 0)
    known = np.maximum(log, 0.0) + 1j * np.maximum(-log, 0.0)
    return known if is_exact(e) else np.where(undecided(e), np.inf, known)


def _out_of_range(reach: Array, v: Array, dtype: DType) -> Array:
    """Where a product may be another in another order: some of the factors overflow or are infinite, and
    others underflow or are 0.  Or where it is not known."""
    overflows = reach.real >= 0.99 * math.log(limit(dtype))
    underflows = reach.imag >= -0.99 * math.log(tiny(dtype))
    both = overflows & underflows & ~np.isnan(v)
    return np.asarray(both | np.isinf(reach.real))


def neutral(op: str, v: Array) -> float | int | bool:
    """What does not change a reduction of values as they are held here (`values.held_as`)."""
    if op in ("sum", "prod", "any", "all"):
        return op in ("prod", "all")
    if v.dtype == np.float64:
        return -math.inf if op == "max" else math.inf
    if v.dtype == np.bool_:
        return op == "min"
    info = np.iinfo(v.dtype)
    return int(info.min if op == "max" else info.max)


_REDUCE: dict[str, Callable[..., Array]] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all,
}  # fmt: skip
MERGE: dict[str, np.ufunc] = {r: getattr(np, OPS[op].numpy) for r, op in COMBINES.items()}


def merge(op: str, a: Partial, b: Partial) -> Partial:
    join = MERGE[op]
    exact, nonneg = a.exact and b.exact, a.nonneg and b.nonneg
    if a.v.dtype != np.float64:
        lost = a.low + b.low
        if op in ("any", "all"):
            stop = op == "any"
            sure = ((a.v == stop) & (a.low == 0)) | ((b.v == stop) & (b.low == 0))
            lost = np.where(sure, 0.0, lost)
        return Partial(join(a.v, b.v), lost, lost, exact, nonneg)
    low = np.add if op in ("sum", "prod") else join
    high = np.add if op == "sum" else join
    return Partial(join(a.v, b.v), low(a.low, b.low), high(a.high, b.high), exact, nonneg)


def finish(op: str, p: Partial, dtype: DType, n: int) -> Val:
    """The value of a reduction of `n` terms (or fewer) in type `dtype`."""
    if p.v.dtype != np.float64:
        v = p.v if dtype.is_bool else wrapped(p.v, dtype)
        return Val(v, np.where(undecided(p.low), np.inf, 0.0) if p.low.any() else 0.0)
    if op == "sum":
        if p.exact and bool(p.low.max(initial=0.0) <= integers_exact_to(dtype)):
            return Val(p.v, 0.0, p.nonneg)
        e: Bound = p.high
        roundings = growth(n)
        return rounded(p.v, e, dtype, (e,), roundings=roundings, magnitude=p.low, nonneg=p.nonneg)
    if op == "prod":
        size = np.abs(p.v)
        if p.exact and bool(((size >= 1) & (size <= integers_exact_to(dtype))).all()):
            return Val(p.v, 0.0, p.nonneg)
        e = 0.0 if p.exact else np.maximum(p.high - size, 0.0)
        unknown = _out_of_range(p.low, p.v, dtype)
        e = np.where(unknown, np.inf, e) if unknown.any() else e
        return rounded(p.v, e, dtype, (e,) if unknown.any() else (), roundings=growth(n), nonneg=p.nonneg)
    if p.exact:
        return Val(p.v, 0.0, p.nonneg)
    finite = np.isfinite(p.v)
    e = np.maximum(p.high - p.v, p.v - p.low)
    e = np.where(finite, np.where(np.isnan(e), np.inf, e), 0.0)
    settled = finite | np.isnan(p.v) | (p.low == p.high)
    return Val(p.v, np.where(settled, e, np.inf), p.nonneg)


def arg_extreme(op: str, term: Val, shape: tuple[int, ...], axis: int, mask: Array | None, start: int) -> Val:
    """Index of the first extreme along `axis`; undecided where another term may be it."""
    v = np.broadcast_to(term.v, shape)
    e = np.broadcast_to(np.asarray(term.e), shape)
    sign = 1 if op == "argmax" else -1
    v = v.astype(np.float64) if v.dtype == np.bool_ else v
    if mask is not None:
        v = np.where(mask, v, neutral(op[3:], v))
    best = (np.max if sign > 0 else np.min)(v, axis=axis, keepdims=True)
    hit = (v == best) | ((v != v) & (best != best))
    if mask is not None:
        hit = hit & mask
    at = np.argmax(hit, axis=axis)
    at = np.expand_dims(at, axis)
    if is_exact(term.e):
        return Val(at + start)
    chosen = np.take_along_axis(e, at, axis)
    others = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape).copy()
    np.put_along_axis(others, at, False, axis)
    near = (np.abs(v - best) <= e + chosen) & (e + chosen > 0) & others
    lost = near.any(axis=axis, keepdims=True) | undecided(e).any(axis=axis, keepdims=True)
    return Val(at + start, np.where(lost, np.inf, 0.0))


# --- places of an order -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """What a kernel chose in a block, which is followed where it may be right, and what it chose twice."""

    at: Array
    twice: Array


def arg_place(
    op: str, term: Val, axis: int, mask: Array | None, first: int, place: Array, choice: Choice | None
) -> Val:
    """Index of the element at a place of the order along an axis, which begins with `first`.

    Where others may stand there, it is undecided, or the one that was chosen if it is one of them.
    """
    v, e = np.asarray(term.v), np.asarray(term.e, np.float64)
    valid = np.ones((1,) * v.ndim, bool) if mask is None else np.asarray(mask)
    v, e, valid = np.broadcast_arrays(v, e, valid)
    order = _in_order(op, v, valid, axis)
    last = v.shape[axis] - 1
    at = np.take_along_axis(order, np.clip(place, 0, last), axis)
    if is_exact(term.e):
        return Val(at + first)
    chosen, bound = (np.take_along_axis(x, at, axis) for x in (v, e))
    others = valid & (np.arange(last + 1).reshape([-1 if k == axis else 1 for k in range(v.ndim)]) != at)
    near = (np.abs(v - chosen) <= e + bound) & (e + bound > 0) & others
    lost = near.any(axis=axis, keepdims=True) | (undecided(e) & valid).any(axis=axis, keepdims=True)
    if choice is None:
        return Val(at + first, np.where(lost, np.inf, 0.0))
    reach = _reach(op == "arglargest", v, e, valid, order, axis)
    low, high = (np.take_along_axis(x, np.clip(place, 0, last), axis) for x in reach)
    mine = choice.at - first
    known = (mine >= 0) & (mine <= last) & ~choice.twice
    mine = np.clip(mine, 0, last)
    value, error, inside = (np.take_along_axis(x, mine, axis) for x in (v, e, valid))
    fits = (value - error <= high) & (value + error >= low) | (np.isnan(value) & np.isnan(chosen))
    fits |= undecided(error) | undecided(bound)
    # A position that an earlier place has is wrong here: the reference says the one before its own.
    again = choice.twice & (choice.at == at + first)
    at = np.where(again, np.take_along_axis(order, np.clip(place - 1, 0, last), axis), at)
    return Val(np.where(lost & known & inside & fits, mine, at) + first)


def _in_order(op: str, v: Array, valid: Array, axis: int) -> Array:
    """Positions, what is valid first, the largest or the smallest first; a NaN is the largest."""
    falling = op == "arglargest"
    if v.dtype.kind != "f":
        v = v.astype(np.uint64 if v.dtype.kind == "u" else np.int64)
        return np.lexsort((~v if falling else v, ~valid), axis=axis)
    nan = np.isnan(v)
    known = np.where(nan, 0.0, v)
    return np.lexsort((-known if falling else known, ~nan if falling else nan, ~valid), axis=axis)


def _reach(falling: bool, v: Array, e: Array, valid: Array, order: Array, axis: int) -> tuple[Array, Array]:
    """Between which values what stands at each place is, however much the elements are off.

    Of falling values the k-th is at least the least lower end of those up to it, and at most the greatest
    upper end of those from it on; of rising values the other way round.
    """
    vague = undecided(e)
    low = np.where(vague, -np.inf, np.where(np.isnan(v), np.inf, v - e))
    high = np.where(vague | np.isnan(v), np.inf, v + e)
    low, high = np.where(valid, low, np.inf), np.where(valid, high, -np.inf)
    low, high = (np.moveaxis(np.take_along_axis(x, order, axis), axis, -1) for x in (low, high))
    back = slice(None, None, -1)
    if falling:
        low = np.minimum.accumulate(low, axis=-1)
        high = np.maximum.accumulate(high[..., back], axis=-1)[..., back]
    else:
        low = np.minimum.accumulate(low[..., back], axis=-1)[..., back]
        high = np.maximum.accumulate(high, axis=-1)
    return np.moveaxis(low, -1, axis), np.moveaxis(high, -1, axis)


# --- accumulation -----------------------------------------------------------------------------------------


def scattered(op: str, store: Store, flat: Array, v: Array, e: Array, exact: bool) -> Val:
    """The tensor `store` after ``flat element flat[k] op= v[k]``; `exact` says that `e` is 0."""
    exact = exact and is_exact(store.e)
    size = store.v.size
    old = np.broadcast_to(np.asarray(store.e, np.float64), store.shape).reshape(-1)
    start = store.v.reshape(-1)
    total = _at(op, start, flat, v)
    if store.dtype.is_float:
        val = _float(op, Store(store.dtype, start, old), total, flat, v, e, exact)
    else:
        lost = 0.0 if exact else old + np.bincount(flat, e, size)
        val = Val(total if store.dtype.is_bool else wrapped(total, store.dtype), lost)
    return Val(_shaped(val.v, store), val.e if is_exact(val.e) else _shaped(np.asarray(val.e), store))


def _shaped(a: Array, store: Store) -> Array:
    return np.array(np.broadcast_to(a, (store.v.size,))).reshape(store.shape)


def _at(op: str, start: Array, flat: Array, v: Array) -> Array:
    if op == "sum" and start.dtype == np.float64:
        return start + np.bincount(flat, v, start.size)
    total = start.copy()
    MERGE[op].at(total, flat, v.astype(start.dtype))
    return total


def _float(op: str, store: Store, total: Array, flat: Array, v: Array, e: Array, exact: bool) -> Val:
    start, old, t = store.v, np.asarray(store.e), store.dtype
    if op in ("max", "min"):
        if exact:
            return Val(total)
        low, high = _at(op, start - old, flat, v - e), _at(op, start + old, flat, v + e)
        return finish(op, Partial(total, low, high, False, False), t, 2)
    count = np.bincount(flat, minlength=start.size)
    terms = 1.0 + count
    roundings = np.where(count > 0, np.log2(terms) + np.sqrt(terms) / 8.0, 0.0)
    if op == "prod":
        far = _at(op, np.abs(start) + old, flat, np.abs(v) + e)
        lost = np.maximum(far - np.abs(total), 0.0)
        reach, begun = _factors(v, 0.0 if exact else e), _factors(start, old)
        above, below = (np.bincount(flat, a, start.size) for a in (reach.real, reach.imag))
        lost = np.where(_out_of_range(begun + above + 1j * below, total, t), np.inf, lost)
        return rounded(total, lost, t, (lost,), roundings=roundings)
    size = _at(op, np.abs(start), flat, np.abs(v))
    whole = exact and bool((np.rint(v) == v).all() and (np.rint(start) == start).all())
    if whole and bool(size.max(initial=0.0) <= integers_exact_to(t)):
        return Val(total)
    lost = _at(op, old, flat, e)
    return rounded(total, lost, t, (lost,), roundings=roundings, magnitude=size)
