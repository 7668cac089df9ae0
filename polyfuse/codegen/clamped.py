"""Minima and maxima with a number, and conversions of what they bound, on a CPU.

    max(x, 0.0)                           pf_at_least_f32(x, pf_bound_f32_00000000)
    u8(min(max(x, 0.0), 255.0))     ->    pf_u8_within_f32(pf_at_most_f32(pf_at_least_f32(x, ...), ...))

The number is no NaN, so one comparison is enough, on the side that lets a NaN through.  It is a variable of
the source (a PF_LIMIT), as gcc 12 makes one instruction of that only where it does not know the number, in
place of two comparisons and two blends.  What lies within an integer type is converted without a look at
the type's ends.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable

import numpy as np

from polyfuse.codegen.c_family import literal
from polyfuse.ir.dtypes import ALL, F32, F64, DType
from polyfuse.ir.intervals import fits, of_tree
from polyfuse.ir.tensor_graph import Apply, Cast, Const, Expr

_BOUNDING = {"max": "at_least", "min": "at_most"}
_FORMATS = {F32: ">f", F64: ">d"}
_BY_NAME = {t.name: t for t in _FORMATS}
_BOUND = re.compile(r"\bpf_bound_(f32|f64)_([0-9a-f]+)\b")


def names() -> tuple[str, ...]:
    """The functions that are called."""
    bounding = [f"pf_{b}_{t.name}" for b in _BOUNDING.values() for t in _FORMATS]
    return (*bounding, *(f"pf_{i.name}_within_{t.name}" for i in ALL if i.is_integer for t in _FORMATS))


def bounded(e: Apply) -> tuple[str, Expr, str] | None:
    """(function, value, name of the bound) of a minimum or maximum of floats with a number."""
    if e.op not in _BOUNDING or e.dtype not in _FORMATS:
        return None
    for value, bound in (e.args, e.args[::-1]):
        if isinstance(bound, Const) and not isinstance(value, Const) and not math.isnan(bound.value):
            digits = struct.pack(_FORMATS[e.dtype], _number(bound)).hex()
            return f"pf_{_BOUNDING[e.op]}_{e.dtype.name}", value, f"pf_bound_{e.dtype.name}_{digits}"
    return None


def within(e: Cast) -> bool:
    """Is a float converted to an integer type that its bounds lie in?"""
    if e.arg.dtype not in _FORMATS or not e.dtype.is_integer:
        return False
    return fits(of_tree(e.arg), e.dtype)


def bounds_text(functions: Iterable[str]) -> str:
    """The variables of all bounds that functions name."""
    found = {m[0]: m for text in functions for m in _BOUND.finditer(text)}
    return "".join(_variable(m[0], _BY_NAME[m[1]], m[2]) for _, m in sorted(found.items()))


def _variable(name: str, dtype: DType, digits: str) -> str:
    (value,) = struct.unpack(_FORMATS[dtype], bytes.fromhex(digits))
    return f"PF_LIMIT {dtype.c_name} {name} = {literal(value, dtype)};\n"


def _number(c: Const) -> float:
    """The number as its type has it."""
    with np.errstate(over="ignore"):
        return float(c.dtype.numpy.type(c.value))
