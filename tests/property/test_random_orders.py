"""Random orders of rows, judged by NumPy alone where the elements are exact, else by the reference.

Rows are whole, begin later or grow; elements are numbers of every type, with NaN, infinities and equal ones,
or computed; places are few, all, or one. Sizes reach from 0 to rows that are merged from several runs.
"""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from targets import Call, check_everywhere

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.layers.graph import orders

Array = np.ndarray[Any, Any]
DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "i8": "int8", "i64": "int64", "u64": "uint64"}
LAYERS: list[tuple[str, ...]] = [("loop", "stitch", "pack"), (), ("loop",), ("loop", "stitch")]


def in_order(x: Array, falling: bool) -> Array:
    """Positions along the last axis; a NaN is the largest."""
    if not falling:
        return np.argsort(x, -1, kind="stable")
    return x.shape[-1] - 1 - np.flip(np.argsort(np.flip(x, -1), -1, kind="stable"), -1)


def random_row(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Numbers of which many are equal, some special."""
    if dtype[0] in "iu":
        kind = np.iinfo(DTYPES[dtype])
        some = np.array([kind.min, kind.max, *rng.integers(0, 20, 6)], kind.dtype)
    else:
        some = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, *rng.standard_normal(6)], DTYPES[dtype])
    return np.asarray(rng.choice(some, shape))


def drawn(seed: int) -> tuple[str, Array, Array]:
    """An operator, its argument, and the positions that it is to give."""
    rng = np.random.default_rng(seed)
    name, dtype = str(rng.choice(["arglargest", "argsmallest"])), str(rng.choice([*DTYPES]))
    t, h = int(rng.choice([0, 1, 3, 5])), int(rng.choice([1, 2, 7, 17, 40, 70]))
    first = int(rng.integers(0, h)) if rng.random() < 0.3 else 0
    count = h - first
    x = random_row(rng, dtype, (t, h))
    want = in_order(x[:, first:], name == "arglargest") + first
    over = f"[j in {first}..{h}]" if first else "[j]"
    head = f"op f(x: {dtype}[T, H])"
    if rng.random() < 0.2:
        grows = [in_order(x[:, first : first + k + 1], name == "arglargest")[:, k // 2] for k in range(count)]
        right = f"{name}[j in {first}..k+{first + 1}](x[i, j], k // 2) for k in 0..{count}"
        want = np.stack(grows, 1) + first
    elif rng.random() < 0.3:
        return (
            f"{head} -> (y: i64[T]) {{ y[i] = {name}{over}(x[i, j], {count // 2}) }}",
            x,
            want[:, count // 2],
        )
    else:
        places = int(rng.choice([0, 1, min(4, count), count]))
        right, want = f"{name}{over}(x[i, j], k) for k in 0..{places}", want[:, :places]
    return f"{head} -> (y: i64[T, {want.shape[1]}]) {{ y[i, k] = {right} }}", x, want


def check(seed: int, targets: list[str]) -> None:
    text, x, want = drawn(seed)
    for k, target in enumerate(targets):
        layers = LAYERS[(seed + k) % len(LAYERS)]
        y = pf.compile(text, target=target, layers=layers)(x)
        np.testing.assert_array_equal(y, want, err_msg=f"{target}, {layers}\n{text}")


TARGETS = ["interpret", *(["cpu", "emulate"] if shutil.which("g++") else [])]


@pytest.mark.parametrize("seed", range(40))
def test_positions_are_those_of_numpy(seed: int) -> None:
    check(seed, TARGETS if seed % 4 == 0 else ["interpret"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 400))
def test_positions_are_those_of_numpy_in_many(seed: int) -> None:
    check(seed, TARGETS if seed % 3 == 0 else ["interpret"])


@pytest.mark.thin(4)
@pytest.mark.parametrize("length", [17, 32, 50, 64])
@pytest.mark.parametrize("name", ["arglargest", "argsmallest"])
def test_long_rows_are_merged_from_runs(name: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "LONG", 16)
    monkeypatch.setattr(orders, "RUN", 8)
    x = random_row(np.random.default_rng(length), "f32", (3, length))
    text = f"op f(of_runs: f32[T, H]) -> (y: i64[T, H]) {{ y[i, k] = {name}[j](of_runs[i, j], k) }}"
    for target in TARGETS:
        y = pf.compile(text, target=target)(x)
        np.testing.assert_array_equal(y, in_order(x, name == "arglargest"), err_msg=target)


@pytest.mark.thin(4)
@pytest.mark.parametrize("dtype", ["f32", "i8"])
@pytest.mark.parametrize(("first", "length", "places"), [(0, 16, 4), (0, 21, 5), (3, 17, 3), (5, 23, 4)])
def test_extremes_of_groups_give_the_first_places(
    dtype: str, first: int, length: int, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a group has no element left, beside the lowest values."""
    for limit, value in (("GROUPED", 4), ("AGAIN", 2), ("GROUP", 3)):
        monkeypatch.setattr(orders, limit, value)
    x = random_row(np.random.default_rng(length), dtype, (4, length))
    x[0] = -128 if dtype == "i8" else -np.inf
    x[1] = 127 if dtype == "i8" else np.nan
    x[2], x[2, ::2] = (127, -128) if dtype == "i8" else (np.inf, np.nan)
    for name in ("arglargest", "argsmallest"):
        right = f"{name}[j in {first}..{length}](of_groups[i, j], k) for k in 0..{places}"
        text = f"op f(of_groups: {dtype}[T, {length}]) -> (y: i64[T, {places}]) {{ y[i, k] = {right} }}"
        assert "extremes of groups of 3" in pf.compile(text, target="interpret").explain(x)
        want = in_order(x[:, first:], name == "arglargest")[:, :places] + first
        for k, target in enumerate(TARGETS):
            layers = LAYERS[(k + first) % len(LAYERS)]
            y = pf.compile(text, target=target, layers=layers)(x)
            np.testing.assert_array_equal(y, want, err_msg=f"{target}, {layers}")


COMPUTED = """op f(x: f32[T, H]) -> (v: f32[T, 3], i: i64[T, 3], s: f32[T]) where H >= 3 {
  p = softmax(x)
  (v, i) = topk(p, K=3)
  s[t] = sum[k in 0..3](p[t, i[t, k]] * f32(i[t, k]))
}"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.parametrize("shape", [(1, 3), (5, 9), (4, 64), (2, 301)])
def test_what_is_chosen_of_computed_elements_agrees(shape: tuple[int, int]) -> None:
    """Many elements are equal in exact numbers, and rounding decides."""
    x = np.random.default_rng(7).integers(-2, 3, shape).astype(np.float32)
    check_everywhere(
        [Call(str(shape), COMPUTED, graph_of(COMPUTED), {"T": shape[0], "H": shape[1]}, {"x": x})]
    )


def graph_of(text: str) -> Any:
    from polyfuse.library import standard_programs

    return instantiate((parse_text(text), *standard_programs()), "f")
