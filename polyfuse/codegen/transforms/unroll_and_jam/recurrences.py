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

from polyfuse.codegen.analysis.dependence import independent
from polyfuse.codegen.analysis.reduction_nests import are_steps, bounds_of
from polyfuse.codegen.analysis.renaming import worker_arrays
from polyfuse.codegen.analysis.row_phases import LONG
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.function import Function
from polyfuse.codegen.passes import missed
from polyfuse.codegen.transforms.unroll_and_jam.dot_products import (
    few_lanes,
    joins_of_products,
    multiplies,
    sums_fit,
)
from polyfuse.codegen.transforms.unroll_and_jam.rule import Jam, NestRule, jammed
from polyfuse.codegen.transforms.unroll_and_jam.weave import Join, Joins
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, Node, Store, Update, map_nodes, map_outermost, nodes_of
from polyfuse.ir.schedule_tree import Coordinate


def _matches(kernel: Kernel, f: Function, knobs: CpuKnobs) -> Jam | None:
    """As many rows as the knobs say, or where it pays."""
    rows = {x.var for x in f.loops}
    steps = [n for n in f.body if isinstance(n, For) and are_steps(n, rows)]
    count = knobs.rows or FITTED.jam_recurrences_rows
    own = frozenset(b.tensor for b in worker_arrays(kernel))
    if count < 2 or not any(_worth(n, rows, own) for n in steps):
        missed(steps, "steps compute longer than they wait, or rows are several already")
        return None
    several, one = (_columns(kernel, f.body, rows, own, n, knobs.on) for n in (count, 1))
    return Jam(count, several, _joins(count, rows), tail=one)


RECURRENCES = NestRule("recurrences", "rows of a recurrence go together, step by step", _matches)


def _worth(steps: For, rows: Set[str], own: Set[str]) -> bool:
    """Do steps wait longer than they compute, or read what other rows read as well?"""
    loops = [n for n in nodes_of(steps.body) if isinstance(n, For)]
    columns = {n.var for n in loops if n.coordinate is Coordinate.SEQ}
    if any(multiplies(n, rows, columns, own) for n in loops):
        return True
    plain = all(n.coordinate is Coordinate.VECTOR and n.step == 1 for n in loops)
    return plain and sum(map(_bytes, loops)) <= FITTED.jam_recurrences_short_bytes


def _bytes(loop: For) -> int:
    """Bytes of what a loop stores; much, where that is not known."""
    trip = trip_of(loop)
    stored = [n.value.dtype.bytes for n in loop.body if isinstance(n, (Store, Update))]
    return LONG if trip is None else trip * sum(stored)


def _columns(kernel: Kernel, body: Block, rows: Set[str], own: Set[str], count: int, core: Core) -> Block:
    """With sums of several columns together, as many as registers hold for so many rows."""

    def change(loop: For) -> Sequence[Node] | None:
        sums = [n for n in loop.body if isinstance(n, For)]
        if loop.coordinate is not Coordinate.SEQ or len(sums) != 1 or not independent(kernel, loop):
            return None
        if not multiplies(sums[0], rows, {loop.var}, own) or loop.var in bounds_of(sums):
            return None
        (update,) = sums[0].body
        assert isinstance(update, Update)
        fits = [
            c
            for c in range(1, FITTED.jam_recurrences_most_columns + 1)
            if c == 1 or sums_fit(count, c, update, core)
        ]
        loop = replace(loop, body=map_nodes(loop.body, lambda n: few_lanes(n, core)))
        columns = min(fits[-1], trip_of(loop) or 1)
        return jammed(loop, Jam(columns, loop.body, joins_of_products(columns)))

    return map_outermost(body, change)


def _joins(count: int, rows: Set[str]) -> Joins:
    """Loops with the same bounds for all rows are one loop, if they are steps or sums of products."""
    of_steps = joins_of_products(count)

    def join(loop: For) -> Join:
        steps = loop.coordinate is Coordinate.SEQ or loop.lane_bytes
        return of_steps(loop) if steps and not rows & bounds_of([loop]) else Join.APART

    return join
