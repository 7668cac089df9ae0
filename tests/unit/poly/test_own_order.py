"""A recurrence's own order: found without isl's scheduler, legal, and what the plan without fusion runs."""

from __future__ import annotations

from typing import NoReturn

import pytest
from equivalence import assert_computes, assert_right, fixed_graph_of, seeded_inputs

import polyfuse as pf
from benchmarks.golden_programs import programs
from polyfuse.diagnostics import ScheduleError
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.schedule_tree import Tree, shape, statements
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion import loop_fusion
from polyfuse.layers.fusion.loop_fusion import identity_schedule, require_legal
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.poly.scheduling import isl_worker
from polyfuse.poly.scheduling.axis_planner import plan

# The axis planner gives up on each of these.
TRIANGLE = """op f(l: f32[N, N], b: f32[N, M]) -> (x: f32[N, M]) {
  x[i, m] = (b[i, m] - sum[k in 0..i](l[i, k] * x[k, m])) / (2.0 + abs(l[i, i]))
}"""
UPWARDS = """op f(u: f32[N, N], b: f32[N]) -> (x: f32[N]) {
  x[i] = (b[i] - sum[j in i+1..N](u[i, j] * x[j])) / (2.0 + abs(u[i, i]))
}"""
LU = """op f(a: f32[N, N]) -> (w: f32[N, N]) {
  w[i, j] = a[i, j] - 0.1 * sum[k in 0..i](w[i, k] * w[k, j]) for i in 0..N, j in i..N
  w[i, j] = (a[i, j] - 0.1 * sum[k in 0..j](w[i, k] * w[k, j])) / 4.0 for i in 0..N, j in 0..i
}"""
CHOLESKY = """op f(a: f32[N, N]) -> (l: f32[N, N], d: f32[N]) {
  d[i] = sqrt(4.0 + abs(a[i, i]) + sum[k in 0..i](l[i, k] * l[i, k]))
  l[i, j] = (a[i, j] - sum[k in 0..j](l[i, k] * l[j, k])) / d[j] for i in 0..N, j in 0..i
  l[i, j] = 0.0 for i in 0..N, j in i..N
}"""
INTERVALS = """op f(p: f32[N]) -> (m: f32[N, N]) {
  m[i, j] = 0.0 for i in 0..N, j in 0..i+1
  m[i, j] = min[k in i..j](m[i, k] + m[k+1, j] + p[k]) for i in 0..N, j in i+1..N
}"""
BOTH_WAYS = """op f(x: f32[N, N]) -> (y: f32[N, N]) {
  y[i, j] = x[i, j] + (0.5 * y[i+1, j-2] if i + 1 < N and j > 1 else 0.0)
      + (0.25 * y[i-1, j+1] if i > 0 and j + 1 < N else 0.0)
}"""
MIRRORED = """op f(x: f32[N]) -> (a: f32[N], b: f32[N]) where N >= 1 {
  b[N-1] = x[0]
  a[t] = x[t] + b[N - 1 - t]
  b[t] = a[N - 2 - t] * 0.5 for t in 0..N-1
}"""
GRU = """op f(x: f32[T, B, G], h0: f32[B, H], u: f32[G, H]) -> (h: f32[T, B, H]) where G == 2*H, T >= 1 {
  z[t, b, j] = sigmoid(x[t, b, j] + g[t, b, j]) for t in 0..T, b in 0..B, j in 0..H
  n[t, b, j] = tanh(x[t, b, H + j] + g[t, b, H + j]) for t in 0..T, b in 0..B, j in 0..H
  g[0, b, k] = sum[j](h0[b, j] * u[k, j])
  g[t, b, k] = sum[j](h[t-1, b, j] * u[k, j]) for t in 1..T, b in 0..B, k in 0..G
  h[0, b, j] = z[0, b, j] * n[0, b, j] + h0[b, j] for b in 0..B, j in 0..H
  h[t, b, j] = z[t, b, j] * n[t, b, j] + h[t-1, b, j] for t in 1..T, b in 0..B, j in 0..H
}"""
TEXTS = {
    "triangle": (TRIANGLE, "NM"),
    "upwards": (UPWARDS, "N"),
    "LU": (LU, "N"),
    "Cholesky": (CHOLESKY, "N"),
    "intervals": (INTERVALS, "N"),
    "both ways": (BOTH_WAYS, "N"),
    "mirrored": (MIRRORED, "N"),
    "GRU": (GRU, ""),
}


def _never(*_: object) -> NoReturn:
    raise AssertionError("isl's scheduler was asked")


@pytest.fixture(autouse=True)
def without_isl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isl_worker, "solve", _never)
    monkeypatch.setattr(isl_worker, "compute", _never)


def sizes_of(names: str, n: int) -> dict[str, int]:
    return dict.fromkeys(names, n) if names else {"T": n, "B": 3, "H": 5, "G": 10}


@pytest.mark.parametrize("name", TEXTS)
def test_the_plan_without_fusion_is_found_and_right(name: str) -> None:
    text, names = TEXTS[name]
    for n in (1, 2, 7):
        graph = fixed_graph_of(text, **sizes_of(names, n))
        scheduled = identity_schedule(graph)
        require_legal(scheduled.graph, scheduled.tree)
        assert_computes(graph, form_kernels(scheduled, 2)[0])
    with pytest.raises(ScheduleError) as refused:
        plan(graph)
    assert refused.value.code == "PF510"


@pytest.mark.parametrize("name", [n for n, (_, names) in TEXTS.items() if names and n != "mirrored"])
def test_it_is_found_with_open_sizes(name: str) -> None:
    graph = instantiate(parse_text(TEXTS[name][0]), "f")
    scheduled = identity_schedule(graph)
    assert require_legal(scheduled.graph, scheduled.tree)


def test_where_places_depend_on_sizes_these_are_asked_for() -> None:
    with pytest.raises(ScheduleError, match="with N open") as refused:
        identity_schedule(instantiate(parse_text(MIRRORED), "f"))
    assert refused.value.code == "PF513" and refused.value.diagnostics[0].span is not None


def test_steps_are_outside_and_statements_have_loops_of_their_own() -> None:
    graph = fixed_graph_of(GRU, T=4, B=3, H=5, G=10)
    tree = identity_schedule(graph).tree
    assert shape(tree) == "[B111(g); B0([B111(g__2); B11(n); B11(z); B11(h); B11(h__2)])]"


def test_what_an_empty_sum_leaves_has_its_place() -> None:
    """Statements without instances stand first; the last sum of a row of two is over nothing."""
    tree = identity_schedule(fixed_graph_of(TRIANGLE, N=3, M=0)).tree
    assert statements(tree) == ("x__sum", "x")
    graph = fixed_graph_of(UPWARDS, N=2)
    inputs = seeded_inputs(graph)
    found = pf.compile(UPWARDS, target="interpret", layers=())(**inputs)
    assert_right(graph, {"x": found}, inputs)


def test_an_order_that_no_loops_have_is_refused() -> None:
    loop = "op f(x: f32[N, N]) -> (y: f32[N, N]) { y[i, j] = x[i, j] + (y[j, i] if i < j else 0.0) }"
    refused = None
    try:
        scheduled = identity_schedule(fixed_graph_of(loop, N=5))
    except ScheduleError as error:
        refused = error.code
    assert refused == "PF512" or require_legal(scheduled.graph, scheduled.tree)


@pytest.mark.parametrize("group", ["operator/", pytest.param("", marks=pytest.mark.slow)])
def test_no_operator_needs_isl_without_fusion(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trees: list[Tree] = []

    def own(graph: TensorGraph) -> Tree:
        trees.append(found(graph))
        assert require_legal(graph, trees[-1])
        return trees[-1]

    found = loop_fusion.in_own_order
    monkeypatch.setattr(loop_fusion, "in_own_order", own)
    for make in (make for name, make in programs().items() if name.startswith(group)):
        identity_schedule(fixed_graph(*make()))
    assert len(trees) == 2  # a GRU layer and a triangular system
