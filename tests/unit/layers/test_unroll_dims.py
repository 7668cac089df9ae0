"""Temporaries with short last dims are a tensor for each element, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_equivalent, assert_right, fixed_graph_of, seeded_inputs
from thinned import thinned

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.graph.unroll_dims import MOST_STATEMENTS, unroll_short_dims

POINTS = """op f(q: f32[N, 2], s: f32[N, 2]) -> (y: f32[N, 2], o: f32[N]) {
  r[n, 0, 0] = q[n, 0] ** 2;  r[n, 0, 1] = q[n, 0] - q[n, 1]
  r[n, 1, 0] = q[n, 1] * 3.0;  r[n, 1, 1] = 1.0 - q[n, 1]
  c[n, i, j] = sum[k in 0..2](r[n, i, k] * r[n, j, k] * s[n, k]) for n in 0..N, i in 0..2, j in 0..2
  o[n] = sum[i in 0..2, j in 0..2](c[n, i, j] if i <= j else 0.5)
  y[n, i] = c[n, i, 1 - i] - (r[n, i, i] if i == 1 else 2.0)
}"""
FILTER = """op f(z: f32[B, T], q: f32) -> (x: f32[B, T, 2]) where T >= 1 {
  x[b, 0, i] = z[b, 0] * f32(i) for b in 0..B, i in 0..2
  p[b, 0, i, j] = 1.0 if i == j else 0.0 for b in 0..B, i in 0..2, j in 0..2
  a[b, t, i, j] = p[b, t - 1, i, j] + (p[b, t - 1, 1, j] + q if i == 0 else 0.0)
    for b in 0..B, t in 1..T, i in 0..2, j in 0..2
  k[b, t, i] = a[b, t, i, 0] / (abs(a[b, t, 0, 0]) + 1.0) for b in 0..B, t in 1..T, i in 0..2
  x[b, t, i] = 0.5 * x[b, t - 1, 1 - i] + k[b, t, i] * z[b, t] for t in 1..T, i in 0..2
  p[b, t, i, j] = 0.5 * (a[b, t, i, j] - k[b, t, i] * a[b, t, 0, j]) for t in 1..T, i in 0..2, j in 0..2
}"""
ROUNDED = """op f(x: f16[N, 3]) -> (y: f16[N]) {
  let h: f16[N, 3]
  h[n, c] = x[n, c] / 3.0
  y[n] = h[n, 0] * h[n, 2] - h[n, 1]
}"""
CELLS = """op f(x: f32[T, B, 3], w: f32[3, 3]) -> (y: f32[B]) where T >= 1 {
  h[0, b, i] = x[0, b, i]
  h[t, b, i] = tanh(x[t, b, i] + sum[j](w[i, j] * h[t - 1, b, j])) for t in 1..T, b in 0..B, i in 0..3
  y[b] = h[T - 1, b, 0] - h[T - 1, b, 2]
}"""
# A name that a new tensor could have, and one with an element that nothing reads.
NAMES = """op f(x: f32[N, 2]) -> (y: f32[N]) {
  t__0[n, c] = x[n, c] + 1.0
  t[n, c, d] = x[n, c] * x[n, d]
  t__0_1[n] = t[n, 0, 1] + t__0[n, 1]
  y[n] = t__0_1[n] - t[n, 1, 0] * t__0[n, 0]
}"""
ROWS = """op f(x: f32[N, 3]) -> (y: f32[N, 3]) {
  t[n, c] = exp(x[n, c]); y[n, c] = t[n, c] * t[n, c] + x[n, c]
}"""
FUNCTIONS = "op f(x: f32[N, 2]) -> (y: f32[N]) { t[n, c] = exp(x[n, c]); y[n] = t[n, 0] - t[n, 1] }"
OUTSIDE = """op f(x: f32[N, 3]) -> (y: f32[N, 3]) {
  t[n, c] = x[n, c] * 2.0
  y[n, c] = t[n, 0] * (t[n, c - 1] if c >= 1 else 1.0)
}"""
BY_DATA = """op f(x: f32[N, 3], k: i64[N]) -> (y: f32[N]) {
  t[n, c] = x[n, c] * 2.0; y[n] = t[n, k[n]] + t[n, 0]
}"""
ADDED = """op f(x: f32[N, 3], k: i64[N]) -> (y: f32[N]) {
  let t: f32[N, 3] = 0
  t[k[n], c] += x[n, c]
  y[n] = t[n, 0] * t[n, 1]
}"""
DENSE = """op f(x: f32[N, K], w: f32[K, 3]) -> (y: f32[N]) {
  t[n, c] = sum[k](x[n, k] * w[k, c])
  y[n] = t[n, 0] - t[n, 1] * t[n, 2]
}"""
LARGE = """op f(x: f32[N, 4, 4]) -> (y: f32[N]) {
  t[n, i, j] = x[n, i, j] * 2.0; y[n] = t[n, 0, 1] - t[n, 1, 0]
}"""
PARTLY = """op f(x: f32[N, 2, 3]) -> (y: f32[N, 2, 3]) {
  t[n, c] = x[n, c, 0] * 2.0; y[n, c, d] = t[n, 1 - c] * x[n, c, d]
}"""


def split(text: str, **sizes: int) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    graph = fixed_graph_of(text, **sizes)
    after = unroll_short_dims(graph, decisions)
    assert_equivalent(graph, after)
    return after, decisions


@pytest.mark.parametrize("n", [0, 7])
@pytest.mark.parametrize("text", [POINTS, ROUNDED, NAMES])
def test_each_element_is_a_tensor(text: str, n: int) -> None:
    graph, decisions = split(text, N=n)
    assert decisions and all(d.taken for d in decisions)
    inner = [t for t in graph.tensors if t.name not in (*graph.inputs, *graph.outputs)]
    assert inner and all(len(t.shape) == 1 for t in inner)
    assert not any(s.reduction for s in graph.statements)


def test_steps_of_a_recurrence() -> None:
    graph, _ = split(FILTER, B=5, T=7)
    assert {t.name for t in graph.tensors if t.name.startswith("p")} == {
        "p__0_0",
        "p__0_1",
        "p__1_0",
        "p__1_1",
    }


def test_functions_of_steps_are_split() -> None:
    graph, _ = split(CELLS, T=4, B=6)
    assert all(len(t.shape) == 2 for t in graph.tensors if t.name.startswith("h"))


@pytest.mark.parametrize("text", [ROWS, FUNCTIONS, OUTSIDE, BY_DATA, ADDED, DENSE, LARGE, PARTLY])
def test_what_keeps_its_dims(text: str) -> None:
    sizes = {"N": 5, "K": 9} if "K]" in text else {"N": 5}
    assert not split(text, **sizes)[1]


def test_few_points_keep_theirs() -> None:
    assert not split(POINTS, N=1)[1]


def test_many_statements_are_not_written_out() -> None:
    steps = "".join(
        f"  t{k + 1}[n, i] = t{k}[n, 1 - i] * {k}.5 for n in 0..N, i in 0..2\n"
        for k in range(MOST_STATEMENTS // 2)
    )
    text = f"op f(x: f32[N, 2]) -> (y: f32[N]) {{\n  t0[n, i] = x[n, i] + 1.0\n{steps}  y[n] = t9[n, 0]\n}}"
    assert not split(text, N=3)[1]


@pytest.mark.parametrize("n", [0, 1, 37])
@pytest.mark.parametrize("dtype", thinned(["f32", "f64", "f16", "bf16"], 3))
def test_compiled_points(dtype: str, n: int) -> None:
    text = POINTS.replace("f32[", f"{dtype}[")
    if dtype in ("f16", "bf16"):
        text = text.replace("o[n] = sum", f"o[n] = {dtype}(sum").replace("0.5)\n", "0.5))\n")
        text = text.replace("y[n, i] = ", f"y[n, i] = {dtype}(").replace("2.0)\n", "2.0))\n")
    graph = fixed_graph_of(text, N=n)
    inputs = seeded_inputs(graph, n)
    if n > 9:
        inputs["q"][3, 1], inputs["s"][5, 0], inputs["q"][7, 0] = np.nan, np.inf, -np.inf
    y, o = pf.compile(text)(inputs["q"], inputs["s"])
    assert_right(graph, {"y": y, "o": o}, inputs)


@pytest.mark.parametrize(("batch", "steps"), [(0, 3), (1, 1), (3, 2), (70, 33)])
def test_compiled_steps(batch: int, steps: int) -> None:
    graph = fixed_graph_of(FILTER, B=batch, T=steps)
    inputs = seeded_inputs(graph, steps)
    assert_right(graph, {"x": pf.compile(FILTER)(inputs["z"], inputs["q"])}, inputs)


@pytest.mark.parametrize(("steps", "batch"), [(1, 0), (2, 1), (9, 40)])
def test_compiled_cells(steps: int, batch: int) -> None:
    graph = fixed_graph_of(CELLS, T=steps, B=batch)
    inputs = seeded_inputs(graph, steps)
    assert_right(graph, {"y": pf.compile(CELLS)(inputs["x"], inputs["w"])}, inputs)


def test_strided_arguments() -> None:
    graph = fixed_graph_of(POINTS, N=33)
    inputs = seeded_inputs(graph)
    wide = np.zeros((66, 4), np.float32)
    wide[::2, 1:3] = inputs["q"]
    y, o = pf.compile(POINTS)(wide[::2, 1:3], inputs["s"])
    assert_right(graph, {"y": y, "o": o}, inputs)
