"""Inputs with which results are numbers: found by what an operator does with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.runtime.distributions import between, exactly, suitable
from polyfuse.runtime.inputs import default_sizes, make_inputs
from polyfuse.runtime.reference.agreement import unchecked
from polyfuse.runtime.reference.evaluate import Evaluated, evaluate

GUMBEL = """op gumbel_softmax(x: f32[N, C], u: f32[N, C]) -> (y: f32[N, C]) {
  g[n, c] = x[n, c] - log(-log(u[n, c]))
  e[n, c] = exp(g[n, c])
  y[n, c] = e[n, c] / sum[k](e[n, k])
}"""
YOLO = """op yolo(a: f32[N, 5], b: f32[N, 5]) -> (loss: f32) {
  sizes[n] = (sqrt(a[n, 2]) - sqrt(b[n, 2])) ** 2 + (sqrt(a[n, 3]) - sqrt(b[n, 3])) ** 2
  sure[n] = b[n, 4] * log(a[n, 4]) + (1.0 - b[n, 4]) * log(1.0 - a[n, 4])
  loss = sum[n](sizes[n] - sure[n]) / f32(N)
}"""
CORNERS = """op corners(a: f32[N, 4], b: f32[N, 4]) -> (y: f32[N]) {
  y[n] = log((a[n, 2] - a[n, 0]) * (a[n, 3] - a[n, 1])) - log(b[n, 2] - b[n, 0])
}"""
CHOLESKY = """op cholesky(a: f32[N, N]) -> (l: f32) where N == 2 {
  p = sqrt(a[0, 0])
  l = sqrt(a[1, 1] - (a[1, 0] / p) ** 2)
}"""
GROWING = """op growing(q: f32[N], r: f32[T]) -> (y: f32[T+1, N]) {
  y[0, i] = q[i]
  y[t, i] = y[t-1, i] * (3.0 - 2.0 * r[t-1]) - 2.0 * y[t-1, i] * (1.0 - r[t-1]) for t in 1..T+1
}"""


def chosen(text: str, seed: int = 0, **sizes: int) -> tuple[dict[str, str], float]:
    """What is chosen, and the largest share of a result that cannot be checked then."""
    graph = pf.parse(text).op().graph()
    all_sizes = default_sizes(graph, sizes)
    found = suitable(graph, all_sizes, seed, {})
    inputs = make_inputs(graph, all_sizes, seed, found)
    values = evaluate(graph, all_sizes, inputs)
    return {n: d.text for n, d in found.items()}, max(unchecked(values[n], inputs) for n in graph.outputs)


@pytest.mark.parametrize(
    "text", [GUMBEL, YOLO, CORNERS, CHOLESKY], ids=["gumbel", "yolo", "boxes", "cholesky"]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_logarithms_roots_and_boxes_have_values(text: str, seed: int) -> None:
    found, bad = chosen(text, seed)
    assert found and bad == 0


def test_usual_operators_have_usual_inputs() -> None:
    assert chosen("op f(x: f32[N], a: f32) -> (y: f32[N]) { y[i] = exp(a * x[i]) / (1.0 + x[i] ** 2) }") == (
        {},
        0,
    )


def test_names_do_not_matter() -> None:
    renamed = GUMBEL.replace("u[", "prob_mask_index[").replace("u:", "prob_mask_index:")
    assert chosen(GUMBEL)[0]["u"] == chosen(renamed)[0]["prob_mask_index"]
    assert "x" not in chosen(GUMBEL)[0]


@pytest.mark.parametrize("name", ["adamw", "batch_norm_inference", "lamb", "stencil3"])
def test_the_library_is_checked_whole(name: str) -> None:
    graph = pf.stdlib.op(name).graph()
    sizes = default_sizes(graph, {}, most=1 << 14)
    found = suitable(graph, sizes, 0, {})
    inputs = make_inputs(graph, sizes, 0, found)
    values = evaluate(graph, sizes, inputs)
    assert max(unchecked(values[t.name], inputs) for t in graph.tensors if t.name in values) == 0


def test_what_nothing_helps_stays_as_it_is() -> None:
    found, bad = chosen("op f(x: f32[N]) -> (y: f32[N]) { y[i] = sqrt(-1.0 - x[i] * x[i]) }")
    assert found == {} and bad == 1


def test_what_is_given_stays() -> None:
    graph = pf.parse(YOLO).op().graph()
    mine = np.full((6, 5), 0.5, np.float32)
    given = {"a": exactly(mine)}
    found = suitable(graph, {"N": 6}, 0, given, whole=True)
    assert set(found) == {"b"}
    assert (make_inputs(graph, {"N": 6}, 0, {**given, **found})["a"] == mine).all()
    drawn = make_inputs(graph, {"N": 9}, 0, {"a": between(2.0, 3.0)})["a"]
    assert drawn.dtype == np.float32 and drawn.min() >= 2.0 and drawn.max() <= 3.0


def test_what_cannot_be_checked() -> None:
    def share(value: Any, bound: Any) -> float:
        v, e = np.asarray(value, float), np.asarray(bound, float)
        return unchecked(Evaluated(v, e, ~np.isfinite(e)), {"x": np.array([2.0, np.inf])})

    assert share([1.0, 2.0], [1e-6, 1e-6]) == 0
    assert share([np.nan, 2.0], [1e-6, 1e-6]) == 0.5
    assert share([1.0, 2.0], [1e-6, np.inf]) == 0.5
    assert share([1.0, 1.5], [1e-6, 1.4]) == 0  # less than what results are
    assert share([1.0, 1.5], [1e-6, 1.9]) == 0.5
    assert share([0.0, 1e-4], [1e-6, 0.019]) == 0  # what cancels: a small part of the inputs
    assert share([0.0, 1e-4], [1e-6, 0.021]) == 0.5
    assert share([1.0, 1.5], [1e-6, 1e9]) == 0.5
    assert share(np.zeros(0), np.zeros(0)) == 0


def test_a_recurrence_that_may_grow_without_end_is_not_called_checked() -> None:
    graph = pf.parse(GROWING).op().graph()
    sizes = {"N": 4, "T": 200}
    inputs = make_inputs(graph, sizes)
    assert unchecked(evaluate(graph, sizes, inputs)["y"], inputs) > 0.1


def test_a_chaotic_recurrence_of_bounded_values_is_not_called_checked() -> None:
    graph = pf.stdlib.op("rnn_layer").graph()
    sizes = {"T": 32, "B": 4, "H": 32}
    inputs = make_inputs(graph, sizes)
    assert unchecked(evaluate(graph, sizes, inputs)["h"], inputs) > 0.1
    calm = {**inputs, "u": (inputs["u"] / 32).astype(np.float32)}
    assert unchecked(evaluate(graph, sizes, calm)["h"], calm) == 0
