"""Which statements can define one element? The others are told apart by the ranges of what they write.

    y[i] = ... for i in 0..M,  y[i] = ... for i in M..2*M,  y[i] = ... for i in 2*M..3*M
        ranges 0..M-1, M..2*M-1, 2*M..3*M-1: in order, each ends before the next one begins

Statements in order of their ranges are cut where all ranges before end before all behind begin, along one
axis after the other. Only those that no cut separates are compared pair by pair, so that n pieces of a
concatenation take n comparisons. A range is that of a box around what a statement writes, and a comparison
counts only where it holds for all sizes: what is said to be apart is apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from polyfuse.ir.index_expr import IndexExpr
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, IterDim, Statement
from polyfuse.poly.model.dependences import outer_dims
from polyfuse.poly.model.isl_bridge import NotAffine
from polyfuse.poly.model.isl_text import DivisionByZero, IslText, Linear

# What sizes are taken to be where statements are put in order; no proof depends on it.
_SAMPLE = 1009


@dataclass(frozen=True, slots=True)
class _Range:
    """The least and the greatest index that a statement may write, in terms of the sizes."""

    low: Linear
    high: Linear


_Box = tuple["_Range | None", ...]


def may_meet(text: IslText, statements: Sequence[Statement]) -> list[tuple[int, int]]:
    """Pairs (later, earlier) of positions, in order, of statements that may write one element."""
    boxes = [_box(text, s) for s in statements]
    found: list[tuple[int, int]] = []
    for group in _groups(text, boxes, range(len(boxes))):
        for a, b in combinations(sorted(group), 2):
            if not any(_apart(text, x, y) for x, y in zip(boxes[a], boxes[b], strict=True)):
                found.append((b, a))
    return sorted(found)


def _groups(text: IslText, boxes: Sequence[_Box], members: Iterable[int]) -> list[list[int]]:
    """Members that no cut along any axis separates."""
    left, done = [list(members)], list[list[int]]()
    while left:
        group = left.pop()
        parts = next((p for p in _cuts(text, boxes, group) if len(p) > 1), None)
        if parts is None:
            done.append(group)
        else:
            left += parts
    return done


def _cuts(text: IslText, boxes: Sequence[_Box], group: list[int]) -> Iterable[list[list[int]]]:
    """The group cut along each axis."""
    for axis in range(len(boxes[group[0]])) if len(group) > 1 else ():
        ranges = {k: r for k in group if (r := boxes[k][axis]) is not None}
        if len(ranges) == len(group):
            yield _cut(text, ranges)


def _cut(text: IslText, ranges: Mapping[int, _Range]) -> list[list[int]]:
    """Parts of which each ends, along one axis, before the next one begins."""
    order = sorted(ranges, key=lambda k: (_sampled(ranges[k].low), _sampled(ranges[k].high)))
    # Of each place, the least index that it and all behind it write, if one is known.
    least: list[Linear | None] = []
    for k in reversed(order):
        least.append(_smaller(text, ranges[k].low, least[-1] if least else ranges[k].low))
    parts: list[list[int]] = []
    top: Linear | None = None
    for k, low in zip(order, reversed(least), strict=True):
        high = ranges[k].high
        if not parts or (top is not None and low is not None and _below(text, top, low)):
            parts.append([])
        top = high if not parts[0] else _greater(text, high, top)
        parts[-1].append(k)
    return parts


def _smaller(text: IslText, a: Linear, b: Linear | None) -> Linear | None:
    if b is None:
        return None
    return a if _at_most(text, a, b) else b if _at_most(text, b, a) else None


def _greater(text: IslText, a: Linear, b: Linear | None) -> Linear | None:
    if b is None:
        return None
    return a if _at_most(text, b, a) else b if _at_most(text, a, b) else None


def _apart(text: IslText, a: _Range | None, b: _Range | None) -> bool:
    return a is not None and b is not None and (_below(text, a.high, b.low) or _below(text, b.high, a.low))


# --- ranges -------------------------------------------------------------------------------------------------


def _box(text: IslText, s: Statement) -> _Box:
    """A range for each axis; None where none is found."""
    known: dict[str, _Range] = {}
    for d in outer_dims(s):
        found = _of_dim(text, d, known)
        if found is not None:
            known[d.name] = found
    return tuple(_of_index(text, i, known) for i in s.write)


def _of_dim(text: IslText, d: IterDim, known: Mapping[str, _Range]) -> _Range | None:
    low, end = _of_index(text, d.lower, known), _of_index(text, d.upper, known)
    return None if low is None or end is None else _Range(low.low, _plus(end.high, ({}, -1)))


def _of_index(text: IslText, i: Index, known: Mapping[str, _Range]) -> _Range | None:
    """The range of a sum of multiples of variables with known ranges, and of sizes."""
    if isinstance(i, EXPR_TYPES):
        return None
    form = _linear(text, i, known)
    if form is None:
        return None
    low: Linear = {}, form[1]
    high: Linear = {}, form[1]
    for atom, c in form[0].items():
        mine = known.get(atom.removeprefix(_VARIABLE)) if atom.startswith(_VARIABLE) else None
        if mine is None:
            part = {atom: c}, 0
            low, high = _plus(low, part), _plus(high, part)
        else:
            ends = (mine.low, mine.high) if c > 0 else (mine.high, mine.low)
            low, high = _plus(low, _times(ends[0], c)), _plus(high, _times(ends[1], c))
    return _Range(low, high)


_VARIABLE = "variable "


def _linear(text: IslText, e: IndexExpr, known: Mapping[str, _Range]) -> Linear | None:
    """The linear form, if variables stand by themselves in it and their ranges are known."""
    before = text.vague
    try:
        form = text.linear(e, {n: f"{_VARIABLE}{n}" for n in known})
    except (NotAffine, DivisionByZero, KeyError):
        return None
    finally:
        text.vague = before
    plain = all(_VARIABLE not in atom.removeprefix(_VARIABLE) for atom in form[0])
    return form if plain else None


# --- linear forms -------------------------------------------------------------------------------------------


def _plus(a: Linear, b: Linear) -> Linear:
    terms = dict(a[0])
    for atom, c in b[0].items():
        terms[atom] = terms.get(atom, 0) + c
    return {x: c for x, c in terms.items() if c}, a[1] + b[1]


def _times(a: Linear, factor: int) -> Linear:
    return {x: c * factor for x, c in a[0].items()}, a[1] * factor


def _at_most(text: IslText, a: Linear, b: Linear) -> bool:
    """Surely a <= b, whatever the sizes are."""
    terms, constant = _plus(b, _times(a, -1))
    return constant >= 0 and all(c > 0 and text.is_size(x) for x, c in terms.items())


def _below(text: IslText, a: Linear, b: Linear) -> bool:
    return _at_most(text, _plus(a, ({}, 1)), b)


def _sampled(form: Linear) -> int:
    return form[1] + sum(c * _SAMPLE for c in form[0].values())
