"""Sums that are 0 whatever the data: gradients of what is only subtracted to keep numbers small.

    of the maximum in exp(x - max(x)) / sum(exp(x - max(x))), of the mean in sum((x - mean(x)) ** 2)

An expression is expanded into products of reads, functions and sums, with the definitions of tensors in place
of tensors; what is left of it when like terms are collected is compared with nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from polyfuse.frontend_dsl.semantics.size_algebra import Facts, to_index
from polyfuse.ir.index_expr import IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    IndexValue,
    IterDim,
    Read,
    Select,
    Statement,
    TensorGraph,
    depends_on,
    map_expr,
    reads,
    statement_reads,
)

if TYPE_CHECKING:
    from polyfuse.autodiff.adjoint import Adjoint

_LIMIT = 64  # terms
_DEEP = 24  # definitions in one another
_STEPS = 300  # nodes of expressions: a few definitions around what is asked for

# A product of powers of atoms, by the texts of these; a sum of such.
Monomial: TypeAlias = frozenset[tuple[object, int]]
Terms: TypeAlias = dict[Monomial, Fraction]


class _TooLarge(Exception):
    """Nothing is known then."""


class Vanish:
    """Says whether an expression is 0 for all data. False is "not known"."""

    def __init__(self, graph: TensorGraph, made: Adjoint) -> None:
        self.graph, self.made = graph, made
        self.facts = Facts(graph.constraints)
        self.left = 0

    def __call__(self, e: Expr) -> bool:
        if isinstance(e, Const):
            return bool(e.value == 0)
        sums = {s.target for s in self.made.statements if s.reduction == "sum"}
        if not any(r.tensor in sums for r in reads(e)):
            return False  # gradients alone are anything
        self.left = _STEPS
        try:
            return not self._terms(e, {}, _DEEP)
        except _TooLarge:
            return False

    def sum_of(self, e: Expr, dims: tuple[IterDim, ...]) -> bool:
        """Is it so of the sum over variables?"""
        self.left = _STEPS
        try:
            return not self._sum(Statement("", "", dims, (), e, "sum"), {}, _DEEP)
        except _TooLarge:
            return False

    def _terms(self, e: Expr, at: Mapping[str, IndexExpr], depth: int) -> Terms:
        self.left -= 1
        if depth == 0 or self.left < 0:
            raise _TooLarge
        match e:
            case Const(value) if value == value and abs(value) != float("inf"):
                return {frozenset(): Fraction(value)} if value else {}
            case Apply("neg", (x,)):
                return _scaled(self._terms(x, at, depth), Fraction(-1))
            case Apply("add" | "sub" as op, (x, y)):
                right = self._terms(y, at, depth)
                self.left -= len(right)
                return _added(
                    self._terms(x, at, depth), right if op == "add" else _scaled(right, Fraction(-1))
                )
            case Apply("mul", (x, y)):
                left, right = self._terms(x, at, depth), self._terms(y, at, depth)
                self.left -= len(left) * len(right)
                return _times(left, right)
            case Apply("div", (x, y)):
                return _times(self._terms(x, at, depth), self._inverse(y, at, depth))
            case Apply("pow", (x, Const(2.0))):
                one = self._terms(x, at, depth)
                return _times(one, one)
            case Read():
                return self._read(e, at, depth)
            case Select(cond, x, y):
                chosen = self._mask(cond, at)
                rest = _added({frozenset(): Fraction(1)}, _scaled(chosen, Fraction(-1)))
                first, second = (self._terms(z, at, depth) for z in (x, y))
                self.left -= len(first) + len(second)
                return _added(_times(chosen, first), _times(rest, second))
            case IndexValue(index):
                return self._index(substitute(index, at))
            case Cast(x) if e.dtype.is_float and x.dtype.is_float and x.dtype.compute is x.dtype:
                return self._terms(x, at, depth)
            case _:
                return _atom(_at(e, at))

    def _mask(self, cond: Expr, at: Mapping[str, IndexExpr]) -> Terms:
        """1 where a condition holds, else 0."""
        if isinstance(cond, Apply) and cond.op == "not":
            return _added({frozenset(): Fraction(1)}, _scaled(self._mask(cond.args[0], at), Fraction(-1)))
        return _atom(_Mask(_at(cond, at)))

    def _inverse(self, e: Expr, at: Mapping[str, IndexExpr], depth: int) -> Terms:
        below = self._terms(e, at, depth)
        if len(below) == 1:
            ((m, c),) = below.items()
            return {frozenset((a, -n) for a, n in m): 1 / c}
        return {frozenset([(_Whole(frozenset(below.items())), -1)]): Fraction(1)}

    def _index(self, index: IndexExpr) -> Terms:
        """A number made of sizes; a polynomial with one term is a product."""
        p = self.facts.canon(index)
        if len(p) == 1:
            ((m, c),) = p.items()
            powers: dict[object, int] = {}
            for a in m:
                powers[("size", str(a))] = powers.get(("size", str(a)), 0) + 1
            return {frozenset(powers.items()): Fraction(c)}
        return _atom(("size", str(to_index(p))))

    def _read(self, e: Read, at: Mapping[str, IndexExpr], depth: int) -> Terms:
        indices = tuple(_at(i, at) if isinstance(i, EXPR_TYPES) else substitute(i, at) for i in e.indices)
        found = self._definition(e.tensor)
        if found is None or any(isinstance(i, EXPR_TYPES) for i in indices):
            return _atom(Read(e.tensor, indices, e.dtype))
        names, s = found
        inner = {n: i for n, i in zip(names, indices, strict=True) if not isinstance(i, EXPR_TYPES)}
        if s.reduction is None:
            return self._terms(s.expr, inner, depth - 1)
        return self._sum(s, inner, depth)

    def _definition(self, tensor: str) -> tuple[tuple[str, ...], Statement] | None:
        """The one statement that defines all of a tensor, and its variables."""
        writers = self.graph.writers(tensor) or [s for s in self.made.statements if s.target == tensor]
        if len(writers) != 1 or writers[0].accumulate or writers[0].reduction not in (None, "sum"):
            return None
        s = writers[0]
        names = tuple(i.name for i in s.write if isinstance(i, IVar))
        if len(names) < len(s.write) or len(set(names)) < len(names):
            return None
        if any(r == tensor for r in _read_by(s)):
            return None
        return names, s

    def _sum(self, s: Statement, at: Mapping[str, IndexExpr], depth: int) -> Terms:
        """What does not change in a sum stands outside; the sum of the rest is an atom."""
        dims = [d for d in s.dims if d.reduce]
        names = {d.name: IVar(f"sum{depth}.{k}") for k, d in enumerate(dims)}
        inner = {**at, **names}
        changing = {v.name for v in names.values()}
        ranges = tuple((substitute(d.lower, inner), substitute(d.upper, inner)) for d in dims)
        total: Terms = {}
        for m, c in self._terms(s.expr, inner, depth - 1).items():
            own = frozenset((a, n) for a, n in m if _variables(a) & changing)
            total = _added(total, _times({m - own: c}, self._over(own, ranges, tuple(names.values()))))
            self.left -= len(m)
        return total

    def _over(self, body: Monomial, ranges: Ranges, bound: tuple[IVar, ...]) -> Terms:
        if not body:
            count: Terms = {frozenset(): Fraction(1)}
            for low, high in ranges:
                count = _times(count, self._index(binary("-", high, low)))
            return count
        height = 1 + max((_height(a) for a, _ in body), default=0)
        plain = {v.name: IVar(f"%{height}.{k}") for k, v in enumerate(bound)}
        inner = frozenset((_renamed(a, plain), n) for a, n in body)
        ends = tuple((substitute(a, plain), substitute(b, plain)) for a, b in ranges)
        return _atom(_Sum(inner, ends, height))


Ranges: TypeAlias = tuple[tuple[IndexExpr, IndexExpr], ...]


@dataclass(frozen=True)
class _Sum:
    """A sum as an atom. Its own variables are called by its height: how many sums are in one another."""

    body: Monomial
    ranges: Ranges
    height: int


@dataclass(frozen=True)
class _Mask:
    """1 where a condition holds, else 0: as often as it is a factor."""

    cond: Expr


@dataclass(frozen=True)
class _Whole:
    """A sum of terms below a fraction."""

    terms: frozenset[tuple[Monomial, Fraction]]


def _height(a: object) -> int:
    match a:
        case _Sum():
            return a.height
        case _Whole(terms):
            return max((_height(b) for m, _ in terms for b, _ in m), default=0)
        case _:
            return 0


def _read_by(s: Statement) -> set[str]:
    return {r.tensor for r in statement_reads(s)}


def _atom(a: object) -> Terms:
    return {frozenset([(a, 1)]): Fraction(1)}


def _at(e: Expr, at: Mapping[str, IndexExpr]) -> Expr:
    return map_expr(e, lambda x: x, lambda i: substitute(i, at))


def _variables(a: object) -> frozenset[str]:
    match a:
        case _Mask(cond):
            return frozenset(depends_on(cond))
        case _Sum(body, ranges, height):
            inside = {v for b, _ in body for v in _variables(b)}
            inside |= {v for pair in ranges for e in pair for v in variables(e)}
            return frozenset(v for v in inside if not v.startswith(f"%{height}."))
        case _Whole(terms):
            return frozenset(v for m, _ in terms for b, _ in m for v in _variables(b))
        case tuple():
            return frozenset()
        case _:
            return frozenset(depends_on(a))  # type: ignore[arg-type]


def _renamed(a: object, names: Mapping[str, IVar]) -> object:
    match a:
        case _Mask(cond):
            return _Mask(_at(cond, names))
        case _Sum(body, ranges, height):
            ends = tuple((substitute(x, names), substitute(y, names)) for x, y in ranges)
            return _Sum(frozenset((_renamed(b, names), n) for b, n in body), ends, height)
        case _Whole(terms):
            return _Whole(frozenset((frozenset((_renamed(b, names), n) for b, n in m), c) for m, c in terms))
        case tuple():
            return a
        case _:
            return _at(a, names)  # type: ignore[arg-type]


def _scaled(a: Terms, by: Fraction) -> Terms:
    return {m: c * by for m, c in a.items()}


def _added(a: Terms, b: Terms) -> Terms:
    found = dict(a)
    for m, c in b.items():
        found[m] = found.get(m, Fraction(0)) + c
        if not found[m]:
            del found[m]
    return found


def _times(a: Terms, b: Terms) -> Terms:
    if len(a) * len(b) > _LIMIT:
        raise _TooLarge
    found: Terms = {}
    for m, c in a.items():
        for n, d in b.items():
            powers = dict(m)
            for atom, k in n:
                powers[atom] = 1 if isinstance(atom, _Mask) else powers.get(atom, 0) + k
            found = _added(found, {frozenset((x, k) for x, k in powers.items() if k): c * d})
    return found
