"""Functions of CUDA's driver API, called through ctypes (or NVIDIA's bindings, `cuda-bindings`).

One table says for each function what goes in and what comes out; a call raises for a status that is
not success, and returns what the function stores through pointers.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from polyfuse.diagnostics import DeviceError, DeviceMemoryError

# --- errors -----------------------------------------------------------------------------------------------

# Statuses of CUDA's driver API as typed errors.
#
# Three groups matter to a caller: memory that did not suffice (try less), a launch or module that was
# refused (the context goes on), and a kernel that failed while it ran: then the context is lost, and with it
# every allocation of the process on this device.


INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_READY = 600

NO_DRIVER_HINT = (
    "install NVIDIA's driver (`nvidia-smi` must work), in a container start it with the GPU (`--gpus all`); "
    'target="cpu" needs none'
)
NO_DEVICE_HINT = "is CUDA_VISIBLE_DEVICES set, and to what? `nvidia-smi -L` lists the devices"
LOST_HINT = (
    "the CUDA context of this process is lost, with all arrays on the device: start the process again; "
    "`compute-sanitizer` finds the access, and checked=True an index from data that is out of range"
)

_NO_DRIVER = {3, 4, 34, 802, 803, 804}
_NO_DEVICE = {46, 100, 101, 102}
_BAD_MODULE = {200, 209, 218, 221, 222, 223, 300, 301, 302, 303, 500}
_LOST = {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719}
_REFUSED = {701, 720}

_NAMES = {
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    3: ("CUDA_ERROR_NOT_INITIALIZED", "initialization error"),
    34: ("CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"),
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    101: ("CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
    200: ("CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"),
    201: ("CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    209: ("CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"),
    400: ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    500: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    600: ("CUDA_ERROR_NOT_READY", "device not ready"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    701: ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"),
    702: ("CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"),
    709: ("CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"),
    716: ("CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"),
    719: ("CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"),
    720: ("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"),
    801: ("CUDA_ERROR_NOT_SUPPORTED", "operation not supported"),
    803: (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "system has unsupported display driver / cuda driver combination",
    ),
    999: ("CUDA_ERROR_UNKNOWN", "unknown error"),
}


def name_of(status: int) -> tuple[str, str]:
    """(name, text) of a status that the driver cannot be asked about."""
    return _NAMES.get(status, (f"status {status}", "not known here"))


def status_of(text: str) -> int:
    """The status that a message of another library speaks of; 999 if it is none of the usual ones."""
    found = [n for n, (_, meaning) in _NAMES.items() if meaning in text]
    return found[0] if found else 999


def is_lost(status: int) -> bool:
    """Is the context lost after this status?"""
    return status in _LOST


def status_error(status: int, function: str, names: tuple[str, str] | None = None) -> DeviceError:
    """The error for a status that `function` of the driver returned."""
    name, text = names or name_of(status)
    said = f"{function}: {text} ({name})"
    if status == OUT_OF_MEMORY:
        error: DeviceError = DeviceMemoryError(
            f"the memory of the GPU does not suffice: {said}",
            hint="free arrays, or other processes on this device; torch keeps memory that "
            "torch.cuda.empty_cache() returns",
        )
    elif status in _NO_DRIVER:
        error = DeviceError(f"CUDA's driver cannot be used: {said}", code="PF740", hint=NO_DRIVER_HINT)
    elif status in _NO_DEVICE:
        error = DeviceError(f"there is no usable GPU: {said}", code="PF741", hint=NO_DEVICE_HINT)
    elif status in _LOST:
        error = DeviceError(f"a kernel failed while it ran: {said}", code="PF743", hint=LOST_HINT)
    elif status in _REFUSED:
        error = DeviceError(
            f"the GPU cannot hold this launch: {said}",
            code="PF744",
            hint="a block needs more threads, registers or shared memory than there are",
        )
    elif status in _BAD_MODULE:
        error = DeviceError(
            f"compiled GPU code cannot be loaded: {said}",
            code="PF746",
            hint="it must be compiled for this device's architecture",
        )
    else:
        error = DeviceError(f"CUDA failed: {said}")
    error.status = status
    return error


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
    "cuStreamIsCapturing": ("cuStreamIsCapturing", (_HANDLE, Out(_INT))),
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
    def address(self, name: str) -> int:
        """Of a function in the library, by its key in `TABLE`; 0 if that is not known."""
        ...

    def refuse(self, status: int, function: str) -> None:
        """Raises DeviceError for a status that a caller in C got."""
        ...


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

    def address(self, name: str) -> int:
        symbol = getattr(self._library, TABLE[name][0], None)
        return 0 if symbol is None else ctypes.cast(symbol, ctypes.c_void_p).value or 0

    def refuse(self, status: int, function: str) -> None:
        self._check(status, function)

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


# --- NVIDIA's bindings, which are called faster -----------------------------------------------------------


# The bindings take no plain numbers where the header has an enumeration: (its name, which argument).
_ENUMS = {
    "cuDeviceGetAttribute": ("CUdevice_attribute", 0),
    "cuFuncGetAttribute": ("CUfunction_attribute", 0),
    "cuFuncSetAttribute": ("CUfunction_attribute", 1),
    "cuPointerGetAttribute": ("CUpointer_attribute", 0),
    "cuStreamBeginCapture": ("CUstreamCaptureMode", 1),
}
_FLOATS = {"cuEventElapsedTime"}


def bindings_api() -> Api | None:
    """NVIDIA's bindings, or None where they are not installed or do not find a driver."""
    try:
        from cuda.bindings import driver as module

        module.cuDriverGetVersion()  # looks for the library
    except Exception:  # whatever keeps them from loading, ctypes is the other way
        return None
    return BindingsApi(module)


class BindingsApi:
    """`cuda.bindings.driver` as an `Api`."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._made: dict[str, Call] = {}
        self.lost = 0

    @property
    def name(self) -> str:
        return "cuda-bindings"

    def function(self, name: str) -> Call:
        if name not in self._made:
            self._made[name] = self._bind(name)
        return self._made[name]

    def device_name(self, device: int) -> str:
        text = self._ask("cuDeviceGetName", 256, device)[1]
        return bytes(text).split(b"\0", 1)[0].decode(errors="replace")

    def address(self, name: str) -> int:
        try:
            return CtypesApi().address(name)  # the same library, which is loaded already
        except DeviceError:
            return 0

    def refuse(self, status: int, function: str) -> None:
        self._fail(status, function)

    def _bind(self, name: str) -> Call:
        raw, ask = getattr(self._module, name), self._ask
        convert = float if name in _FLOATS else int
        if name in _ENUMS:
            kind, place = _ENUMS[name]
            enum = getattr(self._module, kind)

            def with_enum(*inputs: Any) -> Any:
                given = list(inputs)
                given[place] = enum(given[place])
                return _results(ask(name, *given), convert)

            return with_enum
        if name in QUERIES:
            return lambda *inputs: int(ask(name, *inputs)[0]) == 0
        if name == "cuLaunchKernel":

            def launch(*inputs: Any) -> None:
                (status,) = raw(*inputs)
                if status:
                    self._fail(status, name)

            return launch
        return lambda *inputs: _results(ask(name, *inputs), convert)

    def _ask(self, name: str, *inputs: Any) -> tuple[Any, ...]:
        """(status, results), when the status is success or "not ready" to a question."""
        try:
            answer: tuple[Any, ...] = getattr(self._module, name)(*inputs)
        except RuntimeError as error:  # the library, or the function in it, was not found
            raise DeviceError(
                f"CUDA's driver cannot be used: {error}", code="PF740", hint=NO_DRIVER_HINT
            ) from error
        status = int(answer[0])
        if status and not (status == NOT_READY and name in QUERIES):
            self._fail(status, name)
        return answer

    def _fail(self, status: Any, function: str) -> None:
        number = int(status)
        self.lost = self.lost or (number if is_lost(number) else 0)
        names = tuple(
            bytes(text).decode(errors="replace")
            for ask in (self._module.cuGetErrorName, self._module.cuGetErrorString)
            if (text := ask(self._module.CUresult(number))[1])
        )
        raise status_error(number, function, (names[0], names[1]) if len(names) == 2 else None)


def _results(answer: tuple[Any, ...], convert: Call) -> Any:
    values = [convert(v) for v in answer[1:]]
    return None if not values else values[0] if len(values) == 1 else tuple(values)
