"""Floats that are converted to i64 and clamped are converted to i32, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_equivalent, fixed_graph_of

import polyfuse as pf
from polyfuse.ir.tensor_graph import format_expr
from polyfuse.layers.graph.cleanup.run import cleaned

ENDS = (-(2**31), 2**31 - 1)


def operator(right: str, dtype: str = "f32") -> str:
    return f"op f(x: {dtype}[N]) -> (y: i64[N]) where N >= 1 {{ y[n] = {right} }}"


def body(right: str, dtype: str = "f32") -> str:
    graph = fixed_graph_of(operator(right, dtype), N=7)
    made = cleaned(graph, [], checked=False)
    assert_equivalent(graph, made)
    return format_expr(made.statements[-1].expr)


def test_clamps_of_converted_floats_are_of_32_bits() -> None:
    assert body("min(max(i64(x[n]), 0), 99)") == "i64(min(max(i32(x[n]), 0), 99))"
    assert body("max(-3, min(N - 2, i64(x[n])))", "f64") == "i64(max(min(i32(x[n]), 5), -3))"
    assert body(f"min(max(i64(x[n]), {ENDS[0]}), {ENDS[1]})").startswith("i64(")
    assert "i32(floor(" in body("min(max(i64(floor(x[n])), 0), 99) + 1")
    assert body("i64(f64(min(max(i64(x[n]), 0), 99)))") == "i64(min(max(i32(x[n]), 0), 99))"


@pytest.mark.parametrize(
    ("right", "dtype"),
    [
        ("min(i64(x[n]), 99)", "f32"),  # no lower bound
        ("min(min(i64(x[n]), 99), 98)", "f32"),
        ("min(max(i64(x[n]), 0), 2147483648)", "f32"),  # a bound beyond 32 bits
        ("min(max(i64(x[n]), -2147483649), 5)", "f32"),
        ("min(max(i64(x[n]), 0), 99)", "i64"),  # integers wrap
        ("min(max(i64(x[n]), 0), n)", "f32"),  # a bound that is no number
    ],
)
def test_what_stays_in_64_bits(right: str, dtype: str) -> None:
    assert "i32" not in body(right, dtype)


def test_places_that_a_scatter_writes_to_stay_in_64_bits() -> None:
    text = """op f(x: f32[N]) -> (h: i64[8]) {
      h[k] = 0
      h[min(max(i64(x[n]), 0), 7)] += min(max(i64(x[n]), 0), 7) for n in 0..N
    }"""
    made = cleaned(fixed_graph_of(text, N=9), [], checked=False).statements[-1]
    assert "i32" not in str(made.write) and "i32" in format_expr(made.expr)


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
@pytest.mark.parametrize("bounds", [(0, 99), (-5, 5), (7, 3), ENDS, (-1, ENDS[1])])
def test_extremes_end_at_the_bounds_and_nan_at_0(dtype: str, bounds: tuple[int, int]) -> None:
    low, high = bounds
    far = [2.0**31, 2.0**31 - 1, 2.0**31 - 128, 2.0**31 + 256, 2.0**40, 2.0**63, 2.0**64, 1e30, np.inf]
    some = [0.0, 0.4, 0.99, 1.0, 4.5, 98.9, 99.0, 100.7, *far]
    with np.errstate(over="ignore"):
        x = np.array([*some, *(-v for v in some), np.nan], {"f16": "f2", "f32": "f4", "f64": "f8"}[dtype])
    f = pf.compile(operator(f"min(max(i64(x[n]), {low}), {high})", dtype), options=pf.Options(verify=True))
    whole = [0 if np.isnan(v) else int(np.clip(np.trunc(float(v)), -(2.0**62), 2.0**62)) for v in x]
    np.testing.assert_array_equal(f(x), [min(max(v, low), high) for v in whole])
