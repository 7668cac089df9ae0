"""inout parameters: written in place where an order allows it, else copied at entry, with the reason."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_computes, fixed_graph_of

import polyfuse as pf
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import entry_copies, form_kernels

IN_PLACE = {
    "an update": "op f(inout p: f32[N], g: f32[N], lr: f32 = 0.1) { p[i] = p[i] - lr * g[i] }",
    "only written": "op f(inout p: f32[N], g: f32[N]) { p[i] = g[i] }",
    "a part": "op f(inout p: f32[N], g: f32[N]) { p[i] = p[i] + g[i] for i in 1..N - 1 }",
    "two apart": "op f(inout p: f32[N], inout g: f32[N]) { p[i] = p[i] * 3.0; g[i] = g[i] * 0.5 }",
    "read by a result": (
        "op f(inout p: f32[N], g: f32[N]) -> (y: f32[N]) { y[i] = old(p[i]) * g[i]; p[i] = 0.0 }"
    ),
}
COPIED = {
    "two that read each other": """op f(inout p: f32[N], inout g: f32[N]) {
        p[i] = p[i] + old(g[i])
        g[i] = old(p[i]) * g[i]
    }""",
    "reversed": "op f(inout p: f32[N], g: f32[N]) { p[i] = p[N - 1 - i] + g[i] }",
    "a sum of all": "op f(inout p: f32[N], g: f32[N]) { p[i] = p[i] + g[i] * sum[k](p[k]) }",
    "neighbours": "op f(inout p: f32[N], g: f32[N]) { p[i] = p[i - 1] + p[i + 1] + g[i] for i in 1..N - 1 }",
    "gathered": "op f(inout p: f32[N], g: f32[N], j: i64[N]) { p[i] = p[j[i]] + g[i] for i in 0..N }",
    "shifted": "op f(inout p: f32[N], g: f32[N]) { p[i] = p[i - 1] + g[i] for i in 1..N }",
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("text", [*IN_PLACE.values(), *COPIED.values()], ids=[*IN_PLACE, *COPIED])
def test_results_are_those_of_entry_values(text: str, fused: bool) -> None:
    f = pf.compile(text, layers=("loop",) if fused else ())
    graph = fixed_graph_of(text, N=9)
    assert_computes(graph, form_kernels(LoopFusion().schedule(graph), 2)[0], target="cpu")
    rng = np.random.default_rng(0)
    p, g = (rng.standard_normal(9).astype(np.float32) for _ in range(2))
    rest = [np.arange(9)[::-1].copy()] if "j:" in text else []
    by_interpreter = pf.compile(text, target="interpret")
    p2, g2 = p.copy(), g.copy()
    f(p, g, *rest)
    by_interpreter(p2, g2, *rest)
    np.testing.assert_allclose(p, p2, rtol=1e-6)
    np.testing.assert_allclose(g, g2, rtol=1e-6)


@pytest.mark.parametrize("text", IN_PLACE.values(), ids=IN_PLACE)
def test_written_in_place(text: str) -> None:
    kernels, _ = form_kernels(LoopFusion().schedule(fixed_graph_of(text, N=9)), 2)
    copied, decisions = entry_copies(kernels)
    assert not copied
    assert "+ in place p: each element is read before it is written" in map(str, decisions)


@pytest.mark.parametrize("name", ["reversed", "neighbours", "shifted", "gathered"])
def test_copied_with_a_witness(name: str) -> None:
    kernels, _ = form_kernels(LoopFusion().schedule(fixed_graph_of(COPIED[name], N=9)), 2)
    copied, (decision,) = entry_copies(kernels)
    assert copied == {"p"}
    assert (decision.kind, decision.subject, decision.taken) == ("in place", "p", False)
    assert "its entry values are copied" in decision.reason
    assert decision.witness and "p" in decision.witness and "i=" in decision.witness


def test_what_is_not_written_stays() -> None:
    f = pf.compile("op f(inout p: f32[N, M]) { p[0, m] = p[0, m] * 2.0; p[n, 0] = 5.0 for n in 1..N }")
    p = np.arange(12, dtype=np.float32).reshape(3, 4)
    want = p.copy()
    want[0] *= 2
    want[1:, 0] = 5
    f(p)
    np.testing.assert_array_equal(p, want)


def test_scatter_onto_an_inout() -> None:
    f = pf.compile("op f(inout p: f32[V], x: f32[N], i: i64[N]) { p[v] = p[v] * 0.5; p[i[n]] += x[n] }")
    p = np.arange(4, dtype=np.float32)
    f(p, np.ones(5, np.float32), np.array([1, 1, 3, 0, 1]))
    np.testing.assert_array_equal(p, [1, 3.5, 1, 2.5])


def test_what_replaces_entry_values_waits_for_all_who_read_them() -> None:
    """The state could be replaced beside the norm, but the parameters need it after that."""
    text = """op f(inout p: f32[N], inout m: f32[N], g: f32[N]) {
      a[i] = 0.9 * m[i] + 0.1 * g[i]
      m[i] = a[i]
      p[i] = p[i] - a[i] / (1.0 + sqrt(sum[k](a[k] ** 2)))
    }"""
    graph = fixed_graph_of(text, N=1000)
    kernels, _ = form_kernels(LoopFusion().schedule(graph), 2)
    copied, decisions = entry_copies(kernels)
    assert not copied and len(decisions) == 2
    assert_computes(graph, kernels, target="cpu")


def test_adamw_is_in_place() -> None:
    operator = pf.stdlib.op("adamw")
    sizes = dict.fromkeys(operator.graph().sizes, 64)
    kernels = operator.specialize(**sizes).schedule().apply(pf.LoopFusion()).lower()
    copied, decisions = entry_copies(kernels.ir)
    assert not copied and len(decisions) == 3 and kernels.launches <= 2


@pytest.mark.parametrize("w", [40, 54, 62, 63, 300])
@pytest.mark.parametrize(("word", "total"), [("sum", np.add), ("max", np.maximum)])
def test_windows_and_rows_updated_in_place(w: int, word: str, total: np.ufunc) -> None:
    """A row has two names and one memory: nothing is added twice, or overwritten before it is read."""
    added = (
        f"op f(inout x: f32[N, W], z: f32[N, {w + 2}]) {{ x[n, q] = x[n, q] + {word}[s in 0..3](z[n, q+s]) }}"
    )
    own = f"""op f(inout x: f32[N, {w}]) {{
        x[n, q] = {word}[s in 0..3](x[n, q+s-1] if 0 <= q+s-1 < {w} else 0.0)
    }}"""
    rng = np.random.default_rng(w)
    x, z = (rng.standard_normal((3, k)).astype(np.float32) for k in (w, w + 2))
    padded = np.pad(x, ((0, 0), (1, 1)))
    sums, neighbours = (total.reduce([of[:, k : k + w] for k in range(3)]) for of in (z, padded))
    y = x.copy()
    pf.compile(added.replace("W]", f"{w}]"))(y, z)
    np.testing.assert_allclose(y, x + sums, rtol=1e-5, atol=1e-5)
    pf.compile(own)(x)
    np.testing.assert_allclose(x, neighbours, rtol=1e-5, atol=1e-5)
