"""How much of a tensor lives at a time."""

from __future__ import annotations

import pytest
from equivalence import assert_computes, fixed_graph_of

from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import Buffer, KernelGraph, Scope
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.model.storage import window
from polyfuse.poly.scheduling.axis_planner import plan


def window_of(text: str, tensor: str, **sizes: int) -> tuple[list[str], list[str]]:
    """(loops, extents) of a tensor in the planned tree."""
    graph = fixed_graph_of(text, **sizes)
    with isl_lock:
        found = window(build_model(graph), plan(graph), tensor)
    return [m.name for m in found.loops], [str(e) for e in found.extents]


def test_one_element_in_a_chain() -> None:
    text = "op f(x: f32[N, M]) -> (y: f32[N, M]) { a[i, j] = exp(x[i, j]); y[i, j] = a[i, j] * a[i, j] }"
    assert window_of(text, "a", N=4, M=5) == (["i", "j"], ["1", "1"])


def test_a_row_between_two_phases() -> None:
    text = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
      e[t, h] = exp(x[t, h])
      s[t] = sum[h](e[t, h])
      y[t, h] = e[t, h] / s[t]
    }"""
    assert window_of(text, "e", T=4, H=5) == (["t"], ["1", "5"])
    assert window_of(text, "s", T=4, H=5) == (["t"], ["1"])


def test_a_part_of_a_row() -> None:
    text = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
      e[t, h] = exp(x[t, h])
      y[t, h] = e[t, 2] + e[t, 3] + sum[k](e[t, k]) for h in 0..H
    }"""
    assert window_of(text, "e", T=4, H=9) == (["t"], ["1", "9"])


def test_nothing_is_gained_across_all_loops() -> None:
    text = "op f(x: f32[N]) -> (y: f32[N]) { a[i] = exp(x[i]); y[i] = a[i] * sum[k](a[k]) }"
    assert window_of(text, "a", N=7) == ([], ["7"])


def test_a_recurrence_keeps_what_it_reads_later() -> None:
    text = """op f(x: f32[T, J]) -> (y: f32[J]) {
      c[0, j] = x[0, j]
      c[t, j] = c[t - 1, j] + x[t, j] for t in 1..T
      y[j] = c[T - 1, j]
    }"""
    loops, extents = window_of(text, "c", T=6, J=5)
    assert loops == ["j"] and extents == ["6", "1"]


@pytest.mark.parametrize("tensor", ["a", "y"])
def test_empty_domains(tensor: str) -> None:
    text = "op f(x: f32[N, M]) -> (y: f32[N, M]) { a[i, j] = exp(x[i, j]); y[i, j] = a[i, j] * 2.0 }"
    window_of(text, tensor, N=0, M=3)


def test_storage_indices_wrap_in_windows() -> None:
    full, part = IConst(100), IConst(8)
    b = Buffer("t", F32, Scope.LOCAL, (full, part), (full, full))
    assert [str(i) for i in b.storage_index((IVar("i"), IVar("j")))] == ["i", "j%8"]
    assert str(b) == "local    t: f32[100, 8]"


RECURRENT = """op f(x: f32[T, J]) -> (y: f32[T, J]) {
  h[0, j] = x[0, j]
  h[t, j] = tanh(h[t - 1, j] + x[t, j]) for t in 1..T
  y[t, j] = h[t, j] * 2.0
}"""


def scope(kernels: KernelGraph, tensor: str) -> set[Scope]:
    return {b.scope for k in kernels.kernels for b in k.buffers if b.tensor == tensor}


@pytest.mark.parametrize(("steps", "columns"), [(5, 7), (40, 300), (40, 3000), (2, 1), (1, 5)])
def test_contracted_recurrences_compute_the_same(steps: int, columns: int) -> None:
    """Strips of the contiguous loop, each with a window of its own."""
    graph = fixed_graph_of(RECURRENT, T=steps, J=columns)
    kernels, _ = form_kernels(LoopFusion().schedule(graph), 2)
    assert_computes(graph, kernels, target="cpu")
    if columns < 100:
        assert_computes(graph, kernels)


def test_arrays_too_large_for_a_worker_are_global() -> None:
    graph = fixed_graph_of(RECURRENT, T=300_000, J=2)
    kernels, _ = form_kernels(LoopFusion().schedule(graph), 2)
    assert Scope.LOCAL not in scope(kernels, "h")
