"""Sums over several loops: which are kept in double, and how exact they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from equivalence import cpu_source

import polyfuse as pf

STATISTICS = """op f(x: f32[N, C, H, W]) -> (m: f32[C], v: f32[C]) where N * H * W >= 1 {
  m[c] = mean[n, h, w](x[n, c, h, w])
  v[c] = mean[n, h, w]((x[n, c, h, w] - m[c]) ** 2)
}"""
TOTAL = "op f(x: {0}[N, C]) -> (y: {0}[C]) {{ y[c] = {1} }}"
ROWS = "op f(x: {0}[N, C, H]) -> (y: {0}[C]) {{ y[c] = {1} }}"
IN_DOUBLE = {
    "several loops": (ROWS.format("f32", "sum[n, h](x[n, c, h])"), True),
    "squares": (ROWS.format("f32", "sum[n, h](x[n, c, h] ** 2)"), True),
    "few rows": (ROWS.format("f32", "sum[n in 0..8, h](x[n, c, h])"), False),
    "one loop": (TOTAL.format("f32", "sum[n](x[n, c])"), False),
    "extremes": (ROWS.format("f32", "max[n, h](x[n, c, h])").replace("{ y", "where N * H >= 1 { y"), False),
    "integers": (ROWS.format("i32", "sum[n, h](x[n, c, h])"), False),
}


def source(text: str) -> str:
    return cpu_source(text, N=16, C=64, H=2048)


@pytest.mark.parametrize("case", IN_DOUBLE)
def test_which_sums_are_kept_in_double(case: str) -> None:
    text, wide = IN_DOUBLE[case]
    assert ("double acc" in source(text)) == wide


def test_variances_of_channels_are_exact_to_their_last_places() -> None:
    """With totals in single precision the largest error was 2.7e-7."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((32, 16, 56, 56)).astype("f4") + rng.standard_normal((1, 16, 1, 1)).astype("f4")
    found: Any = pf.compile(STATISTICS)(x)
    mean, variance = found
    exact = x.astype("f8")
    np.testing.assert_allclose(mean, exact.mean((0, 2, 3)), rtol=1e-6, atol=5e-8)
    np.testing.assert_allclose(variance, exact.var((0, 2, 3)), rtol=1.3e-7)


def test_not_a_number_and_infinities_go_through() -> None:
    x = np.ones((3, 4, 5, 40), "f4")
    x[1, 0, 2, 7], x[2, 1, 4, 39], x[0, 2, 0, 0] = np.nan, np.inf, 3e38
    x[0, 2, 0, 1] = 3e38
    found: Any = pf.compile(STATISTICS)(x)
    assert np.isnan(found[0][0]) and np.isinf(found[0][1]) and np.isnan(found[1][:2]).all()
    assert found[0][3] == 1.0 and found[1][3] == 0.0
