"""Rows that data bound, seen from an element: `e in ptr[n]..ptr[n+1]` holds for one `n`, as pointers rise."""

from __future__ import annotations

from typing import Protocol

from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, variables
from polyfuse.ir.ops import INDEX
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    IterDim,
    Read,
    map_expr,
)

_BY_SIGN = {sign: name for name, sign in INDEX.items()}


class _Instances(Protocol):
    """What has variables and elements that it touches."""

    @property
    def dims(self) -> tuple[IterDim, ...]: ...
    @property
    def indices(self) -> tuple[Index, ...]: ...


def row_of(cond: Expr, share: _Instances) -> tuple[Read, IterDim, IterDim] | None:
    """The pointer at a row's begin, the variable of the row and that of the element; None where it is no
    such condition, or where rows are what is touched."""
    match cond:
        case Apply(
            "and",
            (
                Apply("le", (Apply("within", (low, _, _)), IndexValue(IVar(e)))),
                Apply("lt", (IndexValue(IVar(same)), Apply("within", (high, _, _)))),
            ),
        ) if e == same:
            first, last = _element(low), _element(high)
        case _:
            return None
    if first is None or last is None or first.tensor != last.tensor or len(first.indices) != 1:
        return None
    dims = {d.name: d for d in share.dims}
    match first.indices, last.indices:
        case (IVar(n),), (IBin("+", IVar(m), IConst(1)),) if n == m and n in dims and e in dims:
            pass
        case _:
            return None
    row, element = dims[n], dims[e]
    ends = (row.lower, element.lower)
    bounds = [v for d in share.dims for b in (d.lower, d.upper) for v in variables(b)]
    touched = [v for i in share.indices if not isinstance(i, EXPR_TYPES) for v in variables(i)]
    if ends != (IConst(0), IConst(0)) or n in bounds or e in bounds or n in touched or _by_data(share, n):
        return None
    return first, row, element


def _by_data(share: _Instances, name: str) -> bool:
    """Is the variable part of an index that is data?"""
    found = [i for i in share.indices if isinstance(i, EXPR_TYPES)]
    return any(with_data(i, name, Const(0, I64)) != i for i in found)


def _element(e: Expr) -> Read | None:
    inner = e.arg if isinstance(e, Cast) else e
    return inner if isinstance(inner, Read) else None


def with_data(e: Expr, name: str, value: Expr) -> Expr:
    """The expression with a value from data for a variable."""

    def over(x: Expr) -> Expr:
        match x:
            case Read(_, indices):
                found = tuple(i if isinstance(i, EXPR_TYPES) else _computed(i, name, value) for i in indices)
                return Read(x.tensor, found, x.dtype, x.span) if found != indices else x
            case IndexValue(index, dtype) if name in variables(index):
                made = _computed(index, name, value)
                assert isinstance(made, EXPR_TYPES)
                return made if dtype is I64 else Cast(made, dtype)
            case _:
                return x

    return map_expr(e, over)


def _computed(i: IndexExpr, name: str, value: Expr) -> Index:
    """An index as it is, or computed from the value."""
    if name not in variables(i):
        return i
    if isinstance(i, IVar):
        return value
    assert isinstance(i, IBin)
    parts = (_computed(p, name, value) for p in (i.left, i.right))
    left, right = (p if isinstance(p, EXPR_TYPES) else IndexValue(p, I64) for p in parts)
    return Apply(_BY_SIGN[i.op], (left, right), I64)
