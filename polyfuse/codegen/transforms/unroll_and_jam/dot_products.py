"""Sums along memory for a few rows and columns are computed together: each factor is loaded once for all.

    for m in 0..3:                               for n in 4*c..4*c+4: ...
      for n in 4*c..4*c+4:                       a0 = 0; a1 = 0; ...; a11 = 0
        a = 0                                    for k @vec:
        for k @vec: a += x[m, k] * w[n, k]   ->    a0 += x[0, k] * w[4*c, k];  a1 += x[0, k] * w[4*c + 1, k]
        y[m, n] += a                               ...;  a11 += x[2, k] * w[4*c + 3, k]
                                                 y[0, 4*c] += a0;  y[0, 4*c + 1] += a1;  ...

One product takes two loads, twelve take seven, and each row of the larger factor comes from memory once for
all rows of the other.  The lanes of each sum are one vector (eight elements at least, of f16 sixteen): so all
sums stay in registers.  What is left of rows and columns has as many: a sum does not depend on its place.

Layer II makes such loops (`layers.contractions.tile_shapes`): short strips of rows and of columns, with
nothing in them but the sum, whose factors depend on a row or on a column.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from polyfuse.codegen.analysis.dependence import in_common
from polyfuse.codegen.analysis.index_ranges import strip_of
from polyfuse.codegen.analysis.reduction_nests import bounds_of
from polyfuse.codegen.analysis.renaming import renamed
from polyfuse.codegen.analysis.trip_count import in_steps
from polyfuse.codegen.function import Task
from polyfuse.ir.cpu_core import Core, CpuKnobs, dots_fit, vectors_of_sum
from polyfuse.ir.dtypes import F16
from polyfuse.ir.index_expr import IVar
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    Node,
    Update,
    map_nodes,
    map_outermost,
    nodes_of,
    substituted,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, depends_on, reads


def dots_jammed(kernel: Kernel, tasks: Sequence[Task], knobs: CpuKnobs) -> list[Task]:
    """The tasks with such sums together, but where the knobs want rows one by one."""
    return [*tasks] if knobs.rows == 1 else [_jam(kernel, t, knobs.on) for t in tasks]


def _jam(kernel: Kernel, task: Task, core: Core) -> Task:
    counts = [1]

    def change(loop: For) -> Sequence[Node] | None:
        shape = _shape(kernel, loop, core)
        if shape is None:
            return None
        counts.append(shape[0] * shape[1])
        (columns,) = map_nodes(loop.body, lambda n: few_lanes(n, core))
        assert isinstance(columns, For)
        return jammed(replace(loop, body=tuple(jammed(columns, shape[1]))), shape[0])

    body = map_outermost(task.body, change)
    return replace(task, body=body, jammed=max(counts)) if len(counts) > 1 else task


def _shape(kernel: Kernel, rows: For, core: Core) -> tuple[int, int] | None:
    """How many rows and columns the sums of a nest have, if it is one of these and registers hold them."""
    (columns, *others) = rows.body or (None,)
    if not isinstance(columns, For) or others:
        return None
    strips = strip_of(rows), strip_of(columns)
    sums = [n for n in nodes_of(columns.body) if isinstance(n, For) and n.coordinate is Coordinate.VECTOR]
    if (
        strips[0] is None
        or strips[1] is None
        or len(sums) != 1
        or not multiplies(sums[0], {rows.var}, {columns.var})
    ):
        return None
    inner = [n for n in nodes_of(columns.body) if isinstance(n, For)]
    if rows.var in bounds_of([columns, *inner]) or columns.var in bounds_of(inner):
        return None
    if any(in_common(kernel, x) != frozenset() for x in (rows, columns)):
        return None
    shape = strips[0].length, strips[1].length
    (update,) = sums[0].body
    assert isinstance(update, Update)
    fits = sums_fit(*shape, update, core)
    return shape if max(shape) > 1 and fits else None


def multiplies(loop: For, rows: Set[str], columns: Set[str], own: Set[str] = frozenset()) -> bool:
    """Does a loop only add products of what a row and what a column has to one scalar, in lanes? These are
    told by their variables, or by arrays that are a row's own."""
    match loop.body:
        case (Update(buffer, (), "sum", Apply("mul", (left, right))),) if loop.lanes == (buffer,):
            known = [depends_on(e) for e in (left, right)]
            mine = [any(r.tensor in own for r in reads(e)) for e in (left, right)]
            of = [(m or bool(k & rows), bool(k & columns)) for k, m in zip(known, mine, strict=True)]
            return of in ([(True, False), (False, True)], [(False, True), (True, False)])
        case _:
            return False


def sums_fit(rows: int, columns: int, update: Update, core: Core) -> bool:
    """Do registers hold the sums of so many rows and columns?"""
    return dots_fit(rows, columns, core, update.value.dtype.bytes, _halves(update))


def _halves(update: Update) -> bool:
    """Are factors converted from f16?"""
    return any(r.dtype == F16 for r in reads(update.value))


def few_lanes(n: Node, core: Core) -> Node:
    """A loop with as few lanes as a sum can have."""
    if not isinstance(n, For) or not n.lanes:
        return n
    (update,) = n.body
    assert isinstance(update, Update)
    vectors = vectors_of_sum(core, update.value.dtype.bytes, _halves(update))
    return replace(n, lane_bytes=vectors * core.vector_bytes)


def jammed(loop: For, count: int) -> list[Node]:
    """So many iterations of a loop at a time, then what is left one by one."""
    return in_steps(loop, _woven([_at(loop, k) for k in range(count)]), count)


def _at(loop: For, k: int) -> Block:
    """The body as it is k iterations later, in names of its own."""
    if k == 0:
        return loop.body
    names = {
        n.name: f"%{loop.var}_{k}_{n.name.removeprefix('%')}"
        for n in nodes_of(loop.body)
        if isinstance(n, Declare)
    }
    return renamed(substituted(loop.body, {loop.var: IVar(loop.var) + k}), names)


def _woven(bodies: Sequence[Block]) -> Block:
    """The phases of all bodies in turns, with one loop for those of a phase."""
    body: list[Node] = []
    for phase in zip(*bodies, strict=True):
        loops = [n for n in phase if isinstance(n, For)]
        if not loops:
            body += phase
            continue
        inner = in_turns([n.body for n in loops]) if loops[0].lanes else _woven([n.body for n in loops])
        body.append(replace(loops[0], body=inner, lanes=tuple(x for n in loops for x in n.lanes)))
    return tuple(body)


def in_turns(sums: Sequence[Block]) -> Block:
    """The sums of a step, so many for each row: in the order in which those factors stay in registers that
    there are fewer of, and each of the others is needed once."""
    if len(sums) > len(sums[0]):
        return tuple(n for row in sums for n in row)
    return tuple(n for column in zip(*sums, strict=True) for n in column)
