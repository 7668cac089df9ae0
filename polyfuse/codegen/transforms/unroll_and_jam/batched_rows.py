"""Sixteen short rows at once: each row's own loops, and what follows from their totals once for all of them.

    for t in 0..T @blk:                      for t in 0..T by 16 @blk:
      a = 0                                    for row in 0..16:  a[row] = 0
      for c: a += x[t, c]                      for row in 0..16:  lanes of a[row] = sum of x[t + row, :]
      m = a / N                         ->     a = totals of all lanes
      ...                                      for row in 0..16:  m[row] = a[row] / N
      for c: y[t, c] = x[t, c] - m             for row in 0..16:  y[t + row, :] = x[t + row, :] - m[row]
                                               and what is left of a chunk row by row

The lanes of one total are combined in steps, each of which waits for the one before and has half as many
elements to work on.  Of as many totals as a vector has lanes all steps work on whole vectors, and none waits
(`codegen.math.vector_reduce`).  Means, roots and quotients of totals are vectors as well.

Iterations of a parallel nest may run in any order, so also their phases.  Scalars of a row become arrays with
a place for each row, and arrays of the worker get one more dimension; both have one for rows that run alone,
too, if these use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from polyfuse.codegen.analysis.accesses import touched_in
from polyfuse.codegen.analysis.dependence import independent_rows
from polyfuse.codegen.analysis.row_batch import (
    ROW,
    for_all_rows,
    index_names,
    joint_totals,
    loop_over_batch,
    of_all,
    places_of_batch,
    row_places,
)
from polyfuse.codegen.analysis.row_phases import LONG, takes_long, touched_bytes, waits
from polyfuse.codegen.analysis.trip_count import longest, trip_of
from polyfuse.codegen.function import Function
from polyfuse.codegen.passes import missed
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import CpuKnobs, joint_room
from polyfuse.ir.dtypes import HALVES
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, evaluate, sizes
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    Node,
    Store,
    TransposedTile,
    Update,
    map_places,
    nodes_of,
    values_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Read, reads

# Totals of all rows fill a vector of the widest machine.
_VECTOR_BYTES = 64


def rows_jointly(
    kernel: Kernel, functions: Sequence[Function], knobs: CpuKnobs
) -> tuple[Kernel, tuple[Function, ...]]:
    """The functions of a kernel, with rows at once where that can be and pays (or wherever it can be, or
    nowhere, if the knobs say so), and the kernel with the arrays that they need."""
    asked = wanted(knobs)
    made: list[Function] = []
    rows_of: dict[str, int] = {}
    for t in functions:
        if asked is not False and independent_rows(kernel, t, functions) and (asked or _known(t.loops)):
            own = frozenset(b.tensor for b in kernel.buffers if b.scope is Scope.LOCAL)
            found = at_once(kernel, t.body, own, knobs, turns=True)
            if found is not None:
                rows_of |= dict.fromkeys(found.own, found.rows)
                places = places_of_batch(t.loops, found.rows)
                t = t.with_body(found.one).with_batch(found.rows, places, found.body)
        made.append(t)
    return with_places(kernel, rows_of), tuple(made)


def wanted(knobs: CpuKnobs) -> bool | None:
    """Do the knobs say so, or leave it to what pays?"""
    return False if knobs.rows and knobs.jointly is None else knobs.jointly


def with_places(kernel: Kernel, places: Mapping[str, int]) -> Kernel:
    """The kernel with places for so many rows in arrays of the worker."""
    buffers = (with_rows(b, places[b.tensor]) if b.tensor in places else b for b in kernel.buffers)
    return replace(kernel, buffers=tuple(buffers))


def _known(loops: Sequence[For]) -> bool:
    """Are places in a nest found without quotients of numbers that are not known?"""
    return all(trip_of(x) is not None for x in loops[1:])


def _worth(kernel: Kernel, body: Block, knobs: CpuKnobs, turns: bool) -> bool:
    """Are all loops of a row plain vector loops, and short?"""
    loops = [n for n in body if isinstance(n, For)]
    if not all(n.coordinate is Coordinate.VECTOR and n.step == 1 for n in loops):
        return False
    row = max(
        (LONG if (most := longest(kernel, n)) is None else most * _widest(n) for n in loops), default=LONG
    )
    far = touched_bytes(kernel) > knobs.on.l2
    if far and row < _VECTOR_BYTES and waits(body) == 1:
        return False  # a row that hardly waits gains less than masks cost that cross lines
    return row <= _longest(body, turns)[far]


def _longest(body: Block, turns: bool) -> tuple[int, int]:
    """The length of rows that pay, by what is computed of them."""
    nodes = list(nodes_of(body))
    single = [n for n in body if not isinstance(n, For)]
    if any(r.dtype in HALVES and r.indices for n in nodes for v in values_of((n,)) for r in reads(v)):
        return FITTED.batched_rows_longest_of_halves
    if takes_long(single):
        return FITTED.batched_rows_longest_of_totals
    if takes_long(nodes):
        return (
            FITTED.batched_rows_longest_of_functions[waits(body) > 1]
            if turns
            else FITTED.batched_rows_longest_without_turns
        )
    return FITTED.batched_rows_longest_that_wait if waits(body) > 1 else FITTED.batched_rows_longest


def _widest(loop: For) -> int:
    """Bytes of the widest value that a loop computes."""
    computed = [n.value.dtype.bytes for n in nodes_of(loop.body) if isinstance(n, (Store, Update))]
    return max(computed, default=1)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """What is done for so many rows at once, and for one; the arrays of the worker in `own` have a place for
    each row."""

    rows: int
    body: Block
    one: Block
    own: frozenset[str]


def at_once(
    kernel: Kernel,
    row: Block,
    own: Set[str],
    knobs: CpuKnobs,
    common: Set[str] = frozenset(),
    turns: bool = False,
) -> AtOnce | None:
    """Rows at once, if that pays or is wanted; each has arrays of its own for those of the worker in `own`,
    and all add to what is in `common`; with `turns` a few may take turns instead.  None if no total joins
    others, arrays would be large, or a row turns a tile of its own."""
    scalars = {n.name: n for n in row if isinstance(n, Declare) and not n.count}
    totals = [u for n in row if isinstance(n, For) for u in joint_totals(n) if u.buffer in scalars]
    widths = {u.value.dtype.bytes for u in totals}
    if not widths:
        return None
    if not (wanted(knobs) or _worth(kernel, row, knobs, turns)):
        missed(row, "rows are so long that their totals take little of the time")
        return None
    if any(isinstance(n, TransposedTile) for n in nodes_of(row)):
        return None
    rows = _VECTOR_BYTES // min(widths)
    touched = touched_in(row)
    mine = [b for b in kernel.buffers if b.tensor in touched & own]
    arrays = [n for n in row if isinstance(n, Declare) and n.count]
    on_stack = sum(row_places(n) * n.dtype.bytes for n in arrays)
    if any(sizes(b.elements) for b in mine) or rows * on_stack > FITTED.batched_rows_most_stack:
        missed(row, "arrays of all rows are too large")
        return None
    if rows * sum(evaluate(b.elements, {}) * b.dtype.bytes for b in mine) > joint_room(knobs.on):
        missed(row, "L2 does not hold arrays of all rows")
        return None
    names = frozenset(b.tensor for b in mine)
    all_rows = placed(row, names, {n.name: row_places(n) for n in arrays}, IVar(ROW))
    body = (
        *(Declare(of_all(n.name), n.dtype, None, rows) for n in scalars.values()),
        *(replace(n, count=rows * row_places(n)) for n in arrays),
        *_phases(all_rows, scalars, rows, common),
    )
    return AtOnce(rows, body, placed(row, names, {}, IConst(0)), names)


def with_rows(buffer: Buffer, rows: int) -> Buffer:
    """An array of the worker with one more dimension, for rows; each begins a line."""
    *outer, last = (*buffer.extents,) or (IConst(1),)
    step = _VECTOR_BYTES // buffer.dtype.bytes
    length = IConst(-(-evaluate(last, {}) // step) * step)
    inner = (*outer, length) if buffer.extents else ()
    return replace(buffer, extents=(IConst(rows), *inner), shape=(IConst(rows), *buffer.shape))


def placed(block: Block, arrays: Set[str], flat: Mapping[str, int], row: IndexExpr) -> Block:
    """The block, with `row` as one more index of `arrays`; in `flat` rows of so many elements follow one
    another."""

    def at(name: str, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        if name in arrays:
            return (row, *indices)
        if name in flat:
            (place,) = indices
            assert not isinstance(place, EXPR_TYPES)
            return (binary("+", binary("*", row, flat[name]), place),)
        return indices

    return map_places(block, at)


# --- phases -------------------------------------------------------------------------------------------


def _phases(body: Block, scalars: Mapping[str, Declare], rows: int, common: Set[str]) -> Iterator[Node]:
    """A loop over rows for each loop of a row, and one for all that is between two of them."""
    run: list[Node] = []
    for n in body:
        if not any(isinstance(x, For) for x in nodes_of((n,))):
            run.append(n)
            continue
        yield from for_all_rows(tuple(run), scalars, rows, common)
        run = []
        yield loop_over_batch(_loop(n, scalars), rows, lanes=_joint(n, scalars))
    yield from for_all_rows(tuple(run), scalars, rows, common)


def _joint(n: Node, scalars: Mapping[str, Declare]) -> tuple[str, ...]:
    found = joint_totals(n) if isinstance(n, For) else []
    return tuple(u.buffer for u in found if u.buffer in scalars)


def _loop(n: Node, scalars: Mapping[str, Declare]) -> Block:
    """A loop of one of the rows: the scalars that it reads are copies, those that it changes go back."""
    joint = _joint(n, scalars)
    changed = {x.buffer for x in nodes_of((n,)) if isinstance(x, (Store, Update)) and x.buffer in scalars}
    changed -= set(joint)
    touched = touched_in((n,)) - {*joint} | index_names((n,))
    used = [d for d in scalars.values() if d.name in touched]
    place = (IVar(ROW),)
    return (
        *(replace(d, value=Read(of_all(d.name), place, d.dtype)) for d in used),
        n,
        *(Store(of_all(d.name), place, Read(d.name, (), d.dtype)) for d in used if d.name in changed),
    )
