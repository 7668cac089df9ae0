"""Kernels of LayerNorms written by hand, beside the generated one: `python -m benchmarks.hand_layer_norm`.

Could another order of the same work reach the floor?  Kernels go over a row in three passes or in two (sums
of differences from the mean of the row's first elements), one, two or four rows at a time, which share scale
and shift, and prefetch lines of the next rows or not.  Each is timed in turns with the generated kernel, on
the rows of the workload, and with all rows of a chunk at one place, in L1: what is left is arithmetic and
loads.  `--residual` has those of bias, residual and LayerNorm, which keep a row's sum, and `--half` those of
f16, beside the generated one of f32.
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
from polyfuse.runtime.cpu.memory import Arena
from polyfuse.runtime.cpu.pool import Pool, PreparedCall, Step, StepArray
from polyfuse.runtime.toolchain.compiler import load_shared

CHUNKS, TURNS = 32, 40
Shape = tuple[int, int]
# R rows of H elements at a time; lines of AHEAD rows later are prefetched.  NEAR: all rows are in L1.
# HALF: all arrays are f16, and those that all rows read are f32 once for a chunk.
PRELUDE = r"""
#include <immintrin.h>
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
static inline const float* widened(float* to, const char* from) {
  for (int i = 0; HALF && i < H; i += 16) _mm512_store_ps(to + i, take((const T*)from + i));
  return HALF ? to : (const float*)from;
}
"""

# TWO passes over a row, or three.
KERNEL = r"""
extern "C" void rows(char* const* buf, const long long*, char*, long long begin, long long end) {
  alignas(64) float wide[2][H];
  const float *g = widened(wide[0], buf[1]), *b = widened(wide[1], buf[2]);
  for (long long t = begin; t + R <= end; t += R) {
    const T* from = (const T*)buf[0] + (NEAR ? begin : t) * H;
    T* to = (T*)buf[3] + (NEAR ? begin : t) * H;
    V sum[R][2] = {}, squares[R][2] = {}, mean[R], scale[R];
    EACH mean[r] = _mm512_set1_ps(TWO ? _mm512_reduce_add_ps(take(from + r * H)) / 16 : 0.0f);
    for (int pass = TWO; pass < 2; ++pass) {
      for (int i = 0; i < H; i += 32)
        for (int u = 0; u < 2; ++u)
          EACH {
            const V d = _mm512_sub_ps(take(from + r * H + i + 16 * u), mean[r]);
            if (TWO || !pass) sum[r][u] = _mm512_add_ps(sum[r][u], d);
            if (pass) squares[r][u] = _mm512_fmadd_ps(d, d, squares[r][u]);
            if (pass && AHEAD && !((i + 16 * u) * sizeof(T) % 64))
              _mm_prefetch((const char*)(from + (r + AHEAD) * H + i + 16 * u), _MM_HINT_T0);
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
        const V d = _mm512_mul_ps(_mm512_sub_ps(take(from + r * H + i), mean[r]), scale[r]);
        put(to + r * H + i, _mm512_fmadd_ps(d, by, plus));
      }
    }
  }
}
"""

# The same with a bias and a residual: their sum is kept in `row`, as f32; two passes.
RESIDUAL = r"""
extern "C" void rows(char* const* buf, const long long*, char*, long long begin, long long end) {
  alignas(64) float row[R][H], wide[3][H];
  const float* all[] = {widened(wide[0], buf[1]), widened(wide[1], buf[3]), widened(wide[2], buf[4])};
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
    defined = "".join(f"#define {n} {v}\n" for n, v in names.items())
    library = load_shared(defined + PRELUDE + text)
    address = ctypes.cast(library.rows, ctypes.c_void_p).value
    assert address is not None
    rows = len(arrays[0])
    call = Pool.get().prepare(
        StepArray([Step(address, rows, max(rows // CHUNKS, min(16, rows // 2)), True)]), buffers=len(arrays)
    )
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


def generated(name: str, shape: Shape, half: bool) -> tuple[Callable[[], object], list[np.ndarray]]:
    """A bound call of the workload, and its arrays with the result, which is computed."""
    w, dtype = load(name), np.float16 if half else np.float32
    inputs = w.inputs({"T": shape[0], "H": shape[1]}).values()
    given = [in_arena(a.astype(dtype)) for a in inputs if isinstance(a, np.ndarray)]
    result = in_arena(np.zeros(shape, dtype))
    call = pf.compile(w.text.replace("f32", "f16") if half else w.text, w.name).bind(*given, out=result)
    call()
    return call, [*given, result]


def forms_of(name: str, shape: Shape, half: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """The generated kernel of a workload, and those by hand; for f16 that of f32 as well."""
    call, arrays = generated(name, shape, half)
    wanted = arrays[-1].copy()
    yield "generated", call
    if half:
        yield "generated, f32", generated(name, shape, False)[0]
    passes = (1,) if name == "res_ln" else (0, 1)
    for near, at_once, two, asks in product((0, 1), (1, 2, 4), passes, (0, 1)):
        names = {"R": at_once, "TWO": two, "AHEAD": asks * at_once, "NEAR": near}
        text = RESIDUAL if name == "res_ln" else KERNEL
        by = by_hand(text, {**names, "HALF": int(half), "H": shape[1]}, arrays)
        by.check()
        if not near:
            np.testing.assert_allclose(arrays[-1], wanted, rtol=1e-3, atol=4e-3 if half else 1e-4)
        yield f"{at_once} rows, {3 - two} passes{', asks' * asks}{', in L1' * near}", by.check


def main(arguments: Sequence[str] | None = None) -> None:
    """Time and print all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hand_layer_norm", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--residual", action="store_true", help="with a bias and a residual")
    parser.add_argument("--half", action="store_true", help="in f16")
    parser.add_argument("--rows", type=int, help=f"a multiple of {CHUNKS} (4096; 1024 with a residual)")
    parser.add_argument("--columns", type=int, default=768, help="a multiple of 32 (768)")
    asked = parser.parse_args(arguments)
    name, rows = ("res_ln", 1024) if asked.residual else ("ln_fwd", 4096)
    shape = asked.rows or rows, asked.columns
    if shape[0] % CHUNKS or shape[1] % 32:
        parser.error(f"rows are a multiple of {CHUNKS}, columns of 32")
    print(f"{name}, {shape[0]} x {shape[1]}, {'f16' if asked.half else 'f32'}")
    forms = list(forms_of(name, shape, asked.half))
    for (form, _), found in zip(forms, in_turns([f for _, f in forms]), strict=True):
        print(f"{form:32s} {min(found):7.1f} {statistics.median(found):7.1f}")
    print(f"{cpu_name()}, load average {load_average():.1f}; microseconds, the least and the median")


if __name__ == "__main__":
    main()
