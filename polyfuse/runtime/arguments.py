"""Arguments of a call: what fits an operator, and what memory the kernels get.

Nothing is converted silently: a dtype, rank or extent that does not fit is an `ArgumentError` that
names the argument.  Memory that kernels cannot use as it stands (byte order, alignment, read-only
outputs, outputs that overlap inputs) goes through a copy, which changes nothing but the speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.dtypes import BF16, F16, F64, QUARTERS, DType, from_numpy
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.tensor_graph import Tensor

Array = np.ndarray[Any, np.dtype[Any]]


def check_array(t: Tensor, value: object, sizes: Mapping[str, int]) -> Array:
    """The array of one argument in native byte order, its dtype and shape checked.

    Raises ArgumentError: PF402 for a dtype, PF401 for a rank, PF405 for an extent.
    """
    if not t.shape and t.dtype in QUARTERS:  # of a rank variable that stands for no axis
        raise _other_dtype(t, "is a scalar here", "floats of 8 bits are elements of tensors: give it an axis")
    array = as_array(value, t.dtype) if not t.shape else np.asarray(value)
    if isinstance(value, (list, tuple)) and array.dtype != t.dtype.numpy:
        library = "ml_dtypes" if t.dtype is BF16 else "np"
        raise _other_dtype(
            t,
            f"is a {type(value).__name__}, of which NumPy makes {array.dtype}",
            f"make the array yourself: np.array({t.name}, {library}.{t.dtype.numpy.name})",
        )
    number = isinstance(value, (int, float, np.integer, np.floating))
    if number and not t.shape and from_numpy(array.dtype) != t.dtype:
        kind = "int" if t.dtype.is_integer else "bool" if t.dtype.is_bool else "float"
        raise _other_dtype(t, f"is {value}, of type {type(value).__name__}", f"convert it: {kind}({t.name})")
    check_fits(t, array.dtype, array.shape, sizes)
    return array


def _other_dtype(t: Tensor, what: str, hint: str) -> ArgumentError:
    message = f"argument '{t.name}' {what}; the operator takes {t.dtype}"
    return ArgumentError(message, code="PF402", span=t.span, hint=hint)


def check_fits(t: Tensor, dtype: np.dtype[Any], shape: tuple[int, ...], sizes: Mapping[str, int]) -> None:
    """Refuse a dtype or shape that is not the tensor's, wherever the array lies; raises as `check_array`."""
    if from_numpy(dtype) != t.dtype and from_numpy(dtype.newbyteorder("=")) != t.dtype:
        raise _other_dtype(t, f"has dtype {dtype}", f"convert it: {t.name}.astype('{t.dtype.numpy}')")
    want = tuple(evaluate(e, sizes) for e in t.shape)
    if shape != want:
        raise ArgumentError(
            f"argument '{t.name}' has shape {shape}, the operator takes {want} here",
            code="PF401" if len(shape) != len(want) else "PF405",
            span=t.span,
        )


def as_array(value: object, dtype: DType) -> Array:
    """A scalar argument as a 0-d array. Python and NumPy numbers convert as literals do: integers to any type
    that holds them, floats to any float type."""
    if isinstance(value, np.generic) and from_numpy(value.dtype) != dtype:
        value = value.item()
    array = np.asarray(value)
    if array.shape != () or from_numpy(array.dtype) == dtype:
        return array
    weak = isinstance(value, (bool, int, float))
    if weak and (dtype.is_float or (dtype.is_integer and isinstance(value, int)) or isinstance(value, bool)):
        if dtype.is_integer and not _in_range(int(value), dtype):  # type: ignore[call-overload]
            raise ArgumentError(f"{value} does not fit into {dtype}", code="PF402")
        try:
            return np.asarray(_in_reach(value, dtype)).astype(dtype.numpy)
        except OverflowError:
            raise ArgumentError(f"a number is too large for {dtype}", code="PF402") from None
    return array


def _in_reach(value: object, dtype: DType) -> object:
    """The value; an infinity where it is rounded to one, which NumPy would warn of.

    `np.errstate` would not do: it sets a context variable, and CPython up to 3.11 reads freed memory if in
    the middle of that the garbage collector runs a finaliser that sets one too (another call of a function).
    """
    if not dtype.is_float or not isinstance(value, (int, float)):
        return value
    if abs(value) >= 2**63:
        value = float(value)  # NumPy has no integer type for it
    if dtype is F64:
        return value
    halfway = (2 - dtype.eps / 2) * 2.0 ** (15 if dtype is F16 else 127)  # from the largest to the next power
    return math.copysign(math.inf, value) if abs(value) >= halfway else value


def _in_range(value: int, dtype: DType) -> bool:
    limits = np.iinfo(dtype.numpy)
    return int(limits.min) <= value <= int(limits.max)


def usable(array: Array) -> bool:
    """Can a kernel read this memory as it stands?"""
    return array.flags.aligned and array.dtype.isnative and _whole_strides(array)


def _whole_strides(array: Array) -> bool:
    return all(s % array.itemsize == 0 for s, n in zip(array.strides, array.shape, strict=True) if n > 1)


def dense(array: Array) -> bool:
    """Row-major without gaps."""
    return array.flags.c_contiguous


def element_strides(array: Array) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


def meets_itself(array: Array) -> bool:
    """May two elements of the array share memory? Never wrongly False; exact for views made by slicing,
    transposing and broadcasting."""
    reach = array.itemsize  # bytes from the first to the end of the last element, of the dims so far
    for stride, n in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride < reach:
            return array.size > 0
        reach += stride * (n - 1)
    return False


def share_elements(a: Array, b: Array) -> bool:
    """Do the two arrays share memory? (Exactly, where that is found out fast; else True.)"""
    try:
        return bool(np.shares_memory(a, b, max_work=10_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def overlaps(a: Array, b: Array) -> bool:
    """May the two arrays share memory? (Bounds only: cheap, and never wrongly False.)"""
    return bool(np.may_share_memory(a, b))
