"""Cuts of a graph as values: given by hand, drawn, changed in one place."""

from __future__ import annotations

import random

import pytest
from test_clusters import graph_of

from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.tensor_graph import TensorGraph, statement_reads
from polyfuse.layers.clustering.clusters import Clustering, cuts_of

TEXT = """op f(x: f32[T, H]) -> (y: f32[T, H], z: f32[T]) {
  m[t] = sum[h](x[t, h])
  e[t, h] = exp(x[t, h] * 0.1)
  z[t] = sum[h](e[t, h]) + m[t]
  y[t, h] = e[t, h] / z[t]
}"""
PIECES = """op f(x: f32[N]) -> (y: f32[N], s: f32) {
  y[i] = x[i] * 2.0 for i in 0..N - 1
  y[N - 1] = 0.0
  s = sum[i](y[i])
}"""


def is_ordered(graph: TensorGraph, cut: tuple[tuple[str, ...], ...]) -> bool:
    """Does each cluster read what it or earlier ones define?"""
    of = {graph.statement(n).target: k for k, members in enumerate(cut) for n in members}
    return all(
        of[r.tensor] <= k
        for k, members in enumerate(cut)
        for n in members
        for r in statement_reads(graph.statement(n))
        if r.tensor in of
    )


def names(graph: TensorGraph) -> tuple[str, ...]:
    return tuple(s.name for s in graph.statements)


def test_clusters_by_hand_come_in_an_order_that_dependences_agree_with() -> None:
    graph = graph_of(TEXT, T=4, H=5)
    *first, last = names(graph)
    found = Clustering(groups=((last,), tuple(first[::-1]))).clusters(graph, [])
    assert found == [tuple(first), (last,)]


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        ((("m",),), "no cluster has"),
        ((("m", "nobody"),), "no statement 'nobody'"),
        ((("m", "m"),), "name 'm' twice"),
    ],
)
def test_each_statement_is_in_one_cluster(cut: tuple[tuple[str, ...], ...], told: str) -> None:
    graph = graph_of(TEXT, T=4, H=5)
    with pytest.raises(ArgumentError, match=told) as refused:
        Clustering(groups=cut).clusters(graph, [])
    assert refused.value.code == "PF427" and refused.value.diagnostics[0].hint


def test_what_lies_between_is_told() -> None:
    lines = "a[i] = x[i] + 1.0", "b[i] = a[i] * a[i]", "y[i] = a[i] / b[i]"
    graph = graph_of("op f(x: f32[N]) -> (y: f32[N]) {\n" + "\n".join(lines) + "\n}", N=8)
    with pytest.raises(ArgumentError, match="what lies between 'a' and 'y'"):
        Clustering(groups=(("a", "y"), ("b",))).clusters(graph, [])


def test_pieces_of_a_tensor_stay_together() -> None:
    graph = graph_of(PIECES, N=8)
    pieces = [s.name for s in graph.writers("y")]
    others = tuple(n for n in names(graph) if n not in pieces)
    with pytest.raises(ArgumentError, match="define or need each other"):
        Clustering(groups=((pieces[0],), (pieces[1],), others)).clusters(graph, [])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("text", [TEXT, PIECES])
def test_changes_reach_other_cuts_and_never_a_wrong_one(text: str, seed: int) -> None:
    graph = graph_of(text, **({"T": 4, "H": 5} if "T, H" in text else {"N": 8}))
    cuts, dice = cuts_of(graph), random.Random(seed)
    cut = cuts.checked((names(graph),))
    seen = {cut}
    for _ in range(60):
        other = cuts.changed(cut, dice)
        if other is None:
            continue
        assert other != cut and other == cuts.checked(other) and is_ordered(graph, other)
        seen.add(cut := other)
    assert len(seen) > (4 if text is TEXT else 1)
    assert {len(c) for c in seen} >= {1, 2}


def test_a_change_follows_from_the_seed() -> None:
    cuts = cuts_of(graph_of(TEXT, T=4, H=5))
    start = cuts.drawn(random.Random(3), 0.5)
    found = [cuts.changed(start, random.Random(7)) for _ in range(2)]
    assert found[0] == found[1] is not None
