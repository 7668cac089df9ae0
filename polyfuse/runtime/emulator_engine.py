"""The engine of the emulator from Python: libraries compiled and loaded, launches as it reads them.

There is one engine in a process, and one run at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

from polyfuse.forks import ForkLock
from polyfuse.runtime import emulator_source
from polyfuse.runtime.loaded import KernelLibrary
from polyfuse.runtime.toolchain import load_kernels, load_shared

ENGINE_FLAGS = ("-O2", "-fno-strict-aliasing", "-w")
# Threads run one by one, so there is nothing to vectorise; more than -O1 only compiles longer.
KERNEL_FLAGS = ("-O1", "-fno-strict-aliasing", "-w")
# An access stays one call, wherever a thread comes from; two would seem to be two accesses.
SECTOR_FLAGS = ("-fno-thread-jumps", "-fno-crossjumping")
_KERNELS_KEPT = 256
_COUNTS = 6
_ATTACH = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class ArrayRecord(ctypes.Structure):
    """``pf_emu_array``"""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("low", ctypes.c_int64),
        ("count", ctypes.c_uint64),
        ("plain", ctypes.c_uint64),
        ("cells", ctypes.c_void_p),
        ("loads", ctypes.c_void_p),
        ("stores", ctypes.c_void_p),
        ("sectors", ctypes.c_void_p),
        ("first", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("alignment", ctypes.c_int64),
        ("size", ctypes.c_int),
        ("shared", ctypes.c_int),
    )


class LaunchRecord(ctypes.Structure):
    """``Launch``"""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("blocks", ctypes.c_int64),
        ("threads_x", ctypes.c_int64),
        ("threads_y", ctypes.c_int64),
        ("order", ctypes.c_int64),
        ("seed", ctypes.c_int64),
        ("resident", ctypes.c_int64),
        ("cooperative", ctypes.c_int64),
        ("checked", ctypes.c_int64),
        ("sectors", ctypes.c_int64),
        ("stack_bytes", ctypes.c_int64),
        ("time_out_ms", ctypes.c_int64),
        ("shared_bytes", ctypes.c_int64),
    )


class FindingRecord(ctypes.Structure):
    """``Finding``"""

    _fields_ = (
        ("problem", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("array", ctypes.c_char * 64),
        ("index", ctypes.c_int64),
        ("low", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("block", ctypes.c_int64),
        ("thread", ctypes.c_int64),
        ("access", ctypes.c_int64),
        ("other_block", ctypes.c_int64),
        ("other_thread", ctypes.c_int64),
        ("other_access", ctypes.c_int64),
        ("counts", ctypes.c_int64 * _COUNTS),
    )


class Engine:
    """The process's only engine, compiled and loaded at the first use. Hold `lock` during a run."""

    _instance: Engine | None = None
    _making = ForkLock()

    def __init__(self, library: ctypes.CDLL) -> None:
        self.lock = ForkLock()
        self._library = library
        library.pf_emu_start.restype = ctypes.c_void_p
        library.pf_emu_run_launch.restype = ctypes.c_int64
        self.address: int = library.pf_emu_start()

    @classmethod
    def get(cls) -> Engine:
        with cls._making:
            if cls._instance is None:
                cls._instance = cls(_load_plain(emulator_source.engine(), ENGINE_FLAGS))
            return cls._instance

    def kernels(self, source: str, *, check: bool, sectors: bool = False) -> KernelLibrary:
        """The library of an emitted source, attached to this engine."""
        library = _load(source, check, sectors)
        _ATTACH(library.address("pf_emu_attach"))(self.address)
        return library

    def begin(self) -> None:
        self._library.pf_emu_begin_run()

    def launch(self, record: LaunchRecord) -> tuple[int, bool]:
        """(findings of this run so far, was the launch stopped?)"""
        stopped = ctypes.c_int32()
        total = self._library.pf_emu_run_launch(ctypes.byref(record), ctypes.byref(stopped))
        return int(total), bool(stopped.value)

    def findings(self) -> list[FindingRecord]:
        """Those that were kept, of this run, copied."""
        first = ctypes.POINTER(FindingRecord)()
        count = self._library.pf_emu_findings(ctypes.byref(first))
        return [FindingRecord.from_buffer_copy(first[k]) for k in range(count)]


@lru_cache(maxsize=_KERNELS_KEPT)
def _load(source: str, check: bool, sectors: bool) -> KernelLibrary:
    text = emulator_source.translation_unit(source, check=check, sectors=sectors)
    flags = (*KERNEL_FLAGS, *SECTOR_FLAGS) if sectors else KERNEL_FLAGS
    return load_kernels(text, extra_flags=flags, plain=True)


def _load_plain(source: str, flags: Sequence[str]) -> ctypes.CDLL:
    """Without sanitizers, which do not know of threads that change their stacks."""
    return load_shared(source, extra_flags=flags, plain=True)
