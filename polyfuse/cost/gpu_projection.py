"""The time of a kernel on a GPU, projected from its machine code.

    phase   = (memory^p + pipe^p + latency^p)^(1/p) + fill * latency of one load
              between two barriers of the grid; about the maximum, and what memory and pipes idle at its ends
    memory  = bytes from and to memory / bandwidth
    pipe    = the slowest of: instructions of all warps of a multiprocessor / rate, of each pipe
    latency = rounds of resident blocks * cycles of one warp: its results, loads and barriers
    kernel  = phases + barriers of the grid + launch

`runtime.cuda.warp_trace` counts what a warp does.  Latency is Little's law from the side of a warp: bytes in
flight / waits for memory is the bandwidth that the resident warps can ask for.  The constants are fitted to
measured kernels of which a third were kept out; docs/lab/gpu_projection.md has the errors on these.
They are not fitted again to make a kernel look better.

Source: PAI's PROJ (throughput: the slowest pipe; latency: waves of warps; the slower of both).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from polyfuse.cost.device import WARP, Device
from polyfuse.ir.warp_work import WarpWork

# Instructions of a warp a clock and multiprocessor, by pipe: 128 lanes of single precision, 64 of integers
# and of double precision, 16 of special functions, 32 of loads and stores.
RATES: Mapping[str, float] = {"issue": 4.0, "fma": 4.0, "alu": 2.0, "mufu": 0.5, "lsu": 1.0, "fp64": 2.0}
# Bytes a clock between registers and the first cache.
L1_BYTES = 128
# Of the latency that `runtime.cuda.warp_trace` takes for a load from memory.
TRACED_CYCLES = 1000.0


@dataclass(frozen=True, slots=True)
class Constants:
    """What is fitted: shares of what the tables say of bandwidth and pipes; a load from memory, a barrier of
    a block, one of the grid, and a launch, in seconds; how much of a wait for a load fills and drains a
    phase; how far the smaller terms hide behind the largest."""

    bandwidth: float
    issue: float
    alu: float
    mufu: float
    lsu: float
    load_s: float
    block_barrier_s: float
    grid_barrier_s: float
    launch_s: float
    fill: float
    power: float

    def share(self, pipe: str) -> float:
        """Of a pipe's rate, what kernels reach."""
        known = {"alu": self.alu, "mufu": self.mufu, "lsu": self.lsu}
        return known.get(pipe, self.issue)


# Fitted to 111 timings on an H200 (driver 580.159, 2026-11-26): `python -m benchmarks.gpu_projection --fit`.
FITTED = Constants(
    bandwidth=0.8812,
    issue=0.9413,
    alu=0.8151,
    mufu=0.9607,
    lsu=0.8383,
    load_s=0.4862e-6,
    block_barrier_s=0.2e-6,
    grid_barrier_s=2.561e-6,
    launch_s=3.331e-6,
    fill=0.9781,
    power=3.285,
)


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel as it is launched: what a warp does, blocks, their threads, how many of them a multiprocessor
    holds, and the bytes that it moves from and to memory."""

    work: WarpWork
    blocks: int
    threads: int
    resident: int
    memory_bytes: float

    @property
    def warps(self) -> int:
        """Of a block."""
        return ceil(self.threads / WARP)


@dataclass(frozen=True, slots=True)
class Projected:
    """Seconds of one kernel, and of what it consists: memory, each pipe, the slowest pipe of each phase
    together, resident warps, launch and barriers. `in_flight`: bytes of loads on a multiprocessor."""

    seconds: float
    memory_s: float
    pipes: Mapping[str, float]
    pipe_s: float
    latency_s: float
    fixed_s: float
    in_flight: float

    @property
    def pipe(self) -> str:
        """The slowest one."""
        return max(self.pipes, key=lambda name: self.pipes[name])

    @property
    def limit(self) -> str:
        """What takes longest."""
        terms = {
            "memory": self.memory_s,
            self.pipe: self.pipe_s,
            "latency": self.latency_s,
            "launch": self.fixed_s,
        }
        return max(terms, key=lambda name: terms[name])


def projected(kernel: Launched, device: Device, constants: Constants = FITTED) -> Projected:
    """The time of one kernel."""
    c, phases = constants, kernel.work.phases or (kernel.work,)
    new = [max(0.0, p.nbytes - p.again) for p in phases]
    memory = [kernel.memory_bytes * n / (sum(new) or 1.0) for n in new]
    memory = [n / (c.bandwidth * device.memory_bandwidth) for n in memory]
    pipes = [_pipes(kernel, p, device, c) for p in phases]
    slowest = [max(p.values()) for p in pipes]
    rounds = max(1, ceil(kernel.blocks / (max(1, kernel.resident) * device.sms)))
    latency = [rounds * _warp_s(p, device, c) for p in phases]
    together = sum(map(_joined, zip(memory, slowest, latency, strict=True), [c.power] * len(phases)))
    together += c.fill * sum(_warp_s(p, device, c) / max(1.0, p.trips) for p in phases)
    fixed = c.launch_s + kernel.work.grid_barriers * c.grid_barrier_s
    live = min(max(1, kernel.resident), ceil(kernel.blocks / device.sms))
    return Projected(
        seconds=together + fixed,
        memory_s=sum(memory),
        pipes={name: sum(p[name] for p in pipes) for name in RATES},
        pipe_s=sum(slowest),
        latency_s=sum(latency),
        fixed_s=fixed,
        in_flight=kernel.work.in_flight * live * kernel.warps,
    )


def _pipes(kernel: Launched, phase: WarpWork, device: Device, c: Constants) -> dict[str, float]:
    """Seconds of each pipe of the multiprocessor that has the most to do."""
    warps = kernel.warps * max(1.0, kernel.blocks / device.sms)
    counts = {name: phase.instructions.get(name, 0.0) for name in RATES}
    counts["lsu"] += phase.nbytes / L1_BYTES
    return {n: warps * counts[n] / (rate * c.share(n)) / device.clock for n, rate in RATES.items()}


def _warp_s(phase: WarpWork, device: Device, c: Constants) -> float:
    """Of one warp: its instructions, with loads and barriers as long as they take."""
    cycles = phase.cycles - phase.trips * TRACED_CYCLES
    return cycles / device.clock + phase.trips * c.load_s + phase.block_barriers * c.block_barrier_s


def _joined(terms: Sequence[float], power: float) -> float:
    """A maximum that what comes close adds to."""
    most = max(terms)
    return most * sum((t / most) ** power for t in terms) ** (1 / power) if most > 0 else 0.0
