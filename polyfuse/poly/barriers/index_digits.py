"""Do indices tell the thread?  Decided by arithmetic on digits, for most accesses, without isl.

In ``1024*k0 + 4*tx + k1`` with tx in 0..255 and k1 in 0..3 the value tells every variable, as the digits
of a number do.  So where two accesses with such an index meet in an element, it was the same thread.
Conditions around an access help: they bound variables (``tx == 0``, ``k0 <= 20``), or say what is left of
one by a division (``tx % 32 == 0``, so ``tx // 32`` tells tx).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar
from polyfuse.ir.linear import Range, index_operand, interval, linear
from polyfuse.ir.ops import NEGATED
from polyfuse.ir.tensor_graph import Apply, Expr


@dataclass(slots=True)
class Facts:
    """What is known of variables at one place: ranges, and remainders as (divisor, remainder)."""

    ranges: dict[str, Range]
    remainders: dict[str, tuple[int, int]] = field(default_factory=dict)

    def learn(self, test: Expr, positive: bool) -> None:
        """A condition (or its negation) holds."""
        match test:
            case Apply("not", (arg,)):
                self.learn(arg, not positive)
            case Apply("and" | "or" as op, (left, right)):
                if (op == "and") == positive:
                    self.learn(left, positive)
                    self.learn(right, positive)
            case Apply(op, (left, right)) if op in NEGATED:
                a, b = index_operand(left), index_operand(right)
                if a is not None and b is not None:
                    self._compare(op if positive else NEGATED[op], a - b)

    def _compare(self, op: str, difference: IndexExpr) -> None:
        """`difference op 0` holds."""
        form = linear(difference)
        if len(form.terms) != 1:
            return
        (atom, factor), constant = form.terms[0], form.constant
        match atom:
            case IVar(name):
                if op in ("le", "lt", "eq"):
                    self._at_most(name, factor, constant + (op == "lt"))
                if op in ("ge", "gt", "eq"):
                    self._at_most(name, -factor, -constant + (op == "gt"))
            case IBin("%", IVar(name), IConst(n)) if op == "eq" and abs(factor) == 1:
                self.remainders[name] = n, -constant * factor

    def _at_most(self, name: str, factor: int, constant: int) -> None:
        """factor * name + constant <= 0."""
        if name not in self.ranges:
            return
        low, high = self.ranges[name]
        if factor > 0:
            high = min(high, -constant // factor)
        else:
            low = max(low, -(-constant // -factor))
        if low <= high:
            self.ranges[name] = low, high


@dataclass(frozen=True, slots=True)
class Side:
    """One of two accesses: its indices (None: any), neighbours accessed at once, and what is known there."""

    indices: tuple[IndexExpr | None, ...]
    count: int
    facts: Facts


def determined(a: Side, b: Side, coordinates: set[str]) -> set[str]:
    """Coordinates that are equal wherever both access the same element, as far as digits tell.

    All of them where they never do.
    """
    found = {v for v in coordinates if _fixed(a, v) is not None and _fixed(a, v) == _fixed(b, v)}
    pairs = [(i, j) for i, j in zip(a.indices, b.indices, strict=True) if i is not None and j is not None]
    last = a.indices[-1:] != (None,) and b.indices[-1:] != (None,)
    for k, (i, j) in enumerate(pairs):
        lanes = (a.count - 1, b.count - 1) if last and k == len(pairs) - 1 else (0, 0)
        if _disjoint(interval(i, a.facts.ranges), interval(j, b.facts.ranges), lanes):
            return set(coordinates)
        found |= _of_index(a, b, i, j, lanes, coordinates)
    if not coordinates <= found and a.count == b.count == 1:
        for i, j in _joined(pairs):
            found |= _of_index(a, b, i, j, (0, 0), coordinates)
    return found


def _fixed(side: Side, name: str) -> int | None:
    span = side.facts.ranges.get(name)
    return span[0] if span is not None and span[0] == span[1] else None


def _disjoint(a: Range | None, b: Range | None, lanes: tuple[int, int]) -> bool:
    return a is not None and b is not None and (a[1] + lanes[0] < b[0] or b[1] + lanes[1] < a[0])


# --- one index ----------------------------------------------------------------------------------------------


_Atom: TypeAlias = tuple[str, int]  # a variable, and what it is divided by: 1, or a quotient


@dataclass(slots=True)
class _Terms:
    """``sum of factor * atom + constant``; quotients of variables with known remainders are atoms."""

    factors: dict[_Atom, int]
    constant: int
    ranges: dict[_Atom, Range]


def _terms(e: IndexExpr, side: Side) -> _Terms | None:
    form = linear(e)
    found = _Terms({}, form.constant, {})
    for atom, factor in form.terms:
        match atom:
            case IVar(name) if name in side.facts.ranges:
                found.factors[name, 1], found.ranges[name, 1] = factor, side.facts.ranges[name]
            case IBin("//", IVar(name), IConst(n)) if side.facts.remainders.get(name, (0,))[0] == n:
                span = side.facts.ranges.get(name)
                if span is None:
                    return None
                found.factors[name, n] = factor
                found.ranges[name, n] = span[0] // n, span[1] // n
            case _:
                return None
    return found


def _of_index(
    a: Side, b: Side, i: IndexExpr, j: IndexExpr, lanes: tuple[int, int], coordinates: set[str]
) -> set[str]:
    left, right = _terms(i, a), _terms(j, b)
    if left is None or right is None:
        return set()
    digits: list[tuple[int, Range, str | None]] = []  # factor, how far the sides may differ, coordinate
    for atom in list(dict.fromkeys((*left.factors, *right.factors))):
        name, divisor = atom
        if name in coordinates:
            if divisor != 1 and a.facts.remainders.get(name) != b.facts.remainders.get(name):
                return set()
            fixed = (_fixed(a, name), _fixed(b, name)) if divisor == 1 else (None, None)
            factor = _levelled(left, right, atom, *fixed)
            if factor is None:
                return set()
            spans = (t.ranges.get(atom) or x.facts.ranges[name] for t, x in ((left, a), (right, b)))
            digits.append((factor, _minus(*spans), name))
    digits += _others(left, right)
    digits = [d for d in digits if d[0]]
    constant = left.constant - right.constant
    return _leading(digits, (constant - lanes[1], constant + lanes[0]))


def _levelled(left: _Terms, right: _Terms, atom: _Atom, mine: int | None, other: int | None) -> int | None:
    """Take a coordinate out of both sides; its factor, which must be the same.

    Where its value is fixed it may be put in:  ``127`` with ty = 7 is ``ty + 120``.
    """
    one, two = left.factors.pop(atom, 0), right.factors.pop(atom, 0)
    if one == two:
        return one
    if other is not None:
        right.constant += (two - one) * other
        return one
    if mine is not None:
        left.constant += (one - two) * mine
        return two
    return None


def _others(left: _Terms, right: _Terms) -> Iterator[tuple[int, Range, None]]:
    """Variables of one side only, those with the same factor as pairs."""
    rest = dict(right.factors)
    for name, factor in left.factors.items():
        partner = next((n for n, f in rest.items() if f == factor), None)
        if partner is None:
            yield factor, left.ranges[name], None
        else:
            del rest[partner]
            yield factor, _minus(left.ranges[name], right.ranges[partner]), None
    for name, factor in rest.items():
        yield -factor, right.ranges[name], None


def _minus(a: Range, b: Range) -> Range:
    return a[0] - b[1], a[1] - b[0]


def _leading(digits: list[tuple[int, Range, str | None]], rest: Range) -> set[str]:
    """From the largest factor down: a digit is 0 if all below cannot make up for one of it."""
    spans = [(f * r[0], f * r[1]) if f > 0 else (f * r[1], f * r[0]) for f, r, _ in digits]
    order = sorted(range(len(digits)), key=lambda k: abs(digits[k][0]))
    below = list(itertools.accumulate((spans[k] for k in order), _plus, initial=rest))
    found: set[str] = set()
    for k, lower in zip(reversed(order), reversed(below[:-1]), strict=True):
        if abs(digits[k][0]) <= max(-lower[0], lower[1]):
            break
        name = digits[k][2]
        if name is not None:
            found.add(name)
    return found


def _plus(a: Range, b: Range) -> Range:
    return a[0] + b[0], a[1] + b[1]


# --- quotient and remainder as two indices ------------------------------------------------------------------


def _joined(pairs: Iterable[tuple[IndexExpr, IndexExpr]]) -> list[tuple[IndexExpr, IndexExpr]]:
    """Pairs that are equal where two of the given are:  e // n and e % n   give   e."""
    known = list(pairs)
    result: list[tuple[IndexExpr, IndexExpr]] = []
    for first, second in itertools.permutations(known, 2):
        i, j = _whole(first[0], second[0]), _whole(first[1], second[1])
        if i is not None and j is not None and i[1] == j[1]:
            result.append((i[0], j[0]))
    return result


def _whole(quotient: IndexExpr, remainder: IndexExpr) -> tuple[IndexExpr, int] | None:
    """n * quotient + remainder and n, where that is simpler than both."""
    if not (isinstance(remainder, IBin) and remainder.op == "%" and isinstance(remainder.right, IConst)):
        return None
    n, rest = remainder.right.value, remainder.left
    form = linear(quotient)
    atom = IBin("//", rest, remainder.right)
    if form.factor(atom) != 1:
        return None
    return form.without(atom).expr() * n + rest, n


def of_place(ranges: Mapping[str, Range], tests: Iterable[tuple[Expr, bool]]) -> Facts:
    """What conditions around a place tell besides the ranges of variables."""
    facts = Facts(dict(ranges))
    for test, positive in tests:
        facts.learn(test, positive)
    return facts
