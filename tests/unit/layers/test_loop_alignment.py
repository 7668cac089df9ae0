"""Pieces of a row on a GPU: statements shifted into one loop, which reads each element once, in vectors."""

from __future__ import annotations

import re
from itertools import product

import pytest
from row_pieces import call_of, source_of
from targets import check_emulated

from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.loop_alignment import align_loops

ROPE = """op f(x: f32[T, S, 2*D], c: f32[S, D], s: f32[S, D]) -> (y: f32[T, S, 2*D]) {
  y[b, t, d] = x[b, t, d] * c[t, d] - x[b, t, d+D] * s[t, d] for d in 0..D
  y[b, t, d] = x[b, t, d] * c[t, d-D] + x[b, t, d-D] * s[t, d-D] for d in D..2*D
}"""
PARTIAL = """op f(x: f32[T, S, 2*D + E], c: f32[S, D], s: f32[S, D], e: f32[E])
    -> (y: f32[T, S, 2*D + E]) {
  y[b, t, d] = x[b, t, d] * c[t, d] - x[b, t, d+D] * s[t, d] for d in 0..D
  y[b, t, d] = x[b, t, d] * c[t, d-D] + x[b, t, d-D] * s[t, d-D] for d in D..2*D
  y[b, t, d] = x[b, t, d] + e[d - 2*D] for d in 2*D..2*D + E
}"""
IN_PLACE = """op f(inout x: f32[T, S, 2*D], c: f32[S, D], s: f32[S, D]) {
  x[b, t, d] = x[b, t, d] * c[t, d] - x[b, t, d+D] * s[t, d] for d in 0..D
  x[b, t, d] = x[b, t, d] * c[t, d-D] + x[b, t, d-D] * s[t, d-D] for d in D..2*D
}"""
NORMED = """op f(x: f32[T, S, 2*D], g: f32[2*D], c: f32[S, D], s: f32[S, D]) -> (y: f32[T, S, 2*D]) {
  r[b, t] = rsqrt(mean[d](x[b, t, d] * x[b, t, d]) + 0.000001)
  n[b, t, d] = x[b, t, d] * r[b, t] * g[d]
  y[b, t, d] = n[b, t, d] * c[t, d] - n[b, t, d+D] * s[t, d] for d in 0..D
  y[b, t, d] = n[b, t, d] * c[t, d-D] + n[b, t, d-D] * s[t, d-D] for d in D..2*D
}"""
CONCAT = """op f(a: f32[T, D], b: f32[T, E]) -> (y: f32[T, D + E]) {
  y[t, i] = a[t, i] for i in 0..D
  y[t, i] = b[t, i - D] * 2.0 for i in D..D+E
}"""
SPLIT = """op f(x: f32[T, 2*D]) -> (y: f32[T, D], z: f32[T, D]) {
  y[t, h] = x[t, h] * 2.0 for h in 0..D
  z[t, h] = x[t, h + D] - x[t, h] for h in 0..D
}"""
GATED = """op f(x: f32[T, 2*D]) -> (y: f32[T, D]) {
  y[t, h] = x[t, h] * sigmoid(x[t, h + D]) for h in 0..D
}"""
# The second piece needs the first.
CHAINED = """op f(x: f32[T, D]) -> (y: f32[T, 2*D]) {
  y[t, d] = x[t, d] + 1.0 for d in 0..D
  y[t, d] = y[t, d - D] * x[t, d - D] for d in D..2*D
}"""
# What needs both pieces stays with them, and they where they are.
USED = """op f(x: f32[T, 2*D]) -> (z: f32[T, 2*D], y: f32[T, 2*D]) {
  y[t, d] = x[t, d + D] for d in 0..D
  y[t, d] = x[t, d - D] for d in D..2*D
  z[t, d] = y[t, d] + x[t, d]
}"""
# Each piece of the second tensor needs one of the first.
TWICE = """op f(x: f32[T, 2*D], w: f32[T, D]) -> (y: f32[T, 2*D], z: f32[T, 2*D]) {
  y[t, d] = x[t, d] * w[t, d] for d in 0..D
  y[t, d] = x[t, d - D] + w[t, d - D] for d in D..2*D
  z[t, d] = y[t, d] * w[t, d] for d in 0..D
  z[t, d] = y[t, d] - w[t, d - D] for d in D..2*D
}"""
# One replaces what the other reads in the same iteration.
REPLACED = """op f(inout p: f32[T, 2*D], v: f32[T, 2*D]) -> (y: f32[T, 2*D]) {
  y[t, d] = old(p[t, d]) + v[t, d]
  p[t, d] = v[t, d - D] - v[t, d] for d in D..2*D
}"""
SUMS = """op f(x: f32[T, 2*D], w: f32[D]) -> (a: f32[T], b: f32[T]) {
  a[t] = sum[d in 0..D](x[t, d] * w[d])
  b[t] = sum[d in D..2*D](x[t, d] * w[d - D])
}"""
TRIANGLE = """op f(x: f32[D, 2*D]) -> (y: f32[D, 2*D]) {
  y[t, d] = x[t, d] for d in 0..t
  y[t, d] = 0.0 for d in t..2*D
}"""
# Each element of both pieces is a total.
TOTALS = """op f(x: f32[T, 2*D], w: f32[T], v: f32[T]) -> (y: f32[2*D]) {
  y[d] = sum[k](x[k, d] * w[k] - x[k, d+D] * v[k]) for d in 0..D
  y[d] = sum[k](x[k, d] * w[k] + x[k, d-D] * v[k]) for d in D..2*D
}"""
NAMES = {
    "totals": TOTALS,
    "rope": ROPE,
    "partial": PARTIAL,
    "in place": IN_PLACE,
    "normed": NORMED,
    "concat": CONCAT,
    "split": SPLIT,
    "gated": GATED,
    "chained": CHAINED,
    "used": USED,
    "twice": TWICE,
    "replaced": REPLACED,
    "sums": SUMS,
    "triangle": TRIANGLE,
}
TYPES = ("f32", "bf16", "f16", "f64")
LENGTHS = (0, 1, 2, 4, 7, 8, 16, 33, 64)


@pytest.mark.parametrize("dtype", TYPES)
def test_pieces_of_all_lengths_are_right(dtype: str) -> None:
    calls = [
        call_of(name, NAMES[name].replace("f32", dtype), ("x", "a", "p"), T=t, S=3, D=d, E=e)
        for k, (name, d) in enumerate(product(NAMES, LENGTHS))
        for t, e in [((5, 8), (1, 3), (0, 4), (37, 0))[k % 4]]
        if d or name != "chained"  # of no element it is a recurrence
        if k % len(TYPES) == TYPES.index(dtype) or (dtype == "bf16" and d in (8, 64))
    ]
    check_emulated(calls, fused=(True, False), stitched=(True, False), orders=("reverse",))


# --- what is emitted --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "lanes"), [("f32", 4), ("bf16", 8), ("f16", 8), ("f64", 2)])
def test_rope_reads_each_input_once_and_writes_in_vectors_of_16_bytes(dtype: str, lanes: int) -> None:
    source, threads, _ = source_of(ROPE.replace("f32", dtype), T=64, S=2048, D=64)
    assert sorted(re.findall(r"pf_load<(\d+)>\(b_(\w+),", source)) == [
        (str(lanes), name) for name in ("c", "s", "x", "x")
    ]
    assert re.findall(r"pf_store<(\d+)>\(b_(\w+),", source) == [(str(lanes), "y")] * 2
    assert not re.search(r"b_\w+\[", source), "no element is accessed alone"
    assert not re.search(r"\bif\b", source), "no thread is idle"
    (block,) = threads
    assert 128 <= block[0] * block[1] <= 256


def test_pieces_that_no_vector_fits_read_each_input_once() -> None:
    source, _, _ = source_of(ROPE, T=64, S=256, D=63)
    assert "pf_load" not in source and "pf_store" not in source
    body = source[source.index("{") :]
    assert len({*re.findall(r"b_[xcs]\[.*?\](?= [*+-]|\)|;)", body)}) == 4
    assert len(re.findall(r"b_y\[", body)) == 2


@pytest.mark.parametrize("dtype", ("f32", "bf16"))
def test_a_piece_alone_is_read_and_written_in_vectors(dtype: str) -> None:
    source, _, _ = source_of(CONCAT.replace("f32", dtype), T=4096, D=64, E=32)
    assert not re.search(r"b_[aby]\[", source)
    assert source.count("pf_load") == source.count("pf_store") == 2


# --- what is shifted --------------------------------------------------------------------------------------


def aligned(text: str, **sizes: int) -> tuple[TensorGraph, TensorGraph]:
    """A graph as it is scheduled, and with its loops aligned."""
    scheduled = LoopFusion().schedule(fixed_graph(instantiate(parse_text(text), "f"), sizes))
    return scheduled.graph, align_loops(scheduled.graph, scheduled.tree, [])


def lowers(graph: TensorGraph) -> list[str]:
    return [str(s.dims[-1].lower) for s in graph.statements]


def test_pieces_start_together() -> None:
    before, after = aligned(ROPE, T=3, S=5, D=8)
    assert lowers(before) == ["0", "8"] and lowers(after) == ["0", "0"]
    assert str(after.statements[1]) == (
        "y__2: y[b, t, d + 8] = ((x[b, t, d + 8] * c[t, d]) + (x[b, t, d] * s[t, d]))  "
        "for b in 0..3, t in 0..5, d in 0..8"
    )


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        (USED, ["0", "8", "0"]),  # who reads both would have to wait for one of them
        (TWICE, ["0", "0", "0", "0"]),
        (SUMS, ["0", "0"]),
        (PARTIAL, ["0", "0", "0"]),
    ],
)
def test_statements_that_pass_elements_on_are_shifted_alike(text: str, starts: list[str]) -> None:
    sizes = {"T": 3, "S": 5, "D": 8, "E": 8}
    before, after = aligned(
        text, **{n: v for n, v in sizes.items() if n in instantiate(parse_text(text), "f").sizes}
    )
    assert lowers(before) != lowers(after) or starts == lowers(before)
    assert lowers(after) == starts


@pytest.mark.parametrize("text", [TRIANGLE, CONCAT, TOTALS])
def test_what_gains_nothing_or_is_summed_up_stays(text: str) -> None:
    sizes = {"D": 7} if text is TRIANGLE else {"T": 5, "D": 8} if text is TOTALS else {"T": 5, "D": 7, "E": 4}
    before, after = aligned(text, **sizes)
    assert after is before


def test_what_is_replaced_in_the_iteration_that_reads_it_stays_there() -> None:
    before, after = aligned(REPLACED, T=3, D=8)
    assert after is before
