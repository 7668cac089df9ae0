"""Arrays of torch and cupy on a GPU, with stand-ins for these libraries."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import cuda_helpers as helpers
import ml_dtypes
import numpy as np
import pytest
from torch_stand_in import Marks, Modes

from polyfuse.diagnostics import ArgumentError
from polyfuse.interop.device_arrays import empty_result, result_kind, to_device
from polyfuse.runtime.cuda.driver_native import NativeDriver
from polyfuse.runtime.cuda.executable import CudaExecutable
from polyfuse.runtime.cuda.memory import DeviceMemory
from polyfuse.runtime.cuda.results import DeviceArray

SIZE = 50


class Tensor(Marks):
    """What is asked of a tensor of torch; its memory is ours."""

    def __init__(self, base: DeviceArray | None, device: str = "cuda", **given: Any) -> None:
        self.base = base
        self.device = SimpleNamespace(type=device, index=0 if device == "cuda" else None)
        self.shape = given.get("shape", base.shape if base is not None else (2,))
        self.strides = given.get("strides", (1,))
        self.dtype = given.get("dtype", "torch.float32")
        self.layout = given.get("layout", "strided")
        self.offset = 0
        self.negative = False
        self.contiguous_asked = 0

    def data_ptr(self) -> int:
        assert self.base is not None
        return self.base.address + self.offset

    def stride(self) -> tuple[int, ...]:
        return tuple(self.strides)

    def is_neg(self) -> bool:
        return self.negative

    def contiguous(self) -> Tensor:
        assert self.base is not None
        self.contiguous_asked += 1
        step = self.strides[0]
        dense = DeviceArray.empty(self.base._memory, tuple(self.shape), self.base.dtype, self.base.stream)
        return Tensor(dense.set(np.ascontiguousarray(self.base.get()[::step])))


class Torch(Modes):
    """Just enough of torch."""

    def __init__(self) -> None:
        super().__init__(Tensor)
        self.strided = "strided"
        self.bfloat16 = "torch.bfloat16"
        self.stream = 0
        self.cuda = SimpleNamespace(current_stream=lambda _: SimpleNamespace(cuda_stream=self.stream))
        self.made: list[Any] = []

    def empty(self, shape: tuple[int, ...], *, dtype: str, device: str) -> object:
        self.made.append((shape, dtype, device))
        return self.made[-1]


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    module = Torch()
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.fixture
def native() -> NativeDriver:
    return helpers.native_driver()


def _on(native: NativeDriver, values: Any, stream: int | None = None) -> DeviceArray:
    array = np.asarray(values, np.float32)
    return DeviceArray.empty(DeviceMemory.get(native), array.shape, array.dtype, stream).set(array)


def test_tensors_are_used_in_place_on_their_stream(native: NativeDriver, torch: Torch) -> None:
    with native.current():
        torch.stream = int(native.functions.cuStreamCreate(1))
    x = Tensor(_on(native, range(SIZE), torch.stream))
    y = Tensor(_on(native, np.zeros(SIZE), torch.stream))
    views = {"x": to_device(x, "x"), "y": to_device(y, "y")}
    assert all(v is not None and v.stream == torch.stream for v in views.values())
    f = CudaExecutable(helpers.scale_code(), helpers.image(), {"N": SIZE}, native)
    f.run({**views, "a": np.float32(3)})
    assert y.base is not None
    assert np.array_equal(y.base.get(), 3 * np.arange(SIZE))


def test_tensors_make_their_own_dense_copies(native: NativeDriver, torch: Torch) -> None:
    x = Tensor(_on(native, range(3 * SIZE)), shape=(SIZE,), strides=(3,))
    y = np.zeros(SIZE, np.float32)
    f = CudaExecutable(helpers.scale_code(), helpers.image(), {"N": SIZE}, native)
    f.run({"x": to_device(x, "x"), "a": np.float32(1), "y": y})
    assert np.array_equal(y, np.arange(3 * SIZE)[::3])
    assert x.contiguous_asked == 1


def test_strides_and_dtypes_of_tensors(native: NativeDriver, torch: Torch) -> None:
    x = Tensor(_on(native, range(12)), shape=(3, 2), strides=(1, 3), dtype="torch.bfloat16")
    view = to_device(x, "x")
    assert view is not None
    assert (view.dtype, view.strides, view.device, view.owner) == (ml_dtypes.bfloat16, (2, 6), 0, x)
    assert not view.dense


def test_tensors_that_cannot_be_used(torch: Torch) -> None:
    negative = Tensor(None)
    negative.negative = True
    for tensor, code in (
        (Tensor(None, dtype="torch.complex64"), "PF402"),
        (Tensor(None, layout="sparse_coo"), "PF417"),
        (Tensor(None, "mps"), "PF417"),
        (negative, "PF417"),
    ):
        with pytest.raises(ArgumentError) as refused:
            to_device(tensor, "x")
        assert refused.value.code == code


def test_what_is_on_the_host_stays_there(torch: Torch) -> None:
    for value in (Tensor(None, "cpu"), np.zeros(3), 1.5, [1, 2]):
        assert to_device(value, "x") is None


def test_results_go_where_the_arrays_are(native: NativeDriver, torch: Torch) -> None:
    tensor, host, own = Tensor(_on(native, [1])), np.zeros(2), _on(native, [1])
    number = Tensor(None, "cpu", shape=())
    for values, kind in (
        ([tensor, tensor, 3.0], "torch"),
        ([tensor, np.float32(1), number], "torch"),
        ([tensor, own], "device"),
        ([own], "device"),
        ([tensor, host], "numpy"),
        ([Tensor(None, "cpu")], "numpy"),
        ([1.0, 2], "numpy"),
        ([], "numpy"),
    ):
        assert result_kind(values) == kind


def test_results_of_torch(torch: Torch) -> None:
    assert empty_result("torch", [2, 3], np.dtype(ml_dtypes.bfloat16), 1) == (
        (2, 3),
        "torch.bfloat16",
        "cuda:1",
    )


def test_results_of_cupy(native: NativeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    class Array:
        shape = (4,)
        __cuda_array_interface__ = None

    cupy: Any = ModuleType("cupy")
    chosen = []

    @contextlib.contextmanager
    def device(index: int) -> Any:
        chosen.append(index)
        yield

    cupy.ndarray, cupy.cuda = Array, SimpleNamespace(Device=device)
    cupy.empty = lambda shape, dtype: (shape, dtype)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert result_kind([Array(), 2.0]) == "cupy"
    assert empty_result("cupy", (4,), np.dtype(np.int8), 2) == ((4,), np.int8)
    assert chosen == [2]
