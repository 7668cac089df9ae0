"""Strips of memory that is updated in place begin where a cache line begins.

    for c0 in parallel:                             for c0 in parallel:
      for c1 in 2048 * c0 .. 2048 * c0 + 2048:        for c1 in border(2048 * c0) .. border(2048 * c0 + 2048):
        p[c1] = f(p[c1], x[c1])                         p[c1] = f(p[c1], x[c1])

`border(k)` is the first element from k on that begins a line, or the end of all; strip 0 begins where it did.
Large arrays of NumPy begin 16 bytes after a line, so without this every vector crosses one: that costs little
where it is only read, or only written, but half as much again where it is both.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from polyfuse.codegen.soon import SoonPrinter
from polyfuse.codegen.streaming import to_border
from polyfuse.codegen.tasks import Task
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.loop_ir import Block, Comment, Declare, For, If, Node, Store, map_values
from polyfuse.ir.schedule_tree import Coordinate


@dataclass(frozen=True, slots=True)
class Strip:
    """A loop over a part of `first .. last`; the parts of a task's iterations follow one another."""

    loop: For
    first: IndexExpr
    last: IndexExpr


@dataclass(slots=True)
class BorderPrinter(SoonPrinter):
    """The loop of `strip` runs between borders of lines, if it updates memory of the caller in place."""

    strip: Strip | None = field(default=None, kw_only=True)

    def loop(self, loop: For, indent: str) -> list[str]:
        changed = self.in_place(loop) if self.strip and loop == self.strip.loop else None
        if self.strip is None or changed is None:
            return SoonPrinter.loop(self, loop, indent)
        i1, last = indent + "  ", self.index(self.strip.last)
        begin, end = f"{loop.var}_f", f"{loop.var}_t"
        place = self.element(self, changed.buffer, changed.indices)
        more = [to_border(place, changed.value.dtype.bytes, loop.var, at) for at in (begin, end)]
        lines = [
            f"{indent}{{",
            f"{i1}pf_i64 {begin} = {self.index(loop.lower)}, {end} = {self.index(loop.upper)};",
            f"{i1}if ({begin} > {self.index(self.strip.first)}) {begin} += {more[0]};",
            f"{i1}if ({end} < {last}) {end} += {more[1]};",
            *[f"{i1}{x} = {x} < {last} ? {x} : {last};" for x in (begin, end)],
        ]
        shifted = replace(loop, lower=IVar(begin), upper=IVar(end))
        return [*lines, *SoonPrinter.loop(self, shifted, i1), f"{indent}}}"]


def strip_of(task: Task) -> Strip | None:
    """The only loop of a task whose iterations are strips of it, one by one: those that run together have
    loops of their own, which would begin elsewhere."""
    if task.together is not None or task.skew is not None:
        return None
    loops = [n for n in task.body if isinstance(n, For)]
    if not task.loops or len(loops) != 1 or not all(_is_scalar(n) for n in task.body if n != loops[0]):
        return None
    (loop,), block = loops, task.loops[-1]
    plain = loop.coordinate is Coordinate.VECTOR and loop.step == 1 and not loop.lanes
    if not plain or _uses(loop.body, block.var):
        return None
    match loop.lower:
        case IBin("*", IConst(size), IVar(var)) if var == block.var:
            last = _last(loop, size, block)
            return Strip(loop, binary("*", size, block.lower), last) if last is not None else None
        case _:
            return None


def _last(loop: For, size: int, block: For) -> IndexExpr | None:
    """The end of all strips, if each but the last ends where the next one begins."""
    if loop.upper == loop.lower + size:
        return binary("*", size, block.upper)
    within = loop.lower + (size - 1)
    match loop.upper:
        case IBin("+", IBin("min", a, b), IConst(1)) if within in (a, b):
            last = a if b == within else b
            return None if block.var in variables(last) else last + 1
        case IBin("min", a, b) if loop.lower + size in (a, b):
            last = a if b == loop.lower + size else b
            return None if block.var in variables(last) else last
        case _:
            return None


def _is_scalar(node: Node) -> bool:
    """Does a node only make scalars?"""
    match node:
        case Declare(count=0) | Comment():
            return True
        case Store(buffer):
            return buffer.startswith("%")
        case If(_, then, other):
            return all(_is_scalar(n) for n in (*then, *other))
        case _:
            return False


def _uses(block: Block, var: str) -> bool:
    found: set[str] = set()

    def index(i: IndexExpr) -> IndexExpr:
        found.update(variables(i))
        return i

    map_values(block, lambda e: e, index)
    return var in found
