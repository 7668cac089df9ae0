"""Rows of 16 bits that all iterations of a task read become f32 once, in an array of the task.

    for t in 0..T @blk:                        for l in 0..64:  w[l] = f32(g[l])
      for l in 0..64:                    ->    for t in 0..T @blk:
        y[t, l] = f(x[t, l]) * f32(g[l])         for l in 0..64:  y[t, l] = f(x[t, l]) * w[l]

A LayerNorm of rows in f16 reads its scale and shift as often as a row, and to convert them would take as
long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from polyfuse.codegen.halves import converted, trip_of
from polyfuse.codegen.tasks import Task
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, map_values
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Cast, Expr, Index, Read

# Bytes of all such arrays of a task: they shall stay in L1, with the rows.
ROOM = Core().l1 // 3
# Fewer iterations than this do not make up for the conversions before them.
FEWEST_ROWS = 16

_Row = tuple[str, tuple[Index, ...]]  # a tensor, and its leading indices


def widened(kernel: Kernel, task: Task) -> Task:
    """The task, with such rows as f32."""
    search = _Search({b.tensor: b.extents for b in kernel.unchanged if b.extents == b.shape})
    search.block(task.body, _times(task.loops))
    names: dict[_Row, str] = {}
    before: list[Node] = []
    room = ROOM
    for row, (read, count) in search.found.items():
        if count * F32.bytes <= room:
            room -= count * F32.bytes
            names[row] = f"%wide{len(names)}"
            before += _array(names[row], read, count)
    if not names:
        return task
    together = task.together and replace(task.together, body=_reading(task.together.body, names))
    return replace(task, before=tuple(before), body=_reading(task.body, names), together=together)


def _times(loops: Iterable[For]) -> float:
    """How often the body of loops runs, without end where that is not known."""
    return math.prod(math.inf if (trip := trip_of(x)) is None else trip for x in loops)


@dataclass(slots=True)
class _Search:
    """Finds rows of tensors with these extents that vector loops inside of others go along."""

    extents: dict[str, tuple[IndexExpr, ...]]
    found: dict[_Row, tuple[Read, int]] = field(default_factory=dict)

    def block(self, block: Block, times: float) -> None:
        """Looks at a block that runs so many times."""
        for n in block:
            match n:
                case For() if n.coordinate is Coordinate.VECTOR:
                    if times >= FEWEST_ROWS:
                        self._loop(n)
                case For():
                    self.block(n.body, times * _times([n]))
                case If():
                    self.block((*n.then, *n.other), times)
                case _:
                    pass

    def _loop(self, loop: For) -> None:
        for r in converted(loop.body):
            row = _row_of(r, loop.var)
            count = self._elements(row) if row else 0
            if row and count:
                self.found.setdefault(row, (r, count))

    def _elements(self, row: _Row) -> int:
        """Of a row; 0 where it is not known to be there: a condition may keep the loop from reading it."""
        tensor, leading = row
        *outer, last = self.extents.get(tensor, (IConst(0),))
        inside = all(
            isinstance(i, IConst) and isinstance(e, IConst) and 0 <= i.value < e.value
            for i, e in zip(leading, outer, strict=False)
        )
        return last.value if inside and isinstance(last, IConst) else 0


def _row_of(r: Read, var: str) -> _Row | None:
    """The row that a read of a loop goes along, if it is the same for all iterations around the loop."""
    if not r.indices:
        return None
    *leading, last = r.indices
    if isinstance(last, EXPR_TYPES) or not all(isinstance(i, IConst) for i in leading):
        return None
    return (r.tensor, tuple(leading)) if var in variables(last) else None


def _array(name: str, read: Read, count: int) -> tuple[Node, Node]:
    """An array with all of a read's row."""
    var = IVar(f"{name[1:]}_i")
    value = Cast(replace(read, indices=(*read.indices[:-1], var)), F32)
    filled = For(var.name, IConst(0), IConst(count), 1, (Store(name, (var,), value),), Coordinate.VECTOR)
    return Declare(name, F32, None, count), filled


def _reading(block: Block, names: dict[_Row, str]) -> Block:
    """The block, with reads of the arrays in place of the tensors."""

    def loop(n: Node) -> Node:
        match n:
            case For(var) if n.coordinate is Coordinate.VECTOR:

                def expr(e: Expr) -> Expr:
                    if not isinstance(e, Cast) or e.dtype != F32 or not isinstance(e.arg, Read):
                        return e
                    name = names.get(_row_of(e.arg, var) or ("", ()))
                    return Read(name, e.arg.indices[-1:], F32) if name else e

                return replace(n, body=map_values(n.body, expr, lambda i: i))
            case For():
                return replace(n, body=tuple(map(loop, n.body)))
            case If():
                return replace(n, then=tuple(map(loop, n.then)), other=tuple(map(loop, n.other)))
            case _:
                return n

    return tuple(map(loop, block))
