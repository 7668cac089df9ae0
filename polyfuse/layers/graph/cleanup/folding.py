"""Constant folding: operations on constants are done by the compiler, in the dtype that they have.

Folded is only what every target computes to the same bits: IEEE's basic operations, integers (which wrap),
comparisons, booleans and casts.  Functions such as `exp` stay: kernels compute them by polynomials of their
own.  What involves a subnormal number stays as well, kernels may flush it; so do NaN and -0.0, which no
constant of a graph holds (constants are compared by value, where 0.0 is -0.0 and NaN is not itself).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from polyfuse.ir.dtypes import F32, QUARTERS, DType
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.ops import OPS, Takes, Trait
from polyfuse.ir.quarter_floats import stored
from polyfuse.ir.tensor_graph import Apply, Cast, Const, Expr, IndexValue

# A NumPy scalar of a dtype's own type.
Value = Any


def _folded(*takes: Takes) -> dict[str, Callable[..., Value]]:
    """NumPy's function of each operation that takes one of these."""
    return {o.name: getattr(np, o.numpy) for o in OPS.values() if o.takes in takes and o.numpy}


_FLOAT = {
    name: f
    for name, f in _folded(Takes.FLOATS, Takes.NUMBERS, Takes.ANY).items()
    if OPS[name].has(Trait.FOLDED)
}
_INTEGER = _folded(Takes.NUMBERS, Takes.INTEGERS, Takes.ANY)
_BOOL = _folded(Takes.BOOLS, Takes.ANY)


def fold_node(e: Expr) -> Expr:
    """An operation or cast whose operands are constants, done.

        y[i] = x[i] * (2.0 * 3.0)
    becomes
        y[i] = x[i] * 6.0

    An index value without variables (a size that is known) counts as a constant under an operation; alone
    it stays as it is written.
    """
    match e:
        case Apply(op, args):
            values = [constant_value(a) for a in args]
            if any(v is None for v in values):
                return e
            return _literal(_applied(op, values, args[0].dtype), e)
        case Cast(Cast(inner, narrow), dtype) if narrow.compute is not narrow and dtype is F32:
            # Constants have compute types: one that was rounded to 16 bits is folded with the cast back.
            value = constant_value(inner)
            if inner.dtype is not F32 or value is None or not _plain(value):
                return e
            return _literal(_converted(_converted(value, narrow), dtype), e)
        case Cast(arg, dtype) if dtype.compute is dtype:
            value = constant_value(arg)
            return e if value is None or not _plain(value) else _literal(_converted(value, dtype), e)
        case _:
            return e


def constant_value(e: Expr) -> Value | None:
    """The value of a constant, or of an index value without variables; None for what is neither."""
    match e:
        case Const(value, dtype):
            with np.errstate(over="ignore"):
                return np.asarray(value).astype(dtype.numpy)[()]
        case IndexValue(IConst(number), dtype) if -(2**63) <= number < 2**63:
            return _converted(np.int64(number), dtype)
        case _:
            return None


def _plain(value: Value) -> bool:
    """Neither a NaN nor a subnormal number, which kernels may flush."""
    if not isinstance(value, np.floating):
        return True
    return not np.isnan(value) and not 0 < abs(value) < np.finfo(value.dtype).smallest_normal


def _applied(op: str, values: list[Value], operand: DType) -> Value | None:
    """The operation done; None where it must stay."""
    table = _FLOAT if operand.is_float else _INTEGER if operand.is_integer else _BOOL
    if op not in table or not all(map(_plain, values)):
        return None
    if operand.is_float and op in ("min", "max") and values[0] == values[1]:
        return None  # which of 0.0 and -0.0 it is, IEEE leaves open
    if operand.is_integer and op in ("floordiv", "mod") and values[1] == 0:
        return None
    if operand.is_integer and op == "pow" and values[1] < 0:
        return None
    with np.errstate(all="ignore"):
        return table[op](*values)


def _converted(value: Value, target: DType) -> Value:
    """A cast: rounded once; floats to integers toward zero, saturating."""
    if target.is_bool:
        return np.bool_(value != 0)
    if isinstance(value, np.floating) and target.is_integer:
        limits = np.iinfo(target.numpy)
        wide = float(value)
        low, high = wide <= float(limits.min), wide >= float(limits.max)
        return target.numpy.type(limits.min if low else limits.max if high else int(wide))
    if target in QUARTERS:
        return stored(value, target)[()]
    with np.errstate(all="ignore"):
        return value.astype(target.numpy)


def _literal(value: Value | None, e: Expr) -> Expr:
    """The constant in place of `e`; `e` where there is none, or a graph cannot hold it."""
    if value is None or not _plain(value):
        return e
    if isinstance(value, np.floating) and value == 0 and np.signbit(value):
        return e
    return Const(value.item(), e.dtype, e.span)
