"""Where each line of code came from: followed from the text through all passes. The code does not change."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import polyfuse as pf
from polyfuse.codegen.line_map import Marks
from polyfuse.driver.lowering import Passes, lower_clusters
from polyfuse.driver.partitions import kernels_by
from polyfuse.driver.targets import mapped_for
from polyfuse.ir.tensor_graph import walk
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.options import LAYERS
from polyfuse.runtime.inputs import default_sizes
from polyfuse.source import SourceText, Span

pytestmark = pytest.mark.machine("zen4")

NORM = """\
op norm(x: f32[T, H], g: f32[H]) -> (y: f32[T, H], top: f32[T]) {
  mean[t] = sum[h](x[t, h]) / H
  far[t] = sum[h]((x[t, h] - mean[t]) ** 2) / H
  y[t, h] = (x[t, h] - mean[t]) / sqrt(far[t] + 1e-5) * g[h]
  top[t] = max[h](y[t, h])
}
"""
MODELS = (
    "softmax",
    "layer_norm",
    "attention",
    "linear_backward",
    "conv2d",
    "segment_softmax",
    "lstm_cell",
    "topk",
)


def kernels_of(program: pf.Program, target: str, op: str | None = None, **sizes: int) -> pf.Kernels:
    operator = program.op(op)
    return kernels_by(operator.specialize(**sizes), "connect", LAYERS, None, target)  # type: ignore[arg-type]


def sources(kernels: pf.Kernels) -> list[tuple[str, tuple[str, ...]]]:
    """Lines, and the first words of the statements that they came from."""
    lines = kernels.code().source.split("\n")
    found = kernels.line_map()
    assert len(lines) == len(found)
    return [(line, tuple(_statement(s) for s in places)) for line, places in zip(lines, found, strict=True)]


def _statement(s: Span) -> str:
    """What the line of a place in the text defines."""
    return s.source.line(s.line).split("=")[0].strip()


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_lines_come_from_the_statements_that_they_compute(target: str) -> None:
    found = sources(kernels_of(pf.parse(NORM), target, T=64, H=128))
    stores = [
        s for line, s in found if re.search(r"\bb_y\[.*\] = |pf_store<\d+>\(b_y,|\bw\d+\[v\d+\] = ", line)
    ]
    assert stores and all(s == ("y[t, h]",) for s in stores)
    maxima = [s for line, s in found if re.search(r"acc\w* = pf_max_f32\(|pf_warp_max_f32\(acc", line)]
    assert maxima and all("top[t]" in s and "far[t]" not in s for s in maxima)
    roots = [s for line, s in found if "sqrt" in line and s]
    assert roots and all("y[t, h]" in s for s in roots)
    every = {x for _, s in found for x in s}
    assert every == {"mean[t]", "far[t]", "y[t, h]", "top[t]"}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", MODELS)
def test_marks_change_nothing_but_the_ends_of_lines(name: str, target: str) -> None:
    operator = pf.stdlib.op(name)
    graph = operator.graph()
    sizes = default_sizes(graph, {}, 1 << 14)
    kernels = kernels_by(operator.specialize(**sizes), "connect", LAYERS, None, target)  # type: ignore[arg-type]
    marks = Marks()
    plain, marked = kernels.code().source, kernels._emitted(marks).source
    found = marks.lines(marked, plain)
    assert found is not None and marked != plain and "\x02" not in plain
    computing = re.compile(r"\b(b|r|acc|f)\w*(\[[^=]*\])? = (?!begin|rest)")
    begun = False  # functions that all kernels share come first
    for line, places in zip(plain.split("\n"), found, strict=True):
        begun |= bool(places)
        assert places or not (begun and computing.match(line.strip())), line


def test_a_mark_that_changes_the_code_gives_no_map() -> None:
    marks = Marks()
    place = Span(SourceText("a", "x"), 0, 1)
    (line,) = marks.marked(["a;"], (place,))
    assert marks.lines(line, "a;") == ((place,),)
    assert marks.lines(line, "b;") is None
    assert marks.marked([line], (replace(place, start=1),)) == [line], "what is inside counts"
    assert marks.marked(["a;"], ()) == ["a;"]


def test_outer_places_hold_inner_ones() -> None:
    text = SourceText("a", "x + y + z")
    marks = Marks()
    lines = marks.marked(["a;"], (Span(text, 0, 5), Span(text, 0, 1), Span(text, 8, 9)))
    assert marks.lines(lines[0], "a;") == ((Span(text, 0, 5), Span(text, 8, 9)),)


def test_what_takes_the_kernels_of_another_cluster_keeps_its_own_places() -> None:
    """Clusters that differ in names only are compiled once; places are those of each."""
    program = pf.parse(
        "op two(x: f32[N], y: f32[N]) -> (a: f32[N], b: f32[N]) {\n"
        "  a[i] = exp(x[i]) + 1\n  b[i] = exp(y[i]) + 1\n}"
    )
    graph = program.op().specialize(N=64).graph
    target = mapped_for("cpu", pf.Options())
    passes = Passes(Clustering(), LoopFusion(), None, None, target)
    low = lower_clusters(graph, (("a",), ("b",)), passes)
    assert [d.kind for d in low.decisions].count("same") == 1
    for k in low.kernels.kernels:
        for s in k.graph.statements:
            spans = [s.span, *(e.span for e in walk(s.expr))]
            assert {p.line for p in spans if p.source.text} == {2 if s.target == "a" else 3}
