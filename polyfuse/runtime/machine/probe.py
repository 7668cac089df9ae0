"""What this machine can do: bandwidth for a working set, FMA rate, cache sizes.

Reports compare kernels with these figures, and the planner chooses non-temporal stores by them.
All threads of the pool work, each on its own slice of the working set, again and again for some
milliseconds; the best of several runs counts, because everything that disturbs only slows down.
GB/s are 10^9 bytes that the program reads or writes per second (a plain store also makes the
hardware read the line first; that is not counted).
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache as memoised
from pathlib import Path

from polyfuse.runtime.cache.disk import Built, Cache, cache_key, package_version, read_file
from polyfuse.runtime.cpu.memory import Arena, usable_memory
from polyfuse.runtime.cpu.pool import Pool, PreparedCall, Step, StepArray
from polyfuse.runtime.toolchain.compiler import cpu_identity, load_shared
from polyfuse.support.processes import ForkLock

SMALLEST = 16 << 10
"""The smallest working set that is measured, in bytes; every class is a power of two."""
RUN_S = 0.004
RUNS = 5
_FMA_STEPS = 2048

# Slices are whole numbers of 512 bytes. num: 0 bytes per slice, 1 repetitions, 2 slices.
# The empty asm makes the compiler believe that memory is looked at between repetitions.
KERNELS = r"""
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif
typedef float vec __attribute__((vector_size(WIDTH), aligned(16), may_alias));
#define LANES (WIDTH / 4)
#define TASK(name) \
  extern "C" void name(char* const* buf, const int64_t* num, char*, int64_t begin, int64_t end)
#define FOR_SLICES \
  const int64_t n = num[0] / WIDTH; \
  for (int64_t s = begin; s < end; ++s) \
    for (int64_t r = 0; r < num[1]; ++r, KEEP)
#define KEEP ({ __asm__ volatile("" ::: "memory"); })
#define FIRST ((vec*)(buf[0] + s * num[0]))
#define VALUE ((vec){} + (float)(r + 1))
#define SECOND ((vec*)(buf[1] + s * num[0]))

#if defined(__AVX512F__)
static inline void stream(vec* p, vec v) { _mm512_stream_ps((float*)p, (__m512)v); }
#elif defined(__AVX__)
static inline void stream(vec* p, vec v) { _mm256_stream_ps((float*)p, (__m256)v); }
#elif defined(__x86_64__)
static inline void stream(vec* p, vec v) { _mm_stream_ps((float*)p, (__m128)v); }
#elif defined(__clang__)
static inline void stream(vec* p, vec v) { __builtin_nontemporal_store(v, p); }
#else
static inline void stream(vec* p, vec v) { *p = v; }
#endif

TASK(read_all) {
  vec total = {};
  FOR_SLICES {
    const vec* x = FIRST;
    vec a[8] = {};
    for (int64_t i = 0; i < n; i += 8)
      for (int k = 0; k < 8; ++k) a[k] += x[i + k];
    for (int k = 0; k < 8; ++k) total += a[k];
  }
  volatile vec sink = total;  // all lanes: else the compiler may load only some
  (void)sink;
}
TASK(copy) {
  FOR_SLICES {
    const vec* x = FIRST;
    vec* y = SECOND;
    for (int64_t i = 0; i < n; ++i) y[i] = x[i];
  }
}
TASK(fill) {
  FOR_SLICES {
    const vec v = VALUE;
    vec* x = FIRST;
    for (int64_t i = 0; i < n; ++i) x[i] = v;
  }
}
TASK(map) {
  FOR_SLICES {
    const vec* x = FIRST;
    vec* y = SECOND;
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 0.5f + 0.5f;
  }
}
TASK(fill_nt) {
  FOR_SLICES {
    const vec v = VALUE;
    vec* x = FIRST;
    for (int64_t i = 0; i < n; i += 4)
      stream(x + i, v), stream(x + i + 1, v), stream(x + i + 2, v), stream(x + i + 3, v);
  }
}
TASK(map_nt) {
  FOR_SLICES {
    const vec* x = FIRST;
    vec* y = SECOND;
    for (int64_t i = 0; i < n; i += 4) {
      const vec a = x[i] * 0.5f + 0.5f, b = x[i + 1] * 0.5f + 0.5f;
      const vec c = x[i + 2] * 0.5f + 0.5f, d = x[i + 3] * 0.5f + 0.5f;
      stream(y + i, a), stream(y + i + 1, b), stream(y + i + 2, c), stream(y + i + 3, d);
    }
  }
}
TASK(fma) {  // ten chains hide the latency of two units, and fit 16 registers
  vec a[10] = {};
  vec x = {}, y = {};
  x += 0.999f + 0.f * (float)num[2]; y += 1e-3f;
  __asm__ volatile("" : "+m"(x), "+m"(y));
  for (int64_t s = begin; s < end; ++s)
    for (int64_t r = 0; r < num[1] * STEPS; ++r)
      for (int k = 0; k < 10; ++k) a[k] = a[k] * x + y;
  volatile float sink = 0;
  for (int k = 0; k < 10; ++k) sink = sink + a[k][0];
}
extern "C" int fma_lanes() { return LANES; }
"""


@dataclass(frozen=True, slots=True)
class BandwidthReport:
    """Rates of all threads together, in GB/s (10^9 bytes read plus written), for one working set.

    read: sum of everything; fill, copy: stores, loads and stores; map: read 1, compute, write 1;
    the ``_nt`` ones with non-temporal stores.  fma_gflops: single precision, 2 per fused operation.
    """

    working_set_bytes: int
    threads: int
    read: float
    copy: float
    fill: float
    fill_nt: float
    map: float
    map_nt: float
    fma_gflops: float

    @property
    def streaming_stores_pay(self) -> bool:
        """Whether non-temporal stores beat plain ones for a kernel that reads and writes this much."""
        return self.map_nt > 1.05 * self.map


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Bytes of one instance of each data cache, of a line, and how many cores share the last one."""

    l1: int
    l2: int
    l3: int
    line: int
    l3_shared_by: int


_ONE_ARRAY = ("read", "fill", "fill_nt")
_TWO_ARRAYS = ("copy", "map", "map_nt")
RATES = (*_ONE_ARRAY, *_TWO_ARRAYS, "fma_gflops")
"""The rates of a BandwidthReport."""
_known: dict[tuple[int, int], BandwidthReport] = {}
_lock = ForkLock()


def measure(nbytes: int, *, refresh: bool = False) -> BandwidthReport:
    """Rates for a working set of about `nbytes` (rounded up to a power of two, at most RAM / 8).

    Takes 0.2-1 s the first time, then is read from the cache folder; `refresh` measures again.
    Raises ToolchainError as `Pool.get`.
    """
    size = working_set_class(nbytes)
    pool = Pool.get()
    with _lock:
        known = _known.get((size, pool.threads))
        if known is None or refresh:
            known = _known[size, pool.threads] = _stored(size, pool, refresh)
        return known


def working_set_class(nbytes: int) -> int:
    """The size that is measured for `nbytes`: a power of two from 16 KB to an eighth of the RAM."""
    limit = 1 << (usable_memory() // 8).bit_length() - 1
    return min(max(SMALLEST, 1 << max(0, nbytes - 1).bit_length()), limit)


def _key(size: int, threads: int) -> str:
    return cache_key(
        [
            ("what", "bandwidth"),
            ("size", str(size)),
            ("threads", str(threads)),
            ("cores", str(os.cpu_count())),
            ("cpu", cpu_identity()),
            ("host", platform.node()),
            ("kernels", KERNELS),
            ("polyfuse", package_version()),
        ]
    )


def known(nbytes: int, threads: int) -> BandwidthReport | None:
    """What `measure` would give for so many threads, if that was measured before; measures nothing."""
    entry = Cache.open_default().get(_key(working_set_class(nbytes), threads))
    return None if entry is None else BandwidthReport(**json.loads(read_file(entry / "bandwidth.json")))


def level_sets(threads: int) -> tuple[int, ...]:
    """Working sets that fit half of L1, of L2 and of L3, and one that fits none."""
    sizes = cache_sizes()
    return sizes.l1 // 2 * threads, sizes.l2 // 2 * threads, sizes.l3 // 2, max(4 * sizes.l3, 256 << 20)


def _stored(size: int, pool: Pool, refresh: bool) -> BandwidthReport:
    key = _key(size, pool.threads)

    def build() -> Built:
        text = json.dumps(asdict(_measure(size, pool)), indent=1)
        return Built({"bandwidth.json": text.encode()}, {"what": f"bandwidth of {size} bytes"})

    cache = Cache.open_default()
    if refresh:
        cache.remove(key)
    return BandwidthReport(**json.loads(read_file(cache.get_or_build(key, build) / "bandwidth.json")))


@memoised
def _library() -> ctypes.CDLL:
    return load_shared(KERNELS.replace("STEPS", str(_FMA_STEPS)), plain=True)


def _measure(size: int, pool: Pool) -> BandwidthReport:
    rates = {name: rate_now(name, size) for name in RATES}
    return BandwidthReport(working_set_bytes=size, threads=pool.threads, **rates)


def rate_now(name: str, nbytes: int, *, runs: int = RUNS) -> float:
    """One of the `RATES` for a working set of just so many bytes, measured now and kept nowhere: the best of
    some runs of a few milliseconds. Raises ToolchainError as `Pool.get`."""
    pool = Pool.get()
    if name == "fma_gflops":
        flops = pool.threads * _FMA_STEPS * 10 * 2 * int(_library().fma_lanes())
        return _best_rate(_prepare(pool, "fma", 0, 0, 0), flops, repetitions=10, runs=runs) / 1e9
    arrays = 2 if name in _TWO_ARRAYS else 1
    slice_bytes = max(512, nbytes // arrays // pool.threads // 512 * 512)
    half = slice_bytes * pool.threads
    memory = Arena.get().allocate(half * arrays)
    memory[:] = 0
    call = _prepare(pool, name, memory.ctypes.data, half, slice_bytes)
    return _best_rate(call, half * arrays, repetitions=max(1, (1 << 20) // (half * arrays)), runs=runs) / 1e9


def _prepare(pool: Pool, name: str, memory: int, second: int, slice_bytes: int) -> PreparedCall:
    """One slice for each thread, as one chunk each."""
    kernel = ctypes.cast(getattr(_library(), "read_all" if name == "read" else name), ctypes.c_void_p).value
    assert kernel is not None
    step = Step(kernel, pool.threads, 1, True)
    call = pool.prepare(StepArray([step]), buffers=2, numbers=(slice_bytes, 1, pool.threads))
    call.buffers[0], call.buffers[1] = memory, memory + second
    return call


def _best_rate(call: PreparedCall, amount: int, repetitions: int, runs: int) -> float:
    """`amount` per second of one repetition, in the best of several runs of some milliseconds."""

    def run() -> float:
        call.numbers[1] = repetitions
        start = time.perf_counter()
        call.check()
        return time.perf_counter() - start

    spent = run()
    while spent < RUN_S / 2:
        repetitions *= 2 if spent > RUN_S / 8 else 4
        spent = run()
    return amount * repetitions / min(run() for _ in range(runs))


@memoised
def cache_sizes() -> CacheSizes:
    """Sizes of the data caches, as the operating system tells them; common ones if it does not."""
    found: dict[int, int] = {}
    line, shared = 64, 1
    for folder in _linux_caches():
        with suppress(OSError, ValueError, KeyError):
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            level = int((folder / "level").read_text())
            found[level] = _size((folder / "size").read_text())
            line = int((folder / "coherency_line_size").read_text())
            if level == 3:
                shared = _count_list((folder / "shared_cpu_list").read_text())
    if not found and platform.system() == "Darwin":
        for level, name in ((1, "hw.l1dcachesize"), (2, "hw.l2cachesize"), (3, "hw.l3cachesize")):
            with suppress(OSError, ValueError, subprocess.SubprocessError):
                text = subprocess.run(
                    ["sysctl", "-n", name], capture_output=True, text=True, timeout=5
                ).stdout
                found[level] = int(text)
    l1 = found.get(1) or 32 << 10
    l2 = found.get(2) or 512 << 10
    return CacheSizes(l1, l2, found.get(3) or max(l2, 4 << 20), line, max(1, shared))


def _linux_caches() -> Iterator[Path]:
    """The caches of the first core that this process may use."""
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    with suppress(OSError):
        yield from sorted(Path(f"/sys/devices/system/cpu/cpu{core}/cache").glob("index*"))


def _size(text: str) -> int:
    """``48K`` in bytes."""
    match = re.fullmatch(r"\s*(\d+)\s*([KMG]?)\s*", text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[match[2]]


def _count_list(text: str) -> int:
    """How many cores ``0-3,8`` names."""
    total = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total
