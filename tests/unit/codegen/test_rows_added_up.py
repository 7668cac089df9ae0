"""Short rows of one total go several at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from equivalence import assert_computes, cpu_source, fixed_graph_of

import polyfuse as pf
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.loop_ir import For, nodes_of
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching

SQUARES = """op f(x: f32[N, C, K], m: f32[C]) -> (y: f32[N, C, K]) {
  s[c] = sum[n, k]((x[n, c, k] - m[c]) ** 2)
  y[n, c, k] = x[n, c, k] * s[c]
}"""
TWO = """op f(x: f32[N, C, K], w: f32[N]) -> (y: f32[N, C, K]) {
  s[c] = sum[n, k](x[n, c, k] * w[n])
  t[c] = sum[n, k](abs(x[n, c, k]))
  y[n, c, k] = x[n, c, k] * s[c] + t[c]
}"""
HIGHEST = """op f(x: f32[N, C, K]) -> (y: f32[N, C, K]) where N * K >= 1 {
  s[c] = max[n, k](abs(x[n, c, k]))
  y[n, c, k] = x[n, c, k] / s[c]
}"""


def steps(text: str, **sizes: int) -> set[int]:
    """How many rows at a time loops around lanes have."""
    graph = fixed_graph_of(text, **sizes)
    kernels = form_kernels(LoopFusion().schedule(graph), 2, Stitching(rows=1))[0].kernels
    loops = [n for k in kernels for t in lower(k).functions for n in nodes_of(t.body) if isinstance(n, For)]
    return {n.step for n in loops if any(isinstance(m, For) and m.lanes for m in n.body)}


@pytest.mark.parametrize(
    ("text", "n", "c", "k", "expected"),
    [
        (SQUARES, 64, 1000, 49, {FITTED.short_sums_rows}),
        (SQUARES, 66, 1000, 49, {FITTED.short_sums_rows, 1}),  # and two that are left
        (SQUARES, 7, 1000, 49, {1}),  # few rows
        (SQUARES, 64, 1000, 257, {1}),  # long rows
        (SQUARES, 64, 1024, 49, {1}),  # rows 49 pages apart
        (TWO, 64, 1000, 49, {FITTED.short_sums_rows}),
        (HIGHEST, 64, 1000, 49, {1}),
    ],
)
def test_which_rows_go_together(text: str, n: int, c: int, k: int, expected: set[int]) -> None:
    assert steps(text, N=n, C=c, K=k) == expected


@pytest.mark.thin(3)
@pytest.mark.parametrize("text", [SQUARES, TWO])
@pytest.mark.parametrize("n", [8, 9, 11, 40])
@pytest.mark.parametrize("k", [1, 15, 17, 49, 64, 100])
def test_sums_are_right(text: str, n: int, k: int) -> None:
    graph = fixed_graph_of(text, N=n, C=700, K=k)
    kernels = form_kernels(LoopFusion().schedule(graph), 2, Stitching(rows=1))[0]
    assert_computes(graph, kernels, target="cpu")


def test_totals_stay_in_double() -> None:
    assert "double acc" in cpu_source(SQUARES, N=64, C=1000, K=49)


def test_not_a_number_stays_in_its_channel() -> None:
    x = np.ones((9, 700, 20), "f4")
    x[3, 1, 19], x[8, 2, 0] = np.nan, np.inf
    found: Any = pf.compile(SQUARES)(x, np.zeros(700, "f4"))
    assert np.isnan(found[:, 1]).all() and np.isinf(found[:, 2]).all()
    assert (found[:, 3:] == 180.0).all()
