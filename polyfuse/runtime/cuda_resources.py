"""What a compiled kernel takes of a multiprocessor: read from the assembler's report and the cubin.

``ptxas -v`` reports registers, spills, stack and shared memory of each kernel in the same words whether NVRTC
or nvcc calls it; only it knows spills.  The size of the constant bank of the parameters, with what the driver
keeps there, is that of a section of the cubin, which is an ELF file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_CONSTANT = ".nv.constant0."


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one kernel: registers per thread; the rest in bytes, per thread but for shared and constant memory.

    `stack` is local memory: places for spilled registers, and arrays that are indexed at run time (as in the
    slow path of sin).  Spills are what the instructions that spill move if each runs once.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    constant: int


def read_resources(log: str, cubin: bytes) -> dict[str, Resources]:
    """Resources of every kernel, by name; kernels that the report lacks are left out."""
    constant = {
        name.removeprefix(_CONSTANT): size
        for name, size in sections(cubin).items()
        if name.startswith(_CONSTANT)
    }
    found: dict[str, Resources] = {}
    entry = described = ""
    stack = (0, 0, 0)
    for line in log.splitlines():
        if started := _ENTRY.search(line):
            entry = started[1]
        elif about := _PROPERTIES.search(line):
            described = about[1]  # functions that were not inlined have properties as well
        elif (frame := _STACK.search(line)) and described == entry:
            stack = (int(frame[1]), int(frame[2]), int(frame[3]))
        elif (used := _USED.search(line)) and described == entry:
            shared = _SHARED.search(line)
            found[entry] = Resources(
                registers=int(used[1]),
                spill_stores=stack[1],
                spill_loads=stack[2],
                stack=stack[0],
                shared=int(shared[1]) if shared else 0,
                constant=constant.get(entry, 0),
            )
    return found


def sections(elf: bytes) -> Mapping[str, int]:
    """Names and sizes of the sections of a 64-bit little-endian ELF file; none if it is something else."""
    if elf[:6] != b"\x7fELF\x02\x01":
        return {}
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + k * size) for k in range(count)]
    start = headers[names][4]

    def name(offset: int) -> str:
        return elf[start + offset : elf.index(b"\0", start + offset)].decode("ascii", "replace")

    return {name(h[0]): h[5] for h in headers}
