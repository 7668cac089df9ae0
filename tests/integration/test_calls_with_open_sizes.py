"""Kernels with open sizes: calls at sizes not seen before, on the borders of their regions, from threads; how
many compilations there are; and that nothing stays behind."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from open_calls import check_call

import polyfuse as pf
from polyfuse.driver import compiled as driver
from polyfuse.driver.compiled import MOST_INSTANCES
from polyfuse.runtime.cpu.launcher import Launcher

Array = np.ndarray[Any, np.dtype[Any]]

SCALE = "op f(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = 2.0 * x[t, h] }"
ROWS = "op f(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] - max[k](x[t, k]) }"
FILTER = "op f(x: f32[T], w: f32[R]) -> (y: f32[T-R+1]) { y[t] = sum[r](w[r] * x[t+r]) }"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The fixed sizes of each compilation that a test asks for."""
    made: list[dict[str, int]] = []
    build = driver.build

    def noted(graph: Any, sizes: Any, **more: Any) -> Any:
        made.append(dict(sizes))
        return build(graph, sizes, **more)

    monkeypatch.setattr(driver, "build", noted)
    return made


@pytest.fixture(params=["launcher", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(Launcher, "_tried", True)
        monkeypatch.setattr(Launcher, "_instance", None)
    elif Launcher.get() is None:
        pytest.skip("this interpreter has no launcher")
    return str(request.param)


def grid(*shape: int, dtype: Any = np.float32) -> Array:
    return ((np.arange(np.prod(shape)) * 7) % 31 - 15).astype(dtype).reshape(shape)


def is_short(f: pf.Compiled, *args: object) -> bool:
    return f._short.call(args) is not NotImplemented


# --- how many compilations --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "interpret", "emulate"])
def test_two_shapes_cost_two_compilations_and_a_third_none(
    target: str, compilations: list[dict[str, int]]
) -> None:
    f = pf.compile(ROWS, target=target, sizes="auto")
    for t, h in ((3, 5), (4, 5), (7, 5), (1, 5), (64, 5), (3, 5)):
        x = grid(t, h)
        np.testing.assert_array_equal(f(x), x - x.max(1, keepdims=True))
    assert compilations == [{"T": 3, "H": 5}, {"H": 5}]
    assert [v.open for v in f.variants] == [(), ("T",)]


def test_an_option_and_a_mapping_say_which_sizes_are_open(compilations: list[dict[str, int]]) -> None:
    f = pf.compile(SCALE, sizes={"T": pf.open, "H": 6})
    for t in (1, 2, 33):
        np.testing.assert_array_equal(f(grid(t, 6)), 2 * grid(t, 6))
    assert compilations == [{"H": 6}]
    with pytest.raises(pf.ArgumentError, match="PF515"):
        f(grid(2, 7))
    f = pf.compile(SCALE, sizes="open", options=pf.Options(threads=1))
    assert f.options.sizes == "open" and f.options.threads == 1
    assert pf.Options().sizes == "auto"
    f = pf.compile(SCALE, sizes="fixed")
    f(grid(2, 6)), f(grid(3, 6))
    assert len(compilations) == 3 and not any(v.open for v in f.variants)


def test_sizes_of_a_rank_variable_have_names(compilations: list[dict[str, int]]) -> None:
    """Those that variants print: of an axis that a call does not have nothing is asked."""
    text = "op f(x: f32[B..., H]) -> (y: f32[B..., H]) { y[b..., h] = 2.0 * x[b..., h] }"
    f = pf.compile(text, sizes={"B_0": pf.open, "B_1": 2})
    for shape in ((3, 4), (5, 4), (5, 2, 4)):
        np.testing.assert_array_equal(f(grid(*shape)), 2 * grid(*shape))
    assert compilations == [{"H": 4}, {"B_1": 2, "H": 4}]
    with pytest.raises(pf.ArgumentError, match="PF515"):
        f(grid(5, 3, 4))
    for name in ("B", "B_", "B_x", "C_0"):
        with pytest.raises(pf.ArgumentError, match="PF412"):
            pf.compile(text, sizes={name: pf.open})


def test_a_size_parameter_that_is_fixed_need_not_be_given(compilations: list[dict[str, int]]) -> None:
    text = "op g[T: size](x: f32[N]) -> (y: f32[N, T]) { y[i, t] = x[i] }"
    f = pf.compile(text, sizes={"T": 4, "N": pf.open})
    assert [f(grid(3)).shape, f(grid(2)).shape, f(grid(3), T=4).shape] == [(3, 4), (2, 4), (3, 4)]
    assert compilations == [{"T": 4}]
    with pytest.raises(pf.ArgumentError, match="PF515"):
        f(grid(3), T=5)


@pytest.mark.parametrize(
    ("sizes", "code"),
    [("wide", "PF490"), (3, "PF490"), ({"K": 3}, "PF412"), ({"T": -1}, "PF412"), ({"T": "open"}, "PF412")],
)
def test_what_says_nothing_of_sizes_is_refused(sizes: Any, code: str) -> None:
    with pytest.raises(pf.ArgumentError, match=code):
        pf.compile(SCALE, sizes=sizes)


def test_variants_are_told(compilations: list[dict[str, int]]) -> None:
    f = pf.compile(SCALE, sizes="auto")
    f(grid(3, 5))
    assert "variant" not in f.explain(grid(3, 5))
    f(grid(4, 5))
    told = f.explain(grid(9, 5))
    assert "- variant 0: T = 3, H = 5" in told
    assert "+ variant 1: T >= 1, T <= 1099511627776, H = 5: sizes are parameters" in told
    assert "+ variant 0: T = 3, H = 5" in f.explain(grid(3, 5))
    assert len(compilations) == 2


def test_a_pickle_has_the_choice_of_sizes() -> None:
    f = pf.compile(SCALE, sizes={"T": pf.open})
    again = pickle.loads(pickle.dumps(f))
    again(grid(3, 5))
    assert [v.open for v in again.variants] == [("T",)]


# --- right at every size ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", ["open", "auto"])
def test_sizes_on_the_border_and_beyond(sizes: str, way: str) -> None:
    """Inside a region, on its border, and outside, where other kernels or an error come."""
    op = pf.parse(FILTER).op("f")
    f, graph = pf.compile(op, sizes=sizes), op.graph()
    for t, r in ((9, 3), (10, 4), (4, 4), (3, 4), (5, 1), (1, 1), (0, 1), (9, 3), (1, 0), (0, 0), (2, 3)):
        check_call(f, graph, {"T": t, "R": r}, seed=t)
    with pytest.raises(pf.ArgumentError, match="PF409"):
        f(grid(2), grid(4))


def test_constraints_hold_at_each_call(way: str) -> None:
    f = pf.compile(
        "op f(x: f32[T], w: f32[R]) -> (y: f32[T]) where T % R == 0, T <= 64 { y[t] = x[t] + w[t % R] }",
        sizes={"T": pf.open},
    )
    w = grid(4)
    for t in (8, 64, 4, 60):
        np.testing.assert_array_equal(f(grid(t), w), grid(t) + np.resize(w, t))
    for t in (7, 65, 68):
        with pytest.raises(pf.ArgumentError, match="PF407"):
            f(grid(t), w)
    assert len(f.variants) == 1


def test_extents_that_disagree_are_refused(way: str) -> None:
    f = pf.compile("op f(x: f32[T], y: f32[T+1]) -> (z: f32[T]) { z[t] = x[t] + y[t+1] }", sizes="open")
    for t in (5, 6, 1, 40):
        np.testing.assert_array_equal(f(grid(t), grid(t + 1)), grid(t) + grid(t + 1)[1:])
    for other in (6, 8):
        with pytest.raises(pf.ArgumentError, match="PF405"):
            f(grid(6), grid(other))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("softmax", ((3, 5), (1, 1), (4, 64), (33, 7), (2, 1000))),
        ("relu", ((3, 5), (1, 1), (4, 64), (33, 7))),
        ("cumsum", ((3, 5), (1, 1), (4, 64), (33, 7))),
    ],
)
def test_open_and_fixed_kernels_have_the_same_results(name: str, shapes: tuple[tuple[int, int], ...]) -> None:
    """Sums of these integers are exact in any order."""
    at, fixed = (pf.compile(pf.stdlib, name, sizes=s) for s in ("open", "fixed"))
    for shape in shapes:
        x = grid(*shape)
        if name == "softmax":
            np.testing.assert_allclose(at(x), fixed(x), rtol=1e-6)
        else:
            np.testing.assert_array_equal(at(x), fixed(x))
    assert len(at.variants) <= 2 and len(fixed.variants) == len(shapes)


def test_layouts_of_arguments_have_variants_of_their_own(way: str) -> None:
    f = pf.compile(ROWS, sizes="open")
    for _ in range(2):
        for t, h in ((3, 5), (8, 16), (1, 7), (7, 1), (40, 33)):
            x = grid(t, h)
            wide = np.zeros((t, 2 * h + 1), np.float32)
            wide[:, 1::2] = x
            turned = np.ascontiguousarray(x.T).T
            for a in (x, wide[:, 1::2], turned, x[::-1], wide[::-1, 1::2]):
                np.testing.assert_array_equal(f(a), a - a.max(1, keepdims=True))
    assert len(f.variants) <= 6


def test_rows_of_all_lengths_are_right(way: str, compilations: list[dict[str, int]]) -> None:
    """On both sides of the lengths at which other kernels begin, and several rows at a time."""
    f, norm = pf.compile(ROWS, sizes="auto"), pf.compile(pf.stdlib, "softmax", sizes="auto")
    for h in (
        77,
        78,
        1,
        2,
        15,
        16,
        17,
        63,
        64,
        65,
        256,
        257,
        511,
        512,
        513,
        1280,
        1281,
        4095,
        4096,
        4097,
        9001,
    ):
        for t in (1, 3, 18):
            x = grid(t, h)
            np.testing.assert_array_equal(f(x), x - x.max(1, keepdims=True))
            e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
            np.testing.assert_allclose(norm(x), e / e.sum(1, keepdims=True), rtol=2e-6, atol=1e-12)
    assert len(compilations) == 2 * 4  # fixed, one size open, and two lengths of rows


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2**31 + 5, 1), (3, 2**30 - 7), (2**16 + 1, 2**15 + 3)])
def test_more_elements_than_32_bits_count(shape: tuple[int, int]) -> None:
    room = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if room < 4 * shape[0] * shape[1]:
        pytest.skip("there is no room for so many elements")
    f = pf.compile("op f(x: i8[T, H]) -> (y: i8[T, H]) { y[t, h] = x[t, h] + 1 }", sizes="open")
    f(np.zeros((3, 5), np.int8))
    x = np.zeros(shape, np.int8)
    x[-1, -1], x[shape[0] // 2, shape[1] // 2] = 7, 5
    y = f(x)
    x += 1
    assert np.array_equal(y, x) and len(f.variants) <= 2


def test_memory_that_meets_is_told_at_new_sizes(way: str) -> None:
    f = pf.compile("op f(inout p: f32[T], x: f32[T]) { p[t] = p[t] + x[t] }", sizes="open")
    for t in (4, 9):
        p = grid(t)
        f(p, grid(t))
        np.testing.assert_array_equal(p, 2 * grid(t))
    both = grid(20)
    wanted = both[:8] + both[4:12]
    f(both[:8], both[4:12].copy())
    np.testing.assert_array_equal(both[:8], wanted)
    assert not is_short(f, both[:8], both[4:12])
    assert (way != "launcher") or is_short(f, both[:8], both[8:16])
    frozen = grid(8)
    frozen.flags.writeable = False
    assert not is_short(f, frozen, grid(8))


def test_results_into_memory_of_the_caller(way: str) -> None:
    f = pf.compile(SCALE, sizes="open")
    for t, h in ((3, 5), (4, 6), (1, 9), (100, 3)):
        y = np.zeros((t, h), np.float32)
        assert f(grid(t, h), out=y) is y
        np.testing.assert_array_equal(y, 2 * grid(t, h))
        with pytest.raises(pf.ArgumentError):
            f(grid(t, h), out=np.zeros((t, h + 1), np.float32))


def test_size_parameters_may_be_open(compilations: list[dict[str, int]]) -> None:
    f = pf.compile(
        "op f[K: size](x: f32[T]) -> (y: f32[T+K]) { y[t] = x[t] if t < T else 0.0 }", sizes="open"
    )
    for t, k in ((3, 2), (5, 1), (4, 7)):
        np.testing.assert_array_equal(f(grid(t), K=k), np.pad(grid(t), (0, k)))
    assert compilations == [{}]


# --- the short way ----------------------------------------------------------------------------------------


def test_a_call_at_new_sizes_takes_the_short_way() -> None:
    if Launcher.get() is None:
        pytest.skip("this interpreter has no launcher")
    f = pf.compile(ROWS, sizes="open")
    f(grid(3, 5))
    for t, h in ((4, 5), (1, 1), (17, 128), (6000, 70)):
        assert is_short(f, grid(t, h))
    assert not is_short(f, grid(0, 5)) and not is_short(f, grid(3, 5).astype(np.float64))
    assert not is_short(f, grid(3, 5).T) and not is_short(f, grid(3))


def test_variants_with_the_same_code_are_both_learnt() -> None:
    if Launcher.get() is None:
        pytest.skip("this interpreter has no launcher")
    f = pf.compile(SCALE, sizes="open")
    for t, h in ((3, 5), (3, 5000)):
        f(grid(t, h))
        assert is_short(f, grid(t + 1, h + 1))
    assert len(f.variants) == 2


def test_more_sizes_than_are_kept_take_turns() -> None:
    """What a call needs is kept for the sizes seen last; others, and other strides, go on being right."""
    if Launcher.get() is None:
        pytest.skip("this interpreter has no launcher")
    f, add = (
        pf.compile(ROWS, sizes="open"),
        pf.compile("op g(inout p: f32[T], x: f32[T]) { p[t] = p[t] + x[t] }", sizes="open"),
    )
    for _ in range(3):
        for t in (*range(1, 40), *range(5, 9)):
            x = grid(t, 2 * t + 1)
            np.testing.assert_array_equal(f(x), x - x.max(1, keepdims=True))
            np.testing.assert_array_equal(f(x[:, ::2]), x[:, ::2] - x[:, ::2].max(1, keepdims=True))
            p, both = grid(t), grid(2 * t)
            add(p, x[:, 0].copy())
            np.testing.assert_array_equal(p, grid(t) + x[:, 0])
            wanted = both[:t] + both[t // 2 : t // 2 + t]
            add(both[:t], both[t // 2 : t // 2 + t])  # they meet
            np.testing.assert_array_equal(both[:t], wanted)
    assert is_short(f, grid(39, 79)) and is_short(f, grid(1, 3))


def test_sizes_that_are_kept_give_way_to_kernels_that_know_them(compilations: list[dict[str, int]]) -> None:
    f = pf.compile(ROWS, sizes="open")
    x = grid(3, 5)
    f(x), f(x)
    f._instances.clear()
    f._in_background(f._key({"x": x}), f._wanted({"x": x}), own=True)
    np.testing.assert_array_equal(f(x), x - x.max(1, keepdims=True))
    assert compilations == [{}, {"T": 3, "H": 5}] and "+ variant 0: T = 3, H = 5" in f.explain(x)


def test_temporaries_are_placed_for_each_size() -> None:
    """Kernels with memory between them, at sizes at which it shares and does not share its places."""
    text = """op f(x: f32[T, H]) -> (y: f32[H, T], z: f32) {
      a[t, h] = x[t, h] + 1.0
      b[h, t] = a[t, h] * 2.0
      c[h] = sum[t](b[h, t])
      y[h, t] = b[h, t] - c[h]
      z = sum[h](c[h])
    }"""
    f = pf.compile(text, layers=(), sizes="open")
    for t, h in ((3, 5), (1, 1), (300, 2), (2, 300), (400, 500), (31, 33), (3, 5)):
        x = grid(t, h)
        b = 2 * (x + 1).T
        y, z = f(x)
        np.testing.assert_array_equal(y, b - b.sum(1, keepdims=True))
        assert z == b.sum()
    assert len(f.variants) <= 4


def _random_shapes(count: int, seed: int) -> Iterator[tuple[int, int]]:
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.randint(1, 90), rng.randint(1, 300)


def _bytes_in_c() -> int:
    """What is allocated by `malloc`; 0 where the C library does not tell."""
    try:
        found = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return 0
    fields = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    fields += ("fordblks", "keepcost")
    found.restype = type("Info", (ctypes.Structure,), {"_fields_": [(n, ctypes.c_size_t) for n in fields]})
    told = found()
    return int(told.uordblks + told.hblkhd)


def test_calls_with_random_sizes_leave_nothing_behind(way: str, compilations: list[dict[str, int]]) -> None:
    f = pf.compile(ROWS, sizes="auto", threads=1)
    count = 10_000 if way == "launcher" else 1_500
    memory = grid(90 * 300)

    def call(t: int, h: int) -> None:
        x = memory[: t * h].reshape(t, h)
        assert f(x)[-1, -1] == x[-1, -1] - x[-1].max()

    for t, h in _random_shapes(3 * MOST_INSTANCES, 1):
        call(t, h)
    gc.collect()
    before, in_c = sys.getallocatedblocks(), _bytes_in_c()
    for t, h in _random_shapes(count, 2):
        call(t, h)
    gc.collect()
    assert sys.getallocatedblocks() - before < count // 3  # less than one for each call
    assert _bytes_in_c() - in_c < 100 * count  # what C keeps of sizes takes more than that
    assert len(f.variants) <= len(compilations) <= 4
    assert len(f._instances) <= MOST_INSTANCES


def test_a_function_with_fixed_sizes_forgets_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MOST_INSTANCES", 3)
    f = pf.compile(SCALE, target="interpret", sizes="fixed")
    for t in range(1, 8):
        f(grid(t, 2))
    assert [v.fixed["T"] for v in f.variants] == [5, 6, 7]


# --- threads ----------------------------------------------------------------------------------------------


def together(tasks: list[Callable[[], None]]) -> None:
    """Run tasks in threads that begin at the same time; raises what went wrong in one."""
    start, failures = threading.Barrier(len(tasks)), []

    def run(task: Callable[[], None]) -> None:
        start.wait()
        try:
            task()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(t,)) for t in tasks]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("sizes", ["open", "auto", "fixed"])
def test_threads_that_meet_a_new_size_compile_once(sizes: str, compilations: list[dict[str, int]]) -> None:
    f = pf.compile(ROWS, sizes=sizes)
    f(grid(2, 3))
    del compilations[:]

    def call() -> None:
        np.testing.assert_array_equal(f(grid(5, 3)), grid(5, 3) - grid(5, 3).max(1, keepdims=True))

    together([call] * 4)
    assert len(compilations) == (0 if sizes == "open" else 1)


def test_threads_call_at_sizes_of_their_own() -> None:
    f = pf.compile(ROWS, sizes="auto")
    f(grid(2, 3)), f(grid(3, 4))

    def calls(seed: int) -> None:
        for t, h in _random_shapes(300, seed):
            x = grid(t, h)
            np.testing.assert_array_equal(f(x), x - x.max(1, keepdims=True))

    together([lambda s=s: calls(s) for s in range(4)])  # type: ignore[misc]
    assert len(f.variants) <= 3


# --- large ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_than_two_to_the_31_elements() -> None:
    pages = 0
    with open("/proc/meminfo") as lines:
        pages = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    if pages < 8 << 20:
        pytest.skip("needs 8 GB of memory")
    f = pf.compile("op f(x: i8[T]) -> (y: i8) { y = max[t](x[t]) }", sizes="open")
    assert f(np.array([3, 5, 1], np.int8)) == 5
    x = np.zeros(2**31 + 7, np.int8)
    x[-1] = 9
    assert f(x) == 9 and len(f.variants) == 1
