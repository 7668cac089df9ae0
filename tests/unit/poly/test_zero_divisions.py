"""Sizes of 0 that indices divide by: nothing runs, or the error says where."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import fixed_graph_of

import polyfuse as pf
from polyfuse.ir.tensor_graph import format_expr
from polyfuse.poly.legality.zero_divisions import without_zero_divisions
from polyfuse.poly.model.domains import fixed_sizes_needed

# What each gives for x[n, 0]: the extents of the result, and the value of its elements.
EMPTY = {
    "shifted": "(y: f32[N, M]) { y[a, i] = x[a, (i + 2) % M] }",
    "divided": "(y: f32[N, M]) { y[a, i] = x[a, i // M] for a in 0..N, i in 0..M }",
    "flattened": "(y: f32[N*M]) { y[i] = x[i // M, i % M] }",
    "summed": "(y: f32[N]) { y[a] = sum[i](x[a, (i + 2) % M] * x[a, i]) }",
    "summed from a row on": "(y: f32[N]) { y[a] = sum[i in a..M](x[a, (i + 1) % M]) for a in 0..N }",
    "gathered": "(y: f32[N, M]) { y[a, i] = x[a, i32(x[a, (i + 1) % M])] }",
    "in a range": "(y: f32[N, M]) { y[a, i] = sum[k in 0..7 % M](x[a, i] * k) }",
    "recurrent": """(y: f32[N, M]) where N >= 1 {
      y[0, i] = x[0, i] for i in 0..M
      y[a, i] = y[a-1, (i + 1) % M] + x[a, i] for a in 1..N, i in 0..M
    }""",
    "a temporary": "(y: f32[N, M]) { t[a, i] = x[a, (i + 1) % M] for a in 0..N, i in 0..M; "
    "y[a, i] = exp(t[a, i // M]) * (i % M) for a in 0..N, i in 0..M }",
    "a number": "(y: f32[N, M]) { y[a, i] = x[a, i] * f32((i + 1) % M) }",
}


@pytest.mark.parametrize("target", ["cpu", "interpret"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", EMPTY)
def test_a_dimension_of_size_0(name: str, rows: int, target: pf.Target) -> None:
    f = pf.compile(f"op f(x: f32[N, M]) -> {EMPTY[name]}", target=target, options=pf.Options(verify=True))
    for x in (np.ones((rows, 0), np.float32), np.ones((rows, 4), np.float32)[:, :0]):
        y = f(x)
        assert isinstance(y, np.ndarray)
        if name.startswith("summed"):
            assert y.tolist() == [0.0] * rows
        else:
            assert y.size == 0


def test_a_size_that_leaves_nothing_to_divide_by() -> None:
    """M - 1 is 0: the rows after the first have no elements."""
    f = pf.compile("op f(x: f32[N, M]) -> (y: f32[N, M]) where M >= 1 { y[a, 0] = 5.0 for a in 0..N; "
                   "y[a, i] = x[a, (i + 1) % (M - 1)] for a in 0..N, i in 1..M }")  # fmt: skip
    assert np.array_equal(f(np.ones((2, 1), np.float32)), [[5.0], [5.0]])
    assert np.array_equal(f(np.array([[1, 2, 3]], np.float32)), [[5.0, 1.0, 2.0]])


def test_a_graph_that_divides_by_nothing_stays_itself() -> None:
    g = fixed_graph_of("op f(x: f32[N, M]) -> (y: f32[N, M]) { y[a, i] = x[a, (i + 2) % M] }", N=3, M=4)
    assert without_zero_divisions(g) is g


def test_the_graph_is_affine() -> None:
    g = fixed_graph_of("op f(x: f32[N, M]) -> (y: f32[N, M]) { y[a, i] = x[a, (i + 2) % M] }", N=3, M=0)
    assert not fixed_sizes_needed(g)
    assert [format_expr(s.expr) for s in g.statements] == ["x[a, 0]"]


@pytest.mark.parametrize("body", ["x[i // M, 0]", "sum[k in 0..7 // M](f32(k))"], ids=["index", "range"])
def test_a_division_that_is_reached_is_an_error(body: str) -> None:
    f = pf.compile(f"op f(x: f32[N, M]) -> (y: f32[N]) {{ y[i] = {body} for i in 0..N }}")
    with pytest.raises(pf.DslError, match=r"PF356.*division by zero"):
        f(np.ones((3, 0), np.float32))
