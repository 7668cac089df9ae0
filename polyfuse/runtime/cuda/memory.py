"""Memory of a GPU in the order of its streams: kept blocks, pinned staging, streams and events.

A block belongs to the stream it was taken for.  It may be given back while work on it is still queued there:
the next user on that stream comes after that work.  Whoever uses a block on another stream must have waited
before it is given back, as with torch's allocator.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from polyfuse.diagnostics import DeviceError, DeviceMemoryError
from polyfuse.runtime.cuda.driver import Driver

ALIGNMENT = 256
"""Every block begins at a multiple of this, as CUDA's own allocations do."""
STREAMS = 8
"""Own streams: threads share them in turn. Sharing costs parallelism only."""
CHUNK = 4 << 20
SMALL_CHUNK = 64 << 10
MOST_CHUNKS = 8
"""Of each size: so much pinned memory is kept, and copies in flight are bounded."""
FREE_SHARE = 4
"""At most this part of the device's memory is kept for reuse (1/4)."""

Bytes = NDArray[np.uint8]


class Block:
    """Device memory; it goes back to its pool when nothing refers to it any more."""

    __slots__ = ("__weakref__", "_pool", "address", "nbytes", "size", "stream")

    def __init__(self, pool: Pool, address: int, nbytes: int, size: int, stream: int) -> None:
        self._pool = pool
        self.address, self.nbytes, self.size, self.stream = address, nbytes, size, stream

    def __del__(self) -> None:
        self._pool.give_back(self.size, self.stream, self.address)


class Pool:
    """Device memory that is kept between uses, by stream and size. Thread-safe."""

    def __init__(self, driver: Driver, cap: int | None = None) -> None:
        self._driver = driver
        self._cap = driver.properties.memory_bytes // FREE_SHARE if cap is None else cap
        self._lock = threading.Lock()
        self._returned: deque[tuple[int, int, int]] = deque()
        self._free: dict[tuple[int, int], list[int]] = {}
        self.free_bytes = 0
        self.allocations = 0
        """How often the driver was asked for memory."""

    def take(self, nbytes: int, stream: int) -> Block:
        """Uninitialised memory for use on a stream. Raises DeviceMemoryError PF742."""
        block = self.kept(nbytes, stream)
        if block is not None:
            return block
        with self._lock:
            self.allocations += 1
        self.trim(self._cap)
        size = size_class(nbytes)
        return Block(self, self._allocate(size), nbytes, size, stream)

    def kept(self, nbytes: int, stream: int) -> Block | None:
        """The same if it is there already: the driver is not asked, so its context need not be current."""
        size = size_class(nbytes)
        with self._lock:
            self._collect()
            kept = self._free.get((stream, size))
            if not kept:
                return None
            self.free_bytes -= size
            return Block(self, kept.pop(), nbytes, size, stream)

    def give_back(self, size: int, stream: int, address: int) -> None:
        """Called by finalisers, so at any moment: taken in when the pool is next used."""
        self._returned.append((size, stream, address))

    def trim(self, keep: int = 0) -> int:
        """Return kept memory to the driver until `keep` bytes are left; the bytes returned."""
        with self._lock:
            self._collect()
            addresses, before = [], self.free_bytes
            for (_, size), kept in self._free.items():
                while kept and self.free_bytes > keep:
                    addresses.append(kept.pop(0))
                    self.free_bytes -= size
            freed = before - self.free_bytes
        for address in addresses:  # waits for what is queued on the device: cuMemFree does
            self._driver.free(address)
        return freed

    def _allocate(self, size: int) -> int:
        try:
            return self._driver.allocate(size)
        except DeviceMemoryError:
            if not self.trim():
                raise
            return self._driver.allocate(size)

    def _collect(self) -> None:
        while self._returned:
            size, stream, address = self._returned.popleft()
            self._free.setdefault((stream, size), []).append(address)
            self.free_bytes += size


def size_class(nbytes: int) -> int:
    """The size of block that serves a request: at most an eighth or 512 bytes more."""
    step = max(512, 1 << max(0, nbytes.bit_length() - 4))
    return max(1, -(-nbytes // step)) * step


@dataclass(slots=True)
class _Chunk:
    """Pinned host memory; `event` tells when the copy that uses it is done."""

    address: int
    memory: Bytes
    event: int


@dataclass(slots=True)
class _Chunks:
    """Chunks of one size: the free ones, and those in use by copies, oldest first."""

    size: int
    free: list[_Chunk] = field(default_factory=list)
    busy: deque[_Chunk] = field(default_factory=deque)
    made: int = 0


class Staging:
    """Copies between NumPy's memory and a device through pinned chunks, so that they are asynchronous and
    the copy into one chunk overlaps the transfer of another."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._small, self._large = _Chunks(SMALL_CHUNK), _Chunks(CHUNK)

    def upload(self, source: Bytes, address: int, stream: int) -> None:
        """Queue the copy of host bytes to the device. `source` may change as soon as this returns."""
        driver = self._driver
        for start in range(0, source.size, CHUNK):
            part = source[start : start + CHUNK]
            chunks, chunk = self._take(part.size)
            np.copyto(chunk.memory[: part.size], part)
            driver.copy_in(address + start, chunk.address, part.size, stream)
            driver.record(chunk.event, stream)
            with self._lock:
                chunks.busy.append(chunk)

    def download(self, address: int, target: Bytes, stream: int) -> None:
        """Copy device bytes to the host, after what is queued on the stream; returns when they are there."""
        driver = self._driver
        pending: deque[tuple[_Chunks, _Chunk, Bytes]] = deque()
        for start in range(0, target.size, CHUNK):
            part = target[start : start + CHUNK]
            if len(pending) >= 2:  # one in transfer while the other is copied out
                self._finish(*pending.popleft())
            chunks, chunk = self._take(part.size)
            driver.copy_out(chunk.address, address + start, part.size, stream)
            driver.record(chunk.event, stream)
            pending.append((chunks, chunk, part))
        while pending:
            self._finish(*pending.popleft())

    def _finish(self, chunks: _Chunks, chunk: _Chunk, target: Bytes) -> None:
        self._driver.wait_here(chunk.event)
        np.copyto(target, chunk.memory[: target.size])
        with self._lock:
            chunks.free.append(chunk)

    def _take(self, nbytes: int) -> tuple[_Chunks, _Chunk]:
        chunks = self._small if nbytes <= SMALL_CHUNK else self._large
        with self._lock:
            while chunks.busy and self._driver.done(chunks.busy[0].event):
                chunks.free.append(chunks.busy.popleft())
            if chunks.free:
                return chunks, chunks.free.pop()
            wait = chunks.busy.popleft() if chunks.busy and chunks.made >= MOST_CHUNKS else None
            if wait is None:
                chunks.made += 1
        if wait is None:
            return chunks, self._make(chunks.size)
        self._driver.wait_here(wait.event)
        return chunks, wait

    def _make(self, size: int) -> _Chunk:
        address = self._driver.allocate_pinned(size)
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        return _Chunk(address, memory, self._driver.create_event())


class Graph:
    """A CUDA graph and the stream that it is captured and launched on."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._graph: int | None = None
        self.stream = driver.create_stream()

    def capture(self, work: Callable[[], None]) -> None:
        """Record what `work` queues on the stream instead of doing it."""
        self._driver.begin_capture(self.stream)
        try:
            work()
        finally:
            self._graph = self._driver.end_capture(self.stream)

    def launch(self) -> None:
        assert self._graph is not None
        self._driver.launch_graph(self._graph, self.stream)

    def __del__(self) -> None:
        with suppress(DeviceError), self._driver.current():
            self._driver.synchronize(self.stream)
            if self._graph is not None:
                self._driver.destroy_graph(self._graph)
            self._driver.destroy_stream(self.stream)


class DeviceMemory:
    """What executables of one driver share: pool, staging, streams, events. Kept until the process ends."""

    _of: ClassVar[
        dict[int, DeviceMemory]
    ] = {}  # by id of the driver, which is kept here and so stays its own
    _of_lock = threading.Lock()

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.pool = Pool(driver)
        self.staging = Staging(driver)
        self._lock = threading.Lock()
        self._local = threading.local()
        self._streams: list[int] = []
        self._turn = 0
        self._events: list[int] = []
        self._held: deque[tuple[int, Sequence[object]]] = deque()

    @classmethod
    def get(cls, driver: Driver) -> DeviceMemory:
        """The memory that belongs to a driver."""
        with cls._of_lock:
            found = cls._of.get(id(driver))
            if found is None:
                found = cls._of[id(driver)] = cls(driver)
            return found

    def stream(self) -> int:
        """The own stream of this thread."""
        mine: int | None = getattr(self._local, "stream", None)
        if mine is None:
            with self._lock:
                if len(self._streams) < STREAMS:
                    self._streams.append(self.driver.create_stream())
                mine = self._streams[self._turn % STREAMS]
                self._turn += 1
            self._local.stream = mine
        return mine

    def order(self, first: int, then: int) -> None:
        """What is queued on stream `then` from now on comes after all that is queued on `first`."""
        if first == then:
            return
        with self._lock:
            event = self._events.pop() if self._events else None
        if event is None:
            event = self.driver.create_event()
        self.driver.record(event, first)
        self.driver.wait(then, event)  # what was recorded by now holds, even if the event is used again
        with self._lock:
            self._events.append(event)

    def hold(self, objects: Sequence[object], stream: int) -> None:
        """Keep objects alive until what is queued on the stream by now is done."""
        with self._lock:
            while self._held and self.driver.done(self._held[0][0]):
                self._events.append(self._held.popleft()[0])
            event = self._events.pop() if self._events else self.driver.create_event()
            self.driver.record(event, stream)
            self._held.append((event, objects))

    def measure(self, work: Callable[[], None], stream: int) -> float:
        """Seconds that the device takes for what `work` queues on the stream."""
        start, end = self.driver.create_event(timing=True), self.driver.create_event(timing=True)
        try:
            self.driver.record(start, stream)
            work()
            self.driver.record(end, stream)
            self.driver.wait_here(end)
            return self.driver.seconds(start, end)
        finally:
            self.driver.destroy_event(start)
            self.driver.destroy_event(end)
