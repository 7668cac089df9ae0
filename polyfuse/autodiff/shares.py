"""Shares of gradients: what an instance of a statement adds to an element, and the conditions for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from polyfuse.autodiff.algebra import added, factored
from polyfuse.autodiff.index_facts import IndexFacts
from polyfuse.autodiff.inversion import Condition
from polyfuse.frontend_dsl.semantics.size_algebra import add, to_index
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, substitute
from polyfuse.ir.linear import conjuncts
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
    Select,
    map_expr,
    walk,
)


@dataclass(frozen=True, slots=True)
class Share:
    """What an instance of a statement adds to the gradient of an element that it reads."""

    indices: tuple[Index, ...]
    dims: tuple[IterDim, ...]
    conditions: tuple[Expr, ...]
    value: Expr
    at: Read


@dataclass(frozen=True, slots=True)
class Term:
    """A term, the variables that it is summed over, and what has to hold for the sum to count."""

    left: tuple[IterDim, ...]
    outside: tuple[Expr, ...]
    value: Expr


def merged(shares: Iterable[Share]) -> Iterator[Share]:
    """Shares of one element under the same conditions become one."""
    together: dict[tuple[object, ...], list[Share]] = {}
    for s in shares:
        together.setdefault((s.indices, s.dims, s.conditions), []).append(s)
    for same in together.values():
        value = (
            added([s.value for s in same], same[0].value.dtype) if len(same) > 1 else factored(same[0].value)
        )
        yield replace(same[0], value=value)


def moved(e: Expr, at: Mapping[str, IndexExpr], known: IndexFacts | None = None) -> Expr:
    """The expression with values for variables."""

    def over(i: IndexExpr) -> IndexExpr:
        moved = substitute(i, at)
        return known.simple(moved) if known is not None and moved is not i else moved

    def chosen(x: Expr) -> Expr:
        decided = isinstance(x, Select) and known is not None and simplified(x.cond, known) == _TRUE
        return x.then if decided else x  # type: ignore[union-attr]

    return map_expr(e, chosen, over)


def on_indices(cond: Expr) -> bool:
    """Does it speak of indices?"""
    return any(isinstance(x, IndexValue) for x in walk(cond))


def is_at(index: Expr, name: str) -> Expr:
    """Is an index from data that of the element?"""
    return Apply("eq", (as_i64(index), IndexValue(IVar(name), I64)), BOOL)


def as_i64(e: Expr) -> Expr:
    """An integer as one of 64 bits."""
    return e if e.dtype is I64 else Cast(e, I64)


def guarded(index: Index, conditions: Iterable[Expr]) -> Index:
    """An index, 0 where a condition on it says that nothing is read."""
    own: Expr = index if isinstance(index, EXPR_TYPES) else IndexValue(index, I64)
    for c in conditions:
        if own in walk(c):
            index = Select(c, own, Const(0, own.dtype), own.dtype)
    return index


def negated(cond: Expr) -> Expr:
    """The opposite of a condition."""
    if isinstance(cond, Apply) and cond.op == "not":
        return cond.args[0]
    return Apply("not", (cond,), BOOL)


def as_expr(c: Condition, known: IndexFacts) -> Expr:
    """The condition with what is added on both sides, nothing subtracted."""
    p = add(known.poly(c.left), known.poly(c.right), -1)
    op, strict = ("ge", "gt") if c.op == ">=" else ("eq", "eq")
    if p.get(()) == -1 and c.op == ">=":
        op, p = strict, {m: k for m, k in p.items() if m}
    above = to_index({m: k for m, k in p.items() if k > 0})
    below = to_index({m: -k for m, k in p.items() if k < 0})
    return Apply(op, (IndexValue(above, I64), IndexValue(below, I64)), BOOL)


def simplified(cond: Expr, known: IndexFacts) -> Expr:
    """The parts of a condition on indices that do not always hold."""
    if isinstance(cond, Apply) and cond.op == "and":
        left, right = (simplified(a, known) for a in cond.args)
        if left == _TRUE or right == _TRUE:
            return right if left == _TRUE else left
        return cond if (left, right) == cond.args else Apply("and", (left, right), BOOL)
    found = conjuncts(cond)
    if found is not None and all(known.at_least(c, IConst(0)) for c in found):
        return _TRUE
    return cond


_TRUE = Const(True, BOOL)
