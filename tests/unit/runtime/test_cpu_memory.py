"""The caching arena: alignment, reuse, release, limits, threads, forks."""

from __future__ import annotations

import gc
import os
import platform
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from polyfuse.diagnostics import ToolchainError
from polyfuse.runtime.cpu import memory as arena_module
from polyfuse.runtime.cpu.memory import HUGE, LARGE, SMALL, Arena, default_cap, size_class

MB = 1 << 20


def where(a: np.ndarray) -> int:
    return int(a.__array_interface__["data"][0])


@contextmanager
def inside(arena: Arena) -> Iterator[None]:
    """As if a finaliser ran, or another thread, while this one is inside a method of an arena."""
    assert arena._enter(wait=True)
    try:
        yield
    finally:
        arena._leave()


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, SMALL, SMALL + 1, 100_000, LARGE - 1])
def test_small_arrays_are_aligned_and_apart(nbytes: int) -> None:
    arena = Arena()
    arrays = [arena.allocate(nbytes) for _ in range(50)]
    for i, a in enumerate(arrays):
        assert a.shape == (nbytes,) and a.dtype == np.uint8 and a.flags.writeable
        assert where(a) % 64 == 0
        a[:] = i
    assert all((a == i).all() for i, a in enumerate(arrays))
    assert arena.stats().mapped == 0


@pytest.mark.parametrize("nbytes", [LARGE, 2 * MB, 2 * MB + 1, 9 * MB + 5])
def test_large_arrays_are_aligned_present_and_writable_to_the_end(nbytes: int) -> None:
    arena = Arena()
    a, b = arena.allocate(nbytes), arena.allocate(nbytes)
    assert a.shape == (nbytes,)
    assert where(a) % HUGE == 0 and where(b) % HUGE == 0
    a[:], b[:] = 1, 2
    assert a.min() == a.max() == 1 and b.min() == b.max() == 2
    assert arena.stats().used == 2 * size_class(nbytes)


def test_size_classes() -> None:
    for n in [LARGE, HUGE, HUGE + 1, 10 * MB, 16 * MB, 16 * MB + 1, 100 * MB, 123456789, 1 << 33]:
        size = size_class(n)
        assert n <= size <= max(n + HUGE, n * 9 // 8 + HUGE)
        assert size % HUGE == 0 and size_class(size) == size


def test_reuse_after_the_last_view_dies() -> None:
    arena = Arena()
    a = arena.empty((3, MB), np.float32)
    place = where(a)
    view = a[1:, ::7]
    again = view.T
    del a, view
    assert arena.stats().used == size_class(12 * MB)
    other = arena.empty((3, MB), np.float32)
    assert where(other) != place, "memory in use was given away"
    del again
    assert arena.stats().free == size_class(12 * MB)
    assert where(arena.empty((3 * MB - 5,), np.float32)) == place, "same class, same block"
    assert arena.stats().reused == 1


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what the C library keeps is its own choice")
def test_pages_of_small_arrays_stay_present() -> None:
    text = """
import resource
from polyfuse.runtime.cpu.memory import Arena

def call():
    for a in [Arena.get().allocate(600_000) for _ in range(3)]:
        a[::4096] = 1

faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    call()
before = faults()
for _ in range(20):
    call()
print(faults() - before)
"""
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 1000, "each call touches all pages of its arrays for the first time"


def test_memoryview_keeps_the_memory() -> None:
    arena = Arena()
    raw = memoryview(arena.allocate(2 * MB))
    assert arena.stats().free == 0
    raw.release()
    assert arena.stats().free == 2 * MB


def test_second_use_costs_no_page_faults() -> None:
    arena = Arena()
    n = 32 * MB
    a = arena.allocate(n)
    a[:] = 1
    del a
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    a = arena.allocate(n)
    a[:] = 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100, "of 8192 pages"
    assert a[0] == a[-1] == 1, "contents are the last user's"


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux only")
def test_pages_are_present_before_first_use_and_gone_after_trim() -> None:
    def resident() -> int:
        text = Path("/proc/self/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) * 1024

    arena = Arena()
    before = resident()
    a = arena.allocate(32 * MB)
    assert resident() - before > 30 * MB
    del a
    assert arena.stats().free == 32 * MB
    assert arena.trim() == 32 * MB
    assert arena.stats().free == 0
    assert resident() - before < 4 * MB


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()
    or "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(),
    reason="no transparent huge pages",
)
def test_huge_pages() -> None:
    arena = Arena()
    a = arena.allocate(16 * MB)
    smaps = Path("/proc/self/smaps").read_text()
    assert sum(map(int, re.findall(r"AnonHugePages:\s+(\d+)", smaps))) >= 8 * 1024, "16 MB wanted"
    del a


def test_cap_drops_the_longest_unused() -> None:
    arena = Arena(cap=8 * MB)
    arrays = [arena.allocate(n * MB) for n in (2, 4, 6)]
    arrays.reverse()
    while arrays:
        arrays.pop()  # 2, then 4, then 6 come back
    assert arena.stats().free == 6 * MB
    big = arena.allocate(10 * MB)
    del big
    assert arena.stats().free == 6 * MB, "a block over the cap is not kept, and pushes nothing out"
    assert arena.trim(keep=6 * MB) == 0
    none = Arena(cap=0)
    none.allocate(2 * MB)
    assert none.stats().free == none.stats().used == 0


def test_trim_order_and_reuse_of_the_hottest() -> None:
    arena = Arena()
    a, b = arena.allocate(2 * MB), arena.allocate(2 * MB)
    first, second = where(a), where(b)
    del a
    del b
    assert where(arena.allocate(2 * MB)) == second
    assert arena.trim(keep=2 * MB) == 2 * MB
    assert where(arena.allocate(2 * MB)) == second != first


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.bool_])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), 7, (5, 3), (1000, 300), (2000, 1100)])
def test_empty(shape: int | tuple[int, ...], dtype: type) -> None:
    a = Arena().empty(shape, dtype)
    expected = np.empty(shape, dtype)
    assert (a.shape, a.dtype) == (expected.shape, expected.dtype)
    assert a.strides == expected.strides or not a.size
    assert a.flags.c_contiguous and a.flags.writeable and where(a) % 64 == 0
    a.fill(1)
    assert (a == 1).all()


@pytest.mark.parametrize("nbytes", [100, 100_000, 2 * MB])
def test_place_tells_the_address(nbytes: int) -> None:
    a, address = Arena().place((nbytes,), np.dtype(np.uint8))
    assert address == where(a)


def test_impossible_requests() -> None:
    arena = Arena()
    for negative in (-1, -(10 * MB)):
        with pytest.raises(ValueError):
            arena.allocate(negative)
    with pytest.raises(ValueError):
        arena.empty((-2, -3), np.float32)
    kept = arena.allocate(2 * MB)
    del kept
    for n in (1 << 60, 1 << 70):
        with pytest.raises(MemoryError):
            arena.allocate(n)
    assert arena.stats().used == 0
    assert arena.allocate(2 * MB).shape == (2 * MB,)


def test_many_threads() -> None:
    arena = Arena(cap=16 * MB)
    errors: list[BaseException] = []

    def work(t: int) -> None:
        try:
            rng = np.random.default_rng(t)
            held: list[tuple[np.ndarray, int]] = []
            for i in range(120):
                size = int(rng.choice([50, 3000, 2 * MB, 4 * MB]))
                a = arena.allocate(size)
                mark = (31 * t + i) % 251
                a[0] = a[-1] = mark
                held.append((a, mark))
                if len(held) > 4:
                    old, expected = held.pop(int(rng.integers(4)))
                    assert old[0] == old[-1] == expected
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    gc.collect()
    stats = arena.stats()
    assert stats.used == 0 and stats.free <= 16 * MB


def test_finaliser_while_the_lock_is_held() -> None:
    """The garbage collector may run a finaliser inside `allocate` itself; it must not deadlock."""
    arena = Arena()
    a = arena.allocate(2 * MB)
    with inside(arena):
        del a
    assert arena.stats().free == 2 * MB


def test_requests_while_the_lock_is_held() -> None:
    """A finaliser that needs memory may run while this very thread holds the lock."""
    arena = Arena()
    arena.allocate(2 * MB)
    with inside(arena):
        arrays = [arena.allocate(n) for n in (0, 100, SMALL + 1, 2 * MB)]
    assert [a.size for a in arrays] == [0, 100, SMALL + 1, 2 * MB] and not any(where(a) % 64 for a in arrays)
    assert (arena.stats().used, arena.stats().free, arena.stats().mapped) == (2 * MB, 2 * MB, 2)
    del arrays
    assert (arena.stats().used, arena.stats().free) == (0, 4 * MB)


def test_a_finaliser_that_trims_while_the_lock_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may run inside any method that this very thread is in, and must not wait for it."""
    arena = Arena()
    arena.allocate(2 * MB)
    collect, found = arena._collect, []

    def interrupted() -> None:
        found.append((arena.trim(), arena.stats().free))
        collect()

    monkeypatch.setattr(arena, "_collect", interrupted)
    thread = threading.Thread(target=arena.trim, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits for itself"
    assert found == [(0, 2 * MB)], "nothing is let go of in the midst of a change"
    monkeypatch.undo()
    assert (arena.stats().free, arena.trim()) == (0, 0)


def test_trim_waits_for_another_thread() -> None:
    arena = Arena()
    arena.allocate(2 * MB)
    freed: list[int] = []
    thread = threading.Thread(target=lambda: freed.append(arena.trim()), daemon=True)
    with inside(arena):
        thread.start()
        thread.join(0.05)
        assert not freed
    thread.join(10)
    assert freed == [2 * MB]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork() -> None:
    """The child shares nothing that it writes, starts without free blocks, and locks work."""
    arena = Arena.get()
    arena.trim()
    alive = arena.allocate(2 * MB)
    alive[:] = 1
    small = arena.allocate(100)
    small[:] = 1
    free = arena.allocate(4 * MB)
    del free
    used = arena.stats().used
    with inside(arena):  # as if another thread were allocating at this moment
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                stats = Arena.get().stats()
                assert stats.free == 0 and stats.used == used
                alive[:] = 2
                small[:] = 2
                Arena.get().allocate(4 * MB)[:] = 3
                del alive
                assert Arena.get().stats().used == used - 2 * MB
                code = 0
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (alive == 1).all() and (small == 1).all()
    assert arena.stats().free >= 4 * MB


def test_default_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYFUSE_ARENA_BYTES", raising=False)
    assert 0 < default_cap() <= min(4 << 30, arena_module.usable_memory() // 4)
    monkeypatch.setattr(arena_module, "usable_memory", lambda: 1 << 30)
    assert default_cap() == 1 << 28
    for text, value in (("0", 0), ("123456", 123456), ("512M", 512 * MB), ("2g", 2 << 30), ("1 KiB", 1024)):
        monkeypatch.setenv("POLYFUSE_ARENA_BYTES", text)
        assert default_cap() == value
    for text in ("many", "-1", "1.5G", "4T"):
        monkeypatch.setenv("POLYFUSE_ARENA_BYTES", text)
        with pytest.raises(ToolchainError) as e:
            default_cap()
        assert e.value.code == "PF705"
