"""Seeded inputs and sizes for operators that nobody gave data to."""

from __future__ import annotations

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.runtime.inputs import MOST_INSTANCES, default_sizes, dim_ranges, instances, make_inputs


def test_the_same_seed_gives_the_same_arrays() -> None:
    graph = pf.stdlib.op("layer_norm").graph()
    sizes = default_sizes(graph, {"H": 7})
    assert sizes["H"] == 7
    one, two, other = (make_inputs(graph, sizes, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(one[n], two[n]) for n in graph.inputs)
    assert not np.array_equal(one["x"], other["x"])
    assert one["eps"] == np.float32(1e-5)


def test_indices_stay_in_range() -> None:
    graph = pf.stdlib.op("embedding").graph()
    inputs = make_inputs(graph, {"V": 5, "D": 3, "B_0": 100})
    assert set(np.unique(inputs["index"])) == set(range(5))


def test_classes_stay_in_range() -> None:
    graph = pf.stdlib.op("cross_entropy_backward").graph()
    inputs = make_inputs(graph, {"N": 100, "C": 4})
    assert set(np.unique(inputs["target"])) == set(range(4))


COUNTED = """op segments(x: f32[E, D], start: i64[N+1]) -> (y: f32[N, D]) {
  segment[e] = sum[n in 0..N](1 if start[n+1] <= e else 0) for e in 0..E
  y[segment[e], d] += x[e, d]
}"""


@pytest.mark.parametrize(
    "program", [pf.stdlib.op("segment_sum"), pf.parse(COUNTED).op()], ids=("ends", "counted")
)
def test_offsets_are_sorted_and_cover_all(program: pf.Operator) -> None:
    graph = program.graph()
    start = make_inputs(graph, {"N": 9, "E": 50, "D": 2})["start"]
    assert start[0] == 0 and start[-1] == 50 and np.all(np.diff(start) >= 0)


def test_masks_keep_most() -> None:
    keep = make_inputs(pf.stdlib.op("dropout").graph(), {"B_0": 10_000})["keep"]
    assert keep.dtype == bool and 0.8 < keep.mean() < 0.9
    mask = make_inputs(pf.stdlib.op("masked_softmax").graph(), {"N": 50, "B_0": 1, "H": 50})["mask"]
    assert set(np.unique(mask)) == {-1e4, 0.0}


def test_a_small_type_limits_the_index() -> None:
    program = pf.parse("op f(x: f32[N], i: i8[K]) -> (y: f32[K]) { y[k] = x[i[k]] }")
    index = make_inputs(program.op("f").graph(), {"N": 1000, "K": 500})["i"]
    assert index.dtype == np.int8 and index.min() >= 0 and index.max() <= 127


def test_default_sizes_solve_equations() -> None:
    text = "op f(x: f32[N, C]) -> (y: f32[N, G]) where C == 4*G { y[n, g] = sum[k in 0..4](x[n, 4*g + k]) }"
    graph = pf.parse(text).op().graph()
    free = default_sizes(graph, {})
    assert free["C"] == 4 * free["G"] > 0
    assert default_sizes(graph, {"N": 3, "G": 5}) == {"N": 3, "C": 20, "G": 5}
    assert default_sizes(graph, {"N": 3, "C": 12}) == {"N": 3, "C": 12, "G": 3}


@pytest.mark.parametrize("name", pf.stdlib.ops)
def test_default_sizes_fit(name: str) -> None:
    graph = pf.stdlib.op(name).graph()
    sizes = default_sizes(graph, {})
    assert set(sizes) == set(graph.sizes)
    assert 0 < instances(graph, sizes) <= MOST_INSTANCES
    assert all(evaluate(product(t.shape), sizes) <= 2 * MOST_INSTANCES for t in graph.tensors)


@pytest.mark.parametrize("upper", ["min(t, T - t)", "min(t + 3, T) - max(t - 4, 0)", "t % 7"])
def test_a_box_holds_all_of_a_domain(upper: str) -> None:
    """Also where the largest range is at no corner."""
    text = f"op f(x: f32[T]) -> (y: f32[T]) {{ y[t] = sum[s in 0..{upper}](x[s]) for t in 0..T }}"
    (s,) = instantiate(parse_text(text), "f").statements
    e = s.dims[-1].upper
    assert dim_ranges(s, {"T": 20})["s"][1] >= max(evaluate(e, {"T": 20, "t": t}) for t in range(20))
