"""Kernels joined into one launch: grid barriers, resident blocks, and the refusal to hang."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import fixed_graph_of
from targets import Call, check_emulated

from polyfuse.codegen.cpu import Request
from polyfuse.codegen.cuda import emit_cuda
from polyfuse.diagnostics import EmulationError
from polyfuse.frontend_dsl.build_graph import instantiate
from polyfuse.frontend_dsl.parse import parse_text
from polyfuse.ir.kernel import KernelGraph
from polyfuse.layers.gpu_rows import GpuTarget
from polyfuse.layers.kernels import form_kernels
from polyfuse.layers.loop_fusion import LoopFusion
from polyfuse.layers.stitching import Stitching
from polyfuse.runtime.emulator import EmulatedKernels

BACKWARD = """op f(dy: f32[T, H], x: f32[T, H]) -> (dx: f32[T, H], dg: f32[H]) {
  c[t] = sum[h](dy[t, h] * x[t, h])
  dx[t, h] = dy[t, h] - x[t, h] * c[t]
  dg[h] = sum[t](dy[t, h] * x[t, h])
}"""
NORM = """op f(x: f32[N, C, P]) -> (y: f32[N, C, P]) {
  s[c] = sum[n, p](x[n, c, p])
  q[c] = sum[n, p]((x[n, c, p] - s[c]) ** 2)
  y[n, c, p] = (x[n, c, p] - s[c]) * rsqrt(q[c] + 1.0)
}"""
SMALL = GpuTarget(sms=3, threads=64, longest=64, parallel=64, least=16, resident_threads=128)


def kernels_of(text: str, target: GpuTarget, barriers: bool | None, **sizes: int) -> KernelGraph:
    scheduled = LoopFusion().schedule(fixed_graph_of(text, **sizes))
    return form_kernels(scheduled, target, Stitching(barriers=barriers))[0]


@pytest.mark.parametrize("text,sizes", [(BACKWARD, {"T": 70, "H": 64}), (NORM, {"N": 9, "C": 2, "P": 128})])
def test_forced_barriers_give_the_same(text: str, sizes: dict[str, int]) -> None:
    program = parse_text(text)
    rng = np.random.default_rng(1)
    graph = instantiate(program, "f")
    shapes = {t.name: tuple(sizes[str(e)] for e in t.shape) for t in graph.tensors if t.name in graph.inputs}
    inputs = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    check_emulated([Call("f", text, graph, sizes, inputs)], stitched=(True,), barriers=True)
    assert len(kernels_of(text, SMALL, True, **sizes).kernels) == 1
    assert len(kernels_of(text, SMALL, False, **sizes).kernels) > 1


def test_the_grid_is_resident_and_the_launch_cooperative() -> None:
    kernels = kernels_of(BACKWARD, SMALL, True, T=70, H=64)
    (kernel,) = kernels.kernels
    code = emit_cuda(Request(kernels))
    (launch,) = code.plan.launches
    assert launch.cooperative and len(kernel.parts) > 1
    assert launch.blocks.value == SMALL.sms * kernel.per_sm  # type: ignore[union-attr]
    assert kernel.per_sm * kernel.threads[0] <= SMALL.resident_threads
    assert f"__launch_bounds__({kernel.threads[0]}, {kernel.per_sm})" in code.source
    assert code.source.count("pf_grid_barrier(grid_state)") == len(kernel.parts) - 1


def test_a_grid_that_is_not_resident_is_an_error_not_a_hang() -> None:
    kernels = kernels_of(BACKWARD, SMALL, True, T=70, H=64)
    code = emit_cuda(Request(kernels))
    arrays = {
        "dy": np.ones((70, 64), np.float32),
        "x": np.ones((70, 64), np.float32),
        "dx": np.empty((70, 64), np.float32),
        "dg": np.empty(64, np.float32),
    }
    blocks = code.plan.launches[0].blocks.value  # type: ignore[union-attr]
    EmulatedKernels(code, resident=blocks).run(arrays)
    np.testing.assert_allclose(arrays["dg"], 70.0)
    with pytest.raises(EmulationError):
        EmulatedKernels(code, resident=blocks - 1).run(arrays)


V100 = GpuTarget(sms=80, bandwidth=0.9e12)


@pytest.mark.parametrize("gpu,rows,launches", [(GpuTarget(), 4096, 1), (V100, 4096, 1), (V100, 65536, 1)])
def test_backward_of_a_norm_combines_by_a_barrier_where_the_combination_is_small(
    gpu: GpuTarget, rows: int, launches: int
) -> None:
    """The partial sums take less time than a launch on both tables; the large part does not matter."""
    assert len(kernels_of(BACKWARD, gpu, None, T=rows, H=768).kernels) == launches


def test_blocks_that_no_multiprocessor_holds_are_not_joined() -> None:
    """Rows of 36 and of 32 threads need 288 to be laid on one block; 128 fit."""
    assert len(kernels_of(BACKWARD, SMALL, True, T=70, H=36).kernels) > 1


def test_two_large_kernels_are_cut() -> None:
    """A barrier saves a launch, which is nothing next to either of the two."""
    text = "op f(x: f32[N, M]) -> (y: f32[N, M]) { s = sum[n, m](x[n, m])\n y[n, m] = x[n, m] / s }"
    found = kernels_of(text, GpuTarget(), None, N=65536, M=4096)
    first, *_, last = found.kernels
    assert "x" in {b.tensor for b in first.arguments} and "y" in {b.tensor for b in last.arguments}
    assert len(found.kernels) > 1
