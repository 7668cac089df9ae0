"""The launcher of device calls on the stub of the driver's library, which it calls in C; and arrays that tell
of themselves through DLPack's exchange interface."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import cuda_helpers as helpers
import numpy as np
import pytest

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.diagnostics import DeviceError
from polyfuse.interop.array_families import array_family
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.tensor_graph import Constraint
from polyfuse.runtime.cpu.open_layouts import OpenSizes
from polyfuse.runtime.cuda.driver_native import NativeDriver
from polyfuse.runtime.cuda.executable import CudaExecutable
from polyfuse.runtime.cuda.fast_path import DeviceShortWay, bound_call
from polyfuse.runtime.cuda.launcher import (
    ArrayArgument,
    CallLayout,
    DeviceLauncher,
    Fact,
    Family,
    Fill,
    KernelLaunch,
    Made,
    NumberArgument,
    Put,
    PythonStep,
)
from polyfuse.runtime.cuda.memory import DeviceMemory
from polyfuse.runtime.cuda.results import DeviceArray

SIZE = 100
X = np.arange(SIZE, dtype=np.float32)


@pytest.fixture(autouse=True)
def start() -> DeviceLauncher:
    found = DeviceLauncher.get()
    if found is None:
        pytest.skip("this interpreter has no launcher, or there is no C++ compiler")
    return found


@pytest.fixture
def stub() -> Iterator[helpers.Stub]:
    control = helpers.Stub()
    control.calls()
    yield control
    control.recover()


@pytest.fixture
def native(stub: helpers.Stub) -> NativeDriver:
    return helpers.native_driver()


def on(driver: NativeDriver, array: np.ndarray[Any, Any]) -> DeviceArray:
    return DeviceArray.empty(DeviceMemory.get(driver), array.shape, array.dtype).set(array)


def learnt(
    code: CudaCode,
    driver: NativeDriver,
    given: dict[str, Any],
    results: tuple[str, ...] = (),
    at: OpenSizes | None = None,
) -> tuple[DeviceShortWay, CudaExecutable]:
    """The short way of an executable, which has been called once; at other sizes too, if these are given."""
    executable = CudaExecutable(code, helpers.image(), {"N": SIZE}, driver)
    made = {n: executable.device_array((SIZE,), np.dtype(np.float32)) for n in results}
    arrays = {
        n: v.device_view if isinstance(v, DeviceArray) else np.float32(v)
        for n, v in {**given, **made}.items()
    }
    executable.run(arrays)
    short = DeviceShortWay((None,) * len(given))
    family = array_family([*given.values(), *made.values()], executable.memory)
    assert family is not None
    short.learn(executable, family, given, made, arrays, None if at is None else lambda: at)
    return short, executable


def test_a_launch_goes_to_the_driver_in_c(native: NativeDriver, stub: helpers.Stub) -> None:
    x = on(native, X)
    short, _ = learnt(helpers.scale_code(), native, {"x": x, "a": 2.0}, ("y",))
    found = short.call((x, 3.0))
    np.testing.assert_array_equal(found.get(), 3 * X)
    found = short.call((x, -1.5))
    stub.calls()
    again = short.call((x, 0.5))
    assert stub.calls()[-3:] == ["cuCtxPushCurrent", "cuLaunchKernel", "cuCtxPopCurrent"]
    with native.current():
        stub.calls()
        third = short.call((x, 4.0))
        assert "cuCtxPushCurrent" not in stub.calls()
    for made, factor in ((found, -1.5), (again, 0.5), (third, 4.0)):
        np.testing.assert_array_equal(made.get(), np.float32(factor) * X)


def test_workspace_copies_and_barriers(native: NativeDriver) -> None:
    x = on(native, X)
    short, _ = learnt(helpers.workspace_code(), native, {"x": x}, ("y",))
    both = [short.call((x,)) for _ in range(3)]
    for y in both:
        np.testing.assert_array_equal(y.get(), X + 2)
    p = on(native, X)
    inout, _ = learnt(helpers.inout_code(), native, {"p": p})
    assert inout.call((p,)) is None
    once = X + X[::-1]
    np.testing.assert_array_equal(p.get(), once + once[::-1])
    q = on(native, np.zeros(2, np.float32))
    barrier, _ = learnt(helpers.barrier_code(), native, {"p": q})
    first = q.get()
    assert barrier.call((q,)) is None and barrier.call((q,)) is None
    np.testing.assert_array_equal(q.get(), [3 * first[0], first[1]])  # what came to the last barrier


def at_sizes(*names: str) -> OpenSizes:
    """Arrays of N elements, from 1 to 1000 of them."""
    conditions = [Constraint(">=", helpers.N, IConst(1)), Constraint("<=", helpers.N, IConst(1000))]
    return OpenSizes({n: (helpers.N,) if n != "a" else () for n in names}, conditions, {}, 1)


def test_calls_at_other_sizes_go_to_the_driver_in_c(native: NativeDriver, stub: helpers.Stub) -> None:
    scale, _ = learnt(
        helpers.scale_code(), native, {"x": on(native, X), "a": 2.0}, ("y",), at_sizes("x", "y", "a")
    )
    spaces, _ = learnt(helpers.workspace_code(), native, {"x": on(native, X)}, ("y",), at_sizes("x", "y"))
    entry, _ = learnt(helpers.inout_code(), native, {"p": on(native, X)}, (), at_sizes("p"))
    for n in (1, 7, SIZE, 1000):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(scale.call((on(native, x), 3.0)).get(), 3 * x)
        np.testing.assert_array_equal(spaces.call((on(native, x),)).get(), x + 2)
        p = on(native, x)
        assert entry.call((p,)) is None
        np.testing.assert_array_equal(p.get(), x + x[::-1])
    array = on(native, np.arange(33, dtype=np.float32))
    for _ in range(2):
        kept = scale.call((array, 2.0))  # so that the next result needs no call of the driver
        del kept
        stub.calls()
        scale.call((array, 2.0))
    assert stub.calls()[-3:] == ["cuCtxPushCurrent", "cuLaunchKernel", "cuCtxPopCurrent"]
    for n in (0, 1001):
        assert scale.call((on(native, np.zeros(n, np.float32)), 1.0)) is NotImplemented
    assert scale.call((on(native, X.reshape(10, 10)), 1.0)) is NotImplemented


@pytest.mark.parametrize("function", ("cuLaunchKernel", "cuCtxPushCurrent"))
def test_what_the_driver_refuses_is_told(native: NativeDriver, stub: helpers.Stub, function: str) -> None:
    x = on(native, X)
    short, _ = learnt(helpers.scale_code(), native, {"x": x, "a": 2.0}, ("y",))
    kept = short.call((x, 2.0))  # so that the next result needs no call of the driver
    del kept
    stub.fail(function, 701, after=0 if function == "cuLaunchKernel" else 1)
    with pytest.raises(DeviceError) as refused:
        for _ in range(4):
            short.call((x, 2.0))
    assert refused.value.status == 701
    stub.recover()
    np.testing.assert_array_equal(short.call((x, 2.0)).get(), 2 * X)
    assert not stub.library.pf_stub_depth()


def test_a_bound_call_is_one_launch(native: NativeDriver, stub: helpers.Stub) -> None:
    x, y = on(native, X), on(native, 0 * X)
    given = {"x": x, "a": 2.0, "y": y}
    executable = CudaExecutable(helpers.scale_code(), helpers.image(), {"N": SIZE}, native)
    arrays = {"x": x.device_view, "a": np.float32(2.0), "y": y.device_view}
    family = array_family([x, y], executable.memory)
    assert family is not None
    result = object()
    bound = bound_call(executable, family, given, {}, arrays, executable.prepare(arrays), result)
    assert bound is not None
    stub.calls()
    assert bound() is result
    assert stub.calls() == ["cuCtxGetCurrent", "cuCtxPushCurrent", "cuLaunchKernel", "cuCtxPopCurrent"]
    np.testing.assert_array_equal(y.get(), 2 * X)
    count = sys.getrefcount(result)
    for _ in range(10):
        bound()
    assert sys.getrefcount(result) == count


def test_threads_without_a_context(native: NativeDriver) -> None:
    x = on(native, X)
    short, _ = learnt(helpers.workspace_code(), native, {"x": x}, ("y",))
    wrong: list[int] = []

    def work() -> None:
        for k in range(20):
            if not np.array_equal(short.call((x,)).get(), X + 2):
                wrong.append(k)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_children_of_a_fork_go_the_long_way(native: NativeDriver) -> None:
    x, y = on(native, X), on(native, X)
    given = {"x": x, "a": 2.0, "y": y}
    short, executable = learnt(helpers.scale_code(), native, given)
    arrays = {"x": x.device_view, "a": np.float32(2), "y": y.device_view}
    family = array_family([x, y], executable.memory)
    assert family is not None
    bound = bound_call(executable, family, given, {}, arrays, executable.prepare(arrays), None)
    assert bound is not None
    child = os.fork()
    if not child:
        os._exit(0 if short.call((x, 2.0, y)) is bound() is NotImplemented else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert short.call((x, 2.0, y)) is None and bound() is None


def test_without_a_launcher_calls_go_the_long_way(
    native: NativeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceLauncher, "get", classmethod(lambda cls: None))
    x = on(native, X)
    short, executable = learnt(helpers.scale_code(), native, {"x": x, "a": 2.0}, ("y",))
    assert short.call((x, 2.0)) is NotImplemented
    family, arrays = array_family([x], executable.memory), {"x": x.device_view}
    assert family is not None
    given = {"x": x, "a": 2.0, "y": x}
    job = executable.prepare({**arrays, "a": np.float32(2), "y": on(native, X).device_view})
    assert bound_call(executable, family, given, {}, arrays, job, None) is None


# --- DLPack's exchange interface ----------------------------------------------------------------------------


class Tensor:
    """An array that C asks about its memory."""

    flagged = False
    asked: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, array: np.ndarray[Any, Any], device: int = 0) -> None:
        self.array, self.device = array, device
        self.extents = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
        self.strides = (ctypes.c_int64 * max(1, array.ndim))(*(s // array.itemsize for s in array.strides))

    @property
    def flag(self) -> bool:
        self.asked()
        return self.flagged


def describe(tensor: Any, out: int) -> int:
    """As the exchange interface does it, of NumPy's memory."""
    if tensor.array is None:
        return -1
    a = tensor.array
    words = (ctypes.c_int64 * 6).from_address(out)
    words[0] = a.__array_interface__["data"][0]
    words[1] = 2 | tensor.device << 32
    kinds = {"i": 0, "u": 1, "f": 2}
    words[2] = a.ndim | kinds[a.dtype.kind] << 32 | 8 * a.itemsize << 40 | 1 << 48
    words[3], words[4], words[5] = ctypes.addressof(tensor.extents), ctypes.addressof(tensor.strides), 0
    return 0


DESCRIBE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_int64)(describe)
STREAMS = [0]


def _stream(kind: int, device: int, out: int) -> int:
    ctypes.c_int64.from_address(out).value = STREAMS[0]
    return 0 if (kind, device) == (2, 0) else -1


STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_int64)(_stream)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def exchange_family() -> Family:
    def make(shape: tuple[int, ...], dtype: Any) -> Any:
        return lambda: Tensor(np.zeros(shape, dtype))

    return Family(
        types=(Tensor,),
        facts=(),
        address=Fact("never"),
        device=0,
        make=make,
        exchange=(_address(DESCRIBE), _address(STREAM)),
        flag=Fact("flag"),
        excuse=lambda: True,
    )


class Seen:
    """A front for `like`, a number and such a result; `rows` has cells and stream of each call."""

    def __init__(self, start: DeviceLauncher, like: np.ndarray[Any, Any]) -> None:
        self.rows: list[tuple[int, float, int, int]] = []
        family = exchange_family()
        self.layout = CallLayout(
            family=family,
            arguments=[
                ArrayArgument(Tensor(like), 0, like.nbytes, 8, False),
                NumberArgument(float, "f64", 1),
            ],
            results=[Made(family.make(like.shape, like.dtype), like.nbytes, 8)],
            workspace=None,
            puts=[Put(0, 0), Put(2, 2)],
            steps=[KernelLaunch(1, (1, 1, 1), (1, 1, 1), 0, False, (0, 1, 2))],
            cells=[0, 0, 0],
            entries=None,
            run=self._run,
            failed=lambda *_: None,
        )
        self.front = start.front((None, 1.0), 4)
        assert self.front.add(self.layout, None)

    def _run(self, cells: int, addresses: int, stream: int, _: int) -> None:
        words = (ctypes.c_int64 * 3).from_address(cells)
        self.rows.append((words[0], ctypes.c_double.from_address(cells + 8).value, words[2], stream))


def test_arrays_tell_c_of_themselves(start: DeviceLauncher) -> None:
    like = np.arange(12.0).reshape(3, 4)
    seen = Seen(start, like)
    given = Tensor(like + 1)
    STREAMS[0] = 77
    found = seen.front.call((given, 2.5))
    assert type(found) is Tensor and found.array.shape == (3, 4)
    addresses = [t.array.__array_interface__["data"][0] for t in (given, found)]
    assert seen.rows == [(addresses[0], 2.5, addresses[1], 77)]
    assert type(seen.front.call((given,))) is Tensor  # the default


@pytest.mark.parametrize(
    "other",
    (
        Tensor(np.zeros((4, 3))),
        Tensor(np.zeros(12)),
        Tensor(np.zeros((3, 4, 1))),
        Tensor(np.zeros((3, 8))[:, ::2]),
        Tensor(np.zeros((4, 3)).T),
        Tensor(np.zeros((3, 4), np.int64)),
        Tensor(np.zeros((3, 4), np.float32)),
        Tensor(np.zeros((3, 4)), device=1),
        Tensor(
            np.frombuffer(bytearray(100), np.uint8)[4:].view(np.uint8)[:96].view(np.float64).reshape(3, 4)
        ),
        np.zeros((3, 4)),
        None,
        1.0,
    ),
)
def test_other_arrays_are_declined(start: DeviceLauncher, other: Any) -> None:
    seen = Seen(start, np.arange(12.0).reshape(3, 4))
    assert seen.front.call((other, 2.5)) is NotImplemented and not seen.rows


def test_arrays_that_do_not_tell_are_declined(start: DeviceLauncher) -> None:
    seen = Seen(start, np.arange(12.0).reshape(3, 4))
    gone, flagged = Tensor(np.zeros((3, 4))), Tensor(np.zeros((3, 4)))
    gone.array, flagged.flagged = None, True  # type: ignore[assignment]
    for one in (gone, flagged):
        assert seen.front.call((one,)) is NotImplemented
    assert not seen.rows
    flagged.flagged = False
    assert seen.front.call((flagged,)) is not NotImplemented


def test_layouts_beyond_the_room_are_not_learnt(start: DeviceLauncher) -> None:
    seen = Seen(start, np.zeros(3))
    family = exchange_family()
    layout = CallLayout(family, (), (), None, (), (), (), None, lambda *_: None, lambda *_: None)
    assert [seen.front.add(replace(layout, family=exchange_family()), None) for _ in range(5)] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_an_unusable_array_is_not_learnt(start: DeviceLauncher) -> None:
    family, gone = exchange_family(), Tensor(np.zeros(3))
    gone.array = None  # type: ignore[assignment]
    layout = partial(CallLayout, family, results=(), workspace=None, puts=(), steps=(), cells=())
    with pytest.raises(ValueError, match="does not tell"):
        start.structure(
            layout(
                arguments=[ArrayArgument(gone, 0, 24, 8, False)],
                entries=None,
                run=lambda *_: None,
                failed=lambda *_: None,
            )
        )
    gc.collect()


def test_layouts_that_come_while_a_call_is_under_way(start: DeviceLauncher) -> None:
    """A layout that needs far more room is learnt while a call has begun with less."""
    seen, given = Seen(start, np.arange(12.0).reshape(3, 4)), Tensor(np.zeros((4, 3)))
    first = replace(seen.layout.arguments[0], like=given)  # type: ignore[type-var]
    large = replace(seen.layout, cells=[0] * 5000, arguments=[first, seen.layout.arguments[1]])
    added: list[bool] = []
    given.asked = lambda: added.append(seen.front.add(large, None))
    assert seen.front.call((given, 2.5)) is NotImplemented and added == [True]
    given.asked = lambda: None
    assert type(seen.front.call((given, 2.5))) is Tensor


def test_steps_in_python_come_in_order(
    start: DeviceLauncher, native: NativeDriver, stub: helpers.Stub
) -> None:
    """As products of the library: with the interpreter, in the context of the device."""
    seen, x = Seen(start, np.arange(12.0).reshape(3, 4)), on(native, X)
    entries = native.entries()
    assert entries is not None
    came: list[tuple[int, int]] = []

    def step(cells: int, stream: int) -> None:
        came.append((ctypes.c_int64.from_address(cells).value, stream))
        if len(came) > 1:
            raise ZeroDivisionError

    fill = Fill(0, 0, 8)
    steps = [fill, PythonStep(step), fill]
    front = start.front((None,), 1)
    family = array_family([x], DeviceMemory.get(native))
    assert family is not None
    first = ArrayArgument(x, 0, x.nbytes, 4, True)
    layout = replace(
        seen.layout,
        family=family,
        arguments=[first],
        results=(),
        puts=[Put(0, 0)],
        steps=steps,
        entries=entries,
    )
    assert front.add(layout, None)
    stub.calls()
    assert front.call((x,)) is None and came == [(x.address, x.stream)]
    assert [c for c in stub.calls() if "Memset" in c] == ["cuMemsetD8Async"] * 2
    with pytest.raises(ZeroDivisionError):
        front.call((x,))
    assert [c for c in stub.calls() if "Memset" in c] == ["cuMemsetD8Async"]
    assert not stub.library.pf_stub_depth()
