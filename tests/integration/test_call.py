"""Compiled functions as Python calls them: memory of every kind in, `out=`, `bind`, threads, errors."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from forked import held_by_another_thread, right_in_child

import polyfuse as pf
from polyfuse.ir.dtypes import ALL, FLOATS, DType
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.runtime.cpu.executable import CpuExecutable

Array = np.ndarray[Any, np.dtype[Any]]

DOUBLE = pf.compile("op double(x: f32[N, M]) -> (y: f32[N, M]) { y[n, m] = x[n, m] * 2.0 }")
AXPY = pf.compile(
    "op axpy(x: f32[N], y: f32[N], a: f32 = 2.0, b: f32 = 1) -> (z: f32[N]) { z[i] = a * x[i] + b * y[i] }"
)
SPLIT = pf.compile(
    """op split(x: f32[N]) -> (lo: f32[N], hi: f32[N]) {
      lo[i] = x[i] - 1.0
      hi[i] = x[i] + 1.0
    }"""
)
STEP = pf.compile("op step(inout p: f32[N, M], g: f32[N, M]) { p[n, m] = p[n, m] - g[n, m] }")
TOTAL = pf.compile("op total(x: f32[N]) -> (s: f32) { s = sum[i](x[i]) }")


def grid(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# --- memory of inputs -------------------------------------------------------------------------------------

MEMORY: dict[str, Callable[[], Array]] = {
    "dense": lambda: grid(6, 8),
    "columns": lambda: grid(6, 16)[:, ::2],
    "rows": lambda: grid(12, 8)[::2],
    "offset": lambda: grid(8, 10)[1:7, 1:9],
    "backwards": lambda: grid(6, 8)[::-1],
    "backwards twice": lambda: grid(6, 8)[::-1, ::-1],
    "transposed": lambda: grid(8, 6).T,
    "fortran": lambda: np.asfortranarray(grid(6, 8)),
    "one row for all": lambda: np.broadcast_to(grid(8), (6, 8)),
    "one column for all": lambda: np.broadcast_to(grid(6, 1), (6, 8)),
    "one number for all": lambda: np.broadcast_to(np.float32(3), (6, 8)),
    "windows": lambda: np.lib.stride_tricks.sliding_window_view(grid(13), 8),
    "big endian": lambda: grid(6, 8).astype(">f4"),
    "big endian columns": lambda: grid(6, 16).astype(">f4")[:, ::2],
    "unaligned": lambda: np.frombuffer(b"\0" + grid(6, 8).tobytes(), np.float32, 48, 1).reshape(6, 8),
    "field of a record": lambda: np.ones((6, 8), [("a", "i1"), ("b", "<f4")])["b"],
    "read-only": lambda: np.frombuffer(grid(6, 8).tobytes(), np.float32).reshape(6, 8),
    "a subclass": lambda: grid(6, 8).view(np.matrix),
    "one element, odd strides": lambda: np.lib.stride_tricks.as_strided(grid(64), (1, 4), (3, 8)),
    "one element, usual strides": lambda: np.lib.stride_tricks.as_strided(grid(64), (1, 4), (16, 8)),
}


@pytest.mark.parametrize("make", MEMORY.values(), ids=MEMORY.keys())
def test_memory_of_an_input(make: Callable[[], Array]) -> None:
    x = make()
    before = np.array(x)
    y = DOUBLE(x)
    assert isinstance(y, np.ndarray) and y.dtype == np.float32
    np.testing.assert_array_equal(y, np.asarray(before) * 2)
    np.testing.assert_array_equal(x, before)


def test_memory_of_one_executable_is_not_taken_for_another() -> None:
    """Same shape, dtype and flags, other strides: in any order."""
    for _ in range(2):
        for make in MEMORY.values():
            x = make()
            np.testing.assert_array_equal(DOUBLE(x), np.asarray(x) * np.float32(2))


def test_aliased_inputs() -> None:
    x = grid(9)
    np.testing.assert_array_equal(AXPY(x, x), 3 * x)
    np.testing.assert_array_equal(AXPY(x[:6], x[3:]), 2 * x[:6] + x[3:])


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (1, 5), (5, 1)], ids=str)
def test_sizes_of_none_and_one(shape: tuple[int, int]) -> None:
    np.testing.assert_array_equal(DOUBLE(grid(*shape)), grid(*shape) * 2)
    p = grid(*shape)
    assert STEP(p, np.ones(shape, np.float32)) is None
    np.testing.assert_array_equal(p, grid(*shape) - 1)
    rows = pf.compile(
        """op rows(x: f32[N, M]) -> (s: f32[N], c: f32[M]) {
          s[n] = sum[m](x[n, m])
          c[m] = sum[n](x[n, m])
        }"""
    )
    s, c = rows(grid(*shape))
    np.testing.assert_array_equal(s, grid(*shape).sum(1))
    np.testing.assert_array_equal(c, grid(*shape).sum(0))


def test_rank_0_in_and_out() -> None:
    f = pf.compile("op f(x: f32, y: f32) -> (z: f32) { z = x * y }")
    for x in (3.0, np.float32(3), np.array(3, np.float32), np.array([3], np.float32)[0:1].reshape(())):
        z = f(x, np.array(2, np.float32))
        assert z == 6 and np.shape(z) == ()
    out = np.zeros((), np.float32)
    f(3.0, 4.0, out=out)
    assert out == 12


# --- scalars --------------------------------------------------------------------------------------------


def test_scalars_and_defaults() -> None:
    x, y = grid(5), grid(5) + 1
    np.testing.assert_array_equal(AXPY(x, y), 2 * x + y)
    np.testing.assert_array_equal(AXPY(x, y, 3.0), 3 * x + y)
    np.testing.assert_array_equal(AXPY(x, y, b=-1), 2 * x - y)
    np.testing.assert_array_equal(AXPY(b=0.5, a=0, y=y, x=x), y / 2)
    np.testing.assert_array_equal(AXPY(x, y, np.float32(4), np.array(0, np.float32)), 4 * x)
    np.testing.assert_array_equal(AXPY(x, y, True, False), x)


def test_one_executable_for_all_scalar_values() -> None:
    f = pf.compile("op f(x: f32[N], a: f32) -> (y: f32[N]) { y[i] = a * x[i] }")
    first = f.built(grid(4), 1.0)
    for a in (0.0, -2.5, 7, np.inf):
        assert f.built(grid(4), a) is first
    assert f.built(grid(4), np.float32(1)).code.source == first.code.source
    assert f.built(grid(5), 1.0) is not first


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 10**30])
def test_integers_that_do_not_fit(value: int) -> None:
    f = pf.compile("op f(x: i32[N], a: i32) -> (y: i32[N]) { y[i] = x[i] + a }")
    with pytest.raises(pf.ArgumentError, match="does not fit into i32"):
        f(np.zeros(3, np.int32), value)


def test_scalars_of_another_kind() -> None:
    f = pf.compile("op f(x: i32[N], a: i32) -> (y: i32[N]) { y[i] = x[i] + a }")
    for value in (1.5, np.float32(1), "1", None, [1], np.ones(2, np.int32)):
        with pytest.raises(pf.ArgumentError):
            f(np.zeros(3, np.int32), value)
    with pytest.raises(pf.ArgumentError, match="too large for f32"):
        AXPY(grid(3), grid(3), 10**400)
    assert np.isposinf(AXPY(grid(3) + 1, grid(3), 1e300)).all()


# --- wrong calls ------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[], object], str, str]] = {
    "none": (lambda: AXPY(), "PF408", "argument 'x' is missing"),
    "one short": (lambda: AXPY(grid(3)), "PF408", "argument 'y' is missing"),
    "too many": (lambda: AXPY(*[grid(3)] * 5), "PF408", "axpy takes 4 arguments, 5 were given"),
    "unknown": (lambda: AXPY(grid(3), z=grid(3)), "PF408", "axpy has no parameter 'z'"),
    "twice": (lambda: AXPY(grid(3), grid(3), x=grid(3)), "PF408", "argument 'x' is given twice"),
    "dtype": (lambda: AXPY(grid(3), np.ones(3)), "PF402", "argument 'y'.*f64.*f32"),
    "foreign dtype": (lambda: DOUBLE(np.ones((2, 2), complex)), "PF402", "argument 'x'.*complex128"),
    "rank": (lambda: DOUBLE(grid(3)), "PF401", "argument 'x'"),
    "sizes": (lambda: AXPY(grid(3), grid(4)), "PF40[0-9]", "(?s)'x'.*'y'|'y'.*'x'"),
    "a list": (lambda: DOUBLE([[1.0, 2.0]]), "PF402", "argument 'x'"),
}


@pytest.mark.parametrize(("call", "code", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments(call: Callable[[], object], code: str, message: str) -> None:
    with pytest.raises(pf.ArgumentError, match=message) as caught:
        call()
    with pytest.raises(pf.ArgumentError, match=code):
        raise caught.value


# --- out= ---------------------------------------------------------------------------------------------------


def test_out_is_written_and_returned() -> None:
    for out in (
        np.empty((4, 6), np.float32),
        np.empty((4, 12), np.float32)[:, ::2],
        np.empty((6, 4), np.float32).T,
    ):
        assert DOUBLE(grid(4, 6), out=out) is out
        np.testing.assert_array_equal(out, grid(4, 6) * 2)


def test_out_in_a_larger_array_leaves_the_rest() -> None:
    whole = np.full((6, 10), 7, np.float32)
    DOUBLE(grid(4, 6), out=whole[1:5, 2:8])
    np.testing.assert_array_equal(whole[1:5, 2:8], grid(4, 6) * 2)
    whole[1:5, 2:8] = 7
    assert (whole == 7).all()


def test_out_over_an_input() -> None:
    x = grid(4, 6)
    DOUBLE(x, out=x)
    np.testing.assert_array_equal(x, grid(4, 6) * 2)
    shift = pf.compile("op shift(x: f32[N]) -> (y: f32[N]) { y[0] = 0.0; y[i] = x[i - 1] for i in 1..N }")
    line = grid(9)
    shift(line[:8], out=line[1:])
    np.testing.assert_array_equal(line, [0, 0, *range(7)])
    back = grid(8)
    shift(back, out=back[::-1])
    np.testing.assert_array_equal(back, [6, 5, 4, 3, 2, 1, 0, 0])


def test_out_of_several_results() -> None:
    a, b = np.empty(5, np.float32), np.empty(5, np.float32)
    assert all(x is y for x, y in zip(SPLIT(grid(5), out=(a, b)), (a, b), strict=True))
    np.testing.assert_array_equal(b - a, np.full(5, 2))
    only = np.empty(5, np.float32)
    lo, hi = SPLIT(grid(5), out={"hi": only})
    assert hi is only and (lo == grid(5) - 1).all()
    lo, hi = SPLIT(grid(5), out=(None, only))
    assert hi is only and lo is not None


OUT: dict[str, tuple[Callable[[], object], str]] = {
    "shape": (lambda: DOUBLE(grid(2, 3), out=np.empty((3, 2), np.float32)), "out= for 'y'.*shape"),
    "dtype": (lambda: DOUBLE(grid(2, 3), out=np.empty((2, 3))), "out= for 'y'.*dtype"),
    "byte order": (lambda: DOUBLE(grid(2, 3), out=np.empty((2, 3), ">f4")), "out= for 'y'"),
    "read-only": (lambda: DOUBLE(grid(2, 3), out=np.broadcast_to(np.float32(0), (2, 3))), "writable"),
    "no array": (lambda: DOUBLE(grid(2, 3), out=3.0), "must be an array"),
    "too many": (lambda: DOUBLE(grid(2, 3), out=(grid(2, 3), grid(2, 3))), "2 arrays for 1 results"),
    "one of two": (lambda: SPLIT(grid(3), out=grid(3)), "tuple or dict"),
    "unknown": (lambda: SPLIT(grid(3), out={"mid": grid(3)}), "'mid'"),
}


@pytest.mark.parametrize(("call", "message"), OUT.values(), ids=OUT.keys())
def test_wrong_out(call: Callable[[], object], message: str) -> None:
    with pytest.raises(pf.ArgumentError, match=message):
        call()


def test_out_that_would_be_written_twice() -> None:
    """One of the two results would be lost."""
    line = grid(12)
    for lo, hi in ((line[:5], line[:5]), (line[:5], line[4:9]), (line[:10:2], line[8:3:-1])):
        with pytest.raises(pf.ArgumentError, match="out= for 'hi' and 'lo' share memory"):
            SPLIT(grid(5), out=(lo, hi))
    with pytest.raises(pf.ArgumentError, match="elements of out= for 'y' share memory"):
        DOUBLE(grid(4, 4), out=np.lib.stride_tricks.as_strided(line, (4, 4), (4, 4)))
    step = pf.compile("op step(inout p: f32[N]) -> (was: f32[N]) { was[i] = old(p[i]); p[i] = p[i] + 1.0 }")
    with pytest.raises(pf.ArgumentError, match="out= for 'was' and 'p' share memory"):
        step(line, out=line)
    np.testing.assert_array_equal(line, grid(12))


def test_outs_that_lie_in_between_one_another() -> None:
    line = np.empty(10, np.float32)
    SPLIT(grid(5), out=(line[::2], line[1::2]))
    np.testing.assert_array_equal(line[1::2] - line[::2], np.full(5, 2))


# --- inout ----------------------------------------------------------------------------------------------


INOUT_MEMORY = [n for n in MEMORY if "for all" not in n and n not in ("windows", "read-only", "unaligned")]


@pytest.mark.parametrize("name", INOUT_MEMORY)
def test_inout_in_any_memory(name: str) -> None:
    p = MEMORY[name]()
    want = np.array(p) - 1
    assert STEP(p, np.ones(p.shape, np.float32)) is None
    np.testing.assert_array_equal(p, want)


def test_inout_that_cannot_be_written() -> None:
    for p in (np.broadcast_to(grid(4), (3, 4)), MEMORY["read-only"](), [[1.0]], 2.0):
        with pytest.raises(pf.ArgumentError, match="'p'"):
            STEP(p, np.ones(np.shape(p), np.float32))
    one = np.zeros(1, np.float32)
    with pytest.raises(pf.ArgumentError, match="share memory"):
        STEP(np.lib.stride_tricks.as_strided(one, (3, 4), (0, 0)), grid(3, 4))


def test_inout_whose_elements_overlap() -> None:
    """Rows one element apart: elements are written twice. Views that slicing makes do not."""
    memory = np.zeros(12, np.float32)
    with pytest.raises(pf.ArgumentError, match="elements of the inout argument 'p' share memory"):
        STEP(np.lib.stride_tricks.as_strided(memory, (4, 4), (4, 4)), grid(4, 4))
    assert not memory.any()
    p = np.zeros((5, 9, 5), np.float32)
    STEP(p[::-2, 3, ::3], grid(3, 2))
    assert np.array_equal(p[::-2, 3, ::3], -grid(3, 2))


def test_inout_over_an_input() -> None:
    p = grid(4, 6)
    STEP(p, p)
    assert (p == 0).all()
    p = grid(5, 6)
    STEP(p[:4], p[1:])
    np.testing.assert_array_equal(p[:4], grid(5, 6)[:4] - grid(5, 6)[1:])
    p = grid(4, 6)
    STEP(p, p[::-1])
    np.testing.assert_array_equal(p, grid(4, 6) - grid(4, 6)[::-1])


def test_two_inouts() -> None:
    swap = pf.compile("op swap(inout p: f32[N], inout q: f32[N]) { p[i] = old(q[i]); q[i] = old(p[i]) }")
    p, q = grid(6), grid(6) * 10
    swap(p, q)
    np.testing.assert_array_equal(p, grid(6) * 10)
    np.testing.assert_array_equal(q, grid(6))
    both = grid(12)
    swap(both[::2], both[1::2])  # they lie in between one another, and share nothing
    np.testing.assert_array_equal(both, grid(12).reshape(6, 2)[:, ::-1].ravel())
    for a, b in ((both[:6], both[:6]), (both[:6], both[5:11]), (both[:12:2], both[2:8])):
        with pytest.raises(pf.ArgumentError, match="'p' and 'q' share memory"):
            swap(a, b)


def test_out_over_an_inout() -> None:
    f = pf.compile("op f(inout p: f32[N]) -> (old: f32[N]) { old[i] = old(p[i]); p[i] = p[i] + 1.0 }")
    p = grid(5)
    old = f(p)
    np.testing.assert_array_equal(old, grid(5))
    np.testing.assert_array_equal(p, grid(5) + 1)


# --- bind -------------------------------------------------------------------------------------------------


def test_bound_calls_follow_the_memory() -> None:
    x, out = grid(3, 4), np.empty((3, 4), np.float32)
    g = DOUBLE.bind(x, out=out)
    for k in range(3):
        x[...] = k
        assert g() is out and (out == 2 * k).all()
    g = DOUBLE.bind(x.T)
    x[...] = 9
    assert (g() == 18).all()


def test_bound_results_of_rank_0() -> None:
    x = np.ones(5, np.float32)
    g = TOTAL.bind(x)
    assert g() == 5
    x[:] = 2
    assert g() == 10


def test_bound_memory_lives_on() -> None:
    g = AXPY.bind(grid(100_000), grid(100_000) + 1, 3.0)
    gc.collect()
    filler = [np.full(100_000, 77, np.float32) for _ in range(8)]
    np.testing.assert_array_equal(g(), 4 * grid(100_000) + 1)
    assert len(filler) == 8


def test_bound_inout_runs_again_and_again() -> None:
    p = grid(3, 4)
    g = STEP.bind(p, np.ones((3, 4), np.float32))
    for _ in range(3):
        assert g() is None
    np.testing.assert_array_equal(p, grid(3, 4) - 3)


def test_bind_refuses_what_it_would_have_to_copy() -> None:
    x, p = grid(4, 6), grid(4, 6)
    calls: list[Callable[[], object]] = [
        lambda: DOUBLE.bind(MEMORY["big endian"]()),
        lambda: DOUBLE.bind(MEMORY["unaligned"]()),
        lambda: DOUBLE.bind(x, out=x),
        lambda: DOUBLE.bind(x, out=np.empty((6, 4), np.float32).T),
        lambda: STEP.bind(p, p),
    ]
    for call in calls:
        with pytest.raises(pf.ArgumentError, match="cannot be bound"):
            call()


# --- results, threads, processes --------------------------------------------------------------------------


def test_results_are_independent() -> None:
    first, second = DOUBLE(grid(3, 4)), DOUBLE(grid(3, 4) + 1)
    assert not np.shares_memory(first, second)
    first[...] = -1
    np.testing.assert_array_equal(second, grid(3, 4) * 2 + 2)


def test_several_threads_call_one_function() -> None:
    f = pf.compile(
        """op f(x: f32[N, M]) -> (y: f32[N, M]) {
          m[n] = max[j](x[n, j])
          y[n, j] = exp(x[n, j] - m[n])
        }"""
    )
    failed: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            x = rng.standard_normal((40 + seed % 2, 900)).astype(np.float32)
            want = np.exp(x - x.max(1, keepdims=True))
            if not np.allclose(f(x), want, rtol=1e-5, atol=1e-30):
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_can_call() -> None:
    x = grid(300, 400)
    DOUBLE(x)
    assert right_in_child(lambda: bool((DOUBLE(x) == x * 2).all() and (DOUBLE(x[:7]) == x[:7] * 2).all()))
    np.testing.assert_array_equal(DOUBLE(x), x * 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_was_forked_while_another_thread_compiles_can_call() -> None:
    x = grid(3, 5)
    DOUBLE(x)
    machine = DOUBLE.built(x).executable
    assert isinstance(machine, CpuExecutable)

    def calls() -> bool:
        y = np.empty_like(x)
        return bool((DOUBLE(x, out=y) == x * 2).all() and (DOUBLE(grid(4, 7)) == grid(4, 7) * 2).all())

    with held_by_another_thread(DOUBLE._lock, isl_lock, machine._lock):
        assert right_in_child(calls)


# --- dtypes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype_goes_in_and_out(dtype: DType) -> None:
    f = pf.compile(
        f"op f(x: {dtype}[N], i: i64[N])"
        f" -> (y: {dtype}[N], z: {dtype}[N]) {{ y[n] = x[N - 1 - n]; z[n] = x[i[n]] }}"
    )
    x = (np.arange(7) % 2 if dtype.is_bool else np.arange(7)).astype(dtype.numpy)
    index = np.array([6, 0, 5, 1, 4, 2, 3])
    y, z = f(x, index)
    assert y.dtype == z.dtype == dtype.numpy
    np.testing.assert_array_equal(y, x[::-1])
    np.testing.assert_array_equal(z, x[index])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_generics_follow_the_arguments(dtype: DType) -> None:
    f = pf.compile(
        """op f[F: float](x: F[B..., H]) -> (y: F[B..., H]) {
          y[b..., h] = x[b..., h] + x[b..., 0] for h in 0..H
        }"""
    )
    for shape in ((4,), (3, 4), (2, 3, 4)):
        x = np.ones(shape, dtype.numpy)
        y = f(x)
        assert y.dtype == dtype.numpy and y.shape == shape and (y == 2).all()


def test_bf16_arithmetic_rounds_once() -> None:
    f = pf.compile("op f(x: bf16[N], y: bf16[N]) -> (z: bf16[N]) { z[i] = bf16(x[i] * y[i] + x[i]) }")
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(200).astype(ml_dtypes.bfloat16) for _ in range(2))
    wide = x.astype(np.float32) * y.astype(np.float32) + x.astype(np.float32)
    np.testing.assert_array_equal(f(x, y), wide.astype(ml_dtypes.bfloat16))


class _Foreign:
    """An array of another library, as far as DLPack shows."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_dlpack() -> None:
    np.testing.assert_array_equal(DOUBLE(_Foreign(grid(3, 4))), grid(3, 4) * 2)


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    y = DOUBLE(x)
    assert isinstance(y, torch.Tensor) and torch.equal(y, x * 2)
    assert torch.equal(DOUBLE(x.T), x.T * 2)
    p = x.clone()
    STEP(p, x)
    assert (p == 0).all()


def test_numpy_scalars_convert_like_literals() -> None:
    f = pf.compile("op f(x: f32[N], a: f32, k: i64) -> (y: f32[N]) { y[i] = a * x[i] + f32(k) }")
    x = np.arange(4, dtype=np.float32)
    for a in (np.float64(0.5), np.float32(0.5), np.float16(0.5), 0.5):
        for k in (np.int8(3), np.int64(3), 3):
            np.testing.assert_array_equal(f(x, a, k), 0.5 * x + 3)


def test_numpy_scalars_beside_an_array_of_a_generic() -> None:
    f = pf.compile("op f[F: float](x: F[N], a: F) -> (y: F[N]) { y[i] = a * x[i] }")
    x = np.arange(4, dtype=np.float32)
    assert f(x, np.float64(0.5)).dtype == np.float32


def test_threads_bound_the_chunks() -> None:
    text = "op f(x: f32[N, M]) -> (y: f32[N, M]) { y[i, j] = x[i, j] + 1.0 }"
    x = np.ones((512, 512), np.float32)
    for threads in (1, 2, 5):
        f = pf.compile(text, threads=threads)
        np.testing.assert_array_equal(f(x), x + 1)
        steps = f.built(x).executable._prepared.steps.steps
        if threads == 1:
            assert not any(s.parallel for s in steps)
