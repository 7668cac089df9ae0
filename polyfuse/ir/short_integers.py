"""Integers of 32 bits that have room in 16: bytes, shorts, and bytes less a zero point."""

from __future__ import annotations

from polyfuse.ir.dtypes import BOOL, I8, I16, I32, U8
from polyfuse.ir.tensor_graph import Apply, Cast, Const, Expr

_VALUES = {BOOL: (0, 1), U8: (0, 255), I8: (-128, 127), I16: (-(1 << 15), (1 << 15) - 1)}


def is_half(e: Expr) -> bool:
    """Has an i32 room in 16 bits, sign and all, whatever the data?"""
    found = _values(e)
    least, most = _VALUES[I16]
    return found is not None and least <= found[0] and found[1] <= most


def is_byte(e: Expr, signed: bool) -> bool:
    """Has an i32 room in 8 bits, with a sign or without one, whatever the data?"""
    found = _values(e)
    least, most = _VALUES[I8 if signed else U8]
    return found is not None and least <= found[0] and found[1] <= most


def _values(e: Expr) -> tuple[int, int] | None:
    """The least and the greatest value of an i32; None where that is not known to be short."""
    match e:
        case Cast() if e.dtype == I32:
            return _VALUES.get(e.arg.dtype)
        case Const(int(value)) if e.dtype == I32:
            return value, value
        case Apply("add" | "sub", (left, right)) if e.dtype == I32:
            a, b = _values(left), _values(right)
            if a is None or b is None:
                return None
            return (a[0] + b[0], a[1] + b[1]) if e.op == "add" else (a[0] - b[1], a[1] - b[0])
        case _:
            return None
