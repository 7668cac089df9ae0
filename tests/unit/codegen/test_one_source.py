"""Several operators in one source: what they have in common is there once."""

from __future__ import annotations

import pytest
from equivalence import assert_right, fixed_graph_of, run_on, seeded_inputs
from targets import told_apart

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.kernel import KernelGraph, tree
from polyfuse.ir.loop_ir import For, map_nodes, substituted
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.poly.ast_build import loops_of
from polyfuse.runtime.cpu.executable import CpuExecutable

SOFTMAX = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = max[h](x[t, h]); e[t, h] = exp(x[t, h] - m[t]); d[t] = sum[h](e[t, h]); y[t, h] = e[t, h] / d[t]
}"""
# The same with other names of tensors, and a result before it whose memory comes first.
RENAMED = """op f(a: f32[T, H], b: f32[T, H]) -> (z: f32[T, H], w: f32[T, H]) {
  z[t, h] = a[t, h] + 1.0
  k[t] = max[h](b[t, h]); u[t, h] = exp(b[t, h] - k[t]); s[t] = sum[h](u[t, h]); w[t, h] = u[t, h] / s[t]
}"""


def made(text: str, **sizes: int) -> KernelGraph:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2, Stitching(rows=1))[0]


def bodies(*requests: Request) -> int:
    return emit_together(requests)[0].source.count("_body(\n")


def test_operators_share_the_code_of_equal_kernels() -> None:
    first, second = made(SOFTMAX, T=9, H=40), made(RENAMED, T=9, H=40)
    codes = emit_together([Request(first), Request(second)])
    alone = [emit_together([Request(k)])[0] for k in (first, second)]
    assert codes[0].source.count("_body(\n") == bodies(Request(second)) > bodies(Request(first))
    assert [c.plan.scratch_bytes for c in codes] == [c.plan.scratch_bytes for c in alone]
    assert all(c.plan.scratch_bytes for c in codes)
    for kernels, code in zip((first, second), codes, strict=True):
        inputs = seeded_inputs(kernels.graph)
        assert_right(kernels.graph, run_on(CpuExecutable(code, {}), kernels.graph, inputs), inputs)


def test_other_knobs_or_checks_are_other_code() -> None:
    kernels = made(SOFTMAX, T=9, H=40)
    one = Request(kernels)
    count = bodies(one)
    assert bodies(one, one) == count
    assert bodies(one, Request(kernels, knobs=CpuKnobs(lane_bytes=16))) == 2 * count
    assert bodies(one, Request(kernels, checked=True)) == 2 * count
    assert bodies(one, Request(kernels, strided=frozenset(["x"]))) == 2 * count
    assert bodies(one, Request(made(SOFTMAX, T=9, H=41))) == 2 * count


@pytest.mark.parametrize(("a", "b"), [("0.0", "-0.0"), ("1.0", "2.0")])
def test_requests_are_told_apart(a: str, b: str) -> None:
    text = "op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = x[i] + {} }}"
    one, same, other = (Request(made(text.format(value), N=5)) for value in (a, a, b))
    assert [k for k, _ in told_apart([one, same, other, one])] == [0, 2]


def test_loops_are_made_once_and_stay_where_nothing_changes() -> None:
    (kernel,) = made(SOFTMAX, T=9, H=40).kernels
    loops = loops_of(kernel.graph, tree(kernel))
    (again,) = made(SOFTMAX, T=9, H=40).kernels
    assert loops_of(again.graph, tree(again)) is loops
    kept = map_nodes(loops, lambda node: node)
    assert all(a is b for a, b in zip(kept, loops, strict=True))
    assert all(a is b for a, b in zip(substituted(loops, {}), loops, strict=True))
    assert isinstance(loops[0], For)
