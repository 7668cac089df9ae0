"""Exact reasoning about size expressions: equal? at least? solve for one unknown.

Expressions become polynomials with integer coefficients over atoms: sizes, loop variables, and
whatever is not polynomial (``H // 2``, ``max(N, M)``), with normalised insides.  `Facts` are an
operator's constraints; answers are conservative: False means "cannot be shown".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial, reduce
from itertools import combinations

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, as_index, binary, leaves
from polyfuse.ir.tensor_graph import Constraint

# --- polynomials that are not negative --------------------------------------------------------------------

# Polynomials in sizes that are known not to be negative, found by what they have.
#
# To show that ``p`` is not negative by ``p - b``, a bound ``b`` has to take away what is negative in ``p``,
# and may have nothing positive that ``p`` has not.  So of thousands of constraints few are looked at.


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


def _key(atom: IndexExpr) -> str:
    return f"{type(atom).__name__}:{atom}"


def add(a: Poly, b: Poly, factor: int = 1) -> Poly:
    """`a + factor * b`."""
    result = dict(a)
    for m, c in b.items():
        c = result.get(m, 0) + factor * c
        if c:
            result[m] = c
        else:
            result.pop(m, None)
    return result


def multiply(a: Poly, b: Poly) -> Poly:
    result: Poly = {}
    for m, c in a.items():
        result = add(result, {tuple(sorted(m + n, key=_key)): c * d for n, d in b.items()})
    return result


def constant(p: Poly) -> int | None:
    """The value of a constant polynomial, or None."""
    return None if any(m for m in p) else p.get((), 0)


def to_index(p: Poly) -> IndexExpr:
    """The polynomial as an index expression: products first, the constant last, signs kept readable."""
    result: IndexExpr | None = None
    for m, c in sorted(p.items(), key=lambda mc: (not mc[0], mc[1] < 0, [_key(a) for a in mc[0]])):
        term = as_index(abs(c)) if not m or abs(c) != 1 else None
        for atom in m:
            term = atom if term is None else binary("*", term, atom)
        assert term is not None
        if result is None:
            result = term if c > 0 else binary("-", 0, term)
        else:
            result = binary("+" if c > 0 else "-", result, term)
    return result if result is not None else IConst(0)


class Facts:
    """What is known about sizes: not negative, and the constraints."""

    def __init__(self, constraints: Iterable[Constraint] = ()) -> None:
        self._equal: dict[str, Poly] = {}
        self._having: dict[str, set[str]] = {}  # size -> those written with it; "": with divisions
        self._floor: dict[str, int] = {}
        self._nonneg = Bounds()
        self._divides: set[tuple[IndexExpr, IndexExpr]] = set()
        self._asked: dict[IndexExpr, bool] = {}
        self._extremes: dict[IndexExpr, Poly] = {}
        for c in constraints:
            self.learn(c)

    # --- learning ----------------------------------------------------------------------------------

    def learn(self, c: Constraint) -> None:
        """Use a constraint from here on."""
        match c:
            case Constraint("==", IBin("%", a, b), IConst(0)):
                self._divides.add((to_index(self.canon(a)), to_index(self.canon(b))))
                self._extremes.clear()
            case Constraint("==", left, right):
                self._learn_equal(add(self.canon(left), self.canon(right), -1))
            case Constraint(">=", left, right):
                self._learn_nonneg(add(self.canon(left), self.canon(right), -1))
            case Constraint(">", left, right):
                self._learn_nonneg(add(add(self.canon(left), self.canon(right), -1), {(): -1}))
            case Constraint("<" | "<=", left, right):
                self.learn(Constraint(">" if c.op == "<" else ">=", right, left))
            case _:
                pass

    def _learn_equal(self, p: Poly) -> None:
        for m, c in p.items():
            alone = len(m) == 1 and isinstance(m[0], ISize) and abs(c) == 1
            if alone and sum(_mentions(n, m[0]) for n in p) == 1:
                self._extremes.clear()
                self._set_equal(str(m[0]), {n: -c * d for n, d in p.items() if n != m})
                return

    def _set_equal(self, name: str, p: Poly) -> None:
        """A size is a polynomial from here on, also in those of other sizes."""
        self._equal[name] = p
        for other in sorted({name} | self._having.pop(name, set()) | self._having.get("", set())):
            q = self._equal[other] = self.canon(to_index(self._equal[other]))
            for having in {leaf.name for m in q for a in m for leaf in leaves(a) if isinstance(leaf, ISize)}:
                self._having.setdefault(having, set()).add(other)
            if any(isinstance(a, IBin) for m in q for a in m):  # other facts than this one may change it
                self._having.setdefault("", set()).add(other)

    def _learn_nonneg(self, p: Poly) -> None:
        self._extremes.clear()
        free = [m for m in p if m]
        if len(free) == 1 and len(free[0]) == 1 and isinstance(free[0][0], ISize) and p[free[0]] > 0:
            name, least = str(free[0][0]), -(p.get((), 0) // p[free[0]])
            self._floor[name] = max(self._floor.get(name, 0), least)
        else:
            self._nonneg.add(p)

    # --- normal form -------------------------------------------------------------------------------

    def canon(self, e: IndexExpr) -> Poly:
        match e:
            case IConst(value):
                return {(): value} if value else {}
            case ISize(name):
                return self._equal.get(name, {(e,): 1})
            case IVar():
                return {(e,): 1}
            case IBin("+" | "-", left, right):
                return add(self.canon(left), self.canon(right), 1 if e.op == "+" else -1)
            case IBin("*", left, right):
                return self._undivided(multiply(self.canon(left), self.canon(right)))
            case IBin("//" | "%", left, right):
                return self._division(e.op, self.canon(left), self.canon(right))
            case IBin(op, left, right):
                if e not in self._extremes:
                    self._extremes[e] = self._extreme(op, left, right)
                return self._extremes[e]

    def _undivided(self, p: Poly) -> Poly:
        """(H // G) * G is H where G divides H."""
        for m, c in p.items():
            for atom in m:
                if not (isinstance(atom, IBin) and atom.op == "//"):
                    continue
                if (atom.left, atom.right) not in self._divides:
                    continue
                rest = list(m)
                rest.remove(atom)
                whole: Poly | None = None
                if atom.right in rest:
                    rest.remove(atom.right)
                    whole = {tuple(rest): c}
                elif isinstance(atom.right, IConst) and c % atom.right.value == 0:
                    whole = {tuple(rest): c // atom.right.value}
                if whole is not None:
                    others = {n: d for n, d in p.items() if n != m}
                    return self._undivided(add(others, multiply(whole, self.canon(atom.left))))
        return p

    def _division(self, op: str, a: Poly, b: Poly) -> Poly:
        exact = divide(a, b)
        if exact is not None:
            return exact if op == "//" else {}
        whole, a = _multiples(a, constant(b))
        if whole:
            return add(whole, self._division(op, a, b)) if op == "//" else self._division(op, a, b)
        left, right = to_index(a), to_index(b)
        if op == "%" and (left, right) in self._divides:
            return {}
        e = binary(op, left, right)
        return {(e,): 1} if isinstance(e, IBin) else self.canon(e)

    def _extreme(self, op: str, left: IndexExpr, right: IndexExpr) -> Poly:
        """One extreme of all operands of those inside, without the ones that another goes beyond."""
        kept: list[Poly] = []
        for p in (*self._operands(op, left), *self._operands(op, right)):
            if not any(self._beyond(op, q, p) for q in kept):
                kept = [*(q for q in kept if not self._beyond(op, p, q)), p]
        first, *others = sorted(map(to_index, kept), key=_key)
        return {(reduce(partial(binary, op), others, first),): 1} if others else kept[0]

    def _operands(self, op: str, e: IndexExpr) -> list[Poly]:
        p = self.canon(e)
        match [*p.items()]:
            case [((IBin(inner) as atom,), 1)] if inner == op:
                return [self.canon(x) for x in _flat(op, atom)]
            case _:
                return [p]

    def _beyond(self, op: str, p: Poly, q: Poly) -> bool:
        return self._not_negative(add(p, q, -1) if op == "max" else add(q, p, -1))

    # --- questions -----------------------------------------------------------------------------------

    def equal(self, a: IndexExpr, b: IndexExpr) -> bool:
        return a == b or not add(self.canon(a), self.canon(b), -1)

    def difference(self, a: IndexExpr, b: IndexExpr) -> int | None:
        """`a - b` where that is a constant, else None."""
        return constant(add(self.canon(a), self.canon(b), -1))

    def may_be_equal(self, a: IndexExpr, b: IndexExpr) -> bool:
        """Whether `a == b` may hold for sizes above 0: the signs of the difference differ."""
        signs = {c > 0 for c in add(self.canon(a), self.canon(b), -1).values()}
        return len(signs) != 1

    def at_least(self, a: IndexExpr, b: IndexExpr) -> bool:
        """Whether `a >= b` for all sizes."""
        return self._not_negative(add(self.canon(a), self.canon(b), -1))

    def _not_negative(self, p: Poly) -> bool:
        unknown = [m for m in p if not all(map(self._atom_nonneg, m))]
        if unknown:
            return any(map(self._plainly, self._less(p, self._nonneg.taking(unknown))))
        shifted = self._shifted(p)
        negative = [m for m, c in shifted.items() if c < 0]
        if not negative:
            return True
        away = [m for m in negative if m]
        bounds = self._nonneg.taking(away) if away else self._nonneg.within([m for m in shifted if m])
        return any(map(self._plainly, self._less(p, bounds)))

    @staticmethod
    def _less(p: Poly, bounds: Iterable[Poly]) -> Iterator[Poly]:
        return (add(p, known, -1) for known in bounds)

    def _plainly(self, p: Poly) -> bool:
        """Non-negative term by term?"""
        return all(self._atom_nonneg(atom) for m in p for atom in m) and all(
            c > 0 for c in self._shifted(p).values()
        )

    def _shifted(self, p: Poly) -> Poly:
        """With every size written as its least value plus something."""
        shifted: Poly = {}
        for m, c in p.items():
            term: Poly = {(): c}
            for atom in m:
                least = self._floor.get(atom.name, 0) if isinstance(atom, ISize) else 0
                term = multiply(term, {(atom,): 1, (): least} if least else {(atom,): 1})
            for n, d in term.items():
                total = shifted.get(n, 0) + d
                if total:
                    shifted[n] = total
                else:
                    shifted.pop(n, None)
        return shifted

    def _atom_nonneg(self, atom: IndexExpr) -> bool:
        if isinstance(atom, ISize):
            return True
        if atom in self._asked:
            return self._asked[atom]
        first = not self._asked
        known = dict(self._extremes) if first else {}
        self._asked[atom] = False  # by way of a constraint that has it: no proof may rest on itself
        try:
            self._asked[atom] = self._nonneg_by_parts(atom)
            return self._asked[atom]
        finally:
            if first:  # what was not found in the midst of another proof may be found alone
                self._asked.clear()
                self._extremes = known

    def _nonneg_by_parts(self, atom: IndexExpr) -> bool:
        match atom:
            case IBin("%", _, _):
                return True
            case IBin("//" | "min", left, right):
                return self.at_least(left, IConst(0)) and self.at_least(right, IConst(0))
            case IBin("max", left, right):
                return self.at_least(left, IConst(0)) or self.at_least(right, IConst(0))
            case _:
                return False


def simplify(e: IndexExpr) -> IndexExpr:
    """The normal form as an expression. Knows no constraints: ``H == G*K`` would make H non-affine."""
    return to_index(Facts().canon(e))


def _flat(op: str, e: IndexExpr) -> Iterator[IndexExpr]:
    """The operands of nested extremes of one kind."""
    if isinstance(e, IBin) and e.op == op:
        yield from _flat(op, e.left)
        yield from _flat(op, e.right)
    else:
        yield e


def _mentions(m: Monomial, atom: IndexExpr) -> bool:
    return any(leaf == atom for a in m for leaf in leaves(a))


def _multiples(a: Poly, by: int | None) -> tuple[Poly, Poly]:
    """`a` as `by * whole + rest`: ``H - 2`` by 2 is ``-1`` and ``H``. Nothing is whole of other divisors."""
    if by is None or by <= 0:
        return {}, a
    whole = {m: c // by for m, c in a.items() if (c % by == 0 if m else c // by)}
    return whole, add(a, whole, -by)


def divide(a: Poly, b: Poly) -> Poly | None:
    """The quotient of an exact division by a single non-zero term, or None."""
    if len(b) != 1:
        return None
    (divisor, by), quotient = next(iter(b.items())), dict[Monomial, int]()
    for m, c in a.items():
        rest = list(m)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if c % by:
            return None
        quotient[tuple(rest)] = c // by
    return quotient


def solve(extent: IndexExpr, unknown: str, actual: IndexExpr, facts: Facts) -> tuple[Poly, Poly] | None:
    """`extent == actual` for the size `unknown`: (numerator, denominator) with unknown = num / den.

    `facts` may be without any, to leave sizes as they are. None where `extent` is not linear in `unknown`
    or holds it inside a division.
    """
    atom = ISize(unknown)
    coefficient: Poly = {}
    rest = facts.canon(actual)
    for m, c in Facts().canon(extent).items():
        if m.count(atom) == 1 and not any(_mentions((a,), atom) for a in m if a != atom):
            others = list(m)
            others.remove(atom)
            coefficient = add(coefficient, {tuple(others): c})
        elif _mentions(m, atom):
            return None
        else:
            rest = add(rest, facts.canon(to_index({m: c})), -1)
    return (rest, facts.canon(to_index(coefficient))) if coefficient else None
