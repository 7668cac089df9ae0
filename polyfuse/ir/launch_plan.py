"""The launch plan: what runs, in which order, on which memory.

    LaunchPlan = buffers, launches, scratch_bytes
    Launch     = one function of one kernel: `count` iterations, handed out in chunks if `parallel`

`buffers` fixes the order of the pointer table that every function gets; workspace buffers live in one
block at static offsets, those that are never alive together in the same place.  Counts and extents are index
expressions, evaluated at launch.

On a GPU the plan is one of grids:

    GridPlan   = buffers, launches, alignment
    GridLaunch = one function: `blocks` blocks of `threads` threads, with its arguments in order
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from polyfuse.ir.contraction import MatrixProduct
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IndexExpr


class Kind(Enum):
    INPUT = "input"
    OUTPUT = "output"
    INOUT = "inout"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class PlanBuffer:
    """`strided`: element strides come at run time; otherwise the memory is dense and row-major.

    `alias` names the inout entry value that an output shares memory with.  `live`: the first and the last
    step of the plan that touch it, for workspace; None: all of them.
    """

    name: str
    dtype: DType
    shape: tuple[IndexExpr, ...]
    kind: Kind
    strided: bool = False
    alias: str | None = None
    live: tuple[int, int] | None = None

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        flags = " strided" * self.strided + (f" in place of {self.alias}" if self.alias else "")
        return f"{self.kind.value:9s} {self.name}: {self.dtype}[{shape}]{flags}"


@dataclass(frozen=True, slots=True)
class Launch:
    """`instances` is the number of statement instances, for choosing chunks and for reports; `work` is what
    they are in those of a plain statement (`ir.kernel.work`), for choosing threads.  Iterations are computed
    `together`, so many at a time, where a chunk has so many; the largest number comes first.  A
    chunk has `least` iterations, where each thread gets so many, if they share what it computes before.  The
    first launch of a `series` of so many says that they run one after the other, in so many `rounds`; in
    round r the iterations are those from r * count on.

    Where a library does the work there is no function.
    """

    function: str
    kernel: str
    count: IndexExpr
    instances: IndexExpr
    work: IndexExpr
    parallel: bool
    library: MatrixProduct | None = None
    together: tuple[int, ...] = ()
    series: int = 1
    rounds: int = 1
    least: int = 1

    def __str__(self) -> str:
        if self.library is not None:
            return f"library ({self.kernel}): {self.library}, {self.instances} instances"
        how = f"parallel over {self.count}" if self.parallel else "serial"
        how += f", {self.together[0]} at a time" if self.together else ""
        how += f", in each of {self.rounds} rounds" if self.rounds != 1 else ""
        how += f" of {self.series} launches" if self.series > 1 else ""
        return f"{self.function} ({self.kernel}): {how}, {self.instances} instances"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """`copied` names inout parameters whose entry values are copied first (no in-place order exists).

    chunks: of a parallel launch, for each thread; threads: that take part at most (None: the run time's).
    """

    buffers: tuple[PlanBuffer, ...]
    launches: tuple[Launch, ...]
    scratch_bytes: int
    sizes: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    chunks: int | None = None
    threads: int | None = None

    def __str__(self) -> str:
        lines = ["buffers", *(f"  {b}" for b in self.buffers)]
        lines += ["launches", *(f"  {k}. {launch}" for k, launch in enumerate(self.launches))]
        if self.copied:
            lines.append(f"copied at entry: {', '.join(self.copied)}")
        return "\n".join(lines)


class Passing(Enum):
    """How a parameter of a GPU function gets its value."""

    POINTER = "pointer"  # address of the buffer `name`
    VALUE = "value"  # the one element of the buffer `name`, which has no dims and is only read
    SIZE = "size"  # the open size `name`, 64 bits
    STRIDE = "stride"  # element stride of the buffer `name` along `dim`, 64 bits
    STATUS = "status"  # address of a 64-bit cell: checked builds store the number of a failed check there
    BARRIER = "barrier"  # address of the state of grid barriers: two zeroed 32-bit words per launch
    TABLE = "table"  # address of the launch's table, with a cell of 8 bytes for each argument in it


@dataclass(frozen=True, slots=True)
class Argument:
    passing: Passing
    name: str = ""
    dim: int = 0

    def __str__(self) -> str:
        where = f".{self.dim}" if self.passing is Passing.STRIDE else ""
        return f"{self.passing.value} {self.name}{where}".rstrip()


@dataclass(frozen=True, slots=True)
class GridLaunch:
    """One launch. Nothing is launched where `blocks` is 0.

    `threads` is (x, y); `shared_bytes` is the shared memory of a block.  The launch must ask for
    `dynamic_bytes` of it, where it is more than functions may declare.  A cooperative launch has grid
    barriers: all its blocks must be resident at once.  Arguments that are too many to be passed are those of
    the `table`.  Where a library computes a product there is no function: arguments are the addresses
    of left, right and result.
    """

    function: str
    kernel: str
    blocks: IndexExpr
    threads: tuple[int, int]
    shared_bytes: int
    arguments: tuple[Argument, ...]
    cooperative: bool = False
    dynamic_bytes: int = 0
    table: tuple[Argument, ...] = ()
    library: MatrixProduct | None = None

    def __str__(self) -> str:
        if self.library is not None:
            return f"library ({self.kernel}): {self.library}"
        x, y = self.threads
        extra = f", {self.shared_bytes} bytes shared" * bool(self.shared_bytes)
        extra += f" ({self.dynamic_bytes} at launch)" * bool(self.dynamic_bytes)
        extra += ", cooperative" * self.cooperative
        extra += f", {len(self.table)} arguments in a table" * bool(self.table)
        return f"{self.function} ({self.kernel}): {self.blocks} blocks of {x} x {y} threads{extra}"


@dataclass(frozen=True, slots=True)
class GridPlan:
    """`alignment` names the buffers whose address must be a multiple of more than their element's size,
    with the bytes; `copied` as in `LaunchPlan`."""

    buffers: tuple[PlanBuffer, ...]
    launches: tuple[GridLaunch, ...]
    alignment: tuple[tuple[str, int], ...] = ()
    sizes: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()

    def __str__(self) -> str:
        needs = dict(self.alignment)
        lines = ["buffers"]
        lines += [
            f"  {b}" + (f", {needs[b.name]}-byte aligned" if b.name in needs else "") for b in self.buffers
        ]
        lines += ["launches", *(f"  {k}. {launch}" for k, launch in enumerate(self.launches))]
        if self.copied:
            lines.append(f"copied at entry: {', '.join(self.copied)}")
        return "\n".join(lines)
