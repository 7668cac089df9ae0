"""Does it pay to stitch two groups of nests? From a few figures of each, without forming kernels.

    gain = time(before) + time(mine) - time(joined)

A group takes the longer of its traffic and its operations, on the share of the machine that its rows fill,
and one launch.  What a stitched group moves less is `saved`; what it may lose is parallelism.  Sources:
FusionStitching's delta evaluator  f = T_reduced_mem + T_reduced_calls - T_penalty.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.device import Device
from polyfuse.cost.figures import Estimate
from polyfuse.cost.gpu_time import L2_BYTES_PER_CLOCK, USABLE
from polyfuse.decisions import format_bytes


@dataclass(frozen=True, slots=True)
class NestFigures:
    """A group of nests under common rows.

    bytes_in, bytes_out: outside of the group, each tensor counted once.  instances: of all statements;
    weight: operations of one.  parallel: iterations of the rows.  live: bytes that one iteration of the
    rows touches and reads again in a later phase (0 with one phase).
    """

    bytes_in: float
    bytes_out: float
    instances: float
    parallel: int
    live: float = 0.0
    phases: int = 1
    weight: float = 1.0

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

    @property
    def seconds(self) -> float:
        return self.traffic + self.launches - self.parallelism

    @property
    def pays(self) -> bool:
        return self.seconds > 0

    def __str__(self) -> str:
        """For a decision: ``saves 12.6 MB of traffic (3.1 us) and a launch, costs 0.4 us of parallelism``."""
        text = f"saves {format_bytes(self.traffic_bytes)} of traffic and a launch ({_us(self.saved)})"
        return text + (f", costs {_us(self.parallelism)} of parallelism" if self.parallelism > 0 else "")

    @property
    def saved(self) -> float:
        return self.traffic + self.launches


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us"


def gain(before: Estimate, after: Estimate) -> float:
    """Seconds that `after` saves."""
    return before.seconds - after.seconds


@dataclass(frozen=True, slots=True)
class StitchingCost:
    """Decides for layer II on one machine: `cost(first, second, joined)`."""

    machine: Device | CpuDevice

    def __call__(self, first: NestFigures, second: NestFigures, joined: NestFigures) -> Gain:
        """What joining gains: with the machine busy all the time, less what idle parts of it cost."""
        parts = (first, second)
        full = sum(self._time(p, 1.0) for p in parts) - self._time(joined, 1.0)
        real = sum(self._time(p, self.share(p)) for p in parts) - self._time(joined, self.share(joined))
        saved = sum(p.nbytes for p in parts) - joined.nbytes
        return Gain(saved, full, self.launch_s, max(0.0, full - real))

    @property
    def launch_s(self) -> float:
        m = self.machine
        return m.launch_overhead_s if isinstance(m, Device) else m.step_s

    def share(self, f: NestFigures) -> float:
        """Of the machine that the rows keep busy: workers, or multiprocessors with one row each."""
        m = self.machine
        units = m.sms if isinstance(m, Device) else m.threads
        rows = max(1, f.parallel)
        return rows / (ceil(rows / units) * units)

    def _time(self, f: NestFigures, share: float) -> float:
        """Seconds of a group on a share of the machine; later phases find what is live in a cache, or not."""
        again = f.live * max(1, f.parallel) * (f.phases - 1)
        if isinstance(self.machine, Device):
            return self._gpu(f, again, share)
        m = self.machine
        level = m.level(f.live)
        memory = m.levels[-1] if f.nbytes > m.levels[-2].capacity else m.levels[-2]
        seconds = f.nbytes / memory.bandwidth + again / m.levels[level].bandwidth
        return max(seconds, f.instances * f.weight / m.operations) / share

    def _gpu(self, f: NestFigures, again: float, share: float) -> float:
        m = self.machine
        assert isinstance(m, Device)
        l2 = L2_BYTES_PER_CLOCK * m.sms * m.clock * share
        fits = f.live * min(max(1, f.parallel), m.sms) <= m.l2_bytes * USABLE
        beyond = f.nbytes + (0.0 if fits else again)
        lanes = 128 * m.sms * m.clock * share
        return max(beyond / m.memory_bandwidth, (f.nbytes + again) / l2, f.instances * f.weight / lanes)
