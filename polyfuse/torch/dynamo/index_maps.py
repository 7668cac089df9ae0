"""Indices of elements, as views make them of one another: affine sums with quotients and remainders.

    x.view(B*T, H)[m, h]    is  x[m // T, m % T, h]
    ... of m = T*b + t      is  x[b, t, h]

What a view reads is computed in these, so that a view costs no copy and no statement; ranges of variables
take quotients and remainders away where they say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce as fold
from typing import TypeAlias, Union

from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary
from polyfuse.torch.dynamo.sizes import (
    Extent,
    at_most,
    equal,
    is_number,
    not_negative,
    product,
    quotient,
    to_ir,
    whole,
)

Range: TypeAlias = tuple[Extent, Extent] | None

# --- atoms ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Var:
    """A loop variable over 0..extent."""

    name: str
    extent: Extent

    def range(self) -> Range:
        """The least and the largest value."""
        return 0, whole(self.extent - 1)

    def ir(self) -> IndexExpr:
        """As graphs have it."""
        return IVar(self.name)


@dataclass(frozen=True, slots=True)
class Quotient:
    """index // by, rounded down."""

    index: Index
    by: Extent

    def range(self) -> Range:
        """The least and the largest value."""
        found = self.index.range()
        if found is None:
            return None
        low, high = found
        if is_number(low) and is_number(high) and is_number(self.by):
            return low // self.by, high // self.by
        if is_number(low) and low == 0:
            most = quotient(whole(high + 1), self.by)
            return 0, high if most is None else whole(most - 1)
        return None

    def ir(self) -> IndexExpr:
        """As graphs have it."""
        return binary("//", self.index.affine(), to_ir(self.by))


@dataclass(frozen=True, slots=True)
class Remainder:
    """index % by, not negative."""

    index: Index
    by: Extent

    def range(self) -> Range:
        """The least and the largest value."""
        return 0, whole(self.by - 1)

    def ir(self) -> IndexExpr:
        """As graphs have it."""
        return binary("%", self.index.affine(), to_ir(self.by))


@dataclass(frozen=True, slots=True)
class Data:
    """An integer that data give, which is in 0..extent."""

    value: g.Expr
    extent: Extent

    def range(self) -> Range:
        """The least and the largest value."""
        return 0, whole(self.extent - 1)


Atom: TypeAlias = Union[Var, Quotient, Remainder, Data]  # noqa: UP007

# --- sums -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Index:
    """A sum of atoms with coefficients, and a constant."""

    terms: tuple[tuple[Extent, Atom], ...] = ()
    constant: Extent = 0

    def __add__(self, other: Index | Extent) -> Index:
        if not isinstance(other, Index):
            return Index(self.terms, whole(self.constant + other))
        found: dict[Atom, Extent] = {}
        for c, a in (*self.terms, *other.terms):
            found[a] = whole(found[a] + c) if a in found else c
        kept = tuple((c, a) for a, c in found.items() if not (is_number(c) and c == 0))
        return _joined(Index(kept, whole(self.constant + other.constant)))

    def __mul__(self, factor: Extent) -> Index:
        if is_number(factor) and factor in (0, 1):
            return self if factor else Index()
        return Index(tuple((whole(c * factor), a) for c, a in self.terms), whole(self.constant * factor))

    def range(self) -> Range:
        """The least and the largest value; None where that is not known."""
        low = high = self.constant
        for c, a in self.terms:
            found = a.range()
            if found is None or (not (up := not_negative(c)) and not not_negative(-c)):
                return None
            first, last = found if up else found[::-1]
            low, high = low + c * first, high + c * last
        return whole(low), whole(high)

    def _split(self, by: Extent) -> tuple[Index, Index]:
        """(q, r) with self = by * q + r."""
        quotients: list[tuple[Extent, Atom]] = []
        rest: list[tuple[Extent, Atom]] = []
        for c, a in self.terms:
            q = quotient(c, by)
            if q is None:
                rest.append((c, a))
            else:
                quotients.append((q, a))
        if is_number(self.constant) and is_number(by):
            whole_part, left = divmod(self.constant, by)
        else:
            q = quotient(self.constant, by)
            whole_part, left = (0, self.constant) if q is None else (q, 0)
        return Index(tuple(quotients), whole_part), Index(tuple(rest), left)

    def __floordiv__(self, by: Extent) -> Index:
        if is_number(by) and by == 1:
            return self
        q, r = self._split(by)
        return q if _within(r, by) else q + Index(((1, Quotient(r, by)),))

    def __mod__(self, by: Extent) -> Index:
        if is_number(by) and by == 1:
            return Index()
        _, r = self._split(by)
        return r if _within(r, by) else Index(((1, Remainder(r, by)),))

    @property
    def has_data(self) -> bool:
        """Do data say what it is?"""
        return any(
            isinstance(a, Data) or (isinstance(a, Quotient | Remainder) and a.index.has_data)
            for _, a in self.terms
        )

    def affine(self) -> IndexExpr:
        """As graphs have it; not for an index that data give."""
        positive = [(c, a) for c, a in self.terms if not (is_number(c) and c < 0)]
        negative = [(c, a) for c, a in self.terms if is_number(c) and c < 0]
        found: IndexExpr = IConst(0)
        for c, a in positive:
            assert not isinstance(a, Data)
            found = binary("+", found, binary("*", to_ir(c), a.ir()))
        found = binary("+", found, to_ir(self.constant))
        for c, a in negative:
            assert not isinstance(a, Data)
            found = binary("-", found, binary("*", to_ir(-c), a.ir()))
        return found

    def ir(self) -> g.Index:
        """As a subscript of a graph."""
        return self.number() if self.has_data else self.affine()

    def number(self) -> g.Expr:
        """As a number of 64 bits."""
        if self.has_data:
            parts = [_times(c, _atom(a)) for c, a in self.terms]
            if not (is_number(self.constant) and self.constant == 0):
                parts.append(_number(to_ir(self.constant)))
            return fold(lambda x, y: g.Apply("add", (x, y), I64), parts)
        return _number(self.affine())


def _number(e: IndexExpr) -> g.Expr:
    return g.Const(e.value, I64) if isinstance(e, IConst) else g.IndexValue(e, I64)


def _atom(a: Atom) -> g.Expr:
    match a:
        case Data(value):
            return value if value.dtype is I64 else g.Cast(value, I64)
        case Quotient(index, by) | Remainder(index, by) if index.has_data:
            op = "floordiv" if isinstance(a, Quotient) else "mod"
            return g.Apply(op, (index.number(), _number(to_ir(by))), I64)
        case Var() | Quotient() | Remainder():
            return _number(a.ir())


def _times(c: Extent, e: g.Expr) -> g.Expr:
    return e if is_number(c) and c == 1 else g.Apply("mul", (e, _number(to_ir(c))), I64)


def _within(r: Index, by: Extent) -> bool:
    """Is it in 0..by?"""
    found = r.range()
    return found is not None and not_negative(found[0]) and at_most(whole(found[1] + 1), by)


def _joined(index: Index) -> Index:
    """by * (a // by) + a % by is a."""
    for c, a in index.terms:
        if not isinstance(a, Remainder):
            continue
        for d, b in index.terms:
            if isinstance(b, Quotient) and (b.index, b.by) == (a.index, a.by) and equal(d, c * a.by):
                rest = tuple(t for t in index.terms if t[1] is not a and t[1] is not b)
                whole_index: Index = a.index * c
                return Index(rest, index.constant) + whole_index
    return index


def variable(name: str, extent: Extent) -> Index:
    """A loop variable; 0 where there is one iteration."""
    return Index() if is_number(extent) and extent == 1 else Index(((1, Var(name, extent)),))


def data_index(value: g.Expr, extent: Extent) -> Index:
    """An index that data give."""
    return Index(((1, Data(value, extent)),))


def inside(index: Index, extent: Extent) -> g.Expr | None:
    """The condition under which an index is in 0..extent; None where it always is."""
    found = index.range()
    test: g.Expr | None = None
    if found is None or not not_negative(found[0]):
        test = g.Apply("le", (g.Const(0, I64), index.number()), BOOL)
    if found is None or not at_most(whole(found[1] + 1), extent):
        upper = g.Apply("lt", (index.number(), _number(to_ir(extent))), BOOL)
        test = upper if test is None else g.Apply("and", (test, upper), BOOL)
    return test


# --- reshapes ---------------------------------------------------------------------------------------------


def ravel(indices: Sequence[Index], shape: Sequence[Extent]) -> Index:
    """The place of an element of a row-major array."""
    found, stride = Index(), 1
    for i, n in zip(reversed(indices), reversed(shape), strict=True):
        found, stride = found + i * stride, whole(stride * n)
    return found


def unravel(place: Index, shape: Sequence[Extent]) -> list[Index]:
    """The indices of the element at a place of a row-major array."""
    found: list[Index] = []
    for n in reversed(shape[1:]):
        found.append(place % n)
        place = place // n
    return [*([place] if shape else []), *reversed(found)]


def groups(one: Sequence[Extent], other: Sequence[Extent]) -> list[tuple[Sequence[Extent], Sequence[Extent]]]:
    """Shapes of as many elements, cut into as short runs of axes as have equal products."""
    found: list[tuple[Sequence[Extent], Sequence[Extent]]] = []
    i = j = 0
    while i < len(one) and j < len(other):
        first, second = i + 1, j + 1
        while (step := _shorter(one[i:first], other[j:second])) is not None:
            if (step == 0 and first == len(one)) or (step == 1 and second == len(other)):
                return [*found, (one[i:], other[j:])]
            first, second = (first + 1, second) if step == 0 else (first, second + 1)
        found.append((one[i:first], other[j:second]))
        i, j = first, second
    if i < len(one) or j < len(other):
        found.append((one[i:], other[j:]))
    return found


def _shorter(one: Sequence[Extent], other: Sequence[Extent]) -> int | None:
    """Which of two runs takes another axis (0 or 1); None where they have as many elements."""
    a, b = product(one), product(other)
    if equal(a, b):
        return None
    if is_number(a) and is_number(b):
        return 0 if a < b else 1
    if quotient(b, a) is not None:
        return 0
    return 1 if quotient(a, b) is not None or len(other) < len(one) else 0


def reshaped(indices: Sequence[Index], shape: Sequence[Extent], base: Sequence[Extent]) -> list[Index]:
    """The indices into an array of shape `base` of an element of the same array in another shape."""
    found: list[Index] = []
    at = 0
    for old, new in groups(base, shape):
        mine = indices[at : at + len(new)]
        at += len(new)
        if len(old) == 1 and len(new) == 1:
            found.append(mine[0])
        elif old:
            found += unravel(ravel(mine, new), old)
    return found
