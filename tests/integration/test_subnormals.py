"""Subnormal numbers: one rule on all targets, of f32, f64 and bf16 alike; f16 is never affected."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyfuse as pf

Array = np.ndarray[Any, np.dtype[Any]]
TARGETS = ("cpu", "interpret", "emulate")
DTYPES = {"f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
SMALLEST = {"f32": 2.0**-126, "f64": 2.0**-1022, "bf16": 2.0**-126, "f16": 2.0**-14}
TEXT = """op f(x: {0}[N], one: {0}[N]) -> (copied: {0}[N], negated: {0}[N], size: {0}[N], chosen: {0}[N],
    product: {0}[N], total: {0}[N], nonzero: bool[N], positive: bool[N]) {{
  copied[i] = x[i]
  negated[i] = -x[i]
  size[i] = abs(x[i])
  chosen[i] = x[i] if one[i] > 0.0 else one[i]
  product[i] = {0}(x[i] * one[i])
  total[i] = {0}(x[i] * one[i] + x[i])
  nonzero[i] = x[i] != 0.0
  positive[i] = x[i] > 0.0
}}"""


def bits(a: Array) -> list[int]:
    return np.ascontiguousarray(a).view(f"u{a.itemsize}").tolist()


def results(dtype: str, target: Any, denormals: Any) -> tuple[Array, list[Array]]:
    x = (np.array([0.25, -0.5, 0.75, 1.0, -1.5, 0.0]) * SMALLEST[dtype]).astype(DTYPES[dtype])
    x = np.tile(x, 11)  # rows of vectors and what is left
    f = pf.compile(TEXT.format(dtype), target=target, denormals=denormals)
    return x, list(f(x, np.ones_like(x)))  # type: ignore[call-overload]


def expected(x: Array) -> list[Array]:
    return [x, -x, np.abs(x), x, x, (x + x).astype(x.dtype), x != 0, x > 0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kept_they_count(dtype: str, target: Any) -> None:
    x, found = results(dtype, target, "keep")
    assert [bits(a) for a in found] == [bits(a) for a in expected(x)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_flushed_they_may_count_as_zero_where_something_is_computed(dtype: str, target: Any) -> None:
    x, found = results(dtype, target, "flush")
    whole = expected(x)
    zeros = expected(np.where(np.abs(x) < SMALLEST[dtype], np.zeros_like(x), x))
    for k, (got, kept, flushed) in enumerate(zip(found, whole, zeros, strict=True)):
        if k < 4 or dtype == "f16":
            assert bits(got) == bits(kept)
        else:  # a zero may have either sign
            assert ((got == kept) | (got == flushed)).all()
