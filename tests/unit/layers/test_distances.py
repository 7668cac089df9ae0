"""Sums of squares of differences in tiles of registers: which have them, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import cpu_source, fixed_graph_of

import polyfuse as pf
from polyfuse.layers.contractions.contraction import contraction_of

DISTANCES = (
    "op f(x: f32[N, K], y: f32[M, K]) -> (d: f32[N, M]) { d[i, j] = sum[k]((x[i, k] - y[j, k]) ** 2) }"
)


@pytest.mark.parametrize(
    ("n", "m", "k"), [(37, 61, 33), (9, 300, 100), (64, 64, 1025), (4, 300, 100), (1, 1, 1)]
)
def test_distances(n: int, m: int, k: int) -> None:
    rng = np.random.default_rng(n + m + k)
    x, y = rng.standard_normal((n, k), "f4"), rng.standard_normal((m, k), "f4")
    x[0, 0], y[m // 2, k // 2] = np.inf, np.nan
    y[m - 1, 0] = np.inf  # inf - inf
    with np.errstate(invalid="ignore"):
        want = ((x[:, None].astype("f8") - y[None]) ** 2).sum(2)
    np.testing.assert_allclose(pf.compile(DISTANCES)(x, y), want, rtol=1e-5)


def test_nothing_to_compute() -> None:
    f = pf.compile(DISTANCES)
    assert f(np.ones((0, 4), "f4"), np.ones((50, 4), "f4")).shape == (0, 50)
    np.testing.assert_array_equal(f(np.ones((40, 0), "f4"), np.ones((50, 0), "f4")), np.zeros((40, 50), "f4"))


def test_which_have_tiles() -> None:
    source = cpu_source(DISTANCES, N=500, M=600, K=64)
    assert "_vector d = q - tile0_right[v]; tile0_acc[0][v] += d * d;" in source
    for n, m, k in ((4, 300, 100), (20, 20, 5000), (40, 40, 4)):
        graph = fixed_graph_of(DISTANCES, N=n, M=m, K=k)
        assert contraction_of(graph, graph.statements[0]) is None
    for term in ("(x[i, k] - y[j, k]) ** 3.0", "(x[i, k] + y[j, k]) ** 2", "(x[i, k] - x[i, k]) ** 2"):
        graph = fixed_graph_of(DISTANCES.replace("(x[i, k] - y[j, k]) ** 2", term), N=99, M=99, K=64)
        assert contraction_of(graph, graph.statements[0]) is None
