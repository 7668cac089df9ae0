"""Short rows are computed several at a time: their phases take turns.

    for t in 0..T @blk:              for t in 0..T by 2 @blk:  u = t + 1
      m = max of x[t, :]               m = max of x[t, :];  n = max of x[u, :]
      e[:] = exp(x[t, :] - m)    ->    e[0, :] = exp(x[t, :] - m);  e[1, :] = exp(x[u, :] - n)
      ...                              ...
                                     and what is left of a chunk row by row

A phase waits until the lanes of the phase before have become one number.  Where a row is only a few vectors
long that takes longer than the vectors do, and a core that looks ahead finds the next row too late.

Iterations of a parallel nest may run in any order, so also in turns.  Each row has scalars of its own, and
arrays of the worker of its own.  Lines are not asked for soon (`codegen.soon`): they would be those of rows
that are read already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyfuse.codegen.c_family import scalar_name
from polyfuse.codegen.hoist import computes_little
from polyfuse.codegen.tasks import Task, Together
from polyfuse.codegen.touched import read_in
from polyfuse.codegen.trips import trip_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_knobs import CpuKnobs
from polyfuse.ir.dtypes import HALVES
from polyfuse.ir.index_expr import IndexExpr, IVar, evaluate, sizes
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    For,
    If,
    Node,
    Store,
    TurnedTile,
    Update,
    map_nodes,
    map_values,
    nodes_of,
    substituted,
    values_of,
)
from polyfuse.ir.ops import Cost, of_cost
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Expr, Read, walk

LONG = 1 << 40
_ROOTS = of_cost(Cost.DIVIDER)
_PLAIN = (For, If, Declare, Store, Update, TurnedTile, Comment)


def rows_together(kernel: Kernel, tasks: Sequence[Task], knobs: CpuKnobs) -> tuple[Task, ...]:
    """The tasks of a kernel, with several rows in turns where that can be: as many as the knobs say, or where
    it pays."""
    found: list[Task] = []
    for t in tasks:
        most = _most(kernel, t.body, knobs)
        count = (knobs.rows or _worth(t.body, most)) if possible(kernel, t, tasks) else 1
        found.append(replace(t, together=_together(kernel, t, count)) if count > 1 else t)
    return tuple(found)


def with_arrays(kernel: Kernel, rows: int) -> Kernel:
    """The kernel with arrays of a worker for each of several rows."""
    own = [replace(b, tensor=_array(kernel, b.tensor, k)) for k in range(1, rows) for b in _local(kernel)]
    return replace(kernel, buffers=(*kernel.buffers, *own))


# --- whether ------------------------------------------------------------------------------------------


def possible(kernel: Kernel, task: Task, tasks: Sequence[Task]) -> bool:
    """Is it a parallel nest of plain loops, with nothing in a worker's arrays that other tasks touch, and
    with rows that are still one by one?"""
    others = {n for t in tasks if t is not task for n in _names(t.body)}
    if not task.loops or task.jammed > 1 or task.together or others & {b.tensor for b in _local(kernel)}:
        return False
    nodes = list(nodes_of(task.body))
    return all(isinstance(n, _PLAIN) and not (isinstance(n, TurnedTile) and n.to) for n in nodes)


def _most(kernel: Kernel, body: Block, knobs: CpuKnobs) -> Sequence[Mapping[int, int]]:
    """What rows that take turns have together at most, by how often they wait."""
    wide = [b for b in kernel.arguments if b.dtype.is_float and len(b.shape) > 1]
    if wide and all(b.dtype in HALVES and not b.soon for b in wide):
        return FITTED.rows_together_most_bytes_of_halves
    far = touched_bytes(kernel) > knobs.on.l2
    if takes_long(list(nodes_of(body))):
        return FITTED.rows_together_most_bytes_of_functions[far]
    return FITTED.rows_together_most_bytes if far else FITTED.rows_together_most_bytes_in_l2


def takes_long(nodes: Sequence[Node]) -> bool:
    """Is there a function that takes longer than a root?"""
    every = (e for v in values_of(nodes) for e in walk(v) if isinstance(e, Apply))
    return not all(computes_little(e, *_ROOTS) for e in every)


def _worth(body: Block, most: Sequence[Mapping[int, int]]) -> int:
    """How many rows at a time pay: those of vector loops that wait for totals."""
    loops = [n for n in body if isinstance(n, For)]
    if not all(n.coordinate is Coordinate.VECTOR and n.step == 1 for n in loops):
        return 1
    row = max((_bytes(n) for n in loops), default=0)
    return next((n for n, room in most[waits(body)].items() if n * row <= room), 1)


def touched_bytes(kernel: Kernel) -> int:
    """Bytes of the memory outside that a kernel touches; much, where sizes are open."""
    known = [b for b in kernel.arguments if not sizes(b.elements)]
    return (
        sum(evaluate(b.elements, {}) * b.dtype.bytes for b in known) if known == [*kernel.arguments] else LONG
    )


def waits(body: Block) -> int:
    """2 where a loop that reduces needs what another one found, 1 where any loop does, else 0."""
    found = 0
    totals: set[str] = set()  # what depends on the total of a loop
    for n in body:
        depends = bool(totals & _names((n,)))
        match n:
            case For(lanes=lanes):
                found = max(found, depends + (depends and bool(lanes)))
                totals |= set(lanes)
            case Declare(name) if depends:
                totals.add(name)
            case Store(buffer) | Update(buffer) if depends:
                totals.add(buffer)
            case If() if depends:
                totals |= {x.buffer for x in nodes_of((n,)) if isinstance(x, (Store, Update))}
            case _:
                pass
    return found


def _bytes(loop: For) -> int:
    """Bytes of a row of the widest values that a loop computes; a length that is not known is a long one."""
    computed = [n.value.dtype.bytes for n in nodes_of(loop.body) if isinstance(n, (Store, Update))]
    trip = trip_of(loop)
    return LONG if trip is None else trip * max(computed, default=1)


def _names(block: Block) -> set[str]:
    """What a block reads and stores to."""
    return read_in(block) | {n.buffer for n in nodes_of(block) if isinstance(n, (Store, Update))}


# --- how ----------------------------------------------------------------------------------------------


def _together(kernel: Kernel, task: Task, count: int) -> Together:
    rows = range(count)
    bodies = [body_of_row(kernel, task, k) for k in rows]
    phases = tuple(n for phase in zip(*bodies, strict=True) for n in phase)
    return Together(tuple(loops_of_row(task, k) for k in rows), phases, count)


def loops_of_row(task: Task, row: int) -> tuple[For, ...]:
    """The loops of a task, in variables of one of several rows."""
    return tuple(replace(x, var=row_variable(x.var, row)) for x in task.loops)


def body_of_row(kernel: Kernel, task: Task, row: int) -> Block:
    """What the task does for one of several rows, in names of that row's own."""
    if not row:
        return task.body
    names = {b.tensor: _array(kernel, b.tensor, row) for b in _local(kernel)}
    declared = (n for n in nodes_of(task.body) if isinstance(n, Declare | TurnedTile))
    names |= {n.name: called(n.name, row) for n in declared}
    variables: dict[str, IndexExpr] = {x.var: IVar(row_variable(x.var, row)) for x in task.loops}
    return renamed(substituted(task.body, variables), names)


def row_variable(name: str, row: int) -> str:
    """What a row's own variable of a loop is called."""
    return f"row{row}_{name}" if row else name


def called(scalar: str, row: int) -> str:
    """What a row's own scalar is called."""
    return f"%{row_variable(scalar_name(scalar), row)}"


def _array(kernel: Kernel, tensor: str, row: int) -> str:
    """What a row's own array for a tensor is called: no other begins so."""
    stem = "row"
    while any(b.tensor.startswith(stem) for b in kernel.buffers):
        stem += "_"
    return f"{stem}{row}_{tensor}"


def _local(kernel: Kernel) -> tuple[Buffer, ...]:
    return tuple(b for b in kernel.buffers if b.scope is Scope.LOCAL)


def renamed(block: Block, names: Mapping[str, str]) -> Block:
    """The block with other buffers and scalars."""

    def expr(e: Expr) -> Expr:
        return replace(e, tensor=names.get(e.tensor, e.tensor)) if isinstance(e, Read) else e

    def node(n: Node) -> Node:
        match n:
            case Store(buffer) | Update(buffer):
                return replace(n, buffer=names.get(buffer, buffer))
            case Declare(name):
                return replace(n, name=names.get(name, name))
            case TurnedTile(name, buffer=buffer):
                return replace(n, name=names.get(name, name), buffer=names.get(buffer, buffer))
            case For():
                return replace(n, lanes=tuple(names.get(x, x) for x in n.lanes))
            case _:
                return n

    return map_nodes(map_values(block, expr, lambda i: i), node)
