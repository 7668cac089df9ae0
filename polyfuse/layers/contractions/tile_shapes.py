"""How large the tiles of a contraction are: as few cycles as the registers and caches of a core allow.

A tile of R rows and V vectors of columns needs R * V + V + 1 registers.  Of the shapes that there are
registers for, the one is taken that needs the fewest cycles for the whole result (`cost.cpu_device`), with
what the last tiles compute beyond it.  The caches say how much is summed before a tile goes back to memory,
and how many rows a worker goes through with some columns.  Blocks of rows and of columns are shared out so
that the last worker is done as early as can be: in many blocks workers end together, in few each element of
a factor is read, and copied, less often.

`tile_shape` chooses; `dot_shape` is for factors that both lie along the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, gcd

from polyfuse.cost.cpu_device import TILE_CYCLES, Dots, Tiles, lanes_of
from polyfuse.ir.cpu_core import L1_WAY, Core, dots_fit, vectors_of_sum

# --- dot products -----------------------------------------------------------------------------------------

# How many rows and columns of a contraction are summed together where both factors lie along the sum.
#
#     y[m, n] = sum[k](x[m, k] * w[n, k])        x[3, 4096], w[1024, 4096]
#
# Vectors go along k.  Sums of R rows and C columns are in registers together, so that a row of either factor
# is loaded once for several of the other: w, which memory has to bring, once for all rows of x.  Tiles with
# columns in vectors would transpose w first, which takes longer than to multiply it with few rows.
#
# The shape is that with the fewest cycles for the whole result (`cost.cpu_device.Dots`), with what is left of
# rows and columns, which is computed one by one.


# Rows of the larger factor at a time at most: each is a stream that memory has to follow.
MOST_COLUMNS = 6
# Of L1, what the rows of the smaller factor may take that stay there.
SHARE_OF_L1 = 1 / 2


@dataclass(frozen=True, slots=True)
class DotShape:
    """Rows and columns that are summed together; `cycles` of one core for all of a contraction."""

    rows: int
    columns: int
    cycles: float


@dataclass(frozen=True, slots=True)
class Sums:
    """Rows and columns of a contraction, and what is summed for each: so many runs of so many steps along
    memory, in elements of so many bytes, of factors that are f16 or not."""

    rows: int
    columns: int
    runs: int
    steps: int
    itemsize: int
    halves: bool

    def cycles(self, rows: int, columns: int, core: Core) -> float:
        """Of one core with so many rows and columns together; what is left of them goes one by one."""
        near = self.rows * self.runs * self.steps * self.itemsize <= core.l1 * SHARE_OF_L1
        lanes = vectors_of_sum(core, self.itemsize, self.halves) * lanes_of(core, self.itemsize)
        steps = ceil(self.steps / lanes) * lanes
        parts = [(r, c) for r in _parts(self.rows, rows) for c in _parts(self.columns, columns)]
        found = (Dots(r, c, steps, a * b, self.itemsize, near, self.halves) for (a, r), (b, c) in parts)
        return self.runs * sum(x.cycles(core) for x in found)


@lru_cache(maxsize=1024)
def dot_shape(x: Sums, core: Core) -> DotShape:
    """The best of those that there are registers for."""
    cycles, _, rows, columns = min((x.cycles(r, c, core), -r * c, r, c) for r, c in _dot_candidates(x, core))
    return DotShape(rows, columns, cycles)


def _dot_candidates(x: Sums, core: Core) -> Iterator[tuple[int, int]]:
    for c in range(1, min(MOST_COLUMNS, max(1, x.columns)) + 1):
        for r in range(1, max(1, x.rows) + 1):
            if r * c == 1 or dots_fit(r, c, core, x.itemsize, x.halves):
                yield r, c


def _parts(extent: int, size: int) -> list[tuple[int, int]]:
    """(how often, how many at a time)."""
    return [(extent // size, size), (extent % size, 1)]


# --- register tiles ---------------------------------------------------------------------------------------

# Vectors of a row of a tile at most: of more, the right factor would take all loads.
MOST_VECTORS = 6
# The parts of L2 of what a tile of columns needs of the right factor between two visits of the accumulators
# to memory, of what a worker copies at a time, and of the rows of the left one that it goes through together.
TILE_PART, COPY_PART, KEPT_PART = 16, 4, 4
# Steps that one accumulator takes at most: rounding errors grow with them.
MOST_STEPS = 480
# Columns of the right factor that so many tiles of rows read are copied first, by the worker that has these
# rows: fewer read them in place, at less cost, unless a copy saves so many times what it takes.
FEWEST_NEAR, COPY_GAIN = 16, 2
# A right factor that so many outer points read is copied once, by all workers: one that cannot be read in
# place, and one that can, but whose rows are in other pages each time.
FEWEST_OTHERS, FEWEST_SHARED = 4, 8
# As `FEWEST_NEAR`, where rows of the factor are so many bytes apart that a few of them fill the sets of L2
# that they are in.
CROWDED, FEWEST_CROWDED = 8192, 3
# Rows of the left factor that a set of L1 has room for: lines of more would leave it before all of their
# elements were read.
MOST_IN_SET = 8
# Pieces for each worker at most, and the part of a piece for which the others wait at the end.
MOST_PIECES, WAIT = 8, 0.02
# Rows of the smaller factor up to which both are read along what is summed.
MOST_DOT_ROWS = 32
# A right factor of more bytes will not all be in caches from call to call, beside what else a program has: of
# one of 4 MB, tiles read short pieces about as fast as long ones, of one of 8 MB at a fifth of that.
STREAMED_FACTOR = 6 << 20
# Steps of a panel in which memory brings the right factor for few rows: so many of its rows are streams that
# are followed together.  Strips of these are so many bytes long at least; and so many panels are added to an
# element at most, else panels are longer.
STREAMED_STEPS, STREAMED_BYTES, MOST_ADDED = 8, 2048, 1024
# Streams that are followed together in any case.
FOLLOWED = 16
# A factor that lies across memory is copied by all workers if so many tiles read it.
FEWEST_READERS = 4
# Of a tile that ends where an open number of rows or columns does, what is computed in vain.
UNUSED = 1 / 4
# Cycles to add a vector of a tile to the result, and to wait for a short piece of a row of the right factor
# that memory brings.
VISIT_CYCLES, PIECE_CYCLES = 6, 30
# Bytes of a row that a worker reads or writes at one place.
SEGMENT = 512
# Cycles to copy a vector, to turn one around, and those for a byte of a factor from L3 that computing does
# not hide.
COPY_CYCLES, TURN_CYCLES, FAR_CYCLES = 1.5, 8, 1 / 64


@dataclass(frozen=True, slots=True)
class Extents:
    """A contraction in numbers: rows, columns and steps, how often there are these, bytes of an element.

    copied: the right factor cannot be read in place.  transposed: memory does not lie along its columns.
    crowded: its rows share few sets of L2.
    along: both factors lie along what is summed, for so many steps (0: they do not).  halves: one of them is
    f16.  shared: so many of the outer points have one right factor.
    beside: the left factor lies along rows.  apart: bytes from one row of it to the next, where it is read in
    place along what is summed (0: it is not).  open: rows and columns are numbers of which only a usual one
    is known.
    """

    rows: int
    columns: int
    steps: int
    outer: int
    itemsize: int
    copied: bool = False
    transposed: bool = False
    crowded: bool = False
    along: int = 0
    halves: bool = False
    shared: int = 1
    apart: int = 0
    beside: bool = False
    open: tuple[bool, bool] = (False, False)

    @property
    def once(self) -> bool:
        """Is the right factor copied once for many outer points?"""
        return self.shared >= (FEWEST_OTHERS if self.copied else FEWEST_SHARED)


@dataclass(frozen=True, slots=True)
class TileShape:
    """Rows and columns of a tile, steps of a panel, tiles of rows and of columns in a block, those of rows
    that a worker goes through at a time; `cycles` of one core; from how many tiles of rows on a worker
    copies the right factor for them.

    dots: vectors go along what is summed (`dot_shape`), else along columns.  streamed:
    panels are short, and strips of columns, or of rows (`in_rows`), long."""

    rows: int
    columns: int
    panel: int
    group: int
    across: int
    kept: int
    cycles: float
    fewest_near: int = FEWEST_NEAR
    dots: bool = False
    streamed: bool = False
    in_rows: bool = False

    def blocks(self, x: Extents) -> int:
        """Blocks of rows."""
        return max(1, ceil(ceil(x.rows / self.rows) / self.group))


@lru_cache(maxsize=1024)
def tile_shape(x: Extents, core: Core, threads: int) -> TileShape:
    """The best tile of a contraction for a core, and blocks for so many of them."""
    tiles = _streamed(x, _across(x, core, threads), core, threads)
    tiles = tiles if tiles.streamed else _rows_streamed(x, tiles, core, threads)
    dots = _dots(x, core, threads) if x.along and x.rows <= MOST_DOT_ROWS else None
    return dots if dots is not None and dots.cycles < _with_copy(x, tiles, core) else tiles


def _dots(x: Extents, core: Core, threads: int) -> TileShape:
    """Sums along memory, all rows in each of the pieces into which the columns are cut."""
    runs = x.steps // x.along
    found = dot_shape(Sums(x.rows, x.columns, runs, x.along, x.itemsize, x.halves), core)
    tiles = max(1, ceil(x.columns / found.columns))
    most = max(1, min(tiles, ceil(MOST_PIECES * threads / x.outer)))
    pieces = min(range(most, 0, -1), key=lambda p: (ceil(x.outer * p / threads) + WAIT) * ceil(tiles / p))
    group = max(1, ceil(x.rows / found.rows))
    cycles = x.outer * found.cycles
    across = ceil(tiles / pieces)
    return TileShape(found.rows, found.columns, x.steps, group, across, group, cycles, dots=True)


def _streamed(x: Extents, tiles: TileShape, core: Core, threads: int) -> TileShape:
    """The same tiles in short panels of long strips of columns, where that is faster: where memory brings the
    right factor for few rows.

    A tile in a long panel reads a short piece of each row of the factor, in another page each time, which
    takes as long as several tiles of rows.  In a short panel the tiles of a strip read rows that memory
    brings in order, and the strip of the result stays in L1; but they begin and end more often."""
    right = x.outer * x.steps * x.columns * x.itemsize
    rows, wide = max(1, ceil(x.rows / tiles.rows)), max(1, ceil(x.columns / tiles.columns))
    panel = _short_panel(x)
    if x.copied or x.once or right <= STREAMED_FACTOR or x.steps < 2 * panel or tiles.blocks(x) > 1:
        return tiles
    cycles = tiles.cycles + _visits(x, tiles, panel, core)
    if cycles >= tiles.cycles + x.outer * wide * x.steps * PIECE_CYCLES:
        return tiles
    row = wide * tiles.columns * x.itemsize
    longest = max(STREAMED_BYTES, core.l1 // 2 // max(1, x.rows))
    fewest = ceil(row / longest)
    most = min(wide, max(fewest, ceil(threads / x.outer), min(MOST_PIECES * threads, row // STREAMED_BYTES)))
    pieces = min(
        range(most, fewest - 1, -1), key=lambda p: (ceil(x.outer * p / threads) + WAIT) * ceil(wide / p)
    )
    return replace(
        tiles, panel=panel, across=ceil(wide / pieces), group=rows, kept=rows, cycles=cycles, streamed=True
    )


def _rows_streamed(x: Extents, tiles: TileShape, core: Core, threads: int) -> TileShape:
    """The same tiles in short panels of long strips of rows, where that is faster: where memory brings a left
    factor that lies along rows, for few columns (more have it copied)."""
    left = x.outer * x.rows * x.steps * x.itemsize
    rows, wide = max(1, ceil(x.rows / tiles.rows)), max(1, ceil(x.columns / tiles.columns))
    panel = _short_panel(x)
    if (
        not x.beside
        or wide >= FEWEST_READERS
        or left <= STREAMED_FACTOR
        or x.steps < max(2 * panel, FOLLOWED + 1)
    ):
        return tiles
    cycles = tiles.cycles + _visits(x, tiles, panel, core)
    if cycles >= tiles.cycles + x.outer * rows * wide * x.steps * PIECE_CYCLES:
        return tiles
    strip = max(STREAMED_BYTES // x.itemsize, core.l1 // 2 // (x.columns * x.itemsize))
    group = max(1, min(strip // tiles.rows, ceil(rows * x.outer / threads)))
    return replace(
        tiles, panel=panel, across=wide, group=group, kept=group, cycles=cycles, streamed=True, in_rows=True
    )


def _short_panel(x: Extents) -> int:
    """Steps of a panel in which memory brings a factor."""
    return max(STREAMED_STEPS, STREAMED_STEPS * ceil(x.steps / (STREAMED_STEPS * MOST_ADDED)))


def _visits(x: Extents, tiles: TileShape, panel: int, core: Core) -> float:
    """Cycles in which tiles begin and end in panels of so many steps."""
    count = x.outer * ceil(x.rows / tiles.rows) * ceil(x.columns / tiles.columns) * ceil(x.steps / panel)
    return count * (TILE_CYCLES + tiles.rows * tiles.columns / lanes_of(core, x.itemsize) * VISIT_CYCLES)


def _with_copy(x: Extents, tiles: TileShape, core: Core) -> float:
    """Cycles of tiles, whose right factor each block of rows transposes."""
    copies = x.outer * tiles.blocks(x) * x.steps * x.columns / lanes_of(core, x.itemsize)
    return tiles.cycles + copies * TURN_CYCLES


def _across(x: Extents, core: Core, threads: int) -> TileShape:
    """Tiles with columns in vectors."""
    lanes = lanes_of(core, x.itemsize)
    cycles, _, rows, vectors = min(
        (_cycles(x, r, v, lanes, core), -r * v, r, v) for r, v in _candidates(x, lanes, core)
    )
    columns = vectors * lanes
    if (
        lanes < x.columns < columns and not x.open[1]
    ):  # its vectors overlap, so that nothing beside it is read
        columns = x.columns
    tiles, wide = max(1, ceil(x.rows / rows)), max(1, ceil(x.columns / columns))
    most = max(1, min(wide, SEGMENT // (columns * x.itemsize)))
    each = cycles / max(1, tiles * wide * x.outer)
    ways = [(b, a) for b in range(1, min(tiles, MOST_PIECES * threads) + 1) for a in range(most, 0, -1)]
    blocks, across = min(ways, key=lambda w: _longest(x, rows, columns, w, each, threads, core))
    group, across = ceil(tiles / blocks), ceil(wide / ceil(wide / across))
    near = _copies_near(x, group, vectors, core)
    held = core.l2 // COPY_PART // across if near else core.l2 // TILE_PART
    panel = max(1, held // (columns * x.itemsize))
    kept = max(1, core.l2 // KEPT_PART // (rows * max(1, min(panel, x.steps)) * x.itemsize))
    visits = ceil(group / kept)
    kept = ceil(group / visits)
    fewest = _fewest_near(x, vectors, core)
    return TileShape(rows, columns, panel, kept * visits, across, kept, cycles, fewest)


def _fewest_near(x: Extents, vectors: int, core: Core) -> int:
    """Tiles of rows for which a worker copies the right factor."""
    if x.crowded:
        return FEWEST_CROWDED
    copying = COPY_CYCLES * vectors + core.apart
    return min(FEWEST_NEAR, ceil(COPY_GAIN * copying / core.apart)) if core.apart else FEWEST_NEAR


def _copies_near(x: Extents, group: int, vectors: int, core: Core) -> bool:
    return not x.once and (x.copied or x.crowded or group >= _fewest_near(x, vectors, core))


def _longest(
    x: Extents, rows: int, columns: int, way: tuple[int, int], each: float, threads: int, core: Core
) -> float:
    """Cycles until the last worker is done, in (blocks of rows, tiles of columns in a piece)."""
    blocks, across = way
    group = ceil(ceil(x.rows / rows) / blocks)
    wide = ceil(x.columns / columns)
    pieces = x.outer * blocks * ceil(wide / across)
    read = (group * rows + across * columns) * x.steps * x.itemsize
    piece = group * min(across, wide) * each + read * FAR_CYCLES
    vectors = columns // lanes_of(core, x.itemsize)
    if _copies_near(x, group, vectors, core):
        piece += x.steps * across * (vectors * (TURN_CYCLES if x.transposed else COPY_CYCLES) + core.apart)
    elif not x.once:
        piece += x.steps * across * group * core.apart
    return (ceil(pieces / threads) + (WAIT if threads > 1 else 0)) * piece


def _candidates(x: Extents, lanes: int, core: Core) -> Iterator[tuple[int, int]]:
    """(rows, vectors) that registers and sets of L1 have room for; not much more than the result has."""
    longest = min(x.rows, MOST_IN_SET * (L1_WAY // gcd(x.apart, L1_WAY)) if x.apart else x.rows)
    for v in range(1, min(MOST_VECTORS, max(1, ceil(x.columns / lanes))) + 1):
        most = (core.registers - 1 - v) // v
        yield from ((r, v) for r in range(1, min(most, max(1, longest)) + 1))


def _cycles(x: Extents, rows: int, vectors: int, lanes: int, core: Core) -> float:
    """Of one core for all of a contraction in tiles of a shape."""
    down, across = _tiles_of(x.rows, rows, x.open[0]), _tiles_of(x.columns, vectors * lanes, x.open[1])
    visits = down * across * x.outer
    return Tiles(rows, vectors * lanes, x.steps, visits, x.itemsize).cycles(core)


def _tiles_of(length: int, size: int, open: bool) -> float:
    """How many tiles so many rows or columns take; of an open number the last one is computed in part."""
    return length / size + UNUSED if open else ceil(length / size)
