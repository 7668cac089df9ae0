"""What stands at a place of an order, as plain reductions: the way of a row, and the number of kernels."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import fixed_graph_of, seeded_inputs

import polyfuse as pf
from polyfuse.driver.pipeline import Compilation, Watch, emitted, fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.graph.orders import AGAIN, GROUPED, LONG, ROUNDS, RUN
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.library import standard_programs
from polyfuse.options import Options
from polyfuse.runtime.reference.evaluate import evaluate

ORDER = "op f(x: {0}[T, H]) -> (i: i64[T, K]) where K == {2}, H >= {2} {{ i[t, k] = {1}[h](x[t, h], k) }}"
ROUTER = """op f(x: f32[T, H]) -> (v: f32[T, 8], i: i64[T, 8], s: f32[T]) where H >= 8 {
  p = softmax(x)
  (v, i) = topk(p, K=8)
  s[t] = sum[k](v[t, k])
}"""


def order(dtype: str = "f32", name: str = "arglargest", places: int = 1, length: int = 9) -> TensorGraph:
    return fixed_graph_of(ORDER.format(dtype, name, places), T=3, H=length, K=places)


def parts(graph: TensorGraph) -> set[str]:
    """What the names of temporaries say of the way."""
    return {t.name.split("__")[-1] for t in graph.tensors if "__" in t.name}


ROUNDED, COUNTED = {"best", "at"}, {"count", "at"}
IN_GROUPS = {"best", "at", "group", "where", "again", "there"}


@pytest.mark.parametrize(
    ("graph", "way"),
    [
        (order(length=64, places=8), ROUNDED),
        (order(length=4 * LONG, places=AGAIN - 1), ROUNDED),
        (order(length=GROUPED, places=AGAIN), IN_GROUPS),
        (order(length=4 * LONG, places=ROUNDS), IN_GROUPS),
        (order(length=64, places=17), COUNTED),
        (order(length=64, places=64), COUNTED),
        (order(length=1, places=1), ROUNDED),
        (order(name="argsmallest", length=64, places=8), ROUNDED),
        (order(name="argsmallest", length=GROUPED, places=AGAIN), IN_GROUPS),
        (order(name="argsmallest", length=64, places=17), COUNTED),
        (order("i32", "argsmallest", length=64, places=8), ROUNDED),
    ],
)
def test_few_places_are_found_in_rounds_and_many_by_counting(graph: TensorGraph, way: set[str]) -> None:
    verify_graph(graph)
    assert parts(graph) == way
    assert all(s.place is None for s in graph.statements)


def test_long_rows_are_merged_from_runs() -> None:
    graph = order(length=2 * LONG + 1, places=ROUNDS + 1)
    verify_graph(graph)
    assert f"run{4 * RUN}" in parts(graph) and "best" not in parts(graph)


def test_positions_of_rows_with_small_numbers_are_of_32_bits() -> None:
    assert {t.dtype.name for t in order().tensors if t.name.endswith("__at")} == {"i32"}
    assert {t.dtype.name for t in order("f64").tensors if t.name.endswith("__at")} == {"i64"}


@pytest.mark.parametrize(("rows", "length", "places"), [(0, 5, 2), (2, 5, 0), (0, 0, 0), (3, 0, 0)])
def test_nothing_is_asked(rows: int, length: int, places: int) -> None:
    graph = fixed_graph_of(ORDER.format("f32", "arglargest", places), T=rows, H=length, K=places)
    verify_graph(graph)
    assert evaluate(graph, {}, seeded_inputs(graph))["i"].value.shape == (rows, places)


@pytest.mark.parametrize(("length", "places"), [(9, 2), (GROUPED + 9, 9), (9, 9), (LONG + 9, LONG + 9)])
def test_the_number_of_rows_may_be_open(length: int, places: int) -> None:
    """Not that of elements, or of places, as the way depends on them."""
    text = ORDER.format("f32", "arglargest", places)
    f = pf.compile(text, sizes="open", target="interpret")
    for rows in (2, 3):
        x = np.random.default_rng(rows).standard_normal((rows, length)).round(1).astype(np.float32)
        want = np.argsort(-x, -1, kind="stable")[:, :places]
        np.testing.assert_array_equal(f(x), want)
    (variant,) = f.variants
    assert variant.open == ("T",)
    assert "- open T, H, K: an order has no known length while" in f.explain(x)


@pytest.mark.parametrize("name", ["arglargest", "argsmallest"])
@pytest.mark.parametrize(("length", "places"), [(9, 2), (9, 9), (GROUPED + 9, 20), (LONG + 9, 140)])
def test_the_plain_reductions_give_the_same_order(name: str, length: int, places: int) -> None:
    text = ORDER.format("f32", name, places)
    sizes = {"T": 2, "H": length, "K": places}
    before = instantiate(parse_text(text), "f")
    after = fixed_graph(before, sizes)
    inputs = {n: a.round(1) for n, a in seeded_inputs(after).items()}
    want, got = evaluate(before, sizes, inputs)["i"], evaluate(after, {}, inputs)["i"]
    assert (want.value == got.value).all() and not want.undecided.any() and not got.undecided.any()


@pytest.mark.machine("zen3")
@pytest.mark.parametrize("target", ["cpu", "emulate"])
def test_the_experts_of_a_router_are_chosen_in_one_kernel(target: str) -> None:
    """With the softmax before them and a sum behind."""
    graph = instantiate((parse_text(ROUTER), *standard_programs()), "f")
    options = Options(device="H200" if target == "emulate" else None, progress=False)
    layers = {"stitching": Stitching(), "packing": Packing()}
    sizes = {"T": 4096, "H": 64}
    made = Compilation(graph, sizes, LoopFusion(), options, target=target, **layers)
    assert len(emitted(Watch(options), made)[1].plan.launches) == 1


def test_sizes_that_the_way_depends_on_have_to_be_known() -> None:
    program = pf.parse(
        "op f(x: f32[T, N]) -> (i: i64[T, N]) where N >= 1 { i[t, k] = arglargest[j](x[t, j], k) }"
    )
    with pytest.raises(pf.ScheduleError, match=r"PF513.* N") as caught:
        program.op().specialize()
    assert "--size" in str(caught.value.diagnostics[0].hint)
    assert program.op().specialize(N=4).graph.sizes == ("T",)


@pytest.mark.parametrize("length", [LONG + 1, 3 * RUN])
def test_a_vector_without_rows_is_sorted(length: int) -> None:
    """By merging, whose steps read at places that data say alone."""
    x = np.random.default_rng(0).permutation(length).astype(np.float32)
    got = pf.compile(pf.stdlib.op("sort"), target="cpu")(x)
    assert (got == np.arange(length)).all()
