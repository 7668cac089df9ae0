"""`inf`, `nan` and `pi`: numbers of the type that they stand beside, unless the operator has such a name."""

from __future__ import annotations

import math

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.diagnostics import DslError

TARGETS = ("cpu", "interpret", "emulate")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_values(target: str, dtype: str) -> None:
    text = f"""op f(x: {dtype}[N]) -> (y: {dtype}[N], low: bool[N]) {{
      y[i] = x[i] if i % 4 == 0 else -inf if i % 4 == 1 else nan if i % 4 == 2 else pi
      low[i] = -inf < x[i] < pi
    }}"""
    numpy_type = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[dtype]
    x = np.array([5.0, 1, 2, 3, -math.inf, math.nan, math.inf, 0.5], numpy_type)
    y, low = pf.compile(text, target=target)(x)
    np.testing.assert_array_equal(y[0::4], x[0::4])
    assert np.all(np.isneginf(y[1::4])) and np.all(np.isnan(y[2::4]))
    assert np.all(y[3::4] == numpy_type(math.pi))
    np.testing.assert_array_equal(low, (-math.inf < x) & (x < math.pi))


def test_names_of_the_operator_come_first() -> None:
    text = """op f(pi: f32[nan], inf: f32) -> (y: f32[nan]) {
      y[k] = pi[k] * inf + nan
    }"""
    np.testing.assert_array_equal(pf.compile(text)(np.float32([1, 2]), 3.0), [5, 8])
    variables = "op f(x: f32[N]) -> (y: f32[N]) { y[inf] = x[inf] + sum[pi](x[pi]) }"
    np.testing.assert_array_equal(pf.compile(variables)(np.float32([1, 2])), [4, 5])


def test_arguments_of_operators() -> None:
    text = """op cap(x: f32[N], most: f32) -> (y: f32[N]) { y[i] = min(x[i], most) }
    op f(x: f32[N]) -> (y: f32[N], z: f32[N]) {
      y = cap(x, inf)
      z = cap(x, most=-pi)
    }"""
    y, z = pf.compile(text, op="f")(np.float32([1, math.inf]))
    np.testing.assert_array_equal(y, [1, math.inf])
    np.testing.assert_array_equal(z, np.float32([-math.pi, -math.pi]))


@pytest.mark.parametrize(
    ("right", "code"), [("k[n] * inf", "PF205"), ("k[pi]", "PF225"), ("k[n] + infinity", "PF201")]
)
def test_they_are_floats(right: str, code: str) -> None:
    with pytest.raises(DslError) as error:
        pf.compile(f"op f(k: i32[N]) -> (y: i32[N]) {{ y[n] = {right} }}")
    assert error.value.diagnostics[0].code == code
