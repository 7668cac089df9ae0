"""Kernels of LayerNorms written by hand, beside the generated one: `python -m benchmarks.hand_layer_norm`.

Could another order of the same work reach the floor?  Kernels go over a row in three passes or in two (sums
of differences from the mean of the row's first elements), one, two or four rows at a time, which share scale
and shift, and ask for lines of the next rows or not.  Each is timed in turns with the generated kernel, on
the rows of the workload, and with all rows of a chunk at one place, in L1: what is left is arithmetic and
loads.  `--residual` has those of bias, residual and LayerNorm, which keep a row's sum, in f32 and f16.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np

import polyfuse as pf
from benchmarks.surroundings import cpu_name, load_average
from benchmarks.workload import load
from polyfuse.runtime.arena import Arena
from polyfuse.runtime.pool import Pool, PreparedCall, Step, StepArray
from polyfuse.runtime.toolchain import load_shared

COLUMNS, CHUNKS, TURNS = 768, 32, 40
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

# The same with a bias and a residual: their sum is kept in `row`, as f32.  HALF: all arrays are f16, and the
# three that all rows read are f32 once for a chunk.
RESIDUAL = r"""
#include <immintrin.h>
#define H 768
#define EACH for (int r = 0; r < R; ++r)
typedef __m512 V;
#if HALF
typedef unsigned short T;
static inline V take(const T* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
static inline void put(T* p, V v) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(v, 0)); }
#else
typedef float T;
static inline V take(const T* p) { return _mm512_loadu_ps(p); }
static inline void put(T* p, V v) { _mm512_storeu_ps(p, v); }
#endif
extern "C" void rows(char* const* buf, const long long*, char*, long long begin, long long end) {
  alignas(64) float row[R][H], wide[3][H];
  const float* all[3];
  for (int k = 0; k < 3; ++k) {
    const T* from = (const T*)buf[k ? k + 2 : 1];  // bias, gamma, beta
    for (int i = 0; HALF && i < H; i += 16) _mm512_store_ps(wide[k] + i, take(from + i));
    all[k] = HALF ? wide[k] : (const float*)from;
  }
  for (long long t = begin; t + R <= end; t += R) {
    const T *x = (const T*)buf[0] + (NEAR ? begin : t) * H, *y = (const T*)buf[2] + (NEAR ? begin : t) * H;
    T* to = (T*)buf[5] + (NEAR ? begin : t) * H;
    V sum[R][2] = {}, squares[R][2] = {}, mean[R], scale[R];
    EACH {
      const V first = _mm512_add_ps(_mm512_add_ps(take(x + r * H), take(y + r * H)), _mm512_loadu_ps(all[0]));
      mean[r] = _mm512_set1_ps(_mm512_reduce_add_ps(first) / 16);
    }
    for (int i = 0; i < H; i += 32)
      for (int u = 0; u < 2; ++u) {
        const int k = i + 16 * u;
        const V bias = _mm512_loadu_ps(all[0] + k);
        EACH {
          const V s = _mm512_add_ps(_mm512_add_ps(take(x + r * H + k), bias), take(y + r * H + k));
          const V d = _mm512_sub_ps(s, mean[r]);
          _mm512_store_ps(row[r] + k, d);
          sum[r][u] = _mm512_add_ps(sum[r][u], d);
          squares[r][u] = _mm512_fmadd_ps(d, d, squares[r][u]);
          if (AHEAD && !(k * sizeof(T) % 64)) {
            _mm_prefetch((const char*)(x + (r + AHEAD) * H + k), _MM_HINT_T0);
            _mm_prefetch((const char*)(y + (r + AHEAD) * H + k), _MM_HINT_T0);
          }
        }
      }
    EACH {
      const float off = _mm512_reduce_add_ps(_mm512_add_ps(sum[r][0], sum[r][1])) / H;
      const float mid = _mm512_reduce_add_ps(_mm512_add_ps(squares[r][0], squares[r][1])) / H;
      mean[r] = _mm512_set1_ps(off);
      scale[r] = _mm512_set1_ps(1.0f / __builtin_sqrtf(mid - off * off + 1e-5f));
    }
    for (int i = 0; i < H; i += 16) {
      const V by = _mm512_loadu_ps(all[1] + i), plus = _mm512_loadu_ps(all[2] + i);
      EACH {
        const V d = _mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(row[r] + i), mean[r]), scale[r]);
        put(to + r * H + i, _mm512_fmadd_ps(d, by, plus));
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


def by_hand(text: str, names: Mapping[str, int], arrays: Sequence[np.ndarray]) -> PreparedCall:
    """One of the kernels, on the arrays of an operator and its result."""
    library = load_shared("".join(f"#define {n} {v}\n" for n, v in names.items()) + text)
    address = ctypes.cast(library.rows, ctypes.c_void_p).value
    assert address is not None
    rows = len(arrays[0])
    call = Pool.get().prepare(StepArray([Step(address, rows, rows // CHUNKS, True)]), buffers=len(arrays))
    for k, a in enumerate(arrays):
        call.buffers[k] = a.ctypes.data
    return call


def in_turns(calls: Sequence[Callable[[], object]]) -> list[list[float]]:
    """Microseconds of each, five calls at a time, in another order in each turn: where other programs share
    the L3, who comes after kernels in L1 finds less of its rows there."""
    times: list[list[float]] = [[] for _ in calls]
    order = np.random.default_rng(0)
    for _ in range(TURNS):
        for k in order.permutation(len(calls)):
            calls[k]()
            calls[k]()
            start = time.perf_counter()
            for _ in range(5):
                calls[k]()
            times[k].append((time.perf_counter() - start) / 5e-6)
    return times


def forms_of(name: str, rows: int, half: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """The generated kernel of a workload, and those by hand."""
    w, dtype = load(name), np.dtype(np.float16 if half else np.float32)
    inputs = w.inputs({"T": rows, "H": COLUMNS}).values()
    given = [in_arena(a.astype(dtype)) for a in inputs if isinstance(a, np.ndarray)]
    result = in_arena(np.zeros((rows, COLUMNS), dtype))
    generated = pf.compile(w.text.replace("f32", "f16") if half else w.text, w.name).bind(*given, out=result)
    generated()
    wanted = result.copy()
    yield "generated", generated
    passes = (1,) if name == "res_ln" else (0, 1)
    for near, at_once, two, asks in product((0, 1), (1, 2, 4), passes, (0, 1)):
        names = {"R": at_once, "TWO": two, "AHEAD": asks * at_once, "NEAR": near, "HALF": half}
        call = by_hand(RESIDUAL if name == "res_ln" else KERNEL, names, [*given, result])
        call.check()
        if not near:
            np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=4e-3 if half else 1e-4)
        yield f"{at_once} rows, {3 - two} passes{', asks' * asks}{', in L1' * near}", call.check


def main(arguments: Sequence[str] | None = None) -> None:
    """Time and print all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hand_layer_norm", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--residual", action="store_true", help="with a bias and a residual, in f32 and f16")
    residual = parser.parse_args(arguments).residual
    for name, rows, half in (
        (("res_ln", 1024, 0), ("res_ln", 1024, 1)) if residual else (("ln_fwd", 4096, 0),)
    ):
        print(f"{name}, {rows} x {COLUMNS}, {'f16' if half else 'f32'}")
        forms = list(forms_of(name, rows, half))
        for (form, _), found in zip(forms, in_turns([f for _, f in forms]), strict=True):
            print(f"{form:32s} {min(found):7.1f} {statistics.median(found):7.1f}")
    print(f"{cpu_name()}, load average {load_average():.1f}; microseconds, the least and the median")


if __name__ == "__main__":
    main()
