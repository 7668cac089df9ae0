"""The cost model's figures of this machine, and which machine kernels are estimated on."""

from __future__ import annotations

from dataclasses import replace

from polyfuse.cost.cpu_device import CpuDevice, Level
from polyfuse.cost.projection import Rates, table_rates
from polyfuse.ir.cpu_core import AVX2, Core
from polyfuse.runtime.machine import BandwidthReport, cache_sizes, known, level_sets
from polyfuse.runtime.op_rates import known_op_rates
from polyfuse.runtime.pool import default_threads
from polyfuse.runtime.toolchain import cpu_family, cpu_features

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
