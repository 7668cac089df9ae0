"""The short way of a call: dense NumPy arrays and Python numbers that were seen before with these shapes.

A call spends its time in checking arguments, not in kernels, where these are small.  Once a layout (dtypes,
shapes, strides and the kinds of numbers) has gone through all checks, a call with the same layout only
needs those that depend on the memory itself: alignment, writability, overlap.  Whatever is out of the
ordinary returns None, and the long way decides.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyfuse.ir.launch_plan import Kind
from polyfuse.runtime.arena import Arena
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.cpu import CpuExecutable

NUMBERS = (float, int, bool)
# struct codes of scalar arguments; bfloat16 has none and goes the long way.
_CODES = {"f64": "d", "f32": "f", "f16": "e", "i64": "q", "i32": "i", "i16": "h", "i8": "b", "u8": "B"}
_CODES["bool"] = "?"
_CELL = 8


def layout(args: Sequence[Any]) -> tuple[object, ...] | None:
    """What the short way depends on, or None for arguments that it does not take."""
    key: list[object] = []
    for a in args:
        kind = type(a)
        if kind is np.ndarray:
            key += (a.dtype, a.shape, a.strides)
        elif kind in NUMBERS:
            key.append(kind)
        else:
            return None
    return tuple(key)


@dataclass(frozen=True, slots=True)
class _ArraySlot:
    argument: int
    places: tuple[int, ...]  # in the pointer table: its own, and that of the output in its place
    nbytes: int
    align: int
    written: bool


class QuickCall:
    """A prepared pointer table for one executable and layout. Safe to call from several threads."""

    def __init__(
        self,
        executable: CpuExecutable,
        names: Sequence[str],
        args: Sequence[Any],
        results: Sequence[tuple[str, tuple[int, ...]]],
    ) -> None:
        """`names` and `args` are the parameters, `results` the names and shapes of the results."""
        plan = executable.plan
        place = {b.name: k for k, b in enumerate(plan.buffers)}
        aliases = {b.alias: place[b.name] for b in plan.buffers if b.alias is not None}
        self._lock = threading.Lock()
        self._call = executable.prepare()
        self._cells = np.zeros(max(1, len(args)), np.int64)
        self._raw = self._cells.data.cast("B")
        base = self._cells.__array_interface__["data"][0]
        self._status = np.zeros(1, np.int64)
        self._call.buffers[len(plan.buffers)] = self._status.__array_interface__["data"][0]
        self._arrays: list[_ArraySlot] = []
        self._numbers: list[tuple[int, struct.Struct, int]] = []
        for k, (name, a) in enumerate(zip(names, args, strict=True)):
            b = plan.buffers[place[name]]
            if isinstance(a, np.ndarray):
                also = (aliases[name],) if name in aliases else ()
                written = b.kind is Kind.INOUT
                slot = _ArraySlot(k, (place[name], *also), a.nbytes, a.itemsize, written)
                self._arrays.append(slot)
            else:
                self._numbers.append((k, struct.Struct(_CODES[b.dtype.name]), k * _CELL))
                self._call.buffers[place[name]] = base + k * _CELL
        self._written = any(s.written for s in self._arrays)
        self._outputs = [
            (place[name], shape, plan.buffers[place[name]].dtype.numpy) for name, shape in results
        ]
        spaces, self._workspace = executable.workspace()
        self._spaces = {place[n]: offset for n, offset in spaces.items()}

    @staticmethod
    def fits(executable: CpuExecutable, args: Sequence[Any]) -> bool:
        """May the short way be taken for this executable and these arguments?"""
        plan = executable.plan
        plain = not plan.copied and not executable.code.checks and not any(b.strided for b in plan.buffers)
        plain = plain and all(x.library is None for x in plan.launches)
        dense = all(a.flags.c_contiguous and a.dtype.isnative for a in args if isinstance(a, np.ndarray))
        scalars = all(b.dtype.name in _CODES for b in plan.buffers if not b.shape)
        numbers = {b.name for b in plan.buffers if b.kind is Kind.OUTPUT and not b.shape}
        return plain and dense and scalars and not numbers

    def __call__(self, args: Sequence[Any]) -> list[Array] | None:
        """The results, in order; None if the long way has to decide."""
        ranges: list[tuple[int, int, bool]] = []
        for s in self._arrays:
            a = args[s.argument]
            address = a.__array_interface__["data"][0]
            if address % s.align or (s.written and not a.flags.writeable):
                return None
            ranges.append((address, address + s.nbytes, s.written))
        if self._written and _meet(ranges):
            return None
        results: list[Array] = []
        with self._lock:
            buffers = self._call.buffers
            for s, (address, _, _) in zip(self._arrays, ranges, strict=True):
                for place in s.places:
                    buffers[place] = address
            try:
                for k, code, offset in self._numbers:
                    code.pack_into(self._raw, offset, args[k])
            except (struct.error, OverflowError):
                return None
            arena = Arena.get()
            for place, shape, dtype in self._outputs:
                array, buffers[place] = arena.place(shape, dtype)
                results.append(array)
            block = self._place_workspace(arena)
            self._call.check()
        del block
        return results

    def _place_workspace(self, arena: Arena) -> Array | None:
        if not self._spaces:
            return None
        block, base = arena.place((self._workspace,), np.dtype(np.uint8))
        for place, offset in self._spaces.items():
            self._call.buffers[place] = base + offset
        return block


def _meet(ranges: list[tuple[int, int, bool]]) -> bool:
    """Does memory that is written meet other memory of the call?"""
    high = written_high = -1  # the furthest ends of memory seen so far, and of what is written of it
    for start, end, written in sorted(ranges):
        if start < end and start < (high if written else written_high):
            return True
        high = max(high, end)
        written_high = max(written_high, end) if written else written_high
    return False
