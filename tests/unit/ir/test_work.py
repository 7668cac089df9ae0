"""What kernels are worth in threads."""

from __future__ import annotations

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import PARALLEL_WORK
from polyfuse.ir.launch_plan import Launch

SUM = "op f(x: f32[T, H], z: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] + z[t, h] }"
TANH = SUM.replace("x[t, h] + z[t, h]", "tanh(x[t, h]) + z[t, h]")
SQUARE = SUM.replace("x[t, h] + z[t, h]", "x[t, h] ** 2.0 + z[t, h]")
NORM = """op f(x: f32[T, H]) -> (y: f32[T, H]) where H >= 1 {
  s[t] = mean[h](x[t, h] ** 2.0)
  y[t, h] = x[t, h] * rsqrt(s[t] + 1e-5)
}"""
# Tiles begin and end with statements that are empty in all others.
WINDOWS = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  y[t, h] = max[s in max(h - 63, 0)..h + 1](x[t, s])
}"""


def launch(text: str, *shape: int) -> Launch:
    x = np.ones(shape, np.float32)
    (found,) = pf.compile(text, target="cpu").built(*([x] * (1 + ("z:" in text)))).code.plan.launches
    assert isinstance(found, Launch)
    return found


@pytest.mark.parametrize(("text", "each"), [(SUM, 1.0), (SQUARE, 1.0), (TANH, 3.0)])
def test_functions_count(text: str, each: float) -> None:
    assert evaluate(launch(text, 300, 200).work, {}) == each * 300 * 200


def test_what_is_moved_counts_once() -> None:
    """A norm has two statements for each element, and a few for each row."""
    assert 1.1 < evaluate(launch(NORM, 300, 200).work, {}) / (300 * 200) < 1.4


@pytest.mark.parametrize(("text", "few", "many"), [(SUM, 150, 400), (TANH, 40, 130), (NORM, 80, 300)])
def test_small_kernels_are_not_shared_out(text: str, few: int, many: int) -> None:
    for rows, shared in ((few, False), (many, True)):
        found = launch(text, rows, 128)
        assert (found.parallel and evaluate(found.work, {}) >= PARALLEL_WORK) == shared


def test_dims_that_are_empty_in_the_middle_count_nothing() -> None:
    found = launch(WINDOWS, 4, 65536)
    assert 4 * 65536 <= evaluate(found.work, {}) <= 12 * 4 * 65536
    assert evaluate(found.instances, {}) >= 5 * 4 * 65536
    assert found.parallel


def test_dims_that_are_longer_at_the_ends_count_as_on_average() -> None:
    """Those before the middle are empty here; an eighth of the square is there."""
    text = """op f(x: f32[T]) -> (y: f32[T]) {
  y[t] = sum[s in 0..max(t - T // 2, 0)](x[s] * x[T - 1 - t]) for t in 0..T
}"""
    x = np.ones(1200, np.float32)
    (found,) = pf.compile(text, target="cpu").built(x).code.plan.launches  # type: ignore[union-attr]
    assert 1200 * 1200 // 16 <= evaluate(found.instances, {}) <= 1200 * 1200 // 4
