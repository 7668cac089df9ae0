"""Reductions over a few terms are written out, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_equivalent, assert_right, fixed_graph_of, seeded_inputs
from thinned import thinned

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import AVX2
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.graph.unroll_dims import MOST_TERMS, unroll_reductions

DISTANCES = (
    "op f(x: f32[N, C], y: f32[M, C]) -> (d: f32[N, M]) { d[i, j] = sum[c]((x[i, c] - y[j, c]) ** 2) }"
)
PART = "op f(x: f64[N, 9]) -> (y: f64[N]) { y[i] = prod[c in 2..5, k in 4..6](x[i, c + k - 2] + f64(c)) }"
GUARDED = """op f(x: f32[N, 3]) -> (y: f32[N]) {
  y[i] = max[c in 0..4](x[i, c - 1] if c >= 1 else -1.5)
}"""
NESTED = "op f(x: f32[N, 3, 3]) -> (y: f32[N]) { y[n] = sum[i](abs(sum[j](x[n, i, j]))) }"
WINDOW = (
    "op f(x: f32[N]) -> (y: f32[N - 2]) where N >= 3 { y[i] = sum[k in 0..3](x[i + k]) for i in 0..N - 2 }"
)
TRIANGLE = "op f(x: f32[N, 4]) -> (y: f32[4]) { y[i] = sum[k in 0..i + 1](x[0, k] * x[0, i]) for i in 0..4 }"
BATCH = """op f(a: f32[B, 3, 3], b: f32[B, 3, 3]) -> (c: f32[B, 3, 3]) {
  c[n, i, j] = sum[k](a[n, i, k] * b[n, k, j])
}"""
PLACE = "op f(x: f32[N, 3]) -> (y: i64[N]) { y[i] = argmax[c](x[i, c]) }"
COUNTS = "op f(k: i64[N, 2]) -> (h: i64[9]) { h[k[i, c]] += 1 }"


def written(text: str, **sizes: int) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    graph = fixed_graph_of(text, **sizes)
    after = unroll_reductions(graph, decisions, AVX2)
    assert_equivalent(graph, after)
    return after, decisions


@pytest.mark.parametrize("terms", [1, 3, MOST_TERMS])
def test_few_terms_are_written_out(terms: int) -> None:
    graph, (decision,) = written(DISTANCES, N=5, M=7, C=terms)
    (s,) = graph.statements
    assert s.reduction is None and not s.reduction_dims and str(s.expr).count("pow") == terms
    assert decision.kind == "unroll" and f"{terms} terms" in decision.reason


def test_sums_of_sums_are_written_out() -> None:
    graph, decisions = written(NESTED, N=4)
    assert len(decisions) == 2
    (s,) = graph.statements
    assert s.reduction is None and str(s.expr).count("abs") == 3


def test_dims_that_begin_elsewhere_and_conditions() -> None:
    (s,) = written(PART, N=4)[0].statements
    assert s.reduction is None
    (s,) = written(GUARDED, N=4)[0].statements
    assert s.reduction is None


def test_batches_of_small_matrices_are_written_out_and_computed_whole() -> None:
    """A worker's iteration is a matrix, whose loops have fixed ends."""
    (s,) = written(BATCH, B=5)[0].statements
    assert s.reduction is None
    f = pf.compile(BATCH, target="cpu", options=pf.Options(library="never"))
    a, b = np.random.default_rng(5).standard_normal((2, 5000, 3, 3)).astype("f4")
    assert np.abs(f(a, b) - a.astype("f8") @ b.astype("f8")).max() < 1e-5
    source = f.built(a, b).code.source
    assert "c1 < 3;" in source and "rest % 3" not in source


def test_many_pairs_of_short_rows_are_tiles() -> None:
    """Where nothing sums them up: of four terms and more, of which one factor would be read across lanes."""
    sizes = {"N": 200, "M": 300}
    assert len(written(DISTANCES, **sizes, C=3)[1]) == 1
    assert written(DISTANCES, **sizes, C=4)[1] == [] and written(DISTANCES, **sizes, C=MOST_TERMS)[1] == []
    nearest = DISTANCES.replace("-> (d: f32[N, M])", "-> (m: f32[N])").replace(
        " }", "; m[i] = min[j](d[i, j]) }"
    )
    assert len(written(nearest, **sizes, C=4)[1]) == 1
    f = pf.compile(DISTANCES, target="cpu")
    x, y = (np.random.default_rng(k).standard_normal((n, 5)).astype("f4") for k, n in enumerate((200, 301)))
    difference = x[:, None].astype("f8") - y[None]
    assert np.abs(f(x, y) - (difference**2).sum(-1)).max() < 1e-4
    assert any("+ tile" in str(d) for d in f.built(x, y).decisions)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (DISTANCES, {"N": 5, "M": 7, "C": MOST_TERMS + 1}),
        (DISTANCES, {"N": 5, "M": 7, "C": 0}),
        (WINDOW, {"N": 9}),
        (TRIANGLE, {"N": 2}),
        (PLACE, {"N": 5}),
        (COUNTS, {"N": 5}),
    ],
)
def test_what_keeps_its_loops(text: str, sizes: dict[str, int]) -> None:
    graph, decisions = written(text, **sizes)
    assert not decisions and any(s.reduction for s in graph.statements)


def test_long_terms_are_not_repeated() -> None:
    term = " + ".join(f"(x[i, c] * {k}.5 - 1.0)" for k in range(20))
    assert not written(f"op f(x: f32[N, 4]) -> (y: f32[N]) {{ y[i] = sum[c]({term}) }}", N=3)[1]


@pytest.mark.parametrize("dtype", thinned(["f32", "f64", "f16", "bf16", "i8", "i32", "u8"], 4))
@pytest.mark.parametrize("n", [0, 1, 37])
def test_compiled_results(dtype: str, n: int) -> None:
    text = f"""op f(x: {dtype}[N, 3], y: {dtype}[3]) -> (s: {dtype}[N], p: {dtype}[N], m: {dtype}[N]) {{
      s[i] = {dtype}(sum[c](x[i, c] * y[c]))
      p[i] = {dtype}(prod[c](x[i, c] - y[c]))
      m[i] = {dtype}(max[c](min(x[i, c], y[c])))
    }}"""
    graph = fixed_graph_of(text, N=n)
    inputs = seeded_inputs(graph, n)
    if graph.tensor("x").dtype.is_float and n > 9:
        inputs["x"][3, 1], inputs["x"][5, 2], inputs["x"][7, 0] = np.nan, np.inf, -np.inf
    s, p, m = pf.compile(text)(inputs["x"], inputs["y"])
    assert_right(graph, {"s": s, "p": p, "m": m}, inputs)


def test_bools_and_strided_arguments() -> None:
    text = (
        "op f(x: bool[N, 4]) -> (a: bool[N], b: bool[N]) { a[i] = any[c](x[i, c]); b[i] = all[c](x[i, c]) }"
    )
    x = np.random.default_rng(0).random((99, 8)) < 0.6
    a, b = pf.compile(text)(x[::3, ::2])
    np.testing.assert_array_equal(a, x[::3, ::2].any(1))
    np.testing.assert_array_equal(b, x[::3, ::2].all(1))
