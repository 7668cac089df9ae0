"""Sums of three factors that would take fewer products as two are named, with the two."""

from __future__ import annotations

import pytest
from equivalence import fixed_graph_of

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.layers.graph.fission import best_factoring, suggest_factoring

BLOCK = """op f(c: f32[K, K], x: f32[N, K, K]) -> (y: f32[N, K, K]) {
  y[n, u, v] = sum[a, b](c[u, a] * x[n, a, b] * c[v, b])
}"""
CHAIN = """op f(a: f32[M, K], b: f32[K, L], c: f32[L, N]) -> (y: f32[M, N]) {
  y[m, n] = sum[k, l](a[m, k] * b[k, l] * c[l, n])
}"""
APART = "op f(x: f32[N, K], w: f32[K], v: f32[L]) -> (y: f32[N]) { y[n] = sum[k, l](x[n, k] * w[k] * v[l]) }"
TOGETHER = """op f(a: f32[I, R], b: f32[J, R], c: f32[K, R]) -> (y: f32[I, J, K]) {
  y[i, j, k] = sum[r](a[i, r] * b[j, r] * c[k, r])
}"""


def lines(text: str, **sizes: int) -> list[Decision]:
    found: list[Decision] = []
    suggest_factoring(fixed_graph_of(text, **sizes), found)
    return found


def test_the_two_sums_with_the_fewest_products() -> None:
    """Of the ways, that with the smaller tensor between."""
    best = best_factoring(fixed_graph_of(CHAIN, M=10, K=20, L=30, N=400).statements[0])
    assert best is not None and best.over == ("k",) and best.products == 10 * 20 * 30 + 10 * 30 * 400
    best = best_factoring(fixed_graph_of(CHAIN, M=400, K=20, L=30, N=10).statements[0])
    assert best is not None and best.over == ("l",) and best.products == 20 * 30 * 10 + 400 * 20 * 10
    best = best_factoring(fixed_graph_of(APART, N=50, K=60, L=70).statements[0])
    assert best is not None and best.over == ("l",) and best.products == 70 + 50 * 60


def test_they_are_named() -> None:
    (found,) = lines(BLOCK, N=100, K=8)
    assert not found.taken and found.kind == "factor" and found.subject == "y"
    assert "t = sum[a](c[u, a] * x[n, a, b]), then sum[b](c[v, b] * t) would be 4 times fewer" in found.reason


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (BLOCK, {"N": 1, "K": 8}),  # few products
        (BLOCK, {"N": 100_000, "K": 2}),  # as many as two sums
        (BLOCK, {"N": 0, "K": 8}),
        (TOGETHER, {"I": 64, "J": 64, "K": 64, "R": 16}),  # nothing can be taken out
        ("op f(a: f32[M, K], b: f32[K, N]) -> (y: f32[M, N]) { y[m, n] = sum[k](a[m, k] * b[k, n]) }",
         {"M": 100, "K": 100, "N": 100}),
        ("op f(a: f32[M, K], b: f32[K], c: f32[M]) -> (y: f32[M]) { y[m] = max[k](a[m, k] * b[k] * c[m]) }",
         {"M": 1000, "K": 1000}),
    ],
)  # fmt: skip
def test_other_sums_are_not(text: str, sizes: dict[str, int]) -> None:
    assert lines(text, **sizes) == []


def test_a_compilation_says_it() -> None:
    pieces = pf.parse(BLOCK).op().specialize(N=100, K=8).clusters()
    assert "- factor y: t = sum[a]" in "\n".join(str(d) for piece in pieces for d in piece.decisions)
