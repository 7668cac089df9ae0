"""Inout parameters on a GPU: what an iteration needs after it has replaced it is read first, not copied."""

from __future__ import annotations

from itertools import product

import pytest
from row_pieces import call_of, source_of
from targets import check_emulated

from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.target import GpuTarget
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import entry_copies, form_kernels

ROPE = """op f(inout x: f32[T, S, 2*D], c: f32[S, D], s: f32[S, D]) {
  x[b, t, d] = x[b, t, d] * c[t, d] - x[b, t, d+D] * s[t, d] for d in 0..D
  x[b, t, d] = x[b, t, d] * c[t, d-D] + x[b, t, d-D] * s[t, d-D] for d in D..2*D
}"""
PAIRS = """op f(inout x: f32[T, D, 2], c: f32[T, D]) {
  x[t, i, 0] = x[t, i, 0] * c[t, i] - x[t, i, 1] for t in 0..T, i in 0..D
  x[t, i, 1] = x[t, i, 1] * c[t, i] + x[t, i, 0] for t in 0..T, i in 0..D
}"""
CROSSED = """op f(inout p: f32[T, D], inout x: f32[T, D]) {
  p[t, d] = p[t, d] + old(x[t, d])
  x[t, d] = old(p[t, d]) * x[t, d]
}"""
# The reader goes over more than what is replaced.
LONGER = """op f(inout x: f32[T, 2*D], w: f32[T, 2*D]) -> (y: f32[T, 2*D]) {
  x[t, d] = x[t, d] * w[t, d] for d in 0..D
  y[t, d] = old(x[t, d]) + w[t, d]
}"""
# Pieces that no loop has in common, and neighbours, replace each other's: all is copied.
THIRDS = """op f(inout x: f32[T, 3*D], w: f32[T, D]) {
  x[t, d] = x[t, d + D] * w[t, d] for d in 0..D
  x[t, d] = x[t, d + D] + w[t, d - D] for d in D..2*D
  x[t, d] = x[t, d - 2*D] - w[t, d - 2*D] for d in 2*D..3*D
}"""
NEIGHBOURS = """op f(inout x: f32[T, D]) where D >= 2 {
  x[t, d] = x[t, d - 1] + x[t, d + 1] for d in 1..D - 1
}"""
NAMES = {
    "rope": ROPE,
    "pairs": PAIRS,
    "crossed": CROSSED,
    "thirds": THIRDS,
    "longer": LONGER,
    "neighbours": NEIGHBOURS,
}
TYPES = ("f32", "bf16")
LENGTHS = (2, 4, 7, 16, 33, 64)


@pytest.mark.parametrize("dtype", TYPES)
def test_results_are_those_of_entry_values(dtype: str) -> None:
    calls = [
        call_of(name, NAMES[name].replace("f32", dtype), ("x",), T=(5, 1, 0, 37)[k % 4], S=3, D=d)
        for k, (name, d) in enumerate(product(NAMES, LENGTHS))
        if (k + d) % len(TYPES) == TYPES.index(dtype) or d in (16, 33)
    ]
    check_emulated(calls, fused=(True, False), stitched=(True, False), orders=("random", "reverse"))


@pytest.mark.parametrize(("name", "in_place"), [(n, n not in ("thirds", "neighbours")) for n in NAMES])
def test_written_in_place(name: str, in_place: bool) -> None:
    graph = instantiate(parse_text(NAMES[name]), "f")
    sizes = {n: v for n, v in {"T": 64, "S": 16, "D": 64}.items() if n in graph.sizes}
    scheduled = LoopFusion().schedule(fixed_graph(graph, sizes))
    copied, _ = entry_copies(form_kernels(scheduled, GpuTarget())[0])
    assert (not copied) == in_place


def test_a_turned_row_is_read_and_written_in_vectors_in_place() -> None:
    source, _, _ = source_of(ROPE.replace("f32", "bf16"), T=64, S=256, D=64)
    assert source.count("pf_load<8>(b_x") == source.count("pf_store<8>(b_x") == 2
    assert "b_x[" not in source and "b_x__out[" not in source
