"""The short way of calls with arrays on a GPU: what it takes, what it leaves to the long way, and what it
asks of the driver. A stand-in is the GPU, others are torch and cupy."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu_stand_ins import EmulatingDriver, Tensor, Torch, on_device, tensor, use

import polyfuse as pf
from polyfuse.codegen.cuda import multi_kernel
from polyfuse.diagnostics import ArgumentError, DeviceError, DeviceMemoryError
from polyfuse.driver.open_sizes import ROWS
from polyfuse.runtime.cuda.driver_api import OUT_OF_MEMORY
from polyfuse.runtime.cuda.launcher import DeviceLauncher
from polyfuse.runtime.cuda.results import DeviceArray

Array = np.ndarray[Any, np.dtype[Any]]

AXPY = "op axpy(x: f32[N], y: f32[N], a: f32 = 2.0) -> (z: f32[N]) { z[i] = a * x[i] + y[i] }"
SCALE = "op scale[F: float](x: F[N], a: F) -> (y: F[N]) { y[i] = a * x[i] }"
STEP = "op step(inout p: f32[N, M], g: f32[N, M]) { p[n, m] = p[n, m] - g[n, m] }"
SPLIT = "op split(x: f32[N]) -> (lo: f32[N], hi: f32[N]) { lo[i] = x[i] - 1.0; hi[i] = x[i] + 1.0 }"
DOUBLE = "op double(x: f32[N, M]) -> (y: f32[N, M]) { y[n, m] = x[n, m] * 2.0 }"
SWAP = "op swap(inout p: f32[N], inout q: f32[N]) { p[i] = old(q[i]); q[i] = old(p[i]) }"
REVERSED = "op add_reversed(inout p: f32[N]) { p[i] = old(p[i]) + old(p[N - 1 - i]) }"
TOTAL = "op total(x: f32[N]) -> (s: f32) { s = sum[i](x[i]) }"
ROUND = "op shift(x: f32[N], k: i32 = 1) -> (y: f32[N]) { y[i] = x[i] + f32(k) }"


def grid(*shape: int) -> Array:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def compiled(text: str, **options: Any) -> pf.Compiled:
    return pf.compile(text, target="cuda", **options)


@pytest.fixture(autouse=True)
def launcher() -> None:
    if DeviceLauncher.get() is None:
        pytest.skip("this interpreter has no launcher, or there is no C++ compiler")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> EmulatingDriver:
    return use(monkeypatch)


@pytest.fixture
def torch(driver: EmulatingDriver, monkeypatch: pytest.MonkeyPatch) -> Torch:
    module = Torch(driver)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


class CupyArray:
    """What is asked of an array of cupy."""

    def __init__(self, driver: EmulatingDriver, base: DeviceArray) -> None:
        self.base, self.driver = base, driver
        self.shape, self.dtype = base.shape, base.dtype
        self.strides = tuple(
            base.dtype.itemsize * int(np.prod(base.shape[k + 1 :])) for k in range(base.ndim)
        )
        self.data = SimpleNamespace(ptr=base.address, device_id=0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.base.__cuda_array_interface__, "stream": 1}


@pytest.fixture
def cupy(driver: EmulatingDriver, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module: Any = ModuleType("cupy")

    class ndarray(CupyArray):
        def __init__(self, shape: tuple[int, ...], dtype: Any = np.float32) -> None:
            base = on_device(driver, np.zeros(shape, dtype), 0)
            super().__init__(driver, base)

    module.ndarray = module.empty = ndarray
    runtime = SimpleNamespace(getDevice=lambda: 0)
    stream = SimpleNamespace(ptr=0)
    module.cuda = SimpleNamespace(
        runtime=runtime, Device=contextlib.nullcontext, get_current_stream=lambda: stream
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


class Lent:
    """An array of any library that lends its memory by DLPack."""

    def __init__(self, base: DeviceArray) -> None:
        self.base, self.lent = base, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int | None = None) -> object:
        assert stream == 1
        self.lent += 1
        return self.base.__dlpack__(stream=stream)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape


Make = Callable[[Array], Any]


@pytest.fixture(params=("torch", "cupy", "ours", "lent"))
def make(request: pytest.FixtureRequest, driver: EmulatingDriver) -> Make:
    """What makes an array of a library on the device."""
    if request.param == "torch":
        request.getfixturevalue("torch")
        return lambda a: tensor(driver, a)
    if request.param in ("ours", "lent"):
        kind: Callable[[Any], Any] = Lent if request.param == "lent" else lambda a: a
        return lambda a: kind(on_device(driver, a, 0))
    library = request.getfixturevalue("cupy")

    def filled(a: Array) -> Any:
        made = library.ndarray(a.shape, a.dtype)
        made.base.set(a)
        return made

    return filled


def short(f: pf.Compiled, *args: object) -> Any:
    """What the short way says of arguments."""
    return f._device_short.call(args)


def values(found: Any) -> Array:
    if isinstance(found, Tensor):
        return found.elements
    array: Array = (found if isinstance(found, DeviceArray) else found.base).get()
    return array


def names(driver: EmulatingDriver) -> list[str]:
    return [name for name, *_ in driver.calls]


def own_names(driver: EmulatingDriver) -> list[str]:
    """Without what keeps memory that was lent."""
    return [n for n in names(driver) if n not in ("done", "record", "create_event")]


def result_of(array: object) -> type:
    """The type of results for an array."""
    return DeviceArray if isinstance(array, Lent) else type(array)


# --- what it takes ------------------------------------------------------------------------------------------


def test_arrays_of_each_library_are_taken(driver: EmulatingDriver, make: Make) -> None:
    f, x, y = compiled(AXPY), make(grid(7)), make(10 * grid(7))
    assert short(f, x, y) is NotImplemented
    first = f(x, y)
    for a, more in ((2.0, ()), (3.0, (3.0,)), (-0.5, (-0.5,))):
        found = short(f, x, y, *more)
        assert type(found) is type(first) is result_of(x) and found is not first
        np.testing.assert_array_equal(values(found), np.float32(a) * grid(7) + 10 * grid(7))
        np.testing.assert_array_equal(values(f(x=x, y=y, a=a)), values(found))


def test_sizes_that_differ_are_compiled_and_learnt(driver: EmulatingDriver, make: Make) -> None:
    f = compiled(DOUBLE, sizes="fixed")
    for shape in ((3, 4), (4, 3), (1, 1), (0, 5), (5, 0), (2, 300)):
        x = make(grid(*shape))
        assert short(f, x) is NotImplemented
        for found in (f(x), short(f, x)):
            assert values(found).shape == shape
            np.testing.assert_array_equal(values(found), 2 * grid(*shape))


def test_several_results_come_in_order(driver: EmulatingDriver, make: Make) -> None:
    f, x = compiled(SPLIT), make(grid(33))
    f(x)
    low, high = short(f, x)
    np.testing.assert_array_equal(values(low), grid(33) - 1)
    np.testing.assert_array_equal(values(high), grid(33) + 1)


def test_results_of_no_dims(driver: EmulatingDriver, make: Make) -> None:
    f, x = compiled(TOTAL), make(grid(1000))
    f(x)
    found = short(f, x)
    assert type(found) is result_of(x) and values(found).shape == () and values(found) == 500500


def test_parameters_are_updated(driver: EmulatingDriver, make: Make) -> None:
    f, p, g = compiled(STEP), make(grid(4, 6)), make(np.ones((4, 6), np.float32))
    f(p, g)
    assert short(f, p, g) is None
    np.testing.assert_array_equal(values(p), grid(4, 6) - 2)
    swap, a, b = compiled(SWAP), make(grid(5)), make(-grid(5))
    swap(a, b)
    assert short(swap, a, b) is None
    np.testing.assert_array_equal(values(a), grid(5))
    np.testing.assert_array_equal(values(b), -grid(5))


def test_values_at_entry_are_copied_first(driver: EmulatingDriver, make: Make) -> None:
    f, p = compiled(REVERSED), make(grid(9))
    f(p)
    assert short(f, p) is None
    once = grid(9) + grid(9)[::-1]
    np.testing.assert_array_equal(values(p), once + once[::-1])


def test_out_is_written(driver: EmulatingDriver, make: Make) -> None:
    f, x, y = compiled(DOUBLE), make(grid(3, 4)), make(np.zeros((3, 4), np.float32))
    f(x, out=y)
    driver.calls.clear()
    assert f._device_short_into.call((x,), y) is y
    assert own_names(driver) == ["launch"]
    split, lo, hi = compiled(SPLIT), make(grid(5)), make(grid(5))
    split(make(grid(5)), out=(lo, hi))
    assert split._device_short_into.call((make(2 * grid(5)),), (lo, hi)) == (lo, hi)
    np.testing.assert_array_equal(values(hi), 2 * grid(5) + 1)
    assert split._device_short_into.call((make(grid(5)),), (lo,)) is NotImplemented
    assert split._device_short_into.call((make(grid(5)),), {"lo": lo, "hi": hi}) is NotImplemented


def test_tensors_with_strides(driver: EmulatingDriver, torch: Torch) -> None:
    f, x = compiled(DOUBLE), tensor(driver, grid(8, 12))
    for view in (x[:, 1:5], x[::2], x.t(), x[1:, ::3]):
        f(view)
        driver.calls.clear()
        found = short(f, view)
        np.testing.assert_array_equal(found.elements, 2 * view.elements)
        assert not driver.named("copy", "copy_in", "copy_out")


def test_numbers_as_kernels_read_them(driver: EmulatingDriver, torch: Torch) -> None:
    f, x = compiled(ROUND), tensor(driver, grid(4))
    f(x, 5)
    np.testing.assert_array_equal(short(f, x, -7).elements, grid(4) - 7)
    assert short(f, x, 2**31) is NotImplemented
    with pytest.raises(ArgumentError, match="does not fit"):
        f(x, 2**31)
    assert short(f, x, 1.0) is NotImplemented
    for kind in (np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_, bool):
        assert short(f, x, kind(1)) is NotImplemented
        np.testing.assert_array_equal(f(x, kind(1)).elements, grid(4) + 1)  # type: ignore[attr-defined]
        for value in (0, 1):
            np.testing.assert_array_equal(short(f, x, kind(value)).elements, grid(4) + value)
    assert short(f, x, np.int64(2**31)) is NotImplemented
    axpy = compiled(AXPY)
    for real in (np.float64, np.float32, np.float16, np.int32):
        axpy(x, x, real(1))
        found = short(axpy, x, x, real(0.1))
        np.testing.assert_array_equal(found.elements, np.float32(real(0.1)) * grid(4) + grid(4))
    axpy(x, x, True)
    np.testing.assert_array_equal(short(axpy, x, x, False).elements, grid(4))
    for dtype, text in ((np.float16, "f16"), (np.float64, "f64")):
        g, z = (
            compiled(SCALE.replace("[F: float]", "").replace("F", text)),
            tensor(driver, grid(4).astype(dtype)),
        )
        g(z, 2.0)
        np.testing.assert_array_equal(short(g, z, 0.1).elements, dtype(0.1) * grid(4).astype(dtype))


# --- sizes that are parameters of the kernels ---------------------------------------------------------------

NORM = """op norm(x: f32[T, H], g: f32[H]) -> (y: f32[T, H], s: f32[T]) {
  s[t] = sum[h](x[t, h])
  y[t, h] = (x[t, h] - s[t]) * g[h]
}"""
CHAIN = """op chain(x: f32[T, H]) -> (y: f32[H, T], z: f32) {
  a[t, h] = x[t, h] + 1.0
  c[h] = sum[t](a[t, h])
  y[h, t] = a[t, h] - c[h]
  z = sum[h](c[h])
}"""


def whole(*shape: int) -> Array:
    return grid(*shape) % 31 - 15


def test_new_sizes_go_the_short_way(driver: EmulatingDriver, make: Make) -> None:
    f = compiled(NORM, sizes="open")
    f(make(whole(3, 5)), make(whole(5)))
    for t, h in ((4, 5), (1, 1), (3, 127), (100, 64), (3, 5)):
        x, g = whole(t, h), whole(h)
        y, s = short(f, make(x), make(g))
        np.testing.assert_array_equal(values(s), x.sum(1))
        np.testing.assert_array_equal(values(y), (x - x.sum(1, keepdims=True)) * g)
    assert len(f.variants) == 1
    for wrong in (
        (whole(0, 5), whole(5)),
        (whole(4, 6), whole(5)),
        (whole(4, 5), whole(1, 5)),
        (whole(4, ROWS[0] + 1), whole(ROWS[0] + 1)),
    ):
        assert short(f, *map(make, wrong)) is NotImplemented
    assert short(f, make(whole(4, 5)), 1.0) is NotImplemented, "and no array is meant"
    assert short(f, make(whole(4, 5).astype(np.float64)), make(whole(5))) is NotImplemented


def test_workspace_has_the_size_of_the_call(driver: EmulatingDriver, make: Make) -> None:
    f = compiled(CHAIN, sizes="open", layers=())
    f(make(whole(3, 5)))
    assert f.built(make(whole(3, 5))).executable.grids.workspace_bytes  # type: ignore[union-attr]
    for t, h in ((70, 30), (1, 1), (2, 100), (100, 2)):
        a = whole(t, h) + 1
        y, z = short(f, make(whole(t, h)))
        np.testing.assert_array_equal(values(y), (a - a.sum(0)).T)
        assert values(z) == a.sum()


def test_parameters_are_updated_at_new_sizes(driver: EmulatingDriver, make: Make) -> None:
    f, r = compiled(STEP, sizes="open"), compiled(REVERSED, sizes="open")
    f(make(whole(4, 6)), make(whole(4, 6)))
    r(make(whole(9)))
    for n in (1, 2, 31, 100):
        p = make(whole(n, 3))
        assert short(f, p, make(whole(n, 3))) is None
        np.testing.assert_array_equal(values(p), 0)
        q = make(whole(n))
        assert short(r, q) is None
        np.testing.assert_array_equal(values(q), whole(n) + whole(n)[::-1])


def test_memory_meets_at_some_sizes(driver: EmulatingDriver, torch: Torch) -> None:
    f, both = compiled(STEP, sizes="open"), tensor(driver, whole(8, 4))
    f(both[:2], both[2:4])
    assert short(f, both[:4], both[4:]) is None
    assert short(f, both[:5], both[3:]) is NotImplemented
    assert short(f, both[:2], both[2:4]) is None
    assert short(f, both[:3], both[2:5]) is NotImplemented, "the same addresses, and longer arrays"
    assert short(f, both[:4], both[4:]) is None


def test_strides_at_new_sizes(driver: EmulatingDriver, torch: Torch) -> None:
    f = compiled(NORM, sizes="open")
    f(tensor(driver, whole(8, 5)), tensor(driver, whole(5)))
    assert short(f, tensor(driver, whole(7, 9)).t(), tensor(driver, whole(7))) is NotImplemented
    f(tensor(driver, whole(8, 12))[:, 1:6], tensor(driver, whole(5)))
    for x in (tensor(driver, whole(9, 7)).t(), tensor(driver, whole(30, 40))[::3, 1::2]):
        h = x.shape[1]
        y, s = short(f, x, tensor(driver, whole(h)))
        np.testing.assert_array_equal(y.elements, (x.elements - x.elements.sum(1, keepdims=True)) * whole(h))
        np.testing.assert_array_equal(s.elements, x.elements.sum(1))


def test_kernels_of_known_sizes_come_first(driver: EmulatingDriver, torch: Torch) -> None:
    f = compiled(DOUBLE, sizes="auto")
    for shape in ((3, 4), (5, 4), (7, 4), (3, 4)):
        f(tensor(driver, grid(*shape)))
    before = len(driver.launches)
    short(f, tensor(driver, grid(9, 4)))
    short(f, tensor(driver, grid(3, 4)))
    opened, known = (len(launch.values) for launch in driver.launches[before:])
    assert opened > known, "the sizes are arguments of the first alone"


def test_sizes_beyond_what_the_device_takes(driver: EmulatingDriver, torch: Torch) -> None:
    f = compiled("op f(x: i8[N]) -> (y: i8[N]) { y[n] = x[n] }", sizes="open")
    small, large = (tensor(driver, np.ones(n, np.int8)) for n in (100, 3000))
    f(small)
    driver._properties = replace(driver.properties, max_grid=1)
    g = compiled("op f(x: i8[N]) -> (y: i8[N]) { y[n] = x[n] }", sizes="open")
    g(small)
    blocks = [g.built(a).executable.grids.grids[0].blocks for a in (small,)]  # type: ignore[union-attr]
    assert blocks == [1] and short(g, small) is not NotImplemented
    assert short(g, large) is NotImplemented and short(f, large) is not NotImplemented


# --- what it leaves to the long way -------------------------------------------------------------------------


def test_what_does_not_fit_is_told_as_before(driver: EmulatingDriver, make: Make) -> None:
    f, x, y = compiled(AXPY), make(grid(7)), make(grid(7))
    f(x, y)
    wrong = {
        "PF402": (x, make(grid(7).astype(np.float64))),
        "PF401": (x, make(grid(7, 1))),
        "PF405": (x, make(grid(8))),
        "PF425": (x, None),
        "PF408": (x, y, 1.0, 2.0),
    }
    for code, given in wrong.items():
        assert short(f, *given) is NotImplemented
        with pytest.raises(ArgumentError) as refused:
            f(*given)
        assert refused.value.code == code
    assert f(x, y) is not None


def test_arrays_elsewhere(driver: EmulatingDriver, torch: Torch) -> None:
    f, x, y = compiled(AXPY), tensor(driver, grid(7)), tensor(driver, grid(7))
    f(x, y)
    host = f(x, grid(7))
    assert short(f, x, grid(7)) is NotImplemented and isinstance(host, np.ndarray)
    assert short(f, x, torch.from_numpy(grid(7))) is NotImplemented
    assert short(f, x, on_device(driver, grid(7))) is NotImplemented
    y.device = SimpleNamespace(type="cuda", index=1)
    assert short(f, x, y) is NotImplemented
    with pytest.raises(ArgumentError) as refused:
        f(x, y)
    assert refused.value.code == "PF417"


def test_memory_that_kernels_cannot_use(driver: EmulatingDriver, torch: Torch) -> None:
    f = compiled(AXPY)
    x, y = tensor(driver, grid(64)), tensor(driver, grid(64))
    f(x, y)
    odd = Tensor(tensor(driver, grid(66)).elements[1:65], x.base)
    gone = tensor(driver, grid(64))
    gone.data_ptr = lambda: 0  # type: ignore[method-assign]
    assert short(f, gone, y) is NotImplemented
    found = short(f, odd, y)
    needs = f.built(x, y).executable.grids.owners[0].alignment  # type: ignore[union-attr]
    assert (found is NotImplemented) == (needs > 4)
    np.testing.assert_array_equal(f(odd, y).elements, 2 * odd.elements + grid(64))  # type: ignore[attr-defined]


def test_memory_that_is_written_lies_apart(driver: EmulatingDriver, torch: Torch) -> None:
    f, both = compiled(STEP), tensor(driver, grid(8, 4))
    f(both[:4], both[4:])
    assert short(f, both[:4], both[4:]) is None
    assert short(f, both[:4], both[3:7]) is NotImplemented
    assert short(f, both[:4], both[:4]) is NotImplemented
    assert short(f, both[3:7], both[:4]) is NotImplemented
    before = both.elements.copy()
    f(both[:4], both[2:6])
    np.testing.assert_array_equal(both.elements[:4], before[:4] - before[2:6])
    swap, row = compiled(SWAP), tensor(driver, grid(32))
    swap(row[:16], row[16:])
    assert short(swap, row[:16], row[12:28]) is NotImplemented
    with pytest.raises(ArgumentError) as refused:
        swap(row[:16], row[12:28])
    assert refused.value.code == "PF418"
    assert short(swap, row[16:], row[:16]) is None


@pytest.mark.parametrize("level", (None, -1))
def test_what_torch_knows_beyond_memory(driver: EmulatingDriver, torch: Torch, level: int | None) -> None:
    if level is not None:
        torch.autograd.forward_ad._current_level = level
    f, x, y = compiled(AXPY), tensor(driver, grid(3)), tensor(driver, grid(3))
    f(x, y)
    assert short(f, x, y) is not NotImplemented
    for change, code in (("requires_grad", "PF420"), ("wrapped", "PF421"), ("tangent", "PF421")):
        if level is not None:
            torch.autograd.forward_ad._current_level = 0 if change == "tangent" else -1
        setattr(x, change, True)
        assert short(f, x, y) is NotImplemented
        with pytest.raises(ArgumentError) as refused:
            f(x, y)
        assert refused.value.code == code
        setattr(x, change, None if change == "tangent" else False)
    if level is not None:
        torch.autograd.forward_ad._current_level = -1
    x.requires_grad, torch.grad_mode = True, False
    assert short(f, x, y) is not NotImplemented
    torch.grad_mode = True
    assert short(f, x, y) is NotImplemented
    x.requires_grad = False
    x.is_neg = lambda: True  # type: ignore[method-assign]
    assert short(f, x, y) is NotImplemented
    assert short(f, type("Own", (Tensor,), {})(y.elements, y.base), y) is NotImplemented
    parameter = torch.nn.Parameter(y.elements, y.base)
    assert short(f, parameter, y) is not NotImplemented


def test_torch_is_told_what_is_written(driver: EmulatingDriver, torch: Torch) -> None:
    p, g, y = (tensor(driver, grid(4, 6)) for _ in range(3))
    step, double = compiled(STEP), compiled(DOUBLE)
    step(p, g)
    double(g, out=y)
    assert short(step, p, g) is None
    assert double._device_short_into.call((g,), y) is y
    assert (p.version, g.version, y.version) == (2, 0, 2)
    p.inference = True
    assert short(step, p, g) is NotImplemented
    with pytest.raises(ArgumentError) as refused:
        step(p, g)
    assert refused.value.code == "PF418"
    torch.in_inference_mode = True
    assert short(step, p, g) is None and p.version == 2


def test_exceptions_of_arrays_leave_it_to_the_long_way(driver: EmulatingDriver, torch: Torch) -> None:
    f, x, y = compiled(AXPY), tensor(driver, grid(3)), tensor(driver, grid(3))
    f(x, y)

    def fails() -> int:
        raise RuntimeError("no storage")

    def interrupted() -> int:
        raise KeyboardInterrupt

    x.data_ptr = fails  # type: ignore[method-assign]
    assert short(f, x, y) is NotImplemented
    x.data_ptr = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        short(f, x, y)


def test_results_that_are_no_memory(driver: EmulatingDriver, torch: Torch) -> None:
    """As in a mode of torch that makes other tensors than usual."""
    f, x, y = compiled(AXPY), tensor(driver, grid(3)), tensor(driver, grid(3))
    f(x, y)
    usual = torch.empty
    kind = type("Fake", (Tensor,), {})
    torch.empty = lambda *a, **b: kind(usual(*a, **b).elements, x.base)  # type: ignore[method-assign]
    driver.calls.clear()
    assert short(f, x, y) is NotImplemented and not driver.launches
    with pytest.raises(ArgumentError) as refused:
        f(x, y)
    assert refused.value.code == "PF421"


def test_checked_builds_go_the_long_way(driver: EmulatingDriver, torch: Torch) -> None:
    f = compiled("op pick(x: f32[N], at: i64[M]) -> (y: f32[M]) { y[m] = x[at[m]] }", checked=True)
    x, at = tensor(driver, grid(3)), tensor(driver, np.array([2, 0]))
    f(x, at)
    assert short(f, x, at) is NotImplemented
    with pytest.raises(ArgumentError, match="out of range"):
        f(x, tensor(driver, np.array([3, 0])))


# --- what it asks of the driver -----------------------------------------------------------------------------

WORKSPACE = """op normalised(x: f32[T, H]) -> (y: f32[T, H], s: f32[H]) {
  s[h] = sum[t](x[t, h])
  y[t, h] = x[t, h] / s[h]
}"""


@pytest.mark.parametrize("text", (DOUBLE, STEP, WORKSPACE))
def test_a_steady_call_allocates_and_waits_for_nothing(
    driver: EmulatingDriver, torch: Torch, text: str
) -> None:
    """So it can be captured: all memory comes from the arrays' library, all work goes to its stream."""
    f = compiled(text)
    given = [tensor(driver, grid(300, 8)) for _ in f.signature.params]
    f(*given)
    with driver.current():
        torch.stream = driver.create_stream()
    f(*given)
    kept = torch.made
    torch.empty = lambda shape, **_: _kept(driver, shape)  # type: ignore[method-assign]
    f(*given)
    driver.calls.clear()
    found = f(*given)
    assert set(names(driver)) <= {"launch", "fill", "copy"} and driver.launches
    assert {r.stream for r in driver.launches} == {torch.stream}
    assert {c[-1] for c in driver.named("fill", "copy")} <= {torch.stream}
    assert torch.made == kept
    if text is WORKSPACE:
        total = grid(300, 8).sum(0)
        np.testing.assert_allclose(found[0].elements, grid(300, 8) / total, rtol=1e-5)  # type: ignore[index]
        np.testing.assert_allclose(found[1].elements, total, rtol=1e-5)  # type: ignore[index]


_blocks: dict[tuple[int, ...], Tensor] = {}


def _kept(driver: EmulatingDriver, shape: tuple[int, ...]) -> Tensor:
    """As torch's allocator when it has kept a block."""
    key = (id(driver), *shape)
    if key not in _blocks:
        _blocks[key] = tensor(
            driver, np.zeros(shape, np.uint8 if len(shape) == 1 and shape[0] > 8 else np.float32)
        )
    return _blocks[key]


def many(count: int) -> str:
    """An operator of so many arrays in place, and as many to read."""
    params = ", ".join(f"inout p{k}: f32[N{k}], g{k}: f32[N{k}]" for k in range(count))
    body = "\n".join(f"p{k}[i] = p{k}[i] - lr * g{k}[i]" for k in range(count))
    return f"op many({params}, lr: f32 = 0.5) {{ {body} }}"


def test_arguments_in_a_table(driver: EmulatingDriver, torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_kernel, "MOST_PASSED", 8)
    f = compiled(many(6))
    given = [tensor(driver, grid(9)) for _ in range(12)]
    f(*given)
    (launched,) = f.built(*given).executable.grids.grids  # type: ignore[union-attr]
    assert launched.table and short(f, *given) is None
    driver.calls.clear()
    assert short(f, *given) is None and names(driver) == ["launch"]  # the table is there
    for k, t in enumerate(given):
        np.testing.assert_array_equal(t.elements, grid(9) if k % 2 else grid(9) * -0.5)
    driver.calls.clear()
    given[2] = tensor(driver, grid(9))
    assert short(f, *given, 2.0) is None and len(driver.named("copy_in")) == 2  # the tensor, and a new table
    np.testing.assert_array_equal(given[2].elements, -grid(9))
    np.testing.assert_array_equal(given[0].elements, grid(9) * -2.5)
    bound = f.bind(*given, 1.0)
    driver.calls.clear()
    assert bound() is None and names(driver) == ["launch"]
    np.testing.assert_array_equal(given[2].elements, grid(9) * -2)


def test_a_table_is_not_captured(
    driver: EmulatingDriver, torch: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph would read it when it has changed."""
    monkeypatch.setattr(multi_kernel, "MOST_PASSED", 8)
    f, given = compiled(many(6)), [tensor(driver, grid(9)) for _ in range(12)]
    with driver.current():
        torch.stream = driver.create_stream()
    f(*given)
    f(*given)
    with driver.current():
        driver.begin_capture(torch.stream)
    for call in (lambda: short(f, *given), lambda: f(*given)):
        with pytest.raises(DeviceError, match="cannot be captured") as refused:
            call()
        assert refused.value.code == "PF749"
    with driver.current():
        driver.end_capture(torch.stream)
    assert short(f, *given) is None


def test_the_long_way_is_not_captured_with_memory_of_others(driver: EmulatingDriver, torch: Torch) -> None:
    f, plain = compiled(WORKSPACE), compiled(DOUBLE)
    with driver.current():
        torch.stream = driver.create_stream()
        driver.begin_capture(torch.stream)
    x = tensor(driver, grid(300, 8))
    assert isinstance(plain(x), Tensor)
    with pytest.raises(DeviceError, match="cannot be captured") as refused:
        f(x)
    assert refused.value.code == "PF749"
    with driver.current():
        driver.end_capture(torch.stream)
    f(x)
    with driver.current():
        driver.begin_capture(torch.stream)
    assert short(f, x) is not NotImplemented and not driver.named("copy_in")[1:]


def test_the_current_stream_is_used(driver: EmulatingDriver, torch: Torch) -> None:
    f, x = compiled(DOUBLE), tensor(driver, grid(2, 2))
    f(x)
    for stream in (5, 0, 7):
        torch.stream = stream
        driver.calls.clear()
        assert short(f, x) is not NotImplemented
        assert [r.stream for r in driver.launches] == [stream]


def test_our_own_arrays_agree_on_a_stream(driver: EmulatingDriver) -> None:
    with driver.current():
        first, second = driver.create_stream(), driver.create_stream()
    f = compiled(AXPY)
    x, y, z = (on_device(driver, grid(6), s) for s in (first, first, second))
    f(x, y)
    found = short(f, x, y)
    assert found.stream == first and driver.launches[-1].stream == first
    assert short(f, x, z) is NotImplemented
    np.testing.assert_array_equal(f(x, z).get(), 3 * grid(6))  # type: ignore[attr-defined]
    assert short(f, z, z).stream == second


def test_a_failed_launch_is_told_and_leaks_nothing(driver: EmulatingDriver, make: Make) -> None:
    f, x, y = compiled(AXPY), make(grid(7)), make(grid(7))
    f(x, y)
    driver.fail("launch", OUT_OF_MEMORY)
    with pytest.raises(DeviceMemoryError):
        short(f, x, y)
    assert short(f, x, y) is not NotImplemented


# --- references, threads ------------------------------------------------------------------------------------


def test_nothing_is_kept_of_a_call(driver: EmulatingDriver, make: Make) -> None:
    f, x, y = compiled(AXPY), make(grid(7)), make(grid(7))
    f(x, y)
    others = make(grid(7)), make(grid(7))
    found = short(f, *others)
    held = [weakref.ref(a) for a in others]
    counts = [sys.getrefcount(a) for a in (x, y, x.shape, None, NotImplemented)]
    for _ in range(50):
        short(f, x, y)
        short(f, x, None)
        short(f, x, make(grid(8)))
    gc.collect()
    after = [sys.getrefcount(a) for a in (x, y, x.shape, None, NotImplemented)]
    assert all(b - a < 20 for a, b in zip(counts, after, strict=True))
    gone = weakref.ref(found)
    held += [weakref.ref(a) for a in (x, y)]  # those that were learnt from
    del others, found, x, y
    gc.collect()
    assert not any(r() for r in held) and gone() is None


def test_lent_memory_is_kept_until_launches_are_done(driver: EmulatingDriver) -> None:
    f, x = compiled(DOUBLE), Lent(on_device(driver, grid(3, 4)))
    f(x)
    other = Lent(on_device(driver, grid(3, 4)))
    block = weakref.ref(other.base._block)
    driver.done = lambda event: False  # type: ignore[method-assign]
    assert short(f, other) is not NotImplemented and other.lent == 1
    del other
    gc.collect()
    assert block() is not None
    driver.done = lambda event: True  # type: ignore[method-assign]
    assert short(f, x) is not NotImplemented
    gc.collect()
    assert block() is None


def test_an_operator_gives_back_what_it_learnt(driver: EmulatingDriver, torch: Torch) -> None:
    f, x = compiled(DOUBLE), tensor(driver, grid(4, 4))
    f(x)
    assert short(f, x) is not NotImplemented
    bound = f.bind(x)
    executable = weakref.ref(f.built(x).executable)
    del f
    gc.collect()
    assert executable() is not None
    bound()
    del bound
    gc.collect()
    assert executable() is None


def test_threads_call_at_once(driver: EmulatingDriver, torch: Torch) -> None:
    f, x, y = compiled(AXPY), tensor(driver, grid(50)), tensor(driver, grid(50))
    f(x, y, 1.0)
    wrong: list[float] = []

    def work(a: float) -> None:
        for _ in range(20):
            found = f(x, y, a)
            if not np.array_equal(found.elements, np.float32(a) * grid(50) + grid(50)):  # type: ignore[attr-defined]
                wrong.append(a)

    threads = [threading.Thread(target=work, args=(float(k),)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# --- bound calls --------------------------------------------------------------------------------------------


def test_bound_calls_follow_the_memory(driver: EmulatingDriver, make: Make) -> None:
    f, x, y = compiled(AXPY), make(grid(7)), make(grid(7))
    bound = f.bind(x, y, 3.0)
    result = bound()
    np.testing.assert_array_equal(values(result), 4 * grid(7))
    f(x, y, out=x)
    driver.calls.clear()
    assert bound() is result and own_names(driver) == ["launch"]
    np.testing.assert_array_equal(values(result), 3 * (2 * grid(7) + grid(7)) + grid(7))
    step = compiled(REVERSED)
    p = make(grid(4))
    again = step.bind(p)
    assert again() is None and again() is None
    once = grid(4) + grid(4)[::-1]
    np.testing.assert_array_equal(values(p), once + once[::-1])


def test_bound_calls_ask_torch_each_time(driver: EmulatingDriver, torch: Torch) -> None:
    p, g = tensor(driver, grid(4, 6)), tensor(driver, grid(4, 6))
    bound = compiled(STEP).bind(p, g)
    bound()
    bound()
    assert (p.version, g.version) == (2, 0)
    g.requires_grad = True
    with pytest.raises(ArgumentError) as refused:
        bound()
    assert refused.value.code == "PF420" and p.version == 2
    torch.grad_mode = False
    bound()
    assert p.version == 3


def test_bound_calls_of_several_results(driver: EmulatingDriver, make: Make) -> None:
    bound = compiled(SPLIT).bind(make(grid(5)))
    low, high = bound()  # type: ignore[misc]
    assert bound() == (low, high)
    np.testing.assert_array_equal(values(high), grid(5) + 1)
