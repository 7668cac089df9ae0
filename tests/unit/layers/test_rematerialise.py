"""What is computed again instead of being stored, and why the rest is not."""

from __future__ import annotations

from equivalence import assert_computes, assert_equivalent, fixed_graph_of

from polyfuse.api import parse
from polyfuse.cost.extents import tensor_bytes
from polyfuse.decisions import Decision
from polyfuse.ir.schedule_tree import shape
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.fusion.rematerialise import phases, rematerialise
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.poly.scheduling.axis_planner import plan


def tried(text: str, **sizes: int) -> tuple[TensorGraph, dict[str, str], str]:
    """(graph, decisions by tensor, shape of the tree) after rematerialisation."""
    graph = fixed_graph_of(text, **sizes)
    decisions: list[Decision] = []
    after, tree = rematerialise(graph, plan(graph), plan, decisions)
    assert_equivalent(graph, after)
    assert_computes(graph, form_kernels(LoopFusion().schedule(graph), 2)[0])
    return after, {d.subject: str(d) for d in decisions}, shape(tree)


LAYER_NORM = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  mu[t] = sum[h](x[t, h]) / H
  c[t, h] = x[t, h] - mu[t]
  v[t] = sum[h](c[t, h] ** 2) / H
  y[t, h] = c[t, h] * rsqrt(v[t] + 0.00001)
}"""


def test_layer_norm_computes_the_difference_again() -> None:
    after, decisions, _ = tried(LAYER_NORM, T=4, H=64)
    assert all(t.name != "c" for t in after.tensors)
    assert decisions["c"].startswith(
        "+ rematerialise c: recomputing it in the phases that read it moves fewer bytes than storing it"
    )
    assert "saves" in decisions["c"]


def test_functions_are_not_computed_twice() -> None:
    text = """op f(x: f32[B, H]) -> (y: f32[B, H]) {
      m[b] = max[h](x[b, h])
      e[b, h] = exp(x[b, h] - m[b])
      s[b] = sum[h](e[b, h])
      y[b, h] = e[b, h] / s[b]
    }"""
    after, decisions, tree = tried(text, B=4, H=64)
    assert decisions["e"] == "- rematerialise e: it would compute exp again"
    assert any(t.name == "e" for t in after.tensors) and tree == "B1([B1(m); B1(e+s); B1(y)])"


def test_long_chains_are_not_repeated() -> None:
    line = " + ".join(["x[b, h]"] * 18)
    text = f"op f(x: f32[B, H]) -> (y: f32[B, H]) {{ e[b, h] = {line}\ny[b, h] = e[b, h] * sum[k](e[b, k]) }}"
    _, decisions, _ = tried(text, B=3, H=8)
    assert decisions["e"] == "- rematerialise e: it would repeat 17 operations"


def test_more_bytes_are_not_read() -> None:
    text = """op f(x: f32[B, H], u: f32[B, H], v: f32[B, H]) -> (y: f32[B, H]) {
      e[b, h] = x[b, h] + u[b, h] * v[b, h]
      y[b, h] = e[b, h] * sum[k](e[b, k])
    }"""
    _, decisions, _ = tried(text, B=4, H=64)
    reason = "recomputing it would read more bytes than storing it moves"
    assert decisions["e"] == f"- rematerialise e: {reason}"


def test_tables_of_open_extents_are_as_large_as_what_data_name() -> None:
    """Whatever such a size is taken as; a row of one table is read again all the same."""
    text = """op f(x: f32[V, H], u: f32[V, H], at: i64[B, S]) -> (y: f32[B, S, H]) {
      e[b, s, h] = x[at[b, s], h]TERM
      y[b, s, h] = e[b, s, h] * sum[k](e[b, s, k])
    }"""
    told = {}
    for term in ("", " + u[at[b, s], h]"):
        graph, decisions = parse(text.replace("TERM", term)).op("f").graph(), list[Decision]()
        rematerialise(graph, plan(graph), plan, decisions)
        told[term] = {d.subject: d.taken for d in decisions}["e"]
    assert told == {"": True, " + u[at[b, s], h]": False}


def test_reductions_stay() -> None:
    text = "op f(x: f32[B, H]) -> (y: f32[B, H]) { s[b] = sum[h](x[b, h])\ny[b, h] = x[b, h] * s[b] }"
    _, decisions, _ = tried(text, B=4, H=64)
    assert decisions["s"] == "- rematerialise s: its definition cannot replace a read of it"


def test_what_stays_in_one_phase_is_not_judged() -> None:
    text = "op f(x: f32[N]) -> (y: f32[N]) { a[i] = x[i] + 1.0\ny[i] = a[i] * a[i] }"
    after, decisions, tree = tried(text, N=8)
    assert not decisions and tree == "B1(a+y)" and len(after.statements) == 2


def test_phases_are_the_innermost_nests() -> None:
    graph = fixed_graph_of(LAYER_NORM, T=4, H=8)
    assert phases(plan(graph)) == {"mu__sum": 0, "mu": 1, "c": 2, "v__sum": 2, "v": 3, "y": 4}


def test_bytes_of_tensors() -> None:
    graph = fixed_graph_of("op f(x: f64[A, B], h: f16[A, A]) -> (y: f32) { y = 1.0 if A > B else 2.0 }", A=3)
    assert tensor_bytes(graph, "h") == 18 and tensor_bytes(graph, "y") == 4
    assert tensor_bytes(graph, "x") == 3 * 1024 * 8  # an open size counts as 1024


PADDED = """op f(x: f32[C, H], w: f32[C, 3]) -> (y: f32[H]) {
  p[c, h] = x[c, h - 1] if 1 <= h < H + 1 else 0.0 for c in 0..C, h in 0..H + 2
  y[h] = sum[c, r](p[c, h + r] * w[c, r])
}"""


def test_conditions_are_not_asked_in_every_term_of_a_window() -> None:
    _, decisions, _ = tried(PADDED, C=5, H=40)
    assert decisions["p"] == "- rematerialise p: y reads each element several times"
    once = PADDED.replace("sum[c, r](p[c, h + r] * w[c, r])", "sum[c](p[c, h + 1] * w[c, 0])")
    _, decisions, _ = tried(once, C=5, H=40)
    assert decisions["p"].startswith("+ rematerialise p: ")


def test_bounds_may_depend_on_other_loops() -> None:
    lower = PADDED.replace("sum[c, r](p[c, h + r] * w[c, r])", "sum[c, r in 0..h % 3](p[c, h + r] * w[c, r])")
    after, _, _ = tried(lower, C=5, H=40)
    assert after.statements


def test_what_has_no_condition_is_computed_in_every_term() -> None:
    text = PADDED.replace("x[c, h - 1] if 1 <= h < H + 1 else 0.0", "max(x[c, h % H], 0.0)")
    _, decisions, _ = tried(text, C=5, H=40)
    assert decisions["p"].startswith("+ rematerialise p: ")


def test_what_neighbours_share_is_not_computed_for_each() -> None:
    """Four pixels read each maximum; a mean of eight channels costs each of these one division."""
    text = """op f(x: f32[N, 2*H, 2*W]) -> (y: f32[N, 2*H, 2*W]) {
      m[n, h, w] = max(x[n, 2*h, 2*w], x[n, 2*h, 2*w + 1], x[n, 2*h + 1, 2*w], x[n, 2*h + 1, 2*w + 1])
        for h in 0..H, w in 0..W
      y[n, h, w] = 1.0 if x[n, h, w] == m[n, h // 2, w // 2] else 0.0
    }"""
    after, decisions, _ = tried(text, N=2, H=5, W=9)
    assert any(t.name == "m" for t in after.tensors)
    assert "reads each element several times" in decisions["m"]
    text = """op f(x: f32[C, W]) -> (y: f32[C, W]) where C >= 8 {
      s[g] = sum[c in 0..8, w in 0..W](x[8*g + c, w]) for g in 0..C // 8
      m[g] = s[g] / f32(W) * 0.125
      y[c, w] = x[c, w] - m[c // 8]
    }"""
    after, decisions, _ = tried(text, C=16, W=64)
    assert decisions["m"].startswith("+ rematerialise m")
