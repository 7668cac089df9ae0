"""Operators that move elements: transposes, windows, pieces, other layouts, little or no arithmetic."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case


def _rotated(n: Any, x: Any, c: Any, s: Any) -> Any:
    """Neighbours of the last axis as real and imaginary parts, in PyTorch or JAX."""
    a, b = x[..., 0::2], x[..., 1::2]
    return n.stack((a * c - b * s, a * s + b * c), -1).reshape(x.shape)


def _interleaved_angles(d: Any) -> tuple[Any, ...]:
    return d(2, 16, 256, 64), d.unit(256, 32), d.unit(256, 32)


def _torch_heads(t: Any, f: Any, x: Any) -> Any:
    q, k, v = x.view(4, 128, 3, 12, 64).permute(2, 0, 3, 1, 4)
    return (q * 0.125).contiguous(), k.contiguous(), v.contiguous()


def _jax_heads(j: Any, n: Any, x: Any) -> Any:
    q, k, v = n.transpose(x.reshape(4, 128, 3, 12, 64), (2, 0, 3, 1, 4))
    return q * 0.125, k, v


LAYOUTS = (
    Case(
        "transpose",
        "transpose",
        lambda d: (d(8, 512, 768),),
        lambda t, f, x: x.transpose(1, 2).contiguous(),
        lambda j, n, x: n.swapaxes(x, 1, 2),
    ),
    Case(
        "transpose, odd, of i8",
        "op f(x: i8[M, N]) -> (y: i8[N, M]) { y[j, i] = x[i, j] }",
        lambda d: (d.ints(-99, 99, 1970, 771, dtype="i8"),),
        lambda t, f, x: x.T.contiguous(),
        lambda j, n, x: x.T,
    ),
    Case(
        "sum with a transpose",
        "op f(x: f32[T, V], y: f32[V, T]) -> (z: f32[T, V]) { z[t, v] = x[t, v] + y[v, t] }",
        lambda d: (d(1500, 1500), d(1500, 1500)),
        lambda t, f, x, y: x + y.T,
        lambda j, n, x, y: x + y.T,
    ),
    Case(
        "NCHW to NHWC",
        "op f(x: f32[N, C, H, W]) -> (y: f32[N, H, W, C]) { y[n, h, w, c] = x[n, c, h, w] }",
        lambda d: (d(32, 64, 28, 28),),
        lambda t, f, x: x.permute(0, 2, 3, 1).contiguous(),
        lambda j, n, x: n.transpose(x, (0, 2, 3, 1)),
    ),
    Case(
        "bytes of images to normalised planes",
        """op f(x: u8[N, H, W, C], mean: f32[C], scale: f32[C]) -> (y: f32[N, C, H, W]) {
          y[n, c, h, w] = (f32(x[n, h, w, c]) - mean[c]) * scale[c]
        }""",
        lambda d: (d.ints(0, 256, 8, 224, 224, 3, dtype="u8"), d(3), d.unit(3)),
        lambda t, f, x, mean, scale: ((x.to(t.float32) - mean) * scale).permute(0, 3, 1, 2).contiguous(),
        lambda j, n, x, mean, scale: n.transpose((x.astype(n.float32) - mean) * scale, (0, 3, 1, 2)),
    ),
    Case(
        "split into heads, queries scaled",
        """op f(x: f32[N, S, 3, H, D]) -> (q: f32[N, H, S, D], k: f32[N, H, S, D], v: f32[N, H, S, D]) {
          q[n, h, s, d] = x[n, s, 0, h, d] * 0.125
          k[n, h, s, d] = x[n, s, 1, h, d]
          v[n, h, s, d] = x[n, s, 2, h, d]
        }""",
        lambda d: (d(4, 128, 3, 12, 64),),
        _torch_heads,
        _jax_heads,
    ),
    Case(
        "pixel shuffle",
        """op f(x: f32[N, 4*C, H, W]) -> (y: f32[N, C, 2*H, 2*W]) {
          y[n, c, i, j] = x[n, 4*c + 2*(i % 2) + j % 2, i // 2, j // 2]
        }""",
        lambda d: (d(8, 64, 56, 56),),
        lambda t, f, x: f.pixel_shuffle(x, 2),
        lambda j, n, x: n.transpose(x.reshape(8, 16, 2, 2, 56, 56), (0, 1, 4, 2, 5, 3)).reshape(
            8, 16, 112, 112
        ),
    ),
    Case(
        "pixel unshuffle",
        """op f(x: f32[N, C, 2*H, 2*W]) -> (y: f32[N, 4*C, H, W]) {
          y[n, k, i, j] = x[n, k // 4, 2*i + k // 2 % 2, 2*j + k % 2]
        }""",
        lambda d: (d(8, 16, 112, 112),),
        lambda t, f, x: f.pixel_unshuffle(x, 2),
        lambda j, n, x: n.transpose(x.reshape(8, 16, 56, 2, 56, 2), (0, 1, 3, 5, 2, 4)).reshape(
            8, 64, 56, 56
        ),
    ),
    Case(
        "windows of 7 x 7",
        """op f(x: f32[N, 7*H, 7*W, C]) -> (y: f32[N, H, W, 7, 7, C]) {
          y[n, h, w, a, b, c] = x[n, 7*h + a, 7*w + b, c]
        }""",
        lambda d: (d(4, 56, 56, 96),),
        lambda t, f, x: x.view(4, 8, 7, 8, 7, 96).transpose(2, 3).contiguous(),
        lambda j, n, x: n.swapaxes(x.reshape(4, 8, 7, 8, 7, 96), 2, 3),
    ),
    Case(
        "patches of 16 x 16",
        """op f(x: f32[N, C, 16*H, 16*W]) -> (y: f32[N, H, W, 256*C]) {
          y[n, h, w, k] = x[n, k // 256, 16*h + k // 16 % 16, 16*w + k % 16]
        }""",
        lambda d: (d(8, 3, 224, 224),),
        lambda t, f, x: (
            x.view(8, 3, 14, 16, 14, 16).permute(0, 2, 4, 1, 3, 5).contiguous().view(8, 14, 14, 768)
        ),
        lambda j, n, x: n.transpose(x.reshape(8, 3, 14, 16, 14, 16), (0, 2, 4, 1, 3, 5)).reshape(
            8, 14, 14, 768
        ),
    ),
    Case(
        "channel shuffle",
        """op f(x: f32[N, 4*K, H, W]) -> (y: f32[N, 4*K, H, W]) where K >= 1 {
          y[n, c, h, w] = x[n, c % 4 * K + c // 4, h, w]
        }""",
        lambda d: (d(16, 64, 28, 28),),
        lambda t, f, x: f.channel_shuffle(x, 4),
        lambda j, n, x: n.swapaxes(x.reshape(16, 4, 16, 28, 28), 1, 2).reshape(x.shape),
    ),
)
PIECES = (
    Case(
        "nearest neighbours, twice as large",
        "op f(x: f32[N, C, H, W]) -> (y: f32[N, C, 2*H, 2*W]) { y[n, c, i, j] = x[n, c, i // 2, j // 2] }",
        lambda d: (d(32, 64, 28, 28),),
        lambda t, f, x: f.interpolate(x, scale_factor=2),
        lambda j, n, x: n.repeat(n.repeat(x, 2, 2), 2, 3),
    ),
    Case(
        "roll of images",
        """op f(x: f32[N, H, W, C]) -> (y: f32[N, H, W, C]) where H >= 4, W >= 4 {
          y[n, h, w, c] = x[n, (h + 3) % H, (w + 3) % W, c]
        }""",
        lambda d: (d(4, 56, 56, 96),),
        lambda t, f, x: t.roll(x, (-3, -3), (1, 2)),
        lambda j, n, x: n.roll(x, (-3, -3), (1, 2)),
    ),
    Case(
        "roll of rows",
        """op f(x: f32[T, H]) -> (y: f32[T, H]) where H >= 8 {
          y[t, h] = x[t, h - 5] for h in 5..H
          y[t, h] = x[t, H - 5 + h] for h in 0..5
        }""",
        lambda d: (d(1970, 771),),
        lambda t, f, x: t.roll(x, 5, 1),
        lambda j, n, x: n.roll(x, 5, 1),
    ),
    Case(
        "concatenated rows",
        """op f(a: f32[T, N], b: f32[T, M]) -> (y: f32[T, N + M]) {
          y[t, i] = a[t, i] for i in 0..N
          y[t, i] = b[t, i - N] for i in N..N+M
        }""",
        lambda d: (d(2000, 500), d(2000, 771)),
        lambda t, f, a, b: t.cat((a, b), 1),
        lambda j, n, a, b: n.concatenate((a, b), 1),
    ),
    Case(
        "concatenated short rows",
        """op f(a: f32[T, N], b: f32[T, M]) -> (y: f32[T, N + M]) {
          y[t, i] = a[t, i] for i in 0..N
          y[t, i] = b[t, i - N] for i in N..N+M
        }""",
        lambda d: (d(50_000, 13), d(50_000, 20)),
        lambda t, f, a, b: t.cat((a, b), 1),
        lambda j, n, a, b: n.concatenate((a, b), 1),
    ),
    Case(
        "elements repeated four times",
        "op f(x: f32[T, H]) -> (y: f32[T, 4*H]) { y[t, h] = x[t, h // 4] }",
        lambda d: (d(2000, 250),),
        lambda t, f, x: x.repeat_interleave(4, 1),
        lambda j, n, x: n.repeat(x, 4, 1),
    ),
    Case(
        "keys repeated for groups of heads",
        "op f(x: f32[B, H, S, D]) -> (y: f32[B, 4*H, S, D]) { y[b, h, s, d] = x[b, h // 4, s, d] }",
        lambda d: (d(2, 8, 256, 64),),
        lambda t, f, x: x.repeat_interleave(4, 1),
        lambda j, n, x: n.repeat(x, 4, 1),
    ),
    Case(
        "rotary positions of neighbours",
        """op f(x: f32[B, H, S, 2*D], c: f32[S, D], s: f32[S, D]) -> (y: f32[B, H, S, 2*D]) {
          y[b, h, t, i] = x[b, h, t, i] * c[t, i // 2] - x[b, h, t, i + 1] * s[t, i // 2] if i % 2 == 0 else
              x[b, h, t, i - 1] * s[t, i // 2] + x[b, h, t, i] * c[t, i // 2]  for i in 0..2*D
        }""",
        _interleaved_angles,
        lambda t, f, x, c, s: _rotated(t, x, c, s),
        lambda j, n, x, c, s: _rotated(n, x, c, s),
    ),
    Case(
        "products of complex numbers",
        """op f(x: f32[N, 2], y: f32[N, 2]) -> (z: f32[N, 2]) {
          z[n, 0] = x[n, 0] * y[n, 0] - x[n, 1] * y[n, 1]
          z[n, 1] = x[n, 0] * y[n, 1] + x[n, 1] * y[n, 0]
        }""",
        lambda d: (d(1_000_000, 2), d(1_000_000, 2)),
        lambda t, f, x, y: t.view_as_real(t.view_as_complex(x) * t.view_as_complex(y)),
        lambda j, n, x, y: n.stack(
            (x[:, 0] * y[:, 0] - x[:, 1] * y[:, 1], x[:, 0] * y[:, 1] + x[:, 1] * y[:, 0]), 1
        ),
    ),
    Case(
        "rows the other way round",
        "op f(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = x[t, H - 1 - h] }",
        lambda d: (d(2000, 771),),
        lambda t, f, x: x.flip(1),
        lambda j, n, x: x[:, ::-1],
    ),
    Case(
        "picture turned by a quarter",
        "op f(x: f32[H, W]) -> (y: f32[W, H]) { y[i, j] = x[j, W - 1 - i] for i in 0..W, j in 0..H }",
        lambda d: (d(1024, 771),),
        lambda t, f, x: t.rot90(x).contiguous(),
        lambda j, n, x: n.rot90(x),
    ),
    Case(
        "every second element",
        "op f(x: f32[T, 2*H]) -> (y: f32[T, H]) { y[t, h] = x[t, 2*h] }",
        lambda d: (d(2000, 1542),),
        lambda t, f, x: x[:, ::2].contiguous(),
        lambda j, n, x: x[:, ::2],
    ),
    Case(
        "two tensors interleaved",
        """op f(a: f32[T, H], b: f32[T, H]) -> (y: f32[T, 2*H]) {
          y[t, h] = a[t, h // 2] if h % 2 == 0 else b[t, h // 2]
        }""",
        lambda d: (d(1000, 771), d(1000, 771)),
        lambda t, f, a, b: t.stack((a, b), -1).view(1000, 1542),
        lambda j, n, a, b: n.stack((a, b), -1).reshape(1000, 1542),
    ),
    Case(
        "a border of zeros",
        "zero_pad2d",
        lambda d: (d(8, 64, 56, 56),),
        lambda t, f, x: f.pad(x, (1, 1, 1, 1)),
        lambda j, n, x: n.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))),
    ),
    Case(
        "a border of reflections",
        """op f(x: f32[N, C, H, W]) -> (y: f32[N, C, H+2, W+2]) where H >= 3, W >= 3 {
          y[n, c, h, w] = x[n, c, min(max(h - 1, 1 - h), 2*H - 1 - h), min(max(w - 1, 1 - w), 2*W - 1 - w)]
        }""",
        lambda d: (d(8, 64, 56, 56),),
        lambda t, f, x: f.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda j, n, x: n.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="reflect"),
    ),
    Case(
        "patches of 3 x 3 as columns",
        """op f(x: f32[N, C, H, W]) -> (y: f32[N, 9*C, H-2, W-2]) where H >= 3, W >= 3 {
          y[n, k, h, w] = x[n, k // 9, h + k // 3 % 3, w + k % 3]
        }""",
        lambda d: (d(4, 16, 56, 56),),
        lambda t, f, x: f.unfold(x, 3).view(4, 144, 54, 54),
        lambda j, n, x: n.stack(
            [x[:, :, r : r + 54, s : s + 54] for r in range(3) for s in range(3)], 2
        ).reshape(4, 144, 54, 54),
    ),
)
CASES = (*LAYOUTS, *PIECES)
