"""The axis planner on random graphs: legal, honest about parallel loops, deterministic and fast."""

from __future__ import annotations

import time
from collections.abc import Callable

import graphs
import pytest
from brute_force import Enumeration
from graphs import graph
from pace import pace
from random_graphs import random_graph

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.schedule_tree import Member, Tree, shape, statements
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.axis_planner import plan, program_order
from polyfuse.poly.dependences import ordering
from polyfuse.poly.domains import build_model
from polyfuse.poly.legality import check_schedule, parallel
from polyfuse.poly.tree_edit import loops

GRAPHS = 320
SIZES = (
    {"T": 3, "H": 2, "S": 4},
    {"T": 2, "H": 4, "S": 3},
    {"T": 1, "H": 1, "S": 1},
    {"T": 4, "H": 3, "S": 2},
)


def coincident(tree: Tree) -> list[Member]:
    return [m for m in loops(tree) if m.coincident]


@pytest.mark.parametrize("batch", range(8))
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
        assert best < limit * pace()


def _timed(g: TensorGraph) -> float:
    start = time.process_time()
    plan(g)
    return time.process_time() - start
