"""What steps of a recurrence need not wait for is computed in lanes before them."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import cpu_source
from thinned import thinned

import polyfuse as pf
from polyfuse.ir.dtypes import BY_NAME

TEXT = """op f(x: {1}[B, T], m: bool[B, T], g: {1}[B, T]) -> (y: {1}[B, T]) where T >= 1 {{
  y[i, 0] = x[i, 0]
  y[i, j] = {0} for j in 1..T
}}"""
# What a step is, and the same of numbers: p is what the step before found.
STEPS = {
    "masked": ("y[i, j-1] + x[i, j] * {0}(m[i, j])", lambda p, x, m, g: p + x * x.dtype.type(m)),
    "chosen": ("y[i, j-1] + (x[i, j] if m[i, j] else 0)", lambda p, x, m, g: p + (x if m else 0)),
    "largest": ("max(y[i, j-1], x[i, j] if m[i, j] else g[i, j])", lambda p, x, m, g: max(p, x if m else g)),
    "least": ("min(x[i, j] if m[i, j] else g[i, j], y[i, j-1])", lambda p, x, m, g: min(p, x if m else g)),
    "parts": ("(0 if m[i, j] else y[i, j-1]) + x[i, j]", lambda p, x, m, g: (0 if m else p) + x),
    "held": ("x[i, j] if m[i, j] else y[i, j-1]", lambda p, x, m, g: x if m else p),
    "waits": ("y[i, j-1] - x[i, j] if y[i, j-1] > 0 else y[i, j-1] + max(x[i, j], 0)",
              lambda p, x, m, g: p - x if p > 0 else p + max(x, 0)),
}  # fmt: skip


def found(text: str, x: object, m: object, g: object, **settings: object) -> object:
    return pf.compile(text, **settings)(x, m, g)  # type: ignore[arg-type]


@pytest.mark.thin(2)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("shape", thinned([(1, 300), (6, 63), (37, 16), (5, 129), (3, 70), (2, 5)], 3))
def test_steps_are_right(step: str, dtype: str, shape: tuple[int, int]) -> None:
    """To the last bit: the steps do what they did."""
    text, one = STEPS[step]
    rng = np.random.default_rng(sum(shape))
    x, g = (np.round(rng.standard_normal(shape) * 8).astype(BY_NAME[dtype].numpy) for _ in range(2))
    m = rng.random(shape) < 0.5
    want = x.copy()
    for i in range(shape[0]):
        for j in range(1, shape[1]):
            want[i, j] = one(want[i, j - 1], x[i, j], m[i, j], g[i, j])
    np.testing.assert_array_equal(found(TEXT.format(text.format(dtype), dtype), x, m, g), want)


@pytest.mark.parametrize("step", ["masked", "chosen", "largest", "least", "parts", "held"])
def test_what_is_no_number_stays_where_it_goes(step: str) -> None:
    """An infinity that is masked out by a product makes NaN; one that is not chosen makes nothing."""
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((2, 4, 200)).astype("f4")
    x[0, 150], x[1, 20], x[2, 100], g[3, 70], x[3, 5] = np.nan, np.inf, -np.inf, np.nan, -0.0
    m = rng.random((4, 200)) < 0.5
    m[0, 150], m[1, 20] = step != "held", step == "held"
    text, one = STEPS[step]
    want = x.copy()
    with np.errstate(invalid="ignore"):
        for i in range(4):
            for j in range(1, 200):
                p = want[i, j - 1]
                nan = np.isnan(p) and step in ("largest", "least")
                t = x[i, j] if m[i, j] else g[i, j]
                nan_term = np.isnan(t) and step in ("largest", "least")
                want[i, j] = p if nan else t if nan_term else one(p, x[i, j], m[i, j], g[i, j])
    np.testing.assert_array_equal(found(TEXT.format(text.format("f32"), "f32"), x, m, g), want)


def body(text: str, **sizes: int) -> str:
    return cpu_source(text, **sizes).split("_body(", 1)[1]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("rows", [1, 32])
def test_no_choice_that_need_not_wait_is_in_the_steps(step: str, rows: int) -> None:
    """Each row's mask is read in lanes alone. Rows of numbers that are as long as their masks' are lanes."""
    text = TEXT.format(STEPS[step][0].format("f32"), "f32")
    source = body(text, B=rows, T=1 + 64 * 9)
    assert "_l < 64" in source and "term" in source
    steps = source.split("for (pf_i64 c0_t" if rows == 1 else "for (pf_i64 c1_t")[1].split("_l < 64")[2]
    assert "b_m[" not in steps.split("}")[0]
    assert "term" not in body(text, B=rows, T=12), "fewer steps are no vector"


def test_what_takes_an_instruction_stays_in_the_steps() -> None:
    text = TEXT.format("0.5 * y[i, j-1] + x[i, j] * g[i, j]", "f32")
    assert "term" not in body(text, B=3, T=500)


def test_rows_may_be_changed_in_place() -> None:
    text = """op f(inout x: f32[B, T], m: bool[B, T]) where T >= 1 {
      y[i, 0] = x[i, 0]
      y[i, j] = y[i, j-1] + (x[i, j] if m[i, j] else 1.0) for j in 1..T
      x[i, j] = y[i, j] * 2.0
    }"""
    rng = np.random.default_rng(4)
    x, m = np.round(rng.standard_normal((3, 150)) * 8).astype("f4"), rng.random((3, 150)) < 0.5
    terms = np.where(m, x, np.float32(1))
    terms[:, 0] = x[:, 0]
    pf.compile(text)(x, m)
    np.testing.assert_array_equal(x, 2 * np.cumsum(terms, axis=1))


def test_indices_from_data_are_checked_where_steps_use_them() -> None:
    text = """op f(x: f32[N], k: i64[T]) -> (y: f32[T]) where T >= 1, N >= 1 {
      y[0] = x[k[0]]
      y[j] = y[j-1] + max(x[k[j]], 0.0) for j in 1..T
    }"""
    k = np.arange(200) % 10
    want = np.cumsum(np.maximum(np.arange(10.0), 0)[k])
    x = np.arange(10, dtype="f4")
    np.testing.assert_array_equal(pf.compile(text)(x, k), want)
    k[170] = 10
    with pytest.raises(pf.PolyfuseError, match="10"):
        pf.compile(text, checked=True)(x, k)


def test_a_loop_that_ends_before_it_begins_has_no_steps() -> None:
    """Steps of the last rows are all of the second piece: what the first one would count from is -64."""
    text = """op f(x: f32[A, T]) -> (y: f32[A, T]) where A == 5, T == 40 {
      y[i, 0] = x[i, 0]
      y[i, j] = y[i, j-1] + (x[i, j] if x[i, j] > 0.0 else 0.0) for j in 1..min(T, 155 - T*i)
      y[i, j] = y[i, j-1] for j in max(1, 155 - T*i)..T
    }"""
    x = np.random.default_rng(0).standard_normal((5, 40)).astype("f4")
    terms = np.where(x > 0, x, 0) * (np.arange(200).reshape(5, 40) < 155)
    terms[:, 0] = x[:, 0]
    want = np.cumsum(terms, axis=1, dtype="f4")
    np.testing.assert_array_equal(pf.compile(text)(x), want)
