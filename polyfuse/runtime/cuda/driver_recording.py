"""A driver without a GPU: host memory stands for the device's, and every call is kept in a record.

Tests read the record, let calls fail, and plug in something that computes what kernels would.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from polyfuse.runtime.cuda.driver import DeviceProperties, Dims, Entries, Function, Parameters
from polyfuse.runtime.cuda.driver_api import OUT_OF_MEMORY, is_lost, status_error
from polyfuse.runtime.cuda.driver_native import check_usable

_ALIGNMENT = 256

SMALL_DEVICE = DeviceProperties(
    index=0,
    name="Recording GPU",
    capability=(9, 0),
    multiprocessors=4,
    memory_bytes=1 << 30,
    l2_bytes=1 << 20,
    warp=32,
    max_grid=2**31 - 1,
    max_threads_per_block=1024,
    max_threads_per_multiprocessor=2048,
    max_blocks_per_multiprocessor=32,
    registers_per_multiprocessor=65536,
    shared_bytes_per_block=48 << 10,
    shared_bytes_per_block_optin=227 << 10,
    shared_bytes_per_multiprocessor=228 << 10,
    cooperative=True,
    driver_version=13000,
)


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """A launch as it was asked for: `values` are its arguments in order, `formats` letters as in `struct`."""

    function: str
    grid: int
    block: Dims
    shared: int
    values: tuple[Any, ...]
    stream: int
    cooperative: bool
    formats: str


Execute = Callable[[LaunchRecord], None]


class RecordingDriver:
    """Implements `cuda_driver.Driver`; work is done at once, whatever the stream.

    `execute` is called for each launch: addresses in its values are addresses of this process.
    `fail("allocate", status, after=2)` lets the third allocation fail.
    """

    def __init__(
        self,
        execute: Execute | None = None,
        properties: DeviceProperties = SMALL_DEVICE,
        resident: int = 2,
    ) -> None:
        self.execute = execute
        self.calls: list[tuple[Any, ...]] = []
        """(name of the method, arguments); a launch is ("launch", LaunchRecord)."""
        self.live: dict[int, int] = {}
        """Allocations that were not freed: address -> bytes."""
        self._properties = properties
        self._resident = resident
        self._failures: dict[str, tuple[int, int]] = {}
        self._memory: dict[int, Any] = {}
        self._captured: dict[int, list[LaunchRecord]] = {}
        self._capturing: dict[int, list[LaunchRecord]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._local = threading.local()
        self._lost, self._pid = 0, os.getpid()

    # --- for tests ---------------------------------------------------------------------------------------

    def fail(self, method: str, status: int = OUT_OF_MEMORY, after: int = 0) -> None:
        """Let a method fail once, after `after` calls that succeed."""
        self._failures[method] = (status, after)

    def named(self, *methods: str) -> list[tuple[Any, ...]]:
        """The calls of some methods, in order."""
        return [c for c in self.calls if c[0] in methods]

    @property
    def launches(self) -> list[LaunchRecord]:
        return [c[1] for c in self.named("launch")]

    def _note(self, method: str, *arguments: Any) -> None:
        if not getattr(self._local, "depth", 0):
            raise AssertionError(f"{method} was called outside of `with driver.current()`")
        with self._lock:
            self.calls.append((method, *arguments))
            if method not in self._failures:
                return
            status, after = self._failures.pop(method)
            if after:
                self._failures[method] = (status, after - 1)
                return
        if is_lost(status):
            self._lost = status
        raise status_error(status, method)

    # --- the protocol ------------------------------------------------------------------------------------

    @property
    def properties(self) -> DeviceProperties:
        return self._properties

    def describe(self) -> str:
        return f"{self._properties}; a recording, without a device"

    @contextmanager
    def current(self) -> Iterator[None]:
        check_usable(self._pid, self._lost)
        self._local.depth = getattr(self._local, "depth", 0) + 1
        try:
            yield
        finally:
            self._local.depth -= 1

    def entries(self) -> Entries | None:
        return None

    def entry(self, function: Function) -> int:
        return function.handle

    def close(self) -> None:
        self.live.clear()
        self._memory.clear()

    def _take(self, nbytes: int) -> int:
        memory = (ctypes.c_ubyte * (nbytes + _ALIGNMENT))()
        address = ctypes.addressof(memory)
        address += -address % _ALIGNMENT
        ctypes.memset(address, 0xA5, nbytes)
        self._memory[address] = memory
        return address

    def allocate(self, nbytes: int) -> int:
        self._note("allocate", nbytes)
        address = self._take(nbytes)
        self.live[address] = nbytes
        return address

    def free(self, address: int) -> None:
        self._note("free", address)
        del self.live[address], self._memory[address]

    def allocate_pinned(self, nbytes: int) -> int:
        self._note("allocate_pinned", nbytes)
        return self._take(nbytes)

    def free_pinned(self, address: int) -> None:
        self._note("free_pinned", address)
        del self._memory[address]

    def memory(self) -> tuple[int, int]:
        self._note("memory")
        return self._properties.memory_bytes - sum(self.live.values()), self._properties.memory_bytes

    def device_of(self, address: int) -> int | None:
        self._note("device_of", address)
        inside = any(a <= address < a + n for a, n in self.live.items())
        return self._properties.index if inside else None

    def _move(self, method: str, to: int, source: int, nbytes: int, stream: int) -> None:
        self._note(method, to, source, nbytes, stream)
        ctypes.memmove(to, source, nbytes)

    def copy_in(self, device: int, host: int, nbytes: int, stream: int) -> None:
        self._move("copy_in", device, host, nbytes, stream)

    def copy_out(self, host: int, device: int, nbytes: int, stream: int) -> None:
        self._move("copy_out", host, device, nbytes, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._move("copy", to, source, nbytes, stream)

    def fill(self, device: int, byte: int, nbytes: int, stream: int) -> None:
        self._note("fill", device, byte, nbytes, stream)
        ctypes.memset(device, byte, nbytes)

    def load(self, cubin: bytes) -> int:
        self._note("load", cubin)
        return next(self._numbers)

    def unload(self, module: int) -> None:
        self._note("unload", module)

    def function(self, module: int, name: str) -> Function:
        self._note("function", module, name)
        return Function(name, next(self._numbers), self._properties.max_threads_per_block, 32, 0, 0)

    def allow_shared(self, function: Function, nbytes: int) -> None:
        self._note("allow_shared", function.name, nbytes)

    def resident_blocks(self, function: Function, threads: int, shared: int) -> int:
        self._note("resident_blocks", function.name, threads, shared)
        return self._resident

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
        values, formats = parameters.values(), parameters.formats
        record = LaunchRecord(function.name, grid, block, shared, values, stream, cooperative, formats)
        self._note("launch", record)
        if stream in self._capturing:
            self._capturing[stream].append(record)
        elif self.execute is not None:
            self.execute(record)

    def create_stream(self) -> int:
        self._note("create_stream")
        return next(self._numbers)

    def destroy_stream(self, stream: int) -> None:
        self._note("destroy_stream", stream)

    def synchronize(self, stream: int) -> None:
        self._note("synchronize", stream)

    def wait(self, stream: int, event: int) -> None:
        self._note("wait", stream, event)

    def create_event(self, timing: bool = False) -> int:
        self._note("create_event", timing)
        return next(self._numbers)

    def destroy_event(self, event: int) -> None:
        self._note("destroy_event", event)

    def record(self, event: int, stream: int) -> None:
        self._note("record", event, stream)

    def wait_here(self, event: int) -> None:
        self._note("wait_here", event)

    def done(self, event: int) -> bool:
        self._note("done", event)
        return True

    def seconds(self, start: int, end: int) -> float:
        self._note("seconds", start, end)
        return 1e-6

    def capturing(self, stream: int) -> bool:
        return stream in self._capturing

    def begin_capture(self, stream: int) -> None:
        self._note("begin_capture", stream)
        self._capturing[stream] = []

    def end_capture(self, stream: int) -> int:
        self._note("end_capture", stream)
        graph = next(self._numbers)
        self._captured[graph] = self._capturing.pop(stream)
        return graph

    def launch_graph(self, graph: int, stream: int) -> None:
        self._note("launch_graph", graph, stream)
        for record in self._captured[graph]:
            if self.execute is not None:
                self.execute(record)

    def destroy_graph(self, graph: int) -> None:
        self._note("destroy_graph", graph)
        del self._captured[graph]
