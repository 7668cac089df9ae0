"""Stand-ins for what a machine without a GPU lacks: a driver that computes, and torch's CUDA tensors.

    driver = use(monkeypatch)       # what compiles for "cuda" from here on runs on it
    torch = Torch(driver)           # as `sys.modules["torch"]`

Launches are run by the emulator, on memory of this process that stands for the device's.
"""

from __future__ import annotations

import ctypes
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from polyfuse.driver import spills, targets
from polyfuse.runtime.cuda import compiler, executable, open
from polyfuse.runtime.cuda.compiler import Cubin, CudaCompiler
from polyfuse.runtime.cuda.driver import Dims, Function, Parameters
from polyfuse.runtime.cuda.driver_recording import LaunchRecord, RecordingDriver
from polyfuse.runtime.cuda.memory import DeviceMemory
from polyfuse.runtime.cuda.results import DeviceArray
from polyfuse.runtime.emulator.engine import ENTRY, Engine, kernels
from polyfuse.runtime.emulator.engine import LaunchRecord as EmulatedLaunch

sys.path.insert(0, str(Path(__file__).parent))
from cuda_helpers import argument_table
from torch_stand_in import Marks, Modes

Array = np.ndarray[Any, np.dtype[Any]]


class EmulatingDriver(RecordingDriver):
    """A recording driver whose modules are CUDA sources, which the emulator runs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(self._emulate, resident=1024, **options)
        self._sources: dict[int, str] = {}
        self._functions: dict[int, str] = {}
        self._graphs: dict[int, str] = {}
        self._launched = ""

    def load(self, cubin: bytes) -> int:
        module = super().load(cubin)
        self._sources[module] = cubin.decode()
        return module

    def function(self, module: int, name: str) -> Function:
        found = super().function(module, name)
        self._functions[found.handle] = self._sources[module]
        return found

    def launch(
        self,
        function: Function,
        grid: int,
        block: Dims,
        shared: int,
        parameters: Parameters,
        stream: int,
        cooperative: bool = False,
    ) -> None:
        self._launched = self._functions[function.handle]
        super().launch(function, grid, block, shared, parameters, stream, cooperative)

    def end_capture(self, stream: int) -> int:
        graph = super().end_capture(stream)
        self._graphs[graph] = self._launched
        return graph

    def launch_graph(self, graph: int, stream: int) -> None:
        self._launched = self._graphs[graph]
        super().launch_graph(graph, stream)

    def _emulate(self, record: LaunchRecord) -> None:
        engine = Engine.get()
        library = engine.kernels(self._launched, check=False)
        table, _keep = argument_table(record)
        kinds = zip(_memory(self._launched, record.function), record.values, strict=True)
        for k, (is_memory, value) in enumerate(kinds):
            if is_memory:
                table[k] = value  # the emulator takes memory as it is, and the address of all else
        with engine.lock:
            engine.begin()
            launch = EmulatedLaunch(
                kernel=ctypes.cast(getattr(library, ENTRY + record.function), ctypes.c_void_p).value,
                slots=ctypes.cast(table, ctypes.c_void_p),
                blocks=record.grid,
                threads_x=record.block[0],
                threads_y=record.block[1],
                order=0,
                cooperative=record.cooperative,
                stack_bytes=kernels(self._launched)[record.function],
                time_out_ms=60_000,
            )
            assert engine.launch(launch) == (0, False)


@cache
def _memory(source: str, function: str) -> tuple[bool, ...]:
    """For each parameter of a kernel: is it memory? By the letters of a launch it may be a number of u64."""
    found = re.search(rf"__global__ [^;{{]*\b{function}\(([^{{]*)\) {{", source)
    assert found is not None
    parameters = [p for p in found[1].split(",") if p.strip()]
    return tuple("*" in p or "PF_" in p for p in parameters)


def use(monkeypatch: pytest.MonkeyPatch, **properties: Any) -> EmulatingDriver:
    """Let the runtime find this driver: of the recording's device, with some properties changed."""
    driver = EmulatingDriver()
    driver._properties = replace(driver.properties, **properties)

    def opened(index: int = 0) -> EmulatingDriver:
        assert index == 0
        return driver

    def compiled(source: str, arch: str, **_: Any) -> Cubin:
        assert arch == driver.properties.arch
        return Cubin(source.encode(), "", {}, "", "none")

    for module in (executable, open):
        monkeypatch.setattr(module, "open_driver", opened)
    monkeypatch.setattr(executable, "compile_cuda", compiled)
    monkeypatch.setattr(spills, "spilled", lambda *_: {})
    monkeypatch.setattr(open, "cuda_available", lambda: True)
    monkeypatch.setattr(compiler, "find_cuda_compiler", lambda: CudaCompiler("nvrtc", "none", "none"))
    monkeypatch.setattr(targets, "_usable", {})
    return driver


def on_device(driver: EmulatingDriver, array: Any, stream: int | None = None) -> DeviceArray:
    """A copy of a NumPy array in the driver's memory."""
    array = np.asarray(array)
    return DeviceArray.empty(DeviceMemory.get(driver), array.shape, array.dtype, stream).set(array)


# --- torch -----------------------------------------------------------------------------------------------

_EXTRA = {
    str(t): t for t in map(np.dtype, (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
}
_PLAIN = (
    "float64",
    "float32",
    "float16",
    "bool",
    *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)),
)


def _plain(dtype: str) -> np.dtype[Any]:
    name = dtype.removeprefix("torch.")
    return _EXTRA[name] if name in _EXTRA else np.dtype(name)


class Tensor(Marks):
    """What is asked of a tensor of torch.

    `elements` is a NumPy view of its memory, which on the device is the driver's and on the host our own.
    """

    def __init__(self, elements: Array, base: DeviceArray | None) -> None:
        self.elements, self.base = elements, base
        there = base is not None
        self.device = SimpleNamespace(type="cuda" if there else "cpu", index=0 if there else None)
        self.dtype, self.layout = f"torch.{elements.dtype.name}", "strided"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.elements.shape

    def data_ptr(self) -> int:
        return int(self.elements.__array_interface__["data"][0])

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.elements.itemsize for s in self.elements.strides)

    def is_neg(self) -> bool:
        return False

    def detach(self) -> Tensor:
        return self

    def contiguous(self) -> Tensor:
        assert self.base is not None
        return tensor(self.base._memory.driver, np.ascontiguousarray(self.elements))  # type: ignore[arg-type]

    def to(self, device: str) -> Tensor:
        assert device == "cuda"
        return tensor(_drivers[-1], self.elements)

    def cpu(self) -> Tensor:
        return Tensor(self.elements.copy(), None)

    def numpy(self) -> Array:
        assert self.base is None
        return self.elements

    def view(self, dtype: str) -> Tensor:
        assert self.base is None
        return Tensor(self.elements.view(_plain(dtype)), None)

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.elements[key], self.base)

    def permute(self, *axes: int) -> Tensor:
        return Tensor(self.elements.transpose(axes), self.base)

    def t(self) -> Tensor:
        return Tensor(self.elements.T, self.base)


def tensor(driver: EmulatingDriver, array: Any) -> Tensor:
    """A CUDA tensor with the elements of an array."""
    return _tensor_on(on_device(driver, array))


def _tensor_on(base: DeviceArray) -> Tensor:
    memory = (ctypes.c_ubyte * base.nbytes).from_address(base.address) if base.nbytes else b""
    return Tensor(np.frombuffer(memory, np.uint8).view(base.dtype).reshape(base.shape), base)


_drivers: list[EmulatingDriver] = []
"""Of each `Torch`, the last one for tensors that are moved."""


class Torch(Modes):
    """As much of torch as calls use. `stream` is its current stream, `made` counts its allocations."""

    def __init__(self, driver: EmulatingDriver) -> None:
        super().__init__(Tensor)
        self.strided, self.driver = "strided", driver
        for name in (*_PLAIN, *_EXTRA):
            setattr(self, name, f"torch.{name}")
        self.stream, self.made = 0, 0
        _drivers.append(driver)
        self.cuda = SimpleNamespace(current_stream=lambda _: SimpleNamespace(cuda_stream=self.stream))

    def empty(self, shape: tuple[int, ...], *, dtype: str, device: str) -> Tensor:
        assert device == "cuda:0"
        self.made += 1
        return _tensor_on(DeviceArray.empty(DeviceMemory.get(self.driver), shape, _plain(dtype), self.stream))

    def device(self, kind: str, index: int) -> str:
        return f"{kind}:{index}"

    def empty_strided(
        self, shape: tuple[int, ...], strides: tuple[int, ...], *, dtype: str, device: str
    ) -> Tensor:
        made = self.empty(shape, dtype=dtype, device=device)
        assert len(strides) == len(shape) and (0 in shape or made.elements.flags.c_contiguous)
        return made

    def from_numpy(self, array: Array) -> Tensor:
        return Tensor(array, None)
