"""Clusters that are slower than their parts are found, cut at the edge that is to blame, and remembered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.diagnostics import ArgumentError, ScheduleError
from polyfuse.driver import feedback
from polyfuse.driver import feedback as judges
from polyfuse.driver.feedback import Candidate, Doubt, NoLessons, any_cut, doubt_of, pieces_of
from polyfuse.driver.lowering import Passes, lower_piece
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.target import CpuTarget, GpuTarget, Target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.clustering.join import Piece
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.machine.stopwatch import seconds_of_run

# y shares the loop over t with a recurrence, which goes step by step; alone all of it could go at once.
DECAY = """op f(x: f32[T, H]) -> (r: f32[T], y: f32[T, H]) {
  a[t] = sum[h](exp(x[t, h]))
  r[0] = a[0]
  r[t] = 0.5 * r[t-1] + a[t] for t in 1..T
  y[t, h] = x[t, h] * r[t]
}"""
NORM = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h])
  y[t, h] = x[t, h] / s[t]
}"""
# Both go over columns, of which a worker would read a strip, a short piece of each row.
COLUMNS = """op f(x: f32[T, H]) -> (y: f32[T, H], m: f32[H]) {
  m[h] = mean[t](x[t, h])
  y[t, h] = x[t, h] - m[h]
}"""
SCALED = """op f(x: f16[T, H]) -> (m: f16[H]) { m[h] = sum[t](x[t, h]) }"""
CPU = CpuTarget(2)
PASSES = Passes(
    Clustering(library="never"), LoopFusion(late="raise", collapse=False), Stitching(), Packing(), CPU
)


def graph_of(text: str, **sizes: int) -> TensorGraph:
    return fixed_graph(instantiate(parse_text(text), "f"), sizes)


def piece_of(text: str, target: Target, **sizes: int) -> Piece:
    return lower_piece(graph_of(text, **sizes), replace(PASSES, target=target))[0]


def decay(x: Any) -> tuple[Any, Any]:
    x = x.astype("f8")
    a, r = np.exp(x).sum(1), np.zeros(len(x))
    for t in range(len(x)):
        r[t] = a[t] + (0.5 * r[t - 1] if t else 0.0)
    return r, x * r[:, None]


def told(f: Any, *arguments: Any) -> list[str]:
    return [line for line in f.explain(*arguments).splitlines() if " feedback " in line]


# --- by the model -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [CPU, CpuTarget(16), GpuTarget()])
def test_lost_coincidence_is_cut_where_the_recurrence_ends(machine: Target) -> None:
    doubt = doubt_of(piece_of(DECAY, machine, T=512, H=1024), machine)
    assert doubt is not None and doubt.why.startswith("lost coincidence: common loops keep ")
    assert doubt.why.endswith(" of the machine busy, y alone 100%")
    assert doubt.edge == "r, r__2 -> y"
    assert doubt.parts == (("a", "r", "r__2"), ("y",))


def test_what_fuses_well_is_not_doubted() -> None:
    for machine in (CPU, GpuTarget()):
        assert doubt_of(piece_of(NORM, machine, T=4096, H=1024), machine) is None
    assert doubt_of(lower_piece(instantiate(parse_text(NORM), "f"), PASSES)[0], CPU) is None  # open sizes


def test_lost_coincidence_is_told_and_mended() -> None:
    x = np.random.default_rng(0).normal(size=(512, 1024)).astype("f4")
    f = pf.compile(DECAY, target="cpu", threads=2)
    for found, want in zip(f(x), decay(x), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4)
    (line,) = told(f, x)
    assert line.startswith("- feedback a, r, r__2, y: lost coincidence: ")
    assert "cut at r, r__2 -> y, " in line and " in parts, " in line and line.endswith(" as one")
    whole = pf.compile(DECAY, target="cpu", threads=2, clustering=Clustering(feedback="failures"))
    assert told(whole, x) == []


@pytest.mark.parametrize("shape", [(33, 40), (2, 1), (1, 3), (0, 2), (3, 0)])
def test_predicted_slower_is_told_and_mended(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype("f4")
    f = pf.compile(DECAY, target="emulate")
    if not shape[0]:  # r[0] is not there
        with pytest.raises(pf.PolyfuseError):
            f(x)
        return
    for found, want in zip(f(x), decay(x), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4)
    assert (shape == (33, 40)) == any(
        "predicted slower" in line and ": cut at " in line for line in told(f, x)
    )


def test_a_pool_whose_rows_are_read_several_times() -> None:
    """Both maxima run along memory in one kernel, in lanes that nothing adds up: that is no doubt."""
    x = np.random.default_rng(0).normal(size=(2, 3, 30, 31)).astype("f4")
    text = """op f(x: f32[N, C, H, W]) -> (y: f32[N, C, (H + 1) // 2, (W + 1) // 2]) {
      y = max_pool(x, K=3, S=2, P=1)
    }"""
    f = pf.compile(text, target="cpu", threads=2)
    whole = pf.compile(text, target="cpu", threads=2, clustering=Clustering(feedback="failures"))
    assert np.array_equal(f(x), whole(x))
    assert not told(f, x)
    assert len(f.built(x).kernels.kernels) == 1


def test_parts_that_are_no_faster_are_not_taken() -> None:
    start, x = np.array([0, 5, 5, 20, 40]), np.ones((40, 70), "f4")
    text = """
    op segments(x: f32[E, D], start: i64[N+1]) -> (y: f32[N, D]) {
      segment[e] = sum[n in 0..N](1 if start[n+1] <= e else 0) for e in 0..E
      y[segment[e], d] += x[e, d]
    }
    """
    f = pf.compile(text, target="emulate")
    assert np.array_equal(f(x, start)[:, 0], [5, 0, 15, 20])
    (line,) = told(f, x, start)
    assert line.startswith("+ feedback ") and "a cut at segment -> y, y__2 is not worth it" in line


# --- lessons ----------------------------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of statements of what is lowered."""
    tried: list[int] = []

    def lower(graph: TensorGraph, passes: Passes) -> Any:
        tried.append(len(graph.statements))
        return lower_piece(graph, passes)

    monkeypatch.setattr(feedback, "lower_piece", lower)
    return tried


def test_parts_that_were_faster_are_made_at_once_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, lessons, graph = counted(monkeypatch), NoLessons(), graph_of(DECAY, T=512, H=1024)
    monkeypatch.setattr(judges, "fewer_layers", lambda piece, passes: {})
    first = pieces_of(graph, PASSES, lessons)
    assert tried == [4, 3, 1]
    again = pieces_of(graph, PASSES, lessons)
    assert tried[3:] == [3, 1]
    assert [p.graph for p, _ in first] == [p.graph for p, _ in again]
    assert "its parts were faster before: cut into 2 parts" in str(again[0][1][0])


class Says:
    """A judge that always doubts, and finds parts so many times as fast."""

    def __init__(self, times: float) -> None:
        self.times, self.margin, self.asked = times, 1.05, 0

    def doubt(self, piece: Piece) -> Doubt | None:
        return any_cut(piece, CPU)

    def rivals(self, piece: Piece, passes: Passes) -> dict[str, Passes]:
        return {}

    def seconds(self, graph: TensorGraph, made: Candidate) -> float:
        self.asked += 1
        return 1.0 if self.asked % 2 else 1.0 / self.times


def test_parts_that_were_no_faster_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, lessons, graph = counted(monkeypatch), NoLessons(), graph_of(DECAY, T=5, H=7)
    monkeypatch.setattr(feedback, "judge_of", lambda passes: Says(1.0))
    assert len(pieces_of(graph, PASSES, lessons)) == 1
    assert len(tried) == 3
    assert len(pieces_of(graph, PASSES, lessons)) == 1
    assert len(tried) == 4


def test_parts_that_cannot_be_made_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "judge_of", lambda passes: Says(9.0))

    def lower(graph: TensorGraph, passes: Passes) -> Any:
        if len(graph.statements) < 4:
            raise ScheduleError("not this one", code="PF502")
        return lower_piece(graph, passes)

    monkeypatch.setattr(feedback, "lower_piece", lower)
    assert len(pieces_of(graph_of(DECAY, T=5, H=7), PASSES, NoLessons())) == 1


# --- by a clock -------------------------------------------------------------------------------------------


def test_the_clock_runs_kernels_with_inout_parameters_and_results() -> None:
    text = """op f(inout p: f32[N, N], g: f32[N, N]) -> (s: f32[N]) {
      s[i] = sum[j](p[i, j] * g[i, j])
      p[i, j] = p[i, j] - 0.1 * g[i, j] * s[i]
    }"""
    graph = graph_of(text, N=64)
    piece = lower_piece(graph, PASSES)[0]
    assert 0 < seconds_of_run(graph, piece.kernels, piece.copied, 2) < 1


@pytest.mark.parametrize("parts", [0.5, 2.0])
def test_measured_slower(parts: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The model likes the norm as one kernel; a clock has the last word."""
    monkeypatch.setenv("POLYFUSE_VERIFY", "0")  # else nothing is kept
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    real, ran = seconds_of_run, []

    def clock(graph: TensorGraph, kernels: Any, *rest: Any) -> float:
        ran.append(real(graph, kernels, *rest))
        return parts if len(ran) % 2 == 0 else 1.0

    monkeypatch.setattr(judges, "seconds_of_run", clock)
    f = pf.compile(NORM, target="cpu", clustering=Clustering(feedback="measure"))
    x = np.random.default_rng(0).uniform(1, 2, size=(37, 53)).astype("f4")
    np.testing.assert_allclose(f(x), x / x.sum(1, keepdims=True), rtol=1e-5)
    (line,) = told(f, x)
    if parts < 1:
        assert line.endswith(
            "measured slower than its parts: cut at s -> y, 5e+05 us in parts, 1e+06 us as one"
        )
    else:
        assert "measured: a cut at s -> y is not worth it" in line
    assert len(ran) == 2 and min(ran) > 0
    again = pf.compile(NORM, target="cpu", clustering=Clustering(feedback="measure"))
    assert told(again, x) == [line] and len(ran) == 2  # from the cache


def test_what_would_take_too_much_memory_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfuse.runtime.machine import stopwatch

    monkeypatch.setattr(stopwatch, "MOST_BYTES", 1000)
    f = pf.compile(NORM, target="cpu", clustering=Clustering(feedback="measure"))
    assert "measured: a cut at s -> y is not worth it" in told(f, np.ones((37, 53), "f4"))[0]


def test_a_feedback_that_is_not_there() -> None:
    with pytest.raises(ArgumentError) as raised:
        Clustering(feedback="luck")  # type: ignore[arg-type]
    assert raised.value.code == "PF419"


def test_rows_are_not_read_in_pieces() -> None:
    """Sums of columns from L3 or memory go along whole rows, in parts whose results are added up."""
    for text in (COLUMNS, SCALED):
        doubt = doubt_of(piece_of(text, CPU, T=4096, H=3072), CPU)
        assert doubt is not None and doubt.why.startswith("rows in pieces: ")
        assert len(doubt.parts) == 2
        pieces = pieces_of(graph_of(text, T=4096, H=3072), PASSES, NoLessons())
        whys = [str(d) for _, found in pieces for d in found]
        assert len(pieces) > 1 and any(w.startswith("+ rfactor") for w in whys)


def test_few_rows_and_what_stays_near_are_read_in_pieces() -> None:
    for rows, columns in ((300, 4096), (2000, 200)):
        assert doubt_of(piece_of(COLUMNS, CPU, T=rows, H=columns), CPU) is None
        assert len(pieces_of(graph_of(COLUMNS, T=rows, H=columns), PASSES, NoLessons())) == 1
    gpu = GpuTarget()
    found = doubt_of(piece_of(COLUMNS, gpu, T=4096, H=3072), gpu)
    assert found is None or "pieces" not in found.why


@pytest.mark.machine("zen5")
def test_a_mean_of_columns_in_parts_is_right() -> None:
    x = np.random.default_rng(0).standard_normal((4096, 768)).astype("f4")
    f = pf.compile(COLUMNS)
    assert "rows in pieces" in str(f.explain(x))
    y, m = f(x)
    np.testing.assert_allclose(m, x.mean(0, dtype="f8"), atol=1e-5)
    np.testing.assert_allclose(y, x - x.mean(0, dtype="f8"), atol=1e-5)
