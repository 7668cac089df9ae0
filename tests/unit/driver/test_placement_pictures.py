"""Pictures of where a producer and a consumer run: the right places, frames and numbers; nothing overlaps."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from equivalence import fixed_graph_of
from test_pictures import SVG, rects

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.target import GpuTarget
from polyfuse.layers.fusion.loop_fusion import identity_schedule
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.visualize.threads import needed, placement_svg, spots

ROWS = "op f(x: f32[T, H]) -> (y: f32[T, H]) { s[t] = sum[h](x[t, h])\n y[t, h] = x[t, h] / s[t] }"
REVERSE = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  e[t, h] = exp(x[t, h])
  s[t] = sum[h](e[t, h])
  y[t, h] = e[t, H - 1 - h] / s[t]
}"""


def kernel_of(text: str, t: int = 6, h: int = 16) -> Kernel:
    graph = fixed_graph_of(text, T=t, H=h)
    gpu = GpuTarget(sms=2, threads=16, row_threads=4, vector=1)
    kernels, _ = form_kernels(identity_schedule(graph), gpu, Stitching(rows=1))
    (kernel,) = kernels.kernels
    return kernel


def test_spots_follow_the_mapping() -> None:
    kernel = kernel_of(ROWS)
    per_block = kernel.threads[1]
    places = spots(kernel, "y")
    assert len(places) == 6 * 16
    for point, spot in places:
        assert spot.block == (point["t"] // per_block,)
        assert (spot.row, spot.thread) == (point["t"] % per_block, point["h"] % 4)


def test_a_statement_without_threads_is_everywhere() -> None:
    text = "op f(x: f32[T, H], r: f32[T]) -> (y: f32[T, H]) { a[t] = exp(r[t])\n y[t, h] = a[t] * x[t, h] }"
    kernel = kernel_of(text)
    assert all(str(spot).endswith(".*") for _, spot in spots(kernel, "a"))
    assert ">0.*<" in placement_svg(kernel, "a", "y", along="h")


def test_what_an_element_needs() -> None:
    kernel = kernel_of(REVERSE)
    e, s, y = (kernel.graph.statement(n) for n in ("e", "s", "y"))
    assert needed(e, y, {"t": 2, "h": 3}) == [{"t": 2, "h": 12}]
    assert len(needed(s, y, {"t": 2, "h": 3})) == 16
    assert needed(y, e, {"t": 2, "h": 3}) == []


@pytest.mark.parametrize(("pair", "framed"), ((("s", "y"), 17), (("e", "y"), 2), (("e", "s"), 2)))
def test_pictures_are_well_formed(pair: tuple[str, str], framed: int) -> None:
    svg = placement_svg(kernel_of(REVERSE), *pair, along="h", title="a < b & c")
    assert ElementTree.fromstring(svg).tag == f"{SVG}svg"
    assert svg.count('stroke-width="2.5"') == framed
    page, *boxes = rects(svg)
    assert len(boxes) == 2 * 6 * 16
    assert all(page.holds(b) for b in boxes)
    in_order = sorted(boxes, key=lambda b: (b.top // 22, b.left))
    assert all(a.is_apart(b) for a, b in pairwise(in_order))
    assert svg == placement_svg(kernel_of(REVERSE), *pair, along="h", title="a < b & c")


def test_of_many_rows_those_around_the_frame_are_drawn() -> None:
    """Ten of forty, the framed one among them; the note says which."""
    svg = placement_svg(kernel_of(REVERSE, t=40), "s", "y", along="h")
    page, *boxes = rects(svg)
    assert len(boxes) == 2 * 10 * 16 and all(page.holds(b) for b in boxes)
    assert svg.count('stroke-width="2.5"') == 16 + 1
    assert "rows 15 to 24 of 40" in svg


def test_grids_that_are_wide_lie_below_one_another() -> None:
    """Side by side as long as both fit, else at the same left edge."""
    for h, beside in ((8, True), (16, False)):
        _, *boxes = rects(placement_svg(kernel_of(ROWS, h=h), "s", "y", along="h"))
        made, used = boxes[: len(boxes) // 2], boxes[len(boxes) // 2 :]
        left, top = (min(getattr(b, side) for b in used) for side in ("left", "top"))
        first = min(b.left for b in made)
        assert (left > first + h * 34, top < 150) == (beside, beside)
