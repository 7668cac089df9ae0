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

from polyfuse.cost.core_tiles import Dots, dots_fit
from polyfuse.ir.cpu_core import Core

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


@lru_cache(maxsize=1024)
def dot_shape(rows: int, columns: int, steps: int, itemsize: int, core: Core) -> DotShape:
    """The best of those that there are registers for."""
    near = rows * steps * itemsize <= core.l1 * SHARE_OF_L1
    found = [
        (_cycles(rows, columns, r, c, steps, itemsize, near, core), -r * c, r, c)
        for r, c in _candidates(rows, columns, itemsize, core)
    ]
    cycles, _, r, c = min(found)
    return DotShape(r, c, cycles)


def _candidates(rows: int, columns: int, itemsize: int, core: Core) -> Iterator[tuple[int, int]]:
    for c in range(1, min(MOST_COLUMNS, columns) + 1):
        yield from ((r, c) for r in range(1, rows + 1) if r * c == 1 or dots_fit(r, c, core, itemsize))


def _cycles(
    rows: int, columns: int, r: int, c: int, steps: int, itemsize: int, near: bool, core: Core
) -> float:
    """Of one core, with rows and columns that are left one by one."""
    parts = [(a, x, b, y) for a, x in _parts(rows, r) for b, y in _parts(columns, c)]
    return sum(Dots(x, y, steps, a * b, itemsize, near).cycles(core) for a, x, b, y in parts)


def _parts(extent: int, size: int) -> list[tuple[int, int]]:
    """(how often, how many at a time)."""
    return [(extent // size, size), (extent % size, 1)]
