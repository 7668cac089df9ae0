"""What it costs to run kernels of a GPU in one launch with barriers of the grid, and what a cut costs.

    cut    = gap between launches + what the drain of one and the start of the next leave idle
    join   = barrier of the grid + what parts lose on a grid that is resident

A resident grid may hold fewer threads than a launch of the part's own, and takes its blocks in rounds of its
size: both count as far as they lower the rate at which memory is read.  That is the lesser of the bandwidth
and of the loads in flight over a round trip (Little's law).  What the parts hand on comes from L2 either
way, if it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from polyfuse.cost.gpu_time import IN_FLIGHT, ROUND_TRIP_S
from polyfuse.ir.kernel import Kernel, Scope


def at_once(part: Kernel, threads: int) -> int:
    """Iterations of a part's block loops that a block of a joined kernel takes side by side, at most.

    Threads that wait for each other, as those that share a reduction or shared memory, have a block alone.
    """
    shared = any(b.scope is Scope.SHARED for b in part.buffers)
    reduces = any(s.reduction is not None for s in part.graph.statements)
    return 1 if shared or reduces else max(1, threads // prod(part.threads))


@dataclass(frozen=True, slots=True)
class Work:
    """A part: bytes moved; its blocks with the threads of each; bytes that one load of a thread gets."""

    nbytes: float
    blocks: float
    threads: float
    load: float

    def seconds(self, slots: int, bandwidth: float) -> float:
        """With so many of its blocks side by side."""
        blocks = max(1.0, self.blocks)
        full, rest = divmod(blocks, max(1, slots))
        times = full * slots / self._rate(slots, bandwidth) + (
            rest / self._rate(rest, bandwidth) if rest else 0
        )
        return self.nbytes / blocks * times

    def _rate(self, blocks: float, bandwidth: float) -> float:
        return min(bandwidth, blocks * self.threads * self.load * IN_FLIGHT / ROUND_TRIP_S)

    def crowded(self, at_once: int) -> Work:
        """With so many of its blocks in one."""
        return Work(self.nbytes, self.blocks / at_once, self.threads * at_once, self.load)


def side_by_side(works: Sequence[Work]) -> Work:
    """Several as one, with blocks that are like the mean of theirs."""
    blocks = sum(w.blocks for w in works)
    if len(works) == 1 or not blocks:  # without blocks there is nothing to do
        return works[0]
    threads = sum(w.blocks * w.threads for w in works)
    loads = sum(w.blocks * w.threads * w.load for w in works)
    return Work(sum(w.nbytes for w in works), blocks, threads / blocks, loads / threads)


@dataclass(frozen=True, slots=True)
class Choice:
    """Seconds of a barrier and of a cut, and what the resident grid loses."""

    barrier: float
    cut: float
    lost: float

    @property
    def joins(self) -> bool:
        return self.barrier + self.lost < self.cut

    def __str__(self) -> str:
        lost = f", a resident grid loses {_us(self.lost)}" if self.lost > 0.5e-8 else ""
        return f"a barrier takes {_us(self.barrier)}{lost}; a cut takes {_us(self.cut)}"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us"
