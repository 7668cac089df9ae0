"""What sums of products take of a core: in register tiles, which layer II chooses, and of a library.

For each step of the sum a tile of R rows and V vectors of columns takes

    R * V multiply-adds, R + V loads                         of so many in a cycle
    its accumulators one after the other                     at least the latency of a multiply-add
    R elements and V vectors of the factors, from L2         mostly while it computes

The same cycles choose a tile (`layers.tile_shapes`), say whether a library is faster and what a contraction
weighs in a plan (`layers.product_times`), and are the time of a kernel that has tiles (`cost.cpu_time`,
`cost.projection`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from polyfuse.ir.cpu_core import Core, vectors_of_sum

# Bytes in order that L2 gives in a cycle, and the part of their time that computing does not hide.
L2_BYTES = 32
SHOWN = 0.125
# Cycles of a tile besides its steps, and of each of its vectors: to begin, and to go to memory.
TILE_CYCLES, VECTOR_CYCLES = 30, 2
# Cycles to add up the lanes of a sum, beside others.
FOLD_CYCLES = 8
# The part of the peak that a library reaches on large products, and what it takes to call it: from the pool
# through the interpreter, with its threads to be woken.
LIBRARY_PART = 0.9
CALL_S = 6e-6


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of rows and columns that are summed up in so many steps, and how often that is done."""

    rows: int
    columns: int
    steps: float
    visits: float
    itemsize: int

    def cycles(self, core: Core) -> float:
        """Of one core for all of them."""
        vectors = ceil(self.columns / lanes_of(core, self.itemsize))
        sums = self.rows * vectors
        l2 = self.rows * self.itemsize / L2_BYTES + vectors * core.vector_bytes / core.l2_bytes
        loads = (self.rows + vectors) / core.loads
        step = max(sums / core.units, loads, core.latency, l2) + SHOWN * l2
        return self.visits * (self.steps * step + TILE_CYCLES + VECTOR_CYCLES * sums)


def lanes_of(core: Core, itemsize: int) -> int:
    """Elements of a vector."""
    return max(1, core.vector_bytes // itemsize)


@dataclass(frozen=True, slots=True)
class Dots:
    """Sums of products along memory, of so many rows and columns together, of `steps` elements each, and how
    often that is done; `near`: the rows stay in L1; `halves`: factors are f16."""

    rows: int
    columns: int
    steps: float
    visits: float
    itemsize: int
    near: bool
    halves: bool = False

    def cycles(self, core: Core) -> float:
        """Of one core for all of them."""
        wide = vectors_of_sum(core, self.itemsize, self.halves)
        sums = self.rows * self.columns
        come = self.columns + (0 if self.near else self.rows)
        l2 = come * wide * core.vector_bytes / L2_BYTES
        loads = (self.rows + self.columns) * wide / core.loads
        step = max(sums * wide / core.units, loads, core.latency, l2) + SHOWN * l2
        rounds = self.steps / (wide * lanes_of(core, self.itemsize))
        return self.visits * (rounds * step + TILE_CYCLES + FOLD_CYCLES * sums)
