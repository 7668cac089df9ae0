"""Measuring the machine: kernels do what they claim, figures are sane and remembered."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from pace import in_time

from polyfuse.runtime.cache.disk import Cache
from polyfuse.runtime.cpu.memory import Arena
from polyfuse.runtime.cpu.pool import Pool
from polyfuse.runtime.machine import probe

SIZE = 256 << 10


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(probe, "_known", {})


@pytest.mark.parametrize("name", ["read", "copy", "fill", "fill_nt", "map", "map_nt"])
def test_kernels_touch_all_of_the_working_set(name: str) -> None:
    pool = Pool.get()
    memory = Arena.get().empty(SIZE // 4, np.float32)
    memory[:] = 3
    arrays = 2 if name in ("copy", "map", "map_nt") else 1
    half = SIZE // 2
    slice_bytes = SIZE // arrays // pool.threads // 512 * 512
    call = probe._prepare(pool, name, memory.ctypes.data, half, slice_bytes)
    memory[SIZE // 8 :] = 3 if arrays == 1 else 9
    call.check()
    used = slice_bytes * pool.threads // 4
    first, second = memory[:used], memory[SIZE // 8 :][:used]
    expected = {"copy": 3, "map": 2, "map_nt": 2}
    if name in expected:
        assert (second == expected[name]).all() and (first == 3).all()
    elif name == "read":
        assert (memory == 3).all()
    else:
        assert (first == 1).all() and (memory[used:] == 3).all()


def test_measure_is_sane_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    report = probe.measure(SIZE)
    assert report.working_set_bytes == SIZE and report.threads == Pool.get().threads
    for rate in (report.read, report.copy, report.fill, report.fill_nt, report.map, report.map_nt):
        assert 0.5 < rate < 50_000
    assert 1 < report.fma_gflops < 1e6
    assert isinstance(report.streaming_stores_pay, bool)
    assert "bandwidth of 262144 bytes" in [e.meta["what"] for e in Cache.open_default().ls()]

    def again(*args: object) -> None:
        raise AssertionError("measured twice")

    monkeypatch.setattr(probe, "_measure", again)
    assert probe.measure(SIZE - 5) is report, "same class, same process"
    monkeypatch.setattr(probe, "_known", {})
    start = time.process_time()
    assert probe.measure(SIZE) == report, "from the cache folder"
    assert in_time(time.process_time() - start, 0.1)
    with pytest.raises(AssertionError, match="twice"):
        probe.measure(SIZE, refresh=True)


def test_working_set_classes() -> None:
    assert probe.working_set_class(1) == probe.working_set_class(0) == probe.SMALLEST
    assert probe.working_set_class(1 << 20) == 1 << 20
    assert probe.working_set_class((1 << 20) + 1) == 1 << 21
    assert probe.working_set_class(1 << 60) <= probe.usable_memory() // 8


def test_cache_sizes() -> None:
    sizes = probe.cache_sizes()
    assert 8 << 10 <= sizes.l1 <= sizes.l2 <= max(sizes.l2, sizes.l3)
    assert sizes.line in (32, 64, 128, 256)
    assert sizes.l3_shared_by >= 1


def test_parsing_of_system_files() -> None:
    assert probe._size("48K\n") == 48 << 10
    assert probe._size("32M") == 32 << 20
    assert probe._size("123") == 123
    with pytest.raises(ValueError):
        probe._size("unknown")
    assert probe._count_list("0-3,8\n") == 5
    assert probe._count_list("7") == 1


def test_cache_sizes_without_system_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_linux_caches", lambda: iter([Path("/nowhere/index0")]))
    monkeypatch.setattr(probe.platform, "system", lambda: "Other")
    sizes = probe.cache_sizes.__wrapped__()
    assert sizes.l1 == 32 << 10 and sizes.line == 64
