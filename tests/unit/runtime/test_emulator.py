"""Correct CUDA kernels on the emulator give the right numbers, in every order and without a finding."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from emulated import SOME_ORDERS, Array, buffer, code, emulate, launch, source

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.diagnostics import ArgumentError, EmulationError
from polyfuse.ir.dtypes import ALL, QUARTERS, DType
from polyfuse.ir.launch_plan import GridPlan, Kind
from polyfuse.runtime.emulator import engine
from polyfuse.runtime.emulator import engine as emulator_source
from polyfuse.runtime.emulator.emulator import EmulatedKernels, Order
from polyfuse.source import SourceText, Span

CORRECT = source(
    [
        "pf_warp_sum_f32",
        "pf_warp_max_i64",
        "pf_warp_min_u8",
        "pf_exp_f32",
        "pf_f32_from_f16",
        "pf_f16_from_f32",
    ],
    r"""
extern "C" __global__ void __launch_bounds__(256) scale(
    PF_IN(float) b_x, PF_OUT(float) b_y, const float v_lr, const pf_i64 N_n) {
  const int tx = threadIdx.x;
  for (pf_i64 i = blockIdx.x * 256 + tx; i < N_n; i += gridDim.x * 256) b_y[i] = b_x[i] * v_lr;
}
extern "C" __global__ void __launch_bounds__(64) vectors(PF_IN(float) b_x, PF_OUT(float) b_y) {
  const pf_i64 i = (blockIdx.x * 64 + threadIdx.x) * 4;
  PF_SHARED(float, s, 256);
  const pf_vec<float, 4> w0 = pf_load<4>(b_x, i);
  pf_vec<float, 4> w1;
  for (int k = 0; k < 4; ++k) w1[k] = w0[k] * 2.0f;
  pf_store<4>(s, threadIdx.x * 4, w1);
  const pf_vec<float, 2> w2 = pf_load<2>(s, threadIdx.x * 4 + 2);
  w1[3] = w2[1] + 1.0f;
  pf_store<4>(b_y, i, w1);
}
extern "C" __global__ void __launch_bounds__(256) row_sums(
    PF_IN(float) b_x, PF_OUT(float) b_y, const pf_i64 N_n) {
  PF_SHARED(float, red0, 8);
  const int tx = threadIdx.x;
  for (pf_i64 row = blockIdx.x; row < 20; row += gridDim.x) {
    float acc = 0.0f;
    for (pf_i64 i = tx; i < N_n; i += 256) acc += b_x[row * N_n + i];
    acc = pf_warp_sum_f32(acc, 32);
    if (tx % 32 == 0) red0[tx / 32] = acc;
    __syncthreads();  // red0
    acc = red0[tx % 8];
    acc = pf_warp_sum_f32(acc, 8);
    if (tx == 0) b_y[row] = acc;
    __syncthreads();  // red0 is used again
  }
}
extern "C" __global__ void __launch_bounds__(128) warp_rows(PF_IN(float) b_x, PF_OUT(float) b_y) {
  const int tx = threadIdx.x, ty = threadIdx.y;
  float acc = 0.0f;
  for (int i = tx; i < 50; i += blockDim.x) acc += b_x[(blockIdx.x * blockDim.y + ty) * 50 + i];
  acc = pf_warp_sum_f32(acc, 8);
  if (tx == 0) b_y[blockIdx.x * blockDim.y + ty] = acc;
}
extern "C" __global__ void __launch_bounds__(196) odd_block(PF_IN(float) b_x, PF_OUT(float) b_y) {
  PF_SHARED(float, s, 200);
  const int tx = threadIdx.x;
  float v = b_x[blockIdx.x * blockDim.x + tx];
  v = pf_warp_sum_f32(v, 4);
  s[tx] = v;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (tx < half && tx + half < blockDim.x) s[tx] = s[tx] + s[tx + half];
  }
  if (tx == 0) b_y[blockIdx.x] = s[0];
}
extern "C" __global__ void __launch_bounds__(64) other_lanes(
    PF_IN(pf_i64) b_x, PF_IN(pf_u8) b_u, PF_OUT(pf_i64) b_y, PF_OUT(pf_u8) b_v) {
  const int tx = threadIdx.x;
  if (tx < 48) b_y[tx] = pf_warp_max_i64(b_x[tx], 16);  // half a warp is elsewhere
  b_v[tx] = pf_warp_min_u8(b_u[tx], 32);
}
extern "C" __global__ void __launch_bounds__(32) contexts(
    PF_IN(float) b_x, PF_OUT(float) b_y, PF_OUT(pf_i32) b_i, PF_OUT(pf_f16) b_h) {
  PF_SHARED(float, s, 32);
  PF_SHARED(pf_i32, at, 32);
  const int tx = threadIdx.x;
  b_i[tx] = (pf_i32)b_x[tx];
  b_y[tx] = tx < 16 ? b_x[tx] : 1.0f;
  b_y[tx] += tx < 16 ? (float)1 : b_y[tx];
  at[tx] = b_i[tx] = tx;
  s[at[tx]] = b_y[at[tx]];
  b_y[tx] = tx < 8 ? b_y[tx] : s[tx];
  b_y[tx] = b_y[tx] + s[tx] - (b_y[tx] > s[tx] ? b_y[tx] : 0.0f) + -s[tx];
  b_y[tx] = ({ const float q = b_y[tx]; q * q; });
  b_y[tx] = pf_exp_f32(b_y[tx]) + (!b_i[tx] ? (float)b_i[tx] : 0.0f);
  if (b_i[tx]) b_y[tx] *= 2.0f;
  b_h[tx] = pf_f16_from_f32(s[tx]);
  const float back = pf_f32_from_f16(b_h[tx]);
  s[tx] = back;
  __syncwarp();
  b_y[tx] = b_y[tx] + s[tx ^ 1];
}
extern "C" __global__ void __launch_bounds__(64) two_phases(
    PF_IN(float) b_x, PF_OUT(float) b_t, PF_OUT(float) b_y, pf_u32* const grid_state) {
  const int tx = threadIdx.x;
  for (int round = 0; round < 3; ++round) {
    b_t[blockIdx.x * 64 + tx] = round == 0 ? b_x[blockIdx.x * 64 + tx] : b_y[blockIdx.x * 64 + tx] + 1.0f;
    pf_grid_barrier(grid_state);
    const int from = (blockIdx.x + 1) % gridDim.x;
    b_y[blockIdx.x * 64 + tx] = b_t[from * 64 + 63 - tx];
    pf_grid_barrier(grid_state);
  }
}
extern "C" __global__ void __launch_bounds__(32) strides(
    PF_IN(float) b_x, const pf_i64 st_x_0, const pf_i64 st_x_1, PF_OUT(float) b_y) {
  const int tx = threadIdx.x;
  for (int i = 0; i < 5; ++i)
    if (tx < 6) b_y[i * 6 + tx] = b_x[i * st_x_0 + tx * st_x_1];
}
extern "C" __global__ void __launch_bounds__(32) in_place(PF_OUT(float) b_p) {
  b_p[threadIdx.x] = b_p[threadIdx.x] + 1.0f;
}
extern "C" __global__ void __launch_bounds__(32) from_entry(PF_IN(float) b_p, PF_OUT(float) b_q) {
  const int tx = threadIdx.x;
  b_q[tx] = b_p[31 - tx];
}
extern "C" __global__ void __launch_bounds__(32) checked(
    PF_IN(pf_i64) b_i, PF_OUT(float) b_y, pf_i64* const status) {
  const pf_i64 i = b_i[threadIdx.x];
  if (i < 0 || i >= 4) *status = 1;
  b_y[threadIdx.x] = 0.0f;
}
""",
)
ATOMIC = [
    (op, t)
    for t in ALL
    if t not in QUARTERS  # sums of them are in f32
    for op in ("sum", "min", "max", "any", "all")
    if not (t.is_float and op in ("any", "all"))
]
ATOMICS = source(
    [f"pf_atomic_{op}_{t.name}" for op, t in ATOMIC],
    "".join(
        f"""
extern "C" __global__ void __launch_bounds__(96) {op}_{t.name}(
    PF_IN({t.c_name}) b_x, PF_IN({t.c_name}) b_p, PF_OUT({t.c_name}) b_y) {{
  PF_SHARED({t.c_name}, s, 7);
  const int tx = threadIdx.x;
  if (tx < 7) s[tx] = b_p[tx];
  __syncthreads();
  pf_atomic_{op}_{t.name}(&b_y[tx % 7], b_x[blockIdx.x * 96 + tx]);
  pf_atomic_{op}_{t.name}(&s[tx % 7], b_x[tx]);
  __syncthreads();
  if (tx < 7 && blockIdx.x == 0) b_y[tx + 7] = s[tx];
}}
"""
        for op, t in ATOMIC
    ),
)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(("order", "seed"), SOME_ORDERS)
@pytest.mark.parametrize("check", [True, False])
def test_elementwise(order: Order, seed: int, check: bool) -> None:
    x, y, lr = numbers(3000), zeros(3000), np.array(0.5, np.float32)
    ran = emulate(
        CORRECT, launch("scale", "x y =lr #n", 5, 256), {"x": x, "lr": lr}, {"y": y},
        sizes={"n": 3000}, order=order, seed=seed, check=check,
    )  # fmt: skip
    assert np.array_equal(y, x * 0.5)
    assert (ran.report.launches, ran.report.blocks, ran.report.findings) == (1, 5, ())


@pytest.mark.parametrize("check", [True, False])
def test_vectors(check: bool) -> None:
    x, y = numbers(512), zeros(512)
    one = launch("vectors", "x y", 2, 64, 1024)
    emulate(CORRECT, one, {"x": x}, {"y": y}, alignment=16, check=check)
    assert np.array_equal(y, x * 2 + (np.arange(512) % 4 == 3))


@pytest.mark.parametrize(("order", "seed"), SOME_ORDERS)
@pytest.mark.parametrize("check", [True, False])
def test_block_reduction(order: Order, seed: int, check: bool) -> None:
    x, y = numbers(20, 300), zeros(20)
    one = launch("row_sums", "x y #n", 6, 256, 32)
    emulate(CORRECT, one, {"x": x}, {"y": y}, sizes={"n": 300}, order=order, seed=seed, check=check)
    assert np.allclose(y, x.sum(1), atol=1e-4)


@pytest.mark.parametrize(("order", "seed"), SOME_ORDERS)
@pytest.mark.parametrize("threads", [100, 196])
def test_odd_blocks(order: Order, seed: int, threads: int) -> None:
    x, y = numbers(5, threads), zeros(5)
    emulate(CORRECT, launch("odd_block", "x y", 5, threads, 800), {"x": x}, {"y": y}, order=order, seed=seed)
    assert np.allclose(y, 4 * x.sum(1), atol=1e-3)


def test_rows_of_threads() -> None:
    x, y = numbers(12, 50), zeros(12)
    emulate(CORRECT, launch("warp_rows", "x y", 3, (8, 4)), {"x": x}, {"y": y})
    assert np.allclose(y, x.sum(1), atol=1e-4)


@pytest.mark.parametrize(("order", "seed"), SOME_ORDERS)
def test_groups_of_lanes(order: Order, seed: int) -> None:
    x = np.random.default_rng(0).integers(-(2**60), 2**60, 64)
    u = np.random.default_rng(0).integers(0, 256, 64).astype(np.uint8)
    y, v = np.zeros(48, np.int64), np.zeros(64, np.uint8)
    one = launch("other_lanes", "x u y v", 1, 64)
    emulate(CORRECT, one, {"x": x, "u": u}, {"y": y, "v": v}, order=order, seed=seed)
    assert np.array_equal(y, np.repeat(x[:48].reshape(3, 16).max(1), 16))
    assert np.array_equal(v, np.repeat(u.reshape(2, 32).min(1), 32))


@pytest.mark.parametrize("check", [True, False])
def test_proxies_stand_wherever_values_do(check: bool) -> None:
    x = np.abs(numbers(32))
    y, i, h = zeros(32), np.zeros(32, np.int32), np.zeros(32, np.float16)
    emulate(
        CORRECT, launch("contexts", "x y i h", 1, 32, 256), {"x": x}, {"y": y, "i": i, "h": h}, check=check
    )
    s = np.where(np.arange(32) < 16, x + 1, 2).astype(np.float32)
    want = np.exp(s**2)
    want[1:] *= 2
    assert np.allclose(y, want + s.astype(np.float16).reshape(16, 2)[:, ::-1].ravel(), rtol=1e-5)
    assert np.array_equal(i, np.arange(32))
    assert np.array_equal(h, s.astype(np.float16))


@pytest.mark.parametrize(("order", "seed"), SOME_ORDERS)
@pytest.mark.parametrize("check", [True, False])
def test_grid_barrier(order: Order, seed: int, check: bool) -> None:
    x, y = numbers(7 * 64), zeros(7 * 64)
    one = launch("two_phases", "x t y grid", 7, 64, cooperative=True)
    emulate(
        CORRECT, one, {"x": x}, {"y": y}, workspace={"t": x}, order=order, seed=seed, resident=7, check=check
    )
    want = x.reshape(7, 64)
    for k in range(3):
        want = np.roll(want + (k > 0), -1, 0)[:, ::-1]
    assert np.array_equal(y, want.ravel())


def _combined(op: str, t: DType, start: Array, values: Array) -> Array:
    """Every seventh of 96 values, with what was there."""
    if t.is_bool:
        op = {"sum": "any", "max": "any", "min": "all"}.get(op, op)
    how = {"sum": np.add, "min": np.minimum, "max": np.maximum, "any": np.bitwise_or, "all": np.bitwise_and}
    wide = values.reshape(-1, 96).astype(np.int64)
    return np.array([how[op].reduce([int(start[k]), *wide[:, k::7].ravel()]) for k in range(7)])


@pytest.mark.parametrize(("op", "t"), ATOMIC, ids=str)
def test_atomics(op: str, t: DType) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 2 if op == "sum" or t.is_bool else 100, 3 * 96).astype(t.numpy)
    p = rng.integers(0, 2, 7).astype(t.numpy)
    y = np.append(p, p)
    plan = GridPlan(
        (buffer("x", x, Kind.INPUT), buffer("p", p, Kind.INPUT), buffer("y", y, Kind.INOUT)),
        (launch(f"{op}_{t.name}", "x p y", 3, 96, 7 * t.bytes),),
    )
    EmulatedKernels(CudaCode(ATOMICS, plan, ()), seed=5).run({"x": x, "p": p, "y": y})
    assert np.array_equal(y[:7].astype(np.int64), _combined(op, t, p, x))
    assert np.array_equal(y[7:].astype(np.int64), _combined(op, t, p, x[:96]))


def test_strides_and_their_bounds() -> None:
    base = numbers(12, 10)
    x, y = base[10::-2, 1:7], zeros(5, 6)
    x = x[:5]
    plan = GridPlan(
        (buffer("x", x, Kind.INPUT, strided=True), buffer("y", y, Kind.OUTPUT)),
        (launch("strides", "x x.0 x.1 y"),),
    )
    ran = EmulatedKernels(CudaCode(CORRECT, plan, ()), count=True)
    ran.run({"x": x, "y": y})
    assert np.array_equal(y, x)
    assert np.array_equal(ran.report.loads["x"], np.ones((1, 5, 6)))


def test_output_in_place_of_a_parameter() -> None:
    p = numbers(32)
    before, q = p.copy(), zeros(32)
    out = p  # the memory of both
    plan = GridPlan(
        (
            buffer("p", p, Kind.INOUT),
            buffer("p__out", p, Kind.OUTPUT, alias="p"),
            buffer("q", q, Kind.OUTPUT),
        ),
        (launch("in_place", "p__out"), launch("from_entry", "p q")),
    )
    EmulatedKernels(CudaCode(CORRECT, plan, ())).run({"p": p, "p__out": out, "q": q})
    assert np.array_equal(p, before + 1)
    assert np.array_equal(q, before[::-1] + 1)


def test_entry_values_are_copied_first() -> None:
    p = numbers(32)
    before, q = p.copy(), zeros(32)
    plan = GridPlan(
        (
            buffer("p", p, Kind.INOUT),
            buffer("p__out", p, Kind.OUTPUT, alias="p"),
            buffer("q", q, Kind.OUTPUT),
        ),
        (launch("in_place", "p__out"), launch("from_entry", "p q")),
        copied=("p",),
    )
    EmulatedKernels(CudaCode(CORRECT, plan, ())).run({"p": p, "p__out": p, "q": q})
    assert np.array_equal(p, before + 1)
    assert np.array_equal(q, before[::-1])


def test_checked_builds_report_the_index() -> None:
    span = Span(SourceText("a.pf", "t[i]"), 2, 3)
    i, y = np.array([0, 3] * 15 + [4, 1]), zeros(32)
    plan = GridPlan(
        (buffer("i", i, Kind.INPUT), buffer("y", y, Kind.OUTPUT)), (launch("checked", "i y status"),)
    )
    kernels = EmulatedKernels(CudaCode(CORRECT, plan, ((span, "0..4"),)))
    with pytest.raises(ArgumentError, match=r"'i' is not in 0\.\.4"):
        kernels.run({"i": i, "y": y})
    i[30] = 2
    kernels.bind({"i": i, "y": y})()


def test_counts() -> None:
    x, y = numbers(20, 300), zeros(20)
    one = launch("row_sums", "x y #n", 6, 256, 32)
    ran = emulate(CORRECT, (one, one), {"x": x}, {"y": y}, sizes={"n": 300}, count=True)
    assert ran.report.loads["x"].shape == (2, 20, 300)
    assert np.all(ran.report.loads["x"] == 1)
    assert np.all(ran.report.stores["y"] == 1)
    assert not ran.report.stores["x"].any()


def test_an_atomic_update_is_a_load_and_a_store() -> None:
    x, p, y = numbers(96), numbers(7), zeros(14)
    plan = GridPlan(
        (buffer("x", x, Kind.INPUT), buffer("p", p, Kind.INPUT), buffer("y", y, Kind.INOUT)),
        (launch("sum_f32", "x p y", 1, 96, 28),),
    )
    kernels = EmulatedKernels(CudaCode(ATOMICS, plan, ()), count=True)
    kernels.run({"x": x, "p": p, "y": y})
    each = np.bincount(np.arange(96) % 7)
    assert np.array_equal(kernels.report.loads["y"][0], [*each, *[0] * 7])
    assert np.array_equal(kernels.report.stores["y"][0], [*each, *[1] * 7])
    assert np.array_equal(kernels.report.loads["x"][0], np.full(96, 2))


def test_an_empty_grid_is_not_launched() -> None:
    x, y = numbers(0), zeros(0)
    ran = emulate(CORRECT, launch("in_place", "y", 0), {"x": x}, {"y": y})
    assert ran.report.launches == 0


def test_several_threads_of_python() -> None:
    x = numbers(20, 300)
    results = [zeros(20) for _ in range(4)]
    one = launch("row_sums", "x y #n", 6, 256, 32)
    made = code(CORRECT, one, {"x": x}, {"y": results[0]})
    kernels = EmulatedKernels(made, {"n": 300})
    workers = [threading.Thread(target=kernels.run, args=({"x": x, "y": y},)) for y in results]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert all(np.array_equal(y, results[0]) for y in results)
    assert np.allclose(results[0], x.sum(1), atol=1e-4)


def test_without_assembly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch for other processors."""
    flags = (*engine.ENGINE_FLAGS, "-DPF_EMU_UCONTEXT")
    monkeypatch.setattr(engine, "ENGINE_FLAGS", flags)
    monkeypatch.setattr(engine.Engine, "_instance", None)
    x, y = numbers(20, 300), zeros(20)
    emulate(CORRECT, launch("row_sums", "x y #n", 6, 256, 32), {"x": x}, {"y": y}, sizes={"n": 300})
    assert np.allclose(y, x.sum(1), atol=1e-4)


def test_stacks_grow_with_private_arrays() -> None:
    text = "".join(
        f'extern "C" __global__ void __launch_bounds__(32) {name}(PF_OUT(float) b_y) {{\n  {body}\n}}\n'
        for name, body in (
            ("none", "int i;"),
            ("array", "double b_t[512][2];"),
            ("vector", "pf_vec<float, 4> w[90];"),
        )
    )
    least = emulator_source.LEAST_STACK
    found = emulator_source.kernels(text)
    assert list(found) == ["none", "array", "vector"]
    assert found["none"] == least
    assert found["array"] >= least + 2 * 1024 * 8
    assert found["vector"] >= least + 2 * 360 * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"function": "missing"}, "no kernel 'missing'"),
        ({"threads": (1024, 2)}, "1024 x 2 threads"),
    ],
)
def test_plans_that_do_not_fit(change: dict[str, object], message: str) -> None:
    one = replace(launch("in_place", "y"), **change)
    with pytest.raises(EmulationError, match=message) as e:
        emulate(CORRECT, one, {}, {"y": zeros(32)})
    assert e.value.code == "PF737"


@pytest.mark.parametrize("y", [np.zeros(32), np.zeros(31, np.float32), np.zeros(64, np.float32)[::2]])
def test_arrays_that_do_not_fit(y: Array) -> None:
    made = code(CORRECT, launch("in_place", "y"), {}, {"y": zeros(32)})
    with pytest.raises(EmulationError) as e:
        EmulatedKernels(made).run({"y": y})
    assert e.value.code == "PF737"


def test_an_order_that_does_not_exist() -> None:
    made = code(CORRECT, launch("in_place", "y"), {}, {"y": zeros(32)})
    with pytest.raises(EmulationError, match="forward, reverse, random"):
        EmulatedKernels(made, order="sideways")  # type: ignore[arg-type]
