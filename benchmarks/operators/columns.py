"""Operators along an axis that is not the last one: columns, channels, groups of channels."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case


def _channels(*shape: int) -> Any:
    """An image with a factor and a term for each channel."""
    return lambda d: (d(*shape), d(shape[1]), d(shape[1]))


def _jax_norm(j: Any, n: Any, x: Any, axes: tuple[int, ...]) -> Any:
    centred = x - x.mean(axes, keepdims=True)
    return centred * j.lax.rsqrt((centred * centred).mean(axes, keepdims=True) + 1e-5)


def _torch_bias(t: Any, f: Any, g: Any) -> Any:
    b = g.sum(0)
    return b, t.linalg.vector_norm(b)


def _jax_bias(j: Any, n: Any, g: Any) -> Any:
    b = g.sum(0)
    return b, n.linalg.norm(b)


def _torch_channel_norm(t: Any, f: Any, x: Any, gamma: Any, beta: Any) -> Any:
    centred = x - x.mean(1, keepdim=True)
    y = centred * t.rsqrt(centred.square().mean(1, keepdim=True) + 1e-5)
    return y * gamma[:, None, None] + beta[:, None, None]


CASES = (
    *(
        Case(
            name,
            "op f(x: f32[T, V]) -> (y: f32[V]) { y[v] = sum[t](x[t, v]) }",
            inputs,
            lambda t, f, x: x.sum(0),
            lambda j, n, x: x.sum(0),
        )
        for name, inputs in (
            ("sums of columns", lambda d: (d(4096, 768),)),
            ("sums of columns, odd", lambda d: (d(1003, 197),)),
            ("sums of few long columns", lambda d: (d(100_000, 10),)),
        )
    ),
    Case(
        "sums of columns of bf16",
        "op f(x: bf16[T, V]) -> (y: f32[V]) { y[v] = sum[t](f32(x[t, v])) }",
        lambda d: (d(4096, 768, dtype="bf16"),),
        lambda t, f, x: x.sum(0, dtype=t.float32),
        lambda j, n, x: x.astype(n.float32).sum(0),
    ),
    Case(
        "mean of the middle axis",
        "op f(x: f32[A, B, C]) -> (y: f32[A, C]) where B >= 1 { y[a, c] = mean[b](x[a, b, c]) }",
        lambda d: (d(64, 512, 128),),
        lambda t, f, x: x.mean(1),
        lambda j, n, x: x.mean(1),
    ),
    Case(
        "softmax of columns",
        """op f(x: f32[T, V]) -> (y: f32[T, V]) where T >= 1 {
          e[t, v] = exp(x[t, v] - max[s](x[s, v]))
          y[t, v] = e[t, v] / sum[s](e[s, v])
        }""",
        lambda d: (d(512, 768),),
        lambda t, f, x: t.softmax(x, 0),
        lambda j, n, x: j.nn.softmax(x, 0),
    ),
    Case(
        "softmax over channels",
        """op f(x: f32[B, C, P]) -> (y: f32[B, C, P]) where C >= 1 {
          e[b, c, p] = exp(x[b, c, p] - max[k](x[b, k, p]))
          y[b, c, p] = e[b, c, p] / sum[k](e[b, k, p])
        }""",
        lambda d: (d(8, 21, 4096),),
        lambda t, f, x: t.softmax(x, 1),
        lambda j, n, x: j.nn.softmax(x, 1),
    ),
    Case(
        "logsumexp of columns",
        """op f(x: f32[T, V]) -> (y: f32[V]) where T >= 1 {
          m[v] = max[t](x[t, v])
          y[v] = m[v] + log(sum[t](exp(x[t, v] - m[v])))
        }""",
        lambda d: (d(2048, 512),),
        lambda t, f, x: t.logsumexp(x, 0),
        lambda j, n, x: j.nn.logsumexp(x, 0),
    ),
    Case(
        "columns less their mean",
        """op f(x: f32[T, V]) -> (y: f32[T, V]) where T >= 1 {
          m[v] = mean[t](x[t, v])
          y[t, v] = x[t, v] - m[v]
        }""",
        lambda d: (d(4096, 768),),
        lambda t, f, x: x - x.mean(0),
        lambda j, n, x: x - x.mean(0),
    ),
    Case(
        "means of columns",
        "op f(x: f32[T, V]) -> (y: f32[V]) where T >= 1 { y[v] = mean[t](x[t, v]) }",
        lambda d: (d(2600, 3072),),
        lambda t, f, x: x.mean(0),
        lambda j, n, x: x.mean(0),
    ),
    Case(
        "gradient of a bias and its norm",
        """op f(g: f32[T, V]) -> (b: f32[V], n: f32) {
          b[v] = sum[t](g[t, v])
          n = sqrt(sum[v](b[v] ** 2))
        }""",
        lambda d: (d(2048, 768),),
        _torch_bias,
        _jax_bias,
    ),
    Case(
        "softmax of means of columns",
        """op f(x: f32[T, V]) -> (p: f32[V]) where T >= 1, V >= 1 {
          m[v] = mean[t](x[t, v])
          p = softmax(m)
        }""",
        lambda d: (d(2048, 768),),
        lambda t, f, x: t.softmax(x.mean(0), 0),
        lambda j, n, x: j.nn.softmax(x.mean(0)),
    ),
    Case(
        "variance of columns",
        """op f(x: f32[T, V]) -> (y: f32[V]) where T >= 1 {
          m[v] = mean[t](x[t, v])
          y[v] = mean[t]((x[t, v] - m[v]) ** 2)
        }""",
        lambda d: (d(4096, 768),),
        lambda t, f, x: x.var(0, correction=0),
        lambda j, n, x: x.var(0),
    ),
    Case(
        "standardised columns",
        """op f(x: f32[T, V]) -> (y: f32[T, V]) where T >= 1 {
          m[v] = mean[t](x[t, v])
          s[v] = mean[t]((x[t, v] - m[v]) ** 2)
          y[t, v] = (x[t, v] - m[v]) * rsqrt(s[v] + 1e-5)
        }""",
        lambda d: (d(3000, 301),),
        lambda t, f, x: (x - x.mean(0)) * t.rsqrt(x.var(0, correction=0) + 1e-5),
        lambda j, n, x: _jax_norm(j, n, x, (0,)),
    ),
    Case(
        "argmax of columns",
        "op f(x: f32[T, V]) -> (y: i64[V]) where T >= 1 { y[v] = argmax[t](x[t, v]) }",
        lambda d: (d(4096, 100),),
        lambda t, f, x: x.argmax(0),
        lambda j, n, x: x.argmax(0),
    ),
    Case(
        "classes of pixels",
        "op f(x: f32[B, C, P]) -> (y: i64[B, P]) where C >= 1 { y[b, p] = argmax[c](x[b, c, p]) }",
        lambda d: (d(8, 21, 4096),),
        lambda t, f, x: x.argmax(1),
        lambda j, n, x: x.argmax(1),
    ),
    Case(
        "layer norm over channels",
        """op f(x: f32[N, C, H, W], gamma: f32[C], beta: f32[C]) -> (y: f32[N, C, H, W]) where C >= 1 {
          m[n, h, w] = mean[c](x[n, c, h, w])
          v[n, h, w] = mean[c]((x[n, c, h, w] - m[n, h, w]) ** 2)
          y[n, c, h, w] = (x[n, c, h, w] - m[n, h, w]) * rsqrt(v[n, h, w] + 1e-5) * gamma[c] + beta[c]
        }""",
        _channels(4, 96, 56, 56),
        _torch_channel_norm,
        lambda j, n, x, a, b: _jax_norm(j, n, x, (1,)) * a[:, None, None] + b[:, None, None],
    ),
    Case(
        "instance norm",
        "instance_norm",
        _channels(16, 64, 28, 28),
        lambda t, f, x, gamma, beta: f.instance_norm(x, weight=gamma, bias=beta),
        lambda j, n, x, a, b: _jax_norm(j, n, x, (2, 3)) * a[:, None, None] + b[:, None, None],
    ),
    Case(
        "group norm",
        """op f(x: f32[N, C, H, W], gamma: f32[C], beta: f32[C]) -> (y: f32[N, C, H, W])
            where C >= 8, C % 8 == 0 {
          y = group_norm(x, gamma, beta, G=8)
        }""",
        lambda d: (d(32, 64, 28, 28), d(64), d(64)),
        lambda t, f, x, gamma, beta: f.group_norm(x, 8, gamma, beta),
        lambda j, n, x, a, b: (
            _jax_norm(j, n, x.reshape(32, 8, 8, 784), (2, 3)) * a.reshape(8, 8, 1) + b.reshape(8, 8, 1)
        ).reshape(x.shape),
    ),
    Case(
        "group norm, silu",
        """op f(x: f32[N, C, H, W], gamma: f32[C], beta: f32[C]) -> (y: f32[N, C, H, W])
            where C >= 32, C % 32 == 0 {
          z = group_norm(x, gamma, beta, G=32)
          y = silu(z)
        }""",
        lambda d: (d(4, 128, 32, 32), d(128), d(128)),
        lambda t, f, x, gamma, beta: f.silu(f.group_norm(x, 32, gamma, beta)),
        lambda j, n, x, a, b: j.nn.silu(
            _jax_norm(j, n, x.reshape(4, 32, 4, 1024), (2, 3)) * a.reshape(32, 4, 1) + b.reshape(32, 4, 1)
        ).reshape(x.shape),
    ),
    Case(
        "group norm, channels last",
        """op f(x: f32[N, H, W, G*K], gamma: f32[G, K], beta: f32[G, K]) -> (y: f32[N, H, W, G*K]) {
          m[n, g] = mean[h, w, k in 0..K](x[n, h, w, g*K + k]) for g in 0..G
          v[n, g] = mean[h, w, k in 0..K]((x[n, h, w, g*K + k] - m[n, g]) ** 2) for g in 0..G
          y[n, h, w, c] = (x[n, h, w, c] - m[n, c // K]) * rsqrt(v[n, c // K] + 1e-5)
              * gamma[c // K, c % K] + beta[c // K, c % K]
        }""",
        lambda d: (d(2, 64, 64, 320), d(32, 10), d(32, 10)),
        lambda t, f, x, gamma, beta: f.group_norm(
            x.permute(0, 3, 1, 2), 32, gamma.view(-1), beta.view(-1)
        ).permute(0, 2, 3, 1),
        lambda j, n, x, a, b: (_jax_norm(j, n, x.reshape(2, 4096, 32, 10), (1, 3)) * a + b).reshape(x.shape),
    ),
    Case(
        "statistics of a batch",
        """op f(x: f32[N, C, H, W]) -> (m: f32[C], v: f32[C]) where N >= 1, H >= 1, W >= 1 {
          a[c] = mean[n, h, w](x[n, c, h, w])
          v[c] = mean[n, h, w]((x[n, c, h, w] - a[c]) ** 2)
          m[c] = a[c]
        }""",
        lambda d: (d(32, 64, 28, 28),),
        lambda t, f, x: (x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)),
        lambda j, n, x: (x.mean((0, 2, 3)), x.var((0, 2, 3))),
    ),
    Case(
        "batch norm, relu",
        """op f(x: f32[N, C, H, W], gamma: f32[C], beta: f32[C], mean: f32[C], var: f32[C])
            -> (y: f32[N, C, H, W]) {
          z = batch_norm_inference(x, gamma, beta, mean, var)
          y = relu(z)
        }""",
        lambda d: (d(16, 64, 28, 28), d(64), d(64), d(64), d.unit(64)),
        lambda t, f, x, gamma, beta, mean, var: f.relu(f.batch_norm(x, mean, var, gamma, beta)),
        lambda j, n, x, gamma, beta, mean, var: j.nn.relu(
            (x - mean[:, None, None]) * (gamma * j.lax.rsqrt(var + 1e-5))[:, None, None] + beta[:, None, None]
        ),
    ),
)
