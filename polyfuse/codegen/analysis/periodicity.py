"""What an index says of digits: the periods of `v // K` and `v % K` in a loop over `v`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import For, map_values


def periods(loop: For) -> set[int] | None:
    """After how many iterations the remainders of a loop's digits come again; None if that is not known."""
    found: set[int] = set()
    known = True
    for digit in divisions_of_loop(loop):
        period = period_of(digit, loop.var)
        known = known and period is not None
        if period is not None:
            found.add(period[0])
    return found - {1} if known else None


def divisions_of_loop(loop: For) -> Iterator[IBin]:
    """Divisions by constants that the loop's variable is in, outer ones first."""
    every: list[IBin] = []

    def look(e: IndexExpr) -> IndexExpr:
        every.extend(divisions_in(e, loop.var))
        return e

    map_values(loop.body, lambda e: e, look)
    yield from dict.fromkeys(every)


def divisions_in(e: IndexExpr, var: str) -> Iterator[IBin]:
    if isinstance(e, IBin):
        if e.op in ("//", "%") and isinstance(e.right, IConst) and var in variables(e.left):
            yield e
        yield from divisions_in(e.left, var)
        yield from divisions_in(e.right, var)


def period_of(e: IndexExpr, var: str) -> tuple[int, int] | None:
    """(p, d): when the variable grows by p, the expression grows by d, wherever it is."""
    match e:
        case IBin("//" | "%" as op, left, IConst(by)) if var in variables(left) and by > 0:
            inner = period_of(left, var)
            if inner is None:
                return None
            times = by // math.gcd(by, inner[1])
            return inner[0] * times, inner[1] * times // by if op == "//" else 0
        case _:
            parts = [(_of_atom(a, var), c) for a, c in linear(e).terms if var in variables(a)]
            every = [(p, c) for p, c in parts if p is not None]
            length = math.lcm(*(p[0] for p, _ in every))
            known = len(every) == len(parts)
            return (length, sum(c * d * (length // p) for (p, d), c in every)) if known else None


def _of_atom(atom: IndexExpr, var: str) -> tuple[int, int] | None:
    match atom:
        case IVar():
            return 1, 1
        case IBin("//" | "%", _, IConst()):
            return period_of(atom, var)
        case _:
            return None


def by_steps(loop: For, lanes: int, start: IndexExpr) -> For:
    """The loop with the digits of an iteration in a step of so many lanes from `start` on; itself where
    they may change within a step."""
    if not linear(loop.lower).divisible(lanes):
        return loop
    for digit in divisions_of_loop(loop):
        assert isinstance(digit.right, IConst)
        top = linear(digit.left)
        var = IVar(loop.var)
        alone = not any(loop.var in variables(a) for a, _ in top.without(var).terms)
        if digit.right.value % lanes or top.factor(var) != 1 or not alone:
            return loop
        if not top.without(var).divisible(lanes):
            return loop

    def index(e: IndexExpr) -> IndexExpr:
        match e:
            case IBin("//" | "%" as op, left, IConst(by)) if loop.var in variables(left):
                first = binary(op, substitute(left, {loop.var: start}), by)
                return first if op == "//" else binary("+", first, binary("-", IVar(loop.var), start))
            case IBin(op, left, right):
                return binary(op, index(left), index(right))
            case _:
                return e

    return replace(loop, body=map_values(loop.body, lambda e: e, index))
