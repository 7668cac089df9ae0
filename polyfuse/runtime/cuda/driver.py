"""What the runtime asks of a GPU: one protocol, with several ways to a driver behind it.

    cuda_native    the driver API itself (libcuda), in full
    cuda_pycuda    PyCUDA for what it can, the native way for the rest, in the same primary context
    cuda_recording a fake that keeps a record, for tests without a GPU

Handles of streams, events, functions and graphs are numbers; so are addresses.  Stream 0 is CUDA's legacy
default stream.  All methods but `current`, `describe`, `entries` and `close` are called inside
`with driver.current()`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from polyfuse.diagnostics import DeviceError

CELL = 8
POINTER = "Q"
"""Format of an address among the parameters of a kernel (letters as in `struct`)."""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """One GPU, as its driver describes it."""

    index: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    warp: int
    max_grid: int
    max_threads_per_block: int
    max_threads_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    registers_per_multiprocessor: int
    shared_bytes_per_block: int
    shared_bytes_per_block_optin: int
    shared_bytes_per_multiprocessor: int
    cooperative: bool
    driver_version: int

    @property
    def arch(self) -> str:
        """The architecture as compilers call it: ``sm_90``."""
        return "sm_{}{}".format(*self.capability)

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.arch}, {self.multiprocessors} multiprocessors, "
            f"{self.memory_bytes / 2**30:.0f} GiB)"
        )


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel in a loaded module, and what a launch of it needs."""

    name: str
    handle: int
    max_threads: int
    registers: int
    shared_bytes: int
    local_bytes: int


class Cells:
    """Values of kernel parameters, 8 bytes each; one set for all launches of a call.

    The driver copies parameters when a launch is queued, so a set may be written again right after.
    """

    __slots__ = ("address", "memory")

    def __init__(self, count: int) -> None:
        self.memory = (ctypes.c_uint64 * max(1, count))()
        self.address = ctypes.addressof(self.memory)

    @classmethod
    def at(cls, address: int, count: int) -> Cells:
        """Cells in the memory of somebody else."""
        made = cls.__new__(cls)
        made.memory, made.address = (ctypes.c_uint64 * max(1, count)).from_address(address), address
        return made

    def put(self, index: int, value: int) -> None:
        """A 64-bit number or an address."""
        self.memory[index] = value

    def put_bytes(self, index: int, value: bytes) -> None:
        """A value of up to 8 bytes as it lies in memory."""
        self.memory[index] = int.from_bytes(value, "little")


class Parameters:
    """Parameters of one launch: which cells, in which format; `table` holds the addresses of the cells."""

    __slots__ = ("_addresses", "cells", "formats", "indices", "table")

    def __init__(self, cells: Cells, indices: Sequence[int], formats: Sequence[str]) -> None:
        self.cells = cells
        self.indices, self.formats = tuple(indices), "".join(formats)
        self._addresses = (ctypes.c_void_p * max(1, len(self.indices)))(
            *(cells.address + CELL * k for k in self.indices)
        )
        self.table = ctypes.addressof(self._addresses)

    def values(self) -> tuple[Any, ...]:
        """The values as Python numbers; 16-bit floats as their bits."""
        pairs = zip(self.formats, self.indices, strict=True)
        return tuple(struct.unpack_from(f"<{f}", self.cells.memory, CELL * k)[0] for f, k in pairs)

    def packed(self) -> bytes:
        """The values as the fields of a struct, in the layout of C."""
        return struct.pack(f"@{self.formats}", *self.values())


Dims = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Entries:
    """The driver for a caller in C: the addresses of `NAMES`, and the context that they need.

    `refuse(status, function)` raises what a status means.
    """

    NAMES: ClassVar = (
        "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuLaunchKernel",
        "cuLaunchCooperativeKernel", "cuMemsetD8Async", "cuMemcpyDtoDAsync",
    )  # fmt: skip

    functions: tuple[int, ...]
    context: int
    refuse: Callable[[int, str], None]


class Driver(Protocol):
    """One GPU. Raises DeviceError PF740-PF749 whenever the driver refuses."""

    @property
    def properties(self) -> DeviceProperties: ...

    def describe(self) -> str:
        """Which way leads to the driver, in words."""
        ...

    def current(self) -> AbstractContextManager[None]:
        """The device's primary context, current in this thread for the block; it may be nested."""
        ...

    def entries(self) -> Entries | None:
        """For a caller in C; None where the driver has to be called through Python."""
        ...

    def entry(self, function: Function) -> int:
        """The handle of a function, as such a caller needs it."""
        ...

    def close(self) -> None:
        """Give the primary context back. Nothing may be used afterwards."""
        ...

    # memory; copies are queued on a stream, host addresses must stay valid until they are done

    def allocate(self, nbytes: int) -> int: ...
    def free(self, address: int) -> None: ...
    def allocate_pinned(self, nbytes: int) -> int: ...
    def free_pinned(self, address: int) -> None: ...
    def memory(self) -> tuple[int, int]:
        """(free, all) bytes of the device."""
        ...

    def device_of(self, address: int) -> int | None:
        """The index of the device that an address belongs to; None for memory CUDA does not know."""
        ...

    def copy_in(self, device: int, host: int, nbytes: int, stream: int) -> None: ...
    def copy_out(self, host: int, device: int, nbytes: int, stream: int) -> None: ...
    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None: ...
    def fill(self, device: int, byte: int, nbytes: int, stream: int) -> None: ...

    # code

    def load(self, cubin: bytes) -> int:
        """A module from a cubin (or PTX)."""
        ...

    def unload(self, module: int) -> None: ...
    def function(self, module: int, name: str) -> Function: ...
    def allow_shared(self, function: Function, nbytes: int) -> None:
        """Let launches of a function ask for so much dynamic shared memory."""
        ...

    def resident_blocks(self, function: Function, threads: int, shared: int) -> int:
        """How many blocks of `threads` threads one multiprocessor holds at once."""
        ...

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
        """Queue a launch; `shared` is dynamic shared memory."""
        ...

    # streams and events

    def create_stream(self) -> int:
        """A stream that waits for the legacy default stream, and that one for it."""
        ...

    def destroy_stream(self, stream: int) -> None: ...
    def synchronize(self, stream: int) -> None: ...
    def wait(self, stream: int, event: int) -> None:
        """What is queued on `stream` from now on waits for the event."""
        ...

    def create_event(self, timing: bool = False) -> int: ...
    def destroy_event(self, event: int) -> None: ...
    def record(self, event: int, stream: int) -> None: ...
    def wait_here(self, event: int) -> None:
        """Let this thread wait for an event."""
        ...

    def done(self, event: int) -> bool: ...
    def seconds(self, start: int, end: int) -> float: ...

    # graphs

    def capturing(self, stream: int) -> bool:
        """Is what is queued on a stream recorded, by whomever, instead of done?"""
        ...

    def begin_capture(self, stream: int) -> None: ...
    def end_capture(self, stream: int) -> int:
        """The captured graph, ready to launch."""
        ...

    def launch_graph(self, graph: int, stream: int) -> None: ...
    def destroy_graph(self, graph: int) -> None: ...


def require_resident(driver: Driver, function: Function, blocks: int, threads: int, shared: int) -> None:
    """Refuse a cooperative launch whose blocks cannot all be resident: its grid barrier would never open.

    Raises DeviceError PF745 with the figures.
    """
    device = driver.properties
    if not device.cooperative:
        raise DeviceError(
            f"{function.name} needs a cooperative launch, which {device.name} does not have", code="PF745"
        )
    each = driver.resident_blocks(function, threads, shared)
    most = each * device.multiprocessors
    if blocks > most:
        raise DeviceError(
            f"{function.name} has a grid barrier and {blocks} blocks of {threads} threads, but only {most} "
            f"can be resident at once ({each} on each of {device.multiprocessors} multiprocessors, with "
            f"{function.registers} registers a thread and {function.shared_bytes + shared} bytes of shared "
            "memory a block)",
            code="PF745",
            hint="the kernels were planned for another device: compile for this one",
        )
