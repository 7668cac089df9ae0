"""Numbers of counters: known answers, equal everywhere; places; bits of floats."""

from __future__ import annotations

import shutil

import ml_dtypes
import numpy as np
import pytest

import polyfuse as pf
from polyfuse.api import LAYERS
from polyfuse.builder import fn
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.runtime.numpy_baseline import baseline
from polyfuse.runtime.reference.evaluate import evaluate

TARGETS = ["interpret", *(["cpu", "emulate"] if shutil.which("g++") else [])]
# Random123, tests/kat_vectors: counter, key, words.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(w, 16) for w in text.split()]


@pytest.mark.parametrize("target", TARGETS)
def test_known_answers_of_random123(target: str) -> None:
    f = pf.compile(
        """op f(key: u64[N], hi: u64[N], lo: u64[N]) -> (y: u32[N, 4], one: u32[N], same: bool[N]) {
          y[i, w] = philox4x32(key[i], hi[i], lo[i], w)
          one[i] = philox4x32(key[i], hi[i], lo[i], 2)
          same[i] = philox4x32(key[i], hi[i], lo[i], 1) == philox4x32(key[i], hi[i], lo[i], 5 - N - 1)
        }""",
        target=target,
    )
    counters, keys = [words(c) for c, _, _ in KNOWN], [words(k) for _, k, _ in KNOWN]
    key = np.array([k[0] | k[1] << 32 for k in keys], np.uint64)
    low = np.array([c[0] | c[1] << 32 for c in counters], np.uint64)
    high = np.array([c[2] | c[3] << 32 for c in counters], np.uint64)
    y, one, same = f(key, high, low)
    assert [[f"{int(w):08x}" for w in row] for row in y] == [answer.split() for _, _, answer in KNOWN]
    assert (one == y[:, 2]).all() and same.all()


TEXT = """
op f[N: size](seed: u64, k: i32[M]) -> (u: f32[N, M], g: f32[N, M], kept: f32[N]) where N >= 1, M >= 1 {
  u[n, m] = uniform(seed, 3, position(n, m))
  g[n, m] = normal(seed, k[m], position(n, m))
  kept[n] = mean[m in 0..M](1.0 if uniform(seed, 4, position(n, m)) >= 0.25 else 0.0)
}
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layers", [(), LAYERS], ids=str)
def test_numbers_are_the_same_everywhere(target: str, layers: tuple[str, ...]) -> None:
    k = np.arange(-2, 65, dtype=np.int32)
    u, g, kept = pf.compile(TEXT, target=target, layers=layers)(2**64 - 5, k, N=300)
    graph = pf.parse(TEXT).op("f").graph()
    inputs, sizes = {"seed": np.uint64(2**64 - 5), "k": k}, {"N": 300, "M": 67}
    want = evaluate(graph, sizes, inputs)
    other = baseline(graph, sizes)(inputs)
    np.testing.assert_array_equal(u, want["u"].value)
    np.testing.assert_array_equal(u, other["u"])
    assert not want["u"].undecided.any() and (u * 2**24 == np.rint(u * 2**24)).all()
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.01 and len(np.unique(u)) > 19_000
    assert abs(g.mean()) < 0.03 and abs(g.std() - 1) < 0.02 and np.isfinite(g).all()
    np.testing.assert_allclose(g, want["g"].value, 1e-5, 1e-5)
    assert abs(kept.mean() - 0.75) < 0.02


@pytest.mark.parametrize("target", TARGETS)
def test_places_of_any_rank(target: str) -> None:
    text = """op f(x: f32[B..., H]) -> (y: i64[B..., H], z: i64[H], o: i64, s: i64[H]) {
      y[b..., h] = position(b..., h)
      z[h] = position(h) * 10
      o = position()
      s[h] = sum[b...](position(b...) + i64(x[b..., h]))
    }"""
    for shape in ((7,), (3, 5), (2, 3, 4), (2, 0, 3)):
        y, z, o, s = pf.compile(text, target=target)(np.zeros(shape, np.float32))
        count = int(np.prod(shape))
        np.testing.assert_array_equal(y, np.arange(count).reshape(shape))
        np.testing.assert_array_equal(z, 10 * np.arange(shape[-1]))
        rows = count // shape[-1]
        assert o == 0 and (s == rows * (rows - 1) // 2).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("t", ["f64", "f32", "f16", "bf16"])
def test_bits_come_and_go(target: str, t: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16) if t == "bf16" else np.dtype(f"f{int(t[1:]) // 8}")
    unsigned = np.dtype(f"u{kind.itemsize}")
    w = f"u{8 * kind.itemsize}"
    text = f"""op f(x: {t}[N], u: {w}[N]) -> (b: {w}[N], y: {t}[N], back: {t}[N]) {{
      b[i] = bits(x[i])
      y[i] = from_bits({t}, u[i])
      back = g(x)
    }}
    op g[F: float](x: F[N]) -> (y: F[N]) {{ y[i] = from_bits(F, bits(x[i]) & bits(x[i])) }}"""
    ends = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, 1e-7, 65504.0]).astype(kind)
    x = np.concatenate([ends, np.random.default_rng(1).standard_normal(60).astype(kind)])
    b, y, back = pf.compile(text, op="f", target=target, denormals="keep")(x, x[::-1].copy().view(unsigned))
    np.testing.assert_array_equal(b, x.view(unsigned))
    np.testing.assert_array_equal(y.view(unsigned), x[::-1].view(unsigned))
    np.testing.assert_array_equal(back.view(unsigned), x.view(unsigned))


def test_programs_may_have_operators_of_these_names() -> None:
    for name in ("bits", "from_bits", "position", "philox4x32", "uniform", "normal"):
        text = f"""op {name}(x: f32[N]) -> (y: f32[N]) {{ y[i] = x[i] + 1.0 }}
        op g(x: f32[N]) -> (z: f32[N]) {{
          z = {name}(x)
        }}"""
        assert pf.compile(text, op="g", target="interpret")(np.zeros(3, np.float32)).tolist() == [1.0] * 3


def test_functions_may_take_bits() -> None:
    text = """fn halved(x) = from_bits(f32, bits(x) - (1 << 23))
    op f(x: f32[N]) -> (y: f32[N]) { y[i] = halved(x[i]) }"""
    x = np.array([1.0, -3.5, 100.0], np.float32)
    np.testing.assert_array_equal(pf.compile(text, target="interpret")(x), x / 2)


def test_the_builder_writes_them() -> None:
    b = pf.ProgramBuilder()
    f = b.op("f")
    x, u = f.param("x", "f32", ("B...", "H")), f.param("u", "u32", "H")
    rows, h = f.index("b..."), f.index("h")
    y = f.result("y", "f32", ("B...", "H"))
    y[rows, h] = x[rows, h] * fn.uniform(7, 0, fn.position(rows, h)) + fn.from_bits(
        "f32", fn.bits(1.5) ^ u[h]
    )
    text = str(b)
    assert "uniform(7, 0, position(b..., h)) + from_bits(f32, bits(1.5) ^ u[h])" in text
    assert parse_text(text, "t.pf") == b.tree()
