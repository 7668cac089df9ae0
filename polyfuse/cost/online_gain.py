"""Does it pay to make both reductions of a cascade in one pass, chunk by chunk?

    two passes    t(first touch) + t(second touch)          the second from where a whole row stays
    one pass      t(first touch) + t(chunk again)           the second from where a chunk stays

A pass takes the longer of its traffic and its operations.  On a CPU a row stays in the cache that holds it, a
chunk in L1; a row that fits a private cache is passed twice, which was measured to be as fast.  On a GPU a
row stays with its block if registers and shared memory hold it; else it comes again from L2, or from memory.
A block for each row leaves multiprocessors idle where rows are few, and splitting them over blocks takes two
launches for each reduction; chunks fill the device, and take two for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.device import Device
from polyfuse.cost.gpu_time import L2_BYTES_PER_CLOCK, USABLE
from polyfuse.cost.machines import Machine
from polyfuse.cost.stitching_gain import MARGIN, ON_CHIP, microseconds
from polyfuse.decisions import format_bytes

# Of the nearest cache of a CPU, for the chunk that both phases touch.
PART_OF_L1 = 1 / 3
# Elements of a chunk on a GPU: rounds of 1024 threads with vectors of 4, few enough for registers.
ROUND, MOST_ROUNDS = 4096, 4


@dataclass(frozen=True, slots=True)
class Row:
    """Rows that a cascade passes twice: how many there are, elements and bytes of one, weighted operations of
    an element in either reduction; later: is a row read again once both are known?"""

    count: int
    length: int
    nbytes: float
    first: float
    second: float
    later: bool

    @property
    def total(self) -> float:
        return self.count * self.nbytes

    @property
    def elements(self) -> float:
        return float(self.count) * self.length


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds in two passes and in one, and why two are enough where they are."""

    two: float
    one: float
    near: str = ""

    @property
    def pays(self) -> bool:
        return not self.near and self.two > self.one * MARGIN

    def __str__(self) -> str:
        return self.near or f"{microseconds(self.one)} in one pass, {microseconds(self.two)} in two"


def chunk_elements(row: Row, machine: Machine) -> int:
    """Elements of a chunk: what stays near between its two phases, and enough chunks for the machine."""
    if isinstance(machine, CpuDevice):
        each = row.nbytes / row.length
        return max(256, int(machine.levels[0].capacity * PART_OF_L1 / each) // 256 * 256)
    wanted = row.elements / (2 * machine.sms)
    return ROUND * min(MOST_ROUNDS, max(1, ceil(wanted / ROUND)))


def passes(row: Row, machine: Machine) -> Passes:
    """What the reductions of a cascade take in two passes and in one."""
    return _on_gpu(row, machine) if isinstance(machine, Device) else _on_cpu(row, machine)


def _on_cpu(row: Row, m: CpuDevice) -> Passes:
    mine = row.nbytes * min(1.0, row.count / m.threads)  # a worker's, where several share a row
    home, near = m.level(mine), m.level(mine * min(1.0, chunk_elements(row, m) / row.length))
    if home <= near or m.levels[home].private:
        kept = f"{format_bytes(mine)} of a row stay in {m.levels[home].name} between the passes"
        return Passes(0.0, 0.0, kept)
    touch = row.total / m.levels[m.level(row.total / m.threads)].bandwidth
    a, b = (row.elements * w / m.operations for w in (row.first, row.second))
    two = max(touch, a) + max(row.total / m.levels[home].bandwidth, b)
    one = max(touch + row.total / m.levels[near].bandwidth, a + b)
    return Passes(two, one)


def _on_gpu(row: Row, m: Device) -> Passes:
    share = min(1.0, row.count / m.sms)
    near = row.nbytes <= ON_CHIP
    later = int(row.later)
    if near and share == 1.0:
        return Passes(0.0, 0.0, f"{format_bytes(row.nbytes)} of a row stay with its block between the passes")
    whole = _gpu_seconds(row, m, 1 if near else 2 + later, share) + m.launch_overhead_s
    split = _gpu_seconds(row, m, 2 + later, 1.0) + (4 + later) * m.launch_overhead_s
    chunks = row.count * ceil(row.length / chunk_elements(row, m))
    one = _gpu_seconds(row, m, 1 + later, min(1.0, chunks / m.sms))
    return Passes(min(whole, split), one + (2 + later) * m.launch_overhead_s)


def _gpu_seconds(row: Row, m: Device, reads: int, share: float) -> float:
    """Reading all rows so many times on a share of the device, and the operations of both reductions."""
    fits = row.total <= m.l2_bytes * USABLE
    l2 = L2_BYTES_PER_CLOCK * m.sms * m.clock * share
    lanes = m.operations * share
    memory = 0.0 if fits else reads * row.total / m.memory_bandwidth
    return max(memory, reads * row.total / l2, row.elements * (row.first + row.second) / lanes)
