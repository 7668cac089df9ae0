"""Points in space, prices of assets, and iterations: sums of few terms, and steps that follow each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operators.case import Case

TURNED = """op f(r: f32[3, 3], x: f32[N, 3], t: f32[3]) -> (y: f32[N, 3]) {
  y[n, i] = sum[k](r[i, k] * x[n, k]) + t[i]
}"""
NEAREST = """op f(a: f32[N, 3], b: f32[M, 3]) -> (d: f32[N], k: i64[N]) where M >= 1 {
  s[i, j] = sum[c]((a[i, c] - b[j, c]) ** 2)
  d[i] = sqrt(min[j](s[i, j]))
  k[i] = argmin[j](s[i, j])
}"""
CHAMFER = """op f(a: f32[N, 3], b: f32[M, 3]) -> (y: f32) where N >= 1, M >= 1 {
  d[i, j] = sum[c]((a[i, c] - b[j, c]) ** 2)
  p[i] = min[j](d[i, j])
  q[j] = min[i](d[i, j])
  y = mean[i](p[i]) + mean[j](q[j])
}"""
ENERGY = """op f(x: f32[N, 3]) -> (e: f32) {
  d[i, j] = sum[c]((x[i, c] - x[j, c]) ** 2)
  s[i, j] = d[i, j] ** -3 if i != j else 0.0 for i in 0..N, j in 0..N
  e = 2.0 * sum[i, j](s[i, j] ** 2 - s[i, j])
}"""
PINHOLE = """op f(p: f32[3, 4], x: f32[N, 3]) -> (u: f32[N, 2]) {
  h[n, i] = sum[k in 0..3](p[i, k] * x[n, k]) + p[i, 3] for n in 0..N, i in 0..3
  u[n, 0] = h[n, 0] / h[n, 2]
  u[n, 1] = h[n, 1] / h[n, 2]
}"""
AREAS = """op f(v: f32[N, 3], t: i64[M, 3]) -> (y: f32[M]) where N >= 1 {
  e[m, c] = v[t[m, 1], c] - v[t[m, 0], c]
  g[m, c] = v[t[m, 2], c] - v[t[m, 0], c]
  y[m] = 0.5 * sqrt((e[m, 1] * g[m, 2] - e[m, 2] * g[m, 1]) ** 2 +
    (e[m, 2] * g[m, 0] - e[m, 0] * g[m, 2]) ** 2 + (e[m, 0] * g[m, 1] - e[m, 1] * g[m, 0]) ** 2)
}"""
TREES = """op f(s: f32[B]) -> (y: f32[B]) {
  v[b, 0, j] = max(s[b] * exp(0.02 * f32(2 * j - 200)) - 1.0, 0.0) for b in 0..B, j in 0..201
  v[b, t, j] = 0.9999 * (0.51 * v[b, t-1, j+1] + 0.49 * v[b, t-1, j])
    for b in 0..B, t in 1..201, j in 0..201-t
  y[b] = v[b, 200, 0]
}"""
PATHS = """op f(z: f32[T, N]) -> (y: f32[N]) where T >= 1 {
  x[0, n] = exp(-0.0002 + 0.02 * z[0, n])
  x[t, n] = x[t-1, n] * exp(-0.0002 + 0.02 * z[t, n]) for t in 1..T
  y[n] = max(mean[t](x[t, n]) - 1.0, 0.0)
}"""
TRIDIAGONAL = """op f(a: f32[N, B], b: f32[N, B], c: f32[N, B], d: f32[N, B]) -> (x: f32[N, B]) where N >= 2 {
  p[0, k] = c[0, k] / b[0, k]
  q[0, k] = d[0, k] / b[0, k]
  p[i, k] = c[i, k] / (b[i, k] - a[i, k] * p[i-1, k]) for i in 1..N
  q[i, k] = (d[i, k] - a[i, k] * q[i-1, k]) / (b[i, k] - a[i, k] * p[i-1, k]) for i in 1..N
  x[N-1, k] = q[N-1, k]
  x[i, k] = q[i, k] - p[i, k] * x[i+1, k] for i in 0..N-1
}"""
RANKS = """op f(a: f32[N, N]) -> (r: f32[N]) where N >= 1 {
  x[0, i] = 1.0 / f32(N) for i in 0..N
  x[t, i] = 0.15 / f32(N) + 0.85 * sum[k](a[i, k] * x[t-1, k]) for t in 1..31, i in 0..N
  r[i] = x[30, i]
}"""
TRANSPORT = """op f(c: f32[N, M]) -> (u: f32[N], v: f32[M]) where N >= 1, M >= 1 {
  k[i, j] = exp(-10.0 * c[i, j])
  a[0, i] = 1.0 for i in 0..N
  b[0, j] = 1.0 / sum[i](k[i, j] * a[0, i]) for j in 0..M
  a[t, i] = 1.0 / sum[j](k[i, j] * b[t-1, j]) for t in 1..20, i in 0..N
  b[t, j] = 1.0 / sum[i](k[i, j] * a[t, i]) for t in 1..20, j in 0..M
  u[i] = a[19, i]
  v[j] = b[19, j]
}"""
GATES = """op f(g: f32[T, B, 3, H], u: f32[3, H, H]) -> (y: f32[T, B, H]) where T >= 1 {
  r[t, b, j] = sigmoid(g[t, b, 0, j] + sum[i](y[t-1, b, i] * u[0, i, j])) for t in 1..T
  z[t, b, j] = sigmoid(g[t, b, 1, j] + sum[i](y[t-1, b, i] * u[1, i, j])) for t in 1..T
  c[t, b, j] = tanh(g[t, b, 2, j] + r[t, b, j] * sum[i](y[t-1, b, i] * u[2, i, j])) for t in 1..T
  y[0, b, j] = tanh(g[0, b, 2, j])
  y[t, b, j] = (1.0 - z[t, b, j]) * c[t, b, j] + z[t, b, j] * y[t-1, b, j] for t in 1..T
}"""


def _squares(a: Any, b: Any) -> Any:
    """Squared distances of all pairs."""
    return ((a[:, None] - b[None]) ** 2).sum(-1)


def _nearest_torch(torch: Any, F: Any, a: Any, b: Any) -> Any:
    found = _squares(a, b).min(1)
    return found.values.sqrt(), found.indices


def _nearest_jax(jax: Any, jnp: Any, a: Any, b: Any) -> Any:
    d = _squares(a, b)
    return jnp.sqrt(d.min(1)), d.argmin(1)


def _clouds_torch(torch: Any, F: Any, a: Any, b: Any) -> Any:
    d = _squares(a, b)
    return d.min(1).values.mean() + d.min(0).values.mean()


def _clouds_jax(jax: Any, jnp: Any, a: Any, b: Any) -> Any:
    d = _squares(a, b)
    return d.min(1).mean() + d.min(0).mean()


def _energy_torch(torch: Any, F: Any, x: Any) -> Any:
    d = _squares(x, x)
    d.fill_diagonal_(float("inf"))
    s = d**-3
    return 2.0 * (s * s - s).sum()


def _energy_jax(jax: Any, jnp: Any, x: Any) -> Any:
    d = _squares(x, x)
    s = jnp.where(jnp.eye(len(x), dtype=bool), 0.0, d**-3)
    return 2.0 * (s * s - s).sum()


def _projected(p: Any, x: Any) -> Any:
    h = x @ p[:, :3].T + p[:, 3]
    return h[:, :2] / h[:, 2:]


def _triangles(cross: Any, v: Any, t: Any) -> Any:
    a, b, c = v[t[:, 0]], v[t[:, 1]], v[t[:, 2]]
    n = cross(b - a, c - a)
    return 0.5 * (n * n).sum(-1) ** 0.5


def _tree(maximum: Any, first: Any, s: Any) -> Any:
    v = maximum(s[:, None] * first[None] - 1.0)
    for _ in range(200):
        v = 0.9999 * (0.51 * v[:, 1:] + 0.49 * v[:, :-1])
    return v[:, 0]


def _tree_torch(torch: Any, F: Any, s: Any) -> Any:
    first = torch.exp(0.02 * (2.0 * torch.arange(201) - 200.0))
    return _tree(lambda v: v.clamp(min=0.0), first, s)


def _tree_jax(jax: Any, jnp: Any, s: Any) -> Any:
    """All steps at full width, in a loop that is compiled once."""
    first = jnp.exp(0.02 * (2.0 * jnp.arange(201) - 200.0))
    v = jnp.maximum(s[:, None] * first[None] - 1.0, 0.0)

    def step(t: Any, v: Any) -> Any:
        return 0.9999 * (0.51 * jnp.roll(v, -1, axis=1) + 0.49 * v)

    return jax.lax.fori_loop(0, 200, step, v)[:, 0]


def _tridiagonal_torch(torch: Any, F: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    p, q = [c[0] / b[0]], [d[0] / b[0]]
    for i in range(1, len(a)):
        w = b[i] - a[i] * p[-1]
        p.append(c[i] / w)
        q.append((d[i] - a[i] * q[-1]) / w)
    x = [q[-1]]
    for i in range(len(a) - 2, -1, -1):
        x.append(q[i] - p[i] * x[-1])
    return torch.stack(x[::-1])


def _tridiagonal_jax(jax: Any, jnp: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    def down(carry: Any, row: Any) -> Any:
        p, q = carry
        a, b, c, d = row
        w = b - a * p
        now = c / w, (d - a * q) / w
        return now, now

    zero = jnp.zeros_like(a[0])
    _, (p, q) = jax.lax.scan(down, (zero, zero), (a, b, c, d))

    def up(x: Any, row: Any) -> Any:
        x = row[1] - row[0] * x
        return x, x

    return jax.lax.scan(up, zero, (p, q), reverse=True)[1]


def _ranks_jax(jax: Any, jnp: Any, a: Any) -> Any:
    n = len(a)
    return jax.lax.fori_loop(0, 30, lambda _, x: 0.15 / n + 0.85 * (a @ x), jnp.full(n, 1.0 / n))


def _ranks_torch(torch: Any, F: Any, a: Any) -> Any:
    n = len(a)
    x = torch.full((n,), 1.0 / n)
    for _ in range(30):
        x = 0.15 / n + 0.85 * (a @ x)
    return x


def _transport_torch(torch: Any, F: Any, c: Any) -> Any:
    k = torch.exp(-10.0 * c)
    u = torch.ones(len(c))
    v = 1.0 / (k.T @ u)
    for _ in range(19):
        u = 1.0 / (k @ v)
        v = 1.0 / (k.T @ u)
    return u, v


def _transport_jax(jax: Any, jnp: Any, c: Any) -> Any:
    k = jnp.exp(-10.0 * c)

    def step(_: Any, uv: Any) -> Any:
        u = 1.0 / (k @ uv[1])
        return u, 1.0 / (k.T @ u)

    u = jnp.ones(len(c))
    return jax.lax.fori_loop(0, 19, step, (u, 1.0 / (k.T @ u)))


def _gates_torch(torch: Any, F: Any, g: Any, u: Any) -> Any:
    y = [torch.tanh(g[0, :, 2])]
    for t in range(1, len(g)):
        r = torch.sigmoid(g[t, :, 0] + y[-1] @ u[0])
        z = torch.sigmoid(g[t, :, 1] + y[-1] @ u[1])
        c = torch.tanh(g[t, :, 2] + r * (y[-1] @ u[2]))
        y.append((1.0 - z) * c + z * y[-1])
    return torch.stack(y)


def _gates_jax(jax: Any, jnp: Any, g: Any, u: Any) -> Any:
    first = jnp.tanh(g[0, :, 2])

    def step(h: Any, g: Any) -> Any:
        r, z = jax.nn.sigmoid(g[:, 0] + h @ u[0]), jax.nn.sigmoid(g[:, 1] + h @ u[1])
        c = jnp.tanh(g[:, 2] + r * (h @ u[2]))
        h = (1.0 - z) * c + z * h
        return h, h

    rest = jax.lax.scan(step, first, g[1:])[1]
    return jnp.concatenate([first[None], rest])


CASES: tuple[Case, ...] = (
    Case(
        "points turned and moved",
        TURNED,
        lambda draw: (
            draw(3, 3),
            draw(300_000, 3),
            draw(3),
        ),
        lambda torch, F, r, x, t: x @ r.T + t,
        lambda jax, jnp, r, x, t: x @ r.T + t,
    ),
    Case(
        "nearest of other points",
        NEAREST,
        lambda draw: (
            draw(2000, 3),
            draw(2000, 3),
        ),
        _nearest_torch,
        _nearest_jax,
    ),
    Case(
        "distance of two clouds of points",
        CHAMFER,
        lambda draw: (
            draw(1000, 3),
            draw(1000, 3),
        ),
        _clouds_torch,
        _clouds_jax,
    ),
    Case(
        "energy of pairs",
        ENERGY,
        lambda draw: (5.0 * draw.unit(1500, 3) + np.arange(1500, dtype="f4")[:, None] % 40,),
        _energy_torch,
        _energy_jax,
    ),
    Case(
        "points seen by a camera",
        PINHOLE,
        lambda draw: (
            draw(3, 4) + 4.0 * np.eye(3, 4, dtype="f4"),
            draw.unit(300_000, 3) + 2.0,
        ),
        lambda torch, F, p, x: _projected(p, x),
        lambda jax, jnp, p, x: _projected(p, x),
    ),
    Case(
        "areas of triangles",
        AREAS,
        lambda draw: (
            draw(50_000, 3),
            draw.ints(0, 50_000, 100_000, 3),
        ),
        lambda torch, F, v, t: _triangles(torch.linalg.cross, v, t),
        lambda jax, jnp, v, t: _triangles(jnp.cross, v, t),
    ),
    Case("trees of option prices", TREES, lambda draw: (draw.unit(64) + 0.5,), _tree_torch, _tree_jax),
    Case(
        "paths of prices",
        PATHS,
        lambda draw: (draw(100, 10_000),),
        lambda torch, F, z: (torch.exp((-0.0002 + 0.02 * z).cumsum(0)).mean(0) - 1.0).clamp(min=0.0),
        lambda jax, jnp, z: jnp.maximum(jnp.exp((-0.0002 + 0.02 * z).cumsum(0)).mean(0) - 1.0, 0.0),
    ),
    Case(
        "tridiagonal systems",
        TRIDIAGONAL,
        lambda draw: (
            draw.unit(200, 256),
            draw.unit(200, 256) + 4.0,
            draw.unit(200, 256),
            draw(200, 256),
        ),
        _tridiagonal_torch,
        _tridiagonal_jax,
    ),
    Case("ranks of pages", RANKS, lambda draw: (draw.unit(500, 500) / 250.0,), _ranks_torch, _ranks_jax),
    Case(
        "transport of masses",
        TRANSPORT,
        lambda draw: (draw.unit(300, 300),),
        _transport_torch,
        _transport_jax,
    ),
    Case(
        "gates with weights by columns",
        GATES,
        lambda draw: (
            draw(30, 16, 3, 128),
            draw(3, 128, 128) / 11.0,
        ),
        _gates_torch,
        _gates_jax,
    ),
)
