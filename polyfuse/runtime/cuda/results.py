"""Results that stay on the device: memory of the pool that other libraries can take over without a copy.

torch.from_dlpack(result)    cupy.asarray(result)    jax.dlpack.from_dlpack(result)    result.get()
"""

from __future__ import annotations

import atexit
import ctypes
import math
from typing import Any

import numpy as np

from polyfuse.ir.dtypes import DType, from_numpy
from polyfuse.ir.dtypes import Kind as DTypeKind
from polyfuse.runtime.cuda.arguments import (
    CAPSULE,
    CUDA_DEVICE,
    DeviceView,
    DLTensor,
    dense_strides,
    stream_handle,
)
from polyfuse.runtime.cuda.memory import Block, DeviceMemory

_CODES = {DTypeKind.SIGNED: 0, DTypeKind.UNSIGNED: 1, DTypeKind.FLOAT: 2, DTypeKind.BOOL: 6}
_FLOATS = {"bf16": 4, "f8e4m3fn": 10, "f8e5m2": 12}
_NO_ORDER = -1  # DLPack's stream number for "do not synchronise"
_LEGACY = 1


class DeviceArray:
    """A dense array in a GPU's memory, with `__cuda_array_interface__` and DLPack.

    `stream` is the one that its contents are queued on: another one must wait for it, as both protocols
    let it. `get()` copies to the host.
    """

    def __init__(
        self, memory: DeviceMemory, block: Block, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int
    ) -> None:
        self._memory, self._block = memory, block
        self.shape, self.dtype, self.stream = shape, dtype, stream

    @classmethod
    def empty(
        cls, memory: DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int | None = None
    ) -> DeviceArray:
        """Uninitialised. Raises DeviceMemoryError PF742."""
        nbytes = math.prod(shape) * dtype.itemsize
        block = None if stream is None else memory.pool.kept(nbytes, stream)
        if block is None:
            with memory.driver.current():
                block = memory.pool.take(nbytes, memory.stream() if stream is None else stream)
        return cls(memory, block, tuple(shape), dtype, block.stream)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def address(self) -> int:
        return self._block.address

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dims has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype}{list(self.shape)} on GPU {self._memory.driver.properties.index}>"

    def get(self, out: np.ndarray[Any, np.dtype[Any]] | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        """The contents as a NumPy array, when they are there; into the dense array `out`, if given."""
        array = np.empty(self.shape, self.dtype) if out is None else out
        fits = array.shape == self.shape and array.dtype == self.dtype and array.flags.c_contiguous
        if not fits:
            raise ValueError(f"out= must be a dense array of shape {self.shape} and dtype {self.dtype}")
        with self._memory.driver.current():
            self._memory.staging.download(self.address, array.reshape(-1).view(np.uint8), self.stream)
        return array

    def set(self, source: np.ndarray[Any, np.dtype[Any]]) -> DeviceArray:
        """Copy a NumPy array of the same shape and dtype to the device; the array itself comes back."""
        if source.shape != self.shape or source.dtype != self.dtype:
            raise ValueError(f"an array of shape {self.shape} and dtype {self.dtype} is needed")
        flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        with self._memory.driver.current():
            self._memory.staging.upload(flat, self.address, self.stream)
        return self

    def view(self, shape: tuple[int, ...]) -> DeviceArray:
        """The same memory under another shape of as many elements."""
        return DeviceArray(self._memory, self._block, shape, self.dtype, self.stream)

    def part(self, start: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        """Some elements, in order of memory, on the host."""
        found = np.empty(count, self.dtype)
        with self._memory.driver.current():
            address = self.address + start * self.dtype.itemsize
            self._memory.staging.download(address, found.view(np.uint8), self.stream)
        return found

    def fill_from(self, source: DeviceArray) -> DeviceArray:
        """Take over what another array of as many bytes holds by then."""
        with self._memory.driver.current():
            self._memory.order(source.stream, self.stream)
            self._memory.driver.copy(self.address, source.address, self.nbytes, self.stream)
        return self

    def repeat(self, pattern: np.ndarray[Any, np.dtype[Any]]) -> DeviceArray:
        """Fill the memory with a pattern, which is copied from the host once."""
        done, driver = min(pattern.nbytes, self.nbytes), self._memory.driver
        with driver.current():
            if done:
                flat = np.ascontiguousarray(pattern).reshape(-1).view(np.uint8)
                self._memory.staging.upload(flat[:done], self.address, self.stream)
            while 0 < done < self.nbytes:  # as often as it is there already
                more = min(done, self.nbytes - done)
                driver.copy(self.address + done, self.address, more, self.stream)
                done += more
        return self

    @property
    def device_view(self) -> DeviceView:
        """What the protocols say, for our own calls."""
        strides = dense_strides(self.shape, self.dtype.itemsize)
        index = self._memory.driver.properties.index
        return DeviceView(
            self.address, self.dtype, self.shape, strides, device=index, stream=self.stream, owner=self
        )

    # --- protocols ---------------------------------------------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        bfloat = self.dtype.kind == "V"
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": "<V2" if bfloat else self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": self.stream or _LEGACY,  # 0 would be ambiguous, says the protocol
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA_DEVICE, self._memory.driver.properties.index

    def __dlpack__(self, *, stream: int | None = None, **_: object) -> object:
        """A capsule of the unversioned kind, which every consumer takes."""
        if stream != _NO_ORDER:
            with self._memory.driver.current():
                consumer = stream_handle(stream)
                self._memory.order(self.stream, 0 if consumer is None else consumer)
        return export(self.address, self.shape, self.dtype, self.__dlpack_device__(), self._block)


# --- DLPack ----------------------------------------------------------------------------------------------


class _Managed(ctypes.Structure):
    """DLPack's DLManagedTensor."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_lent: dict[int, tuple[_Managed, object, object, object]] = {}
"""Address of a lent tensor -> what it needs to stay alive."""
_capsules: set[int] = set()
"""Addresses of capsules that live."""

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
# With the capsule as a plain address: in its destructor it must not be counted as an object again.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_destructor = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_SetDestructor", ctypes.pythonapi)
)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _give_back(address: int) -> None:
    """Called by the consumer when it needs the tensor no more."""
    _lent.pop(address, None)


def _forget(capsule: int) -> None:
    """Called when a capsule dies; one that was consumed has another name by then."""
    _capsules.discard(capsule)
    if _is_valid(capsule, CAPSULE):
        _lent.pop(_pointer(capsule, CAPSULE), None)


_DELETER, _DESTRUCTOR = _Deleter(_give_back), _Destructor(_forget)


@atexit.register
def _let_go() -> None:
    """What outlives the interpreter must not call functions of it: they are gone by then."""
    for capsule in _capsules:
        _set_destructor(capsule, None)
    for managed, *_ in _lent.values():
        managed.deleter = None


def export(
    address: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: tuple[int, int], owner: object
) -> object:
    """A DLPack capsule for dense memory, which `owner` keeps alive."""
    known = from_numpy(dtype)
    assert known is not None
    extents = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    steps = (s // dtype.itemsize for s in dense_strides(shape, dtype.itemsize))
    strides = (ctypes.c_int64 * max(1, len(shape)))(*steps)
    managed = _Managed()
    t = managed.tensor
    t.data, t.device_type, t.device_id, t.ndim = address, *device, len(shape)
    t.code, t.bits, t.lanes = _code(known), known.bits, 1
    t.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    t.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_DELETER, ctypes.c_void_p)
    key = ctypes.addressof(managed)
    _lent[key] = (managed, extents, strides, owner)
    capsule = _new_capsule(key, CAPSULE, _DESTRUCTOR)
    _capsules.add(id(capsule))
    return capsule


def _code(dtype: DType) -> int:
    return _FLOATS.get(dtype.name, _CODES[dtype.kind])
