"""The short way of a call on a GPU: arrays of one library on the device, and numbers, as seen before.

Once a call has gone through all checks, another one with the same facts (types, shapes, strides, element
types, device) only needs those that depend on the memory itself: alignment, overlap of what is written.
`runtime.cuda.launcher` makes them in C, takes results and workspace from the arrays' library and launches on
its current stream.  Whatever is out of the ordinary gets NotImplemented, and the long way decides.

`DeviceShortWay` keeps the layouts of one operator; `bound_call` is one layout on fixed memory.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from polyfuse.runtime.cpu.fast_path import MOST_LAYOUTS, not_learnt
from polyfuse.runtime.cpu.launcher import CODES
from polyfuse.runtime.cpu.open_layouts import OpenSizes
from polyfuse.runtime.cuda.arguments import DeviceView
from polyfuse.runtime.cuda.call import Job, unusable
from polyfuse.runtime.cuda.driver import CELL, Cells, Parameters
from polyfuse.runtime.cuda.executable import CudaExecutable
from polyfuse.runtime.cuda.grids import Grid, Grids, KeptTable, Owner
from polyfuse.runtime.cuda.launcher import (
    NUMBERS,
    ArgumentTable,
    ArrayArgument,
    CallLayout,
    Copy,
    DeviceLauncher,
    Family,
    Fill,
    Front,
    KernelLaunch,
    Made,
    NumberArgument,
    Put,
    PythonStep,
    Step,
    steps_in_c,
)
from polyfuse.runtime.cuda.memory import ALIGNMENT, Block, DeviceMemory
from polyfuse.runtime.cuda.open_layouts import opened

UNKNOWN = (AttributeError, TypeError, ValueError, RuntimeError, BufferError)
"""What arrays raise that do not say of themselves what others of their family do."""


class DeviceShortWay:
    """What was learnt of an operator. `call(arguments)` gives results, or NotImplemented."""

    def __init__(self, defaults: tuple[object, ...]) -> None:
        """`defaults`: by parameter; a tuple of arguments may end where the others have theirs."""
        self._defaults = defaults
        self._lock = threading.Lock()
        self._known: set[object] = set()
        self._at_sizes: set[object] = set()
        self._front: Front | None = None
        self.call: Callable[[tuple[Any, ...]], Any] = not_learnt

    def learn(
        self,
        executable: CudaExecutable,
        family: Family,
        given: Mapping[str, Any],
        results: Mapping[str, Any],
        arrays: Mapping[str, Any],
        open_sizes: Callable[[], OpenSizes] | None = None,
    ) -> None:
        """Remember the layout of a call that has passed all checks; at all sizes, where the kernels have
        `open_sizes`.

        `given` has the parameters and the results that are given, as the caller has them, `results` those
        that the call made; `arrays` has all of them as kernels get them.
        """
        launcher = DeviceLauncher.get()
        if launcher is None:
            return
        if not self._lock.acquire(blocking=False):  # another thread learns
            return
        try:
            key: object = (id(executable), family, *(_key(v, arrays[n]) for n, v in given.items()))
            # By the code, which variants at all sizes share.
            wide = (id(executable.code), family, *(_kind(v, arrays[n]) for n, v in given.items()))
            if key in self._known or wide in self._known or len(self._known) >= MOST_LAYOUTS:
                return
            layout = None
            if open_sizes is not None and wide not in self._at_sizes:
                self._at_sizes.add(wide)
                at = open_sizes()
                layout = call_layout(launcher, executable, family, given, results, arrays, at)
                key = key if layout is None else wide
            if layout is None:
                layout = call_layout(launcher, executable, family, given, results, arrays)
            if layout is None:
                return
            if self._front is None:
                self._front = launcher.front(self._defaults, MOST_LAYOUTS)
            if self._front.add(layout, executable):
                self._known.add(key)
                self.call = self._front.call
        except UNKNOWN:
            return
        finally:
            self._lock.release()


def _key(value: object, seen: Any) -> object:
    """What tells the layouts of an argument apart."""
    return type(value) if type(value) in NUMBERS else (seen.dtype, seen.shape, seen.strides)


def _kind(value: object, seen: Any) -> object:
    """The same where sizes are open."""
    return (
        type(value) if type(value) in NUMBERS else (seen.dtype, len(seen.shape), getattr(seen, "dense", True))
    )


# --- layouts ------------------------------------------------------------------------------------------------


def call_layout(
    launcher: DeviceLauncher,
    executable: CudaExecutable,
    family: Family,
    given: Mapping[str, Any],
    results: Mapping[str, Any],
    arrays: Mapping[str, Any],
    open_sizes: OpenSizes | None = None,
) -> CallLayout | None:
    """A call with these arguments for the launcher, at all sizes that the kernels are for if these are given;
    None if it needs more than launches, fills and copies on the device, or the launcher cannot compute it."""
    grids = executable.grids
    if executable.code.checks:
        return None
    owners = {o.name: o for o in grids.owners}
    puts = _Puts(grids, len(given) + len(results))
    arguments: list[ArrayArgument | NumberArgument] = []
    for k, (name, value) in enumerate(given.items()):
        view = arrays[name]
        if isinstance(view, DeviceView) and not _as_seen(launcher, family, value, view):
            return None
        found = _argument(puts, k, owners[name], value, view)
        if found is None:
            return None
        arguments.append(found)
    made: list[Made] = []
    for k, (name, value) in enumerate(results.items(), len(given)):
        o, view = owners[name], arrays[name]
        if not isinstance(value, family.result) or not puts.place(k, o, view):
            return None
        made.append(Made(family.make(tuple(value.shape), view.dtype), view.nbytes, o.alignment))
    space, launches = grids.workspace_bytes, [g for g in grids.grids if g.blocks or open_sizes is not None]
    steps = [*puts.zeros(), *puts.copies, *(_launch(executable, g) for g in launches)]
    layout = CallLayout(
        family=family,
        arguments=arguments,
        results=made,
        workspace=Made(family.make((space,), np.dtype(np.uint8)), space, ALIGNMENT) if space else None,
        puts=[*puts.made, *puts.of_workspace()],
        steps=steps,
        cells=list(puts.cells.memory),
        entries=executable.driver.entries(),
        run=partial(_run, executable, launches, steps),
        failed=partial(_failed, executable, steps),
        tables=[
            ArgumentTable(
                g.table, g.table_cell, partial(_bring, KeptTable(), executable.memory, len(g.table))
            )
            for g in launches
            if g.table
        ],
    )
    return layout if open_sizes is None else _opened(executable, layout, given, results, arrays, open_sizes)


def _opened(
    executable: CudaExecutable,
    layout: CallLayout,
    given: Mapping[str, Any],
    results: Mapping[str, Any],
    arrays: Mapping[str, Any],
    open_sizes: OpenSizes,
) -> CallLayout | None:
    """The layout at all sizes: results and workspace are made of shapes."""
    found = opened(executable, layout, [*given], [*results], open_sizes)
    make = layout.family.make_shaped
    if found is None or make is None:
        return None
    shapes = {n: len(open_sizes.shapes[n]) for n in results}
    made = [
        replace(m, make=make(arrays[n].dtype), rank=rank)
        for m, (n, rank) in zip(layout.results, shapes.items(), strict=True)
    ]
    space = layout.workspace
    space = None if space is None else replace(space, make=make(np.dtype(np.uint8)), rank=1)
    return replace(layout, results=made, workspace=space, open=found)


def _as_seen(launcher: DeviceLauncher, family: Family, value: object, view: DeviceView) -> bool:
    """Does C see the array as the long way did?"""
    if view.hold != family.lends:
        return False
    if not family.describes:
        return True
    address, shape, strides, device = launcher.look(family, value)
    steps = None if strides is None else tuple(s * view.dtype.itemsize for s in strides)
    same = (address, shape, device) == (view.address, view.shape, family.device)
    return same and (view.dense if steps is None else steps == view.strides)


def _argument(
    puts: _Puts, number: int, o: Owner, value: object, seen: object
) -> ArrayArgument | NumberArgument | None:
    """An argument, None if it cannot be used as it lies."""
    if type(value) in NUMBERS:
        code = o.buffer.dtype.name
        if o.needs_memory or code not in CODES:
            return None
        return NumberArgument(type(value), code, -1 if o.value is None else o.value)
    if not isinstance(seen, DeviceView) or not puts.place(number, o, seen):
        return None
    low, high = seen.extent
    needs = o.alignment if o.needs_memory else 1
    return ArrayArgument(value, low - seen.address, high - low, needs, o.writes)


class _Puts:
    """What of the sources of a call (arguments, results, workspace, numbered in this order) goes into which
    cell.

    `copies` are those of entry values, which kernels find in the workspace.
    """

    def __init__(self, grids: Grids, workspace: int) -> None:
        self.cells: Cells = grids.cells()
        self.made: list[Put] = []
        self.copies: list[Copy] = []
        self._grids, self._workspace = grids, workspace

    def place(self, number: int, o: Owner, seen: DeviceView) -> bool:
        """An array on the device; False if it cannot be used as it lies."""
        if o.value is not None:
            return False
        if not o.needs_memory:
            return True
        if unusable(o, seen) is not None:
            return False
        strides = seen.strides if o.buffer.strided else o.strides
        self.made += [Put(cell, number) for cell in o.pointers]
        for cell, dim in o.runtime_strides:
            self.cells.put(cell, strides[dim] // o.dtype.itemsize)
        if o.entry is not None:
            self.copies.append(Copy(number, self._workspace, self._grids.spaces[o.name], seen.nbytes))
        return o.entry is None or seen.dense

    def of_workspace(self) -> list[Put]:
        """Addresses in the workspace."""
        return [Put(cell, self._workspace, offset) for cell, offset in self._grids.workspace_cells()]

    def zeros(self) -> list[Fill]:
        """What is cleared before the launches: the states of barriers."""
        return [Fill(self._workspace, 0, self._grids.header_bytes)] if self._grids.zeroed else []


def _launch(executable: CudaExecutable, g: Grid) -> Step:
    if g.product is not None:
        return PythonStep(partial(_product, executable.grids, g))
    x, y = g.launch.threads
    function = executable.driver.entry(g.function)
    plan = g.launch
    return KernelLaunch(function, (g.blocks, 1, 1), (x, y, 1), plan.dynamic_bytes, plan.cooperative, g.cells)


def _bring(kept: KeptTable, memory: DeviceMemory, count: int, content: int, stream: int) -> Block:
    """A table with the cells at an address."""
    with memory.driver.current():
        return kept.place(memory, ctypes.string_at(content, CELL * count), stream)


def _product(grids: Grids, g: Grid, cells: int, stream: int) -> None:
    """A product of the library, with its arguments in cells at an address."""
    assert g.product is not None
    g.product(Parameters(Cells.at(cells, grids.cell_count), g.cells, g.formats).values(), stream)


def _run(
    executable: CudaExecutable,
    launched: Sequence[Grid],
    steps: Sequence[Step],
    cells: int,
    addresses: int,
    stream: int,
    at: int,
) -> None:
    """All steps, as they are in C, by a driver that has to be called through Python."""
    driver, grids = executable.driver, executable.grids
    filled = Cells.at(cells, grids.cell_count)
    source = (ctypes.c_uint64 * (1 + max((_last(s) for s in steps), default=0))).from_address(addresses)
    launches = iter(launched)
    with driver.current():
        for s, now in zip(steps, steps_in_c(at, len(steps)), strict=True):
            if isinstance(s, Fill):
                driver.fill(source[s.source] + s.offset, 0, now.nbytes, stream)
            elif isinstance(s, Copy):
                driver.copy(source[s.to] + now.to_offset, source[s.source], now.nbytes, stream)
            else:
                g = next(launches)
                if isinstance(s, PythonStep):
                    s.call(cells, stream)
                    continue
                plan, parameters = g.launch, Parameters(filled, g.cells, g.formats)
                if (blocks := now.grid[0]) > 0:
                    driver.launch(
                        g.function, blocks, plan.threads, s.shared, parameters, stream, plan.cooperative
                    )


def _last(step: Step) -> int:
    """The largest number of a source in a step."""
    return (
        max(step.source, step.to) if isinstance(step, Copy) else step.source if isinstance(step, Fill) else 0
    )


def _failed(executable: CudaExecutable, steps: Sequence[Step], status: int, number: int) -> None:
    """Raise what the driver said of a step."""
    entries = executable.driver.entries()
    assert entries is not None
    names = {Fill: "cuMemsetD8Async", Copy: "cuMemcpyDtoDAsync", KernelLaunch: "cuLaunchKernel"}
    known = number < len(steps)  # else it is about the context
    entries.refuse(status, names.get(type(steps[number]), "") if known else "cuCtxPushCurrent")


# --- bound calls --------------------------------------------------------------------------------------------


def bound_call(
    executable: CudaExecutable,
    family: Family,
    given: Mapping[str, Any],
    made: Mapping[str, Any],
    arrays: Mapping[str, Any],
    job: Job,
    results: object,
) -> Callable[[], Any] | None:
    """What does a job again: `results`, or NotImplemented where the long way has to decide; None where there
    can be no such function.

    `given` has the arguments and the results that are given, as the caller has them, `made` the other
    results.
    """
    launcher = DeviceLauncher.get()
    if launcher is None or job.on_host or job.copied or job.others or job.held:
        return None
    try:
        layout = call_layout(launcher, executable, family, {**given, **made}, {}, arrays)
    except UNKNOWN:
        return None
    if layout is None:
        return None
    cells = list(layout.cells)
    addresses = [0] * (len(layout.arguments) + 1)
    for k, (a, name) in enumerate(zip(layout.arguments, [*given, *made], strict=True)):
        if isinstance(a, ArrayArgument):
            addresses[k] = arrays[name].address
        elif a.cell >= 0:
            cells[a.cell] = int.from_bytes(arrays[name].tobytes(), "little")
    for t in layout.tables:  # the job has brought them
        cells[t.cell] = job.cells.memory[t.cell]
    addresses[-1] = 0 if job.workspace is None else job.workspace.address
    looked_at = [a for a in layout.arguments[: len(given)] if isinstance(a, ArrayArgument)]
    return launcher.bind(
        replace(layout, cells=cells, workspace=None, tables=()),
        addresses,
        job.stream,
        tuple(a.like for a in looked_at),
        tuple(a.like for a in looked_at if a.written),
        results,
        (executable, job),
    )
