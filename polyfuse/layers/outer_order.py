"""The order of the outer loops of a copy: that in which most of what it touches lies in memory.

    q[n, h, s, d] = x[n, s, h, d]        B(n, s, h)(q)     becomes     B(n, h, s)(q)

A row along d is a piece of memory in any case; the loops around it say whether the next piece is beside it.
Each tensor has an order of its own, that of its strides.  Where writes and reads are as many, writes decide:
a line of the result that is written in part is fetched before, and again if it left the cache since.  Three
results of one tensor took 2.4 times as long in the order of the tensor (docs/targets.md).  Long pieces gain
nothing, and kernels that run one after the other keep their order: what a worker has is in its caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IVar
from polyfuse.ir.schedule_tree import Band, Coordinate, Member, statements
from polyfuse.ir.tensor_graph import TensorGraph, statement_reads
from polyfuse.layers.nest import has_band, is_free, trip_of
from polyfuse.layers.strides import address, stride


def along_writes(graph: TensorGraph, phase: Band) -> Band:
    """The nest with its outer loops in such an order; itself where that is theirs, or nothing is known."""
    names = statements(phase)
    *outer, last = phase.members
    plain = all(m.coordinate is Coordinate.SEQ and is_free(graph, m, names) for m in phase.members)
    if len(outer) < 2 or not (phase.permutable and plain) or has_band(phase.child):
        return phase
    size = max(graph.tensor(graph.statement(n).target).dtype.bytes for n in names)
    if (trip_of(graph, last) or FITTED.outer_order_longest) * size > FITTED.outer_order_longest:
        return phase
    found = [*_strides(graph, outer, names)]
    if any(graph.statement(n).reduction for n in names) or any(s is None for _, s in found):
        return phase
    every = [(written, s) for written, s in found if s is not None]
    orders = [tuple(range(len(outer)))]
    orders += [tuple(sorted(orders[0], key=lambda k: -s[k])) for written, s in every if written and all(s)]
    best = max(orders, key=lambda order: _agreeing(order, every))
    return replace(phase, members=(*(outer[k] for k in best), last))


def _agreeing(order: tuple[int, ...], every: list[tuple[bool, tuple[int, ...]]]) -> tuple[int, int]:
    """How many accesses have longer steps in outer loops, and how many of these are writes."""
    fits = [written for written, s in every if _falls([s[k] for k in order if s[k]])]
    return len(fits), sum(fits)


def _falls(steps: list[int]) -> bool:
    return all(a >= b for a, b in pairwise(steps))


def _strides(
    graph: TensorGraph, outer: list[Member], names: tuple[str, ...]
) -> Iterator[tuple[bool, tuple[int, ...] | None]]:
    """Of each access: is it a write, and how far apart the elements of neighbouring iterations are."""
    for n in names:
        s = graph.statement(n)
        variables = [m.of(n) for m in outer]
        touched = [(True, s.target, s.write), *((False, r.tensor, r.indices) for r in statement_reads(s))]
        for written, tensor, indices in touched:
            where = address(graph, tensor, indices)
            steps = [stride(where, v.name) if isinstance(v, IVar) else None for v in variables]
            known = [abs(x) for x in steps if x is not None]
            yield written, tuple(known) if len(known) == len(steps) else None
