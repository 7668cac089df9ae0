"""How often loops run, where that can be told."""

from __future__ import annotations

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr
from polyfuse.ir.loop_ir import For


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
            case IConst(high), IConst(low):
                return high - low
            case _:
                return None

    found = above(loop.upper)
    return None if found is None else max(0, found)
