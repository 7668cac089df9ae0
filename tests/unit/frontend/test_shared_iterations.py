"""On a GPU, an iteration that isl takes out of loops that threads share is one of these loops still.

Rows or columns that a piece of a result cuts off are loops of one iteration, which isl does not print. What
the threads of that row add up is theirs to combine.
"""

from __future__ import annotations

import numpy as np
import pytest
from targets import Call, check_emulated

from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import evaluate

PROGRAMS = {
    "sums beside the last row": """
op f(z: f32[T, H], x: f32[T, H]) -> (y: f32[T, H], s: f32[T]) where T >= 1 {
  y[t, h] = z[t, h] for t in T - 1..T, h in 0..H
  y[t, h] = x[t, h] for t in 0..T - 1, h in 0..H
  s[t] = sum[h in 0..H](z[t, h]) for t in 0..T
}""",
    "sums of columns beside the first row": """
op f(x: f32[T, H], w: f32[H], c: f32[T]) -> (s: f32[H], y: f32[T, H]) where H >= 1, T >= 1 {
  s[h] = sum[t in 0..T](x[t, h]) for h in 0..H
  y[t, h] = c[t] for t in 0..1, h in 0..H
  y[t, h] = (w[h + 1] if h + 1 < H else w[h]) * x[t, h] for t in 1..T, h in 0..H
}""",
    "windows that end elsewhere in each row": """
op f(x: f32[T, H]) -> (y: f32[T, H]) {
  y[t, h] = sum[k in 0..3](x[t, h + k - 1] if 0 <= h + k - 1 < H else 0.0) for t in 0..T, h in 0..min(t, H)
  y[t, h] = 1.0 for t in 0..T, h in min(t, H)..H
}""",
    "windows below the first row": """
op f(x: f32[T, H]) -> (y: f32[T, H]) where T >= 1 {
  y[t, h] = x[t, h] for t in 0..1, h in 0..H
  y[t, h] = sum[k in 0..3](x[t + k - 1, h] if 0 <= t + k - 1 < T else -1.0) for t in 1..T, h in 0..H
}""",
    "extremes of means, and the last row": """
op f(a: f32[B, T, H]) -> (s: f32[H], y: f32[T, H]) where B >= 1, T >= 1 {
  s[h] = max[t in 0..T](mean[b in 0..B](a[b, t, h])) for h in 0..H
  y[t, h] = max[b in 0..B](a[b, t, h]) for t in T - 1..T, h in 0..H
  y[t, h] = 1.0 for t in 0..T - 1, h in 0..H
}""",
}
SHAPES = [(8, 16), (2, 7), (3, 255), (17, 65), (64, 64), (4, 260), (1, 5)]


def call(name: str, t: int, h: int) -> Call:
    graph = instantiate((parse_text(PROGRAMS[name]),), "f")
    sizes = {n: {"T": t, "H": h, "B": 5}[n] for n in graph.sizes}
    rng = np.random.default_rng(t + h)
    shapes = {n: tuple(evaluate(e, sizes) for e in graph.tensor(n).shape) for n in graph.inputs}
    inputs = {n: rng.standard_normal(s).astype("f4") for n, s in shapes.items()}
    return Call(f"{name}, {t} x {h}", PROGRAMS[name], graph, sizes, inputs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_right(name: str) -> None:
    check_emulated([call(name, t, h) for t, h in SHAPES], orders=("random",))


def test_rows_may_be_none() -> None:
    check_emulated([call(n, 0, 255) for n in PROGRAMS if "where" not in PROGRAMS[n]], orders=("random",))
