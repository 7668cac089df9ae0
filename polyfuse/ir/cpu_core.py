"""One core of a CPU as register tiles see it: vector registers, what computes in them, the caches behind.

`CpuKnobs` has what the code of a schedule can be varied by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

KIB = 1 << 10
# Lanes of a sum at least (`codegen.cpu.vectorize.reductions`), and of one of f16, which is converted so many
# at a time (`codegen.cpu.vectorize.half_precision`).
FEWEST_LANES, FEWEST_OF_F16 = 8, 16
# Bytes after which the sets of L1 repeat.
L1_WAY = 4096
# Vectors of an accumulator's lanes, where a loop does not say: they hide most of the latency of an addition,
# and stay in registers where the loop computes something (docs/lab/targets.md).
LANE_VECTORS = 4


@dataclass(frozen=True, slots=True)
class Core:
    """The defaults are a core with vectors of 64 bytes.

    vector_bytes, registers   of one vector register, and how many there are
    units, latency, loads     fused multiply-adds begun in a cycle, cycles that one takes, loads in a cycle
    l1, l2, line              bytes of its own data caches, and of a line of them
    l2_bytes, apart           bytes of rows of a factor that L2 gives a tile in a cycle; cycles that a tile
                              waits for a row that does not follow the one before in memory
    byte_products             has it an instruction that adds four products of bytes to a total?
    pair_products             has it one that adds two of bf16, and may denormals be 0, as they are there?
    flushes                   do its operations make 0 of denormals?
    """

    vector_bytes: int = 64
    registers: int = 32
    units: int = 2
    latency: int = 4
    loads: float = 2
    l1: int = 48 * KIB
    l2: int = 1024 * KIB
    line: int = 64
    l2_bytes: int = 32
    apart: int = 0
    byte_products: bool = False
    pair_products: bool = False
    flushes: bool = False


# One with vectors of 32 bytes: what loads and L2 give is measured (docs/lab/targets.md).
AVX2 = Core(32, 16, loads=1.6, l2_bytes=12, apart=3)


def kept_room(core: Core) -> int:
    """Bytes of what loops over rows keep beside these: it shall stay in L1, with them."""
    return core.l1 // 3


def wide_room(core: Core) -> int:
    """Bytes of rows of 16 bits that a worker has as f32 for all of its rows: they shall stay in L1, beside
    half as much that passes. To convert them again takes longer, even where some of them do not stay."""
    return core.l1 * 2 // 3


def skew_room(core: Core) -> int:
    """Bytes of rows that are in L1 at a time, at most, where rows are pipelined: those of two rows that are
    read again, and of results (`codegen.transforms.software_pipelining`). Lines that are prefetched and what
    rows share need the rest."""
    return core.l1 // 2


def joint_room(core: Core) -> int:
    """Bytes of a worker's arrays for all rows that are computed at once: they shall stay in L2."""
    return core.l2 // 2


def near_room(core: Core) -> int:
    """Bytes of a row that is still in L2 when the next loop reads it, beside what else the loops touch."""
    return core.l2 // 4


def overlap_room(core: Core) -> int:
    """Bytes that a row may have where rows are pipelined and lines of a third one are prefetched between
    them: all three shall stay in L1, with what is kept of a row and what rows share."""
    return core.l1 // 8


def lane_room(core: Core) -> int:
    """Bytes of registers that accumulators of one loop may take: the rest is for what it computes."""
    return core.registers * core.vector_bytes * 3 // 4


def vectors_of_sum(core: Core, itemsize: int, halves: bool) -> int:
    """Vectors that the fewest lanes of a sum fill; `halves`: of products of f16."""
    lanes = FEWEST_OF_F16 if halves else FEWEST_LANES
    return max(1, -(-lanes * itemsize // core.vector_bytes))


def dots_fit(rows: int, columns: int, core: Core, itemsize: int, halves: bool) -> bool:
    """Do registers hold sums of so many rows and columns, and those factors that there are fewer of? The
    others are operands from memory."""
    return (rows * columns + min(rows, columns)) * vectors_of_sum(core, itemsize, halves) <= core.registers


# --- choices of code generation ---------------------------------------------------------------------------

# What the CPU code of a schedule can be varied by: one field for each number or choice of code generation.
#
# None leaves a choice to the pass that makes it, with its own figures.  Every value gives the same results
# but for the order of sums; which is fastest only a measurement can tell (`polyfuse.tuning.tuner`).


def is_off(name: str, disabled: Iterable[str]) -> bool:
    """Is a pass switched off, by its own name or by that of its idea, up to the colon?"""
    return not {name, name.partition(":")[0]}.isdisjoint(disabled)


@dataclass(frozen=True, slots=True)
class CpuKnobs:
    """Code generation for a CPU.

    lane_bytes   accumulators of a reduction loop fill so many bytes: independent chains of additions
    strip        iterations of a block of one long parallel loop
    sunk_strip   columns of a block where a loop along memory runs inside one across it
    partials     partial results of a reduction over the outermost loop, for each thread
    local_bytes  a temporary of one worker up to this size is an array of that worker; larger ones are global
    ahead        a stitched kernel fetches the row so many ahead wherever it can (0: nowhere)
    rows         so many short rows or recurrences of a parallel loop, or rows of a loop in it that add to the
                 same sums, are computed at a time (1: one by one)
    jointly      totals of sixteen short rows are combined at once wherever they can be
    skew         the first phase of the next row runs before the last one of a row
    stream       stores of results pass the caches by (non-temporal)
    chunks       chunks of a parallel loop for each thread, which claim them one by one
    threads      threads that take part at most
    core         the core that tiles of contractions are made for
    disabled     optional passes over loops that are switched off, by name (`polyfuse passes`), on all targets
    """

    lane_bytes: int | None = None
    strip: int | None = None
    sunk_strip: int | None = None
    partials: int | None = None
    local_bytes: int | None = None
    ahead: int | None = None
    rows: int | None = None
    jointly: bool | None = None
    skew: bool | None = None
    stream: bool | None = None
    chunks: int | None = None
    threads: int | None = None
    core: Core | None = None
    disabled: tuple[str, ...] = ()

    @property
    def on(self) -> Core:
        """The core that code is for."""
        return self.core or Core()

    @property
    def of_kernels(self) -> CpuKnobs:
        """Those that kernels depend on; the others change only how they are printed and run."""
        return replace(self, lane_bytes=None, rows=None, jointly=None, skew=None, chunks=None, threads=None)

    def __str__(self) -> str:
        """``strip=512, chunks=2``; empty if all is as the passes have it."""
        chosen = [(f, getattr(self, f.name)) for f in fields(self) if f.name != "core"]
        return ", ".join(f"{f.name}={value}" for f, value in chosen if value != f.default)
