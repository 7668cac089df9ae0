"""Rows of a sequential loop that add to the same long sums are computed several at a time.

    for t in 0..128:                         for t in 0..128 by 2:  u = t + 1
      for c @vec:                              for c @vec:
        m += f(x[t, c])                          m += f(x[t, c]);  n += f(x[u, c])
        part[c] += g(x[t, c])        ->          part[c] += g(x[t, c]);  part[c] += g(x[u, c])
      for c @vec:                              for c @vec:  y[t, c] = h(x[t, c], m)
        y[t, c] = h(x[t, c], m)                for c @vec:  y[u, c] = h(x[u, c], n)
                                             and what is left of the rows one by one

Sums over rows are in memory: each row loads and stores all of them.  In one loop for several rows they are
loaded and stored once, and an element still gets its terms in the same order.  Phases without such sums take
turns.  Where accumulators of all rows would not stay in registers, each has fewer lanes.

Rows go together where what they write in common is touched by updates of one operator in one phase alone,
and an index tells all else that they write apart.  No lines are asked for: several rows are as many streams,
which the hardware follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyfuse.codegen.analysis.dependence import in_common, steps
from polyfuse.codegen.analysis.op_cost import computes_little
from polyfuse.codegen.analysis.renaming import called, renamed
from polyfuse.codegen.analysis.trip_count import in_steps, most_trips_of, trip_of
from polyfuse.codegen.function import Task
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.index_expr import IVar, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    If,
    Node,
    Prefetch,
    Store,
    Update,
    map_nodes,
    map_outermost,
    nodes_of,
    substituted,
    values_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, walk


def rows_jammed(kernel: Kernel, tasks: Sequence[Task], knobs: CpuKnobs) -> tuple[Task, ...]:
    """The tasks, with rows of loops in them computed several at a time: as many as the knobs say, or where it
    pays."""
    return tuple(_jam(kernel, t, knobs) for t in tasks)


def _jam(kernel: Kernel, task: Task, knobs: CpuKnobs) -> Task:
    counts = [1]

    def change(loop: For) -> Sequence[Node] | None:
        common = in_common(kernel, loop) or frozenset()
        merged = [n for n in loop.body if isinstance(n, For) and _merges(loop, n, common)]
        count = min(knobs.rows or _worth(merged, common, knobs.on), most_trips_of(loop))
        if not merged or count < 2:
            return None
        counts.append(count)
        return _jammed(loop, merged, count, knobs.on)

    body = map_outermost(task.body, change)
    return replace(task, body=body, jammed=max(counts)) if len(counts) > 1 else task


def _merges(rows: For, loop: For, common: frozenset[str]) -> bool:
    """Is it a vector loop, the same for all rows, that adds to each element of a sum in common once?"""
    if loop.coordinate is not Coordinate.VECTOR or loop.step != 1 or common & {*loop.lanes}:
        return False
    if rows.var in (*variables(loop.lower), *variables(loop.upper)):
        return False
    if not all(isinstance(n, (Declare, Store, Update)) for n in loop.body):
        return False
    sums = _sums(loop, common)
    return bool(sums) and all(any(steps(i, loop) for i in u.indices) for u in sums)


def _sums(loop: For, common: frozenset[str]) -> list[Update]:
    return [n for n in loop.body if isinstance(n, Update) and n.buffer in common]


def _worth(merged: Sequence[For], common: frozenset[str], core: Core) -> int:
    """How many rows at a time pay: those whose sums are long, with little to compute for each term."""
    found = {u.buffer: (trip_of(n) or 0) * u.value.dtype.bytes for n in merged for u in _sums(n, common)}
    if sum(found.values()) * FITTED.rows_jammed_share_of_l1 <= core.l1 or not all(_light(n) for n in merged):
        return 1
    stored = [x for n in merged for x in n.body if isinstance(x, (Store, Update))]
    if any(isinstance(x, Store) and x.indices and x.value.dtype.bits == 16 for x in stored):
        return 1  # halves that one loop stores to two places are converted one by one
    return min(
        FITTED.rows_jammed_most_rows,
        FITTED.rows_jammed_most_bytes // max(x.value.dtype.bytes for x in stored),
    )


def _light(loop: For) -> bool:
    """Does a loop compute nothing that takes longer than to load and store a sum?"""
    return all(computes_little(x) for v in values_of(loop.body) for x in walk(v) if isinstance(x, Apply))


# --- how ----------------------------------------------------------------------------------------------


def _jammed(rows: For, merged: Sequence[For], count: int, core: Core) -> list[Node]:
    """The loop for so many rows at a time, and the one for what is left."""
    narrow = [_narrow(n, count, core) for n in merged]
    rows = replace(rows, body=tuple(narrow[merged.index(n)] if n in merged else n for n in rows.body))
    bodies = [_body(rows, row) for row in range(count)]
    body: list[Node] = []
    for phase in zip(*bodies, strict=True):
        loops = [n for n in phase if isinstance(n, For)]
        body += [_merged(loops)] if phase[0] in narrow else phase
    return in_steps(rows, tuple(body), count)


def _merged(loops: Sequence[For]) -> For:
    body = tuple(x for n in loops for x in n.body)
    return replace(loops[0], body=body, lanes=tuple(x for n in loops for x in n.lanes))


def _narrow(loop: For, count: int, core: Core) -> For:
    """With so few lanes that accumulators of all rows fill half of the registers; also what is left, so that
    a row's sums do not depend on where it is."""
    if not loop.lanes:
        return loop
    room = core.registers // 2 * core.vector_bytes // (count * len(loop.lanes))
    return replace(loop, lane_bytes=max(core.vector_bytes, 1 << room.bit_length() - 1))


def _body(rows: For, row: int) -> Block:
    """What is done for one of several rows, in names of that row's own; nothing is asked for."""
    body = map_nodes(rows.body, lambda n: () if _fetches(n) else n)
    names = {n.name: called(n.name, row) for n in nodes_of(body) if isinstance(n, Declare)}
    return renamed(substituted(body, {rows.var: IVar(rows.var) + row}), names) if row else body


def _fetches(n: Node) -> bool:
    """Does a node ask for lines, and do nothing else?"""
    return isinstance(n, (For, If)) and all(isinstance(x, (For, If, Prefetch)) for x in nodes_of((n,)))
