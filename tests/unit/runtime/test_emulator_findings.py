"""Planted bugs in CUDA kernels are found by the emulator, with the place; what is ordered is not reported."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from emulated import Array, buffer, code, emulate, launch, source

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.diagnostics import EmulationError
from polyfuse.ir.launch_plan import GridLaunch, GridPlan, Kind
from polyfuse.runtime.emulator import engine
from polyfuse.runtime.emulator.emulator import EmulatedKernels

WRONG = source(
    ["pf_warp_sum_f32", "pf_atomic_max_f32"],
    r"""
extern "C" __global__ void __launch_bounds__(256) no_barrier_before_the_read(
    PF_IN(float) b_x, PF_OUT(float) b_y) {
  PF_SHARED(float, red0, 8);
  const int tx = threadIdx.x;
  float acc = pf_warp_sum_f32(b_x[tx], 32);
  if (tx % 32 == 0) red0[tx / 32] = acc;
  acc = pf_warp_sum_f32(red0[tx % 8], 8);
  if (tx == 0) b_y[0] = acc;
}
extern "C" __global__ void __launch_bounds__(256) no_barrier_after_the_read(
    PF_IN(float) b_x, PF_OUT(float) b_y) {
  PF_SHARED(float, red0, 8);
  const int tx = threadIdx.x;
  for (int row = 0; row < 3; ++row) {
    float acc = pf_warp_sum_f32(b_x[row * 256 + tx], 32);
    if (tx % 32 == 0) red0[tx / 32] = acc;
    __syncthreads();
    acc = pf_warp_sum_f32(red0[tx % 8], 8);
    if (tx == 0) b_y[row] = acc;
  }
}
extern "C" __global__ void __launch_bounds__(32) no_order_in_the_warp(PF_OUT(float) b_y) {
  PF_SHARED(float, s, 32);
  const int tx = threadIdx.x;
  s[tx] = 1.0f;
  b_y[tx] = s[31 - tx];
}
extern "C" __global__ void __launch_bounds__(32) another_group_of_the_warp(PF_OUT(float) b_y) {
  PF_SHARED(float, s, 32);
  const int tx = threadIdx.x;
  s[tx] = 1.0f;
  __syncwarp(tx < 16 ? 0xffffu : 0xffff0000u);
  b_y[tx] = s[31 - tx];
}
extern "C" __global__ void __launch_bounds__(64) same_value(PF_OUT(float) b_y) {
  PF_SHARED(float, s, 1);
  s[0] = 1.0f;
  __syncthreads();
  b_y[threadIdx.x] = s[0];
}
extern "C" __global__ void __launch_bounds__(32) across_blocks(PF_OUT(float) b_y) {
  b_y[(blockIdx.x + threadIdx.x) % 64] = 1.0f;
}
extern "C" __global__ void __launch_bounds__(32) reads_across_blocks(PF_OUT(float) b_t, PF_OUT(float) b_y) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  b_t[i] = 1.0f;
  __syncthreads();  // not enough
  b_y[i] = b_t[(i + 32) % 64];
}
extern "C" __global__ void __launch_bounds__(32) atomic_and_plain(PF_OUT(float) b_y) {
  if (threadIdx.x == 0) b_y[0] = 0.0f;
  pf_atomic_max_f32(&b_y[0], -1.0f);  // changes nothing, and is an access all the same
}
extern "C" __global__ void __launch_bounds__(64) unwritten_shared(PF_OUT(float) b_y) {
  PF_SHARED(float, s, 64);
  const int tx = threadIdx.x;
  if (tx != 5) s[tx] = 1.0f;
  __syncthreads();
  b_y[tx] = s[63 - tx];
}
extern "C" __global__ void __launch_bounds__(32) unwritten_global(PF_OUT(float) b_y) {
  if (threadIdx.x == 3) b_y[3] += 1.0f;
}
extern "C" __global__ void __launch_bounds__(32) unwritten_atomic(PF_OUT(float) b_y) {
  atomicAdd(&b_y[7], 1.0f);
}
extern "C" __global__ void __launch_bounds__(32) copy(PF_IN(float) b_t, PF_OUT(float) b_y) {
  b_y[threadIdx.x] = b_t[threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(32) fill(PF_OUT(float) b_t, const pf_i64 N_n) {
  if (threadIdx.x < N_n) b_t[threadIdx.x] = threadIdx.x;
}
extern "C" __global__ void __launch_bounds__(32) at(
    PF_IN(float) b_x, PF_OUT(float) b_y, const pf_i64 N_i, const pf_i64 N_how) {
  PF_SHARED(float, s, 16);
  if (threadIdx.x) return;
  if (N_how == 0) b_y[0] = b_x[N_i];
  if (N_how == 1) b_y[N_i] = 1.0f;
  if (N_how == 2) s[N_i] = 1.0f;
  if (N_how == 3) b_y[0] = pf_load<4>(b_x, N_i)[0];
  if (N_how == 4) pf_store<4>(b_y, N_i, pf_load<4>(b_x, 0));
  if (N_how == 5) atomicAdd(&s[N_i], 1.0f);
}
extern "C" __global__ void __launch_bounds__(64) divergent_barrier(PF_OUT(float) b_y) {
  if (threadIdx.x < 32) __syncthreads();
  b_y[threadIdx.x] = 1.0f;
}
extern "C" __global__ void __launch_bounds__(64) two_barriers(PF_OUT(float) b_y) {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
  b_y[threadIdx.x] = 1.0f;
}
extern "C" __global__ void __launch_bounds__(64) barrier_and_shuffle(PF_OUT(float) b_y) {
  float v = 1.0f;
  if (threadIdx.x == 40) __syncthreads();
  v = pf_warp_sum_f32(v, 32);
  b_y[threadIdx.x] = v;
}
extern "C" __global__ void __launch_bounds__(32) ended_lane(PF_OUT(float) b_y) {
  if (threadIdx.x == 9) return;
  b_y[threadIdx.x] = pf_warp_sum_f32(1.0f, 32);
}
extern "C" __global__ void __launch_bounds__(100) short_warp(PF_OUT(float) b_y) {
  b_y[threadIdx.x] = pf_warp_sum_f32(1.0f, 32);
}
extern "C" __global__ void __launch_bounds__(32) not_in_its_mask(PF_OUT(float) b_y) {
  b_y[threadIdx.x] = __shfl_xor_sync(0xfffffffeu, 1.0f, 2);
}
extern "C" __global__ void __launch_bounds__(32) reads_out_of_its_mask(PF_OUT(float) b_y) {
  b_y[threadIdx.x] = __shfl_xor_sync(threadIdx.x < 16 ? 0xffffu : 0xffff0000u, 1.0f, 16);
}
extern "C" __global__ void __launch_bounds__(32) two_shuffles(PF_OUT(float) b_y) {
  float v = 1.0f;
  if (threadIdx.x < 16)
    v = __shfl_xor_sync(0xffffffffu, v, 1);
  else
    v = __shfl_xor_sync(0xffffffffu, v, 1);
  b_y[threadIdx.x] = v;
}
extern "C" __global__ void __launch_bounds__(32) grid(
    PF_OUT(float) b_y, pf_u32* const grid_state, const pf_i64 N_stop) {
  if (blockIdx.x >= N_stop) return;
  b_y[blockIdx.x * 32 + threadIdx.x] = 1.0f;
  pf_grid_barrier(grid_state);
}
extern "C" __global__ void __launch_bounds__(32) for_ever(PF_OUT(float) b_y, const pf_i64 N_step) {
  volatile pf_i64 i = 0;
  for (; i < 32; i = i + N_step) { }
  b_y[threadIdx.x] = i;
}
extern "C" __global__ void __launch_bounds__(64) for_ever_in_a_wait(PF_OUT(float) b_y) {
  __syncthreads();
  for (volatile int i = 0; threadIdx.x == 50; ) { i = 0; }
  __syncthreads();
  b_y[threadIdx.x] = 1.0f;
}
#define HIDDEN (20000 * 4)
extern "C" __global__ void __launch_bounds__(32) deep(PF_OUT(float) b_y) {
  volatile char b_t[HIDDEN];
  for (int i = 0; i < HIDDEN; ++i) b_t[i] = i;
  b_y[threadIdx.x] = b_t[threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(64) in_order(
    PF_IN(float) b_x, PF_OUT(float) b_t, PF_OUT(float) b_y) {
  PF_SHARED(float, s, 64);
  const int tx = threadIdx.x, i = blockIdx.x * 64 + tx;
  const unsigned group = 0xffu << (tx % 32 / 8 * 8);
  s[tx] = b_x[i];
  __syncwarp(group);
  float v = s[tx ^ 7];
  __shfl_xor_sync(group, v, 4);
  s[tx ^ 3] = v;               // read by others before the shuffle
  v = __shfl_xor_sync(0xffffffffu, v, 16);
  v += s[tx ^ 31];             // through two groups
  b_t[i] = v;
  atomicAdd(&b_y[0], 1.0f);
  __syncthreads();
  v = b_t[blockIdx.x * 64 + 63 - tx];
  s[63 - tx] = v;
  __syncthreads();
  b_t[i] = s[tx];
}
""",
)


def zeros(n: int) -> Array:
    return np.zeros(n, np.float32)


def found(run: Callable[[], object]) -> EmulationError:
    with pytest.raises(EmulationError) as e:
        run()
    return e.value


def run_wrong(one: GridLaunch, n: int, seed: int = 0, **options: object) -> EmulationError:
    """What a launch with one output y of n elements raises."""
    return found(lambda: emulate(WRONG, one, {}, {"y": zeros(n)}, seed=seed, **options))


# --- races ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["no_barrier_before_the_read", "no_barrier_after_the_read"])
def test_missing_barrier(kernel: str) -> None:
    x = np.ones(3 * 256, np.float32)

    def seeds() -> list[int]:
        hits = []
        for seed in range(32):
            try:
                emulate(WRONG, launch(kernel, "x y", 1, 256, 32), {"x": x}, {"y": zeros(3)}, seed=seed)
            except EmulationError as e:
                assert {d.code for d in e.diagnostics} <= {"PF730", "PF731"}
                hits += [seed] * any("race" in d.message for d in e.diagnostics)
        return hits

    assert len(seeds()) >= 8


def test_a_race_names_the_place() -> None:
    error = run_wrong(launch("no_order_in_the_warp", "y", 1, 32, 128), 32)
    race = next(d for d in error.diagnostics if d.code == "PF730")
    assert race.message.startswith("no_order_in_the_warp: race: thread ")
    assert " of block 0 " in race.message and " s[" in race.message
    assert "with no barrier in between" in race.message


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (launch("another_group_of_the_warp", "y", 1, 32, 128), "reads s["),
        (launch("same_value", "y", 1, 64, 4), "writes s[0], which"),
        (launch("across_blocks", "y", 2), "writes y["),
        (launch("reads_across_blocks", "t y", 2), "t["),
        (launch("atomic_and_plain", "y"), "y[0]"),
    ],
    ids=lambda x: x.function if isinstance(x, GridLaunch) else "",
)
def test_races(one: GridLaunch, text: str) -> None:
    outputs = {"y": zeros(64)} | ({"t": zeros(64)} if "t" in [a.name for a in one.arguments] else {})
    for seed in range(4):
        error = found(lambda seed=seed: emulate(WRONG, one, {}, outputs, seed=seed))
        assert any(d.code == "PF730" and text in d.message for d in error.diagnostics)


def test_a_race_through_two_buffers_on_the_same_memory() -> None:
    base = np.arange(40, dtype=np.float32)
    t, y = base[:32], base[1:33]
    error = found(lambda: emulate(WRONG, launch("copy", "t y"), {"t": t}, {"y": y}))
    assert {d.code for d in error.diagnostics} == {"PF730"}


def test_a_race_across_blocks_names_both() -> None:
    message = run_wrong(launch("across_blocks", "y", 2), 64).diagnostics[0].message
    assert "of block 0" in message and "of block 1" in message
    assert "with no grid barrier in between" in message


@pytest.mark.parametrize("seed", range(8))
def test_what_is_ordered_is_no_race(seed: int) -> None:
    x, y, t = np.arange(192, dtype=np.float32), zeros(1), zeros(192)
    plan = GridPlan(
        (buffer("x", x, Kind.INPUT), buffer("t", t, Kind.OUTPUT), buffer("y", y, Kind.INOUT)),
        (launch("in_order", "x t y", 3, 64, 256), launch("in_order", "x t y", 3, 64, 256)),
    )
    EmulatedKernels(CudaCode(WRONG, plan, ()), seed=seed).run({"x": x, "y": y, "t": t})
    assert y[0] == 384


# --- values that nobody wrote ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (launch("unwritten_shared", "y", 2, 64, 256), "thread 58 of block "),
        (launch("unwritten_shared", "y", 2, 64, 256), "reads s[5], which nothing has written"),
        (launch("unwritten_global", "y"), "reads y[3], which nothing has written"),
        (launch("unwritten_atomic", "y"), "updates (atomic) y[7], which nothing has written"),
    ],
    ids=lambda x: x.function if isinstance(x, GridLaunch) else "",
)
def test_unwritten(one: GridLaunch, text: str) -> None:
    error = run_wrong(one, 64)
    assert {d.code for d in error.diagnostics} <= {"PF730", "PF731"}
    assert any(d.code == "PF731" and text in d.message for d in error.diagnostics)


def test_workspace_must_be_written_first() -> None:
    def run(n: int) -> None:
        both = (launch("fill", "t #n"), launch("copy", "t y"))
        emulate(WRONG, both, {}, {"y": y}, workspace={"t": y}, sizes={"n": n})

    y = zeros(32)
    run(32)
    assert np.array_equal(y, np.arange(32))
    error = found(lambda: run(30))
    assert [d.code for d in error.diagnostics] == ["PF731"] * 2
    assert "copy: " in error.diagnostics[0].message


def test_values_at_entry_may_be_read() -> None:
    y = zeros(32)
    plan = GridPlan((buffer("y", y, Kind.INOUT),), (launch("unwritten_global", "y"),))
    EmulatedKernels(CudaCode(WRONG, plan, ())).run({"y": y})
    assert y[3] == 1


# --- places that do not exist ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "index", "text"),
    [
        (0, 8, "reads x[8], out of the range 0..7"),
        (0, -1, "reads x[-1], out of"),
        (1, 8, "writes y[8], out of"),
        (2, 16, "writes s[16], out of the range 0..15"),
        (3, 8, "reads x[8], out of"),
        (4, -4, "writes y[-4], out of"),
        (5, 1 << 40, "updates (atomic) s[1099511627776], out of"),
    ],
)
def test_out_of_bounds(how: int, index: int, text: str) -> None:
    x, y = np.ones(8, np.float32), zeros(8)
    one = launch("at", "x y #i #how", 1, 32, 64)
    error = found(
        lambda: emulate(WRONG, one, {"x": x}, {"y": y}, sizes={"i": index, "how": how}, alignment=16)
    )
    assert [d.code for d in error.diagnostics] == ["PF732"]
    assert text in error.diagnostics[0].message


@pytest.mark.parametrize(("how", "index", "alignment"), [(3, 2, 16), (4, 1, 16), (3, 0, 8), (3, 4, 0)])
def test_misaligned_vector(how: int, index: int, alignment: int) -> None:
    x, y = np.ones(8, np.float32), zeros(8)
    one = launch("at", "x y #i #how", 1, 32, 64)
    error = found(
        lambda: emulate(WRONG, one, {"x": x}, {"y": y}, sizes={"i": index, "how": how}, alignment=alignment)
    )
    assert {d.code for d in error.diagnostics} == {"PF733"}
    assert "a vector of 16 bytes at " in error.diagnostics[0].message


# --- threads that wait for ever -------------------------------------------------------------------------


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("one", "text"),
    [
        (launch("divergent_barrier", "y", 1, 64), "(of 64 threads: 32 at a block barrier, 32 ended)"),
        (launch("two_barriers", "y", 1, 64), "waits at a block barrier in line "),
        (launch("barrier_and_shuffle", "y", 1, 64), "thread 40 of block 0 waits at a block barrier"),
        (launch("ended_lane", "y"), "thread 9 of block 0 has ended"),
        (
            launch("short_warp", "y", 1, 100),
            "for the lanes 0xffffffff, which names a lane that does not exist",
        ),
        (launch("not_in_its_mask", "y"), "leaves out the lane itself"),
        (launch("reads_out_of_its_mask", "y"), "leaves out the lane itself or the one it reads"),
        (launch("two_shuffles", "y"), "waits at a shuffle in line "),
    ],
    ids=lambda x: x.function if isinstance(x, GridLaunch) else "",
)
def test_divergence(one: GridLaunch, text: str, check: bool) -> None:
    for order in ("forward", "reverse", "random"):
        error = run_wrong(one, 128, order=order, check=check)
        assert [d.code for d in error.diagnostics if d.code != "PF730"] == ["PF734"]
        assert text in str(error)


def test_a_line_of_the_emitted_source_is_named() -> None:
    error = run_wrong(launch("divergent_barrier", "y", 1, 64), 64)
    line = WRONG.split("\n").index("  if (threadIdx.x < 32) __syncthreads();") + 1
    assert f"in line {line} of {engine.NAME}" in str(error)


def test_grid_barrier_without_all_blocks_resident() -> None:
    start = time.perf_counter()
    one = launch("grid", "y grid #stop", 8, cooperative=True)
    error = run_wrong(one, 256, sizes={"stop": 8}, resident=7)
    assert time.perf_counter() - start < 30, "it waited for the limit of time"
    assert [d.code for d in error.diagnostics] == ["PF735"]
    assert "7 of 8 blocks are resident" in str(error)


def test_grid_barrier_in_an_ordinary_launch() -> None:
    error = run_wrong(launch("grid", "y grid #stop", 8), 256, sizes={"stop": 8})
    assert [d.code for d in error.diagnostics] == ["PF735"]
    assert "not cooperative" in str(error)


def test_grid_barrier_that_some_blocks_never_reach() -> None:
    one = launch("grid", "y grid #stop", 8, cooperative=True)
    error = run_wrong(one, 256, sizes={"stop": 5})
    assert [d.code for d in error.diagnostics] == ["PF734"]
    assert "5 of 8 blocks wait at the grid barrier" in str(error)


@pytest.mark.skipif(sys.platform != "linux", reason="no timer for one thread")
@pytest.mark.parametrize("one", [launch("for_ever", "y #step"), launch("for_ever_in_a_wait", "y", 1, 64)])
def test_endless_loop(one: GridLaunch) -> None:
    start = time.perf_counter()
    error = run_wrong(one, 64, sizes={"step": 0}, time_out_s=0.05)
    assert time.perf_counter() - start < 30
    assert [d.code for d in error.diagnostics] == ["PF736"]


# --- what else ------------------------------------------------------------------------------------------


def test_private_arrays_that_are_too_large() -> None:
    error = run_wrong(launch("deep", "y"), 32)
    assert [d.code for d in error.diagnostics] == ["PF738"]


def test_shared_memory_beyond_the_plan() -> None:
    error = run_wrong(launch("unwritten_shared", "y", 1, 64, 255), 64)
    assert "a block declares 256 bytes of shared memory, the plan says 255" in str(error)
    assert "PF739" in [d.code for d in error.diagnostics]


def test_few_findings_of_a_kind_are_kept() -> None:
    made = code(WRONG, launch("across_blocks", "y", 60), {}, {"y": zeros(64)})
    kernels = EmulatedKernels(made)
    found(lambda: kernels.run({"y": zeros(64)}))
    assert len(kernels.report.findings) < 5 < kernels.report.total
    first = kernels.report.findings[0]
    assert (first.code, first.launch, first.function, first.array) == ("PF730", 0, "across_blocks", "y")


def test_the_engine_goes_on_after_a_failure() -> None:
    run_wrong(launch("divergent_barrier", "y", 1, 64), 64)
    y = zeros(32)
    emulate(WRONG, launch("fill", "y #n"), {}, {"y": y}, sizes={"n": 32})
    assert np.array_equal(y, np.arange(32))


def test_no_process_is_started_for_a_second_run() -> None:
    """One library for each source, however many codes share it."""
    y = zeros(32)
    emulate(WRONG, launch("fill", "y #n"), {}, {"y": y}, sizes={"n": 32})
    real = subprocess.Popen.__init__

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    subprocess.Popen.__init__ = refuse  # type: ignore[method-assign]
    try:
        emulate(WRONG, launch("copy", "x y"), {"x": y}, {"y": zeros(32)})
    finally:
        subprocess.Popen.__init__ = real  # type: ignore[method-assign]
