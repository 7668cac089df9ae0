"""Online forms: what is made of a cascade, that it agrees with the unchanged program, and where it pays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from targets import Array, Call, check_emulated, check_everywhere

from polyfuse.decisions import Decision
from polyfuse.frontend_dsl.build_graph import instantiate
from polyfuse.frontend_dsl.parse import parse_text
from polyfuse.ir.index_expr import evaluate as value_of
from polyfuse.ir.scheduled import ScheduledGraph
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.layers.loop_fusion import LoopFusion
from polyfuse.layers.online import online_forms
from polyfuse.pipeline import fixed_graph

SOFTMAX = """
op f(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t] = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}"""
LOGSUMEXP = """
op f(x: f32[T, H], bias: f32[H]) -> (y: f32[T]) {
  z[t, h] = x[t, h] * 0.5 + bias[h]
  m[t] = max[h](z[t, h])
  y[t] = m[t] + log(sum[h](exp(z[t, h] - m[t])))
}"""
SOFTMIN = """
op f(x: f32[T, H]) -> (y: f32[T], m: f32[T]) {
  m[t] = min[h](x[t, h])
  y[t] = sum[h](exp(m[t] - x[t, h]))
}"""
VARIANCE = """
op f(x: f32[T, H]) -> (v: f32[T], mu: f32[T]) {
  mu[t] = mean[h](x[t, h])
  v[t] = mean[h]((x[t, h] - mu[t]) ** 2)
}"""
LAYER_NORM = """
op f(x: f32[T, H]) -> (y: f32[T, H]) {
  mu[t] = mean[h](x[t, h])
  c[t, h] = x[t, h] - mu[t]
  v[t] = mean[h](c[t, h] * c[t, h])
  y[t, h] = c[t, h] * rsqrt(v[t] + 1e-5)
}"""
BATCH = """
op f(x: f32[N, T, H]) -> (v: f32[T]) {
  mu[t] = mean[n, h](x[n, t, h])
  v[t] = mean[n, h]((mu[t] - x[n, t, h]) ** 2)
}"""
HALF = """
op f(x: f16[T, H]) -> (y: f16[T, H]) {
  m[t] = max[h](x[t, h])
  s[t] = sum[h](exp(x[t, h] - m[t]))
  y[t, h] = exp(x[t, h] - m[t]) / s[t]
}"""
OPERATORS = {
    "softmax": SOFTMAX,
    "logsumexp": LOGSUMEXP,
    "softmin": SOFTMIN,
    "variance": VARIANCE,
    "layer_norm": LAYER_NORM,
    "batch": BATCH,
    "half": HALF,
}


def fixed(text: str, **sizes: int) -> TensorGraph:
    graph = instantiate(parse_text(text), "f")
    return fixed_graph(graph, {n: sizes.get(n, 3) for n in graph.sizes})


def formed(graph: TensorGraph, chunk: int, wanted: bool | None = True) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    made = online_forms(graph, 2, decisions, wanted=wanted, chunk=chunk)
    verify_graph(made)
    return made, decisions


@dataclass
class OnlineCall(Call):
    """Kernels of the online forms; the reference is that of the program as it was written."""

    chunk: int = 4

    def _schedule(self, graph: TensorGraph, fusion: LoopFusion | None) -> ScheduledGraph:
        made, decisions = formed(graph, self.chunk)
        assert decisions and all(d.taken for d in decisions), decisions
        return super()._schedule(made, fusion)


def call(name: str, length: int, chunk: int, x: Array | None = None, rows: int = 3) -> OnlineCall:
    text = OPERATORS[name]
    graph = instantiate(parse_text(text), "f")
    sizes = {n: {"H": length, "T": rows}.get(n, 2) for n in graph.sizes}
    rng = np.random.default_rng(length)
    inputs = {}
    for i in graph.inputs:
        t = graph.tensor(i)
        shape = tuple(value_of(e, sizes) for e in t.shape)
        inputs[i] = (2 * rng.standard_normal(shape)).astype(t.dtype.numpy)
    if x is not None:
        inputs["x"] = np.broadcast_to(x, inputs["x"].shape).astype(inputs["x"].dtype)
    return OnlineCall(f"{name} {length} by {chunk}", text, graph, sizes, inputs, chunk=chunk)


SHAPES = ((8, 4), (13, 5), (67, 32))


def test_agrees_with_the_program_as_written() -> None:
    calls = [call(name, *shape) for name in OPERATORS for shape in SHAPES]
    check_everywhere(calls)


def test_agrees_on_a_gpu() -> None:
    calls = [call(name, *shape) for name in OPERATORS for shape in SHAPES[1:]]
    check_emulated(calls, orders=("random",), stitched=(False, True))


INF, NAN = np.inf, np.nan
HARD = {
    "-inf first": [-INF, -INF, -INF, -INF, 1, 2, 3, 4, 5],
    "-inf last": [1, 2, 3, 4, 5, -INF, -INF, -INF, -INF],
    "-inf within": [1, -INF, 3, -INF, -INF, -INF, -INF, -INF, 2],
    "-inf everywhere": [-INF] * 9,
    "inf": [1, 2, 3, 4, 5, 6, INF, 8, 9],
    "inf everywhere": [INF] * 9,
    "inf and -inf": [-INF, -INF, -INF, -INF, INF, 6, 7, 8, 9],
    "nan": [1, 2, NAN, 4, 5, 6, 7, 8, 9],
    "nan everywhere": [NAN] * 9,
    "nan among -inf": [-INF, -INF, NAN, -INF, -INF, -INF, -INF, -INF, -INF],
    "nan and inf": [NAN, 2, 3, 4, INF, 6, 7, 8, 9],
    "lowest": [-3.4028235e38] * 9,
    "lowest and -inf": [-3.4028235e38, -INF, -INF, -INF, -INF, -INF, -INF, -INF, -INF],
    "from end to end": [-3.4028235e38, 3.4028235e38, 0, 0, -3.4028235e38, 1, 2, 3, 4],
    "far apart": [-1000, -1000, -1000, -1000, 1000, 1000, 0, 0, 0],
    "zeros": [0.0, -0.0] * 4 + [0.0],
    "denormals": [1e-45, 1e-40, -1e-42, 0, 1e-39, 0, 0, 1e-45, 0],
}


def hard_calls() -> list[OnlineCall]:
    names = ("softmax", "logsumexp", "softmin", "variance")
    rows = np.array(list(HARD.values()), np.float32)
    return [
        call(name, 9, chunk, x, rows=len(rows)) for name in names for chunk in (1, 4) for x in (rows, -rows)
    ]


def test_infinities_and_nan() -> None:
    check_everywhere(hard_calls())


def test_infinities_and_nan_on_a_gpu() -> None:
    check_emulated(hard_calls(), devices=("usual",), orders=("random",), stitched=(True,))
