"""The text that the emulator compiles: CUDA's words, an emitted source as it stands, entry points.

The headers and the engine are files of this folder, in several pieces; ``#include "emulator_..."`` lines
in them are replaced by the file.  There is one entry point for each kernel of the source, whatever launches
it, so that codes which share a source share a library.
"""

from __future__ import annotations

import importlib.resources
import re
from functools import cache

_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(")
_INCLUDE = re.compile(r'^#include "(emulator_\w+\.h)"$', re.MULTILINE)
_PRIVATE = re.compile(r"\b(?:\w+|pf_vec<\s*\w+\s*,\s*(\d+)\s*>)\s+\w+((?:\[\d+\])+)")
_WIDEST = 16
LEAST_STACK = 64 << 10
ENTRY = "pf_emu_entry_"
NAME = "kernels.cu"


def kernel_names(source: str) -> tuple[str, ...]:
    """The kernels of an emitted source, in order."""
    return tuple(_KERNEL.findall(source))


def translation_unit(source: str, *, check: bool) -> str:
    """C++ of a library that has an entry point for each kernel of the source."""
    entries = [
        f'extern "C" void {ENTRY}{name}(void* const* slots) {{ pf_emu_call(&{name}, slots); }}'
        for name in kernel_names(source)
    ]
    head = f"#define PF_EMU_CHECKED {int(check)}\n{_text('emulator.h')}"
    return "\n".join([head, f'#line 1 "{NAME}"', source, *entries, ""])


def engine() -> str:
    """C++ of the engine."""
    return _text("emulator.cpp")


def stack_bytes(source: str) -> int:
    """Enough for one thread: twice the private arrays of the source, as if all were alive at once."""
    total = 0
    for lanes, extents in _PRIVATE.findall(source):
        count = int(lanes or 1)
        for extent in re.findall(r"\d+", extents):
            count *= int(extent)
        total += count * _WIDEST
    return LEAST_STACK + (total + 4095 & ~4095)


@cache
def _text(name: str) -> str:
    text = importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda m: _text(m[1]), text)
