"""What GPUs can do: figures of the ones that polyfuse is tuned for, and how many blocks fit a multiprocessor.

Figures are public ones, with their sources in docs/reference/devices.md (`copy_bandwidth_measured`, where
somebody has measured it, is ours).  `occupancy` follows the rules of allocation that NVIDIA gives with its
occupancy calculator: registers are given to warps in units and belong to one of four partitions of a
multiprocessor, shared memory is given to blocks in units and a part of it is reserved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from polyfuse.diagnostics import ToolchainError

WARP = 32
MAX_REGISTERS_PER_THREAD = 255
KIB, MIB = 1 << 10, 1 << 20

Limiter = Literal["blocks", "warps", "registers", "shared"]

# Single precision lanes of a multiprocessor, where they are not 128.
LANES = {"sm_70": 64, "sm_80": 64}


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What all multiprocessors of an architecture have: limits of residency, and units of allocation.

    `shared` is what all resident blocks together may take; a block may take `shared_per_block`, or up to
    `shared_per_block_optin` if its launch asks for it, and the system takes `shared_reserved` for each block.
    Registers are given to warps in multiples of `register_unit`, from one of `partitions` equal files.
    """

    arch: str
    max_warps: int
    max_blocks: int
    shared: int
    shared_per_block_optin: int
    shared_reserved: int
    shared_unit: int
    shared_per_block: int = 48 * KIB
    registers: int = 65536
    register_unit: int = 256
    partitions: int = 4
    max_threads_per_block: int = 1024


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. Rates in units per second, sizes in bytes; `clock` is the boost clock.

    `launch_overhead_s` is the gap between two kernels in one stream; `drain_s` what the end of one and the
    start of the next leave idle; `barrier_s` a barrier of the whole grid.  All are taken alike for all
    devices (docs/reference/devices.md says from where), until they are measured.
    """

    name: str
    sm: Multiprocessor = field(repr=False)
    sms: int
    clock: float
    memory_bandwidth: float
    l2_bytes: int
    launch_overhead_s: float = 2.5e-6
    barrier_s: float = 2.6e-6
    drain_s: float = 0.6e-6
    copy_bandwidth_measured: float | None = None

    @property
    def arch(self) -> str:
        return self.sm.arch

    @property
    def cache_bytes(self) -> float:
        """Of the last cache before memory."""
        return self.l2_bytes

    @property
    def operations(self) -> float:
        """Of single precision lanes a second; a fused multiply-add is one."""
        return LANES.get(self.arch, 128) * self.sms * self.clock

    @property
    def call_s(self) -> float:
        """From the call to the first kernel, beside its launch."""
        return 0.0

    @property
    def next_s(self) -> float:
        """From one kernel to the next."""
        return self.launch_overhead_s

    def share(self, blocks: int) -> float:
        """Of the machine that so many blocks keep busy: multiprocessors with a block each."""
        return min(1.0, blocks / self.sms)

    @property
    def resident_threads(self) -> int:
        """Threads that the whole device holds at once, at most."""
        return self.sms * self.sm.max_warps * WARP


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks are resident on a multiprocessor; what keeps more of them out; share of its warps."""

    blocks_per_sm: int
    warps: int
    limiter: Limiter
    fraction: float


_VOLTA = Multiprocessor("sm_70", 64, 32, 96 * KIB, 96 * KIB, 0, 256)
_AMPERE = Multiprocessor("sm_80", 64, 32, 164 * KIB, 163 * KIB, KIB, 128)
_ADA = Multiprocessor("sm_89", 48, 24, 100 * KIB, 99 * KIB, KIB, 128)
_HOPPER = Multiprocessor("sm_90", 64, 32, 228 * KIB, 227 * KIB, KIB, 128)
_BLACKWELL = Multiprocessor("sm_100", 64, 32, 228 * KIB, 227 * KIB, KIB, 128)

# The first of an architecture stands for it.
DEVICES: tuple[Device, ...] = (
    Device("H200", _HOPPER, 132, 1.98e9, 4.8e12, 60 * MIB),
    Device("H100", _HOPPER, 132, 1.98e9, 3.35e12, 50 * MIB),
    Device("A100", _AMPERE, 108, 1.41e9, 2.039e12, 40 * MIB),
    Device("V100", _VOLTA, 80, 1.53e9, 0.9e12, 6 * MIB),
    Device("L4", _ADA, 58, 2.04e9, 0.3e12, 48 * MIB),
    Device("RTX 4090", _ADA, 128, 2.52e9, 1.008e12, 72 * MIB),
    Device("B200", _BLACKWELL, 148, 1.965e9, 8.0e12, 126 * MIB),
)
DEFAULT = DEVICES[0]


def device(name: str) -> Device:
    """A device by name, as ``H200``; upper and lower case, spaces and the maker's name do not count.

    Raises ToolchainError PF725 for one that the table lacks.
    """
    found = next((d for d in DEVICES if _plain(d.name) == _plain(name)), None)
    if found is None:
        raise _unknown(f"no figures of a GPU called {name!r}")
    return found


def device_for_arch(arch: str) -> Device:
    """The device that stands for an architecture, as ``sm_90``. Raises ToolchainError PF725."""
    found = next((d for d in DEVICES if d.arch == arch.rstrip("af")), None)
    if found is None:
        raise _unknown(f"no figures of a GPU with architecture {arch!r}")
    return found


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[\s_-]", "", name.lower())


def _unknown(message: str) -> ToolchainError:
    known = ", ".join(f"{d.name} ({d.arch})" for d in DEVICES)
    return ToolchainError(message, code="PF725", hint=f"known are {known}")


def occupancy(device: Device, threads: int, registers: int, shared: int) -> Occupancy:
    """Resident blocks of `threads` threads with `registers` each and `shared` bytes of shared memory.

    Static and dynamic shared memory count alike; the driver is taken to give shared memory all that it can
    have of the L1 cache.  A block that does not fit at all has 0 blocks, and the limiter says why.
    """
    sm = device.sm
    if not 0 < threads <= sm.max_threads_per_block:
        raise ValueError(f"a block has 1 to {sm.max_threads_per_block} threads, not {threads}")
    warps = -(-threads // WARP)
    limits: dict[Limiter, int] = {
        "warps": sm.max_warps // warps,
        "blocks": sm.max_blocks,
        "registers": _by_registers(sm, warps, registers),
        "shared": _by_shared(sm, shared),
    }
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    return Occupancy(blocks, blocks * warps, limiter, blocks * warps / sm.max_warps)


def _by_registers(sm: Multiprocessor, warps: int, registers: int) -> int:
    if registers > MAX_REGISTERS_PER_THREAD:
        return 0
    per_warp = _round_up(max(registers, 1) * WARP, sm.register_unit)
    # A block is spread over the partitions evenly, so one of a few warps may need more than its share.
    if per_warp * _round_up(warps, sm.partitions) > sm.registers:
        return 0
    return sm.registers // sm.partitions // per_warp * sm.partitions // warps


def _by_shared(sm: Multiprocessor, shared: int) -> int:
    if shared > sm.shared_per_block_optin:
        return 0
    taken = _round_up(shared + sm.shared_reserved, sm.shared_unit)
    return sm.shared // taken if taken else sm.max_blocks


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
