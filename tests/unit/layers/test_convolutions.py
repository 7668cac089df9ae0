"""Convolutions of padded and small images: what is stored, copied and computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from equivalence import cpu_source, fixed_graph_of
from targets import Call, check_everywhere
from thinned import thinned

from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.layers.contractions.contraction import contraction_of
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels

SAME = """op f(x: f32[N, C, H, W], w: f32[K, C, 3, 3], b: f32[K]) -> (y: f32[N, K, H, W]) {
  padded[n, c, h, v] = x[n, c, h - 1, v - 1] if 1 <= h < H + 1 and 1 <= v < W + 1 else
      0.0 for h in 0..H+2, v in 0..W+2
  y[n, k, p, q] = max(sum[c, r, s](padded[n, c, p + r, q + s] * w[k, c, r, s]) + b[k], 0.0)
}"""
HALF = """op f(x: f32[N, C, H, W], w: f32[K, C, 3, 3]) -> (y: f32[N, K, (H+1)//2, (W+1)//2]) {
  padded[n, c, h, v] = x[n, c, h - 1, v - 1] if 1 <= h < H + 1 and 1 <= v < W + 1 else
      0.0 for h in 0..H+2, v in 0..W+2
  y[n, k, p, q] = sum[c, r, s](padded[n, c, 2*p + r, 2*q + s] * w[k, c, r, s])
}"""
RELU = """op f(x: f32[N, C, H, W], w: f32[K, C, 3, 3]) -> (y: f32[N, K, H-2, W-2]) where H >= 3, W >= 3 {
  u[n, c, h, v] = max(x[n, c, h, v], 0.0)
  y[n, k, p, q] = sum[c, r, s](u[n, c, p + r, q + s] * w[k, c, r, s])
}"""
PRODUCT = """op f(x: f32[M, K], w: f32[K, N]) -> (y: f32[M, N]) {
  u[m, k] = max(x[m, k], 0.0)
  y[m, n] = sum[k](u[m, k] * w[k, n])
}"""


def call_of(text: str, **sizes: int) -> Call:
    """With infinities and NaN, at the border of an image too."""
    rng = np.random.default_rng(sum(sizes.values()))
    graph = instantiate((parse_text(text),), "f")
    arrays: dict[str, Any] = {}
    fixed = fixed_graph_of(text, **sizes)
    for name in graph.inputs:
        shape = [e.value for e in fixed.tensor(name).shape]  # type: ignore[union-attr]
        arrays[name] = rng.standard_normal(shape, "f4")
    flat = arrays["x"].reshape(-1)
    if flat.size > 30:
        flat[[0, flat.size // 2]] = np.inf, np.nan
    return Call(f"{sizes}", text, graph, sizes, arrays)


SHAPES = [(8, 16, 7, 7, 24), (1, 3, 5, 33, 2), (2, 4, 3, 3, 40), (2, 8, 28, 30, 9), (3, 16, 14, 14, 16)]


@pytest.mark.parametrize("shapes", thinned([SHAPES[:3], SHAPES[3:]], 2), ids=["small", "large"])
@pytest.mark.parametrize("text", [SAME, HALF, RELU], ids=["same", "half", "relu"])
def test_images_of_any_size(text: str, shapes: list[tuple[int, int, int, int, int]]) -> None:
    check_everywhere([call_of(text, N=n, C=c, H=h, W=w, K=k) for n, c, h, w, k in shapes], interpret=False)


def test_next_to_nothing() -> None:
    for sizes in ({"H": 1, "W": 1}, {"H": 0, "W": 4}, {"N": 0}, {"C": 0}, {"K": 0}, {"K": 1}):
        check_everywhere([call_of(SAME, **{"N": 2, "C": 3, "H": 4, "W": 5, "K": 2, **sizes})])


def decisions_of(text: str, **sizes: int) -> str:
    return "\n".join(map(str, LoopFusion().schedule(fixed_graph_of(text, **sizes)).decisions))


def test_what_is_read_in_windows_is_kept() -> None:
    """A guard in a factor would have to be computed for each step of the window."""
    why = decisions_of(SAME, N=4, C=64, H=28, W=28, K=64)
    assert "- rematerialise padded: y__sum reads each element several times" in why
    assert "+ index-set splitting padded: 5 pieces" in why
    assert "a guarded load" not in cpu_source(SAME, N=4, C=64, H=28, W=28, K=64)
    assert "- rematerialise u" in decisions_of(RELU, N=4, C=64, H=28, W=28, K=64)
    assert "- rematerialise u: y reads" not in decisions_of(PRODUCT, M=300, K=300, N=300)  # once for each


@pytest.mark.parametrize("columns", [12, 14, 15])
def test_columns_that_fill_most_of_a_vector_are_columns(columns: int) -> None:
    text = "op f(x: f32[M, K], w: f32[K, N]) -> (y: f32[M, N]) { y[m, n] = sum[k](x[m, k] * w[k, n]) }"
    graph = fixed_graph_of(text, M=1000, K=300, N=columns)
    found = contraction_of(graph, graph.statements[0])
    assert found is not None and found.column == "n"
    check_everywhere([call_of(text, M=m, K=40, N=columns) for m in (3, 77)])


def test_a_turned_factor_is_copied_once_for_all_outer_points() -> None:
    """Workers would turn the filters around for each point of the image."""
    graph = fixed_graph_of(SAME, N=8, C=64, H=7, W=7, K=64)
    decisions = form_kernels(LoopFusion().schedule(graph), 2)[1]
    (tile,) = (str(d) for d in decisions if d.kind == "tile")
    assert "right factor copied into their order" in tile
