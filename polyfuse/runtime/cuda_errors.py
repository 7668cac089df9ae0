"""Statuses of CUDA's driver API as typed errors.

Three groups matter to a caller: memory that did not suffice (try less), a launch or module that was
refused (the context goes on), and a kernel that failed while it ran: then the context is lost, and with it
every allocation of the process on this device.
"""

from __future__ import annotations

from polyfuse.diagnostics import DeviceError, DeviceMemoryError

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
