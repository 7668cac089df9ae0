"""How much a statement touches: lengths of its dims, instances, elements of a tensor.

Ranges are intervals, so that what is counted is a box around what is touched: exact for plain accesses and
for halves of an axis, more than the truth for strides and guards.

    x[t, h], x[t, h + H]   for t in 0..8, h in 0..H        two boxes of 8 H elements
    the same in one iteration of a loop over t // 4        two boxes of 4 H elements
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from polyfuse.ir.data_ranges import divided
from polyfuse.ir.index_expr import (
    IBin,
    IConst,
    IndexExpr,
    IVar,
    binary,
    evaluate,
    product,
    substitute,
    variables,
)
from polyfuse.ir.index_expr import sizes as sizes_of
from polyfuse.ir.linear import Range, interval, linear
from polyfuse.ir.schedule_tree import Member
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Statement, TensorGraph

OPEN_SIZE = 1024
"""What figures take for a size that is open."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Values of a dim (`high` included), and its iterations on average over those of the dims outside."""

    low: int
    high: int
    length: float


Extents = Mapping[str, Extent]


@dataclass(frozen=True, slots=True)
class Touched:
    """Elements of a tensor inside a box, one range for each of its dims."""

    box: tuple[Range, ...]
    count: float


def extents(s: Statement) -> dict[str, Extent]:
    """Of every dim of a statement; a size that is not known counts as `OPEN_SIZE`.  Of what data divides
    among rows, each has its part."""
    found: dict[str, Extent] = {}
    for d in s.dims:
        hull = {n: (e.low, e.high) for n, e in found.items()}
        lower, upper = _estimated(d.lower), _estimated(d.upper)
        low, high = interval(lower, hull), interval(upper, hull)
        if low is None or high is None:
            raise ValueError(f"the range of {d.name} in {s.name} is not known")
        length = max(0.0, _mean(_distance(upper, lower), hull))
        found[d.name] = Extent(low[0], max(low[0], high[1] - 1), min(length, high[1] - low[0]))
    for var, others in divided(s).items():
        rows = prod(found[o].length for o in others)
        each = found[var].length / max(1.0, rows)
        found[var] = replace(found[var], length=max(min(1.0, found[var].length), each))
    return found


def _estimated(e: IndexExpr) -> IndexExpr:
    """The expression, were all sizes that are not known `OPEN_SIZE`."""
    names = sizes_of(e)
    return substitute(e, sizes=dict.fromkeys(names, IConst(OPEN_SIZE))) if names else e


def _distance(upper: IndexExpr, lower: IndexExpr) -> IndexExpr:
    """upper - lower; a minimum is taken apart, so that what both have in common goes away."""
    if isinstance(upper, IBin) and upper.op == "min":
        return binary("min", _distance(upper.left, lower), _distance(upper.right, lower))
    return linear(binary("-", upper, lower)).expr()


def _mean(e: IndexExpr, hull: Mapping[str, Range]) -> float:
    """The middle of what an expression may be: half a square for `t in 0..s + 1`."""
    if isinstance(e, IBin) and e.op == "min":
        return min(_mean(e.left, hull), _mean(e.right, hull))
    found = interval(e, hull)
    return 0.0 if found is None else (max(0, found[0]) + found[1]) / 2


def instances(found: Extents) -> float:
    return prod(e.length for e in found.values())


# --- one iteration of some loops ---------------------------------------------------------------------------


def inside(s: Statement, loops: Iterable[Member], known: Extents | None = None) -> dict[str, Extent]:
    """The extents that are left in one iteration of `loops`, of those that are known.

    A dim whose range moves with one that is not fixed takes all values that it has in any iteration of that.
    """
    found = extents(s) if known is None else known
    loops_of: dict[str, list[_Digits]] = {}
    for m in loops:
        if s.name not in dict(m.exprs):
            continue
        digits = _digits(m.of(s.name))
        if digits is not None and digits.dim in found:
            loops_of.setdefault(digits.dim, []).append(digits)
    fixed = {n: _values(each, found[n].length) for n, each in loops_of.items()}
    moving = {d.name for d in s.dims if (set(variables(d.lower)) | set(variables(d.upper))) - set(fixed)}
    return {
        n: e if n in moving and n not in fixed else _narrowed(e, fixed.get(n, 1)) for n, e in found.items()
    }


def _narrowed(e: Extent, parts: float) -> Extent:
    length = max(min(e.length, 1.0), e.length / max(1.0, parts))
    if length >= e.high - e.low + 1:
        return e
    return Extent(0, max(0, ceil(length) - 1), length)


@dataclass(frozen=True, slots=True)
class _Digits:
    """``dim // divisor % modulus``, from wherever the dim starts."""

    dim: str
    divisor: int = 1
    modulus: int | None = None

    def count(self, length: float) -> float:
        """Values that it takes."""
        values = ceil(length / self.divisor)
        return min(values, self.modulus or values)


def _values(digits: Iterable[_Digits], length: float) -> float:
    """Combinations of values that several of one dim take: ``v // 128`` is known where ``v // 32`` is.

    Each tells the places from its divisor up to that times its modulus; what several tell counts once.
    """
    spans = sorted((float(d.divisor), min(length, float(d.divisor * (d.modulus or length)))) for d in digits)
    count, start, end = 1.0, *spans[0]
    for first, last in spans[1:]:
        if first < end:
            end = max(end, last)
        else:
            count, start, end = count * max(1, ceil(end / start)), first, last
    return count * max(1, ceil(end / start))


def _digits(e: IndexExpr) -> _Digits | None:
    """An expression like ``v``, ``v // 4 % 32`` or ``(v - start) // 128``; None for another."""
    match e:
        case IVar(name):
            return _Digits(name)
        case IBin("+" | "-", left, right) if not variables(right):
            return _digits(left)
        case IBin("//" | "%" as op, IBin("-", left, _) | left, IConst(c)) if c > 0:
            below = _digits(left)
            if below is None:
                return None
            old = below.modulus
            if op == "%":
                return replace(below, modulus=min(c, old or c))
            return _Digits(below.dim, below.divisor * c, None if old is None else -(-old // c))
        case _:
            return None


def dims_of(e: IndexExpr) -> set[str]:
    """The dims that a loop runs over: of ``(h - 128 * c) // 4 % 32``, a part of a chunk, only h."""
    digits = _digits(e)
    return set(variables(e)) if digits is None else {digits.dim}


def trips(
    m: Member,
    statements: Mapping[str, Statement],
    outer: Sequence[Member] = (),
    known: Mapping[str, Extents] | None = None,
) -> float:
    """Iterations of a loop in one of those outside of it: of that statement, among these, that has most.
    `known`: the extents of statements."""
    most = 0.0
    for n, e in m.exprs:
        if n not in statements:
            continue
        found = inside(statements[n], outer, None if known is None else known[n])
        digits = _digits(e)
        if digits is not None and digits.dim in found:
            most = max(most, digits.count(found[digits.dim].length))
            continue
        values = interval(e, {d: (x.low, x.high) for d, x in found.items()})
        most = max(most, 1.0 if values is None else values[1] - values[0] + 1)
    return most


# --- elements -----------------------------------------------------------------------------------------------


def touched(indices: Sequence[Index], shape: Sequence[IndexExpr], found: Extents) -> Touched:
    """What an access touches while the dims take the values of `found`; data may point anywhere."""
    hull = {n: (e.low, e.high) for n, e in found.items()}
    box: list[Range] = []
    count = 1.0
    for i, full in zip(indices, shape, strict=True):
        last = evaluate(_estimated(full), {}) - 1
        values = None if isinstance(i, EXPR_TYPES) else interval(i, hull)
        low, high = (0, last) if values is None else (max(0, values[0]), min(last, values[1]))
        box.append((low, max(low, high)))
        size = float(max(0, high - low + 1))
        if not isinstance(i, EXPR_TYPES):
            size = min(size, prod(found[n].high - found[n].low + 1 for n in variables(i) if n in found))
        count *= size
    return Touched(tuple(box), min(count, instances(found)))


class Union:
    """Parts that come one after another, and the elements of all together: equal boxes count once, different
    ones are within the box around them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Range, ...], float] = {}
        self._around: tuple[Range, ...] | None = None
        self._sum = 0.0

    def add(self, parts: Iterable[Touched]) -> None:
        for p in parts:
            before = self._counts.get(p.box)
            if before is not None and p.count <= before:
                continue
            self._counts[p.box] = p.count
            self._sum += p.count - (before or 0.0)
            if before is None:
                self._around = _hull(self._around, p.box)

    @property
    def elements(self) -> float:
        if self._around is None:
            return 0.0
        return min(self._sum, float(prod(high - low + 1 for low, high in self._around)))


def _hull(a: tuple[Range, ...] | None, b: tuple[Range, ...]) -> tuple[Range, ...]:
    if a is None:
        return b
    return tuple((min(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a, b, strict=True))


def union(parts: Iterable[Touched]) -> float:
    """Elements of all together."""
    found = Union()
    found.add(parts)
    return found.elements


def tensor_bytes(graph: TensorGraph, tensor: str) -> int:
    """Bytes of a tensor; a size that is not known counts as `OPEN_SIZE`."""
    return graph.tensor(tensor).dtype.bytes * elements_of(graph, tensor)


def elements_of(graph: TensorGraph, tensor: str) -> int:
    return elements_at(product(graph.tensor(tensor).shape))


def elements_at(size: IndexExpr) -> int:
    """A number of elements, were all sizes that are not known `OPEN_SIZE`."""
    return max(0, evaluate(_estimated(size), {}))
