"""Rows of f16 and bf16 on a CPU: converted by vectors, with the bits of single conversions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.math.conversions import conversions
from polyfuse.codegen.math.prelude import CPU_FUNCTIONS
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.stitching.stitching import Stitching

TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
COPY = "op f(x: {0}[T, H], b: {0}[H]) -> (y: {0}[T, H]) {{ y[t, h] = x[t, h] + b[h] }}"
NORM = """op f(x: {0}[T, H]) -> (y: {0}[T, H], m: {0}[T]) {{
  m[t] = max[h](x[t, h])
  s[t] = sum[h](exp(x[t, h] - m[t]))
  y[t, h] = exp(x[t, h] - m[t]) / s[t]
}}"""
PIECES = """op f(x: f32[H]) -> (y: {0}[3, H], z: {0}[H + 1]) {{
  y[0, h] = {0}(x[h]); y[1, h] = {0}(x[h] * 2.0); y[2, h] = {0}(x[h] * 3.0)
  z[h] = {0}(x[h] * 4.0) for h in 0..H
  z[H] = {0}(0.0)
}}"""
IN_PLACE = "op f(inout x: {0}[T, H]) {{ x[t, h] = x[t, h] * 2.0 }}"
GATHER = "op f(x: {0}[T, H], i: i64[N]) -> (y: {0}[N, H]) {{ y[n, h] = x[i[n], h] + x[i[n], H-1-h] }}"
SHIFTED = "op f(x: {0}[T, H]) -> (y: {0}[T, H]) {{ y[t, h] = x[t, h+1] - x[t, h] if h + 1 < H else x[t, h] }}"
BORDER = """op f(x: {0}[T, H]) -> (y: {0}[T, H], m: f32[T]) {{
  y[t, h] = {0}(f32(x[t, h]) - (f32(x[t, h - 1]) if h >= 1 else 0.0))
  m[t] = max[h](f32(x[t, h]))
}}"""


def every_value(kind: str) -> Any:
    """All numbers of a type, infinities, NaN and subnormal ones too."""
    return np.arange(1 << 16, dtype=np.uint16).view(TYPES[kind])


def source(text: str, kind: str, core: Core | None = None, **sizes: int) -> str:
    graph = instantiate((parse_text(text.format(kind)),), "f")
    way, knobs = Stitching(), CpuKnobs(core=core)
    compilation = Compilation(graph, sizes, LoopFusion(), pf.Options(), stitching=way, knobs=knobs)
    return emitted(Watch(pf.Options()), compilation)[1].source


@pytest.mark.parametrize("denormals", ["flush", "keep"])
@pytest.mark.parametrize("kind", TYPES)
def test_every_value_comes_through(kind: str, denormals: Any) -> None:
    x = every_value(kind).reshape(64, 1024)
    f = pf.compile(COPY.format(kind), denormals=denormals)
    for x_, got in (
        (x, f(x, np.zeros(1024, x.dtype))),
        (x[:, :999], f(x[:, :999].copy(), np.zeros(999, x.dtype))),
    ):
        ok = ~np.isnan(x_)
        if denormals == "flush" and kind == "bf16":  # its subnormal numbers are those of f32, which are added
            ok &= np.abs(x_.astype("f4")) >= 2.0**-126
        np.testing.assert_array_equal(got[ok].astype("f4"), x_[ok].astype("f4"))
        assert np.isnan(got[np.isnan(x_)]).all()


@pytest.mark.parametrize("kind", TYPES)
def test_first_elements_of_rows_that_go_together(kind: str) -> None:
    """The rows are lanes there: no element is one for all of them."""
    x = np.random.default_rng(3).standard_normal((2000, 63)).astype(TYPES[kind])
    before = np.pad(x.astype("f4"), ((0, 0), (1, 0)))[:, :-1]
    y, m = pf.compile(BORDER.format(kind))(x)
    np.testing.assert_array_equal(y.view("u2"), (x.astype("f4") - before).astype(x.dtype).view("u2"))
    np.testing.assert_array_equal(m, x.astype("f4").max(1))


@pytest.mark.parametrize("h", [10, 80, 100, 333])
@pytest.mark.parametrize("kind", TYPES)
def test_results_are_rounded_to_nearest(kind: str, h: int) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((77, h)) * 10.0 ** rng.integers(-7, 5, (77, h))).astype(TYPES[kind])
    b = rng.standard_normal(h).astype(TYPES[kind])
    want = (x.astype("f4") + b.astype("f4")).astype(TYPES[kind])
    np.testing.assert_array_equal(pf.compile(COPY.format(kind))(x, b).view("u2"), want.view("u2"))


@pytest.mark.parametrize(
    "value", ["x[t, h] * b[h]", "max(x[t, h], b[h])", "-x[t, h]", "x[t, h] if b[h] < 1 else b[h]"]
)
def test_only_what_arithmetic_flushed_is_known_to_be_normal(value: str) -> None:
    text = COPY.replace("x[t, h] + b[h]", value)
    flushing, keeping = (source(text, "bf16", Core(flushes=f), T=8, H=300) for f in (True, False))
    assert ("pf_narrow_normal_bf16(&" in flushing) == ("*" in value)
    assert "narrow_normal" not in keeping
    assert "narrow_normal" not in source(text, "f16", Core(flushes=True), T=8, H=300)


@pytest.mark.parametrize("denormals", ["flush", "keep"])
def test_subnormal_results_of_bf16(denormals: Any) -> None:
    """Products that are subnormal are there, or 0; what is only chosen is there in any case."""
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((9, 300)) * 2.0 ** rng.integers(-136, -118, (9, 300))).astype(TYPES["bf16"])
    b = np.full(300, 0.75, x.dtype)
    product = x.astype("f4") * np.float32(0.75)
    tiny = np.abs(product) < 2.0**-126
    assert 100 < tiny.sum() < 2000
    got = pf.compile(COPY.format("bf16").replace("+", "*"), denormals=denormals)(x, b)
    want = np.where(tiny & (denormals == "flush"), 0.0, product).astype(x.dtype)
    np.testing.assert_array_equal(got.astype("f4"), want.astype("f4"))
    chosen = COPY.format("bf16").replace("x[t, h] + b[h]", "x[t, h] if b[h] < 1.0 else b[h]")
    got = pf.compile(chosen, denormals=denormals)(x, b)
    np.testing.assert_array_equal(got.view("u2"), x.view("u2"))


@pytest.mark.thin(2)
@pytest.mark.parametrize("h", [1, 15, 64, 67, 200])
@pytest.mark.parametrize("kind", TYPES)
def test_rows(kind: str, h: int) -> None:
    rng = np.random.default_rng(h)
    x = rng.standard_normal((9, h)).astype(TYPES[kind])
    y, m = pf.compile(NORM.format(kind))(x)
    wide = x.astype("f8")
    e = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_array_equal(m.astype("f8"), wide.max(1))
    np.testing.assert_allclose(y.astype("f8"), e / e.sum(1, keepdims=True), rtol=1e-2, atol=1e-4)
    z = x.copy()
    pf.compile(IN_PLACE.format(kind))(z)
    np.testing.assert_array_equal(z.astype("f4"), 2 * x.astype("f4"))
    i = rng.integers(0, 9, 13)
    got = pf.compile(GATHER.format(kind))(x, i)
    np.testing.assert_array_equal(
        got.astype("f4"), (x[i].astype("f4") + x[i, ::-1].astype("f4")).astype(TYPES[kind]).astype("f4")
    )
    got = pf.compile(SHIFTED.format(kind))(x)
    want = x.astype("f4")
    want[:, :-1] = want[:, 1:] - want[:, :-1]
    np.testing.assert_array_equal(got.astype("f4"), want.astype(TYPES[kind]).astype("f4"))


@pytest.mark.parametrize("h", [1, 9, 300, 40000])
@pytest.mark.parametrize("kind", TYPES)
def test_several_rows_of_a_result_are_converted_in_one_loop(kind: str, h: int) -> None:
    x = np.random.default_rng(h).standard_normal(h).astype(np.float32)
    y, z = pf.compile(PIECES.format(kind))(x)
    want = np.stack([x, x * np.float32(2), x * np.float32(3)]).astype(TYPES[kind])
    np.testing.assert_array_equal(y.astype("f4"), want.astype("f4"))
    np.testing.assert_array_equal(z[:-1].astype("f4"), (x * np.float32(4)).astype(TYPES[kind]).astype("f4"))
    assert source(PIECES, kind, H=40000).count(f"pf_narrow_{kind}(&b_y[") == 3


def test_strided_arrays() -> None:
    x = np.arange(40 * 300, dtype=np.float16).reshape(40, 300) % 1000
    f = pf.compile(COPY.format("f16"))
    b = np.ones(150, np.float16)
    np.testing.assert_array_equal(f(x[:, ::2], b), x[:, ::2] + 1)


def test_the_functions_are_of_the_prelude_and_used() -> None:
    assert set(conversions()) <= CPU_FUNCTIONS
    for kind in TYPES:
        text = source(NORM, kind, T=64, H=1024)
        assert f"pf_widen_{kind}(c1_w0, " in text and f"pf_narrow_{kind}(&" in text
