"""Iterations of a parallel nest that a worker was given: rows are loops, found once for all in them."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_right, cpu_source, fixed_graph_of, run_on, seeded_inputs
from thinned import thinned

from polyfuse.codegen.cpu.emit import BACKWARDS, Request, emit_together
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu.executable import CpuExecutable

PATCHES = """op f(x: f32[N, C, H, W]) -> (y: f32[N, 9*C, H-2, W-2]) where H >= 3, W >= 3 {
  y[n, k, h, w] = x[n, k // 9, h + k // 3 % 3, w + k % 3]
}"""
INNER = """op f(x: f32[A, B, C], u: f32[A, B, C]) -> (y: f32[A, B, C]) where B >= 3, C >= 2 {
  y[a, b, c] = x[a, b - 1, c - 1] * u[a, b - 2, c] for b in 2..B, c in 1..C
  y[a, b, c] = 0.0 for b in 0..2, c in 1..C
  y[a, b, 0] = 1.0
}"""
FLIPPED = "op f(x: f32[A, B, C]) -> (y: f32[A, B]) { y[a, b] = x[a, B - 1 - b, C - 1] }"
TURNED = "op f(x: f32[A, B, C]) -> (y: f32[A, B, C]) { y[a, b, c] = x[A - 1 - a, B - 1 - b, c] }"
SUMS = "op f(x: f32[A, B, C]) -> (y: f32[A, B]) { y[a, b] = sum[c](x[a, b, c]) }"
WINDOWS = """op f(x: f32[A, 3*B, 3*C]) -> (y: f32[A, B, C]) {
  y[a, b, c] = max[i in 0..3, j in 0..3](x[a, 3*b + i, 3*c + j])
}"""
LOOP = "for (pf_i64 c2 = c2_begin; c2 < c2_end; ++c2)"


def test_a_row_is_a_loop_and_outer_indices_are_found_once() -> None:
    source = cpu_source(PATCHES, N=4, C=16, H=56, W=56)
    assert LOOP in source
    before, inside = source.split(LOOP)
    assert "rest % 144" in before and "rest" not in inside


@pytest.mark.parametrize("text", [SUMS, WINDOWS])
def test_rows_that_compute_for_longer_are_found_one_by_one(text: str) -> None:
    assert "_begin" not in cpu_source(text, A=64, B=60, C=100)


def test_rows_that_addresses_fall_along_are_marked() -> None:
    source = cpu_source(TURNED, A=64, B=60, C=100)
    assert "c1_begin" in source and BACKWARDS in source


@pytest.mark.parametrize("chunks", thinned([None, 1, 3, 64], 2))
@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (PATCHES, {"N": 2, "C": 3, "H": 9, "W": 11}),
        (PATCHES, {"N": 1, "C": 1, "H": 3, "W": 3}),
        (PATCHES, {"N": 0, "C": 2, "H": 4, "W": 5}),
        (PATCHES, {"N": 2, "C": 2, "H": 4, "W": 70}),
        (INNER, {"A": 5, "B": 7, "C": 9}),
        (FLIPPED, {"A": 3, "B": 40, "C": 3}),
        (TURNED, {"A": 4, "B": 11, "C": 30}),
        (INNER, {"A": 1, "B": 3, "C": 2}),
        (INNER, {"A": 13, "B": 4, "C": 33}),
    ],
)
def test_results_are_right(
    text: str, sizes: dict[str, int], chunks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks begin and end anywhere in a row, or have several."""
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 1)
    graph = fixed_graph_of(text, **sizes)
    kernels = form_kernels(LoopFusion().schedule(graph), 2, Stitching())[0]
    inputs = {n: np.where(x > 1.5, np.nan, x).astype(x.dtype) for n, x in seeded_inputs(graph).items()}
    knobs = CpuKnobs() if chunks is None else CpuKnobs(chunks=chunks)
    (code,) = emit_together([Request(kernels, knobs=knobs)])
    assert_right(graph, run_on(CpuExecutable(code, {}), kernels.graph, inputs), inputs)
