"""Does it pay to run kernels side by side? From the estimates of each alone.

    apart   = sum over kernels of (overhead + spent)
    packed  = overhead + max(sum of work spread over the machine, the longest part)

A kernel that fills the machine alone gains the overhead only; kernels that leave much of it idle run at the
time of one of them.  On a GPU all parts get the registers and shared memory of the one that needs most, so
that fewer blocks may be resident: what that costs those that needed less is taken off.  Source: Apollo
(MLSys'22) algorithm 3, gain = sum - max.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.device import Device
from polyfuse.cost.figures import KernelEstimate, joined

# What the pool takes from one step that needs no worker to the next.
CALL_S = 2e-8


@dataclass(frozen=True, slots=True)
class PackedTimes:
    """Times of kernels, by number, alone and in packs, on one machine."""

    machine: Device | CpuDevice
    kernels: tuple[KernelEstimate, ...]

    def alone(self, k: int) -> float:
        """Seconds of one kernel in a launch of its own."""
        return self._kernel(k).seconds + (CALL_S if isinstance(self.machine, CpuDevice) else 0.0)

    def gains(self, kernels: Sequence[int]) -> list[float]:
        """Seconds that a pack of the first, the first two, ... of the kernels saves."""
        apart, work, longest, least, most = 0.0, 0.0, 0.0, 1e9, 0.0
        found = []
        for k in kernels:
            e = self._kernel(k)
            apart += self.alone(k)
            work += e.terms.spent * self._share(e)
            longest = max(longest, e.terms.spent)
            least, most = min(least, self._slots(e)), max(most, self._slots(e))
            found.append(apart - self._packed(work, longest, most / least))
        found[0] = 0.0
        return found

    def in_blocks(self, kernels: Sequence[int], threads: int) -> float:
        """Seconds of a pack of kernels whose blocks may be smaller than those of the launch on a GPU.

        A multiprocessor holds as many blocks as it would of the part that leaves least room, and of each only
        the threads that its part has.  That slows down parts which need the room.
        """
        estimates = [self._kernel(k) for k in kernels]
        blocks = min(_resident_threads(e) // threads for e in estimates)
        if blocks < 1:
            return math.inf  # the registers that a part needs do not allow blocks of that size
        work, longest = 0.0, 0.0
        for e in estimates:
            needed = _resident_threads(e) * min(1.0, e.waves)
            spent = e.terms.spent * self._slowdown(needed / (blocks * e.threads))
            work += spent * self._share(e)
            longest = max(longest, spent)
        overhead = self.machine.launch_overhead_s if isinstance(self.machine, Device) else 0.0
        return overhead + max(work, longest)

    def _packed(self, work: float, longest: float, tight: float) -> float:
        """Seconds of a pack: so much work of the whole machine; the longest part alone."""
        m = self.machine
        if isinstance(m, Device):
            return m.launch_overhead_s + max(work, longest) * self._slowdown(tight)
        # Small ones are all done by the caller, without waking a worker.
        return CALL_S + min(m.step_s + max(work, longest), work * m.threads)

    def reason(self, pack: Sequence[int], refused: Sequence[int]) -> str:
        """For a decision."""
        apart = sum(self.alone(k) for k in pack)
        if len(pack) > 1:
            saved = self.gains(pack)[-1]
            return f"{len(pack)} kernels side by side take {_us(apart - saved)} instead of {_us(apart)}"
        both = self.gains([*pack, *refused])[-1]
        return f"it fills the machine alone: with the next one {_us(both)} would be gained of {_us(apart)}"

    def _kernel(self, k: int) -> KernelEstimate:
        return self.kernels[k]

    def _share(self, e: KernelEstimate) -> float:
        """The part of the machine that a kernel keeps busy while it runs."""
        if isinstance(self.machine, CpuDevice):
            return e.threads / self.machine.threads
        return min(1.0, max(e.waves, e.terms.memory / max(e.terms.spent, 1e-12)))

    @staticmethod
    def _slots(e: KernelEstimate) -> float:
        """Threads that a multiprocessor holds of a kernel; all CPU kernels are alike."""
        return e.occupancy.fraction if e.occupancy is not None else 1.0

    @staticmethod
    def _slowdown(tight: float) -> float:
        """What a pack takes longer because a part needs so many times the room: half of the threads still
        reach about three quarters of the bandwidth."""
        return 1.0 + max(0.0, tight - 1.0) / 3


def _resident_threads(e: KernelEstimate) -> int:
    """Threads of a kernel that a multiprocessor holds."""
    return e.occupancy.blocks_per_sm * e.threads if e.occupancy is not None else e.threads


def side_by_side(name: str, parts: Sequence[KernelEstimate], machine: Device | CpuDevice) -> KernelEstimate:
    """One launch that runs several kernels next to each other."""
    if len(parts) == 1:
        return parts[0]
    times = PackedTimes(machine, tuple(parts))
    apart = sum(times.alone(k) for k in range(len(parts)))
    seconds = apart - times.gains(range(len(parts)))[-1]
    whole = joined(name, parts, 0.0)
    overhead = machine.launch_overhead_s if isinstance(machine, Device) else 0.0
    return replace(
        whole,
        blocks=sum(p.blocks for p in parts),
        waves=sum(p.waves for p in parts),
        grid_barriers=0,
        terms=replace(whole.terms, overhead=overhead, spent=max(0.0, seconds - overhead)),
    )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us"
