"""Is there a GPU, and which way leads to it?"""

from __future__ import annotations

import os
import threading

from polyfuse.diagnostics import DeviceError
from polyfuse.runtime.cuda.driver import Driver
from polyfuse.runtime.cuda.driver_api import Api, CtypesApi, bindings_api
from polyfuse.runtime.cuda.driver_native import NativeDriver, check_usable
from polyfuse.runtime.cuda.driver_pycuda import PyCudaDriver, load_pycuda

_lock = threading.Lock()
_open: dict[tuple[int, int], Driver] = {}
_available: dict[int, bool] = {}


def cuda_available() -> bool:
    """Is there a driver with a device? Asked once per process; no context is made.

    The driver is initialised, so children that are forked later cannot use the GPU.
    """
    pid = os.getpid()
    if pid not in _available:
        try:
            api = CtypesApi()
            api.function("cuInit")(0)
            _available[pid] = api.function("cuDeviceGetCount")() > 0
        except DeviceError:
            _available[pid] = False
    return _available[pid]


def open_driver(index: int = 0) -> Driver:
    """The driver of a device, the same for every caller of this process.

    The context is made when it is first used.  Raises DeviceError PF740 without a driver, PF741 without a
    device of this number, PF747 in a child of a process that opened one before it forked.
    """
    key = os.getpid(), index
    with _lock:
        for pid, _ in _open:
            check_usable(pid, 0)
        if key not in _open:
            _open[key] = make_driver(index)
        return _open[key]


def make_driver(index: int = 0) -> Driver:
    """A driver of its own: PyCUDA beside the native way where it loads, else the native way alone."""
    api: Api = bindings_api() or CtypesApi()
    pycuda, reason = load_pycuda()
    if pycuda is None:
        return NativeDriver(api, index, f"; without PyCUDA ({reason})")
    return PyCudaDriver(pycuda, NativeDriver(api, index))
