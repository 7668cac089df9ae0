"""Neutral elements of the reductions."""

from __future__ import annotations

import numpy as np

from polyfuse.ir.dtypes import DType


def identity(op: str, dtype: DType) -> float | int | bool:
    """The value `e` with ``e op x == x`` for every x of a dtype (NumPy's for empty reductions)."""
    if op in ("any", "all"):
        return op == "all"
    if op in ("sum", "prod"):
        neutral = 0 if op == "sum" else 1
        return float(neutral) if dtype.is_float else bool(neutral) if dtype.is_bool else neutral
    if dtype.is_bool:
        return op == "min"
    if dtype.is_float:
        return float("-inf") if op == "max" else float("inf")
    limits = np.iinfo(dtype.numpy)
    return int(limits.min) if op == "max" else int(limits.max)
