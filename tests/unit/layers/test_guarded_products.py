"""Products under a condition that one factor meets are tiled as that factor under it, to the same values."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import fixed_graph_of

import polyfuse as pf
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.loop_ir import RegisterTile, nodes_of
from polyfuse.ir.target import CpuTarget
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.graph.guarded_products import guarded_products
from polyfuse.layers.graph.pipeline import GraphContext, prepared
from polyfuse.layers.mapping.kernels import form_kernels

CONVOLUTION = """op f(x: {0}[N, 3, H, H], w: {0}[O, 3, 3, 3]) -> (y: {0}[N, O, H, H]) {{
  y[n, o, i, j] = sum[c in 0..3, a in 0..3, b in 0..3]((x[n, c, i + a - 1, j + b - 1] * w[o, c, a, b]
      if 0 <= i + a - 1 and i + a - 1 < H and 0 <= j + b - 1 and j + b - 1 < H else 0))
    for n in 0..N, o in 0..O, i in 0..H, j in 0..H
}}"""
TRIANGLE = """op f(a: f32[M, K], b: f32[K, N]) -> (y: f32[M, N]) {
  y[i, j] = sum[k in 0..K](b[k, j] * a[i, k] if k <= i else 0.0)
}"""


def convolved(x: object, w: object) -> np.ndarray:
    """As it is written: what is outside is not multiplied at all."""
    x, w = np.asarray(x), np.asarray(w)
    n, _, h, _ = x.shape
    y = np.zeros((n, w.shape[0], h, h), x.dtype)
    for a in range(3):
        for b in range(3):
            i, j = (np.arange(max(0, 1 - k), min(h, h + 1 - k)) for k in (a, b))
            part = x[:, :, i[0] + a - 1 : i[-1] + a, j[0] + b - 1 : j[-1] + b]
            terms = (part[:, None] * w[None, :, :, a, b, None, None]).sum(2)
            y[:, :, i[0] : i[-1] + 1, j[0] : j[-1] + 1] += terms
    return y


@pytest.mark.parametrize(
    ("text", "dtype"), [(CONVOLUTION, "f32"), (CONVOLUTION, "f64"), (CONVOLUTION, "i32")]
)
def test_they_are_tiles(text: str, dtype: str) -> None:
    graph = fixed_graph_of(text.format(dtype), N=2, H=20, O=32)
    made = prepared(graph, GraphContext([], CpuTarget(1), Core(), checked=False))
    kernels, _ = form_kernels(LoopFusion().schedule(made), 1)
    nodes = [n for k in kernels.kernels for t in lower(k).functions for n in nodes_of(t.body)]
    assert any(isinstance(n, RegisterTile) for n in nodes)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
def test_values_are_those_of_the_product(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, w = (
        np.round(rng.standard_normal(s) * 4).astype(BY_NAME[dtype].numpy)
        for s in [(2, 3, 20, 20), (32, 3, 3, 3)]
    )
    f = pf.compile(CONVOLUTION.format(dtype), target="cpu")
    np.testing.assert_array_equal(f(x, w), convolved(x, w))
    if dtype == "i32":
        return
    # Outside is only multiplied by what is not finite; some elements meet infinities and NaN themselves.
    w[3, 0, 0, 1], w[7, 2, 2, 2], w[9, 1, 1, 1] = np.inf, np.nan, -np.inf
    x[0, 1, 5, 5], x[1, 0, 0, 0] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        want = convolved(x, w)
    assert np.isfinite(want[0, 3, 0]).all() and np.isnan(want[0, 7]).any() and np.isinf(want[0, 3]).any()
    np.testing.assert_array_equal(f(x, w), want)


def test_either_factor_may_meet_the_condition() -> None:
    rng = np.random.default_rng(0)
    a, b = np.round(rng.standard_normal((64, 64)) * 4).astype("f4"), np.ones((64, 48), "f4")
    b[40, 5], b[63, 7] = np.inf, np.nan
    want = np.stack([(np.tril(np.ones((64, 64)))[i][:, None] > 0) * 1.0 for i in range(64)])
    with np.errstate(invalid="ignore"):
        want = np.stack([(a[i, : i + 1, None] * b[: i + 1]).sum(0) for i in range(64)])
    np.testing.assert_array_equal(pf.compile(TRIANGLE, target="cpu")(a, b), want)


@pytest.mark.parametrize(
    "term",
    [
        "x[i, k] * w[k, j] if i <= j else 0.0",  # on rows and columns
        "x[i, k] * w[k, j] if i <= k else 1.0",  # what is added otherwise
        "x[i, k] * w[k, j] if x[i, k] > 0.0 else 0.0",  # data
        "x[i, k] * w[k - i, j] if i <= k else 0.0",  # the other factor is there under the condition alone
    ],
)
def test_others_stay_as_they_are(term: str) -> None:
    text = f"op f(x: f32[M, M], w: f32[M, M]) -> (y: f32[M, M]) {{ y[i, j] = sum[k in 0..M]({term}) }}"
    graph = fixed_graph_of(text, M=64)
    assert guarded_products(graph, [], Core()) == graph
