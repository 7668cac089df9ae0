"""Extremes that need not look for NaN: which they are, and that no result tells the difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from equivalence import cpu_source

import polyfuse as pf

HEAD = "op f(x: f32[T, H], keep: bool[T, H], i: i64[T]) -> "
SOFTMAX = """{
  z[t, h] = x[t, h] * 0.5 + 1.0
  m[t] = max[h](z[t, h])
  e[t, h] = exp(z[t, h] - m[t])
  d[t] = sum[h](e[t, h])
"""
SPARED = {
    "softmax": "(y: f32[T, H])" + SOFTMAX + "y[t, h] = e[t, h] / d[t] }",
    "twice": "(y: f32[T, H])" + SOFTMAX + "y[t, h] = exp(z[t, h] - m[t]) / d[t] }",
    "log": "(y: f32[T, H])" + SOFTMAX + "y[t, h] = z[t, h] - m[t] - log(d[t]) }",
    "total": "(y: f32[T])" + SOFTMAX + "y[t] = m[t] + log(d[t]) }",
    "gathered": "(y: f32[T])" + SOFTMAX + "y[t] = e[t, i[t]] / d[t] }",
    "weights": "(y: f32[T])" + SOFTMAX + "y[t] = sum[h](e[t, h] / d[t] * x[t, h]) }",
    "half": "(y: f16[T, H])" + SOFTMAX + "y[t, h] = f16(e[t, h] / d[t]) }",
}
CAREFUL = {
    "result": "(y: f32[T, H], m: f32[T])" + SOFTMAX + "y[t, h] = e[t, h] / d[t] }",
    "terms": "(e: f32[T, H], d: f32[T])" + SOFTMAX + "}",
    "chosen": "(y: f32[T, H])" + SOFTMAX + "y[t, h] = e[t, h] / d[t] if keep[t, h] else e[t, h] }",
    "compared": "(y: bool[T, H])" + SOFTMAX + "y[t, h] = e[t, h] < d[t] }",
    "alone": "(y: f32[T])" + SOFTMAX + "y[t] = m[t] + i[t] * 0.0 }".replace("i[t] * 0.0", "x[t, 0]"),
    "masked": """(y: f32[T, H]) {
      m[t] = max[h](x[t, h])
      e[t, h] = exp(x[t, h] - m[t]) if keep[t, h] else 0.0
      d[t] = sum[h](e[t, h])
      y[t, h] = e[t, h] / d[t] }""",
    "part": """(y: f32[T, H]) {
      m[t] = max[h](x[t, h])
      d[t] = sum[h in 1..H](exp(x[t, h] - m[t]))
      y[t, h] = exp(x[t, h] - m[t]) / d[t] }""",
    "other row": """(y: f32[T, H]) {
      m[t] = max[h](x[t, h])
      d[t] = sum[h](exp(x[t, h] - m[t]))
      y[t, h] = exp(x[t, h] - m[t]) / d[T-1-t] }""",
    "other terms": """(y: f32[T, H]) {
      m[t] = max[h](x[t, h])
      d[t] = sum[h in 0..H](exp(abs(x[t, H-1-h]) * 0.5 - m[t]))
      y[t, h] = exp(x[t, h] - m[t]) / d[t] }""",
    "extreme": """(y: f32[T]) {
      m[t] = max[h](x[t, h])
      d[t] = sum[h](exp(x[t, h] - m[t]))
      y[t] = min[h](exp(x[t, h] - m[t]) / d[t]) }""",
}


def source(text: str) -> str:
    return cpu_source(HEAD + text, T=64, H=256)


@pytest.mark.parametrize("name", SPARED)
def test_spared(name: str) -> None:
    assert "_v_nan[" not in source(SPARED[name]) and "acc" in source(SPARED[name])


@pytest.mark.parametrize("name", CAREFUL)
def test_not_spared(name: str) -> None:
    assert "_v_nan[" in source(CAREFUL[name])


@pytest.mark.parametrize("name", [*SPARED, *CAREFUL])
def test_results_with_nan_are_those_of_the_interpreter(name: str) -> None:
    text = HEAD + (SPARED | CAREFUL)[name]
    rng = np.random.default_rng(5)
    x = rng.standard_normal((12, 100)).astype("f4") * 4
    for t, h in enumerate((0, 1, 31, 32, 63, 64, 96, 99)):
        x[t, h] = np.nan
    x[8, 5], x[9, 7], x[10] = np.inf, -np.inf, -np.inf
    x[0, np.nanargmax(x[0])], x[1, 50] = np.inf, np.nan
    keep, i = rng.random((12, 100)) < 0.5, rng.integers(0, 100, 12)
    got: Any = pf.compile(text)(x, keep, i)
    want: Any = pf.compile(text, target="interpret")(x, keep, i)
    for a, b in zip(*((r,) if isinstance(r, np.ndarray) else r for r in (got, want)), strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        np.testing.assert_allclose(
            a.astype("f8"), b.astype("f8"), rtol=2e-3 if a.dtype.itemsize == 2 else 1e-5
        )
