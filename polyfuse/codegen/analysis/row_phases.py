"""Phases of the iterations of a parallel nest: which loops a row has, and whether rows can take turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyfuse.codegen.analysis.accesses import read_in
from polyfuse.codegen.analysis.op_cost import computes_little
from polyfuse.codegen.analysis.renaming import called, renamed, row_variable
from polyfuse.codegen.function import Task
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
    nodes_of,
    substituted,
    values_of,
)
from polyfuse.ir.ops import Cost, of_cost
from polyfuse.ir.tensor_graph import Apply, walk

LONG = 1 << 40
_ROOTS = of_cost(Cost.DIVIDER)
_PLAIN = (For, If, Declare, Store, Update, TurnedTile, Comment)


def possible(kernel: Kernel, task: Task, tasks: Sequence[Task]) -> bool:
    """Is it a parallel nest of plain loops, with nothing in a worker's arrays that other tasks touch, and
    with rows that are still one by one?"""
    others = {n for t in tasks if t is not task for n in _names(t.body)}
    if (
        not task.loops
        or task.jammed > 1
        or task.together
        or others & {b.tensor for b in worker_arrays(kernel)}
    ):
        return False
    nodes = list(nodes_of(task.body))
    return all(isinstance(n, _PLAIN) and not (isinstance(n, TurnedTile) and n.to) for n in nodes)


def takes_long(nodes: Sequence[Node]) -> bool:
    """Is there a function that takes longer than a root?"""
    every = (e for v in values_of(nodes) for e in walk(v) if isinstance(e, Apply))
    return not all(computes_little(e, *_ROOTS) for e in every)


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


def _names(block: Block) -> set[str]:
    """What a block reads and stores to."""
    return read_in(block) | {n.buffer for n in nodes_of(block) if isinstance(n, (Store, Update))}


def loops_of_row(task: Task, row: int) -> tuple[For, ...]:
    """The loops of a task, in variables of one of several rows."""
    return tuple(replace(x, var=row_variable(x.var, row)) for x in task.loops)


def body_of_row(kernel: Kernel, task: Task, row: int) -> Block:
    """What the task does for one of several rows, in names of that row's own."""
    if not row:
        return task.body
    names = {b.tensor: array_of_row(kernel, b.tensor, row) for b in worker_arrays(kernel)}
    declared = (n for n in nodes_of(task.body) if isinstance(n, Declare | TurnedTile))
    names |= {n.name: called(n.name, row) for n in declared}
    variables: dict[str, IndexExpr] = {x.var: IVar(row_variable(x.var, row)) for x in task.loops}
    return renamed(substituted(task.body, variables), names)


def array_of_row(kernel: Kernel, tensor: str, row: int) -> str:
    """What a row's own array for a tensor is called: no other begins so."""
    stem = "row"
    while any(b.tensor.startswith(stem) for b in kernel.buffers):
        stem += "_"
    return f"{stem}{row}_{tensor}"


def worker_arrays(kernel: Kernel) -> tuple[Buffer, ...]:
    return tuple(b for b in kernel.buffers if b.scope is Scope.LOCAL)
