"""Sums of groups of columns along whole rows: where, that they agree, and what is left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from equivalence import fixed_graph_of
from targets import Call, check_everywhere

import polyfuse as pf
from polyfuse.cost.cpu_device import table_cpu
from polyfuse.decisions import Decision
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import evaluate as value_of
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.layers.graph.grouped_reductions import grouped_columns
from polyfuse.layers.graph.one_pass import moments

NORM = """op f(x: f32[T, H, G, C], w: f32[G, C], b: f32[G, C]) -> (y: f32[T, H, G, C], v: f32[T, G]) {
  mu[t, g] = mean[h, c](x[t, h, g, c])
  v[t, g] = mean[h, c]((x[t, h, g, c] - mu[t, g]) ** 2)
  y[t, h, g, c] = (x[t, h, g, c] - mu[t, g]) * rsqrt(v[t, g] + 1e-5) * w[g, c] + b[g, c]
}"""
GRADIENT = """op f(x: f32[T, H, G, C], dy: f32[T, H, G, C]) -> (s: f32[T, G], dw: f32[G, C], all: f32) {
  s[t, g] = sum[h, c](x[t, h, g, c] * dy[t, h, g, c])
  dw[g, c] = sum[t, h](x[t, h, g, c] * dy[t, h, g, c])
  all = sum[t, h, g, c](dy[t, h, g, c])
}"""
EXTREMES = """op f(x: f32[H, G, C]) -> (low: f32[G], y: f32[H, G, C]) where H * C >= 1 {
  low[g] = min[h, c](x[h, g, c])
  high[g] = max[c, h](x[h, g, c])
  y[h, g, c] = (x[h, g, c] - low[g]) / (high[g] - low[g] + 1.0)
}"""
TWO_GROUPS = """op f(x: f32[H, G, C], z: f32[H, C, G]) -> (s: f32[G], r: f32[C]) {
  s[g] = sum[h, c](x[h, g, c])
  r[c] = sum[h, g](z[h, c, g])
}"""
INTEGERS = """op f(x: i32[T, H, G, C]) -> (s: i32[G, T]) { s[g, t] = sum[h, c](x[t, h, g, c]) }"""
DIGITS = """op f(x: f32[T, H, G*C], w: f32[G, C], b: f32[G*C]) -> (y: f32[T, H, G*C], top: f32[T])
    where H * G * C >= 1 {
  mu[t, g] = mean[c in 0..C, h](x[t, h, g*C + c]) for g in 0..G
  v[t, g] = mean[c in 0..C, h]((x[t, h, c + g*C] - mu[t, g]) ** 2) for g in 0..G
  y[t, h, k] = (x[t, h, k] - mu[t, k // C]) * rsqrt(v[t, k // C] + 1e-5) * w[k // C, k % C] + b[k]
  top[t] = max[h, k](x[t, h, k])
}"""
OPERATORS = {
    "norm": NORM,
    "digits": DIGITS,
    "gradient": GRADIENT,
    "extremes": EXTREMES,
    "two": TWO_GROUPS,
    "integers": INTEGERS,
}


@pytest.fixture(autouse=True)
def far_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small groups count as far from L2."""
    if "near" not in request.node.name:
        monkeypatch.setattr(moments, "_near", lambda *given: False)


def formed(
    graph: TensorGraph, strided: frozenset[str] = frozenset(), online: bool = False
) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    made = grouped_columns(graph, decisions, strided, table_cpu(2) if online else None)
    verify_graph(made)
    return made, decisions


@dataclass
class GroupedCall(Call):
    """Kernels of the graph with groups; arrays keep their shapes."""

    online: bool = False

    def _fixed(self) -> TensorGraph:
        made, decisions = formed(super()._fixed(), online=self.online)
        assert decisions and all(d.taken for d in decisions)
        return made


def call(name: str, **sizes: int) -> GroupedCall:
    graph = instantiate(parse_text(OPERATORS[name]), "f")
    known = {n: sizes[n] for n in graph.sizes}
    rng = np.random.default_rng(sum(sizes.values()))
    inputs = {}
    for i in graph.inputs:
        t = graph.tensor(i)
        shape = tuple(value_of(e, known) for e in t.shape)
        inputs[i] = (3 * rng.standard_normal(shape) + 2).astype(t.dtype.numpy)
    return GroupedCall(f"{name} {known}", OPERATORS[name], graph, known, inputs)


SIZES = (
    {"T": 2, "H": 16, "G": 5, "C": 10},
    {"T": 3, "H": 40, "G": 2, "C": 2},
    {"T": 1, "H": 17, "G": 7, "C": 48},
)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.thin(2)
def test_agrees_with_the_program_as_written(sizes: dict[str, int]) -> None:
    names = [n for n in OPERATORS if n != "two" or sizes["G"] == 7]
    check_everywhere([call(n, **({**sizes, "G": 16, "C": 16} if n == "two" else sizes)) for n in names])


def test_what_a_normalisation_becomes() -> None:
    made, (decision,) = formed(fixed_graph_of(NORM, T=2, H=64, G=32, C=10))
    lines = "\n".join(map(str, made.statements))
    assert decision.subject == "mu__sum, v__sum" and "whole rows of 320" in decision.reason
    assert "mu__sum__columns[t, g_c] = sum[h in 0..64](x[t, h, g_c])  for t in 0..2, g_c in 0..320" in lines
    assert "mu__sum[t, g] = sum[c in 0..10](mu__sum__columns[t, g*10 + c])" in lines
    assert "y__wide_[t, g_c] = rsqrt((v[t, g_c // 10] + " in lines or "rsqrt((v[t, g_c//10] + " in lines
    assert {t.name: len(t.shape) for t in made.tensors if t.name in "xywbv"} == {
        "x": 3,
        "y": 3,
        "w": 1,
        "b": 1,
        "v": 2,
    }


def test_groups_in_the_numbers_of_columns() -> None:
    made, (decision,) = formed(fixed_graph_of(DIGITS, T=2, H=64, G=32, C=10))
    assert decision.subject == "mu__sum, v__sum"
    assert {t.name: len(t.shape) for t in made.tensors if t.name in "xywb"} == {
        "x": 3,
        "y": 3,
        "w": 1,
        "b": 1,
    }


@pytest.mark.parametrize(
    "other",
    [
        "z[t, h, k] = x[t, h, k] * f32(k)",
        "z[t, h, k] = x[t, h, k] + w[k // (2 * C), 0]",
        "z[t, h, k] = x[t, h, G*C - 1 - k]",
        "z[t, h, k] = x[t, h, k] for k in 0..G*C",
    ],
)
def test_other_numbers_of_columns_are_left(other: str) -> None:
    """The last one is no other number: it is read as it is."""
    text = DIGITS.replace("top: f32[T]", "z: f32[T, H, G*C]").replace("top[t] = max[h, k](x[t, h, k])", other)
    graph = fixed_graph_of(text, T=2, H=64, G=32, C=10)
    made, decisions = formed(graph)
    assert bool(decisions) == other.endswith("for k in 0..G*C")
    assert decisions or made == graph


def test_arrays_keep_their_shapes() -> None:
    rng = np.random.default_rng(1)
    x, w, b = (
        rng.standard_normal((2, 64, 4, 10)).astype("f4"),
        np.ones((4, 10), "f4"),
        np.zeros((4, 10), "f4"),
    )
    f = pf.compile(NORM, target="cpu")
    y, v = f(x, w, b)  # type: ignore[misc]
    assert "+ grouped columns mu__sum, v__sum" in f.explain(x, w, b)
    m = x.mean((1, 3), keepdims=True)
    np.testing.assert_allclose(v, x.var((1, 3)), rtol=1e-5)
    np.testing.assert_allclose(y, (x - m) / np.sqrt(x.var((1, 3), keepdims=True) + 1e-5), atol=2e-5)
    strided = np.zeros((2, 64, 4, 20), "f4")[..., ::2]
    strided[...] = x
    assert "grouped columns" not in f.explain(strided, w, b)
    np.testing.assert_allclose(f(strided, w, b)[0], y, atol=2e-5)  # type: ignore[index]


SUM = "op f(x: f32[T, H, G, C]{more}) -> (s: f32[T, G]) {{ {body} }}"
LEFT = {
    "few rows": (SUM.format(more="", body="s[t, g] = sum[h, c](x[t, h, g, c])"), {"H": 15}),
    "many columns": (SUM.format(more="", body="s[t, g] = sum[h, c](x[t, h, g, c])"), {"C": 49}),
    "a weight of columns": (
        SUM.format(more=", w: f32[C]", body="s[t, g] = sum[h, c](x[t, h, g, c] * w[c])"),
        {},
    ),
    "a number": (SUM.format(more="", body="s[t, g] = sum[h, c](x[t, h, g, c] * f32(g))"), {}),
    "rows of groups": (
        SUM.format(more=", w: f32[H, G]", body="s[t, g] = sum[h, c](x[t, h, g, c] * w[h, g])"),
        {},
    ),
    "pairs": (
        "op f(x: f32[T, H, G, C], z: f32[N, H, G, C]) -> (s: f32[T, N, G]) {"
        " s[t, n, g] = sum[h, c](x[t, h, g, c] * z[n, h, g, c]) }",
        {"N": 3},
    ),
    "a part": (SUM.format(more="", body="s[t, g] = sum[h, c in 1..C](x[t, h, g, c])"), {}),
    "shifted": (SUM.format(more="", body="s[t, g] = sum[h, c in 0..C](x[t, h, g, C - 1 - c])"), {}),
}


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left(name: str) -> None:
    text, sizes = LEFT[name]
    graph = fixed_graph_of(text, **{"T": 2, "H": 64, "G": 8, "C": 10, **sizes})
    assert formed(graph) == (graph, [])


def test_what_is_not_dense_is_left() -> None:
    graph = fixed_graph_of(NORM, T=2, H=64, G=32, C=10)
    assert formed(graph, frozenset({"x"})) == (graph, [])
    assert formed(graph, frozenset({"b"})) == (graph, [])


def test_memory_that_is_updated_is_left() -> None:
    text = """op f(inout x: f32[H, G, C]) -> (s: f32[G]) {
      s[g] = sum[h, c](old(x[h, g, c]))
      x[h, g, c] = x[h, g, c] * 2.0
    }"""
    graph = fixed_graph_of(text, H=64, G=8, C=10)
    assert formed(graph) == (graph, [])


@pytest.mark.parametrize("name", ["norm", "digits"])
def test_variances_of_groups_are_made_about_a_pivot(name: str) -> None:
    sizes = {"T": 2, "H": 100, "G": 3, "C": 10}
    made, (online, grouped) = formed(fixed_graph_of(OPERATORS[name], **sizes), online=True)
    assert online.kind == "online" and online.subject == "v__sum" and "about a pivot" in online.reason
    assert grouped.subject == "mu__sum__head, mu__sum__off, v__sum__about"
    assert not any(s.name in ("mu__sum", "v__sum") and s.reduction for s in made.statements)
    one = call(name, **sizes)
    one.online = True
    check_everywhere([one])
    f, g = (
        pf.compile(OPERATORS[name], target="cpu", stitching=pf.Stitching(online=o)) for o in (None, False)
    )
    given = list(one.inputs.values())
    assert "about a pivot" in f.explain(*given) and "about a pivot" not in g.explain(*given)
    for a, b in zip(f(*given), g(*given), strict=True):  # type: ignore[call-overload]
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
