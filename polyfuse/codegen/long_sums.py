"""Sums over several loops are kept in double, where a loop of lanes adds to them once for each row.

    acc = 0                                            double acc = 0
    for n: for h @vec: acc += x[n, h]        ->        for n: acc += total of the lanes of x[n, :]

In single precision the total of many rows loses more than the lanes of a row do: the variance of a channel of
[32, 64, 56, 56] was off by 2.7e-7 of its value, and is by 0.7e-7 (`tests/unit/test_long_sums.py`).  To add in
double costs 2 % of BatchNorm, more where rows are short and few, which do without.

The lanes of one long row join a total in double as well, every CHAIN additions (`For.long`, `codegen.lanes`):

    for h @vec: acc += x[h]                  ->        for pieces: acc += total of the lanes of the piece

Each addition in single precision rounds: 30 million tenths were off by 1.4e-4 of their sum.  A lane adds as
much in a piece on every core, so that errors do not depend on the width of vectors.  Loops may be in
branches (`codegen.unswitch`), and an iteration may add several terms (`codegen.cut_loops`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from polyfuse.codegen.trips import most_trips, trip_of
from polyfuse.ir.dtypes import F32, F64
from polyfuse.ir.linear import Range, interval
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Update

# Rows of a sum, at least.
FEWEST_ROWS = 16
# Terms of a sum in single precision, at most: longer ones go in pieces.
LONG = 4096
# Terms that a lane adds up before it joins the total.
CHAIN = 64


def long_sums(block: Block) -> Block:
    """The block with such sums declared as f64, which what reads them rounds, and with long loops marked."""
    names = {name for nodes in _blocks(block) for name in _long(nodes)}
    return _marked(block, names, {}) if names else block


def most_of(loop: For, ranges: Mapping[str, Range]) -> int | None:
    """How often a loop runs at most, by the values of variables around it; None if that cannot be told."""
    low, high = (interval(e, ranges) for e in (loop.lower, loop.upper))
    return high[1] - low[0] if low and high and most_trips(loop) is None else most_trips(loop)


def within(loop: For, ranges: Mapping[str, Range]) -> Mapping[str, Range]:
    """The values of variables in a loop, as far as they are known."""
    low, high = (interval(e, ranges) for e in (loop.lower, loop.upper))
    return {**ranges, loop.var: (low[0], max(low[0], high[1] - 1))} if low and high else ranges


def _marked(block: Block, names: set[str], ranges: Mapping[str, Range]) -> Block:
    return tuple(_mark(n, names, ranges) for n in block)


def _mark(node: Node, names: set[str], ranges: Mapping[str, Range]) -> Node:
    match node:
        case For(body=body, lanes=lanes):
            long = bool(names & {*lanes}) and _is_long(node, ranges)
            return replace(node, body=_marked(body, names, within(node, ranges)), long=long)
        case If(_, then, other):
            return replace(node, then=_marked(then, names, ranges), other=_marked(other, names, ranges))
        case Declare(name) if name in names:
            return replace(node, dtype=F64)
        case _:
            return node


def _is_long(loop: For, ranges: Mapping[str, Range]) -> bool:
    most = most_of(loop, ranges)
    return most is None or most * terms_of(loop) > LONG


def terms_of(loop: For) -> int:
    """Terms that an iteration adds to a sum of the loop's lanes, at most."""
    added = Counter(u.buffer for u in _updates(loop.body))
    return max((added[name] for name in loop.lanes), default=0) or 1


def _updates(block: Block) -> Iterator[Update]:
    """Sums of an iteration, those in branches too."""
    for n in block:
        match n:
            case Update(op="sum"):
                yield n
            case If(_, then, other):
                yield from _updates((*then, *other))


def _loops(block: Block) -> Iterator[For]:
    """Loops of a block, those in branches too."""
    for n in block:
        match n:
            case For():
                yield n
            case If(_, then, other):
                yield from _loops((*then, *other))


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for n in block:
        match n:
            case For(body=body):
                yield from _blocks(body)
            case If(_, then, other):
                yield from _blocks(then)
                yield from _blocks(other)


def _long(block: Block) -> set[str]:
    """Sums of f32 that are declared in a block, and that loops of lanes in its loops add to."""
    declared = {n.name for n in block if isinstance(n, Declare) and n.dtype == F32 and not n.count}
    return {name for loop in _loops(block) for name in _of_rows(loop, 1, {})} & declared


def _of_rows(loop: For, rows: int, ranges: Mapping[str, Range]) -> Iterator[str]:
    """Sums that loops of lanes in a loop add to, which is done so many times or more."""
    if rows >= FEWEST_ROWS or _is_long(loop, ranges):
        yield from (u.buffer for u in _updates(loop.body) if u.buffer in loop.lanes)
    trip, inside = trip_of(loop), within(loop, ranges)
    for n in _loops(loop.body):
        yield from _of_rows(n, rows * (FEWEST_ROWS if trip is None else trip), inside)
