"""What needs, by any way, what a statement computes; and graphs of many statements."""

from __future__ import annotations

import time

import pytest
from equivalence import fixed_graph_of

from polyfuse.decisions import Decision
from polyfuse.ir.kernel import Kernel, KernelGraph
from polyfuse.ir.target import CpuTarget
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.graph.names import depending
from polyfuse.layers.mapping.kernels import separate_kernels
from polyfuse.layers.stitching.grid_barriers import grouped

# Two ways from `a` to `y`, what stands apart, a recurrence, and a table that two statements add to.
GRAPH = """op f(x: f32[N], k: i64[N]) -> (y: f32[N], z: f32[N], u: f32[N], t: f32[N]) {
  a[i] = x[i] * 2.0
  b[i] = a[i] + 1.0
  c[i] = a[i] - x[i]
  y[i] = b[i] * c[i]
  z[i] = x[i] * 3.0
  u[0] = z[0]
  u[i] = u[i - 1] * 0.5 + x[i] for i in 1..N
  t[i] = 0.0
  t[k[i]] += y[i] for i in 0..N
  t[k[i]] += x[i] for i in 0..N
}"""


def chain(count: int) -> str:
    lines = [f"  c{k + 1}[i] = c{k}[i] + c{max(0, k - 1)}[i]" for k in range(count)]
    ends = ["op f(c0: f32[N]) -> (y: f32[N]) {", f"  y[i] = c{count}[i]", "}"]
    return "\n".join([ends[0], *lines, *ends[1:]])


def names_by_target(graph: TensorGraph) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for s in graph.statements:
        found.setdefault(s.target, []).append(s.name)
    return found


def test_all_ways_are_followed() -> None:
    graph = fixed_graph_of(GRAPH, N=8)
    of = names_by_target(graph)
    assert depending(graph, graph.statement(of["a"][0])) == {*of["b"], *of["c"], *of["y"], *of["t"][1:]}
    assert depending(graph, graph.statement(of["z"][0])) == {*of["u"]}
    assert depending(graph, graph.statement(of["b"][0]), {*of["b"], *of["y"]}) == {*of["y"]}


def test_a_recurrence_needs_itself() -> None:
    graph = fixed_graph_of(GRAPH, N=8)
    first, step = names_by_target(graph)["u"]
    assert step in depending(graph, graph.statement(step))
    assert depending(graph, graph.statement(first)) == {step}


def test_updates_follow_each_other() -> None:
    graph = fixed_graph_of(GRAPH, N=8)
    start, one, other = names_by_target(graph)["t"]
    assert depending(graph, graph.statement(start)) == {one, other}
    assert other in depending(graph, graph.statement(one))


def test_a_way_of_thousands_is_followed_once() -> None:
    """Eight times the statements, less than thirty times the time."""
    seconds = []
    for count in (250, 2000):
        graph = fixed_graph_of(chain(count), N=8)
        best = 1e9
        for _ in range(3):
            start = time.process_time()
            found = depending(graph, graph.statements[0])
            best = min(best, time.process_time() - start)
        assert len(found) == len(graph.statements) - 1
        seconds.append(best)
    assert seconds[1] < 30 * seconds[0]


def products(count: int) -> KernelGraph:
    lines = [f"  c{k + 1}[i, j] = sum[l](c{k}[i, l] * w[l, j])" for k in range(count)]
    head = "op f(c0: f32[N, N], w: f32[N, N]) -> (y: f32[N, N]) {"
    text = "\n".join([head, *lines, f"  y[i, j] = c{count}[i, j] + 1.0", "}"])
    scheduled = LoopFusion().schedule(fixed_graph_of(text, N=64))
    return separate_kernels(scheduled, CpuTarget(2))[0]


def test_kernels_are_not_compared_with_all_others_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, compared = products(20), [0]
    equal = Kernel.__eq__

    def counted(self: Kernel, other: object) -> bool:
        compared[0] += 1
        return equal(self, other)

    monkeypatch.setattr(Kernel, "__eq__", counted)
    decisions: list[Decision] = []
    (group,) = grouped(kernels, lambda groups, k: (True, "all"), "region", decisions)
    assert [k.name for k in group] == [k.name for k in kernels.kernels] and len(group) >= 20
    assert compared[0] <= len(group) ** 2
