"""Pieces of the rows of one tensor: computed row by row, on a CPU, by one kernel."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from equivalence import assert_right, cpu_source, fixed_graph_of, run_on, seeded_inputs

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.decisions import Decision
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.target import GpuTarget, Target
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.interpreter.interpreter import InterpretedKernels

JOINED = """op f(a: f32[T, N], b: f32[T, M]) -> (y: f32[T, N + M]) {
  y[t, i] = a[t, i] for i in 0..N
  y[t, i] = b[t, i - N] * 2.0 for i in N..N+M
}"""
BELOW = """op f(a: f32[N, C], b: f32[M, C]) -> (y: f32[N + M, C]) {
  y[t, i] = a[t, i] for t in 0..N
  y[t, i] = b[t - N, i] for t in N..N+M
}"""
BEHIND = """op f(a: f32[N], b: f32[M]) -> (y: f32[N + M]) {
  y[i] = a[i] for i in 0..N
  y[i] = b[i - N] for i in N..N+M
}"""
MASKED = "op f(x: f32[B, S, S]) -> (y: f32[B, S, S]) { y[b, s, t] = x[b, s, t] if t <= s else -1e9 }"
BORDER = """op f(x: f32[N, H, W]) -> (y: f32[N, H+2, W+2]) {
  y[n, h, w] = x[n, h-1, w-1] for h in 1..H+1, w in 1..W+1
  y[n, 0, w] = 0.0 for n in 0..N, w in 0..W+2
  y[n, H+1, w] = 0.0 for n in 0..N, w in 0..W+2
  y[n, h, 0] = 0.0 for n in 0..N, h in 1..H+1
  y[n, h, W+1] = 0.0 for n in 0..N, h in 1..H+1
}"""
ROLLED = """op f(x: f32[T, H]) -> (y: f32[T, H]) where H >= 8 {
  y[t, h] = x[t, h - 5] for h in 5..H
  y[t, h] = x[t, H - 5 + h] for h in 0..5
}"""
# A piece that needs what others are, which must be complete before.
MEANS = """op f(x: f32[T, N]) -> (y: f32[T, N + 1]) where T >= 1 {
  m[i] = sum[t](x[t, i]) / f32(T)
  y[t, i] = x[t, i] - m[i] for i in 0..N
  y[t, N] = sum[i](m[i]) for t in 0..T
}"""
SUMMED = """op f(a: f32[T, N], b: f32[T, M]) -> (y: f32[T, N + M], s: f32[T]) {
  y[t, i] = a[t, i] for i in 0..N
  y[t, i] = max(b[t, i - N], 0.0) for i in N..N+M
  s[t] = sum[i](y[t, i])
}"""


def made(text: str, target: Target | int = 2, **sizes: int) -> tuple[KernelGraph, tuple[Decision, ...]]:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), target, Stitching())


def stitched(decisions: Iterable[Decision]) -> list[Decision]:
    return [d for d in decisions if d.kind == "stitch" and d.taken]


@pytest.mark.parametrize(
    ("text", "sizes", "rows"),
    [
        (JOINED, {"T": 5000, "N": 13, "M": 20}, "t"),
        (JOINED, {"T": 1_000_000, "N": 13, "M": 20}, "t"),  # no cache holds these, but rows are short
        (JOINED, {"T": 500, "N": 900, "M": 1300}, "t"),
        (MASKED, {"B": 96, "S": 128}, "b, s"),
        (BORDER, {"N": 64, "H": 56, "W": 56}, "n"),
        (ROLLED, {"T": 1970, "H": 771}, "t"),
    ],
)
def test_pieces_of_rows_are_one_kernel(text: str, sizes: dict[str, int], rows: str) -> None:
    kernels, decisions = made(text, **sizes)
    (kernel,) = kernels.kernels
    assert not kernel.parts
    found = stitched(decisions)
    assert found and all(d.reason.startswith(f"they agree on {rows}:") for d in found)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (JOINED, {"T": 4000, "N": 3000, "M": 3000}),  # long rows that no cache holds
        (MASKED, {"B": 8, "S": 1024}),
        (BELOW, {"N": 2000, "M": 3000, "C": 50}),  # no row in common
        (BEHIND, {"N": 200_000, "M": 300_000}),  # no rows
    ],
)
def test_other_pieces_stay_apart(text: str, sizes: dict[str, int]) -> None:
    assert not stitched(made(text, **sizes)[1])


def test_no_core_is_idle_for_the_sake_of_a_border() -> None:
    """Three images on two cores: rows of images are more even shares."""
    found = stitched(made(BORDER, N=3, H=500, W=500)[1])
    assert not any(d.subject.endswith(" to y") for d in found)


def test_on_a_gpu_pieces_stay_apart() -> None:
    assert not stitched(made(JOINED, GpuTarget(), T=5000, N=13, M=20)[1])


def test_rows_of_pieces_are_not_asked_for_ahead() -> None:
    """No phase waits for another, so memory is busy all the time."""
    _, decisions = made(ROLLED, T=1970, H=771)
    (found,) = [d for d in decisions if d.kind == "prefetch rows"]
    assert not found.taken and "no phase of a row waits" in found.reason
    assert "prefetch" not in cpu_source(ROLLED, T=1970, H=771)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (JOINED, {"T": 7, "N": 13, "M": 20}),
        (JOINED, {"T": 7, "N": 0, "M": 20}),
        (JOINED, {"T": 7, "N": 1, "M": 0}),
        (JOINED, {"T": 0, "N": 3, "M": 4}),
        (JOINED, {"T": 1, "N": 1, "M": 1}),
        (MASKED, {"B": 3, "S": 9}),
        (MASKED, {"B": 2, "S": 1}),
        (BORDER, {"N": 5, "H": 3, "W": 19}),
        (BORDER, {"N": 2, "H": 0, "W": 1}),
        (ROLLED, {"T": 9, "H": 8}),
        (MEANS, {"T": 6, "N": 11}),
        (SUMMED, {"T": 10, "N": 17, "M": 40}),
        (BELOW, {"N": 3, "M": 4, "C": 5}),
        (BEHIND, {"N": 30, "M": 41}),
    ],
)
def test_results_are_right(
    text: str, sizes: dict[str, int], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 1)
    kernels, _ = made(text, **sizes)
    graph = fixed_graph_of(text, **sizes)
    inputs = {n: np.where(x > 1.2, np.nan, x).astype(x.dtype) for n, x in seeded_inputs(graph).items()}
    if compiled:
        (code,) = emit_together([Request(kernels)])
        machine: CpuExecutable | InterpretedKernels = CpuExecutable(code, {})
    else:
        machine = InterpretedKernels(kernels)
    assert_right(graph, run_on(machine, kernels.graph, inputs), inputs)
