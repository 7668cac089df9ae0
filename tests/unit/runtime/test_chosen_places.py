"""What the judge says of arglargest and argsmallest: which positions are right, and what follows of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import F32, I64
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.runtime.numpy_baseline import baseline
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import Evaluated, evaluate

Array = np.ndarray[Any, Any]
# 1/3 of a number has an error, so equal ones may stand in any order; y follows the choice.
THIRDS = """op f(x: f32[T, H]) -> (i: i64[T, K], y: f32[T, K]) where K == {k}, H >= {k} {{
  p[t, h] = x[t, h] / 3.0
  i[t, k] = {name}[h](p[t, h], k)
  y[t, k] = p[t, i[t, k]] + f32(i[t, k])
}}"""
SIZES = {"T": 1, "H": 6, "K": 3}
ROW = np.array([[5, 7, 5, 1, 7, 5]], np.float32)


def thirds(name: str = "arglargest", k: int = 3) -> TensorGraph:
    return instantiate(parse_text(THIRDS.format(name=name, k=k)), "f")


def judged(chosen: list[int], x: Array = ROW, name: str = "arglargest") -> tuple[bool, bool]:
    """Are a kernel's positions right, and what it read there?"""
    i = np.array([chosen], np.int64)
    y = (np.take_along_axis(x / np.float32(3), i, -1) + i).astype(np.float32)
    want = evaluate(thirds(name), SIZES, {"x": x}, results={"i": i, "y": y})
    assert not want["i"].undecided.any()
    return bool(agrees(i, want["i"], I64)), bool(agrees(y, want["y"], F32))


@pytest.mark.parametrize("chosen", [[1, 4, 0], [4, 1, 5], [4, 1, 2]])
def test_of_equal_elements_any_order_is_right(chosen: list[int]) -> None:
    assert judged(chosen) == (True, True)


WRONG = [[1, 0, 4], [1, 4, 3], [1, 1, 0], [4, 4, 0], [1, 4, 4], [1, 4, 6], [1, -1, 0], [1, 2, 0], [0, 0, 0]]


@pytest.mark.parametrize("chosen", WRONG)
def test_others_are_wrong(chosen: list[int]) -> None:
    i = np.array([chosen], np.int64)
    want = evaluate(thirds(), SIZES, {"x": ROW}, results={"i": i})["i"]
    assert not agrees(i, want, I64) and not want.undecided.any()
    assert ((want.value >= 0) & (want.value < 6)).all()


def test_the_smallest_are_judged_alike() -> None:
    assert judged([3, 5, 0], name="argsmallest") == (True, True)
    assert judged([3, 1, 0], name="argsmallest")[0] is False
    assert judged([3, 0, 0], name="argsmallest")[0] is False


def test_what_was_read_elsewhere_than_chosen_is_wrong() -> None:
    i = np.array([[4, 1, 2]], np.int64)
    y = np.array([[7 / 3 + 1, 7 / 3 + 4, 5 / 3 + 2]], np.float32)
    want = evaluate(thirds(), SIZES, {"x": ROW}, results={"i": i, "y": y})
    assert agrees(i, want["i"], I64) and not agrees(y, want["y"], F32)


def test_without_a_choice_places_of_equal_elements_are_undecided() -> None:
    want = evaluate(thirds(), SIZES, {"x": ROW})
    assert want["i"].undecided.all() and want["i"].value.tolist() == [[1, 4, 0]]
    apart = np.array([[5, 7, 6, 1, 8, 3]], np.float32)
    assert not evaluate(thirds(), SIZES, {"x": apart})["i"].undecided.any()


def test_exact_elements_have_one_order() -> None:
    text = "op f(x: f32[H]) -> (i: i64[H]) { i[k] = arglargest[h](x[h], k) }"
    g = instantiate(parse_text(text), "f")
    x = np.array([1, np.nan, 1, np.inf, -0.0, 0.0, np.nan], np.float32)
    swapped = np.array([1, 6, 3, 2, 0, 4, 5])
    want = evaluate(g, {"H": 7}, {"x": x}, results={"i": swapped})["i"]
    assert want.value.tolist() == [1, 6, 3, 0, 2, 4, 5] and not want.undecided.any()
    assert not agrees(swapped, want, I64)


@pytest.mark.parametrize("name", ["arglargest", "argsmallest"])
def test_large_numbers_without_signs_are_in_order(name: str) -> None:
    g = instantiate(parse_text(f"op f(x: u64[H]) -> (i: i64[H]) {{ i[k] = {name}[h](x[h], k) }}"), "f")
    x = np.array([2**63, 1, 2**64 - 1, 0, 2**63], np.uint64)
    found = evaluate(g, {"H": 5}, {"x": x})["i"].value
    assert found.tolist() == ([2, 0, 4, 1, 3] if name == "arglargest" else [3, 1, 0, 4, 2])


def test_results_of_another_shape_or_type_are_not_followed() -> None:
    for i in (np.zeros((1, 2), np.int64), np.array([[4, 1, 2]], np.int32), None):
        given = {} if i is None else {"i": i}
        assert evaluate(thirds(), SIZES, {"x": ROW}, results=given)["i"].undecided.all()


@pytest.mark.parametrize("name", ["arglargest", "argsmallest"])
@pytest.mark.parametrize("seed", range(20))
def test_right_are_the_orders_that_some_errors_give(name: str, seed: int) -> None:
    """Beside the true order of elements that are off by less than their bound, and a set that is not."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, (1, 6)).astype(np.float32)
    off = (x / 3.0) * (1 + rng.uniform(-1, 1, x.shape) * 2e-7)
    order = np.argsort(-off if name == "arglargest" else off, -1, kind="stable")[:, :3]
    assert judged(order[0].tolist(), x, name) == (True, True)
    other = np.argsort(-x if name == "argsmallest" else x, -1, kind="stable")[0, :3]
    if x[0, other[0]] != x[0, order[0, 0]]:
        assert not judged(other.tolist(), x, name)[0]


def test_the_baseline_of_numpy_has_the_same_order() -> None:
    x = np.array([[1, np.nan, 2, 2], [0, -np.inf, 5, 5]], np.float32)
    for name, want in (("arglargest", [[1, 2, 3], [2, 3, 0]]), ("argsmallest", [[0, 2, 3], [1, 0, 2]])):
        g = thirds(name)
        f = baseline(g, {"T": 2, "H": 4, "K": 3})
        found = f({"x": x})
        assert np.asarray(found["i"]).tolist() == want
        assert isinstance(evaluate(g, {"T": 2, "H": 4, "K": 3}, {"x": x})["i"], Evaluated)
