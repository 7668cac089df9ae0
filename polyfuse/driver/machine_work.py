"""What the kernels of a launch plan do, by their machine code, and the time that is projected for them.

Parameters are what a call would pass: addresses are numbers that are aligned as the driver's are, scalars are
one.  No GPU is needed, and nothing runs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from polyfuse.cost.device import Device, Occupancy, occupancy
from polyfuse.cost.figures import Estimate, KernelEstimate
from polyfuse.cost.gpu_projection import Launched, Projected, projected
from polyfuse.diagnostics import ToolchainError
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.launch_plan import Argument, GridLaunch, GridPlan, Kind, Passing, PlanBuffer
from polyfuse.ir.warp_work import HotLoops, WarpWork
from polyfuse.runtime.cuda.compiler import Cubin
from polyfuse.runtime.cuda.cubin import Elf, Resources, parameter_base
from polyfuse.runtime.cuda.sass import functions
from polyfuse.runtime.cuda.warp_trace import TracedLaunch, hot_loops, work_of

# --- what is executed --------------------------------------------------------------------------------------

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
        function = code.get(launch.function)
        if function is None:
            raise ToolchainError(f"nvdisasm prints nothing of {launch.function}", code="PF726")
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


# --- how long it takes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchProjection:
    """One launch of a plan, what it does, and the time that is projected for it."""

    work: LaunchWork
    taken: Resources
    fits: Occupancy
    time: Projected


def projections(
    plan: GridPlan, made: Cubin, estimate: Estimate, device: Device
) -> tuple[LaunchProjection, ...]:
    """Of all launches that no library computes; `estimate` says what they move from and to memory.

    Raises ToolchainError PF726 without nvdisasm.
    """
    by_name = {k.name: k for k in estimate.kernels}
    found = []
    for work in works_of(plan, made.cubin):
        launch, taken = work.launch, made.resources.get(work.launch.function, Resources())
        threads = launch.threads[0] * launch.threads[1]
        shared = (taken.shared or 0) + launch.dynamic_bytes
        fits = occupancy(device, threads, taken.registers or 1, shared)
        moved = memory_bytes(launch, plan, by_name)
        blocks = max(1, evaluate(launch.blocks, {}))
        kernel = Launched(work.warp, blocks, threads, max(1, fits.blocks_per_sm), moved)
        found.append(LaunchProjection(work, taken, fits, projected(kernel, device)))
    return tuple(found)


def memory_bytes(launch: GridLaunch, plan: GridPlan, estimates: Mapping[str, KernelEstimate]) -> float:
    """What a launch moves from and to memory, where no cache holds its arguments at first.

    That is what the cost model says, or each element of its arguments that it touches, once."""
    names = {a.name for a in launch.arguments if a.passing is Passing.POINTER}
    names |= {a.name for a in launch.table if a.passing is Passing.POINTER}
    own = [b for b in plan.buffers if b.name in names and b.kind is not Kind.WORKSPACE]
    whole = float(sum(b.dtype.bytes * evaluate(product(b.shape), {}) for b in own))
    estimate = estimates.get(launch.kernel)
    if estimate is None:
        return whole
    return max(dict(estimate.levels).get("memory", 0.0), min(whole, estimate.read + estimate.written))
