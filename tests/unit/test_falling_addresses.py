"""Addresses that fall where a variable rises: gcc 12 counted such a loop's iterations wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.cpu import _FALLS, BACKWARDS
from polyfuse.runtime import cpu as runtime_cpu

FLIP = """op f(x: f64[N, M]) -> (t: f64[N, M]) where N >= 6, M >= 5 {
  t[i, j] = 0.25 for i in 0..N - 2, j in 0..M
  t[i, j] = x[i, j] - 1.0 for i in N - 2..N, j in 0..3
  t[i, j] = x[N - 1 - i, j] + 1.0 for i in N - 2..N, j in 3..4
  t[i, j] = x[i, j] * 0.5 for i in N - 2..N, j in 4..M
}"""
PLAIN = "op f(x: f64[N, M]) -> (t: f64[N, M]) { t[i, j] = x[i, j] - 3.0 * x[i, 0] }"


@pytest.mark.parametrize(("text", "asks"), [(FLIP, True), (PLAIN, False)])
def test_who_asks_for_the_flag(text: str, asks: bool) -> None:
    built = pf.compile(text).built(np.ones((17, 34)))
    assert (BACKWARDS in built.code.source) == asks


@pytest.mark.parametrize("shape", [(17, 34), (6, 5), (40, 100)], ids=str)
def test_rows_that_are_read_backwards(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_cpu, "PARALLEL_INSTANCES", 1)
    n, _ = shape
    x = np.random.default_rng(n).standard_normal(shape)
    f: Any = pf.compile(FLIP, options=pf.Options(threads=3))
    want = np.full(shape, 0.25)
    want[n - 2 :] = x[n - 2 :] * 0.5
    want[n - 2 :, :3] = x[n - 2 :, :3] - 1
    want[n - 2 :, 3] = x[1::-1, 3] + 1
    np.testing.assert_array_equal(f(x), want)


@pytest.mark.parametrize(
    ("text", "falls"),
    [
        ("b_x[((16 - c0) * 34) + 3]", True),
        ("b_x[16 - (2 * c0)]", True),
        ("b_x[((N_N - 1) - c0) * N_M]", True),
        ("b_x[((2 * N_N) - 1) - row1_c0]", True),
        ("b_x[c0 - 1] - c1", False),
        ("b_x[((c4 - (13 * c3)) * 32) + (c5 - (32 * c2))]", False),
        ("b_x[(c0 * 34) + c1] - h2", False),
    ],
)
def test_what_falls(text: str, falls: bool) -> None:
    assert bool(_FALLS.search(text)) == falls
