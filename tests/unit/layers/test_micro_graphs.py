"""Kinds of operators from relations, and Apollo's micro-graphs."""

from __future__ import annotations

import numpy as np
import pytest

from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.fusion.micro_graphs import RULES, micro_graphs
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.model.primitive_types import Primitive, primitive_types


def graph_of(text: str, **sizes: int) -> TensorGraph:
    return fixed_graph(instantiate(parse_text(text), "f"), sizes)


KINDS = """op f(x: f32[N, M], w: f32[M, N], b: f32[M], i: i64[N], a: f32) -> (u: f32[N, M]) {
  same[n, m] = x[n, m] * 2.0
  shifted[n, m] = x[n, m + 1] if m + 1 < M else 0.0 for n in 0..N, m in 0..M
  turned[n, m] = w[m, n] + x[n, m]
  row[n, m] = b[m] for n in 0..N
  number[n, m] = a + x[n, m]
  total[n] = sum[m](x[n, m] * b[m])
  prod[n, k] = sum[m](x[n, m] * w[m, k]) for k in 0..N
  dot[n] = sum[m](x[n, m] * x[n, m])
  found[n, m] = x[i[n], m]
  u[n, m] = same[n, m] + shifted[n, m] + turned[n, m] + row[n, m] + number[n, m] + total[n] + prod[n, 0] +
      dot[n] + found[n, m]
}"""


def test_kinds_come_from_relations() -> None:
    with isl_lock:
        kinds = primitive_types(build_model(graph_of(KINDS, N=3, M=4)))
    found = {name: str(kind) for name, kind in kinds.items() if name != "u"}
    assert found == {
        "same": "elementwise",
        "shifted": "elementwise",
        "turned": "transpose",
        "row": "broadcast",
        "number": "broadcast",
        "total": "reduction",
        "prod": "contraction",
        "dot": "reduction",
        "found": "opaque",
    }
    assert kinds["u"] is Primitive.BROADCAST


def test_log_softmax_after_two_elementwise_operators() -> None:
    """Apollo: [elementwise, elementwise, reduce] and [sub]."""
    graph = graph_of(
        """op f(x: f32[T, H], bias: f32[T, H]) -> (y: f32[T, H]) {
          a[t, h] = x[t, h] + bias[t, h]
          c[t, h] = a[t, h] * 0.5
          s[t] = sum[h](exp(c[t, h]))
          y[t, h] = c[t, h] - s[t]
        }""",
        T=4, H=5,
    )  # fmt: skip
    assert micro_graphs(graph) == [("a", "c", "s"), ("y",)]


def test_bias_and_pooling_share_a_micro_graph() -> None:
    """Apollo: bias + 2x2 pooling fuses."""
    graph = graph_of(
        """op f(x: f32[N, 2*H, 2*W], b: f32[N]) -> (y: f32[N, H, W]) {
          z[n, h, w] = x[n, h, w] + b[n] for h in 0..2*H, w in 0..2*W
          y[n, h, w] = max[i in 0..2, j in 0..2](z[n, 2*h + i, 2*w + j])
        }""",
        N=2, H=3, W=4,
    )  # fmt: skip
    assert micro_graphs(graph) == [("z", "y")]


def test_nothing_follows_a_reduction() -> None:
    assert all(r.producer is not Primitive.REDUCTION for r in RULES)
    graph = graph_of(
        """op f(x: f32[T, H]) -> (y: f32[T, H]) {
          m[t] = max[h](x[t, h])
          e[t, h] = exp(x[t, h] - m[t])
          s[t] = sum[h](e[t, h])
          y[t, h] = e[t, h] / s[t]
        }""",
        T=4, H=5,
    )  # fmt: skip
    assert micro_graphs(graph) == [("m",), ("e", "s"), ("y",)]
    tree = LoopFusion(partition="rules").schedule(graph)
    assert tree.shape.count("B") >= 3
    assert LoopFusion().schedule(graph).shape != tree.shape


def test_groups_never_surround_another() -> None:
    """a and c are both elementwise, but the contraction lies between."""
    graph = graph_of(
        """op f(x: f32[N, N]) -> (c: f32[N, N]) {
          a[i, j] = x[i, j] * 2.0
          m[i, j] = sum[k](a[i, k] * a[k, j])
          o[i] = sum[j](m[i, j])
          c[i, j] = a[i, j] + o[i]
        }""",
        N=4,
    )
    groups = micro_graphs(graph)
    place = {name: k for k, g in enumerate(groups) for name in g}
    assert place["a"] < place["c"] and place["o"] <= place["c"]


@pytest.mark.parametrize("seed", range(5))
def test_rules_give_the_same_results(seed: int) -> None:
    import polyfuse as pf

    text = """op f(x: f32[T, H], g: f32[H]) -> (y: f32[T, H]) {
      mu[t] = mean[h](x[t, h])
      d[t, h] = x[t, h] - mu[t]
      v[t] = mean[h](d[t, h] * d[t, h])
      y[t, h] = d[t, h] / sqrt(v[t] + 1e-5) * g[h]
    }"""
    rng = np.random.default_rng(seed)
    x, g = rng.normal(size=(5, 7 + seed)).astype("f4"), rng.normal(size=7 + seed).astype("f4")
    rules = pf.compile(text, target="cpu", fusion=LoopFusion(partition="rules"))
    d = x - x.mean(1, keepdims=True)
    want = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5) * g
    np.testing.assert_allclose(rules(x, g), want, rtol=1e-4, atol=1e-5)
    assert "micro-graphs" in rules.explain(x, g)
