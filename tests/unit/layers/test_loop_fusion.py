"""Layer I as a pass: which scheduler, what happens when one gives up, what is recorded."""

from __future__ import annotations

import pytest

from polyfuse.diagnostics import ScheduleError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.schedule_tree import statements
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion import loop_fusion
from polyfuse.layers.fusion.loop_fusion import LoopFusion, identity_schedule
from polyfuse.poly.legality.schedules import check_schedule
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.scheduling.isl_scheduler import ScheduleTimeout

# Each element needs the one left of it in the same row, or the last of the row before: no single axis.
SNAKE = """op f(x: f32[N, M]) -> (y: f32[N, M], z: f32[N]) where M >= 2 {
  y[0, 0] = x[0, 0]
  y[0, j] = y[0, j-1] + x[0, j] for j in 1..M
  y[i, 0] = y[i-1, M-1] + x[i, 0] for i in 1..N
  y[i, j] = y[i, j-1] + x[i, j] for i in 1..N, j in 1..M
  z[i] = sum[j](y[i, j])
}"""
TRIANGLE = """op f(l: f32[N, N], b: f32[N]) -> (x: f32[N]) {
  x[i] = (b[i] - sum[j in 0..i](l[i, j] * x[j])) / l[i, i] for i in 0..N
}"""


def graph_of(text: str) -> TensorGraph:
    return instantiate(parse_text(text), "f")


@pytest.mark.parametrize("scheduler", ["auto", "isl"])
@pytest.mark.parametrize("text", [SNAKE, TRIANGLE], ids=["snake", "triangle"])
def test_hard_recurrences_are_legal(text: str, scheduler: str) -> None:
    graph = graph_of(text)
    done = LoopFusion(scheduler=scheduler).schedule(graph)  # type: ignore[arg-type]
    assert check_schedule(build_model(done.graph), done.tree)


def test_auto_says_that_the_planner_gave_up() -> None:
    done = LoopFusion().schedule(graph_of(TRIANGLE))
    assert next((d.kind, d.taken) for d in done.decisions) == ("axis planner", False)


def test_axes_alone_refuse_with_the_place() -> None:
    with pytest.raises(ScheduleError) as refused:
        LoopFusion(scheduler="axes").schedule(graph_of(TRIANGLE))
    assert refused.value.code == "PF510" and refused.value.diagnostics[0].span is not None


def test_a_time_out_leaves_the_operator_unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(TRIANGLE)
    real, calls = loop_fusion.schedule_by_isl, []

    def slow_for_the_whole(g: TensorGraph) -> object:
        calls.append(len(g.statements))
        if len(calls) == 1:
            raise ScheduleTimeout("the time limit was reached", code="PF511", span=g.span)
        return real(g)

    monkeypatch.setattr(loop_fusion, "schedule_by_isl", slow_for_the_whole)
    done = LoopFusion().schedule(graph)
    assert ("isl scheduler", False) in [(d.kind, d.taken) for d in done.decisions]
    assert sorted(statements(done.tree)) == sorted(s.name for s in done.graph.statements)
    assert check_schedule(build_model(done.graph), done.tree)


def test_unfused_is_one_nest_for_each_statement() -> None:
    text = "op f(x: f32[N]) -> (z: f32[N]) { y[i] = x[i] + 1.0; z[i] = y[i] * 2.0 }"
    assert identity_schedule(graph_of(text)).shape == "[B1(y); B1(z)]"
    assert LoopFusion().schedule(graph_of(text)).shape == "B1(y+z)"
