"""Vector loops are split where an index goes over to another arm, or a guarded load to another choice.

    for i in 0..58 @vec: y[i] = x[min(max(i - 1, 1 - i), 111 - i)]
becomes
    for i in 0..1:        y[i] = x[1 - i]
    for i in 1..56 @vec:  y[i] = x[i - 1]
    for i in 56..58:      y[i] = x[111 - i]

and
    for i in 0..58 @vec:  y[i] = (x[i - 1] if i >= 1 else 0) + x[i] + (x[i + 1] if i < 57 else 0)
    for i in 0..58 @vec:  y[i] = x[(i + 57) % 58] + x[i] + x[(i + 1) % 58]
become three loops each, without conditions and remainders.

What lies between the cuts is read along memory; an index with arms is computed for each lane, and what it
names loaded alone, as is what a condition guards.  Conditions may ask for other loops as well: what is left
of them is the same for all lanes (`codegen.transforms.unswitch`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from polyfuse.codegen.analysis.guards import simplify_guards
from polyfuse.codegen.analysis.index_ranges import cuts, turning_points
from polyfuse.codegen.c_printer import guarded_load
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, variables
from polyfuse.ir.linear import conjuncts, linear, simplify
from polyfuse.ir.loop_ir import Block, Declare, For, Node, Store, Update, map_nodes, map_values
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Expr, Select


def split_clamped_indices(block: Block) -> Block:
    """See the module docstring."""
    return map_nodes(block, lambda n: _changed(n) if isinstance(n, For) else n)


def _changed(loop: For) -> Node | Block:
    plain = loop.coordinate is Coordinate.VECTOR and loop.step == 1 and not loop.joint
    if not plain or not all(isinstance(n, (Store, Update, Declare)) for n in loop.body):
        return loop
    if not (isinstance(loop.lower, IConst) and isinstance(loop.upper, IConst)):
        return loop
    if _trips(loop) < FITTED.clamped_indices_fewest_trips:
        return loop
    made = _ends_apart(loop) or _pieces(loop, not loop.lanes) or _longest(loop)
    if made == [loop] or max(map(_trips, made)) < FITTED.clamped_indices_fewest_trips:
        return loop
    return tuple(x if _trips(x) >= FITTED.clamped_indices_fewest_trips else _one_by_one(x) for x in made)


def _one_by_one(loop: For) -> For:
    return replace(loop, coordinate=Coordinate.SEQ, lanes=())


def _range(loop: For) -> tuple[int, int]:
    assert isinstance(loop.lower, IConst) and isinstance(loop.upper, IConst)
    return loop.lower.value, loop.upper.value


def _trips(loop: For) -> int:
    low, high = _range(loop)
    return high - low


def _ends_apart(loop: For) -> list[For] | None:
    """The pieces of a loop whose lanes are added up, if one alone is long: lanes are added up once, and the
    few iterations beside it go one by one.  What goes on elsewhere is read there
    (`codegen.transforms.fuse_collapse`)."""
    made = _pieces(loop, arms=True) if loop.lanes else None
    return made if made and sum(_trips(x) >= FITTED.clamped_indices_fewest_trips for x in made) == 1 else None


def _pieces(loop: For, arms: bool) -> list[For] | None:
    """Loops without a guarded load, and with `arms` without an arm, that only some of their iterations take,
    together the loop; None where these are more than FITTED.clamped_indices_most_pieces."""
    made, left = [], [loop]
    while left:
        part = _resolved(left.pop())
        cut = _cut(part, arms)
        if cut is None:
            made.append(part)
        else:
            left += replace(part, lower=IConst(cut)), replace(part, upper=IConst(cut))
        if len(made) + len(left) > FITTED.clamped_indices_most_pieces:
            return None
    return made


def _cut(loop: For, arms: bool) -> int | None:
    """Where the choice of a guarded load, and with `arms` some arm, is another from then on."""
    low, high = _range(loop)
    turns = _arms(loop, low, high) if arms else []
    return next((c for c in (*turns, *_choices(loop)) if low < c < high), None)


def _longest(loop: For) -> list[For]:
    """The longest piece between what is before and behind it; the loop, where that is more than a quarter.

    Such a piece has the middle half of the iterations, so bisection finds both of its ends.
    """
    low, high = _range(loop)
    quarter, arms = (high - low) // 4, not loop.lanes

    def piece(first: int, end: int) -> For:
        return _resolved(replace(loop, lower=IConst(first), upper=IConst(end)))

    inner = high - quarter
    first = (
        bisect_left(range(low, low + quarter), True, key=lambda a: _cut(piece(a, inner), arms) is None) + low
    )
    if _cut(piece(first, inner), arms) is not None:
        return [loop]
    more = range(inner + 1, high + 1)
    end = inner + bisect_left(more, True, key=lambda b: _cut(piece(first, b), arms) is not None)
    if 4 * (end - first) < 3 * (high - low):
        return [loop]
    before, behind = replace(loop, upper=IConst(first)), replace(loop, lower=IConst(end))
    parts = (_one_by_one(before), piece(first, end), _one_by_one(behind))
    return [x for x in parts if _trips(x)]


def _resolved(loop: For) -> For:
    """The loop without arms that none of its iterations takes."""
    low, high = _range(loop)

    def index(e: IndexExpr) -> IndexExpr:
        return simplify(e, {loop.var: (low, high - 1)}) if _chooses(e, loop.var) else e

    known = simplify_guards(loop.body, (loop,)) if guarded_load(loop.body) else loop.body
    return replace(loop, body=map_values(known, lambda e: e, index))


def _chooses(e: IndexExpr, var: str) -> bool:
    """Has an index arms that depend on a variable?"""
    if not isinstance(e, IBin) or var not in variables(e):
        return False
    return e.op in ("min", "max", "//", "%") or _chooses(e.left, var) or _chooses(e.right, var)


def _arms(loop: For, low: int, high: int) -> list[int]:
    """Where indices of the iterations `low..high` go over to other arms."""
    found: list[int] = []

    def look(e: IndexExpr) -> IndexExpr:
        found.extend(cuts(e, loop.var, low, high))
        return e

    map_values(loop.body, lambda e: e, look)
    return found


def _choices(loop: For) -> list[int]:
    """Where conditions of guarded loads change."""
    found: list[int] = []

    def look(e: Expr) -> Expr:
        if isinstance(e, Select):
            found.extend(_changes(e.cond, loop.var))
        return e

    if guarded_load(loop.body):
        map_values(loop.body, look, lambda i: i)
    return found


def _changes(cond: Expr, var: str) -> Iterator[int]:
    match cond:
        case Apply("and" | "or" | "not", args):
            for a in args:
                yield from _changes(a, var)
        case _:
            for e in conjuncts(cond) or ():
                yield from turning_points(linear(e), var)
