"""Clusters are tried by fewer layers where fusion may lose; the model decides by what would be printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import polyfuse as pf
from polyfuse.codegen.cpu.loop_seconds import loop_seconds
from polyfuse.cost.cpu_device import CpuDevice, Level
from polyfuse.cost.lines import Around, fitting, jump_of, jumps, lane_cycles
from polyfuse.cost.machines import machine_of
from polyfuse.cost.nests import nests
from polyfuse.driver import feedback as judges
from polyfuse.driver.feedback import (
    Candidate,
    NoLessons,
    fewer_layers,
    less_fused,
    pays,
    pieces_of,
    seconds_of,
)
from polyfuse.driver.lowering import Passes, lower_piece
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import Buffer, KernelGraph, Scope
from polyfuse.ir.loop_ir import For
from polyfuse.ir.target import CpuTarget
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching

PASSES = Passes(
    Clustering(library="never"),
    LoopFusion(late="raise", collapse=False),
    Stitching(),
    Packing(),
    CpuTarget(2),
)
PLAIN = replace(PASSES, fusion=None, stitching=None)
# A recurrence over rows holds up what follows it, which goes over whole rows.
HELD_UP = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](exp(x[t, h]))
  r[0] = s[0]
  r[t] = 0.5 * r[t-1] + s[t] for t in 1..T
  y[t, h] = tanh(x[t, h] * r[t])
}"""
TURNED = "op f(x: f32[I, K]) -> (y: f32[K, I]) { y[k, i] = exp(x[i, k]) }"


def graph_of(text: str, **sizes: int) -> TensorGraph:
    return fixed_graph(instantiate(parse_text(text), "f"), sizes)


def kernels_of(text: str, passes: Passes = PASSES, **sizes: int) -> KernelGraph:
    return lower_piece(graph_of(text, **sizes), passes)[0].kernels


# --- lines and sets ---------------------------------------------------------------------------------------


def test_rows_a_power_of_two_apart_fall_into_few_sets() -> None:
    l1 = Level("L1", 48 * 1024, 1e9, True, 12)
    assert fitting(l1, 4096) == 12 / 2  # one set, half of its ways
    assert fitting(l1, 4096 + 64) == 768 / 2
    assert fitting(l1, 100) == 768
    assert fitting(Level("L3", 1 << 25, 1e9), 4096) == (1 << 25) / 64


def found_jumps(text: str, **sizes: int) -> list[tuple[str, int, float | None]]:
    kernels = kernels_of(text, PLAIN, **sizes).kernels
    return [(j.tensor, j.stride, j.lines) for k in kernels for n in nests(k) for j in jumps(n)]


def test_an_access_across_memory_touches_a_line_for_each_lane() -> None:
    assert found_jumps(TURNED, I=512, K=1024) == []  # it is in tiles
    diagonal = "op f(x: f32[N, N]) -> (y: f32[N]) { y[i] = x[i, i] }"
    assert found_jumps(diagonal, N=64) == [("x", 4 * 65, None)]  # it comes back to no line


# --- loops that are printed -------------------------------------------------------------------------------


def loops_s(text: str, passes: Passes = PLAIN, **sizes: int) -> float:
    machine = machine_of(CpuTarget(2))
    assert isinstance(machine, CpuDevice)
    return sum(loop_seconds(k, machine, CpuKnobs()) for k in kernels_of(text, passes, **sizes).kernels)


def test_twice_the_elements_take_twice_the_time() -> None:
    text = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = exp(x[i]) }"
    one, two = (loops_s(text, N=n) for n in (1 << 20, 1 << 21))
    assert two == pytest.approx(2 * one, rel=0.05)


def test_steps_wait_and_lanes_do_not() -> None:
    step = "op f(x: f32[N]) -> (s: f32[N]) { s[0] = x[0]\n s[i] = 0.5 * s[i-1] + x[i] for i in 1..N }"
    plain = "op f(x: f32[N]) -> (s: f32[N]) { s[i] = 0.5 * x[i] + x[i] }"
    assert loops_s(step, N=1 << 16) > 10 * loops_s(plain, N=1 << 16)
    rows = "op f(x: f32[B, N]) -> (s: f32[B, N]) { s[b, 0] = x[b, 0]\n"
    rows += " s[b, i] = 0.5 * s[b, i-1] + x[b, i] for i in 1..N }"
    assert loops_s(rows, B=64, N=1 << 10) < loops_s(step, N=1 << 16) / 3  # rows are lanes


def test_what_data_finds_is_loaded_lane_by_lane() -> None:
    found = "op f(x: f32[N], k: i64[N]) -> (y: f32[N]) { y[i] = x[k[i]] }"
    plain = "op f(x: f32[N], k: i64[N]) -> (y: f32[N]) { y[i] = x[i] + f32(k[i]) }"
    assert loops_s(found, N=1 << 18) > 2 * loops_s(plain, N=1 << 18)


def test_lanes_whose_lines_have_left_l1_wait_for_them() -> None:
    """Columns of rows a power of two apart are in a few sets of L1; 64 rows of 65 lines are all there."""
    along, jumps = (Around(For(v, IConst(0), IConst(n), 1, ()), n) for v, n in (("j", 64), ("i", 512)))
    machine = machine_of(CpuTarget(2))
    assert isinstance(machine, CpuDevice)

    def cycles(width: int, rows: int, written: bool = False) -> float:
        extents = IConst(rows), IConst(width)
        buffer = Buffer("x", F32, Scope.ARGUMENT, extents, extents, "")
        loops = along, replace(jumps, trips=rows)
        jump = jump_of(buffer, (IVar("i"), IVar("j")), loops, machine)
        assert jump is not None
        return lane_cycles(jump, 1, written, machine)

    assert cycles(1024, 512) > 0
    assert cycles(1024, 512, written=True) == 2 * cycles(1024, 512)
    assert cycles(1024 + 16, 64) == 0
    assert cycles(1 << 16, 2048) > cycles(1024, 512)  # they are in L3


def test_lanes_along_memory_share_lines() -> None:
    extents = IConst(64), IConst(64)
    buffer = Buffer("x", F32, Scope.ARGUMENT, extents, extents, "")
    loops = tuple(Around(For(v, IConst(0), IConst(64), 1, ()), 64) for v in "ij")
    machine = machine_of(CpuTarget(2))
    assert isinstance(machine, CpuDevice)
    assert jump_of(buffer, (IVar("i"), IVar("j")), loops, machine) is None


def test_large_clusters_are_tried_without_fusion() -> None:
    steps = "".join(f"  t{k + 1}[i] = tanh(t{k}[i] + x[i])\n" for k in range(20))
    text = f"op f(x: f32[N]) -> (y: f32[N]) {{\n  t0[i] = exp(x[i])\n{steps}  y[i] = t20[i] + 1.0\n}}"
    piece = lower_piece(graph_of(text, N=1 << 12), PLAIN)[0]
    assert list(fewer_layers(piece, PASSES)) == ["no fusion"]


def test_strips_of_elements_that_are_left_out_end_one_by_one() -> None:
    """gcc may not load a vector behind the last element of a strip: its rest goes number by number."""
    text = "op f(x: f32[T, 2*H]) -> (y: f32[T]) where H >= 1 { y[t] = max[h in 0..H](tanh(x[t, {}*h])) }"
    near, apart = (loops_s(text.replace("{}", k), T=4096, H=128) for k in ("1", "2"))
    assert apart > 2 * near


# --- the second look --------------------------------------------------------------------------------------


def test_fewer_layers_are_tried_and_told() -> None:
    graph = graph_of(HELD_UP, T=512, H=512)
    made = pieces_of(graph, PASSES, NoLessons())
    found = [p for p, _ in made]
    best = sum(seconds_of(p.kernels, machine_of(CpuTarget(2))) for p in found)
    for name, passes in fewer_layers(lower_piece(graph, PASSES)[0], PASSES).items():
        rival = seconds_of(lower_piece(graph, passes)[0].kernels, machine_of(CpuTarget(2)))
        assert not pays(rival, best), name


class Prefers:
    """A judge that finds kernels made without fusion so many times as fast."""

    def __init__(self, times: float) -> None:
        self.times, self.margin, self.asked = times, 1.5, 0

    def doubt(self, piece: Any) -> None:
        return None

    def rivals(self, piece: Any, passes: Passes) -> dict[str, Passes]:
        return {"no fusion": PLAIN}

    def closely(self, graph: TensorGraph, made: Candidate) -> float:
        self.asked += 1
        return 1e-3 / (self.times if len(made.kernels.kernels) > 1 else 1.0)


@pytest.mark.parametrize(("times", "taken"), [(1.1, False), (2.0, True)])
def test_what_was_found_is_kept(times: float, taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfuse.driver import feedback

    text = "op f(x: f32[T, H]) -> (y: f32[T, H]) { m[t] = max[h](x[t, h])\n y[t, h] = x[t, h] - m[t] }"
    graph, lessons, judge = graph_of(text, T=64, H=64), NoLessons(), Prefers(times)
    monkeypatch.setattr(feedback, "judge_of", lambda passes: judge)
    for again in (False, True):
        ((piece, why),) = pieces_of(graph, PASSES, lessons)
        assert len(piece.kernels.kernels) == (2 if taken else 1)
        told = [str(d) for d in why if d.kind == "feedback"]
        if taken:
            assert told[0].startswith("- feedback m, y: no fusion ")
            assert told[0].endswith("was faster before" if again else "500 us, fused 1e+03 us")
        else:
            assert told == []
    assert judge.asked == 2  # the second time nothing is asked


def test_without_feedback_nothing_is_tried() -> None:
    passes = replace(PASSES, clustering=Clustering(feedback="failures"))
    piece = lower_piece(graph_of(HELD_UP, T=512, H=512), passes)[0]
    assert less_fused(piece, Candidate(piece.kernels, piece.copied), passes, NoLessons()) is None
    assert judges.judge_of(PLAIN) is None


def test_what_moves_little_more_than_it_must_is_not_tried() -> None:
    text = "op f(x: f32[T, H]) -> (y: f32[T, H]) { s[t] = sum[h](x[t, h])\n y[t, h] = x[t, h] / s[t] }"
    piece = lower_piece(graph_of(text, T=4096, H=4096), PASSES)[0]
    assert not judges.ByModel(CpuTarget(2)).rivals(piece, PASSES)


@pytest.mark.machine("zen5")
@pytest.mark.parametrize("sizes", [(1024, 512), (1000, 500), (4096, 768)])
def test_transposed_results_of_rows_do_not_jump(sizes: tuple[int, int]) -> None:
    import numpy as np

    text = """op f(x: f32[I, K], b: f32[K]) -> (y: f32[K, I]) {
      m[i] = min[k](x[i, k])
      y[c, i] = m[i] + b[c]
    }"""
    f = pf.compile(text, target="cpu", threads=2)
    x = np.random.default_rng(0).random(sizes, "f4")
    b = np.random.default_rng(1).random(sizes[1], "f4")
    np.testing.assert_array_equal(f(x, b), x.min(1)[None, :] + b[:, None])
    assert "- transpose y" not in f.explain(x, b)
