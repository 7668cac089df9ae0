"""Reductions over ranges that move with an index that their terms do not depend on, in the reference.

    c[b, t] = sum[s in 0..t + 1](x[b, s])

The terms are evaluated once.  Where one end stays, totals of all ranges from there are made by doubling, and
each result is the one at its other end; where both move, the terms of a range are combined one after the
other.  What is combined is what a reduction combines (`reductions.merge`), with its bounds.  Small ones go
the plain way, term by term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from polyfuse.ir.index_expr import variables
from polyfuse.ir.tensor_graph import ARG_REDUCTIONS, IterDim, Statement, depends_on
from polyfuse.runtime.reference import reductions as reduction
from polyfuse.runtime.reference.block import WORTH_IT, Block, BlockEvaluator, Store, both, restrict
from polyfuse.runtime.reference.reductions import Partial
from polyfuse.runtime.reference.values import Array, Val


@dataclass(frozen=True, slots=True)
class MovingRange:
    """A statement whose reduced dim `along` has a range that moves with dims that its terms do not have."""

    statement: Statement
    along: IterDim
    free: frozenset[str]

    def values(
        self, full: Block, stores: Mapping[str, Store], sizes: Mapping[str, int], checked: bool
    ) -> Val:
        """The results over a box, whose reduced axes stay with extent 1."""
        s, d, op = self.statement, self.along, cast(str, self.statement.reduction)
        at = BlockEvaluator(s, full, stores, sizes, checked)
        low, high = at.index(d.lower), at.index(d.upper)
        self._require_terms(at, low, high)
        axis, first = full.axis[d.name], full.ranges[d.name][0]
        axes = tuple(full.axis[n] for n in sorted(self.free))
        part = restrict(full, tuple(n for n in full.ranges if n not in self.free))
        here = BlockEvaluator(s, part, stores, sizes, checked)
        place = part.coordinates(d.name)
        inside = (place >= _extreme(np.min, low, axes)) & (place < _extreme(np.max, high, axes))
        for x in (x for x in s.dims if x is not d and (variables(x.lower) or variables(x.upper))):
            v = part.coordinates(x.name)
            inside = both(inside, (v >= here.index(x.lower)) & (v < here.index(x.upper)))  # type: ignore[assignment]
        others = [x.name for x in s.dims if x.reduce and x is not d]
        terms = reduction.partial(
            op, here.expr(s.expr, inside), part.shape, tuple(part.axis[n] for n in others), inside
        )
        shape = tuple(
            n if name not in s.reduction_dims else 1 for name, n in zip(full.ranges, full.shape, strict=True)
        )
        width = int(np.max(high - low, initial=0))
        if low.size == _extreme(np.min, low, axes).size:
            total = _taken(_prefix(op, terms, axis), high - 1 - first, high > low, axis, shape, op)
        elif high.size == _extreme(np.max, high, axes).size:
            back = _each(terms, lambda a: np.flip(a, axis))
            last = full.ranges[d.name][1] - 1
            total = _taken(_prefix(op, back, axis), last - low, high > low, axis, shape, op)
        else:
            total = _taken(terms, low - first, high > low, axis, shape, op)
            for k in range(1, width):
                total = reduction.merge(
                    op, total, _taken(terms, low + k - first, high > low + k, axis, shape, op)
                )
        count = width * int(np.prod([full.shape[full.axis[n]] for n in others], dtype=np.int64))
        return reduction.finish(op, total, s.expr.dtype, max(1, count))

    def _require_terms(self, at: BlockEvaluator, low: Array, high: Array) -> None:
        s = self.statement
        bad = np.asarray(high <= low)
        if s.reduction in ("max", "min") and bad.any():
            at.fail("PF451", f"{s.reduction} of no elements has no value", s.span, bad, None)


def moving_range(s: Statement, full: Block) -> MovingRange | None:
    """The statement as one over such a range, if it is large."""
    if s.reduction is None or s.accumulate or s.reduction in ARG_REDUCTIONS:
        return None
    if np.prod(full.shape, dtype=np.float64) < WORTH_IT:
        return None
    free = {d.name for d in s.dims if not d.reduce} - depends_on(s.expr)
    found = [d for d in s.dims if _bounds(d) & free]
    outer = {d.name for d in s.dims if not d.reduce}
    if len(found) != 1 or not found[0].reduce or any(_bounds(d) for d in s.dims if d.name in outer):
        return None
    if any(found[0].name in _bounds(d) for d in s.dims):
        return None
    return MovingRange(s, found[0], frozenset(free))


def _bounds(d: IterDim) -> set[str]:
    return {*variables(d.lower), *variables(d.upper)}


def _extreme(of: Callable[..., Array], a: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(of(a, axis=axes, keepdims=True))


def _each(p: Partial, change: Callable[[Array], Array]) -> Partial:
    shape = np.broadcast_shapes(p.v.shape, p.low.shape, p.high.shape)
    v, low, high = (change(np.broadcast_to(a, shape)) for a in (p.v, p.low, p.high))
    return Partial(v, low, high, p.exact, p.nonneg)


def _prefix(op: str, p: Partial, axis: int) -> Partial:
    """What is known of all terms up to each place of an axis."""
    p = _each(p, lambda a: a)
    by, n = 1, p.v.shape[axis]

    def cut(begin: int, end: int) -> Partial:
        at = (slice(None),) * axis + (slice(begin, end),)
        return _each(p, lambda a: a[at])

    while by < n:
        head, later = cut(0, by), reduction.merge(op, cut(0, n - by), cut(by, n))
        v, low, high = (
            np.concatenate([a, b], axis)
            for a, b in ((head.v, later.v), (head.low, later.low), (head.high, later.high))
        )
        p = Partial(v, low, high, p.exact, p.nonneg)
        by *= 2
    return p


def _taken(p: Partial, place: Array, there: Array, axis: int, shape: tuple[int, ...], op: str) -> Partial:
    """What is known at a place of an axis for each result; of no terms where it is not there."""
    n = p.v.shape[axis]
    at = np.broadcast_to(np.clip(place, 0, n - 1), shape)
    wide = (*shape[:axis], n, *shape[axis + 1 :])
    found = _each(p, lambda a: np.take_along_axis(np.broadcast_to(a, wide), at, axis))
    if there.all():
        return found
    nothing = reduction.neutral(op, p.v)
    if p.v.dtype != np.float64 or op == "sum":
        rest = (0.0, 0.0)
    else:
        rest = (0.0, 1.0) if op == "prod" else (float(nothing), float(nothing))
    v = np.where(there, found.v, nothing)
    return Partial(
        v, np.where(there, found.low, rest[0]), np.where(there, found.high, rest[1]), p.exact, p.nonneg
    )
