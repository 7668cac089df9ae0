"""The driver API, in full, in the primary context of one device.

The context is retained when it is first needed and pushed only where another one is current, so that
torch and others in the same process, which use the same primary context, notice nothing.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager

from polyfuse.diagnostics import DeviceError
from polyfuse.runtime.cuda.driver import DeviceProperties, Dims, Entries, Function, Parameters
from polyfuse.runtime.cuda.driver_api import INVALID_VALUE, NO_DEVICE_HINT, Api, Call, status_error

_STREAM_DEFAULT = 0  # ordered with the legacy default stream, where libraries work that know no streams
_EVENT_NO_TIMING = 2
_CAPTURE_THREAD_LOCAL = 1
_HOST_PORTABLE = 1
_POINTER_DEVICE = 9

_ATTRIBUTES = {
    "max_threads_per_block": 1,
    "max_grid": 5,
    "shared_bytes_per_block": 8,
    "warp": 10,
    "multiprocessors": 16,
    "l2_bytes": 38,
    "max_threads_per_multiprocessor": 39,
    "shared_bytes_per_multiprocessor": 81,
    "registers_per_multiprocessor": 82,
    "shared_bytes_per_block_optin": 97,
    "max_blocks_per_multiprocessor": 106,
}
_MAJOR, _MINOR, _COOPERATIVE = 75, 76, 95
_MAX_THREADS, _SHARED, _LOCAL, _REGISTERS = 0, 1, 3, 4
_MAX_DYNAMIC_SHARED = 8


class Scope:
    """Makes a context current for a `with` block, per thread; for blocks in one another as well."""

    __slots__ = ("_api", "_get", "_local", "_pid", "_pop", "_push", "context")

    def __init__(self, api: Api, context: int) -> None:
        self._api, self.context = api, context
        self._get = api.function("cuCtxGetCurrent")
        self._push, self._pop = api.function("cuCtxPushCurrent"), api.function("cuCtxPopCurrent")
        self._local = threading.local()
        self._pid = os.getpid()

    def __enter__(self) -> None:
        check_usable(self._pid, self._api.lost)
        pushed = self._get() != self.context
        if pushed:
            self._push(self.context)
        self._local.__dict__.setdefault("pushed", []).append(pushed)

    def __exit__(self, *_: object) -> None:
        if self._local.pushed.pop():
            try:
                self._pop()
            except DeviceError:
                if not self._api.lost:  # then the error under way says more
                    raise


def check_usable(pid: int, lost: int) -> None:
    """Refuse a context of another process, or one that was lost with the status `lost`."""
    if os.getpid() != pid:
        raise DeviceError(
            "the GPU was used before this process was forked",
            code="PF747",
            hint='CUDA does not survive a fork: use multiprocessing with the start method "spawn"',
        )
    if lost:
        raise status_error(lost, "an earlier launch")


class _Functions:
    """Functions of the API as attributes."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def __getattr__(self, name: str) -> Call:
        call = self._api.function(name)
        setattr(self, name, call)
        return call


class NativeDriver:
    """Implements `cuda_driver.Driver` on an `Api`; `remark` is added to its description.

    Raises DeviceError PF740 without a driver, PF741 if there is no device of this index.
    """

    def __init__(self, api: Api, index: int = 0, remark: str = "") -> None:
        self.api, self._remark = api, remark
        self.functions = _Functions(api)
        self.functions.cuInit(0)
        count = self.functions.cuDeviceGetCount()
        if not 0 <= index < count:
            raise DeviceError(
                f"there is no GPU number {index}: {count} found", code="PF741", hint=NO_DEVICE_HINT
            )
        self._device = self.functions.cuDeviceGet(index)
        self._properties = _properties(api, self._device, index)
        self._lock = threading.Lock()
        self._scope: Scope | None = None

    # --- the device --------------------------------------------------------------------------------------

    @property
    def properties(self) -> DeviceProperties:
        return self._properties

    def describe(self) -> str:
        version = self._properties.driver_version
        number = f"{version // 1000}.{version % 1000 // 10}"
        return f"{self._properties}; driver API {number} through {self.api.name}{self._remark}"

    def current(self) -> AbstractContextManager[None]:
        return self._scope or self._first_scope()

    def _first_scope(self) -> Scope:
        with self._lock:
            if self._scope is None:
                self._scope = Scope(self.api, self.functions.cuDevicePrimaryCtxRetain(self._device))
            return self._scope

    def entries(self) -> Entries | None:
        self.current()
        assert self._scope is not None
        functions = tuple(self.api.address(name) for name in Entries.NAMES)
        return Entries(functions, self._scope.context, self.api.refuse) if all(functions) else None

    def entry(self, function: Function) -> int:
        return function.handle

    def close(self) -> None:
        with self._lock:
            if self._scope is not None:
                self._scope = None
                if not self.api.lost:
                    self.functions.cuDevicePrimaryCtxRelease(self._device)

    # --- memory ------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        return int(self.functions.cuMemAlloc(nbytes))

    def free(self, address: int) -> None:
        self.functions.cuMemFree(address)

    def allocate_pinned(self, nbytes: int) -> int:
        return int(self.functions.cuMemHostAlloc(nbytes, _HOST_PORTABLE))

    def free_pinned(self, address: int) -> None:
        self.functions.cuMemFreeHost(address)

    def memory(self) -> tuple[int, int]:
        free, total = self.functions.cuMemGetInfo()
        return free, total

    def device_of(self, address: int) -> int | None:
        try:
            return int(self.functions.cuPointerGetAttribute(_POINTER_DEVICE, address))
        except DeviceError as error:
            if error.status == INVALID_VALUE:
                return None
            raise

    def copy_in(self, device: int, host: int, nbytes: int, stream: int) -> None:
        self.functions.cuMemcpyHtoDAsync(device, host, nbytes, stream)

    def copy_out(self, host: int, device: int, nbytes: int, stream: int) -> None:
        self.functions.cuMemcpyDtoHAsync(host, device, nbytes, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self.functions.cuMemcpyDtoDAsync(to, source, nbytes, stream)

    def fill(self, device: int, byte: int, nbytes: int, stream: int) -> None:
        self.functions.cuMemsetD8Async(device, byte, nbytes, stream)

    # --- code --------------------------------------------------------------------------------------------

    def load(self, cubin: bytes) -> int:
        return int(self.functions.cuModuleLoadData(cubin))

    def unload(self, module: int) -> None:
        self.functions.cuModuleUnload(module)

    def function(self, module: int, name: str) -> Function:
        handle = self.functions.cuModuleGetFunction(module, name.encode())
        figures = (_MAX_THREADS, _REGISTERS, _SHARED, _LOCAL)
        return Function(name, handle, *(self.functions.cuFuncGetAttribute(a, handle) for a in figures))

    def allow_shared(self, function: Function, nbytes: int) -> None:
        self.functions.cuFuncSetAttribute(function.handle, _MAX_DYNAMIC_SHARED, nbytes)

    def resident_blocks(self, function: Function, threads: int, shared: int) -> int:
        ask = self.functions.cuOccupancyMaxActiveBlocksPerMultiprocessor
        return int(ask(function.handle, threads, shared))

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
        sizes = (function.handle, grid, 1, 1, block[0], block[1], 1, shared, stream, parameters.table)
        if cooperative:
            self.functions.cuLaunchCooperativeKernel(*sizes)
        else:
            self.functions.cuLaunchKernel(*sizes, 0)

    # --- streams, events, graphs -------------------------------------------------------------------------

    def create_stream(self) -> int:
        return int(self.functions.cuStreamCreate(_STREAM_DEFAULT))

    def destroy_stream(self, stream: int) -> None:
        self.functions.cuStreamDestroy(stream)

    def synchronize(self, stream: int) -> None:
        self.functions.cuStreamSynchronize(stream)

    def wait(self, stream: int, event: int) -> None:
        self.functions.cuStreamWaitEvent(stream, event, 0)

    def create_event(self, timing: bool = False) -> int:
        return int(self.functions.cuEventCreate(0 if timing else _EVENT_NO_TIMING))

    def destroy_event(self, event: int) -> None:
        self.functions.cuEventDestroy(event)

    def record(self, event: int, stream: int) -> None:
        self.functions.cuEventRecord(event, stream)

    def wait_here(self, event: int) -> None:
        self.functions.cuEventSynchronize(event)

    def done(self, event: int) -> bool:
        return bool(self.functions.cuEventQuery(event))

    def seconds(self, start: int, end: int) -> float:
        return float(self.functions.cuEventElapsedTime(start, end)) * 1e-3

    def capturing(self, stream: int) -> bool:
        return bool(self.functions.cuStreamIsCapturing(stream))

    def begin_capture(self, stream: int) -> None:
        self.functions.cuStreamBeginCapture(stream, _CAPTURE_THREAD_LOCAL)

    def end_capture(self, stream: int) -> int:
        graph = self.functions.cuStreamEndCapture(stream)
        try:
            return int(self.functions.cuGraphInstantiate(graph, 0))
        finally:
            self.functions.cuGraphDestroy(graph)

    def launch_graph(self, graph: int, stream: int) -> None:
        self.functions.cuGraphLaunch(graph, stream)

    def destroy_graph(self, graph: int) -> None:
        self.functions.cuGraphExecDestroy(graph)


def _properties(api: Api, device: int, index: int) -> DeviceProperties:
    attribute = api.function("cuDeviceGetAttribute")
    return DeviceProperties(
        index=index,
        name=api.device_name(device),
        capability=(attribute(_MAJOR, device), attribute(_MINOR, device)),
        memory_bytes=api.function("cuDeviceTotalMem")(device),
        cooperative=bool(attribute(_COOPERATIVE, device)),
        driver_version=api.function("cuDriverGetVersion")(),
        **{name: attribute(number, device) for name, number in _ATTRIBUTES.items()},
    )
