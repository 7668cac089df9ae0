"""Affine left sides, `y[2*i + 1] = x[i]`: extents, plain statements in their place, recurrences, calls."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.poly.element_space import in_element_space

Array = np.ndarray[Any, Any]
HEAD = "op f(x: f32[N], z: f32[N], a: f32[N, M]) -> "
X = np.arange(1, 6, dtype=np.float32)
Z = np.array([2, -1, 0.5, 3, 7], np.float32)
A = np.arange(15, dtype=np.float32).reshape(5, 3)


def graph(body: str, results: str) -> TensorGraph:
    return instantiate(parse_text(f"{HEAD}{results} {{\n{body}\n}}", "t.pf"), "f")


def plain(body: str, results: str = "(y: f32[N])", **sizes: int) -> list[str]:
    """The statements that the compiler makes."""
    found = fixed_graph(graph(body, results), {"N": 5, "M": 3} | sizes)
    verify_graph(found)
    return [str(s) for s in found.statements]


def run(body: str, results: str, target: str = "interpret") -> Array:
    text = f"{HEAD}{results} {{\n{body}\n}}"
    return np.asarray(pf.compile(text, target=target)(X, Z, A))


# --- text and extents -------------------------------------------------------------------------------------


def test_the_formatter_keeps_them() -> None:
    text = """op f(x: f32[N]) -> (y: f32[2*N]) {
  y[2*i] = x[i]
  y[2*N - 1 - 2*i] = x[i]
}
"""
    assert format_program(parse_text(text, "t.pf")) == text


def test_the_builder_makes_the_same_tree() -> None:
    b = pf.ProgramBuilder()
    f = b.op("f")
    n = f.size("N")
    x, y, i = f.param("x", "f32", "N"), f.result("y", "f32", 2 * n), f.index("i")
    y[2 * i] = x[i]
    y.define(2 * i + 1, 0.5, [i.range(0, n)])
    assert parse_text(str(b), "t.pf") == b.tree()
    assert "y[2*i + 1] = 0.5 for i in 0..N" in str(b)
    found = pf.compile(b.program(), target="interpret")(X)
    np.testing.assert_array_equal(found, [1, 0.5, 2, 0.5, 3, 0.5, 4, 0.5, 5, 0.5])


@pytest.mark.parametrize(
    ("body", "extent"),
    [
        ("t[i + 1] = x[i]; t[0] = 1.0", "N + 1"),
        ("t[N - 1 - i] = x[i]", "N"),
        ("t[3*i + 1] = x[i]", "3*N - 1"),
        ("t[i + j] = a[i, j] for i in 0..1", "M"),
        ("t[4*(i//2) + i%2] = x[i]", "4*((N + 1)//2) - 2"),
        ("t[min(N, 3)] = x[0]", "min(3, N) + 1"),
    ],
)
def test_extents_follow_from_the_greatest_index(body: str, extent: str) -> None:
    g = graph(f"{body}; y = t[0]", "(y: f32)")
    assert [str(e) for e in g.tensor("t").shape] == [extent]


# --- plain statements in their place ----------------------------------------------------------------------


def test_a_variable_that_moves_by_one_stays_a_loop() -> None:
    assert plain("y[i + 1] = x[i]; y[0] = x[4]", "(y: f32[N + 1])") == [
        "y: y[i] = x[i - 1]  for i in 1..6",
        "y__2: y[0] = x[4]",
    ]
    assert plain("y[N - 1 - i] = sum[j](a[i, j])") == [
        "y: y[i] = sum[j in 0..3](a[0 - i + 4, j])  for i in 0..5"
    ]
    body = "t[i, i + j] = a[i, j]; y[i] = t[i, i] + t[i, i + M - 1] for i in 0..N"
    assert plain(body)[0] == "t: t[i, j] = a[i, j - i]  for i in 0..5, j in i..i + 3"


def test_pieces_between_one_another_become_one_that_chooses() -> None:
    assert plain("y[2*i] = x[i]; y[2*i + 1] = z[i]", "(y: f32[2*N])") == [
        "y: y[e0] = (x[e0//2] if (i64(e0%2) == i64(0)) else z[(e0 + 1)//2 - 1])  for e0 in 0..10"
    ]
    assert plain("y[i*M + j] = a[i, j]", "(y: f32[N*M])") == ["y: y[e0] = a[e0//3, e0%3]  for e0 in 0..15"]


def test_a_reduction_keeps_its_loops() -> None:
    assert plain("y[2*i] = sum[j](a[i, j]); y[2*i + 1] = x[i]", "(y: f32[2*N])") == [
        "y__sum: y__sum[i] = sum[j in 0..3](a[i, j])  for i in 0..5",
        "y: y[e0] = (y__sum[e0//2] if (i64(e0%2) == i64(0)) else x[(e0 + 1)//2 - 1])  for e0 in 0..10",
    ]


def test_a_choice_of_sixteen_bits_is_computed_in_f32() -> None:
    found = plain("y[2*i] = f16(x[i]); y[2*i + 1] = f16(z[i])", "(y: f16[2*N])")
    first, second = "f32(f16(x[e0//2]))", "f32(f16(z[(e0 + 1)//2 - 1]))"
    assert found == [f"y: y[e0] = f16(({first} if (i64(e0%2) == i64(0)) else {second}))  for e0 in 0..10"]


def test_open_sizes_are_moved_and_products_wait() -> None:
    g = graph("y[i + 1] = x[i]; y[0] = 0.0; w[i*M + j] = a[i, j]", "(y: f32[N + 1], w: f32[N*M])")
    found = in_element_space(g)
    assert str(found.statement("y")) == "y: y[i] = x[i - 1]  for i in 1..N + 1"
    assert found.statement("w") == g.statement("w")


def test_plain_graphs_are_left_alone() -> None:
    g = graph("y[i] = x[i]", "(y: f32[N])")
    assert in_element_space(g) is g


# --- recurrences ------------------------------------------------------------------------------------------


def test_a_recurrence_from_an_element_to_the_next() -> None:
    np.testing.assert_array_equal(
        run("c[0] = 0.0; c[i + 1] = c[i] + x[i]", "(c: f32[N + 1])"), [0, *X.cumsum()]
    )


def test_pieces_that_read_one_another_have_tensors_of_their_own() -> None:
    body = "y[2*i] = x[i]; y[2*i + 1] = (y[2*i] + y[2*i + 2]) * 0.5 for i in 0..N - 1"
    np.testing.assert_array_equal(run(body, "(y: f32[2*N - 1]) where N >= 1"), np.arange(2, 11) / 2)
    assert [s.split(":")[0] for s in plain(body, "(y: f32[2*N - 1]) where N >= 1")] == [
        "y__piece",
        "y__piece1",
        "y",
    ]


def test_pieces_may_run_against_one_another() -> None:
    body = """  y[2*i + 1] = x[i] + (y[2*i + 3] if i < N - 1 else 0.0)
  y[2*i] = y[2*i + 1] + (y[2*i - 1] if i > 0 else 0.0) for i in 0..N"""
    odd = X[::-1].cumsum()[::-1]
    even = odd + np.concatenate([[0], odd[:-1]])
    want = np.stack([even, odd], 1).ravel()
    np.testing.assert_array_equal(run(body, "(y: f32[2*N])"), want)


def test_a_recurrence_through_another_tensor() -> None:
    body = """  y[0] = 1.0
  y[2*i + 1] = s[i] + y[2*i] for i in 0..N
  y[2*i + 2] = y[2*i + 1] - x[i] for i in 0..N
  s[i] = sum[j in 0..M](a[i, j]) * (y[2*i] if i > 0 else 0.0)"""
    want = np.zeros(11, np.float32)
    want[0] = 1
    for i in range(5):
        want[2 * i + 1] = A[i].sum() * (want[2 * i] if i else 0) + want[2 * i]
        want[2 * i + 2] = want[2 * i + 1] - X[i]
    np.testing.assert_array_equal(run(body, "(y: f32[2*N + 1])"), want)


# --- calls, in place, scatters ----------------------------------------------------------------------------


def test_calls_and_scatters_meet_them() -> None:
    text = """
op between(a: f32[N], b: f32[N]) -> (y: f32[2*N]) { y[2*i] = a[i]; y[2*i + 1] = b[i] }
op f(x: f32[N], z: f32[N], k: i64[K], inout m: f32[3*N]) -> (y: f32[2*N]) {
  t = between(x, z)
  y[2*N - 1 - i] = t[i]
  y[k[q]] += 100.0
  m[3*i + 1] = x[i] + m[3*i]
}
"""
    m = np.arange(15, dtype=np.float32)
    want, entry = np.stack([X, Z], 1).ravel()[::-1].copy(), m.copy()
    want[[0, 3]] += 100
    entry[1::3] = X + m[::3]
    found = pf.compile(text, op="f", target="interpret")(X, Z, np.array([3, 0]), m)
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(m, entry)


def test_names_of_variables_are_nothing_to_isl() -> None:
    body = "y[2*N_0] = x[N_0]; y[2*exists + 1] = x[exists]"
    want = "y: y[e0] = (x[e0//2] if (i64(e0%2) == i64(0)) else x[(e0 + 1)//2 - 1])  for e0 in 0..10"
    assert plain(body, "(y: f32[2*N])") == [want]
    body = "y[2*N_0] = x[N_0]; y[2*N_0 + 1] = y[N_0] if N_0 < 2 else 0.0 for N_0 in 0..N"
    want = "(y__piece[N_0//2] if (i64(N_0%2) == i64(0)) else y__piece1[(N_0 + 1)//2 - 1])"
    assert want in plain(body, "(y: f32[2*N])")[1]


def test_orders_and_bounds_from_data_on_the_right() -> None:
    text = """op f(x: f32[N, H], ptr: i64[N + 1], w: f32[E]) -> (i: i64[2*N], s: f32[N + 1]) where H >= 2 {
  i[2*n] = arglargest[h](x[n, h], 0)
  i[2*n + 1] = arglargest[h](x[n, h], 1)
  s[n + 1] = sum[e in ptr[n]..ptr[n + 1]](w[e]) for n in 0..N
  s[0] = 0.0
}"""
    x = np.array([[3, 1, 2], [0, 5, 4]], np.float32)
    for target in ("interpret", *(["cpu"] if shutil.which("g++") else [])):
        i, s = pf.compile(text, target=target)(x, np.array([0, 2, 3]), np.array([1, 2, 4], np.float32))
        np.testing.assert_array_equal(i, [0, 2, 1, 2])
        np.testing.assert_array_equal(s, [0, 3, 4])


def test_what_a_scatter_starts_from_is_defined_everywhere() -> None:
    text = """op f(x: f32[N], k: i64[K]) -> (y: f32[N], z: f32[N]) where N >= 1 {
  y[0] = x[0]
  y[k[q]] += 1.0
  z[i] = x[i] for i in 0..1
  z[i] = 0.5 for i in 1..N
  z[k[q]] += 1.0
}"""
    g = instantiate(parse_text(text, "t.pf"), "f")
    found = [str(s) for s in fixed_graph(g, {"N": 3, "K": 2}).statements]
    assert "y: y[e0] = (x[0] if (i64(e0) == i64(0)) else 0.0)  for e0 in 0..3" in found
    assert "z: z[i] = x[i]  for i in 0..1" in found  # these define all: they stay
    y, z = pf.compile(text, target="interpret")(X, np.array([2, 2]))
    np.testing.assert_array_equal(y, [1, 0, 2, 0, 0])
    np.testing.assert_array_equal(z, [1, 0.5, 2.5, 0.5, 0.5])


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_kernels_with_open_sizes() -> None:
    text = """op f(x: f32[N]) -> (y: f32[2*N], c: f32[N + 1]) {
  y[2*i] = x[i]; y[2*N - 1 - 2*i] = sum[j](x[j] * x[i])
  c[0] = 0.0; c[i + 1] = c[i] + x[i]
}"""
    f = pf.compile(text, target="cpu", sizes="open")
    for n in (1, 2, 9, 33):
        x = np.arange(n, dtype=np.float32)
        y, c = f(x)
        np.testing.assert_array_equal(y, np.stack([x, (x.sum() * x)[::-1]], 1).ravel())
        np.testing.assert_array_equal(c, [0, *x.cumsum()])
    assert len(f.variants) == 1


@pytest.mark.parametrize("n", [0, 1, 2])
def test_small_sizes(n: int) -> None:
    text = """op f(x: f32[N]) -> (y: f32[2*N], c: f32[N + 1], t: f32[N]) {
  y[2*i] = x[i]; y[2*i + 1] = -x[i]
  c[0] = 0.0; c[i + 1] = x[i]
  t[N - 1 - i] = x[i]
}"""
    x = np.array([np.nan, -np.inf], np.float32)[:n]
    y, c, t = pf.compile(text, target="interpret")(x)
    np.testing.assert_array_equal(y, np.stack([x, -x], 1).ravel())
    np.testing.assert_array_equal(c, [0, *x])
    np.testing.assert_array_equal(t, x[::-1])
