"""Does it pay to stitch two groups of nests? From a few figures of each, without forming kernels.

    gain = time(before) + time(mine) - time(joined)

A group takes the longer of its traffic and its operations, on the share of the machine that its rows fill,
and a launch.  What a stitched group moves less is `saved`; what it may lose is parallelism.  Sources:
FusionStitching's delta evaluator  f = T_reduced_mem + T_reduced_calls - T_penalty.

`StitchingCost` is for groups of nests, `PatternCost` for sets of statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.cost.device import Device
from polyfuse.cost.figures import Estimate
from polyfuse.cost.gpu_time import L2_BYTES_PER_CLOCK, USABLE
from polyfuse.cost.machines import Machine
from polyfuse.decisions import format_bytes

# A loss of parallelism must be outweighed by so much: the model is not exact.
MARGIN = 1.05
# Of a launch: joining that saves no more than this changes nothing but what a kernel is laid out for.
LEAST = 0.01
# What the registers of a multiprocessor hold: a block with few rows keeps those it works on.
ON_CHIP = 256 * 1024


@dataclass(frozen=True, slots=True)
class NestFigures:
    """A group of nests under common rows.

    bytes_in, bytes_out: outside of the group, each tensor counted once.  instances: of all statements;
    weight: operations of one.  parallel: blocks or chunks that can run at the same time.  live: bytes that
    one iteration of the rows touches in several phases; again: what later phases touch again, in all.
    launches: 2 where partial results are combined afterwards.
    """

    bytes_in: float
    bytes_out: float
    instances: float
    parallel: int
    live: float = 0.0
    again: float = 0.0
    weight: float = 1.0
    launches: int = 1

    @property
    def nbytes(self) -> float:
        return self.bytes_in + self.bytes_out


@dataclass(frozen=True, slots=True)
class Gain:
    """Seconds saved (negative: lost), of them by traffic and launches, and what parallelism costs."""

    traffic_bytes: float
    traffic: float
    launches: float
    parallelism: float
    launched: int = 1
    least: float = 0.0

    @property
    def seconds(self) -> float:
        return self.traffic + self.launches - self.parallelism

    @property
    def pays(self) -> bool:
        """Does it save more than what idle parts cost, and more than nothing?"""
        return self.saved > max(self.parallelism * MARGIN, self.least)

    def __str__(self) -> str:
        """For a decision: ``3.1 us for 12.6 MB of traffic and a launch saved, 0.4 us lost to idle parts``."""
        what = f"{format_bytes(self.traffic_bytes)} of traffic and {_launches(self.launched)} saved"
        return f"{microseconds(self.saved)} for {what}{self._lost}"

    @property
    def brief(self) -> str:
        """The same where bytes are told elsewhere: ``it saves 3.1 us, 0.4 us lost to idle parts``."""
        return f"it saves {microseconds(self.saved)}{self._lost}"

    @property
    def _lost(self) -> str:
        return f", {microseconds(self.parallelism)} lost to idle parts" if self.parallelism > 0 else ""

    @property
    def saved(self) -> float:
        return self.traffic + self.launches


def _launches(count: int) -> str:
    return "a launch" if count == 1 else f"{count} launches"


def microseconds(seconds: float) -> str:
    """``3.1 us``."""
    return f"{seconds * 1e6:.3g} us"


def gain(before: Estimate, after: Estimate) -> float:
    """Seconds that `after` saves."""
    return before.seconds - after.seconds


@dataclass(frozen=True, slots=True)
class StitchingCost:
    """Decides for layer II on one machine: `cost(first, second, joined)`."""

    machine: Machine

    def __call__(self, first: NestFigures, second: NestFigures, joined: NestFigures) -> Gain:
        """What joining gains: with the machine busy all the time, less what idle parts of it cost."""
        parts = (first, second)
        touched = sum(p.nbytes for p in parts)
        full = sum(self._time(p, 1.0, touched) for p in parts) - self._time(joined, 1.0, touched)
        real = sum(self._real(p, touched) for p in parts) - self._real(joined, touched)
        launched = sum(p.launches for p in parts) - joined.launches
        saved = max(0.0, touched - joined.nbytes)
        least = LEAST * self.launch_s
        return Gain(saved, full, self.launch_s * launched, max(0.0, full - real), launched, least)

    def seconds(self, groups: Sequence[NestFigures]) -> float:
        """What groups take, one after the other."""
        touched = sum(f.nbytes for f in groups)
        return sum(self._real(f, touched) + f.launches * self.launch_s for f in groups)

    def times(self, f: NestFigures, touched: float) -> tuple[float, float]:
        """Seconds of a group without its launches, of those that touch so many bytes together: with the
        machine busy all the time, and as it is."""
        return self._time(f, 1.0, touched), self._real(f, touched)

    @property
    def launch_s(self) -> float:
        return self.machine.next_s

    def share(self, f: NestFigures) -> float:
        """Of the machine that a group keeps busy."""
        return self.share_of(f.parallel)

    def share_of(self, blocks: int) -> float:
        """The same for so many blocks or chunks."""
        return self.machine.share(max(1, blocks))

    def _real(self, f: NestFigures, touched: float) -> float:
        return self._time(f, self.share(f), touched)

    def _time(self, f: NestFigures, share: float, touched: float) -> float:
        """Seconds of a group on a share of the machine, of those that touch so many bytes together: what
        fits a cache is found there, by the next group as well as by the next call."""
        if isinstance(self.machine, Device):
            return self._gpu(f, self.machine, share, touched)
        m = self.machine
        memory = m.levels[-1] if touched > m.levels[-2].capacity else m.levels[-2]
        seconds = f.nbytes / memory.bandwidth + f.again / m.levels[m.level(f.live)].bandwidth
        return max(seconds, f.instances * f.weight / m.operations) / share

    def _gpu(self, f: NestFigures, m: Device, share: float, touched: float) -> float:
        l2, usable = L2_BYTES_PER_CLOCK * m.sms * m.clock * share, m.l2_bytes * USABLE
        again = 0.0 if f.live <= ON_CHIP else f.again
        fits = f.live * min(max(1, f.parallel), m.sms) <= usable
        beyond = (f.nbytes if touched > usable else 0.0) + (0.0 if fits else again)
        lanes = m.operations * share
        work = f.instances * f.weight / lanes
        return max(beyond / m.memory_bandwidth, (f.nbytes + again) / l2, work)


# --- patterns of statements -------------------------------------------------------------------------------

# What a pattern of statements gains as one kernel, and a plan of patterns takes. From figures alone.
#
#     f(pattern) = T_reduced_mem + T_reduced_calls - T_penalty
#
# T_reduced_mem    time of the statements one by one less that of the pattern, on a machine that is busy
#                  all the time: what goes from one to the other, and what several read, passes memory
#                  less often
# T_reduced_calls  launches that are saved
# T_penalty        what idle parts of the machine cost, where common loops are short
#
# The time of a group is that of `StitchingCost`; here all groups of a graph are judged by the same
# level of memory, so that times of disjoint patterns add up.  Source: FusionStitching (2020) section 5, the
# delta evaluator.


@dataclass(frozen=True, slots=True)
class PatternCost:
    """Times and gains on one machine. touched: bytes that the whole graph touches."""

    stitching: StitchingCost
    touched: float

    def seconds(self, f: NestFigures) -> float:
        """Of one kernel with its launches."""
        return self._real(f) + f.launches * self.stitching.launch_s

    def gain(self, parts: Sequence[NestFigures], whole: NestFigures) -> Gain:
        """What one kernel in place of several saves."""
        busy = sum(self._busy(p) for p in parts) - self._busy(whole)
        real = sum(self._real(p) for p in parts) - self._real(whole)
        launched = sum(p.launches for p in parts) - whole.launches
        nbytes = sum(p.nbytes for p in parts) - whole.nbytes
        return Gain(nbytes, busy, self.stitching.launch_s * launched, busy - real, launched)

    def packed(self, parts: Sequence[NestFigures]) -> float:
        """Seconds of kernels side by side in one launch: all their work spread over the machine, or the
        longest of them."""
        work, longest = sum(map(self._busy, parts)), max(map(self._real, parts))
        return max(f.launches for f in parts) * self.stitching.launch_s + max(work, longest)

    def _busy(self, f: NestFigures) -> float:
        return self.stitching.times(f, self.touched)[0]

    def _real(self, f: NestFigures) -> float:
        return self.stitching.times(f, self.touched)[1]


def terms(g: Gain) -> str:
    """For a decision: ``2.1 us for 12.6 MB less traffic + 1.4 us for 2 launches - 0.4 us for idle parts``."""
    sign, idle = ("-", g.parallelism) if g.parallelism >= 0 else ("+", -g.parallelism)
    traffic = f"{microseconds(g.traffic)} for {format_bytes(g.traffic_bytes)} less traffic"
    calls = f"{microseconds(g.launches)} for {g.launched} launch{'' if g.launched == 1 else 'es'}"
    return f"{traffic} + {calls} {sign} {microseconds(idle)} for idle parts"
