"""Kernels of a LayerNorm written by hand, beside the generated one: `python -m benchmarks.hand_layer_norm`.

Could another order of the same work reach the floor?  Kernels go over a row in three passes or in two (sums
of differences from the mean of the row's first elements), one, two or four rows at a time, which share scale
and shift, and ask for lines of the next rows or not.  Each is timed in turns with the generated kernel, on
the rows of the workload, and with all rows of a chunk at one place, in L1: what is left is arithmetic and
loads.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

import polyfuse as pf
from benchmarks.surroundings import cpu_name, load_average
from benchmarks.workload import load
from polyfuse.runtime.arena import Arena
from polyfuse.runtime.pool import Pool, PreparedCall, Step, StepArray
from polyfuse.runtime.toolchain import load_shared

ROWS, COLUMNS, CHUNKS, TURNS = 4096, 768, 32, 40
# R rows at a time, TWO passes or three, lines asked for AHEAD rows later (0: none), in L1 or not.
KERNEL = r"""
#include <immintrin.h>
#define H 768
#define EACH for (int r = 0; r < R; ++r)
typedef __m512 V;
extern "C" void rows(char* const* buf, const long long*, char*, long long begin, long long end) {
  const float *x = (const float*)buf[0], *g = (const float*)buf[1], *b = (const float*)buf[2];
  for (long long t = begin; t + R <= end; t += R) {
    const float* from = x + (NEAR ? begin : t) * H;
    float* to = (float*)buf[3] + (NEAR ? begin : t) * H;
    V sum[R][2] = {}, squares[R][2] = {}, mean[R], scale[R];
    EACH mean[r] = _mm512_set1_ps(TWO ? _mm512_reduce_add_ps(_mm512_loadu_ps(from + r * H)) / 16 : 0.0f);
    for (int pass = TWO; pass < 2; ++pass) {
      for (int i = 0; i < H; i += 32)
        for (int u = 0; u < 2; ++u)
          EACH {
            const V d = _mm512_sub_ps(_mm512_loadu_ps(from + r * H + i + 16 * u), mean[r]);
            if (TWO || !pass) sum[r][u] = _mm512_add_ps(sum[r][u], d);
            if (pass) squares[r][u] = _mm512_fmadd_ps(d, d, squares[r][u]);
            if (pass && AHEAD) _mm_prefetch((const char*)(from + (r + AHEAD) * H + i + 16 * u), _MM_HINT_T0);
          }
      if (!pass) EACH mean[r] = _mm512_set1_ps(_mm512_reduce_add_ps(_mm512_add_ps(sum[r][0], sum[r][1])) / H);
    }
    EACH {
      const float off = TWO ? _mm512_reduce_add_ps(_mm512_add_ps(sum[r][0], sum[r][1])) / H : 0.0f;
      const float all = _mm512_reduce_add_ps(_mm512_add_ps(squares[r][0], squares[r][1])) / H;
      mean[r] = _mm512_add_ps(mean[r], _mm512_set1_ps(off));
      scale[r] = _mm512_set1_ps(1.0f / __builtin_sqrtf(all - off * off + 1e-5f));
    }
    for (int i = 0; i < H; i += 16) {
      const V by = _mm512_loadu_ps(g + i), plus = _mm512_loadu_ps(b + i);
      EACH {
        const V d = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(from + r * H + i), mean[r]), scale[r]);
        _mm512_storeu_ps(to + r * H + i, _mm512_fmadd_ps(d, by, plus));
      }
    }
  }
}
"""


def in_arena(a: np.ndarray) -> np.ndarray:
    """A copy where results are as well: in pages of 2 MB."""
    copy = Arena.get().allocate(a.nbytes).view(a.dtype).reshape(a.shape)
    copy[...] = a
    return copy


def by_hand(rows: int, two: int, ahead: int, near: int, arrays: Sequence[np.ndarray]) -> PreparedCall:
    """One of the kernels, on arrays x, gamma, beta and y."""
    names = {"R": rows, "TWO": two, "AHEAD": ahead, "NEAR": near}
    text = "".join(f"#define {n} {v}\n" for n, v in names.items()) + KERNEL
    library = load_shared(text)
    address = ctypes.cast(library.rows, ctypes.c_void_p).value
    assert address is not None
    call = Pool.get().prepare(StepArray([Step(address, ROWS, ROWS // CHUNKS, True)]), buffers=len(arrays))
    for k, a in enumerate(arrays):
        call.buffers[k] = a.ctypes.data
    return call


def in_turns(calls: Sequence[Callable[[], object]]) -> list[list[float]]:
    """Microseconds of each, five calls at a time."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(TURNS):
        for k in np.roll(range(len(calls)), turn):
            calls[k]()
            calls[k]()
            start = time.perf_counter()
            for _ in range(5):
                calls[k]()
            times[k].append((time.perf_counter() - start) / 5e-6)
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    """Time and print all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hand_layer_norm", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.parse_args(arguments)
    w = load("ln_fwd")
    given = [in_arena(a) for a in w.inputs({"T": ROWS, "H": COLUMNS}).values()]
    result = in_arena(np.zeros((ROWS, COLUMNS), np.float32))
    generated = pf.compile(w.text, w.name).bind(*given, out=result)
    generated()
    wanted = result.copy()
    forms = [("generated", generated)]
    for near, rows, two, asks in product((0, 1), (1, 2, 4), (0, 1), (0, 1)):
        call = by_hand(rows, two, asks * rows, near, [*given, result])
        call.check()
        if not near:
            np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-4)
        name = f"{rows} rows, {3 - two} passes{', asks' * asks}{', in L1' * near}"
        forms.append((name, call.check))
    for (name, _), found in zip(forms, in_turns([f for _, f in forms]), strict=True):
        print(f"{name:32s} {min(found):7.1f} {statistics.median(found):7.1f}")
    print(f"{cpu_name()}, load average {load_average():.1f}; microseconds, the least and the median")


if __name__ == "__main__":
    main()
