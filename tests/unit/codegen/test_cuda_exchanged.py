"""Memory that threads exchange at barriers is not behind a restricted pointer.

Of such a pointer a compiler takes it that only the thread's own stores change what is there, and it moves
loads over barriers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from equivalence import fixed_graph_of
from kinds import kind_call
from test_kernels import PROGRAMS

from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda.emit import emit_cuda
from polyfuse.cost.device import device
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import entry_copies, form_kernels
from polyfuse.layers.stitching.stitching import Stitching

EXTREME_OF_A_RECURRENCE = """
op p(x: f32[B, T], g: f32[B, T]) -> (c: f32[B, T], m: f32[B], d: f32[B, T]) {
  c[b, T - 1] = x[b, T - 1] for b in 0..B
  c[b, t] = c[b, t + 1] * 0.75 + x[b, t] for b in 0..B, t in 0..T - 1
  m[b] = min[t](c[b, t] * g[b, t])
  d[b, t] = c[b, t] - m[b]
}
"""
BARRIER = re.compile(r"__syncthreads\(|pf_grid_barrier\(")


def cuda_of(graph: TensorGraph) -> str:
    gpu = GpuTarget(sms=device("H200").sms)
    kernels, _ = form_kernels(LoopFusion().schedule(graph), gpu, Stitching(rows=1))
    return emit_cuda(Request(kernels, copied=entry_copies(kernels)[0])).source


def restricted(source: str) -> Iterator[tuple[str, int]]:
    """The restricted pointers to what functions with barriers write, with the accesses through each."""
    for text in re.split(r"(?=^extern \"C\" __global__|^static __device__ )", source, flags=re.M)[1:]:
        if BARRIER.search(text):
            for name in re.findall(r"PF_OUT\(\w+\) (\w+)", text):
                yield name, len(re.findall(rf"\b{name}\b", text)) - 1


def test_what_threads_read_of_each_other() -> None:
    source = cuda_of(fixed_graph_of(EXTREME_OF_A_RECURRENCE, B=2, T=64))
    assert BARRIER.search(source)
    assert all(f"PF_INOUT(float) b_{name}" in source for name in ("c", "m"))
    assert "PF_OUT(float) b_d" in source


def test_without_a_barrier_pointers_stay_restricted() -> None:
    text = "op p(x: f32[N]) -> (y: f32[N], z: f32[N]) {\n  y[i] = 2 * x[i]\n  z[i] = y[i] + 1\n}"
    assert "PF_INOUT(float) b_" not in cuda_of(fixed_graph_of(text, N=64))


@pytest.mark.parametrize("name", PROGRAMS)
def test_restricted_pointers_have_one_access(name: str) -> None:
    text, sizes = PROGRAMS[name]
    assert all(count == 1 for _, count in restricted(cuda_of(fixed_graph_of(text, **sizes))))


@pytest.mark.parametrize("kind", ["scans", "pieces", "inouts", "rows", "scatters"])
def test_restricted_pointers_of_random_programs_have_one_access(kind: str) -> None:
    call = kind_call(kind, 13)
    assert all(count == 1 for _, count in restricted(cuda_of(fixed_graph(call.graph, call.sizes))))
