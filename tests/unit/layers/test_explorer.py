"""The explorer on graphs whose numbers are derived by hand, and what a search tells and gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.target import GpuTarget, Target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.clustering.search import Explorer, Order, Pattern, bits

SEARCH = Clustering(partition="search", whole=0)


def shown(patterns: list[Pattern]) -> list[tuple[str, float]]:
    return [("".join(map(str, bits(p.nodes))), p.gain) for p in patterns]


def explorer(weights: dict[tuple[int, int], float], gain: Callable[[int], float] | None = None) -> Explorer:
    """Of a graph whose edges gain so much each, less 2 for each node beyond three."""

    def additive(nodes: int) -> float:
        inside = sum(w for (a, b), w in weights.items() if nodes >> a & 1 and nodes >> b & 1)
        return inside - 2 * max(0, nodes.bit_count() - 3)

    count = 1 + max(b for _, b in weights)
    return Explorer(Order.of(count, weights), gain or additive)


def test_the_candidate_recurrence_on_a_worked_example() -> None:
    """FusionStitching's recurrence, top = 3, by hand.

          0            edges gain   0-1: 5   0-2: 1   1-3: 2   2-3: 4
         / \\           a pattern gains what its edges do, less 2 for each node beyond three
        1   2
         \\ /
          3

    3   has no consumer, so no pattern.
    2   consumer 3:  {2,3} gains 4.
    1   consumer 3:  {1,3} gains 2.
    0   consumers 1 and 2, a half each.
        half 1:  {0}+{1} = {0,1}, 5;  {0}+{1,3} = {0,1,3}, which the path 0-2-3 leaves and enters again, so 2
                 comes too: {0,1,2,3}, 5+1+2+4-2 = 10
        half 2:  {0,2}, 1;  {0}+{2,3}, closed in the same way, {0,1,2,3}, 10
        both:    {0,1,2,3} 10;  {0,1}+{0,2} = {0,1,2}, 5+1 = 6;  {0,1} 5;  {0,2} 1, the fourth: dropped
    """
    found = explorer({(0, 1): 5, (0, 2): 1, (1, 3): 2, (2, 3): 4}).candidates()
    assert shown(found[3]) == []
    assert shown(found[2]) == [("23", 4)]
    assert shown(found[1]) == [("13", 2)]
    assert shown(found[0]) == [("0123", 10), ("012", 6), ("01", 5)]


def test_the_beam_of_plans_on_the_worked_example() -> None:
    """By hand, beam = 3: at vertex 0 the three patterns of it (10, 6, 5) and the empty plan, which drops out;
    at 1 nothing fits beside them; at 2 {2,3} fits beside {0,1}, 5 + 4 = 9, and {0,1} alone drops out."""
    plans = explorer({(0, 1): 5, (0, 2): 1, (1, 3): 2, (2, 3): 4}).plans()
    assert [(shown(list(p.patterns)), p.gain) for p in plans] == [
        ([("0123", 10)], 10),
        ([("01", 5), ("23", 4)], 9),
        ([("012", 6)], 6),
    ]


def test_patterns_of_a_plan_make_no_cycle() -> None:
    """0-3 and 1-2 gain; with edges 0-2 and 1-3 each pattern would need the other's result."""
    weights = {(0, 3): 5.0, (1, 2): 4.0, (0, 2): 0.0, (1, 3): 0.0}
    table = {0b1001: 5.0, 0b0110: 4.0}
    found = explorer(weights, lambda nodes: table.get(nodes, -1.0))
    assert [shown(list(p.patterns)) for p in found.plans()] == [[("03", 5.0)], [("12", 4.0)], []]


def test_readers_of_one_input_are_a_pattern() -> None:
    """Nodes 1 and 2 have no edge between them, but read one tensor: it stands for their producer."""
    gains = {0b110: 3.0}
    order = Order.of(3, [(0, 1)])
    found = Explorer(order, lambda nodes: gains.get(nodes, -1.0), shared=(0b110,))
    found.candidates()
    assert ("12", 3.0) in shown(found.siblings())


def test_each_edge_is_looked_at_with_few_patterns() -> None:
    """Work grows with nodes and edges: (top + 1) squared patterns for each edge, and no more."""
    for count in (50, 400):
        edges = {(a, a + step): 1.0 for a in range(count) for step in (1, 3) if a + step < count}
        asked: list[int] = []

        def gain(nodes: int, asked: list[int] = asked) -> float:
            asked.append(nodes)
            return float(nodes.bit_count() % 7)

        explorer(edges, gain).plans()
        assert len(asked) <= 16 * (count + len(edges))


# --- of graphs --------------------------------------------------------------------------------------------


def graph_of(text: str, **sizes: int) -> TensorGraph:
    return fixed_graph(instantiate(parse_text(text), "f"), sizes)


NORM = """op f(x: f32[T, H], g: f32[H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h])
  y[t, h] = x[t, h] / s[t] * g[h]
}"""


@pytest.mark.parametrize("machine", [2, GpuTarget()])
def test_a_row_and_its_sum_are_one_pattern_with_the_terms_of_its_gain(machine: Target | int) -> None:
    decisions: list[Decision] = []
    assert SEARCH.clusters(graph_of(NORM, T=4096, H=1024), decisions, machine) == [("s", "y")]
    (pattern,) = (d for d in decisions if d.kind == "pattern")
    assert "less traffic + " in pattern.reason and "for 1 launch - " in pattern.reason
    assert pattern.saved_bytes == 4 * (4096 * 1024 + 2 * 4096)  # x once less; s is neither written nor read


def test_a_contraction_stays_alone() -> None:
    text = """op f(x: f32[T, H], w: f32[H, H]) -> (y: f32[T, H]) {
      u[t, h] = x[t, h] * 2.0
      m[t, k] = sum[h](u[t, h] * w[h, k])
      a[t, k] = m[t, k] + 1.0
      y[t, k] = a[t, k] * m[t, k]
    }"""
    assert SEARCH.clusters(graph_of(text, T=512, H=512), []) == [("u",), ("m",), ("a", "y")]


def test_loops_that_do_not_agree_are_not_one_pattern_where_parallelism_is_lost() -> None:
    """Each row needs the sum of another one: as one kernel, one block of 132 would do all the work."""
    text = """op f(x: f32[T, T]) -> (y: f32[T, T]) {
      s[t] = sum[h](exp(x[t, h]))
      y[t, h] = x[t, h] / s[T - 1 - t]
    }"""
    assert SEARCH.clusters(graph_of(text, T=4096), [], GpuTarget()) == [("s",), ("y",)]


TAILS = """op f(x: f32[N], u: f32[N], v: f32[N]) -> (a: f32[N], b: f32[N], c: f32[N]) {
  a[i] = exp(x[i])
  b[i] = exp(u[i])
  c[i] = exp(v[i])
}"""


def test_remote_fusion_is_left_to_layer_three_and_counted_once() -> None:
    decisions: list[Decision] = []
    graph = graph_of(TAILS, N=1000)
    assert SEARCH.clusters(graph, decisions) == [("a",), ("b",), ("c",)]
    assert [d.subject for d in decisions if d.kind == "remote"] == ["a | b | c"]
    without: list[Decision] = []
    SEARCH.clusters(graph, without, remote=False)
    assert [d.kind for d in without] == ["clusters"]


# --- for users --------------------------------------------------------------------------------------------


def test_a_partition_by_name() -> None:
    import numpy as np

    x = np.arange(12.0, dtype=np.float32).reshape(3, 4) + 1
    g = np.ones(4, np.float32)
    want = x / x.sum(1, keepdims=True)
    for name in ("connect", "rules", "search"):
        f = pf.compile(NORM, partition=name, target="interpret")  # type: ignore[arg-type]
        assert np.allclose(f(x, g), want)
        said = f.explain(x, g)
        assert ("clusters f: 1 cluster found by search" in said) == (name == "search")
        assert ("scheduling of micro-graphs" in said) == (name == "rules")


def test_a_partition_that_is_not_there() -> None:
    for wrong in (
        lambda: pf.compile(NORM, partition="luck"),  # type: ignore[arg-type]
        lambda: pf.compile(NORM, partition="rules", layers=("stitch",)),
        lambda: Clustering(partition="rules"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError) as raised:
            wrong()
        assert raised.value.code == "PF419"
