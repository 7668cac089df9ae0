"""Rows whose windows overlap are computed several at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from equivalence import assert_right, fixed_graph_of, run_kernels, seeded_inputs
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.codegen.function import Function
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.driver import pipeline
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.loop_ir import Declare, For, LocalRole, nodes_of
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching

FILTERS = """op f(x: {0}[N, H, W, C], w: {0}[{1}, {2}, C]) -> (y: {0}[N, H-{1}+1, W-{2}+1, C])
    where H >= {1}, W >= {2} {{
  y[n, p, q, c] = sum[r in 0..{1}, s in 0..{2}](x[n, p + r, q + s, c] * w[r, s, c])
}}"""
STEPS = """op f(x: f32[H, W, C], w: f32[3, 3, C]) -> (y: f32[(H-1)//2, (W-1)//2, C]) where H >= 3, W >= 3 {
  y[p, q, c] = sum[r in 0..3, s in 0..3](x[2 * p + r, 2 * q + s, c] * w[r, s, c])
}"""
CAUSAL = """op f(x: f32[B, T, C], w: f32[C, K], v: f32[C]) -> (y: f32[B, T, C]) {
  y[b, t, c] = sum[k in 0..K](x[b, t-K+1+k, c] * w[c, k] if t - K + 1 + k >= 0 else 0.0) + v[c]
}"""
ACTIVE = """op f(x: f32[N, H, W, C], w: f32[3, 3, C], v: f32[C], z: f32[N, H-2, W-2, C])
    -> (y: f32[N, H-2, W-2, C]) where H >= 3, W >= 3 {
  s[n, p, q, c] = sum[r, k](x[n, p + r, q + k, c] * w[r, k, c]) for p in 0..H-2, q in 0..W-2
  y[n, p, q, c] = max(s[n, p, q, c] + v[c], 0.0) * z[n, p, q, c] - s[n, p, q, c]
}"""
KEPT = ACTIVE.replace("(y:", "(s: f32[N, H-2, W-2, C], y:")
PADDED = """op f(x: f32[N, H, W, C], w: f32[3, 3, C], b: f32[C]) -> (y: f32[N, H, W, C]) {
  z[n, h, v, c] = x[n, h-1, v-1, c] if 1 <= h < H+1 and 1 <= v < W+1 else 0.0 for h in 0..H+2, v in 0..W+2
  y[n, p, q, c] = max(sum[r, s](z[n, p + r, q + s, c] * w[r, s, c]) + b[c], 0.0)
}"""
HIGHEST = """op f(x: f32[H, W, C]) -> (y: f32[H-2, W-1, C]) where H >= 2, W >= 1 {
  y[p, q, c] = max[r in 0..3, s in 0..2](x[p + r, q + s, c])
}"""
ADDED = "op f(inout y: f32[T, C], x: f32[T+2, C]) { y[t, c] += x[t + r, c] for r in 0..3 }"
BACK = """op f(x: f32[T, C], w: f32[3, C]) -> (y: f32[T-2, C]) where T >= 2 {
  y[t, c] = sum[k in 0..3](x[t + 2 - k, c] * w[k, c])
}"""
TWO = """op f(x: f32[T, C], z: f32[T, C]) -> (y: f32[T-2, C], v: f32[T-2, C]) where T >= 2 {
  y[t, c] = sum[r in 0..3](x[t + r, c] * z[t + r, c])
  v[t, c] = sum[r in 0..3](x[t + r, c])
}"""


def kernels_of(text: str, **sizes: int) -> KernelGraph:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2, Stitching(rows=1))[0]


def tasks_of(text: str, core: Core | None = None, **sizes: int) -> list[Function]:
    return [t for k in kernels_of(text, **sizes).kernels for t in lower(k, CpuKnobs(core=core)).functions]


def rows(text: str, core: Core | None = None, **sizes: int) -> int:
    """How many rows have totals at a time, at most."""
    nodes = [n for t in tasks_of(text, core, **sizes) for n in nodes_of(t.block)]
    found = {n.name.rpartition("_")[2] for n in nodes if isinstance(n, Declare) and n.role is LocalRole.HELD}
    return len({x for x in found if x.isdigit()})


def check(text: str, **sizes: int) -> None:
    graph = fixed_graph_of(text, **sizes)
    inputs = seeded_inputs(graph)
    assert_right(graph, run_kernels(kernels_of(text, **sizes), inputs, "cpu"), inputs)


FILTER = FILTERS.format("f32", 3, 3)


def test_four_rows_go_together() -> None:
    assert rows(FILTER, N=4, H=30, W=30, C=96) == FITTED.overlapping_windows_most_rows
    (task,) = tasks_of(FILTER, N=4, H=30, W=30, C=96)
    main, left = (n for n in task.body if isinstance(n, For))
    assert (main.step, left.step) == (FITTED.overlapping_windows_most_rows, 1)
    arrays = [n.count for n in nodes_of((main,)) if isinstance(n, Declare)]
    assert sum(arrays) <= FITTED.strip_accumulators_registers * 16


def test_as_many_rows_go_together_as_leave_the_fewest() -> None:
    """Nine rows are three times three."""
    assert rows(FILTER, N=4, H=30, W=11, C=96) == 3
    assert rows(FILTER, N=4, H=30, W=4, C=96) == 2
    assert rows(FILTER, N=4, H=30, W=3, C=96) == 0


def test_rows_that_share_sets_of_l1_are_two() -> None:
    assert rows(FILTER, N=1, H=12, W=30, C=2048) == FITTED.overlapping_windows_most_far


def test_rows_that_memory_brings_are_two() -> None:
    """Unless nothing new comes for a row but the row itself."""
    for text, count, sizes in (
        (FILTER, FITTED.overlapping_windows_most_far, {"N": 2, "H": 30, "W": 30, "C": 128}),
        (CAUSAL, FITTED.overlapping_windows_most_rows, {"B": 2, "T": 64, "C": 768, "K": 4}),
    ):
        (kernel,) = kernels_of(text, **sizes).kernels
        far = replace(kernel, buffers=tuple(replace(b, soon=True) for b in kernel.buffers))
        assert {n.step for t in lower(far).functions for n in t.body if isinstance(n, For)} == {1, count}


def test_windows_with_little_in_common_go_one_by_one() -> None:
    assert rows(STEPS, H=61, W=61, C=96) == 0
    assert rows(FILTERS.format("f32", 3, 1), N=4, H=30, W=30, C=96) == 0
    assert rows(FILTERS.format("f16", 3, 3), N=4, H=30, W=30, C=96) == 0, "halves are converted by loops"
    assert rows(FILTER, N=4, H=30, W=30, C=8) == 0, "less than a vector"


def test_extremes_go_together_where_there_are_registers() -> None:
    assert rows(HIGHEST, H=40, W=40, C=96) == FITTED.overlapping_windows_most_rows
    assert rows(HIGHEST, AVX2, H=40, W=40, C=96) == 0
    assert rows(FILTER, AVX2, N=4, H=30, W=30, C=96) == FITTED.overlapping_windows_most_rows


def test_what_follows_reads_totals_where_they_are() -> None:
    """Nothing else reads them, so they are not stored; results are."""
    for text, stored in ((ACTIVE, {"y"}), (KEPT, {"s", "y"})):
        (kernel,) = kernels_of(text, N=2, H=12, W=12, C=96).kernels
        (task,) = lower(kernel).functions
        main = task.body[0]
        assert isinstance(main, For) and main.step > 1
        names = {getattr(n, "buffer", "%") for n in nodes_of((main,))}
        assert {n for n in names if not n.startswith("%")} == stored


def test_a_window_that_begins_at_0_has_its_first_rows_one_by_one() -> None:
    (task,) = tasks_of(CAUSAL, B=8, T=512, C=768, K=4)
    first, main, _ = (n for n in task.body if isinstance(n, For))
    assert str(first.upper) == "min(c1_end, 3)" and first.step == 1
    assert str(main.lower) == "max(c1_begin, 3)" and main.step == FITTED.overlapping_windows_most_rows


def test_loops_inside_of_a_worker_as_well() -> None:
    (task,) = tasks_of(PADDED, N=8, H=28, W=28, C=128)
    assert not task.run
    assert rows(PADDED, N=8, H=28, W=28, C=128) == FITTED.overlapping_windows_most_rows


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("channels", thinned([16, 17, 40, 100, 193], 3))
@pytest.mark.parametrize("width", thinned([3, 4, 5, 7, 8, 9, 11, 14], 4))
def test_filters_are_right(dtype: str, channels: int, width: int) -> None:
    for high, wide in ((3, 3), (1, 2), (2, 3)):
        check(FILTERS.format(dtype, high, wide), N=2, H=5, W=width, C=channels)


@pytest.mark.thin(2)
@pytest.mark.parametrize("time", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("terms", thinned([1, 2, 3, 4, 6], 3))
def test_windows_that_begin_at_0_are_right(time: int, terms: int) -> None:
    for channels in (16, 50, 200):
        check(CAUSAL, B=3, T=time, C=channels, K=terms)


@pytest.mark.parametrize("text", [ACTIVE, KEPT, PADDED], ids=["active", "kept", "padded"])
@pytest.mark.parametrize("width", thinned([3, 6, 7, 9, 14], 3))
def test_with_what_follows_they_are_right(text: str, width: int) -> None:
    for channels in (16, 41, 130):
        check(text, N=2, H=6, W=width, C=channels)


@pytest.mark.thin(2)
@pytest.mark.parametrize("text", [ADDED, BACK, TWO], ids=["added", "back", "two"])
@pytest.mark.parametrize("time", [2, 3, 7, 12, 50])
def test_along_time_they_are_right(text: str, time: int) -> None:
    for channels in (20, 64, 300):
        check(text, T=time, C=channels)


@pytest.mark.parametrize("chunks", [1, 3, 7, 50])
def test_a_chunk_may_begin_and_end_anywhere(chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of rows of an image, for instance."""
    monkeypatch.setattr(pipeline, "knobs_for", lambda *_: CpuKnobs(chunks=chunks))
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 30, 13, 64), "f4"), rng.standard_normal((3, 3, 64), "f4")
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("f8"), (3, 3), (1, 2))
    wanted = np.einsum("npqcrs,rsc->npqc", windows, w.astype("f8"))
    np.testing.assert_allclose(pf.compile(FILTER)(x, w), wanted, rtol=1e-4, atol=1e-5)


def test_what_is_no_number_stays_in_its_lane() -> None:
    x = np.random.default_rng(0).standard_normal((8, 17, 100)).astype("f4")
    x[3, 4, 77], x[:, :, 5], x[1, 1, 50] = np.nan, -np.inf, np.inf
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 2), (0, 1))
    np.testing.assert_array_equal(pf.compile(HIGHEST)(x), windows.max((3, 4)))


def test_windows_whose_terms_are_places_go_one_by_one() -> None:
    """Each row has bounds of its own."""
    text = """op f(x: f32[T, C], w: f32[3, C]) -> (y: f32[T-2, C]) where T >= 2 {
      y[t, c] = sum[r in t..t+3](x[r, c] * w[r - t, c]) for t in 0..T-2, c in 0..C
    }"""
    assert rows(text, T=30, C=64) == 0
    for time in (3, 10, 31):
        check(text, T=time, C=16)
