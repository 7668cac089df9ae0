"""Ranges of indices: strips that loops run over, bounds that minima and maxima give, where indices turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, evaluate, sizes, variables
from polyfuse.ir.linear import Linear, linear
from polyfuse.ir.loop_ir import For


@dataclass(frozen=True, slots=True)
class Strip:
    """A loop within `start .. start + length`, where start is a multiple of `multiple` (0: is 0)."""

    start: IndexExpr
    length: int
    multiple: int

    def fits(self, extent: int) -> bool:
        return self.length <= extent and self.multiple % extent == 0

    def inside(self, extent: int) -> bool:
        """Is it a part of one of several pieces of a window?"""
        return 0 < self.multiple < extent and extent % self.multiple == 0 and self.length <= self.multiple

    def one(self, extent: int) -> bool:
        """Is all of it in one window?"""
        return self.fits(extent) or self.inside(extent)

    def quotient(self, extent: int) -> IndexExpr:
        """`start // extent`, where the window fits."""
        match self.start:
            case IBin("*", IConst(c), x) | IBin("*", x, IConst(c)) if c % extent == 0:
                return binary("*", x, c // extent)
            case IBin("*", IConst(c), x) | IBin("*", x, IConst(c)):
                return binary("//", x, extent // c)
            case _:
                return binary("//", self.start, extent)


def strip_of(loop: For) -> Strip | None:
    """The strip that a loop runs over, from its start on."""
    return _strip(loop.lower, loop.upper)


def strip_around(loop: For) -> Strip | None:
    """The strip that a loop stays in: it may begin at a later place."""
    found = [s for start in at_least(loop.lower) if (s := _strip(start, loop.upper))]
    return min(found, key=lambda s: s.length, default=None)


def _strip(start: IndexExpr, upper: IndexExpr) -> Strip | None:
    match start:
        case IConst(0):
            multiple = 0
        case IBin("*", IConst(c), IVar()) | IBin("*", IVar(), IConst(c)):
            multiple = c
        case _:
            return None
    lengths = [x.value for end in at_most(upper) if isinstance(x := _difference(end, start), IConst)]
    return Strip(start, min(lengths), multiple) if lengths else None


def at_least(e: IndexExpr) -> list[IndexExpr]:
    """Expressions that an expression is not below: the arms of a maximum."""
    match e:
        case IBin("max", left, right):
            return [*at_least(left), *at_least(right)]
        case _:
            return [e]


def at_most(e: IndexExpr) -> list[IndexExpr]:
    """Expressions that an expression does not exceed: the arms of a minimum."""
    match e:
        case IBin("min", left, right):
            return [*at_most(left), *at_most(right)]
        case IBin("+", IBin("min", left, right), IConst() as c):
            return [binary("+", x, c) for x in (*at_most(left), *at_most(right))]
        case _:
            return [e]


def _difference(end: IndexExpr, start: IndexExpr) -> IndexExpr:
    match end:
        case IBin("+", left, IConst() as c) if left == start:
            return c
        case _:
            return binary("-", end, start)


def cuts(e: IndexExpr, var: str, low: int, high: int) -> Iterator[int]:
    """From which values of the variable on an extreme is its other arm, or a quotient another; inner ones
    first."""
    if not isinstance(e, IBin) or var not in variables(e):
        return
    yield from cuts(e.left, var, low, high)
    yield from cuts(e.right, var, low, high)
    match e:
        case IBin("min" | "max", left, right):
            yield from turning_points(linear(left - right), var)
        case IBin("//" | "%", top, IConst(size)) if size > 0 and {*variables(top), *sizes(top)} == {var}:
            first, last = sorted(evaluate(top, {var: v}) // size for v in (low, high - 1))
            for quotient in range(first + 1, min(last, first + FITTED.clamped_indices_most_pieces) + 1):
                yield from turning_points(linear(top - quotient * size), var)


def turning_points(e: Linear, var: str) -> Iterator[int]:
    """From which value of the variable on it is 0 or more, or no longer: none if it depends on others."""
    k = e.factor(IVar(var))
    if k and len(e.terms) == 1:
        yield -(e.constant // k) if k > 0 else e.constant // -k + 1
