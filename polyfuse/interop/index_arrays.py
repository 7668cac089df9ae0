"""Integer arrays of fewer than 64 bits where an operator takes i64: indices of most libraries are int32."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from polyfuse.interop.torch_tensors import is_torch
from polyfuse.ir.dtypes import I64, from_numpy

_NARROW = ("int32", "int16", "int8", "uint8")


def widened(value: Any) -> Any:
    """The array as int64, made by its own library, if it holds narrower integers; else the value itself."""
    if isinstance(value, np.ndarray):
        dtype = from_numpy(value.dtype.newbyteorder("="))
        return value.astype(np.int64) if dtype is not None and dtype.is_integer and dtype != I64 else value
    if is_torch(value):
        torch: Any = sys.modules["torch"]
        return value.to(torch.int64) if str(value.dtype).removeprefix("torch.") in _NARROW else value
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray) and str(value.dtype) in _NARROW:
        return value.astype(np.int64)
    return value
