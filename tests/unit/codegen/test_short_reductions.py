"""Folds of rows that fill no vector: what is folded is computed in vectors of several rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from equivalence import assert_compiled, cpu_source

import polyfuse as pf

HIGHEST = """op f(x: f32[N, C]) -> (y: f32[C]) where N >= 1 {
  t[n, c] = tanh(x[n, c])
  y[c] = max[n](exp(-abs(t[n, c] - 0.3 * x[n, c])))
}"""
SUM = "op f(x: f32[N, C]) -> (y: f32[C]) { y[c] = sum[n](exp(x[n, c])) }"
PLAIN = "op f(x: f32[N, C]) -> (y: f32[C]) where N >= 1 { y[c] = max[n](x[n, c] * 0.5) }"
# A row keeps what its neighbours read in an array of its own.
KEPT = """op f(x: f32[B, N, 4], w: f32[N]) -> (y: f32[B, 4]) where N >= 1 {
  t[b, n, c] = exp(-abs(x[b, n, c] / (1.5 + abs(w[n]))))
  u[b, n, c] = tanh(t[b, n, c] + 0.25 * t[b, n, max(c - 1, 0)] + 0.25 * t[b, n, min(c + 1, 3)])
  y[b, c] = min[n](exp(-abs(u[b, n, c] - w[n])))
}"""


def strips(text: str, **sizes: int) -> int:
    """How many folds of strips there are."""
    return cpu_source(text, **sizes).count("float fold")


@pytest.mark.machine("zen5")
@pytest.mark.parametrize(("columns", "found"), [(2, True), (3, True), (4, True), (9, False), (16, False)])
def test_rows_of_a_few_elements_are_folded_in_strips(columns: int, found: bool) -> None:
    assert bool(strips(HIGHEST, N=5000, C=columns)) == found


@pytest.mark.machine("zen5")
def test_without_functions_they_are_folded_as_they_are() -> None:
    assert strips(PLAIN, N=5000, C=4) == 0


@pytest.mark.machine("zen5")
def test_few_rows_are_folded_as_they_are() -> None:
    assert strips(HIGHEST, N=100, C=4) == 0


@pytest.mark.machine("zen5")
def test_arrays_of_a_row_are_arrays_of_the_strip() -> None:
    source = cpu_source(KEPT, B=64, N=256)
    assert "float fold" in source
    assert "float kept" in source


def example(n: int, c: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(n).standard_normal((n, c)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 128, 1000, 4097])
@pytest.mark.parametrize("columns", [2, 3, 4, 8])
def test_values(rows: int, columns: int) -> None:
    x = example(rows, columns)
    t = np.tanh(x)
    found = pf.compile(HIGHEST, target="cpu")(x)
    np.testing.assert_allclose(found, np.exp(-abs(t - np.float32(0.3) * x)).max(0), rtol=1e-5)
    np.testing.assert_allclose(pf.compile(SUM, target="cpu")(x), np.exp(x).sum(0, dtype=float), rtol=1e-5)


@pytest.mark.parametrize("place", [0, 31, 500, 999])
def test_nan_goes_through(place: int) -> None:
    x = example(1000, 4)
    x[place, 1] = np.nan
    assert np.isnan(pf.compile(HIGHEST, target="cpu")(x)).tolist() == [False, True, False, False]


def test_values_of_rows_with_arrays() -> None:
    assert_compiled(KEPT, B=3, N=300)
