"""What the kernels of a launch plan do, by their machine code: the way from a plan and its cubin to counts.

Parameters are what a call would pass: addresses are numbers that are aligned as the driver's are, scalars are
one.  No GPU is needed, and nothing runs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.launch_plan import Argument, GridLaunch, GridPlan, Passing, PlanBuffer
from polyfuse.ir.warp_work import HotLoops, WarpWork
from polyfuse.runtime.cuda.cubin import Elf, parameter_base
from polyfuse.runtime.cuda.sass import functions
from polyfuse.runtime.cuda.warp_trace import TracedLaunch, hot_loops, work_of

# Far apart, and aligned as the driver's allocations are.
_APART, _NO_BASE = 1 << 36, 0x210


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """One launch of a plan: what stands in its hot loops, and what a warp executes."""

    launch: GridLaunch
    hot: HotLoops
    warp: WarpWork


def works_of(plan: GridPlan, cubin: bytes) -> tuple[LaunchWork, ...]:
    """Of all launches of known sizes that no library computes, in order.

    Raises ToolchainError PF726 without nvdisasm.
    """
    code, elf = functions(cubin), Elf(cubin)
    found = []
    for launch in plan.launches:
        if launch.library is not None:
            continue
        function = code[launch.function]
        base = parameter_base(elf, launch.function)
        x, y = launch.threads
        traced = TracedLaunch(
            (max(1, evaluate(launch.blocks, {})), 1, 1),
            (x, y, 1),
            parameters(launch, plan),
            _NO_BASE if base is None else base,
        )
        found.append(LaunchWork(launch, hot_loops(function), work_of(function, traced)))
    return tuple(found)


def parameters(launch: GridLaunch, plan: GridPlan) -> bytes:
    """The bytes of a launch's parameters, each aligned to its size."""
    buffers = {b.name: b for b in plan.buffers}
    made = b""
    for number, argument in enumerate(launch.arguments):
        word = _bytes(argument, number, buffers.get(argument.name))
        made += b"\0" * (-len(made) % len(word)) + word
    return made


def _bytes(argument: Argument, number: int, buffer: PlanBuffer | None) -> bytes:
    if argument.passing is Passing.VALUE and buffer is not None:
        return np.ones(1, buffer.dtype.numpy).tobytes()
    if argument.passing in (Passing.SIZE, Passing.STRIDE):
        return struct.pack("<q", 1)
    return struct.pack("<Q", (number + 1) * _APART)
