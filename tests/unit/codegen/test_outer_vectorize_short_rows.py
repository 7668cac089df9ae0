"""Rows of 5 to 12 elements are lanes, and their elements numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from equivalence import assert_compiled, cpu_source
from thinned import thinned

import polyfuse as pf

SOFTMAX = """op f(x: {0}[T, H]) -> (y: {0}[T, H]) where H >= 1 {{
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  y[t, h] = e[t, h] / sum[k](e[t, k])
}}"""
NORM = """op f(x: f32[T, H], r: f32[T, H], g: f32[H], b: f32[H]) -> (y: f32[T, H], s: f32[T]) where H >= 1 {
  z[t, h] = x[t, h] + r[t, h]
  m[t] = mean[h](z[t, h])
  v[t] = mean[h]((z[t, h] - m[t]) ** 2)
  s[t] = rsqrt(v[t] + 1e-5)
  y[t, h] = (z[t, h] - m[t]) * s[t] * g[h] + b[h]
}"""
HIGHEST = """op f(x: f32[T, H]) -> (y: f32[T], z: f32[T]) where H >= 1 {
  y[t] = max[h](x[t, h])
  z[t] = min[h](abs(x[t, h]))
}"""
LOG_SUM = """op f(x: f32[T, H]) -> (y: f32[T]) where H >= 1 {
  m[t] = max[h](x[t, h])
  y[t] = log(sum[h](exp(x[t, h] - m[t]))) + m[t]
}"""
SUM = "op f(x: f32[T, H], w: f32[H]) -> (y: f32[T]) { y[t] = sum[h](x[t, h] * w[h]) }"
# Rows of a tensor of three dims, of which those of the middle are read backwards.
TURNED = """op f(x: f32[B, T, H]) -> (y: f32[B, T, H]) where H >= 1 {
  s[b, t] = sum[h](x[b, T-1-t, h] ** 2) for t in 0..T
  y[b, t, h] = x[b, T-1-t, h] / (1.0 + sqrt(s[b, t])) for t in 0..T
}"""
# What is written is read under another name: no row may be stored before all of it is read.
IN_PLACE = """op f(inout x: f32[T, H], g: f32[H]) {
  s[t] = sum[h](x[t, h] * x[t, h])
  x[t, h] = x[t, h] * g[h] / (1.0 + sqrt(s[t]))
}"""
# A piece of each row is not computed, and the last element is stored apart.
PIECES = """op f(x: f32[T, H]) -> (y: f32[T, H]) where H >= 2 {
  s[t] = sum[h](exp(x[t, h]))
  y[t, h] = exp(x[t, h]) / s[t] for h in 0..H-1
  y[t, H-1] = s[t]
}"""
BEFORE = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](exp(x[t, h]))
  y[t, h] = (x[t, h-1] if h >= 1 else 0.0) / s[t]
}"""
# All rows add to sums, of which each lane has one of its own.
GRADIENT = """op f(dy: f32[T, H], x: f32[T, H]) -> (dx: f32[T, H], db: f32[H], dg: f32[H]) {
  dx[t, h] = dy[t, h] * exp(-x[t, h] * x[t, h])
  db[h] = sum[t](dx[t, h])
  dg[h] = sum[t](dy[t, h] * x[t, h])
}"""
NORM_GRADIENT = """op f(dy: f32[T, H], x: f32[T, H], g: f32[H], m: f32[T], r: f32[T])
    -> (dx: f32[T, H], dg: f32[H], db: f32[H]) where H >= 1 {
  z[t, h] = (x[t, h] - m[t]) * r[t]
  c[t] = mean[h](dy[t, h] * g[h])
  d[t] = mean[h](dy[t, h] * g[h] * z[t, h])
  dx[t, h] = r[t] * (dy[t, h] * g[h] - c[t] - z[t, h] * d[t])
  dg[h] = sum[t](dy[t, h] * z[t, h])
  db[h] = sum[t](dy[t, h])
}"""
# Sums of two types, and one of all rows, which is kept in double.
COUNTED = """op f(x: f32[T, H]) -> (y: f32[T, H], s: f32[H], n: i32[H], all: f32) {
  y[t, h] = exp(x[t, h])
  s[h] = sum[t](y[t, h])
  n[h] = sum[t](1 if x[t, h] > 0.5 else 0)
  all = sum[t, h](x[t, h] ** 2)
}"""
GELU = """op f(x: f32[T, H], b: f32[H]) -> (y: f32[T, H]) {
  s[t, h] = x[t, h] + b[h]
  y[t, h] = 0.5 * s[t, h] * (1.0 + erf(s[t, h] * 0.7071))
}"""
# Rows of several lengths: halves of one, a row that two loops write, and one of which the end is not read.
HALVES = """op f(x: f32[T, 2*H], g: f32[2*H]) -> (y: f32[T, H]) where H >= 1 {
  r[t] = rsqrt(mean[h](x[t, h] * x[t, h]) + 1e-6)
  a[t, h] = x[t, h] * r[t] * g[h] for h in 0..H
  y[t, h] = a[t, h] * sigmoid(a[t, h]) * x[t, h+H] * r[t] * g[h+H]
}"""
JOINED = """op f(x: f32[T, H], z: f32[T, H]) -> (y: f32[T, 2*H]) where H >= 1 {
  s[t] = sum[h](exp(x[t, h]))
  y[t, h] = exp(x[t, h]) / s[t] for h in 0..H
  y[t, h] = sigmoid(z[t, h-H]) * s[t] for h in H..2*H
}"""
ENDS = """op f(x: f32[T, H+2]) -> (y: f32[T, H]) where H >= 1 {
  m[t] = max[h in 0..H](x[t, h])
  y[t, h] = exp(x[t, h] - m[t]) for h in 0..H
}"""
SEVERAL = {"halves": HALVES, "joined": JOINED, "ends": ENDS}
PROGRAMS = {
    "softmax": SOFTMAX.format("f32"),
    "softmax of f64": SOFTMAX.format("f64"),
    "norm": NORM,
    "highest": HIGHEST,
    "log of sums": LOG_SUM,
    "sums": SUM,
    "turned": TURNED,
    "in place": IN_PLACE,
    "pieces": PIECES,
    "elements before": BEFORE,
    "gradient": GRADIENT,
    "gradient of a norm": NORM_GRADIENT,
    "functions": GELU,
    "sums of two types": COUNTED,
}


# The next row is there for all but the last one, and no condition on data may load it.
GUARDED = """op f(x: {0}[T, H], z: f32[T]) -> (y: {0}[T, H]) where H >= 1 {{
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t]) + (x[t+1, h] if t + 1 < T and z[t] > 0.0 else 0.0)
  y[t, h] = e[t, h] / sum[k](e[t, k])
}}"""
# Programs in floats of 16 bits, which are converted in lanes.
HALF = {
    f"{name} in {kind}": text.replace("f32", kind)
    for kind in ("f16", "bf16")
    for name, text in {
        "softmax": SOFTMAX.format("f32"),
        "norm": NORM,
        "highest": HIGHEST,
        "in place": IN_PLACE,
        "gradient": GRADIENT,
        "gradient of a norm": NORM_GRADIENT,
        "functions": GELU,
        "halves": HALVES,
        "sums of two types": COUNTED,
        "products": "op f(x: f32[T, H], g: f32[H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] * g[h] }",
    }.items()
}


def tiles(text: str, **sizes: int) -> int:
    """How often memory is turned around, or back."""
    return len(re.findall(r"pf_turn(?:_short)?<\d", cpu_source(text, **sizes)))


@pytest.mark.parametrize(
    ("program", "h", "expected"),
    [
        ("softmax", 5, 2),
        ("softmax", 12, 2),
        ("softmax", 4, 0),  # a statement for each element
        ("softmax", 13, 0),
        ("softmax of f64", 7, 2),
        ("softmax of f64", 8, 0),  # a vector
        ("norm", 8, 3),
        ("norm", 9, 0),
        ("highest", 6, 1),
        ("sums", 6, 1),
        ("sums", 9, 0),  # computes little
        ("turned", 5, 0),  # in two loops
        ("in place", 5, 0),
        ("gradient", 7, 3),
        ("gradient of a norm", 6, 3),
        ("functions", 7, 2),
        ("functions", 14, 2),
        ("functions", 12, 0),  # three quarters of a vector
    ],
)
def test_which_rows_are_lanes(program: str, h: int, expected: int) -> None:
    sizes = {"T": 4000, "H": h} | ({"B": 3} if program == "turned" else {})
    assert tiles(PROGRAMS[program], **sizes) == expected


@pytest.mark.thin(14)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("t", [0, 1, 15, 16, 17, 61, 4003])
@pytest.mark.parametrize("h", [5, 6, 7, 8, 9, 11, 12, 15])
def test_results_are_right(program: str, t: int, h: int) -> None:
    sizes = {"T": t, "H": h} | ({"B": 3} if program == "turned" else {})
    assert_compiled(PROGRAMS[program], **sizes)


@pytest.mark.parametrize(
    ("program", "h", "expected"),
    [
        ("softmax in f16", 2, 2),
        ("softmax in f16", 7, 2),
        ("softmax in f16", 8, 2),
        ("softmax in f16", 9, 0),  # under masks
        ("softmax in bf16", 3, 0),
        ("softmax in bf16", 4, 2),
        ("functions in f16", 7, 2),
        ("functions in f16", 9, 0),
        ("functions in bf16", 4, 0),
        ("functions in bf16", 7, 2),
        ("products in bf16", 5, 0),  # compilers do as well
        ("halves in f16", 7, 2),
        ("halves in f16", 8, 0),
    ],
)
def test_which_rows_of_16_bits_are_lanes(program: str, h: int, expected: int) -> None:
    assert tiles(HALF[program], T=4000, H=h) == expected


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("h", [3, 5, 7])
def test_rows_that_may_not_be_there_are_not_loaded_whole(kind: str, h: int) -> None:
    text = GUARDED.format(kind)
    assert tiles(text, T=4096, H=h) == 0
    assert_compiled(text, T=4096, H=h)


@pytest.mark.thin(4)
@pytest.mark.parametrize("program", HALF)
@pytest.mark.parametrize(
    ("t", "h"), thinned([(t, h) for h in (1, 2, 3, 4, 5, 7, 8, 9) for t in (4003, 17, 1)], 2, several=True)
)
def test_results_in_16_bits_are_right(program: str, t: int, h: int) -> None:
    assert_compiled(HALF[program], T=t, H=h)


@pytest.mark.parametrize(
    ("program", "h", "expected"),
    [
        ("halves", 2, 0),  # all is written out
        ("halves", 3, 2),
        ("halves", 7, 2),
        ("halves", 8, 0),  # a vector
        ("joined", 3, 0),
        ("joined", 7, 3),
        ("joined", 8, 0),  # one kernel, whose rows are batched
        ("ends", 6, 2),
    ],
)
def test_which_rows_of_several_lengths_are_lanes(program: str, h: int, expected: int) -> None:
    assert tiles(SEVERAL[program], T=4000, H=h) == expected


@pytest.mark.thin(3)
@pytest.mark.parametrize("program", SEVERAL)
@pytest.mark.parametrize("t", thinned([4003, 17, 16, 15, 61, 1, 0], 2))
@pytest.mark.parametrize("h", [1, 2, 3, 4, 5, 6, 7, 8, 11])
def test_results_of_several_lengths_are_right(program: str, t: int, h: int) -> None:
    assert_compiled(SEVERAL[program], T=t, H=h)


@pytest.mark.parametrize("h", [5, 7, 8, 12])
def test_rows_of_other_arrays(h: int) -> None:
    """Every other row, rows that lie apart, columns, and what begins anywhere."""
    f: Any = pf.compile(PROGRAMS["softmax"])
    rng = np.random.default_rng(h)
    whole = rng.standard_normal((700, 2 * h)).astype("f4")
    memory = rng.standard_normal(350 * h + 3).astype("f4")
    for x in (whole[::2, :h], whole[:, h:], whole[:, ::2], whole[::-1, :h], memory[3:].reshape(350, h)):
        wide = np.exp(x.astype("f8") - x.max(1, keepdims=True))
        np.testing.assert_allclose(f(x), wide / wide.sum(1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize("h", [5, 6, 8, 11])
def test_not_a_number_stays_in_its_row(h: int) -> None:
    rng = np.random.default_rng(h)
    x = rng.standard_normal((100, h)).astype("f4")
    x[3, 2], x[20, 0], x[37, h - 1], x[50] = np.nan, np.inf, -np.inf, -np.inf
    highest: Any = pf.compile(HIGHEST)
    y, z = highest(x)
    np.testing.assert_array_equal(y, x.max(1))
    np.testing.assert_array_equal(z, abs(x).min(1))
    softmax: Any = pf.compile(PROGRAMS["softmax"])
    found = softmax(x)
    lost = np.isnan(found).any(1)
    assert {*np.flatnonzero(lost)} == {3, 20, 50} and found[37, h - 1] == 0.0
