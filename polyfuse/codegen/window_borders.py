"""Windows that reach over a border are taken apart: what lies within has no conditions.

    for r in max(0, 1 - p)..min(3, H + 1 - p):               for q in 0..1:  a = 0; ...; y[p, q] sum= a
      for s in 0..3:                                         if p >= 1 and p <= H - 2:
        for q in max(0, 1 - s)..min(W, W + 1 - s) @vec:  ->    for r in 0..3:
          y[p, q] sum= x[p + r - 1, q + s - 1]                   for s in 0..3:
                                                                   for q in 1..W - 1 @vec:  y[p, q] sum= ...
                                                             else: for r in max(0, 1 - p)..: ... as before
                                                             for q in W - 1..W:  a = 0; ...; y[p, q] sum= a

The same for conditions in the terms (`(x[p + r - 1, q + s - 1] if ... else 0) * w[r, s]`).  Terms of the
inner part are added at once (`codegen.jammed_windows`); where bounds vary with the term that can't be done,
and a condition keeps loads from being vectorised.  The few elements beside it are summed one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product, takewhile
from typing import TypeAlias

from polyfuse.codegen.decided import arms
from polyfuse.codegen.jam import adds, combined
from polyfuse.codegen.jammed_windows import MOST_TERMS, at_place, beside, nest
from polyfuse.codegen.merged_rows import is_row, own_elements
from polyfuse.codegen.unswitch import unswitch
from polyfuse.ir.conditions import conjuncts
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, evaluate, substitute, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import Linear, Range, linear, simplify
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Const,
    Expr,
    IndexValue,
    Read,
    Select,
    map_expr,
    reads,
    walk,
)

# Inner parts of fewer elements are not worth it.
FEWEST_INSIDE = 16
# So many places beside it are written out.
MOST_BESIDE = 8
Ranges: TypeAlias = dict[str, Range]

# A chain of conditions on what is around the window, at most.
MOST_CONDITIONS = 8


def window_borders(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """See the module docstring."""
    return _block(kernel, block, {}, numbers)


def _block(kernel: Kernel, block: Block, ranges: Ranges, numbers: itertools.count[int]) -> Block:
    made: list[Node] = []
    left = list(block)
    while left:
        node = left.pop(0)
        window = _found(node) if isinstance(node, For) else None
        parts = _parts(window, ranges) if window else None
        if window and parts:
            before, after = _companions(window, parts, made, left)
            del made[len(made) - len(before) :], left[: len(after)]
            made += _apart(kernel, window, parts, before, after, numbers)
            continue
        match node:
            case For():
                places = _numbers(node.lower, node.upper)
                own = {node.var: (places.start, places.stop - 1)} if places else {}
                node = replace(node, body=_block(kernel, node.body, {**ranges, **own}, numbers))
            case If():
                then, other = (_block(kernel, b, ranges, numbers) for b in (node.then, node.other))
                node = replace(node, then=then, other=other)
            case _:
                pass
        made.append(node)
    return tuple(made)


@dataclass(slots=True)
class _Window:
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


@dataclass(frozen=True, slots=True)
class _Parts:
    """A row from `low` to `high`; from `first` to `last` lies within, as far as places decide."""

    low: IndexExpr
    first: IndexExpr
    last: IndexExpr
    high: IndexExpr


def _found(loop: For) -> _Window | None:
    """The window of a nest, if some of it lies beyond a border."""
    *loops, inner = nest(loop)
    plain = inner.coordinate is Coordinate.VECTOR and inner.step == 1 and not (inner.lanes or inner.joint)
    if not plain or not inner.body or not all(isinstance(n, Update) for n in inner.body):
        return None
    w = _Window(loops, [], inner, {})
    while w.strips and (span := _span(w.strips[-1])) and _is_small(w, span):
        x = w.strips[-1]
        if not all(adds(n, x.var, inner) for n in w.updates):
            break
        w.strips, w.loops, w.spans = w.strips[:-1], [x, *w.loops], {x.var: span, **w.spans}
    if not beside(w.updates, inner) & {*w.spans} or not _bounded(w):
        return None
    for n in w.updates:
        _guarded(w, n.value)
    w.around = {terms: c for terms, c in w.around.items() if terms or c < 0}
    if () in w.around or len(w.around) > MOST_CONDITIONS or (w.inside == (None, None) and not w.around):
        return None
    return w


def _span(x: For) -> range | None:
    """The iterations of a loop whose bounds are numbers, but for those that are beyond a border."""
    lows, highs = ([a.value for a in side if isinstance(a, IConst)] for side in _sides(x))
    return range(max(lows), min(highs)) if lows and highs else None


def _sides(x: For) -> tuple[list[IndexExpr], list[IndexExpr]]:
    return arms("max", x.lower), arms("min", x.upper)


def _is_small(w: _Window, span: range) -> bool:
    terms = len(span)
    for other in w.spans.values():
        terms *= len(other)
    return 0 < terms <= MOST_TERMS


def _bounded(w: _Window) -> bool:
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


def _ends(w: _Window, op: str, bound: IndexExpr) -> bool:
    """Takes in one end of the vector loop."""
    varying = [a for a in arms(op, bound) if {*variables(a)} & {*w.spans}]
    fixed = [a for a in arms(op, bound) if a not in varying]
    if not all({*variables(a)} <= {*w.spans} for a in varying):
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


def _guarded(w: _Window, value: Expr) -> None:
    """Takes in the conditions of a term."""
    conditions = (e.cond for e in walk(value) if isinstance(e, Select))
    for part in (p for c in conditions for p in conjuncts(c) or ()):
        if {*variables(part)} & {*w.spans}:
            _asked(w, part)
    for i in (i for r in reads(value) for i in r.indices if not isinstance(i, EXPR_TYPES)):
        asked: list[IndexExpr] = []
        if i not in w.within and (plain := _plain(w, i, asked)) != i:
            for part in asked:
                _asked(w, part)
            w.within[i] = plain, tuple(asked)


def _plain(w: _Window, i: IndexExpr, asked: list[IndexExpr]) -> IndexExpr:
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


def _asked(w: _Window, part: IndexExpr) -> None:
    """Takes in that `part` is not negative, for all terms, if places or what is around decide that."""
    lane = IVar(w.inner.var)
    forms = [linear(substitute(part, {n: IConst(v) for n, v in place.items()})) for place in w.places()]
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


# --- what is made of it ------------------------------------------------------------------------------------


def _parts(w: _Window, ranges: Ranges) -> _Parts | None:
    """Where a row is cut; None if little of it lies within."""
    low, high = _extreme("max", w.low, ranges), _extreme("min", w.high, ranges)
    begin, end = w.inside
    first, last = low, high
    if begin is not None:
        first = _extreme("min", [_extreme("max", [low, IConst(begin)], ranges), high], ranges)
    if end is not None:
        last = _extreme("max", [first, _extreme("min", [high, IConst(end)], ranges)], ranges)
    length = binary("-", last, first)
    few = isinstance(length, IConst) and length.value < FEWEST_INSIDE
    return None if few else _Parts(low, first, last, high)


def _extreme(op: str, of: Sequence[IndexExpr], ranges: Ranges) -> IndexExpr:
    found, *more = dict.fromkeys(of)
    for e in more:
        found = simplify(binary(op, found, e), ranges)
    return found


def _companions(
    w: _Window, parts: _Parts, before: list[Node], after: list[Node]
) -> tuple[list[For], list[For]]:
    """Loops over the same row beside the window's, which go with its parts: else vectors of one part would
    wait for elements of another."""
    if w.strips:
        return [], []

    def rows(nodes: Iterable[Node]) -> list[For]:
        fits = (n for n in takewhile(lambda n: isinstance(n, For) and is_row(n), nodes) if isinstance(n, For))
        return list(takewhile(lambda n: (n.lower, n.upper) == (parts.low, parts.high), fits))

    one, other = rows(reversed(before))[::-1], rows(after)
    for chosen in ((one, other), (one, [])):
        if own_elements([w.inner, *chosen[0], *chosen[1]]):
            return chosen
    return [], []


def _apart(
    kernel: Kernel,
    w: _Window,
    parts: _Parts,
    before: Sequence[For],
    after: Sequence[For],
    numbers: itertools.count[int],
) -> Block:
    low, first, last, high = parts.low, parts.first, parts.last, parts.high
    whole = [replace(x, lower=IConst(s.start), upper=IConst(s.stop)) for x, s in w.spanned()]
    inside: Node = _around(whole, _placed(w, first, last, w.settled))

    def with_others(
        begin: IndexExpr, end: IndexExpr, nodes: Block, how: Coordinate = Coordinate.VECTOR
    ) -> Block:
        one, other = (
            [replace(x, lower=begin, upper=end, coordinate=how) for x in xs] for xs in (before, after)
        )
        return (*one, *nodes, *other)

    def beside(begin: IndexExpr, end: IndexExpr) -> Block:
        return () if begin == end else (_one_by_one(kernel, w, begin, end, numbers),)

    places = [*_numbers(low, first), *_numbers(last, high)]
    if places and len(places) <= MOST_BESIDE:
        ends = [
            n
            for k in places
            for n in with_others(IConst(k), IConst(k + 1), _written_out(w, k), Coordinate.SEQ)
        ]
        rest = (*before, *beside(low, first), _less(kernel, w, first, last), *beside(last, high), *after)
        made = _chosen(w, (*ends, *with_others(first, last, (inside,))), rest)
    else:
        rest = with_others(first, last, (_less(kernel, w, first, last),))
        made = (
            *(with_others(low, first, beside(low, first), Coordinate.SEQ) if low != first else ()),
            *_chosen(w, with_others(first, last, (inside,)), rest),
            *(with_others(last, high, beside(last, high), Coordinate.SEQ) if last != high else ()),
        )
    for x in reversed(w.strips):
        made = (replace(x, body=made),)
    return made


def _numbers(begin: IndexExpr, end: IndexExpr) -> range:
    """The places of a loop whose bounds are numbers."""
    known = isinstance(begin, IConst) and isinstance(end, IConst)
    return range(begin.value, end.value) if known else range(0)  # type: ignore[union-attr]


def _chosen(w: _Window, inside: Block, rest: Block) -> Block:
    """What is for windows of which no term is beyond a border around them, and for others."""
    if not w.around:
        return inside
    return (
        If(_all([_not_negative(Linear(terms, c).expr()) for terms, c in w.around.items()]), inside, rest),
    )


def _less(kernel: Kernel, w: _Window, first: IndexExpr, last: IndexExpr) -> Node:
    """The places within of a window of which terms may be beyond a border around them."""
    term = {n: IConst(s.start) for n, s in w.spans.items()}
    along = {part for part in w.settled if w.inner.var in variables(linear(substitute(part, term)).expr())}
    (made,) = unswitch(kernel, (_around(w.loops, _placed(w, first, last, along)),))
    return made


def _placed(w: _Window, first: IndexExpr, last: IndexExpr, settled: set[IndexExpr]) -> For:
    """The vector loop over some places, in which some conditions hold."""
    body = tuple(replace(n, value=_with_choices(w, n.value, {}, settled)) for n in w.updates)
    return replace(w.inner, lower=first, upper=last, body=body)


def _with_choices(w: _Window, e: Expr, place: dict[str, IndexExpr], settled: set[IndexExpr]) -> Expr:
    """A term at a place, or anywhere, where some conditions hold."""
    return map_expr(e, lambda x: _decided(x, place, settled), lambda i: _chosen_index(w, i, place, settled))


def _chosen_index(
    w: _Window, i: IndexExpr, place: dict[str, IndexExpr], settled: set[IndexExpr]
) -> IndexExpr:
    plain, asked = w.within.get(i, (i, ()))
    for part in asked:
        known = linear(substitute(part, place))
        if (known.terms and part not in settled) or (not known.terms and known.constant < 0):
            return i
    return plain


def _decided(e: Expr, place: dict[str, IndexExpr], settled: set[IndexExpr]) -> Expr:
    """A choice at a place, or anywhere, where some conditions hold."""
    parts = conjuncts(e.cond) if isinstance(e, Select) else None
    if not isinstance(e, Select) or parts is None:
        return e
    left = []
    for p in parts:
        known = linear(substitute(p, place))
        if not known.terms and known.constant < 0:
            return e.other
        if known.terms and p not in settled:
            left.append(p)
    if len(left) == len(parts):
        return e
    return replace(e, cond=_all([_not_negative(p) for p in left])) if left else e.then


def _around(loops: Sequence[For], inner: Node) -> Node:
    for x in reversed(loops):
        inner = replace(x, body=(inner,))
    return inner


def _written_out(w: _Window, at: int) -> Block:
    """A place at a border along the vector loop, where no term is beyond another border."""
    made: list[Node] = []
    here: dict[str, IndexExpr] = {w.inner.var: IConst(at)}
    for n in w.updates:
        terms = []
        for values in w.places():
            if all(evaluate(b, {w.inner.var: at, **values}) >= 0 for b in _varying(w)):
                place = {**here, **{v: IConst(x) for v, x in values.items()}}
                terms.append(at_place(_with_choices(w, n.value, place, w.settled), place))
        indices = tuple(substitute(i, here) for i in n.indices if not isinstance(i, EXPR_TYPES))
        if terms:
            made.append(replace(n, indices=indices, value=combined(n.op, terms)))
    return tuple(made)


def _varying(w: _Window) -> list[IndexExpr]:
    """What is not negative where the vector loop has a place for a term."""
    lane, own = IVar(w.inner.var), w.spans.keys()
    lows = [binary("-", lane, a) for a in arms("max", w.inner.lower) if own & {*variables(a)}]
    return lows + [binary("-", a - 1, lane) for a in arms("min", w.inner.upper) if own & {*variables(a)}]


def _one_by_one(
    kernel: Kernel, w: _Window, begin: IndexExpr, end: IndexExpr, numbers: itertools.count[int]
) -> Node:
    """A loop over places at a border, each of which sums its terms in scalars."""
    before: list[Node] = []
    terms: list[Node] = []
    after: list[Node] = []
    for n in w.updates:
        dtype, name = kernel.buffer(n.buffer).dtype, f"%acc{next(numbers)}"
        before.append(Declare(name, dtype, Const(identity(n.op, dtype), dtype)))
        terms.append(replace(n, buffer=name, indices=()))
        after.append(replace(n, value=Read(name, (), dtype)))
    inner: list[Node] = terms
    if bounds := [_not_negative(b) for b in _varying(w)]:
        inner = [If(_all(bounds), tuple(terms))]
    for x in reversed(w.loops):
        inner = [replace(x, body=tuple(inner))]
    body = (*before, *inner, *after)
    return replace(w.inner, lower=begin, upper=end, coordinate=Coordinate.SEQ, body=body)


def _not_negative(e: IndexExpr) -> Expr:
    return Apply("ge", (IndexValue(e, I64), IndexValue(IConst(0), I64)), BOOL)


def _all(conditions: Sequence[Expr]) -> Expr:
    found, *more = conditions
    for c in more:
        found = Apply("and", (found, c), BOOL)
    return found
