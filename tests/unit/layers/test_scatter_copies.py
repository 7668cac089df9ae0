"""Scatters over parts with copies of the result: every result right, and who has copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from equivalence import cpu_source, fixed_graph_of
from targets import Call, check_everywhere
from thinned import thinned

import polyfuse as pf
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.diagnostics import PolyfuseError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.kernel import KernelGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.runtime.cpu import executable

COUNTS = "op f(d: i64[N], b: f32[M]) -> (y: i64[M]) { y[d[i]] += 1 }"
WEIGHTED = "op f(d: i64[N], w: f32[N], b: f32[M]) -> (y: f32[M]) { y[d[i]] += w[i] }"
ADDED = "op f(inout y: f32[M], d: i64[N], w: f32[N]) { y[d[i]] += w[i] }"
GREATEST = "op f(d: i64[N], w: f32[N], b: f32[M]) -> (y: f32[M]) { y[d[i]] max= w[i] }"
SHORT_ROWS = "op f(inout y: f32[M, 3], d: i64[N], x: f32[N, 3]) { y[d[i], k] += x[i, k] }"
CHANNELS = "op f(x: u8[N, 3]) -> (y: i32[3, 256]) { y[k, x[i, k]] += 1 }"
PAIRS = "op f(a: i64[N], b: i64[N], m: f32[M]) -> (y: i32[M, M]) { y[a[i], b[i]] += 1 }"
ROWS = "op f(inout y: f32[M, 33], d: i64[N], x: f32[N, 33]) { y[d[i], k] += x[i, k] }"
MEANS = """op f(d: i64[N], x: f32[N, 16], b: f32[M]) -> (y: f32[M, 16]) {
  let total: f32[M, 16] = 0.0
  let count: i64[M] = 0
  total[d[i], k] += x[i, k]
  count[d[i]] += 1
  y[m, k] = total[m, k] / f32(max(count[m], 1))
}"""
TWO = """op f(d: i64[N], w: f32[N], b: f32[M]) -> (y: f32[M], z: f32[N]) {
  let s: f32[M] = 1.5
  s[d[i]] += w[i]
  s[d[i]] += 2.0 * w[i]
  z[i] = w[i] * 2.0
  y[m] = s[m] * b[m]
}"""
REMAINDERS = "op f(w: f32[N]) -> (y: f32[7], z: f32[3]) { y[i % 7] += w[i]; z[i // 9 % 3] max= w[i] }"
SCALAR = "op f(w: f32[N]) -> (y: f32) { y += w[i] }"
BATCHES = "op f(d: i64[K, N], w: f32[K, N], b: f32[M]) -> (y: f32[K, M]) { y[k, d[k, i]] += w[k, i] }"
SOFTMAX = """op f(d: i64[N], w: f32[N], b: f32[M]) -> (y: f32[N]) {
  let top: f32[M] = -1e30
  let all: f32[M] = 0.0
  top[d[i]] max= w[i]
  p[i] = exp(w[i] - top[d[i]])
  all[d[i]] += p[i]
  y[i] = p[i] / all[d[i]]
}"""


def kernels(text: str, threads: int = 2, **sizes: int) -> KernelGraph:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), threads)[0]


def copies(text: str, threads: int = 2, **sizes: int) -> list[tuple[int, ...]]:
    """The shapes of the copies."""
    made = kernels(text, threads, **sizes).graph.tensors
    return [tuple(map(int, map(str, t.shape))) for t in made if "__part" in t.name]


def keys(m: int, n: int, order: str) -> np.ndarray[Any, Any]:
    d = np.random.default_rng(m + n).integers(0, m, n)
    d = {"any": d, "sorted": np.sort(d), "one": d * 0 + m // 2}[order]
    if order == "any":
        d[:4] = -1, m, -(10**12), 10**12  # clamped
    return d


@pytest.mark.thin(2)
@pytest.mark.parametrize("order", ["any", "sorted", "one"])
@pytest.mark.parametrize(("m", "n"), [(1, 33_000), (7, 40_001), (300, 70_003), (5000, 131_071)])
def test_counts_and_sums(m: int, n: int, order: str) -> None:
    d, w = keys(m, n, order), np.random.default_rng(1).standard_normal(n).astype("f4")
    to, b = np.clip(d, 0, m - 1), np.zeros(m, "f4")
    assert copies(COUNTS, N=n, M=m) and copies(WEIGHTED, N=n, M=m)
    np.testing.assert_array_equal(pf.compile(COUNTS, threads=2)(d, b), np.bincount(to, minlength=m))
    want = np.bincount(to, w.astype("f8"), m)
    got = pf.compile(WEIGHTED, threads=2)(d, w, b)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6 * n)
    most = np.full(m, -np.inf, "f4")
    np.maximum.at(most, to, w)
    np.testing.assert_array_equal(pf.compile(GREATEST, threads=3)(d, w, b), most)


def test_special_values_and_elements_that_no_data_name() -> None:
    """An element keeps the sign of its zero; NaN and infinities go where they belong."""
    n, m = 50_000, 40
    d, w = np.arange(n) % 30, np.ones(n, "f4")
    w[3], w[34], w[5], w[35] = np.nan, np.inf, np.inf, -np.inf  # of elements 3, 4, 5 and 5
    y = np.full(m, -0.0, "f4")
    w[d == 7] = -0.0
    y[31], y[32] = np.nan, np.inf
    assert copies(ADDED, N=n, M=m)
    pf.compile(ADDED, threads=2)(y, d, w)
    assert np.isnan(y[3]) and y[4] == np.inf and np.isnan(y[5])
    assert np.signbit(y[[7, 30, 33, 39]]).all() and (y[[7, 30, 33, 39]] == 0).all()
    assert np.isnan(y[31]) and y[32] == np.inf and y[0] == np.sum(d == 0)


def test_arguments_that_are_strided_or_the_same() -> None:
    n, m = 40_000, 50
    d, w = keys(m, n, "any"), np.random.default_rng(2).standard_normal(n).astype("f4")
    b = np.zeros(m, "f4")
    want = pf.compile(WEIGHTED, threads=2)(d, w, b)
    wide, far = np.zeros((n, 3), "f4"), np.zeros(2 * n, "i8")
    wide[:, 1], far[::2] = w, d
    np.testing.assert_array_equal(pf.compile(WEIGHTED, threads=2)(far[::2], wide[:, 1], b), want)
    np.testing.assert_array_equal(pf.compile(WEIGHTED, threads=2)(d[::-1], w[::-1], b[::-1]).shape, (m,))
    np.testing.assert_array_equal(pf.compile(PAIRS, threads=2)(d, d, b), np.diag(pf.compile(COUNTS)(d, b)))
    y = np.zeros(n, "f4")  # the whole of it, and what is added to it
    pf.compile(ADDED, threads=2)(y[:m], d, y)
    np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_few_updates(n: int) -> None:
    d, w = np.arange(n), np.ones(n, "f4")
    want = np.bincount(d, w, minlength=9).astype("f4")
    np.testing.assert_array_equal(pf.compile(WEIGHTED)(d, w, np.zeros(9, "f4")), want)


def test_checked_indices_are_reported() -> None:
    for text, n in ((COUNTS, 40_001), (ROWS, 3_000)):
        d = keys(20, n, "sorted")
        rest = [np.zeros(20, "f4")] if text == COUNTS else [np.ones((n, 33), "f4")]
        for bad in (-1, 20):
            wrong = d.copy()
            wrong[n - 2] = bad
            first = [] if text == COUNTS else [np.zeros((20, 33), "f4")]
            pf.compile(text, checked=True, threads=2)(*first, d, *rest)
            with pytest.raises(PolyfuseError, match="index"):
                pf.compile(text, checked=True, threads=2)(*first, wrong, *rest)


def test_who_has_copies() -> None:
    assert copies(COUNTS, N=1 << 20, M=5000) == [(8, 5000)]
    assert copies(WEIGHTED, N=1 << 20, M=5000) == [(2, 4, 5000)]  # in turns
    assert copies(WEIGHTED, N=1 << 22, M=100_000) == [(2, 100_000)]  # which would take four times the cache
    assert copies(SHORT_ROWS, N=1 << 20, M=700) == [(32, 700, 3)]
    assert copies(CHANNELS, N=1 << 20) == [(32, 3, 256)]
    assert copies(ROWS, N=100_000, M=300) == [(12, 300, 48)]  # whole lines
    assert copies(PAIRS, N=1 << 20, M=9) == [(32, 9, 9)]
    assert copies(COUNTS, N=1 << 20, M=5000, threads=1) == []
    assert copies(COUNTS, N=1 << 20, M=1 << 20) == []  # as many elements as updates
    assert copies(COUNTS, N=1 << 24, M=1 << 18) == []  # larger than L2
    assert copies(COUNTS, N=30_000, M=5) == []  # little work
    assert copies(COUNTS, threads=64, N=1 << 20, M=5000) == []  # too many copies


@pytest.mark.machine("zen5")
def test_turns_are_copies_of_the_loop_body() -> None:
    """No remainder is computed for each update."""
    text = cpu_source(WEIGHTED, N=100_003, M=50)
    assert all(f"* 4 + {turn}) * 50 + pf_min_i64(pf_max_i64(b_d" in text for turn in range(4))


@pytest.mark.parametrize("shapes", thinned([((67, 5), (130, 1)), ((41, 23),)], 2))
@pytest.mark.parametrize("threads", thinned([3, 2], 2))
def test_every_form_against_the_reference(
    threads: int, shapes: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 4)
    monkeypatch.setattr(executable, "PARALLEL_WORK", 1)
    monkeypatch.setattr(FITTED, "scatter_copies_fewest_updates", 0)
    rng = np.random.default_rng(threads)
    calls = []
    for n, m in shapes:
        d, w = rng.integers(0, m, n), rng.standard_normal(n).astype("f4")
        b, sizes = rng.standard_normal(m).astype("f4"), {"N": n, "M": m, "K": 2}
        rows = {"d": d, "x": rng.standard_normal((n, 33)).astype("f4"), "y": np.ones((m, 33), "f4")}
        short = {"d": d, "x": rows["x"][:, :3].copy(), "y": rows["y"][:, :3].copy()}
        one, pairs = {"d": d, "w": w, "b": b}, {"a": d, "b": d[::-1].copy(), "m": b}
        batches = {"d": np.stack([d, d[::-1]]), "w": np.stack([w, w * 2]), "b": b}
        means = {"d": d, "x": rows["x"][:, :16].copy(), "b": b}
        for text, inputs in (
            (COUNTS, {"d": d, "b": b}), (WEIGHTED, one), (GREATEST, one), (ADDED, {"y": b, "d": d, "w": w}),
            (SHORT_ROWS, short), (ROWS, rows), (SOFTMAX, one), (MEANS, means), (TWO, one), (PAIRS, pairs),
            (REMAINDERS, {"w": w}), (SCALAR, {"w": w}), (BATCHES, batches),
            (CHANNELS, {"x": rng.integers(0, 256, (n, 3)).astype("u1")}),
        ):  # fmt: skip
            graph = instantiate((parse_text(text),), "f")
            own = {k: v for k, v in sizes.items() if k in graph.sizes}
            calls.append(Call(f"{n} {m}", text, graph, own, inputs))
    check_everywhere(calls)


@pytest.mark.thin(2)
@pytest.mark.parametrize("dtype", ["f64", "i32", "i64", "f32"])
@pytest.mark.parametrize("index", ["i32", "i64", "u8"])
def test_dtypes(dtype: str, index: str) -> None:
    text = f"op f(inout y: {dtype}[M], d: {index}[N], w: {dtype}[N]) {{ y[d[i]] += w[i] }}"
    rng = np.random.default_rng(3)
    n, m = 40_007, 130
    d = rng.integers(0, m, n).astype(index.replace("i32", "i4").replace("i64", "i8").replace("u8", "u1"))
    w = rng.integers(-9, 9, n).astype({"f64": "f8", "i32": "i4", "i64": "i8", "f32": "f4"}[dtype])
    want = np.arange(m).astype(w.dtype)
    got = want.copy()
    np.add.at(want, d, w)
    pf.compile(text, threads=2)(got, d, w)
    np.testing.assert_array_equal(got, want)
