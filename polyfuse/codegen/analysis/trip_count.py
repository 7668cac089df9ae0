"""How often loops run, where that can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyfuse.codegen.analysis.index_ranges import at_most, strip_of
from polyfuse.codegen.analysis.row_phases import LONG
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, binary, sizes
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import Range, interval, size_ranges
from polyfuse.ir.loop_ir import Block, For, Node


def trip_of(loop: For) -> int | None:
    """How often a loop runs, if that is known."""
    match loop.lower, loop.upper:
        case IConst(low), IConst(high):
            return max(0, high - low)
        case low, IBin("+", start, IConst(count)) if start == low:
            return max(0, count)
        case _:
            return None


def most_trips(loop: For) -> int | None:
    """How often a loop runs at most, if that can be told."""

    def above(e: IndexExpr) -> int | None:
        if e == loop.lower:
            return 0
        match e, loop.lower:
            case IBin("min", a, b), _:
                return min((n for n in (above(a), above(b)) if n is not None), default=None)
            case IBin("+", a, IConst(count)), _:
                begin = above(a)
                return None if begin is None else begin + count
            case IBin("-", a, IConst(count)), _:
                begin = above(a)
                return None if begin is None else begin - count
            case IConst(high), begin if (low := _at_least(begin)) is not None:
                return high - low
            case _:
                return None

    found = above(loop.upper)
    return None if found is None else max(0, found)


def most_of(loop: For, ranges: Mapping[str, Range]) -> int | None:
    """How often a loop runs at most, by the values of variables around it; None if that cannot be told."""
    low, high = (interval(e, ranges) for e in (loop.lower, loop.upper))
    return high[1] - low[0] if low and high and most_trips(loop) is None else most_trips(loop)


def fewest_of(loop: For, ranges: Mapping[str, Range]) -> int:
    """How often a loop runs at least, by the values of variables and sizes around it."""
    low, high = (interval(e, ranges) for e in (loop.lower, loop.upper))
    found = high[0] - low[1] if low and high else 0
    return max(0, found) if (trip := trip_of(loop)) is None else trip


def longest(kernel: Kernel, loop: For) -> int | None:
    """How often a loop of a kernel runs, or at most where that depends on sizes; None if unknown."""
    trip = trip_of(loop)
    return most_of(loop, size_ranges(kernel.graph)) if trip is None else trip


def is_open_row(kernel: Kernel, loop: For) -> bool:
    """Is it a loop over a row whose length is a size that is open, and that is not long?"""
    if trip_of(loop) is not None or not (sizes(loop.lower) or sizes(loop.upper)):
        return False
    most = longest(kernel, loop)
    return most is not None and most <= FITTED.open_rows_longest


def _at_least(e: IndexExpr) -> int | None:
    """The number that a bound is not below, if it says one: of data, ``max(0, d)``."""
    match e:
        case IConst(value):
            return value
        case IBin("max", a, b):
            return max((n for n in (_at_least(a), _at_least(b)) if n is not None), default=None)
        case _:
            return None


def most_trips_of(loop: For) -> int:
    """So many rows there are at most, as far as that is known."""
    trip, strip = trip_of(loop), strip_of(loop)
    if trip is not None:
        return trip
    return LONG if strip is None else strip.length


def in_steps(rows: For, body: Block, count: int) -> list[Node]:
    """A loop with the body for so many iterations at a time, and one for what is left."""
    main = replace(rows, upper=binary("-", rows.upper, count - 1), step=count, body=body)
    known = trip_of(rows) is not None or (strip_of(rows) is not None and len(at_most(rows.upper)) == 1)
    if known and most_trips_of(rows) % count == 0:
        return [main]
    extent = binary("max", binary("-", rows.upper, rows.lower), 0)
    done = binary("*", binary("//", extent, count), count)
    return [main, replace(rows, lower=binary("+", rows.lower, done))]
