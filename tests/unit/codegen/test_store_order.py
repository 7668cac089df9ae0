"""Loops that store several large results are there in two orders, and where arrays begin decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from equivalence import cpu_source

import polyfuse as pf
from polyfuse.cost.cpu_tables import FITTED

STEP = """op f(inout p: f32[N], g: f32[N], inout m: f32[N]) {
  n[i] = 0.9 * m[i] + g[i]
  p[i] = p[i] - 0.1 * n[i] / (1.0 + abs(n[i]))
  m[i] = n[i]
}"""
ONE = "op f(x: f32[N], g: f32[N]) -> (y: f32[N]) { y[i] = x[i] / (1.0 + g[i] * g[i]) }"
FUNCTIONS = """op f(x: f32[N], g: f32[N]) -> (y: f32[N], z: f32[N]) {
  z[i] = tanh(x[i])
  y[i] = z[i] * g[i]
}"""


@pytest.mark.parametrize(
    ("text", "n", "expected"),
    [
        (STEP, FITTED.store_order_large // 4, True),
        (STEP, FITTED.store_order_large // 4 - 1, False),  # not large
        (ONE, FITTED.store_order_large, False),
        (FUNCTIONS, FITTED.store_order_large // 4, False),
    ],
)
def test_which_loops_have_two_orders(text: str, n: int, expected: bool) -> None:
    assert ("PF_ALIKE(b_" in cpu_source(text, N=n)) == expected


@pytest.mark.parametrize("offsets", [(0, 0, 0), (0, 16, 32), (64, 0, 128), (4, 4, 4), (0, 0, 4032)])
def test_both_orders_compute_the_same(offsets: tuple[int, ...]) -> None:
    n, rng = 40_001, np.random.default_rng(1)

    def begins(offset: int) -> np.ndarray[Any, Any]:
        memory = np.empty(4 * n + 8192, np.uint8)
        start = -memory.ctypes.data % 4096 + offset
        a = memory[start : start + 4 * n].view(np.float32)
        a[...] = rng.standard_normal(n)
        return a

    p, g, m = map(begins, offsets)
    new = np.float32(0.9) * m + g
    wanted = p - np.float32(0.1) * new / (1 + abs(new))
    f: Any = pf.compile(STEP)
    f(p, g, m)
    np.testing.assert_allclose(m, new, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(p, wanted, rtol=1e-5, atol=1e-6)
