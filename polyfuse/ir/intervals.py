"""What values an expression may have: an interval, from dtypes, bounds of loops and what operations give.

    i64(floor(min(max(u, 0.0), 255.0))) + 1      lies in      1..256
    (i + j) % 2                                  lies in      0..1

Both ends are included; those of floats may be infinite, and a NaN lies in every interval of floats.  Integers
wrap: what may leave its dtype may be any number of it.  Floats are rounded once or not at all, in an order
that compilers may choose, and subnormal numbers may become zero: their intervals have a margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from polyfuse.ir.dtypes import BOOL, I8, I16, I32, U8, DType
from polyfuse.ir.linear import Range, combined, interval
from polyfuse.ir.ops import INDEX
from polyfuse.ir.tensor_graph import Apply, Cast, Const, Expr, IndexValue, IterDim, Read, Select

# The values between two numbers; floats for floats.
Interval = tuple[float, float]

# Of floats that operations round, relative and absolute: more than the rounding of f32, and all subnormals.
_MARGIN, _SMALL = 1e-6, 1e-37
_LARGEST = 3e38
_WHOLE: dict[str, Callable[[float], int]] = {"floor": math.floor, "ceil": math.ceil, "round": round}


def of_dims(dims: Sequence[IterDim], sizes: Mapping[str, Range] = MappingProxyType({})) -> dict[str, Range]:
    """The values of a statement's variables, of those whose bounds are known, and those of open sizes
    (`ir.linear.size_ranges`)."""
    found = dict(sizes)
    for d in dims:
        low, high = interval(d.lower, found), interval(d.upper - 1, found)
        if low is not None and high is not None:
            found[d.name] = low[0], max(high[1], low[0])
    return found


def of_dtype(dtype: DType) -> Interval:
    """All values of a type."""
    if dtype.is_float:
        return -math.inf, math.inf
    if dtype.is_bool:
        return 0, 1
    return dtype.limits


def fits(values: Interval, dtype: DType) -> bool:
    """Are all values of an integer type?"""
    low, high = of_dtype(dtype)
    return low <= values[0] and values[1] <= high


def joined(a: Interval, b: Interval) -> Interval:
    """The values of both."""
    return min(a[0], b[0]), max(a[1], b[1])


def of_expr(
    e: Expr, parts: Sequence[Interval], dims: Mapping[str, Range], tensors: Mapping[str, Interval]
) -> Interval:
    """The values of an expression. `parts` are those of its operands (the condition of a choice is none),
    `dims` of the loop variables and `tensors` of tensors that are known."""
    match e:
        case Const(value, dtype):
            known: Interval = of_dtype(dtype) if math.isnan(value) else (value, value)
            return _as(known, dtype)
        case IndexValue(index, dtype):
            found = interval(index, dims)
            return of_dtype(dtype) if found is None else _as(found, dtype)
        case Read(tensor, _, dtype):
            return tensors.get(tensor, of_dtype(dtype))
        case Select():
            return joined(*parts)
        case Cast(arg, dtype):
            return _converted(parts[0], arg.dtype, dtype)
        case Apply(op, _, dtype):
            made = (
                _integers(op, parts) if dtype.is_integer else _floats(op, parts) if dtype.is_float else None
            )
            return of_dtype(dtype) if made is None else _as(made, dtype)


def of_tree(e: Expr, dims: Mapping[str, Range] | None = None) -> Interval:
    """The values of an expression of whose tensors, and variables but `dims`, only the dtypes are known."""
    match e:
        case Apply(_, args):
            parts = list(args)
        case Select(_, then, other):
            parts = [then, other]
        case Cast(arg):
            parts = [arg]
        case _:
            parts = []
    return of_expr(e, [of_tree(p, dims) for p in parts], dims or {}, {})


def _as(values: Interval, dtype: DType) -> Interval:
    """Values of a type; all of it, where some are none: integers wrap, floats overflow."""
    if dtype.is_float:
        low, high = (float(v) if abs(v) < _LARGEST else math.copysign(math.inf, v) for v in values)
        return low - _inexact(low), high + _inexact(high)
    return values if fits(values, dtype) else of_dtype(dtype)


def _inexact(value: float) -> float:
    """How far f32 may be from a number: not at all from small integers, and infinities."""
    return 0.0 if math.isinf(value) or (value.is_integer() and abs(value) < 2**24) else _slack(value)


def _converted(values: Interval, source: DType, target: DType) -> Interval:
    """Floats become integers toward zero, at the ends of the type at most, and NaN becomes 0."""
    if target.is_bool or target.compute is not target:
        return of_dtype(target)
    if source.is_float and target.is_integer:
        ends = of_dtype(target)
        low, high = (ends[0] if v <= ends[0] else ends[1] if v >= ends[1] else math.trunc(v) for v in values)
        return min(low, 0), max(high, 0)
    return _as(values, target)


def _integers(op: str, parts: Sequence[Interval]) -> Interval | None:
    match op, parts:
        case ("neg" | "abs", _):
            return _signs(op, *parts[0])
        case (("floordiv" | "mod"), (_, (low, high))) if not 0 < low == high:
            # A remainder of a division by 0 is 0.
            return (0, high - 1) if op == "mod" and low >= 0 and high > 0 else None
        case (_, (a, b)) if op in INDEX:
            return combined(INDEX[op], _whole(a), _whole(b))
        case (("bitand" | "bitor" | "bitxor" | "shr"), (a, b)):
            return _bits(op, _whole(a), _whole(b))
        case _:
            return None


def _bits(op: str, a: Range, b: Range) -> Interval | None:
    """Of numbers without sign bits no result has more bits than they; a mask adds none."""
    if op == "bitand" and (a[0] >= 0 or b[0] >= 0):
        return 0, min(high for low, high in (a, b) if low >= 0)
    if a[0] < 0 or b[0] < 0:
        return None
    if op == "shr":
        return a[0] >> min(b[1], 64), a[1] >> min(b[0], 64)
    return 0, (1 << max(a[1].bit_length(), b[1].bit_length())) - 1


def _signs(op: str, low: float, high: float) -> Interval:
    """The negative or absolute values."""
    if op == "neg" or high <= 0:
        return -high, -low
    return max(low, 0), max(high, -low)


def _whole(values: Interval) -> Range:
    return int(values[0]), int(values[1])


def _floats(op: str, parts: Sequence[Interval]) -> Interval | None:
    match op, parts:
        case ("neg" | "abs", _):
            return _signs(op, *parts[0])
        case (("floor" | "ceil" | "round"), ((low, high),)):
            return _truncated(op, low), _truncated(op, high)
        case (("min" | "max"), (a, b)):
            choose = min if op == "min" else max
            return choose(a[0], b[0]), choose(a[1], b[1])
        case (("add" | "sub" | "mul"), (a, b)) if all(map(math.isfinite, (*a, *b))):
            made = _rounded(op, a, b)
            exact = all(v.is_integer() for v in map(float, (*a, *b)))
            return made if exact else (made[0] - _slack(made[0]), made[1] + _slack(made[1]))
        case _:
            return None


def _rounded(op: str, a: Interval, b: Interval) -> Interval:
    if op == "add":
        return a[0] + b[0], a[1] + b[1]
    if op == "sub":
        return a[0] - b[1], a[1] - b[0]
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _truncated(op: str, value: float) -> float:
    return float(_WHOLE[op](value)) if math.isfinite(value) else value


def _slack(value: float) -> float:
    return abs(value) * _MARGIN + _SMALL


# --- integers that have room in 16 bits -------------------------------------------------------------------


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
