"""What kernels are made for: a class for each target, and what the layers ask of all of them.

The layers never ask which class a target is of in order to choose a number or a rule: they ask for what they
mean, as `vector_loops`.  Where whole algorithms differ, one function chooses by the class (`singledispatch`):
`layers.mapping.targets`, `layers.stitching.targets`, `cost.machines`.  docs/internals/adding_a_target.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

# The column of the tables of cost.
Kind = Literal["cpu", "gpu"]


class Target(Protocol):
    """What layers ask of any target.

    kind           the column of the tables of cost that its operations are in
    vector_loops   lanes of vectors run along the innermost loop (else threads share the loops)
    row_caches     what a worker touches of a row stays in caches that it need not manage
    cheap_waits    to wait for a result takes no longer than to compute a few numbers again
    followers      tiles of contractions compute what follows an element while they have it
    rows_at_once   rows of sequential loops that keep it busy
    library        are there matrix products of a library (None: nobody looked)?
    library_halves   does the library take factors of half precision?
    library_copies   does a call bring factors into its own order, so that they may lie in any?
    """

    @property
    def kind(self) -> Kind: ...
    @property
    def vector_loops(self) -> bool: ...
    @property
    def row_caches(self) -> bool: ...
    @property
    def cheap_waits(self) -> bool: ...
    @property
    def followers(self) -> bool: ...
    @property
    def rows_at_once(self) -> int: ...
    @property
    def library(self) -> bool | None: ...
    @property
    def library_halves(self) -> bool: ...
    @property
    def library_copies(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """A CPU: so many threads of a pool. The core that code is for is one of its knobs (`ir.cpu_core`)."""

    threads: int = 2

    kind: ClassVar[Kind] = "cpu"
    vector_loops: ClassVar[bool] = True
    row_caches: ClassVar[bool] = True
    cheap_waits: ClassVar[bool] = True
    followers: ClassVar[bool] = True
    library: ClassVar[bool | None] = True
    library_halves: ClassVar[bool] = False
    library_copies: ClassVar[bool] = True

    @property
    def rows_at_once(self) -> int:
        return self.threads


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """What mapping must know of a GPU, and what it may be told.

    sms: multiprocessors.  threads: of a block, for points and packed rows; longest: of a block that has
    one row.  shared_bytes: of a block; shared_per_sm: of a multiprocessor, with `shared_reserved` for each
    of its blocks.  row_threads, vector and unroll force the threads along a row (any number), the elements
    of a vector, and how many vectors a thread takes together at most; these and block_rows, resident, keep,
    columns, chunks and stores are wishes (`gpu_plan.GpuPlan`).  parallel: reductions with
    fewer instances are not split over blocks; least: instances that a block of a split reduction has at
    least.
    resident_threads, registers: of a multiprocessor.  bandwidth: bytes per second; launch_s, drain_s: what
    a launch takes, and what its end leaves idle; barrier_s: a barrier of the whole grid; clock and
    l2_bytes are for the cost model.  library: are there matrix products of a library (None: nobody
    looked)? halvings: how often a thread keeps half of what it could of rows and vectors, because kernels
    spilled.
    """

    sms: int = 132
    threads: int = 256
    longest: int = 1024
    shared_bytes: int = 48 * 1024
    shared_per_sm: int = 96 * 1024
    shared_reserved: int = 0
    row_threads: int | None = None
    vector: int | None = None
    unroll: int | None = None
    block_rows: int | None = None
    resident: bool | None = None
    keep: str | None = None
    columns: str | None = None
    chunks: int | None = None
    stores: str | None = None
    parallel: int = 32 * 1024
    least: int = 4 * 1024
    resident_threads: int = 2048
    registers: int = 64 * 1024
    bandwidth: float = 4.8e12
    launch_s: float = 2.5e-6
    drain_s: float = 0.6e-6
    barrier_s: float = 2.6e-6
    clock: float = 1.98e9
    l2_bytes: int = 60 << 20
    library: bool | None = None
    halvings: int = 0

    kind: ClassVar[Kind] = "gpu"
    vector_loops: ClassVar[bool] = False
    row_caches: ClassVar[bool] = False
    cheap_waits: ClassVar[bool] = False
    followers: ClassVar[bool] = False
    library_copies: ClassVar[bool] = False

    @property
    def library_halves(self) -> bool:
        return bool(self.library)

    @property
    def rows_at_once(self) -> int:
        return self.sms * self.threads


def as_target(given: Target | int) -> Target:
    """A target as users give it: a number is that of a CPU's threads."""
    # The only question about numbers: behind the doors of the layers there are targets only.
    return CpuTarget(given) if isinstance(given, int) else given
