"""Functions and divisions of what stands in a column are computed once, before the rows; what lies apart in
memory is gathered once.

    for t in 0..T:                                      for v in 0..V @vec:  k[v] = rsqrt(s[v])
      for v in 0..V @vec:                        ->     for t in 0..T:
        y[t, v] = x[t, v] * rsqrt(s[v])                   for v in 0..V @vec:  y[t, v] = x[t, v] * k[v]

    for t in 0..T:                                      for v in 0..V @vec:  k[v] = p[v, 1]
      for v in 0..V @vec:                        ->     for t in 0..T:
        y[t, v] = x[t] * p[v, 1]                          for v in 0..V @vec:  y[t, v] = x[t] * k[v]

What is the same for all lanes, `codegen.hoist` moves; here each lane has a value of its own, and they are
kept in an array that stays in L1.  Where rows are shared out, each chunk of them begins with its own array.
No value changes, and only what every row computes is moved.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

from polyfuse.codegen.hoist import Moved, aliases, costly, written
from polyfuse.codegen.strides_of_reads import strides_of
from polyfuse.codegen.tasks import Task
from polyfuse.codegen.trips import most_trips, trip_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, kept_room
from polyfuse.ir.index_expr import IVar, binary, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Cast, Expr, Read, depends_on


def column_values(kernel: Kernel, block: Block, numbers: itertools.count[int], core: Core) -> Block:
    """See the module docstring. `numbers` numbers the arrays, which are made for a core."""
    result: list[Node] = []
    for node in block:
        match node:
            case For() if (
                node.coordinate is Coordinate.SEQ and (trip_of(node) or 0) >= FITTED.column_values_fewest
            ):
                rows = _Rows(kernel, written((node,), aliases(kernel)), numbers, kept_room(core))
                body = rows.block(node.body)
                result += [*rows.before, replace(node, body=column_values(kernel, body, numbers, core))]
            case For():
                result.append(replace(node, body=column_values(kernel, node.body, numbers, core)))
            case If():
                then, other = (column_values(kernel, b, numbers, core) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case _:
                result.append(node)
    return tuple(result)


def task_with_column_values(kernel: Kernel, task: Task, numbers: itertools.count[int], core: Core) -> Task:
    """The same for rows that are handed out."""
    if (
        task.together
        or not task.loops
        or math.prod(trip_of(x) or 0 for x in task.loops) < FITTED.column_values_fewest_shared
    ):
        return task
    changed = {x.var for x in task.loops} | written(task.body, aliases(kernel))
    rows = _Rows(kernel, changed, numbers, kept_room(core))
    body = rows.block(task.body)
    return replace(task, body=body, before=(*task.before, *rows.before))


@dataclass(slots=True)
class _Rows:
    """Loops over rows, which set `changed`; `before` comes to stand before them, with arrays of
    `room` bytes at most."""

    kernel: Kernel
    changed: set[str]
    numbers: itertools.count[int]
    room: int
    before: list[Node] = field(default_factory=list)

    def block(self, block: Block) -> Block:
        """A block that all rows run."""
        return tuple(self._node(n) if isinstance(n, For) else n for n in block)

    def _node(self, loop: For) -> For:
        bounds = {*variables(loop.lower), *variables(loop.upper)}
        if bounds & self.changed or loop.step != 1:
            return loop
        if loop.coordinate is not Coordinate.VECTOR:
            return replace(loop, body=self.block(loop.body)) if trip_of(loop) else loop
        count = most_trips(loop)
        if not count or not all(isinstance(n, (Declare, Store, Update)) for n in loop.body):
            return loop
        changed, alias = self.changed - {loop.var}, aliases(self.kernel)
        columns = _Columns(
            changed, alias, self.numbers, kernel=self.kernel, lane=loop, count=count, room=self.room
        )
        body = columns.block(loop.body, ())
        self.before += columns.filled()
        self.room = columns.room
        return replace(loop, body=body)


@dataclass(slots=True, kw_only=True)
class _Columns(Moved):
    """What rows of at most `count` lanes do not change, in arrays of all lanes."""

    kernel: Kernel
    lane: For
    count: int
    room: int

    def costly(self, e: Expr) -> bool:
        value = e.arg if isinstance(e, Cast) else e
        return costly(e) or (isinstance(value, Read) and self._lies_apart(value))

    def _lies_apart(self, r: Read) -> bool:
        """Do neighbouring lanes read elements that are no neighbours?"""
        (apart,) = strides_of(self.kernel, r, self.lane.var)
        return apart > 1

    def kept(self, e: Expr, runs: tuple[Expr, ...]) -> Expr:
        key, size = self.key(e, runs), self.count * e.dtype.bytes
        if key in self.known:
            return self.known[key]
        if self.lane.var not in depends_on(e) or size > self.room:
            return e
        self.room -= size
        place = binary("-", IVar(self.lane.var), self.lane.lower)
        self.known[key] = Read(f"%column{next(self.numbers)}", (place,), e.dtype, e.span)
        return self.known[key]

    def filled(self) -> Block:
        """The arrays, and the loop that fills them."""
        arrays = tuple(Declare(r.tensor, r.dtype, None, self.count) for r in self.known.values())
        stores = tuple(Store(r.tensor, r.indices, e) for (e, *_), r in self.known.items())
        return (*arrays, replace(self.lane, body=stores, lanes=())) if stores else ()
