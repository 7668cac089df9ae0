"""The short way of a call: taken for layouts seen before, left for whatever is out of the ordinary."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.runtime.quick import QuickCall, layout

TEXT = """op f(inout p: f32[N], x: f32[N], a: f32, k: i32 = 2) -> (y: f32[N]) {
  y[i] = a * x[i] + f32(k)
  p[i] = p[i] + x[i]
}"""


def arrays(n: int = 24) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(n, np.float32), np.arange(n, dtype=np.float32)


def quick_of(f: pf.Compiled, *args: object) -> QuickCall | None:
    return f._quick.get(layout((*args, *f._defaults[len(args) :])))


def test_the_second_call_takes_the_short_way() -> None:
    f = pf.compile(TEXT)
    p, x = arrays()
    first = f(p, x, 0.5)
    quick = quick_of(f, p, x, 0.5)
    assert quick is not None
    results = quick((p, x, 0.25, 3))
    assert results is not None
    np.testing.assert_array_equal(first, 0.5 * x + 2)
    np.testing.assert_array_equal(results[0], 0.25 * x + 3)
    np.testing.assert_array_equal(p, 1 + 2 * x)


def test_results_are_new_each_time_and_have_the_operators_shape() -> None:
    f = pf.compile("op f(x: f32[N, M]) -> (y: f32[N, M]) { y[i, j] = x[i, j] + 1.0 }")
    x = np.zeros((3, 5), np.float32)
    made = [f(x) for _ in range(4)]
    assert all(y.shape == (3, 5) for y in made)
    assert len({y.__array_interface__["data"][0] for y in made}) == 4


def test_memory_out_of_the_ordinary_goes_the_long_way() -> None:
    f = pf.compile(TEXT)
    p, x = arrays()
    f(p, x, 0.5)
    quick = quick_of(f, p, x, 0.5)
    assert quick is not None
    fixed = p.copy()
    fixed.flags.writeable = False
    assert quick((fixed, x, 0.5, 2)) is None
    assert quick((p, p, 0.5, 2)) is None  # the input lies where the parameter is written
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32)
    if not odd.flags.aligned:
        assert quick((p, odd, 0.5, 2)) is None
    assert quick((p, x, 0.5, 2**40)) is None


def test_a_number_beyond_f32_is_infinite_on_both_ways() -> None:
    f = pf.compile("op f(x: f32[N], a: f32) -> (y: f32[N]) { y[i] = a * x[i] }")
    x = np.ones(3, np.float32)
    assert np.isinf(f(x, 1e300)).all() and np.isinf(f(x, 1e300)).all()


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
    assert not f._quick


def test_many_threads_share_it() -> None:
    f = pf.compile("op f(x: f32[N], a: f32) -> (y: f32[N]) { y[i] = a * x[i] }")
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
