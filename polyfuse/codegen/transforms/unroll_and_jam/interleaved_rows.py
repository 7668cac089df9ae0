"""Unroll-and-jam of short rows: phases of a few of them are interleaved.

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

from polyfuse.codegen.analysis.row_phases import LONG, takes_long, touched_bytes, waits
from polyfuse.codegen.analysis.trip_count import longest
from polyfuse.codegen.function import Function
from polyfuse.codegen.passes import missed
from polyfuse.codegen.transforms.unroll_and_jam.rule import Jam, NestRule
from polyfuse.codegen.transforms.unroll_and_jam.weave import apart
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.dtypes import HALVES
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, Store, Update, nodes_of
from polyfuse.ir.schedule_tree import Coordinate


def _matches(kernel: Kernel, f: Function, knobs: CpuKnobs) -> Jam | None:
    """As many rows as the knobs say, or where it pays."""
    count = knobs.rows or _worth(kernel, f.body, _most(kernel, f.body, knobs))
    if count < 2 and waits(f.body):
        missed(f.body, "rows are too long for several to pay")
    return Jam(count, f.body, apart) if count > 1 else None


INTERLEAVED_ROWS = NestRule("interleaved-rows", "phases of a few short rows are interleaved", _matches)


def _most(kernel: Kernel, body: Block, knobs: CpuKnobs) -> Sequence[Mapping[int, int]]:
    """What interleaved rows have together at most, by how often they wait."""
    wide = [b for b in kernel.arguments if b.dtype.is_float and len(b.shape) > 1]
    if wide and all(b.dtype in HALVES and not b.soon for b in wide):
        return FITTED.interleaved_rows_most_bytes_of_halves
    far = touched_bytes(kernel) > knobs.on.l2
    if takes_long(list(nodes_of(body))):
        return FITTED.interleaved_rows_most_bytes_of_functions[far]
    return FITTED.interleaved_rows_most_bytes if far else FITTED.interleaved_rows_most_bytes_in_l2


def _worth(kernel: Kernel, body: Block, most: Sequence[Mapping[int, int]]) -> int:
    """How many rows at a time pay: those of vector loops that wait for totals."""
    loops = [n for n in body if isinstance(n, For)]
    if not all(n.coordinate is Coordinate.VECTOR and n.step == 1 for n in loops):
        return 1
    row = max((_bytes(kernel, n) for n in loops), default=0)
    return next((n for n, room in most[waits(body)].items() if n * row <= room), 1)


def _bytes(kernel: Kernel, loop: For) -> int:
    """Bytes of a row of the widest values that a loop computes, at most; a length that is not known is a long
    one."""
    computed = [n.value.dtype.bytes for n in nodes_of(loop.body) if isinstance(n, (Store, Update))]
    most = longest(kernel, loop)
    return LONG if most is None else most * max(computed, default=1)
