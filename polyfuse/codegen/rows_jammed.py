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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from polyfuse.codegen.collisions import steps
from polyfuse.codegen.hoist import computes_little
from polyfuse.codegen.rows_together import LONG, called, renamed
from polyfuse.codegen.tasks import Task
from polyfuse.codegen.touched import memory_of
from polyfuse.codegen.trips import trip_of
from polyfuse.codegen.windows import at_most, strip_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.cpu_knobs import CpuKnobs
from polyfuse.ir.index_expr import IVar, binary, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    For,
    If,
    Node,
    Prefetch,
    Store,
    Update,
    map_nodes,
    map_outermost,
    map_values,
    nodes_of,
    substituted,
    values_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Expr, Index, Read, walk

_PLAIN = (For, If, Declare, Store, Update, Comment, Prefetch)


def rows_jammed(kernel: Kernel, tasks: Sequence[Task], knobs: CpuKnobs) -> tuple[Task, ...]:
    """The tasks, with rows of loops in them computed several at a time: as many as the knobs say, or where it
    pays."""
    return tuple(_jam(kernel, t, knobs) for t in tasks)


def _jam(kernel: Kernel, task: Task, knobs: CpuKnobs) -> Task:
    counts = [1]

    def change(loop: For) -> Sequence[Node] | None:
        common = in_common(kernel, loop) or frozenset()
        merged = [n for n in loop.body if isinstance(n, For) and _merges(loop, n, common)]
        count = min(knobs.rows or _worth(merged, common, knobs.on), _most(loop))
        if not merged or count < 2:
            return None
        counts.append(count)
        return _jammed(loop, merged, count, knobs.on)

    body = map_outermost(task.body, change)
    return replace(task, body=body, jammed=max(counts)) if len(counts) > 1 else task


# --- whether ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Access:
    """A read or a write, in which phase of the row; `op` is that of an update."""

    buffer: str
    indices: tuple[Index, ...]
    phase: int
    written: bool = False
    op: str = ""


def in_common(kernel: Kernel, loop: For) -> frozenset[str] | None:
    """The buffers that iterations of a loop all add to; None if these cannot be computed together."""
    nodes = list(nodes_of(loop.body))
    if loop.coordinate is not Coordinate.SEQ or loop.step != 1:
        return None
    if not all(isinstance(n, _PLAIN) for n in nodes):
        return None
    own = {n.name for n in nodes if isinstance(n, Declare)}
    inner = {n.var for n in nodes if isinstance(n, For)}
    outside: dict[str, list[_Access]] = {}
    for a in _accesses(loop.body):
        if a.buffer not in own:
            outside.setdefault(memory_of(kernel, a.buffer), []).append(a)
    written = [found for found in outside.values() if any(a.written for a in found)]
    common = [found for found in written if not _apart(found, loop, inner)]
    return frozenset(f[0].buffer for f in common) if all(map(_added, common)) else None


def _added(accesses: Sequence[_Access]) -> bool:
    """Are all of them updates by one operator in one phase?"""
    return bool(accesses[0].op) and len({(a.op, a.phase) for a in accesses}) == 1


def _apart(accesses: Sequence[_Access], loop: For, inner: set[str]) -> bool:
    """Does an index, the same in all accesses, have another value for each row?"""
    return any(
        not isinstance(at[0], EXPR_TYPES)
        and all(i == at[0] for i in at)
        and steps(at[0], loop)
        and not inner & set(variables(at[0]))
        for at in zip(*(a.indices for a in accesses), strict=True)
    )


def _accesses(body: Block) -> Iterator[_Access]:
    for phase, top in enumerate(body):
        found: list[_Access] = []

        def expr(e: Expr, found: list[_Access] = found, phase: int = phase) -> Expr:
            if isinstance(e, Read):
                found.append(_Access(e.tensor, e.indices, phase))
            return e

        map_values((top,), expr, lambda i: i)
        for n in nodes_of((top,)):
            match n:
                case Store(buffer, indices):
                    found.append(_Access(buffer, indices, phase, True))
                case Update(buffer, indices, op):
                    found.append(_Access(buffer, indices, phase, True, op))
                case _:
                    pass
        yield from found


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


def _most(loop: For) -> int:
    """So many rows there are at most, as far as that is known."""
    trip, strip = trip_of(loop), strip_of(loop)
    if trip is not None:
        return trip
    return LONG if strip is None else strip.length


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


def in_steps(rows: For, body: Block, count: int) -> list[Node]:
    """A loop with the body for so many iterations at a time, and one for what is left."""
    main = replace(rows, upper=binary("-", rows.upper, count - 1), step=count, body=body)
    known = trip_of(rows) is not None or (strip_of(rows) is not None and len(at_most(rows.upper)) == 1)
    if known and _most(rows) % count == 0:
        return [main]
    extent = binary("max", binary("-", rows.upper, rows.lower), 0)
    done = binary("*", binary("//", extent, count), count)
    return [main, replace(rows, lower=binary("+", rows.lower, done))]


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
