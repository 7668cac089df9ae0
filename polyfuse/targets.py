"""Targets: what kernels can be made for, and what runs them.

cpu        C++ through the system's compiler
interpret  no compiler: the kernels of the CPU, statement by statement, every index checked
emulate    CUDA C++ run on the CPU by an emulator that looks for races
cuda       CUDA C++ on a GPU
auto       cuda where there is a GPU, else cpu
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from polyfuse.codegen.cpu import CpuCode
from polyfuse.codegen.cuda import CudaCode
from polyfuse.cost.device import DEFAULT, Device, device, device_for_arch
from polyfuse.diagnostics import ArgumentError
from polyfuse.layers.gpu_rows import GpuTarget
from polyfuse.options import Options
from polyfuse.runtime.cpu import CpuExecutable
from polyfuse.runtime.interpreter import InterpretedKernels
from polyfuse.runtime.pool import default_threads

if TYPE_CHECKING:  # loaded where they are asked for
    from polyfuse.runtime.cuda import CudaExecutable
    from polyfuse.runtime.emulator import EmulatedKernels

Target = Literal["auto", "cpu", "interpret", "emulate", "cuda"]
TARGETS = ("auto", "cpu", "interpret", "emulate", "cuda")
ON_GPU = ("emulate", "cuda")
Machine: TypeAlias = "CpuExecutable | InterpretedKernels | EmulatedKernels | CudaExecutable"


def resolve_target(target: str) -> str:
    """A target that is not "auto"; anything unknown is an ArgumentError PF414."""
    if target not in TARGETS:
        raise ArgumentError(
            f"there is no target '{target}'", code="PF414", hint=f"one of {', '.join(TARGETS)}"
        )
    if target == "auto":
        from polyfuse.runtime.cuda_open import cuda_available  # only where it is asked for

        return "cuda" if cuda_available() else "cpu"
    return target


def chip(options: Options) -> Device:
    """The GPU that kernels are made for: the one named by the options, or the one in the table that comes
    nearest to the machine's, or the default."""
    if options.device is None:
        return DEFAULT
    return device_for_arch(options.device) if options.device.startswith("sm_") else device(options.device)


def mapped_for(target: str, options: Options) -> int | GpuTarget:
    """What kernels are mapped for: so many CPU workers, or a GPU."""
    if target in ON_GPU:
        return GpuTarget(sms=chip(options).sms)
    return options.threads or default_threads()


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
