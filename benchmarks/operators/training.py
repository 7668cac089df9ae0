"""Training beyond plain layers: gradients of norms and cells, attention within windows, optimizers."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case

GROUP_GRADIENT = """op f(g: f32[N, G, C, P], x: f32[N, G, C, P], w: f32[G, C]) ->
    (d: f32[N, G, C, P], dw: f32[G, C], db: f32[G, C]) where C >= 1, P >= 1 {
  m[n, k] = mean[c, p](x[n, k, c, p])
  s[n, k] = rsqrt(mean[c, p]((x[n, k, c, p] - m[n, k]) ** 2) + 1e-5)
  z[n, k, c, p] = (x[n, k, c, p] - m[n, k]) * s[n, k]
  h[n, k, c, p] = g[n, k, c, p] * w[k, c]
  a[n, k] = mean[c, p](h[n, k, c, p])
  b[n, k] = mean[c, p](h[n, k, c, p] * z[n, k, c, p])
  d[n, k, c, p] = s[n, k] * (h[n, k, c, p] - a[n, k] - z[n, k, c, p] * b[n, k])
  dw[k, c] = sum[n, p](g[n, k, c, p] * z[n, k, c, p])
  db[k, c] = sum[n, p](g[n, k, c, p])
}"""
SQUEEZE = """op f(x: f32[N, C, P], a: f32[R, C], b: f32[C, R]) -> (y: f32[N, C, P]) where P >= 1 {
  m[n, c] = mean[p](x[n, c, p])
  h[n, r] = max(sum[c](a[r, c] * m[n, c]), 0.0)
  s[n, c] = sigmoid(sum[r](b[c, r] * h[n, r]))
  y[n, c, p] = x[n, c, p] * s[n, c]
}"""
SLOPES = """op f(g: f32[N, C, P], x: f32[N, C, P], a: f32[C]) -> (d: f32[N, C, P], da: f32[C]) {
  d[n, c, p] = g[n, c, p] if x[n, c, p] > 0.0 else g[n, c, p] * a[c]
  da[c] = sum[n, p](0.0 if x[n, c, p] > 0.0 else g[n, c, p] * x[n, c, p])
}"""
ADAFACTOR = """op f(inout p: f32[N, M], g: f32[N, M], inout r: f32[N], inout c: f32[M]) where N >= 1, M >= 1 {
  u[i] = 0.999 * r[i] + 0.001 * mean[k](g[i, k] ** 2 + 1e-30)
  v[k] = 0.999 * c[k] + 0.001 * mean[i](g[i, k] ** 2 + 1e-30)
  t = mean[i](u[i])
  w[i, k] = g[i, k] * rsqrt(u[i] * v[k] / t)
  q = sqrt(mean[i, k](w[i, k] ** 2))
  p[i, k] = p[i, k] - 0.01 * w[i, k] / max(1.0, q)
  r[i] = u[i]
  c[k] = v[k]
}"""
LARS = """op f(inout p: f32[N, M], g: f32[N, M], inout b: f32[N, M]) {
  a = sqrt(sum[i, k](p[i, k] ** 2))
  e = sqrt(sum[i, k](g[i, k] ** 2))
  t = 0.001 * a / (e + 1e-4 * a + 1e-8)
  m[i, k] = 0.9 * b[i, k] + t * (g[i, k] + 1e-4 * p[i, k])
  p[i, k] = p[i, k] - 0.1 * m[i, k]
  b[i, k] = m[i, k]
}"""
WEIGHT_NORM = """op f(v: f32[N, K], g: f32[N], x: f32[B, K]) -> (y: f32[B, N]) {
  s[n] = g[n] * rsqrt(sum[k](v[n, k] ** 2))
  y[b, n] = s[n] * sum[k](x[b, k] * v[n, k])
}"""
WINDOWS = """op f(q: f32[W, H, S, D], k: f32[W, H, S, D], v: f32[W, H, S, D], b: f32[H, S, S])
    -> (o: f32[W, H, S, D]) where S >= 1 {
  s[w, h, i, j] = sum[d](q[w, h, i, d] * k[w, h, j, d]) * rsqrt(D) + b[h, i, j]
  p = softmax(s)
  o[w, h, i, d] = sum[j](p[w, h, i, j] * v[w, h, j, d])
}"""
COSINES = """op f(x: f32[N, D], z: f32[M, D]) -> (y: f32[N, M]) {
  a[n] = rsqrt(sum[d](x[n, d] ** 2) + 1e-8)
  b[m] = rsqrt(sum[d](z[m, d] ** 2) + 1e-8)
  y[n, m] = a[n] * b[m] * sum[d](x[n, d] * z[m, d])
}"""
CELL_GRADIENT = """op f(g: f32[B, H], gc: f32[B, H], z: f32[B, 4, H], c: f32[B, H])
    -> (dz: f32[B, 4, H], dc: f32[B, H]) {
  i[b, h] = sigmoid(z[b, 0, h])
  f[b, h] = sigmoid(z[b, 1, h])
  u[b, h] = tanh(z[b, 2, h])
  o[b, h] = sigmoid(z[b, 3, h])
  t[b, h] = tanh(f[b, h] * c[b, h] + i[b, h] * u[b, h])
  e[b, h] = gc[b, h] + g[b, h] * o[b, h] * (1.0 - t[b, h] ** 2)
  dz[b, 0, h] = e[b, h] * u[b, h] * i[b, h] * (1.0 - i[b, h])
  dz[b, 1, h] = e[b, h] * c[b, h] * f[b, h] * (1.0 - f[b, h])
  dz[b, 2, h] = e[b, h] * i[b, h] * (1.0 - u[b, h] ** 2)
  dz[b, 3, h] = g[b, h] * t[b, h] * o[b, h] * (1.0 - o[b, h])
  dc[b, h] = e[b, h] * f[b, h]
}"""
POOLED = """op f(g: f32[N, C, 2*P, 2*Q]) -> (d: f32[N, C, P, Q]) {
  d[n, c, p, q] = sum[r in 0..2, s in 0..2](g[n, c, 2*p + r, 2*q + s])
}"""


def _group_gradient(sqrt: Any, g: Any, x: Any, w: Any) -> Any:
    m = x.mean((2, 3))[:, :, None, None]
    s = 1.0 / sqrt(((x - m) ** 2).mean((2, 3)) + 1e-5)[:, :, None, None]
    z = (x - m) * s
    h = g * w[None, :, :, None]
    a, b = h.mean((2, 3))[:, :, None, None], (h * z).mean((2, 3))[:, :, None, None]
    return s * (h - a - z * b), (g * z).sum((0, 3)), g.sum((0, 3))


def _group_gradient_eager(torch: Any, F: Any, g: Any, x: Any, w: Any) -> Any:
    n, k, c, p = x.shape
    flat = x.view(n, k * c, p)
    _, m, s = torch.ops.aten.native_group_norm(flat, w.view(-1), None, n, k * c, p, k, 1e-5)
    found = torch.ops.aten.native_group_norm_backward(
        g.view(n, k * c, p), flat, m, s, w.view(-1), n, k * c, p, k, [True, True, True]
    )
    return found[0].view(x.shape), found[1].view(w.shape), found[2].view(w.shape)


def _adafactor(maximum: Any, p: Any, g: Any, r: Any, c: Any) -> Any:
    q = g * g + 1e-30
    u, v = 0.999 * r + 0.001 * q.mean(1), 0.999 * c + 0.001 * q.mean(0)
    w = g * (u[:, None] * v[None] / u.mean()) ** -0.5
    return p - 0.01 * w / maximum((w * w).mean() ** 0.5), u, v


def _adafactor_torch(torch: Any, F: Any, p: Any, g: Any, r: Any, c: Any) -> None:
    found = _adafactor(lambda q: q.clamp(min=1.0), p, g, r, c)
    for old, new in zip((p, r, c), found, strict=True):
        old.copy_(new)


def _lars(p: Any, g: Any, b: Any) -> Any:
    a, e = (p * p).sum() ** 0.5, (g * g).sum() ** 0.5
    t = 0.001 * a / (e + 1e-4 * a + 1e-8)
    m = 0.9 * b + t * (g + 1e-4 * p)
    return p - 0.1 * m, m


def _lars_torch(torch: Any, F: Any, p: Any, g: Any, b: Any) -> None:
    q, m = _lars(p, g, b)
    p.copy_(q)
    b.copy_(m)


def _cell_gradient(sigmoid: Any, tanh: Any, stack: Any, g: Any, gc: Any, z: Any, c: Any) -> Any:
    i, f, u, o = sigmoid(z[:, 0]), sigmoid(z[:, 1]), tanh(z[:, 2]), sigmoid(z[:, 3])
    t = tanh(f * c + i * u)
    e = gc + g * o * (1.0 - t * t)
    gates = (e * u * i * (1.0 - i), e * c * f * (1.0 - f), e * i * (1.0 - u * u), g * t * o * (1.0 - o))
    return stack(gates), e * f


def _windows_jax(jax: Any, jnp: Any, q: Any, k: Any, v: Any, b: Any) -> Any:
    s = jnp.einsum("whid,whjd->whij", q, k) * q.shape[-1] ** -0.5 + b
    return jnp.einsum("whij,whjd->whid", jax.nn.softmax(s, -1), v)


CASES: tuple[Case, ...] = (
    Case(
        "gradient of a group norm",
        GROUP_GRADIENT,
        lambda d: (d(8, 8, 8, 784), d(8, 8, 8, 784), d(8, 8)),
        lambda t, f, g, x, w: _group_gradient(t.sqrt, g, x, w),
        lambda j, n, g, x, w: _group_gradient(n.sqrt, g, x, w),
        eager=_group_gradient_eager,
        tolerance=1e-3,
    ),
    Case(
        "squeeze and excitation",
        SQUEEZE,
        lambda d: (d(8, 256, 196), d(16, 256), d(256, 16)),
        lambda t, f, x, a, b: x * t.sigmoid(t.relu(x.mean(2) @ a.T) @ b.T)[:, :, None],
        lambda j, n, x, a, b: x * j.nn.sigmoid(j.nn.relu(x.mean(2) @ a.T) @ b.T)[:, :, None],
    ),
    Case(
        "gradient of a relu with slopes",
        SLOPES,
        lambda d: (d(16, 64, 784), d(16, 64, 784), d(64)),
        lambda t, f, g, x, a: (
            t.where(x > 0.0, g, g * a[:, None]),
            t.where(x > 0.0, 0.0, g * x).sum((0, 2)),
        ),
        lambda j, n, g, x, a: (
            n.where(x > 0.0, g, g * a[:, None]),
            n.where(x > 0.0, 0.0, g * x).sum((0, 2)),
        ),
        tolerance=1e-3,
    ),
    Case(
        "gradient of an average pool of 2 x 2",
        POOLED,
        lambda d: (d(8, 32, 56, 56),),
        lambda t, f, g: 4.0 * f.avg_pool2d(g, 2),
        lambda j, n, g: g.reshape(8, 32, 28, 2, 28, 2).sum((3, 5)),
    ),
    Case(
        "gradient of an LSTM cell",
        CELL_GRADIENT,
        lambda d: (d(64, 512), d(64, 512), d(64, 4, 512), d(64, 512)),
        lambda t, f, g, gc, z, c: _cell_gradient(t.sigmoid, t.tanh, lambda a: t.stack(a, 1), g, gc, z, c),
        lambda j, n, g, gc, z, c: _cell_gradient(j.nn.sigmoid, n.tanh, lambda a: n.stack(a, 1), g, gc, z, c),
    ),
    Case(
        "Adafactor",
        ADAFACTOR,
        lambda d: (d(1024, 1024), d(1024, 1024), d.unit(1024), d.unit(1024)),
        _adafactor_torch,
        lambda j, n, *given: _adafactor(lambda q: n.maximum(q, 1.0), *given),
        updated=(0, 2, 3),
    ),
    Case(
        "LARS",
        LARS,
        lambda d: (d(512, 1024), d(512, 1024), d(512, 1024)),
        _lars_torch,
        lambda j, n, p, g, b: _lars(p, g, b),
        updated=(0, 2),
    ),
    Case(
        "dense layer of normalised weights",
        WEIGHT_NORM,
        lambda d: (d(512, 512), d.unit(512), d(64, 512)),
        lambda t, f, v, g, x: (x @ v.T) * (g * (v * v).sum(1).rsqrt()),
        lambda j, n, v, g, x: (x @ v.T) * (g * j.lax.rsqrt((v * v).sum(1))),
    ),
    Case(
        "attention within windows of 49",
        WINDOWS,
        lambda d: (d(64, 3, 49, 32), d(64, 3, 49, 32), d(64, 3, 49, 32), d(3, 49, 49)),
        lambda t, f, q, k, v, b: f.scaled_dot_product_attention(q, k, v, attn_mask=b),
        _windows_jax,
    ),
    Case(
        "cosines of all pairs",
        COSINES,
        lambda d: (d(500, 128), d(500, 128)),
        lambda t, f, x, z: f.normalize(x) @ f.normalize(z).T,
        lambda j, n, x, z: (
            (x * j.lax.rsqrt((x * x).sum(1) + 1e-8)[:, None])
            @ (z * j.lax.rsqrt((z * z).sum(1) + 1e-8)[:, None]).T
        ),
    ),
)
