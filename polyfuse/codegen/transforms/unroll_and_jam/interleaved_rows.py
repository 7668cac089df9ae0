"""Short rows are computed several at a time: their phases take turns.

    for t in 0..T @blk:              for t in 0..T by 2 @blk:  u = t + 1
      m = max of x[t, :]               m = max of x[t, :];  n = max of x[u, :]
      e[:] = exp(x[t, :] - m)    ->    e[0, :] = exp(x[t, :] - m);  e[1, :] = exp(x[u, :] - n)
      ...                              ...
                                     and what is left of a chunk row by row

A phase waits until the lanes of the phase before have become one number.  Where a row is only a few vectors
long that takes longer than the vectors do, and a core that looks ahead finds the next row too late.

Iterations of a parallel nest may run in any order, so also in turns.  Each row has scalars of its own, and
arrays of the worker of its own.  Lines are not asked for soon (`codegen.cpu.memory_ops`): they would be those
of rows that are read already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyfuse.codegen.analysis.row_phases import (
    LONG,
    array_of_row,
    body_of_row,
    loops_of_row,
    possible,
    takes_long,
    touched_bytes,
    waits,
    worker_arrays,
)
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.function import Task, Together
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.dtypes import HALVES
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, Store, Update, nodes_of
from polyfuse.ir.schedule_tree import Coordinate


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
    own = [
        replace(b, tensor=array_of_row(kernel, b.tensor, k))
        for k in range(1, rows)
        for b in worker_arrays(kernel)
    ]
    return replace(kernel, buffers=(*kernel.buffers, *own))


def _most(kernel: Kernel, body: Block, knobs: CpuKnobs) -> Sequence[Mapping[int, int]]:
    """What rows that take turns have together at most, by how often they wait."""
    wide = [b for b in kernel.arguments if b.dtype.is_float and len(b.shape) > 1]
    if wide and all(b.dtype in HALVES and not b.soon for b in wide):
        return FITTED.rows_together_most_bytes_of_halves
    far = touched_bytes(kernel) > knobs.on.l2
    if takes_long(list(nodes_of(body))):
        return FITTED.rows_together_most_bytes_of_functions[far]
    return FITTED.rows_together_most_bytes if far else FITTED.rows_together_most_bytes_in_l2


def _worth(body: Block, most: Sequence[Mapping[int, int]]) -> int:
    """How many rows at a time pay: those of vector loops that wait for totals."""
    loops = [n for n in body if isinstance(n, For)]
    if not all(n.coordinate is Coordinate.VECTOR and n.step == 1 for n in loops):
        return 1
    row = max((_bytes(n) for n in loops), default=0)
    return next((n for n, room in most[waits(body)].items() if n * row <= room), 1)


def _bytes(loop: For) -> int:
    """Bytes of a row of the widest values that a loop computes; a length that is not known is a long one."""
    computed = [n.value.dtype.bytes for n in nodes_of(loop.body) if isinstance(n, (Store, Update))]
    trip = trip_of(loop)
    return LONG if trip is None else trip * max(computed, default=1)


# --- how ----------------------------------------------------------------------------------------------


def _together(kernel: Kernel, task: Task, count: int) -> Together:
    rows = range(count)
    bodies = [body_of_row(kernel, task, k) for k in rows]
    phases = tuple(n for phase in zip(*bodies, strict=True) for n in phase)
    return Together(tuple(loops_of_row(task, k) for k in rows), phases, count)
