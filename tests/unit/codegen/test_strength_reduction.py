"""Quotients by what a loop does not change are corrected products where lanes divide more."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from equivalence import fixed_graph_of

import polyfuse as pf
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.codegen.transforms import strength_reduction
from polyfuse.ir.loop_ir import For, Node, nodes_of, values_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, walk
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching

TWO = """op f(x: {0}[N], z: {0}[N], d: {0}) -> (y: {0}[N], v: {0}[N]) {{
  y[i] = x[i] / d
  v[i] = x[i] / z[i]
}}"""
ADAM = """op f(inout p: f32[N], m: f32[N], v: f32[N], c: f32, e: f32) {
  p[i] = p[i] - m[i] / (sqrt(v[i]) / c + e)
}"""
ROWS = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h])
  y[t, h] = x[t, h] / s[t] + sqrt(x[t, h])
}"""
ONE = "op f(x: f32[N], d: f32) -> (y: f32[N]) { y[i] = x[i] / d }"
SCALES = {t.name: s for t, s in strength_reduction.SCALES.items()}
KINDS = {"f32": (np.float32, np.uint32), "f64": (np.float64, np.uint64)}


def operations(text: str, **sizes: int) -> list[str]:
    """Those of all loops, one after the other."""
    return [e.op for v in values_of(nodes(text, **sizes)) for e in walk(v) if isinstance(e, Apply)]


def of_lanes(text: str, **sizes: int) -> list[str]:
    """Those of vector loops."""
    loops = [n for n in nodes(text, **sizes) if isinstance(n, For) and n.coordinate is Coordinate.VECTOR]
    values = [v for loop in loops for v in values_of(nodes_of(loop.body))]
    return [e.op for v in values for e in walk(v) if isinstance(e, Apply)]


def nodes(text: str, **sizes: int) -> list[Node]:
    kernels = form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2, Stitching(rows=1))[0]
    return [n for k in kernels.kernels for t in lower(k).functions for n in nodes_of(t.body)]


def test_where_lanes_divide_more() -> None:
    assert operations(TWO.format("f32"), N=128).count("quotient") == 1
    assert operations(ADAM, N=128).count("quotient") == 1
    assert operations(ROWS, T=10, H=64).count("quotient") == 1
    assert "quotient" not in operations(ONE, N=128), "one hides behind loads and stores"
    constant = TWO.format("f32").replace("x[i] / d", "x[i] / 3.0")
    assert operations(constant, N=128).count("quotient") == 1
    assert "quotient" not in operations(constant.replace("3.0", "4.0"), N=128), "a product"
    of_row = "op f(x: f32[T, N], d: f32[T]) -> (y: f32[T, N]) { y[t, i] = (x[t, i] / 1.2 + 1.0) / d[t] }"
    assert operations(of_row, T=10, N=128).count("quotient") == 2


def any_floats(dtype: str, count: int, seed: int) -> np.ndarray:
    """Floats of all exponents, and what is special."""
    kind, bits = KINDS[dtype]
    rng = np.random.default_rng(seed)
    x = rng.integers(0, np.iinfo(bits).max, count, bits).view(kind)
    x[:12] = [
        0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 3.0,
        np.finfo(kind).max, np.finfo(kind).tiny, -np.finfo(kind).max, np.finfo(kind).smallest_subnormal,
    ]  # fmt: skip
    return x


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("denormals", ["flush", "keep"])
def test_quotients_are_those_of_a_division(dtype: str, denormals: str) -> None:
    """Bit for bit, but where the quotient or its remainder is subnormal, or nearly so."""
    kind = KINDS[dtype][0]
    f = pf.compile(TWO.format(dtype), options=pf.Options(denormals=denormals))
    x = any_floats(dtype, 3000, 0)
    info = np.finfo(kind)
    if denormals == "flush":
        x = np.where(np.abs(x) < info.tiny, np.copysign(0, x), x)  # as it is taken
    divisors = [*any_floats(dtype, 60, 1), kind(2.0**64), kind(2.0**-64), kind(1.3 * 2.0**-64), info.max / 2]
    for d in map(kind, divisors):
        if denormals == "flush" and abs(d) < info.tiny and d != 0:
            continue  # is taken for a zero
        with np.errstate(all="ignore"):
            wanted = x / d
        found, _ = f(x, np.ones_like(x), d)
        near = np.abs(wanted) < info.tiny * 4
        scale = 1 / SCALES[dtype] if abs(d) >= SCALES[dtype] else 1.0
        with np.errstate(invalid="ignore"):
            low = np.abs(x) * scale < 4 * info.tiny / info.eps  # of which remainders are subnormal
        sure = ~(near | low)
        np.testing.assert_array_equal(found[sure], wanted[sure], err_msg=f"by {d!r}")
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), err_msg=f"by {d!r}")
        close = low & ~near
        np.testing.assert_allclose(found[close], wanted[close], rtol=2 * info.eps, err_msg=f"by {d!r}")
        rest = near & ~np.isnan(wanted)
        np.testing.assert_allclose(found[rest], wanted[rest], rtol=0, atol=info.tiny * 4)
        zeros = (x == 0) & (wanted == 0)
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(wanted[zeros]))


SHORT = "op f(x: f32[N], d: f32) -> (y: {0}[N]) {{ y[i] = {0}(-x[i] / d) }}"


def test_those_of_16_bits_are_products() -> None:
    text = SHORT.format("f16")
    assert "div" not in of_lanes(text, N=128) and operations(text, N=128).count("div") == 1, "the reciprocal"
    assert "div" in of_lanes(text.replace("f16", "f32"), N=128)
    of_rows = "op f(x: f16[T, H]) -> (y: f16[T, H]) { y[t, h] = x[t, h] / (1 + sum[k](x[t, k])) }"
    assert "div" not in of_lanes(of_rows, T=10, H=64)
    several = text.replace("-x[i]", "exp(x[i]) / 3.0 * x[i]")
    assert "div" not in of_lanes(several, N=128) and operations(several, N=128).count("div") == 2
    assert "div" in of_lanes(text.replace("-x[i] / d", "d / x[i]"), N=128)
    sums = text.replace("-x[i] / d", "x[i] / d + 1.0")
    assert "div" in of_lanes(sums, N=128), "its error may be larger than the sum"


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("denormals", ["flush", "keep"])
def test_quotients_of_16_bits_are_near_those_of_a_division(dtype: str, denormals: str) -> None:
    """They are what the quotient becomes, or one that is less than 2**-22 of it away."""
    kind = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype]
    f = pf.compile(SHORT.format(dtype), options=pf.Options(denormals=denormals))
    x = any_floats("f32", 3000, 7)
    x[12:] = np.where(np.arange(2988) % 2, x[12:], np.linspace(-9, 9, 2988, dtype="f4"))
    tiny = np.finfo("f4").tiny
    if denormals == "flush":
        x = np.where(np.abs(x) < tiny, np.copysign(0, x), x)
    for d in map(np.float32, (*any_floats("f32", 60, 8), 2.0**64, 2.0**-64, 3e38, 1e-37, 7.0, -3.3)):
        if denormals == "flush" and 0 < abs(d) < tiny:
            continue
        with np.errstate(all="ignore"):
            exact = -x.astype("f8") / d
            exact = np.where(np.abs(exact) < 2 * tiny, 0.0, exact) if dtype == "bf16" else exact
            wanted = [(exact * (1 + e)).astype(kind) for e in (-(2.0**-22), 0.0, 2.0**-22)]
            found = np.asarray(f(x, d))
            small = (np.abs(found.astype("f4")) <= 2.02 * tiny) & (exact == 0)
        near = np.any([found == w for w in wanted], axis=0) | (np.isnan(found) & np.isnan(exact))
        far = ~(near | small)
        assert not far.any(), f"{x[far][:3]} by {d!r}: {found[far][:3]}, {exact[far][:3]}"
        zeros = (x == 0) & np.isfinite(d) & (d != 0)
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(-x[zeros]) ^ np.signbit(d))


def test_many_quotients_are_rounded_as_divisions_are() -> None:
    """Significands of all kinds, by divisors of all kinds."""
    f = pf.compile(TWO.format("f32"))
    rng = np.random.default_rng(2)
    for _ in range(200):
        x, d = rng.uniform(1, 2, 4096).astype("f4"), np.float32(rng.uniform(1, 2))
        np.testing.assert_array_equal(f(x, x, d)[0], x / d)


def test_an_optimizer_is_right() -> None:
    f = pf.compile(ADAM)
    rng = np.random.default_rng(3)
    for n in (0, 1, 15, 100, 5000):
        p, m, v = rng.standard_normal((3, n)).astype("f4")
        v = np.abs(v)
        wanted = p - m / (np.sqrt(v.astype("f8")) / 0.3 + 1e-8)
        f(p, m, v, 0.3, 1e-8)
        np.testing.assert_allclose(p, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("divisor", [1.2, -3.0, 1e-30, 7e25, 3.0000001])
def test_quotients_by_constants_have_the_bits_of_a_division(divisor: float) -> None:
    x = any_floats("f32", 20_000, 5)
    text = TWO.format("f32").replace(", d: f32", "").replace("x[i] / d", f"x[i] / {divisor!r}")
    assert "quotient" in operations(text, N=x.size)
    found = np.asarray(pf.compile(text, target="cpu")(x, np.ones_like(x))[0])  # type: ignore[index]
    with np.errstate(all="ignore"):
        exact = x / np.float32(divisor)
    whole = ~(np.abs(exact) < 1e-30) & ~(np.abs(x) < 1e-30) | (x == 0)
    np.testing.assert_array_equal(found[whole], exact[whole])
