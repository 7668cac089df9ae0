"""Sums over small windows are one loop for all of their terms."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_right, fixed_graph_of, run_kernels, seeded_inputs
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.ir.loop_ir import For, Update, nodes_of
from polyfuse.ir.tensor_graph import reads
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching

BLUR = """op f(x: {0}[H, W], w: {0}[R, S]) -> (y: {0}[H-R+1, W-S+1]) where R >= 1, S >= 1, H >= R, W >= S {{
  y[h, v] = sum[r, s](x[h+r, v+s] * w[r, s]) for h in 0..H-R+1, v in 0..W-S+1
}}"""
DEPTHWISE = """op f(x: f32[N, C, H, W], w: f32[C, 3, 3]) -> (y: f32[N, C, H-2, W-2]) where H >= 2, W >= 2 {
  y[n, c, h, v] = sum[r in 0..3, s in 0..3](x[n, c, h+r, v+s] * w[c, r, s]) for h in 0..H-2, v in 0..W-2
}"""
STEPS = """op f(x: f32[H, W]) -> (y: f32[H, W]) {
  y[h, v] = sum[r in 0..2, s in 0..3](x[2*h+r, 2*v+s] if 2*h+r < H and 2*v+s < W else 0.0)
}"""
ONE_FILTER = """op f(x: f32[N, C, H, W], w: f32[C, 3, 3]) -> (y: f32[N, H-2, W-2]) where H >= 2, W >= 2 {
  y[n, h, v] = sum[c, r in 0..3, s in 0..3](x[n, c, h+r, v+s] * w[c, r, s]) for h in 0..H-2, v in 0..W-2
}"""
COLUMNS = "op f(x: f32[T, 8, W]) -> (y: f32[T, W]) { y[t, v] = sum[r in 0..8](x[t, r, v]) }"
PRODUCT = """op f(x: f32[T, W]) -> (y: f32[T, W-3]) where W >= 3 {
  y[t, v] = prod[s in 0..4](x[t, v+s]) for v in 0..W-3
}"""
HIGHEST = """op f(x: f32[H, W]) -> (y: f32[H-{0}+1, W-{1}+1]) where H >= {0}, W >= {1} {{
  y[h, v] = max[r in 0..{0}, s in 0..{1}](x[h+r, v+s]) for h in 0..H-{0}+1, v in 0..W-{1}+1
}}"""

APART = """op f(x: f32[N, H, W]) -> (y: f32[N, H // {0}, W // {0}]) {{
  y[n, i, j] = max[a in 0..{0}, b in 0..{0}](x[n, {0}*i + a, {0}*j + b])
    for n in 0..N, i in 0..H // {0}, j in 0..W // {0}
}}"""


def terms(text: str, **sizes: int) -> set[int]:
    """Elements of x that an update of the result reads, in all its loops."""
    kernels = form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2, Stitching(rows=1))[0]
    nodes = [n for k in kernels.kernels for t in lower(k).functions for n in nodes_of(t.body)]
    updates = [n for loop in nodes if isinstance(loop, For) for n in loop.body if isinstance(n, Update)]
    return {sum(r.tensor == "x" for r in reads(u.value)) for u in updates}


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (1, 25), (5, 5), (8, 4)])
def test_all_terms_of_a_small_window_are_added_at_once(rows: int, columns: int) -> None:
    assert terms(BLUR.format("f32"), H=300, W=700, R=rows, S=columns) == {rows * columns}


@pytest.mark.parametrize(("rows", "columns", "together"), [(6, 6, 6), (9, 3, 3), (1, 33, 1)])
def test_larger_windows_are_added_row_by_row(rows: int, columns: int, together: int) -> None:
    """Of more than 32 terms, or more than 8 rows."""
    assert terms(BLUR.format("f32"), H=300, W=700, R=rows, S=columns) == {together}


def test_windows_of_many_channels_are_added_channel_by_channel() -> None:
    assert terms(ONE_FILTER, N=2, C=20, H=30, W=30) == {9}


@pytest.mark.parametrize(
    ("rows", "columns", "wide", "together"),
    [(2, 2, 64, True), (1, 8, 64, True), (3, 3, 64, False), (3, 3, 60, True), (3, 3, 700, True)],
)
def test_extremes_of_few_terms_go_at_once(rows: int, columns: int, wide: int, together: bool) -> None:
    """And of more, where registers do not hold a row, or the row leaves a rest."""
    text = HIGHEST.format(rows, columns)
    assert (rows * columns in terms(text, H=300, W=wide + columns - 1)) == together
    check(text, H=9, W=41)
    x = np.random.default_rng(0).standard_normal((9, 41)).astype("f4")
    x[4, 7], x[2], x[5, 30] = np.nan, -np.inf, np.inf
    windows = np.lib.stride_tricks.sliding_window_view(x, (rows, columns))
    np.testing.assert_array_equal(pf.compile(text)(x), windows.max((2, 3)))


@pytest.mark.parametrize(
    ("window", "results", "together"),
    [(2, 32, 4), (4, 32, 16), (8, 16, 32), (4, 33, 1), (3, 16, 9), (3, 21, 1)],
)
def test_extremes_that_share_no_terms_go_at_once_where_rows_leave_no_rest(
    window: int, results: int, together: int
) -> None:
    """What lies side by side in memory is loaded once for all of its terms; of large windows row by row."""
    text = APART.format(window)
    assert max(terms(text, N=64, H=10 * window, W=results * window)) == together
    check(text, N=2, H=2 * window, W=results * window)


def test_sums_of_rows_that_do_not_overlap_are_no_windows() -> None:
    """Their terms come from memory, and more rows at a time are more than it brings."""
    assert 8 not in terms(COLUMNS, T=64, W=3000)


@pytest.mark.thin(2)
@pytest.mark.parametrize("dtype", thinned(["f32", "f64", "f16", "bf16", "i64"], 2))
@pytest.mark.parametrize(("height", "width"), [(3, 5), (9, 300), (5, 33), (40, 41)])
def test_blurs_are_right(dtype: str, height: int, width: int) -> None:
    for rows, columns in ((3, 3), (1, 5), (2, 1)):
        known = {"H": height, "W": width, "R": rows, "S": columns}
        check(BLUR.format(dtype), **known)


WINDOWS = {
    "depthwise": (DEPTHWISE, {"N": 2, "C": 3, "H": 5}),
    "one filter": (ONE_FILTER, {"N": 2, "C": 3, "H": 5}),
    "steps": (STEPS, {"H": 6}),
    "product": (PRODUCT, {"T": 4}),
}


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("width", [3, 7, 40, 300])
def test_windows_of_all_kinds_are_right(kind: str, width: int) -> None:
    text, sizes = WINDOWS[kind]
    check(text, **sizes, W=width)


def test_what_is_no_number_stays_where_its_window_is() -> None:
    graph = fixed_graph_of(BLUR.format("f32"), H=12, W=40, R=3, S=3)
    inputs = {n: np.ones(a.shape, "f4") for n, a in seeded_inputs(graph).items()}
    inputs["x"][6, 20] = np.nan
    inputs["x"][2, 5] = np.inf
    kernels = form_kernels(LoopFusion().schedule(graph), 2, Stitching(rows=1))[0]
    y = run_kernels(kernels, inputs, "cpu")["y"]
    assert np.isnan(y).sum() == 9 and np.isinf(y).sum() == 9 and np.isfinite(y).sum() == y.size - 18


def check(text: str, **sizes: int) -> None:
    graph = fixed_graph_of(text, **sizes)
    kernels = form_kernels(LoopFusion().schedule(graph), 2, Stitching(rows=1))[0]
    inputs = seeded_inputs(graph)
    assert_right(graph, run_kernels(kernels, inputs, "cpu"), inputs)
