"""Matrix products that a library computes: which statements they are, and what comes out."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.cost.cpu_device import CALL_S
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.contraction import MatrixProduct, matrix_product
from polyfuse.ir.cpu_core import AVX2, Core
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.contractions.times import ContractionTimes, contraction_times

# (signature and body, sizes, numpy's einsum)
# ruff: noqa: E501
PRODUCTS = {
    "plain": ("(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }", "mk,kn->mn"),
    "right turned": (
        "(a: f32[M, K], b: f32[N, K]) -> (c: f32[M, N]) { c[m, n] = sum[k](a[m, k] * b[n, k]) }", "mk,nk->mn",
    ),
    "left turned": (
        "(a: f32[K, M], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k](a[k, m] * b[k, n]) }", "km,kn->mn",
    ),
    "result turned": (
        "(a: f32[M, K], b: f32[K, N]) -> (c: f32[N, M]) { c[n, m] = sum[k](a[m, k] * b[k, n]) }", "mk,kn->nm",
    ),
    "batched": (
        "(a: f32[P, M, K], b: f32[P, K, N]) -> (c: f32[P, M, N]) { c[p, m, n] = sum[k](a[p, m, k] * b[p, k, n]) }",
        "pmk,pkn->pmn",
    ),
    "heads": (
        """(a: f32[P, M, Q, K], b: f32[P, N, Q, K]) -> (c: f32[P, Q, M, N]) {
          c[p, q, m, n] = sum[k](a[p, m, q, k] * b[p, n, q, k]) }""",
        "pmqk,pnqk->pqmn",
    ),
    "groups": (
        "(a: f32[P, M, K], b: f32[K, Q, N]) -> (c: f32[P, M, Q, N]) { c[p, m, q, n] = sum[k](a[p, m, k] * b[k, q, n]) }",
        "pmk,kqn->pmqn",
    ),
    "two over": (
        "(a: f64[M, K, Q], b: f64[K, Q, N]) -> (c: f64[M, N]) { c[m, n] = sum[k, q](a[m, k, q] * b[k, q, n]) }",
        "mkq,kqn->mn",
    ),
}  # fmt: skip
SIZES = {"M": 37, "N": 41, "K": 43, "P": 3, "Q": 5}

OTHERS = {
    "vector": "(a: f32[M, K], b: f32[K]) -> (c: f32[M]) { c[m] = sum[k](a[m, k] * b[k]) }",
    "part": "(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k in 1..K](a[m, k] * b[k, n]) }",
    "scaled": "(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n] * 2.0) }",
    "halves": "(a: f16[M, K], b: f16[K, N]) -> (c: f16[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }",
    "apart": """(a: f32[K, M, Q], b: f32[K, Q, N]) -> (c: f32[M, N]) {
      c[m, n] = sum[k, q](a[k, m, q] * b[k, q, n]) }""",
    "greatest": "(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = max[k](a[m, k] * b[k, n]) }",
    "diagonal": "(a: f32[K, K], b: f32[K, N]) -> (c: f32[K, N]) { c[m, n] = sum[k](a[k, k] * b[k, n]) for m in 0..K }",
}


def product_of(text: str) -> MatrixProduct | None:
    graph = instantiate(parse_text(f"op f{text}"), "f")
    graph = fixed_graph(graph, {n: SIZES[n] for n in graph.sizes})
    found = [matrix_product(graph, s) for s in graph.statements]
    return next((x for x in found if x is not None), None)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_agree_with_einsum(name: str) -> None:
    text, spec = PRODUCTS[name]
    assert product_of(text) is not None
    f = pf.compile(f"op f{text}", target="cpu", library="always")
    rng = np.random.default_rng(0)
    dtype = "f8" if "f64" in text else "f4"
    left, right = (
        rng.normal(size=[SIZES[c.upper()] for c in part]).astype(dtype)
        for part in spec.split("->")[0].split(",")
    )
    c = f(left, right)
    np.testing.assert_allclose(c, np.einsum(spec, left, right), rtol=1e-4, atol=1e-4)
    built = f.built(left, right)
    assert [k.library is not None for k in built.kernels.kernels] == [True]
    assert "a matrix product of the library" in f.explain(left, right)
    plain = pf.compile(f"op f{text}", target="cpu", clustering=pf.Clustering(library="never"))
    np.testing.assert_allclose(plain(left, right), c, rtol=1e-4, atol=1e-4)
    assert all(k.library is None for k in plain.built(left, right).kernels.kernels)


@pytest.mark.parametrize("name", OTHERS)
def test_other_contractions_are_generated(name: str) -> None:
    assert product_of(OTHERS[name]) is None


LINEAR = """op f(x: f32[M, K], w: f32[K, N], b: f32[N]) -> (y: f32[M, N]) {
  u[m, k] = x[m, k] * 2.0
  h[m, n] = sum[k](u[m, k] * w[k, n])
  y[m, n] = max(h[m, n] + b[n], 0.0)
}"""


def reference(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum((x.astype("f8") * 2) @ w + b, 0)


def test_what_is_around_a_product_is_fused_apart() -> None:
    f = pf.compile(LINEAR, target="cpu", library="always")
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=s).astype("f4") for s in ((64, 48), (48, 96), (96,)))
    np.testing.assert_allclose(f(x, w, b), reference(x, w, b), rtol=1e-4, atol=1e-4)
    kernels = f.built(x, w, b).kernels.kernels
    assert [k.library is not None for k in kernels] == [False, True, False]
    bound = f.bind(x, w, b)
    np.testing.assert_allclose(bound(), reference(x, w, b), rtol=1e-4, atol=1e-4)
    again = pf.compile(LINEAR, target="cpu", library="always")  # from the cache of plans
    np.testing.assert_allclose(again(x, w, b), reference(x, w, b), rtol=1e-4, atol=1e-4)


def test_small_products_stay_with_what_is_around_them() -> None:
    f = pf.compile(LINEAR, target="cpu")
    x, w, b = np.ones((3, 4), "f4"), np.ones((4, 5), "f4"), np.ones(5, "f4")
    np.testing.assert_allclose(f(x, w, b), reference(x, w, b))
    assert all(k.library is None for k in f.built(x, w, b).kernels.kernels)


def test_tiles_are_chosen_where_they_are_as_fast() -> None:
    """What follows each element of a product is computed with it; a call would leave it to another kernel."""
    f = pf.compile(LINEAR, target="cpu", threads=2)
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=s).astype("f4") for s in ((130, 300), (300, 200), (200,)))
    np.testing.assert_allclose(f(x, w, b), reference(x, w, b), rtol=1e-3, atol=1e-3)
    kernels = f.built(x, w, b).kernels.kernels
    assert all(k.library is None for k in kernels)
    assert any({"h", "y"} <= set(k.statements) for k in kernels)
    assert re.search(
        r"- library h: a call would take about [\d.]+ us, tiles about [\d.]+ us", f.explain(x, w, b)
    )


def test_loops_are_faster_than_a_library_where_there_are_no_tiles() -> None:
    plain = f"op f{PRODUCTS['plain'][0]}"
    f = pf.compile(plain, target="cpu", threads=2)
    for m, n in ((1, 300), (300, 1), (300, 2)):
        a, b = np.ones((m, 200), "f4"), np.ones((200, n), "f4")
        np.testing.assert_allclose(f(a, b), a @ b)
        assert "tiles" in f.explain(a, b) and f.built(a, b).kernels.kernels[0].library is None
    assert "loops about" in f.explain(np.ones((1, 200), "f4"), np.ones((200, 300), "f4"))


def library_times(graph: TensorGraph, core: Core, threads: int) -> ContractionTimes:
    (s,) = graph.statements
    found = matrix_product(graph, s)
    assert found is not None
    return contraction_times(graph, s, found, core, threads)


def test_a_library_takes_longer_for_a_large_factor_across_memory() -> None:
    """Measured: 2.4 times as long with 4 M elements, no longer with 200,000."""

    def seconds(x: str, n: int) -> float:
        text = f"op f(x: f32[{x.upper()}], w: f32[K, O]) -> (y: f32[N, O]) {{ y[n, o] = sum[k](x[{x}] * w[k, o]) }}"
        graph = fixed_graph(instantiate(parse_text(text), "f"), {"N": n, "K": 48, "O": 8})
        return library_times(graph, AVX2, 2).library - CALL_S

    assert seconds("k, n", 80_000) > 1.5 * seconds("n, k", 80_000)
    assert seconds("k, n", 4_000) == seconds("n, k", 4_000)


def test_a_library_computes_whole_vectors_of_columns_and_copies_factors() -> None:
    """Measured: eight columns take OpenBLAS 1.7 times as long for each product as 128, twelve as sixteen."""

    def seconds(n: int) -> float:
        graph = fixed_graph(
            instantiate(parse_text(f"op f{PRODUCTS['plain'][0]}"), "f"), {"M": 64, "N": n, "K": 4096}
        )
        return library_times(graph, AVX2, 2).library - CALL_S

    assert seconds(12) == pytest.approx(seconds(16), rel=0.03)
    assert 1.3 < 16 * seconds(8) / seconds(128) < 2


def test_a_library_is_called_where_workers_are_many_and_tiles_few() -> None:
    graph = fixed_graph(
        instantiate(parse_text(f"op f{PRODUCTS['plain'][0]}"), "f"), {"M": 13, "N": 32, "K": 65536}
    )
    times = library_times(graph, Core(), 64)
    assert not times.generated and "tiles about" in str(times)


def test_times_grow_with_the_product_and_shrink_with_threads() -> None:
    def times(threads: int, **sizes: int) -> ContractionTimes:
        graph = fixed_graph(instantiate(parse_text(f"op f{PRODUCTS['plain'][0]}"), "f"), sizes)
        return library_times(graph, Core(), threads)

    small, large, many = (
        times(2, M=64, N=64, K=64),
        times(2, M=2048, N=2048, K=2048),
        times(16, M=2048, N=2048, K=2048),
    )
    assert small.tiles and large.tiles and many.tiles
    assert 100 * small.tiles < large.tiles and 4 * many.tiles < large.tiles
    assert small.library < large.library and many.library < large.library
    assert times(2, M=2, N=64, K=64).tiles is None


def test_strided_operands_are_read_by_generated_loops() -> None:
    f = pf.compile(LINEAR, target="cpu")
    rng = np.random.default_rng(0)
    x, b = rng.normal(size=(64, 48)).astype("f4"), rng.normal(size=96).astype("f4")
    w = rng.normal(size=(96, 48)).astype("f4").T
    np.testing.assert_allclose(f(x, w, b), reference(x, w, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("library", ["always", "never"])
def test_not_a_number_goes_through(library: Literal["always", "never"]) -> None:
    text = LINEAR.replace("max(h[m, n] + b[n], 0.0)", "h[m, n] + b[n]")
    f = pf.compile(text, target="cpu", library=library)
    x, w, b = np.zeros((64, 48), "f4"), np.ones((48, 96), "f4"), np.zeros(96, "f4")
    x[3, 5], w[7, 9] = np.nan, np.inf
    y = f(x, w, b)
    assert np.isnan(y[3]).all() and np.isnan(y[:, 9]).all(), "0 times infinity is not a number"
    assert np.isfinite(np.delete(np.delete(y, 3, 0), 9, 1)).all()
