"""Pictures of schedule trees: well-formed, nothing overlaps, nothing leaves its box, text escaped."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from xml.etree import ElementTree

import graphs
import pytest
from equivalence import fixed_graph_of

from polyfuse.ir.index_expr import IVar, binary
from polyfuse.ir.schedule_tree import (
    Band,
    Coordinate,
    Leaf,
    Member,
    ScheduledGraph,
    Sequence,
    Tree,
    format_tree,
    map_members,
)
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.poly.scheduling.axis_planner import plan
from polyfuse.poly.scheduling.tree_edit import distribute, split
from polyfuse.visualize.schedule import before_after_svg, count_nests, tree_svg
from polyfuse.visualize.svg import CHAR
from polyfuse.visualize.threads import thread_places, thread_svg

SVG = "{http://www.w3.org/2000/svg}"
LONG = "a" * 90


@dataclass(frozen=True)
class Rect:
    left: float
    top: float
    right: float
    bottom: float

    def holds(self, other: Rect) -> bool:
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )

    def is_apart(self, other: Rect) -> bool:
        return (
            self.right <= other.left
            or other.right <= self.left
            or self.bottom <= other.top
            or other.bottom <= self.top
        )


def rects(svg: str) -> list[Rect]:
    """The boxes of a picture, the page first."""
    root = ElementTree.fromstring(svg)
    found = [Rect(0, 0, float(root.get("width", 0)), float(root.get("height", 0)))]
    for r in root.iter(f"{SVG}rect"):
        if r.get("width") != "100%":
            x, y, w, h = (float(r.get(a, "nan")) for a in ("x", "y", "width", "height"))
            found.append(Rect(x, y, x + w, y + h))
    return found


def texts(svg: str) -> list[str]:
    return [t.text or "" for t in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def text_rects(svg: str) -> list[Rect]:
    """Where monospaced texts are."""
    found = []
    for t in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        if t.get("class") in ("m", "b"):
            x, y = float(t.get("x", "nan")), float(t.get("y", "nan"))
            found.append(Rect(x, y - 9, x + len(t.text or "") * CHAR, y + 3))
    return found


def check_layout(svg: str) -> None:
    boxes = rects(svg)
    for a, b in itertools.combinations(boxes, 2):
        assert a.is_apart(b) or a.holds(b) or b.holds(a), (a, b)
    words = text_rects(svg)
    for a, b in itertools.combinations(words, 2):
        assert a.is_apart(b), (a, b)
    for word in words:
        for box in boxes:
            assert box.holds(word) or box.is_apart(word), (box, word)


def trees(g: TensorGraph) -> list[Tree]:
    fused = plan(g)
    first = next(m for m in _members(fused))
    tree = split(fused, f"{first.exprs[0][0]}.{first.name}", 8)
    return [fused, tree, map_members(fused, lambda m: _mapped(m))]


def _members(tree: Tree) -> list[Member]:
    match tree:
        case Leaf():
            return []
        case Band(members, child):
            return [*members, *_members(child)]
        case Sequence(children):
            return [m for c in children for m in _members(c)]


def _mapped(m: Member) -> Member:
    exprs = tuple((s, binary("+", e, k)) for k, (s, e) in enumerate(m.exprs))
    return Member(m.name, exprs, not m.coincident, Coordinate.BLK)


@pytest.mark.parametrize("g", graphs.GOLDEN, ids=lambda g: g.name)
def test_nothing_overlaps(g: TensorGraph) -> None:
    for tree in trees(g):
        check_layout(tree_svg(tree, g.name, g))
        check_layout(tree_svg(tree, g.name))
        check_layout(before_after_svg(ScheduledGraph(g, plan(g)), ScheduledGraph(g, tree)))


def test_golden(golden: Callable[[str, str], None]) -> None:
    g = graphs.LAYER_NORM
    fused = plan(g)
    apart = distribute(fused, "t")
    svg = before_after_svg(ScheduledGraph(g, apart), ScheduledGraph(g, fused))
    golden("pictures/layer_norm.svg", svg)
    assert svg == before_after_svg(ScheduledGraph(g, apart), ScheduledGraph(g, fused))


def test_says_what_a_loop_is() -> None:
    words = texts(tree_svg(plan(graphs.LAYER_NORM), "t", graphs.LAYER_NORM))
    assert "for t" in words
    assert any(w.startswith("parallel, 0..T") for w in words)
    assert any("reduces" in w for w in words)
    shifted = Band((Member("i", (("a", binary("-", IVar("i"), 1)), ("b", IVar("i")))),), Sequence((A, B)))
    assert "ordered, a at i - 1; b at i" in texts(tree_svg(shifted, "t"))


def test_the_legend_has_the_loops_that_are_drawn() -> None:
    rows = fixed_graph_of("op f(x: f32[E]) -> (y: f32[E]) { y[e] = x[e] }", E=4)
    assert [w for w in texts(tree_svg(plan(rows), "t", rows)) if ": " in w] == [
        "parallel: no iteration needs another"
    ]
    reduced = texts(tree_svg(plan(graphs.LAYER_NORM), "t", graphs.LAYER_NORM))
    assert [w.partition(":")[0] for w in reduced if w.endswith(("another", "element"))] == [
        "parallel",
        "reduction",
    ]


SCATTER = "op f(x: f32[E, F], k: i64[E]) -> (y: f32[8, F]) { y[k[e], f] += x[e, f] }"


@pytest.mark.parametrize(
    ("graph", "loops"),
    [
        (graphs.LAYER_NORM, {"t": {"parallel"}, "h": {"parallel", "reduction (any order)"}}),
        (fixed_graph_of(SCATTER, E=100, F=4), {"e": {"reduction (any order)"}, "i1": {"parallel"}}),
    ],
    ids=["reductions", "scatters"],
)
def test_loops_that_update_an_element_several_times_are_not_called_parallel(
    graph: TensorGraph, loops: dict[str, set[str]]
) -> None:
    """Trees, kernels and pictures said so of loops that no two workers may share."""
    tree = LoopFusion().schedule(graph).tree
    word = r"(\w+) \((parallel|ordered|reduction \(any order\))[:@ ]"
    told = re.findall(word, format_tree(tree, graph=graph))
    shown = re.findall(r"for (\w+)", " ".join(texts(tree_svg(tree, "t", graph))))
    assert {name: {w for n, w in told if n == name} for name in loops} == loops
    assert set(loops) <= set(shown)
    pictured = {w.split(",")[0] for w in texts(tree_svg(tree, "t", graph))}
    assert {w for words in loops.values() for w in words} <= pictured
    assert "reduction (any order)" in str(form_kernels(LoopFusion().schedule(graph), 1)[0])


A, B, C = Leaf("a"), Leaf("b"), Leaf("c")


def loop(child: Tree) -> Band:
    return Band((Member("i", (("a", IVar("i")),), True),), child)


@pytest.mark.parametrize(
    ("tree", "count"),
    [
        (A, 1),
        (Sequence((A, B)), 1),
        (loop(Sequence((A, B, C))), 1),
        (loop(Sequence((loop(A), B, C, loop(C)))), 3),
        (Sequence((loop(A), loop(Sequence((loop(B), loop(C)))))), 3),
    ],
)
def test_count_nests(tree: Tree, count: int) -> None:
    assert count_nests(tree) == count


def test_text_is_escaped() -> None:
    title = "<script>&\"'\x00\n]]>"
    svg = tree_svg(A, title)
    assert "<script" not in svg
    assert "<script>&\"'" in texts(svg)[0]
    assert "\x00" not in svg


def test_long_names_and_titles_fit() -> None:
    tree = Band((Member(LONG, ((LONG, IVar(LONG)),)),), Leaf(LONG))
    check_layout(tree_svg(tree, LONG))


def test_elements_on_threads(golden: Callable[[str, str], None]) -> None:
    text = "op total(x: f32[T, H]) -> (y: f32[T]) { y[t] = sum[h](x[t, h]) }"
    scheduled = LoopFusion().schedule(fixed_graph_of(text, T=4096, H=256))
    kernels, _ = form_kernels(scheduled, GpuTarget())
    (kernel,) = kernels.kernels
    assert (kernel.threads, kernel.vector) == ((32, 4), 4)
    places = thread_places(kernel, "y", 9, 256)
    assert places[0] == ((2,), 1, 0, 0, 0)  # the third block, its second row
    assert places[6] == ((2,), 1, 0, 1, 2) and places[128] == ((2,), 1, 1, 0, 0)
    assert len(set(places)) == 256
    golden("pictures/threads.svg", thread_svg(kernel, "y"))
