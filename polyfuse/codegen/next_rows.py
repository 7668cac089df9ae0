"""The last pass over a row asks for the lines of the next one (`Buffer.soon`).

    for c:                                  for c:
      for n, i: s = s + x[n, c, i]            for n, i: s = s + x[n, c, i]
      for n, i: y[n, c, i] = x[n, c, i] / s   for n, i: fetch x[n, c + 1, i]
                                                        y[n, c, i] = x[n, c, i] / s

The first pass waits for memory, the others read the row from L2.  `layers.prefetch` does so for rows that L1
keeps, and that lie in one piece; here a row is all that an iteration reads of a tensor.  Memory is busy with
results in the last pass, and still it pays there, and not in a pass before it, where there is less to do
for each line (docs/targets.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TypeAlias

from polyfuse.codegen.tasks import Task
from polyfuse.codegen.trips import trip_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IConst, IVar, binary
from polyfuse.ir.kernel import Buffer, Kernel
from polyfuse.ir.loop_ir import Block, Declare, For, Node, Prefetch, Store, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Read, reads

_Path: TypeAlias = tuple[For, ...]  # loops around a read, outermost first


def next_rows(kernel: Kernel, tasks: tuple[Task, ...], core: Core) -> tuple[Task, ...]:
    """See the module docstring."""
    soon = [b for b in kernel.arguments if b.soon and not b.ahead]
    return tuple(_asking(t, soon, core) for t in tasks) if soon else tasks


def _asking(task: Task, soon: list[Buffer], core: Core) -> Task:
    alone = task.together is None and task.skew is None and task.jammed == 1 and task.time is None
    if not alone or not task.loops or (trip_of(task.loops[-1]) or 0) < FITTED.next_rows_least_rows:
        return task
    found = [(b, p) for b in soon if (p := _second_pass(task, b)) is not None]
    row = sum(b.dtype.bytes * prod(trip_of(x) or 0 for x in path) for b, (_, path, _) in found)
    if not core.l1 * FITTED.next_rows_least_of_l1 < row <= core.l2 * FITTED.next_rows_most_of_l2:
        return task
    body = list(task.body)
    for b, (number, path, read) in found:
        request = _request(task.loops[-1], path[-1], read, core.line // b.dtype.bytes)
        body[number] = _within(body[number], path, request)
    return replace(task, body=tuple(body))


def _second_pass(task: Task, b: Buffer) -> tuple[int, _Path, Read] | None:
    """The last loop nest of the body that reads a whole row, if there is one before it: its number, the loops
    around the read, and the read."""
    found = [
        (k, path, r)
        for k, node in enumerate(task.body)
        for path, r in _reads(node, b.tensor)
        if _takes_row(path, r, b, task)
    ]
    return found[-1] if len({k for k, *_ in found}) > 1 else None


def _takes_row(path: _Path, r: Read, b: Buffer, task: Task) -> bool:
    """Do these loops go over all elements of a tensor that one iteration reads, its lanes along memory?"""
    names = [i.name for i in r.indices if isinstance(i, IVar)]
    if len(names) < len(b.shape) or not path or path[-1].coordinate is not Coordinate.VECTOR:
        return False
    loops, outer = {x.var: x for x in path}, {x.var for x in task.loops}
    inner = {n: e for n, e in zip(names, b.shape, strict=True) if n not in outer}
    return (
        names[-1] == path[-1].var
        and task.loops[-1].var in names
        and inner.keys() == loops.keys()
        and all(x.lower == IConst(0) and x.step == 1 and x.upper == inner[n] for n, x in loops.items())
        and all(isinstance(e, IConst) for e in inner.values())
    )


def _request(rows: For, lanes: For, r: Read, line: int) -> For:
    """A loop over the lines of the next row, where the lanes are; after the last row those of this one."""
    following = binary("min", IVar(rows.var) + 1, rows.upper - 1)
    name = f"{lanes.var}_n"
    places = {rows.var: following, lanes.var: IVar(name)}
    indices = tuple(places.get(i.name, i) if isinstance(i, IVar) else i for i in r.indices)
    return For(name, lanes.lower, lanes.upper, line, (Prefetch(r.tensor, indices),))


def _within(node: Node, path: _Path, request: For) -> Node:
    """The request at the head of the innermost of these loops, the outermost of which the node is."""
    if node != path[0]:
        return node
    assert isinstance(node, For)
    rest = path[1:]
    body: Block = tuple(_within(n, rest, request) for n in node.body) if rest else (request, *node.body)
    return replace(node, body=body)


def _reads(node: Node, tensor: str, around: _Path = ()) -> Iterator[tuple[_Path, Read]]:
    match node:
        case For(body=body):
            for n in body:
                yield from _reads(n, tensor, (*around, node))
        case Store() | Update() | Declare() if node.value is not None:
            yield from ((around, r) for r in reads(node.value) if r.tensor == tensor)
