"""Contractions that read by digits of a dim run over both digits, with the same results."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from equivalence import assert_equivalent, assert_right, fixed_graph_of, seeded_inputs

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.ir.tensor_graph import Statement, TensorGraph
from polyfuse.layers.graph.reindex.div_mod_dims import split_div_mod_dims

TWICE = """op f(x: f32[N, C, H, W], w: f32[C, K, 2, 2]) -> (y: f32[N, K, 2*H, 2*W]) {
  y[n, k, p, q] = sum[c](x[n, c, p // 2, q // 2] * w[c, k, p % 2, q % 2])
}"""
KNOWN = {"N": 2, "C": 16, "H": 5, "W": 9, "K": 16}
# Windows of two at digits of a shifted place.
SHIFTED = """op f(x: f32[N, C, W], w: f32[C, K, 4]) -> (y: f32[N, K, 2*W-4]) where W >= 3 {
  y[n, k, q] = sum[c, s in 0..2](x[n, c, (q + 3) // 2 - s] * w[c, k, (q + 1) % 2 + 2*s])
}"""
NEAREST = """op f(x: f32[N, C, H, W], w: f32[C, K]) -> (y: f32[N, K, 3*H, W]) {
  y[n, k, p, q] = sum[c](x[n, c, p // 3, q] * w[c, k])
}"""
HEADS = """op f(q: f32[B, H, D], k: f32[B, G, T, D]) -> (y: f32[B, H, T]) where H == 4*G {
  y[b, h, t] = sum[d](q[b, h, d] * k[b, h // 4, t, d])
}"""
CHANNELS = """op f(x: f32[N, G*4, W], w: f32[G*4, 4, 3]) -> (y: f32[N, G*4, W-2]) where W >= 3 {
  y[n, k, p] = sum[c, r](x[n, k // 4 * 4 + c, p + r] * w[k, c, r])
}"""
SCALES = """op f(x: f32[M, K], q: f32[K, 32*N], s: f32[K, N]) -> (y: f32[M, 32*N]) {
  y[m, n] = sum[k](x[m, k] * q[k, n] * s[k, n // 32])
}"""
CHOSEN = """op f(x: f32[N, C, W], i: i64[W], w: f32[C, K, 2]) -> (y: f32[N, K, 2*W]) {
  y[n, k, q] = sum[c](x[n, c, i[q // 2]] * w[c, k, q % 2])
}"""


def split(text: str, **sizes: int) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    graph = fixed_graph_of(text, **sizes)
    after = split_div_mod_dims(graph, decisions)
    assert_equivalent(graph, after)
    assert (after is graph) == (not decisions)
    return after, decisions


def sums(graph: TensorGraph) -> Statement:
    (s,) = (s for s in graph.statements if s.reduction == "sum")
    return s


def dims(text: str, **sizes: int) -> list[str]:
    return [str(d) for d in sums(split(text, **sizes)[0]).dims]


def test_dims_read_by_both_digits_are_two() -> None:
    graph, (decision,) = split(TWICE, **KNOWN)
    assert decision.kind == "split dims" and "p, q" in decision.reason
    assert [d.name for d in sums(graph).dims] == [
        "p_remainder", "q_remainder", "n", "k", "p_quotient", "q_quotient", "c",
    ]  # fmt: skip
    assert str(sums(graph).expr).count("//") == 0


def test_windows_at_digits_of_a_shifted_place() -> None:
    assert dims(SHIFTED, N=3, C=16, W=22, K=24)[:2] == ["q_remainder in 0..2", "n in 0..3"]


def test_what_is_equal_for_a_digit_is_computed_once() -> None:
    names = dims(NEAREST, N=2, C=32, H=4, W=19, K=16)
    assert not any("remainder" in d for d in names) and "p_quotient in 0..4" in names


def test_groups_that_one_factor_reads_by_a_digit_are_split_in_their_place() -> None:
    assert dims(HEADS, B=2, H=8, D=64, G=2, T=70)[1:3] == ["h_quotient in 0..2", "h_remainder in 0..4"]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (TWICE, KNOWN | {"H": 1, "W": 1}),  # one quotient
        (TWICE, KNOWN | {"C": 2}),  # nothing for tiles
        (TWICE, KNOWN | {"N": 0}),
        (CHANNELS, {"N": 8, "G": 4, "W": 50}),  # windows, which loops keep
        (SCALES, {"M": 16, "K": 32, "N": 4}),  # a tile reads columns as they are
        (TWICE.replace("2*H, 2*W", "2*H-1, 2*W-1"), KNOWN),  # the last quotient has one remainder only
    ],
)
def test_what_stays_one_dim(text: str, sizes: dict[str, int]) -> None:
    assert split(text, **sizes)[1] == []


def test_a_recurrence_stays_one_statement() -> None:
    text = """op f(x: f32[T, C], w: f32[C, K, 2]) -> (y: f32[T, 2*K, 64]) where T >= 2 {
      y[0, k, j] = 1.0
      y[t, k, j] = sum[c](y[t - 1, k, c] * w[c, j // 2, j % 2] * x[t, c]) for t in 1..T, k in 0..2*K
    }"""
    assert split(text, T=9, C=64, K=32)[1] == []


@pytest.mark.parametrize(("target", "wanted"), [("cpu", True), ("emulate", False)])
def test_dims_are_split_on_a_cpu(target: Literal["cpu", "emulate"], wanted: bool) -> None:
    pieces = pf.parse(TWICE).op().specialize(**KNOWN).clusters(target=target)
    assert any("split dims" in str(d) for d in pieces[0].decisions) == wanted


@pytest.mark.machine("zen5")
@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (TWICE, KNOWN),
        (TWICE, KNOWN | {"N": 1, "C": 33, "H": 7, "W": 17, "K": 13}),
        (SHIFTED, {"N": 3, "C": 19, "W": 21, "K": 21}),
        (NEAREST, {"N": 2, "C": 37, "H": 5, "W": 13, "K": 19}),
        (HEADS, {"B": 2, "H": 12, "D": 64, "G": 3, "T": 71}),
        (CHOSEN, {"N": 2, "C": 33, "W": 39, "K": 21}),
    ],
)
def test_tiles_of_digits_compute_the_same(text: str, sizes: dict[str, int]) -> None:
    graph = fixed_graph_of(text, **sizes)
    inputs = seeded_inputs(graph)
    inputs[graph.inputs[0]].flat[0] = np.nan
    f = pf.compile(text, options=pf.Options(verify=True))
    result = f(**inputs)
    assert_right(graph, {"y": result}, inputs)
    assert "+ split dims y" in f.explain(**inputs) and "+ tile y__digits" in f.explain(**inputs)
