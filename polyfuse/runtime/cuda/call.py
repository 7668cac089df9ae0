"""A call on a GPU: arrays of any kind become addresses, and a few steps before and after the launches.

    before   copies to the device, copies of what kernels cannot use as it lies, zeroed states, tables
    launches in order, on one stream
    after    copies back, what a check found

The stream is that of the arrays on the device if they have one in common; otherwise one of our own that
waits for theirs, and theirs wait for it.  Everything in between is ordered by that stream alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from polyfuse.diagnostics import ArgumentError
from polyfuse.runtime.arguments import share_elements
from polyfuse.runtime.cuda.arguments import DeviceView, check_view, check_writeable, device_view, shadow
from polyfuse.runtime.cuda.driver import Cells, Parameters
from polyfuse.runtime.cuda.grids import Grid, Grids, Owner, Table
from polyfuse.runtime.cuda.memory import Block, DeviceMemory, Graph

Array = np.ndarray[Any, np.dtype[Any]]
Step = Callable[[], None]
Report = Callable[[int], None]
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Buffers:
    """Argument memory of a call, made once and used by one call at a time; and the launches on it."""

    cells: Cells
    launches: tuple[tuple[Grid, Parameters], ...]
    tables: tuple[Table, ...] = ()


class Job:
    """A call with its arrays resolved; it may run more than once, in one thread at a time."""

    def __init__(self, memory: DeviceMemory, buffers: Buffers, stream: int, others: tuple[int, ...]) -> None:
        self.stream = stream
        self.others = others
        """Streams to join before and after."""
        self.zero: Step | None = None
        """Clears the status and the states of barriers."""
        self.before: list[Step] = []
        self.after: list[Step] = []
        self.on_host = False
        """Does a step work on the host? Then the call cannot be captured into a graph."""
        self.copied = False
        """Are there copies, because kernels cannot use an array as it lies?"""
        self.workspace: Block | None = None
        self.keep: list[object] = []
        self.held: list[DeviceView] = []
        """What must not be given back before the launches are done: its owner does not know our stream."""
        self.graph: Graph | None = None
        self._memory, self._driver, self._buffers = memory, memory.driver, buffers

    @property
    def borrows(self) -> bool:
        """Does it use memory of the pool while it runs?"""
        return self.workspace is not None or self.copied

    @property
    def cells(self) -> Cells:
        """The cells of its arguments."""
        return self._buffers.cells

    def run(self) -> None:
        """All of it. The driver's context must be current."""
        for other in self.others:
            self._memory.order(other, self.stream)
        if self.graph is not None:
            self.graph.launch()
        else:
            self.steps()
        for other in self.others:
            self._memory.order(self.stream, other)

    def steps(self) -> None:
        """What happens on the job's own stream."""
        if self.zero is not None:
            self.zero()
        for step in self.before:
            step()
        for grid, parameters in self._buffers.launches:
            self.launch(grid, parameters)
        for step in self.after:
            step()

    def launch(self, grid: Grid, parameters: Parameters) -> None:
        if grid.product is not None:
            grid.product(parameters.values(), self.stream)
            return
        plan = grid.launch
        shared = plan.dynamic_bytes
        self._driver.launch(
            grid.function, grid.blocks, plan.threads, shared, parameters, self.stream, plan.cooperative
        )


class Resolver:
    """Makes jobs: one for each call, or one for all calls of a bound function."""

    def __init__(self, grids: Grids, memory: DeviceMemory, note: Note, report: Report | None) -> None:
        self._grids, self._memory, self._driver = grids, memory, memory.driver
        self._note, self._report = note, report
        self._device = memory.driver.properties.index

    def buffers(self) -> Buffers:
        cells = self._grids.cells()
        both = zip(self._grids.grids, self._grids.parameters(cells), strict=True)
        tables = tuple(Table(g, cells) for g in self._grids.grids if g.blocks and g.table)
        return Buffers(cells, tuple((g, p) for g, p in both if g.blocks), tables)

    def resolve(
        self,
        arrays: Mapping[str, object],
        buffers: Buffers,
        own: int | None = None,
        workspace: int | None = None,
    ) -> Job:
        """Check the arrays, and put their addresses into the cells. `own` is the stream to use, if given,
        `workspace` the address of memory of the caller's.

        Raises ArgumentError PF401, PF402, PF405, PF417 or PF418 for one that does not fit.
        """
        found = [(o, self._look(o, arrays[o.name])) for o in self._grids.owners]
        streams = {v.stream for _, v in found if isinstance(v, DeviceView) and v.stream is not None}
        if own is None:
            own = next(iter(streams)) if len(streams) == 1 else self._memory.stream()
        job = Job(self._memory, buffers, own, tuple(sorted(streams - {own})))
        self._workspace(job, buffers.cells, workspace)
        place = _Placement(self._memory, buffers.cells, own, self._note)
        crowded = _crowded(found)
        for o, value in found:
            if isinstance(value, DeviceView):
                place.on_device(job, o, value, o.name in crowded)
            else:
                place.on_host(job, o, value)
        for table in buffers.tables:
            table.bring(self._memory, own)
            if table.changes:  # when numbers have come to their cells
                job.on_host = True
                job.before.append(partial(table.bring, self._memory, own))
        return job

    def _look(self, o: Owner, value: object) -> DeviceView | Array:
        array: DeviceView | Array
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
            writeable = array.flags.writeable
        else:
            array = self._view(o, value)
            writeable = array.writeable
        if array.dtype != o.dtype or array.shape != o.shape:
            check_view(o.buffer, array, o.shape)
        if o.writes:
            check_writeable(o.name, writeable)
        return array

    def _view(self, o: Owner, value: object) -> DeviceView:
        view = device_view(value, o.name)
        device = view.device
        if device == self._device or not view.size:
            return view
        if device is None:
            device = self._driver.device_of(view.address)
        if device != self._device:
            where = "memory that CUDA does not know" if device is None else f"device {device}"
            raise ArgumentError(
                f"argument '{o.name}' lives on {where}, the kernels run on device {self._device}",
                code="PF417",
                hint="move it to the same device, or pass a NumPy array",
            )
        return view

    def _workspace(self, job: Job, cells: Cells, given: int | None) -> None:
        if not self._grids.workspace_bytes:
            return
        if given is None:
            job.workspace = self._memory.pool.take(self._grids.workspace_bytes, job.stream)
        address = given if job.workspace is None else job.workspace.address
        assert address is not None
        self._grids.fill_workspace(cells, address)
        if self._grids.zeroed:
            header = self._grids.header_bytes
            job.zero = partial(self._driver.fill, address, 0, header, job.stream)
        if self._report is not None:
            job.on_host = True
            job.after.append(partial(self._check, address, job.stream, self._report))

    def _check(self, address: int, stream: int, report: Report) -> None:
        status = np.zeros(1, np.int64)
        self._memory.staging.download(address, status.view(np.uint8), stream)
        if status[0]:
            report(int(status[0]))


def _crowded(found: Sequence[tuple[Owner, DeviceView | Array]]) -> set[str]:
    """Inputs on the device that share memory with something written: kernels assume that they do not."""
    extents = [(o, v, v.extent) for o, v in found if isinstance(v, DeviceView)]
    crowded = set()
    for written, its, there in extents:
        if not written.writes:
            continue
        for o, view, here in extents:
            if o is written or here[0] >= there[1] or there[0] >= here[1]:
                continue
            if not (view.dense and its.dense) and not share_elements(shadow(view), shadow(its)):
                continue  # columns beside one another
            if o.writes:
                both = f"arguments '{written.name}' and '{o.name}'"
                raise ArgumentError(f"{both} are written and share memory", code="PF418")
            crowded.add(o.name)
    return crowded


class _Placement:
    """Puts the arrays of a job in their place.

    It refers to no job: the steps refer to it, and a circle would keep memory until Python looks for circles.
    """

    def __init__(self, memory: DeviceMemory, cells: Cells, stream: int, note: Note) -> None:
        self._memory, self._driver = memory, memory.driver
        self._cells, self._stream, self._note = cells, stream, note

    def on_host(self, job: Job, o: Owner, array: Array) -> None:
        """A NumPy array: copied in if it is read, and back if it is written."""
        if o.value is not None:
            cell, cells = o.value, self._cells
            job.before.append(lambda: cells.put_bytes(cell, array.tobytes()))
        if not o.needs_memory:
            return
        job.on_host = True
        block = self._memory.pool.take(array.nbytes, self._stream)
        job.keep.append(block)
        if o.reads:
            job.before.append(partial(self._upload, array, block.address))
        if o.writes:
            job.after.append(partial(self._download, block.address, array))
        self._put(job, o, block.address, o.strides)

    def on_device(self, job: Job, o: Owner, view: DeviceView, crowded: bool) -> None:
        """An array on the device: used as it lies where kernels can, else through a copy."""
        job.keep.append(view)
        if view.hold:
            job.held.append(view)
        if o.value is not None:
            job.on_host = True
            job.before.append(partial(self._read_scalar, view, o.value))
        if not o.needs_memory:
            return
        reason = "shares memory with what is written" if crowded else unusable(o, view)
        if reason is None:
            self._put(job, o, view.address, view.strides if o.buffer.strided else o.strides)
            return
        job.copied = True
        self._note(f"argument '{o.name}' {reason}: copied on every call")
        block = self._memory.pool.take(view.nbytes, self._stream)
        job.keep.append(block)
        if not view.dense:
            job.on_host = True
        if o.reads:
            job.before.append(partial(self._gather, view, block.address))
        if o.writes:
            job.after.append(partial(self._scatter, block.address, view))
        self._put(job, o, block.address, o.strides)

    def _put(self, job: Job, o: Owner, address: int, strides: tuple[int, ...]) -> None:
        """The address and strides of a buffer, and of those that share its memory; its entry copy."""
        put = self._cells.put
        for cell in o.pointers:
            put(cell, address)
        for cell, dim in o.runtime_strides:
            put(cell, strides[dim] // o.dtype.itemsize)
        if o.entry is not None:
            # Read after it was written: kernels find the entry value in the workspace.
            source = DeviceView(address, o.dtype, o.shape, strides)
            if not source.dense:
                job.on_host = True
            job.before.append(partial(self._gather, source, self._cells.memory[o.entry]))

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


def unusable(o: Owner, view: DeviceView) -> str | None:
    """Why kernels cannot use the memory as it lies, if so."""
    if view.address % o.alignment and view.size:
        return f"is not at a multiple of {o.alignment} bytes"
    if view.strides == o.strides or view.dense:
        return None
    if not o.buffer.strided:
        return "is not dense"
    whole = all(s % o.dtype.itemsize == 0 for s in view.strides)
    return None if whole else "has strides that are no whole elements"
