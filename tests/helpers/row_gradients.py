"""Operators with totals of rows and sums of columns, as gradients of normalisations are."""

from __future__ import annotations

import numpy as np
from targets import Call

from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph

BACKWARD = """op f(dy: f32[T, H], x: f32[T, H], w: f32[H], r: f32[T])
    -> (dx: f32[T, H], dw: f32[H], db: f32[H]) {
  n[t, h] = x[t, h] * r[t]
  g[t, h] = dy[t, h] * w[h]
  c[t] = sum[h](g[t, h] * n[t, h])
  b[t] = sum[h](g[t, h])
  dx[t, h] = r[t] * (g[t, h] - b[t] - n[t, h] * c[t])
  dw[h] = sum[t](dy[t, h] * n[t, h])
  db[h] = sum[t](dy[t, h])
}"""


def graph_of(text: str) -> TensorGraph:
    return instantiate([parse_text(text)], "f")


def row_call(text: str, T: int, H: int, wild: bool = False) -> Call:
    graph, rng = graph_of(text), np.random.default_rng(T * 1000 + H)
    shapes = {"T": T, "H": H}
    inputs = {}
    for t in graph.tensors:
        if t.role.name == "INPUT":
            shape = tuple(shapes[str(e)] for e in t.shape)
            inputs[t.name] = rng.standard_normal(shape).astype(np.float32)
    if wild:
        inputs["x"][T // 2, H // 2] = np.nan
        inputs["x"][T // 3, 0] = np.inf
    return Call(f"{T}x{H}", text, graph, shapes, inputs)


def backward_call(T: int, H: int) -> Call:
    """`BACKWARD` at sizes."""
    return row_call(BACKWARD, T, H)
