"""Scalar arguments as arrays of their type."""

from __future__ import annotations

import math

import numpy as np
import pytest

from polyfuse.ir.dtypes import FLOATS, DType
from polyfuse.runtime.arguments import as_array

TIES = (
    65519.9,
    65520,
    3.4028235677973362e38,
    3.4028235677973366e38,
    3.39617752923045e38,
    3.39617752923046e38,
)
VALUES = (*TIES, 1e300, math.inf, math.nan, -0.0, 1e-320, 7, True, 2**63, 2**70, 10**39)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", VALUES, ids=str)
def test_numbers_are_rounded_as_numpy_does(
    value: float, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a warning, and without `np.errstate`: in a finaliser CPython 3.11 does not survive it."""
    with np.errstate(all="ignore"):
        want = [np.asarray(float(x)).astype(dtype.numpy) for x in (value, -value)]
    monkeypatch.delattr(np, "errstate")
    for x, y in zip((value, -value), want, strict=True):
        got = as_array(x, dtype)
        assert got.dtype == dtype.numpy and got.tobytes() == y.tobytes()
