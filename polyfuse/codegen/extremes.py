"""Vector loops are cut where a minimum or maximum in an index goes over from one arm to the other.

    for i in 0..58 @vec: y[i] = x[min(max(i - 1, 1 - i), 111 - i)]
becomes
    for i in 0..1:        y[i] = x[1 - i]
    for i in 1..56 @vec:  y[i] = x[i - 1]
    for i in 56..58:      y[i] = x[111 - i]

What lies between the cuts is read along memory; an index with arms is computed for each lane, and what it
names loaded alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, variables
from polyfuse.ir.linear import linear, simplify
from polyfuse.ir.loop_ir import Block, Declare, For, Node, Store, Update, map_nodes, map_values
from polyfuse.ir.schedule_tree import Coordinate

# So many loops come of one, at most, and none of one with fewer iterations.
MOST_PIECES = 5
FEWEST_TRIPS = 16


def cut_at_extremes(block: Block) -> Block:
    """See the module docstring."""
    return map_nodes(block, lambda n: _changed(n) if isinstance(n, For) else n)


def _changed(loop: For) -> Node | Block:
    plain = loop.coordinate is Coordinate.VECTOR and loop.step == 1 and not (loop.lanes or loop.joint)
    if not plain or not all(isinstance(n, (Store, Update, Declare)) for n in loop.body):
        return loop
    if not (isinstance(loop.lower, IConst) and isinstance(loop.upper, IConst)):
        return loop
    if loop.upper.value - loop.lower.value < FEWEST_TRIPS:
        return loop
    made = _pieces(loop, loop.lower.value, loop.upper.value)
    if made == [loop] or len(made) > MOST_PIECES or max(map(_trips, made)) < FEWEST_TRIPS:
        return loop
    return tuple(x if _trips(x) >= FEWEST_TRIPS else replace(x, coordinate=Coordinate.SEQ) for x in made)


def _trips(loop: For) -> int:
    assert isinstance(loop.lower, IConst) and isinstance(loop.upper, IConst)
    return loop.upper.value - loop.lower.value


def _pieces(loop: For, low: int, high: int) -> list[For]:
    """Loops over `low..high` without an arm that only some of their iterations take."""
    part = _resolved(replace(loop, lower=IConst(low), upper=IConst(high)), low, high)
    cut = next((c for e in _indices(part) for c in _cuts(e, loop.var) if low < c < high), None)
    if cut is None:
        return [part]
    return [*_pieces(part, low, cut), *_pieces(part, cut, high)]


def _resolved(loop: For, low: int, high: int) -> For:
    def index(e: IndexExpr) -> IndexExpr:
        chooses = next(_cuts(e, loop.var), None) is not None
        return simplify(e, {loop.var: (low, high - 1)}) if chooses else e

    return replace(loop, body=map_values(loop.body, lambda e: e, index))


def _indices(loop: For) -> list[IndexExpr]:
    found: list[IndexExpr] = []

    def look(e: IndexExpr) -> IndexExpr:
        found.append(e)
        return e

    map_values(loop.body, lambda e: e, look)
    return found


def _cuts(e: IndexExpr, var: str) -> Iterator[int]:
    """From which values of the variable on another arm is the minimum or maximum, inner ones first."""
    if not isinstance(e, IBin) or var not in variables(e):
        return
    yield from _cuts(e.left, var)
    yield from _cuts(e.right, var)
    if e.op in ("min", "max"):
        apart = linear(e.left - e.right)
        k = apart.factor(IVar(var))
        if k and len(apart.terms) == 1:
            # apart >= 0 from ceil(-constant / k) on, or no longer.
            yield -(apart.constant // k) if k > 0 else apart.constant // -k + 1
