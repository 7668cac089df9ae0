"""The time of a kernel on a CPU.

    max over levels (bytes from it or from beyond / bandwidth), operations / rate of the lanes
    + what memory takes longer for short pieces of many rows

All rates are those of the threads that have work, less what the last round of blocks leaves idle.  A nest
whose innermost loop is not in vector lanes computes one element where a vector has many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from polyfuse.cost import lines
from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.extents import extents, instances
from polyfuse.cost.figures import KernelEstimate, by_level, terms
from polyfuse.cost.nests import OUTSIDE, Nest
from polyfuse.cost.operations import Operations, operations
from polyfuse.cost.traffic import Keeping, traffic
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Statement, statement_reads

# What an access takes of the lanes: of one element in a vector, of one far from its neighbours.
ACCESS, STRIDED = 0.5, 40.0
L2 = 1  # among the levels of a machine
# How much longer than as whole rows short pieces of many rows take from beyond L2, while others compute or
# not (measured: 0.2 to 0.8 from L3, 1.3 to 2.2 from memory; docs/lab/targets.md).
PIECES = 1.6
# What it takes to set up the accumulators of one sum, and to add them up.
COMBINED = 256.0


def _barriers(found: tuple[Nest, ...]) -> float:
    """How often workers wait for each other in a kernel: after each nest that is spread, in each step."""
    spread = {n.blocks[0]: n.count(Coordinate.TIME) for n in found if n.blocks}
    return max(1.0, sum(spread.values()))


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Figures of kernels on one CPU. core_s: seconds of a kernel's loops on all threads, where these are
    looked at (`cost.loop_time`) in place of its statements."""

    machine: CpuDevice
    core_s: Callable[[Kernel], float] | None = None

    def barriers_s(self, parts: Sequence[KernelEstimate]) -> float:
        """Between the parts of one region: as a step of its own takes."""
        return sum(p.terms.overhead for p in parts[1:])

    def of(self, kernel: Kernel, found: tuple[Nest, ...], since: Mapping[str, float]) -> KernelEstimate:
        """One kernel; `since` is its row of `traffic.distances`."""
        m = self.machine
        blocks = max(1.0, max((n.block_count for n in found), default=1.0))
        threads = min(m.threads, ceil(blocks))
        keeping = Keeping(lambda b: m.level(b / m.threads), m.level, m.level, True)
        moved = traffic(found, since, keeping)
        # Rates count for all threads; the last round of blocks may leave some of them idle.
        share = threads / m.threads * blocks / (ceil(blocks / threads) * threads)
        times = [t / share for t in by_level(moved.by_level, [x.bandwidth for x in m.levels])]
        work = sum((operations(n.timed, "cpu") for n in found), Operations())
        lanes = sum(self._lanes(n) for n in found)
        names = [x.name for x in m.levels]
        nbytes = (*moved.by_level, *[0.0] * len(names))
        # Whoever looks at loops has seen lines there, and weighed pieces of rows before
        # (`polyfuse.driver.feedback`).
        pieces = 0.0
        if not self.core_s:
            pieces = sum(lines.seconds(n, since, m) / share + self._pieces(n, since) for n in found)
        spent = terms(
            memory=times[-1],
            cache=max(times[:-1], default=0.0),
            operations=self.core_s(kernel) if self.core_s else lanes / m.operations / share,
            latency=0.0,
            overhead=m.step_s * _barriers(found) if threads > 1 else 0.0,
        )
        return KernelEstimate(
            name=kernel.name,
            read=moved.read,
            written=moved.written,
            levels=tuple(zip(names, nbytes, strict=False)),
            work=work,
            blocks=ceil(blocks),
            threads=threads,
            waves=blocks / threads,
            occupancy=None,
            block_barriers=0,
            grid_barriers=0,
            terms=replace(spent, latency=pieces, spent=spent.spent + pieces),
        )

    def _pieces(self, n: Nest, since: Mapping[str, float]) -> float:
        """Seconds that are lost to short pieces of rows."""
        if n.tiles is not None:
            return 0.0
        m, lost = self.machine, 0.0
        for a in n.accesses:
            level = m.level(since.get(a.tensor, 0.0) / m.threads)
            if a.scope in OUTSIDE and level > L2 and a.in_pieces:
                lost += a.nbytes * PIECES / m.levels[level].bandwidth
        return lost

    def _lanes(self, n: Nest) -> float:
        """What a nest takes of the lanes; a short loop leaves some of a vector's empty."""
        lanes = self.machine.lanes
        if n.tiles is not None:
            return self.machine.tiles_s(n.tiles) / self.machine.threads * self.machine.operations
        one = operations(n.timed, "cpu").weighted + n.loads * ACCESS
        trip = n.count(Coordinate.VECTOR)
        if not any(m.coordinate is Coordinate.VECTOR for m in n.loops):
            return one * lanes + n.strided() * STRIDED
        full = ceil(trip / lanes) * lanes / max(1.0, trip)
        return one * full + n.lane_sums * COMBINED + n.strided() * STRIDED


# --- shared steps of recurrences --------------------------------------------------------------------------

# Does it pay to share a part of a recurrence's step among the workers of a CPU?
#
#     gain  =  time of the part on one core * (1 - 1 / threads)  -  time of a barrier of the workers
#
# Each step waits for the one before, so that the gain must be found in every one of them, and it must be a
# good part of the time: others may need the cores.  What a step touches is near after the first steps, so
# operations and accesses are what takes time.


# Of the time alone, that must be saved.
LEAST_PART = 0.2
# What a worker's claims of two chunks take of the others' time; 0.03 us each were measured.
CLAIMS_S = 0.07e-6


def part_seconds(statements: Iterable[Statement], steps: int, machine: CpuDevice) -> float:
    """Of statements in one of so many steps, on one core."""
    timed = [(s, extents(s)) for s in statements]
    lanes = operations(timed, "cpu").weighted
    lanes += sum((1 + len(set(statement_reads(s)))) * ACCESS * instances(found) for s, found in timed)
    return lanes / (machine.operations / machine.threads) / max(1, steps)


@dataclass(frozen=True, slots=True)
class Gain:
    """Of sharing what takes so many seconds `alone`, on one core."""

    alone: float
    machine: CpuDevice

    @property
    def seconds(self) -> float:
        m = self.machine
        return self.alone * (1 - 1 / m.threads) - m.step_s - m.threads * CLAIMS_S

    @property
    def pays(self) -> bool:
        return self.seconds > LEAST_PART * self.alone
