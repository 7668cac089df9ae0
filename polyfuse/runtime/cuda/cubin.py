"""What a compiled kernel takes of a multiprocessor, read from its cubin.

A cubin is an ELF file.  ``.nv.info`` has attributes of each function (registers, frame, stack with callees),
``.nv.shared.<kernel>`` and ``.nv.constant0.<kernel>`` are as large as what they stand for.  The assembler's
report (``ptxas -v``) is asked only for bytes that are spilled, which nothing else tells, and for what the
file lacks: some versions print none for small kernels.  A figure that nobody has is None.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

# --- resources ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one kernel: registers per thread; the rest in bytes, per thread but for shared and constant memory.

    `stack` is local memory, with that of functions that are called: places for spilled registers, and arrays
    that are indexed at run time (as in the slow path of sin).  Spills are what the instructions that spill
    move if each runs once.  None: unknown.
    """

    registers: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    stack: int | None = None
    shared: int | None = None
    constant: int | None = None

    @property
    def spills(self) -> bool:
        """Are registers kept in local memory? Where no report says so, local memory is taken for spills."""
        told = self.spill_stores, self.spill_loads
        return bool(self.stack) if None in told else any(told)

    def completed(self, other: Resources) -> Resources:
        """With another's figures in place of unknown ones."""
        names = [f.name for f in fields(self)]
        return Resources(
            **{n: getattr(other, n) if getattr(self, n) is None else getattr(self, n) for n in names}
        )


def kernel_resources(cubin: bytes, log: str, kernels: Iterable[str]) -> dict[str, Resources]:
    """Resources of the kernels of a source, by name: from the file, and the report for what it lacks."""
    elf = Elf(cubin)
    filed, told = file_resources(elf), read_report(log)
    found = {}
    for name in kernels:
        own = filed.get(name, Resources()).completed(told.get(name, Resources()))
        if own.stack == 0:  # nothing can be spilled
            own = own.completed(Resources(spill_stores=0, spill_loads=0))
        found[name] = own
    return found


# --- the file ----------------------------------------------------------------------------------------------

# Attributes of functions in ``.nv.info``, with their symbol and a number (`nvdisasm` prints them by name).
_FRAME, _STACK_WITH_CALLEES, _REGISTERS = 0x11, 0x12, 0x2F
_PARAMETERS = 0x0A  # of ``.nv.info.<kernel>``: symbol, offset in constant bank 0, bytes
_SIZED = 4  # the form of an attribute whose value has its size before it
_CONSTANT, _SHARED, _TEXT = ".nv.constant0.", ".nv.shared.", ".text."
# The system's part of a block's shared memory, which a section contains where there is a symbol of its own.
_RESERVED, _RESERVED_BYTES = ".nv.shared.reserved.0", 1024


class Section(NamedTuple):
    """A section of an ELF file: name, offset, bytes, and the number of the section that it refers to."""

    name: str
    offset: int
    size: int
    link: int


class Elf:
    """The sections of a 64-bit little-endian ELF file; none if it is something else, or cut short."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        d = self.data
        if d[:6] != b"\x7fELF\x02\x01":
            return ()
        try:
            (table,) = struct.unpack_from("<Q", d, 0x28)
            size, count, names = struct.unpack_from("<HHH", d, 0x3A)
            headers = [struct.unpack_from("<IIQQQQI", d, table + k * size) for k in range(count)]
            start = headers[names][4]
            return tuple(Section(self._text(start + h[0]), h[4], h[5], h[6]) for h in headers)
        except (struct.error, IndexError, ValueError):
            return ()

    def sizes(self) -> Mapping[str, int]:
        """Bytes of each section, by name."""
        return {s.name: s.size for s in self.sections}

    def content(self, name: str) -> bytes:
        """Of a section; nothing where there is none."""
        return next((self.data[s.offset : s.offset + s.size] for s in self.sections if s.name == name), b"")

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Names, by the number that attributes have for them."""
        found = next((s for s in self.sections if s.name == ".symtab"), None)
        if found is None or found.link >= len(self.sections):
            return ()
        start, table = self.sections[found.link].offset, self.content(".symtab")
        try:
            return tuple(self._text(start + o) for o, *_ in struct.iter_unpack("<IIQQ", table))
        except (struct.error, ValueError):
            return ()

    def _text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode("ascii", "replace")


def file_resources(elf: Elf) -> dict[str, Resources]:
    """What the file says of each kernel; no spills, of which it knows nothing."""
    sizes = elf.sizes()
    told: dict[tuple[int, str], int] = {}
    for attribute, value in _attributes(elf.content(".nv.info")):
        if len(value) == 8:
            symbol, number = struct.unpack("<II", value)
            if symbol < len(elf.symbols):
                told[attribute, elf.symbols[symbol]] = number
    reserved = _RESERVED_BYTES if _RESERVED in sizes else 0
    found = {}
    for name in (n.removeprefix(_TEXT) for n in sizes if n.startswith(_TEXT)):
        shared = sizes.get(_SHARED + name)
        stack = [told.get((a, name)) for a in (_STACK_WITH_CALLEES, _FRAME)]
        found[name] = Resources(
            registers=told.get((_REGISTERS, name)),
            stack=next((s for s in stack if s is not None), None),
            shared=0 if shared is None else max(0, shared - reserved),
            constant=sizes.get(_CONSTANT + name, 0),
        )
    return found


def parameter_base(elf: Elf, kernel: str) -> int | None:
    """Where the parameters of a kernel begin in constant bank 0; None where it has none."""
    for attribute, value in _attributes(elf.content(f".nv.info.{kernel}")):
        if attribute == _PARAMETERS and len(value) == 8:
            return int(struct.unpack("<IHH", value)[1])
    return None


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes of a section ``.nv.info`` that have a value of their own."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            yield attribute, info[at : at + size]
            at += size


# --- the report --------------------------------------------------------------------------------------------

# ``ptxas -v`` reports each kernel in the same words whether NVRTC or nvcc calls it.
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_CUMULATIVE = re.compile(r"(\d+) bytes cumulative stack size")
_SMEM = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


def read_report(log: str) -> dict[str, Resources]:
    """What the assembler reports of each kernel that it names."""
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
            shared, cumulative = _SMEM.search(line), _CUMULATIVE.search(line)
            found[entry] = Resources(
                registers=int(used[1]),
                spill_stores=stack[1],
                spill_loads=stack[2],
                stack=int(cumulative[1]) if cumulative else stack[0],
                shared=int(shared[1]) if shared else 0,
            )
    return found
