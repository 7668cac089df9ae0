"""Pictures and timelines of launches."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.visualize.launches import layers_svg, plan_svg

SVG = "{http://www.w3.org/2000/svg}"
TEXT = """op f(x: f32[N, M], w: f32[M, M], z: f32[N, M]) -> (y: f32[N, M], u: f32[N], v: f32[N, M]) {
  a[n, m] = x[n, m] * 2.0
  h[n, m] = sum[k](a[n, k] * w[k, m])
  s[n] = sum[m](h[n, m])
  y[n, m] = h[n, m] / s[n]
  u[n] = sum[m](exp(z[n, m]))
  v[n, m] = z[n, m] + 1.0
}"""
ARGUMENTS = {n: np.ones((64, 64), "f4") for n in "xwz"}


def picture() -> ET.Element:
    return ET.fromstring(pf.compile(TEXT, target="cpu", library="always").picture(**ARGUMENTS).svg)


def test_every_kernel_has_a_box_on_the_page() -> None:
    page = picture()
    width, height = float(page.attrib["width"]), float(page.attrib["height"])
    words = {t.text for t in page.iter(f"{SVG}text")}
    kernels = pf.compile(TEXT, target="cpu", library="always").built(**ARGUMENTS).kernels.kernels
    assert {"a", "s", "y", "u", "v", "library call", "h = a @ w"} <= words
    assert len(kernels) >= 3
    for box in list(page.iter(f"{SVG}rect"))[1:]:
        x, y, w, h = (float(box.attrib[n]) for n in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height


def test_lines_lead_to_what_reads() -> None:
    assert sum(1 for _ in picture().iter(f"{SVG}path")) >= 2


def test_stages_have_pictures_of_kernels() -> None:
    kernels = pf.parse(TEXT).op().specialize(N=4, M=5).schedule().lower(target="cpu")
    assert kernels.picture().svg == plan_svg(kernels.ir, "f")


def test_a_timeline_has_an_event_for_each_launch() -> None:
    f = pf.compile(TEXT, target="cpu", library="always")
    events = [e for e in json.loads(f.timeline(**ARGUMENTS))["traceEvents"] if e["ph"] == "X"]
    assert len(events) == len(f.built(**ARGUMENTS).code.plan.launches)
    assert all(e["dur"] > 0 for e in events)
    starts = [e["ts"] for e in events]
    assert starts == sorted(starts) and any("y" in e["name"] for e in events)


def test_only_the_cpu_has_timelines() -> None:
    with pytest.raises(pf.ArgumentError, match="PF414"):
        pf.compile(TEXT, target="interpret").timeline(**{n: np.ones((2, 2), "f4") for n in "xwz"})


def test_layers_of_an_operator_below_one_another() -> None:
    """A stage is a line, a statement a column, a kernel a box; a launch of several is dashed."""
    text = """op f(x: f32[N, M], z: f32[N, M]) -> (y: f32[N, M], u: f32[N, M]) {
      m[n] = max[k](x[n, k])
      y[n, k] = x[n, k] - m[n]
      s[n] = sum[k](z[n, k])
      u[n, k] = z[n, k] / s[n]
    }"""
    unfused = pf.parse(text).op().specialize(N=64, M=96).schedule()
    stitched = unfused.apply(pf.LoopFusion()).lower(target="cuda").apply(pf.Stitching())
    stages = [("none", unfused.lower(target="cuda").ir), ("packed", stitched.apply(pf.Packing()).ir)]
    page = ET.fromstring(layers_svg(stages, "f"))
    words = [t.text for t in page.iter(f"{SVG}text")]
    assert words[:2] == ["f", "none: 4 kernels"] and "packed: 2 kernels in 1 launch" in words
    chips = {w: {t.attrib["x"] for t in page.iter(f"{SVG}text") if t.text == w} for w in "myu"}
    assert all(len(x) == 1 for x in chips.values()), "a statement keeps its column"
    assert len({x for xs in chips.values() for x in xs}) == 3
    boxes = [*page.iter(f"{SVG}rect")][1:]
    assert len(boxes) == 4 + 4 + 2 + 4 + 1
    assert sum("stroke-dasharray" in b.attrib for b in boxes) == 1
    width, height = float(page.attrib["width"]), float(page.attrib["height"])
    for box in boxes:
        x, y, w, h = (float(box.attrib[n]) for n in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
