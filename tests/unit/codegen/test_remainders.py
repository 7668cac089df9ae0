"""What is left of a row of functions is one more vector, which computes some elements again."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from equivalence import assert_compiled, cpu_source

import polyfuse as pf

GELU = """op f(x: {0}[T, H], b: {0}[H]) -> (y: {0}[T, H]) {{
  s[t, h] = x[t, h] + b[h]
  y[t, h] = 0.5 * s[t, h] * (1.0 + erf(s[t, h] * 0.7071))
}}"""
QUOTIENT = "op f(x: f32[T, H], b: f32[H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] / (1.5 + b[h] * b[h]) }"
CHEAP = "op f(x: f32[T, H], b: f32[H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] * 2.0 + b[h] }"
# An element that is computed again is added once.
GRADIENT = """op f(dy: f32[T, H], x: f32[T, H]) -> (dx: f32[T, H], db: f32[H], dg: f32[H]) {
  dx[t, h] = dy[t, h] * exp(-x[t, h] * x[t, h])
  db[h] = sum[t](dx[t, h])
  dg[h] = sum[t](dy[t, h] * tanh(x[t, h]))
}"""
# What is written is read: no element may be computed again.
IN_PLACE = "op f(inout x: f32[T, H], b: f32[H]) { x[t, h] = exp(x[t, h] * 0.5) + b[h] }"
ADDED = "op f(inout g: f32[T, H], x: f32[T, H]) { g[t, h] = g[t, h] + sigmoid(x[t, h]) }"
PROGRAMS = {
    "gelu": GELU.format("f32"),
    "gelu of f64": GELU.format("f64"),
    "quotient": QUOTIENT,
    "cheap": CHEAP,
    "gradient": GRADIENT,
    "in place": IN_PLACE,
    "added": ADDED,
}


def ends(text: str, **sizes: int) -> int:
    """Loops over lanes that begin in the midst of a row."""
    found = re.findall(r"for \(pf_i64 (\w+) = (\d+); \1 < (\d+); \+\+\1\)", cpu_source(text, **sizes))
    return sum(int(low) > 0 and int(high) == sizes["H"] for _, low, high in found)


@pytest.mark.parametrize(
    ("program", "h", "expected"),
    [
        ("gelu", 20, 1),
        ("gelu", 31, 1),
        ("gelu", 100, 1),
        ("gelu", 64, 0),  # whole vectors
        ("gelu", 24, 0),  # and a half
        ("gelu", 33, 0),  # and a single element
        ("quotient", 31, 1),
        ("cheap", 31, 0),
        ("gradient", 31, 1),
        ("in place", 31, 0),
        ("added", 31, 0),
    ],
)
def test_which_rows_have_such_an_end(program: str, h: int, expected: int) -> None:
    assert ends(PROGRAMS[program], T=3000, H=h) == expected


@pytest.mark.thin(4)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("t", [1, 7, 900])
@pytest.mark.parametrize("h", [16, 17, 18, 20, 23, 31, 50, 77, 127, 600])
def test_results_are_right(program: str, t: int, h: int) -> None:
    assert_compiled(PROGRAMS[program], T=t, H=h)


def test_long_rows_keep_nothing_on_the_stack() -> None:
    assert "kept" in cpu_source(GRADIENT, T=3000, H=1001)
    assert "kept" not in cpu_source(GRADIENT, T=3000, H=9001)


def test_arguments_may_share_memory_with_results() -> None:
    """`out=` may be an argument: then no element may be computed again."""
    rng = np.random.default_rng(3)
    x, b = rng.standard_normal((500, 31)).astype("f4"), rng.standard_normal(31).astype("f4")
    f: Any = pf.compile(QUOTIENT)
    wanted = x / (np.float32(1.5) + b * b)
    found = f(x, b, out=x)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    np.testing.assert_allclose(x, wanted, rtol=1e-6)
