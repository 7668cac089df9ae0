"""Totals of a row are in registers while the terms of a window are added."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_right, fixed_graph_of, run_kernels, seeded_inputs
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.loop_ir import Declare, LocalRole, Store, nodes_of
from polyfuse.ir.tensor_graph import Const
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching

FILTERS = """op f(x: {0}[N, H, W, C], w: {0}[{1}, {2}, C]) -> (y: {0}[N, H-{1}+1, W-{2}+1, C])
    where H >= {1}, W >= {2} {{
  y[n, p, q, c] = sum[r in 0..{1}, s in 0..{2}](x[n, p + r, q + s, c] * w[r, s, c])
}}"""
ACTIVE = """op f(x: f32[N, H, W, C], w: f32[3, 3, C], b: f32[C]) -> (y: f32[N, H, W, C]) {
  z[n, h, v, c] = x[n, h-1, v-1, c] if 1 <= h < H+1 and 1 <= v < W+1 else 0.0 for h in 0..H+2, v in 0..W+2
  y[n, p, q, c] = max(sum[r, s](z[n, p + r, q + s, c] * w[r, s, c]) + b[c], 0.0)
}"""
CAUSAL = """op f(x: f32[B, T, C], w: f32[4, C]) -> (y: f32[B, T, C]) {
  y[b, t, c] = sum[k in 0..4](x[b, t - k, c] * w[k, c] if t >= k else 0.0)
}"""
ADDED = """op f(inout y: f32[T, C], x: f32[T+2, C]) {
  y[t, c] += x[t + r, c] for r in 0..3
}"""
HIGHEST = """op f(x: f32[H, W, C]) -> (y: f32[H-2, W-1, C]) where H >= 2, W >= 1 {
  y[p, q, c] = max[r in 0..3, s in 0..2](x[p + r, q + s, c])
}"""
TWO = """op f(x: f32[T, C], z: f32[T, C]) -> (y: f32[T-2, C], v: f32[T-2, C]) where T >= 2 {
  y[t, c] = sum[r in 0..3](x[t + r, c] * z[t + r, c])
  v[t, c] = sum[r in 0..3](x[t + r, c])
}"""
BLUR = """op f(x: f32[H, W], w: f32[6, 6]) -> (y: f32[H-5, W-5]) where H >= 5, W >= 5 {
  y[p, q] = sum[r in 0..6, s in 0..6](x[p + r, q + s] * w[r, s])
}"""
APART = "op f(x: f32[T, 4, C]) -> (y: f32[T, C]) { y[t, c] = sum[r](x[t, r, c]) }"


def kernels_of(text: str, **sizes: int) -> KernelGraph:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2, Stitching(rows=1))[0]


ONE_BY_ONE = CpuKnobs(disabled=("unroll-and-jam:overlapping-windows",))


def held(text: str, knobs: CpuKnobs | None = None, **sizes: int) -> list[int]:
    """How many totals are held at a time, strip by strip."""
    functions = [f for k in kernels_of(text, **sizes).kernels for f in lower(k, knobs).functions]
    nodes = [n for f in functions for n in nodes_of(f.body)]
    return [n.count for n in nodes if isinstance(n, Declare) and n.role is LocalRole.HELD]


def check(text: str, **sizes: int) -> None:
    graph = fixed_graph_of(text, **sizes)
    inputs = seeded_inputs(graph)
    assert_right(graph, run_kernels(kernels_of(text, **sizes), inputs, "cpu"), inputs)


def test_a_row_is_cut_into_strips_of_registers() -> None:
    lanes = Core().vector_bytes // 4
    most = FITTED.strip_accumulators_registers * lanes
    for channels in (40, most, most + 1, 3 * most, 1024):
        counts = held(FILTERS.format("f32", 3, 3), ONE_BY_ONE, N=8, H=30, W=30, C=channels)
        assert 1 <= len(counts) <= 2 and max(counts) <= most
        assert len(counts) == 1 or (counts[1] < counts[0] and counts[0] % lanes == 0)


def test_totals_begin_in_registers() -> None:
    """No loop sets the result to zero first."""
    (kernel,) = kernels_of(FILTERS.format("f32", 3, 1), N=1, H=9, W=9, C=40).kernels
    nodes = [n for t in lower(kernel).functions for n in nodes_of(t.body)]
    first = [n.buffer for n in nodes if isinstance(n, Store) and isinstance(n.value, Const)]
    assert first == ["%held0"]


def test_rows_that_no_neighbour_reads_are_not_held() -> None:
    assert not held(APART, T=64, C=300)


def test_terms_at_once_are_not_held() -> None:
    assert not held(BLUR, H=40, W=300)


def test_large_windows_are_not_held() -> None:
    assert held(FILTERS.format("f32", 5, 5), N=1, H=9, W=9, C=40)
    assert not held(FILTERS.format("f32", 7, 7), N=1, H=9, W=9, C=40)


@pytest.mark.parametrize("dtype", thinned(["f32", "f64", "f16", "bf16", "i32"], 3))
@pytest.mark.parametrize("channels", thinned([1, 7, 33, 96, 100, 500, 193], 2))
def test_filters_are_right(dtype: str, channels: int) -> None:
    for rows, columns in ((3, 3), (1, 5), (2, 1)):
        check(FILTERS.format(dtype, rows, columns), N=2, H=6, W=7, C=channels)


@pytest.mark.parametrize("text", [ACTIVE, HIGHEST], ids=["active", "highest"])
@pytest.mark.parametrize("channels", [17, 64, 100, 512])
def test_windows_with_what_follows_and_extremes_are_right(text: str, channels: int) -> None:
    sizes = {"H": 12, "W": 13, "C": channels} | ({"N": 2} if text is ACTIVE else {})
    assert held(text, **sizes)
    check(text, **sizes)


@pytest.mark.parametrize("text", [CAUSAL, ADDED, TWO], ids=["causal", "added", "two"])
@pytest.mark.parametrize("channels", [9, 130, 500])
def test_windows_along_time_are_right(text: str, channels: int) -> None:
    check(text, T=11, C=channels, **({"B": 2} if text is CAUSAL else {}))


def test_two_sums_share_the_registers() -> None:
    assert all(
        n <= FITTED.strip_accumulators_registers // 2 * Core().vector_bytes // 4
        for n in held(TWO, T=20, C=500)
    )


def test_what_is_no_number_stays_in_its_lane() -> None:
    x = np.random.default_rng(0).standard_normal((6, 7, 100)).astype("f4")
    x[3, 4, 77], x[:, :, 5], x[1, 1, 50] = np.nan, -np.inf, np.inf
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 2), (0, 1))
    np.testing.assert_array_equal(pf.compile(HIGHEST)(x), windows.max((3, 4)))
