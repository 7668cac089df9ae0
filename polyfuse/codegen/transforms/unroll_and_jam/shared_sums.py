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

from polyfuse.codegen.analysis.dependence import commutes_but_for, steps
from polyfuse.codegen.analysis.op_cost import computes_little
from polyfuse.codegen.analysis.trip_count import most_trips_of, trip_of
from polyfuse.codegen.passes import missed
from polyfuse.codegen.transforms.unroll_and_jam.rule import Jam, LoopRule
from polyfuse.codegen.transforms.unroll_and_jam.weave import Join
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.index_expr import variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import (
    Declare,
    For,
    If,
    Node,
    Prefetch,
    Store,
    Update,
    map_nodes,
    nodes_of,
    values_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, walk


def _matches(kernel: Kernel, loop: For, knobs: CpuKnobs) -> Jam | None:
    """As many rows as the knobs say, or where it pays."""
    common = commutes_but_for(kernel, loop) or frozenset()
    merged = [n for n in loop.body if isinstance(n, For) and _merges(loop, n, common)]
    count = min(knobs.rows or _worth(merged, common, knobs.on), most_trips_of(loop))
    if not merged or count < 2:
        if merged:
            missed(merged, "L1 holds the sums, or their terms take longer than sums")
        return None
    narrow = [_narrow(n, count, knobs.on) for n in merged]
    tail = tuple(narrow[merged.index(n)] if n in merged else n for n in loop.body)
    body = map_nodes(tail, lambda n: () if _fetches(n) else n)
    return Jam(count, body, lambda n: Join.CONCATENATED if n in narrow else Join.APART, tail)


SHARED_SUMS = LoopRule(
    "shared-sums", "rows that add to the same long sums are computed several at a time", _matches
)


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
    if sum(found.values()) * FITTED.shared_sums_share_of_l1 <= core.l1 or not all(_light(n) for n in merged):
        return 1
    stored = [x for n in merged for x in n.body if isinstance(x, (Store, Update))]
    if any(isinstance(x, Store) and x.indices and x.value.dtype.bits == 16 for x in stored):
        return 1  # halves that one loop stores to two places are converted one by one
    return min(
        FITTED.shared_sums_most_rows,
        FITTED.shared_sums_most_bytes // max(x.value.dtype.bytes for x in stored),
    )


def _light(loop: For) -> bool:
    """Does a loop compute nothing that takes longer than to load and store a sum?"""
    return all(computes_little(x) for v in values_of(loop.body) for x in walk(v) if isinstance(x, Apply))


def _narrow(loop: For, count: int, core: Core) -> For:
    """With so few lanes that accumulators of all rows fill half of the registers; also what is left, so that
    a row's sums do not depend on where it is."""
    if not loop.lanes:
        return loop
    room = core.registers // 2 * core.vector_bytes // (count * len(loop.lanes))
    return replace(loop, lane_bytes=max(core.vector_bytes, 1 << room.bit_length() - 1))


def _fetches(n: Node) -> bool:
    """Does a node ask for lines, and do nothing else?"""
    return isinstance(n, (For, If)) and all(isinstance(x, (For, If, Prefetch)) for x in nodes_of((n,)))
