"""The short way of a call: taken for layouts seen before, left for whatever is out of the ordinary.

Each test runs with the launcher and without it: both ways are the same to the caller.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyfuse as pf
from polyfuse.runtime.cpu import fast_path
from polyfuse.runtime.cpu.launcher import Launcher
from polyfuse.runtime.cpu.memory import Arena

TEXT = """op f(inout p: f32[N], x: f32[N], a: f32, k: i32 = 2) -> (y: f32[N]) {
  y[i] = a * x[i] + f32(k)
  p[i] = p[i] + x[i]
}"""
SCALE = "op f(x: f32[N], a: f32) -> (y: f32[N]) { y[i] = a * x[i] }"


@pytest.fixture(autouse=True, params=["launcher", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(Launcher, "_tried", True)
        monkeypatch.setattr(Launcher, "_instance", None)
    elif Launcher.get() is None:
        pytest.skip("this interpreter has no launcher")
    return str(request.param)


def arrays(n: int = 24) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(n, np.float32), np.arange(n, dtype=np.float32)


def short(f: pf.Compiled, *args: object) -> Any:
    return f._short.call(args)


def is_short(f: pf.Compiled, *args: object) -> bool:
    return short(f, *args) is not NotImplemented


def test_the_second_call_takes_the_short_way(way: str) -> None:
    f = pf.compile(TEXT)
    p, x = arrays()
    assert not is_short(f, p, x, 0.5)
    first = f(p, x, 0.5)
    results = short(f, p, x, 0.25, 3)
    assert results is not NotImplemented
    assert (f._short._front is not None) == (way == "launcher")
    np.testing.assert_array_equal(first, 0.5 * x + 2)
    np.testing.assert_array_equal(results, 0.25 * x + 3)
    np.testing.assert_array_equal(p, 1 + 2 * x)


def test_results_are_new_each_time_and_have_the_operators_shape() -> None:
    f = pf.compile("op f(x: f32[N, M]) -> (y: f32[N, M]) { y[i, j] = x[i, j] + 1.0 }")
    x = np.zeros((3, 5), np.float32)
    made = [f(x) for _ in range(4)]
    assert all(y.shape == (3, 5) for y in made)
    assert len({y.__array_interface__["data"][0] for y in made}) == 4
    made[1][...] = 7
    assert all((y == 1).all() for y in (made[0], *made[2:]))


@pytest.mark.parametrize("n", [0, 1, 7, 300, fast_path.SHARED // 4 + 1, 300_000])
def test_results_of_all_sizes(n: int) -> None:
    """Small ones share memory with others of their call, never with another call; all outlive it."""
    text = """op f(x: f32[N]) -> (y: f32[N], t: f32, z: i32[N], h: f32[N, 40]) {
      y[i] = x[i] + 1.0
      t = sum[i](x[i])
      z[i] = i32(x[i])
      h[i, j] = x[i] * 2.0
    }"""
    f = pf.compile(text)
    x = (np.arange(n) % 16).astype(np.float32)
    kept = [f(x) for _ in range(4)]
    assert is_short(f, x)
    for y, t, z, h in kept:
        np.testing.assert_array_equal(y, x + 1)
        np.testing.assert_array_equal(z, x.astype(np.int32))
        np.testing.assert_array_equal(h, np.repeat(2 * x[:, None], 40, 1))
        assert type(t) is np.float32 and np.isclose(t, x.sum(dtype=np.float64))
        for a in (y, z, h):
            assert a.flags.c_contiguous and a.flags.writeable and a.ctypes.data % 64 == 0
            a[...] = 0  # of no other call
    last = f(x)[0]
    for _ in range(20):
        f(x)[0][...] = -1
    np.testing.assert_array_equal(last, x + 1)


def test_memory_out_of_the_ordinary_goes_the_long_way() -> None:
    f = pf.compile(TEXT)
    p, x = arrays()
    f(p, x, 0.5)
    assert is_short(f, p, x, 0.5)
    fixed = p.copy()
    fixed.flags.writeable = False
    assert not is_short(f, fixed, x, 0.5)
    assert is_short(f, p, fixed, 0.5)
    assert not is_short(f, p, p, 0.5)  # the input lies where the parameter is written
    both = np.ones(40, np.float32)
    assert not is_short(f, both[:24], both[16:], 0.5)
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32)
    if not odd.flags.aligned:
        assert not is_short(f, p, odd, 0.5)
    assert not is_short(f, p, x, 0.5, 2**40)
    assert not is_short(f, p, np.repeat(x, 2)[::2], 0.5)
    assert not is_short(f, p, x.astype(">f4"), 0.5)
    assert not is_short(f, p, x, np.float32(0.5))
    assert not is_short(f, p, x.view(np.recarray), 0.5)
    assert not is_short(f, p[:7], x[:7], 0.5)
    assert not is_short(f, p, x)
    assert not is_short(f, p, x, 0.5, 2, 3)


def test_unusual_memory_gives_the_same_results_after_learning() -> None:
    f = pf.compile(SCALE)
    x = np.arange(24, dtype=np.float32)
    want = 3 * x
    for _ in range(2):
        odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32)
        for other in (
            x,
            x.astype(">f4"),
            np.repeat(x, 2)[::2],
            x[::-1].copy()[::-1],
            odd,
            x.view(np.recarray),
        ):
            for a in (3.0, 3, np.float32(3), np.array(3, np.float32)):
                np.testing.assert_array_equal(f(other, a), want)


def test_names_in_any_order_take_the_short_way_too() -> None:
    f = pf.compile(TEXT)
    p, x = arrays()
    f(p, x, 0.5)
    p[...] = 1
    np.testing.assert_array_equal(f(a=0.25, p=p, x=x), 0.25 * x + 2)
    np.testing.assert_array_equal(f(p, k=5, a=0.25, x=x), 0.25 * x + 5)
    np.testing.assert_array_equal(f(p, x=x, a=0.25), 0.25 * x + 2)
    np.testing.assert_array_equal(f(p=p, x=x, a=0.5, k=1), 0.5 * x + 1)
    np.testing.assert_array_equal(p, 1 + 4 * x)
    assert f._in_order((p,), {"x": x, "a": 0.5}) == (p, x, 0.5)
    assert f._in_order((p,), {"a": 0.5, "x": x}) == (p, x, 0.5, 2)
    for wrong in ({"b": 1.0}, {"p": p}, {}):
        with pytest.raises(pf.ArgumentError):
            f(p, x, **wrong)
    out = np.empty_like(x)
    assert f(p, x, 0.5, out=out) is out


def test_strided_arrays_take_the_short_way_with_the_launcher(way: str) -> None:
    text = """op f(inout p: f32[N, M], x: f32[N, M]) -> (y: f32[N, M]) {
      y[i, j] = old(p[i, j]) - x[i, j]
      p[i, j] = p[i, j] + 2.0 * x[i, j]
    }"""
    f = pf.compile(text)
    whole = np.arange(8 * 9, dtype=np.float32).reshape(8, 9)
    views = [
        lambda m: m,
        lambda m: m[::-2, 1:7:2],
        lambda m: m.T,
        lambda m: m[2:5, 3:8],
        lambda m: m[:, ::-1],
    ]
    for view in views:
        for other in views:
            if view(whole).shape != other(whole).shape:
                continue
            for _ in range(3):
                p, x = view(whole.copy()), other(whole - 7)
                want = p - x, p + 2 * x
                np.testing.assert_array_equal(f(p, x), want[0])
                np.testing.assert_array_equal(p, want[1])
    p = whole.copy()[::2, ::3]
    f(p, p.copy())
    assert is_short(f, p, np.ones((4, 3), np.float32)) == (way == "launcher")
    assert not is_short(f, p, p)


def test_library_steps_and_what_they_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    f = pf.compile("op f(a: f32[N, K], b: f32[K, M]) -> (y: f32[N, M]) "
                   "{ t[i, j] = sum[k](a[i, k] * b[k, j])\n y[i, j] = max(t[i, j], 0.0) }",
                   library="always")  # fmt: skip
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 128), "f4"), rng.standard_normal((128, 64), "f4")
    first = f(a, b)
    assert any(x.library for x in f.built(a, b).executable.plan.launches)
    again = short(f, a, b)
    np.testing.assert_array_equal(first, again)

    def fails(array: object, operand: object) -> None:
        raise MemoryError("in the library")

    with monkeypatch.context() as m:
        m.setattr("polyfuse.runtime.cpu.blas.matrices", fails)
        with pytest.raises(MemoryError, match="in the library"):
            short(f, a, b)
    np.testing.assert_array_equal(f(a, b), first)


TWO = """op f(inout p: f32[N], x: f32[N], a: f32 = 2.0) -> (y: f32[N, 2], s: f32) {
  y[i, j] = a * x[i] + f32(j)
  s = sum[i](x[i])
  p[i] = p[i] + x[i]
}"""


def test_results_that_are_given_take_the_short_way_too(way: str) -> None:
    f = pf.compile(TWO)
    p, x = arrays()
    y, s = np.empty((24, 2), np.float32), np.empty((), np.float32)
    assert f._short_into.call((p, x), (y, s)) is NotImplemented
    f(p, x, out=(y, s))
    for k in range(3):
        y[...], s[...] = -1, -1
        found = f._short_into.call((p, x, 3.0), (y, s)) if k else f._short_into.call((p, x), (y, s))
        assert found[0] is y and found[1] is s
        np.testing.assert_array_equal(y, (3.0 if k else 2.0) * x[:, None] + np.arange(2))
        assert s == x.sum()
    np.testing.assert_array_equal(p, 1 + 4 * x)  # once when it was learnt
    assert f(p, x=x, out=(y, s))[0] is y
    assert (f._short_into.short._front is not None) == (way == "launcher")
    g = pf.compile(SCALE)
    z = np.empty_like(x)
    for k in range(3):
        assert g(x, float(k), out=z) is z and g(x, float(k), out=(z,)) is z
        np.testing.assert_array_equal(z, k * x)
    assert g._short_into.call((x, 2.0), z) is z


def test_given_results_that_do_not_fit_go_the_long_way() -> None:
    """Memory that is shared or apart, and errors: as if nothing had been learnt."""
    f, g = pf.compile(SCALE), pf.compile(TWO)
    p, x = arrays()
    z, y, s = np.empty_like(x), np.empty((24, 2), np.float32), np.empty((), np.float32)
    for _ in range(2):
        f(x, 2.0, out=z)
        g(p, x, out=(y, s))
    assert f._short_into.call((x, 2.0), z) is z
    room = np.arange(25, dtype=np.float32)
    assert f(room[:-1], 2.0, out=room[1:]) is not None
    np.testing.assert_array_equal(room, [0, *(2 * x)])
    wide = np.zeros((24, 2), np.float32)
    assert f(x, 3.0, out=wide[:, 1]).base is wide
    np.testing.assert_array_equal(wide, np.stack([0 * x, 3 * x], 1))
    fixed = np.zeros_like(x)
    fixed.flags.writeable = False
    for bad in (fixed, z[1:], z.astype(np.float64), (z, z), [1.0] * 24, "z"):
        with pytest.raises(pf.ArgumentError) as e:
            f(x, 2.0, out=bad)
        assert e.value.code == "PF418"
    for bad in ((y, p), (s, y), (y,), y, (y[:, 0].copy(), s)):
        with pytest.raises(pf.ArgumentError):
            g(p, x, out=bad)
    p[...] = 1
    found = g(p, x, out={"s": s})
    assert found[1] is s and found[0] is not y
    found = g(p, x, 5.0, out=(None, s))
    np.testing.assert_array_equal(found[0], 5 * x[:, None] + np.arange(2))
    np.testing.assert_array_equal(p, 1 + 2 * x)
    with pytest.raises(pf.ArgumentError):
        f(x, 2.0, 3.0, out=z)


def test_numbers_and_zero_dimensional_arrays() -> None:
    f = pf.compile("op f(x: f32[N], a: f32, b: f64, k: i64, c: bool) -> (y: f32[N]) "
                   "{ y[i] = (x[i] * a + f32(b)) if c else f32(k) }")  # fmt: skip
    x = np.arange(5, dtype=np.float32)
    calls = [
        (0.5, 2.0, 7, True), (1, 2, True, True), (True, 0, -(2**62), False), (0.1, 1e-30, 7, True),
        (np.array(0.5, np.float32), np.array(2.0), np.array(7), np.array(True)),
    ]  # fmt: skip
    for a, b, k, c in calls:
        first = f(x, a, b, k, c)
        again = short(f, x, a, b, k, c)
        assert again is not NotImplemented
        np.testing.assert_array_equal(first, again)
        want = x * np.float32(a) + np.float32(b) if c else np.full(5, np.float32(k))
        np.testing.assert_allclose(first, want, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)])
def test_numbers_in_half_precision_are_those_of_the_long_way(dtype: np.dtype[Any]) -> None:
    text = "op f[F: float](x: F[N], a: F = 1e-5) -> (y: F[N]) { y[i] = x[i] * a }"
    f = pf.compile(text, denormals="keep")
    x = np.array([1.0, -2.0, np.inf, 0.0], dtype)
    f(x)
    assert is_short(f, x)
    for a in (1e-5, 1 + 2.0**-8 + 2.0**-40, 1e30, -1e-40, np.nan, np.inf, 257, 2**40 + 2**32 + 1, True):
        with np.errstate(all="ignore"):
            want = (x.astype(np.float32) * np.asarray(a).astype(dtype).astype(np.float32)).astype(dtype)
        first, again = f(x, a), f(x, a)
        np.testing.assert_array_equal(first.astype(np.float64), want.astype(np.float64))
        np.testing.assert_array_equal(again.astype(np.float64), want.astype(np.float64))


def test_a_number_beyond_f32_is_infinite_on_both_ways() -> None:
    f = pf.compile(SCALE)
    x = np.ones(3, np.float32)
    assert np.isinf(f(x, 1e300)).all() and np.isinf(f(x, 1e300)).all()
    assert np.isnan(f(x, float("nan"))).all()


def test_a_number_too_large_is_an_error_on_both_ways() -> None:
    f = pf.compile(SCALE)
    x = np.ones(3, np.float32)
    assert (f(x, 3) == 3).all()
    for _ in range(2):
        with pytest.raises(pf.ArgumentError):
            f(x, 10**400)


def test_errors_are_those_of_the_long_way() -> None:
    f = pf.compile(TEXT)
    p, x = arrays()
    f(p, x, 0.5)
    with pytest.raises(pf.ArgumentError, match="does not fit"):
        f(p, x, 0.5, 2**40)
    fixed = p.copy()
    fixed.flags.writeable = False
    with pytest.raises(pf.ArgumentError, match="writable"):
        f(fixed, x, 0.5)
    for wrong in ((p, x[:7], 0.5), (p, x.astype(np.float64), 0.5), (p, x), (p, x, "a"), (p, x, 0.5, 2, 3)):
        with pytest.raises(pf.ArgumentError):
            f(*wrong)
    before = p.copy()
    np.testing.assert_array_equal(f(p, p, 1.0), before + 2)  # an input in the parameter's memory is copied
    np.testing.assert_array_equal(p, 2 * before)


def test_checked_builds_have_no_short_way() -> None:
    text = "op f(x: f32[N], i: i64[M]) -> (y: f32[M]) { y[k] = x[i[k]] }"
    f = pf.compile(text, checked=True)
    x, i = np.arange(4, dtype=np.float32), np.array([0, 3])
    f(x, i)
    with pytest.raises(pf.ArgumentError):
        f(x, np.array([0, 4]))
    assert not f._short._known


def test_many_shapes_are_learnt_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "MOST_LAYOUTS", 3)
    f = pf.compile(SCALE, sizes="fixed")
    for n in (5, 6, 7, 8, 9):
        x = np.arange(n, dtype=np.float32)
        f(x, 1.0)
        assert is_short(f, x, 2.0) == (n < 8)
        np.testing.assert_array_equal(f(x, 2.0), 2 * x)
    assert is_short(f, np.ones(5, np.float32), 2.0)


def test_many_threads_share_it() -> None:
    f = pf.compile(SCALE)
    x = np.arange(2000, dtype=np.float32)
    f(x, 1.0)
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(200):
            if not np.array_equal(f(x, float(k)), k * x):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_goes_on() -> None:
    f = pf.compile(SCALE)
    x = np.arange(50_000, dtype=np.float32)
    before = f(x, 2.0)
    f(x, 2.0)
    child = os.fork()
    if child == 0:
        right = np.array_equal(f(x, 3.0), 3 * x) and is_short(f, x, 3.0) and np.array_equal(before, 2 * x)
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(f(x, 4.0), 4 * x)


LARGE_RESULT = 1 << 19  # of f32: 2 MB


def test_memory_of_results_is_the_arenas_when_it_asks() -> None:
    f = pf.compile(SCALE)
    x = np.arange(LARGE_RESULT, dtype=np.float32)
    for _ in range(3):
        f(x, 2.0)
    arena = Arena.get()
    arena.trim()
    before = arena.stats()
    assert before.free == 0
    y = f(x, 2.0)
    assert arena.stats().used == before.used + y.nbytes
    where = y.ctypes.data
    del y
    z = f(x, 3.0)  # on the same memory, not on more of it
    assert z.ctypes.data == where and arena.stats().mapped == before.mapped + 1
    np.testing.assert_array_equal(z, 3 * x)
    del z
    assert arena.stats().used == before.used and arena.trim() == 4 * LARGE_RESULT


def test_an_arena_that_keeps_nothing(way: str) -> None:
    """With each result memory comes and goes, whoever made the call."""
    program = f"""
import numpy as np, polyfuse as pf
from polyfuse.runtime.cpu.memory import Arena
f = pf.compile({SCALE!r})
x = np.ones({LARGE_RESULT}, np.float32)
for k in range(5):
    f(x, 2.0)
stats = Arena.get().stats()
assert stats.mapped == 5 and stats.used == stats.free == stats.reused == 0, stats
"""
    env = {**os.environ, "POLYFUSE_ARENA_BYTES": "0", "POLYFUSE_LAUNCHER": "1" if way == "launcher" else "0"}
    subprocess.run([sys.executable, "-c", program], check=True, env=env)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_writes_to_none_of_the_parents_memory() -> None:
    f = pf.compile(SCALE)
    x = np.ones(LARGE_RESULT, np.float32)
    for _ in range(3):
        y = f(x, 2.0)
    where = y.ctypes.data
    del y
    child = os.fork()
    if child == 0:
        free = Arena.get().stats().free
        z = f(x, 3.0)
        after = Arena.get().stats()
        os._exit(0 if (free, after.mapped, after.reused) == (0, 1, 0) and (z == 3).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert f(x, 4.0).ctypes.data == where


class Other(np.ndarray):
    """An array that the short way does not take."""


@pytest.mark.parametrize("kind", [np.ndarray, Other])
@pytest.mark.parametrize("n", [1000, 300_000])
def test_finalisers_that_call_the_same_function(kind: type, n: int) -> None:
    """The garbage collector runs them anywhere in a call, by the thread that is in it."""
    f = pf.compile(SCALE)
    mine, theirs = (np.full(n, v, np.float32).view(kind) for v in (1, 7))

    class Late:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            found.append(f(theirs, 5.0)[-1])

    found: list[float] = []
    f(mine, 2.0)
    thresholds = gc.get_threshold()
    try:
        for k in range(300):
            Late()
            gc.set_threshold(1 + k % 23, 1, 1)
            assert f(mine, 2.0)[-1] == 2
    finally:
        gc.set_threshold(*thresholds)
    assert found and set(found) == {35}
