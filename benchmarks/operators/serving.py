"""What serves language models: quantised weights, caches of keys, states, choice of the next token."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operators.case import Case

ZEROS = """op f(w: i8[N, G, K], s: f32[N, G], z: f32[N, G], x: f32[G, K]) -> (y: f32[N]) {
  y[n] = sum[g, k]((f32(w[n, g, k]) - z[n, g]) * s[n, g] * x[g, k])
}"""
GROUPS = """op f(x: f32[B, G, K], w: i8[N, G, K], s: f32[N, G]) -> (y: f32[B, N]) {
  y[b, n] = sum[g, k](x[b, g, k] * (f32(w[n, g, k]) * s[n, g]))
}"""
TABLE = """op f(w: u8[N, K], t: f32[256], x: f32[K]) -> (y: f32[N]) {
  y[n] = sum[k](t[w[n, k]] * x[k])
}"""
SLOPES = """op f(q: f32[H, S, D], k: f32[H, S, D], v: f32[H, S, D], m: f32[H]) -> (o: f32[H, S, D])
    where S >= 1 {
  s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) * rsqrt(D) + m[h] * f32(j - i) if j <= i else -inf
    for h in 0..H, i in 0..S, j in 0..S
  p = softmax(s)
  o[h, i, d] = sum[j](p[h, i, j] * v[h, j, d])
}"""
PAGES = """op f(q: f32[B, D], k: f32[P, 16, D], v: f32[P, 16, D], t: i32[B, L]) -> (o: f32[B, D])
    where L >= 1 {
  s[b, l, r] = sum[d](q[b, d] * k[t[b, l], r, d]) * rsqrt(D)
  m[b] = max[l, r](s[b, l, r])
  e[b, l, r] = exp(s[b, l, r] - m[b])
  o[b, d] = sum[l, r](e[b, l, r] * v[t[b, l], r, d]) / sum[l, r](e[b, l, r])
}"""
SHARED = """op f(q: f32[B, G, R, D], k: f32[B, T, G, D], v: f32[B, T, G, D]) -> (o: f32[B, G, R, D])
    where T >= 1 {
  s[b, g, r, t] = sum[d](q[b, g, r, d] * k[b, t, g, d]) * rsqrt(D)
    for b in 0..B, g in 0..G, r in 0..R, t in 0..T
  p = softmax(s)
  o[b, g, r, d] = sum[t](p[b, g, r, t] * v[b, t, g, d])
}"""
RETENTION = """op f(q: f32[T, H, D], k: f32[T, H, D], v: f32[T, H, E], a: f32[H]) -> (o: f32[T, H, E])
    where T >= 1 {
  s[0, h, d, e] = k[0, h, d] * v[0, h, e]
  s[t, h, d, e] = a[h] * s[t-1, h, d, e] + k[t, h, d] * v[t, h, e] for t in 1..T
  o[t, h, e] = sum[d](q[t, h, d] * s[t, h, d, e])
}"""
WKV = """op f(k: f32[T, C], v: f32[T, C], w: f32[C], u: f32[C]) -> (y: f32[T, C]) where T >= 1 {
  m[0, c] = k[0, c]
  a[0, c] = v[0, c]
  b[0, c] = 1.0 for c in 0..C
  m[t, c] = max(m[t-1, c] + w[c], k[t, c]) for t in 1..T
  a[t, c] = exp(m[t-1, c] + w[c] - m[t, c]) * a[t-1, c] + exp(k[t, c] - m[t, c]) * v[t, c] for t in 1..T
  b[t, c] = exp(m[t-1, c] + w[c] - m[t, c]) * b[t-1, c] + exp(k[t, c] - m[t, c]) for t in 1..T
  y[0, c] = v[0, c]
  n[t, c] = max(m[t-1, c], u[c] + k[t, c]) for t in 1..T
  y[t, c] = (exp(m[t-1, c] - n[t, c]) * a[t-1, c] + exp(u[c] + k[t, c] - n[t, c]) * v[t, c]) /
    (exp(m[t-1, c] - n[t, c]) * b[t-1, c] + exp(u[c] + k[t, c] - n[t, c])) for t in 1..T
}"""
LIKELY = """op f(x: f32[B, V]) -> (p: f32[B, V]) where V >= 1 {
  m[b] = max[v](x[b, v])
  e[b, v] = exp(x[b, v] - m[b])
  k[b, v] = e[b, v] if e[b, v] >= 0.05 else 0.0
  t[b] = sum[v](k[b, v])
  p[b, v] = k[b, v] / t[b]
}"""
PENALTY = """op f(x: f32[B, V], seen: bool[B, V], t: f32[B]) -> (y: f32[B, V]) {
  z[b, v] = (x[b, v] / 1.2 if x[b, v] > 0.0 else x[b, v] * 1.2) if seen[b, v] else x[b, v]
  y[b, v] = z[b, v] / t[b]
}"""

EXPERTS = """op f(x: f32[T, E]) -> (w: f32[T, 8], i: i64[T, 8]) where E >= 8 {
  p = softmax(x)
  (w, i) = topk(p, K=8)
}"""
CANDIDATES = """op f(x: f32[B, V]) -> (y: f32[B, 64], i: i64[B, 64]) where V >= 64 {
  (y, i) = topk(x, K=64)
}"""


def _zeros(w: Any, s: Any, z: Any, x: Any, to_float: Any) -> Any:
    return ((to_float(w) - z[:, :, None]) * s[:, :, None] * x).sum((1, 2))


def _weights(d: Any) -> tuple[Any, ...]:
    return d.ints(-128, 128, 2048, 16, 128, dtype="i8"), d.unit(2048, 16)


def _grouped(w: Any, s: Any) -> Any:
    """Weights of floats, N x K."""
    return (w * s[:, :, None]).reshape(len(w), -1)


def _slopes_torch(torch: Any, F: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
    n = q.shape[1]
    at = torch.arange(n)
    bias = (m[:, None, None] * (at[None, :] - at[:, None])).masked_fill(
        at[None, :] > at[:, None], -float("inf")
    )
    return F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=bias[None])[0]


def _slopes_jax(jax: Any, jnp: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
    n = q.shape[1]
    at = jnp.arange(n)
    bias = jnp.where(at[None, :] > at[:, None], -jnp.inf, m[:, None, None] * (at[None, :] - at[:, None]))
    return jax.nn.softmax(q @ k.swapaxes(1, 2) * q.shape[-1] ** -0.5 + bias, -1) @ v


def _pages_torch(torch: Any, F: Any, q: Any, k: Any, v: Any, t: Any) -> Any:
    b, d = q.shape
    keys, values = (x[t].view(b, -1, d) for x in (k, v))
    return F.scaled_dot_product_attention(q[:, None], keys, values)[:, 0]


def _pages_jax(jax: Any, jnp: Any, q: Any, k: Any, v: Any, t: Any) -> Any:
    b, d = q.shape
    keys, values = (x[t].reshape(b, -1, d) for x in (k, v))
    p = jax.nn.softmax(jnp.einsum("bd,btd->bt", q, keys) * d**-0.5, -1)
    return jnp.einsum("bt,btd->bd", p, values)


def _shared_torch(torch: Any, F: Any, q: Any, k: Any, v: Any) -> Any:
    b, g, r, d = q.shape
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q.view(b, g * r, 1, d), keys, values, enable_gqa=True).view(q.shape)


def _shared_jax(jax: Any, jnp: Any, q: Any, k: Any, v: Any) -> Any:
    p = jax.nn.softmax(jnp.einsum("bgrd,btgd->bgrt", q, k) * q.shape[-1] ** -0.5, -1)
    return jnp.einsum("bgrt,btgd->bgrd", p, v)


def _retention_torch(torch: Any, F: Any, q: Any, k: Any, v: Any, a: Any) -> Any:
    """The form of products of matrices, which experts call: weights a ** (t - u) of what came before."""
    at = torch.arange(len(q))
    apart = (at[:, None] - at[None, :]).clamp(min=0)
    decay = (a[:, None, None] ** apart).tril()
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return ((q @ k.transpose(1, 2) * decay) @ v).transpose(0, 1)


def _retention_jax(jax: Any, jnp: Any, q: Any, k: Any, v: Any, a: Any) -> Any:
    at = jnp.arange(len(q))
    apart = jnp.maximum(at[:, None] - at[None, :], 0)
    decay = jnp.tril(a[:, None, None] ** apart)
    return jnp.einsum("htu,uhe->the", jnp.einsum("thd,uhd->htu", q, k) * decay, v)


def _wkv_torch(torch: Any, F: Any, k: Any, v: Any, w: Any, u: Any) -> Any:
    m, a, b, y = k[0], v[0], torch.ones_like(u), [v[0]]
    for t in range(1, len(k)):
        n = torch.maximum(m, u + k[t])
        p, q = (m - n).exp(), (u + k[t] - n).exp()
        y.append((p * a + q * v[t]) / (p * b + q))
        n = torch.maximum(m + w, k[t])
        p, q = (m + w - n).exp(), (k[t] - n).exp()
        m, a, b = n, p * a + q * v[t], p * b + q
    return torch.stack(y)


def _wkv_jax(jax: Any, jnp: Any, k: Any, v: Any, w: Any, u: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        (m, a, b), (k, v) = carry, row
        n = jnp.maximum(m, u + k)
        p, q = jnp.exp(m - n), jnp.exp(u + k - n)
        y = (p * a + q * v) / (p * b + q)
        n = jnp.maximum(m + w, k)
        p, q = jnp.exp(m + w - n), jnp.exp(k - n)
        return (n, p * a + q * v, p * b + q), y

    rest = jax.lax.scan(step, (k[0], v[0], jnp.ones_like(u)), (k[1:], v[1:]))[1]
    return jnp.concatenate([v[:1], rest])


def _likely_torch(torch: Any, F: Any, x: Any) -> Any:
    e = (x - x.amax(1, keepdim=True)).exp()
    k = torch.where(e >= 0.05, e, 0.0)
    return k / k.sum(1, keepdim=True)


def _likely_jax(jax: Any, jnp: Any, x: Any) -> Any:
    e = jnp.exp(x - x.max(1, keepdims=True))
    k = jnp.where(e >= 0.05, e, 0.0)
    return k / k.sum(1, keepdims=True)


CASES: tuple[Case, ...] = (
    Case(
        "weights of bytes with zero points times a vector",
        ZEROS,
        lambda d: (*_weights(d), 10.0 * d(2048, 16), d(16, 128)),
        lambda t, f, w, s, z, x: _zeros(w, s, z, x, lambda a: a.float()),
        lambda j, n, w, s, z, x: _zeros(w, s, z, x, lambda a: a.astype("f4")),
        eager=lambda t, f, w, s, z, x: (
            ((w.float() - z[:, :, None]) * s[:, :, None]).view(len(w), -1) @ x.view(-1)
        ),
    ),
    Case(
        "four rows times weights of bytes in groups",
        GROUPS,
        lambda d: (d(4, 16, 128), *_weights(d)),
        lambda t, f, x, w, s: x.view(4, -1) @ _grouped(w.float(), s).T,
        lambda j, n, x, w, s: x.reshape(4, -1) @ _grouped(w.astype("f4"), s).T,
    ),
    Case(
        "weights of a table of 256 times a vector",
        TABLE,
        lambda d: (d.ints(0, 256, 2048, 2048, dtype="u8"), d(256), d(2048)),
        lambda t, f, w, table, x: table[w.int()] @ x,
        lambda j, n, w, table, x: table[w] @ x,
    ),
    Case(
        "causal attention with slopes",
        SLOPES,
        lambda d: (d(8, 512, 64), d(8, 512, 64), d(8, 512, 64), d.unit(8)),
        _slopes_torch,
        _slopes_jax,
    ),
    Case(
        "attention of one position to pages",
        PAGES,
        lambda d: (d(32, 64), d(1024, 16, 64), d(1024, 16, 64), d.ints(0, 1024, 32, 32, dtype="i32")),
        _pages_torch,
        _pages_jax,
    ),
    Case(
        "attention of one position, heads in groups",
        SHARED,
        lambda d: (d(4, 4, 4, 64), d(4, 512, 4, 64), d(4, 512, 4, 64)),
        _shared_torch,
        _shared_jax,
    ),
    Case(
        "retention",
        RETENTION,
        lambda d: (d(256, 8, 64), d(256, 8, 64), d(256, 8, 64), 1.0 - d.unit(8) / np.float32(16.0)),
        _retention_torch,
        _retention_jax,
    ),
    Case(
        "weighted keys and values",
        WKV,
        lambda d: (d(128, 1024), d(128, 1024), -d.unit(1024), d(1024)),
        _wkv_torch,
        _wkv_jax,
    ),
    Case("likely tokens only", LIKELY, lambda d: (2.0 * d(32, 32_000),), _likely_torch, _likely_jax),
    Case(
        "penalty of tokens seen",
        PENALTY,
        lambda d: (d(32, 32_000), d.coins(32, 32_000), d.unit(32) + np.float32(0.5)),
        lambda t, f, x, seen, h: t.where(seen, t.where(x > 0.0, x / 1.2, x * 1.2), x) / h[:, None],
        lambda j, n, x, seen, h: n.where(seen, n.where(x > 0.0, x / 1.2, x * 1.2), x) / h[:, None],
    ),
    Case(
        "softmax and topk, 8 of 64 experts",
        EXPERTS,
        lambda d: (d(4096, 64),),
        lambda t, f, x: t.topk(t.softmax(x, 1), 8),
        lambda j, n, x: j.lax.top_k(j.nn.softmax(x, 1), 8),
    ),
    Case(
        "topk, 64 of 4096 tokens",
        CANDIDATES,
        lambda d: (d(64, 4096),),
        lambda t, f, x: t.topk(x, 64),
        lambda j, n, x: j.lax.top_k(x, 64),
    ),
)
