"""Floats of 8 bits: all of them, what is between them and beyond, on every target."""

from __future__ import annotations

import shutil

import ml_dtypes
import numpy as np
import pytest

import polyfuse as pf
from polyfuse.api import LAYERS
from polyfuse.ir.dtypes import BY_NAME, QUARTERS, DType
from polyfuse.ir.quarter_floats import LARGEST, rounded, stored
from polyfuse.runtime.numpy_baseline import baseline
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

TARGETS = ["interpret", *(["cpu", "emulate"] if shutil.which("g++") else [])]
NAMES = [t.name for t in QUARTERS]
TEXT = """
op f(x: f32[N], d: f64[N], h: f16[N], k: i32[N], a: {t}[N])
    -> (y: {t}[N], z: {t}[N], zh: {t}[N], zk: {t}[N], q: {o}[N], b: f32[N], c: f16[N], s: f32, u: f32[N]) {{
  y[i] = {t}(x[i])
  z[i] = {t}(d[i])
  zh[i] = {t}(h[i])
  zk[i] = {t}(k[i])
  q[i] = {o}(a[i])
  b[i] = a[i]
  c[i] = f16(a[i])
  s = sum[i](a[i])
  u[i] = a[i] * x[i] + 1.0
}}
"""


def every(t: DType) -> np.ndarray:
    return np.arange(256, dtype=np.uint8).view(t.numpy)


def numbers(t: DType) -> np.ndarray:
    """All numbers of the type, what is halfway between two of them, its neighbours, and what is beyond."""
    with np.errstate(invalid="ignore"):
        known = np.unique(every(t).astype(np.float32))
    known = known[np.isfinite(known)]
    middle = (known[1:] + known[:-1]) / 2
    beyond = [LARGEST[t] * k for k in (1 + 2.0**-20, 1.03125, 1.0625, 1.125, 2.0, 1e30)]
    ends = np.array([0.0, -0.0, np.inf, np.nan, 1e-9, 1e-40, *beyond], np.float32)
    around = [np.nextafter(middle, np.float32(k)) for k in (np.inf, -np.inf)]
    return np.concatenate([known, middle, *around, ends, -ends])


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """To the bit, but for what NaN it is."""
    with np.errstate(invalid="ignore"):
        nan = np.isnan(a.astype(np.float32)) & np.isnan(b.astype(np.float32))
    return bool(((a.view(np.uint8) == b.view(np.uint8)) | nan).all())


@pytest.mark.parametrize("t", NAMES)
def test_our_rounding_is_to_nearest_even_and_saturates(t: str) -> None:
    """As ml_dtypes rounds where it does not overflow."""
    kind, x = BY_NAME[t], numbers(BY_NAME[t])
    inside = np.abs(x) <= LARGEST[kind]
    with np.errstate(all="ignore"):
        assert same(stored(x[inside], kind), x[inside].astype(kind.numpy))
    assert (np.abs(rounded(x[~inside & ~np.isnan(x)], kind)) == LARGEST[kind]).all()
    assert np.isnan(rounded(np.nan, kind))


@pytest.mark.parametrize("layers", [(), LAYERS], ids=str)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("t", NAMES)
def test_casts_on_all_targets(t: str, target: str, layers: tuple[str, ...]) -> None:
    kind, other = BY_NAME[t], next(o for o in QUARTERS if o.name != t)
    text, x = TEXT.format(t=t, o=other), numbers(kind)
    a = np.resize(every(kind), x.size)
    with np.errstate(all="ignore"):
        d, h = x.astype(np.float64) * (1 + 2.0**-40), x.astype(np.float16)
        k = np.where(np.abs(x) < 1e9, x, 7).astype(np.int32)
        values = {"x": x, "d": d, "h": h, "k": k, "a": a}
        results = pf.compile(text, target=target, layers=layers)(*values.values())
        got = dict(zip(("y", "z", "zh", "zk", "q", "b", "c", "s", "u"), results, strict=True))
        sources = {"y": x, "z": d, "zh": h, "zk": k, "q": a.astype(np.float64)}
        for name, source in sources.items():
            assert same(got[name], stored(source, other if name == "q" else kind)), name
        np.testing.assert_array_equal(got["b"], a.astype(np.float32))
        np.testing.assert_array_equal(got["c"], a.astype(np.float16))
        graph, sizes = pf.parse(text).op("f").graph(), {"N": x.size}
        for name, want in evaluate(graph, sizes, values).items():
            found = agrees(np.asarray(got[name]), want, graph.tensor(name).dtype)
            assert found, (name, found.message)
        for name, value in baseline(graph, sizes)(values).items():
            assert name not in sources or same(value, got[name]), name


def test_infinities_that_are_loaded_stay() -> None:
    x = np.array([np.inf, -np.inf, 1.0], ml_dtypes.float8_e5m2)
    text = """op f(x: f8e5m2[N]) -> (y: f8e5m2[N], z: f32[N], cast: f8e5m2[N]) {
      y[i] = x[i]; z[i] = x[i]; cast[i] = f8e5m2(f32(x[i]))
    }"""
    for target in TARGETS:
        for layers in ((), LAYERS):
            y, z, cast = pf.compile(text, target=target, layers=layers)(x)
            assert y.tobytes() == x.tobytes() and z.tolist() == [np.inf, -np.inf, 1.0]
            assert cast.astype(np.float32).tolist() == [57344.0, -57344.0, 1.0]


@pytest.mark.parametrize("target", TARGETS)
def test_sums_and_scatters_round_once(target: str) -> None:
    text = """op f(x: f8e4m3fn[N], k: i32[N]) -> (s: f8e4m3fn[M], m: f8e4m3fn[M], y: f8e5m2[N])
        where M == 3, N >= 1 {
      s[k[i]] += x[i]
      m[k[i]] max= x[i]
      e[i] = exp(x[i] - max[j](x[j]))
      y[i] = f8e5m2(e[i] / sum[j](e[j]))
    }"""
    x = np.random.default_rng(1).standard_normal(67).astype(ml_dtypes.float8_e4m3fn)
    k = np.arange(67, dtype=np.int32) % 3
    got = pf.compile(text, target=target)(x, k)
    graph = pf.parse(text).op("f").graph()
    want = evaluate(graph, {"N": 67, "M": 3}, {"x": x, "k": k})
    for value, name in zip(got, ("s", "m", "y"), strict=True):
        w = want[name]
        assert agrees(np.asarray(value), w, graph.tensor(name).dtype), name
    sums = [x[k == n].astype(np.float64).sum() for n in range(3)]
    assert np.abs(got[0].astype(np.float64) - sums).max() <= np.abs(sums).max() / 16


def test_a_tensor_of_no_axes_is_refused() -> None:
    f = pf.compile("op f(x: f8e5m2[B...]) -> (y: f32[B...]) { y[b...] = x[b...] }", target="interpret")
    with pytest.raises(pf.PolyfuseError, match="elements of tensors"):
        f(np.zeros((), ml_dtypes.float8_e5m2))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_tensors_of_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(-4.0, 4.0).to(getattr(torch, name))
    t = "f8e4m3fn" if "4" in name[-5:] else "f8e5m2"
    y = pf.compile(f"op f(x: {t}[N]) -> (y: {t}[N]) {{ y[i] = x[i] }}", target="interpret")(x)
    assert y.dtype == x.dtype and y.float().tolist() == x.float().tolist()
