"""Bounds of the functions that came later: they cover what an operand may be, and no more than is needed."""

from __future__ import annotations

import numpy as np
import pytest

from polyfuse.ir.dtypes import F32, F64
from polyfuse.ir.ops import OPS
from polyfuse.runtime.interpreter import ops
from polyfuse.runtime.reference.block import Store
from polyfuse.runtime.reference.ops import apply_op
from polyfuse.runtime.reference.reductions import finish, merge, partial, scattered
from polyfuse.runtime.reference.values import Val

RNG = np.random.default_rng(3)
NAMES = [o.name for o in OPS.values() if o.yields and not (o.gives_bool or o.gives)]
WIDE = 1e-3


def moved(v: np.ndarray, e: np.ndarray) -> np.ndarray:
    """A number of each interval, its ends among them."""
    return v + e * RNG.choice([-1.0, 1.0, 0.5, -0.3], v.size)


@pytest.mark.parametrize("name", NAMES)
def test_bounds_cover_the_interval(name: str) -> None:
    o = OPS[name]
    v = [np.concatenate([RNG.normal(size=3000) * 3, RNG.uniform(-1, 1, 1000)]) for _ in range(o.arity)]
    e = [np.abs(x) * 10.0 ** RNG.uniform(-7, -2, x.size) + WIDE * (RNG.random(x.size) < 0.2) for x in v]
    with np.errstate(all="ignore"):
        held = apply_op(name, tuple(Val(x, b) for x, b in zip(v, e, strict=True)), F32, F32)
        decided = np.isfinite(np.broadcast_to(held.e, v[0].shape)) & np.isfinite(held.v)
        for _ in range(5):
            args = [moved(x, b) for x, b in zip(v, e, strict=True)]
            got = np.asarray(ops.apply_op(name, args, F64))
            off, allowed = np.abs(got - held.v)[decided], np.broadcast_to(held.e, got.shape)[decided]
            assert (off <= allowed * (1 + 1e-9) + 1e-300).all(), name
        plain = np.isfinite(held.v)
    assert decided[plain].mean() > (0.5 if name == "fmod" else 0.9), name


@pytest.mark.parametrize("name", ["atan", "log1p", "cbrt", "erfc", "digamma", "sinh", "exp2"])
def test_bounds_are_of_the_size_of_the_error(name: str) -> None:
    o = OPS[name]
    v = [RNG.uniform(0.5, 6.0, 2000) for _ in range(o.arity)]
    e = [1e-4 * x for x in v]
    held = apply_op(name, tuple(Val(x, b) for x, b in zip(v, e, strict=True)), F64, F64)
    up = np.asarray(ops.apply_op(name, [x + b for x, b in zip(v, e, strict=True)], F64))
    down = np.asarray(ops.apply_op(name, [x - b for x, b in zip(v, e, strict=True)], F64))
    most = np.maximum(np.abs(up - held.v), np.abs(down - held.v))
    assert np.median(np.asarray(held.e) / np.maximum(most, 1e-12)) < 1.5


def test_what_is_at_a_pole_or_an_end_is_undecided() -> None:
    places = {
        "lgamma": 0.0, "digamma": -2.0, "tan": np.pi / 2, "asin": 1.0, "acosh": 1.0, "log1p": -1.0,
        "atanh": -1.0, "log2": 0.0, "sign": 0.0, "trunc": 2.0,
    }  # fmt: skip
    for name, at in places.items():
        with np.errstate(all="ignore"):
            held = apply_op(name, (Val(np.array([at]), np.array([1e-6])),), F32, F32)
        assert np.isinf(np.asarray(held.e)).all(), name
    origin = Val(np.zeros(1), np.array([1e-6]))
    left = Val(np.array([-1.0]), np.array([1e-6]))
    assert np.isinf(np.asarray(apply_op("atan2", (origin, origin), F32, F32).e)).all()
    assert np.isinf(np.asarray(apply_op("atan2", (origin, left), F32, F32).e)).all()


PRODUCTS = [
    ([1e-30, 1e-30, np.inf], False),  # 0 * inf in one order
    ([1e-30, 1e-30, 1e30, 1e30], False),
    ([0.0, 1e30, 1e30], False),
    ([2.0, 0.5, np.inf], True),
    ([1e-30, 1e-30, 0.0], True),
    ([1e30, 1e30, 2.0], True),
    ([0.0, np.inf], True),
    ([np.nan, 1e30, 1e30, 0.0], True),
]


@pytest.mark.parametrize(("factors", "decided"), PRODUCTS)
def test_a_product_that_another_order_may_change_is_undecided(factors: list[float], decided: bool) -> None:
    v = np.array(factors)
    with np.errstate(all="ignore"):
        term = Val(v)
        whole = finish("prod", partial("prod", term, v.shape, (0,), None), F32, v.size)
        halves = [
            partial("prod", Val(v[at]), v[at].shape, (0,), None) for at in (slice(0, 1), slice(1, None))
        ]
        merged = finish("prod", merge("prod", *halves), F32, v.size)
        at = np.zeros(v.size, int)
        update = scattered("prod", Store(F32, np.ones(1)), at, v, np.zeros(v.size), True)
    for found in (whole, merged):
        assert np.isfinite(np.asarray(found.e)).all() == decided
    assert decided or not np.isfinite(np.asarray(update.e)).any()
