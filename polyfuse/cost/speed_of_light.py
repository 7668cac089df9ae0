"""How long kernels would take if the machine did its best: an estimate without running anything.

    time of a kernel = overhead + max(memory, caches, operations, latency) + barriers

memory, caches   for each level, the bytes that come from it or from beyond, over its bandwidth; which level
                 that is, `cost.traffic` says
operations       weighted operations over the rate of the lanes (`cost.operations`)
latency          on a GPU, waves times the time of a warp (`cost.gpu_time`)
overhead         a launch of a GPU, a step of a CPU's plan; a CPU's call comes on top, once
barriers         those of the grid; those of a block are part of the latency

Figures are those of repeated calls: what fits a cache is found there.  Sources: PAI ("SOL" of V1: traffic and
operations over the specification; "PROJ" of V2: registers -> occupancy -> waves), FusionStitching (2020)
section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from polyfuse.cost.cpu_time import CpuTime
from polyfuse.cost.device import Device
from polyfuse.cost.figures import Estimate, KernelEstimate, by_level, joined
from polyfuse.cost.gpu_time import L2_BYTES_PER_CLOCK, GpuTime
from polyfuse.cost.machines import Machine
from polyfuse.cost.nests import nests
from polyfuse.cost.packing_gain import at_once, side_by_side
from polyfuse.cost.traffic import distances, footprints
from polyfuse.ir.kernel import Kernel, KernelGraph


def estimate(
    kernels: KernelGraph, machine: Machine, core_s: Callable[[Kernel], float] | None = None
) -> Estimate:
    """Of kernels whose sizes are known (else ValueError or KeyError). core_s: what their loops take of all
    threads of a CPU, in place of what their statements would."""
    split = [_split(k) for k in kernels.kernels]
    sections = [[[nests(x) for x in inner] for inner in parts] for parts in split]
    since = iter(distances([footprints(s) for found in sections for inner in found for s in inner]))
    time = GpuTime(machine) if isinstance(machine, Device) else CpuTime(machine, core_s)
    result = []
    for k, parts, found in zip(kernels.kernels, split, sections, strict=True):
        each = []
        for inner, these in zip(parts, found, strict=True):
            one = [time.of(x, s, next(since)) for x, s in zip(inner, these, strict=True)]
            each.append(side_by_side(inner[0].name, one, machine))
        result.append(each[0] if len(each) == 1 else joined(k.name, each, time.barriers_s(each)))
    return Estimate(machine.name, tuple(result), machine.call_s)


def _split(k: Kernel) -> list[tuple[Kernel, ...]]:
    """What runs one after the other, each several kernels side by side."""
    return [p.packed or (_in(k, p),) for p in k.parts] or [k.packed or (k,)]


def _in(whole: Kernel, part: Kernel) -> Kernel:
    """A part as it runs in a joined kernel: on a grid that is resident."""
    return replace(part, resident=whole.resident * at_once(part, prod(whole.threads)))


# --- a machine that is never idle -------------------------------------------------------------------------


def busy_s(kernel: KernelEstimate, machine: Machine) -> float:
    """Seconds of a kernel's traffic or operations, whichever takes longer, by all of the machine."""
    if isinstance(machine, Device):
        bandwidths = [L2_BYTES_PER_CLOCK * machine.sms * machine.clock, machine.memory_bandwidth]
    else:
        bandwidths = [level.bandwidth for level in machine.levels]
    moved = by_level([nbytes for _, nbytes in kernel.levels], bandwidths)
    return max(*moved, kernel.work.weighted / machine.operations)
