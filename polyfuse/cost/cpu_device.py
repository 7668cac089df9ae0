"""What a CPU can do, as the cost model sees it: levels of memory, operations, what a call costs.

The defaults are those of a server core with 512-bit vectors; `polyfuse.driver.targets.this_cpu` has the
figures of the machine, where they were measured (`polyfuse doctor --measure`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

from polyfuse.ir.cpu_core import Core, vectors_of_sum

# --- sums of products -------------------------------------------------------------------------------------

# What sums of products take of a core: in register tiles, which layer II chooses, and of a library.
#
# For each step of the sum a tile of R rows and V vectors of columns takes
#
#     R * V multiply-adds, R + V loads                         of so many in a cycle
#     its accumulators one after the other                     at least the latency of a multiply-add
#     R elements and V vectors of the factors, from L2         mostly while it computes
#
# The same cycles choose a tile (`layers.contractions.tile_shapes`), say whether a library is faster and what
# a contraction weighs in a plan (`layers.contractions.times`), and are the time of a kernel that has tiles
# (`cost.cpu_time`, `cost.projection`).


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


KIB, MIB, GB = 1 << 10, 1 << 20, 1e9


@dataclass(frozen=True, slots=True)
class Level:
    """Memory of one kind: bytes that fit (of a core if it is private, else of all), bytes a second of all
    threads together, lines of one set."""

    name: str
    capacity: float
    bandwidth: float
    private: bool = False
    ways: int = 16


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """Rates are those of all threads; `operations` counts single precision lanes (a fused multiply-add is
    one), `lanes` of them at a time.

    call_s: from the call to the first kernel.  step_s: from one parallel kernel to the next.  core: as tiles
    of contractions see it.
    """

    name: str = "CPU"
    threads: int = 2
    levels: tuple[Level, ...] = (
        Level("L1", 48 * KIB, 700 * GB, True, 12),
        Level("L2", 2 * MIB, 250 * GB, True),
        Level("L3", 32 * MIB, 60 * GB),
        Level("memory", float("inf"), 30 * GB),
    )
    operations: float = 200e9
    lanes: int = 16
    call_s: float = 1.0e-6
    step_s: float = 0.7e-6
    measured: bool = False
    core: Core = field(default_factory=Core)

    @property
    def cache_bytes(self) -> float:
        """Of the last cache before memory."""
        return self.levels[-2].capacity

    @property
    def next_s(self) -> float:
        """From one kernel to the next."""
        return self.step_s

    def share(self, blocks: int) -> float:
        """Of the machine that so many chunks keep busy: workers less what the last round leaves idle."""
        return blocks / (ceil(blocks / self.threads) * self.threads)

    @property
    def cycle_s(self) -> float:
        """A cycle of a core, all of whose units compute."""
        return self.lanes * self.core.units * self.threads / self.operations

    def tiles_s(self, tiles: Tiles) -> float:
        """Seconds of register tiles on one core."""
        return tiles.cycles(self.core) * self.cycle_s

    def library_s(self, products: float, itemsize: int) -> float:
        """Seconds of a matrix product of the library on all threads, with its call."""
        return products * itemsize / 4 / self.operations / LIBRARY_PART + CALL_S

    def level(self, nbytes: float) -> int:
        """The nearest level that holds so many bytes of one thread."""
        for k, level in enumerate(self.levels[:-1]):
            if nbytes * (1 if level.private else self.threads) <= level.capacity:
                return k
        return len(self.levels) - 1


def table_cpu(threads: int, core: Core | None = None) -> CpuDevice:
    """The default CPU with so many threads, of another core with the same clock: for decisions that must not
    change with a measurement."""
    default = CpuDevice()
    scale, own = threads / default.threads, core or default.core
    lanes = lanes_of(own, 4)
    wide = lanes * own.units / (default.lanes * default.core.units)
    return replace(
        default,
        threads=threads,
        levels=tuple(replace(x, bandwidth=x.bandwidth * scale) for x in default.levels),
        operations=default.operations * scale * wide,
        lanes=lanes,
        core=own,
    )
