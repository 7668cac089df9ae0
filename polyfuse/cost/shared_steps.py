"""Does it pay to share a part of a recurrence's step among the workers of a CPU?

    gain  =  time of the part on one core * (1 - 1 / threads)  -  time of a barrier of the workers

Each step waits for the one before, so that the gain must be found in every one of them, and it must be a good
part of the time: others may need the cores.  What a step touches is near after the first steps, so operations
and accesses are what takes time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.cpu_time import ACCESS
from polyfuse.cost.extents import extents, instances
from polyfuse.cost.operations import operations
from polyfuse.ir.tensor_graph import Statement, statement_reads

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
