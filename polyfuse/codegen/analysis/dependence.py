"""Which iterations depend on one another: what a pass asks before it runs some of them at once.

- `independent`: no iteration of a sequential loop touches what another one writes.
- `commutes_but_for`: the same, but for shared accumulators, which all iterations add to.
- `independent_rows`: the same for the rows of a parallel nest.
- `own_elements`: each iteration touches one element of what loops over a row change.
- `tells_apart`: each iteration of a nest has an element of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polyfuse.codegen.analysis.accesses import memory_of, touched_in
from polyfuse.codegen.analysis.index_ranges import strip_of
from polyfuse.codegen.analysis.renaming import worker_arrays
from polyfuse.codegen.analysis.trip_count import most_trips
from polyfuse.codegen.function import Function
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, substitute, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import Linear, linear
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    For,
    If,
    Prefetch,
    Store,
    TransposedTile,
    Update,
    map_values,
    nodes_of,
    substituted,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Index, Read, reads


def steps(i: Index, loop: For) -> bool:
    """Does an index have another value in every iteration?"""
    match i:
        case IVar(name):
            return name == loop.var
        case IBin("+" | "-", left, right):
            one, other = (right, left) if steps(right, loop) else (left, right)
            return steps(one, loop) and loop.var not in variables(other)
        case IBin("*", IConst(c), e) | IBin("*", e, IConst(c)):
            return c != 0 and steps(e, loop)
        case IBin("%", IVar(name), IConst(extent)):
            strip = strip_of(loop)
            return name == loop.var and strip is not None and strip.length <= extent
        case _:
            return False


_PLAIN = (For, If, Declare, Store, Update, Comment, Prefetch)
_PLAIN_ROWS = (For, If, Declare, Store, Update, Comment, TransposedTile)


@dataclass(frozen=True, slots=True)
class _Access:
    """A read or a write, in which phase of the row; `op` is that of an update."""

    buffer: str
    indices: tuple[Index, ...]
    phase: int
    written: bool = False
    op: str = ""


def independent(kernel: Kernel, loop: For) -> bool:
    """May iterations of a sequential loop run in any order, and at once?"""
    return commutes_but_for(kernel, loop) == frozenset()


def independent_rows(kernel: Kernel, f: Function, others: Sequence[Function]) -> bool:
    """May rows of a function be run at once? They may in a parallel nest of plain loops, if none of the
    `others` touches a worker's arrays, of which each row gets its own.  Not where they no longer go one by
    one."""
    if not f.loops or not f.one_by_one:
        return False
    touched = {n for x in others if x is not f for n in touched_in(x.body)}
    if touched & {b.tensor for b in worker_arrays(kernel)}:
        return False
    nodes = list(nodes_of(f.body))
    return all(isinstance(n, _PLAIN_ROWS) and not (isinstance(n, TransposedTile) and n.to) for n in nodes)


def commutes_but_for(kernel: Kernel, loop: For) -> frozenset[str] | None:
    """The shared accumulators of a sequential loop: buffers that all iterations add to, each in one phase and
    by one operator.  But for the order of their terms iterations may run at once.  None if they may not."""
    nodes = list(nodes_of(loop.body))
    if loop.coordinate is not Coordinate.SEQ or loop.step != 1:
        return None
    if not all(isinstance(n, _PLAIN) for n in nodes):
        return None
    own = {n.name for n in nodes if isinstance(n, Declare)}
    inner = {n.var for n in nodes if isinstance(n, For)}
    outside: dict[str, list[_Access]] = {}
    for a in _accesses(loop.body):
        if a.buffer not in own:
            outside.setdefault(memory_of(kernel, a.buffer), []).append(a)
    written = [found for found in outside.values() if any(a.written for a in found)]
    common = [found for found in written if not _apart(found, loop, inner)]
    return frozenset(f[0].buffer for f in common) if all(map(_added, common)) else None


def _added(accesses: Sequence[_Access]) -> bool:
    """Are all of them updates by one operator in one phase?"""
    return bool(accesses[0].op) and len({(a.op, a.phase) for a in accesses}) == 1


def _apart(accesses: Sequence[_Access], loop: For, inner: set[str]) -> bool:
    """Does an index, the same in all accesses, have another value for each row?"""
    return any(
        not isinstance(at[0], EXPR_TYPES)
        and all(i == at[0] for i in at)
        and steps(at[0], loop)
        and not inner & set(variables(at[0]))
        for at in zip(*(a.indices for a in accesses), strict=True)
    )


def _accesses(body: Block) -> Iterator[_Access]:
    for phase, top in enumerate(body):
        found: list[_Access] = []

        def expr(e: Expr, found: list[_Access] = found, phase: int = phase) -> Expr:
            if isinstance(e, Read):
                found.append(_Access(e.tensor, e.indices, phase))
            return e

        map_values((top,), expr, lambda i: i)
        for n in nodes_of((top,)):
            match n:
                case Store(buffer, indices):
                    found.append(_Access(buffer, indices, phase, True))
                case Update(buffer, indices, op):
                    found.append(_Access(buffer, indices, phase, True, op))
                case _:
                    pass
        yield from found


def is_row(loop: For) -> bool:
    """A loop over lanes that does no more than compute elements?"""
    plain = loop.coordinate is Coordinate.VECTOR and loop.step == 1 and not (loop.lanes or loop.joint)
    return plain and all(isinstance(n, (Declare, Store, Update)) for n in loop.body)


def has_window(row: For) -> bool:
    """Are several elements of one tensor added to a total at once?"""
    for n in row.body:
        if isinstance(n, Update):
            places = Counter(r.tensor for r in {(r.tensor, r.indices): r for r in reads(n.value)}.values())
            if max(places.values(), default=0) > 1:
                return True
    return False


def tells_apart(indices: Sequence[Index], nest: Sequence[For]) -> bool:
    """Has each iteration of a nest, its loops from the outermost on, an element of its own?"""
    known: set[str] = set()
    for i in indices:
        if not isinstance(i, EXPR_TYPES):
            known |= _digits(i, nest)
    return known >= {loop.var for loop in nest}


def _digits(index: IndexExpr, nest: Sequence[For]) -> set[str]:
    """Loops whose variables are the digits of an index: each counts for more than all smaller ones reach."""
    for loop in reversed(nest):
        index = substitute(index, {loop.var: loop.lower + IVar(loop.var)})
    form, limit, own = linear(index), math.inf, {x.var for x in nest}
    match [atom for atom, _ in form.terms if own & set(variables(atom))]:
        case [IBin("%", top, IConst(m))]:
            parts = linear(top)
            form, limit = Linear(tuple((a, c) for a, c in parts.terms if c % m), parts.constant), m
        case _:
            pass
    return set() if form.hidden & own else _within(form, nest, limit)


def _within(form: Linear, nest: Sequence[For], limit: float) -> set[str]:
    """The loops that a linear form has as digits; none if they reach the limit."""
    digits = [(abs(c), x) for x in nest if (c := form.factor(IVar(x.var)))]
    reach: float = 0
    for factor, loop in sorted(digits, key=lambda d: d[0]):
        if factor * loop.step <= reach:
            return set()
        most = most_trips(loop)
        reach += math.inf if most is None else factor * (most - 1)
    return {x.var for _, x in digits} if reach < limit or limit == math.inf else set()


def own_elements(kernel: Kernel, rows: Sequence[For]) -> bool:
    """Does each iteration of some loops over one row touch one element, its own, of what they change?"""
    lane = rows[0]
    body = [n for row in rows for n in at(row, IVar(lane.var))]
    places: dict[str, set[tuple[Index, ...]]] = {}
    for n in body:
        if isinstance(n, (Store, Update)):
            places.setdefault(memory_of(kernel, n.buffer), set()).add(n.indices)

    def expr(e: Expr) -> Expr:
        if isinstance(e, Read) and (memory := memory_of(kernel, e.tensor)) in places:
            places[memory].add(e.indices)
        return e

    map_values(tuple(body), expr, lambda i: i)
    return all(
        len(found) == 1 and any(steps(i, lane) for i in next(iter(found))) for found in places.values()
    )


def at(row: For, place: IndexExpr) -> Block:
    """What a loop does in one iteration."""
    return substituted(row.body, {row.var: place})
