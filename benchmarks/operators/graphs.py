"""Sparse matrices, graphs, features of recommenders, counts of pairs: data says where to read and to add."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operators.case import Case

NODES, EDGES, ITEMS = 20_000, 200_000, 50_000

SOFTMAX = """op f(s: f32[E], z: i64[E]) -> (p: f32[E]) {
  let m: f32[20000] = -inf
  m[z[e]] max= s[e]
  x[e] = exp(s[e] - m[z[e]])
  let t: f32[20000] = 0.0
  t[z[e]] += x[e]
  p[e] = x[e] / t[z[e]]
}"""
RESTARTED = """op f(x: f32[T, N], start: bool[T]) -> (y: f32[T, N]) where T >= 1 {
  y[0, n] = x[0, n]
  y[t, n] = x[t, n] + (0.0 if start[t] else y[t-1, n]) for t in 1..T
}"""
FACTORS = """op f(t: f32[V, D], i: i64[B, F]) -> (y: f32[B]) {
  s[b, d] = sum[k](t[i[b, k], d])
  q[b, d] = sum[k](t[i[b, k], d] ** 2)
  y[b] = 0.5 * sum[d](s[b, d] ** 2 - q[b, d])
}"""
CROSS = """op f(x: f32[B, D], w: f32[L, D], v: f32[L, D]) -> (y: f32[B, D]) where L >= 1 {
  c[0, b, d] = x[b, d]
  c[l, b, d] = x[b, d] * sum[k](c[l-1, b, k] * w[l-1, k]) + v[l-1, d] + c[l-1, b, d] for l in 1..L+1
  y[b, d] = c[L, b, d]
}"""
TRIPLES = """op f(e: f32[V, D], r: f32[R, D], h: i64[B], p: i64[B], t: i64[B]) -> (s: f32[B]) {
  s[b] = -sum[d](abs(e[h[b], d] + r[p[b], d] - e[t[b], d]))
}"""
EQUALISED = """op f(x: u8[N]) -> (y: u8[N]) where N >= 1 {
  let h: i32[256] = 0
  h[x[i]] += 1
  c[0] = h[0]
  c[k] = c[k-1] + h[k] for k in 1..256
  y[i] = u8(f32(c[x[i]]) * (255.0 / f32(N)))
}"""
MEANS = """op f(x: f32[N, D], c: f32[K, D]) -> (m: f32[K, D]) where K >= 1 {
  s[n, k] = sum[d]((x[n, d] - c[k, d]) ** 2)
  z[n] = argmin[k](s[n, k])
  let t: f32[K, D] = 0.0
  let q: i64[K] = 0
  t[z[n], d] += x[n, d]
  q[z[n]] += 1
  m[k, d] = t[k, d] / f32(max(q[k], 1))
}"""


def _ell(d: Any) -> tuple[Any, ...]:
    return d(NODES, 16), d.ints(0, NODES, NODES, 16, dtype="i32")


def _softmax_torch(torch: Any, F: Any, s: Any, z: Any) -> Any:
    m = s.new_full((NODES,), -float("inf")).scatter_reduce_(0, z, s, "amax")
    x = (s - m[z]).exp()
    return x / s.new_zeros(NODES).index_add_(0, z, x)[z]


def _softmax_jax(jax: Any, jnp: Any, s: Any, z: Any) -> Any:
    m = jax.ops.segment_max(s, z, NODES)
    x = jnp.exp(s - m[z])
    return x / jax.ops.segment_sum(x, z, NODES)[z]


def _restarted_torch(torch: Any, F: Any, x: Any, start: Any) -> Any:
    keep = 1.0 - start.float()
    y = [x[0]]
    for t in range(1, len(x)):
        y.append(x[t] + keep[t] * y[-1])
    return torch.stack(y)


def _restarted_jax(jax: Any, jnp: Any, x: Any, start: Any) -> Any:
    def step(y: Any, row: Any) -> Any:
        y = row[0] + jnp.where(row[1], 0.0, y)
        return y, y

    return jax.lax.scan(step, jnp.zeros_like(x[0]), (x, start))[1]


def _factors(table: Any, i: Any) -> Any:
    x = table[i]
    return 0.5 * (x.sum(1) ** 2 - (x * x).sum(1)).sum(1)


def _cross(x: Any, w: Any, v: Any) -> Any:
    c = x
    for k in range(len(w)):
        c = x * (c @ w[k])[:, None] + v[k] + c
    return c


def _splat_torch(torch: Any, F: Any, p: Any, w: Any) -> Any:
    at = (p * 128.0).int()
    return torch.zeros(128 * 128).index_add_(0, at[:, 0] * 128 + at[:, 1], w).view(128, 128)


def _splat_jax(jax: Any, jnp: Any, p: Any, w: Any) -> Any:
    at = (p * 128.0).astype("i4")
    return jnp.zeros((128, 128)).at[at[:, 0], at[:, 1]].add(w)


def _equalised_torch(torch: Any, F: Any, x: Any) -> Any:
    c = torch.bincount(x, minlength=256).cumsum(0).float()
    return (c * (255.0 / len(x))).to(torch.uint8)[x.int()]


def _equalised_jax(jax: Any, jnp: Any, x: Any) -> Any:
    c = jnp.cumsum(jnp.bincount(x, length=256)).astype(jnp.float32)
    return (c * jnp.float32(255.0 / len(x))).astype(jnp.uint8)[x]


def _means_torch(torch: Any, F: Any, x: Any, c: Any) -> Any:
    """Squares multiplied out, as experts do: the step is a product of matrices."""
    z = ((c * c).sum(1) - 2.0 * (x @ c.T)).argmin(1)
    total = torch.zeros_like(c).index_add_(0, z, x)
    return total / torch.bincount(z, minlength=len(c)).clamp(min=1)[:, None]


def _means_jax(jax: Any, jnp: Any, x: Any, c: Any) -> Any:
    z = ((c * c).sum(1) - 2.0 * (x @ c.T)).argmin(1)
    total = jnp.zeros_like(c).at[z].add(x)
    return total / jnp.maximum(jnp.bincount(z, length=len(c)), 1)[:, None]


def _groups(d: Any) -> tuple[Any, ...]:
    """Points around 64 centres, far enough from each other that roundings choose no other centre."""
    centres = 10.0 * d(64, 32)
    return centres[d.ints(0, 64, 20_000)] + d(20_000, 32), centres + np.float32(0.1) * d(64, 32)


CASES: tuple[Case, ...] = (
    Case(
        "sparse rows of 16 times a vector",
        """op f(v: f32[N, K], c: i32[N, K], x: f32[M]) -> (y: f32[N]) {
          y[n] = sum[k](v[n, k] * x[c[n, k]])
        }""",
        lambda d: (*_ell(d), d(NODES)),
        lambda t, f, v, c, x: (v * x[c]).sum(1),
        lambda j, n, v, c, x: (v * x[c]).sum(1),
    ),
    Case(
        "sparse rows of 16 times 64 columns",
        """op f(v: f32[N, K], c: i32[N, K], x: f32[M, D]) -> (y: f32[N, D]) {
          y[n, d] = sum[k](v[n, k] * x[c[n, k], d])
        }""",
        lambda d: (*_ell(d), d(NODES, 64)),
        lambda t, f, v, c, x: (v[:, :, None] * x[c]).sum(1),
        lambda j, n, v, c, x: (v[:, :, None] * x[c]).sum(1),
        eager=lambda t, f, v, c, x: f.embedding_bag(c, x, mode="sum", per_sample_weights=v),
    ),
    Case(
        "softmax of edges to each node",
        SOFTMAX,
        lambda d: (d(EDGES), d.ints(0, NODES, EDGES)),
        _softmax_torch,
        _softmax_jax,
    ),
    Case(
        "running sums that start again",
        RESTARTED,
        lambda d: (d(256, 1000), d.ints(0, 16, 256) == 0),
        _restarted_torch,
        _restarted_jax,
    ),
    Case(
        "factorisation machine",
        FACTORS,
        lambda d: (d(ITEMS, 32), d.ints(0, ITEMS, 2048, 24)),
        lambda t, f, x, i: _factors(x, i),
        lambda j, n, x, i: _factors(x, i),
        tolerance=1e-3,
    ),
    Case(
        "three crossed layers",
        CROSS,
        lambda d: (d(2048, 256), d(3, 256) / np.float32(16.0), d(3, 256)),
        lambda t, f, x, w, v: _cross(x, w, v),
        lambda j, n, x, w, v: _cross(x, w, v),
    ),
    Case(
        "scores of triples of a graph",
        TRIPLES,
        lambda d: (d(ITEMS, 64), d(100, 64), *(d.ints(0, n, 16_384) for n in (ITEMS, 100, ITEMS))),
        lambda t, f, e, r, h, p, q: -(e[h] + r[p] - e[q]).abs().sum(1),
        lambda j, n, e, r, h, p, q: -n.abs(e[h] + r[p] - e[q]).sum(1),
    ),
    Case(
        "confusion of 100 classes",
        "op f(a: i64[N], b: i64[N]) -> (c: i64[100, 100]) { c[a[n], b[n]] += 1 }",
        lambda d: (d.ints(0, 100, 500_000), d.ints(0, 100, 500_000)),
        lambda t, f, a, b: t.bincount(a * 100 + b, minlength=10_000).view(100, 100),
        lambda j, n, a, b: n.bincount(a * 100 + b, length=10_000).reshape(100, 100),
    ),
    Case(
        "floats in 100 bins",
        "op f(x: f32[N]) -> (h: i32[100]) { h[i32(min(max(x[i] * 12.5 + 50.0, 0.0), 99.0))] += 1 }",
        lambda d: (d(1_000_000),),
        lambda t, f, x: t.bincount((x * 12.5 + 50.0).clamp(0.0, 99.0).int(), minlength=100),
        lambda j, n, x: n.bincount(n.clip(x * 12.5 + 50.0, 0.0, 99.0).astype("i4"), length=100),
        eager=lambda t, f, x: t.histc(x, 100, -4.0, 4.0),
        tolerance=2e-3,
    ),
    Case(
        "points added to an image",
        """op f(p: f32[N, 2], w: f32[N]) -> (y: f32[128, 128]) {
          y[i32(p[n, 0] * 128.0), i32(p[n, 1] * 128.0)] += w[n]
        }""",
        lambda d: (d.unit(500_000, 2), d.unit(500_000)),
        _splat_torch,
        _splat_jax,
        tolerance=1e-3,
    ),
    Case(
        "image of equalised brightness",
        EQUALISED,
        lambda d: (d.ints(0, 200, 1_000_000, dtype="u8"),),
        _equalised_torch,
        _equalised_jax,
        tolerance=0.004,
    ),
    Case("a step of k-means", MEANS, _groups, _means_torch, _means_jax),
)
