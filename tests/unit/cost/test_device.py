"""Figures of GPUs, and occupancy as NVIDIA's calculator gives it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polyfuse.cost.device import DEFAULT, DEVICES, WARP, device, device_for_arch, occupancy
from polyfuse.diagnostics import ToolchainError

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "devices.md"

# Architecture, threads, registers, shared bytes: blocks that cuda_occupancy.h of CUDA 13.0 gives.
KNOWN = [
    ("sm_70", 256, 32, 0, 8), ("sm_70", 256, 33, 0, 6), ("sm_70", 128, 24, 10000, 9),
    ("sm_70", 1024, 64, 98304, 1), ("sm_70", 1024, 65, 0, 0), ("sm_70", 32, 16, 0, 32),
    ("sm_80", 256, 32, 0, 8), ("sm_80", 256, 40, 0, 6), ("sm_80", 192, 37, 4096, 8),
    ("sm_80", 256, 32, 49152, 3), ("sm_80", 128, 255, 0, 2), ("sm_80", 640, 47, 0, 2),
    ("sm_80", 32, 255, 166912, 1), ("sm_80", 1000, 33, 0, 1), ("sm_89", 256, 32, 0, 6),
    ("sm_89", 1024, 32, 0, 1), ("sm_89", 32, 16, 0, 24), ("sm_89", 256, 32, 32768, 3),
    ("sm_89", 64, 32, 101376, 1), ("sm_89", 64, 32, 102400, 0), ("sm_90", 256, 88, 0, 2),
    ("sm_90", 128, 32, 1024, 16), ("sm_90", 128, 32, 20000, 11), ("sm_90", 96, 124, 0, 5),
    ("sm_90", 32, 32, 4096, 32), ("sm_90", 32, 32, 10000, 20), ("sm_90", 1024, 33, 0, 1),
    ("sm_90", 512, 117, 0, 1), ("sm_90", 512, 131, 0, 0), ("sm_90", 1, 1, 232448, 1),
    ("sm_90", 1, 1, 233000, 0), ("sm_100", 384, 40, 60000, 3), ("sm_100", 1024, 32, 98304, 2),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "threads", "registers", "shared", "blocks"), KNOWN)
def test_occupancy_is_nvidias(arch: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    found = occupancy(device_for_arch(arch), threads, registers, shared)
    assert found.blocks_per_sm == blocks
    assert found.warps == blocks * -(-threads // WARP)
    assert found.fraction == found.warps / device_for_arch(arch).sm.max_warps


def test_what_limits_a_block() -> None:
    h200 = device("H200")
    assert occupancy(h200, 256, 32, 0).limiter == "warps" and occupancy(h200, 256, 32, 0).fraction == 1.0
    assert occupancy(h200, 32, 32, 0).limiter == "blocks"
    assert occupancy(h200, 256, 88, 0).limiter == "registers"
    assert occupancy(h200, 128, 32, 60000).limiter == "shared"
    assert occupancy(h200, 128, 256, 0).limiter == "registers"  # more than a thread can have
    for threads in (0, 1025):
        with pytest.raises(ValueError, match="1 to 1024 threads"):
            occupancy(h200, threads, 32, 0)


def test_more_of_anything_never_lets_more_blocks_in() -> None:
    for d in DEVICES:
        for threads in (32, 96, 256, 1024):
            counts = [occupancy(d, threads, r, 0).blocks_per_sm for r in range(1, 257)]
            assert counts == sorted(counts, reverse=True)
            counts = [occupancy(d, threads, 32, s).blocks_per_sm for s in range(0, 240_000, 999)]
            assert counts == sorted(counts, reverse=True) and counts[-1] == 0


def test_names() -> None:
    assert device("h200") is device("NVIDIA H200") is DEFAULT
    assert device("NVIDIA GeForce RTX 4090") is device("rtx4090")
    assert device("a100").arch == "sm_80" and device("Tesla V100").sms == 80
    with pytest.raises(ToolchainError, match=r"PF725.*'A10'") as caught:
        device("A10")
    assert "H200 (sm_90)" in str(caught.value)


def test_architectures() -> None:
    assert device_for_arch("sm_90") is device_for_arch("sm_90a") is DEFAULT
    assert device_for_arch("sm_100").name == "B200"
    with pytest.raises(ToolchainError, match="PF725"):
        device_for_arch("sm_75")
    assert all(device(d.name) is d for d in DEVICES)


def test_the_page_has_the_same_figures() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?)(?: \(.*?\))? \| (sm_\d+) \| (.*?) \| [\d, ]+ \|$", text, re.M)
    shown = {name: (arch, *map(float, rest.split(" | "))) for name, arch, rest in rows}
    assert shown == {
        d.name: (d.arch, d.sms, d.clock / 1e9, d.memory_bandwidth / 1e9, d.l2_bytes / 2**20) for d in DEVICES
    }
