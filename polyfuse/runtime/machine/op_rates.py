"""What one element of each function takes on this machine: vectors, data in L1, all threads at work.

The functions are those that kernels call (`codegen.math.prelude`).  A loop over a few thousand elements is
repeated for some milliseconds; what loading and storing takes is subtracted, the shortest run counts.
"""

from __future__ import annotations

import ctypes
import json
import platform
import time
from functools import cache as memoised
from pathlib import Path

from polyfuse.codegen.math.prelude import prelude
from polyfuse.ir.ops import OPS
from polyfuse.runtime.cache.disk import Built, Cache, cache_key, package_version, read_file
from polyfuse.runtime.cpu.memory import Arena
from polyfuse.runtime.cpu.pool import Pool, PreparedCall, Step, StepArray
from polyfuse.runtime.toolchain.compiler import cpu_identity, load_shared

FUNCTIONS = tuple(o.name for o in OPS.values() if o.arity == 1 and o.is_special)
ELEMENTS = 2048
RUNS, RUN_S = 7, 0.002
_PLAIN = 8

_TASK = """
extern "C" void rate_{name}(char* const* buf, const pf_i64* num, char*, pf_i64 begin, pf_i64 end) {{
  for (pf_i64 s = begin; s < end; ++s) {{
    const float* __restrict x = (const float*)buf[0] + s * {stride};
    const float* __restrict w = x + {elements};
    float* __restrict y = (float*)buf[0] + s * {stride} + 2 * {elements};
    for (pf_i64 r = 0; r < num[0]; ++r) {{
      _Pragma("GCC ivdep")
      for (int i = 0; i < {elements}; ++i) y[i] = {value};
      __asm__ volatile("" ::: "memory");
    }}
  }}
}}
"""
# Additions and maxima cannot become one instruction.
_VALUES = {
    "copy": "x[i]",
    "two": "x[i] + w[i]",
    "plain": "",
    "max": "pf_max_f32(x[i], w[i])",
    "div": "x[i] / (w[i] + 3.0f)",
    "pow": "pf_pow_f32(x[i], w[i])",
    **{name: f"pf_{name}_f32(x[i])" for name in FUNCTIONS},
}


def _source() -> str:
    chain = "x[i]"
    for k in range(_PLAIN // 2):
        least = f"-{k + 1}.25f"
        chain = f"({{ const float q = {chain} + {k + 1}.5f; q > {least} ? q : {least}; }})"
    values = {**_VALUES, "plain": chain}
    stride = 3 * ELEMENTS
    tasks = [_TASK.format(name=n, value=v, elements=ELEMENTS, stride=stride) for n, v in values.items()]
    called = [f"pf_{n}_f32" for n in (*FUNCTIONS, "pow", "max")]
    return prelude(called) + "".join(tasks)


def op_rates(threads: int | None = None, *, refresh: bool = False) -> dict[str, float]:
    """Seconds of one element in one thread, by kind: "plain", "load", "store", "div", or a function.

    Measured in about half a second the first time, then read from the cache folder; `refresh` measures again.
    Raises ToolchainError.
    """
    pool = Pool.get()
    count = min(threads or pool.threads, pool.threads)

    def build() -> Built:
        text = json.dumps(_measure(pool, count), indent=1)
        return Built({"rates.json": text.encode()}, {"what": "rates of functions"})

    cache = Cache.open_default()
    if refresh:
        cache.remove(_key(count))
    return _read(cache.get_or_build(_key(count), build) / "rates.json")


def known_op_rates(threads: int) -> dict[str, float] | None:
    """What `op_rates` would give, if that was measured before; measures nothing."""
    entry = Cache.open_default().get(_key(threads))
    return None if entry is None else _read(entry / "rates.json")


def _read(path: Path) -> dict[str, float]:
    return {str(name): float(value) for name, value in json.loads(read_file(path)).items()}


def _key(threads: int) -> str:
    return cache_key(
        [
            ("what", "rates of functions"),
            ("threads", str(threads)),
            ("cpu", cpu_identity()),
            ("host", platform.node()),
            ("kernels", _source()),
            ("polyfuse", package_version()),
        ]
    )


@memoised
def _library() -> ctypes.CDLL:
    return load_shared(_source(), plain=True)


def _measure(pool: Pool, threads: int) -> dict[str, float]:
    memory = Arena.get().empty((threads, 3, ELEMENTS), "f4")
    memory[:, 0], memory[:, 1] = 0.7, 1.3
    seconds = {name: _element_s(pool, name, memory.ctypes.data, threads) for name in _VALUES}
    load = max(0.0, seconds["two"] - seconds["copy"])
    store = max(0.0, seconds["copy"] - load)
    least = 0.1 * seconds["copy"]
    found = {
        name: max(least, s - seconds["copy"])
        for name, s in seconds.items()
        if name not in ("copy", "two", "plain")
    }
    plain = max(least, seconds["plain"] - seconds["copy"]) / _PLAIN
    return {**found, "plain": plain, "load": max(least, load), "store": max(least, store)}


def _element_s(pool: Pool, name: str, memory: int, threads: int) -> float:
    kernel = ctypes.cast(getattr(_library(), f"rate_{name}"), ctypes.c_void_p).value
    assert kernel is not None
    step = Step(kernel, threads, 1, threads > 1)
    call = pool.prepare(StepArray([step]), buffers=1, numbers=(1,))
    call.buffers[0] = memory
    repetitions = 8
    while _seconds(call, repetitions) < RUN_S / 2:
        repetitions *= 2
    return min(_seconds(call, repetitions) for _ in range(RUNS)) / (repetitions * ELEMENTS)


def _seconds(call: PreparedCall, repetitions: int) -> float:
    call.numbers[0] = repetitions
    start = time.perf_counter()
    call.check()
    return time.perf_counter() - start
