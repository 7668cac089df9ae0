"""Integers without a sign and operations on bits, on all targets, against NumPy and the reference."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.api import LAYERS
from polyfuse.ir.dtypes import ALL, BY_NAME, DType
from polyfuse.runtime.numpy_baseline import baseline
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

TARGETS = ["interpret", *(["cpu", "emulate"] if shutil.which("g++") else [])]
INTEGERS = [t.name for t in ALL if t.is_integer]
UNSIGNED = ["u16", "u32", "u64"]
FLOATS = [t.name for t in ALL if t.is_float]
TEXT = f"""
op f[U: int](a: U[N], b: U[N], c: U[N]) -> (
    x: U[N], o: U[N], n: U[N], l: U[N], r: U[N], v: U[N], q: U[N], m: U[N], t: U[N], p: U[N], e: U[N],
    less: bool[N], total: U, product: U, most: U, least: U, at: i64,
    {", ".join(f"y_{t}: {t}[N]" for t in FLOATS)}
) where N >= 1 {{
  x[i] = a[i] ^ b[i] | ~c[i]
  o[i] = (a[i] | b[i]) - c[i] * a[i]
  n[i] = a[i] & b[i]
  l[i] = a[i] << b[i]
  r[i] = a[i] >> b[i]
  v[i] = -a[i] << 3 >> 2
  q[i] = a[i] // c[i]
  m[i] = a[i] % c[i]
  t[i] = max(min(a[i], b[i]), c[i]) // 7 + abs(a[i]) % 16 + sign(b[i])
  p[i] = a[i] ** (c[i] & 7)
  e[i] = a[i] if a[i] > b[i] else U(f64(b[i] & 0x7f))
  less[i] = a[i] < b[i]
  total = sum[i](a[i] * b[i])
  product = prod[i](a[i] | 1)
  most = max[i](a[i])
  least = min[i](a[i] >> 1)
  at = argmax[i](a[i])
{chr(10).join(f"  y_{t}[i] = {t}(a[i])" for t in FLOATS)}
}}
"""


def operands(t: DType, n: int) -> list[np.ndarray]:
    """Any numbers, and beside the ends of the type counts of places around its width."""
    rng, (low, high) = np.random.default_rng(n + t.bits), t.limits
    a, b, c = (rng.integers(low, high, n, t.numpy, endpoint=True) for _ in range(3))
    ends = [low, high, 0, 1, high - 1, low + 1, high // 2, 3]
    counts = [0, t.bits - 1, t.bits, t.bits + 1, high, 1, 7, low]
    for array, values in ((a, ends), (b, counts), (c, [0, 1, high, low, 3, high - 1, 8, 16])):
        array[: len(values)] = values[:n]
        if array is not b:
            array[len(values) : 2 * len(values)] = rng.permutation(np.array(values, t.numpy))[
                : max(0, n - len(values))
            ]
    b[8::2] &= t.numpy.type(t.bits - 1)
    return [np.concatenate([x[:1], x])[1:] for x in (a, b, c)]


@pytest.mark.thin(3)
@pytest.mark.parametrize("n", [1, 37, 300])
@pytest.mark.parametrize("t", INTEGERS)
def test_targets_agree_with_the_reference(t: str, n: int) -> None:
    a, b, c = operands(BY_NAME[t], n)
    graph = pf.parse(TEXT).op("f").graph({"U": BY_NAME[t]})
    want = evaluate(graph, {"N": n}, {"a": a, "b": b, "c": c}, checked=False)
    with np.errstate(all="ignore"):
        known = {
            "x": a ^ b | ~c, "o": (a | b) - c * a, "n": a & b, "l": np.left_shift(a, b),
            "r": np.right_shift(a, b), "less": a < b, "total": (a * b).sum(dtype=a.dtype), "most": a.max(),
            "q": np.where(c == 0, 0, a // np.where(c == 0, 1, c)).astype(a.dtype), "at": a.argmax(),
            **{f"y_{f}": a.astype(f"float{f[1:]}") for f in ("f32", "f64", "f16")[: 2 + (t[1:] in "816")]},
        }  # fmt: skip
    for name, value in known.items():
        assert want[name].value.dtype.kind == "f" or np.array_equal(want[name].value, value), name
    for target in TARGETS:
        for layers in ((), LAYERS):
            results = pf.compile(TEXT, target=target, layers=layers)(a, b, c)
            for name, got in zip(want, results, strict=True):
                if name != "y_f16":  # of numbers around 65520
                    found = agrees(np.asarray(got), want[name], graph.tensor(name).dtype)
                    assert found, (target, layers, name, found.message)
                assert name not in known or np.array_equal(got, known[name]), (target, layers, name)
    with np.errstate(all="ignore"):
        for name, got in baseline(graph, {"N": n})({"a": a, "b": b, "c": c}).items():
            assert name not in known or np.array_equal(got, known[name]), name


@pytest.mark.parametrize("t", UNSIGNED)
@pytest.mark.parametrize("target", TARGETS)
def test_gathers_and_scatters(t: str, target: str) -> None:
    """An index is clamped at the end, whatever 64 bits it has."""
    text = f"""op f(x: f32[N], k: {t}[M], a: {t}[M])
        -> (y: f32[M], s: {t}[N], h: {t}[N], least: {t}[N]) where N >= 8 {{
      y[i] = x[k[i]] * 2.0
      s[k[i]] += a[i]
      h[k[i] & 7] max= a[i]
      least[n] = 500
      least[min(k[i], 3)] min= a[i]
    }}"""
    rng, dtype = np.random.default_rng(1), BY_NAME[t]
    x, top = rng.standard_normal(9).astype(np.float32), dtype.limits[1]
    k = rng.integers(0, 9, 70, dtype.numpy)
    a = rng.integers(0, top, 70, dtype.numpy, endpoint=True)
    s, h, least = np.zeros(9, dtype.numpy), np.zeros(9, dtype.numpy), np.full(9, 500, dtype.numpy)
    np.add.at(s, k, a), np.maximum.at(h, k & 7, a), np.minimum.at(least, np.minimum(k, 3), a)
    f = pf.compile(text, target=target)
    for got, want in zip(f(x, k, a), (x[k] * 2, s, h, least), strict=True):
        np.testing.assert_array_equal(got, want)
    k[:3] = top, top // 2 + 1, 9
    if target != "interpret":
        np.testing.assert_array_equal(f(x, k, a)[0], x[np.minimum(k, 8)] * 2)
    with pytest.raises(pf.PolyfuseError, match="PF450"):
        pf.compile(text, target=target, checked=True)(x, k, a)


@pytest.mark.parametrize("target", TARGETS)
def test_scalars_go_to_the_end_of_the_type(target: str) -> None:
    text = """op f(p: u64, q: u32, r: u16, d: u64 = 0xffff_ffff_ffff_ffff) -> (y: u64) {
      y = p ^ u64(q) << 32 ^ u64(r) ^ d
    }"""
    f = pf.compile(text, target=target)
    for p, q, r in ((2**64 - 1, 2**32 - 1, 2**16 - 1), (5, 6, 7), (2**63, 0, 0)):
        want = p ^ q << 32 ^ r ^ 2**64 - 1
        for _ in range(3):
            assert int(f(p, q, r)) == int(f(np.uint64(p), np.uint32(q), np.uint16(r))) == want
    for bad in ((-1, 0, 0), (2**64, 0, 0), (0, 2**32, 0), (0, -1, 0), (0, 0, 2**16)):
        with pytest.raises(pf.PolyfuseError, match="PF402"):
            f(*bad)
