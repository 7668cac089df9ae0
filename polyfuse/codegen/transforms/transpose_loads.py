"""In-register transposes of loads: tiles of memory whose rows vector lanes would read across.

    for j in 64*c0..min(J, 64*c0 + 64):                    t[64, 64] = x[i, j] for j, i
      for i in 64*c1..min(I, 64*c1 + 64) @vec:      ->     for j in 64*c0..min(J, 64*c0 + 64):
        y[j, i] = f(x[i, j])                                 for i in 64*c1..min(I, 64*c1 + 64) @vec:
                                                               y[j, i] = f(t[j - 64*c0, i - 64*c1])

Memory is read row by row, and squares are exchanged in vector registers: a square of 16 rows is 64 exchanges
of two registers each.  Vectors that are gathered take a load and an insertion for each lane, and meet each
line as often as it has elements.  Squares at the end of a tile begin earlier, so that they are whole.  Where
memory goes backwards along the rows, the tile is filled from its last row on.

Read so is what every iteration reads of memory that the kernel does not change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.accesses import LINE, along, plain
from polyfuse.codegen.analysis.index_ranges import strip_of
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.c_printer import Printer, guards_index
from polyfuse.codegen.math.headers import read
from polyfuse.codegen.passes import missed
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import KIB
from polyfuse.ir.index_expr import IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import flat, linear
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, TransposedTile, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Cast, Expr, Read, Select, map_expr

TURNS = read("turned_tiles.h")


def transpose_loads(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """The block with such loops reading tiles that are transposed. `numbers` numbers their arrays."""
    fixed = frozenset(b.tensor for b in kernel.unchanged)
    result: list[Node] = []
    for node in block:
        match node:
            case For():
                turned = _Transposed(node, fixed, numbers)
                made = turned.loop()
                body = transpose_loads(kernel, node.body, numbers) if made is node else made.body
                result += _copied(kernel, made, turned) or [*turned.tiles.values(), replace(node, body=body)]
            case If():
                then, other = (transpose_loads(kernel, b, numbers) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case _:
                result.append(node)
    return tuple(result)


def _copied(kernel: Kernel, row: For, turned: _Transposed) -> list[Node]:
    """The tile stored where it goes, if the loop does nothing else, and rows there spread over a cache."""
    match row.body:
        case (For(body=(Store(buffer, indices, Read(name)) as store,)) as lane,) if name in turned.made:
            tile, places, extents = turned.made[name], plain(indices), kernel.buffer(buffer).extents
            if len(places) < len(indices) or not along(store, lane.var) or row.var in variables(places[-1]):
                return []
            room = flat(places, extents).factor(IVar(row.var)) * tile.dtype.bytes
            return [replace(tile, to=(buffer, places))] if room % FITTED.transpose_loads_crowded else []
        case _:
            return []


@dataclass(slots=True)
class _Transposed:
    """A loop over rows of tiles, and the `tiles` that vector loops in it are to read."""

    row: For
    fixed: frozenset[str]
    numbers: itertools.count[int]
    tiles: dict[object, TransposedTile] = field(default_factory=dict)
    room: int = 0

    @property
    def made(self) -> dict[str, TransposedTile]:
        """The tiles by name."""
        return {t.name: t for t in self.tiles.values()}

    def loop(self) -> For:
        """The loop, itself where there is nothing to transpose."""
        strip = strip_of(self.row)
        if self.row.coordinate is not Coordinate.SEQ or self.row.step != 1 or strip is None:
            return self.row
        body = tuple(self._lanes(n, strip.length) if isinstance(n, For) else n for n in self.row.body)
        return replace(self.row, body=body) if self.tiles else self.row

    def _lanes(self, lane: For, rows: int) -> For:
        strip = strip_of(lane)
        inner = {n.name for n in self.row.body if isinstance(n, Declare)} | {self.row.var}
        bounds = {v for e in (lane.lower, lane.upper) for v in variables(e)}
        plain = all(isinstance(n, (Declare, Store, Update)) for n in lane.body)
        if lane.coordinate is not Coordinate.VECTOR or lane.step != 1 or strip is None:
            return lane
        if not plain or bounds & inner:
            return lane
        found = dict.fromkeys(r for n in lane.body for r in _always(n))
        places = {r: p for r in found if (p := self._tile(r, lane, rows, strip.length))}

        def turned(e: Expr) -> Expr:
            return places.get(e, e) if isinstance(e, Read) else e

        def changed(n: Node) -> Node:
            match n:
                case Declare(_, _, value) if value is not None:
                    return replace(n, value=map_expr(value, turned, lambda i: i))
                case Store() | Update():
                    return replace(n, value=map_expr(n.value, turned, lambda i: i))
                case _:
                    return n

        return replace(lane, body=tuple(map(changed, lane.body))) if places else lane

    def _tile(self, r: Read, lane: For, rows: int, lanes: int) -> Read | None:
        """Where an element is in its tile; None if it is not to be transposed."""
        row = self.row
        if not across(r, row.var, lane.var):
            return None
        if r.tensor not in self.fixed:
            missed((lane,), "the kernel changes what is read across the lanes")
            return None
        indices = tuple(substitute(i, {lane.var: IVar("%lane")}) for i in plain(r.indices))
        key = r.tensor, indices, lane.lower, lane.upper
        if key not in self.tiles:
            room = _room(lanes * r.dtype.bytes) // r.dtype.bytes
            if self.room + rows * room * r.dtype.bytes > FITTED.transpose_loads_most_bytes:
                missed((lane,), f"tiles would take more than {FITTED.transpose_loads_most_bytes // KIB} KiB")
                return None
            self.room += rows * room * r.dtype.bytes
            bare_row, bare_lane = replace(row, body=()), replace(lane, body=(), lanes=())
            name = f"%turned{next(self.numbers)}"
            self.tiles[key] = TransposedTile(
                name, r.dtype, r.tensor, plain(r.indices), bare_row, rows, bare_lane, room
            )
        tile = self.tiles[key]
        start = binary("*", binary("-", IVar(row.var), row.lower), tile.lanes)
        place = binary("+", IVar(lane.var), binary("-", start, lane.lower))
        return Read(tile.name, (place,), r.dtype)


def _room(length: int) -> int:
    """Bytes from row to row of an array: whole lines, that do not crowd."""
    room = -(-length // LINE) * LINE
    return room + LINE if room % FITTED.transpose_loads_crowded == 0 else room


def across(r: Read, row: str, lane: str) -> bool:
    """Does a read go along memory in one loop, and jump in another?"""
    indices = plain(r.indices)
    if len(indices) < 2 or len(indices) < len(r.indices):
        return False
    *leading, last = indices
    if abs(linear(last).factor(IVar(row))) != 1 or lane in variables(last):
        return False
    forms = [linear(i) for i in indices]
    inside = {v for i in leading for v in variables(i)}
    return row not in inside and lane in inside and not any(f.hidden & {row, lane} for f in forms)


def _always(n: Node) -> Iterator[Read]:
    """What a node reads in every iteration, whatever conditions on indices say."""
    if isinstance(n, (Declare, Store, Update)) and n.value is not None:
        yield from _reads(n.value)


def _reads(e: Expr) -> Iterator[Read]:
    match e:
        case Read():
            yield e
        case Cast(arg):
            yield from _reads(arg)
        case Apply(_, args):
            for a in args:
                yield from _reads(a)
        case Select(cond, then, other) if not guards_index(cond):
            for a in (cond, then, other):
                yield from _reads(a)
        case _:
            pass


def is_short(tile: TransposedTile) -> bool:
    """Are its elements exchanged without squares, and without requests?"""
    whole = (trip_of(tile.row), trip_of(tile.lane)) == (tile.rows, tile.lanes)
    return whole and min(tile.rows, tile.lanes) <= FITTED.transpose_loads_short


def place_and_steps(
    printer: Printer, buffer: str, indices: tuple[IndexExpr, ...], row: str, lane: str
) -> tuple[str, str, str]:
    """The address of the first element, and from there to that of the next row, and of the next lane."""

    def place(**shift: IndexExpr) -> str:
        return f"&{printer.element(printer, buffer, tuple(substitute(i, shift) for i in indices))}"

    first, below, beside = place(), place(**{row: IVar(row) + 1}), place(**{lane: IVar(lane) + 1})
    return first, f"{below} - {first}", f"{beside} - {first}"
