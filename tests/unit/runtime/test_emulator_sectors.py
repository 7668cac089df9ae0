"""Sectors that warps touch, counted by the emulator: kernels whose counts a hand can check."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import SOME_ORDERS, Array, buffer, emulate, launch, source

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.ir.launch_plan import GridPlan, Kind
from polyfuse.runtime.emulator import engine
from polyfuse.runtime.emulator.emulator import EmulatedKernels, Order

COPY = """
extern "C" __global__ void __launch_bounds__(128) copy_{0}(PF_IN({1}) b_x, PF_OUT({1}) b_y) {{
  const int i = blockIdx.x * 128 + threadIdx.x;
  b_y[i] = b_x[i];
}}"""
ELEMENTS = {"f2": "pf_f16", "f4": "float", "f8": "double"}
KERNELS = source(
    ["pf_warp_sum_f32"],
    "\n".join(COPY.format(*each) for each in ELEMENTS.items())
    + r"""
extern "C" __global__ void __launch_bounds__(64) shifted(PF_IN(float) b_x, PF_OUT(float) b_y) {
  b_y[threadIdx.x] = b_x[threadIdx.x + 1];
}
extern "C" __global__ void __launch_bounds__(64) strided(PF_IN(float) b_x, PF_OUT(float) b_y,
                                                                   const pf_i64 N_step) {
  b_y[threadIdx.x] = b_x[threadIdx.x * N_step];
}
extern "C" __global__ void __launch_bounds__(256) transposed(PF_IN(float) b_x, PF_OUT(float) b_y) {
  const int tx = threadIdx.x, ty = threadIdx.y;
  b_y[tx * 64 + ty] = b_x[ty * 32 + tx];
}
extern "C" __global__ void __launch_bounds__(256) turned_around(PF_IN(float) b_x, PF_OUT(float) b_y) {
  PF_SHARED(float, s, 1056);
  const int tx = threadIdx.x, ty = threadIdx.y;
  for (int k = 0; k < 32; k += 8) s[(ty + k) * 33 + tx] = b_x[(ty + k) * 32 + tx];
  __syncthreads();
  for (int k = 0; k < 32; k += 8) b_y[(ty + k) * 32 + tx] = s[tx * 33 + ty + k];
}
extern "C" __global__ void __launch_bounds__(64) broadcast(PF_IN(float) b_x, PF_OUT(float) b_y) {
  b_y[threadIdx.x] = b_x[5];
}
extern "C" __global__ void __launch_bounds__(64) vectors(PF_IN(float) b_x, PF_OUT(float) b_y) {
  pf_store<4>(b_y, threadIdx.x * 4, pf_load<4>(b_x, threadIdx.x * 4));
}
extern "C" __global__ void __launch_bounds__(64) twice(PF_IN(float) b_x, PF_OUT(float) b_y) {
  b_y[threadIdx.x] = b_x[threadIdx.x] + 1.0f;
  b_y[threadIdx.x] += b_x[threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(32) short_rows(PF_IN(float) b_x, PF_OUT(float) b_y) {
  for (int row = 0; row < 6; ++row)
    for (int i = threadIdx.x; i < 40; i += 32) b_y[row * 40 + i] = b_x[row * 40 + i];
}
static __device__ __attribute__((noinline)) void part(const int rows, PF_IN(float) b_x, PF_OUT(float) b_y) {
  for (int row = 0; row < rows; ++row)
    for (int i = threadIdx.x; i < 40; i += 32) b_y[row * 40 + i] = b_x[row * 40 + i];
}
extern "C" __global__ void __launch_bounds__(32) in_parts(PF_IN(float) b_x, PF_OUT(float) b_y) {
  if (blockIdx.x == 1) part(6, b_x, b_y);
}
extern "C" __global__ void __launch_bounds__(32) some_rows(PF_IN(float) b_x, PF_OUT(float) b_y) {
  for (int row = 0; row < 6; ++row) {
    if (row % 2 == 1 && threadIdx.x < 8) continue;
    for (int k = 0; k < 8; ++k) {
      if (k == 2) break;
      b_y[(row * 8 + k) * 32 + threadIdx.x] = b_x[(row * 8 + k) * 32 + threadIdx.x];
    }
  }
}
extern "C" __global__ void __launch_bounds__(64) shifted_twice(PF_IN(float) b_x, PF_OUT(float) b_y) {
  b_y[blockIdx.x * 64 + threadIdx.x] = b_x[threadIdx.x] + b_x[63 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(64) row_sums(PF_IN(float) b_x, PF_OUT(float) b_y) {
  for (int row = threadIdx.x / 32; row < 4; row += 2) {
    float acc = 0.0f;
    for (int i = threadIdx.x % 32; i < 40; i += 32) acc += b_x[row * 40 + i];
    acc = pf_warp_sum_f32(acc, 32);
    if (threadIdx.x % 32 == 0) b_y[row] = acc;
  }
}
extern "C" __global__ void __launch_bounds__(32) atomic(PF_IN(float) b_x, PF_OUT(float) b_y) {
  atomicAdd(&b_y[threadIdx.x % 16], b_x[threadIdx.x]);
}
extern "C" __global__ void __launch_bounds__(64) phases(
    PF_IN(float) b_x, PF_OUT(float) b_t, PF_OUT(float) b_y, pf_u32* const grid_state) {
  for (int k = 0; k < 2; ++k) {
    b_t[blockIdx.x * 64 + threadIdx.x] = b_x[blockIdx.x * 64 + threadIdx.x];
    pf_grid_barrier(grid_state);
    b_y[blockIdx.x * 64 + threadIdx.x] = b_t[(1 - blockIdx.x) * 64 + 63 - threadIdx.x];
    pf_grid_barrier(grid_state);
  }
}
""",
)


def filled(n: int, dtype: str = "f4") -> Array:
    return np.arange(n).astype(dtype)


def counted(
    function: str,
    x: Array,
    y: Array,
    blocks: int = 1,
    threads: int | tuple[int, int] = 64,
    arguments: str = "x y",
    shared: int = 0,
    order: Order = "random",
    **sizes: int,
) -> tuple[int, int]:
    """Sectors of x that are loaded, and of y that are stored; there are no others."""
    one = launch(function, arguments, blocks, threads, shared)
    ran = emulate(KERNELS, one, {"x": x}, {"y": y}, sizes=sizes, sectors=True, order=order)
    found = {s.buffer: (s.loads, s.stores) for s in ran.report.sectors}
    assert found["x"][1] == found["y"][0] == 0
    assert ran.report.transactions == found["x"][0] + found["y"][1]
    return found["x"][0], found["y"][1]


@pytest.mark.parametrize(("dtype", "size"), [("f2", 2), ("f4", 4), ("f8", 8)])
def test_a_copy_touches_each_sector_once_each_way(dtype: str, size: int) -> None:
    x, y = filled(1024, dtype), np.zeros(1024, dtype)
    assert counted(f"copy_{dtype}", x, y, 8, 128) == (1024 * size // 32, 1024 * size // 32)
    assert np.array_equal(x, y)


@pytest.mark.parametrize(("order", "seed"), SOME_ORDERS)
def test_no_order_of_threads_changes_what_is_counted(order: Order, seed: int) -> None:
    x, y = filled(240), np.zeros(240, "f4")
    ran = emulate(
        KERNELS, launch("short_rows", "x y"), {"x": x}, {"y": y}, sectors=True, order=order, seed=seed
    )
    # 40 elements of 4 bytes are 5 sectors: 4 of the first 32 lanes, 1 of the other 8.
    assert [(s.loads, s.stores) for s in ran.report.sectors] == [(30, 0), (0, 30)]


def test_loops_of_functions_that_a_kernel_calls() -> None:
    assert counted("in_parts", filled(240), np.zeros(240, "f4"), 2, 32) == (30, 30)


def test_where_kernels_begin() -> None:
    names = ["pf_warp_sum_f32", "pf_power_f32"]
    part = "static __device__ __attribute__((noinline)) void pf_part() {}"
    kernel = 'extern "C" __global__ void pf_k() {}'
    for body in (f"{part}\n{kernel}\n", f"{kernel}\n"):
        text = engine.translation_unit(source(names, body), check=True, sectors=True)
        before, _, after = text.rpartition("#define for PF_EMU_FOR\n")
        assert "pf_warp_sum_f32" in before and after.splitlines()[1] == body.splitlines()[0]


def test_what_straddles_a_sector() -> None:
    assert counted("shifted", filled(65), np.zeros(64, "f4")) == (10, 8)


@pytest.mark.parametrize(("step", "loads"), [(1, 8), (2, 16), (3, 24), (8, 64), (100, 64)])
def test_strided_loads(step: int, loads: int) -> None:
    assert counted("strided", filled(6400), np.zeros(64, "f4"), arguments="x y #step", step=step) == (
        loads,
        8,
    )


def test_a_transposed_store_has_a_sector_for_each_lane() -> None:
    x, y = filled(256), np.zeros(2048, "f4")
    assert counted("transposed", x, y, 1, (32, 8)) == (8 * 4, 8 * 32)


def test_shared_memory_is_not_counted() -> None:
    x, y = filled(1024), np.zeros(1024, "f4")
    assert counted("turned_around", x, y, 1, (32, 8), shared=4224) == (128, 128)
    assert np.array_equal(y.reshape(32, 32), x.reshape(32, 32).T)


def test_a_broadcast_is_one_sector_of_each_warp() -> None:
    assert counted("broadcast", filled(64), np.zeros(64, "f4")) == (2, 8)


def test_vectors_of_a_lane() -> None:
    x, y = filled(256), np.zeros(256, "f4")
    ran = emulate(KERNELS, launch("vectors", "x y", 1, 64), {"x": x}, {"y": y}, alignment=16, sectors=True)
    assert [(s.loads, s.stores) for s in ran.report.sectors] == [(32, 0), (0, 32)]


def test_each_access_of_the_source_counts() -> None:
    ran = emulate(
        KERNELS, launch("twice", "x y", 1, 64), {"x": filled(64)}, {"y": np.zeros(64, "f4")}, sectors=True
    )
    assert [(s.loads, s.stores) for s in ran.report.sectors] == [(16, 0), (8, 16)]


def test_lanes_that_leave_out_iterations_meet_the_others_again() -> None:
    x, y = filled(6 * 256), np.zeros(6 * 256, "f4")
    # two accesses of a row: 4 sectors in rows of all lanes, 3 in those of 24 lanes
    assert counted("some_rows", x, y, 1, 32) == (2 * (3 * 4 + 3 * 3),) * 2


def test_lanes_with_fewer_iterations_wait_at_the_end_of_the_loop() -> None:
    assert counted("row_sums", filled(160), np.zeros(4, "f4")) == (20, 4)


def test_a_block_fetches_a_sector_once() -> None:
    one = launch("shifted_twice", "x y", 2, 64)
    ran = emulate(KERNELS, one, {"x": filled(64)}, {"y": np.zeros(128, "f4")}, sectors=True)
    # each warp touches 4 sectors twice; each block loads all 8 of x
    assert [(s.loads, s.fetched, s.stores) for s in ran.report.sectors] == [(32, 16, 0), (0, 0, 16)]


def test_an_atomic_update_is_a_store() -> None:
    x, y = filled(32), np.zeros(16, "f4")
    plan = GridPlan(
        (buffer("x", x, Kind.INPUT), buffer("y", y, Kind.INOUT)), (launch("atomic", "x y", 1, 32),)
    )
    ran = EmulatedKernels(CudaCode(KERNELS, plan, ()), sectors=True)
    ran.run({"x": x, "y": y})
    assert [(s.buffer, s.loads, s.stores) for s in ran.report.sectors] == [("x", 4, 0), ("y", 0, 2)]


def test_launches_and_phases_are_counted_apart() -> None:
    x, y, t = filled(128), np.zeros(128, "f4"), np.zeros(128, "f4")
    one = launch("phases", "x t y grid", 2, 64, cooperative=True)
    ran = emulate(KERNELS, (one, one), {"x": x}, {"y": y}, workspace={"t": t}, sectors=True)
    found = [(s.launch, s.buffer, s.loads, s.fetched, s.stores) for s in ran.report.sectors]
    # after a barrier of the grid nothing that was loaded before is still valid
    each = [("x", 32, 32, 0), ("y", 0, 0, 32), ("t", 32, 32, 32)]
    assert found == [(n, *e) for n in (0, 1) for e in each]


def test_nothing_is_counted_unasked() -> None:
    ran: EmulatedKernels = emulate(
        KERNELS, launch("copy_f4", "x y", 1, 128), {"x": filled(128)}, {"y": np.zeros(128, "f4")}
    )
    assert ran.report.sectors == () and ran.report.transactions == 0
