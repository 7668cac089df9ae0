"""Stencils, dynamic programming, linear algebra and particles: what loops were fused for before tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operators.case import Case

HEAT = """op f(x: f32[H, W]) -> (y: f32[H, W]) where H >= 3, W >= 3 {
  u[0, i, k] = x[i, k]
  u[t, i, k] = (0.2 * (u[t-1, i, k] + u[t-1, i-1, k] + u[t-1, i+1, k] + u[t-1, i, k-1] + u[t-1, i, k+1])
      if 1 <= i < H - 1 and 1 <= k < W - 1 else u[t-1, i, k]) for t in 1..11, i in 0..H, k in 0..W
  y[i, k] = u[10, i, k]
}"""
LIFE = """op f(x: u8[H, W]) -> (y: u8[H, W]) where H >= 3, W >= 3 {
  z[i, k] = x[i-1, k-1] if 1 <= i <= H and 1 <= k <= W else 0 for i in 0..H+2, k in 0..W+2
  s[i, k] = z[i, k] + z[i, k+1] + z[i, k+2] + z[i+1, k] + z[i+1, k+2] + z[i+2, k] + z[i+2, k+1] +
      z[i+2, k+2] for i in 0..H, k in 0..W
  y[i, k] = 1 if s[i, k] == 3 or (s[i, k] == 2 and x[i, k] == 1) else 0
}"""
LAPLACE = """op f(x: f32[D, H, W]) -> (y: f32[D-2, H-2, W-2]) where D >= 3, H >= 3, W >= 3 {
  y[d, h, w] = x[d, h+1, w+1] + x[d+2, h+1, w+1] + x[d+1, h, w+1] + x[d+1, h+2, w+1] + x[d+1, h+1, w] +
      x[d+1, h+1, w+2] - 6.0 * x[d+1, h+1, w+1] for d in 0..D-2, h in 0..H-2, w in 0..W-2
}"""
VITERBI = """op f(x: f32[B, T, K], w: f32[K, K]) -> (y: f32[B, K]) where T >= 1, K >= 1 {
  s[b, 0, k] = x[b, 0, k]
  s[b, t, k] = max[j](s[b, t-1, j] + w[j, k]) + x[b, t, k] for t in 1..T
  y[b, k] = s[b, T-1, k]
}"""
DISTANCE = """op f(a: i64[B, N], b: i64[B, M]) -> (y: i64[B]) where N >= 1, M >= 1 {
  s[z, 0, k] = k for z in 0..B, k in 0..M+1
  s[z, i, 0] = i for z in 0..B, i in 1..N+1
  s[z, i, k] = min(min(s[z, i-1, k], s[z, i, k-1]) + 1,
      s[z, i-1, k-1] + (0 if a[z, i-1] == b[z, k-1] else 1)) for z in 0..B, i in 1..N+1, k in 1..M+1
  y[z] = s[z, N, M]
}"""
FLOYD = """op f(x: f32[N, N]) -> (y: f32[N, N]) where N >= 1 {
  d[0, i, k] = x[i, k]
  d[t, i, k] = min(d[t-1, i, k], d[t-1, i, t-1] + d[t-1, t-1, k]) for t in 1..N+1, i in 0..N, k in 0..N
  y[i, k] = d[N, i, k]
}"""
POWERS = """op f(w: f32[N, N], u: f32[N]) -> (y: f32[N]) {
  p[0, i] = u[i]
  p[t, i] = sum[j](w[i, j] * p[t-1, j]) for t in 1..11, i in 0..N
  y[i] = p[10, i]
}"""
SOLVE = """op f(l: f32[N, N], b: f32[N, M]) -> (x: f32[N, M]) {
  x[i, m] = (b[i, m] - sum[k in 0..i](l[i, k] * x[k, m])) / l[i, i]
}"""
BODIES = """op f(x: f32[N, 3], m: f32[N]) -> (a: f32[N, 3]) {
  r[i, j] = sum[c]((x[j, c] - x[i, c]) ** 2) + 0.01 for i in 0..N, j in 0..N
  w[i, j] = m[j] * rsqrt(r[i, j]) ** 3 for i in 0..N, j in 0..N
  a[i, c] = sum[j](w[i, j] * (x[j, c] - x[i, c]))
}"""
MANDELBROT = """op f(a: f32[H, W], b: f32[H, W]) -> (n: i32[H, W]) {
  u[0, h, w] = a[h, w]
  v[0, h, w] = b[h, w]
  u[t, h, w] = u[t-1, h, w] * u[t-1, h, w] - v[t-1, h, w] * v[t-1, h, w] + a[h, w] for t in 1..10
  v[t, h, w] = 2.0 * u[t-1, h, w] * v[t-1, h, w] + b[h, w] for t in 1..10
  n[h, w] = sum[t in 0..10](i32(u[t, h, w] * u[t, h, w] + v[t, h, w] * v[t, h, w] < 4.0))
}"""
INTEGRAL = """op f(x: f32[H, W]) -> (y: f32[H, W]) where H >= 1, W >= 1 {
  r[h, 0] = x[h, 0]
  r[h, w] = r[h, w-1] + x[h, w] for w in 1..W
  y[0, w] = r[0, w]
  y[h, w] = y[h-1, w] + r[h, w] for h in 1..H
}"""
BILINEAR = """op f(x: f32[C, H, W], u: f32[P, Q], v: f32[P, Q]) -> (y: f32[C, P, Q]) where H >= 2, W >= 2 {
  a[p, q] = min(max(i64(floor(u[p, q])), 0), H - 2)
  b[p, q] = min(max(i64(floor(v[p, q])), 0), W - 2)
  s[p, q] = u[p, q] - f32(a[p, q])
  t[p, q] = v[p, q] - f32(b[p, q])
  y[c, p, q] = (1.0 - s[p, q]) * ((1.0 - t[p, q]) * x[c, a[p, q], b[p, q]] +
          t[p, q] * x[c, a[p, q], b[p, q] + 1]) +
      s[p, q] * ((1.0 - t[p, q]) * x[c, a[p, q] + 1, b[p, q]] + t[p, q] * x[c, a[p, q] + 1, b[p, q] + 1])
}"""
ROTATIONS = """op f(q: f32[N, 4], x: f32[N, 3]) -> (y: f32[N, 3]) {
  a[n] = q[n, 2] * x[n, 2] - q[n, 3] * x[n, 1]
  b[n] = q[n, 3] * x[n, 0] - q[n, 1] * x[n, 2]
  c[n] = q[n, 1] * x[n, 1] - q[n, 2] * x[n, 0]
  y[n, 0] = x[n, 0] + 2.0 * (q[n, 0] * a[n] + q[n, 2] * c[n] - q[n, 3] * b[n])
  y[n, 1] = x[n, 1] + 2.0 * (q[n, 0] * b[n] + q[n, 3] * a[n] - q[n, 1] * c[n])
  y[n, 2] = x[n, 2] + 2.0 * (q[n, 0] * c[n] + q[n, 1] * b[n] - q[n, 2] * a[n])
}"""
OPTIONS = """op f(s: f32[N], k: f32[N], t: f32[N]) -> (call: f32[N], put: f32[N]) {
  d[i] = (log(s[i] / k[i]) + 0.06 * t[i]) / (0.2 * sqrt(t[i]))
  e[i] = d[i] - 0.2 * sqrt(t[i])
  w[i] = k[i] * exp(-0.04 * t[i])
  p[i] = 0.5 * (1.0 + erf(d[i] * 0.70710678))
  q[i] = 0.5 * (1.0 + erf(e[i] * 0.70710678))
  call[i] = s[i] * p[i] - w[i] * q[i]
  put[i] = w[i] * (1.0 - q[i]) - s[i] * (1.0 - p[i])
}"""
FILTER = """op f(x: f32[B, T], a: f32[2], b: f32[3]) -> (y: f32[B, T]) where T >= 3 {
  y[n, 0] = b[0] * x[n, 0]
  y[n, 1] = b[0] * x[n, 1] + b[1] * x[n, 0] - a[0] * y[n, 0]
  y[n, t] = b[0] * x[n, t] + b[1] * x[n, t-1] + b[2] * x[n, t-2] - a[0] * y[n, t-1] - a[1] *
      y[n, t-2] for t in 2..T
}"""


def _torch_heat(t: Any, f: Any, x: Any) -> Any:
    u = x.clone()
    for _ in range(10):
        v = u.clone()
        v[1:-1, 1:-1] = 0.2 * (u[1:-1, 1:-1] + u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        u = v
    return u


def _jax_heat(j: Any, n: Any, x: Any) -> Any:
    def step(_: int, u: Any) -> Any:
        inner = 0.2 * (u[1:-1, 1:-1] + u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        return u.at[1:-1, 1:-1].set(inner)

    return j.lax.fori_loop(0, 10, step, x, unroll=True)


def _life(z: Any, x: Any) -> Any:
    """Which cells live next, of cells and the same with a border."""
    h, w = x.shape
    s = sum(z[i : i + h, k : k + w] for i in range(3) for k in range(3) if (i, k) != (1, 1))
    return (s == 3) | ((s == 2) & (x == 1))


def _laplace(x: Any) -> Any:
    c = slice(1, -1)
    around = x[:-2, c, c] + x[2:, c, c] + x[c, :-2, c] + x[c, 2:, c] + x[c, c, :-2] + x[c, c, 2:]
    return around - 6.0 * x[c, c, c]


def _torch_viterbi(t: Any, f: Any, x: Any, w: Any) -> Any:
    s = x[:, 0]
    for k in range(1, x.shape[1]):
        s = (s[:, :, None] + w).amax(1) + x[:, k]
    return s


def _jax_viterbi(j: Any, n: Any, x: Any, w: Any) -> Any:
    def step(s: Any, row: Any) -> Any:
        return (s[:, :, None] + w).max(1) + row, None

    return j.lax.scan(step, x[:, 0], n.swapaxes(x, 0, 1)[1:])[0]


def _torch_distance(t: Any, f: Any, a: Any, b: Any) -> Any:
    batch, m = b.shape
    row = t.arange(m + 1).expand(batch, m + 1).clone()
    along = t.arange(m + 1)
    for i in range(a.shape[1]):
        apart = (a[:, i, None] != b).long()
        new = t.minimum(row[:, 1:] + 1, row[:, :-1] + apart)
        new = t.cat((t.full((batch, 1), i + 1), new), 1)
        row = t.cummin(new - along, 1)[0] + along
    return row[:, -1]


def _jax_distance(j: Any, n: Any, a: Any, b: Any) -> Any:
    batch, m = b.shape
    along = n.arange(m + 1)

    def step(row: Any, at: Any) -> Any:
        i, letters = at
        new = n.minimum(row[:, 1:] + 1, row[:, :-1] + (letters[:, None] != b))
        new = n.concatenate((n.full((batch, 1), i + 1), new), 1)
        return j.lax.cummin(new - along, 1) + along, None

    start = n.broadcast_to(along, (batch, m + 1))
    return j.lax.scan(step, start, (n.arange(a.shape[1]), a.T))[0][:, -1]


def _torch_floyd(t: Any, f: Any, x: Any) -> Any:
    d = x
    for k in range(x.shape[0]):
        d = t.minimum(d, d[:, k : k + 1] + d[k : k + 1])
    return d


def _jax_floyd(j: Any, n: Any, x: Any) -> Any:
    return j.lax.fori_loop(0, x.shape[0], lambda k, d: n.minimum(d, d[:, k, None] + d[k]), x)


def _powers(w: Any, u: Any) -> Any:
    for _ in range(10):
        u = w @ u
    return u


def _lower(d: Any) -> tuple[Any, ...]:
    n = 256
    return np.tril(0.02 * d(n, n)) + 2 * np.eye(n, dtype="f4"), d(n, 64)


def _bodies(t: Any, x: Any, m: Any, rsqrt: Any) -> Any:
    away = x[None] - x[:, None]
    w = m * rsqrt((away * away).sum(-1) + 0.01) ** 3
    return (w[:, :, None] * away).sum(1)


def _mandelbrot(a: Any, b: Any, count: Any) -> Any:
    u, v, n = a, b, 0
    for _ in range(10):
        n = n + count(u * u + v * v < 4.0)
        u, v = u * u - v * v + a, 2.0 * u * v + b
    return n


def _torch_bilinear(t: Any, f: Any, x: Any, u: Any, v: Any) -> Any:
    a, b = u.floor().long().clamp(0, x.shape[1] - 2), v.floor().long().clamp(0, x.shape[2] - 2)
    return _between(x, a, b, u - a, v - b)


def _jax_bilinear(j: Any, n: Any, x: Any, u: Any, v: Any) -> Any:
    a = n.floor(u).astype("i4").clip(0, x.shape[1] - 2)
    b = n.floor(v).astype("i4").clip(0, x.shape[2] - 2)
    return _between(x, a, b, u - a, v - b)


def _between(x: Any, a: Any, b: Any, s: Any, t: Any) -> Any:
    above = (1 - t) * x[:, a, b] + t * x[:, a, b + 1]
    return (1 - s) * above + s * ((1 - t) * x[:, a + 1, b] + t * x[:, a + 1, b + 1])


def _rotated(stack: Any, q: Any, x: Any) -> Any:
    w, i, j, k = (q[:, c] for c in range(4))
    u, v, z = (x[:, c] for c in range(3))
    a, b, c = j * z - k * v, k * u - i * z, i * v - j * u
    first, second = u + 2 * (w * a + j * c - k * b), v + 2 * (w * b + k * a - i * c)
    return stack((first, second, z + 2 * (w * c + i * b - j * a)), -1)


def _options(lib: Any, erf: Any, s: Any, k: Any, t: Any) -> Any:
    d = (lib.log(s / k) + 0.06 * t) / (0.2 * lib.sqrt(t))
    e = d - 0.2 * lib.sqrt(t)
    w = k * lib.exp(-0.04 * t)
    p, q = (0.5 * (1 + erf(z * 0.70710678)) for z in (d, e))
    return s * p - w * q, w * (1 - q) - s * (1 - p)


def _torch_filter(t: Any, f: Any, x: Any, a: Any, b: Any) -> Any:
    w = b[0] * x
    w[:, 1:] += b[1] * x[:, :-1]
    w[:, 2:] += b[2] * x[:, :-2]
    made = [w[:, 0], w[:, 1] - a[0] * w[:, 0]]
    for k in range(2, x.shape[1]):
        made.append(w[:, k] - a[0] * made[-1] - a[1] * made[-2])
    return t.stack(made, 1)


def _jax_filter(j: Any, n: Any, x: Any, a: Any, b: Any) -> Any:
    z = n.pad(x, ((0, 0), (2, 0)))
    w = b[0] * z[:, 2:] + b[1] * z[:, 1:-1] + b[2] * z[:, :-2]

    def step(state: Any, row: Any) -> Any:
        new = row - a[0] * state[0] - a[1] * state[1]
        return (new, state[0]), new

    zero = n.zeros(x.shape[0])
    return j.lax.scan(step, (zero, zero), w.T)[1].T


CASES = (
    Case("heat of a plate, ten steps", HEAT, lambda d: (d(512, 512),), _torch_heat, _jax_heat),
    Case(
        "a step of the game of life",
        LIFE,
        lambda d: (d.ints(0, 2, 1024, 1024, dtype="u8"),),
        lambda t, f, x: _life(f.pad(x, (1, 1, 1, 1)), x).to(t.uint8),
        lambda j, n, x: _life(n.pad(x, 1), x).astype("u1"),
    ),
    Case(
        "Laplace operator in three dimensions",
        LAPLACE,
        lambda d: (d(96, 96, 96),),
        lambda t, f, x: _laplace(x),
        lambda j, n, x: _laplace(x),
    ),
    Case("Viterbi scores", VITERBI, lambda d: (d(16, 128, 48), d(48, 48)), _torch_viterbi, _jax_viterbi),
    Case(
        "edit distances of pairs",
        DISTANCE,
        lambda d: (d.ints(0, 4, 64, 100), d.ints(0, 4, 64, 120)),
        _torch_distance,
        _jax_distance,
    ),
    Case("shortest paths", FLOYD, lambda d: (10 * d.unit(200, 200),), _torch_floyd, _jax_floyd),
    Case(
        "power iteration of ten steps",
        POWERS,
        lambda d: (d(512, 512) / np.float32(22), d(512)),
        lambda t, f, w, u: _powers(w, u),
        lambda j, n, w, u: _powers(w, u),
    ),
    Case(
        "triangular system",
        SOLVE,
        _lower,
        lambda t, f, low, b: t.linalg.solve_triangular(low, b, upper=False),
        lambda j, n, low, b: j.lax.linalg.triangular_solve(low, b, left_side=True, lower=True),
    ),
    Case(
        "forces of bodies",
        BODIES,
        lambda d: (d(1000, 3), d.unit(1000)),
        lambda t, f, x, m: _bodies(t, x, m, t.rsqrt),
        lambda j, n, x, m: _bodies(n, x, m, j.lax.rsqrt),
    ),
    Case(
        "Mandelbrot set",
        MANDELBROT,
        lambda d: (4 * d.unit(400, 400) - 2, 4 * d.unit(400, 400) - 2),
        lambda t, f, a, b: _mandelbrot(a, b, lambda c: c.int()),
        lambda j, n, a, b: _mandelbrot(a, b, lambda c: c.astype("i4")),
    ),
    Case(
        "integral image",
        INTEGRAL,
        lambda d: (d.unit(1080, 1000),),
        lambda t, f, x: x.cumsum(1).cumsum(0),
        lambda j, n, x: x.cumsum(1).cumsum(0),
    ),
    Case(
        "bilinear samples of an image",
        BILINEAR,
        lambda d: (d(16, 128, 128), 126 * d.unit(128, 128), 126 * d.unit(128, 128)),
        _torch_bilinear,
        _jax_bilinear,
        tolerance=1e-3,
    ),
    Case(
        "vectors rotated by quaternions",
        ROTATIONS,
        lambda d: (d(100_000, 4), d(100_000, 3)),
        lambda t, f, q, x: _rotated(t.stack, q, x),
        lambda j, n, q, x: _rotated(n.stack, q, x),
    ),
    Case(
        "prices of options",
        OPTIONS,
        lambda d: (50 + 50 * d.unit(500_000), 50 + 50 * d.unit(500_000), 0.1 + d.unit(500_000)),
        lambda t, f, s, k, years: _options(t, t.erf, s, k, years),
        lambda j, n, s, k, years: _options(n, j.lax.erf, s, k, years),
    ),
    Case(
        "recursive filter of signals",
        FILTER,
        lambda d: (d(2000, 40), np.array([-1.6, 0.7], "f4"), np.array([0.02, 0.04, 0.02], "f4")),
        _torch_filter,
        _jax_filter,
        tolerance=1e-3,
    ),
)
