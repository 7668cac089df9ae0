"""The time of a kernel on a GPU.

    max(memory, L2, operations, waves x time of a warp)          and what a launch takes

The first is a rate of the whole device, the next two are sums of those of its multiprocessors: where there
are fewer blocks, or the last ones leave some idle, they are less.  The fourth is FusionStitching's
L = N_wave L_warp  with  L_warp = N_instr CPI, and one round trip to memory for each nest and for every few
iterations: it counts where there are too few threads to hide it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from polyfuse.cost.device import MAX_REGISTERS_PER_THREAD, WARP, Device, Multiprocessor, occupancy
from polyfuse.cost.figures import KernelEstimate, by_level, terms
from polyfuse.cost.nests import Nest
from polyfuse.cost.operations import Operations, operations
from polyfuse.cost.traffic import Holds, Keeping, traffic
from polyfuse.ir import kernel as shared_memory
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.schedule_tree import Coordinate

# Assumed alike for all devices: bytes a clock between L2 and a multiprocessor, the part of L2 that keeps
# what was touched last, a round trip to memory, clocks of one instruction of a warp with what instructions
# run side by side, loads in flight in a loop, clocks of a barrier of the block.
L2_BYTES_PER_CLOCK = 32
USABLE = 0.75
ROUND_TRIP_S = 0.6e-6
CPI = 2.0
IN_FLIGHT = 4
BLOCK_BARRIER_CLOCKS = 40
# Registers of a thread beside what it keeps: addresses, loop variables, temporaries.
BASE_REGISTERS = 24
# What an access takes of the lanes: an instruction, one element far from its neighbours.
ACCESS, STRIDED = 4.0, 16.0


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Figures of kernels on one GPU."""

    machine: Device

    def barriers_s(self, parts: Sequence[KernelEstimate]) -> float:
        """Of the grid, between the parts of one launch."""
        return (len(parts) - 1) * self.machine.barrier_s

    def of(self, kernel: Kernel, found: tuple[Nest, ...], since: Mapping[str, float]) -> KernelEstimate:
        """One kernel; `since` is its row of `traffic.distances`."""
        m = self.machine
        blocks = ceil(max(1.0, max((n.block_count for n in found), default=1.0)))
        blocks = min(blocks, kernel.resident or blocks)
        taken = registers(kernel, found, m.sm)
        fits = occupancy(m, prod(kernel.threads), taken, shared_memory.offsets(kernel.buffers)[1])
        resident = max(1, fits.blocks_per_sm) * m.sms
        l2, live = m.l2_bytes * USABLE, min(blocks, resident)
        fits_l2: Holds = lambda b: int(b > l2)  # noqa: E731
        keeping = Keeping(fits_l2, lambda b: fits_l2(b * live), fits_l2, False)
        moved = traffic(found, since, keeping)
        waves = blocks / resident
        per_sm = blocks / m.sms
        bandwidths = [L2_BYTES_PER_CLOCK * m.sms * m.clock, m.copy_bandwidth_measured or m.memory_bandwidth]
        cache, memory = by_level(moved.by_level, bandwidths)
        barriers = block_barriers(kernel, found)
        warp = sum(map(self._warp_s, found)) + barriers * BLOCK_BARRIER_CLOCKS / m.clock
        lanes = m.operations * per_sm / ceil(per_sm)
        return KernelEstimate(
            name=kernel.name,
            read=moved.read,
            written=moved.written,
            levels=tuple(zip(("L2", "memory"), (*moved.by_level, 0.0), strict=False)),
            work=sum((operations(n.timed, "gpu") for n in found), Operations()),
            blocks=blocks,
            threads=prod(kernel.threads),
            waves=waves,
            occupancy=fits,
            block_barriers=barriers,
            grid_barriers=0,
            terms=terms(
                memory=memory,
                cache=cache / min(1.0, per_sm),
                operations=sum(map(_lanes, found)) / lanes,
                latency=ceil(waves) * warp,
                overhead=m.launch_overhead_s,
            ),
        )

    def _warp_s(self, n: Nest) -> float:
        """Seconds of one warp: the instructions of its iterations, and its round trips to memory."""
        stride = max(1.0, n.block_count / n.kernel.resident) if n.kernel.resident else 1.0
        each = _instructions(n) / max(1.0, n.block_count * n.spread * n.steps)
        runs = n.steps * stride
        trips = 1 + runs / n.kernel.vector / IN_FLIGHT if n.reads_memory else 0.0
        return runs * each * CPI / self.machine.clock + trips * ROUND_TRIP_S


def _instructions(n: Nest) -> float:
    """Operations and accesses of all instances."""
    return operations(n.timed, "gpu").weighted + n.loads / n.kernel.vector


def _lanes(n: Nest) -> float:
    """What a nest takes of the lanes."""
    accesses = n.loads * ACCESS / n.kernel.vector + n.strided() * STRIDED
    return operations(n.timed, "gpu").weighted + accesses


def registers(kernel: Kernel, found: Sequence[Nest], sm: Multiprocessor) -> int:
    """Of a thread, assumed: what it keeps, one vector of each tensor that a nest reads, and some more.

    A launch that promises its threads gets no more than fit.
    """
    kept = shared_memory.registers(kernel.buffers)
    reads = max((sum(not a.written for a in n.accesses) for n in found), default=0)
    fitting = sm.registers // prod(kernel.threads) // 8 * 8
    return min(MAX_REGISTERS_PER_THREAD, fitting, BASE_REGISTERS + kept + reads * kernel.vector)


def block_barriers(kernel: Kernel, found: Sequence[Nest]) -> int:
    """Executed by a block, assumed: two where warps combine a value, one after shared memory is written."""
    total = 0.0
    for n in found:
        wide = kernel.threads[0] > WARP and any(m.coordinate is Coordinate.ROUND for m in n.loops)
        wide |= any(m.coordinate is Coordinate.STEP for m in n.loops)
        total += 2 * sum(s.reduction is not None for s in n.body) * wide
        shared = any(a.written and a.scope is Scope.SHARED for a in n.accesses)
        total += n.count(Coordinate.SEQ) * shared
    return ceil(total)
