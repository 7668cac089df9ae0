"""Accumulation (`+=`, `max=`, `min=`) of the reference evaluator into a tensor."""

from __future__ import annotations

import numpy as np

from polyfuse.runtime.reference_block import Store
from polyfuse.runtime.reference_reduce import MERGE, Partial, finish
from polyfuse.runtime.reference_values import (
    Array,
    Val,
    integers_exact_to,
    is_exact,
    rounded,
    wrapped,
)


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
        return rounded(total, lost, t, (lost,), roundings=roundings)
    size = _at(op, np.abs(start), flat, np.abs(v))
    whole = exact and bool((np.rint(v) == v).all() and (np.rint(start) == start).all())
    if whole and bool(size.max(initial=0.0) <= integers_exact_to(t)):
        return Val(total)
    lost = _at(op, old, flat, e)
    return rounded(total, lost, t, (lost,), roundings=roundings, magnitude=size)
