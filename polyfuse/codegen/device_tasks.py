"""The functions of a GPU kernel: one for each of its nests, or one for all parts of a joined kernel.

Barriers come last: of a block where threads need them (`poly.barrier_insertion`), of the grid between the
parts of a joined kernel.  Parts may be laid on threads differently: then thread number t is at
(t mod x, t // x) of a part with x threads along a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from polyfuse.codegen.lower import accumulated, tasks
from polyfuse.codegen.spmd import TX, TY, DeviceTask, Spmd, compare, guarded
from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.index_expr import IndexExpr, as_index, binary, product
from polyfuse.ir.kernel import Buffer, Kernel
from polyfuse.ir.linear import Range
from polyfuse.ir.loop_ir import Barrier, BarrierScope, Block, For, Node, substituted
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.poly.barrier_insertion import insert_barriers, without_unneeded
from polyfuse.poly.barriers import Unsafe, check_barriers


def lower_device(
    kernel: Kernel, strided: frozenset[str] = frozenset(), copied: frozenset[str] = frozenset()
) -> list[DeviceTask]:
    """The functions of a kernel. Buffers in `strided` have strides of their own: no vectors; `copied` are
    inout parameters whose entry values have memory of their own."""
    numbers = itertools.count()
    if kernel.parts:
        return [_joined(kernel, strided, copied, numbers)]
    found = []
    for t in tasks(kernel, accumulated(kernel, numbers)):
        task = Spmd(kernel, strided, copied, numbers).task(t)
        count = product(tuple(binary("-", x.upper, x.lower) for x in task.loops))
        whole = _with_barriers(task.kernel, _nest(task.loops, task.body), count, copied)
        for _ in task.loops:
            (node,) = whole
            assert isinstance(node, For)
            whole = node.body
        found.append(replace(task, body=whole))
    return found


def _joined(
    kernel: Kernel, strided: frozenset[str], copied: frozenset[str], numbers: itertools.count[int]
) -> DeviceTask:
    """One function for all parts of a kernel, with barriers of the grid where blocks wait for others."""
    threads = kernel.threads[0]
    nests: list[Node] = []
    ranges: dict[str, Range] | None = {}
    aligned: dict[str, int] = {}
    shared: list[Buffer] = []
    for part in kernel.parts:
        x = part.threads[0]
        shaped = replace(part, threads=(x, threads // x))
        for t in tasks(part, accumulated(part, numbers)):
            task = Spmd(shaped, strided, copied, numbers, shared=shared).task(t)
            if part.threads[1] < threads // x and not _waits(task, part.threads, copied):
                # Threads that the part has no row for do nothing, not even read.
                mine = compare("lt", TY, as_index(part.threads[1]))
                task = replace(task, body=guarded([mine], task.body))
            if nests:
                nests.append(Barrier(BarrierScope.GRID, "all blocks have done the part before"))
            alone = For(f"z{len(nests)}", as_index(0), as_index(1), 1, (), Coordinate.BLK)
            nest = _nest(task.loops or (alone,), task.body)
            if x != threads:
                nest = substituted(nest, {"tx": binary("%", TX, x), "ty": binary("//", TX, x)})
            nests += nest
            ranges = _united(ranges, task.ranges)
            aligned |= {n: max(b, aligned.get(n, 0)) for n, b in task.aligned.items()}
    whole = replace(kernel, buffers=(*kernel.buffers, *shared))
    if ranges is not None:
        ranges |= {"tx": (0, threads - 1), "ty": (0, 0)}
    blocks = as_index(kernel.resident)
    body = _with_barriers(whole, without_unneeded(whole, tuple(nests), blocks, copied), blocks, copied)
    return DeviceTask(whole, (), body, ranges, aligned)


def _waits(task: DeviceTask, threads: tuple[int, int], copied: frozenset[str]) -> bool:
    """Do threads of a block wait for each other in a task, if there are just so many of them?"""
    count = product(tuple(binary("-", x.upper, x.lower) for x in task.loops))
    alone = replace(task.kernel, threads=threads, parts=())
    return bool(insert_barriers(alone, _nest(task.loops, task.body), count, copied)[1])


def _nest(loops: tuple[For, ...], body: Block) -> Block:
    """Loops around a body."""
    for loop in reversed(loops):
        body = (replace(loop, body=body),)
    return body


def _united(a: Mapping[str, Range] | None, b: Mapping[str, Range] | None) -> dict[str, Range] | None:
    """What variables can be in two nests; a name may stand for a loop in both."""
    if a is None or b is None:
        return None
    both = {**a, **b}
    for name in a.keys() & b.keys():
        both[name] = min(a[name][0], b[name][0]), max(a[name][1], b[name][1])
    return both


def _with_barriers(kernel: Kernel, whole: Block, blocks: IndexExpr, copied: frozenset[str]) -> Block:
    """The nests with the barriers of a block that they need; proved to be enough."""
    whole, added = insert_barriers(kernel, whole, blocks, copied)
    if added or kernel.parts:
        verdict = check_barriers(kernel, whole, blocks, copied)
        if isinstance(verdict, Unsafe):
            raise ScheduleError([verdict.diagnostic])
    return whole
