"""Adjacent dims that are always used together become one."""

from __future__ import annotations

import pytest
from equivalence import assert_equivalent, fixed_graph_of

from polyfuse.decisions import Decision
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.graph.reindex.collapse import collapse


def collapsed(graph: TensorGraph, *strided: str) -> tuple[TensorGraph, list[str]]:
    decisions: list[Decision] = []
    after = collapse(graph, decisions, frozenset(strided))
    assert_equivalent(graph, after)
    return after, list(map(str, decisions))


SCALE = "op f(x: f32[N, C, H, W], g: f32[C]) -> (y: f32[N, C, H, W]) { y[n, c, h, w] = x[n, c, h, w] * g[c] }"


def test_before_and_after() -> None:
    after, decisions = collapsed(fixed_graph_of(SCALE, N=2, C=3, H=4, W=5))
    assert list(map(str, after.statements)) == [
        "y: y[n, c, h_w] = (x[n, c, h_w] * g[c])  for n in 0..2, c in 0..3, h_w in 0..20"
    ]
    assert [str(e) for e in after.tensor("x").shape] == ["2", "3", "20"]
    assert decisions == ["+ collapse x[..2, 3..], y[..2, 3..]: the two dims are always used together"]


def test_all_dims_of_an_elementwise_operator() -> None:
    text = "op f(x: f32[A, B, C, D]) -> (y: f32[A, B, C, D]) { y[a, b, c, d] = exp(x[a, b, c, d]) }"
    after, decisions = collapsed(fixed_graph_of(text, A=2, B=3, C=4, D=5))
    (s,) = after.statements
    assert len(s.dims) == 1 and str(s.dims[0].upper) == "120" and len(decisions) == 3


def test_reduction_dims() -> None:
    text = "op f(x: f32[C, H, W]) -> (s: f32[C]) { s[c] = sum[h, w](x[c, h, w]) }"
    after, _ = collapsed(fixed_graph_of(text, C=3, H=4, W=5))
    assert str(after.statements[0]) == "s: s[c] = sum[h_w in 0..20](x[c, h_w])  for c in 0..3"


def test_through_gathered_and_scattered_rows() -> None:
    text = """op f(x: f32[V, H, W], i: i64[N], z: f32[V, H, W]) -> (y: f32[V, H, W]) {
      y[v, h, w] = z[v, h, w]
      y[i[n], h, w] += x[i[n], h, w]
    }"""
    after, decisions = collapsed(fixed_graph_of(text, V=3, H=4, W=5, N=6))
    assert all("h_w" in str(s) for s in after.statements) and len(decisions) == 1


def test_inout_and_its_entry_value_collapse_together() -> None:
    text = "op f(inout p: f32[A, B], g: f32[A, B]) { p[a, b] = p[a, b] - g[a, b] }"
    after, _ = collapsed(fixed_graph_of(text, A=3, B=4))
    assert {str(t.shape[0]) for t in after.tensors} == {"12"}


def test_an_inout_that_is_only_written() -> None:
    after, _ = collapsed(
        fixed_graph_of("op f(inout p: f32[A, B], g: f32[A, B]) { p[a, b] = g[a, b] }", A=3, B=4)
    )
    assert {str(t.shape[0]) for t in after.tensors} == {"12"}


def test_a_name_that_is_taken() -> None:
    text = (
        "op f(x: f32[I, A, B]) -> (y: f32[I, A, B]) { y[a_b, a, b] = x[a_b, a, b] * 2.0 if a_b > 0 else 1.0 }"
    )
    collapsed(fixed_graph_of(text, I=2, A=3, B=4))


KEPT = {
    "transposed": "op f(x: f32[A, B]) -> (y: f32[B, A]) { y[b, a] = x[a, b] }",
    "one of the two alone": "op f(x: f32[A, B], g: f32[B]) -> (y: f32[A, B]) { y[a, b] = x[a, b] * g[b] }",
    "a part of the range": """op f(x: f32[A, B]) -> (y: f32[A, B]) {
        y[a, b] = x[a, b] for a in 0..A, b in 1..B
        y[a, 0] = 0.0
    }""",
    "shifted": "op f(x: f32[A, B]) -> (y: f32[A, B]) { y[a, b] = x[A - 1 - a, b] }",
    "used as numbers": "op f(x: f32[A, B]) -> (y: f32[A, B]) { y[a, b] = x[a, b] + f32(b) }",
    "a reduced and an outer dim": "op f(x: f32[A, B]) -> (y: f32[A]) { y[a] = sum[b](x[a, b]) }",
    "equal indices": "op f(x: f32[A, A]) -> (y: f32[A, A], d: f32[A]) { y[i, j] = x[i, j]; d[i] = x[i, i] }",
    "elsewhere apart": """op f(x: f32[A, B]) -> (y: f32[A, B], s: f32[B]) {
        y[a, b] = x[a, b] + 1.0
        s[b] = sum[a](x[a, b])
    }""",
    "argmax": "op f(x: f32[A, B]) -> (y: i64[A]) { y[a] = argmax[b](x[a, b]) }",
    "triangle": "op f(x: f32[A, B]) -> (y: f32[A]) { y[a] = sum[b in 0..a + 1](x[a, b]) }",
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
def test_not_collapsed(text: str) -> None:
    graph = fixed_graph_of(text, **{n: 4 for n in ("A", "B") if f"{n}]" in text or f"{n}," in text})
    after, decisions = collapsed(graph)
    assert after == graph and not decisions


def test_strided_memory_is_left_alone() -> None:
    graph = fixed_graph_of(SCALE, N=2, C=3, H=4, W=5)
    after, decisions = collapsed(graph, "x")
    assert after is graph and not decisions


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 3, 1, 4), (2, 0, 3, 4), (2, 3, 0, 4)], ids=str)
def test_sizes_of_one_and_none(sizes: tuple[int, ...]) -> None:
    collapsed(fixed_graph_of(SCALE, **dict(zip("NCHW", sizes, strict=True))))
