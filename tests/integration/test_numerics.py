"""Numbers at the edges, fused, against NumPy: NaN, infinities, denormals, extremes of integers, casts."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyfuse as pf
from polyfuse.ir.dtypes import BY_NAME

Array = np.ndarray[Any, np.dtype[Any]]

NAN, INF = np.nan, np.inf
EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -2.5,
    88.0,
    -88.0,
    1e30,
    -1e30,
    3e38,
    1e-30,
    INF,
    -INF,
    NAN,
    1e-41,
    -1e-41,
]
F32 = np.array(EDGES * 3, np.float32)  # longer than a vector
DENORMAL = (np.abs(F32) < np.finfo(np.float32).tiny) & (F32 != 0)

UNARY = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "abs": np.abs, "floor": np.floor,
    "ceil": np.ceil, "round": np.round, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip


def close(got: Array, want: Array, ulps: float = 8) -> None:
    """Equal NaNs, infinities and zeros of either sign; else within some ulps of f32."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=ulps * 2.0**-23, atol=1.2e-38)


@pytest.mark.parametrize("name", UNARY)
def test_functions_at_the_edges(name: str) -> None:
    f = pf.compile(f"op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = {name}(x[i]) }}", denormals="keep")
    with np.errstate(all="ignore"):
        want = UNARY[name](F32.astype(np.float64)).astype(np.float32)
    close(f(F32), want)


def test_arithmetic_and_comparisons_at_the_edges() -> None:
    f = pf.compile(
        """op f(x: f32[N], y: f32[M])
              -> (s: f32[N, M], p: f32[N, M], q: f32[N, M], hi: f32[N, M], lo: f32[N, M],
            lt: bool[N, M], ne: bool[N, M], w: f32[N, M], n: bool[N]) {
          s[i, j] = x[i] + y[j]
          p[i, j] = x[i] * y[j]
          q[i, j] = x[i] / y[j]
          hi[i, j] = max(x[i], y[j])
          lo[i, j] = min(x[i], y[j])
          lt[i, j] = x[i] < y[j]
          ne[i, j] = x[i] != y[j]
          w[i, j] = x[i] if x[i] > y[j] else y[j]
          n[i] = isnan(x[i])
        }""",
        denormals="keep",
    )
    a, b = F32[:, None], F32[None, :]
    with np.errstate(all="ignore"):
        wanted = (
            a + b,
            a * b,
            a / b,
            np.maximum(a, b),
            np.minimum(a, b),
            a < b,
            a != b,
            np.where(a > b, a, b),
        )
    *got, nans = f(F32, F32)
    for g, want in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(g, np.broadcast_to(want, g.shape))
    np.testing.assert_array_equal(nans, np.isnan(F32))


@pytest.mark.parametrize("place", [0, 1, 63, 128, 299])
def test_reductions_of_a_nan(place: int) -> None:
    f = pf.compile(
        """op f(x: f32[N]) -> (hi: f32, lo: f32, s: f32, p: f32, m: f32, a: i64, b: i64) {
          hi = max[i](x[i]); lo = min[i](x[i]); s = sum[i](x[i]); p = prod[i](x[i]); m = mean[i](x[i])
          a = argmax[i](x[i]); b = argmin[i](x[i])
        }"""
    )
    x = np.linspace(0.9, 1.1, 300, dtype=np.float32)
    assert f(x)[5] == 299 and f(x)[6] == 0
    x[place] = NAN
    hi, lo, s, p, m, a, b = f(x)
    assert np.isnan([hi, lo, s, p, m]).all() and a == b == place
    x[place] = -INF
    hi, lo, s, p, m, a, b = f(x)
    assert np.isfinite(hi) and lo == s == m == -INF and p == -INF and b == place


SOFTMAX = """op softmax(x: f32[B, H]) -> (y: f32[B, H]) {
  m[b] = max[h](x[b, h])
  e[b, h] = exp(x[b, h] - m[b])
  y[b, h] = e[b, h] / sum[k](e[b, k])
}"""


def numpy_softmax(x: Array) -> Array:
    with np.errstate(all="ignore"):
        e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("denormals", ["flush", "keep"])
def test_softmax_of_masked_rows(denormals: Any) -> None:
    x = np.random.default_rng(0).standard_normal((6, 200)).astype(np.float32)
    x[0] = -INF
    x[1] = -1e4
    x[2, 5:] = -INF
    x[3, 5:] = -1e4
    x[4, 7] = NAN
    x[5, 7] = INF
    close(pf.compile(SOFTMAX, denormals=denormals)(x), numpy_softmax(x).astype(np.float32), ulps=32)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e15])
def test_layer_norm_at_any_scale(scale: float) -> None:
    f = pf.compile(
        """op f(x: f32[T, H]) -> (y: f32[T, H]) {
          mu[t] = mean[h](x[t, h])
          var[t] = mean[h]((x[t, h] - mu[t]) ** 2)
          y[t, h] = (x[t, h] - mu[t]) * rsqrt(var[t] + 1e-5)
        }"""
    )
    x = (np.random.default_rng(1).standard_normal((5, 300)) * scale).astype(np.float32)
    x[1, 3], x[2, 4] = NAN, INF
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    got = f(x)
    assert np.isnan(got[[1, 2]]).all()
    np.testing.assert_allclose(got[[0, 3, 4]], want[[0, 3, 4]], rtol=1e-4, atol=1e-4 * np.abs(want[0]).max())


@pytest.mark.parametrize(("dtype", "value"), [("f32", 1e-40), ("f64", 1e-310)])
def test_denormals_of_both_types_are_flushed_as_the_language_says(dtype: str, value: float) -> None:
    text = f"op f(x: {dtype}[N]) -> (y: {dtype}[N]) {{ y[i] = x[i] * 0.5 }}"
    x: Any = np.full(100, value, {"f32": "f4", "f64": "f8"}[dtype])
    for denormals, kept in (("flush", False), ("keep", True)):
        found: Any = pf.compile(text, target="cpu", denormals=denormals)(x)
        assert ((found > 0) == kept).all()
    page = (Path(__file__).parents[2] / "docs/language.md").read_text(encoding="utf-8")
    assert "denormals of f32 and of f64 may be flushed" in page


@pytest.mark.parametrize("target", ["cpu", "interpret", "emulate"])
def test_a_mean_of_no_elements_is_not_a_number(target: Any) -> None:
    """Only where sizes alone make it empty, it is an error (PF309, PF407)."""
    f = pf.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = mean[j in 0..i](x[j]) }", target=target)
    np.testing.assert_allclose(f(np.ones(3, "f4")), [np.nan, 1, 1], rtol=1e-6)
    page = (Path(__file__).parents[2] / "docs/language.md").read_text(encoding="utf-8")
    assert "| `mean` | NaN, an error where sizes alone make it empty | floats |" in page


def test_denormals_are_flushed_or_kept() -> None:
    text = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 0.5 }"
    x = np.full(100, 1e-39, np.float32)
    np.testing.assert_array_equal(pf.compile(text, denormals="keep")(x), x * np.float32(0.5))
    assert (pf.compile(text, denormals="flush")(x) == 0).all()


def test_the_process_keeps_its_denormals() -> None:
    """Control word of SSE before and after calls, and what NumPy computes."""
    f = pf.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 0.5 }", denormals="flush")
    small = np.full(7, 1e-39, np.float32)
    want = small / 2
    for n in (7, 500_000):
        f(np.full(n, 1e-39, np.float32))
        np.testing.assert_array_equal(small / 2, want)
    g = f.bind(small)
    g()
    assert (small / 2 == want).all() and (want != 0).all()
    libm = ctypes.CDLL(None)
    assert libm.fegetround() == 0
    with pytest.raises(pf.ArgumentError):
        f(small.astype(np.float64))
    assert (small / 2 == want).all()


# --- integers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i64", "i32", "i16", "i8", "u8"])
def test_integers_wrap_and_floor(dtype: str) -> None:
    f = pf.compile(
        f"""op f(x: {dtype}[N], y: {dtype}[M]) -> (a: {dtype}[N, M], s: {dtype}[N, M], m: {dtype}[N, M],
            d: {dtype}[N, M], r: {dtype}[N, M], n: {dtype}[N], b: {dtype}[N], t: {dtype}, p: {dtype}) {{
          a[i, j] = x[i] + y[j]
          s[i, j] = x[i] - y[j]
          m[i, j] = x[i] * y[j]
          d[i, j] = x[i] // y[j]
          r[i, j] = x[i] % y[j]
          n[i] = -x[i]
          b[i] = abs(x[i])
          t = sum[i](x[i])
          p = prod[i](x[i])
        }}"""
    )
    kind = BY_NAME[dtype].numpy
    info = np.iinfo(kind)
    x = np.array([info.min, info.min + 1, 0, 1, 2, 7, 13, info.max - 1, info.max], kind)
    if info.min < 0:
        x = np.concatenate([x, np.array([-1, -2, -7, -13], kind)])
    y = x[x != 0]
    a, b = x[:, None], y[None, :]
    with np.errstate(all="ignore"):
        wanted = [a + b, a - b, a * b, a // b, a % b, -x, np.abs(x)]
        total, product = x.sum(dtype=kind), x.prod(dtype=kind)
    *got, t, p = f(x, y)
    for name, g, want in zip("asmdrnb", got, wanted, strict=True):
        np.testing.assert_array_equal(g, want, err_msg=name)
    assert (t, p) == (total, product)


def test_division_by_zero_gives_zero() -> None:
    f = pf.compile(
        """op f(x: i64[N], y: i64[N]) -> (d: i64[N], r: i64[N]) {
          d[i] = x[i] // y[i]
          r[i] = x[i] % y[i]
        }"""
    )
    x = np.array([5, -5, 0, 2**63 - 1, -(2**63)])
    d, r = f(x, np.zeros(5, np.int64))
    assert (d == 0).all() and (r == 0).all()


def test_float_floor_division_and_remainder() -> None:
    f = pf.compile(
        """op f(x: f32[N], y: f32[M]) -> (d: f32[N, M], r: f32[N, M]) {
          d[i, j] = x[i] // y[j]
          r[i, j] = x[i] % y[j]
        }"""
    )
    x = np.array([7.5, -7.5, 0.0, 3.0, -3.0, 1e6], np.float32)
    y = np.array([2.0, -2.0, 0.75, 3.0], np.float32)
    d, r = f(x, y)
    np.testing.assert_array_equal(d, x[:, None] // y)
    np.testing.assert_allclose(r, x[:, None] % y, rtol=1e-6, atol=1e-6)


# --- casts ------------------------------------------------------------------------------------------------


def test_casts_between_floats() -> None:
    f = pf.compile(
        "op f(x: f64[N]) -> (s: f32[N], h: f16[N], b: bf16[N])"
        " { s[i] = f32(x[i]); h[i] = f16(x[i]); b[i] = bf16(f32(x[i])) }",
        denormals="keep",
    )
    x = np.array(
        [0.0, -0.0, 1 / 3, 65504.0, 65519.9, 65520.0, -1e6, 1e39, 1e-5, 6e-8, 2e-8, INF, -INF, NAN, 3.3895e38]
    )
    s, h, b = f(x)
    with np.errstate(all="ignore"):
        single = x.astype(np.float32)
        np.testing.assert_array_equal(s, single)
        half = x.astype(np.float16)
        assert (
            (h == half) | (np.isnan(h) & np.isnan(half)) | (np.abs(h - half) <= np.spacing(np.abs(half)))
        ).all()
        np.testing.assert_array_equal(
            b.astype(np.float32), single.astype(ml_dtypes.bfloat16).astype(np.float32)
        )


def test_f16_results_overflow_to_infinity() -> None:
    f = pf.compile(
        """op f(x: f16[N]) -> (y: f16[N], s: f32) {
          y[i] = f16(x[i] * x[i])
          s = sum[i](x[i] * x[i])
        }"""
    )
    x = np.full(10, 300, np.float16)
    y, s = f(x)
    assert np.isposinf(y).all() and s == 900_000  # sums are f32


def test_casts_from_floats_to_integers() -> None:
    f = pf.compile(
        """op f(x: f32[N]) -> (a: i32[N], b: i8[N], c: u8[N], d: bool[N]) {
          a[i] = i32(x[i])
          b[i] = i8(x[i])
          c[i] = u8(x[i])
          d[i] = bool(x[i])
        }"""
    )
    x = np.array([0.0, -0.0, 1.9, -1.9, 100.0, NAN, INF, -INF, 1e20, 0.25], np.float32)
    a, b, c, d = f(x)
    np.testing.assert_array_equal(a[:5], [0, 0, 1, -1, 100])
    np.testing.assert_array_equal(a[5:9], [0, 2**31 - 1, -(2**31), 2**31 - 1])  # to the nearest end, NaN to 0
    np.testing.assert_array_equal(b[:9], [0, 0, 1, -1, 100, 0, 127, -128, 127])
    np.testing.assert_array_equal(c[:9], [0, 0, 1, 0, 100, 0, 255, 0, 255])
    np.testing.assert_array_equal(d, x != 0)


def test_casts_between_integers_wrap() -> None:
    f = pf.compile(
        """op f(x: i64[N]) -> (a: i32[N], b: i16[N], c: i8[N], d: u8[N], e: f32[N]) {
          a[i] = i32(x[i])
          b[i] = i16(x[i])
          c[i] = i8(x[i])
          d[i] = u8(x[i])
          e[i] = f32(x[i])
        }"""
    )
    x = np.array([0, 127, 128, 255, 256, -1, -129, 2**31, 2**63 - 1, -(2**63), 2**24 + 1])
    for got, kind in zip(f(x), ("i4", "i2", "i1", "u1", "f4"), strict=True):
        np.testing.assert_array_equal(got, x.astype(kind))


# --- empty reductions -------------------------------------------------------------------------------------


def test_empty_reductions_have_numpys_values() -> None:
    f = pf.compile(
        """op f(x: f32[N, M], b: bool[N, M], k: i32[N, M])
              -> (s: f32[N], p: f32[N], a: bool[N], l: bool[N], t: i32[N]) {
          s[n] = sum[m](x[n, m]); p[n] = prod[m](x[n, m]); a[n] = any[m](b[n, m]); l[n] = all[m](b[n, m])
          t[n] = sum[m](k[n, m])
        }"""
    )
    s, p, a, l, t = f(np.zeros((3, 0), np.float32), np.zeros((3, 0), bool), np.zeros((3, 0), np.int32))  # noqa: E741
    assert (s == 0).all() and (p == 1).all() and not a.any() and l.all() and (t == 0).all()


# Each dtype and each shape with one of the functions in a usual run.
FIRST_EXTREMES = [
    pytest.param(name, shape, dtype, marks=[pytest.mark.slow] * (j % 2 > 0 or (i + j // 2 + k) % 2 > 0))
    for i, name in enumerate(("argmax", "argmin"))
    for j, shape in enumerate([(2, 21, 300), (3, 1, 17), (40, 33, 1), (2, 700, 19)])
    for k, dtype in enumerate(("f32", "f64", "f16", "bf16", "i32", "u8", "i64"))
]


@pytest.mark.parametrize(("name", "shape", "dtype"), FIRST_EXTREMES, ids=str)
def test_first_extreme_along_a_middle_axis(name: str, shape: tuple[int, int, int], dtype: str) -> None:
    """The first of equals, and the first NaN before all else."""
    rng = np.random.default_rng(shape[1])
    x = rng.integers(0, 7, shape).astype(np.float64)
    kind = BY_NAME[dtype]
    if kind.is_float:
        x[rng.random(shape) < 0.02], x[rng.random(shape) < 0.02], x[0, :, 0] = NAN, INF, -INF
    given = x.astype(kind.numpy)
    call = f"op f(x: {dtype}[B, C, P]) -> (y: i64[B, P]) where C >= 1 {{ y[b, p] = {name}[c](VALUE) }}"
    value = "f32(x[b, c, p])" if dtype in ("f16", "bf16") else "x[b, c, p]"
    want = getattr(np, name)(x, 1)
    np.testing.assert_array_equal(pf.compile(call.replace("VALUE", value))(given), want)
    if kind.is_float:
        np.testing.assert_array_equal(pf.compile(call.replace("VALUE", f"{value} * 2.0"))(given), want)


def test_first_extreme_of_what_is_changed_in_place() -> None:
    f = pf.compile("""op f(inout x: f32[C, P]) -> (y: i64[P]) where C >= 1 {
      y[p] = argmax[c](old(x[c, p]))
      x[c, p] = -x[c, p]
    }""")
    x = np.random.default_rng(0).standard_normal((9, 5000)).astype(np.float32)
    given = x.copy()
    y = f(given)
    np.testing.assert_array_equal(y, x.argmax(0))
    np.testing.assert_array_equal(given, -x)


@pytest.mark.parametrize("name", ["max", "min", "mean", "argmax", "argmin"])
def test_empty_reductions_without_a_value(name: str) -> None:
    kind = "i64" if name.startswith("arg") else "f32"
    f = pf.compile(f"op f(x: f32[N, M]) -> (s: {kind}[N]) {{ s[n] = {name}[m](x[n, m]) }}")
    with pytest.raises(pf.PolyfuseError):
        f(np.zeros((3, 0), np.float32))
    assert f(np.zeros((0, 3), np.float32)).shape == (0,)
