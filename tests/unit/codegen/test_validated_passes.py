"""Each pass over loops of a CPU is compared at least once by translation validation.

On a small program it changes the loops, both forms are run and leave the same memory, and a form that stores
something else is told apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from machines import decided_for

from polyfuse.codegen.cpu.pipeline import PIPELINES
from polyfuse.codegen.passes import Loops
from polyfuse.codegen.translation_validation import Verdict, compared
from polyfuse.driver import pipeline
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.driver.targets import knobs_for
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.kernel import Buffer, Kernel
from polyfuse.ir.loop_ir import Store, Update
from polyfuse.ir.tensor_graph import Apply, Const
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options

# Statements that are run for a pass: tiles, and sums of many terms, take more than the usual budget.
BUDGET = 1_000_000

BIASED = """op f(a: f32[M, K], b: f32[K, N], v: f32[N]) -> (c: f32[M, N]) {
  c[i, j] = max(sum[k](a[i, k] * b[k, j]) + v[j], 0.0)
}"""
DOTS = "op f(a: f32[M, K], b: f32[N, K]) -> (c: f32[M, N]) { c[i, j] = sum[k](a[i, k] * b[j, k]) }"
SUMS = """op f(x: f32[B, T]) -> (y: f32[B, T]) where T >= 1 {
  y[b, 0] = x[b, 0]
  y[b, t] = y[b, t-1] + x[b, t] for t in 1..T
}"""
MASKED = """op f(x: f32[B, T], m: bool[B, T]) -> (y: f32[B, T]) where T >= 1 {
  y[i, 0] = x[i, 0]
  y[i, j] = y[i, j-1] + (x[i, j] if m[i, j] else 0.0) for j in 1..T
}"""
BACKWARD = """op f(dy: f32[T, H], x: f32[T, H], g: f32[H]) -> (dx: f32[T, H], dg: f32[H], db: f32[H]) {
  a[t] = sum[h](dy[t, h] * g[h]); b[t] = sum[h](dy[t, h] * g[h] * x[t, h])
  dx[t, h] = dy[t, h] * g[h] - a[t] - x[t, h] * b[t]
  dg[h] = sum[t](dy[t, h] * x[t, h]); db[h] = sum[t](dy[t, h])
}"""
FILTER = """op f(x: f32[N, H, W, C], w: f32[3, 3, C]) -> (y: f32[N, H-2, W-2, C]) where H >= 3, W >= 3 {
  y[n, p, q, c] = sum[r in 0..3, s in 0..3](x[n, p + r, q + s, c] * w[r, s, c])
}"""
ADDED = "op f(inout y: f32[T, C], x: f32[T+2, C]) { y[t, c] += x[t + r, c] for r in 0..3 }"
POOL = """op f(x: f32[N, H, W]) -> (y: f32[N, H, W]) {
  y[n, p, q] = sum[r in 0..3, s in 0..3](
      x[n, p+r-1, q+s-1] if 0 <= p+r-1 < H and 0 <= q+s-1 < W else 0.0) / 9.0
}"""
SOFTMAX = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = max[k](x[t, k]); s[t] = sum[k](exp(x[t, k] - m[t]))
  y[t, h] = exp(x[t, h] - m[t]) / s[t]
}"""
LOSS = """op f(x: f32[T, H]) -> (loss: f32, most: f32) {
  m[t] = max[h](x[t, h]); s[t] = sum[h](exp(x[t, h] - m[t])); l[t] = m[t] + log(s[t])
  loss = sum[t](l[t]); most = max[t](l[t])
}"""
NORM = """op f(x: f32[T, H], r: f32[T, H], g: f32[H]) -> (y: f32[T, H]) {
  z[t, h] = x[t, h] + r[t, h]
  s[t] = sum[h](z[t, h] ** 2)
  y[t, h] = z[t, h] * rsqrt(s[t]) * g[h]
}"""
COLUMNS = "op f(x: f32[N, C]) -> (y: f32[C]) { y[c] = sum[n](x[n, c]) }"
CHANNELS = "op f(x: f32[N, C, H]) -> (y: f32[C]) { y[c] = sum[n, h](x[n, c, h]) }"
SCALED = """op f(x: f32[N, C], m: f32[C], s: f32[C]) -> (y: f32[N, C]) {
  y[n, c] = (x[n, c] - m[c]) * rsqrt(s[c] + 1e-5)
}"""
COUNTS = "op f(x: f32[N], z: i64[N]) -> (h: f32[50]) { h[z[i]] += exp(x[i]) }"
MESSAGES = """op f(x: f32[N, F], w: f32[E], src: i64[E], dst: i64[E]) -> (y: f32[N, F]) {
  y[dst[e], f] += w[e] * x[src[e], f]
}"""
TURNED = "op f(x: f32[I, K], z: f32[I, K]) -> (y: f32[K, I]) { y[k, i] = max(x[i, k], z[i, k]) }"
TRANSPOSED = "op f(x: f32[N, M]) -> (y: f32[M, N]) { y[i, j] = exp(x[j, i]) * 2.0 }"
GROUPS = """op f(w: i8[N, G, K], s: f32[N, G], z: f32[N, G], x: f32[G, K]) -> (y: f32[N]) {
  y[n] = sum[g, k]((f32(w[n, g, k]) - z[n, g]) * s[n, g] * x[g, k])
}"""
BLOCKS = """op f(x: f32[N, K], s: f32[N, G]) -> (y: f32[N, K]) where K == 8 * G {
  y[n, k] = x[n, k] * s[n, k // 8]
}"""
CLAMPED = """op f(x: f32[N]) -> (y: f32[N]) where N >= 1 {
  y[i] = x[max(i - 3, 0)] + x[min(i + 2, N - 1)]
}"""
SHORT = "op f(x: f32[N, K]) -> (y: f32[N]) { y[n] = sum[k](exp(x[n, k])) }"
FOLDS = """op f(x: f32[N, C]) -> (y: f32[C]) where N >= 1 {
  t[n, c] = tanh(x[n, c])
  y[c] = max[n](exp(-abs(t[n, c] - 0.3 * x[n, c])))
}"""
LAST = """op f(z: f32[T, H], x: f32[T, H], c: f32[T]) -> (y: f32[T, H]) where T >= 2, H >= 2 {
  s[t, h] = min(exp(z[t, h]), x[t, h]) for t in 0..T, h in 0..H
  y[t, h] = tanh(s[t, h]) for t in 0..T, h in H-1..H
  y[t, h] = c[t] + 4.0 for t in 0..T, h in 0..H-1
}"""
FIRST = """op f(x: f64[N, M], y: f64[M, N]) -> (s: f64[N]) where N >= 6, M >= 5 {
  u[i, j] = 0.25 for i in N - 2..N - 1, j in 1..2
  u[i, j] = 0.25 for i in N - 2..N - 1, j in 2..4
  u[i, j] = 0.25 for i in N - 2..N - 1, j in 4..M
  u[i, j] = 0.25 for i in N - 1..N, j in 0..1
  u[i, j] = 0.25 for i in N - 1..N, j in 1..2
  u[i, j] = 0.25 for i in N - 1..N, j in 2..4
  u[i, j] = (x[i, j - 2] if 2 <= j < M - 1 and i % 2 == 0 else y[j, i]) for i in N - 1..N, j in 4..M
  t[i, j] = 0.25 for i in 0..1, j in 0..M
  t[i, j] = 3 for i in 1..N - 1, j in 0..M
  t[i, j] = u[i, j] for i in N - 1..N, j in 0..M
  s[i] = sum[j](t[i, j])
}"""
ROUNDED = """op f(x: bf16[T, H], g: bf16[H]) -> (y: bf16[T, H], s: f32[T], c: f32[H]) {
  y[t, h] = exp(x[t, h]) * g[h]
  s[t] = sum[h](f32(y[t, h]))
  c[h] = sum[t](f32(y[t, h]))
}"""
HALF_SOFTMAX = """op f(x: bf16[T, H], g: bf16[H]) -> (y: bf16[T, H]) {
  z[t, h] = f32(x[t, h]) * f32(g[h])
  m[t] = max[h](z[t, h]); s[t] = sum[h](exp(z[t, h] - m[t]))
  y[t, h] = bf16(exp(z[t, h] - m[t]) / s[t])
}"""
HALF_NORM = """op f(x: f16[T, H], g: f16[H]) -> (y: f16[T, H]) {
  s[t] = sum[h](f32(x[t, h]) ** 2)
  y[t, h] = f16(f32(x[t, h]) * rsqrt(s[t]) * f32(g[h]))
}"""
REVERSED = "op f(x: f16[T, H]) -> (y: f16[T, H]) { y[t, h] = x[t, H - 1 - h] }"
QUOTIENTS = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h]); y[t, h] = x[t, h] / s[t] + sqrt(x[t, h])
}"""
DIAGONAL = """op f(x: f32[N, M], w: f32[M]) -> (y: f32[N, M]) {
  y[a, i] = x[a, i] / w[i] if i != a else 1.0 for a in 0..N, i in 0..M
}"""
TRIANGLE = """op f(x: f32[S, S]) -> (p: f32[S, S], o: f32[S]) {
  p[s, t] = exp(x[s, t]) for s in 0..S, t in 0..s+1
  p[s, t] = 0.0 for s in 0..S, t in s+1..S
  o[s] = sum[t](p[s, t] * (x[s, t] if t <= s else 1.0)) for s in 0..S
}"""
EXPERTS = """op f(x: f32[N, K], g: i64[N, E], w: f32[E, K, M]) -> (y: f32[N, E, M]) {
  b[n, e] = any[k in 0..E](g[n, k] == e) for n in 0..N, e in 0..E
  y[n, e, m] = sum[k](x[n, k] * w[e, k, m] if b[n, e] else 0.0)
}"""
WINDOWED = """op f(x: f32[H, W], w: f32[6, 6]) -> (y: f32[H-5, W-5]) where H >= 5, W >= 5 {
  y[p, q] = sum[r in 0..6, s in 0..6](x[p + r, q + s] * w[r, s])
}"""
WRITTEN = """op f(x: f32[N, C], z: f32[N, 8]) -> (y: f32[N, C]) {
  y[n, c] = exp(-abs(exp(-abs(x[n, c])))) + 0.1 * z[n, 2 * c]
}"""
KEPT = """op f(x: bool[64, 64], t: f32[64, 64], w: f32[64, 64]) -> (r: f32[64]) {
  a[i] = any[k in 0..64](x[k, i + k - 2] if 0 <= i + k - 2 < 64 else true) for i in 0..64
  r[i] = (t[i, i] + w[i, (i + 3) % 64]) if a[i] else (t[i + 2, i] if 0 <= i + 2 < 64 else 1.0)
}"""
EXCHANGED = """op f(x: f32[A, C], z: f32[A, B, C]) -> (y: f32[B, A, C]) {
  y[b, a, c] = x[a, c] + z[a, b, c]
}"""
ROWS = """op f(x: f32[E, F], ptr: i32[N + 1]) -> (y: f32[N, F]) {
  y[n, f] = sum[e in ptr[n]..ptr[n + 1]](x[e, f])
}"""

# A program for each pass, and its sizes.
PROGRAMS: dict[str, tuple[str, dict[str, int]]] = {
    "data-ranges": (ROWS, {"N": 9, "E": 65, "F": 17}),
    "simplify-guards": (TRIANGLE, {"S": 17}),
    "nan-free-extremes": (SOFTMAX, {"T": 9, "H": 65}),
    "forward-stores": (ROUNDED, {"T": 9, "H": 65}),
    "skip-empty-loops": (EXPERTS, {"N": 9, "M": 33, "E": 5, "K": 17}),
    "scalar-replacement:accumulators": (SOFTMAX, {"T": 9, "H": 65}),
    "peel-first-iteration": (FIRST, {"N": 6, "M": 17}),
    "peel-last-iteration": (LAST, {"T": 9, "H": 33}),
    "simplify-window-indices": (BIASED, {"M": 33, "K": 33, "N": 64}),
    "serialize-conflicts": (COUNTS, {"N": 129}),
    "loop-distribution:scatters": (COUNTS, {"N": 129}),
    "collapse-reductions": (GROUPS, {"N": 9, "G": 3, "K": 48}),
    "index-set-splitting:div-mod": (BLOCKS, {"N": 9, "K": 64, "G": 8}),
    "index-set-splitting:clamped-indices": (CLAMPED, {"N": 77}),
    "invariant-motion:scalars": (NORM, {"T": 33, "H": 500}),
    "strength-reduction:quotients": (QUOTIENTS, {"T": 9, "H": 65}),
    "invariant-motion:columns": (SCALED, {"N": 9, "C": 33}),
    "unswitch": (DIAGONAL, {"N": 9, "M": 33}),
    "precision:copies": (REVERSED, {"T": 33, "H": 65}),
    "precision:rounded-once": (ROUNDED, {"T": 9, "H": 65}),
    "loop-carried-scalars": (SUMS, {"B": 13, "T": 33}),
    "common-subexpressions": (HALF_SOFTMAX, {"T": 9, "H": 65}),
    "register-tiling": (BIASED, {"M": 33, "K": 33, "N": 64}),
    "fuse-tile-epilogue": (BIASED, {"M": 33, "K": 33, "N": 64}),
    "index-set-splitting:stencil-interiors": (POOL, {"N": 2, "H": 7, "W": 33}),
    "unroll-and-jam:stencils": (WINDOWED, {"H": 9, "W": 45}),
    "unroll-and-jam:reductions": (COLUMNS, {"N": 700, "C": 9}),
    "fuse-loops": (POOL, {"N": 2, "H": 7, "W": 33}),
    "overlapping-tails": (SHORT, {"N": 133, "K": 5}),
    "transpose-tiles:loads": (TRANSPOSED, {"N": 49, "M": 65}),
    "wide-accumulators:rows": (CHANNELS, {"N": 17, "C": 5, "H": 129}),
    "outline:owners": (MESSAGES, {"N": 200, "E": 1025, "F": 17}),
    "transpose-tiles:stores": (TURNED, {"I": 33, "K": 37}),
    "outline": (SOFTMAX, {"T": 9, "H": 65}),
    "unroll-and-jam:dot-products": (DOTS, {"M": 3, "K": 1025, "N": 67}),
    "unroll-and-jam:shared-sums": (BACKWARD, {"T": 9, "H": 2053}),
    "unroll-and-jam:recurrences": (SUMS, {"B": 13, "T": 1001}),
    "outer-vectorize:recurrences": (SUMS, {"B": 101, "T": 101}),
    "outer-vectorize:short-rows": (SHORT, {"N": 133, "K": 5}),
    "unroll-and-jam:batched-rows": (DOTS, {"M": 33, "K": 33, "N": 33}),
    "unroll-and-jam:batched-loops": (LOSS, {"T": 37, "H": 19}),
    "unroll-and-jam:interleaved-rows": (SOFTMAX, {"T": 65, "H": 130}),
    "invariant-motion:conversions": (HALF_NORM, {"T": 33, "H": 65}),
    "invariant-motion:function-columns": (SCALED, {"N": 1001, "C": 33}),
    "software-pipelining": (NORM, {"T": 33, "H": 500}),
    "unroll-and-jam:overlapping-windows": (FILTER, {"N": 2, "H": 6, "W": 17, "C": 19}),
    "unroll-and-jam:strip-accumulators": (ADDED, {"T": 7, "C": 100}),
    "unroll-and-jam:short-sums": (CHANNELS, {"N": 17, "C": 5, "H": 129}),
    "narrow-vectors": (COLUMNS, {"N": 2100, "C": 5}),
    "wide-accumulators:columns": (COLUMNS, {"N": 4003, "C": 3}),
    "loop-distribution:recurrences": (MASKED, {"B": 6, "T": 63}),
    "loop-distribution:short-reductions": (FOLDS, {"N": 300, "C": 3}),
    "keep-loops": (KEPT, {}),
    "unroll-short-loops": (WRITTEN, {"N": 77, "C": 3}),
    "run-loops": (EXCHANGED, {"A": 19, "B": 57, "C": 33}),
    "declare-arrays": (SUMS, {"B": 101, "T": 101}),
}
# Those of a machine other than that of all others.
MACHINE, OTHERS = "zen3", {"loop-distribution:short-reductions": "zen5", "unroll-short-loops": "zen5"}
# What has no two forms to run.
NOTHING_TO_RUN = {
    "lower-statements": "there are no loops before it",
    "short-functions": "the kernel changes, and there are no loops yet",
    "prefetch:rows": "asks for lines, and computes nothing",
    "prefetch:next-row": "asks for lines, and computes nothing",
    "prefetch:rows-of-data": "asks for lines, and computes nothing",
    "load-balance:rows": "says which iterations a worker has: what these compute stays",
    "load-balance:long-rows": "says which iterations are cut, where functions are printed",
}
Pairs = dict[str, list[tuple[Loops, Loops]]]


class Recorder:
    """Keeps the loops before and after each pass that changed them."""

    def __init__(self) -> None:
        self.pairs: Pairs = {}
        self.before: Loops | None = None

    def __call__(self, _: str, name: str, loops: Loops) -> None:
        if name and self.before is not None and loops != self.before:
            self.pairs.setdefault(name, []).append((self.before, loops))
        self.before = loops


@contextmanager
def recorded() -> Iterator[Recorder]:
    """Passes of a compilation are kept, in place of verified."""
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "PassVerifier", lambda: recorder)
        yield recorder


def pairs_of(text: str, machine: str, sizes: dict[str, int]) -> Pairs:
    """The loops before and after each pass that changed something."""
    program = parse_text(text)
    graph = instantiate(program, program.ops[-1].name)
    options = Options(threads=2, progress=False, verify=True, dump=None)
    with decided_for(machine), recorded() as found:
        layers = {"stitching": Stitching(), "packing": Packing()}
        knobs = knobs_for("cpu", options)
        emitted(Watch(options), Compilation(graph, sizes, LoopFusion(), options, knobs=knobs, **layers))
    return found.pairs


def wrong(x: Any) -> Any:
    """The same but for what is stored and added: one more of each."""
    if isinstance(x, Store | Update):
        one = Const(True if x.value.dtype.is_bool else 1.0, x.value.dtype)
        op = "xor" if x.value.dtype.is_bool else "add"
        return replace(x, value=Apply(op, (x.value, one), x.value.dtype))
    if isinstance(x, tuple):
        return tuple(map(wrong, x))
    if is_dataclass(x) and not isinstance(x, Kernel | Buffer | type):
        changed = {f.name: wrong(getattr(x, f.name)) for f in fields(x) if f.init}
        return replace(x, **{n: v for n, v in changed.items() if v != getattr(x, n)})
    return x


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_changes_loops_and_is_compared(name: str) -> None:
    text, sizes = PROGRAMS[name]
    pairs = pairs_of(text, OTHERS.get(name, MACHINE), sizes).get(name, [])
    assert pairs, "the pass has changed nothing"
    for before, after in pairs:
        found = compared(before, after, BUDGET)
        assert found.verdict is Verdict.SAME, found.what
        assert compared(before, wrong(after), BUDGET).verdict is Verdict.DIFFERENT


def test_every_pass_has_a_program() -> None:
    every = {p.name for line in PIPELINES for p in line.passes}
    assert {*PROGRAMS, *NOTHING_TO_RUN} == every and not PROGRAMS.keys() & NOTHING_TO_RUN.keys()
