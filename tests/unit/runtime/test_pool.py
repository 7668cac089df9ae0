"""The thread pool: barriers, forks, floating-point state, many callers, few cores."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache as memoised

import numpy as np
import pytest

from polyfuse.diagnostics import ToolchainError
from polyfuse.runtime.cpu import pool as pool_module
from polyfuse.runtime.cpu.pool import Pool, PreparedCall, Step, StepArray
from polyfuse.runtime.toolchain.compiler import load_shared

KERNELS = r"""
#include <cstdint>
#include <ctime>
#include <unistd.h>
#include <pthread.h>
#define PF extern "C" void
#define ARGS char* const* buf, const int64_t* num, char* scratch, int64_t begin, int64_t end
// num: 0 size, 1 value, 2 sleep in us for the first iteration
PF write_x(ARGS) {
  if (begin == 0 && num[2]) usleep(num[2]);
  int64_t* x = (int64_t*)buf[0];
  for (int64_t i = begin; i < end; ++i) x[i] = i + num[1];
}
PF reverse_x(ARGS) {
  const int64_t* x = (int64_t*)buf[0]; int64_t* y = (int64_t*)buf[1];
  for (int64_t i = begin; i < end; ++i) y[i] = x[num[0] - 1 - i];
}
PF note_chunks(ARGS) {  // begin, end, thread and scratch address of every chunk
  int64_t* x = (int64_t*)buf[0] + 4 * begin;
  if (num[2]) usleep(num[2]);
  for (int64_t i = 0; i < num[1]; ++i) scratch[i] = 1;
  x[0] = begin; x[1] = end; x[2] = (int64_t)pthread_self(); x[3] = (int64_t)scratch;
}
PF halve(ARGS) {
  volatile float* x = (float*)buf[0]; volatile float* y = (float*)buf[1];
  if (num[2]) usleep(num[2]);
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] * 0.5f;
}
PF divide_by_zero(ARGS) { volatile float z = 0; z = 1 / z; }
PF nothing(ARGS) {}
// Of a series over n = num[0] elements: iterations of round r are those from r * n on.
PF add_neighbour(ARGS) {
  const int64_t n = num[0], *x = (int64_t*)buf[0];
  int64_t* y = (int64_t*)buf[1];
  if (num[2] && begin % n == 0) usleep(num[2]);
  for (int64_t k = begin; k < end; ++k) y[k % n] = (x[k % n] + x[(k % n + n - 1) % n]) % 1000003;
}
PF copy_back(ARGS) {
  for (int64_t k = begin; k < end; ++k) ((int64_t*)buf[0])[k % num[0]] = ((int64_t*)buf[1])[k % num[0]];
}
PF count_rounds(ARGS) { *(int64_t*)buf[2] += *(int64_t*)buf[2] == begin && end == begin + 1; }
PF work(ARGS) {  // keeps its core for num[2] us, and notes its thread
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  const int64_t end_ns = t.tv_sec * 1000000000 + t.tv_nsec + num[2] * 1000;
  do clock_gettime(CLOCK_MONOTONIC, &t); while (t.tv_sec * 1000000000 + t.tv_nsec < end_ns);
  for (int64_t i = begin; i < end; ++i) ((int64_t*)buf[0])[i] = gettid();
}
#if defined(__x86_64__)
#include <immintrin.h>
extern "C" int64_t set_fp(int64_t s) { int64_t old = _mm_getcsr(); _mm_setcsr(s); return old; }
#endif
"""
INTEL = os.uname().machine == "x86_64"
FTZ_DAZ = 0x8040


@memoised
def kernels() -> ctypes.CDLL:
    return load_shared(KERNELS)


def address(name: str) -> int:
    value = ctypes.cast(getattr(kernels(), name), ctypes.c_void_p).value
    assert value
    return value


def step(name: str, count: int, chunk: int, parallel: bool = True) -> Step:
    return Step(address(name), count, chunk, parallel)


def prepared(steps: list[Step], arrays: list[np.ndarray], *numbers: int, **more: object) -> PreparedCall:
    call = Pool.get().prepare(StepArray(steps), buffers=len(arrays), numbers=numbers, **more)  # type: ignore[arg-type]
    for i, a in enumerate(arrays):
        call.buffers[i] = a.ctypes.data
    return call


@pytest.fixture(autouse=True, params=[4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Four threads, whatever the machine: more than this one may have cores."""
    pool = Pool.get()
    before = pool.threads
    yield pool.set_threads(request.param)
    pool.set_threads(before)


def run_two_steps(n: int = 1000, chunk: int = 16, value: int = 5, sleep_us: int = 0) -> None:
    x, y = np.zeros(n, np.int64), np.zeros(n, np.int64)
    steps = [step("write_x", n, chunk), step("reverse_x", n, chunk)]
    prepared(steps, [x, y], n, value, sleep_us).check()
    np.testing.assert_array_equal(y, np.arange(n)[::-1] + value)


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 40], indirect=True)
def test_second_step_reads_what_all_chunks_of_the_first_wrote(threads: int) -> None:
    for i in range(40):
        run_two_steps(value=i)
    run_two_steps(sleep_us=3000)  # the caller falls asleep at the barrier, and is woken


@pytest.mark.parametrize("count", [0, -3, 1, 7, 16, 17, 1000])
@pytest.mark.parametrize("chunk", [1, 16, 1000, 0, 2**62])
@pytest.mark.parametrize("parallel", [True, False])
def test_chunks_cover_exactly_the_range(count: int, chunk: int, parallel: bool) -> None:
    notes = np.full((max(count, 1), 4), -1, np.int64)
    prepared([step("note_chunks", count, chunk, parallel)], [notes], 0, 0, 0).check()
    seen = notes[notes[:, 1] >= 0][:, :2]
    size = chunk if chunk > 0 else max(count, 1)
    expected = [(b, min(b + size, count)) for b in range(0, count, size)]
    assert [tuple(row) for row in seen] == expected


def test_each_thread_has_a_share_in_one_piece() -> None:
    """Forty chunks of some milliseconds: every thread does ten neighbours, unless another was late."""

    def owners() -> list[int]:
        notes = np.full((40, 4), -1, np.int64)
        prepared([step("note_chunks", 40, 1)], [notes], 0, 0, 3000).check()
        assert set(notes[:, 0]) == set(range(40))
        return [len(set(notes[k : k + 10, 2])) for k in (0, 10, 20, 30)] + [len(set(notes[:, 2]))]

    assert any(owners() == [1, 1, 1, 1, 4] for _ in range(20))


# --- series ----------------------------------------------------------------------------------------------

ROUNDS = 300


def series_of_neighbours(n: int, chunk: int, sleep_us: int = 0) -> None:
    """Each round adds to an element what its neighbour had, then copies back: all of a round is needed."""
    x, y = np.ones(n, np.int64), np.zeros(n, np.int64)
    first = replace(step("add_neighbour", n, chunk), series=3, rounds=ROUNDS)
    rest = [replace(step(f, c, chunk), rounds=ROUNDS) for f, c in (("count_rounds", 1), ("copy_back", n))]
    counted = np.zeros(1, np.int64)
    prepared([first, *rest], [x, y, counted], n, 0, sleep_us).check()
    want = np.ones(n, object)
    for _ in range(ROUNDS):
        want = (want + np.roll(want, 1)) % 1000003
    np.testing.assert_array_equal(x, want.astype(np.int64))
    assert counted[0] == ROUNDS


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 40], indirect=True)
@pytest.mark.parametrize(("n", "chunk"), [(1, 1), (2, 1), (17, 3), (1000, 125)])
def test_a_series_is_run_round_by_round(n: int, chunk: int) -> None:
    for _ in range(5):
        series_of_neighbours(n, chunk)


def test_a_series_with_slow_chunks() -> None:
    """The caller sleeps at the barrier, and workers between rounds."""
    Pool.get().set_spin_ns(0)
    series_of_neighbours(40, 10, sleep_us=150)


def test_a_series_beside_steps_that_run_once() -> None:
    n = 100
    x, y, counted = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(1, np.int64)
    steps = [
        step("write_x", n, 10),
        replace(step("count_rounds", 1, 1), series=1, rounds=7),
        replace(step("count_rounds", 1, 1), series=2, rounds=0),
        step("count_rounds", 1, 1),
        step("reverse_x", n, 10),
    ]
    prepared(steps, [x, y, counted], n, 5).check()
    np.testing.assert_array_equal(y, np.arange(n)[::-1] + 5)
    assert counted[0] == 7


def test_no_steps() -> None:
    prepared([], [], 0).check()


def test_parallel_chunks_really_run_on_several_threads() -> None:
    notes = np.zeros((12, 4), np.int64)
    prepared([step("note_chunks", 12, 1)], [notes], 0, 64, 2000, scratch_bytes=64).check()
    used = set(notes[:, 2])
    assert 2 <= len(used) <= 4
    assert len(set(notes[:, 3])) == len(used), "threads must not share scratch memory"
    assert not (notes[:, 3] % 64).any()


def test_scratch_grows_and_is_kept() -> None:
    notes = np.zeros((8, 4), np.int64)
    places: list[set[int]] = []
    for size in (100, 5_000_000, 1000):
        prepared([step("note_chunks", 8, 1, False)], [notes], 0, size, 0, scratch_bytes=size).check()
        assert not (notes[:, 3] % 64).any()
        places.append(set(notes[:, 3]))
    assert places[1] == places[2] and len(places[1]) == 1
    for _ in range(3):  # on the workers too
        prepared([step("note_chunks", 8, 1)], [notes], 0, 3_000_000, 500, scratch_bytes=3_000_000).check()


def test_impossible_scratch_is_an_error_and_the_pool_lives_on() -> None:
    notes = np.zeros((8, 4), np.int64)
    with pytest.raises(MemoryError):
        prepared([step("note_chunks", 8, 1)], [notes], 0, 0, 0, scratch_bytes=2**60).check()
    run_two_steps()


def test_serial_work_wakes_and_starts_nobody() -> None:
    pool = Pool.get()
    pool.set_threads(1)
    pool.set_threads(4)
    assert pool.started == 0
    x = np.zeros(100, np.int64)
    serial = prepared([step("write_x", 100, 7, False), step("write_x", 5, 5, True)], [x], 100, 1, 0)
    serial.check()
    assert pool.started == 0
    run_two_steps()
    assert pool.started == 3
    time.sleep(0.01)  # long enough for all to fall asleep
    before = pool.wakeups
    serial.check()
    assert pool.wakeups == before
    run_two_steps()
    assert pool.wakeups > before


def a_worker_on_our_core(cores: set[int]) -> int:
    """Put the only worker, which spins, on the core of this thread, then let it run on `cores`. Its id."""
    noted = np.zeros(2, np.int64)
    call = prepared([step("work", 2, 1)], [noted], 0, 0, 20_000)
    worker = 0
    while not worker:  # both had a chunk
        call.check()
        worker = next((int(t) for t in noted if t != threading.get_native_id()), 0)
    os.sched_setaffinity(0, {min(cores)})
    os.sched_setaffinity(worker, {min(cores)})
    os.sched_setaffinity(worker, cores)
    return worker


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cores of threads are Linux's")
@pytest.mark.parametrize("threads", [2], indirect=True)
def test_a_worker_on_the_core_of_the_caller_is_moved(threads: int) -> None:
    """Where it may run elsewhere; and what it may run on stays as it was."""
    pool, cores = Pool.get(), os.sched_getaffinity(0)
    pool.set_spin_ns(10**9)
    before = pool.moves
    try:
        for _ in range(100):
            worker = a_worker_on_our_core(cores)
            prepared([step("work", 2, 1)], [np.zeros(2, np.int64)], 0, 0, 1000).check()
            assert os.sched_getaffinity(worker) == cores
            if pool.moves > before:
                break
            os.sched_setaffinity(0, cores)
        assert (pool.moves > before) == (len(cores) > 1)
        os.sched_setaffinity(worker, {min(cores)})  # the user's wish: it stays
        before = pool.moves
        for _ in range(5):
            prepared([step("work", 2, 1)], [np.zeros(2, np.int64)], 0, 0, 1500).check()
        assert pool.moves == before and os.sched_getaffinity(worker) == {min(cores)}
    finally:
        os.sched_setaffinity(0, cores)
        pool.set_threads(1)  # ends the worker
        pool.set_threads(threads)


def test_changing_the_number_of_threads_while_others_call() -> None:
    pool = Pool.get()
    stop = threading.Event()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            while not stop.is_set():
                run_two_steps(200)
        except BaseException as e:
            errors.append(e)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for c in callers:
        c.start()
    for n in (1, 5, 2, 9, 1, 3) * 3:
        assert pool.set_threads(n) == n
        time.sleep(0.002)
        assert pool.started <= n - 1
    stop.set()
    for c in callers:
        c.join()
    assert not errors


def test_many_threads_call_at_once() -> None:
    """One gets the workers, the others work alone; all results are right."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(8)

    def call(t: int) -> None:
        try:
            barrier.wait()
            for i in range(60):
                run_two_steps(300, value=1000 * t + i, sleep_us=200 if i % 20 == 0 else 0)
        except BaseException as e:
            errors.append(e)

    callers = [threading.Thread(target=call, args=(t,)) for t in range(8)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not errors


def test_the_gil_is_released() -> None:
    """A Python thread runs while the pool sleeps in a kernel."""
    x = np.zeros(8, np.int64)
    call = prepared([step("write_x", 8, 1, False)], [x], 8, 0, 200_000)
    runner = threading.Thread(target=call.check)
    runner.start()
    start = time.perf_counter()
    while time.perf_counter() - start < 0.05:
        pass
    assert runner.is_alive()
    runner.join()


# ---- floating-point state -----------------------------------------------------------------------


def check_denormals(flush: bool) -> None:
    tiny = np.full(64, 1e-40, np.float32)
    halves = np.full(64, 7, np.float32)
    for parallel, sleep_us in ((True, 100), (False, 0)):
        halves[:] = 7
        steps = [step("halve", 64, 2, parallel)]
        call = prepared(steps, [tiny, halves], 64, 0, sleep_us, flush_denormals=flush)
        state = Pool.get().fp_state()  # NumPy itself leaves exception flags in it: read right before
        call.check()
        assert Pool.get().fp_state() == state
        assert (halves == 0).all() if flush else (halves > 0).all()
    assert (tiny * np.float32(0.5) > 0).all(), "NumPy lost its denormals"


@pytest.mark.skipif(not INTEL, reason="reads mxcsr")
@pytest.mark.parametrize("threads", [1, 4], indirect=True)
def test_denormals_are_flushed_inside_only(threads: int) -> None:
    for flush in (True, False, True):
        check_denormals(flush)


@pytest.mark.skipif(not INTEL, reason="reads mxcsr")
def test_denormals_with_several_callers() -> None:
    errors: list[BaseException] = []

    def call(t: int) -> None:
        try:
            for i in range(10):
                check_denormals((i + t) % 2 == 0)
        except BaseException as e:
            errors.append(e)

    callers = [threading.Thread(target=call, args=(t,)) for t in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not errors


@pytest.mark.skipif(not INTEL, reason="sets mxcsr")
def test_callers_own_state_neither_leaks_in_nor_is_lost() -> None:
    """A caller that flushes (or rounds otherwise) keeps that; kernels do what the flag says everywhere."""
    library = kernels()
    library.set_fp.argtypes, library.set_fp.restype = [ctypes.c_int64], ctypes.c_int64
    tiny = np.full(64, 1e-40, np.float32)
    halves = np.zeros(64, np.float32)
    call = prepared([step("halve", 64, 2)], [tiny, halves], 64, 0, 100, flush_denormals=False)
    bad = prepared([step("divide_by_zero", 64, 2)], [], 64, 0, 0)
    odd = 0x1F80 | FTZ_DAZ | 0x6000  # flush, round towards zero
    old = library.set_fp(odd)
    try:
        call.check()
        bad.check()
        state = Pool.get().fp_state()
    finally:
        library.set_fp(old)
    assert state == odd, "not even the exception flags of a kernel show"
    assert halves.view(np.uint32).all()


# ---- fork -----------------------------------------------------------------------------------------


def wait_for(pid: int) -> int:
    for _ in range(2000):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pytest.fail("the forked child hangs")


def fork_and_run() -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert Pool.get().started == 0
            for _ in range(5):
                run_two_steps()
            assert Pool.get().started == 3
            Pool.get().set_threads(2)
            run_two_steps()
            code = 0
        finally:
            os._exit(code)
    return wait_for(pid)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_restarts_the_workers_in_the_child() -> None:
    run_two_steps()
    for pause in (0.0, 0.01):  # workers spinning, workers asleep
        time.sleep(pause)
        assert fork_and_run() == 0
        run_two_steps()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_while_a_region_runs_in_another_thread() -> None:
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            run_two_steps(64, 4, sleep_us=2000)

    runner = threading.Thread(target=call)
    runner.start()
    try:
        for _ in range(12):
            assert fork_and_run() == 0
            time.sleep(0.001)
    finally:
        stop.set()
        runner.join()


def _in_worker_process(value: int) -> int:
    run_two_steps(value=value)
    return Pool.get().started


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_multiprocessing_fork() -> None:
    run_two_steps()
    with multiprocessing.get_context("fork").Pool(4) as processes:
        assert processes.map(_in_worker_process, range(12), chunksize=1) == [3] * 12


# ---- the environment ------------------------------------------------------------------------------


def run_script(body: str, **env: str) -> str:
    head = (
        "import os, sys, time\n"
        f"sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
        "from polyfuse.runtime.cpu.pool import *\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(body)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks")
def test_affinity_of_one_core() -> None:
    """One thread by default; and with eight on one core nobody waits for a worker that sleeps."""
    out = run_script(
        """
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.environ.pop("POLYFUSE_NUM_THREADS", None)
        pool = Pool.get()
        print(pool.threads, end=" ")
        import test_pool
        test_pool.run_two_steps()
        print(pool.started, end=" ")
        pool.set_threads(8)
        start = time.perf_counter()
        for i in range(200): test_pool.run_two_steps(100, 4, value=i)
        print(pool.started, (time.perf_counter() - start) / 200 < 0.01)
        """
    )
    assert out.split() == ["1", "0", "7", "True"]


def test_number_of_threads_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_script("print(Pool.get().threads)", POLYFUSE_NUM_THREADS="3").strip() == "3"
    monkeypatch.setenv("POLYFUSE_NUM_THREADS", "")
    assert pool_module.default_threads() == pool_module.available_cores()
    for bad in ("0", "-1", "many", "2.5", "99999"):
        monkeypatch.setenv("POLYFUSE_NUM_THREADS", bad)
        with pytest.raises(ToolchainError) as e:
            pool_module.default_threads()
        assert e.value.code == "PF705"


def test_clipping() -> None:
    assert Pool.get().set_threads(0) == 1
    assert Pool.get().set_threads(-5) == 1


def test_process_ends_while_workers_spin_or_sleep() -> None:
    for pause in ("0", "0.02"):
        run_script(
            f"""
            import test_pool
            Pool.get().set_threads(4); test_pool.run_two_steps(); time.sleep({pause})
            """
        )


def test_cost_of_an_empty_call(capsys: pytest.CaptureFixture[str]) -> None:
    Pool.get().set_threads(2)
    serial = prepared([step("nothing", 1, 1, False)], [], 0)
    wide = prepared([step("nothing", 2, 1, True)], [], 0)
    figures = {}
    for name, call in (("serial", serial.call), ("parallel", wide.call)):
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(2000):
                call()
            best = min(best, (time.perf_counter() - start) / 2000)
        figures[name] = best * 1e6
    with capsys.disabled():
        print(" pf_run, microseconds:", {k: round(v, 2) for k, v in figures.items()})
    assert figures["serial"] < 10
    assert figures["parallel"] < 500
