"""Which instances of a statement touch an element: indices solved for the variables of loops.

    x[2*i + a] in y[i] = sum[a in 0..3](...)     element e is touched by   i = (e - a)//2,  a in 0..3
                                                 where  (e - a) % 2 == 0  and  0 <= (e - a)//2 < N

Equations are polynomials over sizes and variables (`index_facts`), so that nothing has to be known of sizes.
What a variable is in the end, `isl` proves when the derived operator is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from polyfuse.autodiff.index_facts import IndexFacts, at, coefficient, mentioned, without
from polyfuse.frontend_dsl.semantics.size_algebra import Poly, add, to_index
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.tensor_graph import IterDim


@dataclass(frozen=True, slots=True)
class Condition:
    """`left op right` of index expressions, op in >= ==."""

    left: IndexExpr
    op: str
    right: IndexExpr


@dataclass(frozen=True, slots=True)
class Instances:
    """The instances that touch an element: values of the variables, those that are left and run over their
    ranges, and what has to hold."""

    values: Mapping[str, IndexExpr]
    left: tuple[IterDim, ...]
    conditions: tuple[Condition, ...]


class Unsolved(Exception):
    """Indices that nobody can solve for the variables."""


def instances(
    dims: Sequence[IterDim],
    equations: Iterable[tuple[IndexExpr, IndexExpr]],
    known: IndexFacts,
    fresh: Iterable[str],
) -> Instances:
    """The instances for which each left side has the value on the right.

    `known` has the ranges of the variables of values; no name of `dims` is one of them.
    Raises Unsolved where the indices are not such as can be solved.
    """
    return _Solver(dims, known, iter(fresh)).solved(list(equations))


class _Solver:
    def __init__(self, dims: Sequence[IterDim], known: IndexFacts, fresh: Iterable[str]) -> None:
        self.dims = {d.name: d for d in dims}
        self.open = {d.name: d for d in dims}
        self.values: dict[str, IndexExpr] = {}
        self.known = known.with_dims(dims)
        self.fresh = iter(fresh)
        self.conditions: list[Condition] = []

    def solved(self, equations: list[tuple[IndexExpr, IndexExpr]]) -> Instances:
        while equations:
            chosen = min(equations, key=self._effort)
            equations.remove(chosen)
            equations += self._step(*chosen)
        return self._result()

    # --- equations -----------------------------------------------------------------------------------

    def _parts(self, left: IndexExpr, right: IndexExpr) -> tuple[Poly, IndexExpr]:
        """What is unknown, and its value: sums of open variables on one side, all else on the other."""
        p = add(self.known.poly(at(left, self.values)), self.known.poly(right), -1)
        unknown = {m: c for m, c in p.items() if self._is_open(m)}
        rest = {m: -c for m, c in p.items() if not self._is_open(m)}
        return unknown, to_index(rest)

    def _is_open(self, monomial: Iterable[IndexExpr]) -> bool:
        return any(v in self.open for a in monomial for v in variables(a))

    def _effort(self, equation: tuple[IndexExpr, IndexExpr]) -> int:
        """Those that leave nothing to choose come first."""
        unknown, _ = self._parts(*equation)
        names = [n for n in mentioned(unknown) if n in self.open]
        atoms = [a for m in unknown for a in m if isinstance(a, IBin) and variables(a)]
        return len(names) + 2 * len(atoms)

    def _step(self, left: IndexExpr, right: IndexExpr) -> list[tuple[IndexExpr, IndexExpr]]:
        """Equations that stand in place of one, once it has said what it says."""
        unknown, value = self._parts(left, right)
        names = [n for n in mentioned(unknown) if n in self.open]
        if not names:
            self.conditions.append(Condition(value, "==", IConst(0)))
            return []
        if len(unknown) == 1:
            ((monomial, factor),) = unknown.items()
            if factor in (1, -1) and len(monomial) == 1 and isinstance(monomial[0], IBin):
                return self._inside(monomial[0], binary("*", value, factor))
        digits = self._digits(unknown, value)
        if digits:
            return digits
        self._choose(unknown, value, names)
        return []

    def _inside(self, atom: IBin, value: IndexExpr) -> list[tuple[IndexExpr, IndexExpr]]:
        """`x // c == v` is `x == v*c + r` with r in 0..c, `x % c == v` is `x == q*c + v`."""
        if variables(atom.right) or atom.op not in ("//", "%"):
            raise Unsolved(str(atom))
        name = next(self.fresh)
        if atom.op == "//":
            self._add(IterDim(name, IConst(0), atom.right))
            return [(atom.left, binary("+", binary("*", value, atom.right), IVar(name)))]
        if not isinstance(atom.left, IVar) or atom.left.name not in self.open:
            raise Unsolved(str(atom))
        d = self.open[atom.left.name]
        if variables(d.upper) or not self.known.at_least(d.lower, IConst(0)):
            raise Unsolved(str(atom))
        rounds = binary("//", binary("-", binary("+", d.upper, atom.right), 1), atom.right)
        self._add(IterDim(name, IConst(0), rounds))
        self._require(binary("-", atom.right, 1), value)
        self._require(value, IConst(0))
        return [(atom.left, binary("+", binary("*", IVar(name), atom.right), value))]

    def _add(self, d: IterDim) -> None:
        self.dims[d.name] = self.open[d.name] = d
        self.known.learn((d,))

    def _digits(self, unknown: Poly, value: IndexExpr) -> list[tuple[IndexExpr, IndexExpr]] | None:
        """`q*c + r == v` with r in 0..c is `q == v // c` and `r == v % c`."""
        for m, k in unknown.items():
            sizes = tuple(a for a in m if not variables(a))
            by = to_index({sizes: abs(k)})
            if by == IConst(1):
                continue
            whole, rest = self.known.split(unknown, by)
            if not whole or not rest:
                continue
            low = to_index(rest)
            if self.known.at_least(low, IConst(0)) and self.known.at_least(binary("-", by, 1), low):
                top, bottom = binary("//", value, by), binary("%", value, by)
                return [(to_index(whole), self.known.simple(top)), (low, self.known.simple(bottom))]
        return None

    def _choose(self, unknown: Poly, value: IndexExpr, names: list[str]) -> None:
        """One of the variables follows from the others: one of the result before one that is reduced."""
        found: list[tuple[int, str, Poly]] = []
        for n in names:
            factor = coefficient(unknown, n)
            if factor is None or not factor or mentioned(factor):
                continue
            unit = len(factor) == 1 and factor.get((), 0) in (1, -1)
            found.append((2 * self.dims[n].reduce + (not unit), n, factor))
        if not found:
            raise Unsolved(to_index(unknown))
        _, name, factor = min(found, key=lambda f: f[0])
        rest = binary("-", value, to_index(without(unknown, name)))
        if factor in ({(): 1}, {(): -1}):
            self.values[name] = self.known.simple(binary("*", rest, factor[()]))
        else:
            self._divide(name, rest, to_index(factor))
        del self.open[name]
        self._settle(name)

    def _divide(self, name: str, rest: IndexExpr, factor: IndexExpr) -> None:
        if self.known.at_least(IConst(-1), factor):
            rest, factor = binary("-", 0, rest), self.known.simple(binary("-", 0, factor))
        if not self.known.at_least(factor, IConst(1)):
            raise Unsolved(str(factor))
        rest = self.known.simple(rest)
        self.values[name] = self.known.simple(binary("//", rest, factor))
        self.conditions.append(Condition(binary("%", rest, factor), "==", IConst(0)))

    def _settle(self, name: str) -> None:
        """Values that had the variable have its value."""
        one = {name: self.values[name]}
        self.values |= {n: self.known.simple(at(v, one)) for n, v in self.values.items() if n != name}
        self.conditions = [Condition(at(c.left, one), c.op, at(c.right, one)) for c in self.conditions]

    def _require(self, a: IndexExpr, b: IndexExpr) -> None:
        self.conditions.append(Condition(a, ">=", b))

    # --- what is left --------------------------------------------------------------------------------

    def _result(self) -> Instances:
        left = {n: IterDim(n, at(d.lower, self.values), at(d.upper, self.values), True)
                for n, d in self.open.items()}  # fmt: skip
        self.known.learn(left.values())
        for n, d in self.dims.items():
            if n in self.values:
                self._within(n, d, left)
        found = tuple(dict.fromkeys(c for c in map(self._simple, self.conditions) if c is not None))
        return Instances(self.values, tuple(_ordered(left)), found)

    def _simple(self, c: Condition) -> Condition | None:
        """The condition; None where it always holds."""
        left, right = self.known.simple(c.left), self.known.simple(c.right)
        if c.op == "==" and self.known.equal(left, right):
            return None
        if c.op == ">=" and self.known.at_least(left, right):
            return None
        return Condition(left, c.op, right)

    def _within(self, name: str, d: IterDim, left: dict[str, IterDim]) -> None:
        """A variable that has a value is in its range."""
        value = self.values[name]
        for bound in _parts("max", d.lower):
            low = at(bound, self.values)
            if not self._bounds(value, low, left):
                self._require(value, low)
        for bound in _parts("min", d.upper):
            high = binary("-", at(bound, self.values), 1)
            if not self._bounds(high, value, left):
                self._require(high, value)

    def _bounds(self, a: IndexExpr, b: IndexExpr, left: dict[str, IterDim]) -> bool:
        """Is `a >= b` the bound of a variable that is left? Only where ranges moved with it."""
        p = self.known.poly(binary("-", a, b))
        names = [n for n in mentioned(p) if n in left]
        if len(names) != 1 or self.known.at_least(a, b):
            return False
        (name,) = names
        factor, d = coefficient(p, name), left[name]
        moved = any(name in (*variables(x.lower), *variables(x.upper)) for x in self.dims.values())
        if factor not in ({(): 1}, {(): -1}) or not moved:
            return False
        rest = to_index(without(p, name))
        if factor == {(): 1}:
            low = self.known.simple(binary("max", d.lower, self.known.simple(binary("-", 0, rest))))
            left[name] = IterDim(name, low, d.upper, True)
        else:
            high = self.known.simple(binary("min", d.upper, self.known.simple(binary("+", rest, 1))))
            left[name] = IterDim(name, d.lower, high, True)
        return True


def _parts(op: str, e: IndexExpr) -> list[IndexExpr]:
    """All of which a maximum is not below, or a minimum not above."""
    match e:
        case IBin(own, left, right) if own == op:
            return [*_parts(op, left), *_parts(op, right)]
        case _:
            return [e]


def _ordered(left: Mapping[str, IterDim]) -> list[IterDim]:
    """Those first that others' bounds are made of."""
    done: dict[str, IterDim] = {}
    todo = dict(left)
    while todo:
        ready = [
            n for n, d in todo.items() if not {*variables(d.lower), *variables(d.upper)} & (todo.keys() - {n})
        ]
        if not ready:
            raise Unsolved(", ".join(map(str, todo.values())))
        for n in ready:
            done[n] = todo.pop(n)
    return list(done.values())
