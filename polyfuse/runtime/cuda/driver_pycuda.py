"""PyCUDA for what it can, the native way for the rest, both in the primary context.

PyCUDA makes memory, modules and streams, copies, and launches on the streams that it made.  It has no
cooperative launches, no occupancy, no graphs, no handles of events, and takes no stream of another library:
those go the native way, for which a module is loaded a second time when it is first needed.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from polyfuse.diagnostics import DeviceError
from polyfuse.runtime.cuda.driver import DeviceProperties, Dims, Entries, Function, Parameters
from polyfuse.runtime.cuda.driver_api import is_lost, status_error, status_of
from polyfuse.runtime.cuda.driver_native import NativeDriver, check_usable

_LEGACY = 0


def load_pycuda() -> tuple[Any | None, str]:
    """PyCUDA's driver module, or None and why not."""
    try:
        with warnings.catch_warnings(action="ignore"):
            import pycuda.driver as module
    except ModuleNotFoundError:
        return None, "not installed"
    except Exception as error:  # an extension that does not fit the driver fails in many ways
        return None, f"it does not load: {error}"
    return module, ""


class _PyScope:
    """Like `cuda_native.Scope`; pushed through PyCUDA, which keeps a stack of its own beside the driver's."""

    __slots__ = ("_context", "_current", "_handle", "_local", "_native", "_pid")

    def __init__(self, pycuda: Any, context: Any, native: NativeDriver) -> None:
        self._context, self._current = context, pycuda.Context.get_current
        self._native, self._handle = native, context.handle
        self._local = threading.local()
        self._pid = os.getpid()

    def __enter__(self) -> None:
        check_usable(self._pid, self._native.api.lost)
        top = self._current()
        pushed = (
            top is None
            or top.handle != self._handle
            or self._native.functions.cuCtxGetCurrent() != self._handle
        )
        if pushed:
            self._context.push()
        self._local.__dict__.setdefault("pushed", []).append(pushed)

    def __exit__(self, *_: object) -> None:
        if self._local.pushed.pop():
            self._context.pop()


class PyCudaDriver:
    """Implements `cuda_driver.Driver` with PyCUDA beside a `NativeDriver` of the same device."""

    def __init__(self, pycuda: Any, native: NativeDriver) -> None:
        self._cuda, self._native = pycuda, native
        self._lock = threading.Lock()
        self._scope: _PyScope | None = None
        self._context: Any = None
        # PyCUDA's objects free what they hold when they die; they are kept here by address or handle.
        self._memory: dict[int, Any] = {}
        self._pinned: dict[int, Any] = {}
        self._streams: dict[int, Any] = {_LEGACY: None}
        self._modules: dict[int, tuple[Any, bytes]] = {}
        self._functions: dict[int, tuple[Any, int, str]] = {}
        self._twins: dict[int, int] = {}
        self._native_functions: dict[int, Function] = {}
        self._count = 0
        self._closed, self._pid = False, os.getpid()
        atexit.register(self.close)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call PyCUDA, its errors made ours."""
        try:
            return function(*arguments)
        except self._cuda.Error as error:
            name, _, text = str(error).partition(" failed: ")
            status = status_of(text)
            if is_lost(status):
                self._native.api.lost = status
            raise status_error(status, name) from error

    def _next(self) -> int:
        with self._lock:
            self._count += 1
            return self._count

    # --- the device --------------------------------------------------------------------------------------

    @property
    def properties(self) -> DeviceProperties:
        return self._native.properties

    def describe(self) -> str:
        version = ".".join(map(str, self._cuda.get_version()))
        rest = "cooperative launches, graphs, events and streams of others natively"
        return f"{self._native.describe()}; PyCUDA for CUDA {version}, {rest}"

    def current(self) -> AbstractContextManager[None]:
        if self._closed:
            raise DeviceError("the driver was closed")
        return self._scope or self._first_scope()

    def _first_scope(self) -> _PyScope:
        with self._lock:
            if self._scope is None:
                self._cuda.init()
                device = self._cuda.Device(self.properties.index)
                self._context = self._call(device.retain_primary_context)
                self._scope = _PyScope(self._cuda, self._context, self._native)
            return self._scope

    def entries(self) -> Entries | None:
        return self._native.entries()

    def entry(self, function: Function) -> int:
        return self._twin(function).handle

    def close(self) -> None:
        """Called at the end of the process as well: PyCUDA's objects must not die after CUDA."""
        atexit.unregister(self.close)
        if self._closed or self._scope is None or os.getpid() != self._pid:
            return
        with self._scope, suppress(DeviceError):
            for kept in (self._functions, self._modules, self._memory, self._pinned, self._streams):
                kept.clear()
        self._closed = True
        self._call(self._context.detach)

    # --- memory ------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        memory = self._call(self._cuda.mem_alloc, nbytes)
        address = int(memory)
        self._memory[address] = memory
        return address

    def free(self, address: int) -> None:
        self._call(self._memory.pop(address).free)

    def allocate_pinned(self, nbytes: int) -> int:
        flags = self._cuda.host_alloc_flags.PORTABLE
        array = self._call(self._cuda.pagelocked_empty, (nbytes,), "u1", "C", flags)
        address = int(array.__array_interface__["data"][0])
        self._pinned[address] = array
        return address

    def free_pinned(self, address: int) -> None:
        self._call(self._pinned.pop(address).base.free)

    def memory(self) -> tuple[int, int]:
        free, total = self._call(self._cuda.mem_get_info)
        return free, total

    def device_of(self, address: int) -> int | None:
        return self._native.device_of(address)

    def copy_in(self, device: int, host: int, nbytes: int, stream: int) -> None:
        if stream in self._streams:
            source = (ctypes.c_ubyte * nbytes).from_address(host)
            self._call(self._cuda.memcpy_htod_async, device, source, self._streams[stream])
        else:
            self._native.copy_in(device, host, nbytes, stream)

    def copy_out(self, host: int, device: int, nbytes: int, stream: int) -> None:
        if stream in self._streams:
            target = (ctypes.c_ubyte * nbytes).from_address(host)
            self._call(self._cuda.memcpy_dtoh_async, target, device, self._streams[stream])
        else:
            self._native.copy_out(host, device, nbytes, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        if stream in self._streams:
            self._call(self._cuda.memcpy_dtod_async, to, source, nbytes, self._streams[stream])
        else:
            self._native.copy(to, source, nbytes, stream)

    def fill(self, device: int, byte: int, nbytes: int, stream: int) -> None:
        if stream in self._streams:
            self._call(self._cuda.memset_d8_async, device, byte, nbytes, self._streams[stream])
        else:
            self._native.fill(device, byte, nbytes, stream)

    # --- code --------------------------------------------------------------------------------------------

    def load(self, cubin: bytes) -> int:
        number = self._next()
        self._modules[number] = (self._call(self._cuda.module_from_buffer, cubin), cubin)
        return number

    def unload(self, module: int) -> None:
        gone = {k for k, (_, owner, _) in self._functions.items() if owner == module}
        for k in gone:
            del self._functions[k]
            self._native_functions.pop(k, None)
        del self._modules[module]
        if module in self._twins:
            self._native.unload(self._twins.pop(module))

    def function(self, module: int, name: str) -> Function:
        made = self._call(self._modules[module][0].get_function, name)
        number = self._next()
        self._functions[number] = (made, module, name)
        which = self._cuda.function_attribute
        asked = (which.MAX_THREADS_PER_BLOCK, which.NUM_REGS, which.SHARED_SIZE_BYTES, which.LOCAL_SIZE_BYTES)
        return Function(name, number, *(self._call(made.get_attribute, a) for a in asked))

    def _twin(self, function: Function) -> Function:
        """The same function, loaded the native way."""
        found = self._native_functions.get(function.handle)
        if found is None:
            _, module, name = self._functions[function.handle]
            with self._lock:
                if module not in self._twins:
                    self._twins[module] = self._native.load(self._modules[module][1])
            found = self._native.function(self._twins[module], name)
            self._native_functions[function.handle] = found
        return found

    def allow_shared(self, function: Function, nbytes: int) -> None:
        self._native.allow_shared(self._twin(function), nbytes)

    def resident_blocks(self, function: Function, threads: int, shared: int) -> int:
        return self._native.resident_blocks(self._twin(function), threads, shared)

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
        if cooperative or shared or stream not in self._streams:
            twin = self._twin(function)
            self._native.launch(twin, grid, block, shared, parameters, stream, cooperative)
            return
        made = self._functions[function.handle][0]
        packed = parameters.packed()
        self._call(made._launch_kernel, (grid, 1), (*block, 1), packed, shared, self._streams[stream])

    # --- streams, events, graphs -------------------------------------------------------------------------

    def create_stream(self) -> int:
        stream = self._call(self._cuda.Stream)
        self._streams[stream.handle] = stream
        return int(stream.handle)

    def destroy_stream(self, stream: int) -> None:
        self._streams.pop(stream, None)

    def synchronize(self, stream: int) -> None:
        self._native.synchronize(stream)

    def wait(self, stream: int, event: int) -> None:
        self._native.wait(stream, event)

    def create_event(self, timing: bool = False) -> int:
        return self._native.create_event(timing)

    def destroy_event(self, event: int) -> None:
        self._native.destroy_event(event)

    def record(self, event: int, stream: int) -> None:
        self._native.record(event, stream)

    def wait_here(self, event: int) -> None:
        self._native.wait_here(event)

    def done(self, event: int) -> bool:
        return self._native.done(event)

    def seconds(self, start: int, end: int) -> float:
        return self._native.seconds(start, end)

    def capturing(self, stream: int) -> bool:
        return self._native.capturing(stream)

    def begin_capture(self, stream: int) -> None:
        self._native.begin_capture(stream)

    def end_capture(self, stream: int) -> int:
        return self._native.end_capture(stream)

    def launch_graph(self, graph: int, stream: int) -> None:
        self._native.launch_graph(graph, stream)

    def destroy_graph(self, graph: int) -> None:
        self._native.destroy_graph(graph)
