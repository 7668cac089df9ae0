"""Polynomials in sizes that are known not to be negative, found by what they have.

To show that ``p`` is not negative by ``p - b``, a bound ``b`` has to take away what is negative in ``p``, and
may have nothing positive that ``p`` has not.  So of thousands of constraints few are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations

from polyfuse.ir.index_expr import IndexExpr

Monomial = tuple[IndexExpr, ...]
Poly = dict[Monomial, int]
_Form = frozenset[tuple[Monomial, int]]


class Bounds:
    """Of those that differ in the constant the one is kept that says most.

    A monomial of sizes counts with its divisors: sizes are looked at as their least values plus something.
    """

    def __init__(self) -> None:
        self._constant: dict[_Form, int] = {}
        self._having: dict[Monomial, list[_Form]] = {}
        self._falling: list[_Form] = []  # what is positive in them may be negative with its multiples

    def add(self, p: Poly) -> None:
        form, constant = frozenset((m, c) for m, c in p.items() if m), p.get((), 0)
        if form in self._constant:
            self._constant[form] = min(self._constant[form], constant)
            return
        self._constant[form] = constant
        below = {d for m, c in form if c < 0 for d in _divisors(m)}
        for m in sorted({m for m, _ in form} | below, key=str):
            self._having.setdefault(m, []).append(form)
        if all(m in below for m, c in form if c > 0):
            self._falling.append(form)

    def taking(self, away: Collection[Monomial]) -> Iterator[Poly]:
        """Those that have one of the monomials, all of which have to go: of that which fewest have."""
        for form in min((self._having.get(m, []) for m in away), key=len):
            yield self._poly(form)

    def within(self, monomials: Collection[Monomial]) -> Iterator[Poly]:
        """Those that have one of the monomials, or nothing positive."""
        found = (form for m in monomials for form in self._having.get(m, ()))
        for form in dict.fromkeys((*found, *self._falling)):
            yield self._poly(form)

    def _poly(self, form: _Form) -> Poly:
        constant = self._constant[form]
        return {**dict(form), (): constant} if constant else dict(form)


def _divisors(m: Monomial) -> Iterator[Monomial]:
    for count in range(1, len(m) + 1):
        yield from combinations(m, count)
