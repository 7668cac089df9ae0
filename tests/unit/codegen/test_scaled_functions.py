"""Constants that disappear into the coefficients of erf and tanh: which, and what is left of the errors."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.math.conversions import scaled_name
from polyfuse.codegen.math.prelude import FUNCTIONS, prelude
from polyfuse.codegen.transforms.strength_reduction import scale_moved_inward, scaled_function
from polyfuse.ir.dtypes import F32, F64
from polyfuse.ir.index_expr import IVar
from polyfuse.ir.tensor_graph import Apply, Const, Expr, Read

GXX = shutil.which("g++")
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += ["-ffp-contract=fast", "-nostdlib"]
X, Y = Read("x", (IVar("i"),), F32), Read("y", (IVar("i"),), F32)


def number(value: float) -> Const:
    return Const(value, F32)


def mul(a: Expr, b: Expr) -> Apply:
    return Apply("mul", (a, b), F32)


def add(a: Expr, b: Expr) -> Apply:
    return Apply("add", (a, b), F32)


def erf(a: Expr) -> Apply:
    return Apply("erf", (a,), F32)


def test_a_power_of_two_moves_into_a_sum_and_nothing_else_does() -> None:
    half, one = number(0.5), number(1.0)
    shared = add(half, mul(half, erf(X)))
    assert scale_moved_inward(mul(mul(half, Y), add(one, erf(X)))) == mul(Y, shared)
    assert scale_moved_inward(mul(add(one, erf(X)), mul(Y, half))) == mul(Y, shared)
    assert scale_moved_inward(mul(half, add(one, erf(X)))) == shared
    assert scale_moved_inward(mul(half, add(erf(Y), erf(X)))) == add(mul(half, erf(Y)), mul(half, erf(X)))
    kept = (
        mul(mul(number(0.3), Y), add(one, erf(X))),
        mul(mul(number(2.0), Y), add(one, erf(X))),
        mul(mul(number(0.0), Y), add(one, erf(X))),
        mul(mul(half, Y), add(erf(Y), erf(X))),  # a small sum would be subnormal before it is multiplied
        mul(mul(half, Y), add(number(0.0), erf(X))),
        mul(mul(half, Y), add(X, erf(X))),
        mul(mul(half, Y), erf(X)),
        mul(half, Y),
        add(half, erf(X)),
    )
    for e in kept:
        assert scale_moved_inward(e) is e


def test_what_is_printed_as_a_scaled_function() -> None:
    k, one = number(0.75), number(1.0)
    assert scaled_function(erf(mul(X, k))) == scaled_function(erf(mul(k, X))) == ("erf", X, k, one)
    assert scaled_function(mul(number(-0.25), erf(mul(X, k)))) == ("erf", X, k, number(-0.25))
    assert scaled_function(mul(number(0.5), erf(X))) == ("erf", X, one, number(0.5))
    d = Apply("div", (X, number(1.4142135)), F32)
    assert scaled_function(erf(d)) == ("erf", X, Const(1 / float(np.float32(1.4142135)), F64), one)
    for e in (erf(X), erf(mul(X, Y)), erf(mul(X, number(1e-9))), erf(mul(X, number(40.0))), mul(k, X)):
        assert scaled_function(e) is None
    wide = Apply("erf", (Apply("mul", (Read("x", (), F64), Const(0.75, F64)), F64),), F64)
    assert scaled_function(wide) is None


CASES = {
    "erf": [(1.0, 0.5), (0.70710678, 0.5), (-0.3, -0.25), (16.0, 1.0)],
    "tanh": [(0.79788458, 0.5), (2.0, 1.0)],
}


@pytest.mark.parametrize("machine", ["native", "x86-64"])
@pytest.mark.parametrize("op", list(CASES))
def test_errors_are_those_of_the_function(op: str, machine: str, tmp_path: Path) -> None:
    if GXX is None:
        pytest.skip("no g++")
    name = scaled_name(op)
    text = prelude([name])
    for j, (k, c) in enumerate(CASES[op]):
        text += f'extern "C" void f{j}(const float* x, float* y, long n) {{\n'
        text += f"  for (long i = 0; i < n; ++i) y[i] = {name}(x[i], {k}f, {c}f);\n}}\n"
    (tmp_path / "s.cpp").write_text(text)
    command = [GXX, *FLAGS, f"-march={machine}", str(tmp_path / "s.cpp"), "-o", str(tmp_path / "s.so")]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"no compiler for {machine}")
    library = ctypes.CDLL(str(tmp_path / "s.so"))
    # Every magnitude up to where the function is 1, densely.
    x = np.arange(0x33000000, 0x41A00000, 997, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x, -x, [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38]]).astype("f4")
    for j, (k, c) in enumerate(CASES[op]):
        got = np.empty_like(x)
        getattr(library, f"f{j}")(*(ctypes.c_void_p(a.ctypes.data) for a in (x, got)), ctypes.c_long(x.size))
        function = np.vectorize(getattr(math, op), otypes=[float])
        want = float(np.float32(c)) * function(x.astype(float) * float(np.float32(k)))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        number = ~np.isnan(want)
        unit = np.spacing(np.abs(want[number]).astype("f4")).astype(float)
        assert (np.abs(got[number] - want[number]) / unit).max() <= FUNCTIONS[f"pf_{op}_f32"]
        assert np.abs(got[number]).max() <= abs(c)
        np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


PROGRAM = """op f(x: f32[T, H], b: f32[H], h: f16[T, H])
    -> (y: f32[T, H], z: f32[T, H], w: f16[T, H], v: f32[T]) {
  s[t, h] = x[t, h] + b[h]
  y[t, h] = 0.5 * s[t, h] * (1.0 + erf(s[t, h] / 1.4142135623730951))
  z[t, h] = (1.0 - tanh(0.7978845608 * s[t, h])) * (s[t, h] * 0.25)
  w[t, h] = f16(f32(h[t, h]) * 0.5 * (1.0 + erf(f32(h[t, h]) * 0.7071067811865476)))
  v[t] = sum[h](0.5 * (1.0 + erf(x[t, h])))
}"""


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), (5, 67), (3, 200)])
def test_programs(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(5)
    x, b = rng.standard_normal(shape).astype("f4") * 3, rng.standard_normal(shape[1]).astype("f4")
    h = rng.standard_normal(shape).astype("f2")
    if x.size > 20:
        x[0, :4], h[0, :3] = [np.inf, -np.inf, np.nan, 0.0], [np.inf, -np.inf, np.nan]
    f: Any = pf.compile(PROGRAM)
    y, z, w, v = f(x, b, h)
    e = np.vectorize(math.erf, otypes=[float])
    s, wide = (x + b).astype(float), h.astype(float)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(y, 0.5 * s * (1 + e(s / math.sqrt(2))), rtol=1e-6, atol=2e-6)
        np.testing.assert_allclose(z, (1 - np.tanh(0.7978845608 * s)) * s * 0.25, rtol=1e-6, atol=2e-6)
        gelu = (wide * 0.5 * (1 + e(wide * 0.7071067811865476))).astype("f2")
        np.testing.assert_allclose(w, gelu, rtol=2e-3, atol=1e-6)
        np.testing.assert_allclose(v, (0.5 * (1 + e(x.astype(float)))).sum(1), rtol=1e-5, atol=2e-6)
