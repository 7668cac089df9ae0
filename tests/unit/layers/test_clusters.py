"""How graphs are cut into clusters, and what becomes of clusters that are alike."""

from __future__ import annotations

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.driver.lowering import Passes, lower_clusters
from polyfuse.driver.pipeline import Compilation, Watch, fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.rename import canonical
from polyfuse.ir.target import CpuTarget
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.layers.clustering.clusters import Clustering, cut_off, is_contraction, recompute_numbers
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options


def graph_of(text: str, **sizes: int) -> TensorGraph:
    return fixed_graph(instantiate(parse_text(text), "f"), sizes)


def clusters(graph: TensorGraph, most: int = 40) -> list[tuple[str, ...]]:
    return Clustering(most=most, whole=0).clusters(graph, [])


LAYER = """op f(x: f32[T, H], w: f32[H, K], b: f32[K], g: f32[K]) -> (y: f32[T, K]) {
  u[t, h] = x[t, h] * 2.0
  m[t, k] = sum[h](u[t, h] * w[h, k])
  a[t, k] = m[t, k] + b[k]
  s[t] = sum[k](a[t, k])
  y[t, k] = a[t, k] / s[t] * g[k]
}"""


def test_a_contraction_is_a_cluster_of_its_own() -> None:
    assert clusters(graph_of(LAYER, T=5, H=6, K=7)) == [("u",), ("m",), ("a", "s", "y")]


def test_contractions_are_known_by_their_indices() -> None:
    graph = graph_of(
        """op f(a: f32[M, K], b: f32[K, N], v: f32[K], x: f32[B, C, L], w: f32[D, C, R]) ->
            (mm: f32[M, N], mv: f32[M], norm: f32[M], conv: f32[B, D, L], outer: f32[M, N]) {
          mm[m, n] = sum[k](a[m, k] * b[k, n])
          mv[m] = sum[k](a[m, k] * v[k])
          norm[m] = sum[k](a[m, k] * a[m, k])
          conv[i, d, l] = sum[c, r](x[i, c, min(l + r, L - 1)] * w[d, c, r])
          outer[m, n] = a[m, 0] * b[0, n]
        }""",
        M=3, K=4, N=5, B=2, C=3, L=6, D=2, R=2,
    )  # fmt: skip
    found = {s.target for s in graph.statements if is_contraction(s)}
    assert found == {"mm", "conv"}


def test_one_row_makes_no_contraction() -> None:
    """A product with one row reads each element of the matrix once."""
    graph = graph_of(LAYER, T=1, H=6, K=7)
    assert not any(is_contraction(s) for s in graph.statements)


def test_what_nothing_connects_is_apart() -> None:
    graph = graph_of(
        """op f(a: f32[N], b: f32[N], lr: f32) -> (x: f32[N], y: f32[N]) {
          p[i] = a[i] * lr
          q[i] = b[i] * lr
          x[i] = p[i] + 1.0
          y[i] = q[i] + 2.0
        }""",
        N=9,
    )
    assert clusters(graph) == [("p", "x"), ("q", "y")]


def test_numbers_from_scalar_arguments_are_computed_where_they_are_read() -> None:
    graph = graph_of(
        """op f(a: f32[N], b: f32[N], beta: f32, step: f32) -> (x: f32[N], y: f32[N], t: f32) {
          c = 1.0 - beta ** step
          d = c * 2.0
          s = sum[i](a[i])
          x[i] = a[i] / d
          y[i] = b[i] / d + s
          t = c
        }""",
        N=9,
    )
    why: list[Decision] = []
    made = recompute_numbers(graph, why, arguments=True)
    assert [d.subject for d in why] == ["c", "d"]
    assert [s.name for s in made.statements] == ["s", "x", "y", "t"]


def test_numbers_from_constants_are_computed_where_they_are_read() -> None:
    graph = graph_of(
        """op f(x: f32[N], a: f32) -> (y: f32[N], t: f32) {
          c = rsqrt(N) + 1.0
          d = c * a
          y[i] = x[i] * d
          t = c + 1.0
        }""",
        N=9,
    )
    why: list[Decision] = []
    made = recompute_numbers(graph, why, arguments=False)
    assert [d.subject for d in why] == ["c"]
    assert [s.name for s in made.statements] == ["d", "y", "t"]


@pytest.mark.parametrize("target", ["cpu", "emulate"])
def test_no_thread_waits_for_a_constant(target: str) -> None:
    """Nor, on a GPU, for what follows from arguments: that would take a barrier of the grid."""
    text = """op f(x: f32[N, D], beta: f32, step: f32) -> (y: f32[N, D]) {
      c = rsqrt(D)
      d = 1.0 - beta ** step
      y[n, i] = x[n, i] * c / d
    }"""
    graph, options = pf.parse(text).op("f").graph(), Options(threads=2)
    layers = {"fusion": LoopFusion(), "stitching": Stitching(), "packing": Packing()}
    made = Compilation(graph, {"N": 512, "D": 64}, options=options, target=target, **layers)
    (kernel,) = made.lowered(Watch(options)).kernels.kernels
    assert len(kernel.stages) == (2 if target == "cpu" else 1)


def test_large_graphs_are_cut_where_tensors_are_small() -> None:
    graph = graph_of(
        """op f(x: f32[T, H]) -> (y: f32[T]) {
          a[t, h] = x[t, h] * 2.0
          s[t] = sum[h](a[t, h])
          b[t] = s[t] * 0.5
          y[t] = b[t] + 1.0
        }""",
        T=4, H=100,
    )  # fmt: skip
    assert clusters(graph, most=2) == [("a", "s"), ("b", "y")]


def test_what_lies_between_two_statements_keeps_them_apart() -> None:
    graph = graph_of(
        """op f(x: f32[H, H], w: f32[H, H]) -> (y: f32[H, H]) {
          a[t, h] = x[t, h] * 2.0
          m[t, k] = sum[h](a[t, h] * w[h, k])
          y[t, h] = m[t, h] + a[t, h]
        }""",
        H=8,
    )
    assert clusters(graph) == [("a",), ("m",), ("y",)]


def test_readers_of_an_entry_value_come_before_what_replaces_it() -> None:
    graph = graph_of(
        """op f(inout p: f32[N], x: f32[N, N]) -> (y: f32[N]) {
          p[i] = 1.0
          y[i] = sum[j](x[i, j]) + old(p[i])
        }""",
        N=5,
    )
    order = [n for c in clusters(graph, most=1) for n in c]
    assert order.index("y") < order.index("p")


def test_a_cluster_is_a_graph_of_its_own() -> None:
    graph = graph_of(LAYER, T=5, H=6, K=7)
    _, _, part, _ = cut_off(graph, [("u",), ("m",), ("a", "s"), ("y",)])
    roles = {t.name: t.role for t in part.tensors}
    assert roles == {"m": Role.INPUT, "b": Role.INPUT, "a": Role.OUTPUT, "s": Role.OUTPUT}
    assert (set(part.inputs), part.outputs) == ({"b", "m"}, ("a", "s"))


TWICE = """op f(x: f32[N, M], y: f32[N, M]) -> (u: f32[N, M], v: f32[N, M]) {
  sx[n] = sum[m](x[n, m])
  u[n, m] = x[n, m] / sx[n]
  sy[i] = sum[j](y[i, j])
  v[i, j] = y[i, j] / sy[i]
}"""


def test_clusters_that_differ_in_names_are_scheduled_once() -> None:
    graph = graph_of(TWICE, N=4, M=5)
    first, second = clusters(graph)
    one, other = cut_off(graph, [first, second])
    assert one != other and canonical(one) == canonical(other)
    passes = Passes(Clustering(), LoopFusion(), Stitching(rows=1), None, CpuTarget(2))
    low = lower_clusters(graph, [first, second], passes)
    same = [d for d in low.decisions if d.kind == "same"]
    assert [d.subject for d in same] == ["cluster 1"]
    assert [k.name for k in low.kernels.kernels] == ["k0", "k1"]
    assert [set(k.statements) & {"u", "v"} for k in low.kernels.kernels] == [{"u"}, {"v"}]


def test_clusters_that_differ_in_the_sign_of_zero_are_not_alike() -> None:
    text = """op f(x: f32[N], y: f32[N]) -> (u: f32[N], v: f32[N]) {
      u[n] = x[n] * 0.0
      v[n] = y[n] * -0.0
    }"""
    one, other = cut_off(graph_of(text, N=4), [("u",), ("v",)])
    assert canonical(one) != canonical(other)
    f = pf.compile(text, target="cpu", clustering=Clustering(whole=0))
    u, v = f(np.ones(4, "f4"), np.ones(4, "f4"))
    assert not np.signbit(u).any() and np.signbit(v).all()


def test_names_made_inside_of_clusters_are_kept_apart() -> None:
    """Both clusters make an initialising statement; one of the user's names is like it."""
    text = TWICE.replace("sx", "s").replace("sy", "s__init")
    graph = graph_of(text, N=4, M=5)
    passes = Passes(Clustering(), LoopFusion(), Stitching(rows=1), None, CpuTarget(2))
    low = lower_clusters(graph, clusters(graph), passes)
    names = [s.name for s in low.kernels.graph.statements]
    assert len(set(names)) == len(names)


def test_a_compiled_graph_of_many_statements_agrees() -> None:
    lines = ["op f(x: f32[T, H], w: f32[H, H]) -> (y: f32[T, H]) {"]
    before = "x"
    for k in range(12):
        lines += [
            f"a{k}[t, h] = {before}[t, h] * 0.5",
            f"s{k}[t] = sum[h](a{k}[t, h])",
            f"b{k}[t, h] = a{k}[t, h] - s{k}[t] * 0.01",
            f"c{k}[t, h] = sum[j](b{k}[t, j] * w[j, h])",
        ]
        before = f"c{k}"
    lines += [f"y[t, h] = {before}[t, h]", "}"]
    f = pf.compile("\n".join(lines), target="cpu")
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(6, 10)).astype("f4"), rng.normal(size=(10, 10)).astype("f4")
    want = x.astype("f8")
    for _ in range(12):
        a = want * 0.5
        want = (a - a.sum(1, keepdims=True) * 0.01) @ w
    np.testing.assert_allclose(f(x, w), want, rtol=2e-4, atol=1e-5)
    built = f.built(x, w)
    assert sum(d.kind == "same" for d in built.decisions) >= 20
    assert any(d.kind == "clusters" and isinstance(d, Decision) for d in built.decisions)


@pytest.mark.parametrize("target", ["cpu", "emulate"])
def test_clusters_of_an_operator_are_those_of_compile(target: str) -> None:
    """Of the graph after clean-up: `b` is `a` again, `k` is a number from an argument, `u` is not needed."""
    text = """op f(x: f32[N], beta: f32) -> (y: f32[N], z: f32[N]) {
      k = 1.0 - beta
      a[i] = exp(x[i])
      b[i] = exp(x[i])
      u[i] = tanh(a[i])
      y[i] = a[i] * k + x[i]
      z[i] = b[i] * 2.0
    }"""
    operator = pf.parse(text).op()
    cut = Clustering(whole=0)
    pieces = operator.specialize(N=100).clusters(cut, target=target)  # type: ignore[arg-type]
    names = [[s.name for s in p.graph.statements] for p in pieces]
    built = pf.compile(text, target=target, clustering=cut).built(  # type: ignore[arg-type]
        np.ones(100, np.float32), np.float32(0.5)
    )
    computed = {s.target for s in built.kernels.graph.statements}
    assert {p.graph.statement(n).target for p, ns in zip(pieces, names, strict=True) for n in ns} == computed
    assert not {"b", "u"} & {n for ns in names for n in ns}
    assert ("k" in {n for ns in names for n in ns}) == (target == "cpu")
    assert all(any(d.kind == "clusters" for d in p.decisions) for p in pieces)
