"""How large the tiles of a contraction are: as few cycles as the registers and caches of a core allow.

A tile of R rows and V vectors of columns needs R * V + V + 1 registers.  Of the shapes that there are
registers for, the one is taken that needs the fewest cycles for the whole result (`cost.core_tiles`), with
what the last tiles compute beyond it.  The caches say how much is summed before a tile goes back to memory,
and how many rows a worker takes with a tile of columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from polyfuse.cost.core_tiles import Tiles, lanes_of
from polyfuse.ir.cpu_core import Core

# Vectors of a row of a tile at most: of more, the right factor would take all loads.
MOST_VECTORS = 6
# The part of L2 of a tile of columns between two visits of the accumulators to memory, of what a worker
# copies at a time, and of a block of rows.
TILE_PART, COPY_PART, BLOCK_PART = 8, 4, 2
# Steps of a panel at most: rounding errors grow with the terms that one accumulator takes.
MOST_STEPS = 480
# Tiles of rows that a worker takes with each tile of columns, where the caches allow; pieces for each worker.
FEWEST_GROUPED, MOST_GROUPED = 8, 32
PIECES = 4
# Bytes of a row that a worker reads or writes at one place.
SEGMENT = 512


@dataclass(frozen=True, slots=True)
class Extents:
    """A contraction in numbers: rows, columns and steps, how often there are these, bytes of an element."""

    rows: int
    columns: int
    steps: int
    outer: int
    itemsize: int


@dataclass(frozen=True, slots=True)
class TileShape:
    """Rows and columns of a tile, steps of a panel, tiles of rows and of columns in a block; `cycles` of one
    core."""

    rows: int
    columns: int
    panel: int
    group: int
    across: int
    cycles: float

    def blocks(self, x: Extents) -> int:
        """Blocks of rows."""
        return max(1, ceil(ceil(x.rows / self.rows) / self.group))


def tile_shape(x: Extents, core: Core, threads: int) -> TileShape:
    """The best tile of a contraction for a core, and blocks for so many of them."""
    lanes = lanes_of(core, x.itemsize)
    cycles, _, rows, vectors = min(
        (_cycles(x, r, v, lanes, core), -r * v, r, v) for r, v in _candidates(x, lanes, core)
    )
    columns = vectors * lanes
    group = core.l2 // BLOCK_PART // (rows * max(1, x.steps) * x.itemsize)
    tiles, wide = max(1, ceil(x.rows / rows)), max(1, ceil(x.columns / columns))
    blocks = ceil(tiles / min(max(FEWEST_GROUPED, group), MOST_GROUPED))
    pieces = PIECES * threads if threads > 1 else 1
    blocks = min(tiles, max(blocks, ceil(pieces / max(1, x.outer * wide))))
    across = max(1, min(SEGMENT // (columns * x.itemsize), x.outer * wide * blocks // pieces))
    kept = core.l2 // TILE_PART if blocks > 1 else core.l2 // COPY_PART // across
    panel = max(1, min(kept // (columns * x.itemsize), MOST_STEPS))
    return TileShape(rows, columns, panel, ceil(tiles / blocks), ceil(wide / ceil(wide / across)), cycles)


def _candidates(x: Extents, lanes: int, core: Core) -> Iterator[tuple[int, int]]:
    """(rows, vectors) that there are registers for; not much wider or longer than the result."""
    for v in range(1, min(MOST_VECTORS, max(1, ceil(x.columns / lanes))) + 1):
        most = (core.registers - 1 - v) // v
        yield from ((r, v) for r in range(1, min(most, max(1, x.rows)) + 1))


def _cycles(x: Extents, rows: int, vectors: int, lanes: int, core: Core) -> float:
    """Of one core for all of a contraction in tiles of a shape."""
    visits = ceil(x.rows / rows) * ceil(x.columns / (vectors * lanes)) * x.outer
    return Tiles(rows, vectors * lanes, x.steps, visits, x.itemsize).cycles(core)
