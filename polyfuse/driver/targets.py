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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from polyfuse.codegen.cpu import pipeline as cpu_passes
from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.codegen.cuda import pipeline as gpu_passes
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.codegen.decisions import as_printed, of_forms, of_passes
from polyfuse.codegen.passes import Pass
from polyfuse.cost.cpu_device import CpuDevice, Level
from polyfuse.cost.device import DEFAULT, DEVICES, WARP, Device, device, device_for_arch
from polyfuse.cost.projection import Rates, table_rates
from polyfuse.decisions import Decision
from polyfuse.diagnostics import ArgumentError, DeviceError, PolyfuseWarning, ToolchainError, nearest
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.target import CpuTarget, GpuTarget, Target
from polyfuse.layers.graph.pipeline import GRAPH_PASSES, GraphPass
from polyfuse.layers.mapping.gpu_plan import plans_of
from polyfuse.options import ON_GPU, TARGETS, Options
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.cpu.pool import default_threads
from polyfuse.runtime.interpreter.interpreter import InterpretedKernels
from polyfuse.runtime.machine.op_rates import known_op_rates
from polyfuse.runtime.machine.probe import BandwidthReport, cache_sizes, known, level_sets
from polyfuse.runtime.toolchain.compiler import cpu_family, cpu_features

if TYPE_CHECKING:
    from polyfuse.runtime.cuda.compiler import Cubin
    from polyfuse.runtime.cuda.driver import DeviceProperties
    from polyfuse.runtime.cuda.executable import CudaExecutable
    from polyfuse.runtime.emulator.emulator import EmulatedKernels
    from polyfuse.runtime.numpy_baseline import NumpyKernels


# --- figures of this machine ------------------------------------------------------------------------------


_NAMES = ("L1", "L2", "L3", "memory")
_LANES = (("avx512f", 16), ("avx2", 8))
# Vector registers, and how tiles get factors from L2, by what the processor says it has.
_CORES = (("avx512f", Core(64, 32)), ("avx2", AVX2), ("asimd", Core(16, 32)))
# Families that compute with vectors of 64 bytes, and load them, in two halves: Zen 4.
_HALVES = {("AuthenticAMD", 25)}
# Features that add products of four bytes, of which one factor has a sign.
_BYTE_PRODUCTS = ("avx512_vnni", "avx_vnni")


def this_cpu(threads: int | None = None) -> CpuDevice:
    """This machine's processor: sizes of its caches as the system tells them; rates where they were measured
    for so many threads (`polyfuse doctor --measure`), else those of a common server, by the threads."""
    count = threads or default_threads()
    default, sizes = CpuDevice(), cache_sizes()
    reports = [known(size, count) for size in level_sets(count)]
    levels = []
    for name, usual, report, capacity in zip(
        _NAMES, default.levels, reports, (sizes.l1, sizes.l2, sizes.l3, float("inf")), strict=True
    ):
        rate = _rate(report) if report is not None else usual.bandwidth * count / default.threads
        levels.append(Level(name, capacity, rate, usual.private))
    fma = next((r.fma_gflops for r in reports if r is not None), None)
    lanes = next((n for feature, n in _LANES if feature in cpu_features()), 4)
    core = this_core()
    assumed = default.operations * count / default.threads * lanes / 16 * core.units / default.core.units
    return CpuDevice(
        name=f"CPU, {count} threads" + ("" if fma else ", assumed rates"),
        threads=count,
        levels=tuple(levels),
        operations=fma / 2 * 1e9 if fma else assumed,
        lanes=lanes,
        core=core,
        measured=all(r is not None for r in reports),
    )


def this_core(flush: bool = False) -> Core:
    """A core of this machine, as far as the system tells, where denormals become 0 or not; nothing is
    measured."""
    sizes = cache_sizes()
    features = cpu_features()
    core = next((core for name, core in _CORES if name in features), Core(16, 16))
    if core.vector_bytes == 64 and cpu_family() in _HALVES:
        core = replace(core, units=1, loads=1)
    products = any(name in features for name in _BYTE_PRODUCTS)
    pairs = flush and "avx512_bf16" in features
    return replace(core, l1=sizes.l1, l2=sizes.l2, byte_products=products, pair_products=pairs, flushes=flush)


def projected_cpu(threads: int | None = None) -> tuple[CpuDevice, Rates]:
    """This machine for `cost.projection`: what its memory moves, not what a program sees of it (a plain store
    moves half as much again as it says), and what functions take, where that was measured."""
    machine = this_cpu(threads)
    *near, last = machine.levels
    report = known(level_sets(machine.threads)[-1], machine.threads)
    if report is not None:
        moved = max(1.5 * max(report.map, report.copy), report.map_nt, report.read)
        last = replace(last, bandwidth=moved * 1e9)
    rates = known_op_rates(machine.threads)
    plain = table_rates(machine) if rates is None else Rates(rates, True)
    return replace(machine, levels=(*near, last)), plain


def _rate(report: BandwidthReport) -> float:
    """Bytes a second of kernels that read and write alike."""
    return max(report.map, report.map_nt, report.copy) * 1e9


# The passes that leave functions less exact than the target can have them.
APPROXIMATE = ("approximate-functions", "short-functions")
Machine: TypeAlias = "CpuExecutable | InterpretedKernels | EmulatedKernels | CudaExecutable | NumpyKernels"


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
        from polyfuse.runtime.cuda.open import cuda_available  # only where it is asked for

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
    from polyfuse.runtime.cuda.compiler import find_cuda_compiler, require_arch
    from polyfuse.runtime.cuda.open import open_driver

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
        from polyfuse.runtime.cuda.open import cuda_available, open_driver

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
    core = None if target in ON_GPU else this_core(options.denormals == "flush")
    return CpuKnobs(core=core, disabled=(*disabled_passes(options), *_precise(target, options)))


def _precise(target: str, options: Options) -> tuple[str, ...]:
    """The passes that make functions less exact, where options do not want them. Those of GPUs flush
    denormals."""
    keeps = target in ON_GPU and options.denormals == "keep"
    return APPROXIMATE if keeps or options.math == "precise" else ()


def passes() -> dict[str, tuple[GraphPass | Pass, ...]]:
    """All passes, in order: those over a graph, then those over loops, by target and list."""
    lists = [("cpu", p) for p in cpu_passes.PIPELINES] + [("gpu", p) for p in gpu_passes.PIPELINES]
    return {"graph": GRAPH_PASSES, **{f"{target} {p.name}": p.passes for target, p in lists}}


def disabled_passes(options: Options) -> tuple[str, ...]:
    """The names in `Options.disable`. Raises ArgumentError PF490 where no optional pass is called so."""
    every = [p for found in passes().values() for p in found]
    known = {n for p in every if p.optional for n in (p.name, p.idea)}
    for name in options.disable:
        if name in known:
            continue
        if any(name in (p.name, p.idea) for p in every):
            message = f"pass {name!r} cannot be switched off: others need what it does"
            raise ArgumentError(message, code="PF490", hint="`polyfuse passes` says which are optional")
        near = nearest(name, known)
        hint = f"did you mean {near!r}?" if near else "`polyfuse passes` lists them"
        raise ArgumentError(f"no optional pass is called {name!r}", code="PF490", hint=hint)
    return tuple(sorted(set(options.disable)))


def mapped_for(
    target: str, options: Options, halvings: int = 0, fields: Sequence[tuple[str, object]] = ()
) -> Target:
    """What kernels are mapped for: the target of a name, as options have it, with `halvings` on a GPU; other
    `fields` of it are set by hand."""
    if target not in ON_GPU:
        return CpuTarget(options.threads or default_threads())
    wished = options.gpu_plan.mapped() if options.gpu_plan is not None else ()
    d, by_hand = chip(options, target), dict[str, Any]((*wished, *fields))
    found = GpuTarget(
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
        halvings=halvings,
    )
    return replace(found, **by_hand)


def _has_cublas() -> bool:
    from polyfuse.runtime.cuda.blas import find_cublas

    return find_cublas() is not None


def load(
    code: CpuCode | CudaCode, target: str, options: Options, sizes: Mapping[str, int] | None = None
) -> Machine:
    """Source -> kernels that run: on the CPU, on a GPU, or in the emulator; at values of the sizes that the
    code has open."""
    at = sizes or {}
    flush = options.denormals == "flush"
    if isinstance(code, CpuCode):
        return CpuExecutable(code, at, flush_denormals=flush, threads=options.threads)
    if target == "emulate":
        from polyfuse.runtime.emulator.emulator import EmulatedKernels

        return EmulatedKernels(code, at, seed=options.seed, resident=options.resident)
    from polyfuse.runtime.cuda.executable import load as load_on_gpu

    return load_on_gpu(code, at, flush_denormals=flush)


def compile_ahead(code: CpuCode | CudaCode, target: str, options: Options) -> Cubin | None:
    """What `load` would compile, into the cache, so that it has nothing left to do; the GPU is not used. The
    machine code, if it is that of a GPU."""
    if target != "cuda":
        load(code, target, options)
        return None
    assert isinstance(code, CudaCode)
    from polyfuse.runtime.cuda.executable import compiled
    from polyfuse.runtime.cuda.open import open_driver

    return compiled(code, open_driver(), options.denormals == "flush")


def is_on_gpu(machine: Machine) -> bool:
    """Does it run on a GPU, and take arrays there?"""
    from polyfuse.runtime.cuda.executable import CudaExecutable

    return isinstance(machine, CudaExecutable)


def told(
    decisions: Sequence[Decision], code: CpuCode | CudaCode, kernels: KernelGraph
) -> tuple[Decision, ...]:
    """Decisions as the code has them, the passes over loops that acted, and the plans of a GPU's kernels."""
    if isinstance(code, CpuCode):
        return as_printed(decisions, code.made, cpu_passes.PIPELINES)
    named = (p for k in kernels.kernels if k.library is None for p in plans_of(k))
    plans = (Decision("plan", name, True, str(plan)) for name, plan in named)
    return (*decisions, *plans, *of_forms(code.made), *of_passes(code.made, gpu_passes.PIPELINES))
