"""Tiles of results are transposed where vector lanes would store across their rows.

    for i in 16*c..min(I, 16*c + 16):                for i in 16*c..min(I, 16*c + 16):
      m = max of x[i, :]                               m = max of x[i, :]
      for k in 0..K @vec:                     ->       for k in 0..K @vec:
        y[k, i] = f(x[i, k], m)                          back[i - 16*c, k] = f(x[i, k], m)
                                                     y[k, i] = back[i - 16*c, k] for all k, i

It is `codegen.transforms.transpose_loads` the other way round: lanes store along an array of the worker, and
squares of it go through vector registers to memory, where each line is met once for all of its elements.  The
pieces of a loop that was cut (`codegen.transforms.index_set_splitting.clamped_indices`), and vectors that
compute elements again, fill one array.

Stored so is what every iteration stores.  Loops that follow in the iteration may read it: they find it in the
array.  What conditions guard, and what is added to, stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.accesses import LINE, memory_of, plain, steps_across
from polyfuse.codegen.analysis.index_ranges import strip_of
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.passes import missed
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, evaluate, substitute, variables
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    If,
    Node,
    Store,
    TransposedTile,
    Update,
    map_values,
    nodes_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Expr, Read

# What a lane is called where loops have variables of their own.
_LANE = "%lane"
# The loop over all of them after the row.
_PLACE = "place"


@dataclass(frozen=True, slots=True)
class _Stored:
    """What lane loops of a row store across memory: where in terms of `_LANE`, up to the loop at place `last`
    of the row.  Together they run over all of `low..high`: `length` elements at most."""

    buffer: str
    form: tuple[IndexExpr, ...]
    last: int
    low: IndexExpr
    high: IndexExpr
    length: int

    def at(self, lane: str) -> tuple[IndexExpr, ...]:
        """Where the elements are in terms of a loop's own variable."""
        return tuple(substitute(i, {_LANE: IVar(lane)}) for i in self.form)

    def holds(self, loop: For) -> bool:
        """Are all iterations of a loop among these?"""
        match self.low, loop.lower, loop.upper, self.high:
            case IConst(low), IConst(first), IConst(end), IConst(high):
                return low <= first and end <= high
            case _:
                return (self.low, self.high) == (loop.lower, loop.upper)


def transpose_stores(kernel: Kernel, block: Block) -> tuple[Kernel, Block]:
    """The block with such loops storing tiles that are transposed, and the kernel with their arrays."""
    made = _Tiles(kernel, FITTED.transpose_stores_most_bytes)
    block = made.block(block)
    return replace(kernel, buffers=(*kernel.buffers, *made.arrays)) if made.arrays else kernel, block


@dataclass(slots=True)
class _Tiles:
    """The loops of a kernel, and the arrays that their tiles need; `room` bytes are left."""

    kernel: Kernel
    room: int
    arrays: list[Buffer] = field(default_factory=list)

    def block(self, block: Block) -> Block:
        result: list[Node] = []
        for n in block:
            match n:
                case For():
                    row, tiles = self._row(n)
                    result += [replace(row, body=self.block(row.body)), *tiles]
                case If():
                    result.append(replace(n, then=self.block(n.then), other=self.block(n.other)))
                case _:
                    result.append(n)
        return tuple(result)

    def _row(self, row: For) -> tuple[For, list[Node]]:
        """A loop over rows that stores tiles in arrays, and how these are transposed after it."""
        strip = strip_of(row)
        rows = strip.length if strip is not None else trip_of(row) or 0  # steps of a recurrence begin at 1
        if row.coordinate is not Coordinate.SEQ or row.step != 1 or rows < FITTED.transpose_stores_least:
            return row, []
        tiles: list[Node] = []
        for s in _stored(row):
            if not self._shares_lines(row, s):
                continue
            if not self._is_alone(row, s):
                missed((row.body[s.last],), "a row reads or adds to what it stores across the lanes")
                continue
            array = self._array(s, rows)
            if array is None:
                missed(
                    (row.body[s.last],),
                    f"tiles would take more than {FITTED.transpose_stores_most_bytes >> 20} MiB",
                )
            else:
                tiles.append(_turned_back(row, s, array))
                row = _redirected(row, s, array.tensor)
        return row, tiles

    def _shares_lines(self, row: For, s: _Stored) -> bool:
        """Is it memory outside, in which neighbouring rows are in one line?"""
        b = next((b for b in self.kernel.buffers if b.tensor == s.buffer), None)
        if b is None or b.scope not in (Scope.ARGUMENT, Scope.GLOBAL):
            return False
        return steps_across(s.form, row.var, _LANE) * b.dtype.bytes < LINE

    def _is_alone(self, row: For, s: _Stored) -> bool:
        """Does a row neither add to this memory, nor read of it but what it has stored so?"""
        memory = memory_of(self.kernel, s.buffer)
        written = [n for n in nodes_of(row.body) if isinstance(n, Update)]
        found: list[Read] = []

        def look(e: Expr) -> Expr:
            if isinstance(e, Read) and memory_of(self.kernel, e.tensor) == memory:
                found.append(e)
            return e

        later = [n for n in row.body[s.last + 1 :] if isinstance(n, For) and s.holds(n)]
        own = [replace(n, body=_redirected_lane(n, s, "%array", row).body) for n in later]
        rest = [n for n in row.body if n not in later]
        map_values((*rest, *own), look, lambda i: i)
        return not found and not any(memory_of(self.kernel, n.buffer) == memory for n in written)

    def _array(self, s: _Stored, rows: int) -> Buffer | None:
        """An array of the worker for so many rows, if there is room for it."""
        dtype = self.kernel.buffer(s.buffer).dtype
        lines = (
            -(-s.length * dtype.bytes // LINE) | 1
        )  # an odd number: rows are spread over all sets of a cache
        extents = IConst(rows), IConst(lines * LINE // dtype.bytes)
        taken = {b.tensor for b in (*self.kernel.buffers, *self.arrays)}
        name = next(f"back{k}" for k in range(len(taken) + 1) if f"back{k}" not in taken)
        array = Buffer(name, dtype, Scope.LOCAL, extents, extents, "a tile that is transposed")
        nbytes = evaluate(array.elements, {}) * dtype.bytes
        if nbytes > self.room:
            return None
        self.room -= nbytes
        self.arrays.append(array)
        return array


def _stored(row: For) -> list[_Stored]:
    """What lane loops of a row store across memory, in every iteration."""
    found: dict[tuple[str, tuple[IndexExpr, ...]], dict[int, For]] = {}
    for k, loop in enumerate(row.body):
        if not isinstance(loop, For) or loop.step != 1 or loop.var == row.var:
            continue
        for n in loop.body:
            if isinstance(n, Store) and steps_across(n.indices, row.var, loop.var):
                form = tuple(substitute(i, {loop.var: IVar(_LANE)}) for i in plain(n.indices))
                found.setdefault((n.buffer, form), {})[k] = loop
    made = []
    for (buffer, form), loops in found.items():
        low, high, length = _bounds(row, [*loops.values()])
        made += (
            [_Stored(buffer, form, max(loops), low, high, length)]
            if length >= FITTED.transpose_stores_least
            else []
        )
    return made


def _bounds(row: For, loops: Sequence[For]) -> tuple[IndexExpr, IndexExpr, int]:
    """From where to where loops run together, and how many iterations that are at most; none where there are
    gaps, or rows differ."""
    none = IConst(0), IConst(0), 0
    if not any(x.coordinate is Coordinate.VECTOR for x in loops):
        return none
    ranges = [r for x in loops for r in _range(x)]
    if len(ranges) == len(loops):
        low = high = min(ranges)[0]
        for first, end in sorted(ranges):
            if first > high:
                return none
            high = max(high, end)
        return IConst(low), IConst(high), high - low
    lower, upper = loops[0].lower, loops[0].upper
    strip = strip_of(loops[0])
    inner = {n.name for n in nodes_of(row.body) if isinstance(n, Declare)} | {row.var}
    alike = all((x.lower, x.upper) == (lower, upper) for x in loops)
    if strip is None or not alike or inner & {*variables(lower), *variables(upper)}:
        return none
    return lower, upper, strip.length


def _range(loop: For) -> list[tuple[int, int]]:
    """Its bounds, if they are known."""
    match loop.lower, loop.upper:
        case IConst(low), IConst(high):
            return [(low, high)]
        case _:
            return []


def _redirected(row: For, s: _Stored, array: str) -> For:
    """The row, with these elements in an array."""
    body = (_redirected_lane(n, s, array, row) if isinstance(n, For) and s.holds(n) else n for n in row.body)
    return replace(row, body=tuple(body))


def _redirected_lane(loop: For, s: _Stored, array: str, row: For) -> For:
    old, new = s.at(loop.var), (binary("-", IVar(row.var), row.lower), binary("-", IVar(loop.var), s.low))

    def expr(e: Expr) -> Expr:
        mine = isinstance(e, Read) and (e.tensor, e.indices) == (s.buffer, old)
        return Read(array, new, e.dtype) if mine else e

    def node(n: Node) -> Node:
        if isinstance(n, Store) and (n.buffer, n.indices) == (s.buffer, old):
            return replace(n, buffer=array, indices=new)
        return n

    return replace(loop, body=tuple(map(node, map_values(loop.body, expr, lambda i: i))))


def _turned_back(row: For, s: _Stored, array: Buffer) -> TransposedTile:
    """The array transposed into memory."""
    lane = For(_PLACE, s.low, s.high, 1, ())
    place = binary("-", IVar(row.var), row.lower), binary("-", IVar(lane.var), s.low)
    (rows, _), bare = array.extents, replace(row, body=())
    assert isinstance(rows, IConst)
    to = s.buffer, s.at(lane.var)
    return TransposedTile(
        "%back", array.dtype, array.tensor, place, lane, s.length, bare, rows.value, to, back=True
    )
