"""The memory of an emulated run: buffers of the plan on arrays, with their shadow.

A *region* is memory that buffers share (an output in place of a parameter, views that overlap).  One that
anything may write has a cell for each element: who touched it last.  Counters belong to a buffer and a
launch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from polyfuse.diagnostics import EmulationError
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.launch_plan import GridPlan, Kind, PlanBuffer
from polyfuse.runtime.arguments import Array, dense, element_strides, overlaps
from polyfuse.runtime.emulator.engine import ArrayRecord

_WORKSPACE_ALIGNMENT = 256
_SLOTS = 5
_EMPTY = b"\xff"


@dataclass(frozen=True, slots=True)
class Memory:
    """One buffer: indices low .. low + count - 1 of its elements exist, element 0 is the array's first.

    unwritten  what is in it has no meaning until this run writes it
    cells      of index `low` on; None where nothing writes
    """

    buffer: PlanBuffer
    array: Array
    low: int
    count: int
    alignment: int
    unwritten: bool
    cells: Array | None

    @property
    def address(self) -> int:
        return address(self.array)

    def record(self, loads: Array | None, stores: Array | None, sectors: Array | None = None) -> ArrayRecord:
        """As the engine reads it."""
        return ArrayRecord(
            data=self.address,
            low=self.low,
            count=self.count,
            plain=self.count if self.cells is None and loads is None and sectors is None else 0,
            cells=None if self.cells is None else address(self.cells),
            loads=None if loads is None else address(loads),
            stores=None if stores is None else address(stores),
            sectors=None if sectors is None else address(sectors),
            first=int(self.unwritten),
            name=self.buffer.name.encode(),
            alignment=self.alignment,
            size=self.array.itemsize,
            shared=0,
        )

    def by_element(self, counters: Array) -> Array:
        """Counters of the indices, in the shape of the buffer."""
        strides = tuple(s * counters.itemsize for s in element_strides(self.array))
        return as_strided(counters[-self.low :], self.array.shape, strides)


def address(array: Array) -> int:
    """Of its first element."""
    return int(array.__array_interface__["data"][0])


def bind(
    plan: GridPlan, sizes: Mapping[str, int], arrays: Mapping[str, Array], *, check: bool
) -> dict[str, Memory]:
    """Every buffer of the plan on its memory: workspace is made, entry copies are taken."""
    owners = {b.name: b.alias or b.name for b in plan.buffers}
    alignment: dict[str, int] = {}  # what is asked of a buffer is asked of the memory that it shares
    for name, nbytes in plan.alignment:
        alignment[owners[name]] = max(nbytes, alignment.get(owners[name], 0))
    found = {}
    for b in plan.buffers:
        # Of a temporary in ranges that other loops decide, an extent without them may be negative.
        shape = tuple(max(0, evaluate(e, sizes)) for e in b.shape)
        if b.kind is Kind.WORKSPACE:
            array = np.empty(shape, b.dtype.numpy)
            alignment.setdefault(b.name, _WORKSPACE_ALIGNMENT)
        else:
            array = _given(b, arrays[b.name], shape)
            if b.alias is not None and address(array) != address(arrays[b.alias]):
                array[...] = arrays[b.alias].reshape(shape)
        if b.name in plan.copied:
            array = array.copy()
        found[b.name] = array
    cells = _cells(plan, found) if check else {}
    memory = {}
    for b in plan.buffers:
        array = found[b.name]
        low, count = _extent(array)
        unwritten = check and _is_unwritten(b, found, plan)
        if unwritten:
            array[...] = np.frombuffer(_EMPTY * array.itemsize, array.dtype)[0]
        aligned = max(array.itemsize, alignment.get(owners[b.name], 0))
        memory[b.name] = Memory(b, array, low, count, aligned, unwritten, cells.get(b.name))
    return memory


def _given(b: PlanBuffer, array: Array, shape: tuple[int, ...]) -> Array:
    if array.dtype != b.dtype.numpy or array.size != math.prod(shape):
        raise EmulationError(
            f"the buffer '{b.name}' is {b.dtype}{list(shape)}, the array is {array.dtype}{list(array.shape)}",
            code="PF737",
        )
    if array.shape != shape:
        array = array.reshape(shape) if dense(array) else array
    if array.shape != shape or not (b.strided or dense(array)):
        raise EmulationError(f"the array of the buffer '{b.name}' has gaps or another order", code="PF737")
    return array


def _extent(array: Array) -> tuple[int, int]:
    """(lowest index, number of indices) of the elements, counted from the first."""
    if array.size == 0:
        return 0, 0
    reach = [s * (n - 1) for s, n in zip(element_strides(array), array.shape, strict=True)]
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    return low, high - low + 1


def _is_unwritten(b: PlanBuffer, found: Mapping[str, Array], plan: GridPlan) -> bool:
    if b.kind is Kind.WORKSPACE:
        return True
    if b.kind is not Kind.OUTPUT or b.alias is not None:
        return False
    entries = [found[o.name] for o in plan.buffers if o.kind in (Kind.INPUT, Kind.INOUT)]
    return not any(overlaps(found[b.name], e) for e in entries)


def _cells(plan: GridPlan, found: Mapping[str, Array]) -> dict[str, Array]:
    """Buffer -> its part of the cells of its region, for regions that something may write."""
    spans = []
    for b in plan.buffers:
        array = found[b.name]
        low, count = _extent(array)
        start = address(array) + low * array.itemsize
        spans.append((start, start + count * array.itemsize, b))
    regions: list[list[tuple[int, int, PlanBuffer]]] = []
    end = -1
    for span in sorted(spans, key=lambda s: s[:2]):
        if span[0] >= end:
            regions.append([])
        regions[-1].append(span)
        end = max(end, span[1])
    cells: dict[str, Array] = {}
    for region in regions:
        if all(b.kind is Kind.INPUT for _, _, b in region):
            continue
        size = min(b.dtype.bytes for _, _, b in region)
        start = region[0][0]
        whole = np.zeros(((max(e for _, e, _ in region) - start) // size + 1, _SLOTS), np.uint64)
        cells.update({b.name: whole[(first - start) // size :] for first, _, b in region})
    return cells
