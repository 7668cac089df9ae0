"""Sums and products of floats in a factored form.

    dy / s + -(d / s)    becomes    (dy - d) / s

Like terms are collected, numbers multiplied, and what all terms of a sum have in common stands outside.  What
is neither a sum nor a product is an atom; conditionals are, so nothing leaves the branch that it is in.
Results differ by roundings, as derivatives of the same function by different rules do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from polyfuse.ir.dtypes import BOOL, DType
from polyfuse.ir.ops import OPS
from polyfuse.ir.tensor_graph import Apply, Cast, Const, Expr, Read, Select, map_expr, walk

_POWERS = 4


@dataclass(frozen=True)
class Product:
    """A number times powers of atoms, in order of first occurrence."""

    coefficient: float
    factors: Mapping[Expr, int]

    def times(self, other: Product, power: int = 1) -> Product:
        """The product, or the quotient where the power is -1."""
        factors = dict(self.factors)
        for atom, n in other.factors.items():
            factors[atom] = factors.get(atom, 0) + power * n
            if not factors[atom]:
                del factors[atom]
        scale = other.coefficient
        value = self.coefficient * scale if power == 1 else self.coefficient / scale
        return Product(value, factors)

    def scaled(self, by: float) -> Product:
        return Product(self.coefficient * by, self.factors)


def number(value: float, dtype: DType) -> Const:
    """A float of the language."""
    return Const(float(value), dtype)


def apply(op: str, *args: Expr) -> Apply:
    """An operation on operands of its type."""
    return Apply(op, args, OPS[op].result(args[0].dtype))


def is_zero(e: Expr) -> bool:
    """Is it the number 0?"""
    return isinstance(e, Const) and e.value == 0


def choice(conditions: Iterable[Expr], value: Expr) -> Expr:
    """The value where all conditions hold, else 0."""
    for c in _joined(conditions):
        if is_zero(value):
            break
        value = _where(c, value)
        if not is_zero(value):
            value = Select(c, value, number(0.0, value.dtype), value.dtype)
    return value


def _where(cond: Expr, value: Expr) -> Expr:
    """The value where a condition holds: it need not be asked again."""
    known = map_expr(value, lambda e: e.then if isinstance(e, Select) and e.cond == cond else e)
    return value if known is value else factored(known)


def _joined(conditions: Iterable[Expr]) -> list[Expr]:
    """The conditions, the last one first; neighbours on indices alone, which guard no read, are one."""
    found: list[Expr] = []
    for c in conditions:
        if c == Const(True, BOOL):
            continue
        if found and not any(isinstance(x, Read) for e in (c, found[0]) for x in walk(e)):
            found[0] = Apply("and", (found[0], c), BOOL)
        else:
            found.insert(0, c)
    return found


def factored(e: Expr) -> Expr:
    """An equal expression in the form of the module."""
    return expression(product(e), e.dtype)


def multiplied(*parts: Expr) -> Expr:
    """The product, factored."""
    total = Product(1.0, {})
    for p in parts:
        total = total.times(product(p))
    return expression(total, parts[0].dtype)


def added(parts: Iterable[Expr], dtype: DType) -> Expr:
    """The sum, factored."""
    return expression(_sum([product(p) for p in parts], dtype), dtype)


def product(e: Expr) -> Product:
    """The factored form of an expression."""
    match e:
        case _ if not e.dtype.is_float:
            return Product(1.0, {e: 1})
        case Const(value):
            finite = value == value and abs(value) != float("inf")
            return Product(float(value), {}) if finite else Product(1.0, {e: 1})
        case Apply("neg", (arg,)):
            return product(arg).scaled(-1.0)
        case Apply("mul", (a, b)):
            return product(a).times(product(b))
        case Apply("div", (a, b)):
            below = product(b)
            return Product(1.0, {e: 1}) if not below.coefficient else product(a).times(below, -1)
        case Apply("add", (a, b)):
            return _sum([product(a), product(b)], e.dtype)
        case Apply("sub", (a, b)):
            return _sum([product(a), product(b).scaled(-1.0)], e.dtype)
        case Apply("pow", (base, Const(n))) if n == int(n) and 0 < n <= _POWERS:
            one = product(base)
            if len(one.factors) == 1 and one.coefficient == 1.0:
                ((atom, k),) = one.factors.items()
                return Product(1.0, {atom: k * int(n)})
            return one if n == 1 else Product(1.0, {e: 1})
        case Select(cond, then, other):
            a, b = factored(_where(cond, then)), factored(other)
            return product(a) if a == b else Product(1.0, {replace(e, then=a, other=b): 1})
        case _:
            return Product(1.0, {e: 1})


def _terms(p: Product) -> list[Product]:
    """A product that is a sum of terms alone."""
    if len(p.factors) == 1:
        ((atom, n),) = p.factors.items()
        if n == abs(p.coefficient) == 1 and isinstance(atom, Apply) and atom.op in ("add", "sub"):
            sign = 1.0 if atom.op == "add" else -1.0
            left, right = (_terms(product_of_term(a)) for a in atom.args)
            return [
                *(t.scaled(p.coefficient) for t in left),
                *(t.scaled(sign * p.coefficient) for t in right),
            ]
    return [p]


def terms(e: Expr) -> list[Expr]:
    """The terms of an expression, its factors in each of them where it is a product with one sum."""
    p = product(e)
    sums = [a for a, n in p.factors.items() if n == 1 and isinstance(a, Apply) and a.op in ("add", "sub")]
    if len(sums) != 1:
        return [e]
    rest = Product(p.coefficient, {a: n for a, n in p.factors.items() if a != sums[0]})
    return [expression(rest.times(t), e.dtype) for t in _terms(Product(1.0, {sums[0]: 1}))]


def product_of_term(e: Expr) -> Product:
    """A term of a sum that is factored already: its sums stay as they are."""
    if isinstance(e, Apply) and e.op in ("add", "sub"):
        return Product(1.0, {e: 1})
    return product(e)


def _sum(terms: Iterable[Product], dtype: DType) -> Product:
    flat = [t for p in terms for t in _terms(p) if t.coefficient]
    like: dict[frozenset[tuple[Expr, int]], Product] = {}
    for t in flat:
        key = frozenset(t.factors.items())
        before = like.get(key)
        like[key] = t if before is None else Product(before.coefficient + t.coefficient, before.factors)
    kept = [t for t in like.values() if t.coefficient]
    if not kept:
        return Product(0.0, {})
    if len(kept) == 1:
        return kept[0]
    common = _common(kept)
    rest = [t.times(common, -1) for t in kept]
    if common.factors:
        inner = _sum(rest, dtype)
        return common.times(inner)
    return common.times(Product(1.0, {_added(_grouped(rest, dtype), dtype): 1}))


def _grouped(terms: list[Product], dtype: DType) -> list[Product]:
    """Terms that share a factor, which not all have, as one: a*b + c + a*d is a*(b + d) + c."""
    often: dict[tuple[Expr, bool], int] = {}
    for t in terms:
        for atom, n in t.factors.items():
            often[atom, n > 0] = often.get((atom, n > 0), 0) + 1
    shared = max(often, key=lambda k: often[k], default=None)
    if shared is None or not 2 <= often[shared] < len(terms):
        return terms
    atom, above = shared
    having = [t for t in terms if t.factors.get(atom, 0) and (t.factors[atom] > 0) == above]
    rest = [t for t in terms if t not in having]
    return _grouped([_sum(having, dtype), *rest], dtype)


def _common(terms: list[Product]) -> Product:
    """What all terms have as a factor."""
    first = terms[0]
    factors: dict[Expr, int] = {}
    for atom in first.factors:
        powers = [t.factors.get(atom, 0) for t in terms]
        if all(n > 0 for n in powers):
            factors[atom] = min(powers)
        elif all(n < 0 for n in powers):
            factors[atom] = max(powers)
    scale = first.coefficient
    same = all(t.coefficient == scale for t in terms)
    negative = all(t.coefficient < 0 for t in terms)
    return Product(scale if same else -1.0 if negative else 1.0, factors)


def _added(terms: list[Product], dtype: DType) -> Expr:
    """The terms one after the other, one that is not subtracted first."""
    first = next((t for t in terms if t.coefficient > 0), terms[0])
    total = expression(first, dtype)
    for t in terms:
        if t is first:
            continue
        op = "add" if t.coefficient > 0 else "sub"
        total = Apply(op, (total, expression(t if op == "add" else t.scaled(-1.0), dtype)), dtype)
    return total


def expression(p: Product, dtype: DType) -> Expr:
    """The product as an expression: numerators, then one division."""
    if p.coefficient == 0:
        return number(0.0, dtype)
    above = [_power(a, n, dtype) for a, n in p.factors.items() if n > 0]
    below = [_power(a, -n, dtype) for a, n in p.factors.items() if n < 0]
    scale = abs(p.coefficient)
    if scale != 1.0 or not above:
        above.insert(0, number(scale, dtype))
    made = _chain(above, dtype)
    if p.coefficient < 0:
        made = Const(-made.value, dtype) if isinstance(made, Const) else Apply("neg", (made,), dtype)
    return Apply("div", (made, _chain(below, dtype)), dtype) if below else made


def _power(atom: Expr, n: int, dtype: DType) -> Expr:
    if n == 1:
        return atom
    return Apply("mul", (atom, atom), dtype) if n == 2 else Apply("pow", (atom, number(n, dtype)), dtype)


def _chain(parts: list[Expr], dtype: DType) -> Expr:
    made = parts[0]
    for p in parts[1:]:
        made = Apply("mul", (made, p), dtype)
    return made


def converted(e: Expr, dtype: DType) -> Expr:
    """In another type of floats."""
    if e.dtype is dtype:
        return e
    return number(float(e.value), dtype) if isinstance(e, Const) else Cast(e, dtype)
