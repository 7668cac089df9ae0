"""Minima and maxima with a number, and conversions of what they bound, on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.math.prelude import prelude

FLOATS: dict[str, Any] = {"f32": np.float32, "f64": np.float64}
INTEGERS: dict[str, Any] = {"i8": np.int8, "u8": np.uint8, "i16": np.int16, "i32": np.int32, "i64": np.int64}


def values(kind: str, count: int = 203) -> Any:
    """Numbers of all sizes, NaN of both signs, infinities and zeros among them."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(count) * 10.0 ** rng.integers(-3, 9, count)
    special = [
        np.nan,
        -np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        1e-20,
        255.0,
        255.5,
        -128.0,
        127.0,
        2.0**31,
        -(2.0**31),
    ]
    x[5 : 5 + len(special)] = special
    return x.astype(FLOATS[kind])


def text_of(f: pf.Function, *args: Any) -> str:
    return f.built(*args).code.source


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("max(x[i], 0.0)", 0.0, np.inf),
        ("max(-1.5, x[i])", -1.5, np.inf),
        ("min(x[i], 0.1)", -np.inf, 0.1),
        ("min(max(x[i], -2.0), 7.25)", -2.0, 7.25),
        ("max(min(7.25, x[i]), -2.0)", -2.0, 7.25),
    ],
)
def test_a_number_bounds_all_but_nan(kind: str, text: str, low: float, high: float) -> None:
    x = values(kind)
    f = pf.compile(f"op f(x: {kind}[N]) -> (y: {kind}[N]) {{ y[i] = {text} }}")
    np.testing.assert_array_equal(f(x), np.clip(x, x.dtype.type(low), x.dtype.type(high)))
    source = text_of(f, x)
    assert f"pf_bound_{kind}_" in source
    assert f"pf_max_{kind}(" not in source and f"pf_min_{kind}(" not in source


@pytest.mark.thin(2)
@pytest.mark.parametrize("to", INTEGERS)
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("count", [7, 203])
def test_what_lies_within_a_type_is_converted(to: str, kind: str, count: int) -> None:
    x = np.ascontiguousarray(values(kind)[::-1][-count:])
    low, high = (0, 200) if to == "u8" else (-100, 127)
    body = f"y[i] = {to}(round(min(max(x[i], {low}.0), {high}.0)))"
    f = pf.compile(f"op f(x: {kind}[N]) -> (y: {to}[N]) {{ {body} }}")
    expected = np.nan_to_num(np.rint(np.clip(x, low, high)), nan=0).astype(INTEGERS[to])
    np.testing.assert_array_equal(f(x), expected)
    made = "i32" if to == "i64" else to  # what fits 32 bits is computed in 32 bits
    assert f"pf_{made}_within_{kind}(" in text_of(f, x)


@pytest.mark.parametrize(
    ("to", "low", "high"),
    [("u8", -1.0, 255.0), ("u8", 0.0, 256.0), ("i8", -129.0, 0.0), ("i32", 0.0, 2147483647.0)],
)
def test_what_may_leave_a_type_ends_at_its_limits(to: str, low: float, high: float) -> None:
    """2147483647.0 is 2 ** 31 in f32."""
    x = values("f32")
    f = pf.compile(f"op f(x: f32[N]) -> (y: {to}[N]) {{ y[i] = {to}(min(max(x[i], {low}), {high})) }}")
    info = np.iinfo(INTEGERS[to])
    clipped = np.nan_to_num(np.clip(x.astype("f8"), low, high), nan=0)
    np.testing.assert_array_equal(f(x), np.clip(np.trunc(clipped), info.min, info.max).astype(INTEGERS[to]))
    assert f" = pf_{to}_from_f32(" in text_of(f, x)


@pytest.mark.parametrize("to", INTEGERS)
@pytest.mark.parametrize("kind", FLOATS)
def test_conversions_clamp_where_floats_have_the_ends_of_the_type(to: str, kind: str) -> None:
    """A float of 24 bits has none of 2 ** 31 - 1."""
    name = f"pf_{to}_from_{kind}"
    exact = np.iinfo(INTEGERS[to]).max <= 1 << (24 if kind == "f32" else 53)
    assert (f"pf_at_most_{kind}(" in prelude({name})) == exact


def test_bounds_in_rows_and_totals() -> None:
    x = values("f32", 4 * 203).reshape(4, 203)
    f = pf.compile(
        """op f(x: f32[T, V]) -> (q: i8[T, V], s: f32[T]) {
          s[t] = max[v](min(abs(x[t, v]), 64.0))
          q[t, v] = i8(min(max(round(x[t, v] / s[t]), -127.0), 127.0))
        }"""
    )
    q, s = f(x)
    rows = np.minimum(np.abs(x), np.float32(64)).max(1)
    np.testing.assert_array_equal(s, rows)
    with np.errstate(invalid="ignore"):
        parts = np.nan_to_num(np.clip(np.rint(x / rows[:, None]), -127, 127), nan=0)
    np.testing.assert_array_equal(q, parts.astype("i1"))


def test_no_elements() -> None:
    f = pf.compile("op f(x: f32[N]) -> (y: u8[N]) { y[i] = u8(min(max(x[i], 0.0), 255.0)) }")
    assert f(np.zeros(0, "f4")).shape == (0,)
