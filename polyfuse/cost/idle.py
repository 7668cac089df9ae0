"""What a kernel would take if no part of the machine were ever idle: the same bytes and operations."""

from __future__ import annotations

from polyfuse.cost.device import Device
from polyfuse.cost.figures import KernelEstimate, by_level
from polyfuse.cost.gpu_time import L2_BYTES_PER_CLOCK, LANES
from polyfuse.cost.machines import Machine


def busy_s(kernel: KernelEstimate, machine: Machine) -> float:
    """Seconds of a kernel's traffic or operations, whichever takes longer, by all of the machine."""
    if isinstance(machine, Device):
        bandwidths = [L2_BYTES_PER_CLOCK * machine.sms * machine.clock, machine.memory_bandwidth]
        operations = LANES.get(machine.arch, 128) * machine.sms * machine.clock
    else:
        bandwidths = [level.bandwidth for level in machine.levels]
        operations = machine.operations
    moved = by_level([nbytes for _, nbytes in kernel.levels], bandwidths)
    return max(*moved, kernel.work.weighted / operations)
