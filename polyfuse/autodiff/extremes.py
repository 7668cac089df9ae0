"""Extremes: which of their terms have the gradient.

Equal elements of memory share it.  Of terms that are computed the first has it.  A running extreme stands at
the last element that is better than all before it, which one pass finds:

    y[t]  = max[i in 0..t+1](x[i])
    at[t] = max[i in 0..t+1](i if x[i] > y[i-1] else 0)
"""

from __future__ import annotations

from polyfuse.autodiff.algebra import apply, converted
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.linear import linear
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
    Role,
    Select,
    Statement,
    TensorGraph,
    depends_on,
    map_index,
)


def at_extreme(graph: TensorGraph, s: Statement) -> tuple[list[Expr], Expr]:
    """When a term is the extreme, and the term without what leaves others out."""
    t = graph.tensor(s.target)
    conditions, term = [], s.expr
    while isinstance(term, Select) and s.reduction and _is_number(term.other):
        conditions.append(term.cond)
        term = term.then
    out = converted(Read(t.name, s.write, t.dtype), t.dtype.compute)
    rounded = term if t.dtype is term.dtype else Cast(term, t.dtype)
    return [*conditions, apply("eq", converted(rounded, t.dtype.compute), out)], term


def is_stored(graph: TensorGraph, e: Expr) -> bool:
    """Is it an element that nobody computes again?"""
    if isinstance(e, Cast):
        return e.arg.dtype.compute is e.dtype and is_stored(graph, e.arg)
    if not isinstance(e, Read):
        return False
    written = graph.writers(e.tensor)
    return graph.tensor(e.tensor).role is not Role.TEMP or all(s.reduction for s in written)


def _is_number(e: Expr) -> bool:
    return isinstance(e, Const) or (isinstance(e, Apply) and e.op == "neg" and _is_number(e.args[0]))


# --- running extremes ---------------------------------------------------------------------------------


def running_place(s: Statement, name: str) -> Statement | None:
    """The statement that finds the places in a tensor of this name; None where the range of the extreme does
    not grow by one element from one element on."""
    found = _grows(s)
    if found is None:
        return None
    d, t, forward = found
    first: IndexExpr = d.lower if forward else binary("-", d.upper, 1)
    # Of the range that ends before an element: 0..t+1 at t = i - 1, t..T at t = i + 1.
    moved = linear(d.upper if forward else d.lower)
    shift = moved.constant - (0 if forward else 1)
    at = {t.name: binary("-", IVar(d.name), shift)}
    before = tuple(map_index(i, lambda e: e, lambda i: substitute(i, at)) for i in s.write)
    own = IndexValue(IVar(d.name), I64)
    op = "gt" if s.reduction == "max" else "lt"
    better = Apply(op, (s.expr, Read(s.target, before, s.expr.dtype)), BOOL)
    later = Apply("ne", (own, IndexValue(first, I64)), BOOL)
    new = Select(later, better, Const(True, BOOL), BOOL)
    value: Expr = Select(new, own, IndexValue(first, I64), I64)
    return Statement(name, name, s.dims, s.write, value, "max" if forward else "min")


def _grows(s: Statement) -> tuple[IterDim, IterDim, bool] | None:
    """The variable of the extreme, the one that its range moves with, and does it grow at the end?"""
    reduced = [d for d in s.dims if d.reduce]
    if s.reduction not in ("max", "min") or len(reduced) != 1 or not _plain(s.write):
        return None
    (d,) = reduced
    up, low = variables(d.upper), variables(d.lower)
    if len(up) + len(low) != 1:
        return None
    (name,) = up or low
    t = next(x for x in s.dims if x.name == name)
    moving = linear(d.upper if up else d.lower)
    if name in depends_on(s.expr) or moving.terms != ((IVar(name), 1),):
        return None
    # The first range has one element.
    if up:
        one = linear(binary("-", substitute(d.upper, {name: t.lower}), d.lower))
    else:
        one = linear(binary("-", d.upper, substitute(d.lower, {name: binary("-", t.upper, 1)})))
    return (d, t, bool(up)) if not one.terms and one.constant == 1 else None


def _plain(write: tuple[Index, ...]) -> bool:
    return all(isinstance(i, IVar | IConst) for i in write if not isinstance(i, EXPR_TYPES)) and not any(
        isinstance(i, EXPR_TYPES) for i in write
    )
