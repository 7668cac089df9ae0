"""Decisions of layer II: which nests join, on what figures, and in what order."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_right, seeded_inputs

import polyfuse as pf
from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.device import Device
from polyfuse.cost.machines import machine_of
from polyfuse.decisions import Decision
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.kernel import KernelGraph, tree
from polyfuse.ir.schedule_tree import Band, Coordinate, Sequence, Tree
from polyfuse.ir.target import CpuTarget, GpuTarget, Target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion, identity_schedule
from polyfuse.layers.mapping.kernels import cut_phases, form_kernels
from polyfuse.layers.stitching.figures import Figures
from polyfuse.layers.stitching.group import group_of
from polyfuse.layers.stitching.stitching import Stitching, united

CPU, GPU = CpuTarget(2), GpuTarget()
NORMALISE = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h])
  y[t, h] = x[t, h] / s[t]
}"""


def graph_of(text: str, **sizes: int) -> TensorGraph:
    return fixed_graph(instantiate(parse_text(text), "f"), sizes)


def stitched(
    text: str, target: Target = CPU, rows: int | None = None, **sizes: int
) -> tuple[KernelGraph, list[Decision]]:
    """Without layer I, and without barriers of the grid."""
    scheduled = identity_schedule(graph_of(text, **sizes))
    kernels, decisions = form_kernels(scheduled, target, Stitching(rows=rows, barriers=False))
    return kernels, [d for d in decisions if d.kind in ("stitch", "recompute")]


# --- figures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", (CPU, GPU))
def test_figures_of_groups(target: Target) -> None:
    graph = graph_of(NORMALISE, T=4096, H=256)
    total, apply = (group_of(t) for t in cut_phases(identity_schedule(graph).tree))
    figures = Figures(graph, target)
    grid, row = 4096 * 256 * 4, 4096 * 4
    assert (figures(total).bytes_in, figures(total).bytes_out) == (grid, row)
    assert (figures(apply).bytes_in, figures(apply).bytes_out) == (grid + row, grid)
    assert figures(total).live == figures(apply).live == 0
    both = figures(united(total, apply, [(total.rows[0], apply.rows[0])]))
    assert (both.bytes_in, both.bytes_out) == (grid, grid), "the sums stay inside"
    assert (both.live, both.again) == (256 * 4, grid), "a row of x is touched again, a sum is in a register"
    assert both.instances == 2 * 4096 * 256 and both.launches == 1


def test_one_nest_has_nothing_to_stitch() -> None:
    _, decisions = stitched("op f(x: f32[T, H]) -> (s: f32[T]) { s[t] = sum[h](x[t, h]) }", T=64, H=64)
    (why,) = [d for d in decisions if d.kind == "stitch"]
    assert not why.taken and why.reason.startswith("one nest has all of it")


def test_parts_of_tensors_count_as_parts() -> None:
    """A gate reads a quarter of what four gates share."""
    text = """op f(x: f32[B, 4*H]) -> (i: f32[B, H], o: f32[B, H]) {
      i[b, j] = x[b, j] * 2.0 for j in 0..H
      o[b, j] = x[b, j + 3*H] * 2.0 for j in 0..H
    }"""
    graph = graph_of(text, B=64, H=128)
    i, o = (group_of(t) for t in cut_phases(identity_schedule(graph).tree))
    figures = Figures(graph, CPU)
    assert figures(i).bytes_in == 64 * 128 * 4
    assert figures(united(i, o, list(zip(i.rows, o.rows, strict=True)))).bytes_in == 2 * 64 * 128 * 4


def test_split_reductions_are_parallel_and_take_two_launches() -> None:
    total = "op f(x: f32[N]) -> (s: f32) { s = sum[n](x[n]) }"
    for target, size, launches in ((GPU, 1 << 24, 2), (CPU, 1 << 24, 2), (GPU, 100, 1), (CPU, 100, 1)):
        graph = graph_of(total, N=size)
        found = Figures(graph, target)(group_of(identity_schedule(graph).tree))
        assert found.launches == launches
        assert (found.parallel > 1) == (launches == 2)


def test_decisions_rest_on_tables() -> None:
    """Not on what was measured on this machine."""
    cpu, gpu = machine_of(CpuTarget(6)), machine_of(GpuTarget(sms=80, bandwidth=0.9e12))
    assert isinstance(cpu, CpuDevice) and not cpu.measured and cpu.threads == 6
    assert cpu.operations == 3 * CpuDevice().operations
    assert isinstance(gpu, Device) and (gpu.sms, gpu.memory_bandwidth) == (80, 0.9e12)


# --- decisions ----------------------------------------------------------------------------------------


def test_long_rows_stay_apart_where_that_leaves_a_machine_idle() -> None:
    sizes = {"T": 4, "H": 1 << 20}
    kernels, (refused,) = stitched(NORMALISE, GPU, **sizes)
    assert len(kernels.kernels) > 1 and not refused.taken
    assert refused.reason.startswith("only 4 iterations of t would run in parallel: ")
    assert "us lost to idle parts" in refused.reason
    for target, rows in ((CPU, None), (GPU, 4)):
        kernels, (taken,) = stitched(NORMALISE, target, rows, **sizes)
        assert len(kernels.kernels) == 1 and taken.taken


def test_what_a_decision_saves() -> None:
    _, (taken,) = stitched(NORMALISE, GPU, T=4096, H=256)
    assert taken.saved_bytes == 4096 * 256 * 4 + 2 * 4096 * 4
    assert taken.reason.startswith("they agree on t: it saves ") and taken.reason.endswith(" us")
    assert "lost" not in taken.reason


@pytest.mark.parametrize("target", (CPU, GPU))
def test_open_sizes(target: Target) -> None:
    scheduled = LoopFusion().schedule(instantiate(parse_text(NORMALISE), "f"))
    kernels, decisions = form_kernels(scheduled, target, Stitching())
    assert len(kernels.kernels) == 1
    (taken,) = [d for d in decisions if d.kind == "stitch"]
    assert taken.reason.endswith("open sizes taken as 1024") and taken.saved_bytes is None


def test_a_disagreement_tells_what_it_costs() -> None:
    text = "op f(x: f32[N]) -> (y: f32[N]) { s = sum[n](x[n])\n y[n] = x[n] / s }"
    _, (refused,) = stitched(text, N=1 << 20)
    assert refused.reason.endswith("4.19 MB pass through memory")


# --- order --------------------------------------------------------------------------------------------


def test_groups_merge_where_a_nest_needs_several() -> None:
    text = """op f(a: f32[T, H], b: f32[T, H], c: f32[T, H]) -> (y: f32[T]) {
      p[t] = sum[h](a[t, h])
      q[t] = sum[h](b[t, h])
      r[t] = sum[h](c[t, h])
      y[t] = p[t] * q[t] + r[t]
    }"""
    kernels, decisions = stitched(text, T=512, H=64)
    assert len(kernels.kernels) == 1 and len(decisions) == 3 and all(d.taken for d in decisions)


def test_what_must_run_between_keeps_groups_apart() -> None:
    """u agrees with y on i, but needs the total of u, which no row has."""
    text = """op f(x: f32[N, M]) -> (y: f32[N, M]) {
      u[i, j] = x[i, j] * 2.0
      s = sum[i, j](u[i, j])
      y[i, j] = u[i, j] - s
    }"""
    kernels, decisions = stitched(text, N=300, M=300)
    names = [k.statements for k in kernels.kernels]
    assert not any("u" in n and "y" in n for n in names)
    assert any("no loop of the two agrees" in d.reason for d in decisions if not d.taken)


def test_a_group_moves_behind_what_it_needs() -> None:
    """The second nest of a row needs a total that is made later than the first."""
    text = """op f(x: f32[N, M], z: f32[K]) -> (y: f32[N, M]) {
      r[i] = sum[j](x[i, j])
      s = sum[k](z[k])
      y[i, j] = x[i, j] * r[i] - s
    }"""
    kernels, _ = stitched(text, N=300, M=300, K=70000)
    (last,) = [k.statements for k in kernels.kernels if "y" in k.statements]
    assert "r" in last and kernels.kernels[-1].statements == last


# --- loops --------------------------------------------------------------------------------------------


def test_left_over_loops_stay_together() -> None:
    """B(t, h)(a; s) with m joins as B(t)[B(h)(a; s); m]: one pass over the row."""
    text = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
      a[t, h] = exp(x[t, h])
      s[t] = sum[h](a[t, h])
      y[t, h] = a[t, h] / s[t]
    }"""
    kernels, _ = stitched(text, T=512, H=64)
    (kernel,) = kernels.kernels
    assert [sorted(n) for n in _nests(tree(kernel))] == [["a", "s"], ["y"]]


def _nests(t: Tree) -> list[list[str]]:
    """Statements of each innermost loop."""
    match t:
        case Band(_, Band() | Sequence() as child) if any(isinstance(c, Band) for c in _children(child)):
            return _nests(child)
        case Band(_, child):
            return [[str(c) for c in _children(child)]]
        case Sequence(children):
            return [n for c in children if isinstance(c, Band) for n in _nests(c)]
        case _:
            return []


def _children(t: Tree) -> tuple[Tree, ...]:
    return t.children if isinstance(t, Sequence) else (t,)


WINDOWS = """op f(x: f32[C, H, W]) -> (y: f32[C]) where H >= 3, W >= 3 {
  d[c, p, q] = sum[r in 0..3, s in 0..3](x[c, p + r, q + s]) for c in 0..C, p in 0..H - 2, q in 0..W - 2
  y[c] = sum[p, q](d[c, p, q] ** 2)
}"""


@pytest.mark.parametrize(("target", "rows"), [(2, "c, p"), (GPU, "c, p, q")])
def test_windows_that_are_summed_up_are_lanes(target: Target, rows: str) -> None:
    """Along `q` both lie in memory, on a CPU in loops of their own; threads of a GPU have a window each."""
    (decision, *_) = stitched(WINDOWS, target, rows=1, C=4, H=40, W=50)[1]
    assert decision.taken and decision.reason.startswith(f"they agree on {rows}:")


@pytest.mark.parametrize(("c", "h", "w"), [(3, 40, 50), (1, 3, 3), (0, 5, 5), (2, 9, 133)])
def test_windows_that_are_summed_up_compute_the_same(c: int, h: int, w: int) -> None:
    graph = graph_of(WINDOWS, C=c, H=h, W=w)
    inputs = seeded_inputs(graph)
    if c > 2:
        inputs["x"][1, 7, 9], inputs["x"][2, 0, 0] = np.nan, np.inf
    assert_right(graph, {"y": pf.compile(WINDOWS)(inputs["x"])}, inputs)


def test_small_tensors_do_not_choose_the_innermost_loop() -> None:
    """Statistics of channels are read along c, but x is what takes time, and it lies along s."""
    text = """op f(x: f32[N, C, S], g: f32[C], b: f32[C]) -> (y: f32[N, C, S]) {
      m[c] = mean[n, s](x[n, c, s])
      v[c] = mean[n, s]((x[n, c, s] - m[c]) ** 2)
      y[n, c, s] = (x[n, c, s] - m[c]) * rsqrt(v[c] + 1e-5) * g[c] + b[c]
    }"""
    scheduled = LoopFusion().schedule(graph_of(text, N=16, C=64, S=784))
    kernels, _ = form_kernels(scheduled, 2, Stitching(barriers=False))
    (kernel,) = kernels.kernels
    assert _vectors(tree(kernel)) == {"s"}


def _vectors(t: Tree) -> set[str]:
    match t:
        case Band(members, child):
            return {m.name for m in members if m.coordinate is Coordinate.VECTOR} | _vectors(child)
        case Sequence(children):
            return {n for c in children for n in _vectors(c)}
        case _:
            return set()
