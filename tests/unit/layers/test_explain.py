"""Why statements share loops, in words and with a pair of instances."""

from __future__ import annotations

import pytest
from equivalence import fixed_graph_of

import polyfuse as pf
from polyfuse.ir.schedule_tree import ScheduledGraph
from polyfuse.layers.fusion.explain import explain_pair
from polyfuse.layers.fusion.loop_fusion import LoopFusion, identity_schedule

NORM = """op f(x: f32[T, H], w: f32[H]) -> (y: f32[T, H], z: f32[H]) {
  s[t] = sum[h](exp(x[t, h]))
  m[t] = s[t] / H
  y[t, h] = exp(x[t, h]) - m[t]
  z[h] = w[h] * 2.0
}"""


def fused(text: str, *, scheduler: str = "auto", rematerialise: bool = False, **sizes: int) -> ScheduledGraph:
    fusion = LoopFusion(scheduler=scheduler, rematerialise=rematerialise)  # type: ignore[arg-type]
    return fusion.schedule(fixed_graph_of(text, **sizes))


def test_a_loop_that_a_reduction_forbids() -> None:
    text = explain_pair(fused(NORM, T=4, H=5), "s", "y")
    assert text.splitlines()[0] == "s and y share the loop over t"
    assert "one loop over h is illegal: s -> m -> y crosses its iterations; y(t=" in text
    assert "needs s(t=" in text


def test_order_of_the_names_is_irrelevant() -> None:
    scheduled = fused(NORM, T=4, H=5)
    assert explain_pair(scheduled, "y", "s") == explain_pair(scheduled, "s", "y")


def test_no_further_loops() -> None:
    assert explain_pair(fused(NORM, T=4, H=5), "s", "m").splitlines() == [
        "s and m share the loop over t",
        "one of them has no further loops",
    ]


def test_statements_that_have_nothing_in_common() -> None:
    text = explain_pair(fused(NORM, T=4, H=5), "m", "z")
    assert text.startswith(("m and z share no loop", "z and m share no loop"))
    assert "their other loops run over different axes" in text


def test_loops_that_could_be_one() -> None:
    chain = "op f(x: f32[N]) -> (y: f32[N]) { a[i] = exp(x[i]); y[i] = a[i] * a[i] }"
    unfused = identity_schedule(fixed_graph_of(chain, N=4))
    assert "one loop over i would be legal for these two (a -> y)" in explain_pair(unfused, "a", "y")
    assert "share the loop over i" in explain_pair(fused(chain, N=4), "a", "y")


def test_what_was_inlined() -> None:
    text = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
      c[t, h] = x[t, h] * 2.0
      y[t, h] = c[t, h] - sum[k](c[t, k])
    }"""
    scheduled = fused(text, rematerialise=True, T=4, H=64)
    assert explain_pair(scheduled, "c", "y").startswith("c has no loops of its own: + rematerialise c")


def test_unknown_statements() -> None:
    with pytest.raises(pf.ArgumentError, match=r"(?s)PF416.*'q'.*there are"):
        explain_pair(fused(NORM, T=4, H=5), "q", "y")


PIECES = {
    "scan": """op f(x: f32[T, J]) -> (c: f32[T, J]) {
        c[0, j] = x[0, j]
        c[t, j] = c[t - 1, j] + x[t, j] for t in 1..T
    }""",
    "stencil": """op f(x: f32[J], n: i8[T]) -> (c: f32[T, J]) {
        c[0, j] = x[j]
        c[t, 0] = c[t - 1, 0] for t in 1..T
        c[t, j] = c[t - 1, j - 1] + c[t - 1, j] for t in 1..T, j in 1..J
    }""",
    "shifted": """op f(x: f32[T, J]) -> (c: f32[T, J]) {
        a[t, j] = exp(x[t, j])
        c[t, j] = a[t - 1, j] + a[t, j] if t >= 1 else 0.0 for t in 0..T, j in 0..J
    }""",
    "gathered": """op f(x: f32[T, J], i: i64[T]) -> (c: f32[T, J]) {
        a[t, j] = exp(x[t, j])
        c[t, j] = a[i[t], j] for t in 0..T
    }""",
}


@pytest.mark.parametrize("scheduler", ["auto", "isl"])
@pytest.mark.parametrize("text", PIECES.values(), ids=PIECES.keys())
def test_every_pair_has_an_explanation(text: str, scheduler: str) -> None:
    """Loops may be shifted, skewed or fixed at a constant."""
    scheduled = fused(text, scheduler=scheduler, T=4, J=5)
    names = [s.name for s in scheduled.graph.statements]
    for a in names:
        for b in names:
            if a != b:
                assert " share " in explain_pair(scheduled, a, b)
