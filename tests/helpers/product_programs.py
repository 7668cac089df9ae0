"""Contractions of many forms, for tests of tiles and of library calls.

Each is the signature and body of an operator over the sizes M, N, K, P, Q.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from targets import Call

from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.tensor_graph import TensorGraph

FORMS = {
    "plain": "(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }",
    "wide": "(a: f64[M, K], b: f64[K, N]) -> (c: f64[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }",
    "halves": "(a: f16[M, K], b: f16[K, N]) -> (c: f16[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }",
    "short": "(a: bf16[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k](f32(a[m, k]) * b[k, n]) }",
    "right turned": "(a: f32[M, K], b: f32[N, K]) -> (c: f32[M, N]) { c[m, n] = sum[k](a[m, k] * b[n, k]) }",
    "left turned": "(a: f32[K, M], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k](b[k, n] * a[k, m]) }",
    "result turned": "(a: f32[M, K], b: f32[K, N]) -> (c: f32[N, M]) { c[n, m] = sum[k](a[m, k] * b[k, n]) }",
    "batched": """(a: f32[P, M, K], b: f32[P, K, N]) -> (c: f32[P, M, N]) {
      c[p, m, n] = sum[k](a[p, m, k] * b[p, k, n]) }""",
    "heads": """(a: f32[P, M, Q, K], b: f32[P, N, Q, K]) -> (c: f32[P, Q, M, N]) {
      c[p, q, m, n] = 0.125 * sum[k](a[p, m, q, k] * b[p, n, q, k]) }""",
    "two over": """(a: f32[K, M, Q], b: f32[K, Q, N]) -> (c: f32[M, N]) {
      c[m, n] = sum[k, q](a[k, m, q] * b[k, q, n]) }""",
    "three": """(a: f32[M, K], b: f32[K, Q], d: f32[Q, N]) -> (c: f32[M, N]) {
      c[m, n] = sum[k, q](a[m, k] * b[k, q] * d[q, n]) }""",
    "part": "(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k in 3..K](a[m, k] * b[k, n]) }",
    "from before zero": """(a: f32[M, K], b: f32[N, K]) -> (y: f32[M, N]) where K >= 3 {
      c[m, n] = sum[k in -3..K - 3](a[m, k + 3] * b[n, k + 3])
      y[m, n] = c[m, n] * 2.0 }""",
    "factors": """(a: f32[M, K], s: f32[K], b: i32[K, N]) -> (c: f32[M, N]) {
      c[m, n] = sum[k]((a[m, k] + 1.0) * s[k] * (f32(b[k, n]) if k < 4000 else 0.0)) }""",
    "gathered": """(a: f32[M, K], id: i32[K], b: f32[K, N]) -> (c: f32[M, N]) {
      c[m, n] = sum[k](a[m, k] * b[id[k], n]) }""",
    "after": """(a: f32[M, K], b: f32[K, N], s: f32[N], r: f32[M, N]) -> (y: f32[M, N], z: f32[N, M]) {
      c[m, n] = sum[k](a[m, k] * b[k, n])
      t[m, n] = max(c[m, n] + s[n], 0.0)
      y[m, n] = t[m, n] + r[m, n]
      z[n, m] = t[m, n] * c[m, n] }""",
    "both": """(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N], y: f32[M, N]) {
      c[m, n] = sum[k](a[m, k] * b[k, n])
      y[m, n] = exp(c[m, n] * 0.01) }""",
    "before": """(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) {
      u[m, k] = tanh(a[m, k]) * 2.0
      c[m, n] = sum[k](u[m, k] * b[k, n]) }""",
    "gated": """(a: f32[M, K], v: f32[K, N], b: f32[K, N]) -> (y: f32[M, N]) {
      h[m, n] = sum[k](a[m, k] * b[k, n])
      g[m, n] = sum[k](a[m, k] * v[k, n])
      y[m, n] = h[m, n] * sigmoid(g[m, n]) }""",
    "rows": """(a: f32[M, K], b: f32[K, N]) -> (y: f32[M, N]) {
      c[m, n] = sum[k](a[m, k] * b[k, n])
      t[m] = max[n](c[m, n])
      y[m, n] = c[m, n] - t[m] }""",
    "chain": """(a: f32[M, K], b: f32[K, N], d: f32[N, K]) -> (y: f32[M, K]) {
      c[m, n] = sum[k](a[m, k] * b[k, n])
      e[m, n] = max(c[m, n], 0.0)
      y[m, k] = sum[n](e[m, n] * d[n, k]) }""",
    "distances": """(a: f32[M, K], b: f32[N, K]) -> (c: f32[M, N]) {
      c[m, n] = sqrt(sum[k]((a[m, k] - b[n, k]) ** 2)) }""",
    "distances of columns": """(a: f16[K, M], b: f64[P, K, N]) -> (c: f64[P, M, N]) {
      c[p, m, n] = sum[k]((b[p, k, n] - f64(a[k, m])) ** 2) }""",
    "square": "(a: f32[M, K]) -> (c: f32[M, M]) { c[m, n] = sum[k](a[m, k] * a[n, k]) }",
    "turned wide": "(a: f64[M, K], b: f64[N, K]) -> (c: f64[N, M]) { c[n, m] = sum[k](b[n, k] * a[m, k]) }",
    "turned halves": """(a: f16[M, K], b: f16[N, K], d: bf16[N, K]) -> (c: f16[M, N], e: bf16[M, N]) {
      c[m, n] = sum[k](a[m, k] * b[n, k])
      e[m, n] = bf16(sum[k](f32(a[m, k]) * f32(d[n, k]))) }""",
    "turned after": """(a: f32[M, K], b: f32[N, K], s: f32[N]) -> (y: f32[M, N], z: f32[N, M]) {
      c[m, n] = sum[k](a[m, k] * b[n, k])
      y[m, n] = max(c[m, n] + s[n], 0.0)
      z[n, m] = y[m, n] * c[m, n] }""",
    "turned over": """(a: f32[M, Q, K], b: f32[N, Q, K]) -> (c: f32[M, N]) {
      c[m, n] = sum[q, k](a[m, q, k] * b[n, q, k]) }""",
    "turned batch": """(a: f32[P, M, K], b: f32[P, N, K]) -> (c: f32[P, M, N]) {
      c[p, m, n] = sum[k](a[p, m, k] * b[p, n, k]) }""",
    "triangle": """(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) {
      c[m, n] = sum[k in 0..min(K, m + 1)](a[m, k] * b[k, n]) }""",
    "convolution": """(x: f32[P, K, M + 4], w: f32[N, K, 5]) -> (y: f32[P, N, M]) {
      y[p, n, m] = sum[k, j](x[p, k, m + j] * w[n, k, j]) for m in 0..M }""",
    "steps": """(x: f32[P, K, 2*M + 3], w: f32[N, K, 3]) -> (y: f32[P, N, M]) {
      y[p, n, m] = sum[k, j](x[p, k, 2*m + j] * w[n, k, j]) for m in 0..M }""",
    "plane": """(x: f32[Q, M + 2, N + 2], w: f32[K, Q, 3, 3]) -> (y: f32[K, M, N]) {
      y[k, m, n] = sum[q, i, j](x[q, m + i, n + j] * w[k, q, i, j]) for m in 0..M, n in 0..N }""",
    "recurrent": """(x: f32[P, M, N], w: f32[N, N]) -> (h: f32[P, M, N]) where P >= 1 {
      h[0, m, n] = x[0, m, n]
      h[p, m, n] = tanh(x[p, m, n] + sum[k](h[p-1, m, k] * w[k, n])) for p in 1..P }""",
}  # fmt: skip

SIZES = {"M": 13, "N": 37, "K": 9, "P": 2, "Q": 3}


def product_graph(name: str) -> TensorGraph:
    return instantiate(parse_text(f"op f{FORMS[name]}"), "f")


def product_call(name: str, seed: int = 0, **sizes: int) -> Call:
    """A form at its sizes, with standard normal numbers."""
    graph = product_graph(name)
    given = {n: {**SIZES, **sizes}[n] for n in graph.sizes}
    rng = np.random.default_rng(seed)
    inputs: dict[str, np.ndarray[Any, Any]] = {}
    for n in graph.inputs:
        t = graph.tensor(n)
        shape = tuple(evaluate(e, given) for e in t.shape)
        top = given.get("K", 1) if n == "id" else 3
        made = rng.standard_normal(shape) if t.dtype.is_float else rng.integers(0, max(1, top), shape)
        inputs[n] = np.asarray(made).astype(t.dtype.numpy)
    return Call(f"{name} {given}", FORMS[name], graph, given, inputs)
