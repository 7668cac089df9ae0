"""Losses: sums over everything of what is computed for elements, rows or pairs."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case


def _pair(*shape: int) -> Any:
    return lambda d: (d(*shape), d(*shape))


def _labels(rows: int, classes: int) -> Any:
    return lambda d: (d(rows, classes), d.ints(0, classes, rows))


def _jax_focal(j: Any, n: Any, x: Any, z: Any) -> Any:
    p = j.nn.sigmoid(x)
    ce = n.maximum(x, 0) - x * z + n.log1p(n.exp(-abs(x)))
    q = p * z + (1 - p) * (1 - z)
    return (ce * (1 - q) ** 2 * (0.25 * z + 0.75 * (1 - z))).mean()


def _torch_focal(t: Any, f: Any, x: Any, z: Any) -> Any:
    p = t.sigmoid(x)
    ce = f.binary_cross_entropy_with_logits(x, z, reduction="none")
    q = p * z + (1 - p) * (1 - z)
    return (ce * (1 - q) ** 2 * (0.25 * z + 0.75 * (1 - z))).mean()


def _torch_focal_classes(t: Any, f: Any, x: Any, z: Any) -> Any:
    found = t.log_softmax(x, 1).gather(1, z[:, None])[:, 0]
    return -((1 - found.exp()) ** 2 * found).mean()


def _jax_focal_classes(j: Any, n: Any, x: Any, z: Any) -> Any:
    found = n.take_along_axis(j.nn.log_softmax(x, 1), z[:, None], 1)[:, 0]
    return -((1 - n.exp(found)) ** 2 * found).mean()


def _jax_smoothed(j: Any, n: Any, x: Any, z: Any) -> Any:
    logs = j.nn.log_softmax(x, 1)
    return -(0.9 * n.take_along_axis(logs, z[:, None], 1)[:, 0] + 0.1 * logs.mean(1)).mean()


def _contrast(t: Any, f: Any, x: Any) -> Any:
    target = t.arange(x.shape[0])
    return (f.cross_entropy(x, target) + f.cross_entropy(x.T, target)) / 2


def _jax_contrast(j: Any, n: Any, x: Any) -> Any:
    return -(n.diag(j.nn.log_softmax(x, 1)) + n.diag(j.nn.log_softmax(x, 0))).mean() / 2


def _overlaps(n: Any, a: Any, b: Any) -> Any:
    """Intersection over union of boxes [left, top, right, bottom], in PyTorch or JAX."""
    a, b = a[:, None], b[None]
    w = n.minimum(a[..., 2], b[..., 2]) - n.maximum(a[..., 0], b[..., 0])
    h = n.minimum(a[..., 3], b[..., 3]) - n.maximum(a[..., 1], b[..., 1])
    zero = w * 0
    both = n.maximum(w, zero) * n.maximum(h, zero)
    area_a = (a[..., 2] - a[..., 0]) * (a[..., 3] - a[..., 1])
    area_b = (b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1])
    return both / (area_a + area_b - both)


def _boxes(d: Any) -> tuple[Any, Any]:
    found = [d.unit(n, 4) for n in (1000, 300)]
    for a in found:
        a[:, 2:] += a[:, :2]
    return found[0], found[1]


ELEMENTS = (
    Case(
        "binary cross entropy of logits",
        "binary_cross_entropy",
        lambda d: (d(1024, 3072), d.unit(1024, 3072)),
        lambda t, f, x, z: f.binary_cross_entropy_with_logits(x, z),
        lambda j, n, x, z: (n.maximum(x, 0) - x * z + n.log1p(n.exp(-abs(x)))).mean(),
    ),
    Case(
        "focal loss of logits",
        """op f(x: f32[N, C], z: f32[N, C]) -> (loss: f32) where N >= 1, C >= 1 {
          p[n, c] = sigmoid(x[n, c])
          ce[n, c] = max(x[n, c], 0.0) - x[n, c] * z[n, c] + log(1.0 + exp(-abs(x[n, c])))
          q[n, c] = p[n, c] * z[n, c] + (1.0 - p[n, c]) * (1.0 - z[n, c])
          loss = mean[n, c](ce[n, c] * (1.0 - q[n, c]) ** 2 * (0.25 * z[n, c] + 0.75 * (1.0 - z[n, c])))
        }""",
        lambda d: (d(10000, 80), d.unit(10000, 80)),
        _torch_focal,
        _jax_focal,
    ),
    Case(
        "Huber loss",
        """op f(x: f32[N], y: f32[N]) -> (l: f32) where N >= 1 {
          d[i] = abs(x[i] - y[i])
          l = mean[i](0.5 * d[i] ** 2 if d[i] < 1.0 else d[i] - 0.5)
        }""",
        _pair(3_000_000),
        lambda t, f, x, y: f.huber_loss(x, y),
        lambda j, n, x, y: n.mean(n.where(abs(x - y) < 1, 0.5 * (x - y) ** 2, abs(x - y) - 0.5)),
    ),
    Case(
        "smooth L1 of each element",
        """op f(x: f32[N, C], y: f32[N, C]) -> (l: f32[N, C]) {
          d[n, c] = abs(x[n, c] - y[n, c])
          l[n, c] = 5.0 * d[n, c] ** 2 if d[n, c] < 0.1 else d[n, c] - 0.05
        }""",
        _pair(1000, 771),
        lambda t, f, x, y: f.smooth_l1_loss(x, y, beta=0.1, reduction="none"),
        lambda j, n, x, y: n.where(abs(x - y) < 0.1, 5 * (x - y) ** 2, abs(x - y) - 0.05),
    ),
    Case(
        "mean squared error in L2",
        "mse_loss",
        _pair(130, 250),
        lambda t, f, x, y: f.mse_loss(x, y),
        lambda j, n, x, y: ((x - y) ** 2).mean(),
    ),
)
ROWS = (
    Case(
        "cross entropy of 100 classes",
        "cross_entropy",
        _labels(10000, 100),
        lambda t, f, x, z: f.cross_entropy(x, z),
        lambda j, n, x, z: -n.take_along_axis(j.nn.log_softmax(x, 1), z[:, None], 1).mean(),
    ),
    Case(
        "cross entropy, smoothed labels",
        """op f(x: f32[N, C], z: i64[N]) -> (loss: f32) {
          logs = log_softmax(x)
          loss = -mean[n](0.9 * logs[n, z[n]] + 0.1 * mean[c](logs[n, c]))
        }""",
        _labels(512, 10000),
        lambda t, f, x, z: f.cross_entropy(x, z, label_smoothing=0.1),
        _jax_smoothed,
    ),
    Case(
        "focal loss of classes",
        """op f(x: f32[N, C], z: i64[N]) -> (loss: f32) {
          logs = log_softmax(x)
          found[n] = logs[n, z[n]]
          loss = -mean[n]((1.0 - exp(found[n])) ** 2 * found[n])
        }""",
        _labels(20000, 21),
        _torch_focal_classes,
        _jax_focal_classes,
    ),
    Case(
        "divergence of logits",
        """op f(x: f32[N, C], z: f32[N, C]) -> (loss: f32) where N >= 1 {
          a = log_softmax(x)
          b = log_softmax(z)
          loss = sum[n, c](exp(b[n, c]) * (b[n, c] - a[n, c])) / f32(N)
        }""",
        _pair(1000, 1000),
        lambda t, f, x, z: f.kl_div(
            t.log_softmax(x, 1), t.log_softmax(z, 1), reduction="batchmean", log_target=True
        ),
        lambda j, n, x, z: (
            (j.nn.softmax(z, 1) * (j.nn.log_softmax(z, 1) - j.nn.log_softmax(x, 1))).sum() / x.shape[0]
        ),
    ),
    Case(
        "triplet loss",
        """op f(a: f32[N, D], p: f32[N, D], q: f32[N, D]) -> (loss: f32) where N >= 1 {
          near[n] = sqrt(sum[d]((a[n, d] - p[n, d] + 1e-6) ** 2))
          far[n] = sqrt(sum[d]((a[n, d] - q[n, d] + 1e-6) ** 2))
          loss = mean[n](max(near[n] - far[n] + 1.0, 0.0))
        }""",
        lambda d: (d(4096, 256), d(4096, 256), d(4096, 256)),
        lambda t, f, a, p, q: f.triplet_margin_loss(a, p, q),
        lambda j, n, a, p, q: n.maximum(
            n.linalg.norm(a - p + 1e-6, axis=1) - n.linalg.norm(a - q + 1e-6, axis=1) + 1, 0
        ).mean(),
    ),
    Case(
        "Dice loss of masks",
        """op f(x: f32[N, H, W], z: f32[N, H, W]) -> (loss: f32) where N >= 1 {
          p[n, h, w] = sigmoid(x[n, h, w])
          both[n] = sum[h, w](p[n, h, w] * z[n, h, w])
          all_[n] = sum[h, w](p[n, h, w]) + sum[h, w](z[n, h, w])
          loss = mean[n](1.0 - (2.0 * both[n] + 1.0) / (all_[n] + 1.0))
        }""",
        lambda d: (d(16, 256, 256), d.unit(16, 256, 256)),
        lambda t, f, x, z: (
            1 - (2 * (t.sigmoid(x) * z).sum((1, 2)) + 1) / (t.sigmoid(x).sum((1, 2)) + z.sum((1, 2)) + 1)
        ).mean(),
        lambda j, n, x, z: (
            1
            - (2 * (j.nn.sigmoid(x) * z).sum((1, 2)) + 1) / (j.nn.sigmoid(x).sum((1, 2)) + z.sum((1, 2)) + 1)
        ).mean(),
    ),
    Case(
        "contrast of texts and images",
        """op f(x: f32[N, N]) -> (loss: f32) where N >= 1 {
          rows[i] = max[j](x[i, j]) + log(sum[j](exp(x[i, j] - max[k](x[i, k]))))
          columns[j] = max[i](x[i, j]) + log(sum[i](exp(x[i, j] - max[k](x[k, j]))))
          loss = mean[i](rows[i] + columns[i] - 2.0 * x[i, i]) / 2.0
        }""",
        lambda d: (d(1024, 1024),),
        _contrast,
        _jax_contrast,
    ),
)
PAIRS = (
    Case(
        "overlaps of boxes",
        """op f(a: f32[N, 4], b: f32[M, 4]) -> (y: f32[N, M]) {
          w[i, j] = max(min(a[i, 2], b[j, 2]) - max(a[i, 0], b[j, 0]), 0.0)
          h[i, j] = max(min(a[i, 3], b[j, 3]) - max(a[i, 1], b[j, 1]), 0.0)
          area_a[i] = (a[i, 2] - a[i, 0]) * (a[i, 3] - a[i, 1])
          area_b[j] = (b[j, 2] - b[j, 0]) * (b[j, 3] - b[j, 1])
          y[i, j] = w[i, j] * h[i, j] / (area_a[i] + area_b[j] - w[i, j] * h[i, j])
        }""",
        _boxes,
        lambda t, f, a, b: _overlaps(t, a, b),
        lambda j, n, a, b: _overlaps(n, a, b),
    ),
    Case(
        "distances of pairs",
        """op f(x: f32[N, D], y: f32[M, D]) -> (d: f32[N, M]) {
          d[i, j] = sqrt(sum[k]((x[i, k] - y[j, k]) ** 2))
        }""",
        lambda d: (d(500, 64), d(600, 64)),
        lambda t, f, x, y: t.cdist(x, y),
        lambda j, n, x, y: n.sqrt(((x[:, None] - y[None]) ** 2).sum(2)),
    ),
    Case(
        "nearest words of a code book",
        """op f(x: f32[N, D], c: f32[K, D]) -> (y: i64[N]) where K >= 1 {
          s[n, k] = 0.5 * sum[d](c[k, d] ** 2) - sum[d](x[n, d] * c[k, d])
          y[n] = argmin[k](s[n, k])
        }""",
        lambda d: (d(2048, 64), d(512, 64)),
        lambda t, f, x, c: (0.5 * c.square().sum(1) - x @ c.T).argmin(1),
        lambda j, n, x, c: (0.5 * (c * c).sum(1) - x @ c.T).argmin(1),
    ),
)
CASES = (*ELEMENTS, *ROWS, *PAIRS)
