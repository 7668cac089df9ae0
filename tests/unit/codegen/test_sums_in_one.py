"""Sums over a short loop, and one around it, are summed in one loop of lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from equivalence import assert_computes, fixed_graph_of

import polyfuse as pf
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.ir.loop_ir import For, nodes_of
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching

GROUPS = """op f(w: i8[N, G, K], s: f32[N, G], z: f32[N, G], x: f32[G, K]) -> (y: f32[N]) {
  y[n] = sum[g, k]((f32(w[n, g, k]) - z[n, g]) * s[n, g] * x[g, k])
}"""
HIGHEST = """op f(w: f32[N, G, K], s: f32[N, G]) -> (y: f32[N]) where G * K >= 1 {
  y[n] = max[g, k](w[n, g, k] * s[n, g])
}"""
TWO = """op f(w: f32[N, G, K], s: f32[N, G]) -> (y: f32[N], v: f32[N]) {
  y[n] = sum[g, k](w[n, g, k] * s[n, g])
  v[n] = sum[g, k](w[n, g, k] ** 2)
}"""
ROWS = """op f(x: f32[B, G, K], w: i8[N, G, K], s: f32[N, G]) -> (y: f32[B, N]) {
  y[b, n] = sum[g, k](x[b, g, k] * (f32(w[n, g, k]) * s[n, g]))
}"""


def lengths(text: str, **sizes: int) -> set[int | None]:
    """How long loops are whose lanes are added up (None: not always as long)."""
    graph = fixed_graph_of(text, **sizes)
    kernels = form_kernels(LoopFusion().schedule(graph), 2, Stitching(rows=1))[0].kernels
    loops = [n for k in kernels for t in lower(k).functions for n in nodes_of(t.body) if isinstance(n, For)]
    return {trip_of(n) for n in loops if n.lanes and not n.joint}


@pytest.mark.parametrize(
    ("groups", "length", "expected"),
    [
        (16, 128, {2048}),
        (3, 48, {144}),
        (2, 16, {32}),
        (1, 64, {64}),  # no second loop
        (16, 100, {100}),  # no whole steps
        (16, 8, {8}),  # short ones
        (4, 2048, {2048}),  # long enough
        (300, 128, {100 * 128}),  # too long a sum for lanes: parts of as many as divide it
        (251, 128, {None}),  # 128 at a time
    ],
)
def test_which_sums_are_in_one(groups: int, length: int, expected: set[int | None]) -> None:
    assert lengths(GROUPS, N=300, G=groups, K=length) == expected


def test_tiles_that_are_turned_around_need_both_loops() -> None:
    text = (
        "op f(a: f32[B, N, M], b: f32[B, M, N]) -> (y: f32[B]) { y[z] = sum[i, k](a[z, i, k] * b[z, k, i]) }"
    )
    assert max((n or 0 for n in lengths(text, B=20, N=64, M=64)), default=0) <= 64


@pytest.mark.thin(3)
@pytest.mark.parametrize("text", [GROUPS, HIGHEST, TWO, ROWS], ids=["groups", "highest", "two", "rows"])
@pytest.mark.parametrize(
    ("groups", "length"),
    [(16, 128), (3, 48), (2, 16), (5, 100), (1, 64), (0, 16), (300, 128), (251, 128), (520, 16)],
)
def test_values(text: str, groups: int, length: int) -> None:
    if "max" in text and groups == 0:
        return
    sizes = {"N": 37, "G": groups, "K": length} | ({"B": 4} if "[B" in text else {})
    graph = fixed_graph_of(text, **sizes)
    kernels = form_kernels(LoopFusion().schedule(graph), 2, Stitching())[0]
    assert_computes(graph, kernels, target="cpu")


def test_rows_of_weights_in_groups_are_summed_together() -> None:
    """Both factors lie along what is summed, one of them scaled for each group: nothing is turned around."""
    rng = np.random.default_rng(0)
    x, s = rng.standard_normal((4, 16, 128)).astype("f4"), rng.random((256, 16)).astype("f4")
    w = rng.integers(-128, 128, (256, 16, 128)).astype("i1")
    f = pf.compile(ROWS)
    found: Any = f(x, w, s)
    exact = x.reshape(4, -1).astype("f8") @ (w * s[:, :, None].astype("f8")).reshape(256, -1).T
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-2)
    text = str(f.explain(x, w, s))
    assert "along what is summed" in text and "copied" not in text


def test_not_a_number_goes_through() -> None:
    w, s = np.ones((20, 4, 32), "f4"), np.ones((20, 4), "f4")
    w[3, 2, 7], w[5, 0, 0], s[9, 3] = np.nan, np.inf, -np.inf
    sums, squares = pf.compile(TWO)(w, s)
    highest: Any = pf.compile(HIGHEST)(w, s)
    assert np.isnan(sums[3]) and np.isnan(squares[3]) and np.isnan(highest[3])
    assert np.isinf(sums[5]) and highest[5] == np.inf and sums[9] == -np.inf and sums[0] == 128
