"""Stencils are split: where windows lie within their tensor there are no conditions.

    for r in max(0, 1 - p)..min(3, H + 1 - p):               if p >= 1 and p <= H - 2:
      for s in 0..3:                                            y[p, 0] sum= (x[p - 1, 0] + x[p - 1, 1]) + ...
        for q in max(0, 1 - s)..min(W, W + 1 - s) @vec:  ->    for r in 0..3:
          y[p, q] sum= x[p + r - 1, q + s - 1]                   for s in 0..3:
                                                                   for q in 1..W - 1 @vec:  y[p, q] sum= ...
                                                               y[p, W - 1] sum= ...
                                                             else: the same with bounds and conditions

The same for conditions in the terms (`(x[p + r - 1, q + s - 1] if ... else 0) * w[r, s]`), and for indices
that are kept in range or go round.  Terms of the inner part are added at once
(`codegen.transforms.unroll_and_jam.stencils`); where bounds vary with the term that can't be done, and a
condition keeps loads from being vectorised.  Loops over the same row before and behind it, which set and use
its totals, go along with each part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TypeAlias

from polyfuse.codegen.analysis.dependence import is_row, own_elements
from polyfuse.codegen.analysis.reduction_nests import at_place, combined
from polyfuse.codegen.transforms.index_set_splitting.complete_windows import BorderedWindow, bordered
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, evaluate, substitute, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import Linear, Range, arms, conjuncts, linear, simplify
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Const, Expr, IndexValue, Read, Select, map_expr

Ranges: TypeAlias = dict[str, Range]
# A pass over loops: here the one that makes branches around them of what is the same for all lanes.
Unswitch: TypeAlias = Callable[[Kernel, Block], Block]


def split_stencils(kernel: Kernel, block: Block, numbers: itertools.count[int], unswitch: Unswitch) -> Block:
    """See the module docstring."""
    return _block(kernel, block, {}, numbers, unswitch)


def _block(
    kernel: Kernel, block: Block, ranges: Ranges, numbers: itertools.count[int], unswitch: Unswitch
) -> Block:
    made: list[Node] = []
    left = list(block)
    while left:
        node = left.pop(0)
        window = bordered(node) if isinstance(node, For) else None
        parts = _parts(window, ranges) if window else None
        if window and parts:
            before, after = _companions(kernel, window, parts, made, left)
            del made[len(made) - len(before) :], left[: len(after)]
            made += _apart(kernel, window, parts, before, after, numbers, unswitch)
            continue
        match node:
            case For():
                places = _numbers(node.lower, node.upper)
                own = {node.var: (places.start, places.stop - 1)} if places else {}
                node = replace(node, body=_block(kernel, node.body, {**ranges, **own}, numbers, unswitch))
            case If():
                then, other = (_block(kernel, b, ranges, numbers, unswitch) for b in (node.then, node.other))
                node = replace(node, then=then, other=other)
            case _:
                pass
        made.append(node)
    return tuple(made)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A row from `low` to `high`; from `first` to `last` lies within, as far as places decide."""

    low: IndexExpr
    first: IndexExpr
    last: IndexExpr
    high: IndexExpr


# --- what is made of it ------------------------------------------------------------------------------------


def _parts(w: BorderedWindow, ranges: Ranges) -> _Parts | None:
    """Where a row is cut; None if little of it lies within."""
    low, high = _extreme("max", w.low, ranges), _extreme("min", w.high, ranges)
    begin, end = w.inside
    first, last = low, high
    if begin is not None:
        first = _extreme("min", [_extreme("max", [low, IConst(begin)], ranges), high], ranges)
    if end is not None:
        last = _extreme("max", [first, _extreme("min", [high, IConst(end)], ranges)], ranges)
    length = binary("-", last, first)
    few = isinstance(length, IConst) and length.value < FITTED.split_stencils_fewest_inside
    return None if few else _Parts(low, first, last, high)


def _extreme(op: str, of: Sequence[IndexExpr], ranges: Ranges) -> IndexExpr:
    found, *more = dict.fromkeys(of)
    for e in more:
        found = simplify(binary(op, found, e), ranges)
    return found


def _companions(
    kernel: Kernel, w: BorderedWindow, parts: _Parts, before: list[Node], after: list[Node]
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
        if own_elements(kernel, [w.inner, *chosen[0], *chosen[1]]):
            return chosen
    return [], []


def _apart(
    kernel: Kernel,
    w: BorderedWindow,
    parts: _Parts,
    before: Sequence[For],
    after: Sequence[For],
    numbers: itertools.count[int],
    unswitch: Unswitch,
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

    (less,) = unswitch(kernel, (_less(w, first, last),))
    one, other = _numbers(low, first), _numbers(last, high)
    places = [] if one is None or other is None else [*one, *other]
    if places and len(places) <= FITTED.split_stencils_most_beside:
        ends = [
            n
            for k in places
            for n in with_others(IConst(k), IConst(k + 1), _written_out(w, k), Coordinate.SEQ)
        ]
        rest = (*before, *beside(low, first), less, *beside(last, high), *after)
        made = _chosen(w, (*ends, *with_others(first, last, (inside,))), rest)
    else:
        rest = with_others(first, last, (less,))
        made = (
            *(with_others(low, first, beside(low, first), Coordinate.SEQ) if low != first else ()),
            *_chosen(w, with_others(first, last, (inside,)), rest),
            *(with_others(last, high, beside(last, high), Coordinate.SEQ) if last != high else ()),
        )
    for x in reversed(w.strips):
        made = (replace(x, body=made),)
    return made


def _numbers(begin: IndexExpr, end: IndexExpr) -> range | None:
    """The places of a loop whose bounds are numbers; None where they are not known."""
    if begin == end:
        return range(0)
    return range(begin.value, end.value) if isinstance(begin, IConst) and isinstance(end, IConst) else None


def _chosen(w: BorderedWindow, inside: Block, rest: Block) -> Block:
    """What is for windows of which no term is beyond a border around them, and for others."""
    if not w.around:
        return inside
    return (
        If(_all([_not_negative(Linear(terms, c).expr()) for terms, c in w.around.items()]), inside, rest),
    )


def _less(w: BorderedWindow, first: IndexExpr, last: IndexExpr) -> Node:
    """The places within of a window of which terms may be beyond a border around them."""
    term = {n: IConst(s.start) for n, s in w.spans.items()}
    along = {part for part in w.settled if w.inner.var in variables(linear(substitute(part, term)).expr())}
    return _around(w.loops, _placed(w, first, last, along))


def _placed(w: BorderedWindow, first: IndexExpr, last: IndexExpr, settled: set[IndexExpr]) -> For:
    """The vector loop over some places, in which some conditions hold."""
    body = tuple(replace(n, value=_with_choices(w, n.value, {}, settled)) for n in w.updates)
    return replace(w.inner, lower=first, upper=last, body=body)


def _with_choices(w: BorderedWindow, e: Expr, place: dict[str, IndexExpr], settled: set[IndexExpr]) -> Expr:
    """A term at a place, or anywhere, where some conditions hold."""
    return map_expr(e, lambda x: _decided(x, place, settled), lambda i: _chosen_index(w, i, place, settled))


def _chosen_index(
    w: BorderedWindow, i: IndexExpr, place: dict[str, IndexExpr], settled: set[IndexExpr]
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


def _written_out(w: BorderedWindow, at: int) -> Block:
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


def _varying(w: BorderedWindow) -> list[IndexExpr]:
    """What is not negative where the vector loop has a place for a term."""
    lane, own = IVar(w.inner.var), w.spans.keys()
    lows = [binary("-", lane, a) for a in arms("max", w.inner.lower) if own & {*variables(a)}]
    return lows + [binary("-", a - 1, lane) for a in arms("min", w.inner.upper) if own & {*variables(a)}]


def _one_by_one(
    kernel: Kernel, w: BorderedWindow, begin: IndexExpr, end: IndexExpr, numbers: itertools.count[int]
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
