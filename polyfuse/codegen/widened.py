"""Rows of 16 bits that all iterations of a task read become f32 once, in an array of the task.

    for t in 0..T @blk:                        for l in 0..64:  w[l] = f32(g[l])
      for l in 0..64:                    ->    for t in 0..T @blk:
        y[t, l] = f(x[t, l]) * f32(g[l])         for l in 0..64:  y[t, l] = f(x[t, l]) * w[l]

A LayerNorm of rows in f16 reads its scale and shift as often as a row, and to convert them would take as
long.  A row that iterations read which follow one another (the mask of a batch, `mask[n, l]` for all rows of
`x[n, a, l]`) is converted by the first of them:

    for n in 0..N @blk, a in 0..A @blk:
      if n != w_at:  for l in 0..64:  w[l] = f32(mask[n, l]);   w_at = n
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from polyfuse.codegen.halves import converted
from polyfuse.codegen.tasks import Task
from polyfuse.codegen.trips import trip_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, wide_room
from polyfuse.ir.dtypes import BOOL, F32, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, map_values
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    depends_on,
)

_Row = tuple[str, tuple[Index, ...]]  # a tensor, and its leading indices


def widened(kernel: Kernel, task: Task, core: Core) -> Task:
    """The task, with such rows as f32."""
    shared = () if task.together else _shared(task.loops)
    search = _Search({b.tensor: b.extents for b in kernel.unchanged if b.extents == b.shape}, shared)
    search.block(task.body, _times(task.loops))
    names: dict[_Row, str] = {}
    before: list[Node] = []
    first: list[Node] = []
    room = wide_room(core)
    for row, (read, count) in search.found.items():
        if count * F32.bytes <= room:
            room -= count * F32.bytes
            name = names[row] = f"%wide{len(names)}"
            before.append(Declare(name, F32, None, count))
            filled = _filled(name, read, count)
            if outer := [x.var for x in shared if depends_on(*row[1]) & {x.var}]:
                at, made = _once(name, outer, filled)
                before += at
                first.append(made)
            else:
                before.append(filled)
    if not names:
        return task
    together = task.together and replace(task.together, body=_reading(task.together.body, names))
    body = (*first, *_reading(task.body, names))
    return replace(task, before=tuple(before), body=body, together=together)


def _shared(loops: tuple[For, ...]) -> tuple[For, ...]:
    """The outer loops of a parallel nest: as long as they stay where they are many iterations follow."""
    inner = next(
        (k for k in range(1, len(loops)) if _times(loops[-k:]) >= FITTED.widened_fewest_rows), len(loops)
    )
    return loops[: len(loops) - inner]


def _once(name: str, variables: list[str], filled: Node) -> tuple[list[Node], Node]:
    """Where loops were when an array was filled, nowhere at first, and: fill it if they are elsewhere."""
    places = [(f"{name}_at{k}", IndexValue(IVar(v), I64)) for k, v in enumerate(variables)]
    conditions: list[Expr] = [Apply("ne", (Read(at, (), I64), here), BOOL) for at, here in places]
    moved = functools.reduce(lambda a, b: Apply("or", (a, b), BOOL), conditions)
    stores = [Store(at, (), here) for at, here in places]
    return [Declare(at, I64, Const(-1, I64)) for at, _ in places], If(moved, (filled, *stores))


def _times(loops: Iterable[For]) -> float:
    """How often the body of loops runs, without end where that is not known."""
    return math.prod(math.inf if (trip := trip_of(x)) is None else trip for x in loops)


@dataclass(slots=True)
class _Search:
    """Finds rows of tensors with these extents that vector loops inside of others go along; the same ones for
    all iterations of those, or while the loops `shared` are where they are."""

    extents: dict[str, tuple[IndexExpr, ...]]
    shared: tuple[For, ...] = ()
    found: dict[_Row, tuple[Read, int]] = field(default_factory=dict)

    def block(self, block: Block, times: float) -> None:
        """Looks at a block that runs so many times."""
        for n in block:
            match n:
                case For() if n.coordinate is Coordinate.VECTOR:
                    if times >= FITTED.widened_fewest_rows:
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
            row = row if row and depends_on(*row[1]) <= {x.var for x in self.shared} else None
            count = self._elements(row) if row else 0
            if row and count:
                self.found.setdefault(row, (r, count))

    def _elements(self, row: _Row) -> int:
        """Of a row; 0 where it is not known to be there: a condition may keep the loop from reading it."""
        tensor, leading = row
        *outer, last = self.extents.get(tensor, (IConst(0),))
        inside = all(self._is_inside(i, e) for i, e in zip(leading, outer, strict=False))
        return last.value if inside and isinstance(last, IConst) else 0

    def _is_inside(self, index: Index, extent: IndexExpr) -> bool:
        match index:
            case IConst(value):
                return isinstance(extent, IConst) and 0 <= value < extent.value
            case IVar(name):
                loop = next((x for x in self.shared if x.var == name), None)
                ends = (loop.lower, loop.upper, extent) if loop else ()
                values = [e.value for e in ends if isinstance(e, IConst)]
                return len(values) == 3 and values[0] >= 0 and values[1] <= values[2]
            case _:
                return False


def _row_of(r: Read, var: str) -> _Row | None:
    """The row that a read of a loop goes along, if plain variables and numbers tell it."""
    if not r.indices:
        return None
    *leading, last = r.indices
    if isinstance(last, EXPR_TYPES) or not all(isinstance(i, (IConst, IVar)) for i in leading):
        return None
    along = var in variables(last) and var not in depends_on(*leading)
    return (r.tensor, tuple(leading)) if along else None


def _filled(name: str, read: Read, count: int) -> Node:
    """An array becomes all of a read's row."""
    var = IVar(f"{name[1:]}_i")
    value = Cast(replace(read, indices=(*read.indices[:-1], var)), F32)
    return For(var.name, IConst(0), IConst(count), 1, (Store(name, (var,), value),), Coordinate.VECTOR)


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
