"""How many rows and columns of a contraction are summed together where both factors lie along the sum.

    y[m, n] = sum[k](x[m, k] * w[n, k])        x[3, 4096], w[1024, 4096]

Vectors go along k.  Sums of R rows and C columns are in registers together, so that a row of either factor
is loaded once for several of the other: w, which memory has to bring, once for all rows of x.  Tiles with
columns in vectors would turn w around first, which takes longer than to multiply it with few rows.

The shape is that with the fewest cycles for the whole result (`cost.core_tiles.Dots`), with what is left of
rows and columns, which is computed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from polyfuse.cost.core_tiles import Dots, lanes_of
from polyfuse.ir.cpu_core import Core, dots_fit, vectors_of_sum

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
    cycles, _, rows, columns = min((x.cycles(r, c, core), -r * c, r, c) for r, c in _candidates(x, core))
    return DotShape(rows, columns, cycles)


def _candidates(x: Sums, core: Core) -> Iterator[tuple[int, int]]:
    for c in range(1, min(MOST_COLUMNS, max(1, x.columns)) + 1):
        for r in range(1, max(1, x.rows) + 1):
            if r * c == 1 or dots_fit(r, c, core, x.itemsize, x.halves):
                yield r, c


def _parts(extent: int, size: int) -> list[tuple[int, int]]:
    """(how often, how many at a time)."""
    return [(extent // size, size), (extent % size, 1)]
