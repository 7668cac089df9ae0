"""The Agreement rule."""

from __future__ import annotations

import numpy as np
import pytest

from polyfuse.ir.dtypes import BF16, BOOL, F16, F32, I32, DType
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import Evaluated


def wanted(value: list[float] | np.ndarray, bound: float | list[float] = 0.0) -> Evaluated:
    v = np.asarray(value)
    b = np.array(np.broadcast_to(bound, v.shape), float)
    return Evaluated(v, b, np.isinf(b))


def test_within_the_bound() -> None:
    got = agrees(np.array([1.0, 2.5], np.float32), wanted([1.0, 2.0], 1.0), F32)
    assert got and got.worst_ratio == 0.5 and got.message == "" and got.mismatches == 0


def test_the_first_bad_index_is_named() -> None:
    value = np.zeros((2, 3))
    bad = value.astype(np.float32)
    bad[1, 2] = 0.25
    got = agrees(bad, wanted(value, 0.125), F32)
    assert not got and got.mismatches == 1 and got.worst_ratio == pytest.approx(2.0)
    assert got.message == "1 of 6 elements differ; first at [1, 2]: got 0.25, expected 0.0 within 0.125"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_special_values_are_exact(bad: float) -> None:
    special = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert agrees(special, wanted(special.astype(float)), F32)
    got = special.copy()
    got[3] = bad
    assert not agrees(got, wanted(special.astype(float), 1e30), F32)
    assert not agrees(np.full(1, 1.0, np.float32), wanted([bad]), F32)


def test_integers_and_bools_are_exact() -> None:
    assert agrees(np.array([3], np.int32), wanted(np.array([3])), I32)
    assert not agrees(np.array([4], np.int32), wanted(np.array([3])), I32)
    assert agrees(np.array([4], np.int32), wanted(np.array([3]), np.inf), I32)
    assert not agrees(np.array([True]), wanted(np.array([False])), BOOL)


def test_few_elements_may_be_undecided() -> None:
    bound = np.zeros(200)
    bound[0] = np.inf
    got = np.zeros(200, np.float32)
    got[0] = 7.0
    assert agrees(got, wanted(np.zeros(200), list(bound)), F32).undecided_fraction == 0.005
    bound[1] = np.inf
    far = agrees(got, wanted(np.zeros(200), list(bound)), F32)
    assert not far and far.mismatches == 0 and "1.0% of the elements are undecided" in far.message
    assert agrees(got[:3], wanted(np.zeros(3), list(bound[:3])), F32)


@pytest.mark.parametrize(("dtype", "low"), [(F32, 1e-38), (F16, 5e-8), (BF16, 1e-38)])
def test_flushed_subnormals(dtype: DType, low: float) -> None:
    assert agrees(np.zeros(1, dtype.numpy), wanted([low]), dtype)
    assert not agrees(np.zeros(1, dtype.numpy), wanted([low * 100]), dtype)


def test_shape_and_type_must_match() -> None:
    assert "shape (2,), expected (1,)" in agrees(np.zeros(2, np.float32), wanted([0.0]), F32).message
    assert "dtype float64" in agrees(np.zeros(1), wanted([0.0]), F32).message
    assert agrees(np.zeros((0, 3), np.float32), wanted(np.zeros((0, 3))), F32)
