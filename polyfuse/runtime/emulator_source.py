"""The text that the emulator compiles: CUDA's words, an emitted source as it stands, entry points.

The headers and the engine are files of this folder, in several pieces; ``#include "emulator_..."`` lines
in them are replaced by the file.  There is one entry point for each kernel of the source, whatever launches
it, so that codes which share a source share a library.
"""

from __future__ import annotations

import importlib.resources
import math
import re
from functools import cache, lru_cache

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
