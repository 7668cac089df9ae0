"""Powers by small constants are products, reciprocals and roots, and as exact as functions need to be."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import cpu_source
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.math.prelude import FUNCTIONS
from polyfuse.ir.dtypes import BY_NAME, F32, I32
from polyfuse.ir.powers import LEAST, MOST, exponent, is_product, multiplications
from polyfuse.ir.tensor_graph import Apply, Const, Read

EXPONENTS = [*range(LEAST, 0), *range(2, MOST + 1), 0.5, -0.5, 1.5, -1.5, 2.5, 3.5, -3.5]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-4, -1e-4, 5e3, -5e3]
# Powers of these, or what they come from, are subnormal or too large in f32.
EXTREME = [1e-13, 1e-20, 1e-38, -1e-42, 3e38, -3e38, 1.5e-10]


def power(value: float, dtype: str = "f32") -> str:
    return f"op f(x: {dtype}[N]) -> (y: {dtype}[N]) {{ y[i] = x[i] ** {value} }}"


@pytest.mark.parametrize("value", EXPONENTS)
@pytest.mark.parametrize("dtype", thinned(["f32", "f16", "f64"], 3))
def test_floats(value: float, dtype: str) -> None:
    kind = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[dtype]
    extreme = EXTREME if dtype != "f16" else []
    x = np.array([*SPECIAL, *extreme, *np.random.default_rng(0).standard_normal(500)], kind)
    y = pf.compile(power(float(value), dtype), denormals="keep")(x)
    with np.errstate(all="ignore"):
        # As an array: NumPy takes the square root for the number 0.5, which has another sign of zero.
        want = np.power(x.astype(np.longdouble), np.full(x.shape, value)).astype(kind)
    known = np.isfinite(want) & (np.abs(want) >= np.finfo(kind).tiny)
    np.testing.assert_array_equal(y[~np.isfinite(want)], want[~np.isfinite(want)])
    np.testing.assert_array_equal(np.signbit(y[want == 0]), np.signbit(want[want == 0]))
    error = np.abs(y[known].astype(np.longdouble) - want[known]) / np.spacing(np.abs(want[known]))
    assert error.max() <= (1 if dtype == "f16" else 7)
    assert np.all(np.abs(y[~known & np.isfinite(want)]) <= np.finfo(kind).tiny)


@pytest.mark.parametrize("value", range(2, MOST + 1))
@pytest.mark.parametrize("dtype", thinned(["i16", "i8", "u8", "i32", "i64"], 5))
def test_integers_wrap(value: int, dtype: str) -> None:
    kind = BY_NAME[dtype].numpy
    x = np.arange(-120, 130).astype(kind)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(pf.compile(power(value, dtype))(x), x ** x.dtype.type(value))


def test_which_powers() -> None:
    x, k = Read("x", (), F32), Read("k", (), I32)

    def of(base: Read, value: float) -> float | None:
        return exponent(Apply("pow", (base, Const(value, base.dtype)), base.dtype))

    assert [of(x, v) for v in (0.5, -0.5, 2.0, -3.0, MOST, -2.5)] == [0.5, -0.5, 2, -3, MOST, -2.5]
    assert [of(x, v) for v in (0.0, 1.0, 4.5, LEAST - 1.0, MOST + 1.0, float("nan"), float("inf"))] == [
        None
    ] * 7
    assert of(k, 2) == 2 and of(k, -1) is None
    assert not is_product(Apply("pow", (x, Const(-1.0, F32)), F32))
    assert not is_product(Apply("pow", (x, Const(0.5, F32)), F32))
    assert exponent(Apply("pow", (x, x), F32)) is None
    assert [multiplications(n) for n in (0.5, -1, 2, 3, 4, 5, 6, 7, 8)] == [0, 0, 1, 2, 2, 3, 3, 4, 3]
    assert [multiplications(n) for n in (1.5, -2.5, 3.5)] == [1, 2, 3]


@pytest.mark.parametrize("value", EXPONENTS)
def test_no_function_is_called(value: float) -> None:
    assert "pf_pow_f32" not in cpu_source(power(float(value)), N=100)


GIVEN = [
    0.0,
    -0.0,
    1.0,
    2.0,
    3.0,
    4.0,
    5.0,
    0.5,
    1.5,
    -0.5,
    -1.0,
    -2.0,
    -3.0,
    1.7,
    -1.7,
    7.3,
    -40.0,
    np.inf,
    -np.inf,
]
SCALAR = "op f(x: {0}[N], g: {0}) -> (y: {0}[N]) {{ y[i] = x[i] ** g }}"


@pytest.mark.parametrize("value", [*GIVEN, np.nan], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_scalar_exponents(value: float, dtype: str) -> None:
    """As exact as the function, with its special values, in whole steps of lanes and in the rest."""
    kind = BY_NAME[dtype].numpy.type
    x = np.array([*SPECIAL, *EXTREME, *np.random.default_rng(0).standard_normal(500)], kind)
    y = pf.compile(SCALAR.format(dtype), denormals="keep")(x, kind(value))
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.longdouble), np.full(x.shape, value)).astype(kind)
        # The 80-bit power has errors at infinity.
        special = ~np.isfinite(x) | ~np.isfinite(np.full(x.shape, value))
        want[special] = np.power(x, np.full(x.shape, value, kind))[special]
    known = np.isfinite(want) & (np.abs(want) >= np.finfo(kind).tiny)
    np.testing.assert_array_equal(y[~np.isfinite(want)], want[~np.isfinite(want)])
    np.testing.assert_array_equal(np.signbit(y[want == 0]), np.signbit(want[want == 0]))
    with np.errstate(all="ignore"):
        exact = np.power(x[known].astype(np.longdouble), np.longdouble(kind(value)))
        error = np.abs(y[known].astype(np.longdouble) - exact) / np.spacing(np.abs(want[known]))
    assert max(error, default=0) <= FUNCTIONS[f"pf_pow_{dtype}"]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_scalar_exponents_are_decided_before_the_lanes(dtype: str) -> None:
    def loops(text: str, **sizes: int) -> str:
        return cpu_source(text, **sizes).split("_body(")[1]

    row = f"pf_row_pow_{dtype}("
    head = f"op f(x: {dtype}[M, N], g: {dtype}, h: {dtype}[M], k: {dtype}[M, N])"
    assert row in loops(SCALAR.format(dtype), N=200)
    assert row in loops(f"{head} -> (y: {dtype}[M]) {{ y[i] = sum[j](x[i, j] ** (g - 1.0)) }}", M=70, N=200)
    assert row in loops(f"{head} -> (y: {dtype}[M, N]) {{ y[i, j] = x[i, j] ** h[i] }}", M=70, N=200)
    assert row not in loops(f"{head} -> (y: {dtype}[M, N]) {{ y[i, j] = x[i, j] ** k[i, j] }}", M=70, N=200)


@pytest.mark.parametrize("value", [2.0, 0.5, 1.7, -1.0])
def test_exponents_of_rows(value: float) -> None:
    """Also where rows are lanes, which have exponents of their own."""
    rng = np.random.default_rng(1)
    for n in (3, 16, 200):
        x, h = rng.random((70, n), np.float32) + 0.5, np.where(np.arange(70) % 2, value, 1.3).astype("f4")
        f = pf.compile("op f(x: f32[M, N], h: f32[M]) -> (y: f32[M, N]) { y[i, j] = x[i, j] ** h[i] }")
        want = np.power(x.astype("f8"), h[:, None].astype("f8"))
        np.testing.assert_allclose(f(x, h), want, rtol=2e-7)
        g = pf.compile("op f(x: f32[M, N], h: f32[M]) -> (s: f32[M]) { s[i] = sum[j](x[i, j] ** h[i]) }")
        np.testing.assert_allclose(g(x, h), want.sum(1), rtol=2e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, 2.0, 0.5, -1.0, 1.7])
def test_scalar_exponents_on_a_gpu(value: float) -> None:
    x = np.array([*SPECIAL, 2.5, -2.5], np.float32)
    got = pf.compile(SCALAR.format("f32"), target="emulate")(x, np.float32(value))
    with np.errstate(all="ignore"):
        want = np.power(x, np.full(x.shape, value, "f4"))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("target", ["emulate", "cpu", "interpret"])
@pytest.mark.parametrize("value", [3, -3, 7, 0.5, -0.5])
def test_powers_are_the_same_everywhere(target: str, value: float) -> None:
    text = f"op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = x[i] ** {float(value)} }}"
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5, 1e-12, -1e30], np.float32)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), np.full(x.shape, value)).astype(np.float32)
    got = pf.compile(text, target=target)(x)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))
    whole = pf.compile("op f(k: i32[N]) -> (y: i32[N]) { y[i] = k[i] ** 5 }", target=target)
    k = np.arange(-50, 50, dtype=np.int32)
    np.testing.assert_array_equal(whole(k), k**5)
