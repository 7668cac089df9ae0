"""Results that go over short rows, beside what lies along memory, have a statement for each element."""

from __future__ import annotations

import pytest
from equivalence import assert_equivalent, assert_right, cpu_source, fixed_graph_of, seeded_inputs
from thinned import thinned

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.layers.graph.unroll_dims import MOST_STATEMENTS, unroll_short_rows

TO_PIXELS = """op f(x: {0}[3, H, W]) -> (y: {1}[H, W, 3]) {{
  y[i, j, c] = {1}(min(max(x[c, i, j] * {0}(100), {0}(0)), {0}(120)))
}}"""
TO_PLANES = """op f(x: {0}[H, W, 3], m: {1}[3]) -> (y: {1}[3, H, W]) {{
  y[c, i, j] = ({1}(x[i, j, c]) - m[c]) * {1}(2)
}}"""
SCALED = "op f(x: {0}[N, 4], s: {0}[N]) -> (y: {0}[N, 4]) {{ y[n, c] = x[n, c] * s[n] }}"
COPIED = "op f(x: {0}[N]) -> (y: {0}[N, 3]) {{ y[n, c] = x[n] }}"
ONE_HOT = "op f(k: i32[N]) -> (y: f32[N, 4]) { y[n, c] = 1.0 if k[n] == i32(c) else 0.0 }"
NORM = """op f(x: f32[N, 3], g: f32[3]) -> (y: f32[N, 3]) {
  m[n] = mean[c](x[n, c])
  v[n] = mean[c]((x[n, c] - m[n]) ** 2)
  y[n, c] = (x[n, c] - m[n]) * rsqrt(v[n] + 1e-5) * g[c]
}"""
# From the second element on, over channels that begin elsewhere, beside a first one of its own.
PART = """op f(x: f32[5, N]) -> (y: f32[N, 3]) {
  y[n, 0] = x[4, n]
  y[n, c] = x[c + 1, n] + (f32(n) if c == 1 else x[0, n]) for n in 0..N, c in 1..3
}"""
# A name that a new statement could have.
NAMES = """op f(x: f32[2, N]) -> (y: f32[N, 2], y__0: f32[N]) {
  y__0[n] = x[0, n] + 1.0
  y[n, c] = x[c, n]
}"""


def split(text: str, **sizes: int) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    graph = fixed_graph_of(text, **sizes)
    after = unroll_short_rows(graph, decisions)
    assert_equivalent(graph, after)
    return after, decisions


SPLIT = {
    "to pixels": (TO_PIXELS.format("f32", "u8"), {"H": 5, "W": 40}, 3),
    "to planes": (TO_PLANES.format("u8", "f32"), {"H": 5, "W": 40}, 3),
    "scaled": (SCALED.format("f32"), {"N": 40}, 4),
    "copied": (COPIED.format("u8"), {"N": 40}, 3),
    "one hot": (ONE_HOT, {"N": 40}, 4),
    "norm": (NORM, {"N": 40}, 3),
    "part": (PART, {"N": 40}, 2),
    "names": (NAMES, {"N": 40}, 2),
}


@pytest.mark.parametrize(("text", "sizes", "count"), SPLIT.values(), ids=SPLIT.keys())
def test_each_element_of_a_row_has_a_statement(text: str, sizes: dict[str, int], count: int) -> None:
    graph, (decision,) = split(text, **sizes)
    assert decision.kind == "unroll" and decision.reason.startswith(f"{count} values of c ")
    assert len(graph.statements) == len(fixed_graph_of(text, **sizes).statements) + count - 1


STAYS = {
    "one long row": "op f(x: f32[N, 3], m: f32[3]) -> (y: f32[N, 3]) { y[n, c] = x[n, c] * m[c] }",
    "reversed": "op f(x: f32[N, 3]) -> (y: f32[N, 3]) { y[n, c] = x[n, 2 - c] }",
    "five": "op f(x: f32[N]) -> (y: f32[N, 5]) { y[n, c] = x[n] }",
    "one": "op f(x: f32[N]) -> (y: f32[N, 1]) { y[n, c] = x[n] }",
    "functions of rows": """op f(x: f32[N, 3], m: f32[N]) -> (y: f32[N, 3]) {
      y[n, c] = exp(x[n, c]) * m[n] }""",
    "sums": """op f(x: f32[N, K], w: f32[K, 3], m: f32[N]) -> (y: f32[N, 3]) {
      y[n, c] = sum[k](x[n, k] * w[k, c] * m[n]) }""",
    "windows": "op f(x: f32[N + 2]) -> (y: f32[N, 3]) { y[n, c] = x[n + c] }",
    "digits": "op f(x: f32[N, 3], s: f32[N]) -> (y: f32[2 * N, 3]) { y[n, c] = x[n // 2, c] * s[n // 2] }",
    "data": """op f(x: f32[N], k: i64[N], s: f32[N]) -> (y: f32[N, 3]) {
      y[n, c] = x[k[n]] * s[n] * f32(c) }""",
    "conditions": """op f(x: f32[3, N]) -> (y: f32[N, 3]) {
      y[n, c] = x[c - 1, n] if c >= 1 else 0.0 for n in 0..N, c in 0..3 }""",
    "steps": """op f(x: f32[N], z: f32[3]) -> (y: f32[N, 3]) where N >= 1 {
      y[0, c] = z[c]
      y[n, c] = y[n - 1, c] * 0.5 + x[n] for n in 1..N, c in 0..3 }""",
    "in place": "op f(inout p: f32[N, 3], s: f32[N]) { p[n, c] = p[n, c] * s[n] }",
    "temporaries": """op f(x: f32[N]) -> (y: f32[3]) {
      t[n, c] = x[n] * f32(c) for n in 0..N, c in 0..3
      y[c] = sum[n](t[n, c] * t[n, c]) }""",
}  # fmt: skip


@pytest.mark.parametrize("text", STAYS.values(), ids=STAYS.keys())
def test_what_stays(text: str) -> None:
    sizes = {n: 40 for n in "NK" if f"[{n}" in text or f" {n}" in text}
    assert not split(text, **sizes)[1]


def test_few_points_and_many_statements_stay() -> None:
    assert not split(COPIED.format("f32"), N=15)[1] and split(COPIED.format("f32"), N=16)[1]
    results = range(MOST_STATEMENTS // 2)
    text = "op f(x: f32[N]) -> ({}) {{ {} }}".format(
        ", ".join(f"y{k}: f32[N, 3]" for k in results), "\n".join(f"y{k}[n, c] = x[n]" for k in results)
    )
    graph, decisions = split(text, N=40)
    assert 0 < len(decisions) < len(results) and len(graph.statements) <= MOST_STATEMENTS


def test_elements_of_a_row_are_stored_in_one_loop_over_points() -> None:
    source = cpu_source(TO_PIXELS.format("f32", "u8"), H=200, W=300)
    assert source.count("PF_IVDEP\n") == 1
    for k in range(3):
        assert f"b_x[{f'({60000 * k}) + ' if k else ''}" in source or f"{60000 * k} + c" in source
    assert "* 3) + 1] = pf_u8" in source and "* 3) + 2] = pf_u8" in source


def test_halves_along_planes_are_converted_in_rows() -> None:
    """Three stores to one result, of planes that are apart."""
    source = cpu_source(TO_PLANES.format("u8", "f16"), H=200, W=300)
    assert source.count("pf_narrow_f16(&b_y[") >= 3


def assert_compiled(text: str, graph: TensorGraph) -> None:
    inputs = seeded_inputs(graph)
    results = [t.name for t in graph.tensors if t.role is Role.OUTPUT]
    got = pf.compile(text)(**inputs)
    assert_right(graph, dict(zip(results, got if isinstance(got, tuple) else (got,), strict=True)), inputs)


@pytest.mark.parametrize("sizes", [(0, 3), (1, 1), (3, 16), (5, 37), (130, 300)], ids=str)
@pytest.mark.parametrize("kinds", thinned([("f32", "u8"), ("f16", "i8"), ("f64", "f32"), ("bf16", "f16")], 4))
def test_compiled_images(kinds: tuple[str, str], sizes: tuple[int, int]) -> None:
    pixels, planes = TO_PIXELS.format(*kinds), TO_PLANES.format(*reversed(kinds))
    for text in (pixels, planes):
        graph = fixed_graph_of(text, H=sizes[0], W=sizes[1])
        assert_compiled(text, graph)


@pytest.mark.thin(3)
@pytest.mark.parametrize("n", [0, 1, 16, 37, 40000])
@pytest.mark.parametrize("text", [SCALED.format("f16"), COPIED.format("u8"), ONE_HOT, NORM, PART, NAMES])
def test_compiled_rows(text: str, n: int) -> None:
    graph = fixed_graph_of(text, N=n)
    assert_compiled(text, graph)
