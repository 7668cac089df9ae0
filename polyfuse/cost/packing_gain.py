"""Does it pay to run kernels side by side? From the estimates of each alone.

    apart   = sum over kernels of (overhead + spent)
    packed  = overhead + max(sum of work spread over the machine, the longest part)

A kernel that fills the machine alone gains the overhead only; kernels that leave much of it idle run at the
time of one of them.  On a GPU all parts get the registers and shared memory of the one that needs most, so
that fewer blocks may be resident: what that costs those that needed less is taken off.  Source: Apollo
(MLSys'22) algorithm 3, gain = sum - max.

`Choice` weighs barriers of the grid against further launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Protocol

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.figures import KernelEstimate, joined
from polyfuse.cost.gpu_time import ROUND_TRIP_S
from polyfuse.cost.machines import Machine
from polyfuse.ir.kernel import Kernel, Scope

# What the pool takes from one step that needs no worker to the next.
CALL_S = 2e-8


class _Packs(Protocol):
    """What kernels side by side take on one machine: a launch, and what each of them would take apart."""

    @property
    def launch_s(self) -> float: ...
    @property
    def each_s(self) -> float: ...
    @property
    def at_any_sizes(self) -> bool:
        """Is a pack cut when it is launched, so that sizes may be open?"""
        ...

    def packed(self, work: float, longest: float, slowdown: float) -> float:
        """Seconds of a pack: so much work of the whole machine; the longest part alone."""
        ...

    def share(self, e: KernelEstimate) -> float:
        """The part of the machine that a kernel keeps busy while it runs."""
        ...


@dataclass(frozen=True, slots=True)
class _OnGpu:
    launch_s: float
    each_s: float = 0.0
    at_any_sizes: bool = False

    def packed(self, work: float, longest: float, slowdown: float) -> float:
        return self.launch_s + max(work, longest) * slowdown

    def share(self, e: KernelEstimate) -> float:
        return min(1.0, max(e.waves, e.terms.memory / max(e.terms.spent, 1e-12)))


@dataclass(frozen=True, slots=True)
class _OnCpu:
    threads: int
    step_s: float
    launch_s: float = 0.0
    each_s: float = CALL_S
    at_any_sizes: bool = True

    def packed(self, work: float, longest: float, slowdown: float) -> float:
        """Small ones are all done by the caller, without waking a worker."""
        return self.each_s + min(self.step_s + max(work, longest), work * self.threads)

    def share(self, e: KernelEstimate) -> float:
        return e.threads / self.threads


def packs_on(machine: Machine) -> _Packs:
    """Packs on a machine."""
    if isinstance(machine, CpuDevice):
        return _OnCpu(machine.threads, machine.step_s)
    return _OnGpu(machine.launch_overhead_s)


@dataclass(slots=True)
class PackedTimes:
    """Times of kernels, by number, alone and in packs, on one machine."""

    machine: Machine
    kernels: tuple[KernelEstimate, ...]
    opened: bool = False
    """Do they have sizes as parameters? Then estimates are those at sizes that figures take for open ones."""
    _on: _Packs = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._on = packs_on(self.machine)

    def alone(self, k: int) -> float:
        """Seconds of one kernel in a launch of its own."""
        return self._kernel(k).seconds + self._on.each_s

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
        return self._on.launch_s + max(work, longest)

    def _packed(self, work: float, longest: float, tight: float) -> float:
        """Seconds of a pack: so much work of the whole machine; the longest part alone."""
        return self._on.packed(work, longest, self._slowdown(tight))

    def reason(self, pack: Sequence[int], refused: Sequence[int]) -> str:
        """For a decision."""
        apart = sum(self.alone(k) for k in pack)
        if len(pack) > 1:
            saved = self.gains(pack)[-1]
            return f"{len(pack)} kernels side by side take {_us(apart - saved)} instead of {_us(apart)}"
        both = self.gains([*pack, *refused])[-1]
        change = f"save only {_us(both)}" if both >= 0 else f"cost {_us(-both)} more"
        names = ", ".join(self._kernel(k).name for k in refused)
        return f"it fills the machine alone, in {_us(apart)}: a pack with {names} would {change}"

    def _kernel(self, k: int) -> KernelEstimate:
        return self.kernels[k]

    def _share(self, e: KernelEstimate) -> float:
        """The part of the machine that a kernel keeps busy while it runs."""
        return self._on.share(e)

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


def side_by_side(name: str, parts: Sequence[KernelEstimate], machine: Machine) -> KernelEstimate:
    """One launch that runs several kernels next to each other."""
    if len(parts) == 1:
        return parts[0]
    times = PackedTimes(machine, tuple(parts))
    apart = sum(times.alone(k) for k in range(len(parts)))
    seconds = apart - times.gains(range(len(parts)))[-1]
    whole = joined(name, parts, 0.0)
    overhead = packs_on(machine).launch_s
    return replace(
        whole,
        blocks=sum(p.blocks for p in parts),
        waves=sum(p.waves for p in parts),
        grid_barriers=0,
        terms=replace(whole.terms, overhead=overhead, spent=max(0.0, seconds - overhead)),
    )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us"


# --- barriers of the grid ---------------------------------------------------------------------------------

# What it costs to run kernels of a GPU in one launch with barriers of the grid, and what a cut costs.
#
#     cut    = gap between launches + what the drain of one and the start of the next leave idle
#     join   = barrier of the grid + what parts lose on a grid that is resident
#
# A resident grid may hold fewer threads than a launch of the part's own, and takes its blocks in rounds of
# its size: both count as far as they lower the rate at which memory is read.  That is the lesser of the
# bandwidth and of the loads in flight over a round trip (Little's law).  What the parts hand on comes from L2
# either way, if it fits.


def at_once(part: Kernel, threads: int) -> int:
    """Iterations of a part's block loops that a block of a joined kernel takes side by side, at most.

    Threads that wait for each other, as those that share a reduction or shared memory, have a block alone.
    """
    shared = any(b.scope is Scope.SHARED for b in part.buffers)
    reduces = any(s.reduction is not None for s in part.graph.statements)
    return 1 if shared or reduces else max(1, threads // prod(part.threads))


@dataclass(frozen=True, slots=True)
class Work:
    """A part: bytes moved; its blocks with the threads of each; bytes that a thread has on their way."""

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
        return min(bandwidth, blocks * self.threads * self.load / ROUND_TRIP_S)

    def crowded(self, at_once: int) -> Work:
        """With so many of its blocks in one."""
        return Work(self.nbytes, self.blocks / at_once, self.threads * at_once, self.load)


def joint_work(works: Sequence[Work]) -> Work:
    """Several as one, with blocks that are like the mean of theirs."""
    blocks = sum(w.blocks for w in works)
    if len(works) == 1 or not blocks:  # without blocks there is nothing to do
        return works[0]
    threads = sum(w.blocks * w.threads for w in works)
    loads = sum(w.blocks * w.threads * w.load for w in works)
    return Work(sum(w.nbytes for w in works), blocks, threads / blocks, loads / threads)


# A launch more keeps the host another 2 us, which counts where it is not ahead of the device.
LAUNCH_AND_HOST = 1.75
# Of the time of the kernels: less is within the model's error, and one launch is taken.
WITHIN_ERROR = 0.02


@dataclass(frozen=True, slots=True)
class Choice:
    """Seconds of a barrier and of a cut, what the resident grid loses, and what the kernels take apart."""

    barrier: float
    cut: float
    lost: float
    apart: float

    @property
    def joins(self) -> bool:
        more = self.lost + max(0.0, self.barrier - self.cut)
        paid = self.barrier + self.lost < LAUNCH_AND_HOST * self.cut
        return paid or more < WITHIN_ERROR * self.apart

    def __str__(self) -> str:
        lost = f", a resident grid loses {_us(self.lost)}" if self.lost > 0.5e-8 else ""
        return f"a barrier takes {_us(self.barrier)}{lost}; a cut takes {_us(self.cut)}"
