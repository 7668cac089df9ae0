"""Targets: what kernels can be made for, and what runs them.

cpu        C++ through the system's compiler
interpret  no compiler: the kernels of the CPU, statement by statement, every index checked
emulate    CUDA C++ run on the CPU by an emulator that looks for races
cuda       CUDA C++ on a GPU
auto       cuda where a GPU can be used, else cpu
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from polyfuse.codegen.cpu import CpuCode
from polyfuse.codegen.cuda import CudaCode
from polyfuse.cost.device import DEFAULT, DEVICES, WARP, Device, device, device_for_arch
from polyfuse.diagnostics import ArgumentError, DeviceError, PolyfuseWarning, ToolchainError
from polyfuse.estimates import this_core
from polyfuse.ir.cpu_knobs import CpuKnobs
from polyfuse.ir.target import CpuTarget, GpuTarget, Target
from polyfuse.options import Options
from polyfuse.runtime.cpu import CpuExecutable
from polyfuse.runtime.interpreter import InterpretedKernels
from polyfuse.runtime.pool import default_threads

if TYPE_CHECKING:  # loaded where they are asked for
    from polyfuse.runtime.cuda import CudaExecutable
    from polyfuse.runtime.cuda_driver import DeviceProperties
    from polyfuse.runtime.emulator import EmulatedKernels

TargetName = Literal["auto", "cpu", "interpret", "emulate", "cuda"]
TARGETS = ("auto", "cpu", "interpret", "emulate", "cuda")
ON_GPU = ("emulate", "cuda")
Machine: TypeAlias = "CpuExecutable | InterpretedKernels | EmulatedKernels | CudaExecutable"


_usable: dict[int, bool] = {}


def require_target(target: str) -> str:
    """The target itself; anything unknown is an ArgumentError PF414."""
    if target not in TARGETS:
        raise ArgumentError(
            f"there is no target '{target}'", code="PF414", hint=f"one of {', '.join(TARGETS)}"
        )
    return target


def resolve_target(target: str) -> str:
    """A target that is not "auto"; anything unknown is an ArgumentError PF414.

    For "auto" the driver is initialised, so children that are forked later cannot use the GPU.
    """
    if require_target(target) != "auto":
        return target
    return "cuda" if _gpu_is_usable() else "cpu"


def _gpu_is_usable() -> bool:
    """Is there a GPU, with all that kernels need? Asked once per process; a GPU that cannot be used is a
    PolyfuseWarning."""
    pid = os.getpid()
    if pid not in _usable:
        _usable[pid] = False
        from polyfuse.runtime.cuda_open import cuda_available  # only where it is asked for

        if cuda_available():
            try:
                _open_gpu()
                _usable[pid] = True
            except (DeviceError, ToolchainError) as error:
                found = error.diagnostics[0]
                remedy = f"; {found.hint}" if found.hint else ""
                text = f"kernels run on the CPU, the GPU cannot be used: {found.message}{remedy}"
                warnings.warn(text, PolyfuseWarning, stacklevel=7)
    return _usable[pid]


def _open_gpu() -> None:
    """Open the device and look for a compiler. Raises DeviceError PF74x, ToolchainError PF720 or PF722."""
    from polyfuse.runtime.cuda_compile import require_arch
    from polyfuse.runtime.cuda_find import find_cuda_compiler
    from polyfuse.runtime.cuda_open import open_driver

    driver = open_driver()
    require_arch(driver.properties.arch)
    find_cuda_compiler()
    with driver.current():  # makes the context, which fails where others have the device to themselves
        pass


def chip(options: Options, target: str = "emulate") -> Device:
    """The GPU that kernels are made for: the one named by the options; else the machine's for the target
    "cuda", if it has one; else the default.

    Raises ToolchainError PF725 for one that is named and not in the table.
    """
    if options.device is not None:
        by_arch = options.device.startswith("sm_")
        return device_for_arch(options.device) if by_arch else device(options.device)
    if target == "cuda":
        from polyfuse.runtime.cuda_open import cuda_available, open_driver

        if cuda_available():
            return described(open_driver().properties)
    return DEFAULT


def described(p: DeviceProperties) -> Device:
    """A GPU as its driver describes it. Clock and bandwidth are from the table: of the GPU of this name, else
    of the one that stands for the nearest older architecture."""
    base = next((d for d in DEVICES if re.search(rf"\b{d.name}\b", p.name, re.IGNORECASE)), None)
    if base is None or base.arch != p.arch:
        base = _nearest(p.capability)
    sm = replace(
        base.sm,
        arch=p.arch,
        max_warps=p.max_threads_per_multiprocessor // p.warp,
        max_blocks=p.max_blocks_per_multiprocessor,
        shared=p.shared_bytes_per_multiprocessor,
        shared_per_block=p.shared_bytes_per_block,
        shared_per_block_optin=p.shared_bytes_per_block_optin,
        registers=p.registers_per_multiprocessor,
        max_threads_per_block=p.max_threads_per_block,
    )
    return replace(base, name=p.name, sm=sm, sms=p.multiprocessors, l2_bytes=p.l2_bytes)


def _nearest(capability: tuple[int, int]) -> Device:
    """The first GPU of the table with the newest architecture that is not newer."""
    number = 10 * capability[0] + capability[1]
    older = [d for d in DEVICES if int(d.arch[3:]) <= number]
    return max(older or DEVICES, key=lambda d: int(d.arch[3:]))


def knobs_for(target: str, options: Options) -> CpuKnobs:
    """Code as the passes have it, where it is for a CPU for a core of this machine."""
    return CpuKnobs(core=None if target in ON_GPU else this_core(options.denormals == "flush"))


def mapped_for(target: str, options: Options) -> Target:
    """What kernels are mapped for: the target of a name, as options have it."""
    if target not in ON_GPU:
        return CpuTarget(options.threads or default_threads())
    d = chip(options, target)
    return GpuTarget(
        sms=d.sms,
        longest=d.sm.max_threads_per_block,
        shared_bytes=d.sm.shared_per_block_optin,
        shared_per_sm=d.sm.shared,
        shared_reserved=d.sm.shared_reserved,
        resident_threads=d.sm.max_warps * WARP,
        registers=d.sm.registers,
        bandwidth=d.memory_bandwidth,
        launch_s=d.launch_overhead_s,
        drain_s=d.drain_s,
        barrier_s=d.barrier_s,
        clock=d.clock,
        l2_bytes=d.l2_bytes,
        library=_has_cublas() if target == "cuda" and options.library != "never" else None,
    )


def _has_cublas() -> bool:
    from polyfuse.runtime.cuda_blas import find_cublas

    return find_cublas() is not None


def load(code: CpuCode | CudaCode, target: str, options: Options) -> Machine:
    """Source -> kernels that run: on the CPU, on a GPU, or in the emulator."""
    flush = options.denormals == "flush"
    if isinstance(code, CpuCode):
        return CpuExecutable(code, {}, flush_denormals=flush, threads=options.threads)
    if target == "emulate":
        from polyfuse.runtime.emulator import EmulatedKernels

        return EmulatedKernels(code, seed=options.seed, resident=options.resident)
    from polyfuse.runtime.cuda import load as load_on_gpu

    return load_on_gpu(code, flush_denormals=flush)


def is_on_gpu(machine: Machine) -> bool:
    """Does it run on a GPU, and take arrays there?"""
    from polyfuse.runtime.cuda import CudaExecutable

    return isinstance(machine, CudaExecutable)
