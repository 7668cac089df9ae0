"""Elements that data choose are computed where they are chosen, where they are few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.diagnostics import ArgumentError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.graph.inline import inline_chosen
from polyfuse.poly.model.domains import specialize

LOSS = """op f(x: f32[N, C], z: i64[N]) -> (loss: f32) where N >= 1, C >= 1 {
  logs = log_softmax(x)
  found[n] = logs[n, z[n]]
  loss = -mean[n]((1.0 - exp(found[n])) ** 2 * found[n])
}"""
TABLE = """op f(q: i8[V, D], s: f32[V], i: i64[N]) -> (y: f32[N, D]) {
  w[v, d] = f32(q[v, d]) * s[v]
  y[n, d] = w[i[n], d]
}"""
SCALED = """op f(x: f32[N, C], z: i64[N]) -> (y: f32[N]) {
  a[n, c] = x[n, c] * 2.0
  y[n] = a[n, z[n]]
}"""
# What a reader needs of `a`, beside z: i64[N] and x: f32[N, C].
HEAD = "op f(x: f32[N, C], z: i64[N], u: f32[C]) -> (y: f32[N]) where C >= 2 {{ {} }}"


def chosen(text: str, **sizes: int) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    graph = specialize(instantiate((parse_text(text),), "f"), sizes)
    return inline_chosen(graph, decisions), decisions


def losses(x: Any, z: Any) -> Any:
    x = x.astype("f8")
    logs = x - x.max(1, keepdims=True)
    found = (logs - np.log(np.exp(logs).sum(1, keepdims=True)))[np.arange(len(z)), z]
    return -((1 - np.exp(found)) ** 2 * found).mean()


@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (1, 9), (33, 21), (400, 8), (400, 7)])
def test_the_loss_of_labels(rows: int, classes: int) -> None:
    rng = np.random.default_rng(5)
    x, z = rng.standard_normal((rows, classes)).astype("f4"), rng.integers(0, classes, rows)
    f = pf.compile(LOSS)
    np.testing.assert_allclose(f(x, z), losses(x, z), rtol=1e-5, atol=1e-6)
    assert ("+ inline" in f.explain(x, z)) == (classes >= 8)


def test_rows_of_a_table_that_is_scaled() -> None:
    rng = np.random.default_rng(6)
    q, s = rng.integers(-127, 127, (1000, 37)).astype("i1"), rng.standard_normal(1000).astype("f4")
    i = rng.integers(0, 1000, 90)
    f = pf.compile(TABLE)
    np.testing.assert_array_equal(f(q, s, i), q[i].astype("f4") * s[i, None])
    graph, _ = chosen(TABLE, V=1000, D=37, N=90)
    assert [x.name for x in graph.statements] == ["y"]


@pytest.mark.parametrize("label", [-5, 8, 2**40])
def test_what_is_out_of_range_ends_at_the_same_element(label: int) -> None:
    x = np.random.default_rng(7).standard_normal((3, 8)).astype("f4")
    z = np.array([label, 1, 7])
    f = pf.compile(SCALED)
    np.testing.assert_array_equal(f(x, z), x[np.arange(3), np.clip(z, 0, 7)] * 2)
    with pytest.raises(ArgumentError, match="out of range"):
        pf.compile(SCALED, checked=True)(x, z)


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        ("a[n, c] = x[n, c] * u[c]\n y[n] = a[n, z[n]]", True),
        ("a[n, c] = x[n, c] * u[c]\n b[n, c] = a[n, c] + 1.0\n y[n] = b[n, z[n]]", True),
        ("a[n, c] = x[n, c] * u[c]\n y[n] = a[n, z[n]] + a[n, 0]", False),  # read twice
        ("a[n, c] = x[n, c] * f32(c)\n y[n] = a[n, z[n]]", False),  # the variable is a number
        ("a[n, c] = x[n, C - 1 - c] for c in 0..C\n y[n] = a[n, z[n]]", False),  # and part of an index
        ("a[n, c] = x[n, c] for c in 0..C\n y[n] = a[n, 1]", False),  # no data choose it
        ("a[c] = sum[n](x[n, c])\n y[n] = a[z[n]]", False),  # a sum
        (
            "a[n, c] = u[c] for n in 0..N, c in 0..C-1\n y[n] = a[n, min(z[n], 3)]",
            False,
        ),  # shorter than what it reads
        ("a[n] = x[n, 0]\n y[n] = sum[c](a[z[n]] * u[c])", False),  # wanted more often than there are
    ],
)
def test_what_is_computed_where_it_is_chosen(body: str, taken: bool) -> None:
    text = HEAD.format(body)
    _, decisions = chosen(text, N=5, C=16)
    assert bool(decisions) == taken
    rng = np.random.default_rng(8)
    x, u = rng.standard_normal((5, 16)).astype("f4"), rng.standard_normal(16).astype("f4")
    z = rng.integers(0, 4, 5)
    as_written = pf.compile(text, checked=True)(x, z, u)
    np.testing.assert_allclose(pf.compile(text)(x, z, u), as_written, rtol=1e-6, atol=1e-6)


def test_names_of_loops_may_meet() -> None:
    """The reader's c is no index of the producer's c."""
    rng = np.random.default_rng(9)
    x, z = rng.standard_normal((16, 50)).astype("f4"), rng.integers(0, 50, 4)
    f = pf.compile(
        """op f(x: f32[K, C], z: i64[4]) -> (y: f32[4, K]) {
          a[n, c] = x[n, c] + 1.0
          y[c, n] = a[n, z[c]]
        }"""
    )
    np.testing.assert_array_equal(f(x, z), (x[:, z] + 1).T)
    assert "+ inline" in f.explain(x, z)


@pytest.mark.parametrize("order", ["ayu", "auy", "uay", "yau"])
def test_what_is_chosen_may_choose_itself_in_a_recurrence_in_any_order(order: str) -> None:
    """A reader may come before what it reads."""
    lines = {
        "a": "a[t, v] = y[t, z[t], v] * 2.0 for t in 0..T, v in 0..V",
        "u": "u[t] = a[t, q[t]] + x[t, 0, 0] for t in 0..T",
        "y": "y[t, m, v] = x[t, m, v] + (u[t - 1] if t >= 1 else 0.0)",
    }
    text = f"""op f(x: f32[T, M, V], z: i64[T], q: i64[T]) -> (u: f32[T]) where M >= 1, V >= 1 {{
      {"; ".join(lines[k] for k in order)} }}"""
    graph, decisions = chosen(text, T=5, M=16, V=12)
    assert {d.subject for d in decisions} == {"a", "y"} and len(graph.tensors) == 4
    rng = np.random.default_rng(8)
    x = rng.standard_normal((5, 16, 12)).astype("f4")
    z, q = rng.integers(0, 16, 5), rng.integers(0, 12, 5)
    expected, before = [], 0.0
    for t in range(5):
        before = 2.0 * (float(x[t, z[t], q[t]]) + before) + float(x[t, 0, 0])
        expected.append(before)
    np.testing.assert_allclose(pf.compile(text)(x, z, q), expected, rtol=1e-5, atol=1e-5)
