"""Clusters that fail are cut and tried again, what was learnt is remembered, and nothing fails by fusion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.diagnostics import ScheduleError
from polyfuse.driver import feedback, lowering
from polyfuse.driver.feedback import NoLessons, pieces_of
from polyfuse.driver.lowering import Passes
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.target import CpuTarget
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion import loop_fusion
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.poly.scheduling.isl_scheduler import ScheduleTimeout

NORM = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h])
  d[t, h] = x[t, h] - s[t] * 0.1
  q[t] = sum[h](d[t, h] * d[t, h])
  y[t, h] = d[t, h] / sqrt(q[t] + 1.0)
}"""
# A recurrence that the axis planner leaves to isl, between statements that it does not.
STENCIL = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  a[t, h] = x[t, h] * 0.5
  u[0, h] = a[0, h]
  u[t, h] = u[t-1, h] + (u[t-1, h-1] if h > 0 else 0.0) * 0.25 + a[t, h] for t in 1..T, h in 0..H
  b[t, h] = u[t, h] + 1.0
  y[t, h] = b[t, h] * 2.0
}"""
PASSES = Passes(Clustering(library="never"), LoopFusion(late="raise"), Stitching(rows=1), None, CpuTarget(2))


def graph_of(text: str, **sizes: int) -> TensorGraph:
    return fixed_graph(instantiate(parse_text(text), "f"), sizes)


def norm(x: Any) -> Any:
    d = x - x.sum(1, keepdims=True) * 0.1
    return d / np.sqrt((d * d).sum(1, keepdims=True) + 1.0)


def fail_above(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Refuse to make kernels of more statements than `most`; the sizes of what was tried."""
    tried: list[int] = []
    real = lowering.separate_kernels

    def refusing(scheduled: Any, *rest: Any, **named: Any) -> Any:
        tried.append(len(scheduled.graph.statements))
        if tried[-1] > most and rest[1] is not None:
            raise ScheduleError("no order of these kernels can be proved", code="PF502")
        return real(scheduled, *rest, **named)

    monkeypatch.setattr(lowering, "separate_kernels", refusing)
    return tried


@pytest.mark.parametrize("most", [0, 1])
def test_a_cluster_that_fails_is_cut_until_it_does_not(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = fail_above(monkeypatch, most)
    f = pf.compile(NORM, target="interpret")
    x = np.random.default_rng(0).normal(size=(5, 7)).astype("f4")
    np.testing.assert_allclose(f(x), norm(x.astype("f8")), rtol=1e-4, atol=1e-5)
    assert tried[0] > most
    why = [str(d) for d in f.built(x).decisions if d.kind == "feedback"]
    assert why and "no order of these kernels can be proved" in why[0]
    assert ("compiled without fusion" in "".join(why)) == (most == 0)


def test_what_was_learnt_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = fail_above(monkeypatch, 2)
    lessons, graph = NoLessons(), graph_of(NORM, T=5, H=7)
    first = pieces_of(graph, PASSES, lessons)
    count = len(tried)
    again = pieces_of(graph, PASSES, lessons)
    assert [p.graph for p, _ in first] == [p.graph for p, _ in again] and len(first) > 1
    assert max(tried[count:]) <= 2 < max(tried[:count])
    assert "it failed before" in str(again[0][1][0])


def test_a_failure_of_the_helper_process_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lessons, graph = NoLessons(), graph_of(NORM, T=5, H=7)
    for code, learnt in (("PF514", False), ("PF511", True)):
        refused = ScheduleTimeout("the helper was ended", code=code)
        assert len(pieces_of(graph, PASSES, lessons, refused)) > 1
        assert bool(lessons._known) == learnt


def test_lessons_last_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfuse.runtime.cache.plans import KeptLessons

    KeptLessons().keep("a form", feedback.CUT)
    assert KeptLessons().recall("a form") == feedback.CUT
    assert KeptLessons().recall("another form") is None


def test_what_is_too_much_for_isl_costs_its_limit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """isl reaches its limit on everything but the recurrence alone: it is asked twice, and the rest never."""
    asked: list[list[str]] = []
    real = loop_fusion.schedule_by_isl

    def limited(graph: TensorGraph) -> Any:
        asked.append([s.name for s in graph.statements])
        if len(asked) == 1:
            raise ScheduleTimeout("isl gives no answer within 1000 operations")
        return real(graph)

    monkeypatch.setattr(loop_fusion, "schedule_by_isl", limited)
    monkeypatch.setattr(loop_fusion, "plan", _refuse_recurrences(loop_fusion.plan))
    f = pf.compile(STENCIL, target="interpret")
    x = np.random.default_rng(0).normal(size=(4, 6)).astype("f4")
    y = f(x)
    want = np.zeros((4, 6))
    for t in range(4):
        want[t] = x[t] * 0.5
        if t:
            want[t] += want[t - 1] + 0.25 * np.concatenate([[0], want[t - 1, :-1]])
    np.testing.assert_allclose(y, (want + 1) * 2, rtol=1e-4)
    assert "b" in asked[0] and not any({"a", "b", "y"} & set(names) for names in asked[1:])
    assert any("cut into" in d.reason for d in f.built(x).decisions if d.kind == "feedback")


def _refuse_recurrences(real: Any) -> Any:
    """The axis planner leaves graphs with the recurrence to isl, as it does with harder ones."""

    def plan(graph: TensorGraph, part: Any = None) -> Any:
        names = part or [s.name for s in graph.statements]
        if any(graph.statement(n).target == "u" for n in names):
            raise ScheduleError("the recurrence is along no single axis", code="PF510")
        return real(graph, part)

    return plan


def test_open_sizes_are_no_reason_to_cut() -> None:
    with pytest.raises(ScheduleError) as refused:
        graph = instantiate(parse_text("op f(x: f32[N, M]) -> (y: f32[N*M]) { y[i] = x[i//M, i%M] }"), "f")
        pieces_of(graph, PASSES, NoLessons())
    assert refused.value.code == "PF513"
