"""Functions of single elements: activations, gates, positions, conversions."""

from __future__ import annotations

from benchmarks.operators.case import Case

CASES = (
    Case(
        "softplus",
        "softplus",
        lambda d: (d(1024, 3072),),
        lambda t, f, x: f.softplus(x),
        lambda j, n, x: j.nn.softplus(x),
    ),
    Case(
        "silu in L2",
        "silu",
        lambda d: (d(64, 1000),),
        lambda t, f, x: f.silu(x),
        lambda j, n, x: j.nn.silu(x),
    ),
    Case(
        "hard swish",
        """op f(x: f32[B, C]) -> (y: f32[B, C]) {
          y[b, c] = x[b, c] * min(max(x[b, c] + 3.0, 0.0), 6.0) / 6.0
        }""",
        lambda d: (d(197, 7710),),
        lambda t, f, x: f.hardswish(x),
        lambda j, n, x: j.nn.hard_swish(x),
    ),
    Case(
        "mish",
        """op f(x: f32[B, C]) -> (y: f32[B, C]) {
          s = softplus(x)
          y[b, c] = x[b, c] * tanh(s[b, c])
        }""",
        lambda d: (d(1024, 1024),),
        lambda t, f, x: f.mish(x),
        lambda j, n, x: j.nn.mish(x),
    ),
    Case(
        "elu",
        "elu",
        lambda d: (d(1000, 1000),),
        lambda t, f, x: f.elu(x),
        lambda j, n, x: j.nn.elu(x),
    ),
    Case(
        "selu",
        """op f(x: f32[B, C]) -> (y: f32[B, C]) {
          s[b, c] = x[b, c] if x[b, c] > 0.0 else 1.6732632 * (exp(x[b, c]) - 1.0)
          y[b, c] = 1.050701 * s[b, c]
        }""",
        lambda d: (d(1000, 1000),),
        lambda t, f, x: f.selu(x),
        lambda j, n, x: j.nn.selu(x),
    ),
    Case(
        "relu squared in L2",
        "op f(x: f32[B, C]) -> (y: f32[B, C]) { y[b, c] = max(x[b, c], 0.0) ** 2 }",
        lambda d: (d(250, 251),),
        lambda t, f, x: f.relu(x).square(),
        lambda j, n, x: n.square(j.nn.relu(x)),
    ),
    Case(
        "gelu of f16",
        "gelu",
        lambda d: (d(1024, 3072, dtype="f16"),),
        lambda t, f, x: f.gelu(x),
        lambda j, n, x: j.nn.gelu(x, approximate=False),
    ),
    Case(
        "gelu by tanh of bf16",
        "gelu_tanh",
        lambda d: (d(1024, 3072, dtype="bf16"),),
        lambda t, f, x: f.gelu(x, approximate="tanh"),
        lambda j, n, x: j.nn.gelu(x, approximate=True),
    ),
    Case(
        "sigmoid of f64",
        "op f(x: f64[N]) -> (y: f64[N]) { y[i] = sigmoid(x[i]) }",
        lambda d: (d(1_000_000, dtype="f64"),),
        lambda t, f, x: t.sigmoid(x),
        lambda j, n, x: j.nn.sigmoid(x),
    ),
    Case(
        "GEGLU",
        """op f(x: f32[T, 2*H]) -> (y: f32[T, H]) {
          b[t, h] = x[t, h + H] for h in 0..H
          g = gelu(b)
          y[t, h] = x[t, h] * g[t, h] for h in 0..H
        }""",
        lambda d: (d(1024, 2730),),
        lambda t, f, x: x.chunk(2, -1)[0] * f.gelu(x.chunk(2, -1)[1]),
        lambda j, n, x: n.split(x, 2, -1)[0] * j.nn.gelu(n.split(x, 2, -1)[1], approximate=False),
    ),
    Case(
        "tanh of an outer sum",
        "op f(x: f32[N], y: f32[M]) -> (z: f32[N, M]) { z[i, j] = tanh(x[i] + y[j]) }",
        lambda d: (d(2048), d(2048)),
        lambda t, f, x, y: t.tanh(x[:, None] + y),
        lambda j, n, x, y: n.tanh(x[:, None] + y),
    ),
    Case(
        "sinusoidal positions",
        """op f(x: f32[B, T, D]) -> (y: f32[B, T, D]) {
          angle[t, d] = t * exp(-9.210340372 * (d - d % 2) / f32(D)) for t in 0..T, d in 0..D
          y[b, t, d] = x[b, t, d] + (sin(angle[t, d]) if d % 2 == 0 else cos(angle[t, d]))
        }""",
        lambda d: (d(4, 200, 512),),
        lambda t, f, x: x + _positions(t, x),
        lambda j, n, x: x + _positions(n, x),
    ),
    Case(
        "causal mask",
        "op f(x: f32[B, S, T]) -> (y: f32[B, S, T]) { y[b, s, t] = x[b, s, t] if t <= s else -1e9 }",
        lambda d: (d(96, 128, 128),),
        lambda t, f, x: x.masked_fill(t.ones(x.shape[1:], dtype=t.bool).triu(1), -1e9),
        lambda j, n, x: n.where(n.tri(*x.shape[1:], dtype=bool), x, -1e9),
    ),
    Case(
        "bias, residual, f16",
        """op f(x: f16[T, H], b: f16[H], r: f16[T, H]) -> (y: f16[T, H]) {
          y[t, h] = x[t, h] + b[h] + r[t, h]
        }""",
        lambda d: (d(2000, 1000, dtype="f16"), d(1000, dtype="f16"), d(2000, 1000, dtype="f16")),
        lambda t, f, x, b, r: x + b + r,
        lambda j, n, x, b, r: x + b + r,
    ),
    Case(
        "scale, shift and clip to u8",
        """op f(x: f32[B, C], a: f32[C], b: f32[C]) -> (y: u8[B, C]) {
          y[b0, c] = u8(min(max(round(x[b0, c] * a[c] + b[c]), 0.0), 255.0))
        }""",
        lambda d: (100 * d(1000, 771), 1 + d.unit(771), d(771)),
        lambda t, f, x, a, b: (x * a + b).round().clamp(0, 255).to(t.uint8),
        lambda j, n, x, a, b: n.clip(n.round(x * a + b), 0, 255).astype(n.uint8),
        tolerance=0.004,  # one step of 255, where a sum ends in a half
    ),
    Case(
        "dequantised rows of i8 in groups",
        "op f(q: i8[N, 32*G], s: f32[N, G]) -> (y: f32[N, 32*G]) { y[i, j] = f32(q[i, j]) * s[i, j // 32] }",
        lambda d: (d.ints(-128, 128, 1024, 4096, dtype="i8"), d(1024, 128)),
        lambda t, f, q, s: (q.view(1024, 128, 32) * s[:, :, None]).view(1024, 4096),
        lambda j, n, q, s: (q.reshape(1024, 128, 32) * s[:, :, None]).reshape(1024, 4096),
    ),
    Case(
        "unpacked and dequantised nibbles",
        """op f(q: u8[N, 16*G], s: f32[N, G]) -> (y: f32[N, 32*G]) {
          k[i, j] = i32(q[i, j // 2]) for j in 0..32*G
          y[i, j] = f32((k[i, j] % 16 if j % 2 == 0 else k[i, j] // 16) - 8) * s[i, j // 32]
        }""",
        lambda d: (d.ints(0, 256, 1024, 2048, dtype="u8"), d(1024, 128)),
        lambda t, f, q, s: (
            (t.stack((q & 15, q >> 4), -1).view(1024, 128, 32).to(t.float32) - 8) * s[:, :, None]
        ).view(1024, 4096),
        lambda j, n, q, s: (
            (n.stack((q & 15, q >> 4), -1).reshape(1024, 128, 32).astype(n.float32) - 8) * s[:, :, None]
        ).reshape(1024, 4096),
    ),
)


def _positions(n, x):  # type: ignore[no-untyped-def]
    """[T, D], in PyTorch or JAX."""
    time, columns = n.arange(x.shape[1]), n.arange(x.shape[2])
    angle = time[:, None] * n.exp(-9.210340372 * (columns - columns % 2) / x.shape[2])
    return n.where(columns % 2 == 0, n.sin(angle), n.cos(angle))
