"""Ranges that data bounds: terms of totals under tests of a variable against numbers that it does not change.

    total[n] sum= w[e] if ptr[n] <= e and e < ptr[n + 1] else 0.0        e lies in ptr[n]..ptr[n + 1]

The language's reductions with bounds from data are such terms, and a program may write them.  Loops over
the variable get these bounds (`codegen.transforms.data_ranges`), so a loop over what the numbers depend on
belongs outside of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polyfuse.ir.dtypes import I64, U64, DType
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IndexExpr, IVar, binary
from polyfuse.ir.linear import linear
from polyfuse.ir.tensor_graph import (
    Apply,
    Cast,
    Const,
    Expr,
    IndexValue,
    Select,
    Statement,
    depends_on,
    reads,
)


@dataclass(frozen=True, slots=True)
class Test:
    """`data <= variable` of a lower bound, `variable < data` of an upper one; data is an i64."""

    data: Expr
    lower: bool


def tests_of(op: str, term: Expr, var: str) -> list[Test]:
    """Where a term does not pass these tests of a variable, it leaves a total of `op` as it is."""
    match term:
        case Select(cond, _, Const(value, dtype)) if repr(value) == repr(identity(op, dtype)):
            return [t for c in conjuncts(cond) if (t := test_of(c, var)) is not None]
        case _:
            return []


def conjuncts(cond: Expr) -> Iterator[Expr]:
    """The conditions that are joined by `and`."""
    if isinstance(cond, Apply) and cond.op == "and":
        for a in cond.args:
            yield from conjuncts(a)
    else:
        yield cond


_TURNED = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt"}


def test_of(cond: Expr, var: str) -> Test | None:
    """A comparison of a variable with data as a bound of it."""
    if not isinstance(cond, Apply) or cond.op not in _TURNED:
        return None
    op, (left, right) = cond.op, cond.args
    if isinstance(right, IndexValue):
        op, left, right = _TURNED[op], right, left
    if not isinstance(left, IndexValue) or not reads(right) or not _as_i64(right.dtype):
        return None
    at = linear(left.index)
    rest = at.without(IVar(var))
    if at.factor(IVar(var)) != 1 or var in rest.hidden or var in depends_on(right):
        return None
    data = right if right.dtype is I64 else Cast(right, I64)
    return Test(_plus(data, binary("-", int(op in ("gt", "le")), rest.expr())), op in ("gt", "ge"))


def _as_i64(dtype: DType) -> bool:
    """Does i64 have all numbers of a dtype?"""
    return dtype.is_integer and dtype is not U64


def _plus(data: Expr, more: IndexExpr) -> Expr:
    added = linear(more)
    if not added.terms and not added.constant:
        return data
    return Apply("add", (data, IndexValue(added.expr(), I64)), I64)


def bounding(s: Statement) -> dict[str, set[str]]:
    """The variables of a statement that run over what data bounds, and what else the bounds depend on."""
    if s.reduction is None:
        return {}
    found = {d.name: tests_of(s.reduction, s.expr, d.name) for d in s.dims}
    return {var: depends_on(*(t.data for t in tests)) for var, tests in found.items() if tests}


def divided(s: Statement) -> dict[str, tuple[str, ...]]:
    """The variables of a statement whose range both ends of data divide among iterations of other dims.

    All rows of `sum[e in ptr[n]..ptr[n + 1]]` together are the range of `e`, where they do not overlap.
    """
    if s.reduction is None or not isinstance(s.expr, Select):
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for d in s.dims:
        tests = tests_of(s.reduction, s.expr, d.name)
        used = depends_on(*(t.data for t in tests))
        others = tuple(o.name for o in s.dims if o.name in used and not o.reduce)
        if others and len({t.lower for t in tests}) == 2:
            found[d.name] = others
    return found
