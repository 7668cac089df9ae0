"""Rows and columns of a contraction are the dims with which its tiles take the fewest cycles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from equivalence import fixed_graph_of
from product_programs import product_call
from targets import check_everywhere

from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs
from polyfuse.layers.contractions import contraction, loop_roles, tile_shapes
from polyfuse.layers.contractions.contraction import contraction_of
from polyfuse.layers.contractions.factors import measures
from polyfuse.layers.contractions.tile_shapes import STREAMED_STEPS, Extents, tile_shape

BLOCKS = """op f(x: f32[8*P, 8*Q], c: f32[8, 8]) -> (y: f32[P, Q, 8, 8]) {
  t[i, j, u, b] = sum[a](c[u, a] * x[8*i + a, 8*j + b]) for i in 0..P, j in 0..Q, b in 0..8
  y[i, j, u, v] = sum[b](t[i, j, u, b] * c[v, b])
}"""
IMAGES = """op f(x: f32[N, C, H + 2, W + 2], w: f32[K, C, 3, 3]) -> (y: f32[N, K, H, W]) {
  y[n, k, p, q] = sum[c, r, s](x[n, c, p + r, q + s] * w[k, c, r, s]) for p in 0..H, q in 0..W
}"""
ACROSS = "op f(x: f32[K, N], w: f32[K, O]) -> (y: f32[N, O]) { y[n, o] = sum[k](x[k, n] * w[k, o]) }"
ALONG = "op f(x: f32[N, K], w: f32[O, K]) -> (y: f32[N, O]) { y[n, o] = sum[k](x[n, k] * w[o, k]) }"
FACTORS = "op f(x: f32[M, K], w: f32[K, N]) -> (y: f32[M, N]) { y[m, n] = sum[k](x[m, k] * w[k, n]) }"


def way(text: str, number: int = 0, core: Core = AVX2, **sizes: int) -> tuple[str, str]:
    """The names of rows and columns."""
    graph = fixed_graph_of(text, **sizes)
    found = contraction_of(graph, graph.statements[number], core)
    assert found is not None
    return found.row, found.column


@pytest.mark.parametrize("core", (AVX2, Core()))
def test_columns_of_one_vector_are_better_than_many_across_memory(core: Core) -> None:
    assert way(BLOCKS, core=core, P=64, Q=64) == ("u", "b")
    assert way(BLOCKS, 1, core=core, P=64, Q=64)[1] == "v"
    assert way(IMAGES, core=core, N=16, C=1, H=8, W=8, K=64)[1] == "q"
    assert way(ACROSS, core=core, N=100_000, K=16, O=8) == ("n", "o")
    assert way(ALONG, core=core, N=30_000, K=64, O=8) == ("n", "o")


def test_few_columns_are_not_taken_where_many_rows_lie_along_memory() -> None:
    """What is copied or turned around is the smaller factor, or nothing."""
    assert way(FACTORS, M=500, K=500, N=500) == ("m", "n")
    assert way(FACTORS, M=16, K=500, N=4000) == ("m", "n")
    assert way(ALONG, N=4000, K=500, O=64) == ("n", "o")
    assert way(ALONG, N=64, K=500, O=4000) == ("o", "n")


def test_large_factors_whose_rows_share_sets_of_a_cache_are_better_turned_around() -> None:
    assert way(ALONG, N=64, K=1000, O=1000) == ("o", "n")
    assert way(ALONG, N=64, K=1024, O=1024) == ("n", "o")  # rows of w are 4 kB apart
    assert way(FACTORS, M=64, K=4096, N=20) == ("m", "n")  # x is so large only that L2 holds it


def test_sums_of_few_steps_are_contractions_on_a_cpu_only() -> None:
    """Where both factors lie along them: on a GPU that is not measured."""
    graph = fixed_graph_of(ALONG, N=500, K=5, O=500)
    assert contraction_of(graph, graph.statements[0]) is None
    assert way(ALONG, N=500, K=5, O=500)
    across = fixed_graph_of(ACROSS, N=500, K=5, O=500)
    assert contraction_of(across, across.statements[0], AVX2) is None


def test_ways_that_take_as_long_have_the_most_rows() -> None:
    text = """op f(x: f32[A, B, K], w: f32[K, N]) -> (y: f32[A, B, N]) {
      y[a, b, n] = sum[k](x[a, b, k] * w[k, n])
    }"""
    graph = fixed_graph_of(text, A=60, B=600, K=64, N=64)
    s = graph.statements[0]
    ways = [x for x in contraction._ways(s, ("a", "b", "n"), ("k",)) if x.column == "n"]
    assert [x.row for x in ways] == ["a", "b"]
    for cycles in (lambda *_: 1.0, lambda graph, s, p, core: {"a": 1.0, "b": 2.0}[p.row]):
        found = min(ways, key=lambda p: (cycles(graph, s, p, AVX2), -{"a": 60, "b": 600}[p.row]))
        with pytest.MonkeyPatch.context() as m:
            m.setattr(loop_roles, "way_cycles", cycles)
            assert loop_roles.best_way(graph, s, ways, AVX2) is found


def test_what_lies_across_memory_takes_longer() -> None:
    graph = fixed_graph_of(ACROSS, N=100_000, K=64, O=8)
    s = graph.statements[0]
    ways = contraction._ways(s, ("n", "o"), ("k",))
    cost = {x.column: loop_roles.moving_cycles(graph, s, x, measures(graph, s, x), AVX2) for x in ways}
    panels = 64 // STREAMED_STEPS  # in each of which the result is written
    assert cost["n"] == panels * 100_000 * 8 * loop_roles.ACROSS_CYCLES
    assert 0 < cost["o"] < cost["n"]


def test_long_strips_of_rows_where_memory_brings_them() -> None:
    """In short panels; not in few steps, not from a cache, not for many columns, whose factor is copied."""
    big = Extents(100_000, 8, 64, 1, 4, beside=True)
    found = tile_shape(big, AVX2, 2)
    assert found.streamed and found.in_rows and found.panel == STREAMED_STEPS and found.group > 8
    assert found.group * found.rows <= 100_000 / 2  # each worker has strips
    for x in (
        Extents(100_000, 8, 64, 1, 4),
        Extents(400_000, 8, 16, 1, 4, beside=True),
        Extents(10_000, 8, 64, 1, 4, beside=True),
        Extents(100_000, 80, 64, 1, 4, beside=True),
    ):
        assert not tile_shape(x, AVX2, 2).in_rows


@pytest.fixture
def small_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products of any size have tiles, and memory brings all factors."""
    for name in ("FEWEST_PRODUCTS", "FEWEST_ROWS", "FEWEST_COLUMNS", "FEWEST_OVER"):
        monkeypatch.setattr(contraction, name, 1)
    monkeypatch.setattr(CpuKnobs, "on", AVX2)
    monkeypatch.setattr(tile_shapes, "STREAMED_FACTOR", 0)
    monkeypatch.setattr(tile_shapes, "PIECE_CYCLES", 1e6)
    tile_shape.cache_clear()
    yield
    tile_shape.cache_clear()


@pytest.mark.parametrize("sizes", ({"M": 70, "N": 9, "K": 37}, {"M": 30, "N": 3, "K": 17}), ids=str)
def test_strips_of_rows_agree_with_the_reference(sizes: dict[str, int], small_products: None) -> None:
    assert tile_shape(Extents(sizes["M"], sizes["N"], sizes["K"], 1, 4, beside=True), AVX2, 2).in_rows
    forms = ("left turned", "result turned", "two over", "after")
    check_everywhere([product_call(n, **sizes) for n in forms])
