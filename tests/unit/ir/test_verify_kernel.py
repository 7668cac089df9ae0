"""The verifier of kernels names what is broken; placement says where statements run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from equivalence import fixed_graph_of

from polyfuse.diagnostics import InternalError
from polyfuse.ir.index_expr import IVar, as_index, binary
from polyfuse.ir.kernel import KernelGraph, Phase, Scope, Stage, in_steps, placement, tree
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.verify_kernel import verify_kernels
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels

ROWS = "op f(x: f32[N, M]) -> (y: f32[N, M]) { s[i] = sum[j](x[i, j]); y[i, j] = x[i, j] * s[i] }"
LONG = "op f(x: f32[N]) -> (y: f32[N]) { t[i] = x[i] + 1.0; y[i] = t[i] * 2.0 }"

STEPS = """op f(a: f32[N, N], x: f32[N]) -> (y: f32[N]) where N >= 1 {
  v[0, i] = x[i]
  w[t, i] = sum[k](a[i, k] * v[t-1, k]) for t in 1..7
  v[t, i] = w[t, i] / max[k](w[t, k]) for t in 1..7
  y[i] = v[6, i]
}"""


def kernels_of(text: str, **sizes: int) -> KernelGraph:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2)[0]


def refused(kernels: KernelGraph, what: str) -> None:
    with pytest.raises(InternalError, match=what) as error:
        verify_kernels(kernels)
    assert error.value.code == "PF904"


def test_what_layer_one_makes_is_in_order() -> None:
    verify_kernels(kernels_of(ROWS, N=4, M=5))
    verify_kernels(kernels_of(LONG, N=100_000))


def test_a_lost_kernel_is_seen() -> None:
    kernels = kernels_of(ROWS, N=4, M=5)
    refused(replace(kernels, kernels=kernels.kernels[1:]), "each statement once")


def test_a_missing_buffer_is_seen() -> None:
    kernels = kernels_of(ROWS, N=4, M=5)
    first = replace(kernels.kernels[0], buffers=kernels.kernels[0].buffers[1:])
    refused(replace(kernels, kernels=(first, *kernels.kernels[1:])), "not the tensors it touches")


def test_shared_storage_must_be_global() -> None:
    kernels = kernels_of(ROWS, N=4, M=5)
    first = kernels.kernels[0]
    local = tuple(replace(b, scope=Scope.LOCAL) if b.tensor == "s" else b for b in first.buffers)
    broken = (replace(first, buffers=local), *kernels.kernels[1:])
    refused(replace(kernels, kernels=broken), "shared with kernel k1, but not global")


def test_parts_of_shared_steps_have_global_storage_in_common() -> None:
    kernels = kernels_of(STEPS, N=500)
    verify_kernels(kernels)
    k = next(k for k in kernels.kernels if in_steps(k))
    assert [b.scope for b in k.buffers if b.tensor == "w"] == [Scope.GLOBAL]
    local = tuple(replace(b, scope=Scope.LOCAL) if b.tensor == "w" else b for b in k.buffers)
    broken = tuple(replace(k, buffers=local) if x is k else x for x in kernels.kernels)
    refused(replace(kernels, kernels=broken), "w is shared by parts of a step")


def test_shared_steps_are_around_all_of_a_kernel() -> None:
    kernels = kernels_of(STEPS, N=500)
    k = next(k for k in kernels.kernels if in_steps(k))
    inside = tuple(
        replace(k, stages=(Stage((), (Phase(tree(k)),)),)) if x is k else x for x in kernels.kernels
    )
    refused(replace(kernels, kernels=inside), "inside of another loop")


def test_placement_tells_blocks_from_lanes() -> None:
    (kernel,) = kernels_of(LONG, N=100_000).kernels
    place = placement(kernel)
    assert place["y"] == place["t"]
    assert place["y"][Coordinate.BLK] == (binary("//", IVar("i"), as_index(2048)),)
    assert place["y"][Coordinate.VECTOR] == (IVar("i"),)
