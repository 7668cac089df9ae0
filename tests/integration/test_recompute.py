"""What layer II recomputes in a later kernel instead of storing it, by the cost model."""

from __future__ import annotations

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda.emit import emit_cuda
from polyfuse.decisions import Decision
from polyfuse.driver.lowering import schedule
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.target import GpuTarget, Target
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

SOFTMAX = """
op f(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  d[t] = sum[h](e[t, h])
  y[t, h] = e[t, h] / d[t]
}
"""
# What is stored takes so many operations that computing it twice is slower.
COSTLY = """
op f(x: f32[T, H]) -> (y: f32[T, H]) {
  e[t, h] = tanh(pow(abs(x[t, h]), 1.3) + pow(abs(x[t, h]), 1.7) + pow(abs(x[t, h]), 2.3))
  d[t] = sum[h](e[t, h])
  y[t, h] = e[t, h] / d[t]
}
"""

# The same positions serve all heads; these are between the loops that the functions need.
ROTATED = """
op f(x: f32[B, T, H, D], p: i64[B, T]) -> (y: f32[B, T, H, D]) where D % 2 == 0, D >= 2 {
  w[i] = exp(-f32(i) * 18.4 / D) for i in 0..D//2
  c[b, t, i] = cos(f32(p[b, t]) * w[i]) for b in 0..B, t in 0..T, i in 0..D//2
  s[b, t, i] = sin(f32(p[b, t]) * w[i]) for b in 0..B, t in 0..T, i in 0..D//2
  y[b, t, h, d] = x[b, t, h, d] * c[b, t, d // 2] +
    (-x[b, t, h, d + 1] * s[b, t, d // 2] if d % 2 == 0 else x[b, t, h, d - 1] * s[b, t, d // 2])
    for b in 0..B, t in 0..T, h in 0..H, d in 0..D
}
"""


def decisions(text: str, target: Target | int, fused: bool, **sizes: int) -> tuple[Decision, ...]:
    scheduled = schedule(
        fixed_graph(instantiate(parse_text(text), "f"), sizes), LoopFusion() if fused else None
    )
    return form_kernels(scheduled, target, Stitching(barriers=False))[1]


@pytest.mark.parametrize("fused", (True, False))
def test_long_rows_are_recomputed(fused: bool) -> None:
    """Rows that too few blocks would have stay apart; their exponentials are made twice rather than moved."""
    found = [d for d in decisions(SOFTMAX, GpuTarget(), fused, T=8, H=1 << 20) if d.kind == "recompute"]
    assert [(d.subject, d.taken) for d in found] == [("e", True)]
    assert found[0].reason.endswith(" us less than storing it")
    short = decisions(SOFTMAX, GpuTarget(), fused, T=4096, H=1024)
    assert not [d for d in short if d.kind == "recompute"], "nothing goes from one kernel to another"


def test_costly_ones_are_stored() -> None:
    found = [d for d in decisions(COSTLY, GpuTarget(), False, T=8, H=1 << 20) if d.kind == "recompute"]
    assert [(d.subject, d.taken) for d in found] == [("e", False)]
    assert "more than storing it" in found[0].reason


@pytest.mark.parametrize(("heads", "taken"), ((8, False), (1, True)))
def test_functions_are_not_computed_for_each_head(heads: int, taken: bool) -> None:
    found = [d for d in decisions(ROTATED, 2, True, B=2, T=256, H=heads, D=64) if d.kind == "recompute"]
    assert {d.taken for d in found if d.subject in ("c", "s")} == {taken}


@pytest.mark.parametrize("length", (4096, 5003))
def test_agrees_in_the_emulator(length: int) -> None:
    gpu = GpuTarget(
        sms=64, threads=64, longest=64, parallel=256, least=64, launch_s=0.0, bandwidth=1e11, clock=1e7
    )
    graph = fixed_graph(instantiate(parse_text(SOFTMAX), "f"), {"T": 2, "H": length})
    kernels, found = form_kernels(schedule(graph, LoopFusion()), gpu, Stitching(barriers=False))
    assert [d.taken for d in found if d.kind == "recompute"] == [True] and len(kernels.kernels) > 2
    x = np.random.default_rng(0).standard_normal((2, length)).astype(np.float32)
    x[0, 3], x[1, 5] = np.inf, -np.inf
    y = np.full_like(x, 77)
    EmulatedKernels(emit_cuda(Request(kernels))).run({"x": x, "y": y})
    assert agrees(y, evaluate(graph, {}, {"x": x})["y"], graph.tensor("y").dtype)


@pytest.mark.machine("zen5")
def test_agrees_on_a_cpu() -> None:
    x = np.random.default_rng(0).standard_normal((1, 1_000_003)).astype(np.float32)
    f = pf.compile(SOFTMAX, target="cpu", stitching=pf.Stitching(online=False))
    assert "+ recompute e" in f.explain(x)
    want = np.exp(x.astype(np.float64) - x.max())
    np.testing.assert_allclose(f(x), want / want.sum(), rtol=2e-5)
