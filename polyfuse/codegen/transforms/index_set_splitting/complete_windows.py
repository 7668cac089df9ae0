"""Windows of which some terms lie beyond a border: which places have all of their terms, and when.

    for r in max(0, 1 - p)..min(3, H + 1 - p):
      for s in 0..3:
        for q in max(0, 1 - s)..min(W, W + 1 - s) @vec:  y[p, q] sum= x[p + r - 1, q + s - 1]

has all terms for q in 1..W - 1 if p >= 1 and p <= H - 2.  Borders are ends of loops, conditions of terms,
arms of indices (`min(max(q + s - 1, 0), W - 1)`) and rounds (`(q + s) % W`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

from polyfuse.codegen.analysis.reduction_nests import adds, beside, nest
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import (
    IBin,
    IConst,
    IndexExpr,
    IVar,
    binary,
    evaluate,
    sizes,
    substitute,
    variables,
)
from polyfuse.ir.linear import Linear, arms, conjuncts, linear
from polyfuse.ir.loop_ir import For, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Select, reads, walk


@dataclass(slots=True)
class BorderedWindow:
    """Loops over strips, and in them over a window, around a vector loop of sums.

    The vector loop begins and ends at extremes of `low` and `high`, whatever the term.  `inside` are the
    first place for which no term is beyond a border, and the first behind it for which one is, as far as
    places and terms decide; `around` is what must not be negative besides.  settled: what conditions of terms
    say, if both hold.  within: what an index is while some expressions are not negative.
    """

    strips: list[For]
    loops: list[For]
    inner: For
    spans: dict[str, range]
    low: list[IndexExpr] = field(default_factory=list)
    high: list[IndexExpr] = field(default_factory=list)
    inside: tuple[int | None, int | None] = (None, None)
    around: dict[tuple[tuple[IndexExpr, int], ...], int] = field(default_factory=dict)
    settled: set[IndexExpr] = field(default_factory=set)
    within: dict[IndexExpr, tuple[IndexExpr, tuple[IndexExpr, ...]]] = field(default_factory=dict)

    @property
    def updates(self) -> list[Update]:
        return [n for n in self.inner.body if isinstance(n, Update)]

    def places(self) -> Iterator[dict[str, int]]:
        """The terms of the window."""
        for values in product(*self.spans.values()):
            yield dict(zip(self.spans, values, strict=True))

    def spanned(self) -> Iterable[tuple[For, range]]:
        return zip(self.loops, self.spans.values(), strict=True)

    def begins(self, at: int) -> None:
        first, last = self.inside
        self.inside = (at if first is None else max(first, at), last)

    def ends(self, at: int) -> None:
        first, last = self.inside
        self.inside = (first, at if last is None else min(last, at))

    def needs(self, e: Linear) -> None:
        """e >= 0 is asked for."""
        self.around[e.terms] = min(e.constant, self.around.get(e.terms, e.constant))


def bordered(loop: For) -> BorderedWindow | None:
    """The window of a nest, if some of it lies beyond a border."""
    *loops, inner = nest(loop)
    plain = inner.coordinate is Coordinate.VECTOR and inner.step == 1 and not (inner.lanes or inner.joint)
    if not plain or not inner.body or not all(isinstance(n, Update) for n in inner.body):
        return None
    w = BorderedWindow([], [], inner, {})
    for x in reversed(loops):
        span = _span(x)
        if span and _is_small(w, span) and all(adds(n, x.var, inner, integers=True) for n in w.updates):
            w.loops, w.spans = [x, *w.loops], {x.var: span, **w.spans}
        else:
            w.strips.insert(0, x)
    if any({*variables(e)} & {*w.spans} for x in w.strips for e in (x.lower, x.upper)):
        return None
    if not beside(w.updates, inner) & {*w.spans} or not _bounded(w):
        return None
    for n in w.updates:
        _guarded(w, n.value)
    w.around = {terms: c for terms, c in w.around.items() if terms or c < 0}
    if (
        () in w.around
        or len(w.around) > FITTED.complete_windows_most_conditions
        or (w.inside == (None, None) and not w.around)
    ):
        return None
    return w


def _span(x: For) -> range | None:
    """The iterations of a loop whose bounds are numbers, but for those that are beyond a border."""
    lows, highs = ([a.value for a in side if isinstance(a, IConst)] for side in _sides(x))
    return range(max(lows), min(highs)) if lows and highs else None


def _sides(x: For) -> tuple[list[IndexExpr], list[IndexExpr]]:
    return arms("max", x.lower), arms("min", x.upper)


def _is_small(w: BorderedWindow, span: range) -> bool:
    terms = len(span)
    for other in w.spans.values():
        terms *= len(other)
    return 0 < terms <= FITTED.jam_stencils_most_terms


def _bounded(w: BorderedWindow) -> bool:
    """Takes in the bounds of all loops; False where terms and what is around decide together."""
    for x in w.loops:
        for sign, side in zip((-1, 1), _sides(x), strict=True):
            end = w.spans[x.var].start if sign < 0 else w.spans[x.var].stop
            for arm in side:
                if {*variables(arm)} & {*w.spans, w.inner.var}:
                    return False
                if not isinstance(arm, IConst):
                    w.needs(linear(binary("*", binary("-", arm, end), sign)))
    return _ends(w, "max", w.inner.lower) and _ends(w, "min", w.inner.upper)


def _ends(w: BorderedWindow, op: str, bound: IndexExpr) -> bool:
    """Takes in one end of the vector loop."""
    varying = [a for a in arms(op, bound) if {*variables(a)} & {*w.spans}]
    fixed = [a for a in arms(op, bound) if a not in varying]
    if not all({*variables(a)} <= {*w.spans} and not sizes(a) for a in varying):
        return False
    if varying:
        reached = [[evaluate(a, place) for a in varying] for place in w.places()]
        if op == "max":
            w.begins(max(map(max, reached)))
            fixed.append(IConst(min(map(max, reached))))
        else:
            w.ends(min(map(min, reached)))
            fixed.append(IConst(max(map(min, reached))))
    (w.low if op == "max" else w.high).extend(fixed)
    return True


def _guarded(w: BorderedWindow, value: Expr) -> None:
    """Takes in the conditions of a term."""
    conditions = (e.cond for e in walk(value) if isinstance(e, Select))
    for part in (p for c in conditions for p in conjuncts(c) or ()):
        if {*variables(part)} & {*w.spans}:
            _ask(w, part)
    for i in (i for r in reads(value) for i in r.indices if not isinstance(i, EXPR_TYPES)):
        asked: list[IndexExpr] = []
        if i not in w.within and (plain := _plain(w, i, asked)) != i:
            for part in asked:
                _ask(w, part)
            w.within[i] = plain, tuple(asked)


def _plain(w: BorderedWindow, i: IndexExpr, asked: list[IndexExpr]) -> IndexExpr:
    """An index of a term without arms and rounds, which it is where nothing `asked` is negative."""
    if not isinstance(i, IBin):
        return i
    left, right = (_plain(w, e, asked) for e in (i.left, i.right))
    in_window = [bool({*variables(e)} & {*w.spans}) for e in (left, right)]
    match i.op, right:
        case (("min" | "max"), _) if in_window[0] != in_window[1]:
            term, limit = (left, right) if in_window[0] else (right, left)
            asked.append(binary("-", term, limit) if i.op == "max" else binary("-", limit, term))
            return term
        case "%", IConst(n) if in_window[0] and n > 0:
            asked += [left, binary("-", n - 1, left)]
            return left
        case _:
            return binary(i.op, left, right)


def _ask(w: BorderedWindow, part: IndexExpr) -> None:
    """Takes in that `part` is not negative, for all terms, if places or what is around decide that."""
    lane = IVar(w.inner.var)
    forms = [linear(substitute(part, {n: IConst(v) for n, v in place.items()})) for place in w.places()]
    if any(w.inner.var in f.hidden for f in forms):
        return  # each place decides for itself
    along = {f.factor(lane) for f in forms}
    if along == {0}:
        if all(f.terms for f in forms):
            for f in forms:
                w.needs(f)
            w.settled.add(part)
    elif 0 not in along and all(len(f.terms) == 1 for f in forms):
        for f in forms:
            k = f.factor(lane)
            if k > 0:
                w.begins(-(f.constant // k))
            else:
                w.ends(f.constant // -k + 1)
        w.settled.add(part)
