"""Reductions made explicit, and split over blocks."""

from __future__ import annotations

import pytest
from equivalence import assert_computes, assert_equivalent, fixed_graph_of

from polyfuse.codegen.cpu.emit import emit
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import PARALLEL_WORK
from polyfuse.ir.schedule_tree import Band, Coordinate, format_tree, sequence, shape
from polyfuse.layers.fusion.loop_fusion import LoopFusion, require_legal
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.mapping.reductions import explicit_reductions, rfactor
from polyfuse.poly.scheduling.axis_planner import plan

COLUMNS = "op f(x: f32[T, H]) -> (g: f32[H]) { g[h] = sum[t](x[t, h]) }"


def test_explicit_before_and_after() -> None:
    graph = fixed_graph_of("op f(x: f32[T, H]) -> (s: f32[T]) { s[t] = max[h](x[t, h]) }", T=3, H=4)
    after, trees = explicit_reductions(graph, [plan(graph)])
    assert list(map(str, after.statements)) == [
        "s__init: s[t] = -inf  for t in 0..3",
        "s: s[t] max= x[t, h]  for t in 0..3, h in 0..4",
    ]
    assert [shape(t) for t in trees] == ["B1([s__init; B1(s)])"]
    require_legal(after, trees[0])


@pytest.mark.parametrize(
    ("op", "dtype", "zero"),
    [("sum", "f32", "0.0"), ("prod", "i32", "1"), ("min", "i8", "127"), ("max", "u8", "0"),
     ("any", "bool", "false"), ("all", "bool", "true"), ("min", "f64", "inf"),
     ("max", "i64", "-9223372036854775808")],
)  # fmt: skip
def test_where_accumulators_start(op: str, dtype: str, zero: str) -> None:
    graph = fixed_graph_of(f"op f(x: {dtype}[N]) -> (s: {dtype}) {{ s = {op}[i](x[i]) }}", N=5)
    after, _ = explicit_reductions(graph, [plan(graph)])
    assert str(after.statement("s__init")) == f"s__init: s[] = {zero}"


def test_an_accumulator_starts_outside_every_reduction_loop() -> None:
    """With the reduction outermost the start has loops of its own."""
    graph = fixed_graph_of(COLUMNS, T=3, H=4)
    tree = plan(graph)
    assert isinstance(tree, Band)
    swapped = Band(tuple(sorted(tree.members, key=lambda m: m.name != "t")), tree.child, True)
    after, (found,) = explicit_reductions(graph, [swapped])
    assert shape(found) == "[B1(g__init); B11(g)]"
    require_legal(after, found)


def test_an_accumulator_starts_everywhere_though_it_is_updated_once() -> None:
    """isl needs no loop for the only sum that is not empty; both sums start at 0."""
    text = """op f(x: f32[B, A]) -> (y: f32[B, A]) {
      y[i, j] = x[i, j] + (sum[k in 0..A](x[j, k] * y[i - 1, k]) if i >= 1 else 0.0) for i in 0..B, j in 0..A
    }"""
    graph = fixed_graph_of(text, A=1, B=2)
    kernels, _ = form_kernels(LoopFusion(scheduler="isl").schedule(graph), 2)
    assert_computes(graph, kernels)


def test_scatters_start_by_themselves() -> None:
    text = "op f(x: f32[N], i: i64[N], z: f32[V]) -> (y: f32[V]) { y[v] = z[v]; y[i[n]] += x[n] }"
    graph = fixed_graph_of(text, N=6, V=3)
    after, trees = explicit_reductions(graph, [plan(graph)])
    assert after.statements == graph.statements and trees == [plan(graph)]


@pytest.mark.parametrize(("chunk", "chunks"), [(4, 3), (3, 4), (12, 1), (1, 11)])
def test_rfactor_before_and_after(chunk: int, chunks: int) -> None:
    graph = fixed_graph_of(COLUMNS, T=11, H=4)
    tree = plan(graph)
    assert isinstance(tree, Band)
    nest = Band(tuple(sorted(tree.members, key=lambda m: m.name != "t")), tree.child, True)
    after, trees = rfactor(graph, nest, ("g",), chunk, chunks)
    if chunk == 4:
        assert list(map(str, after.statements)) == [
            "g__part: g__part[p__, h] = sum[t in p__*4..min(p__*4 + 4, 11)](x[t, h])"
            "  for p__ in 0..3, h in 0..4",
            "g: g[h] = sum[p__ in 0..3](g__part[p__, h])  for h in 0..4",
        ]
        assert format_tree(trees[0]).startswith("band* t_blk (parallel @blk: g__part->p__)")
    require_legal(after, sequence(trees))
    assert_equivalent(graph, after)


@pytest.mark.parametrize("ends", [(-30, 25), (7, 60), (-40, -3)])
def test_chunks_begin_where_the_range_does(ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies below zero is no chunk of its own that would be left out."""
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 1)
    low, high = ends
    text = f"op f(x: f32[N]) -> (s: f32, m: f32) {{ s = sum[i in {low}..{high}](x[i + 40] * f32(i))\n"
    text += f"m = max[i in {low - 2}..{high}](x[i + 44]) }}"
    graph = fixed_graph_of(text, N=120)
    kernels, decisions = form_kernels(LoopFusion().schedule(graph), 2)
    assert any(d.kind == "rfactor" and d.taken for d in decisions)
    assert_computes(graph, kernels)
    assert_computes(graph, kernels, target="cpu")


BACKWARD = """op f(x: f32[T, H], w: f32[H]) -> (y: f32[T, H], g: f32[H], b: f32[H], q: f32) {
  s[t] = sum[h](x[t, h] * w[h])
  y[t, h] = x[t, h] - s[t]
  g[h] = sum[t](x[t, h] * y[t, h])
  b[h] = max[t](x[t, h])
  q = sum[t, h](x[t, h] * w[h])
}"""


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_kernels_with_factored_reductions(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 1)
    graph = fixed_graph_of(BACKWARD, T=37, H=5)
    kernels, decisions = form_kernels(LoopFusion().schedule(graph), threads)
    taken = [d for d in decisions if d.kind == "rfactor" and d.taken]
    assert taken and "run in parallel" in taken[0].reason
    assert any(t.name.endswith("__part") for t in kernels.graph.tensors)
    assert_computes(graph, kernels)
    assert_computes(graph, kernels, target="cpu")


def test_small_reductions_are_left_whole() -> None:
    decisions: tuple[Decision, ...]
    _, decisions = form_kernels(LoopFusion().schedule(fixed_graph_of(COLUMNS, T=37, H=5)), 2)
    refused = [str(d) for d in decisions if d.kind == "rfactor"]
    assert all(d.startswith("-") for d in refused)


def test_no_user_variable_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 1)
    for names in (("p__", "h"), ("t", "p__")):
        text = "op f(x: f32[T, H]) -> (g: f32[H]) { g[B] = sum[A](x[A, B]) }"
        text = text.replace("A", names[0]).replace("B", names[1])
        graph = fixed_graph_of(text, T=64, H=5)
        kernels, _ = form_kernels(LoopFusion().schedule(graph), 2)
        assert_computes(graph, kernels)


def test_blocks_are_parallel_members() -> None:
    graph = fixed_graph_of(COLUMNS, T=11, H=4)
    tree = plan(graph)
    assert isinstance(tree, Band)
    nest = Band(tuple(sorted(tree.members, key=lambda m: m.name != "t")), tree.child, True)
    _, (first, *_) = rfactor(graph, nest, ("g",), 4, 3)
    assert isinstance(first, Band) and first.members[0].coordinate is Coordinate.BLK


@pytest.mark.parametrize(
    ("text", "n", "total"),
    [("op f(x: f32[N]) -> (s: f32) { s = sum[i](x[i]) }", 100_000, 100_000),
     ("op f(x: f32[N, N]) -> (y: f32[N]) { y[i] = sum[j in 0..i+1](x[i, j]) }", 450, 450 * 451 // 2)],
)  # fmt: skip
def test_loops_with_bounds_that_depend_on_others_count_as_work(text: str, n: int, total: int) -> None:
    """What is worth several threads is decided by the instances."""
    kernels, _ = form_kernels(LoopFusion().schedule(fixed_graph_of(text, N=n)), 2)
    counts = [evaluate(x.instances, {}) for x in emit(kernels).plan.launches if x.parallel]
    assert counts and 0.9 * total <= max(counts) <= 1.1 * total
    assert max(evaluate(x.work, {}) for x in emit(kernels).plan.launches if x.parallel) >= PARALLEL_WORK


@pytest.mark.parametrize(("rows", "shared"), [(256, True), (7, False)])
def test_workers_share_rows_of_results_where_they_are_many(rows: int, shared: bool) -> None:
    """The parts of a row are combined by one of them."""
    text = """op f(x: f32[T, D], kind: i64[T], w: f32[5, D, H]) -> (y: f32[T, H]) {
      y[t, h] = sum[d](x[t, d] * w[kind[t], d, h])
    }"""
    graph = fixed_graph_of(text, T=rows, D=2048, H=130)
    kernels, decisions = form_kernels(LoopFusion().schedule(graph), 2)
    assert any(d.kind == "rfactor" and d.taken for d in decisions)
    (phase,) = kernels.kernels[-1].stages[0].phases
    assert ("y->t" not in format_tree(phase.tree)) == shared  # else the loop over rows is inside
