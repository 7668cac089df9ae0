"""Tiles of memory are turned around where vector lanes would read across their rows.

    for j in 64*c0..min(J, 64*c0 + 64):                    t[64, 64] = x[i, j] for j, i
      for i in 64*c1..min(I, 64*c1 + 64) @vec:      ->     for j in 64*c0..min(J, 64*c0 + 64):
        y[j, i] = f(x[i, j])                                 for i in 64*c1..min(I, 64*c1 + 64) @vec:
                                                               y[j, i] = f(t[j - 64*c0, i - 64*c1])

Memory is read row by row, and squares are exchanged in vector registers: a square of 16 rows is 64 exchanges
of two registers each.  Vectors that are gathered take a load and an insertion for each lane, and meet each
line as often as it has elements.  Squares at the end of a tile begin earlier, so that they are whole.

Read so is what every iteration reads of memory that the kernel does not change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from polyfuse.codegen.c_family import Printer, guards_index, scalar_name
from polyfuse.codegen.streaming import along
from polyfuse.codegen.windows import strip_of
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import flat, linear
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, TurnedTile, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Cast, Expr, Index, Read, Select, map_expr

# The arrays of a loop together: they are on the stack, and stay in L2.
MOST_BYTES = 80 * 1024
LINE = Core().line
# Rows so many bytes apart are in few sets of a cache: squares that are stored to them throw each other out.
CROWDED = 2048

TURN = """\
// `rows` times `lanes` elements: in `to` rows are `room` apart and neighbours in them `next`, in `from` rows
// are `along` and neighbours `step`.  Where `next` and `along` are 1, squares go through registers: every
// exchange of two vectors is done at once for all pairs of lines that differ in one bit of their numbers, and
// of elements in theirs.  AHEAD asks for the lines of the next square: hardware does not follow so many rows.
template <int SIZE> struct pf_bits;
template <> struct pf_bits<1> { typedef unsigned char type; };
template <> struct pf_bits<2> { typedef unsigned short type; };
template <> struct pf_bits<4> { typedef unsigned int type; };
template <> struct pf_bits<8> { typedef unsigned long long type; };
template <int SIZE, int N, int AHEAD> struct pf_square {
  typedef typename pf_bits<SIZE>::type T;
  typedef T V __attribute__((vector_size(SIZE * N)));
  struct __attribute__((packed, may_alias)) A { V v; };
  PF_INLINE V chosen(V a, V b, int bit, int upper) {
    V m;
#pragma GCC unroll 16
    for (int l = 0; l < N; ++l) {
      const int own = (l & bit) == (upper ? bit : 0);
#if defined(__clang__)
      m[l] = upper ? (own ? b[l] : a[l | bit]) : (own ? a[l] : b[l & ~bit]);
#else
      m[l] = upper ? (own ? N + l : (l | bit)) : (own ? l : N + (l & ~bit));
#endif
    }
#if defined(__clang__)
    return m;
#else
    return __builtin_shuffle(a, b, m);
#endif
  }
  PF_INLINE void turn(T* to, pf_i64 room, const T* from, pf_i64 step) {
    V v[N];
#pragma GCC unroll 16
    for (int k = 0; k < N; ++k) {
      v[k] = ((const A*)(from + k * step))->v;
      if (AHEAD) __builtin_prefetch(from + (k + N) * step);
    }
#pragma GCC unroll 4
    for (int bit = 1; bit < N; bit *= 2) {
#pragma GCC unroll 16
      for (int k = 0; k < N; ++k)
        if (!(k & bit)) {
          const V a = v[k], b = v[k | bit];
          v[k] = chosen(a, b, bit, 0);
          v[k | bit] = chosen(a, b, bit, 1);
        }
    }
#pragma GCC unroll 16
    for (int k = 0; k < N; ++k) ((A*)(to + k * room))->v = v[k];
  }
  PF_INLINE void all(T* to, pf_i64 room, const T* from, pf_i64 step, pf_i64 rows, pf_i64 lanes) {
    for (pf_i64 i = 0; i < lanes; i += N) {
      const pf_i64 l = i + N <= lanes ? i : lanes - N;
      for (pf_i64 j = 0; j < rows; j += N) {
        const pf_i64 r = j + N <= rows ? j : rows - N;
        turn(to + r * room + l, room, from + l * step + r, step);
      }
    }
  }
};
template <int SIZE, int AHEAD>
static __attribute__((noinline)) void pf_turn(void* to, pf_i64 room, pf_i64 next, const void* from,
    pf_i64 along, pf_i64 step, pf_i64 rows, pf_i64 lanes) {
  typedef typename pf_bits<SIZE>::type T;
  typedef T A __attribute__((may_alias));
  const int most = PF_VECTOR / SIZE < 16 ? PF_VECTOR / SIZE : 16;
  const pf_i64 least = along != 1 || next != 1 ? 0 : rows < lanes ? rows : lanes;
  if (least >= most)
    return pf_square<SIZE, most, AHEAD>::all((T*)to, room, (const T*)from, step, rows, lanes);
  if (most > 8 && least >= 8)
    return pf_square<SIZE, 8, AHEAD>::all((T*)to, room, (const T*)from, step, rows, lanes);
  if (most > 4 && least >= 4)
    return pf_square<SIZE, 4, AHEAD>::all((T*)to, room, (const T*)from, step, rows, lanes);
  for (pf_i64 r = 0; r < rows; ++r)
    for (pf_i64 l = 0; l < lanes; ++l)
      ((A*)to)[r * room + l * next] = ((const A*)from)[r * along + l * step];
}
"""


def turn_tiles(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """The block with such loops reading tiles that are turned around. `numbers` numbers their arrays."""
    fixed = frozenset(b.tensor for b in kernel.unchanged)
    result: list[Node] = []
    for node in block:
        match node:
            case For():
                turned = _Turned(node, fixed, numbers)
                made = turned.loop()
                body = turn_tiles(kernel, node.body, numbers) if made is node else made.body
                result += _copied(kernel, made, turned) or [*turned.tiles.values(), replace(node, body=body)]
            case If():
                then, other = (turn_tiles(kernel, b, numbers) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case _:
                result.append(node)
    return tuple(result)


def _copied(kernel: Kernel, row: For, turned: _Turned) -> list[Node]:
    """The tile stored where it goes, if the loop does nothing else, and rows there spread over a cache."""
    match row.body:
        case (For(body=(Store(buffer, indices, Read(name)) as store,)) as lane,) if name in turned.made:
            tile, places, extents = turned.made[name], plain(indices), kernel.buffer(buffer).extents
            if len(places) < len(indices) or not along(store, lane.var) or row.var in variables(places[-1]):
                return []
            room = flat(places, extents).factor(IVar(row.var)) * tile.dtype.bytes
            return [replace(tile, to=(buffer, places))] if room % CROWDED else []
        case _:
            return []


@dataclass(slots=True)
class _Turned:
    """A loop over rows of tiles, and the `tiles` that vector loops in it are to read."""

    row: For
    fixed: frozenset[str]
    numbers: itertools.count[int]
    tiles: dict[object, TurnedTile] = field(default_factory=dict)
    room: int = 0

    @property
    def made(self) -> dict[str, TurnedTile]:
        """The tiles by name."""
        return {t.name: t for t in self.tiles.values()}

    def loop(self) -> For:
        """The loop, itself where there is nothing to turn around."""
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
        """Where an element is in its tile; None if it is not to be turned around."""
        row = self.row
        if r.tensor not in self.fixed or not across(r, row.var, lane.var):
            return None
        indices = tuple(substitute(i, {lane.var: IVar("%lane")}) for i in plain(r.indices))
        key = r.tensor, indices, lane.lower, lane.upper
        if key not in self.tiles:
            room = _room(lanes * r.dtype.bytes) // r.dtype.bytes
            if self.room + rows * room * r.dtype.bytes > MOST_BYTES:
                return None
            self.room += rows * room * r.dtype.bytes
            bare_row, bare_lane = replace(row, body=()), replace(lane, body=(), lanes=())
            name = f"%turned{next(self.numbers)}"
            self.tiles[key] = TurnedTile(
                name, r.dtype, r.tensor, plain(r.indices), bare_row, rows, bare_lane, room
            )
        tile = self.tiles[key]
        start = binary("*", binary("-", IVar(row.var), row.lower), tile.lanes)
        place = binary("+", IVar(lane.var), binary("-", start, lane.lower))
        return Read(tile.name, (place,), r.dtype)


def _room(length: int) -> int:
    """Bytes from row to row of an array: whole lines, that do not crowd."""
    room = -(-length // LINE) * LINE
    return room + LINE if room % CROWDED == 0 else room


def plain(indices: tuple[Index, ...]) -> tuple[IndexExpr, ...]:
    """Those that are found without data."""
    return tuple(i for i in indices if not isinstance(i, EXPR_TYPES))


def across(r: Read, row: str, lane: str) -> bool:
    """Does a read go along memory in one loop, and jump in another?"""
    indices = plain(r.indices)
    if len(indices) < 2 or len(indices) < len(r.indices):
        return False
    *leading, last = indices
    if linear(last).factor(IVar(row)) != 1 or lane in variables(last):
        return False
    forms = [linear(i) for i in indices]
    hidden = {v for f in forms for atom, _ in f.terms if not isinstance(atom, IVar) for v in variables(atom)}
    inside = {v for i in leading for v in variables(i)}
    return row not in inside and lane in inside and not hidden & {row, lane}


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


def turned_text(printer: Printer, tile: TurnedTile, indent: str, ahead: bool = False) -> list[str]:
    """The array, if there is one, and the call that fills it; `ahead`, the next lines are asked for."""
    row, lane, i1 = tile.row, tile.lane, indent + "  "
    array = scalar_name(tile.name)
    target = (array, str(tile.lanes), "1")
    if tile.to is not None:
        target = _place(printer, *tile.to, row.var, lane.var)
    counts = [printer.index(binary("-", x.upper, x.lower)) for x in (row, lane)]
    given = [*target, *_place(printer, tile.buffer, tile.indices, row.var, lane.var), *counts]
    kind = tile.dtype.c_name
    size = tile.rows * tile.lanes
    declared = [f"{indent}__attribute__((aligned({LINE}))) {kind} {array}[{size}];"]
    return [
        *(declared if tile.to is None else []),
        f"{indent}{{",
        *[f"{i1}const pf_i64 {x.var} = {printer.index(x.lower)};" for x in (row, lane)],
        f"{i1}pf_turn<{tile.dtype.bytes}, {int(ahead)}>(",
        *[f"{i1}    {g}{',' if k < len(given) - 1 else ');'}" for k, g in enumerate(given)],
        f"{indent}}}",
    ]


def _place(
    printer: Printer, buffer: str, indices: tuple[IndexExpr, ...], row: str, lane: str
) -> tuple[str, str, str]:
    """The address of the first element, and from there to that of the next row, and of the next lane."""

    def place(**shift: IndexExpr) -> str:
        return f"&{printer.element(printer, buffer, tuple(substitute(i, shift) for i in indices))}"

    first, below, beside = place(), place(**{row: IVar(row) + 1}), place(**{lane: IVar(lane) + 1})
    return first, f"{below} - {first}", f"{beside} - {first}"
