"""Floats of 8 bits as NumPy has them: our own rounding, to nearest even and to the largest number at most.

`astype` of ml_dtypes, and `.to` of PyTorch, differ from it and from one another: beyond the largest number
they give infinities, NaN or that number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from polyfuse.ir.dtypes import F8E4M3, F8E5M2, DType

Array = npt.NDArray[Any]

LARGEST = {F8E4M3: 448.0, F8E5M2: 57344.0}
"""The largest number of each, which larger ones and infinities become."""

# Digits after the first one, and the exponent of the least normal number.
_DIGITS = {F8E4M3: (3, -6), F8E5M2: (2, -14)}


def rounded(x: Any, dtype: DType) -> Array:
    """The numbers of a dtype that are next to others, as float64; NaN stays NaN."""
    value = np.asarray(x, np.float64)
    digits, least = _DIGITS[dtype]
    size = np.minimum(np.abs(value), LARGEST[dtype])
    exponent = np.maximum(np.frexp(np.where(np.isnan(size), 1.0, size))[1] - 1, least)
    unit = np.ldexp(1.0, exponent - digits)
    return np.asarray(np.copysign(np.minimum(np.rint(size / unit) * unit, LARGEST[dtype]), value))


def stored(x: Any, dtype: DType) -> Array:
    """Numbers as they are stored: rounded once."""
    return rounded(x, dtype).astype(dtype.numpy)
