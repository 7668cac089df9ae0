"""The interpreter of kernels against the reference, fused and unfused, and against itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from pace import in_time

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.diagnostics import ArgumentError, InternalError
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import BY_NAME, F32, F64, I8, I32, I64, U8, DType
from polyfuse.ir.index_expr import IConst, evaluate
from polyfuse.ir.kernel import KernelGraph, Scope
from polyfuse.ir.schedule_tree import ScheduledGraph
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion, identity_schedule
from polyfuse.layers.mapping.kernels import entry_copies, form_kernels
from polyfuse.poly.model.domains import specialize
from polyfuse.runtime.interpreter.interpreter import InterpretedKernels
from polyfuse.runtime.interpreter.ops import apply_op, cast
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate as reference

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A program with shapes of its arguments; `given` holds arguments that must not be random."""

    text: str
    shapes: dict[str, tuple[int, ...]]
    given: dict[str, Any] = field(default_factory=dict)
    dtypes: dict[str, DType] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)


def ints(*values: Any, dtype: str = "i64") -> np.ndarray:
    return np.array(values, BY_NAME[dtype].numpy)


NAN_ROW = np.array([[1, np.nan, 3], [4, 2, 4], [-1, -5, -1], [np.inf, 0, np.nan]], np.float32)

CASES: dict[str, Case] = {
    "layer_norm": Case(
        """op f(x: f32[T, H], r: f32[T, H], gamma: f32[H], beta: f32[H], eps: f32 = 1e-5) -> (y: f32[T, H]) {
          s[t, h] = x[t, h] + r[t, h]
          mu[t] = sum[h](s[t, h]) / H
          var[t] = sum[h]((s[t, h] - mu[t]) ** 2) / H
          y[t, h] = (s[t, h] - mu[t]) * rsqrt(var[t] + eps) * gamma[h] + beta[h]
        }""",
        {"x": (7, 12), "r": (7, 12), "gamma": (12,), "beta": (12,)},
    ),
    "softmax": Case(
        """op f(x: f32[B, H]) -> (y: f32[B, H]) {
          m[b] = max[h](x[b, h])
          e[b, h] = exp(x[b, h] - m[b])
          y[b, h] = e[b, h] / sum[k](e[b, k])
        }""",
        {"x": (6, 9)},
    ),
    "rows_and_columns": Case(
        """op f(x: f32[T, H], g: f32[H]) -> (y: f32[T, H], c: f32[H], d: f32[H], total: f32) {
          s[t] = sum[h](x[t, h] * g[h])
          y[t, h] = x[t, h] - s[t]
          c[h] = sum[t](y[t, h])
          d[h] = max[t](x[t, h] * s[t])
          total = sum[t, h](x[t, h])
        }""",
        {"x": (9, 5), "g": (5,)},
    ),
    "matmul": Case(
        """op f(a: f32[I, K], b: f32[K, J], c: f32[J]) -> (y: f32[I, J]) {
          y[i, j] = tanh(sum[k](a[i, k] * b[k, j]) + c[j])
        }""",
        {"a": (5, 7), "b": (7, 6), "c": (6,)},
    ),
    "reductions": Case(
        """op f(x: f32[T, H], z: i32[T, H], b: bool[T, H]) -> (s: f32[T], p: f32[T], hi: f32[T], lo: f32[T],
              m: f32[H], si: i32[T], pi: i32[H], hii: i32[T], a: bool[T], o: bool[H]) {
          s[t] = sum[h](x[t, h])
          p[t] = prod[h](x[t, h])
          hi[t] = max[h](x[t, h])
          lo[t] = min[h](x[t, h])
          m[h] = mean[t](x[t, h])
          si[t] = sum[h](z[t, h])
          pi[h] = prod[t](z[t, h])
          hii[t] = max[h](z[t, h])
          a[t] = all[h](b[t, h])
          o[h] = any[t](b[t, h])
        }""",
        {"x": (4, 6), "z": (4, 6), "b": (4, 6)},
    ),
    "reduction_of_nan": Case(
        """op f(x: f32[T, H]) -> (hi: f32[T], lo: f32[T], s: f32[T]) {
          hi[t] = max[h](x[t, h])
          lo[t] = min[h](x[t, h])
          s[t] = sum[h](x[t, h])
        }""",
        {},
        {"x": NAN_ROW},
    ),
    "argmax": Case(
        """op f(x: f32[T, H], z: i8[T, K]) -> (a: i64[T], b: i64[T], c: i64[T], v: f32[T]) {
          a[t] = argmax[h](x[t, h])
          b[t] = argmin[h](x[t, h])
          c[t] = argmax[k](z[t, k])
          v[t] = x[t, a[t]]
        }""",
        {"z": (4, 9)},
        {"x": NAN_ROW},
    ),
    "gather": Case(
        """op f(table: f32[N, D], idx: i32[B, S], w: f32[D]) -> (y: f32[B, S, D], q: f32[B, S]) {
          y[b, s, d] = table[idx[b, s], d] * w[d]
          q[b, s] = sum[d](table[idx[b, s], d])
        }""",
        {"table": (5, 4), "w": (4,)},
        {"idx": ints([0, 4, 2], [3, 3, 1], dtype="i32")},
    ),
    "scatter_sum": Case(
        """op f(src: i64[E], dst: i64[E], x: f32[N, F], w: f32[E]) -> (agg: f32[N, F], deg: i32[N]) {
          agg[dst[e], f] += w[e] * x[src[e], f]
          deg[dst[e]] += 1
        }""",
        {"x": (5, 3), "w": (8,)},
        {"src": ints(0, 1, 2, 3, 4, 0, 1, 2), "dst": ints(1, 1, 1, 0, 4, 4, 2, 1)},
    ),
    "scatter_kinds": Case(
        """op f(dst: i32[E], x: f32[E], z: i32[E]) -> (hi: f32[6], lo: f32[6], two: f32[6], n: i32[6]) {
          let first: f32[6] = 0
          first[dst[e]] max= x[e]
          hi[i] = first[i]
          lo[dst[e]] min= x[e]
          let both: f32[6] = 1
          both[dst[e]] += x[e]
          both[e] += 2 * x[e] for e in 0..6
          two[i] = both[i]
          n[dst[e]] max= z[e]
        }""",
        {"x": (9,), "z": (9,)},
        {"dst": ints(0, 1, 1, 5, 5, 2, 0, 3, 3, dtype="i32")},
    ),
    "scatter_f16": Case(
        """op f(dst: i32[E], x: f16[E]) -> (y: f16[E]) {
          y[dst[e]] += x[e]
        }""",
        {"x": (6,)},
        {"dst": ints(0, 1, 1, 5, 5, 5, dtype="i32")},
    ),
    "scan_up": Case(
        """op f(x: f32[T, J]) -> (c: f32[T, J]) {
          c[0, j] = x[0, j]
          c[t, j] = c[t-1, j] * 0.5 + x[t, j] for t in 1..T, j in 0..J
        }""",
        {"x": (8, 5)},
    ),
    "scan_down": Case(
        """op f(x: f32[T, J]) -> (c: f32[T, J], y: f32[T, J]) {
          c[T-1, j] = x[T-1, j]
          c[t, j] = c[t+1, j] - x[t, j] for t in 0..T-1, j in 0..J
          y[t, j] = c[t, j] * 2
        }""",
        {"x": (6, 4)},
    ),
    "second_order": Case(
        """op f(x: f32[T]) -> (c: f32[T]) where T >= 3 {
          c[0] = x[0]
          c[1] = x[1]
          c[t] = 0.5 * c[t-1] - 0.25 * c[t-2] + x[t] for t in 2..T
        }""",
        {"x": (11,)},
    ),
    "coupled": Case(
        """op f(x: f32[T, J]) -> (a: f32[T, J]) where T >= 2 {
          a[0, j] = x[0, j]
          b[0, j] = 0.0 for j in 0..J
          a[t, j] = a[t-1, j] + b[t-1, j] for t in 1..T, j in 0..J
          b[t, j] = b[t-1, j] * 0.5 + x[t, j] for t in 1..T, j in 0..J
        }""",
        {"x": (6, 3)},
    ),
    "recurrence_with_reduction": Case(
        """op f(x: f32[T, J], w: f32[J, J]) -> (h: f32[T, J]) {
          h[0, j] = tanh(x[0, j])
          h[t, j] = tanh(x[t, j] + sum[k](w[j, k] * h[t-1, k])) for t in 1..T, j in 0..J
        }""",
        {"x": (5, 4), "w": (4, 4)},
    ),
    "stencil": Case(
        """op f(x: f32[N, M]) -> (h: f32[N, M]) {
          h[0, j] = x[0, j] for j in 0..M
          h[i, 0] = x[i, 0] for i in 1..N
          h[i, j] = max(h[i-1, j-1] + x[i, j], max(h[i-1, j], h[i, j-1]) - 0.5) for i in 1..N, j in 1..M
        }""",
        {"x": (5, 6)},
    ),
    "piecewise": Case(
        """op f(a: f32[N, C], b: f32[M, C]) -> (y: f32[N + M, C], z: f32[N + 4, C]) {
          y[i, c] = a[i, c] for i in 0..N, c in 0..C
          y[i, c] = b[i - N, c] for i in N..N+M, c in 0..C
          z[i, c] = 0.0 for i in 0..2, c in 0..C
          z[i, c] = y[i - 2, c] + 1 for i in 2..N+2, c in 0..C
          z[i, c] = y[i - 4, 0] for i in N+2..N+4, c in 0..C
        }""",
        {"a": (4, 3), "b": (5, 3)},
    ),
    "guards": Case(
        """op f(x: f32[N], w: f32[K]) -> (y: f32[N], z: f32[N]) {
          y[i] = (x[i-1] if i >= 1 else 0.0) + (x[i+1] if i + 1 < N else x[0])
          z[i] = sum[k in 0..K](x[i + k - 1] * w[k] if i + k >= 1 and i + k - 1 < N else 0.0)
        }""",
        {"x": (10,), "w": (3,)},
    ),
    "data_guard": Case(
        """op f(x: f32[N], idx: i32[N]) -> (y: f32[N], n: i32) {
          y[i] = x[idx[i]] if idx[i] >= 0 and idx[i] < N else -1.0
          n = sum[i](1 if idx[i] < 0 else 0)
        }""",
        {"x": (6,)},
        {"idx": ints(3, -1, 99, 0, 5, -7, dtype="i32")},
    ),
    "convolution": Case(
        """op f(x: f32[N, C, H, W], w: f32[O, C, 3, 3]) -> (y: f32[N, O, H - 2, W - 2])
              where H >= 3, W >= 3 {
          y[n, o, h, w_] = sum[c, r in 0..3, s in 0..3](x[n, c, h + r, w_ + s] * w[o, c, r, s])
        }""",
        {"x": (2, 3, 6, 5), "w": (4, 3, 3, 3)},
    ),
    "strides": Case(
        """op f(x: f32[B * S]) -> (y: f32[B, S], r: f32[B * S], q: f32[B * S]) where S == 4, B == 3 {
          y[b, s] = x[b*S + s]
          r[i] = y[i // S, i % S] * 2
          q[i] = x[B*S - 1 - i]
        }""",
        {"x": (12,)},
    ),
    "triangle": Case(
        """op f(x: f32[N, N]) -> (s: f32[N], t: f32[N]) {
          s[i] = sum[j in 0..N](x[i, j] if j <= i else 0.0)
          t[i] = sum[j in 0..i](x[i, j])
        }""",
        {"x": (7, 7)},
    ),
    "inout": Case(
        """op f(inout p: f32[N], inout m: f32[N], g: f32[N], lr: f32 = 0.1) {
          m[i] = 0.9 * m[i] + 0.1 * g[i]
          p[i] = p[i] - lr * (0.9 * old(m[i]) + 0.1 * g[i])
        }""",
        {"p": (10,), "m": (10,), "g": (10,)},
    ),
    "inout_reversed": Case("op f(inout p: f32[N]) { p[i] = p[N-1-i] + 1 }", {"p": (9,)}),
    "inout_shifted": Case("op f(inout p: f32[N]) { p[i] = p[i+1] + p[i] for i in 0..N-1 }", {"p": (9,)}),
    "inout_scatter": Case(
        "op f(inout p: f32[N], idx: i64[E], g: f32[E]) { p[idx[e]] += g[e] }",
        {"p": (5,), "g": (6,)},
        {"idx": ints(0, 4, 4, 2, 4, 0)},
    ),
    "inout_normalise": Case("op f(inout p: f32[N]) { p[i] = p[i] / sum[k](p[k] ** 2) }", {"p": (9,)}),
    "integers": Case(
        """op f(x: i8[N], y: i8[N], u: u8[N], v: i32[N]) -> (a: i8[N], b: i8[N], c: u8[N], d: i32[N],
              e: i8[N], p: i32[N], s: i8) {
          a[i] = x[i] + y[i] * 3
          b[i] = -x[i] - y[i]
          c[i] = u[i] * u[i] - 7
          d[i] = v[i] * 65537 + i32(x[i])
          e[i] = abs(x[i]) + min(x[i], y[i])
          p[i] = v[i] ** 3
          s = sum[i](x[i] * y[i])
        }""",
        {},
        {
            "x": ints(-128, 127, 100, -1, 0, dtype="i8"),
            "y": ints(-1, 2, 99, -128, 5, dtype="i8"),
            "u": ints(0, 255, 16, 17, 3, dtype="u8"),
            "v": ints(2**31 - 1, -(2**31), 7, -3, 0, dtype="i32"),
        },
    ),
    "division": Case(
        """op f(x: i32[N], y: i32[N], a: f32[N], b: f32[N]) -> (q: i32[N], r: i32[N], t: i32[N], d: f32[N]) {
          q[i] = x[i] // y[i]
          r[i] = x[i] % y[i]
          t[i] = x[i] // -3
          d[i] = a[i] / b[i]
        }""",
        {},
        {
            "x": ints(7, -7, 7, -7, 6, -(2**31), dtype="i32"),
            "y": ints(2, 2, -2, -2, 3, -1, dtype="i32"),
            "a": np.array([7.5, -7.5, 7.5, -7.5, 1, 0], np.float32),
            "b": np.array([2, 2, -2, -2, 0.375, 3], np.float32),
        },
    ),
    "bool": Case(
        """op f(a: bool[N], b: bool[N], x: f32[N]) -> (y: bool[N], z: bool[N], n: i32, w: f32[N], v: bool) {
          y[i] = a[i] and not b[i] or x[i] > 0
          z[i] = a[i] == b[i]
          n = sum[i](i32(y[i]))
          w[i] = f32(a[i]) + (1.0 if b[i] else -1.0)
          v = any[i](y[i] and z[i])
        }""",
        {"a": (9,), "b": (9,), "x": (9,)},
    ),
    "half": Case(
        """op f[F: float](x: F[T, H], w: F[H]) -> (y: F[T, H], s: F[T]) {
          s[t] = sum[h](x[t, h] * w[h])
          y[t, h] = x[t, h] / (1 + abs(s[t]))
        }""",
        {"x": (5, 8), "w": (8,)},
        dtypes={"F": BY_NAME["f16"]},
    ),
    "bfloat": Case(
        """op f[F: float](x: F[T, H], w: F[H]) -> (y: F[T, H], m: F[T], z: f64[T]) {
          m[t] = max[h](x[t, h] * w[h])
          y[t, h] = exp(x[t, h] - m[t])
          z[t] = f64(m[t]) * 3
        }""",
        {"x": (5, 8), "w": (8,)},
        dtypes={"F": BY_NAME["bf16"]},
    ),
    "functions": Case(
        """op f(x: f32[N], z: f64[N]) -> (a: f32[N], b: f64[N], c: f32[N], d: f32[N]) {
          a[i] = exp(x[i]) + log(abs(x[i]) + 1) + sin(x[i]) * cos(x[i]) + erf(x[i]) + sigmoid(x[i])
          b[i] = tanh(z[i]) + rsqrt(abs(z[i]) + 1) + sqrt(z[i] ** 2) + abs(z[i]) ** 1.5 + erf(z[i])
          c[i] = floor(x[i]) + ceil(x[i] * 3) - round(x[i] * 2)
          d[i] = max(x[i], 0.0) if not isnan(x[i]) else 1.0
        }""",
        {"x": (40,), "z": (40,)},
    ),
    "index_values": Case(
        """op f(x: f32[N], t: i32[N]) -> (y: f32[N], o: f32[N, 4], k: i64[N]) {
          y[i] = x[i] * f32(i) / N
          o[i, v] = 1.0 if v == t[i] else 0.0 for i in 0..N, v in 0..4
          k[i] = i * 3 - 1
        }""",
        {"x": (6,)},
        {"t": ints(0, 3, 1, 7, -1, 2, dtype="i32")},
    ),
    "ranks": Case(
        """op f[F: float](x: F[B..., H]) -> (y: F[B..., H]) {
          m[b...] = max[h](x[b..., h])
          y[b..., h] = x[b..., h] - m[b...]
        }""",
        {"x": (2, 3, 5)},
        dtypes={"F": F64},
        ranks={"B": 2},
    ),
    "rank_zero": Case(
        """op f(a: f32, n: i32) -> (b: f32, c: i32) {
          t = a * 2
          b = t + sqrt(abs(a))
          c = n * n + 1
        }""",
        {"a": (), "n": ()},
    ),
    "empty": Case(
        """op f(x: f32[T, H], g: f32[H]) -> (y: f32[T, H], s: f32[T], c: f32[H], n: f32) {
          s[t] = sum[h](x[t, h])
          y[t, h] = x[t, h] * g[h] - s[t]
          c[h] = sum[t](y[t, h])
          n = sum[t, h](x[t, h])
        }""",
        {"x": (0, 5), "g": (5,)},
    ),
    "empty_rows": Case(
        """op f(x: f32[T, H]) -> (s: f32[T], y: f32[T, H], a: bool[T]) {
          s[t] = sum[h](x[t, h])
          y[t, h] = x[t, h] - s[t]
          a[t] = all[h](x[t, h] > 0)
        }""",
        {"x": (4, 0)},
    ),
    "chain": Case(
        """op f(x: f32[T, H]) -> (y: f32[T, H], z: f32[T, H]) {
          a[t, h] = x[t, h] * 2
          b[t, h] = a[t, h] + 1
          c[t, h] = exp(b[t, h] * 0.1)
          y[t, h] = c[t, h] - a[t, h]
          z[t, h] = c[t, h] * b[t, h]
        }""",
        {"x": (6, 11)},
    ),
    "batch_norm": Case(
        """op f(x: f32[N, C, H, W]) -> (y: f32[N, C, H, W]) {
          mu[c] = sum[n, h, w](x[n, c, h, w]) / (N * H * W)
          v[c] = sum[n, h, w]((x[n, c, h, w] - mu[c]) ** 2) / (N * H * W)
          y[n, c, h, w] = (x[n, c, h, w] - mu[c]) * rsqrt(v[c] + 1e-5)
        }""",
        {"x": (3, 4, 5, 2)},
    ),
}


# --- running -----------------------------------------------------------------------------------------


def graph_of(case: Case) -> TensorGraph:
    graph = instantiate((parse_text(case.text),), "f", dtypes=case.dtypes, ranks=case.ranks)
    shapes = {n: np.shape(a) for n, a in case.given.items()} | case.shapes
    for n in graph.inputs:
        shapes.setdefault(n, ())
    sizes = bind_sizes(graph, shapes)
    return specialize(graph, sizes)


def arguments(case: Case, graph: TensorGraph, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for n in graph.inputs:
        t = graph.tensor(n)
        if n in case.given:
            found[n] = np.asarray(case.given[n])
        elif n not in case.shapes:
            found[n] = np.asarray(t.default, t.dtype.numpy)
        elif t.dtype.is_bool:
            found[n] = rng.random(case.shapes[n]) < 0.6
        elif t.dtype.is_integer:
            found[n] = rng.integers(-9, 10, case.shapes[n]).astype(t.dtype.numpy)
        else:
            found[n] = np.asarray(rng.standard_normal(case.shapes[n])).astype(t.dtype.numpy)
    return found


def outputs(graph: TensorGraph, given: Arrays, in_place: bool = True) -> Arrays:
    """Inputs (copies of inout ones) and memory for the results."""
    arrays = dict(given)
    for t in graph.tensors:
        if t.role is not Role.OUTPUT:
            continue
        if t.alias is not None:
            arrays[t.alias] = given[t.alias].copy()
            arrays[t.name] = arrays[t.alias] if in_place else np.empty_like(arrays[t.alias])
        else:
            shape = tuple(evaluate(e, {}) for e in t.shape)
            arrays[t.name] = np.full(shape, 77).astype(t.dtype.numpy)
    return arrays


def kernels_of(graph: TensorGraph, fused: bool) -> KernelGraph:
    scheduled = identity_schedule(graph)
    if fused:
        scheduled = LoopFusion().run(ScheduledGraph(graph, scheduled.tree))
    return form_kernels(scheduled, 2)[0]


def check(graph: TensorGraph, given: Arrays, arrays: Arrays) -> None:
    wanted = reference(graph, {}, given)
    for t in graph.tensors:
        if t.role is Role.OUTPUT:
            verdict = agrees(arrays[t.name], wanted[t.name], t.dtype)
            assert verdict, f"{t.name}: {verdict.message}"


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


@pytest.fixture(params=["small", "parallel"])
def mapping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As small operators are mapped, and with blocks and strips that large ones get."""
    if request.param == "parallel":
        monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 8)
        monkeypatch.setattr(FITTED, "mapping_strip", 4)
        monkeypatch.setattr(FITTED, "sinking_sunk_strip", 4)
    return str(request.param)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference(name: str, fused: bool, mapping: str) -> None:
    case = CASES[name]
    graph = graph_of(case)
    given = arguments(case, graph)
    kernels = kernels_of(graph, fused)
    copied = entry_copies(kernels)[0]
    lanes, single = outputs(graph, given), outputs(graph, given)
    InterpretedKernels(kernels, copied=copied).run(lanes)
    check(graph, given, lanes)
    InterpretedKernels(kernels, copied=copied, one_by_one=True).run(single)
    for n in arrays_written(graph):
        assert same_bits(lanes[n], single[n]), f"{n}: lanes and single instances differ"


def arrays_written(graph: TensorGraph) -> list[str]:
    return [t.name for t in graph.tensors if t.role is Role.OUTPUT]


def prepared(name: str, fused: bool = True) -> tuple[TensorGraph, Arrays, KernelGraph]:
    graph = graph_of(CASES[name])
    return graph, arguments(CASES[name], graph), kernels_of(graph, fused)


# --- memory ------------------------------------------------------------------------------------------


def test_any_strides() -> None:
    graph = graph_of(CASES["softmax"])
    given = arguments(CASES["softmax"], graph)
    scheduled = LoopFusion(strided=("x",)).run(ScheduledGraph(graph, identity_schedule(graph).tree))
    kernels = form_kernels(scheduled, 2)[0]
    wide = np.zeros((12, 27), np.float32)
    view = wide[::-2, ::3]
    view[...] = given["x"]
    arrays = {"x": view, "y": np.zeros((9, 6), np.float32).T[::-1]}
    InterpretedKernels(kernels).run(arrays)
    check(graph, given, arrays)


def test_merged_dims_of_strided_results_are_copied_back() -> None:
    """Layer I merges h and w; the result has no view of that shape."""
    case = Case(
        "op f(x: f32[N, H, W]) -> (y: f32[N, H, W]) { y[n, h, w] = x[n, h, w] * 2 }", {"x": (2, 3, 4)}
    )
    graph = graph_of(case)
    given = arguments(case, graph)
    result = np.zeros((4, 3, 2), np.float32).T
    InterpretedKernels(kernels_of(graph, True)).run(given | {"y": result})
    np.testing.assert_array_equal(result, given["x"] * 2)


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("inout")])
def test_results_of_inout_parameters_elsewhere(name: str) -> None:
    graph, given, kernels = prepared(name)
    arrays = outputs(graph, given, in_place=False)
    InterpretedKernels(kernels).run(arrays)
    check(graph, given, arrays)
    for t in graph.tensors:
        if t.alias is not None:
            np.testing.assert_array_equal(arrays[t.alias], given[t.alias])


def test_inputs_stay_as_they_are_and_runs_repeat() -> None:
    graph, given, kernels = prepared("rows_and_columns")
    machine = InterpretedKernels(kernels)
    first, second = outputs(graph, given), outputs(graph, given)
    for a in given.values():
        a.flags.writeable = False
    machine.run(first)
    machine.bind(second)()
    assert all(same_bits(first[n], second[n]) for n in graph.outputs)


def test_arguments_that_do_not_fit() -> None:
    graph, given, kernels = prepared("softmax")
    arrays = outputs(graph, given)
    with pytest.raises(ArgumentError, match="'x' has dtype float64"):
        InterpretedKernels(kernels).run(arrays | {"x": given["x"].astype(np.float64)})
    with pytest.raises(ArgumentError, match="'x' has shape"):
        InterpretedKernels(kernels).run(arrays | {"x": given["x"][:-1]})


def test_sizes_may_be_left_open_in_kernels() -> None:
    case = CASES["chain"]
    graph = instantiate((parse_text(case.text),), "f")
    kernels = kernels_of(graph, True)
    with pytest.raises(InternalError, match="T, H"):
        InterpretedKernels(kernels)
    for sizes in ({"T": 3, "H": 40}, {"T": 0, "H": 2}):
        known = specialize(graph, sizes)
        given = arguments(replace(case, shapes={"x": (sizes["T"], sizes["H"])}), known)
        arrays = outputs(known, given)
        InterpretedKernels(kernels, sizes).run(arrays)
        check(known, given, arrays)


# --- what must show ----------------------------------------------------------------------------------


@pytest.mark.parametrize("single", [False, True], ids=["lanes", "single"])
@pytest.mark.parametrize("value", [-1, 5, 2**31 - 1])
def test_indices_out_of_range(value: int, single: bool) -> None:
    graph, given, kernels = prepared("gather")
    given["idx"] = given["idx"].copy()
    given["idx"][1, 2] = value
    arrays = outputs(graph, given)
    with pytest.raises(ArgumentError, match=rf"'idx.b, s.' is {value}, not in 0\.\.5") as wrong:
        InterpretedKernels(kernels, one_by_one=single).run(arrays)
    assert wrong.value.code == "PF450"
    span = wrong.value.diagnostics[0].span
    assert span is not None and span.text == "idx[b, s]"
    InterpretedKernels(kernels, checked=False, one_by_one=single).run(arrays)
    clamped = given | {"idx": np.clip(given["idx"], 0, 4)}
    check(graph, clamped, arrays)


@pytest.mark.parametrize("single", [False, True], ids=["lanes", "single"])
def test_scatters_out_of_range(single: bool) -> None:
    graph, given, kernels = prepared("scatter_sum")
    given["dst"] = given["dst"].copy()
    given["dst"][3] = 7
    with pytest.raises(ArgumentError, match=r"is 7, not in 0\.\.5"):
        InterpretedKernels(kernels, one_by_one=single).run(outputs(graph, given))


def contracted(kernels: KernelGraph, tensor: str, extents: tuple[int, ...], scope: Scope) -> KernelGraph:
    """The kernels with a tensor kept in storage that is (perhaps) too small."""

    def change(kernel: Any) -> Any:
        buffers = tuple(
            replace(b, scope=scope, extents=tuple(map(IConst, extents))) if b.tensor == tensor else b
            for b in kernel.buffers
        )
        return replace(kernel, buffers=buffers)

    return replace(kernels, kernels=tuple(map(change, kernels.kernels)))


BUFFERED = Case(
    "op f(x: f32[T, H]) -> (y: f32[T, H]) { s[t, h] = x[t, h] * 2;  y[t, h] = s[t, H-1-h] + s[t, 0] }",
    {"x": (4, 6)},
)


@pytest.mark.parametrize("single", [False, True], ids=["lanes", "single"])
@pytest.mark.parametrize(
    ("extents", "scope", "right"),
    [((4, 6), Scope.LOCAL, True), ((2, 6), Scope.LOCAL, False), ((4, 3), Scope.LOCAL, False),
     ((1, 1), Scope.REGISTER, False)],
)  # fmt: skip
def test_storage_that_is_too_small_shows(
    extents: tuple[int, ...], scope: Scope, right: bool, single: bool
) -> None:
    graph = graph_of(BUFFERED)
    given = arguments(BUFFERED, graph)
    kernels = kernels_of(graph, False)
    together = replace(  # one kernel of both statements, so that s is its own
        kernels.kernels[0],
        graph=graph,
        stages=tuple(s for k in kernels.kernels for s in k.stages),
        buffers=tuple({b.tensor: b for k in kernels.kernels for b in k.buffers}.values()),
    )
    kernels = contracted(replace(kernels, kernels=(together,)), "s", extents, scope)
    arrays = outputs(graph, given)
    InterpretedKernels(kernels, one_by_one=single).run(arrays)
    wanted = reference(graph, {}, given)["y"]
    assert bool(agrees(arrays["y"], wanted, F32)) == right


@pytest.mark.parametrize("single", [False, True], ids=["lanes", "single"])
def test_private_storage_read_in_another_kernel_is_poisoned(single: bool) -> None:
    graph, given, kernels = prepared("layer_norm", fused=False)
    shared = next(b for k in kernels.kernels for b in k.buffers if b.scope is Scope.GLOBAL)
    extents = tuple(evaluate(e, {}) for e in shared.shape)
    arrays = outputs(graph, given)
    InterpretedKernels(contracted(kernels, shared.tensor, extents, Scope.LOCAL), one_by_one=single).run(
        arrays
    )
    assert np.isnan(arrays["y"]).all()


def test_blocks_start_with_poisoned_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row sum whose start is made in the first block only."""
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 8)
    graph, given, kernels = prepared("layer_norm")
    arrays = outputs(graph, given)
    first = kernels.kernels[0]
    broken = []
    for s in first.graph.statements:
        if s.name.endswith("__init"):
            s = replace(s, dims=tuple(replace(d, upper=IConst(1)) for d in s.dims))
        broken.append(s)
    private = replace(first, graph=replace(first.graph, statements=tuple(broken)))
    changed = replace(kernels, kernels=(private, *kernels.kernels[1:]))
    InterpretedKernels(changed).run(arrays)
    assert np.isfinite(arrays["y"][0]).all() and np.isnan(arrays["y"][1:]).all()


@pytest.mark.parametrize("single", [False, True], ids=["lanes", "single"])
@pytest.mark.parametrize("extents", [(6, 8), (3, 9)])
def test_indices_that_leave_their_storage_are_internal_errors(extents: tuple[int, ...], single: bool) -> None:
    graph, given, kernels = prepared("softmax")
    shape = tuple(map(IConst, extents))
    small = [
        replace(
            k,
            buffers=tuple(
                replace(b, shape=shape, extents=shape) if b.tensor == "y" else b for b in k.buffers
            ),
        )
        for k in kernels.kernels
    ]
    machine = InterpretedKernels(replace(kernels, kernels=tuple(small)), one_by_one=single)
    with pytest.raises(InternalError, match="accesses y"):
        machine.run(outputs(graph, given))


# --- scalar operations -------------------------------------------------------------------------------


def test_integer_division_and_power() -> None:
    a, b = ints(7, -7, 5, -(2**31), 3, dtype="i32"), ints(2, 2, 0, -1, -4, dtype="i32")
    with np.errstate(all="ignore"):
        quotient, rest = apply_op("floordiv", [a, b], I32), apply_op("mod", [a, b], I32)
        single = [apply_op("floordiv", [x, y], I32) for x, y in zip(a, b, strict=True)]
    assert quotient.tolist() == [3, -4, 0, -(2**31), -1] == [int(x) for x in single]
    assert rest.tolist() == [1, 1, 0, 0, -1]
    assert all(x.dtype == np.int32 for x in single)
    base, e = ints(2, 1, -1, -1, 3, 0, dtype="i8"), ints(-3, -3, -3, -2, 5, -1, dtype="i8")
    assert apply_op("pow", [base, e], I8).tolist() == [0, 1, -1, 1, 243 - 256, 0]


def test_casts_saturate_and_round_once() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, -1.9, 255.5, 300], np.float32)
    with np.errstate(all="ignore"):
        assert cast(x, F32, I32).tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), -1, 255, 300]
        assert cast(x, F32, U8).tolist() == [0, 255, 0, 255, 0, 0, 255, 255]
        assert cast(np.float64(2.0**63), F64, I64) == 2**63 - 1
        bf16 = BY_NAME["bf16"]
        tie = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1e300], np.float64)
        assert cast(tie, F64, bf16).astype(np.float64).tolist() == [1 + 2.0**-7, 1.0, np.inf]
        wide = np.array([2**62 + 2**54 + 1, 2**62 + 2**54], np.int64)
        assert cast(wide, I64, bf16).astype(np.float64).tolist() == [2.0**62 + 2.0**55, 2.0**62]
        assert cast(np.int32(300), I32, U8) == 44


# --- speed -------------------------------------------------------------------------------------------


def test_layer_norm_is_fast() -> None:
    case = replace(
        CASES["layer_norm"], shapes={"x": (512, 768), "r": (512, 768), "gamma": (768,), "beta": (768,)}
    )
    graph = graph_of(case)
    given = arguments(case, graph)
    machine = InterpretedKernels(kernels_of(graph, True))
    arrays = outputs(graph, given)
    start = time.process_time()
    machine.run(arrays)
    assert in_time(time.process_time() - start, 2.0)
    check(graph, given, arrays)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scan_up", "softmax", "rows_and_columns", "matmul", "triangle"])
def test_large_operators(name: str) -> None:
    """Sizes at which lanes run in several portions."""
    shapes = {n: tuple(20 * e for e in s) for n, s in CASES[name].shapes.items()}
    case = replace(CASES[name], shapes=shapes)
    graph = graph_of(case)
    given = arguments(case, graph)
    arrays = outputs(graph, given)
    InterpretedKernels(kernels_of(graph, True)).run(arrays)
    check(graph, given, arrays)
