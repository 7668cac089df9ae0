"""Rows of a recurrence go together, step by step.

    for b in 0..B @blk:                              for b in 0..B by 4 @blk:
      p = s[b, 0]                                      p = s[b, 0];  q = s[b + 1, 0];  ...
      for t in 1..T:                                   for t in 1..T:
        p = a * p + x[b, t]                    ->        p = a * p + x[b, t];  q = a * q + x[b + 1, t];  ...
        s[b, t] = p                                      s[b, t] = p;  s[b + 1, t] = q;  ...
                                                     and what is left of a chunk row by row

A step needs what the step before has found, and waits for it as long as its operations take one after the
other.  The same steps of other rows need not wait.  Where a step multiplies what the row has found by a
matrix that all rows read, as in an LSTM, sums of all rows are computed together: a row of the matrix is
loaded once for all of them, and what the rows have found once for several rows of the matrix (as in
`codegen.transforms.unroll_and_jam.dot_products`).

Iterations of a parallel nest may run in any order, so also in this one.  Each row has scalars of its own, and
arrays of the worker of its own.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from polyfuse.codegen.analysis.dependence import in_common
from polyfuse.codegen.analysis.reduction_nests import are_steps, bounds_of
from polyfuse.codegen.analysis.row_phases import LONG, body_of_row, loops_of_row, possible
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.function import Task, Together
from polyfuse.codegen.transforms.unroll_and_jam.dot_products import (
    few_lanes,
    in_turns,
    jammed,
    multiplies,
    sums_fit,
)
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import Block, For, Node, Store, Update, map_nodes, map_outermost, nodes_of
from polyfuse.ir.schedule_tree import Coordinate


def rows_in_step(kernel: Kernel, tasks: Sequence[Task], knobs: CpuKnobs) -> tuple[Task, ...]:
    """The tasks of a kernel, with rows of recurrences in step: as many as the knobs say, or where it pays."""
    return tuple(_in_step(kernel, t, tasks, knobs) for t in tasks)


def _in_step(kernel: Kernel, task: Task, tasks: Sequence[Task], knobs: CpuKnobs) -> Task:
    rows = {x.var for x in task.loops}
    steps = [n for n in task.body if isinstance(n, For) and are_steps(n, rows)]
    count = knobs.rows or FITTED.rows_in_step_rows
    own = frozenset(b.tensor for b in kernel.buffers if b.scope is Scope.LOCAL)
    if count < 2 or not any(_worth(n, rows, own) for n in steps) or not possible(kernel, task, tasks):
        return task
    few = replace(task, body=_columns(kernel, task.body, rows, own, count, knobs.on))
    bodies = [body_of_row(kernel, few, k) for k in range(count)]
    loops = tuple(loops_of_row(task, k) for k in range(count))
    together = Together(loops, _woven(bodies, rows), count)
    return replace(task, body=_columns(kernel, task.body, rows, own, 1, knobs.on), together=together)


def _worth(steps: For, rows: Set[str], own: Set[str]) -> bool:
    """Do steps wait longer than they compute, or read what other rows read as well?"""
    loops = [n for n in nodes_of(steps.body) if isinstance(n, For)]
    columns = {n.var for n in loops if n.coordinate is Coordinate.SEQ}
    if any(multiplies(n, rows, columns, own) for n in loops):
        return True
    plain = all(n.coordinate is Coordinate.VECTOR and n.step == 1 for n in loops)
    return plain and sum(map(_bytes, loops)) <= FITTED.rows_in_step_short_bytes


def _bytes(loop: For) -> int:
    """Bytes of what a loop stores; much, where that is not known."""
    trip = trip_of(loop)
    stored = [n.value.dtype.bytes for n in loop.body if isinstance(n, (Store, Update))]
    return LONG if trip is None else trip * sum(stored)


# --- how ----------------------------------------------------------------------------------------------


def _columns(kernel: Kernel, body: Block, rows: Set[str], own: Set[str], count: int, core: Core) -> Block:
    """With sums of several columns together, as many as registers hold for so many rows."""

    def change(loop: For) -> Sequence[Node] | None:
        sums = [n for n in loop.body if isinstance(n, For)]
        if loop.coordinate is not Coordinate.SEQ or len(sums) != 1 or in_common(kernel, loop) != frozenset():
            return None
        if not multiplies(sums[0], rows, {loop.var}, own) or loop.var in bounds_of(sums):
            return None
        (update,) = sums[0].body
        assert isinstance(update, Update)
        fits = [
            c
            for c in range(1, FITTED.rows_in_step_most_columns + 1)
            if c == 1 or sums_fit(count, c, update, core)
        ]
        loop = replace(loop, body=map_nodes(loop.body, lambda n: few_lanes(n, core)))
        return jammed(loop, min(fits[-1], trip_of(loop) or 1))

    return map_outermost(body, change)


def _woven(bodies: Sequence[Block], rows: Set[str]) -> Block:
    """The phases of all rows in turns; loops of steps, and of sums of products, are one loop for all rows."""
    made: list[Node] = []
    for phase in zip(*bodies, strict=True):
        loops = [n for n in phase if isinstance(n, For)]
        if loops and _joins(loops[0], rows):
            inner = [n.body for n in loops]
            body = in_turns(inner) if loops[0].lanes else _woven(inner, rows)
            made.append(replace(loops[0], body=body, lanes=tuple(x for n in loops for x in n.lanes)))
        else:
            made += phase
    return tuple(made)


def _joins(loop: For, rows: Set[str]) -> bool:
    """Is it one loop for all rows: with the same bounds, and steps or sums of products alone?"""
    if rows & bounds_of([loop]):
        return False
    return loop.coordinate is Coordinate.SEQ or bool(loop.lane_bytes)
