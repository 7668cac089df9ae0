"""The axis planner on random graphs: legal, honest about parallel loops, deterministic and fast."""

from __future__ import annotations

import time
from collections.abc import Callable

import graphs
import pytest
from brute_force import Enumeration
from equivalence import assert_computes, fixed_graph_of
from graphs import graph
from pace import in_time
from random_graphs import random_graph
from thinned import thinned

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.schedule_tree import Member, Tree, path, shape, statements
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.poly.legality.schedules import check_schedule, parallel
from polyfuse.poly.model.dependences import ordering
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.scheduling.axis_planner import plan, program_order
from polyfuse.poly.scheduling.tree_edit import loops

GRAPHS = 320
SIZES = (
    {"T": 3, "H": 2, "S": 4},
    {"T": 2, "H": 4, "S": 3},
    {"T": 1, "H": 1, "S": 1},
    {"T": 4, "H": 3, "S": 2},
)


def coincident(tree: Tree) -> list[Member]:
    return [m for m in loops(tree) if m.coincident]


@pytest.mark.parametrize("batch", thinned(range(8), 2))
def test_random_graphs_are_planned_legally(batch: int) -> None:
    for seed in range(batch * GRAPHS // 8, (batch + 1) * GRAPHS // 8):
        g = random_graph(seed, 2 + seed % 9)
        tree = plan(g)
        assert sorted(statements(tree)) == sorted(s.name for s in g.statements)
        model = build_model(g)
        verdict = check_schedule(model, tree)
        assert verdict, (seed, verdict)
        order = ordering(model)
        for m in coincident(tree):
            assert parallel(model, tree, m, order), (seed, m.name)
        e = Enumeration(g, SIZES[seed % len(SIZES)])
        assert e.complete(tree) and e.ordered(tree), seed
        assert all(e.parallel(tree, m) for m in coincident(tree)), seed


@pytest.mark.parametrize("g", graphs.ALL, ids=lambda g: g.name)
def test_known_graphs(g: TensorGraph) -> None:
    try:
        tree = plan(g)
    except ScheduleError as error:
        assert error.code == "PF510" and g is graphs.SOLVE
        return
    assert check_schedule(build_model(g), tree)
    assert plan(g) == tree


def test_a_parallel_loop_is_not_given_up_for_a_fusion() -> None:
    """Reading a neighbour is no recurrence: both loops stay parallel, in two phases."""
    assert shape(plan(graphs.GUARDED)) == "B1([B1(a); B1(y)])"


def test_layer_norm_backward_keeps_its_rows_parallel() -> None:
    assert shape(plan(graphs.LAYER_NORM_BACKWARD)) == "B1([B1(xh+dg0+s1+s2+dgm+dbt); B1(dx)])"


# What the sum reads is made along j; `u` lies in memory with j last, or first.
BEFORE_A_SUM = """op f(x: f32[T, J], u: f32[{u}], h: f32[J]) -> (s: f32[T, K]) {{
  a[t, j] = h[j] if t == 0 else x[t, j] * s[t-1, 0] for t in 0..T, j in 0..J
  s[t, k] = sum[j](a[t, j] * u[{read}]) for t in 0..T, k in 0..K
}}"""


@pytest.mark.parametrize(
    ("u", "read", "tree"),
    [("K, J", "k, j", "B0([B1(a); B11(s)])"), ("J, K", "j, k", "B0(B1([a; B1(s)]))")],
    ids=["rows", "columns"],
)
def test_no_shared_loop_turns_a_reduction_against_memory(u: str, read: str, tree: str) -> None:
    """`a` is not made in a loop over j around `for k: s[k] += a[j] * u[k, j]`, but in a loop of its own."""
    assert shape(plan(fixed_graph_of(BEFORE_A_SUM.format(u=u, read=read), T=3, J=5, K=7))) == tree


@pytest.mark.thin(3)
@pytest.mark.parametrize("t", [0, 1, 4])
@pytest.mark.parametrize(("j", "k"), [(0, 3), (1, 1), (37, 5), (64, 33)])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_recurrences_through_sums_compute_the_same(t: int, j: int, k: int, dtype: str) -> None:
    text = BEFORE_A_SUM.format(u="K, J", read="k, j").replace("f32", dtype)
    g = fixed_graph_of(text, T=t, J=j, K=k)
    assert_computes(g, form_kernels(LoopFusion().schedule(g), 2)[0], target="cpu")


UPWIND = """op f(x: f32[B, N]) -> (y: f32[B]) where N >= {T} {
  u[b, 0, i] = x[b, i]
  u[b, t, i] = {right} for b in 0..B, t in 1..{T}, i in 0..N - t
  y[b] = u[b, {T} - 1, 0]
}"""


@pytest.mark.parametrize(
    "right",
    [
        "0.6 * u[b, t-1, i] + 0.4 * u[b, t-1, i+1]",  # both loops may run in order
        "max(u[b, t-1, i], u[b, t-1, i+1]) + x[b, i]",
    ],
)
def test_the_loop_that_carries_all_of_a_recurrence_is_outside(right: str) -> None:
    """More statements share a loop over i, but inside of it steps would wait for each other."""
    g = fixed_graph_of(UPWIND.replace("{T}", "5").replace("{right}", right), B=2, N=9)
    step = g.statements[1].name
    members = [m for m in path(plan(g), step) if isinstance(m, Member)]
    assert [(m.name, m.coincident) for m in members] == [("b", True), ("t", False), ("i", True)]
    assert_computes(g, form_kernels(LoopFusion().schedule(g), 2)[0], target="cpu")


@pytest.mark.parametrize(
    ("shape_of", "first", "at", "before", "tree"),
    [
        ("B, T", "b, 0", "b, t", "b, t-1", "B1([B1(e); y; B0(y__2); B1(z)])"),
        ("T, B", "0, b", "t, b", "t-1, b", "B1([B1(e); y; B0(y__2+z)])"),
    ],
)
def test_steps_along_memory_take_no_functions(
    shape_of: str, first: str, at: str, before: str, tree: str
) -> None:
    """Vectors of `z` run along the last dim: not in a loop that is run in order."""
    text = f"""op f(x: f32[{shape_of}]) -> (z: f32[{shape_of}]) where T >= 1 {{
      e[{at}] = exp(x[{at}])
      y[{first}] = e[{first}]
      y[{at}] = y[{before}] + e[{at}] for t in 1..T
      z[{at}] = tanh(y[{at}])
    }}"""
    g = fixed_graph_of(text, B=4, T=9)
    assert shape(plan(g)) == tree
    assert_computes(g, form_kernels(LoopFusion().schedule(g), 2)[0], target="cpu")


def test_a_recurrence_that_no_loop_carries_alone_takes_both() -> None:
    text = """op f(x: f32[N, M]) -> (y: f32[N, M]) {
      y[0, j] = x[0, j]
      y[i, 0] = x[i, 0] for i in 1..N
      y[i, j] = y[i-1, j] + y[i, j-1] + x[i, j] for i in 1..N, j in 1..M
    }"""
    g = fixed_graph_of(text, N=5, M=7)
    members = [m for m in path(plan(g), g.statements[2].name) if isinstance(m, Member)]
    assert [m.coincident for m in members] == [False, False]
    assert_computes(g, form_kernels(LoopFusion().schedule(g), 2)[0], target="cpu")


def test_a_recurrence_along_no_axis_is_refused_with_its_place() -> None:
    g = graph("swap", "x[N]", "y[N]", "y0: y[i] = y[N-1-i] | i in 1..N")
    with pytest.raises(ScheduleError) as caught:
        plan(g)
    assert caught.value.code == "PF510"
    span = caught.value.diagnostics[0].span
    assert span is not None and span.text.startswith("y[i] = y[N-1-i]")


def test_program_order_follows_the_dependences() -> None:
    assert program_order(graphs.TWO_RECURRENCES, ["h1", "c1", "f"]) == ("f", "c1", "h1")


def test_time_per_statement(record_property: Callable[[str, object], None]) -> None:
    for length, limit in ((20, 0.2), (100, 0.5), (400, 4.0)):
        g = random_graph(length, length)
        best = min(_timed(g) for _ in range(3))
        record_property(f"seconds for {len(g.statements)} statements", best)
        print(f"{len(g.statements)} statements: {1e3 * best:.1f} ms")
        assert in_time(best, limit)


def _timed(g: TensorGraph) -> float:
    start = time.process_time()
    plan(g)
    return time.process_time() - start
