"""Accesses whose rows run along another loop than the lanes: right at every size, type and stride."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyfuse as pf

TYPES: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i64": np.int64,
    "bool": np.bool_,
}
COPY = "op f(x: {0}[B, I, J]) -> (y: {0}[B, J, I]) {{ y[b, j, i] = x[b, i, j] }}"
SHAPES = (
    (1, 64, 64),
    (3, 65, 63),
    (2, 1, 70),
    (2, 70, 1),
    (2, 0, 5),
    (0, 9, 9),
    (2, 17, 16),
    (5, 4, 100),
    (2, 300, 3),
    (1, 200, 333),
    (1, 1700, 70),
    (2, 40, 2048),
)
RNG = np.random.default_rng(0)


def numbers(shape: tuple[int, ...], kind: str = "f32") -> Any:
    """Values of a type, among them NaN and infinities where there are such."""
    if kind == "bool":
        return RNG.random(shape) < 0.5
    if kind == "i64":
        return RNG.integers(-(2**62), 2**62, shape)
    values = RNG.standard_normal(shape)
    values.reshape(-1)[::7] = np.nan
    values.reshape(-1)[1::11] = -np.inf
    return values.astype(TYPES[kind])


def finite(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def compiled(text: str) -> Any:
    return pf.compile(text, options=pf.Options(threads=2))


@pytest.mark.parametrize("kind", TYPES)
def test_copies_of_all_sizes(kind: str) -> None:
    f = compiled(COPY.format(kind))
    for shape in SHAPES if kind in ("f32", "bool") else SHAPES[1:5]:
        x = numbers(shape, kind)
        bits = f"u{x.dtype.itemsize}"
        y = f(x).view(bits)
        np.testing.assert_array_equal(y, x.view(bits).transpose(0, 2, 1), err_msg=str(shape))


def test_strided_arguments() -> None:
    f = compiled(COPY.format("f32"))
    x = numbers((2, 130, 258))
    for view in (x[:, ::2], x[:, :, ::2], x[:, ::-1], x.transpose(0, 2, 1), x[:, :, 1:]):
        np.testing.assert_array_equal(f(view), view.transpose(0, 2, 1))
    out = np.zeros((2, 258, 260), np.float32)
    f(x, out=out[:, :, ::2])
    np.testing.assert_array_equal(out[:, :, ::2], x.transpose(0, 2, 1))
    assert not out[:, :, 1::2].any()


@pytest.mark.parametrize(("n", "m"), [(67, 131), (512, 96), (1, 70), (70, 1), (0, 3)])
def test_reads_along_both_loops(n: int, m: int) -> None:
    f = compiled("""op f(a: f32[N, M], x: f32[M, N], z: f16[M, N], s: f32[N])
    -> (y: f32[N, M], v: bool[N, M]) {
  y[i, j] = max(x[j, i], a[i, j]) * s[i] + f32(z[j, i])
  v[i, j] = x[j, i] > a[i, j]
}""")
    a, x, s = finite(n, m), finite(m, n), finite(n)
    z = finite(m, n).astype(np.float16)
    y, v = f(a, x, z, s)
    wanted = np.maximum(x.T, a).astype("f8") * s[:, None] + z.T
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(v, a < x.T)


@pytest.mark.parametrize(("n", "m"), [(200, 300), (150, 1000), (37, 1), (1, 40), (64, 2048)])
def test_beside_reductions(n: int, m: int) -> None:
    f = compiled("""op f(x: f32[N, M], b: f32[M, N]) -> (y: f32[N, M], r: f32[N]) {
  t[i, j] = x[i, j] + b[j, i]
  c[i] = max[j](t[i, j])
  e[i, j] = exp(t[i, j] - c[i])
  d[i] = sum[j](e[i, j])
  y[i, j] = e[i, j] / d[i]
  r[i] = sum[j](x[i, j] * b[j, i])
}""")
    x, b = finite(n, m), finite(m, n)
    y, r = f(x, b)
    t = x.astype("f8") + b.T
    e = np.exp(t - t.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(r, (x.astype("f8") * b.T).sum(1), rtol=1e-4, atol=1e-4)


def test_a_nan_in_a_row_stays_in_its_row() -> None:
    f = compiled("op f(x: f32[N, M], b: f32[M, N]) -> (r: f32[N]) { r[i] = max[j](x[i, j] + b[j, i]) }")
    x, b = finite(100, 400), finite(400, 100)
    b[17, 33] = np.nan
    r = f(x, b)
    assert np.isnan(r[33]) and np.isnan(r).sum() == 1


def test_shifted_and_guarded_reads() -> None:
    f = compiled("""op f(x: f32[N, M]) -> (y: f32[M, N], z: f32[M, N]) {
  y[j, i] = x[i, j+1] if j + 1 < M else 0.0
  z[j, i] = x[i, M-1-j] - x[N-1-i, j]
}""")
    x = finite(150, 201)
    y, z = f(x)
    np.testing.assert_array_equal(y, np.vstack([x.T[1:], np.zeros((1, 150), "f4")]))
    np.testing.assert_array_equal(z, x[:, ::-1].T - x[::-1].T)


def test_memory_that_the_kernel_changes_is_read_as_it_was() -> None:
    f = compiled("op f(inout x: f32[N, N], b: f32[N, N]) { x[i, j] = x[j, i] + b[j, i] }")
    x, b = finite(190, 190), finite(190, 190)
    wanted = x.T + b.T
    f(x, b)
    np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize(("channels", "side"), [(3, 40), (16, 14), (70, 33), (8, 64)])
def test_channels_last_and_first(channels: int, side: int) -> None:
    to = compiled("op f(x: f32[N, C, H, W]) -> (y: f32[N, H, W, C]) { y[n, h, w, c] = x[n, c, h, w] }")
    back = compiled("op f(x: f32[N, H, W, C]) -> (y: f32[N, C, H, W]) { y[n, c, h, w] = x[n, h, w, c] }")
    x = numbers((2, channels, side, side))
    y = to(x)
    np.testing.assert_array_equal(y, x.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(back(y), x)


def test_a_rest_under_masks() -> None:
    """Its arrays have names of their own: those of lanes hide none of those that are turned around."""
    f = compiled("op f(b: f32[M, N]) -> (r: f32[N]) { r[i] = sum[j](exp(b[j, i]) * max(b[j, i], b[j, 0])) }")
    b = finite(173, 400)
    wanted = (np.exp(b.astype("f8")) * np.maximum(b, b[:, :1])).sum(0)
    np.testing.assert_allclose(f(b), wanted, rtol=1e-4)
    g = compiled("op g(x: f32[N, M], b: f32[M, N]) -> (r: f32[N]) { r[i] = sum[j](x[i, j] * b[j, i]) }")
    for m in (33, 40, 100, 127, 173):
        x, b = finite(400, m), finite(m, 400)
        np.testing.assert_allclose(g(x, b), (x.astype("f8") * b.T).sum(1), rtol=1e-4, atol=1e-4)
