"""The launcher: what it reads of arrays and numbers, what it declines, and that it leaks nothing."""

from __future__ import annotations

import ctypes
import errno
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from polyfuse.runtime.cpu import launcher
from polyfuse.runtime.cpu.launcher import (
    CODES,
    ArrayArgument,
    Block,
    Front,
    Launcher,
    LaunchLayout,
    NumberArgument,
    Prepared,
    Result,
)

RUN = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
)
F32 = np.dtype(np.float32)
Kernel = Callable[[Any], int]


@pytest.fixture
def start() -> Launcher:
    found = Launcher.get()
    if found is None:
        pytest.skip("this interpreter has no launcher")
    return found


def layout_of(kernel: Kernel, buffers: int, arguments: list[Any], results: list[Result], **more: Any) -> Any:
    """A layout whose kernel is a Python function of the pointer table, and what to keep alive."""
    run = RUN(lambda steps, n, table, numbers, scratch, flags: kernel(table))
    address = ctypes.cast(run, ctypes.c_void_p).value
    assert address is not None
    nothing = (ctypes.c_int64 * 1)()
    prepared = Prepared(address, nothing, 0, nothing, 0, 0, buffers + 1)
    rest = {"shared": 64 * len(results), "spaces": (), "space_bytes": 0, "space_block": -1}
    rest |= {"blocks": (), "finish": None}
    return LaunchLayout(prepared, arguments, results, **{**rest, **more}), run


def array(place: int, *shape: int, written: bool = False) -> ArrayArgument:
    return ArrayArgument(F32, shape, None, place, -1, written)


def front_of(start: Launcher, layout: Any, *, defaults: tuple[object, ...] | None = None) -> Front:
    front = start.front(defaults or (None,) * len(layout[0].arguments), 4)
    front.add(*layout)
    return front


def test_this_interpreter_is_known() -> None:
    if sys.implementation.name != "cpython" or hasattr(sys, "gettotalrefcount"):
        pytest.skip("an interpreter without a launcher")
    assert launcher.trusted()
    assert launcher.functions() is not None
    assert Launcher.get() is not None


def test_counts_of_references_elsewhere_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launcher._counted()
    shared = np.zeros(1)
    monkeypatch.setattr(np, "empty", lambda n: shared)  # has another owner
    assert not launcher._counted()


def test_an_interpreter_that_differs_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_FIELDS", 70)
    assert not launcher.trusted()


def test_a_field_elsewhere_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.zeros((2, 3), np.float32)
    assert launcher._array_as_expected(a)
    monkeypatch.setattr(launcher, "_HEAD", 8)
    assert not launcher._array_as_expected(a)
    monkeypatch.setattr(launcher, "_HEAD", 24)
    assert not launcher._array_as_expected(a)


def test_another_interface_of_numpy_has_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_INTERFACE", 0x3000000)
    assert launcher.functions() is None


def test_the_variable_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launcher.ENV_LAUNCHER, "0")
    assert Launcher._load() is None


def converted(start: Launcher, kind: type, code: str, dtype: Any, values: list[Any]) -> list[Any]:
    """What kernels read for Python numbers; None where the launcher declines."""
    seen: list[Any] = []

    def kernel(table: Any) -> int:
        raw = ctypes.string_at(table[0], np.dtype(dtype).itemsize)
        seen.append(np.frombuffer(raw, dtype)[0])
        return 0

    front = front_of(start, layout_of(kernel, 1, [NumberArgument(kind, code, 0)], []))
    for x in values:
        if front.call((x,)) is NotImplemented:
            seen.append(None)
    return seen


@pytest.mark.parametrize(
    ("code", "dtype"), [("f64", "f8"), ("f32", "f4"), ("f16", "f2"), ("bf16", ml_dtypes.bfloat16)]
)
def test_floats_convert_as_numpy_does(start: Launcher, code: str, dtype: Any) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)[:: 37 if code not in ("f16", "bf16") else 1]
    every_half = bits.view(ml_dtypes.bfloat16 if code == "bf16" else np.float16)
    with np.errstate(invalid="ignore"):
        wide = every_half.astype(np.float64)
    halves = wide[np.isfinite(wide)]
    between = (np.sort(halves)[:-1] + np.sort(halves)[1:]) / 2
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        65519.999,
        65520.0,
        1e300,
        -1e300,
        5e-324,
        3.4028235677973366e38,
        3.3961775292304957e38,
        1 + 2.0**-8 + 2.0**-40,
    ]
    values = [
        *halves[::5].tolist(),
        *between[::5].tolist(),
        *np.nextafter(between[::5], 9).tolist(),
        *special,
    ]
    with np.errstate(all="ignore"):
        want = np.array(values).astype(dtype).astype(np.float64)
    got = np.array(converted(start, float, code, dtype, values), np.float64)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("code", CODES)
def test_ints_and_bools_convert_as_numpy_does_or_are_declined(start: Launcher, code: str) -> None:
    dtype = {"f64": "f8", "f32": "f4", "f16": "f2", "bool": "?", "u8": "u1"}.get(code, f"i{code[1:]}")
    dtype = {"u16": "u2", "u32": "u4", "u64": "u8"}.get(code, dtype)
    dtype = {"i64": "i8", "i32": "i4", "i16": "i2", "i8": "i1"}.get(code, dtype)
    dtype = ml_dtypes.bfloat16 if code == "bf16" else dtype
    values = [0, 1, -1, 127, 128, -129, 255, 256, 2**15, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63, 10**30]
    values += [16777217, 33554435, 2049, 65504, 65519, 65520]
    got = converted(start, int, code, dtype, values)
    for x, y in zip(values, got, strict=True):
        fits = code.lstrip("b").startswith("f") and abs(x) < 2**63
        if code[0] in "iu":
            fits = np.iinfo(dtype).min <= x <= min(np.iinfo(dtype).max, 2**63 - 1)
        with np.errstate(all="ignore"):
            assert y == (np.asarray(x).astype(dtype)[()] if fits else None), (x, y)
    assert converted(start, bool, code, dtype, [True, False]) == [1, 0]
    assert converted(start, int, code, dtype, [True, 1.0, np.int64(1), None]) == [None] * 4


def test_arrays_that_differ_in_anything_are_declined(start: Launcher) -> None:
    seen: list[int] = []

    def kernel(table: Any) -> int:
        seen.append(table[0])
        return 0

    front = front_of(start, layout_of(kernel, 1, [array(0, 3, 4)], []))

    class Mine(np.ndarray):  # type: ignore[type-arg]
        pass

    good = np.zeros((3, 4), np.float32)
    assert front.call((good,)) is None
    assert seen == [good.ctypes.data]
    fixed = good.copy()
    fixed.flags.writeable = False
    assert front.call((fixed,)) is None  # it is only read
    unaligned = np.zeros(49, np.uint8)[1:].view(np.float32).reshape(3, 4)
    others = [
        good.T, good[:2], np.zeros((3, 8), np.float32)[:, ::2], good[::-1], good.astype(">f4"), unaligned,
        good.astype(np.int32), good.astype(np.float64), good.reshape(12), good.reshape(3, 4, 1), good[0, 0],
        np.asfortranarray(good), good.view(Mine), np.ma.masked_array(good), good.tolist(), None, 1.0, b"",
    ]  # fmt: skip
    for other in others:
        assert front.call((other,)) is NotImplemented
    assert front.call(()) is NotImplemented
    assert front.call((good, good)) is NotImplemented
    assert len(seen) == 2


def test_strided_arrays_have_to_have_the_same_strides(start: Launcher) -> None:
    m = np.zeros((8, 6), np.float32)
    x = m[::-2, 1:4]
    argument = ArrayArgument(F32, x.shape, x.strides, 0, -1, True)
    assert argument.memory() == (-144, 156)
    front = front_of(start, layout_of(lambda table: 0, 2, [argument, array(1, 3)], []))
    y = np.zeros(3, np.float32)
    assert front.call((x, y)) is None
    for other in (m[:4, 1:4], m[::2, 1:4], x.copy(), m[::-2, ::2]):
        assert front.call((other, y)) is NotImplemented
    assert front.call((x, m[0, :3])) is None  # before the first byte of x
    assert front.call((x, m[1, 1:4])) is NotImplemented
    assert front.call((x, m[7, 1:4])) is NotImplemented
    assert front.call((x, m[1, 4:].repeat(2)[:3])) is None
    assert front.call((m[::-2, 2:5], m[7, 1:4])) is NotImplemented  # in between: bounds decide


def test_memory_that_is_written_meets_no_other(start: Launcher) -> None:
    arguments = [array(0, 4, written=True), array(1, 4), array(2, 4, written=True)]
    front = front_of(start, layout_of(lambda table: 0, 3, arguments, []))
    m = np.zeros(64, np.float32)
    for a, b, c, fine in [
        (0, 4, 8, True), (8, 4, 0, True), (0, 3, 8, False), (3, 0, 8, False), (0, 4, 7, False),
        (0, 8, 0, False), (0, 8, 3, False), (0, 40, 20, True), (0, 0, 8, False), (0, 4, 8, True),
        (20, 20, 8, False),
    ]:  # fmt: skip
        for _ in range(2):
            taken = front.call((m[a : a + 4], m[b : b + 4], m[c : c + 4])) is None
            assert taken == fine, (a, b, c)
    fixed = m[8:12]
    fixed.flags.writeable = False
    assert front.call((m[:4], m[4:8], fixed)) is NotImplemented
    reads = front_of(start, layout_of(lambda table: 0, 2, [array(0, 4), array(1, 4)], []))
    assert reads.call((m[:4], m[2:6])) is None


def test_results_are_fresh_aligned_and_hold_their_memory(start: Launcher) -> None:
    def kernel(table: Any) -> int:
        ctypes.memset(table[0], 0, 24)
        ctypes.memset(table[1], 0, 4)
        return 0

    results = [Result(F32, (2, 3), 0, -1, 0), Result(F32, (), 1, -1, 64), Result(F32, (0, 5), 2, -1, 128)]
    front = front_of(start, layout_of(kernel, 3, [], results))
    kept = [front.call(()) for _ in range(50)]
    for k, (y, number, empty) in enumerate(kept):
        assert type(y) is np.ndarray and y.shape == (2, 3) and y.dtype is F32
        assert y.flags.c_contiguous and y.flags.writeable and y.flags.aligned and y.ctypes.data % 64 == 0
        assert type(number) is np.float32 and number == 0
        assert empty.shape == (0, 5)
        y += k
    gc.collect()
    for k, (y, _, _) in enumerate(kept):
        assert (y == k).all()


def test_defaults_stand_for_arguments_that_are_left_out(start: Launcher) -> None:
    seen: list[float] = []

    def kernel(table: Any) -> int:
        seen.append(ctypes.c_double.from_address(table[1]).value)
        return 0

    arguments = [array(0, 2), NumberArgument(float, "f64", 1)]
    front = front_of(start, layout_of(kernel, 2, arguments, []), defaults=(None, 2.5))
    x = np.zeros(2, np.float32)
    assert front.call((x,)) is None and front.call((x, 3.5)) is None
    assert front.call(()) is NotImplemented
    assert seen == [2.5, 3.5]


def test_no_memory_is_an_exception_and_frees_the_results(start: Launcher) -> None:
    front = front_of(start, layout_of(lambda table: errno.ENOMEM, 1, [], [Result(F32, (2,), 0, -1, 0)]))
    for _ in range(100):
        with pytest.raises(MemoryError):
            front.call(())


@pytest.fixture
def nothing_kept(start: Launcher) -> Iterator[None]:
    """Blocks of tests are not taken by others, nor the other way round."""
    start._library.pf_launcher_forget()
    yield
    start._library.pf_launcher_forget()


@pytest.mark.usefixtures("nothing_kept")
def test_what_the_allocator_raises_gets_out(start: Launcher) -> None:
    def fails() -> Any:
        raise MemoryError("no blocks")

    def wrong() -> Any:
        return b"no array"

    results = [Result(F32, (2,), 0, 1, 0), Result(F32, (2,), 1, -1, 0)]
    fine = Block(111, lambda: np.zeros(111, np.uint8))
    for allocate, error in ((fails, MemoryError), (wrong, RuntimeError)):
        blocks = (fine, Block(222, allocate))
        front = front_of(start, layout_of(lambda table: 0, 2, [], results, blocks=blocks))
        for _ in range(3):
            with pytest.raises(error):
                front.call(())


def test_what_steps_in_python_raise_gets_out_after_the_run(start: Launcher) -> None:
    failures: list[Exception] = []

    def kernel(table: Any) -> int:
        failures.append(ValueError("in a step"))
        return 0

    def finish() -> None:
        raise failures.pop()

    results = [Result(F32, (2,), k, -1, 64 * k) for k in range(2)]
    for n in (0, 1, 2):
        front = front_of(start, layout_of(kernel, 2, [], results[:n], finish=finish))
        for _ in range(20):
            with pytest.raises(ValueError, match="in a step"):
                front.call(())


@pytest.mark.usefixtures("nothing_kept")
def test_an_argument_that_the_allocator_changes_is_declined(start: Launcher) -> None:
    x = np.zeros((2, 3), np.float32)

    def allocate() -> Any:
        x.shape = (3, 2)
        return np.zeros(128, np.uint8)

    never: Kernel = lambda table: pytest.fail("ran")  # noqa: E731
    more = {"blocks": [Block(64, allocate)], "shared": 0}
    front = front_of(start, layout_of(never, 2, [array(0, 2, 3)], [Result(F32, (2,), 1, 0, 0)], **more))
    assert front.call((x,)) is NotImplemented


class Blocks:
    """Blocks of the same size, and what was made of them."""

    def __init__(self, nbytes: int) -> None:
        self.made: list[weakref.ref[np.ndarray[Any, Any]]] = []
        self.block = Block(nbytes, self._allocate)

    def _allocate(self) -> np.ndarray[Any, Any]:
        new = np.zeros(self.block.nbytes + 64, np.uint8)
        self.made.append(weakref.ref(new))
        return new

    def starts(self) -> list[int]:
        """The first multiples of 64 in those that are alive."""
        return [(b.ctypes.data + 63) // 64 * 64 for w in self.made if (b := w()) is not None]


@pytest.mark.usefixtures("nothing_kept")
def test_large_blocks_and_workspace(start: Launcher) -> None:
    seen: list[tuple[int, ...]] = []
    first, second = Blocks(512), Blocks(256)

    def kernel(table: Any) -> int:
        seen.append(tuple(table[k] for k in range(3)))
        return 0

    results = [Result(F32, (4,), 0, 0, 128)]
    more = {"blocks": [first.block, second.block], "shared": 0}
    more |= {"spaces": [(1, 0), (2, 64)], "space_bytes": 128}
    front = front_of(start, layout_of(kernel, 3, [], results, **more, space_block=1))
    y = front.call(())
    [a], [b] = first.starts(), second.starts()
    assert seen == [(a + 128, b, b + 64)] and y.ctypes.data == a + 128 and y.base is first.made[0]()
    front = front_of(start, layout_of(kernel, 3, [], [Result(F32, (4,), 0, -1, 0)], **{**more, "shared": 64}))
    front.call(())
    assert seen[1][1] % 64 == 0 and seen[1][2] == seen[1][1] + 64


def block_front(start: Launcher, blocks: Blocks) -> Front:
    """A call without arguments whose result lies on such a block."""
    results = [Result(F32, (4,), 0, 0, 0)]
    return front_of(start, layout_of(lambda table: 0, 1, [], results, blocks=[blocks.block], shared=0))


@pytest.mark.usefixtures("nothing_kept")
def test_a_block_that_nothing_uses_is_taken_again_by_any_operator(start: Launcher) -> None:
    blocks, others = Blocks(1000), Blocks(1000)
    front, other = block_front(start, blocks), block_front(start, others)
    front.call(())
    where = front.call(()).ctypes.data
    assert len(blocks.made) == 1
    y = other.call(())
    assert y.ctypes.data == where and not others.made
    holders: tuple[Callable[[Any], Any], ...] = (lambda y: y, lambda y: y[1:], memoryview, lambda y: y.base)
    for hold in holders:
        held = hold(y)
        del y
        z = front.call(())
        assert z.ctypes.data != where and len(blocks.made) == 2  # the other one is taken each time
        del held  # and this is used again
        y = front.call(())
        assert y.ctypes.data == where
        del z
    assert not others.made


@pytest.mark.usefixtures("nothing_kept")
def test_a_block_that_was_resized_is_not_taken_again(start: Launcher) -> None:
    made = []

    def allocate() -> np.ndarray[Any, Any]:
        made.append(1064)
        return np.zeros(made[-1], np.uint8)  # NumPy resizes none that weak references know

    results = [Result(F32, (4,), 0, 0, 0)]
    blocks = [Block(1000, allocate)]
    front = front_of(start, layout_of(lambda table: 0, 1, [], results, blocks=blocks, shared=0))
    base: Any = front.call(()).base
    base.resize(10, refcheck=False)
    del base
    assert front.call(()).base.size == 1064 and len(made) == 2


@pytest.mark.usefixtures("nothing_kept")
def test_blocks_that_were_not_used_for_longest_go_first(start: Launcher) -> None:
    sizes = [Blocks(2000 + k) for k in range(20)]
    fronts = [block_front(start, b) for b in sizes]
    for f in fronts[:16]:
        f.call(())
    fronts[0].call(())
    fronts[16].call(())
    assert [len(b.starts()) for b in sizes[:3]] == [1, 0, 1]
    y = fronts[17].call(())
    for f in fronts:
        f.call(())
        f.call(())
    assert [len(b.starts()) for b in sizes] == [0] * 4 + [1] * 13 + [2, 1, 1]
    assert y.base is sizes[17].made[0]()
    start._library.pf_launcher_forget()
    assert [sum(len(b.starts()) for b in sizes), len(sizes[17].starts())] == [1, 1]


def test_calls_of_thousands_of_arguments(start: Launcher) -> None:
    n = 3000
    front = front_of(
        start, layout_of(lambda table: 0, n, [array(k, 2, written=k % 2 == 0) for k in range(n)], [])
    )
    m = np.zeros((n, 2), np.float32)
    given = list(m)
    assert front.call(tuple(given)) is None
    given[-2] = m[0]
    assert front.call(tuple(given)) is NotImplemented


def test_several_layouts_and_no_more_than_announced(start: Launcher) -> None:
    seen: list[int] = []

    def layout(n: int) -> Any:
        def kernel(table: Any) -> int:
            seen.append(n)
            return 0

        return layout_of(kernel, 1, [array(0, n)], [])

    front = start.front((None,), 3)
    for n in range(1, 6):
        front.add(*layout(n))
    taken = [front.call((np.zeros(n, np.float32),)) is None for n in (3, 1, 2, 2, 3, 4, 5, 1)]
    assert taken == [True] * 5 + [False] * 2 + [True]
    assert seen == [3, 1, 2, 2, 3, 1]


def test_nothing_leaks(start: Launcher) -> None:
    results = [Result(F32, (2,), 0, -1, 0), Result(F32, (), 1, -1, 64)]
    front = front_of(start, layout_of(lambda table: 0, 3, [array(2, 2)], results))
    x, wrong, none = np.zeros(2, np.float32), np.zeros(3, np.float32), (None,)
    held = (x, F32, np.dtype(np.uint8), np.ndarray, front.call, none)

    def many() -> list[int]:
        for _ in range(300):
            front.call((x,))
            front.call((wrong,))
            front.call(none)
        gc.collect()
        return [sys.getrefcount(o) for o in held]

    before = many()
    assert all(abs(a - b) <= 2 for a, b in zip(many(), before, strict=True))


def test_layouts_die_with_their_operator(start: Launcher) -> None:
    layout, run = layout_of(lambda table: 0, 1, [array(0, 2)], [])

    class Kept:
        pass

    kept = Kept()
    front = start.front((None,), 1)
    front.add(layout, (kept, run))
    gone, call = weakref.ref(kept), front.call
    del kept, front
    gc.collect()
    assert gone() is not None and call((np.zeros(2, np.float32),)) is None  # the function owns all it needs
    del call
    gc.collect()
    assert gone() is None


def test_kernels_run_without_the_lock_of_the_interpreter(start: Launcher) -> None:
    """Two threads are inside kernels at once: each waits for the other there."""
    both = threading.Barrier(2, timeout=20)
    numbers: list[float] = []

    def kernel(table: Any) -> int:
        both.wait()
        numbers.append(ctypes.c_double.from_address(table[0]).value)
        both.wait()
        return 0

    front = front_of(start, layout_of(kernel, 1, [NumberArgument(float, "f64", 0)], []))
    threads = [threading.Thread(target=front.call, args=((float(k),),)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(numbers) == [0.0, 1.0]
