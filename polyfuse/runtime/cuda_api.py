"""Functions of CUDA's driver API, called through ctypes (or NVIDIA's bindings, `cuda_bindings`).

One table says for each function what goes in and what comes out; a call raises for a status that is
not success, and returns what the function stores through pointers.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from polyfuse.diagnostics import DeviceError
from polyfuse.runtime.cuda_errors import NO_DRIVER_HINT, NOT_READY, is_lost, status_error

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Out:
    """A parameter through which the function returns a value."""

    ctype: Any


_INT, _UINT, _SIZE, _FLOAT = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_float
_ADDRESS = ctypes.c_uint64  # CUdeviceptr, an integer and no pointer
_HANDLE = ctypes.c_void_p
_LONG = ctypes.c_ulonglong
_TEXT = ctypes.c_char_p

# Python's name for the function -> symbol in the library, parameters. `_v2` symbols are what CUDA's header
# makes of the plain names since 3.2 or 4.0; they are in every driver since.
TABLE: dict[str, tuple[str, tuple[Any, ...]]] = {
    "cuInit": ("cuInit", (_UINT,)),
    "cuDriverGetVersion": ("cuDriverGetVersion", (Out(_INT),)),
    "cuDeviceGetCount": ("cuDeviceGetCount", (Out(_INT),)),
    "cuDeviceGet": ("cuDeviceGet", (Out(_INT), _INT)),
    "cuDeviceTotalMem": ("cuDeviceTotalMem_v2", (Out(_SIZE), _INT)),
    "cuDeviceGetAttribute": ("cuDeviceGetAttribute", (Out(_INT), _INT, _INT)),
    "cuDevicePrimaryCtxRetain": ("cuDevicePrimaryCtxRetain", (Out(_HANDLE), _INT)),
    "cuDevicePrimaryCtxRelease": ("cuDevicePrimaryCtxRelease_v2", (_INT,)),
    "cuCtxGetCurrent": ("cuCtxGetCurrent", (Out(_HANDLE),)),
    "cuCtxPushCurrent": ("cuCtxPushCurrent_v2", (_HANDLE,)),
    "cuCtxPopCurrent": ("cuCtxPopCurrent_v2", (Out(_HANDLE),)),
    "cuMemAlloc": ("cuMemAlloc_v2", (Out(_ADDRESS), _SIZE)),
    "cuMemFree": ("cuMemFree_v2", (_ADDRESS,)),
    "cuMemHostAlloc": ("cuMemHostAlloc", (Out(_HANDLE), _SIZE, _UINT)),
    "cuMemFreeHost": ("cuMemFreeHost", (_HANDLE,)),
    "cuMemGetInfo": ("cuMemGetInfo_v2", (Out(_SIZE), Out(_SIZE))),
    "cuPointerGetAttribute": ("cuPointerGetAttribute", (Out(_INT), _INT, _ADDRESS)),
    "cuMemcpyHtoDAsync": ("cuMemcpyHtoDAsync_v2", (_ADDRESS, _HANDLE, _SIZE, _HANDLE)),
    "cuMemcpyDtoHAsync": ("cuMemcpyDtoHAsync_v2", (_HANDLE, _ADDRESS, _SIZE, _HANDLE)),
    "cuMemcpyDtoDAsync": ("cuMemcpyDtoDAsync_v2", (_ADDRESS, _ADDRESS, _SIZE, _HANDLE)),
    "cuMemsetD8Async": ("cuMemsetD8Async", (_ADDRESS, ctypes.c_ubyte, _SIZE, _HANDLE)),
    "cuModuleLoadData": ("cuModuleLoadData", (Out(_HANDLE), _TEXT)),
    "cuModuleUnload": ("cuModuleUnload", (_HANDLE,)),
    "cuModuleGetFunction": ("cuModuleGetFunction", (Out(_HANDLE), _HANDLE, _TEXT)),
    "cuFuncGetAttribute": ("cuFuncGetAttribute", (Out(_INT), _INT, _HANDLE)),
    "cuFuncSetAttribute": ("cuFuncSetAttribute", (_HANDLE, _INT, _INT)),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        (Out(_INT), _HANDLE, _INT, _SIZE),
    ),
    "cuLaunchKernel": ("cuLaunchKernel", (_HANDLE, *(_UINT,) * 7, _HANDLE, _HANDLE, _HANDLE)),
    "cuLaunchCooperativeKernel": ("cuLaunchCooperativeKernel", (_HANDLE, *(_UINT,) * 7, _HANDLE, _HANDLE)),
    "cuStreamCreate": ("cuStreamCreate", (Out(_HANDLE), _UINT)),
    "cuStreamDestroy": ("cuStreamDestroy_v2", (_HANDLE,)),
    "cuStreamSynchronize": ("cuStreamSynchronize", (_HANDLE,)),
    "cuStreamWaitEvent": ("cuStreamWaitEvent", (_HANDLE, _HANDLE, _UINT)),
    "cuEventCreate": ("cuEventCreate", (Out(_HANDLE), _UINT)),
    "cuEventDestroy": ("cuEventDestroy_v2", (_HANDLE,)),
    "cuEventRecord": ("cuEventRecord", (_HANDLE, _HANDLE)),
    "cuEventSynchronize": ("cuEventSynchronize", (_HANDLE,)),
    "cuEventQuery": ("cuEventQuery", (_HANDLE,)),
    "cuEventElapsedTime": ("cuEventElapsedTime", (Out(_FLOAT), _HANDLE, _HANDLE)),
    "cuStreamBeginCapture": ("cuStreamBeginCapture_v2", (_HANDLE, _INT)),
    "cuStreamEndCapture": ("cuStreamEndCapture", (_HANDLE, Out(_HANDLE))),
    "cuGraphInstantiate": ("cuGraphInstantiateWithFlags", (Out(_HANDLE), _HANDLE, _LONG)),
    "cuGraphDestroy": ("cuGraphDestroy", (_HANDLE,)),
    "cuGraphLaunch": ("cuGraphLaunch", (_HANDLE, _HANDLE)),
    "cuGraphExecDestroy": ("cuGraphExecDestroy", (_HANDLE,)),
}
QUERIES = {"cuEventQuery"}
"""Functions whose answer is a status: True, or False for "not ready"."""

LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")


class Api(Protocol):
    """The functions of `TABLE`, and the one that returns text.

    `lost` is the status with which the context was lost, 0 while it lives.
    """

    lost: int

    @property
    def name(self) -> str: ...
    def function(self, name: str) -> Call:
        """A function by its key in `TABLE`. It raises DeviceError for a status other than success."""
        ...

    def device_name(self, device: int) -> str: ...


class CtypesApi:
    """The driver's library through ctypes: nothing to install but the driver.

    Raises DeviceError PF740 if the library is missing.
    """

    def __init__(self, path: str | None = None) -> None:
        self._library = _load(path)
        self._made: dict[str, Call] = {}
        self.lost = 0

    @property
    def name(self) -> str:
        return f"ctypes ({self._library._name})"

    def function(self, name: str) -> Call:
        if name not in self._made:
            self._made[name] = self._bind(name)
        return self._made[name]

    def device_name(self, device: int) -> str:
        text = ctypes.create_string_buffer(256)
        self._check(self._library.cuDeviceGetName(text, 256, device), "cuDeviceGetName")
        return text.value.decode(errors="replace")

    def _bind(self, name: str) -> Call:
        symbol, parameters = TABLE[name]
        try:
            raw = self._library[symbol]
        except AttributeError:
            raise DeviceError(
                f"CUDA's driver has no {symbol}", code="PF740", hint="it is older than CUDA 11.4: update it"
            ) from None
        raw.restype = _INT
        raw.argtypes = [ctypes.POINTER(p.ctype) if isinstance(p, Out) else p for p in parameters]
        check = self._check
        places = [(k, p.ctype) for k, p in enumerate(parameters) if isinstance(p, Out)]
        if name in QUERIES:
            return self._query(raw, name)
        if places:
            return self._with_results(raw, name, places)

        def call(*inputs: Any) -> None:
            if status := raw(*inputs):
                check(status, name)

        return call

    def _query(self, raw: Call, name: str) -> Call:
        def call(*inputs: Any) -> bool:
            status = raw(*inputs)
            if status != NOT_READY:
                self._check(status, name)
            return bool(status == 0)

        return call

    def _with_results(self, raw: Call, name: str, places: list[tuple[int, Any]]) -> Call:
        def call(*inputs: Any) -> Any:
            made = [ctype() for _, ctype in places]
            given = list(inputs)
            for (k, _), out in zip(places, made, strict=True):
                given.insert(k, ctypes.byref(out))
            if status := raw(*given):
                self._check(status, name)
            values = [out.value or 0 for out in made]  # a null handle is None to ctypes
            return values[0] if len(values) == 1 else tuple(values)

        return call

    def _check(self, status: int, function: str) -> None:
        if status:
            self.lost = self.lost or (status if is_lost(status) else 0)
            raise status_error(status, function, self._names(status))

    def _names(self, status: int) -> tuple[str, str] | None:
        texts = []
        for ask in (self._library.cuGetErrorName, self._library.cuGetErrorString):
            text = ctypes.c_char_p()
            ask(_INT(status), ctypes.byref(text))
            if not text.value:
                return None
            texts.append(text.value.decode(errors="replace"))
        return texts[0], texts[1]


def _load(path: str | None) -> ctypes.CDLL:
    reasons = []
    for name in (path,) if path else LIBRARIES:
        try:
            # The system's library is loaded for all: a PyCUDA that was built beside a stub does not name it.
            return ctypes.CDLL(name, mode=ctypes.RTLD_LOCAL if path else ctypes.RTLD_GLOBAL)
        except OSError as error:
            reasons.append(str(error))
    raise DeviceError(
        f"CUDA's driver library is missing: {'; '.join(reasons)}", code="PF740", hint=NO_DRIVER_HINT
    )
