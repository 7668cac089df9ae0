"""Functions get statements of their own where loops would compute them again or one by one: same results."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_equivalent, assert_right, cpu_source, fixed_graph_of, seeded_inputs

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.functions import has_function
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.graph.fission import distribute_functions

CORE = Core()
DIVERGENCES = """op f(p: {0}[N, K], q: {0}[M, K]) -> (y: {0}[N, M]) {{
  y[i, j] = {0}(sum[k](p[i, k] * (log(p[i, k] + 2.0) - log(q[j, k] + 2.0))))
}}"""
GATED = """op f(x: {0}[B, T], g: {0}[B, T]) -> (y: {0}[B, T]) where T >= 1 {{
  y[b, 0] = x[b, 0]
  y[b, t] = {0}(sigmoid(g[b, t]) * y[b, t-1] + (1.0 - sigmoid(g[b, t])) * tanh(x[b, t])) for t in 1..T
}}"""
BACKWARDS = """op f(x: f32[B, T]) -> (y: f32[B, T]) where T >= 2 {
  y[b, T-1] = x[b, T-1]
  y[b, t] = y[b, t+1] * sin(x[b, t] + x[b, t+1]) for t in 0..T-1
}"""
TURNED = """op f(x: f32[N, K], p: f32[K, M]) -> (y: f32[N, M]) {
  y[i, j] = sum[k](x[i, k] + exp(p[k, j]) * x[i, k] * x[i, k])
}"""
POSITIONS = """op f(x: f32[B, T, D], w: f32[D]) -> (y: f32[B, T, D]) {
  y[b, t, d] = x[b, t, d] + (sin(f32(t) * w[d]) if d % 2 == 0 else cos(f32(t) * w[d]))
}"""
SCALED = "op f(x: f32[N, K], s: f32[{0}]) -> (y: f32[N, K]) {{ y[n, k] = x[n, k] * exp(s[{1}]) }}"
SHIFTED = """op f(x: f32[B, T, D], w: f32[T, D]) -> (y: f32[B, T, D]) {
  y[b, t, d] = x[b, t, d] + (exp(w[t-1, d]) if t >= 1 else 1.0) for b in 0..B, t in 0..T, d in 0..D
}"""
GUARDED = """op f(x: f32[B, T, D], w: f32[T, D]) -> (y: f32[B, T, D]) {
  y[b, t, d] = x[b, t, d] + exp(w[t-1, d]) if t >= 1 else x[b, t, d] for b in 0..B, t in 0..T, d in 0..D
}"""
GATHERED = """op f(x: f32[N, D], w: f32[V, D], k: i64[M]) -> (y: f32[N, M]) where V >= 1 {
  y[n, m] = sum[d](abs(x[n, d] - exp(w[k[m], d])))
}"""


def apart(text: str, core: Core = CORE, **sizes: int) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    graph = fixed_graph_of(text, **sizes)
    after = distribute_functions(graph, decisions, core)
    assert_equivalent(graph, after)
    return after, decisions


def left(text: str, **sizes: int) -> int:
    """How many statements an operator has more."""
    graph, decisions = apart(text, **sizes)
    assert all(d.kind == "fission" and d.taken for d in decisions)
    assert len(graph.statements) == len(fixed_graph_of(text, **sizes).statements) + len(decisions)
    return len(decisions)


def test_what_is_computed_again_has_a_statement_of_its_own() -> None:
    graph, decisions = apart(DIVERGENCES.format("f32"), N=40, M=50, K=30)
    assert len(decisions) == 2 and "50 times" in decisions[0].reason and "40 times" in decisions[1].reason
    assert all(len(s.dims) == 2 for s in graph.statements if has_function(s.expr))


def test_values_lie_as_what_they_are_read_from() -> None:
    """`y[i, j]` walks `p` and what comes of it along `j`."""
    graph, (decision,) = apart(TURNED, N=60, K=30, M=50)
    assert [d.name for d in graph.statement(decision.subject).dims] == ["k", "j"]


def test_steps_along_memory_wait_for_no_function() -> None:
    assert left(GATED.format("f32"), B=30, T=200) == 2
    assert left(BACKWARDS, B=30, T=200) == 1


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (DIVERGENCES.format("f32"), {"N": 3, "M": 3, "K": 30}),  # computed three times
        (DIVERGENCES.format("f32"), {"N": 10, "M": 10, "K": 5}),  # little work
        (DIVERGENCES.format("f32"), {"N": 0, "M": 50, "K": 30}),
        (GATED.format("f32"), {"B": 2, "T": 20}),
        # A row's own value, or a column that loops keep.
        (SCALED.format("N", "n"), {"N": 99, "K": 999}),
        (SCALED.format("K", "k"), {"N": 999, "K": 99}),
        # Tiles compute it as they copy the factor.
        ("op f(x: f32[N, K], w: f32[K, M]) -> (y: f32[N, M]) { y[i, j] = sum[k](x[i, k] * exp(w[k, j])) }",
         {"N": 99, "K": 99, "M": 99}),
        # The lanes are other dims than the steps.
        ("""op f(x: f32[T, B]) -> (y: f32[T, B]) where T >= 1 {
           y[0, b] = x[0, b]
           y[t, b] = y[t-1, b] * exp(x[t, b]) for t in 1..T }""", {"B": 99, "T": 99}),
        # Steps wait for it.
        ("""op f(x: f32[B, T]) -> (y: f32[B, T]) where T >= 1 {
           y[b, 0] = x[b, 0]
           y[b, t] = tanh(y[b, t-1] + x[b, t]) for t in 1..T }""", {"B": 99, "T": 99}),
        # What a condition guards.
        (GUARDED, {"B": 20, "T": 30, "D": 40}),
    ],
)  # fmt: skip
def test_what_stays(text: str, sizes: dict[str, int]) -> None:
    assert left(text, **sizes) == 0


def test_room_for_columns_is_that_of_the_core_at_hand() -> None:
    """Columns of 12 kB: a third of L1 is 16 kB, or less than 11."""
    text = SCALED.format("K", "k")
    assert not apart(text, Core(l1=48 << 10), N=999, K=3000)[1]
    assert len(apart(text, Core(l1=32 << 10), N=999, K=3000)[1]) == 1


def test_a_condition_goes_with_what_it_guards() -> None:
    assert left(POSITIONS, B=20, T=30, D=40) == 1
    assert left(SHIFTED, B=20, T=30, D=40) == 1
    assert left(GATHERED, N=60, D=40, V=7, M=30) == 1


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("n", [0, 1, 37])
def test_compiled_divergences(dtype: str, n: int) -> None:
    text = DIVERGENCES.format(dtype)
    graph = fixed_graph_of(text, N=n, M=41, K=65)
    inputs = seeded_inputs(graph, n)
    for name in ("p", "q"):
        inputs[name] = np.abs(inputs[name])
    if n > 9:
        inputs["p"][3, 1], inputs["q"][5, 2], inputs["q"][7, 0] = np.nan, np.inf, -2.0
    y = pf.compile(text)(inputs["p"], inputs["q"])
    assert_right(graph, {"y": y}, inputs)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize(("b", "t"), [(1, 1), (3, 777), (67, 130)])
def test_compiled_steps(dtype: str, b: int, t: int) -> None:
    text = GATED.format(dtype)
    graph = fixed_graph_of(text, B=b, T=t)
    inputs = seeded_inputs(graph, t)
    if b > 9:
        inputs["x"][3, 70], inputs["g"][5, 2], inputs["g"][7, 9] = np.nan, np.inf, -np.inf
    assert_right(graph, {"y": pf.compile(text)(inputs["x"], inputs["g"])}, inputs)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (BACKWARDS, {"B": 33, "T": 129}),
        (TURNED, {"N": 60, "K": 31, "M": 50}),
        (POSITIONS, {"B": 9, "T": 33, "D": 41}),
        (GUARDED, {"B": 20, "T": 30, "D": 41}),
        (SHIFTED, {"B": 20, "T": 30, "D": 41}),
        (GATHERED, {"N": 60, "D": 41, "V": 7, "M": 31}),
    ],
)
def test_other_compiled_results(text: str, sizes: dict[str, int]) -> None:
    graph = fixed_graph_of(text, **sizes)
    inputs = seeded_inputs(graph)
    y = pf.compile(text)(*(inputs[n] for n in graph.inputs))
    assert_right(graph, {"y": y}, inputs)


def test_functions_of_steps_are_computed_in_vectors() -> None:
    """Not in the loop that carries the recurrence, also where they are statements of the program."""
    source = cpu_source(
        """op f(x: f32[B, T]) -> (y: f32[B, T]) where T >= 1 {
          e[b, t] = tanh(x[b, t]) for b in 0..B, t in 1..T
          s[b, t] = sigmoid(x[b, t]) for b in 0..B, t in 1..T
          y[b, 0] = x[b, 0]
          y[b, t] = s[b, t] * y[b, t-1] + e[b, t] for t in 1..T }""",
        B=64,
        T=500,
    )
    assert "pf_row_tanh_f32" in source or "pf_row_sigmoid_f32" in source
