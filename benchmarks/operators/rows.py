"""Operators along the last axis: normalisations, softmax and its kin, reductions of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operators.case import Case, Draw


def _norm(*shape: int, dtype: str = "f32") -> Any:
    """Arguments of a layer normalisation."""
    return lambda d: (d(*shape, dtype=dtype), d(shape[-1], dtype=dtype), d(shape[-1], dtype=dtype))


def _rows(*shape: int, dtype: str = "f32") -> Any:
    return lambda d: (d(*shape, dtype=dtype),)


def _layer_norm(j: Any, n: Any, x: Any, gamma: Any, beta: Any) -> Any:
    wide = x.astype(n.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    r = j.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return (centred * r * gamma.astype(n.float32) + beta.astype(n.float32)).astype(x.dtype)


def _rms_norm(j: Any, n: Any, x: Any, gamma: Any) -> Any:
    wide = x.astype(n.float32)
    r = j.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return (wide * r * gamma.astype(n.float32)).astype(x.dtype)


NORMS = tuple(
    Case(
        name,
        "layer_norm",
        inputs,
        lambda t, f, x, gamma, beta: f.layer_norm(x, x.shape[-1:], gamma, beta),
        _layer_norm,
    )
    for name, inputs in (
        ("layer norm of rows of 100", _norm(10000, 100)),
        ("layer norm of rows of 64", _norm(20000, 64)),
        ("layer norm, odd", _norm(197, 771)),
        ("layer norm in L2", _norm(64, 768)),
        ("layer norm of bf16", _norm(4096, 768, dtype="bf16")),
    )
) + tuple(
    Case(
        name,
        "rms_norm",
        lambda d, dtype=dtype: (d(2048, 1024, dtype=dtype), d(1024, dtype=dtype)),
        lambda t, f, x, gamma: f.rms_norm(x, x.shape[-1:], gamma, 1e-6),
        _rms_norm,
    )
    for name, dtype in (("RMS norm", "f32"), ("RMS norm of f16", "f16"))
)
SOFTMAX = tuple(
    Case(
        name,
        "softmax",
        inputs,
        lambda t, f, x: t.softmax(x, -1),
        lambda j, n, x: j.nn.softmax(x, -1),
    )
    for name, inputs in (
        ("softmax, odd", _rows(1000, 771)),
        ("softmax of rows of 10", _rows(20000, 10)),
        ("softmax of f16", _rows(4096, 768, dtype="f16")),
    )
)


def _quantised(d: Draw) -> tuple[Any, ...]:
    return (d(2048, 1000),)


def _distinct(d: Draw) -> tuple[Any, ...]:
    """Rows in which no number stands twice."""
    order = np.argsort(d(64, 5000), axis=1)
    return ((order / 1000 - 2.5).astype("f4"),)


def _torch_quantised(t: Any, f: Any, x: Any) -> Any:
    s = x.abs().amax(1) / 127
    return (x / s[:, None]).round().clamp(-127, 127).to(t.int8), s


def _jax_quantised(j: Any, n: Any, x: Any) -> Any:
    s = abs(x).max(1) / 127
    return n.clip(n.round(x / s[:, None]), -127, 127).astype(n.int8), s


def _torch_gate(t: Any, f: Any, x: Any) -> Any:
    best = t.softmax(x, 1).max(1)
    return best.values, best.indices


OTHERS = (
    Case(
        "softmax with gumbel noise",
        """op f(x: f32[T, V], u: f32[T, V], scale: f32 = 2.0) -> (y: f32[T, V]) {
          z[t, v] = (x[t, v] - log(-log(u[t, v]))) * scale
          y = softmax(z)
        }""",
        lambda d: (d(512, 1000), d.unit(512, 1000)),
        lambda t, f, x, u: t.softmax((x - t.log(-t.log(u))) * 2, 1),
        lambda j, n, x, u: j.nn.softmax((x - n.log(-n.log(u))) * 2, 1),
    ),
    Case(
        "log softmax of rows of 100",
        "log_softmax",
        _rows(10000, 100),
        lambda t, f, x: t.log_softmax(x, 1),
        lambda j, n, x: j.nn.log_softmax(x, 1),
    ),
    Case(
        "logsumexp",
        """op f(x: f32[T, V]) -> (y: f32[T]) where V >= 1 {
          m[t] = max[v](x[t, v])
          y[t] = m[t] + log(sum[v](exp(x[t, v] - m[t])))
        }""",
        _rows(4096, 768),
        lambda t, f, x: t.logsumexp(x, 1),
        lambda j, n, x: j.nn.logsumexp(x, 1),
    ),
    Case(
        "rows of length one",
        "l2_normalize",
        _rows(8192, 128),
        lambda t, f, x: f.normalize(x, dim=1, eps=1e-6),
        lambda j, n, x: x / n.maximum(n.linalg.norm(x, axis=1, keepdims=True), 1e-6),
    ),
    Case(
        "cosine similarity",
        """op f(x: f32[T, V], y: f32[T, V]) -> (c: f32[T]) {
          c[t] = sum[v](x[t, v] * y[t, v]) * rsqrt(sum[v](x[t, v] ** 2) * sum[v](y[t, v] ** 2))
        }""",
        lambda d: (d(4096, 768), d(4096, 768)),
        lambda t, f, x, y: f.cosine_similarity(x, y),
        lambda j, n, x, y: (x * y).sum(1) * j.lax.rsqrt((x * x).sum(1) * (y * y).sum(1)),
    ),
    Case(
        "rows scaled to 0..1",
        """op f(x: f32[T, V]) -> (y: f32[T, V]) where V >= 1 {
          a[t] = min[v](x[t, v])
          b[t] = max[v](x[t, v])
          y[t, v] = (x[t, v] - a[t]) / (b[t] - a[t])
        }""",
        _rows(4096, 768),
        lambda t, f, x: (x - x.amin(1, True)) / (x.amax(1, True) - x.amin(1, True)),
        lambda j, n, x: (x - x.min(1, keepdims=True)) / (x.max(1, keepdims=True) - x.min(1, keepdims=True)),
    ),
    Case(
        "variance",
        """op f(x: f32[T, V]) -> (y: f32[T]) where V >= 1 {
          m[t] = mean[v](x[t, v])
          y[t] = mean[v]((x[t, v] - m[t]) ** 2)
        }""",
        _rows(4096, 768),
        lambda t, f, x: x.var(1, correction=0),
        lambda j, n, x: x.var(1),
    ),
    Case(
        "range of long rows",
        """op f(x: f32[T, V]) -> (y: f32[T]) where V >= 1 {
          y[t] = max[v](x[t, v]) - min[v](x[t, v])
        }""",
        _rows(200, 30522),
        lambda t, f, x: x.amax(1) - x.amin(1),
        lambda j, n, x: x.max(1) - x.min(1),
    ),
    *(
        Case(
            f"argmax of {name} rows",
            "op f(x: f32[T, V]) -> (y: i64[T]) where V >= 1 { y[t] = argmax[v](x[t, v]) }",
            inputs,
            lambda t, f, x: x.argmax(1),
            lambda j, n, x: x.argmax(1),
        )
        for name, inputs in (("long", _rows(200, 30522)), ("short", _rows(4096, 100)))
    ),
    Case(
        "the eight greatest of rows by repeated maxima",
        """op f(x: f32[T, V]) -> (y: f32[T, 8]) where V >= 8 {
          y[t, 0] = max[v](x[t, v])
          y[t, k] = max[v](x[t, v] if x[t, v] < y[t, k-1] else -inf) for t in 0..T, k in 1..8
        }""",
        _distinct,
        lambda t, f, x: t.topk(x, 8, 1).values,
        lambda j, n, x: j.lax.top_k(x, 8)[0],
    ),
    Case(
        "sums of rows of i32",
        "op f(x: i32[T, V]) -> (y: i32[T]) { y[t] = sum[v](x[t, v]) }",
        lambda d: (d.ints(-99, 99, 4096, 768, dtype="i32"),),
        lambda t, f, x: x.sum(1, dtype=t.int32),
        lambda j, n, x: x.sum(1),
    ),
    Case(
        "equal elements of i32",
        "op f(x: i32[T, V], y: i32[T, V]) -> (n: i64[T]) { n[t] = sum[v](1 if x[t, v] == y[t, v] else 0) }",
        lambda d: (d.ints(0, 5, 4096, 768, dtype="i32"), d.ints(0, 5, 4096, 768, dtype="i32")),
        lambda t, f, x, y: (x == y).sum(1),
        lambda j, n, x, y: (x == y).sum(1),
    ),
    Case(
        "norm of everything",
        "op f(x: f32[T, V]) -> (y: f32) { y = sqrt(sum[t, v](x[t, v] ** 2)) }",
        _rows(4096, 768),
        lambda t, f, x: t.linalg.vector_norm(x),
        lambda j, n, x: n.linalg.norm(x),
    ),
    Case(
        "rows quantised to i8",
        """op f(x: f32[T, V]) -> (q: i8[T, V], s: f32[T]) where V >= 1 {
          a[t] = max[v](abs(x[t, v])) / 127.0
          q[t, v] = i8(min(max(round(x[t, v] / a[t]), -127.0), 127.0))
          s[t] = a[t]
        }""",
        _quantised,
        _torch_quantised,
        _jax_quantised,
        tolerance=0.008,  # one step of 127, where a quotient ends in a half
    ),
    Case(
        "gate of the best of 8 experts",
        """op f(x: f32[T, E]) -> (p: f32[T], e: i64[T]) where E >= 1 {
          y = softmax(x)
          p[t] = max[k](y[t, k])
          e[t] = argmax[k](y[t, k])
        }""",
        _rows(16384, 8),
        _torch_gate,
        lambda j, n, x: (j.nn.softmax(x, 1).max(1), x.argmax(1)),
    ),
    Case(
        "mean over time under a mask",
        """op f(x: f32[B, T, D], keep: bool[B, T]) -> (y: f32[B, D]) {
          n[b] = sum[t](1.0 if keep[b, t] else 0.0)
          y[b, d] = sum[t](x[b, t, d] if keep[b, t] else 0.0) / max(n[b], 1.0)
        }""",
        lambda d: (d(32, 128, 768), d.coins(32, 128)),
        lambda t, f, x, keep: (x * keep[:, :, None]).sum(1) / keep.sum(1).clamp(min=1)[:, None],
        lambda j, n, x, keep: (x * keep[:, :, None]).sum(1) / n.maximum(keep.sum(1), 1)[:, None],
    ),
)
CASES = (*NORMS, *SOFTMAX, *OTHERS)
