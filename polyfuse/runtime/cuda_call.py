"""A call on a GPU: arrays of any kind become addresses, and a few steps before and after the launches.

    before   copies to the device, copies of what kernels cannot use as it lies, zeroed states
    launches in order, on one stream
    after    copies back, what a check found

The stream is that of the arrays on the device if they have one in common; otherwise one of our own that
waits for theirs, and theirs wait for it.  Everything in between is ordered by that stream alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.launch_plan import Kind, PlanBuffer
from polyfuse.runtime.cuda_arguments import (
    DeviceView,
    check_view,
    check_writeable,
    dense_strides,
    device_view,
    meet,
)
from polyfuse.runtime.cuda_driver import Cells, Parameters
from polyfuse.runtime.cuda_grids import Grids
from polyfuse.runtime.cuda_memory import Block, DeviceMemory

Array = np.ndarray[Any, np.dtype[Any]]
Step = Callable[[], None]
Report = Callable[[int], None]
Note = Callable[[str], None]


@dataclass(slots=True)
class Buffers:
    """Argument memory of a call, made once and used by one call at a time."""

    cells: Cells
    parameters: tuple[Parameters, ...]


class Job:
    """A call with its arrays resolved; it may run more than once, in one thread at a time."""

    def __init__(self, grids: Grids, memory: DeviceMemory, buffers: Buffers, stream: int) -> None:
        self.stream = stream
        self.others: tuple[int, ...] = ()
        self.zero: Step | None = None
        """Clears the status and the states of barriers."""
        self.before: list[Step] = []
        self.after: list[Step] = []
        self.on_host = False
        """Does a step work on the host? Then the call cannot be captured into a graph."""
        self.keep: list[object] = []
        self._driver, self._memory, self._cells = memory.driver, memory, buffers.cells
        self.launches: tuple[Step, ...] = tuple(
            partial(memory.driver.launch, g.function, g.blocks, g.threads, 0, p, stream, g.launch.cooperative)
            for g, p in zip(grids.grids, buffers.parameters, strict=True)
            if g.blocks
        )

    def run(self) -> None:
        """All of it. The driver's context must be current."""
        for other in self.others:
            self._memory.order(other, self.stream)
        self.steps()
        for other in self.others:
            self._memory.order(self.stream, other)

    def steps(self) -> None:
        """What happens on the job's own stream."""
        if self.zero is not None:
            self.zero()
        for step in self.before:
            step()
        for launch in self.launches:
            launch()
        for step in self.after:
            step()


class Resolver:
    """Makes jobs: one for each call, or one for all calls of a bound function."""

    def __init__(self, grids: Grids, memory: DeviceMemory, note: Note, report: Report | None) -> None:
        self._grids, self._memory, self._driver = grids, memory, memory.driver
        self._note, self._report = note, report
        plan = grids.plan
        self._owners = [b for b in plan.buffers if b.kind is not Kind.WORKSPACE and b.alias is None]
        self._shared: dict[str, list[str]] = {b.name: [b.name] for b in self._owners}
        for b in plan.buffers:
            if b.alias is not None:
                self._shared[b.alias].append(b.name)

    def buffers(self) -> Buffers:
        cells = self._grids.cells()
        return Buffers(cells, self._grids.parameters(cells))

    def resolve(self, arrays: Mapping[str, object], buffers: Buffers, own: int | None = None) -> Job:
        """Check the arrays, and put their addresses into the cells. `own` is the stream to use, if given.

        Raises ArgumentError PF401, PF402, PF405, PF417 or PF418 for one that does not fit.
        """
        found = {b.name: self._look(b, arrays[b.name]) for b in self._owners}
        streams = {v.stream for v in found.values() if isinstance(v, DeviceView) and v.stream is not None}
        if own is None:
            own = next(iter(streams)) if len(streams) == 1 else self._memory.stream()
        job = Job(self._grids, self._memory, buffers, own)
        job.others = tuple(sorted(streams - {own}))
        self._workspace(job, buffers.cells)
        place = _Placement(self._grids, self._memory, buffers.cells, own, self._note)
        crowded = self._crowded(found)
        for b in self._owners:
            value, names = found[b.name], self._shared[b.name]
            if isinstance(value, DeviceView):
                place.on_device(job, b, value, names, b.name in crowded)
            else:
                place.on_host(job, b, value, names)
        return job

    def _look(self, b: PlanBuffer, value: object) -> DeviceView | Array:
        numbers = isinstance(value, (np.ndarray, np.generic))
        array: DeviceView | Array = np.asarray(value) if numbers else self._view(b, value)
        check_view(b, array, self._grids.shapes[b.name])
        if b.kind is not Kind.INPUT:
            writeable = array.flags.writeable if isinstance(array, np.ndarray) else array.writeable
            check_writeable(b.name, writeable)
        return array

    def _view(self, b: PlanBuffer, value: object) -> DeviceView:
        view = device_view(value, b.name)
        mine = self._driver.properties.index
        device = view.device
        if device is None and view.size:
            device = self._driver.device_of(view.address)
        if view.size and device != mine:
            where = "memory that CUDA does not know" if device is None else f"device {device}"
            raise ArgumentError(
                f"argument '{b.name}' lives on {where}, the kernels run on device {mine}",
                code="PF417",
                hint="move it to the same device, or pass a NumPy array",
            )
        return view

    def _crowded(self, found: Mapping[str, DeviceView | Array]) -> set[str]:
        """Inputs on the device that share memory with something written: kernels assume that they do not."""
        views = [(b, v) for b in self._owners if isinstance(v := found[b.name], DeviceView)]
        written = [(b.name, v.extent) for b, v in views if b.kind is not Kind.INPUT]
        crowded = set()
        for b, view in views:
            for name, extent in written:
                if name == b.name or not meet(view.extent, extent):
                    continue
                if b.kind is not Kind.INPUT:
                    raise ArgumentError(
                        f"arguments '{b.name}' and '{name}' are written and share memory", code="PF418"
                    )
                crowded.add(b.name)
        return crowded

    def _workspace(self, job: Job, cells: Cells) -> None:
        if not self._grids.workspace_bytes:
            return
        block = self._memory.pool.take(self._grids.workspace_bytes, job.stream)
        job.keep.append(block)
        self._grids.fill_workspace(cells, block.address)
        if self._grids.zeroed:
            header = self._grids.header_bytes
            job.zero = partial(self._driver.fill, block.address, 0, header, job.stream)
        if self._report is not None:
            job.on_host = True
            job.after.append(partial(self._check, block, job.stream, self._report))

    def _check(self, block: Block, stream: int, report: Report) -> None:
        status = np.zeros(1, np.int64)
        self._memory.staging.download(block.address, status.view(np.uint8), stream)
        if status[0]:
            report(int(status[0]))


class _Placement:
    """Puts the arrays of a job in their place.

    It refers to no job: the steps refer to it, and a circle would keep memory until Python looks for circles.
    """

    def __init__(self, grids: Grids, memory: DeviceMemory, cells: Cells, stream: int, note: Note) -> None:
        self._grids, self._memory, self._driver = grids, memory, memory.driver
        self._cells, self._stream, self._note = cells, stream, note
        self._copied = set(grids.plan.copied)

    def on_host(self, job: Job, b: PlanBuffer, array: Array, names: list[str]) -> None:
        """A NumPy array: copied in if it is read, and back if it is written."""
        job.on_host = True
        cell = self._grids.value(b.name)
        if cell is not None:
            cells = self._cells
            job.before.append(lambda: cells.put_bytes(cell, array.tobytes()))
        if all(self._grids.pointer(n) is None for n in names):
            return
        block = self._memory.pool.take(array.nbytes, self._stream)
        job.keep.append(block)
        if b.kind is not Kind.OUTPUT:
            job.before.append(partial(self._upload, array, block.address))
        if b.kind is not Kind.INPUT:
            job.after.append(partial(self._download, block.address, array))
        self._put(job, b, names, block.address, dense_strides(array.shape, array.itemsize))

    def on_device(self, job: Job, b: PlanBuffer, view: DeviceView, names: list[str], crowded: bool) -> None:
        """An array on the device: used as it lies where kernels can, else through a copy."""
        job.keep.append(view)
        cell = self._grids.value(b.name)
        if cell is not None:
            job.on_host = True
            job.before.append(partial(self._read_scalar, view, cell))
        if all(self._grids.pointer(n) is None for n in names):
            return
        reason = "shares memory with what is written" if crowded else self._unusable(b, view)
        if reason is None:
            self._put(job, b, names, view.address, view.strides)
            return
        self._note(f"argument '{b.name}' {reason}: copied on every call")
        block = self._memory.pool.take(view.nbytes, self._stream)
        job.keep.append(block)
        if not view.dense:
            job.on_host = True
        if b.kind is not Kind.OUTPUT:
            job.before.append(partial(self._gather, view, block.address))
        if b.kind is not Kind.INPUT:
            job.after.append(partial(self._scatter, block.address, view))
        self._put(job, b, names, block.address, dense_strides(view.shape, view.dtype.itemsize))

    def _unusable(self, b: PlanBuffer, view: DeviceView) -> str | None:
        if not view.size:
            return None
        need = self._grids.alignment[b.name]
        if view.address % need:
            return f"is not at a multiple of {need} bytes"
        if b.strided:
            whole = all(s % view.dtype.itemsize == 0 for s in view.strides)
            return None if whole else "has strides that are no whole elements"
        return None if view.dense else "is not dense"

    def _put(self, job: Job, b: PlanBuffer, names: list[str], address: int, strides: tuple[int, ...]) -> None:
        """The address and strides of a buffer, and of those that share its memory; its entry copy."""
        grids, cells = self._grids, self._cells
        for name in names:
            here = strides
            if name in self._copied:
                here = dense_strides(grids.shapes[name], b.dtype.bytes)
                self._copy_entry(job, b, address, strides)
            elif (cell := grids.pointer(name)) is not None:
                cells.put(cell, address)
            for dim, stride in enumerate(here):
                if (cell := grids.stride(name, dim)) is not None:
                    cells.put(cell, stride // b.dtype.bytes)

    def _copy_entry(self, job: Job, b: PlanBuffer, address: int, strides: tuple[int, ...]) -> None:
        """An inout parameter that is read after it was written: kernels read its entry value from a copy."""
        cell = self._grids.pointer(b.name)
        if cell is None:
            return
        to = self._cells.memory[cell]  # its place in the workspace
        source = DeviceView(address, b.dtype.numpy, self._grids.shapes[b.name], strides)
        if not source.dense:
            job.on_host = True
        job.before.append(partial(self._gather, source, to))

    # --- copies ------------------------------------------------------------------------------------------

    def _upload(self, array: Array, address: int) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._memory.staging.upload(flat, address, self._stream)

    def _download(self, address: int, array: Array) -> None:
        dense = array if array.flags.c_contiguous else np.empty(array.shape, array.dtype)
        self._memory.staging.download(address, dense.reshape(-1).view(np.uint8), self._stream)
        if dense is not array:
            np.copyto(array, dense)

    def _read_scalar(self, view: DeviceView, cell: int) -> None:
        element = np.empty(view.dtype.itemsize, np.uint8)
        self._memory.staging.download(view.address, element, self._stream)
        self._cells.put_bytes(cell, element.tobytes())

    def _gather(self, view: DeviceView, to: int) -> None:
        """Copy the elements of a view to dense memory."""
        stream = self._stream
        if not view.size:
            return
        if view.dense:
            self._driver.copy(to, view.address, view.nbytes, stream)
        elif view.compact is not None:
            dense = view.compact()
            if dense.stream is not None:
                self._memory.order(dense.stream, stream)
            self._driver.copy(to, dense.address, view.nbytes, stream)
            if dense.stream is not None:
                self._memory.order(stream, dense.stream)  # before its owner uses the memory again
        else:
            self._upload(self._strided(view)[1], to)

    def _scatter(self, source: int, view: DeviceView) -> None:
        """Copy dense memory to the elements of a view, and nothing between them."""
        stream = self._stream
        if not view.size:
            return
        if view.dense:
            self._driver.copy(view.address, source, view.nbytes, stream)
            return
        span, elements = self._strided(view)
        dense = np.empty(view.shape, view.dtype)
        self._download(source, dense)
        elements[...] = dense
        self._memory.staging.upload(span, view.extent[0], stream)

    def _strided(self, view: DeviceView) -> tuple[Array, Array]:
        """The memory that a view spans, on the host, and its elements there."""
        low, high = view.extent
        span = np.empty(high - low, np.uint8)
        self._memory.staging.download(low, span, self._stream)
        return span, np.ndarray(view.shape, view.dtype, span, view.address - low, view.strides)
