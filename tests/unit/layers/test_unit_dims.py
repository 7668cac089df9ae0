"""Last dims of one element are dropped, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_equivalent, fixed_graph_of

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.graph.reindex.collapse import drop_unit_dims

CHANNELS = """op f(x: f32[N, H, W, C], k: f32[R, S, C]) -> (y: f32[N, H-R+1, W-S+1, C]) where R >= 1, S >= 1 {
  y[n, h, w, c] = sum[r, s](
    x[n, h+r, w+s, c] * k[r, s, c]) for n in 0..N, h in 0..H-R+1, w in 0..W-S+1, c in 0..C
}"""
SERIES = """op f(inout s: f32[B, T, C], a: f32[C]) {
  s[b, t, c] = a[c] * s[b, t, c] + f32(c)
}"""
BY_DATA = "op f(x: f32[N, V], i: i64[N]) -> (y: f32[N, V]) { y[n, v] = x[n, i[n]] + x[n, v] }"
PIECES = """op f(x: f32[N, C]) -> (y: f32[N, C]) where N >= 1 {
  y[0, c] = 1.0; y[n, c] = x[n - 1, c] * x[n, c] for n in 1..N
}"""
SUMS = """op f(x: f32[N, M, C]) -> (y: f32[N, C], t: i64[N]) {
  y[n, c] = sum[m](x[n, m, c]); t[n] = argmax[c](x[n, 0, c])
}"""


def dropped(
    text: str, strided: frozenset[str] = frozenset(), **sizes: int
) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    graph = fixed_graph_of(text, **sizes)
    after = drop_unit_dims(graph, decisions, strided)
    assert_equivalent(graph, after)
    return after, decisions


def ranks(graph: TensorGraph) -> dict[str, int]:
    return {t.name: len(t.shape) for t in graph.tensors if t.name in (*graph.inputs, *graph.outputs)}


def test_channels_of_images_with_one() -> None:
    known = {"N": 2, "H": 7, "W": 6, "R": 3, "S": 2}
    graph, decisions = dropped(CHANNELS, C=1, **known)
    assert ranks(graph) == {"x": 3, "k": 2, "y": 3}
    assert {d.subject for d in decisions} == {"x[.., 3]", "k[.., 2]", "y[.., 3]"}
    assert dropped(CHANNELS, C=2, **known)[1] == []


def test_all_last_dims_of_one_element_but_the_first_dim() -> None:
    assert ranks(dropped(CHANNELS, N=2, H=4, W=3, R=4, S=3, C=1)[0]) == {"x": 3, "k": 2, "y": 1}
    assert ranks(dropped(PIECES, N=1, C=1)[0]) == {"x": 1, "y": 1}


def test_what_is_updated_in_place_and_its_entry_value_are_one_memory() -> None:
    graph, _ = dropped(SERIES, B=2, T=5, C=1)
    assert {len(t.shape) for t in graph.tensors if t.name.startswith("s")} == {2}
    assert dropped(SERIES, frozenset({"s"}), B=2, T=5, C=1)[1] == []


def test_dims_that_are_found_by_data_and_those_of_other_memory_stay() -> None:
    assert ranks(dropped(BY_DATA, N=3, V=1)[0])["x"] == 2
    known = {"N": 1, "H": 3, "W": 4, "R": 1, "S": 1}
    graph, _ = dropped(CHANNELS, frozenset({"x"}), C=1, **known)
    assert ranks(graph)["x"] == 4 and ranks(graph)["y"] == 3


def test_places_of_extremes_and_sums() -> None:
    graph, _ = dropped(SUMS, N=3, M=4, C=1)
    assert ranks(graph) == {"x": 2, "y": 1, "t": 1}


@pytest.mark.parametrize("channels", [1, 2])
def test_operators_with_one_channel_are_right(channels: int) -> None:
    rng = np.random.default_rng(0)
    x, k = rng.standard_normal((2, 9, 20, channels), "f4"), rng.standard_normal((3, 3, channels), "f4")
    want = sum(x[:, r : r + 7, s : s + 18].astype("f8") * k[r, s] for r in range(3) for s in range(3))
    f = pf.compile(CHANNELS)
    np.testing.assert_allclose(f(x, k), want, atol=1e-5)
    apart = np.zeros((2, 9, 20, 3 * channels), "f4")[..., ::3]
    apart[:] = x
    np.testing.assert_allclose(f(apart, k), want, atol=1e-5)
