"""Arrays that calls look at in C, by library: what is asked of each at every call, and how results are made.
`array_family` is about those on a GPU, `know_torch` about tensors of torch on the CPU.

What torch knows of a tensor apart from its memory (`interop.torch_tensors`) is asked here in the fewest steps
that say the same: gradients by two attributes, dual numbers by the level of forward differentiation, which is
-1 where there are none.  Where the answer is not the usual one, the long way asks again and says what is
wrong.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from polyfuse.interop.arrays import to_torch
from polyfuse.interop.device_arrays import torch_dtype, torch_dtypes
from polyfuse.interop.torch_tensors import functorch_test, is_more_than_memory, is_torch, watchers
from polyfuse.runtime.cpu.launcher import Launcher
from polyfuse.runtime.cpu.tensors import ElementKind, TensorLibrary
from polyfuse.runtime.cuda.arguments import on_device
from polyfuse.runtime.cuda.launcher import NUMBERS, Fact, Family
from polyfuse.runtime.cuda.memory import DeviceMemory
from polyfuse.runtime.cuda.results import DeviceArray

_families: dict[tuple[object, int], Family] = {}
"""By library, and by the identity of the device's memory, which lives as long as the process."""


def array_family(values: Iterable[object], memory: DeviceMemory) -> Family | None:
    """The family of all arrays among the values; None if they are of several, or of none that is known here.

    `memory` is that of the device that the kernels run on.
    """
    libraries = [_library(v) for v in values if type(v) not in NUMBERS]
    if not libraries or libraries[0] is None or any(x is not libraries[0] for x in libraries):
        return None
    key = (libraries[0], id(memory))
    if key not in _families:
        _families[key] = _made(libraries[0], memory)
    return _families[key]


def _library(value: object) -> object:
    """What an array belongs to: the module of its library, or its own class."""
    if is_torch(value):
        return sys.modules["torch"]
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None and type(value) is cupy.ndarray:
        return cupy
    return type(value) if hasattr(type(value), "__dlpack__") and on_device(value) else None


def _made(library: object, memory: DeviceMemory) -> Family:
    if library is sys.modules.get("torch"):
        return _torch_family(memory)
    if library is sys.modules.get("cupy"):
        return _cupy_family(memory)
    assert isinstance(library, type)
    return _own_family(memory) if library is DeviceArray else _lending_family(library, memory)


# --- our own, and all others --------------------------------------------------------------------------------


def _own_arrays(memory: DeviceMemory) -> Callable[..., Callable[[int], DeviceArray]]:
    return lambda shape, dtype: partial(DeviceArray.empty, memory, shape, dtype)


def _own_shaped(memory: DeviceMemory) -> Callable[[Any], Callable[..., DeviceArray]]:
    def made(dtype: Any, shape: tuple[int, ...], stream: int) -> DeviceArray:
        return DeviceArray.empty(memory, shape, dtype, stream)

    return lambda dtype: partial(made, dtype)


def _own_family(memory: DeviceMemory) -> Family:
    return Family(
        types=(DeviceArray,),
        facts=(Fact("shape"), Fact("dtype"), Fact("_memory")),
        address=Fact("_block", "address"),
        device=memory.driver.properties.index,
        make=_own_arrays(memory),
        make_shaped=_own_shaped(memory),
        shape_facts=(0, -1, False),
        own_stream=Fact("stream"),
    )


def _lending_family(kind: type, memory: DeviceMemory) -> Family:
    """Arrays that lend their memory by DLPack (jax, and any other library): results are our own."""

    def hold(lent: tuple[object, ...], stream: int) -> None:
        with memory.driver.current():
            memory.hold(lent, stream)

    return Family(
        types=(kind,),
        facts=(),
        address=Fact("__dlpack__"),
        device=memory.driver.properties.index,
        make=_own_arrays(memory),
        make_shaped=_own_shaped(memory),
        made=DeviceArray,
        made_address=Fact("_block", "address"),
        lends=True,
        hold=hold,
    )


# --- torch --------------------------------------------------------------------------------------------------


def _torch_family(memory: DeviceMemory) -> Family:
    torch: Any = sys.modules["torch"]
    index = memory.driver.properties.index
    exchange = dlpack_exchange(torch.Tensor)
    known = (Fact("layout"), Fact("is_neg", calls=True))
    memory_facts = (Fact("shape"), Fact("stride", calls=True), Fact("dtype"), Fact("device"))
    level = getattr(torch.autograd.forward_ad, "_current_level", None)
    wrapped = functorch_test(torch)

    def there(dtype: np.dtype[Any]) -> dict[str, Any]:
        return {"dtype": torch_dtype(torch, dtype), "device": torch.device("cuda", index)}

    def make(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Any]:
        steps, step = [], 1
        for n in reversed(shape):
            steps.append(step)
            step *= max(1, n)
        return partial(torch.empty_strided, shape, tuple(reversed(steps)), **there(dtype))

    return Family(
        types=(torch.Tensor, torch.nn.Parameter),
        facts=known if exchange else (*memory_facts, *known),
        address=Fact("data_ptr", calls=True),
        device=index,
        make=make,
        make_shaped=lambda dtype: partial(torch.empty, **there(dtype)),
        shape_facts=(-1, -1, False) if exchange else (0, 1, False),
        exchange=exchange,
        flag=Fact("requires_grad"),
        excuse=torch.is_grad_enabled,
        refuse=wrapped if level is not None and wrapped is not None else is_more_than_memory,
        guard=None if level is None else (torch.autograd.forward_ad, "_current_level", -1),
        busy=watchers(torch),
        stream=_torch_stream(torch, index),
        write=partial(written, torch),
    )


def _torch_stream(torch: Any, index: int) -> Callable[[], int]:
    raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return partial(raw, index)
    return lambda: int(torch.cuda.current_stream(index).cuda_stream)


def written(torch: Any, tensors: tuple[Any, ...]) -> bool:
    """As `torch_tensors.write_tensors`; False where that would raise."""
    usual = [t for t in tensors if not t.is_inference()]
    if len(usual) < len(tensors) and not torch.is_inference_mode_enabled():
        return False
    for tensor in usual:
        torch.autograd.graph.increment_version(tensor)
    return True


class _ExchangeInterface(ctypes.Structure):
    """DLPack's DLPackExchangeAPI, version 1.3."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("earlier", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("object_from_managed", ctypes.c_void_p),
        ("tensor_from_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def dlpack_exchange(kind: type) -> tuple[int, int] | None:
    """(the function that describes an array, the one that says the current stream) of a type of arrays."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    try:
        found = _ExchangeInterface.from_address(_pointer(capsule, b"dlpack_exchange_api"))
    except ValueError:
        return None
    if found.major != 1 or not found.tensor_from_object or not found.current_stream:
        return None
    return found.tensor_from_object, found.current_stream


# --- cupy ---------------------------------------------------------------------------------------------------


def _cupy_family(memory: DeviceMemory) -> Family:
    cupy: Any = sys.modules["cupy"]
    index = memory.driver.properties.index

    def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        if cupy.cuda.runtime.getDevice() == index:
            return cupy.ndarray(shape, dtype)
        with cupy.cuda.Device(index):
            return cupy.ndarray(shape, dtype)

    def make(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Any]:
        return partial(empty, shape, dtype)

    def make_shaped(dtype: np.dtype[Any]) -> Callable[..., Any]:
        return partial(empty, dtype=dtype)

    return Family(
        types=(cupy.ndarray,),
        facts=(Fact("shape"), Fact("strides"), Fact("dtype"), Fact("data", "device_id")),
        address=Fact("data", "ptr"),
        device=index,
        make=make,
        make_shaped=make_shaped,
        shape_facts=(0, 1, True),
        stream=lambda: int(cupy.cuda.get_current_stream().ptr),
    )


# --- torch on the CPU ---------------------------------------------------------------------------------------

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BRAIN_CODES = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}


def know_torch() -> None:
    """From now on calls with tensors of torch, which is loaded, take the short way."""
    launcher, torch = Launcher.get(), sys.modules["torch"]
    if launcher is not None and torch.Tensor not in launcher.tensor_types:
        launcher.know(_torch_on_host(torch))


def _torch_on_host(torch: Any) -> TensorLibrary:
    exchange = dlpack_exchange(torch.Tensor)
    level = getattr(torch.autograd.forward_ad, "_current_level", None)
    wrapped = functorch_test(torch)
    return TensorLibrary(
        types=(torch.Tensor, torch.nn.Parameter),
        kinds=[
            ElementKind(_BRAIN_CODES.get(d.name, _CODES.get(d.kind, -1)), theirs, d)
            for theirs, d in torch_dtypes(torch)
        ],
        describe=exchange[0] if exchange else 0,
        flag="requires_grad",
        excuse=torch.is_grad_enabled,
        negated="is_neg",
        refuse=wrapped if level is not None and wrapped is not None else is_more_than_memory,
        guard=None if level is None else (torch.autograd.forward_ad, "_current_level", -1),
        busy=watchers(torch),
        make=_maker(torch),
        lend=to_torch,
        write=partial(written, torch),
        strided=torch.strided,
    )


def _maker(torch: Any) -> Any:
    """What makes dense tensors, in the fewest steps that this torch has."""
    guards = getattr(getattr(getattr(torch, "_C", None), "_dynamo", None), "guards", None)
    found = getattr(guards, "_empty_strided_cpu", None)
    if found is not None:
        return found
    return lambda extents, strides, dtype: torch.empty_strided(extents, strides, dtype=dtype, device="cpu")
