"""Dims of one factor are one dim in a contraction where tiles are faster so, with the same results."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from equivalence import assert_equivalent, assert_right, cpu_source, fixed_graph_of, seeded_inputs
from product_programs import FORMS, product_call
from targets import check_everywhere
from thinned import thinned

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import AVX2, Core
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.contractions import contraction
from polyfuse.layers.graph.reindex import factor_rows
from polyfuse.layers.graph.reindex.factor_rows import collapse_factor_rows

CONVOLUTION = """op f(x: f32[N, C, H, W], w: f32[K, C, 3, 3], b: f32[K]) -> (y: f32[N, K, H, W]) {
  z[n, c, h, v] = x[n, c, h-1, v-1] if 1 <= h < H+1 and 1 <= v < W+1 else
      0.0 for h in 0..H+2, v in 0..W+2
  y[n, k, p, q] = max(sum[c, r, s](z[n, c, p + r, q + s] * w[k, c, r, s]) + b[k], 0.0)
}"""
LAST = """op f(x: f32[N, H, W, C], w: f32[3, 3, C, K]) -> (y: f32[N, (H-1)//2, (W-1)//2, K])
    where H >= 3, W >= 3 {
  y[n, p, q, k] = sum[r, s, c](x[n, 2*p + r, 2*q + s, c] * w[r, s, c, k])
}"""
GROUPS = """op f(x: f64[N, G, C, W], w: f64[G, K, C, 3]) -> (y: f64[N, G, K, W-2]) where W >= 3 {
  y[n, g, k, p] = sum[c, r](x[n, g, c, p + 2 - r] * w[g, k, c, r])
}"""
SMALL = {"N": 8, "C": 64, "H": 7, "W": 7, "K": 64}


def join(text: str, core: Core = AVX2, **sizes: int) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    graph = fixed_graph_of(text, **sizes)
    after = collapse_factor_rows(graph, decisions, 2, core)
    assert_equivalent(graph, after)
    assert (after is graph) == (not decisions)
    return after, decisions


@pytest.mark.parametrize(("text", "core"), [(CONVOLUTION, AVX2), (CONVOLUTION, Core()), (LAST, AVX2)])
def test_short_dims_of_an_image_are_rows_together(text: str, core: Core) -> None:
    graph, (decision,) = join(text, core, **SMALL)
    assert decision.kind == "collapse rows" and "n, p, q as one dim" in decision.reason
    (s,) = (s for s in graph.statements if s.reduction == "sum")
    free = [d for d in s.dims if not d.reduce]
    assert [str(d.upper) for d in free] == [str(8 * 49 if text == CONVOLUTION else 8 * 9), "64"]
    assert free[1].name == "k"


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (CONVOLUTION, SMALL | {"N": 1, "H": 56, "W": 512, "C": 4}),  # rows of pixels fill tiles
        (CONVOLUTION, SMALL | {"K": 4}),  # nothing for tiles
        (CONVOLUTION, SMALL | {"N": 0}),
        (CONVOLUTION, SMALL | {"H": 0}),
        ("op f(x: f32[M, K], w: f32[K, N]) -> (y: f32[M, N]) { y[i, j] = sum[k](x[i, k] * w[k, j]) }",
         {"M": 64, "K": 64, "N": 64}),
        ("""op f(x: f32[B, T, C], w: f32[K, C]) -> (y: f32[B, T, K]) {
          y[b, t, k] = sum[c](x[b, t, c] * w[k, c])
        }""", {"B": 64, "T": 7, "C": 64, "K": 64}),  # dims that collapse
    ],
)  # fmt: skip
def test_what_stays_as_it_is(text: str, sizes: dict[str, int]) -> None:
    assert join(text, **sizes)[1] == []


def test_a_recurrence_stays_one_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factor_rows, "LEAD", 1e9)
    text = """op f(x: f32[T, C, C]) -> (y: f32[T, 5, 7, C]) where T >= 2 {
      y[0, p, q, j] = 1.0
      y[t, p, q, j] = sum[c](y[t - 1, p, q, c] * x[t, c, j]) for t in 1..T, p in 0..5, q in 0..7
    }"""
    assert join(text, T=9, C=64)[1] == []


@pytest.mark.parametrize(("target", "wanted"), [("cpu", True), ("emulate", False)])
def test_dims_are_joined_on_a_cpu(target: Literal["cpu", "emulate"], wanted: bool) -> None:
    pieces = pf.parse(CONVOLUTION).op().specialize(**(SMALL | {"C": 512})).clusters(target=target)
    assert any("collapse rows" in str(d) for d in pieces[0].decisions) == wanted


@pytest.mark.parametrize(
    ("text", "sizes"),
    thinned(
        [
            (LAST, {"N": 5, "C": 40, "H": 11, "W": 13, "K": 37}),
            (CONVOLUTION, SMALL),
            (GROUPS, {"N": 4, "G": 3, "C": 19, "W": 9, "K": 21}),
            (CONVOLUTION, {"N": 3, "C": 17, "H": 5, "W": 6, "K": 29}),
            (CONVOLUTION, {"N": 1, "C": 33, "H": 1, "W": 9, "K": 33}),
        ],
        2,
        several=True,
    ),
)
def test_tiles_of_joined_rows_compute_the_same(
    text: str, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN and infinity at the border of an image are in the windows that have them and in no others."""
    monkeypatch.setattr(factor_rows, "LEAD", 1e9)
    graph = fixed_graph_of(text, **sizes)
    inputs = seeded_inputs(graph)
    image = inputs[graph.inputs[0]]
    image.flat[0], image.flat[-1] = np.nan, np.inf
    f = pf.compile(text, options=pf.Options(verify=True))
    assert_right(graph, {"y": f(**inputs)}, inputs)
    assert "+ collapse rows y" in f.explain(**inputs) and "__rows: " in f.explain(**inputs)
    apart = np.zeros((*image.shape[:-1], 2 * image.shape[-1]), image.dtype)[..., ::2]
    apart[...] = image
    assert_right(graph, {"y": f(**(inputs | {graph.inputs[0]: apart}))}, inputs)


@pytest.mark.slow
def test_all_kinds_of_contractions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factor_rows, "LEAD", 1e9)
    for what in ("PRODUCTS", "ROWS", "COLUMNS", "OVER", "DISTANCES"):
        monkeypatch.setattr(contraction, f"FEWEST_{what}", 1)
    check_everywhere([product_call(n) for n in FORMS])


def test_windows_of_tiles_stay_in_memory() -> None:
    """gcc would keep what the next steps read in registers, which sums need."""
    flag = "// needs -fno-predictive-commoning"
    assert flag in cpu_source(CONVOLUTION, **SMALL)
    product = "op f(x: f32[M, K], w: f32[K, N]) -> (y: f32[M, N]) { y[i, j] = sum[k](x[i, k] * w[k, j]) }"
    found = cpu_source(product, M=64, K=64, N=64)
    assert "_acc[" in found and flag not in found
