"""Graph rewrites: argmax in parts, inputs read once, producers computed again."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_computes, assert_equivalent, fixed_graph_of

import polyfuse as pf
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.graph.inline import cache_read, decompose_argmax, inlinable, inline
from polyfuse.layers.mapping.kernels import form_kernels

ARGMAX = "op f(x: f32[T, H]) -> (a: i64[T]) { a[t] = argmax[h](x[t, h]) }"


def parts(before: TensorGraph) -> list[str]:
    """The statements that come of an argmax."""
    after = decompose_argmax(before)
    assert_equivalent(before, after)
    return list(map(str, after.statements))


def test_argmax_before_and_after() -> None:
    assert parts(fixed_graph_of(ARGMAX, T=3, H=4)) == [
        "a__best: a__best[t] = max[h in 0..4](x[t, h])  for t in 0..3",
        "a__place: a__place[t] = min[h in 0..4]((i32(h) if ((x[t, h] == a__best[t]) or isnan(x[t, h])) "
        "else 2147483647))  for t in 0..3",
        "a: a[t] = i64(a__place[t])  for t in 0..3",
    ]


def test_argmin_of_integers_asks_for_no_nan() -> None:
    assert parts(fixed_graph_of("op f(x: i32[H]) -> (a: i64) { a = argmin[h](x[h]) }", H=7))[:2] == [
        "a__best: a__best[] = min[h in 0..7](x[h])",
        "a__place: a__place[] = min[h in 0..7]((i32(h) if (x[h] == a__best[]) else 2147483647))",
    ]


def test_argmax_of_wide_values_counts_as_wide() -> None:
    made = parts(fixed_graph_of(ARGMAX.replace("f32", "f64"), T=3, H=4))
    assert made[1:] == [
        "a: a[t] = min[h in 0..4]((i64(h) if ((x[t, h] == a__best[t]) or isnan(x[t, h])) "
        "else 9223372036854775807))  for t in 0..3"
    ]


@pytest.mark.parametrize(("start", "narrow"), [(0, True), (2**31 - 6, True), (2**31 - 5, False)])
def test_argmax_over_large_numbers_counts_as_wide(start: int, narrow: bool) -> None:
    text = f"op f(x: f32[H]) -> (a: i64) {{ a = argmax[h in {start}..{start + 5}](x[h - {start}]) }}"
    assert any("i32(h)" in s for s in parts(fixed_graph_of(text, H=5))) == narrow


def test_what_argmax_computes_is_kept_in_the_order_of_what_it_reads() -> None:
    """Both uses see the same bits, and loops go along memory in both."""
    before = fixed_graph_of(
        "op f(x: f32[C, P], w: f32[C]) -> (a: i64[P]) { a[p] = argmax[c](w[c] * x[c, p]) }", C=3, P=4
    )
    after = decompose_argmax(before)
    assert str(after.statements[0]) == "a__value: a__value[c, p] = (w[c] * x[c, p])  for p in 0..4, c in 0..3"
    assert after.tensor("a__value").exact and after.tensor("a__best").exact
    assert_equivalent(before, after)


@pytest.mark.parametrize(
    ("value", "kept"), [("max[k](x[t, h] * w[k])", False), ("x[t, h] * 3.0 + 1.0", True)]
)
def test_argmax_of_a_temporary_reads_it_where_it_is_never_computed_again(value: str, kept: bool) -> None:
    text = f"""op f(x: f32[T, H], w: f32[3]) -> (a: i64[T]) {{
      v[t, h] = {value}
      a[t] = argmax[h](v[t, h])
    }}"""
    before = fixed_graph_of(text, T=3, H=4)
    after = decompose_argmax(before)
    assert ("a__value" in str(after)) == kept and after.tensor("v").exact == (not kept)
    assert_equivalent(before, after)


@pytest.mark.parametrize("value", ["x[t, i[h]]", "x[t, h - 1] if h >= 1 else 0.0"])
def test_argmax_of_what_may_leave_a_tensor_reads_it_once(value: str) -> None:
    text = (
        f"op f(x: f32[T, H], i: i64[H]) -> (a: i64[T]) where H >= 3 {{ a[t] = argmax[h in 0..H]({value}) }}"
    )
    before = fixed_graph_of(text, T=3, H=4)
    after = decompose_argmax(before)
    assert "a__value" in str(after)
    assert_equivalent(before, after)


ARG_RANGES = {
    "below zero": "a[t] = argmax[h in -2..3](x[t, h + 2])",
    "from three on": "a[t] = argmin[h in 3..5](x[t, h])",
    "growing": "a[t] = argmax[h in 0..t + 1](x[t, h])",
    "shrinking": "a[t] = argmax[h in 0..5 - t](x[t, h])",
    "moving": "a[t] = argmin[h in t..t + 2](x[t, h])",
    "moving from below zero": "a[t] = argmax[h in t - 2..t + 1](x[t, h] if h >= 0 else -9.0)",
    "equal": "a[t] = argmax[h in 0..5](x[t, 0])",
}


@pytest.mark.parametrize("line", ARG_RANGES.values(), ids=ARG_RANGES.keys())
def test_argmax_over_any_range(line: str) -> None:
    text = f"op f(x: f32[T, 6]) -> (a: i64[T]) {{ {line} for t in 0..T }}"
    before = fixed_graph_of(text, T=4)
    scheduled = LoopFusion().schedule(before)
    assert_equivalent(before, scheduled.graph)
    assert_computes(before, form_kernels(scheduled, 2)[0])


def test_generated_names_are_no_users_names() -> None:
    text = """op f(x: f32[N, M]) -> (a: i64[N], s: f32[N], b: f32[N]) {
      a[n] = argmax[m](x[n, m])
      s[n] = sum[m](x[n, m])
      a__value[n] = x[n, 0] * 2.0
      a__best[n] = a__value[n] + 1.0
      s__init[p__] = a__best[p__] + 1.0
      x__cache[n] = s__init[n] * 2.0
      b[n] = x__cache[n]
    }"""
    before = fixed_graph_of(text, N=3, M=4)
    scheduled = LoopFusion(rematerialise=False, cache_reads=("x",)).schedule(before)
    assert_equivalent(before, scheduled.graph)
    assert_computes(before, form_kernels(scheduled, 2)[0])


CENTRE = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h])
  y[t, h] = x[t, h] - s[t]
}"""


def test_cache_read() -> None:
    before = fixed_graph_of(CENTRE, T=3, H=4)
    after = cache_read(before, "x")
    assert list(map(str, after.statements)) == [
        "x__cache: x__cache[d0, d1] = x[d0, d1]  for d0 in 0..3, d1 in 0..4",
        "s: s[t] = sum[h in 0..4](x__cache[t, h])  for t in 0..3",
        "y: y[t, h] = (x__cache[t, h] - s[t])  for t in 0..3, h in 0..4",
    ]
    assert_equivalent(before, after)


def test_cache_read_of_halves_and_of_indices() -> None:
    halves = fixed_graph_of(
        CENTRE.replace("f32[", "f16[").replace("= x[t, h] - s[t]", "= f16(x[t, h] - s[t])"), T=3, H=4
    )
    assert_equivalent(halves, cache_read(halves, "x"))
    text = "op f(z: f32[V], i: i64[N]) -> (y: f32[V]) { y[v] = z[v]; y[i[n]] += z[i[n]] }"
    scatter = fixed_graph_of(text, V=4, N=6)
    after = cache_read(scatter, "i")
    assert "y[i__cache[n]] sum= z[i__cache[n]]" in str(after)
    assert_equivalent(scatter, after)


def test_cache_read_is_recorded_and_asks_for_an_input() -> None:
    graph = fixed_graph_of(CENTRE, T=3, H=4)
    scheduled = LoopFusion(cache_reads=("x",)).schedule(graph)
    assert "+ cache_read x: asked for" in map(str, scheduled.decisions)
    assert_computes(graph, form_kernels(scheduled, 2)[0])
    with pytest.raises(pf.ArgumentError, match=r"PF416.*there is no input 'z'"):
        LoopFusion(cache_reads=("z",)).schedule(graph)


def test_inline() -> None:
    text = """op f(x: f32[T, H], m: f32[T]) -> (y: f32[H, T]) {
      c[t, h] = x[t, h] - m[t]
      y[h, t] = c[t, h] * c[T - 1 - t, h]
    }"""
    before = fixed_graph_of(text, T=3, H=4)
    after = inline(before, "c")
    assert list(map(str, after.statements)) == [
        "y: y[h, t] = ((x[t, h] - m[t]) * (x[2 - t, h] - m[2 - t]))  for h in 0..4, t in 0..3"
    ]
    assert all(t.name != "c" for t in after.tensors)
    assert_equivalent(before, after)


def test_inline_of_index_values_and_guards() -> None:
    text = """op f(x: f32[N]) -> (y: f32[N]) {
      c[i] = x[i - 1] + f32(i) if i >= 1 else 0.5 for i in 0..N
      y[i] = c[N - 1 - i] * 2.0
    }"""
    before = fixed_graph_of(text, N=6)
    assert_equivalent(before, inline(before, "c"))


NOT_INLINABLE = {
    "a result": ("y", "y[i] = x[i]"),
    "an input": ("x", "y[i] = x[i]"),
    "a reduction": ("c", "c[i] = sum[k](x[k] * x[i])\ny[i] = c[i]"),
    "pieces": ("c", "c[0] = x[0]\nc[i] = x[i] for i in 1..N\ny[i] = c[i] for i in 0..N"),
    "a recurrence": ("c", "c[i] = c[i - 1] + x[i] if i >= 1 else x[i] for i in 0..N\ny[i] = c[i]"),
    "gathered": ("c", "c[i] = x[i] * 2.0\ny[i] = c[j[i]] for i in 0..N"),
    "a constant index": ("c", "c[0, i] = x[i]\ny[i] = c[0, i]"),
}


@pytest.mark.parametrize(("tensor", "body"), NOT_INLINABLE.values(), ids=NOT_INLINABLE.keys())
def test_not_inlinable(tensor: str, body: str) -> None:
    graph = fixed_graph_of(f"op f(x: f32[N], j: i64[N]) -> (y: f32[N]) {{ {body} }}", N=4)
    assert inlinable(graph, tensor) is None


def test_argmax_values_are_never_recomputed() -> None:
    before = fixed_graph_of("op f(x: f32[T, H]) -> (a: i64[T]) { a[t] = argmax[h](x[t, h] * 3.0) }", T=3, H=4)
    after = LoopFusion().schedule(before).graph
    assert any(t.name == "a__value" for t in after.tensors)
    assert inlinable(after, "a__value") is None


def test_first_of_equals_and_nan() -> None:
    f = pf.compile(ARGMAX)
    rows = np.array([[1, 3, 3, 0], [np.nan, 9, np.nan, 1], [0, 2, np.nan, np.nan], [-np.inf] * 4], np.float32)
    np.testing.assert_array_equal(f(rows), rows.argmax(1))
