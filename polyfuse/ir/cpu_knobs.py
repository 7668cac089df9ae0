"""What the CPU code of a schedule can be varied by: one field for each number or choice of code generation.

None leaves a choice to the pass that makes it, with its own figures.  Every value gives the same results but
for the order of sums; which is fastest only a measurement can tell (`polyfuse.tuning`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from polyfuse.ir.cpu_core import Core


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
        chosen = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name != "core"]
        return ", ".join(f"{name}={value}" for name, value in chosen if value is not None)
