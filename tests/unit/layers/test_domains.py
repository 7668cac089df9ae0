"""Guards become loop bounds, and views become index maps: before -> after, and the same results."""

from __future__ import annotations

import numpy as np
import pytest
from targets import Call, check_everywhere

from polyfuse.decisions import Decision
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import Select, TensorGraph, walk
from polyfuse.layers.graph.domains import split_index_sets
from polyfuse.layers.graph.inline import inline_views

SHIFT = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i-1] if i >= 1 else 0.5 }"
WINDOW = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i-1] * 2.0 if 1 <= i < N - 2 else 0.5 }"
STENCIL = """op f(x: f32[N], w: f32[K]) -> (y: f32[N]) {
  y[i] = sum[k in 0..K](x[i+k-1] * w[k] if 1 <= i + k < N + 1 else 0.0) for i in 0..N }"""
OUTER = "op f(x: f32[N, M]) -> (y: f32[N]) { y[i] = sum[k](x[i-1, k] if i >= 1 else 0.0) for i in 0..N }"
NOT_NEUTRAL = "op f(x: f32[N]) -> (y: f32) { y = sum[i in 0..N](x[i] if i >= 2 else 1.0) }"
DATA = "op f(x: f32[N], k: bool[N]) -> (y: f32[N]) { y[i] = x[i] if k[i] else 0.5 }"
TWICE = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = (x[i-1] if i >= 1 else 0.0) + (x[i+1] if i < N-1 else 0.0) }"
STEEP = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[2*i] if 2*i < N else 0.0 }"


def graph_of(text: str, **sizes: int) -> TensorGraph:
    return fixed_graph(instantiate(parse_text(text), "f"), sizes)


def guards(graph: TensorGraph) -> int:
    return sum(isinstance(e, Select) for s in graph.statements for e in walk(s.expr))


def domains(graph: TensorGraph) -> list[str]:
    return [", ".join(map(str, s.dims)) for s in graph.statements]


def test_a_guard_cuts_the_domain() -> None:
    found: list[Decision] = []
    after = split_index_sets(graph_of(SHIFT, N=8), found)
    assert domains(after) == ["i in 1..8", "i in 0..1"]
    assert guards(after) == 0
    assert [d.subject for d in found] == ["y"] and found[0].taken


def test_both_ends_give_three_pieces() -> None:
    assert domains(split_index_sets(graph_of(WINDOW, N=8), [])) == ["i in 1..6", "i in 0..1", "i in 6..8"]


def test_a_guarded_sum_runs_over_fewer_terms() -> None:
    (statement,) = split_index_sets(graph_of(STENCIL, N=8, K=3), []).statements
    assert str(statement.dims[1]) == "k in max(0, 1 - i)..min(3, 9 - i)"
    assert guards(split_index_sets(graph_of(STENCIL, N=8, K=3), [])) == 0


def test_a_guard_on_outer_dims_empties_the_sum() -> None:
    after = split_index_sets(graph_of(OUTER, N=4, M=5), [])
    assert guards(after) == 0
    assert domains(after) == ["i in 0..4, k in 0..min(5, 5*i)"]


@pytest.mark.parametrize("text", [NOT_NEUTRAL, DATA, STEEP], ids=["not neutral", "data", "steep"])
def test_other_guards_stay(text: str) -> None:
    before = graph_of(text, N=8)
    assert split_index_sets(before, []) is before


CASES = [
    (text, {"N": n, **({"K": 3} if "f32[K]" in text else {}), **({"M": 5} if "M]" in text else {})})
    for text in (SHIFT, WINDOW, STENCIL, OUTER, NOT_NEUTRAL, DATA, TWICE, STEEP)
    for n in (1, 2, 3, 8, 33)
    if not (text == WINDOW and n < 3)
]

CONCAT = """op f(a: f32[N], b: f32[M]) -> (y: f32[K]) where K == N + M - 1, N >= 1, M >= 1 {
  c[i] = a[i] for i in 0..N
  c[i] = b[i - N] for i in N..N+M
  y[i] = c[i + 1] * 2.0 + c[i] for i in 0..K }"""
PAD_MAX = """op f(x: f32[N]) -> (y: f32[N]) {
  p[i] = x[i-1] for i in 1..N+1
  p[0] = -1.0
  p[N+1] = -1.0
  y[i] = max[k in 0..3](p[i+k]) for i in 0..N }"""


def test_a_concatenation_is_read_in_place() -> None:
    found: list[Decision] = []
    after = inline_views(graph_of(CONCAT, N=5, M=4, K=8), found)
    assert [s.target for s in after.statements] == ["y"]
    assert found == [Decision("inline pieces", "c", True, "2 pieces are read in place")]
    assert guards(split_index_sets(after, [])) == 0


def test_a_pad_that_leaves_conditions_is_stored() -> None:
    found: list[Decision] = []
    before = graph_of(PAD_MAX, N=5)
    assert inline_views(before, found) is before
    assert [(d.subject, d.taken) for d in found] == [("p", False)]


def call(text: str, sizes: dict[str, int]) -> Call:
    graph = instantiate(parse_text(text), "f")
    rng = np.random.default_rng(3)
    inputs = {}
    for name in graph.inputs:
        t = graph.tensor(name)
        shape = tuple(sizes[str(e)] for e in t.shape)
        inputs[name] = (
            rng.standard_normal(shape) > 0 if t.dtype.is_bool else rng.standard_normal(shape)
        ).astype(t.dtype.numpy)
    return Call(f"{text} {sizes}", "", graph, sizes, inputs)


def test_the_results_stay_the_same() -> None:
    more = [(CONCAT, {"N": n, "M": m, "K": n + m - 1}) for n in (1, 5) for m in (1, 4)]
    more += [(PAD_MAX, {"N": n}) for n in (1, 2, 9)]
    check_everywhere([call(text, sizes) for text, sizes in CASES + more])


@pytest.mark.parametrize("index", ["i8(i)", "u8(i)", "i16(300 * i)", "i32(100000000 * i)"])
def test_shorter_integers_wrap_and_are_no_guards(index: str) -> None:
    text = f"op f(x: f32[N], y: f32[N]) -> (z: f32[N]) {{ z[i] = x[i] if {index} >= 3 else y[i] }}"
    graph = graph_of(text, N=300)
    assert split_index_sets(graph, []) == graph
    x = np.arange(300, dtype=np.float32)
    check_everywhere([Call("wraps", text, graph, {}, {"x": x, "y": -x})])
