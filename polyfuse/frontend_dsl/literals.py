"""Literals as values of a dtype, and the identities of reductions."""

from __future__ import annotations

import math

from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BF16, F16, F32, F64, DType, Kind
from polyfuse.source import Span

# The greatest finite values; a literal beyond rounds to infinity and is refused.
_LARGEST = {F16: 65504.0, BF16: 3.3895313892515355e38, F32: 3.4028234663852886e38, F64: math.inf}


def limits(dtype: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer dtype."""
    if dtype.kind is Kind.UNSIGNED:
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def fit(value: float | int | bool, dtype: DType) -> float | int | bool | None:
    """The literal as a value of `dtype`, or None if it is none."""
    if dtype.is_bool or isinstance(value, bool):
        return value if dtype.is_bool and isinstance(value, bool) else None
    if dtype.is_float:
        as_float = float(value)
        return as_float if math.isfinite(as_float) and abs(as_float) <= _LARGEST[dtype] else None
    low, high = limits(dtype)
    return value if isinstance(value, int) and low <= value <= high else None


def identity(reduction: str, dtype: DType, span: Span) -> g.Const:
    """What a reduction over nothing gives (for max and min: what never wins)."""
    if reduction in ("any", "all"):
        return g.Const(reduction == "all", dtype, span)
    if reduction in ("sum", "prod"):
        one = int(reduction == "prod")
        return g.Const(float(one) if dtype.is_float else one, dtype, span)
    sign = -1 if reduction in ("max", "argmax") else 1
    if dtype.is_float:
        return g.Const(sign * math.inf, dtype, span)
    return g.Const(limits(dtype)[0 if sign < 0 else 1], dtype, span)
