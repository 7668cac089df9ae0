"""Windows over the border of an image or a signal: zeros, nothing, the last element again, a ring."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from benchmarks.operators.case import Case

MEANS = """op f(x: f32[N, C, H, W]) -> (y: f32[N, C, H, W]) {
  y[n, c, p, q] = sum[r in 0..3, s in 0..3](
      x[n, c, p+r-1, q+s-1] if 0 <= p+r-1 < H and 0 <= q+s-1 < W else 0.0) / 9.0
}"""
GREATEST = """op f(x: f32[N, C, H, W]) -> (y: f32[N, C, H, W]) {
  y[n, c, p, q] = max[r in 0..3, s in 0..3](
      x[n, c, p+r-1, q+s-1] if 0 <= p+r-1 < H and 0 <= q+s-1 < W else -inf)
}"""
HALVED = """op f(x: f32[N, C, 2*H, 2*W]) -> (y: f32[N, C, H, W]) {
  y[n, c, p, q] = max[r in 0..3, s in 0..3](
      x[n, c, 2*p+r-1, 2*q+s-1] if 0 <= 2*p+r-1 < 2*H and 0 <= 2*q+s-1 < 2*W else -inf)
}"""
DEPTHWISE = """op f(x: f32[N, C, H, W], w: f32[C, 3, 3]) -> (y: f32[N, C, H, W]) {
  y[n, c, p, q] = sum[r in 0..3, s in 0..3](
      w[c, r, s] * (x[n, c, p+r-1, q+s-1] if 0 <= p+r-1 < H and 0 <= q+s-1 < W else 0.0))
}"""
REPLICATED = """op f(x: f32[N, H, W], w: f32[5, 5]) -> (y: f32[N, H, W]) where H >= 1, W >= 1 {
  y[n, i, k] = sum[r, s](w[r, s] * x[n, min(max(i+r-2, 0), H-1), min(max(k+s-2, 0), W-1)])
}"""
BOX = """op f(x: f32[H, W]) -> (y: f32[H, W]) {
  rows[i, k] = sum[s in 0..5](x[i, k+s-2] if 0 <= k+s-2 < W else 0.0) / 5.0 for i in 0..H, k in 0..W
  y[i, k] = sum[r in 0..5](rows[i+r-2, k] if 0 <= i+r-2 < H else 0.0) / 5.0
}"""
WAVELETS = """op f(x: f32[B, T], h: f32[8], g: f32[8]) -> (a: f32[B, T//2], d: f32[B, T//2])
    where T % 2 == 0, T >= 8 {
  a[b, t] = sum[k](h[k] * x[b, (2*t + k) % T])
  d[b, t] = sum[k](g[k] * x[b, (2*t + k) % T])
}"""
MOVING = """op f(x: f32[B, T]) -> (y: f32[B, T]) {
  y[b, t] = sum[k in 0..9](x[b, t+k-4] if 0 <= t+k-4 < T else 0.0) / f32(min(t+5, T) - max(t-4, 0))
}"""


def _jax_border(n: Any, x: Any, size: int, value: float = 0.0) -> Any:
    return n.pad(x, ((0, 0),) * (x.ndim - 2) + ((size, size),) * 2, constant_values=value)


def _windows(function: Any, z: Any, size: int, step: int = 1) -> Any:
    """Reduced windows of images that have their border: along rows, then along columns."""
    high, wide = (extent - size + 1 for extent in z.shape[-2:])
    rows = reduce(function, (z[..., k : k + wide : step] for k in range(size)))
    return reduce(function, (rows[..., i : i + high : step, :] for i in range(size)))


def _filtered(z: Any, w: Any) -> Any:
    """Images that have their border, filtered with `w[i, k]` at each place of a window."""
    size = w.shape[0]
    high, wide = (extent - size + 1 for extent in z.shape[-2:])
    places = [(i, k) for i in range(size) for k in range(size)]
    return sum(w[i, k] * z[..., i : i + high, k : k + wide] for i, k in places)


def _eager_replicated(t: Any, f: Any, x: Any, w: Any) -> Any:
    return f.conv2d(f.pad(x[:, None], (2, 2, 2, 2), mode="replicate"), w[None, None])[:, 0]


def _wavelets(z: Any, *filters: Any) -> Any:
    """Of signals that begin again at their end, what each filter gives at every second place."""
    count = z.shape[1] - 6
    return tuple(sum(w[k] * z[:, k : k + count - 1 : 2] for k in range(8)) for w in filters)


def _eager_wavelets(t: Any, f: Any, x: Any, h: Any, g: Any) -> Any:
    z = f.conv1d(f.pad(x[:, None], (0, 6), mode="circular"), t.stack((h, g))[:, None], stride=2)
    return z[:, 0], z[:, 1]


def _moving(lib: Any, z: Any) -> Any:
    """Means of nine of signals that have a border of zeros, without it."""
    count = z.shape[1] - 8
    t = lib.arange(count)
    among = lib.minimum(t, count - 1 - t).clip(max=4) + 5
    return sum(z[:, k : k + count] for k in range(9)) / among


CASES = (
    Case(
        "depthwise filters padded by conditions",
        DEPTHWISE,
        lambda d: (d(8, 32, 56, 56), d(32, 3, 3)),
        lambda t, f, x, w: f.conv2d(x, w[:, None], padding=1, groups=32),
        lambda j, n, x, w: _filtered(_jax_border(n, x, 1), n.moveaxis(w, 0, -1)[..., None, None]),
    ),
    Case(
        "mean of 3 x 3, step 1, padded by conditions",
        MEANS,
        lambda d: (d(8, 32, 56, 56),),
        lambda t, f, x: _windows(add, f.pad(x, (1, 1, 1, 1)), 3) / 9,
        lambda j, n, x: _windows(add, _jax_border(n, x, 1), 3) / 9,
        eager=lambda t, f, x: f.avg_pool2d(x, 3, 1, 1),
    ),
    Case(
        "max of 3 x 3, step 1, padded by conditions",
        GREATEST,
        lambda d: (d(8, 32, 56, 56),),
        lambda t, f, x: _windows(t.maximum, f.pad(x, (1, 1, 1, 1), value=-t.inf), 3),
        lambda j, n, x: _windows(n.maximum, _jax_border(n, x, 1, -n.inf), 3),
        eager=lambda t, f, x: f.max_pool2d(x, 3, 1, 1),
    ),
    Case(
        "max of 3 x 3, step 2, padded by conditions",
        HALVED,
        lambda d: (d(8, 32, 112, 112),),
        lambda t, f, x: _windows(t.maximum, f.pad(x, (1, 1, 1, 1), value=-t.inf), 3, 2),
        lambda j, n, x: _windows(n.maximum, _jax_border(n, x, 1, -n.inf), 3, 2),
        eager=lambda t, f, x: f.max_pool2d(x, 3, 2, 1),
    ),
    Case(
        "filters of 5 x 5 with a replicated border",
        REPLICATED,
        lambda d: (d(4, 256, 256), d(5, 5)),
        lambda t, f, x, w: _filtered(f.pad(x, (2, 2, 2, 2), mode="replicate"), w),
        lambda j, n, x, w: _filtered(n.pad(x, ((0, 0), (2, 2), (2, 2)), mode="edge"), w),
        eager=_eager_replicated,
    ),
    Case(
        "box blur of 5 x 5 in two steps, zero border",
        BOX,
        lambda d: (d(1024, 1024),),
        lambda t, f, x: _windows(add, f.pad(x, (2, 2, 2, 2)), 5) / 25,
        lambda j, n, x: _windows(add, _jax_border(n, x, 2), 5) / 25,
        eager=lambda t, f, x: f.avg_pool2d(f.avg_pool2d(x[None], (1, 5), 1, (0, 2)), (5, 1), 1, (2, 0))[0],
    ),
    Case(
        "db4 wavelets on a ring",
        WAVELETS,
        lambda d: (d(64, 8192), d(8), d(8)),
        lambda t, f, x, h, g: _wavelets(t.cat((x, x[:, :6]), 1), h, g),
        lambda j, n, x, h, g: _wavelets(n.concatenate((x, x[:, :6]), 1), h, g),
        eager=_eager_wavelets,
    ),
    Case(
        "moving mean of 9 with edges",
        MOVING,
        lambda d: (d(64, 8192),),
        lambda t, f, x: _moving(t, f.pad(x, (4, 4))),
        lambda j, n, x: _moving(n, n.pad(x, ((0, 0), (4, 4)))),
        eager=lambda t, f, x: f.avg_pool1d(x[:, None], 9, 1, 4, count_include_pad=False)[:, 0],
    ),
)
