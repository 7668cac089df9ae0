"""The machine of a target, as the cost model sees it."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import TypeAlias

from polyfuse.cost.cpu_device import CpuDevice, table_cpu
from polyfuse.cost.device import DEFAULT, Device
from polyfuse.ir.target import CpuTarget, GpuTarget, Target

Machine: TypeAlias = Device | CpuDevice


@singledispatch
def machine_of(target: Target) -> Machine:
    """The machine of a target, by the tables: what was measured here must not decide what kernels are."""
    raise NotImplementedError(f"the cost model knows no machine of {target}")


@machine_of.register
def _(target: CpuTarget) -> CpuDevice:
    return table_cpu(target.threads)


@machine_of.register
def _(target: GpuTarget) -> Device:
    return replace(
        DEFAULT,
        name="GPU",
        sms=target.sms,
        clock=target.clock,
        memory_bandwidth=target.bandwidth,
        l2_bytes=target.l2_bytes,
        launch_overhead_s=target.launch_s,
    )
