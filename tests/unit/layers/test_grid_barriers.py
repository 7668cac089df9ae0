"""Kernels joined into one launch: grid barriers, resident blocks, and the refusal to hang."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn_ways import DrawnWay
from equivalence import fixed_graph_of
from targets import Call, check_emulated, check_everywhere
from thinned import thinned
from ways import check

from polyfuse.codegen.cpu.emit import Request, emit
from polyfuse.codegen.cuda.emit import emit_cuda
from polyfuse.cost.packing_gain import Work
from polyfuse.diagnostics import EmulationError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.kernel import KernelGraph, Scope
from polyfuse.ir.target import GpuTarget, Target
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.emulator.emulator import EmulatedKernels

BACKWARD = """op f(dy: f32[T, H], x: f32[T, H]) -> (dx: f32[T, H], dg: f32[H]) {
  c[t] = sum[h](dy[t, h] * x[t, h])
  dx[t, h] = dy[t, h] - x[t, h] * c[t]
  dg[h] = sum[t](dy[t, h] * x[t, h])
}"""
# Totals of a whole tensor, and rows and columns of others: parts on many numbers of threads.
TOTALS = """op f(x: f32[T, H], w: f32[K]) -> (y: f32[T, H], z: f32[K], r: f32[T]) {
  n = sqrt(sum[t, h](x[t, h] * x[t, h]))
  u[t, h] = x[t, h] / (n + 1.0)
  r[t] = max[h](abs(u[t, h]))
  m = max[t](r[t])
  v = sum[k](w[k] * m)
  y[t, h] = u[t, h] * v
  z[k] = w[k] - m * v
}"""
COLUMNS = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  a[t] = sum[h](x[t, h])
  b[h] = sum[t](x[t, h] * a[t])
  c[t] = max[h](x[t, h] + b[h])
  y[t, h] = c[t] - b[h] * x[t, h]
}"""
# Pieces that share loops over blocks: the first rows of one have less of the inner loop.
PIECES = """op f(x: f32[N, M]) -> (y: f32[N, M]) where N >= 6, M >= 5 {
  s[i, j] = x[i, j] for i in 4..N, j in 0..M
  y[i, j] = 0.25 for i in 0..4, j in 0..M
  y[i, j] = 0.25 for i in 4..N - 2, j in 0..M - 1
  y[i, j] = s[i, j] for i in 4..N - 2, j in M - 1..M
  y[i, j] = s[i, j] for i in N - 2..N, j in 0..2
  y[i, j] = 0.25 for i in N - 2..N, j in 2..M - 1
  y[i, j] = s[i, j] for i in N - 2..N, j in M - 1..M
}"""
SMALL = GpuTarget(sms=3, threads=64, longest=64, parallel=64, least=16, resident_threads=128)
CASES = (
    (BACKWARD, {"T": 70, "H": 64}),
    (BACKWARD, {"T": 70, "H": 36}),
    (TOTALS, {"T": 9, "H": 41, "K": 301}),
    (TOTALS, {"T": 1, "H": 1, "K": 1}),
    (TOTALS, {"T": 65, "H": 8, "K": 700}),
    (COLUMNS, {"T": 33, "H": 100}),
    (COLUMNS, {"T": 5, "H": 37}),
)


def kernels_of(text: str, target: Target | int, barriers: bool | None, **sizes: int) -> KernelGraph:
    scheduled = LoopFusion().schedule(fixed_graph_of(text, **sizes))
    return form_kernels(scheduled, target, Stitching(barriers=barriers))[0]


def call_of(text: str, sizes: dict[str, int], seed: int = 1) -> Call:
    rng = np.random.default_rng(seed)
    graph = instantiate(parse_text(text), "f")
    shapes = {t.name: tuple(sizes[str(e)] for e in t.shape) for t in graph.tensors if t.name in graph.inputs}
    inputs = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    return Call("f", text, graph, sizes, inputs)


@pytest.mark.parametrize(
    ("fused", "barriers"),
    thinned([(True, True), (False, True), (True, None), (False, None)], 3, several=True),
)
def test_barriers_give_the_same(fused: bool, barriers: bool | None) -> None:
    """In three orders of threads, on devices with other numbers of threads along rows."""
    calls = [call_of(text, sizes) for text, sizes in CASES]
    check_emulated(calls, fused=(fused,), stitched=(True,), barriers=barriers)


def test_loops_over_blocks_may_depend_on_one_another() -> None:
    cut = Clustering(most=2, whole=0, feedback="failures")
    layers = LoopFusion(partition="whole", late="unfused"), Stitching(rows=1), None, cut
    calls = [call_of(PIECES, {"N": n, "M": 34}) for n in (6, 7, 12)]
    check([(call, DrawnWay(*layers, device="odd")) for call in calls])


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


@pytest.mark.parametrize("gpu,rows", [(GpuTarget(), 4096), (V100, 4096), (V100, 65536)])
@pytest.mark.parametrize("barriers,launches", [(None, 1), (True, 1), (False, 2)])
def test_the_gradient_of_a_norm_combines_behind_a_barrier_or_in_a_launch(
    gpu: GpuTarget, rows: int, barriers: bool | None, launches: int
) -> None:
    assert len(kernels_of(BACKWARD, gpu, barriers, T=rows, H=768).kernels) == launches


def decisions_of(text: str, target: Target | int, barriers: bool | None, **sizes: int) -> list[str]:
    scheduled = LoopFusion().schedule(fixed_graph_of(text, **sizes))
    found = form_kernels(scheduled, target, Stitching(barriers=barriers))[1]
    return [str(d) for d in found if d.kind in ("grid barrier", "region")]


# --- what it costs -------------------------------------------------------------------------------------

SCALED = "op f(x: f32[N, M]) -> (y: f32[N, M]) { s = sum[n, m](x[n, m])\n y[n, m] = x[n, m] / s }"


def test_figures_of_both_choices_are_in_the_decision() -> None:
    (taken,) = decisions_of(SCALED, GpuTarget(), None, N=4096, M=1024)
    assert taken.startswith("+ grid barrier k0, k1, k2: 3 parts on 264 resident blocks of 512 threads: ")
    assert taken.endswith("a barrier takes 2.6 us, a resident grid loses 2.61 us; a cut takes 3.1 us")


def test_a_resident_grid_that_loses_more_than_a_launch_is_cut() -> None:
    """Without vectors the threads that are resident for sure do not saturate memory."""
    scalar = GpuTarget(vector=1)
    found = kernels_of(SCALED, scalar, None, N=65536, M=4096)
    assert len(found.kernels) > 1
    assert len(kernels_of(SCALED, scalar, None, N=256, M=1024).kernels) == 1
    assert len(kernels_of(SCALED, replace(V100, vector=1), None, N=65536, M=4096).kernels) > 1
    assert len(kernels_of(SCALED, V100, None, N=65536, M=4096).kernels) == 1
    refused = [d for d in decisions_of(SCALED, scalar, None, N=65536, M=4096) if d.startswith("-")]
    assert refused and all("a resident grid loses" in d and "a cut takes 3.1 us" in d for d in refused)


def test_a_dear_barrier_is_a_cut() -> None:
    """A launch counts 1.75 times for what it keeps the host; 2 % of the time are within the model's error."""

    def launches(rows: int, **change: float) -> int:
        gpu = replace(V100, **change)  # type: ignore[arg-type]
        return len(kernels_of(SCALED, gpu, None, N=rows, M=1024).kernels)

    assert launches(4096, barrier_s=5e-6) == 1 and launches(4096, barrier_s=6e-6) == 3
    assert launches(4096, launch_s=1e-6) == 1 and launches(4096, launch_s=0.5e-6) == 3
    assert launches(65536, barrier_s=6e-6) == 1


def test_littles_law() -> None:
    """Blocks of 1024 threads with 64 bytes each on their way: 128 of them saturate 4.8 TB/s, 4 do not."""
    work = Work(256e6, 256, 1024, 64)
    assert work.seconds(128, 4.8e12) == pytest.approx(256e6 / 4.8e12)
    rate = 4 * 1024 * 64 / 0.6e-6
    assert work.seconds(4, 4.8e12) == pytest.approx(256e6 / rate)
    tail = 56e6 / 4.8e12 + 200e6 / 4.8e12
    assert work.seconds(200, 4.8e12) == pytest.approx(tail)


# --- who joins whom ------------------------------------------------------------------------------------

APART = """op f(x: f32[N], w: f32[M]) -> (y: f32[N], z: f32[M]) {
  s = sum[n](x[n] * x[n])
  y[n] = x[n] / s
  t = sum[m](abs(w[m]))
  z[m] = w[m] / t
}"""


@pytest.mark.parametrize("target", [GpuTarget(), V100, 2])
def test_kernels_without_a_dependence_are_not_joined(target: Target | int) -> None:
    """Two chains of three stages each, whatever the order they are written in."""
    kernels = kernels_of(APART, target, None, N=1 << 20, M=1 << 21).kernels
    together = [{b.tensor for b in k.arguments} & {"x", "w"} for k in kernels]
    assert sorted(map(sorted, together)) == [["w"], ["x"]]
    refused = [d for d in decisions_of(APART, target, None, N=1 << 20, M=1 << 21) if d.startswith("-")]
    assert refused and all("a barrier would only make it wait" in d for d in refused)


def test_forced_barriers_join_all() -> None:
    (kernel,) = kernels_of(APART, GpuTarget(), True, N=1 << 20, M=1 << 21).kernels
    assert len(kernel.parts) == 6


BOTH = """op f(x: f32[N], w: f32[M]) -> (y: f32[N]) {
  s = sum[n](x[n] * x[n])
  t = sum[m](abs(w[m]))
  y[n] = x[n] / s + t
}"""


def test_what_one_needs_of_several_is_joined_with_it() -> None:
    """The two sums do not depend on each other, and there is no barrier between them."""
    kernels = kernels_of(BOTH, GpuTarget(), None, N=1 << 20, M=1 << 21)
    (kernel,) = kernels.kernels
    waits = emit_cuda(Request(kernels)).source.count("pf_grid_barrier(grid_state)")
    assert waits < len(kernel.parts) - 1


# --- what cannot be resident ---------------------------------------------------------------------------

LONG_ROWS = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  m = max[t, h](x[t, h])
  a[t] = sum[h](x[t, h] * m)
  y[t, h] = x[t, h] - a[t] * m
}"""


@pytest.mark.parametrize(
    "change",
    [
        {"resident_threads": 32},  # no multiprocessor holds a block of 64
        {"registers": 64 * 32},  # nor has it registers for one
    ],
)
@pytest.mark.parametrize("barriers", [True, None])
def test_blocks_that_no_multiprocessor_holds_are_not_joined(
    change: dict[str, int], barriers: bool | None
) -> None:
    tiny = replace(SMALL, **change)  # type: ignore[arg-type]
    assert len(kernels_of(BACKWARD, tiny, barriers, T=70, H=64).kernels) > 1
    refused = decisions_of(BACKWARD, tiny, barriers, T=70, H=64)
    assert any("does not hold a block of 64 threads for sure" in d for d in refused)


@pytest.mark.parametrize("barriers", [True, None])
def test_blocks_with_too_much_shared_memory_are_not_joined(barriers: bool | None) -> None:
    """A row of 100 kB in shared memory is more than every multiprocessor of the table has; 80 kB are not."""
    huge = GpuTarget(shared_bytes=256 * 1024, keep="shared")
    found = kernels_of(LONG_ROWS, huge, barriers, T=1024, H=25001)
    shared = [sum(b.scope is Scope.SHARED for b in k.buffers) for k in found.kernels]
    assert sum(shared) == 1 and not any(k.parts for k, n in zip(found.kernels, shared, strict=True) if n)
    (refused, _) = decisions_of(LONG_ROWS, huge, barriers, T=1024, H=25001)
    assert "does not hold a block of 896 threads for sure" in refused
    (kernel,) = kernels_of(LONG_ROWS, huge, barriers, T=1024, H=20001).kernels
    assert len(kernel.parts) == 3 and any(b.scope is Scope.SHARED for b in kernel.buffers)


# --- a CPU -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text,sizes", [(BACKWARD, {"T": 700, "H": 64}), (TOTALS, {"T": 90, "H": 41, "K": 30001})]
)
def test_a_region_of_a_cpu_has_its_kernels_as_stages(text: str, sizes: dict[str, int]) -> None:
    """The code is that of the kernels apart; one kernel has it all, and says where its workers wait."""
    joined, apart = (kernels_of(text, 2, b, **sizes) for b in (None, False))
    (kernel,) = joined.kernels
    assert len(kernel.stages) == len(kernel.parts) == len(apart.kernels) > 1
    one, several = emit(joined), emit(apart)
    assert one.source == several.source
    assert {x.kernel for x in one.plan.launches} == {kernel.name}
    assert [x.function for x in one.plan.launches] == [x.function for x in several.plan.launches]
    assert one.plan.scratch_bytes == several.plan.scratch_bytes
    (said,) = decisions_of(text, 2, None, **sizes)
    assert said.startswith("+ region k0, k1") and "parts of one region" in said


@pytest.mark.parametrize("text,sizes", CASES)
def test_regions_of_a_cpu_agree(text: str, sizes: dict[str, int]) -> None:
    check_everywhere([call_of(text, sizes)])
