"""Vectors of a tile whose rows they do not fill."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf

CONVOLUTION = """op f(x: {0}[N, C, H, W], w: {0}[K, C, 3, 3]) -> (y: {0}[N, K, H-2, W-2])
    where H >= 3, W >= 3 {{
  y[n, k, p, q] = sum[c, r, s](x[n, c, p + r, q + s] * w[k, c, r, s])
}}"""
PRODUCT = "op f(x: {0}[M, K], w: {0}[K, N]) -> (y: {0}[M, N]) {{ y[i, j] = sum[k](x[i, k] * w[k, j]) }}"
TOLERANCE = {"f4": 2e-5, "f8": 1e-12, "i4": 0}
NAMES = {"f4": "f32", "f8": "f64", "i4": "i32"}


def draw(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray[Any, Any]:
    if dtype == "i4":
        return rng.integers(-1000, 1000, shape).astype("i4")
    return rng.standard_normal(shape).astype(dtype)


def assert_near(found: Any, exact: np.ndarray[Any, Any], dtype: str) -> None:
    np.testing.assert_allclose(found, exact, rtol=0, atol=TOLERANCE[dtype] * np.abs(exact).max(initial=1))


@pytest.mark.thin(3)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("columns", [8, 9, 12, 15, 17, 20, 24, 28, 31, 36, 44, 60])
def test_columns_of_a_convolution(dtype: str, columns: int) -> None:
    rng = np.random.default_rng(columns)
    x, w = draw(rng, dtype, 2, 8, 9, columns + 2), draw(rng, dtype, 8, 8, 3, 3)
    found: Any = pf.compile(CONVOLUTION.format(NAMES[dtype]))(x, w)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("f8"), (3, 3), (2, 3))
    assert_near(found, np.einsum("ncpqrs,kcrs->nkpq", windows, w.astype("f8")), dtype)


@pytest.mark.thin(3)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("steps", [64, 700, 2000])
@pytest.mark.parametrize("columns", [12, 17, 20, 28, 30, 45])
def test_columns_of_a_product_in_parts(dtype: str, steps: int, columns: int) -> None:
    """Long sums go to memory after each part: lanes that two vectors have are added once."""
    rng = np.random.default_rng(columns)
    x, w = draw(rng, dtype, 40, steps), draw(rng, dtype, steps, columns)
    found: Any = pf.compile(PRODUCT.format(NAMES[dtype]))(x, w)
    assert_near(found, x.astype("f8") @ w.astype("f8"), dtype)


@pytest.mark.machine("zen5")
@pytest.mark.parametrize("columns", [20, 30, 31, 36, 40, 47])
def test_few_columns_are_read_in_place(columns: int) -> None:
    """A tile is as wide as the result; one of whole vectors would have to copy the factor first."""
    x, w = np.ones((64, 4096), "f4"), np.ones((4096, columns), "f4")
    f = pf.compile(PRODUCT.format("f32"))
    why = str(f.explain(x, w))
    assert f"rows and {columns} columns" in why and "copied" not in why
    assert "tile0_right" in f.built(x, w).code.source


@pytest.mark.parametrize("columns", [17, 30, 47])
def test_few_columns_of_any_layout(columns: int) -> None:
    """Turned factors and those that are computed are copied, rows as long as the tile is wide."""
    rng = np.random.default_rng(columns)
    x, w = draw(rng, "f4", 700, 300), draw(rng, "f4", columns, 300)
    turned: Any = pf.compile(
        PRODUCT.format("f32").replace("w: f32[K, N]", "w: f32[N, K]").replace("w[k, j]", "w[j, k]")
    )(x, w)
    assert_near(turned, x.astype("f8") @ w.T.astype("f8"), "f4")
    made: Any = pf.compile(PRODUCT.format("f32").replace("* w[k, j]", "* max(w[k, j], 0.0)"))(
        x, np.ascontiguousarray(w.T)
    )
    assert_near(made, x.astype("f8") @ np.maximum(w.T, 0).astype("f8"), "f4")
