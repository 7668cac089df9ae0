"""Convolutions, pooling and filters of images."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case


def _image(*shape: int) -> Any:
    return lambda d: (d(*shape),)


def _window(j: Any, x: Any, size: int, step: int, start: float, function: Any) -> Any:
    """Reduced windows of images, without padding."""
    return j.lax.reduce_window(x, start, function, (1, 1, size, size), (1, 1, step, step), "VALID")


def _jax_conv(j: Any, x: Any, w: Any, step: int = 1, pad: int = 0, groups: int = 1) -> Any:
    return j.lax.conv_general_dilated(
        x, w, (step, step), ((pad, pad), (pad, pad)), feature_group_count=groups
    )


def _doubled(j: Any, n: Any, x: Any) -> Any:
    return j.image.resize(x, (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3]), "linear")


def _jax_blur(j: Any, n: Any, x: Any, w: Any) -> Any:
    rows = _jax_conv(j, x[:, None], w.reshape(1, 1, 1, 5))
    return _jax_conv(j, rows, w.reshape(1, 1, 5, 1))[:, 0]


def _torch_sobel(t: Any, f: Any, x: Any) -> Any:
    k = t.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
    g = f.conv2d(x[:, None], t.stack((k, k.T))[:, None])
    return t.sqrt(g[:, 0] ** 2 + g[:, 1] ** 2)


def _jax_sobel(j: Any, n: Any, x: Any) -> Any:
    h = x[:, :, 2:] - x[:, :, :-2]
    v = x[:, 2:] - x[:, :-2]
    gx = h[:, :-2] + 2 * h[:, 1:-1] + h[:, 2:]
    gy = v[:, :, :-2] + 2 * v[:, :, 1:-1] + v[:, :, 2:]
    return n.sqrt(gx * gx + gy * gy)


POOLING = (
    Case(
        "max of 2 x 2",
        "max_pool",
        _image(8, 64, 56, 56),
        lambda t, f, x: f.max_pool2d(x, 2),
        lambda j, n, x: x.reshape(8, 64, 28, 2, 28, 2).max((3, 5)),
    ),
    Case(
        "max of 3 x 3, step 2, padded",
        """op f(x: f32[N, C, H, W]) -> (y: f32[N, C, (H + 1) // 2, (W + 1) // 2]) {
          y = max_pool(x, K=3, S=2, P=1)
        }""",
        _image(8, 64, 56, 56),
        lambda t, f, x: f.max_pool2d(x, 3, 2, 1),
        lambda j, n, x: j.lax.reduce_window(
            x, -n.inf, j.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1))
        ),
    ),
    Case(
        "max of 3 x 3, step 2",
        """op f(x: f32[N, C, H, W]) -> (y: f32[N, C, (H - 1) // 2, (W - 1) // 2]) where H >= 3, W >= 3 {
          y[n, c, p, q] = max[r in 0..3, s in 0..3](x[n, c, 2*p + r, 2*q + s])
        }""",
        _image(8, 64, 56, 56),
        lambda t, f, x: f.max_pool2d(x, 3, 2),
        lambda j, n, x: _window(j, x, 3, 2, -n.inf, j.lax.max),
    ),
    Case(
        "mean of 2 x 2",
        "avg_pool",
        _image(32, 64, 28, 28),
        lambda t, f, x: f.avg_pool2d(x, 2),
        lambda j, n, x: x.reshape(32, 64, 14, 2, 14, 2).mean((3, 5)),
    ),
    Case(
        "mean of 3 x 3, step 1",
        """op f(x: f32[N, C, H, W]) -> (y: f32[N, C, H-2, W-2]) where H >= 3, W >= 3 {
          y[n, c, p, q] = sum[r in 0..3, s in 0..3](x[n, c, p + r, q + s]) / 9.0
        }""",
        _image(8, 32, 56, 56),
        lambda t, f, x: f.avg_pool2d(x, 3, 1),
        lambda j, n, x: _window(j, x, 3, 1, 0.0, j.lax.add) / 9,
    ),
    Case(
        "mean of each channel",
        "global_avg_pool",
        _image(32, 512, 7, 7),
        lambda t, f, x: f.adaptive_avg_pool2d(x, 1)[:, :, 0, 0],
        lambda j, n, x: x.mean((2, 3)),
    ),
    Case(
        "max of each channel, channels last",
        "op f(x: f32[N, H, W, C]) -> (y: f32[N, C]) where H >= 1, W >= 1 "
        "{ y[n, c] = max[h, w](x[n, h, w, c]) }",
        _image(32, 14, 14, 256),
        lambda t, f, x: x.amax((1, 2)),
        lambda j, n, x: x.max((1, 2)),
    ),
)
FILTERS = (
    Case(
        "depthwise filters",
        "conv2d",
        lambda d: (d(8, 64, 56, 56), d(64, 1, 3, 3), d(64)),
        lambda t, f, x, w, b: f.conv2d(x, w, b, groups=64),
        lambda j, n, x, w, b: _jax_conv(j, x, w, groups=64) + b[:, None, None],
    ),
    Case(
        "depthwise filters of 5 x 5, channels last",
        """op f(x: f32[N, H, W, C], w: f32[5, 5, C]) -> (y: f32[N, H-4, W-4, C]) where H >= 5, W >= 5 {
          y[n, p, q, c] = sum[r in 0..5, s in 0..5](x[n, p + r, q + s, c] * w[r, s, c])
        }""",
        lambda d: (d(4, 56, 56, 96), d(5, 5, 96)),
        lambda t, f, x, w: f.conv2d(x.permute(0, 3, 1, 2), w.permute(2, 0, 1)[:, None], groups=96).permute(
            0, 2, 3, 1
        ),
        lambda j, n, x, w: j.lax.conv_general_dilated(
            x,
            w[:, :, None],
            (1, 1),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=96,
        ),
    ),
    Case(
        "depthwise filters, channels last",
        """op f(x: f32[N, H, W, C], w: f32[3, 3, C]) -> (y: f32[N, H-2, W-2, C]) where H >= 3, W >= 3 {
          y[n, p, q, c] = sum[r in 0..3, s in 0..3](x[n, p + r, q + s, c] * w[r, s, c])
        }""",
        lambda d: (d(4, 56, 56, 96), d(3, 3, 96)),
        lambda t, f, x, w: f.conv2d(x.permute(0, 3, 1, 2), w.permute(2, 0, 1)[:, None], groups=96).permute(
            0, 2, 3, 1
        ),
        lambda j, n, x, w: j.lax.conv_general_dilated(
            x,
            w[:, :, None],
            (1, 1),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=96,
        ),
    ),
    Case(
        "convolution",
        "conv2d",
        lambda d: (d(8, 32, 28, 28), d(32, 32, 3, 3), d(32)),
        lambda t, f, x, w, b: f.conv2d(x, w, b),
        lambda j, n, x, w, b: _jax_conv(j, x, w) + b[:, None, None],
    ),
    Case(
        "convolution, same size, relu",
        """op f(x: f32[N, C, H, W], w: f32[K, C, 3, 3], b: f32[K]) -> (y: f32[N, K, H, W]) {
          z = conv2d(x, w, b, P=1)
          y = relu(z)
        }""",
        lambda d: (d(4, 64, 28, 28), d(64, 64, 3, 3), d(64)),
        lambda t, f, x, w, b: f.relu(f.conv2d(x, w, b, padding=1)),
        lambda j, n, x, w, b: j.nn.relu(_jax_conv(j, x, w, pad=1) + b[:, None, None]),
    ),
    Case(
        "convolution of 1 x 1",
        """op f(x: f32[N, C, H, W], w: f32[K, C], b: f32[K]) -> (y: f32[N, K, H, W]) {
          y[n, k, h, v] = sum[c](w[k, c] * x[n, c, h, v]) + b[k]
        }""",
        lambda d: (d(8, 64, 28, 28), d(128, 64), d(128)),
        lambda t, f, x, w, b: f.conv2d(x, w[:, :, None, None], b),
        lambda j, n, x, w, b: _jax_conv(j, x, w[:, :, None, None]) + b[:, None, None],
    ),
    Case(
        "convolution of images to step 2",
        """op f(x: f32[N, C, H, W], w: f32[K, C, 3, 3], b: f32[K])
            -> (y: f32[N, K, (H + 1) // 2, (W + 1) // 2]) {
          y = conv2d(x, w, b, S=2, P=1)
        }""",
        lambda d: (d(4, 3, 112, 112), d(32, 3, 3, 3), d(32)),
        lambda t, f, x, w, b: f.conv2d(x, w, b, stride=2, padding=1),
        lambda j, n, x, w, b: _jax_conv(j, x, w, 2, 1) + b[:, None, None],
    ),
    Case(
        "convolution of small images",
        """op f(x: f32[N, C, H, W], w: f32[K, C, 3, 3], b: f32[K]) -> (y: f32[N, K, H, W]) {
          y = conv2d(x, w, b, P=1)
        }""",
        lambda d: (d(8, 256, 7, 7), d(256, 256, 3, 3), d(256)),
        lambda t, f, x, w, b: f.conv2d(x, w, b, padding=1),
        lambda j, n, x, w, b: _jax_conv(j, x, w, pad=1) + b[:, None, None],
    ),
    Case(
        "convolution, channels last",
        """op f(x: f32[N, H, W, C], w: f32[3, 3, C, K]) -> (y: f32[N, H-2, W-2, K]) where H >= 3, W >= 3 {
          y[n, p, q, k] = sum[r, s, c](x[n, p + r, q + s, c] * w[r, s, c, k])
        }""",
        lambda d: (d(4, 16, 16, 128), d(3, 3, 128, 128)),
        lambda t, f, x, w: f.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1)).permute(0, 2, 3, 1),
        lambda j, n, x, w: j.lax.conv_general_dilated(
            x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
    ),
    Case(
        "convolution of 7 x 7 to step 2",
        """op f(x: f32[N, C, H, W], w: f32[K, C, 7, 7], b: f32[K])
            -> (y: f32[N, K, (H + 1) // 2, (W + 1) // 2]) {
          y = conv2d(x, w, b, S=2, P=3)
        }""",
        lambda d: (d(1, 3, 224, 224), d(64, 3, 7, 7), d(64)),
        lambda t, f, x, w, b: f.conv2d(x, w, b, stride=2, padding=3),
        lambda j, n, x, w, b: _jax_conv(j, x, w, 2, 3) + b[:, None, None],
    ),
    Case(
        "depthwise filters to step 2, padded",
        """op f(x: f32[N, C, H, W], w: f32[C, 3, 3]) -> (y: f32[N, C, (H+1)//2, (W+1)//2]) {
          z[n, c, h, v] = x[n, c, h-1, v-1] if 1 <= h < H+1 and 1 <= v < W+1 else
              0.0 for h in 0..H+2, v in 0..W+2
          y[n, c, p, q] = sum[r in 0..3, s in 0..3](z[n, c, 2*p + r, 2*q + s] * w[c, r, s])
        }""",
        lambda d: (d(4, 128, 56, 56), d(128, 3, 3)),
        lambda t, f, x, w: f.conv2d(x, w[:, None], stride=2, padding=1, groups=128),
        lambda j, n, x, w: _jax_conv(j, x, w[:, None], 2, 1, 128),
    ),
    Case(
        "depthwise filters, channels last, padded",
        """op f(x: f32[N, H, W, C], w: f32[3, 3, C], b: f32[C]) -> (y: f32[N, H, W, C]) {
          z[n, h, v, c] = x[n, h-1, v-1, c] if 1 <= h < H+1 and 1 <= v < W+1 else
              0.0 for h in 0..H+2, v in 0..W+2
          y[n, p, q, c] = max(sum[r, s](z[n, p + r, q + s, c] * w[r, s, c]) + b[c], 0.0)
        }""",
        lambda d: (d(8, 28, 28, 128), d(3, 3, 128), d(128)),
        lambda t, f, x, w, b: f.relu(
            f.conv2d(x.permute(0, 3, 1, 2), w.permute(2, 0, 1)[:, None], b, padding=1, groups=128)
        ).permute(0, 2, 3, 1),
        lambda j, n, x, w, b: j.nn.relu(
            j.lax.conv_general_dilated(
                x,
                w[:, :, None],
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=128,
            )
            + b
        ),
    ),
    Case(
        "edges by Sobel",
        """op f(x: f32[N, H, W]) -> (y: f32[N, H-2, W-2]) where H >= 3, W >= 3 {
          gx[n, i, j] = x[n, i, j+2] - x[n, i, j] + 2.0 * (x[n, i+1, j+2] - x[n, i+1, j]) +
              x[n, i+2, j+2] - x[n, i+2, j] for i in 0..H-2, j in 0..W-2
          gy[n, i, j] = x[n, i+2, j] - x[n, i, j] + 2.0 * (x[n, i+2, j+1] - x[n, i, j+1]) +
              x[n, i+2, j+2] - x[n, i, j+2] for i in 0..H-2, j in 0..W-2
          y[n, i, j] = sqrt(gx[n, i, j] ** 2 + gy[n, i, j] ** 2)
        }""",
        _image(4, 512, 512),
        _torch_sobel,
        _jax_sobel,
    ),
    Case(
        "blur of 5 x 5 in two steps",
        """op f(x: f32[N, H, W], w: f32[5]) -> (y: f32[N, H-4, W-4]) where H >= 5, W >= 5 {
          rows[n, i, j] = sum[s](w[s] * x[n, i, j + s]) for j in 0..W-4
          y[n, i, j] = sum[r](w[r] * rows[n, i + r, j])
        }""",
        lambda d: (d(4, 512, 512), d.unit(5)),
        lambda t, f, x, w: f.conv2d(f.conv2d(x[:, None], w.view(1, 1, 1, 5)), w.view(1, 1, 5, 1))[:, 0],
        _jax_blur,
    ),
    Case(
        "twice as large, bilinear",
        """op f(x: f32[N, C, H, W]) -> (y: f32[N, C, 2*H, 2*W]) where H >= 1, W >= 1 {
          rows[n, c, i, w] = (0.25 if i % 2 == 0 else 0.75) * x[n, c, max((i + 1) // 2 - 1, 0), w] +
              (0.75 if i % 2 == 0 else 0.25) * x[n, c, min((i + 1) // 2, H - 1), w] for i in 0..2*H
          y[n, c, i, j] = (0.25 if j % 2 == 0 else 0.75) * rows[n, c, i, max((j + 1) // 2 - 1, 0)] +
              (0.75 if j % 2 == 0 else 0.25) * rows[n, c, i, min((j + 1) // 2, W - 1)]
        }""",
        _image(8, 32, 28, 28),
        lambda t, f, x: f.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
        _doubled,
    ),
    Case(
        "luminance of bytes",
        """op f(x: u8[N, H, W, 3]) -> (y: f32[N, H, W]) {
          y[n, h, w] = 0.299 * f32(x[n, h, w, 0]) + 0.587 * f32(x[n, h, w, 1]) + 0.114 * f32(x[n, h, w, 2])
        }""",
        lambda d: (d.ints(0, 256, 8, 256, 256, 3, dtype="u8"),),
        lambda t, f, x: 0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2],
        lambda j, n, x: 0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2],
    ),
)
CASES = (*POOLING, *FILTERS)
