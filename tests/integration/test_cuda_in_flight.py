"""Several vectors of a thread on the way: which nests have them, and that results stay what they are."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from targets import Array

import polyfuse as pf
from polyfuse.codegen.cuda.emit import Request, emit_cuda
from polyfuse.driver.lowering import schedule
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.ir.index_expr import evaluate as number
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import entry_copies, form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

PROGRAM = pf.parse("""
op bias[F: float](x: F[T, H], b: F[H]) -> (y: F[T, H]) { y[t, h] = x[t, h] * x[t, h] + b[h] }
op three(x: f32[T, H], r: f32[T, H], m: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] * m[t, h] + r[t, h] }
op flat(x: bf16[H]) -> (y: bf16[H]) { y[h] = x[h] + x[h] }
op turned(x: f32[H, T]) -> (y: f32[T, H]) { y[t, h] = x[h, t] }
op softmax(x: bf16[T, H]) -> (y: bf16[T, H]) {
  m[t] = max[h](f32(x[t, h]))
  e[t, h] = exp(f32(x[t, h]) - m[t])
  d[t] = sum[h](e[t, h])
  y[t, h] = bf16(e[t, h] / d[t])
}
""")
H200 = GpuTarget()
SMALL = GpuTarget(sms=2)


@cache
def formed(op: str, dtype: str, gpu: GpuTarget, t: int, h: int) -> tuple[TensorGraph, KernelGraph, str]:
    generic = PROGRAM.op(op).graph({"F": dtype} if op == "bias" else {})
    sizes = {n: v for n, v in {"T": t, "H": h}.items() if n in generic.sizes}
    graph = fixed_graph(generic, sizes)
    kernels, decisions = form_kernels(schedule(graph, LoopFusion()), gpu, Stitching(rows=1, barriers=False))
    return graph, kernels, "\n".join(map(str, decisions))


def source(op: str, dtype: str = "", gpu: GpuTarget = H200, t: int = 65536, h: int = 3072) -> str:
    return emit_cuda(Request(formed(op, dtype, gpu, t, h)[1])).source


# --- which nests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ("bf16", "f32"))
def test_a_thread_of_a_stream_has_32_bytes_on_the_way(dtype: str) -> None:
    text = source("bias", dtype)
    assert re.search(r"#pragma unroll( \d)?\n +for \(int c\d = 0; c\d < 2;", text)
    assert "2 of them on the way" in formed("bias", dtype, H200, 65536, 3072)[2]


def test_one_of_three_tensors_is_enough() -> None:
    assert "on the way" not in formed("three", "", H200, 65536, 3072)[2]


def test_a_small_tensor_has_a_thread_for_each_vector() -> None:
    assert "on the way" not in formed("bias", "bf16", H200, 64, 3072)[2]


def test_pieces_of_one_row_go_to_a_thread_as_well() -> None:
    assert "2 of them on the way" in formed("flat", "", H200, 1, 1 << 26)[2]


def test_it_can_be_set_by_hand() -> None:
    for n in (1, 2, 4):
        text = formed("bias", "f32", replace(H200, unroll=n), 64, 512)[2]
        assert ("on the way" in text) is (n > 1)
        assert n == 1 or f"{n} of them on the way" in text


# --- rounds of a row --------------------------------------------------------------------------------------


def test_only_the_last_round_of_a_row_asks_for_elements() -> None:
    """The others are whole: their loads have no conditions around them."""
    text = source("softmax", t=4096, h=30000)
    first = text[text.index("pf_k0_0(") :]
    assert re.search(r"for \(int r\d = 0; r\d < \d; \+\+r\d\) {\n +const auto w\d+ = pf_load<8>\(b_x", first)


def test_the_last_round_is_loaded_before_the_others_are_used() -> None:
    """Its branch is after the loop; its load, under the same condition, before it."""
    text = source("softmax", t=4096, h=30000)
    early = re.search(
        r"= pf_load_if<8>\((.*), b_x, .*\n.*#pragma unroll\n +for \(int r\d = 0; r\d < \d;", text
    )
    assert early is not None
    assert text.count(f"if {early[1]} {{") or text.count(f"if ({early[1]}) {{")


# --- what is computed -------------------------------------------------------------------------------------


def arguments(graph: TensorGraph) -> dict[str, Array]:
    random = np.random.default_rng(3)
    shapes = {t.name: tuple(number(e, {}) for e in t.shape) for t in graph.tensors}
    return {
        t.name: random.standard_normal(shapes[t.name]).astype(t.dtype.numpy)
        for t in graph.tensors
        if t.role is Role.INPUT
    }


@pytest.mark.parametrize("unroll", (None, 2, 4, 8))
@pytest.mark.parametrize("op", ("bias", "three", "flat", "turned", "softmax"))
def test_any_shape_on_any_number_of_vectors(op: str, unroll: int | None) -> None:
    gpu = replace(SMALL, unroll=unroll)
    for t, h in ((1, 1), (8, 64), (6, 1000), (4, 1536), (16, 30), (24, 2048)):
        graph, kernels, _ = formed(op, "bf16", gpu, t, h)
        given = arguments(graph)
        want = evaluate(graph, {}, given)
        results = {
            x.name: np.full(tuple(number(e, {}) for e in x.shape), 77).astype(x.dtype.numpy)
            for x in graph.tensors
            if x.role is Role.OUTPUT
        }
        code = emit_cuda(Request(kernels, copied=entry_copies(kernels)[0]))
        EmulatedKernels(code).run({**given, **results})
        for name, mine in results.items():
            outcome = agrees(mine, want[name], graph.tensor(name).dtype)
            assert outcome, f"{op} {t}x{h}: {outcome.message}"
