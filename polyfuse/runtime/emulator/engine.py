"""The engine of the emulator from Python: libraries compiled and loaded, launches as it reads them.

There is one engine in a process, and one run at a time.
"""

from __future__ import annotations

import ctypes
import importlib.resources
import math
import re
from collections.abc import Sequence
from functools import cache, lru_cache

from polyfuse.runtime.toolchain.compiler import KernelLibrary, load_kernels, load_shared
from polyfuse.support.processes import ForkLock

# --- the text that is compiled ----------------------------------------------------------------------------

# The text that the emulator compiles: CUDA's words, an emitted source as it stands, entry points.
#
# The headers and the engine are files of this folder, in several pieces; ``#include "emulator_..."`` lines
# in them are replaced by the file.  There is one entry point for each kernel of the source, whatever launches
# it, so that codes which share a source share a library.


_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(")
_BODY = re.compile(r"^(?:static __device__|.*__global__) .*\bvoid\b", re.MULTILINE)  # of kernels and parts
_INCLUDE = re.compile(r'^#include "(emulator_\w+\.h)"$', re.MULTILINE)
_PRIVATE = re.compile(r"^ *(?:pf_vec<\w+, *(\d+)>|\w+) \w+((?:\[\d+\])+)(?=[;, =])", re.MULTILINE)
_WIDEST = 16  # bytes: twice those of the widest element
_SOURCES_KEPT = 64
LEAST_STACK = 64 << 10
ENTRY = "pf_emu_entry_"
NAME = "kernels.cu"


@lru_cache(maxsize=_SOURCES_KEPT)
def kernels(source: str) -> dict[str, int]:
    """Kernel -> bytes of stack that are enough for one of its threads, in the order of the source.

    That is twice the private arrays, as if all were alive at once.
    """
    starts = [*_KERNEL.finditer(source)]
    ends = [*(m.start() for m in starts), len(source)][1:]  # none in a source without kernels
    before = [0, *(m.end() for m in starts)][: len(starts)]  # what it calls stands before it
    each = zip(starts, before, ends, strict=True)
    return {m[1]: _stack(source, start, end) for m, start, end in each}


def _stack(source: str, start: int, end: int) -> int:
    total = 0
    for found in _PRIVATE.finditer(source, start, end):
        extents = map(int, re.findall(r"\d+", found[2]))
        total += math.prod(extents, start=int(found[1] or 1)) * _WIDEST
    return LEAST_STACK + (total + 4095 & ~4095)


def translation_unit(source: str, *, check: bool, sectors: bool = False) -> str:
    """C++ of a library that has an entry point for each kernel of the source."""
    entries = [
        f'extern "C" void {ENTRY}{name}(void* const* slots) {{ pf_emu_call(&{name}, slots); }}'
        for name in kernels(source)
    ]
    head = (
        f"#define PF_EMU_CHECKED {int(check)}\n#define PF_EMU_SECTORS {int(sectors)}\n{_text('emulator.h')}"
    )
    text = _with_loops_told(source) if sectors else source
    return "\n".join([head, f'#line 1 "{NAME}"', text, *entries, ""])


def _with_loops_told(source: str) -> str:
    """`for` of kernels and their parts is a macro that tells the engine; before them is no memory."""
    first = _BODY.search(source)
    start = first.start() if first else 0
    line = source.count("\n", 0, start) + 1
    return f"{source[:start]}#define for PF_EMU_FOR\n#line {line}\n{source[start:]}\n#undef for"


def engine() -> str:
    """C++ of the engine."""
    return _text("emulator.cpp")


@cache
def _text(name: str) -> str:
    text = importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda m: _text(m[1]), text)


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
                cls._instance = cls(_load_plain(engine(), ENGINE_FLAGS))
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
    text = translation_unit(source, check=check, sectors=sectors)
    flags = (*KERNEL_FLAGS, *SECTOR_FLAGS) if sectors else KERNEL_FLAGS
    return load_kernels(text, extra_flags=flags, plain=True)


def _load_plain(source: str, flags: Sequence[str]) -> ctypes.CDLL:
    """Without sanitizers, which do not know of threads that change their stacks."""
    return load_shared(source, extra_flags=flags, plain=True)
