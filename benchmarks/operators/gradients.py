"""Gradients that training frameworks compute, written out."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case


def _gradients(t: Any, function: Any, dy: Any, *arguments: Any) -> Any:
    """What autograd makes of a function."""
    with t.enable_grad():
        leaves = [a.detach().requires_grad_() for a in arguments]
        return t.autograd.grad(function(*leaves), leaves, dy)


def _jax_gradients(j: Any, function: Any, dy: Any, *arguments: Any) -> Any:
    return j.vjp(function, *arguments)[1](dy)


def _torch_rms(t: Any, x: Any, g: Any) -> Any:
    return x * t.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * g


def _jax_rms(j: Any, n: Any, x: Any, g: Any) -> Any:
    return x * j.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g


def _torch_swiglu(f: Any, a: Any, b: Any) -> Any:
    return f.silu(a) * b


def _jax_batch_norm(j: Any, n: Any, x: Any, g: Any) -> Any:
    m, v = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    return (x - m) * j.lax.rsqrt(v + 1e-5) * g[:, None, None]


def _torch_batch_norm(t: Any, x: Any, g: Any) -> Any:
    v, m = t.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
    return (x - m) * t.rsqrt(v + 1e-5) * g[:, None, None]


def _jax_attention(j: Any, q: Any, k: Any, v: Any) -> Any:
    return j.nn.softmax(q @ k.swapaxes(1, 2) * q.shape[-1] ** -0.5, -1) @ v


CASES = (
    Case(
        "gradient of a softmax",
        """op f(dy: f32[R, C], p: f32[R, C]) -> (dx: f32[R, C]) where C >= 1 {
          s[r] = sum[c](dy[r, c] * p[r, c])
          dx[r, c] = p[r, c] * (dy[r, c] - s[r])
        }""",
        lambda d: (d(3000, 384), d.unit(3000, 384)),
        lambda t, f, dy, p: p * (dy - (dy * p).sum(-1, keepdim=True)),
        lambda j, n, dy, p: p * (dy - (dy * p).sum(-1, keepdims=True)),
    ),
    Case(
        "gradient of an RMS norm",
        """op f(dy: f32[T, H], x: f32[T, H], g: f32[H]) -> (dx: f32[T, H], dg: f32[H]) where H >= 1, T >= 1 {
          r[t] = rsqrt(mean[h](x[t, h] ** 2) + 1e-6)
          s[t] = mean[h](dy[t, h] * g[h] * x[t, h]) * r[t] ** 3
          dx[t, h] = dy[t, h] * g[h] * r[t] - x[t, h] * s[t]
          dg[h] = sum[t](dy[t, h] * x[t, h] * r[t])
        }""",
        lambda d: (d(1024, 768), d(1024, 768), d(768)),
        lambda t, f, dy, x, g: _gradients(t, lambda x, g: _torch_rms(t, x, g), dy, x, g),
        lambda j, n, dy, x, g: _jax_gradients(j, lambda x, g: _jax_rms(j, n, x, g), dy, x, g),
    ),
    Case(
        "gradient of an RMS norm, one dot of a row",
        """op f(dy: f32[T, H], x: f32[T, H], w: f32[H]) -> (dx: f32[T, H], dw: f32[H]) where H >= 1 {
          rs[t] = rsqrt(sum[h](x[t, h] ** 2) / H + 1e-6)
          g[t, h] = dy[t, h] * w[h]
          d[t] = sum[h](g[t, h] * x[t, h]) / H
          dx[t, h] = rs[t] * g[t, h] - x[t, h] * rs[t] ** 3 * d[t]
          dw[h] = sum[t](dy[t, h] * x[t, h] * rs[t])
        }""",
        lambda d: (d(4000, 1024), d(4000, 1024), d(1024)),
        lambda t, f, dy, x, w: _gradients(t, lambda x, w: _torch_rms(t, x, w), dy, x, w),
        lambda j, n, dy, x, w: _jax_gradients(j, lambda x, w: _jax_rms(j, n, x, w), dy, x, w),
    ),
    Case(
        "gradient of SwiGLU",
        """op f(dy: f32[T, H], a: f32[T, H], b: f32[T, H]) -> (da: f32[T, H], db: f32[T, H]) {
          s[t, h] = sigmoid(a[t, h])
          da[t, h] = dy[t, h] * b[t, h] * s[t, h] * (1.0 + a[t, h] * (1.0 - s[t, h]))
          db[t, h] = dy[t, h] * a[t, h] * s[t, h]
        }""",
        lambda d: (d(512, 2048), d(512, 2048), d(512, 2048)),
        lambda t, f, dy, a, b: _gradients(t, lambda a, b: _torch_swiglu(f, a, b), dy, a, b),
        lambda j, n, dy, a, b: _jax_gradients(j, lambda a, b: j.nn.silu(a) * b, dy, a, b),
    ),
    Case(
        "gradient of a batch norm",
        """op f(dy: f32[N, C, H, W], x: f32[N, C, H, W], g: f32[C])
            -> (dx: f32[N, C, H, W], dg: f32[C]) where N >= 1, H >= 1, W >= 1 {
          m[c] = mean[n, h, w](x[n, c, h, w])
          r[c] = rsqrt(mean[n, h, w]((x[n, c, h, w] - m[c]) ** 2) + 1e-5)
          z[n, c, h, w] = (x[n, c, h, w] - m[c]) * r[c]
          a[c] = mean[n, h, w](dy[n, c, h, w])
          dg[c] = sum[n, h, w](dy[n, c, h, w] * z[n, c, h, w])
          dx[n, c, h, w] = g[c] * r[c] * (dy[n, c, h, w] - a[c] - z[n, c, h, w] * dg[c] / f32(N * H * W))
        }""",
        lambda d: (d(16, 64, 28, 28), d(16, 64, 28, 28), d(64)),
        lambda t, f, dy, x, g: _gradients(t, lambda x, g: _torch_batch_norm(t, x, g), dy, x, g),
        lambda j, n, dy, x, g: _jax_gradients(j, lambda x, g: _jax_batch_norm(j, n, x, g), dy, x, g),
    ),
    Case(
        "gradient of a dense layer",
        "linear_backward",
        lambda d: (d(256, 512), d(256, 512), d(512, 512)),
        lambda t, f, dy, x, w: (dy @ w, dy.T @ x, dy.sum(0)),
        lambda j, n, dy, x, w: (dy @ w, dy.T @ x, dy.sum(0)),
    ),
    Case(
        "gradient of attention",
        """op f(dy: f32[B, S, D], q: f32[B, S, D], k: f32[B, T, D], v: f32[B, T, D])
            -> (dq: f32[B, S, D], dk: f32[B, T, D], dv: f32[B, T, D]) where T >= 1, S >= 1 {
          s[b, i, j] = sum[d](q[b, i, d] * k[b, j, d]) * rsqrt(D)
          p = softmax(s)
          dp[b, i, j] = sum[d](dy[b, i, d] * v[b, j, d])
          e[b, i] = sum[j](dp[b, i, j] * p[b, i, j])
          ds[b, i, j] = p[b, i, j] * (dp[b, i, j] - e[b, i]) * rsqrt(D)
          dq[b, i, d] = sum[j](ds[b, i, j] * k[b, j, d])
          dk[b, j, d] = sum[i](ds[b, i, j] * q[b, i, d])
          dv[b, j, d] = sum[i](p[b, i, j] * dy[b, i, d])
        }""",
        lambda d: (d(24, 128, 64), d(24, 128, 64), d(24, 128, 64), d(24, 128, 64)),
        lambda t, f, dy, q, k, v: _gradients(
            t, lambda q, k, v: t.softmax(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5, -1) @ v, dy, q, k, v
        ),
        lambda j, n, dy, q, k, v: _jax_gradients(j, lambda q, k, v: _jax_attention(j, q, k, v), dy, q, k, v),
    ),
    Case(
        "gradient of an embedding",
        """op f(dy: f32[E, D], token: i64[E]) -> (dw: f32[5000, D]) {
          dw[n, d] = 0.0
          dw[token[e], d] += dy[e, d]
        }""",
        lambda d: (d(4096, 256), d.ints(0, 5000, 4096)),
        lambda t, f, dy, token: t.zeros(5000, 256).index_add_(0, token, dy),
        lambda j, n, dy, token: n.zeros((5000, 256), "f4").at[token].add(dy),
    ),
    Case(
        "gradient of cross entropy",
        """op f(x: f32[B, C], label: i64[B]) -> (dx: f32[B, C]) where C >= 1, B >= 1 {
          p = softmax(x)
          dx[b, c] = (p[b, c] - (1.0 if c == label[b] else 0.0)) / f32(B)
        }""",
        lambda d: (d(512, 5000), d.ints(0, 5000, 512)),
        lambda t, f, x, label: (t.softmax(x, -1) - f.one_hot(label, 5000)) / 512.0,
        lambda j, n, x, label: (j.nn.softmax(x, -1) - j.nn.one_hot(label, 5000)) / 512.0,
    ),
    Case(
        "gradient of a max pool of 2 x 2",
        """op f(dy: f32[N, C, H, W], x: f32[N, C, 2*H, 2*W]) -> (dx: f32[N, C, 2*H, 2*W]) {
          m[n, c, p, q] = max[r in 0..2, s in 0..2](x[n, c, 2*p + r, 2*q + s]) for p in 0..H, q in 0..W
          dx[n, c, h, w] = dy[n, c, h // 2, w // 2] if x[n, c, h, w] == m[n, c, h // 2, w // 2] else 0.0
        }""",
        lambda d: (d(8, 32, 28, 28), d(8, 32, 56, 56)),
        lambda t, f, dy, x: _gradients(t, lambda x: f.max_pool2d(x, 2), dy, x),
        lambda j, n, dy, x: _jax_gradients(
            j, lambda x: j.lax.reduce_window(x, -n.inf, j.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"), dy, x
        )[0],
    ),
    Case(
        "gradient of filters of a convolution",
        """op f(dy: f32[N, K, P, Q], x: f32[N, C, P+2, Q+2]) -> (dw: f32[K, C, 3, 3]) {
          dw[k, c, r, s] = sum[n, p, q](dy[n, k, p, q] * x[n, c, p + r, q + s])
        }""",
        lambda d: (d(4, 32, 28, 28), d(4, 16, 30, 30)),
        lambda t, f, dy, x: t.nn.grad.conv2d_weight(x, (32, 16, 3, 3), dy),
        lambda j, n, dy, x: _jax_gradients(
            j,
            lambda w: j.lax.conv_general_dilated(x, w, (1, 1), "VALID"),
            dy,
            n.zeros((32, 16, 3, 3), "f4"),
        )[0],
    ),
    Case(
        "gradient of images of a convolution",
        """op f(dy: f32[N, K, P, Q], w: f32[K, C, 3, 3]) -> (dx: f32[N, C, P+2, Q+2]) {
          z[n, k, a, b] = dy[n, k, a - 2, b - 2] if 2 <= a < P + 2 and 2 <= b < Q + 2 else
              0.0 for a in 0..P+4, b in 0..Q+4
          dx[n, c, h, v] = sum[k, r in 0..3, s in 0..3](z[n, k, h + 2 - r, v + 2 - s] * w[k, c, r, s])
        }""",
        lambda d: (d(4, 32, 28, 28), d(32, 16, 3, 3)),
        lambda t, f, dy, w: t.nn.grad.conv2d_input((4, 16, 30, 30), w, dy),
        lambda j, n, dy, w: _jax_gradients(
            j,
            lambda x: j.lax.conv_general_dilated(x, w, (1, 1), "VALID"),
            dy,
            n.zeros((4, 16, 30, 30), "f4"),
        )[0],
    ),
)
