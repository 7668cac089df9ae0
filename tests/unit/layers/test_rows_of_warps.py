"""A warp owns a row while it adds up columns: no barrier in the loop over rows, right at all sizes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from targets import DEVICES, Call, check_emulated

from polyfuse.codegen.cuda.emit import emit_cuda
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
# Its extremes keep NaN, and a sum over all rows is beside those of columns.
EXTREMES = """op f(x: f32[T, H], w: f32[H]) -> (y: f32[T, H], m: f32[H], q: f32) {
  s[t] = max[h](x[t, h] * w[h])
  y[t, h] = x[t, h] - s[t]
  m[h] = max[t](x[t, h])
  q = sum[t, h](x[t, h] * s[t])
}"""
# What the next loop of the row reads is a result: its lanes would need a barrier to see it.
HANDED_ON = """op f(x: f32[T, H]) -> (m: f32[T], d: f32[T], g: f32[H]) {
  m[t] = max[h](x[t, h])
  d[t] = sum[h](exp(x[t, h] - m[t]))
  g[h] = sum[t](x[t, h])
}"""


def _graph(text: str) -> TensorGraph:
    return instantiate([parse_text(text)], "f")


def _call(text: str, T: int, H: int, wild: bool = False) -> Call:
    graph, rng = _graph(text), np.random.default_rng(T * 1000 + H)
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


@pytest.mark.parametrize("text", [BACKWARD, EXTREMES, HANDED_ON])
def test_agrees_at_all_sizes(text: str) -> None:
    sizes = [(300, 100), (131, 257), (64, 68), (1, 96), (999, 64), (77, 130)]
    calls = [_call(text, t, h) for t, h in sizes] + [_call(text, 200, 99, wild=True)]
    check_emulated(calls, devices=("usual",), fused=(True,), stitched=(True, False))


def _source(text: str, T: int, H: int) -> str:
    return emit_cuda(_call(text, T, H).device_request(DEVICES["usual"], True, True)).source


def test_the_loop_over_rows_has_no_barrier() -> None:
    source = _source(BACKWARD, 2000, 96)
    loop = re.search(r"\n( +)for \(int s\d+ = 0;.*?\n\1\}", source, re.DOTALL)
    assert loop is not None and "pf_warp_sum_f32" in loop[0] and "__syncthreads" not in loop[0]
    # Sums of columns are in arrays of the thread, and leave them once.
    assert "__acc[" in loop[0] and "__part[" not in loop[0]


def test_results_handed_on_in_a_row_keep_its_block() -> None:
    source = _source(HANDED_ON, 2000, 96)
    loops = re.findall(r"\n( +)(for \(int s\d+ = 0;.*?)\n\1\}", source, re.DOTALL)
    assert not any("pf_warp" in body for _, body in loops)
