"""Layouts of calls on a GPU whose sizes are parameters of the kernels, for the launcher (``open_layouts.h``).

A `CallLayout` of one call is the template, what does not depend on sizes.  `opened` adds what does, as
expressions that the launcher computes at each call: extents of arguments and results, where temporaries lie,
blocks of launches, sizes and strides among the cells.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfuse.ir.index_expr import ISize, product
from polyfuse.ir.launch_plan import Kind, Passing, PlanBuffer
from polyfuse.runtime.cpu.open_layouts import Condition, Expression, Expressions, NotInC, OpenSizes, Source
from polyfuse.runtime.cuda.executable import CudaExecutable
from polyfuse.runtime.cuda.grids import Grid, Grids, padded
from polyfuse.runtime.cuda.launcher import ArrayArgument, CallLayout, Copy, Family, KernelLaunch, OpenCall
from polyfuse.runtime.cuda.memory import ALIGNMENT

# What the launcher has room for (`open_layouts.h`).
_MOST = {
    "sizes": 32,
    "arguments": 32,
    "results": 16,
    "spaces": 64,
    "steps": 64,
    "puts": 256,
    "cells": 512,
    "extents": 256,
}


def _struct(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def _words(names: str, kind: Any = ctypes.c_int64) -> list[tuple[str, Any]]:
    return [(n, kind) for n in names.split()]


_Argument = _struct("_Argument", ("extents", ctypes.c_void_p), *_words("rank itemsize strided"))
_Result = _struct("_Result", ("extents", ctypes.c_void_p), *_words("itemsize"))
_Space = _struct("_Space", ("elements", Expression), *_words("itemsize first last"))
_Step = _struct("_Step", ("blocks", Expression), *_words("most_blocks space"))
_Number = _struct("_Number", *_words("cell"), ("value", Expression))
_Stride = _struct("_Stride", *_words("cell argument axis"))
_Put = _struct("_Put", *_words("put space"))
_Open = _struct(
    "_Open", *_words("nsizes nconditions nspaces nnumbers nstrides nputs start align shape strides"),
    *_words("stride_bytes"),
    *_words("sources conditions arguments results spaces steps numbers strides_of puts", ctypes.c_void_p),
)  # fmt: skip


def opened(
    executable: CudaExecutable,
    layout: CallLayout,
    given: Sequence[str],
    results: Sequence[str],
    at: OpenSizes,
) -> OpenCall | None:
    """What depends on sizes of a call like this one, of these parameters and results. None where the launcher
    cannot compute it."""
    if layout.family.make_shaped is None:
        return None
    try:
        return _Template(executable, layout, at).made(given, results)
    except NotInC:
        return None


@dataclass(frozen=True)
class _Spaces:
    """Temporaries and entry values in the workspace, by number."""

    numbers: Mapping[str, int]
    items: Sequence[ctypes.Structure]


class _Template(Expressions):
    def __init__(self, executable: CudaExecutable, layout: CallLayout, at: OpenSizes) -> None:
        super().__init__(executable.plan.sizes)
        self.executable, self.layout, self.at = executable, layout, at
        self.grids: Grids = executable.grids
        self.family: Family = layout.family

    def made(self, given: Sequence[str], results: Sequence[str]) -> OpenCall:
        arguments = zip(given, self.layout.arguments, strict=True)
        arrays = {n: k for k, (n, a) in enumerate(arguments) if isinstance(a, ArrayArgument)}
        spaces = self._spaces()
        numbers, strides = self._numbers(arrays)
        puts = self._puts(spaces)
        conditions = [self.condition(c) for c in self.at.conditions]
        shapes = self.at.shapes
        extents = 1 + sum(2 * len(shapes[n]) for n in arrays) + sum(len(shapes[n]) for n in results)
        counts = {"sizes": len(self.places), "arguments": len(given), "results": len(results)}
        counts |= {"spaces": len(spaces.items), "steps": len(self.layout.steps), "extents": extents}
        counts |= {"puts": len(self.layout.puts), "cells": len(self.layout.cells)}
        if any(n > _MOST[what] for what, n in counts.items()):
            raise NotInC
        shape, strided, in_bytes = self.family.shape_facts
        structure = _Open(
            nsizes=len(self.places),
            nconditions=len(conditions),
            nspaces=len(spaces.items),
            nnumbers=len(numbers),
            nstrides=len(strides),
            nputs=len(puts),
            start=padded(self.grids.header_bytes) if self.grids.zeroed else 0,
            align=ALIGNMENT,
            shape=shape,
            strides=strided,
            stride_bytes=in_bytes,
            sources=self.table(Source, self.sources(self.at, arrays)),
            conditions=self.table(Condition, conditions),
            arguments=self.table(_Argument, [self._argument(n, n in arrays) for n in given]),
            results=self.table(_Result, [self._result(n) for n in results]),
            spaces=self.table(_Space, spaces.items),
            steps=self.table(_Step, self._steps(spaces, given)),
            numbers=self.table(_Number, numbers),
            strides_of=self.table(_Stride, strides),
            puts=self.table(_Put, puts),
        )
        return OpenCall(structure, self.parts, self.at.rank)

    def _buffer(self, name: str) -> PlanBuffer:
        return self.grids.buffers[name]

    def _argument(self, name: str, is_array: bool) -> ctypes.Structure:
        if not is_array:
            return _Argument()
        b, shape = self._buffer(name), self.at.shapes[name]
        if b.strided and b.kind is not Kind.INPUT:  # where elements meet, the long way says so
            raise NotInC
        return _Argument(self.extents(shape), len(shape), b.dtype.bytes, int(b.strided))

    def _result(self, name: str) -> ctypes.Structure:
        return _Result(self.extents(self.at.shapes[name]), self._buffer(name).dtype.bytes)

    def _spaces(self) -> _Spaces:
        """As `memory.layout` places them."""
        plan = self.executable.plan
        found: list[ctypes.Structure] = []
        numbers: dict[str, int] = {}
        for b in plan.buffers:
            if b.kind is Kind.WORKSPACE or b.name in plan.copied:
                first, last = b.live or (0, len(plan.launches))
                numbers[b.name] = len(found)
                found.append(_Space(self.expression(product(b.shape)), b.dtype.bytes, first, last))
        return _Spaces(numbers, found)

    def _steps(self, spaces: _Spaces, given: Sequence[str]) -> list[ctypes.Structure]:
        launches = iter(self.grids.grids)
        found: list[ctypes.Structure] = []
        for s in self.layout.steps:
            if isinstance(s, KernelLaunch):
                g = next(launches)
                found.append(_Step(self.expression(g.launch.blocks), self._most_blocks(g)))
            elif isinstance(s, Copy):
                found.append(_Step(space=spaces.numbers[given[s.source]]))
            else:
                found.append(_Step())
        if next(launches, None) is not None or any(g.product is not None for g in self.grids.grids):
            raise NotInC
        return found

    def _most_blocks(self, g: Grid) -> int:
        """So many blocks the device takes in this launch."""
        device, x, y = self.executable.driver.properties, *g.launch.threads
        if not g.launch.cooperative:
            return device.max_grid
        each = self.executable.driver.resident_blocks(g.function, x * y, g.launch.dynamic_bytes)
        return min(device.max_grid, each * device.multiprocessors)

    def _numbers(self, arrays: Mapping[str, int]) -> tuple[list[ctypes.Structure], list[ctypes.Structure]]:
        """Sizes and strides among the cells: those that are expressions, those that arguments have."""
        numbers: list[ctypes.Structure] = []
        strides: list[ctypes.Structure] = []
        for passing, name, dim, cell in self.grids.parameter_cells():
            if passing is Passing.SIZE:
                numbers.append(_Number(cell, self.expression(ISize(name))))
            elif passing is Passing.STRIDE:
                owner = self._buffer(self._buffer(name).alias or name)
                if owner.strided and owner.name in arrays:
                    if len(owner.shape) != len(self.at.shapes[owner.name]):
                        raise NotInC
                    strides.append(_Stride(cell, arrays[owner.name], dim))
                else:
                    inner = product(self._buffer(name).shape[dim + 1 :])
                    numbers.append(_Number(cell, self.expression(inner)))
        return numbers, strides

    def _puts(self, spaces: _Spaces) -> list[ctypes.Structure]:
        """Addresses in the workspace that depend on sizes: places among the layout's puts."""
        places = {p.cell: k for k, p in enumerate(self.layout.puts)}
        found = []
        for passing, name, _, cell in self.grids.parameter_cells():
            if passing is Passing.POINTER and name in spaces.numbers and name in self.grids.spaces:
                found.append(_Put(places[cell], spaces.numbers[name]))
        return found
