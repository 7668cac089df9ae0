"""What is known of index expressions over variables: `Facts` of sizes, and the ranges of the variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyfuse.frontend_dsl.semantics.size_algebra import Facts, Poly, add, multiply, to_index
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, as_index, binary, substitute, variables
from polyfuse.ir.tensor_graph import IterDim


def coefficient(p: Poly, name: str) -> Poly | None:
    """The factor of a variable in which a polynomial is linear; None where it is not."""
    found: Poly = {}
    for m, c in p.items():
        times = [a for a in m if a == IVar(name)]
        if any(name in variables(a) for a in m if a != IVar(name)) or len(times) > 1:
            return None
        if times:
            rest = list(m)
            rest.remove(times[0])
            found[tuple(rest)] = c
    return found


def without(p: Poly, name: str) -> Poly:
    """The monomials without a variable."""
    return {m: c for m, c in p.items() if all(name not in variables(a) for a in m)}


def mentioned(p: Poly) -> tuple[str, ...]:
    """The variables of a polynomial."""
    return tuple(dict.fromkeys(v for m in p for a in m for v in variables(a)))


class IndexFacts:
    """Proofs and normal forms of index expressions. Answers are conservative: False is "cannot be shown"."""

    def __init__(self, facts: Facts, dims: Iterable[IterDim] = ()) -> None:
        self.facts = facts
        self.ranges: dict[str, tuple[IndexExpr, IndexExpr]] = {}
        self.exact: list[tuple[IndexExpr, IndexExpr]] = []
        self.learn(dims)

    def learn(self, dims: Iterable[IterDim]) -> None:
        """The ranges of more variables."""
        self.ranges |= {d.name: (d.lower, d.upper) for d in dims}

    def with_dims(self, dims: Iterable[IterDim]) -> IndexFacts:
        """The same with more variables."""
        made = IndexFacts(self.facts, dims)
        made.ranges = {**self.ranges, **made.ranges}
        made.exact = list(self.exact)
        return made

    def poly(self, e: IndexExpr) -> Poly:
        """The normal form of an expression."""
        return self.facts.canon(self.simple(e))

    def at_least(self, a: IndexExpr, b: IndexExpr) -> bool:
        """Is `a >= b` for all values of sizes and variables?"""
        return self._not_negative(self.facts.canon(binary("-", a, b)), 8)

    def equal(self, a: IndexExpr, b: IndexExpr) -> bool:
        return not add(self.poly(a), self.poly(b), -1)

    def _not_negative(self, p: Poly, depth: int) -> bool:
        names = mentioned(p)
        if not names:
            return self.facts.at_least(to_index(p), IConst(0))
        if not depth:
            return False
        return any(self._least(p, name, depth) for name in reversed(names))

    def _least(self, p: Poly, name: str, depth: int) -> bool:
        """Is it so where the variable is at that end of its range which makes it least?"""
        inside = [a for m in p for a in m if name in variables(a) and a != IVar(name)]
        if inside:
            return self._bounded(p, inside[0], depth)
        if name not in self.ranges:
            return False
        factor = coefficient(p, name)
        if not factor:
            return False
        low, high = self.ranges[name]
        for end, sign in ((low, 1), (binary("-", high, 1), -1)):
            signed = {m: sign * c for m, c in factor.items()}
            if self._not_negative(signed, depth - 1):
                at = add(without(p, name), multiply(factor, self.facts.canon(end)))
                if self._not_negative(at, depth - 1):
                    return True
        return False

    def _bounded(self, p: Poly, atom: IndexExpr, depth: int) -> bool:
        """With a quotient or remainder at one of its ends."""
        ends: tuple[IndexExpr, IndexExpr]
        match atom:
            case IBin("%", _, c):
                ends = (IConst(0), binary("-", c, 1))
            case IBin("//", top, c) if not variables(c):
                found = self._ends(top)
                if found is None:
                    return False
                ends = (binary("//", found[0], c), binary("//", found[1], c))
            case _:
                return False
        factor = {tuple(x for x in m if x != atom): c for m, c in p.items() if m.count(atom) == 1}
        rest = {m: c for m, c in p.items() if atom not in m}
        for end, sign in zip(ends, (1, -1), strict=True):
            if self._not_negative({m: sign * c for m, c in factor.items()}, depth - 1):
                at = add(rest, multiply(factor, self.facts.canon(end)))
                return self._not_negative(at, depth - 1)
        return False

    def _ends(self, e: IndexExpr) -> tuple[IndexExpr, IndexExpr] | None:
        """The least and the greatest value of a variable."""
        if isinstance(e, IVar) and e.name in self.ranges:
            low, high = self.ranges[e.name]
            if not variables(low) and not variables(high):
                return low, binary("-", high, 1)
        return None

    # --- normal forms --------------------------------------------------------------------------------

    def simple(self, e: IndexExpr) -> IndexExpr:
        """An equal expression with like terms collected, and divisions resolved where ranges allow.

        With r in 0..K,    (q*K + r) // K    becomes    q    and    (q*K + r) % K    becomes    r
        """
        match e:
            case IBin("//" | "%" as op, left, right):
                return self._divided(op, self.simple(left), self.simple(right))
            case IBin("min" | "max" as op, left, right):
                a, b = self.simple(left), self.simple(right)
                first, second = (a, b) if op == "max" else (b, a)
                if self.at_least(first, second):
                    return a
                return b if self.at_least(second, first) else binary(op, a, b)
            case IBin(op, left, right):
                p = self.facts.canon(binary(op, self.simple(left), self.simple(right)))
                return to_index(self._undivided(p) if self.exact else p)
            case _:
                return e

    def divides(self, by: IndexExpr, top: IndexExpr) -> None:
        """From here on: `top % by` is 0, so that `top // by * by` is `top`."""
        self.exact.append((top, by))

    def _undivided(self, p: Poly) -> Poly:
        for top, by in self.exact:
            atom = binary("//", top, by)
            having = {tuple(a for a in m if a != atom): c for m, c in p.items() if m.count(atom) == 1}
            whole, _ = self.split(having, by)
            if whole:
                less = multiply(whole, multiply(self.facts.canon(by), {(atom,): 1}))
                p = add(add(p, less, -1), multiply(whole, self.facts.canon(top)))
        return p

    def _divided(self, op: str, top: IndexExpr, by: IndexExpr) -> IndexExpr:
        whole, rest = self.split(self.facts.canon(top), by)
        if whole or rest != self.facts.canon(top):
            left = to_index(rest)
            if self.at_least(left, IConst(0)) and self.at_least(binary("-", by, 1), left):
                return to_index(whole) if op == "//" else left
            if op == "%":
                return binary("%", left, by)
            return binary("+", to_index(whole), binary("//", left, by))
        if self.at_least(top, IConst(0)) and self.at_least(binary("-", by, 1), top):
            return top if op == "%" else IConst(0)
        return to_index(self.facts.canon(binary(op, top, by)))

    def split(self, p: Poly, by: IndexExpr) -> tuple[Poly, Poly]:
        """`whole, rest` with  p = whole * by + rest, by the monomials that have the divisor."""
        divisor = self.facts.canon(by)
        whole: Poly = {}
        rest: Poly = {}
        if len(divisor) != 1:
            return whole, p
        ((atoms, k),) = divisor.items()
        for m, c in p.items():
            left = list(m)
            try:
                for a in atoms:
                    left.remove(a)
            except ValueError:
                rest[m] = c
                continue
            if c % k == 0:
                whole = add(whole, {tuple(left): c // k})
            else:
                rest[m] = c
        return whole, rest


def at(e: IndexExpr, values: Mapping[str, IndexExpr]) -> IndexExpr:
    """The expression with values for variables."""
    return substitute(as_index(e), values)
