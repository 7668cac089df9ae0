"""What layers do for sizes that are open as for known ones: means and variances about a pivot, sums in parts
that workers share, dims as one, sums along memory. At lengths on the borders of what is decided, against
the reference."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from open_calls import check_call

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import TensorGraph

LAYER_NORM = """op f(x: f32[T, H], r: f32[T, H], b: f32[H]) -> (y: f32[T, H]) {
  s[t, h] = x[t, h] + r[t, h] + b[h]
  mu[t] = mean[h](s[t, h])
  v[t] = mean[h]((s[t, h] - mu[t]) ** 2)
  y[t, h] = (s[t, h] - mu[t]) * rsqrt(v[t] + 1e-5)
}"""
BATCH_NORM = """op f(x: f32[N, C, A, W]) -> (y: f32[N, C, A, W], v: f32[C]) {
  mu[c] = mean[n, a, w](x[n, c, a, w])
  v[c] = mean[n, a, w]((x[n, c, a, w] - mu[c]) ** 2)
  y[n, c, a, w] = max((x[n, c, a, w] - mu[c]) * rsqrt(v[c] + 1e-5), 0.0)
}"""
GRADIENT = """op f(x: f32[T, H], g: f32[T, H]) -> (y: f32[T, H], a: f32[H], b: f32[H]) {
  c[t] = sum[h](x[t, h] * g[t, h])
  y[t, h] = g[t, h] - x[t, h] * c[t]
  a[h] = sum[t](g[t, h] * x[t, h])
  b[h] = sum[t](g[t, h])
}"""
TOTAL = "op f(x: f32[T, H]) -> (s: f32, m: f32) { s = sum[t, h](x[t, h] * x[t, h]); m = max[t, h](x[t, h]) }"
ATTENTION = """op f(q: f32[B, H], k: f32[B, T, H]) -> (y: f32[B, H]) {
  s[b, t] = sum[h](q[b, h] * k[b, t, h])
  m[b] = max[t](s[b, t])
  e[b, t] = exp(s[b, t] - m[b])
  d[b] = sum[t](e[b, t])
  y[b, h] = sum[t](e[b, t] / d[b] * k[b, t, h])
}"""
TWO_SUMS = """op f(e: f32[B, T], k: f32[B, T, H]) -> (y: f32[B, H], z: f32[B, H]) {
  d[b] = sum[t](e[b, t])
  y[b, h] = sum[t](e[b, t] / d[b] * k[b, t, h])
  z[b, h] = sum[t](e[b, t] * y[b, h] * k[b, t, h])
}"""

# Lengths of rows and of the pivot: less than a vector, borders of versions, of pivots, of regions.
CALLS: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "rows": (LAYER_NORM, ((1, 1), (17, 2), (3, 63), (2, 65), (1, 1024), (33, 1025), (2, 4097), (0, 5))),
    "images": (BATCH_NORM, ((1, 1, 1, 2), (2, 3, 5, 7), (17, 2, 3, 64), (1, 1, 31, 37), (3, 2, 1, 1))),
    "gradient": (GRADIENT, ((1, 1), (63, 3), (64, 17), (65, 16), (131, 33), (400, 2), (0, 3), (2, 0))),
    "total": (TOTAL, ((1, 1), (64, 17), (67, 5), (1000, 3))),
    "attention": (ATTENTION, ((1, 1, 1), (2, 5, 36), (1, 17, 65), (3, 33, 4), (1, 100, 130))),
    "two sums": (TWO_SUMS, ((1, 1, 1), (2, 9, 36), (3, 7, 127), (1, 12, 129))),
}


def graph_of(text: str) -> TensorGraph:
    return instantiate(parse_text(text), "f")


@pytest.mark.parametrize(
    ("target", "name"), [*(("cpu", n) for n in CALLS), ("interpret", "images"), ("interpret", "gradient")]
)
def test_open_kernels_agree_with_the_reference(name: str, target: str) -> None:
    text, calls = CALLS[name]
    graph = graph_of(text)
    f = pf.compile(text, target=target, sizes="open", options=pf.Options(threads=2, progress=False))
    for k, sizes in enumerate(calls if target == "cpu" else calls[:4]):
        check_call(f, graph, dict(zip(graph.sizes, sizes, strict=True)), seed=k)
    assert len([v for v in f.variants if v.open]) <= 3


@pytest.mark.parametrize("target", ["cpu", "interpret"])
def test_sizes_that_a_mean_divides_by_may_all_be_open(target: str) -> None:
    """A first variant knows some of them: dims that are reduced together are one there."""
    text = "op f(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] - mean[i, j](x[i, j]) }"
    f = pf.compile(text, target=target, sizes="open", options=pf.Options(progress=False))
    for k, (t, h) in enumerate(((3, 5), (64, 7), (1, 1), (17, 130))):
        check_call(f, graph_of(text), {"T": t, "H": h}, seed=k)
    assert [v.open for v in f.variants] == [("H",), ("T", "H")]


def told(text: str, *shapes: tuple[int, ...], **options: Any) -> str:
    f = pf.compile(text, sizes="open", options=pf.Options(progress=False, **options))
    return str(f.explain(*(np.ones(s, np.float32) for s in shapes)))


@pytest.mark.machine("zen4")
def test_what_is_decided_for_open_sizes() -> None:
    rows = told(LAYER_NORM, (3, 9), (3, 9), (9,))
    assert "+ online v" in rows and "about a pivot" in rows
    assert "+ rfactor a, b: partial results over chunks of 64 iterations" in told(GRADIENT, (3, 9), (3, 9))
    assert "+ collapse x[..2, 3..]" in told(BATCH_NORM, (2, 3, 4, 5))
    assert "several terms at a time" in told(ATTENTION, (2, 9), (2, 3, 9))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(5)
    x, g = rng.standard_normal((2, 777, 65), np.float32)
    found = [
        pf.compile(GRADIENT, sizes="open", options=pf.Options(threads=n, progress=False))(x, g)
        for n in (1, 2, 5)
    ]
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_is_not_finite_stays_so_about_a_pivot() -> None:
    f = pf.compile(LAYER_NORM, sizes="open", options=pf.Options(progress=False))
    g = pf.compile(LAYER_NORM, sizes="fixed", options=pf.Options(progress=False))
    x = np.random.default_rng(1).standard_normal((6, 1100)).astype(np.float32)
    x[1, 3], x[2, 700], x[3, 5], x[4] = np.nan, np.inf, -np.inf, 3e38
    r, b = np.zeros_like(x), np.zeros(1100, np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.isnan(f(x, r, b)), np.isnan(g(x, r, b)))


def source(text: str, *shapes: tuple[int, ...]) -> str:
    f = pf.compile(text, sizes="open", options=pf.Options(progress=False))
    return f.built(*(np.zeros(s, np.float32) for s in shapes)).code.source


@pytest.mark.machine("zen4")
def test_the_last_pass_over_a_row_of_open_length_prefetches_the_next_one_where_that_fits() -> None:
    text = source(BATCH_NORM, (2, 3, 4, 5))
    assert len(re.findall(r"pf_i64 ahead = pf_max_i64\(0, pf_min_i64\(1, ", text)) == 1
    assert re.search(r"__builtin_prefetch\(&b_x\[.*pf_min_i64\(c0 \+ ahead, N_C - 1\)", text)


@pytest.mark.machine("zen4")
def test_versions_are_for_lengths_of_rows_not_for_values_of_the_size() -> None:
    """Rows are 4 * W long."""
    text = source(BATCH_NORM, (2, 3, 4, 5))
    found = [int(n) for n in re.findall(r"if \(num\[\d\] <= (\d+)\) return pf_k0_r\d+_0_body\(", text)]
    assert found and set(found) <= {4, 16, 64, 128, 320}


@pytest.mark.machine("zen4")
def test_what_is_left_of_a_row_is_behind_a_branch_where_it_divides() -> None:
    text = "op f(x: f32[T, H]) -> (s: f32[T]) { s[t] = sum[h](1.0 / sqrt(x[t, h])) }"
    assert re.search(r"if \(c1_s < c1_e\) \{\n\s+const int rest", source(text, (3, 9)))


@pytest.mark.machine("zen3")
def test_one_open_dim_is_shared_by_workers() -> None:
    """How much work there is shows at the call."""
    f = pf.compile("op f(x: f32[N]) -> (y: f32[N]) { y[n] = 2.0 * x[n] }", sizes="open", threads=2)
    for n in (1, 3000, 300_001):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(f(x), 2 * x)
    (kernel,) = f.variants[0].built.kernels.kernels
    assert kernel.stages[0].band[0].coordinate is Coordinate.BLK


PACK = """op f(inout a: f32[N, M], inout b: f32[M, K], inout c: f32[K], x: f32[N, M], y: f32[K, M])
    -> (s: f32[N], t: f32[K], u: f32[K]) {
  a[n, m] = old(a[n, m]) + 1.0
  b[i, j] = old(b[i, j]) + 2.0
  c[k] = old(c[k]) + 3.0
  s[n] = sum[m](x[n, m])
  t[n] = sum[m](y[n, m])
  u[0] = y[0, 0]
  u[k] = u[k - 1] * 0.5 + y[k, 0] for k in 1..K
}"""


@pytest.mark.machine("zen3")
def test_independent_kernels_of_open_sizes_share_a_launch() -> None:
    """Tasks are equal parts of all work: whatever the sizes, each iteration is done, and done once."""
    f = pf.compile(PACK, sizes="open", threads=2)
    for n, m, k in [(1, 1, 1), (1, 300, 7), (700, 3, 1), (257, 129, 130), (2, 2, 5000), (64, 64, 64)]:
        a, b, c = (np.zeros(shape, np.float32) for shape in [(n, m), (m, k), (k,)])
        x, y = np.ones((n, m), np.float32), np.ones((k, m), np.float32)
        s, t, u = f(a, b, c, x, y)
        assert (a == 1).all() and (b == 2).all() and (c == 3).all(), (n, m, k)
        assert (s == m).all() and (t == m).all(), (n, m, k)
        np.testing.assert_allclose(u, 2 - 0.5 ** np.arange(k, dtype=np.float32), rtol=1e-6)
    (kernel,) = f.variants[0].built.kernels.kernels
    assert len(kernel.packed) >= 5
    (launch,) = f.variants[0].built.code.plan.launches
    assert launch.parallel and launch.count != IConst(1)
