"""Arrays of a call on a GPU: where they lie, in which order of work, and whether they fit the plan.

Anything with `__cuda_array_interface__` (cupy, numba, PyCUDA, jax) or DLPack on a CUDA device becomes a
`DeviceView` without a copy.  Its `stream` is the one that its owner works on: what a kernel reads was queued
there, and what the owner does next will be.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.dtypes import from_numpy
from polyfuse.ir.launch_plan import PlanBuffer

_LEGACY, _PER_THREAD = 1, 2  # numbers of the default streams in the array interface and DLPack
CUDA_DEVICE, _CUDA_MANAGED = 2, 13  # DLPack's devices
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, slots=True)
class DeviceView:
    """An array in the memory of a GPU; strides in bytes as NumPy has them.

    `stream` is None where there is nothing to wait for; `device` is None where the owner does not say.
    `owner` keeps the memory alive; with `hold` it must do so until kernels are done, as whoever gets the
    memory next would not wait for them.  `compact` is its own way to a dense copy, if it has one.
    """

    address: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: int | None = None
    stream: int | None = None
    writeable: bool = True
    owner: object = None
    hold: bool = False
    compact: Callable[[], DeviceView] | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Of the elements, without gaps."""
        return self.size * self.dtype.itemsize

    @property
    def dense(self) -> bool:
        """Row-major without gaps."""
        step = self.dtype.itemsize
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n != 1 and stride != step:
                return not self.size
            step *= n
        return True

    @property
    def extent(self) -> tuple[int, int]:
        """The first address of the memory, and the one after the last."""
        low = high = self.address
        for n, stride in zip(self.shape, self.strides, strict=True):
            if not n:
                return self.address, self.address
            if stride < 0:
                low += stride * (n - 1)
            else:
                high += stride * (n - 1)
        return low, high + self.dtype.itemsize


def dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a row-major array."""
    strides, step = [], itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def on_device(value: object) -> bool:
    """Does a value lie in the memory of a GPU?"""
    if isinstance(value, DeviceView):
        return True
    if isinstance(value, (np.ndarray, np.generic, bool, int, float)):
        return False
    ask = getattr(value, "__dlpack_device__", None)
    if ask is not None:
        return ask()[0] in (CUDA_DEVICE, _CUDA_MANAGED)
    return getattr(value, "__cuda_array_interface__", None) is not None


def device_view(value: Any, name: str) -> DeviceView:
    """The memory of an array on a GPU.

    Raises ArgumentError PF402 for a dtype that the language does not have, PF417 if its memory cannot be had.
    """
    if isinstance(value, DeviceView):
        return value
    own = getattr(value, "device_view", None)  # our own arrays say it at once
    if isinstance(own, DeviceView):
        return own
    try:
        interface: Any = getattr(value, "__cuda_array_interface__", None)
        # Without a stream the interface says nothing about order; DLPack does.
        exchange = interface is None or ("stream" not in interface and hasattr(value, "__dlpack__"))
        view = _from_dlpack(value) if exchange else _from_interface(value, interface)
    except (BufferError, RuntimeError, TypeError, AttributeError, KeyError, ValueError) as error:
        raise ArgumentError(
            f"the memory of argument '{name}' cannot be used: {error or type(error).__name__}", code="PF417"
        ) from error
    if view.dtype.isnative and from_numpy(view.dtype) is not None:
        return view
    raise ArgumentError(
        f"argument '{name}' has dtype {view.dtype}, which the language does not have", code="PF402"
    )


def _from_interface(value: Any, interface: Mapping[str, Any]) -> DeviceView:
    """CUDA array interface, version 2 or 3. `stream` came with version 3; 0 is not allowed there."""
    dtype = np.dtype(interface["typestr"])
    if dtype.kind == "V" and "bfloat16" in str(getattr(value, "dtype", "")):
        dtype = _BFLOAT16  # the interface has no name for it
    if interface.get("mask") is not None:
        raise TypeError("masked arrays are not supported")
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    address, readonly = interface["data"]
    return DeviceView(
        address=int(address or 0),
        dtype=dtype,
        shape=shape,
        strides=dense_strides(shape, dtype.itemsize) if strides is None else tuple(strides),
        stream=stream_handle(interface.get("stream")),
        writeable=not readonly,
        owner=value,
    )


def stream_handle(number: int | None) -> int | None:
    """A stream as the driver takes it: 0 is the legacy default stream to it, and 1 the same."""
    return 0 if number == _LEGACY else number


class _Described:
    """A view in the words of NumPy."""

    def __init__(self, view: DeviceView) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (view.address, True),
            "shape": view.shape,
            "strides": view.strides,
            "typestr": f"|V{view.dtype.itemsize}",
        }


def shadow(view: DeviceView) -> np.ndarray[Any, np.dtype[Any]]:
    """An array with the address and strides of a view, to ask NumPy what shares memory. Its elements are not
    there: nobody may look at them."""
    return np.asarray(_Described(view))


# --- DLPack ----------------------------------------------------------------------------------------------


class DLTensor(ctypes.Structure):
    """DLPack's description of an array. Strides count elements; null means row-major."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


CAPSULE = b"dltensor"
_CODES = {0: "int", 1: "uint", 2: "float", 6: "bool"}
_SHORT = {
    4: _BFLOAT16,
    10: np.dtype(ml_dtypes.float8_e4m3fn),
    12: np.dtype(ml_dtypes.float8_e5m2),
}
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _from_dlpack(value: Any) -> DeviceView:
    """The capsule stays unused and with the view: when it dies, it frees what its maker lent."""
    kind, _ = value.__dlpack_device__()
    if kind not in (CUDA_DEVICE, _CUDA_MANAGED):
        raise BufferError("it does not live on a CUDA device")
    # The legacy default stream is ordered with our own streams, so its owner may make that one wait.
    capsule = value.__dlpack__(stream=_LEGACY)
    tensor = DLTensor.from_address(_get_pointer(capsule, CAPSULE))
    if tensor.lanes != 1:
        raise BufferError("elements are vectors")
    code = tensor.code
    dtype = _SHORT[code] if code in _SHORT else _plain_dtype(code, tensor.bits)
    shape = tuple(tensor.shape[k] for k in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[k] * dtype.itemsize for k in range(tensor.ndim))
    else:
        strides = dense_strides(shape, dtype.itemsize)
    return DeviceView(
        address=(tensor.data or 0) + tensor.byte_offset,
        dtype=dtype,
        shape=shape,
        strides=strides,
        device=tensor.device_id,
        stream=0,
        owner=(capsule, value),
        hold=True,
    )


def _plain_dtype(code: int, bits: int) -> np.dtype[Any]:
    if code not in _CODES:
        raise TypeError(f"elements of DLPack's type {code} with {bits} bits")
    return np.dtype(np.bool_) if _CODES[code] == "bool" else np.dtype(f"{_CODES[code]}{bits}")


# --- checks ----------------------------------------------------------------------------------------------


def check_view(b: PlanBuffer, view: DeviceView | np.ndarray[Any, Any], shape: tuple[int, ...]) -> None:
    """Refuse an array that does not fit its buffer: ArgumentError PF402 (dtype), PF401 or PF405 (shape).

    Dims that are always used together are one dim in the plan, so another shape with as many elements fits,
    unless strides are passed.
    """
    if view.dtype != b.dtype.numpy:
        raise ArgumentError(
            f"argument '{b.name}' has dtype {view.dtype}, the operator takes {b.dtype}", code="PF402"
        )
    if tuple(view.shape) != shape and (b.strided or math.prod(view.shape) != math.prod(shape)):
        raise ArgumentError(
            f"argument '{b.name}' has shape {tuple(view.shape)}, the operator takes {shape} here",
            code="PF401" if len(view.shape) != len(shape) else "PF405",
        )


def check_writeable(name: str, writeable: bool) -> None:
    """Raises ArgumentError PF418 for memory that a kernel writes and may not."""
    if not writeable:
        raise ArgumentError(f"argument '{name}' is written, and its memory is read-only", code="PF418")
