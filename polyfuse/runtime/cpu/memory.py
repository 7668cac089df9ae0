"""The caching arena: where outputs and workspaces live.

A fresh 32 MB array costs more to touch for the first time (4 KB pages, 3 GB/s) than most kernels
take to fill it.  So blocks from 1 MB on are mapped here, 2 MB aligned, with huge pages, touched
once, and come back to a free list when the last array on them dies.  Smaller ones come from NumPy, and
from there from the C library, which is made to keep memory of that size (`_keep_freed`).
Contents are never cleared: a block holds whatever its last user left.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import re
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from polyfuse.diagnostics import ToolchainError
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.launch_plan import Kind, PlanBuffer
from polyfuse.runtime.toolchain.sanitizers import exact_block, sanitized
from polyfuse.support.processes import ForkLock

ENV_BYTES = "POLYFUSE_ARENA_BYTES"
ALIGNMENT = 64
HUGE = 2 << 20
LARGE = 1 << 20
"""Requests from this many bytes on are mapped and kept."""
SMALL = 4 << 10
"""Requests up to this many bytes share a slab: NumPy aligns to 16 only, and padding each costs 1 us."""
SLAB = 64 << 10
DEFAULT_CAP = 4 << 30
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not yet a name in Python's mmap
_BYTE = np.dtype(np.uint8)
_CHAR: Any = ctypes.c_char.from_buffer
_address = ctypes.addressof
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class _Block:
    """A mapping of `size` bytes from `address`, a multiple of 2 MB."""

    __slots__ = ("_map", "address", "size")

    def __init__(self, size: int) -> None:
        self._map = _private_mapping(size + HUGE)  # the rest for alignment is never touched
        base = _address(_CHAR(self._map))
        offset = -base % HUGE
        self.address, self.size = base + offset, size
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE, offset, size)
        self._touch(offset)

    def _touch(self, offset: int) -> None:
        """Make every page present, so that no kernel pays for it."""
        if hasattr(self._map, "madvise"):
            with suppress(OSError):
                self._map.madvise(_MADV_POPULATE_WRITE, offset, self.size)
                return
        pages = np.frombuffer(self._map, np.uint8, self.size, offset)
        pages[:: mmap.PAGESIZE] = 0


class _Lease:
    """The base of an array on a block; when nothing refers to it any more, the block goes back."""

    __slots__ = ("__array_interface__", "__weakref__", "_arena", "_block")

    def __init__(self, arena: Arena, block: _Block) -> None:
        self._arena, self._block = arena, block
        self.__array_interface__ = {
            "shape": (block.size,),
            "typestr": "|u1",
            "data": (block.address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._arena._give_back(self._block)


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """Bytes in arrays, bytes kept for reuse, and how many large requests were served anew / again."""

    used: int
    free: int
    mapped: int
    reused: int


class Arena:
    """Blocks of memory that are kept between uses: at most `cap` free bytes.

    Thread-safe, also for finalisers, which the garbage collector may run inside any method: where the lock
    is held, maybe by this very thread, requests have new memory; what would wait for the lock does not where
    this thread holds it (`_enter`).  A forked child starts with an empty free list (writing to inherited
    pages would copy them), while arrays that were alive stay valid in it.
    """

    _slab: NDArray[np.uint8]
    _changing: bool  # is a thread, the one that holds the lock, inside a method?
    _slab_start: int
    _slab_next: int
    _default: Arena | None = None
    _default_lock = ForkLock()

    def __init__(self, cap: int | None = None) -> None:
        self.cap = default_cap() if cap is None else cap
        self._open()
        self._returned: deque[_Block] = deque()
        self._added: deque[int] = deque()
        self._reset()
        _ARENAS.add(self)

    @classmethod
    def get(cls) -> Arena:
        """The process's arena. Raises ToolchainError PF705 for a bad POLYFUSE_ARENA_BYTES."""
        if cls._default is None:
            with cls._default_lock:
                _keep_freed()
                cls._default = cls._default or (ApartArena() if sanitized() else cls())
        return cls._default

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """An uninitialised array of `nbytes` bytes at a multiple of 64 (2 MB for 1 MB or more).

        The memory goes back when the array and all its views are gone.  Raises MemoryError, and
        ValueError for a negative size.
        """
        return self.place((nbytes,), _BYTE)[0]

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """An uninitialised C-ordered array, like `numpy.empty`, on memory as from `allocate`."""
        return self.place((shape,) if isinstance(shape, int) else tuple(shape), np.dtype(dtype))[0]

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[NDArray[Any], int]:
        """`empty` for callers in a hurry: the array and its address (asking NumPy costs 0.9 us)."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < 0:
            raise ValueError(f"cannot allocate an array of shape {shape}")
        if nbytes <= SMALL and (piece := self._carve(nbytes)):
            base, start, offset = piece
        elif nbytes < LARGE:
            base = self.block(nbytes)
            start = _address(_CHAR(base))
            offset = -start % ALIGNMENT
        else:
            base, start, offset = *self._lend(nbytes), 0
        return np.ndarray(shape, dtype, base, offset), start + offset

    def block(self, nbytes: int) -> NDArray[np.uint8]:
        """The array that owns, or has of the arena, `nbytes` bytes from its first multiple of 64 on. Arrays
        on it refer to it, and to none behind it."""
        return np.empty(nbytes + ALIGNMENT, _BYTE) if nbytes < LARGE else self._lend(nbytes)[0]

    def block_bytes(self, nbytes: int) -> int:
        """The size of `block`; those of one size are alike."""
        return nbytes if nbytes < LARGE else size_class(nbytes)

    def _lend(self, nbytes: int) -> tuple[NDArray[np.uint8], int]:
        """A large block and its address."""
        block = self._take(size_class(nbytes))
        return np.asarray(_Lease(self, block)), block.address

    def _carve(self, nbytes: int) -> tuple[NDArray[np.uint8], int, int] | None:
        """The next piece of a slab, which lives as long as any array on it; None while the lock is held."""
        if not self._enter(wait=False):
            return None
        try:
            at = self._slab_next
            after = at + (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
            if after > SLAB:
                self._slab = np.empty(SLAB + ALIGNMENT, _BYTE)
                self._slab_start = _address(_CHAR(self._slab))
                at = -self._slab_start % ALIGNMENT
                after = at + (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
            self._slab_next = after
            return self._slab, self._slab_start, at
        finally:
            self._leave()

    def trim(self, keep: int = 0) -> int:
        """Return free blocks to the system, the longest unused first, until `keep` bytes are left.

        Returns the bytes released: none in a finaliser that runs inside a method of this arena.
        """
        _ask_back()
        if not self._enter(wait=True):
            return 0
        try:
            self._collect()
            return self._shrink(keep)
        finally:
            self._leave()

    def stats(self) -> ArenaStats:
        _ask_back()
        entered = self._enter(wait=True)
        try:
            if entered:
                self._collect()
            return ArenaStats(self._used, self._free_bytes, self._mapped, self._reused)
        finally:
            if entered:
                self._leave()

    def _enter(self, wait: bool) -> bool:
        """Take the lock. False if another thread holds it and we do not wait, or if this thread does: then a
        finaliser runs inside one of our methods, whose lists may be half changed."""
        if not self._lock.acquire(blocking=wait):
            return False
        if self._changing:
            self._lock.release()
            return False
        self._changing = True
        return True

    def _leave(self) -> None:
        self._changing = False
        self._lock.release()

    def _take(self, size: int) -> _Block:
        block = self._free_block(size)
        if block is None:
            block = self._map(size)
            self._added.append(size)
        return block

    def _free_block(self, size: int) -> _Block | None:
        """One that nobody uses, if there is any, and the lock is not held."""
        if not self._enter(wait=False):
            return None
        try:
            self._collect()
            fitting = self._by_size.get(size)
            if not fitting:
                return None
            block = self._free.pop(fitting.pop())  # the one used last: its lines may still be cached
            self._free_bytes -= size
            self._used += size
            self._reused += 1
            return block
        finally:
            self._leave()

    def _map(self, size: int) -> _Block:
        try:
            return _Block(size)
        except (OSError, ValueError, OverflowError):
            self.trim()
        try:
            return _Block(size)
        except (OSError, ValueError, OverflowError) as e:
            raise MemoryError(f"cannot map {size} bytes") from e

    def _give_back(self, block: _Block) -> None:
        """Called by finalisers, so at any moment, even while this very thread holds the lock."""
        self._returned.append(block)
        if self._enter(wait=False):
            try:
                self._collect()
            finally:
                self._leave()

    def _collect(self) -> None:
        """Count new blocks, and take in what finalisers returned; under the lock."""
        while self._added:
            self._used += self._added.popleft()
            self._mapped += 1
        while self._returned:
            block = self._returned.popleft()
            self._used -= block.size
            if block.size <= self.cap:
                self._free[block.address] = block
                self._by_size.setdefault(block.size, []).append(block.address)
                self._free_bytes += block.size
        self._shrink(self.cap)

    def _shrink(self, keep: int) -> int:
        before = self._free_bytes
        while self._free_bytes > keep:
            address, block = self._free.popitem(last=False)
            self._by_size[block.size].remove(address)
            self._free_bytes -= block.size
        return before - self._free_bytes

    def _reset(self) -> None:
        self._free: OrderedDict[int, _Block] = OrderedDict()  # by address, the longest unused first
        self._by_size: dict[int, list[int]] = {}
        self._slab_next = SLAB + 1  # no slab yet
        self._free_bytes = self._used = self._mapped = self._reused = 0

    def _open(self) -> None:
        self._lock = threading.RLock()
        self._changing = False

    def _after_fork(self) -> None:
        self._open()
        used = self._used + sum(self._added) - sum(block.size for block in self._returned)
        self._added.clear()
        self._returned.clear()
        self._reset()
        self._used = used


class ApartArena(Arena):
    """Keeps nothing: each array is an allocation of exactly its size, for sanitizers."""

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[NDArray[Any], int]:
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < 0:
            raise ValueError(f"cannot allocate an array of shape {shape}")
        base, address = exact_block(nbytes, ALIGNMENT)
        return np.ndarray(shape, dtype, base), address

    def block(self, nbytes: int) -> NDArray[np.uint8]:
        return exact_block(nbytes, ALIGNMENT)[0]

    def block_bytes(self, nbytes: int) -> int:
        return nbytes


_ARENAS: weakref.WeakSet[Arena] = weakref.WeakSet()
lenders: list[Callable[[], object]] = []
"""Functions of those who keep blocks for their own next use: each lets go of all that it keeps."""


def _ask_back() -> None:
    for let_go in lenders:
        let_go()


def _reset_in_child() -> None:
    _ask_back()
    for arena in list(_ARENAS):
        arena._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


def _keep_freed() -> None:
    """Let the C library keep what requests below `LARGE` free.

    glibc returns free memory at the heap's end beyond 128 KB to the system, and the next call touches every
    page for the first time again; where a larger block has come and gone, beyond twice its size (mallopt(3)).
    """
    np.empty(4 * LARGE, _BYTE)


def size_class(nbytes: int) -> int:
    """The block size that serves a large request: at most 1/8 or 2 MB more, a multiple of 2 MB."""
    step = max(HUGE, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


def default_cap() -> int:
    """Free bytes to keep: ``$POLYFUSE_ARENA_BYTES`` (with K, M or G), else 4 GB or a quarter of the RAM.

    Raises ToolchainError PF705 if the variable is not a size.
    """
    text = os.environ.get(ENV_BYTES, "").strip()
    if not text:
        return min(DEFAULT_CAP, usable_memory() // 4)
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None:
        raise ToolchainError(
            f"{ENV_BYTES} is {text!r}, not a number of bytes",
            code="PF705",
            hint="give a whole number, if you like with K, M or G: 512M; 0 keeps nothing",
        )
    return int(match[1]) * _UNITS[match[2].upper()]


def usable_memory() -> int:
    """Bytes of RAM, or the limit of the container if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError), open(path) as f:
            total = min(total, int(f.read()))
    return total


def _private_mapping(size: int) -> mmap.mmap:
    if hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MAP_ANONYMOUS"):
        # Python's default is a shared mapping: a forked child would write into our arrays.
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


# --- places in a workspace --------------------------------------------------------------------------------

# Where temporaries of a plan lie in its one block of workspace.
#
# Two whose lifetimes do not meet may have the same place.  Those of most bytes are placed first, each at the
# lowest place that is free over its lifetime; the block is at most as large as all of them side by side.
# Source of the order: Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020),
# greedy by size.


@dataclass(frozen=True, slots=True)
class Space:
    """Where a buffer lies in the block."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Places by buffer, the bytes of the block, and what it would be if nothing shared a place."""

    spaces: Mapping[str, Space]
    nbytes: int
    apart: int


def layout(
    buffers: Sequence[PlanBuffer], copied: Sequence[str], sizes: Mapping[str, int], align: int, start: int = 0
) -> Layout:
    """Places of workspace buffers and of entry copies, which are there from the first step to the last.

    `start` bytes at the beginning of the block are for something else.
    """
    wanted: list[tuple[int, int, PlanBuffer]] = []
    for k, b in enumerate(buffers):
        if b.kind is Kind.WORKSPACE or b.name in copied:
            nbytes = evaluate(product(b.shape), sizes) * b.dtype.bytes
            wanted.append((-(-(-nbytes // align) * align), k, b))
    spaces: dict[str, Space] = {}
    placed: list[tuple[int, int, PlanBuffer]] = []
    for less, _, b in sorted(wanted, key=lambda w: w[:2]):
        size, offset = -less, start
        for low, high, other in placed:  # by place
            if _meet(b, other) and offset < high:
                if offset + size <= low:
                    break
                offset = high
        spaces[b.name] = Space(offset, evaluate(product(b.shape), sizes) * b.dtype.bytes)
        placed.append((offset, offset + size, b))
        placed.sort(key=lambda p: p[:2])
    end = max((high for _, high, _ in placed), default=start)
    return Layout(spaces, end, start - sum(less for less, _, _ in wanted))


def _meet(a: PlanBuffer, b: PlanBuffer) -> bool:
    """Are both alive at some step?"""
    if a.live is None or b.live is None:
        return True
    return a.live[0] <= b.live[1] and b.live[0] <= a.live[1]
