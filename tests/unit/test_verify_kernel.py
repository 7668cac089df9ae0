"""The verifier of kernels names what is broken; placement says where statements run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from equivalence import fixed_graph_of

from polyfuse.diagnostics import InternalError
from polyfuse.ir.index_expr import IVar, as_index, binary
from polyfuse.ir.kernel import KernelGraph, Scope, placement
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.verify_kernel import verify_kernels
from polyfuse.layers.kernels import form_kernels
from polyfuse.layers.loop_fusion import LoopFusion

ROWS = "op f(x: f32[N, M]) -> (y: f32[N, M]) { s[i] = sum[j](x[i, j]); y[i, j] = x[i, j] * s[i] }"
LONG = "op f(x: f32[N]) -> (y: f32[N]) { t[i] = x[i] + 1.0; y[i] = t[i] * 2.0 }"


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


def test_placement_tells_blocks_from_lanes() -> None:
    (kernel,) = kernels_of(LONG, N=100_000).kernels
    place = placement(kernel)
    assert place["y"] == place["t"]
    assert place["y"][Coordinate.BLK] == (binary("//", IVar("i"), as_index(2048)),)
    assert place["y"][Coordinate.VECTOR] == (IVar("i"),)
