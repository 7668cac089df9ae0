"""Executables on stand-ins for a GPU: arrays of every kind, streams, workspace, checks, failures.

The recording driver does its work at once and shows what was asked for; the stub of the driver's library does
nothing before somebody waits, so a step that is not ordered shows as a wrong result there.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import cuda_helpers as helpers
import ml_dtypes
import numpy as np
import pytest
from cuda_helpers import N

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.diagnostics import ArgumentError, DeviceError, DeviceMemoryError
from polyfuse.ir.dtypes import ALL, BF16, BY_NAME, F32, QUARTERS
from polyfuse.ir.launch_plan import GridPlan, Kind, PlanBuffer
from polyfuse.runtime.cuda.arguments import DeviceView, device_view, on_device
from polyfuse.runtime.cuda.driver import Driver
from polyfuse.runtime.cuda.driver_native import NativeDriver
from polyfuse.runtime.cuda.driver_recording import RecordingDriver
from polyfuse.runtime.cuda.executable import CudaExecutable
from polyfuse.runtime.cuda.memory import DeviceMemory
from polyfuse.runtime.cuda.results import DeviceArray, export
from polyfuse.source import SourceText, Span

SIZE = 100
A3 = np.float32(3)


@pytest.fixture
def stub() -> Iterator[helpers.Stub]:
    control = helpers.Stub()
    control.calls()
    yield control
    control.recover()


@pytest.fixture(params=helpers.drivers())
def driver(request: pytest.FixtureRequest, stub: helpers.Stub) -> Driver:
    return helpers.new_driver(request.param)


@pytest.fixture
def native(stub: helpers.Stub) -> NativeDriver:
    return helpers.native_driver()


@pytest.fixture
def recording() -> RecordingDriver:
    return helpers.recording_driver()


def _made(code: CudaCode, driver: Driver, **sizes: int) -> CudaExecutable:
    return CudaExecutable(code, helpers.image(), sizes or {"N": SIZE}, driver)


def _x(n: int = SIZE) -> np.ndarray[Any, Any]:
    return np.arange(n, dtype=np.float32)


def _on(driver: Driver, array: np.ndarray[Any, Any], stream: int | None = None) -> DeviceArray:
    made = DeviceArray.empty(DeviceMemory.get(driver), array.shape, array.dtype, stream)
    return made.set(array)


def _view(base: DeviceArray, offset: int = 0, **changes: Any) -> DeviceView:
    """Another look at the memory of an array."""
    view = device_view(base, "base")
    given = {name: getattr(view, name) for name in DeviceView.__slots__} | {"owner": base} | changes
    return DeviceView(**{**given, "address": view.address + offset})


def _others_stream(native: NativeDriver) -> int:
    """A stream as torch makes them: not ordered with the legacy default stream."""
    with native.current():
        return int(native.functions.cuStreamCreate(1))


# --- arrays of NumPy --------------------------------------------------------------------------------------


def test_numpy_in_and_out(driver: Driver) -> None:
    y = np.zeros(SIZE, np.float32)
    _made(helpers.scale_code(), driver).run({"x": _x(), "a": A3, "y": y})
    assert np.array_equal(y, 3 * _x())


def test_only_what_is_needed_is_copied(recording: RecordingDriver) -> None:
    f = _made(helpers.scale_code(), recording)
    f.run({"x": _x(), "a": A3, "y": np.zeros(SIZE, np.float32)})
    assert [c[3] for c in recording.named("copy_in")] == [4 * SIZE], "x goes in, y does not"
    assert [c[3] for c in recording.named("copy_out")] == [4 * SIZE], "y comes out, x does not"
    (launch,) = recording.launches
    assert (launch.grid, launch.block, launch.cooperative) == (SIZE, (32, 2), False)
    assert launch.values[2:] == (3.0, SIZE, 1)


def _with_shared(nbytes: int, cooperative: bool = False) -> CudaCode:
    code = helpers.scale_code()
    changed = (
        replace(x, shared_bytes=nbytes, dynamic_bytes=nbytes, cooperative=cooperative)
        for x in code.plan.launches
    )
    return replace(code, plan=replace(code.plan, launches=tuple(changed)))


def test_launches_ask_for_shared_memory(recording: RecordingDriver) -> None:
    f = _made(_with_shared(100_000), recording)
    f.run({"x": _x(), "a": A3, "y": np.zeros(SIZE, np.float32)})
    (launch,) = recording.launches
    assert launch.shared == 100_000
    assert recording.named("allow_shared") == [("allow_shared", launch.function, 100_000)]
    assert "100000 bytes shared" in f.describe()
    with pytest.raises(DeviceError, match="100000 bytes of shared memory a block") as refused:
        _made(_with_shared(100_000, cooperative=True), recording)
    assert refused.value.code == "PF745"


def test_large_shared_memory_on_every_driver(driver: Driver) -> None:
    y = np.zeros(SIZE, np.float32)
    _made(_with_shared(100_000), driver).run({"x": _x(), "a": A3, "y": y})
    assert np.array_equal(y, 3 * _x())


def test_more_shared_memory_than_a_block_has(recording: RecordingDriver) -> None:
    with pytest.raises(DeviceError, match="needs 300000 bytes of shared memory") as refused:
        _made(_with_shared(300_000), recording)
    assert refused.value.code == "PF744"


def test_numpy_arrays_of_any_layout(driver: Driver) -> None:
    y = np.zeros(2 * SIZE, np.float32)
    _made(helpers.scale_code(), driver).run({"x": _x(3 * SIZE)[::-3], "a": A3, "y": y[::2]})
    assert np.array_equal(y[::2], 3 * _x(3 * SIZE)[::-3])
    assert not y[1::2].any()


def test_workspace_is_used_again(driver: Driver) -> None:
    f = _made(helpers.workspace_code(), driver)
    memory = DeviceMemory.get(driver)
    for k in range(5):
        y = np.zeros(SIZE, np.float32)
        f.run({"x": _x() + k, "y": y})
        assert np.array_equal(y, _x() + k + 2)
    assert memory.pool.allocations == 3, "x, y and the workspace, of the first call"
    assert f.workspace() == ({"t": 0}, 512)


def test_workspace_of_the_caller_is_captured(driver: Driver) -> None:
    """As graphs of PyTorch capture it: all memory is theirs."""
    f, memory = _made(helpers.workspace_code(), driver), DeviceMemory.get(driver)
    with driver.current():
        stream = driver.create_stream()
    x, y = _on(driver, _x(), stream), _on(driver, np.zeros(SIZE, np.float32), stream)
    space = DeviceArray.empty(memory, (512,), np.dtype(np.uint8), stream)
    before = memory.pool.allocations
    f.run({"x": x, "y": y}, device_view(space, "space").address)
    assert np.array_equal(y.get(), _x() + 2)
    with driver.current():
        driver.begin_capture(stream)
    f.run({"x": x, "y": y}, device_view(space, "space").address)
    with pytest.raises(DeviceError, match="cannot be captured"):
        f.run({"x": x, "y": y})
    with driver.current():
        driver.end_capture(stream)
    assert memory.pool.allocations == before + 1, "that of the call without"


def test_memory_comes_back_without_the_collector(recording: RecordingDriver) -> None:
    f = _made(helpers.scale_code(), recording)
    gc.disable()
    try:
        f.run({"x": _x(), "a": A3, "y": np.zeros(SIZE, np.float32)})
        pool = DeviceMemory.get(recording).pool
        with recording.current():
            pool.take(1, 99)
        assert pool.free_bytes == 2 * 512
    finally:
        gc.enable()


def test_entry_values_are_copied_where_the_plan_says(driver: Driver) -> None:
    p = _x()
    f = _made(helpers.inout_code(), driver)
    f.run({"p": p, "q": p})
    assert (p == SIZE - 1).all()
    device = _on(driver, _x())
    f.run({"p": device, "q": device})
    assert (device.get() == SIZE - 1).all()


def test_scalars_of_every_type(driver: Driver) -> None:
    given = {
        "f64": -1.25, "f32": 3.5, "i64": -(2**40), "i32": -7, "i16": -300,
        "i8": -5, "u8": 250, "f16": 1.5, "bf16": -2.0, "bool": True,
    }  # fmt: skip
    arrays: dict[str, Any] = {n: np.asarray(x).astype(BY_NAME[n].numpy) for n, x in given.items()}
    y = np.zeros(len(given))
    f = _made(helpers.values_code(), driver)
    f.run({**arrays, "y": y})
    bits = [int(arrays[n].view(np.uint16)) for n in ("f16", "bf16")]
    want = [-1.25, 3.5, -(2**40), -7, -300, -5, 250, *bits, 1]
    assert y.tolist() == want
    scalars = {n: _on(driver, a) for n, a in arrays.items()}  # read back from the device
    y[:] = 0
    f.run({**scalars, "y": y})
    assert y.tolist() == want


def test_nothing_is_launched_without_blocks(driver: Driver, stub: helpers.Stub) -> None:
    f = _made(helpers.scale_code(), driver, N=0)
    empty = np.zeros(0, np.float32)
    f.run({"x": empty, "a": A3, "y": empty})
    f.run({"x": _on(driver, empty), "a": A3, "y": _on(driver, empty)})
    assert "cuLaunchKernel" not in stub.calls()
    assert f.profile({"x": empty, "a": A3, "y": empty}) == [0.0]


# --- arrays on the device ---------------------------------------------------------------------------------


def test_device_arrays_are_used_in_place(recording: RecordingDriver) -> None:
    f = _made(helpers.scale_code(), recording)
    x, y = _on(recording, _x()), f.device_output(helpers.Y)
    recording.calls.clear()
    f.run({"x": x, "a": A3, "y": y})
    names = {c[0] for c in recording.calls}
    assert names == {"launch"}, "no copy, no event, nothing to wait for"
    assert recording.launches[0].values[:2] == (x.address, y.address)
    assert np.array_equal(y.get(), 3 * _x())


def test_device_and_numpy_mixed(driver: Driver) -> None:
    f = _made(helpers.scale_code(), driver)
    y = np.zeros(SIZE, np.float32)
    f.run({"x": _on(driver, _x()), "a": A3, "y": y})
    assert np.array_equal(y, 3 * _x())
    out = f.device_output(helpers.Y)
    f.run({"x": y, "a": A3, "y": out})
    y[:] = 0  # x may change as soon as run returns
    assert np.array_equal(out.get(), 9 * _x())


def test_strides_are_passed_where_the_plan_has_them(recording: RecordingDriver) -> None:
    f = _made(helpers.scale_code(strided=True), recording)
    base = _on(recording, _x(3 * SIZE))
    y = f.device_output(helpers.Y)
    view = _view(base, 4 * (3 * SIZE - 1), shape=(SIZE,), strides=(-12,))
    recording.calls.clear()
    f.run({"x": view, "a": A3, "y": y})
    assert recording.launches[0].values[4] == -3
    assert not recording.named("copy", "copy_in", "copy_out")
    assert np.array_equal(y.get(), 3 * _x(3 * SIZE)[::-3])


def test_what_is_not_dense_is_copied_otherwise(driver: Driver) -> None:
    f = _made(helpers.scale_code(), driver)
    base, out = _on(driver, _x(3 * SIZE)), _on(driver, np.full(2 * SIZE, 7, np.float32))
    x = _view(base, 4 * (3 * SIZE - 1), shape=(SIZE,), strides=(-12,))
    f.run({"x": x, "a": A3, "y": _view(out, shape=(SIZE,), strides=(8,))})
    assert np.array_equal(out.get()[::2], 3 * _x(3 * SIZE)[::-3])
    assert (out.get()[1::2] == 7).all(), "what lies between is kept"
    assert "argument 'y' is not dense: copied on every call" in f.describe()


def test_strides_that_are_no_whole_elements(driver: Driver) -> None:
    f = _made(helpers.scale_code(strided=True), driver)
    pairs = np.zeros(SIZE, [("value", "<f4"), ("flag", "u1"), ("pad", "u1")])
    pairs["value"] = _x()
    base = _on(driver, pairs.view(np.uint8))
    y = f.device_output(helpers.Y)
    f.run({"x": _view(base, dtype=np.dtype("<f4"), shape=(SIZE,), strides=(6,)), "a": A3, "y": y})
    assert np.array_equal(y.get(), 3 * _x())


def test_an_owner_makes_the_dense_copy_if_it_can(native: NativeDriver) -> None:
    f = _made(helpers.scale_code(), native)
    theirs = _others_stream(native)
    dense, y = _on(native, _x(), theirs), f.device_output(helpers.Y)
    asked = []

    def compact() -> DeviceView:
        asked.append(1)
        return device_view(dense, "x")

    base = _on(native, _x(3 * SIZE))
    f.run({"x": _view(base, shape=(SIZE,), strides=(12,), compact=compact), "a": A3, "y": y})
    with native.current():
        native.fill(dense.address, 0, dense.nbytes, theirs)  # its owner uses the memory again
        native.synchronize(theirs)
    assert np.array_equal(y.get(), 3 * _x())
    assert asked == [1]


def test_unaligned_memory_goes_through_a_copy(driver: Driver) -> None:
    f = _made(helpers.scale_code(alignment=16), driver)
    base, out = _on(driver, _x(SIZE + 1)), _on(driver, np.full(SIZE + 2, 7, np.float32))
    arrays = {"x": _view(base, 4, shape=(SIZE,)), "a": A3, "y": _view(out, 4, shape=(SIZE,))}
    f.run(arrays)
    f.run(arrays)
    assert np.array_equal(out.get()[1:-1], 3 * _x(SIZE + 1)[1:])
    assert out.get()[[0, -1]].tolist() == [7, 7]
    want = [f"argument '{n}' is not at a multiple of 16 bytes: copied on every call" for n in "xy"]
    assert list(f.remarks) == want, "each is said once"


def test_an_input_that_is_also_written_is_copied(driver: Driver) -> None:
    f = _made(helpers.scale_code(), driver)
    both = _on(driver, _x())
    f.run({"x": both, "a": A3, "y": both})
    assert np.array_equal(both.get(), 3 * _x())
    assert "shares memory" in f.describe()


def test_results_that_share_memory_are_refused(recording: RecordingDriver) -> None:
    x, y, z = (
        PlanBuffer(n, F32, (N,), k) for n, k in (("x", Kind.INPUT), ("y", Kind.OUTPUT), ("z", Kind.OUTPUT))
    )
    one = helpers.launch("plus_one", *map(helpers.pointer, "xyz"))
    f = _made(CudaCode("", GridPlan((x, y, z), (one,), sizes=("N",)), ()), recording)
    out = _on(recording, _x())
    with pytest.raises(ArgumentError, match="'y' and 'z' are written and share memory") as refused:
        f.run({"x": _x(), "y": out, "z": out})
    assert refused.value.code == "PF418"


# --- what does not fit ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"x": np.zeros(SIZE)}, "PF402"),
        ({"x": np.zeros(SIZE - 1, np.float32)}, "PF405"),
        ({"x": np.zeros((SIZE, 2), np.float32)}, "PF401"),
        ({"x": 5}, "PF417"),
        ({"x": [1.0, 2.0]}, "PF417"),
        ({"x": SimpleNamespace(__cuda_array_interface__={"typestr": "<c8"})}, "PF417"),
        ({"x": DeviceView(1 << 60, np.dtype(np.float32), (SIZE,), (4,))}, "PF417"),
        ({"x": DeviceView(1 << 60, np.dtype(np.float32), (SIZE,), (4,), device=5)}, "PF417"),
    ],
)
def test_arguments_that_do_not_fit(recording: RecordingDriver, change: dict[str, Any], code: str) -> None:
    f = _made(helpers.scale_code(), recording)
    with pytest.raises(ArgumentError) as refused:
        f.run({"x": _x(), "a": A3, "y": np.zeros(SIZE, np.float32), **change})
    assert refused.value.code == code
    assert "'x'" in str(refused.value)
    assert not recording.launches


def test_device_arrays_that_do_not_fit(recording: RecordingDriver) -> None:
    f = _made(helpers.scale_code(), recording)
    cases = [(np.zeros(SIZE), "PF402"), (np.zeros(SIZE + 1, np.float32), "PF405")]
    for array, code in cases:
        with pytest.raises(ArgumentError) as refused:
            f.run({"x": _on(recording, array), "a": A3, "y": np.zeros(SIZE, np.float32)})
        assert refused.value.code == code


def test_dims_that_the_plan_made_one(driver: Driver) -> None:
    f, in_place = _made(helpers.scale_code(), driver), _made(helpers.inout_code(), driver)
    table = np.ascontiguousarray(_x().reshape(4, -1).T)
    on_device = _on(driver, table)
    for given in (
        np.asfortranarray(table),
        on_device,
        _view(on_device, shape=(2, SIZE // 2), strides=(200, 4)),
    ):
        y = np.zeros_like(table)
        f.run({"x": given, "a": A3, "y": y})
        assert np.array_equal(y, 3 * table)
    want = table + table[::-1, ::-1]
    in_place.run({"p": on_device, "q": on_device})
    assert np.array_equal(on_device.get(), want)
    in_place.run({"p": table, "q": table})
    assert np.array_equal(table, want)
    with pytest.raises(ArgumentError, match="PF401"):
        _made(helpers.scale_code(strided=True), driver).run({"x": table, "a": A3, "y": _x()})


def test_read_only_results_are_refused(recording: RecordingDriver) -> None:
    f = _made(helpers.scale_code(), recording)
    frozen = np.zeros(SIZE, np.float32)
    frozen.flags.writeable = False
    for y in (frozen, _view(_on(recording, _x()), writeable=False)):
        with pytest.raises(ArgumentError, match="read-only"):
            f.run({"x": _x(), "a": A3, "y": y})


def test_a_grid_that_is_too_large_is_refused_when_it_is_made(recording: RecordingDriver) -> None:
    with pytest.raises(DeviceError, match="more than the 2147483647 of a grid") as refused:
        _made(helpers.scale_code(), recording, N=2**31)
    assert refused.value.code == "PF744"
    wide = helpers.launch("plus_one", helpers.pointer("x"), helpers.pointer("y"), helpers.SIZE)
    plan = GridPlan(
        (helpers.X, helpers.Y), (type(wide)(**{**_fields(wide), "threads": (1024, 2)}),), sizes=("N",)
    )
    with pytest.raises(DeviceError, match="2048 threads"):
        _made(CudaCode("", plan, ()), recording)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type(value).__slots__}


def test_a_cooperative_launch_that_does_not_fit(recording: RecordingDriver, stub: helpers.Stub) -> None:
    assert _made(helpers.barrier_code(blocks=8), recording)
    with pytest.raises(DeviceError, match="9 blocks of 64 threads, but only 8"):
        _made(helpers.barrier_code(blocks=9), recording)
    stub.library.pf_stub_resident(1)
    with pytest.raises(DeviceError, match="133 blocks of 64 threads, but only 132") as refused:
        _made(helpers.barrier_code(blocks=133), helpers.native_driver())
    assert refused.value.code == "PF745"


def test_barrier_states_are_clear_for_each_launch(driver: Driver) -> None:
    f = _made(helpers.barrier_code(), driver)
    p = np.zeros(2, np.float32)
    for calls in range(1, 4):
        f.run({"p": p, "q": p})
        assert p.tolist() == [2 * calls, 4]
    device = _on(driver, np.zeros(2, np.float32))
    bound = f.bind({"p": device, "q": device})
    bound()
    bound()
    assert device.get().tolist() == [4, 4]
    if isinstance(driver, RecordingDriver):
        assert all(launch.cooperative for launch in driver.launches)
        states = {launch.values[1] for launch in driver.launches[:2]}
        assert len(states) == 2


def test_a_failed_check_has_its_place(driver: Driver) -> None:
    source = SourceText("f.pf", "y[i] = t[k[i]]")
    spans = ((Span(source, 9, 13), "0..N"), (Span(source, 7, 14), "0..M"))
    f = _made(helpers.checked_code(spans), driver)
    y = np.zeros(1, np.float32)
    f.run({"i": np.array([5]), "y": y})
    assert y == 5
    with pytest.raises(ArgumentError, match=r"'k\[i\]' is not in 0..N") as refused:
        f.run({"i": np.array([-1]), "y": y})
    assert refused.value.code == "PF450"
    with pytest.raises(ArgumentError, match=r"'t\[k\[i\]\]' is not in 0..M"):
        f.run({"i": _on(driver, np.array([10])), "y": f.device_output(f.plan.buffers[1])})
    f.run({"i": np.array([7]), "y": y})
    assert y == 7, "the status is cleared"


# --- failures of the device -------------------------------------------------------------------------------


def test_out_of_memory_leaves_the_executable_usable(recording: RecordingDriver) -> None:
    f = _made(helpers.workspace_code(), recording)
    y = np.zeros(SIZE, np.float32)
    for after in range(3):
        recording.fail("allocate", after=after)
        with pytest.raises(MemoryError) as failed:
            CudaExecutable(helpers.workspace_code(), b"", {"N": SIZE}, _fresh(after)).run({"x": _x(), "y": y})
        assert isinstance(failed.value, DeviceMemoryError)
    recording._failures.clear()
    f.run({"x": _x(), "y": y})
    assert np.array_equal(y, _x() + 2)


def _fresh(after: int) -> RecordingDriver:
    driver = helpers.recording_driver()
    driver.fail("allocate", after=after)
    return driver


def test_a_failed_launch_is_told(recording: RecordingDriver) -> None:
    f = _made(helpers.workspace_code(), recording)
    y = np.zeros(SIZE, np.float32)
    recording.fail("launch", 701, after=1)
    with pytest.raises(DeviceError) as failed:
        f.run({"x": _x(), "y": y})
    assert failed.value.code == "PF744"
    f.run({"x": _x(), "y": y})
    assert np.array_equal(y, _x() + 2)
    recording.fail("wait_here", 700)
    with pytest.raises(DeviceError, match="context of this process is lost"):
        f.run({"x": _x(), "y": y})
    with pytest.raises(DeviceError, match="PF743"):
        f.run({"x": _x(), "y": y})


def test_code_for_another_device(stub: helpers.Stub, native: NativeDriver) -> None:
    with pytest.raises(DeviceError, match="PF746"):
        CudaExecutable(helpers.scale_code(), b"PFSTUB /nonexistent.so\0", {"N": 1}, native)


# --- streams ----------------------------------------------------------------------------------------------


def test_the_launch_goes_to_the_stream_of_the_arrays(recording: RecordingDriver) -> None:
    f = _made(helpers.scale_code(), recording)
    x, y = (_view(_on(recording, _x()), stream=77) for _ in range(2))
    recording.calls.clear()
    f.run({"x": x, "a": A3, "y": y})
    assert [launch.stream for launch in recording.launches] == [77]
    assert not recording.named("record", "wait")


def test_several_streams_are_joined(recording: RecordingDriver) -> None:
    f = _made(helpers.scale_code(), recording)
    x, y = _view(_on(recording, _x()), stream=77), _view(_on(recording, _x()), stream=88)
    recording.calls.clear()
    f.run({"x": x, "a": A3, "y": y})
    (launch,) = recording.launches
    assert launch.stream not in (77, 88)
    order = [(c[0], c[-1] if c[0] == "record" else c[1]) for c in recording.named("record", "wait")]
    own = launch.stream
    assert order == [
        ("record", 77), ("wait", own), ("record", 88), ("wait", own),
        ("record", own), ("wait", 77), ("record", own), ("wait", 88),
    ]  # fmt: skip
    names = [c[0] for c in recording.named("wait", "launch")]
    assert names == ["wait", "wait", "launch", "wait", "wait"]


def test_work_of_others_is_waited_for(native: NativeDriver) -> None:
    """Nothing runs on the stub before somebody waits: an order that is missing gives wrong numbers."""
    f = _made(helpers.scale_code(), native)
    with native.current():
        streams = [native.create_stream() for _ in range(2)]
    x = _on(native, _x(), streams[0])  # the copy is queued there
    y, z = f.device_output(helpers.Y, streams[1]), f.device_output(helpers.Y, streams[0])
    f.run({"x": x, "a": A3, "y": y})
    assert y.stream == streams[1]
    f.run({"x": y, "a": A3, "y": z})
    assert np.array_equal(z.get(), 9 * _x())
    assert np.array_equal(y.get(), 3 * _x())


def test_work_on_the_default_stream_is_waited_for(native: NativeDriver) -> None:
    """PyCUDA's arrays say that there is nothing to wait for, and are filled on the default stream."""
    f = _made(helpers.scale_code(), native)
    x, y = _on(native, _x(), 0), f.device_output(helpers.Y)
    f.run({"x": _view(x, stream=None), "a": A3, "y": y})
    assert y.stream != 0
    assert np.array_equal(y.get(), 3 * _x())


def test_numbers_of_the_default_streams(recording: RecordingDriver) -> None:
    assert device_view(SimpleNamespace(__cuda_array_interface__=_interface(stream=1)), "x").stream == 0
    assert device_view(SimpleNamespace(__cuda_array_interface__=_interface(stream=2)), "x").stream == 2
    assert device_view(SimpleNamespace(__cuda_array_interface__=_interface(stream=None)), "x").stream is None
    assert device_view(SimpleNamespace(__cuda_array_interface__=_interface()), "x").stream is None


def test_threads_call_at_once(driver: Driver) -> None:
    f = _made(helpers.workspace_code(), driver)
    wrong = []

    def work(k: int) -> None:
        for _ in range(20):
            y = np.zeros(SIZE, np.float32)
            f.run({"x": _x() + k, "y": y})
            if not np.array_equal(y, _x() + k + 2):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# --- bound calls ------------------------------------------------------------------------------------------


def test_a_bound_call_only_launches(recording: RecordingDriver) -> None:
    f = _made(helpers.workspace_code(), recording)
    x, y = _on(recording, _x()), f.device_output(helpers.Y)
    bound = f.bind({"x": x, "y": y})
    recording.calls.clear()
    bound()
    bound()
    assert [c[0] for c in recording.calls] == ["launch"] * 4
    x.set(_x() * 2)
    bound()
    assert np.array_equal(y.get(), 2 * _x() + 2)


def test_a_bound_call_reads_and_writes_numpy_arrays_each_time(driver: Driver) -> None:
    f = _made(helpers.scale_code(), driver)
    x, a, y = _x(), np.array(3, np.float32), np.zeros(SIZE, np.float32)
    bound = f.bind({"x": x, "a": a, "y": y})
    bound()
    assert np.array_equal(y, 3 * _x())
    x += 1
    a[()] = 5
    bound()
    assert np.array_equal(y, 5 * (_x() + 1))


def test_bound_calls_keep_their_memory(driver: Driver) -> None:
    f = _made(helpers.workspace_code(), driver)
    y = np.zeros(SIZE, np.float32)
    bound = f.bind({"x": _on(driver, _x()), "y": y})
    other = _made(helpers.workspace_code(), driver)
    for _ in range(3):
        other.run({"x": _x() * 7, "y": np.zeros(SIZE, np.float32)})
    gc.collect()
    bound()
    assert np.array_equal(y, _x() + 2)


def test_a_bound_call_as_a_graph(driver: Driver, stub: helpers.Stub) -> None:
    f = _made(helpers.workspace_code(), driver)
    x, y = _on(driver, _x()), f.device_output(helpers.Y)
    bound = f.bind({"x": x, "y": y}, graph=True)
    stub.calls()
    bound()
    assert np.array_equal(y.get(), _x() + 2)
    x.set(_x() * 2)
    bound()
    assert np.array_equal(y.get(), 2 * _x() + 2)
    if isinstance(driver, NativeDriver):
        called = stub.calls()
        assert called.count("cuGraphLaunch") == 2
        assert "cuLaunchKernel" not in called
        del bound
        assert {"cuGraphExecDestroy", "cuStreamDestroy"} <= set(stub.calls())


def test_a_graph_clears_barrier_states(driver: Driver) -> None:
    f = _made(helpers.barrier_code(), driver)
    device = _on(driver, np.zeros(2, np.float32))
    bound = f.bind({"p": device, "q": device}, graph=True)
    if isinstance(driver, NativeDriver):
        for calls in range(1, 4):
            bound()
            assert device.get().tolist() == [2 * calls, 4]


def test_a_graph_has_the_scalars_of_its_time(driver: Driver, stub: helpers.Stub) -> None:
    f = _made(helpers.scale_code(), driver)
    x, y, a = _on(driver, _x()), f.device_output(helpers.Y), np.array(3, np.float32)
    bound = f.bind({"x": x, "a": a, "y": y}, graph=True)
    a[()] = 5
    bound()
    assert np.array_equal(y.get(), 3 * _x())
    if isinstance(driver, NativeDriver):
        assert "cuGraphLaunch" in stub.calls()


def test_what_needs_the_host_is_no_graph(native: NativeDriver, stub: helpers.Stub) -> None:
    f = _made(helpers.workspace_code(), native)
    y = np.zeros(SIZE, np.float32)
    f.bind({"x": _on(native, _x()), "y": y}, graph=True)()
    assert np.array_equal(y, _x() + 2)
    assert "cuGraphLaunch" not in stub.calls()


def test_profile_has_a_time_for_each_launch(driver: Driver) -> None:
    f = _made(helpers.workspace_code(), driver)
    times = f.profile({"x": _x(), "y": np.zeros(SIZE, np.float32)}, repeat=3)
    assert len(times) == 2
    assert all(0 <= t < 1 for t in times)


def test_describe(recording: RecordingDriver) -> None:
    text = _made(helpers.barrier_code(), recording).describe()
    assert "Recording GPU (sm_90" in text
    assert "wait_all: 4 blocks of 32 x 2 threads, 32 registers, 0 bytes shared" in text
    assert "cooperative" in text


# --- arrays of other libraries ----------------------------------------------------------------------------


def _interface(address: int = 4096, **more: Any) -> dict[str, Any]:
    return {"version": 3, "shape": (4,), "typestr": "<f4", "data": (address, False), **more}


def test_the_array_interface() -> None:
    given = SimpleNamespace(__cuda_array_interface__=_interface(strides=(8,), stream=5, data=(4096, True)))
    view = device_view(given, "x")
    assert (view.address, view.shape, view.strides, view.stream) == (4096, (4,), (8,), 5)
    assert (view.dtype, view.writeable, view.dense, view.owner) == (np.float32, False, False, given)
    assert view.extent == (4096, 4096 + 28)
    dense = device_view(SimpleNamespace(__cuda_array_interface__=_interface(shape=(2, 3))), "x")
    assert dense.strides == (12, 4)
    assert dense.dense


def test_bfloat16_in_the_array_interface() -> None:
    named = SimpleNamespace(__cuda_array_interface__=_interface(typestr="<V2"), dtype="bfloat16")
    assert device_view(named, "x").dtype == ml_dtypes.bfloat16
    with pytest.raises(ArgumentError, match="which the language does not have"):
        device_view(SimpleNamespace(__cuda_array_interface__=_interface(typestr="<V2"), dtype="V2"), "x")


@pytest.mark.parametrize("typestr", ["<c8", "<c16", ">f4", "<f2x"])
def test_dtypes_that_the_language_does_not_have(typestr: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        device_view(SimpleNamespace(__cuda_array_interface__=_interface(typestr=typestr)), "x")
    assert refused.value.code in ("PF402", "PF417")


class _Lender:
    """An array of another library that only speaks DLPack."""

    def __init__(self, inner: DeviceArray) -> None:
        self.inner = inner
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.inner.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None) -> object:
        self.streams.append(stream)
        return self.inner.__dlpack__(stream=stream)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_dlpack_there_and_back(recording: RecordingDriver, dtype: Any) -> None:
    made = _on(recording, np.ones((2, 3), dtype.numpy))
    view = device_view(_Lender(made), "x")
    assert (view.address, view.dtype, view.shape, view.dense) == (made.address, dtype.numpy, (2, 3), True)
    assert (view.device, view.stream) == (0, 0)


def test_dlpack_orders_the_streams(native: NativeDriver) -> None:
    f = _made(helpers.scale_code(), native)
    theirs = _others_stream(native)
    lender = _Lender(_on(native, _x(), theirs))
    y = np.zeros(SIZE, np.float32)
    f.run({"x": lender, "a": A3, "y": y})
    assert np.array_equal(y, 3 * _x())
    assert lender.streams == [1], "the legacy default stream, which ours is ordered with"


def test_borrowed_memory_is_held_until_kernels_are_done(native: NativeDriver) -> None:
    """Its owner would give it to the next user without waiting for a stream that it does not know."""
    f = _made(helpers.scale_code(), native)
    lenders = [_Lender(_on(native, _x())) for _ in range(2)]
    alive = [weakref.ref(lender) for lender in lenders]
    y = f.device_output(helpers.Y)
    f.run({"x": lenders[0], "a": A3, "y": y})
    bound = f.bind({"x": lenders[1], "a": A3, "y": y})
    bound()
    lenders.clear()
    del bound
    gc.collect()
    assert all(ref() is not None for ref in alive)
    y.get()
    f.run({"x": _Lender(_on(native, _x())), "a": A3, "y": y})
    assert all(ref() is None for ref in alive)


def test_lent_memory_is_kept_and_given_back(recording: RecordingDriver) -> None:
    made = _on(recording, _x())
    address, pool = made.address, DeviceMemory.get(recording).pool
    capsule = made.__dlpack__()
    del made
    with recording.current():
        assert pool.take(4 * SIZE, 1).address != address
        del capsule
        found = [pool.take(4 * SIZE, s).address for s in range(20)]
    assert address in found, "a capsule that nobody consumed frees what it holds"


def test_capsules_may_outlive_the_interpreter() -> None:
    """Its functions are gone when what is left of the program dies."""
    text = (
        "import sys, numpy as np\n"
        "from polyfuse.runtime.cuda.results import export\n"
        "memory = np.zeros(4, np.float32)\n"
        "sys.kept = [export(memory.ctypes.data, (4,), memory.dtype, (1, 0), memory) for _ in range(3)]\n"
        "sys.kept.pop()\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("dtype", [t for t in ALL if t not in (BF16, *QUARTERS)], ids=str)
def test_capsules_are_what_numpy_takes(dtype: Any) -> None:
    """NumPy reads no memory of a GPU, so the same capsule says that it is the host's."""
    source = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    alive = threading.Event()

    class Owner:
        def __del__(self) -> None:
            alive.set()

    class Lender:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **_: object) -> object:
            return export(source.ctypes.data, source.shape, source.dtype, (1, 0), Owner())

    taken = np.from_dlpack(Lender())  # type: ignore[arg-type]
    assert taken.dtype == dtype.numpy
    assert np.array_equal(taken, source)
    gc.collect()
    assert not alive.is_set(), "the consumer keeps it alive"
    del taken
    gc.collect()
    assert alive.is_set()


def test_where_values_live(recording: RecordingDriver) -> None:
    assert on_device(_on(recording, _x()))
    assert on_device(SimpleNamespace(__cuda_array_interface__=_interface()))
    for value in (1, 2.5, True, _x(), np.float32(1), [1], SimpleNamespace(__dlpack_device__=lambda: (1, 0))):
        assert not on_device(value)


def test_device_arrays_describe_themselves(recording: RecordingDriver) -> None:
    made = _on(recording, np.ones((2, 3), np.float32), 0)
    assert (made.ndim, made.size, made.nbytes, len(made)) == (2, 6, 24, 2)
    assert repr(made) == "<DeviceArray float32[2, 3] on GPU 0>"
    interface = made.__cuda_array_interface__
    assert interface["stream"] == 1, "0 is not allowed there"
    assert interface["typestr"] == "<f4"
    out = np.empty((2, 3), np.float32)
    assert made.get(out) is out
    assert (out == 1).all()
    with pytest.raises(ValueError, match="dense array of shape"):
        made.get(np.empty((3, 2), np.float32))
    with pytest.raises(ValueError, match="is needed"):
        made.set(np.ones(6, np.float32))
    with pytest.raises(TypeError):
        len(_on(recording, np.float32(1) * np.ones((), np.float32)))
