"""CUDA kernels in the emulator at awkward shapes: blocks that are no multiple of a warp, rows around the
sizes of warps and blocks, empty tensors, every dtype, infinities and NaN."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from targets import Array, Call, told_apart
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.cuda.emit import emit_cuda_together
from polyfuse.diagnostics import EmulationError
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import Role
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

PROGRAM = pf.parse("""
op total[F: float](x: F[N, H]) -> (y: F[N]) { y[n] = sum[h](x[n, h]) }
op largest[F: float](x: F[N, H]) -> (y: F[N]) { y[n] = max[h](x[n, h]) }
op columns[F: float](x: F[N, H]) -> (y: F[H]) { y[h] = sum[n](x[n, h]) }
op everything[F: float](x: F[N, H]) -> (y: F) { y = sum[n, h](x[n, h]) }
op shifted[F: float](x: F[N, H]) -> (y: F[N, H-1]) { y[n, h] = x[n, h+1] * 2.0 + x[n, h] for h in 0..H-1 }
op transposed[F: float](x: F[N, H]) -> (y: F[H, N]) { y[h, n] = x[n, h] }
op count[I: int](x: I[N, H]) -> (y: I[N], z: I[N], b: bool[N]) {
  y[n] = sum[h](x[n, h])
  z[n] = min[h](x[n, h])
  b[n] = any[h](x[n, h] > 3)
}
op softmax[F: float](x: F[N, H]) -> (y: F[N, H]) {
  m[n] = max[h](x[n, h])
  e[n, h] = exp(x[n, h] - m[n])
  d[n] = sum[h](e[n, h])
  y[n, h] = e[n, h] / d[n]
}
op layer_norm[F: float](x: F[N, H], g: F[H]) -> (y: F[N, H]) {
  mu[n] = sum[h](x[n, h]) / H
  var[n] = sum[h]((x[n, h] - mu[n]) ** 2) / H
  y[n, h] = (x[n, h] - mu[n]) * rsqrt(var[n] + 1e-5) * g[h]
}
op best[F: float](x: F[N, H]) -> (y: i64[N]) { y[n] = argmax[h](x[n, h]) }
op running[F: float](x: F[N, H]) -> (y: F[N, H]) where H >= 1 {
  y[n, 0] = x[n, 0]
  y[n, h] = y[n, h-1] + x[n, h] for h in 1..H
}
""")
FLOATS = ("total", "largest", "columns", "softmax", "layer_norm", "best", "running")
PLAIN = ("everything", "shifted", "transposed")
AWKWARD = {
    "21 in a row": GpuTarget(sms=4, threads=196, row_threads=21),
    "33 in a row": GpuTarget(sms=4, threads=100, row_threads=33, parallel=256),
    "100 in a row": GpuTarget(sms=4, threads=100, row_threads=100),
    "196 in a row": GpuTarget(sms=4, threads=196, row_threads=196, parallel=1024),
    "100 threads": GpuTarget(sms=4, threads=100, longest=96),
    "usual": GpuTarget(sms=4, parallel=4096),
}
SHAPES = ((3, 1), (2, 31), (5, 33), (2, 1023), (2, 1025))
LONG = 30522
EMPTY = ((0, 33), (3, 0), (0, 0))


@cache
def graph_of(op: str, dtype: str) -> Any:
    generics = {"I" if op == "count" else "F": dtype}
    return PROGRAM.op(op).graph(generics)


def call_of(op: str, rows: int, length: int, dtype: str = "f32", values: Array | None = None) -> Call:
    graph = graph_of(op, dtype)
    random = np.random.default_rng(rows * 31 + length)
    inputs: dict[str, Array] = {}
    for t in graph.tensors:
        if t.role is Role.INPUT:
            shape = (length,) if len(t.shape) == 1 else (rows, length)
            drawn = random.integers(-9, 9, shape) if t.dtype.is_integer else random.standard_normal(shape)
            inputs[t.name] = drawn.astype(t.dtype.numpy)
    if values is not None:
        inputs["x"] = values.astype(inputs["x"].dtype)
    sizes = bind_sizes(graph, {n: a.shape for n, a in inputs.items()})
    return Call(f"{op} {dtype} [{rows}, {length}]", str(graph), graph, sizes, inputs)


def check(
    calls: Sequence[Call], devices: Sequence[str] = tuple(AWKWARD), stitched: bool = False
) -> set[tuple[int, int]]:
    """The emulator has the results of the reference and finds nothing wrong. Returns the shapes of blocks."""
    requests = [told_apart([c.device_request(AWKWARD[d], True, stitched) for d in devices]) for c in calls]
    emitted = emit_cuda_together([r for mine in requests for _, r in mine])
    codes = iter(emitted)
    for call, mine in zip(calls, requests, strict=True):
        want = evaluate(call.graph, call.sizes, call.inputs)
        for device in (devices[k] for k, _ in mine):
            arrays = call.memory()
            try:
                EmulatedKernels(next(codes)).run(arrays)
            except EmulationError as e:
                raise AssertionError(f"{call.name}, {device}: {e}") from e
            for t in call.graph.tensors:
                if t.role is Role.OUTPUT:
                    outcome = agrees(arrays[t.name], want[t.name], t.dtype)
                    assert outcome, f"{call.name}, {device}, {t.name}: {outcome.message}"
    return {launch.threads for code in emitted for launch in code.plan.launches}


@pytest.mark.thin(2)
@pytest.mark.parametrize("stitched", thinned((True, False), 2), ids=("layers I and II", "layer I"))
@pytest.mark.parametrize("op", (*FLOATS, *PLAIN))
def test_rows_of_any_length(op: str, stitched: bool) -> None:
    check([call_of(op, *shape) for shape in SHAPES], stitched=stitched)


@pytest.mark.parametrize("device", AWKWARD)
def test_blocks_are_no_multiple_of_a_warp(device: str) -> None:
    blocks = check([call_of(op, 6, 1023) for op in ("total", "softmax", "shifted")], (device,))
    if device != "usual":
        assert any(x * y % 32 for x, y in blocks), blocks
    forced = AWKWARD[device].row_threads
    assert forced is None or any(x == forced for x, _ in blocks), blocks


@pytest.mark.parametrize("stitched", thinned((True, False), 2), ids=("layers I and II", "layer I"))
@pytest.mark.parametrize("op", (*FLOATS[:-1], *PLAIN))
def test_long_rows(op: str, stitched: bool) -> None:
    check([call_of(op, 2, LONG)], ("196 in a row", "100 threads", "usual"), stitched)


@pytest.mark.slow
def test_long_recurrences() -> None:
    check([call_of("running", 2, LONG)])


@pytest.mark.parametrize("op", (*FLOATS, *PLAIN))
def test_empty_tensors(op: str) -> None:
    calls = []
    for shape in EMPTY:
        try:
            calls.append(call_of(op, *shape))
        except pf.ArgumentError as refused:  # no maximum of nothing, no result of extent -1
            assert refused.code in ("PF407", "PF409") and shape[1] == 0
    for call in calls:
        check([call], ("33 in a row", "usual"))
    assert len(calls) == (3 if op in ("total", "columns", "layer_norm", "everything", "transposed") else 1)


@pytest.mark.parametrize("stitched", (False, True), ids=("layer I", "layers I and II"))
@pytest.mark.parametrize("dtype", thinned(("f16", "bf16", "f64"), 3))
def test_floats(dtype: str, stitched: bool) -> None:
    calls = [call_of(op, *shape, dtype) for op in FLOATS for shape in ((3, 33), (2, 260))]
    check(calls, ("100 threads",) if stitched else ("33 in a row", "usual"), stitched)


@pytest.mark.parametrize("stitched", (False, True), ids=("layer I", "layers I and II"))
def test_integers(stitched: bool) -> None:
    dtypes = ("i8", "u8", "i16", "i32", "i64")
    calls = [call_of("count", *shape, d) for d in dtypes for shape in ((3, 33), (2, 260), (2, 1025))]
    check(calls, ("100 threads",) if stitched else ("33 in a row", "usual"), stitched)


def hostile() -> Array:
    """Rows with NaN, infinities of one sign and of both, nothing else."""
    x = np.random.default_rng(1).standard_normal((7, 129))
    x[0, 5] = x[6, 64:] = np.nan
    x[1, 0] = x[3, 3] = x[5, :] = np.inf
    x[2, 128] = x[3, 90] = x[4, :] = -np.inf
    return x


@pytest.mark.parametrize("dtype", thinned(("f32", "f64", "bf16", "f16"), 2))
def test_nan_and_infinities(dtype: str) -> None:
    calls = [call_of(op, 7, 129, dtype, hostile()) for op in (*FLOATS, *PLAIN)]
    check(calls, ("33 in a row", "100 threads", "usual"))


# --- through `pf.compile` --------------------------------------------------------------------------------


def off_by(array: Array, nbytes: int) -> Array:
    """The array at an address that many bytes after a multiple of 64."""
    block = np.zeros(array.nbytes + 128, np.uint8)
    start = -block.__array_interface__["data"][0] % 64 + nbytes
    view = block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


WIDE = np.random.default_rng(5).standard_normal((24, 256)).astype(np.float32)
VIEWS = {
    "4 bytes off": off_by(WIDE[:, :64].copy(), 4),
    "8 bytes off": off_by(WIDE[:, :64].copy(), 8),
    "2 bytes off": off_by(WIDE[:, :64].copy(), 2),  # not at a multiple of its element
    "columns of a wider one": WIDE[:, 3:67],
    "every third row": WIDE[1::3, :64],
    "every other element": WIDE[:, 1:129:2],
    "transposed": WIDE[:, :64].T,
    "backwards": WIDE[::-1, 63::-1],
    "one row for all": np.broadcast_to(WIDE[0, :64], (24, 64)),
    "big endian": WIDE[:, :64].astype(">f4"),
}


@pytest.mark.parametrize("op", ("softmax", "total", "shifted", "transposed"))
def test_memory_of_any_kind(op: str) -> None:
    f = pf.compile(PROGRAM, op, target="emulate")
    for name, x in VIEWS.items():
        want = f(np.array(x, np.float32, order="C"))
        assert np.array_equal(f(x), want), name
        kept = off_by(np.zeros_like(want), 4)
        assert f(x, out=kept) is kept and np.array_equal(kept, want), name


def test_results_over_inputs() -> None:
    """An output that takes the place of an input, and one that is shifted against it."""
    f = pf.compile(PROGRAM, "softmax", target="emulate")
    want = f(WIDE[:, :64].copy())
    block = WIDE[:, :65].reshape(-1).copy()
    x = block[: 24 * 64].reshape(24, 64)
    x[...] = WIDE[:, :64]
    assert np.array_equal(f(x, out=x), want)
    x[...] = WIDE[:, :64]
    assert np.array_equal(f(x, out=block[5 : 5 + 24 * 64].reshape(24, 64)), want)


@pytest.mark.parametrize("offset", (0, 4, 8))
def test_parameters_are_updated_in_place(offset: int) -> None:
    random = np.random.default_rng(2)
    start = [off_by(np.abs(random.standard_normal((9, 37))).astype(np.float32), offset) for _ in range(4)]
    rest: list[Any] = [np.int64(3), *map(np.float32, (0.1, 0.9, 0.999, 1e-8, 0.01))]
    want = [a.copy() for a in start]
    pf.compile(pf.stdlib, "adamw", target="cpu")(*want, *rest)
    addresses = [a.__array_interface__["data"] for a in start]
    pf.compile(pf.stdlib, "adamw", target="emulate")(*start, *rest)
    assert addresses == [a.__array_interface__["data"] for a in start]
    for mine, theirs in zip(start, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_parameters_with_gaps_are_updated_in_place() -> None:
    program = pf.parse("op decay(inout p: f32[N, M], g: f32[N, M]) { p[n, m] = p[n, m] * 0.5 + g[n, m] }")
    wide, g = WIDE.copy(), WIDE[:, 128:192]
    want = wide.copy()
    want[:, 1:65] = want[:, 1:65] * 0.5 + g
    pf.compile(program, target="emulate")(wide[:, 1:65], g)
    np.testing.assert_allclose(wide, want, rtol=1e-6)


@pytest.mark.parametrize("bad", (24, -25, 1 << 40))
def test_an_index_out_of_range_is_reported(bad: int) -> None:
    index = np.arange(70) % 24
    f = pf.compile(pf.stdlib, "embedding", target="emulate", checked=True)
    assert np.array_equal(f(WIDE, index), WIDE[index])
    index[66] = bad
    with pytest.raises(pf.ArgumentError, match="out of range") as refused:
        f(WIDE, index)
    assert refused.value.code == "PF450"
    clamped = pf.compile(pf.stdlib, "embedding", target="emulate")(WIDE, index)
    assert np.array_equal(clamped, pf.compile(pf.stdlib, "embedding", target="cpu")(WIDE, index))


# --- the order of threads ---------------------------------------------------------------------------------


def in_orders(kernels: pf.Kernels, arrays: dict[str, Array], result: str) -> list[bytes]:
    """The bits of a result when threads run in the orders of some seeds."""
    found = []
    for seed in range(4):
        mine = {name: array.copy() for name, array in arrays.items()}
        EmulatedKernels(kernels.code(), seed=seed).run(mine)
        found.append(mine[result].tobytes())
    return found


def test_reductions_have_the_same_bits_in_any_order_of_threads() -> None:
    kernels = PROGRAM.op("softmax").specialize(N=16, H=1024).schedule().lower(target="emulate")
    x = np.random.default_rng(0).standard_normal((16, 1024), dtype=np.float32)
    assert len({*in_orders(kernels, {"x": x, "y": np.empty_like(x)}, "y")}) == 1


def test_atomic_sums_round_by_the_order_of_threads() -> None:
    text = "op weigh(bin: i32[N], w: f32[N], inout total: f32[K]) { total[bin[i]] += w[i] }"
    kernels = pf.parse(text).op().specialize(N=2048, K=4).schedule().lower(target="emulate")
    assert "pf_atomic_sum_f32(&b_total" in kernels.code().source
    rng = np.random.default_rng(1)
    bins, w = rng.integers(0, 4, 2048).astype(np.int32), rng.standard_normal(2048, dtype=np.float32)
    total = np.zeros(4, np.float32)
    arrays = {"bin": bins, "w": w, "total": total, "total__out": total}
    found = in_orders(kernels, arrays, "total__out")
    assert len({*found}) > 1
    for bits in found:
        np.testing.assert_allclose(np.frombuffer(bits, np.float32), np.bincount(bins, w), rtol=1e-4)
    assert len({*in_orders(kernels, {**arrays, "w": np.round(w)}, "total__out")}) == 1
