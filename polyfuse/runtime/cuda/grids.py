"""A plan of grids at known sizes on one device: what is launched, and which cell holds which argument.

    workspace block = status | barrier states | workspace buffers and entry copies, at static offsets
    cells           = one for each distinct argument of the plan; launches share them

All that can be refused without arrays is refused here, when an executable is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyfuse.diagnostics import DeviceError
from polyfuse.ir.contraction import MatrixProduct
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.launch_plan import Argument, GridLaunch, GridPlan, Kind, Passing, PlanBuffer
from polyfuse.runtime.cpu.memory import layout
from polyfuse.runtime.cuda.arguments import dense_strides
from polyfuse.runtime.cuda.blas import Call, blas_of
from polyfuse.runtime.cuda.driver import POINTER, Cells, Driver, Function, Parameters, require_resident
from polyfuse.runtime.cuda.memory import ALIGNMENT, Block, DeviceMemory

NUMBER = "q"
STATUS_BYTES = 8
BARRIER_BYTES = 8
_FORMATS = {"f64": "d", "f32": "f", "i64": "q", "i32": "i", "i16": "h", "i8": "b", "u8": "B", "bool": "B"}
_FORMATS |= {"u64": "Q", "u32": "I", "u16": "H"}
_BITS = "H"  # 16-bit floats travel as their bits


def format_of(dtype: DType) -> str:
    """The letter of a scalar among the parameters of a kernel."""
    return _FORMATS.get(dtype.name, _BITS)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """A launch with its figures. `state` is the offset of its barrier state in the workspace block; `table`
    has the cells of the arguments in its table, in order, and `table_cell` is the one of its address.
    `product` is what the library does instead of a function."""

    launch: GridLaunch
    function: Function
    blocks: int
    cells: tuple[int, ...]
    formats: tuple[str, ...]
    state: int
    table: tuple[int, ...] = ()
    table_cell: int = -1
    product: Call | None = None

    @property
    def values_in_table(self) -> bool:
        """Does its table have arguments that another call with the same arrays may change?"""
        return any(a.passing is Passing.VALUE for a in self.launch.table)


@dataclass(frozen=True, slots=True)
class Owner:
    """A buffer of the arguments that has memory of its own, and the cells that speak of it.

    Outputs written in place are not owners: their cells are among those of the inout parameter.
    `entry` is the cell of the copy of the entry value, where the plan has one.
    """

    buffer: PlanBuffer
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # of the dense array, in bytes
    alignment: int
    reads: bool
    writes: bool
    pointers: tuple[int, ...]
    entry: int | None
    value: int | None
    runtime_strides: tuple[tuple[int, int], ...]  # (cell, dim)

    @property
    def needs_memory(self) -> bool:
        return bool(self.pointers) or self.entry is not None


class Grids:
    """The launches of a plan, made for one module on one device.

    Raises DeviceError PF744 for a grid that the device cannot hold, PF745 for one whose barrier would not
    open, PF746 for a function that the module does not have, PF748 where cuBLAS fails.
    """

    def __init__(self, plan: GridPlan, sizes: Mapping[str, int], driver: Driver, module: int) -> None:
        self.plan = plan
        self.sizes = dict(sizes)
        self.buffers = {b.name: b for b in plan.buffers}
        self.shapes = {b.name: tuple(evaluate(e, sizes) for e in b.shape) for b in plan.buffers}
        states = sum(any(a.passing is Passing.BARRIER for a in g.arguments) for g in plan.launches)
        self.header_bytes = STATUS_BYTES + BARRIER_BYTES * states
        self.zeroed = any(
            a.passing in (Passing.BARRIER, Passing.STATUS) for g in plan.launches for a in g.arguments
        )
        self.spaces, self.workspace_bytes = self._layout()
        self._cells: dict[tuple[Passing, str, int], int] = {}
        self.grids = self._grids(driver, module)
        needs = self._alignment()
        self.owners = tuple(
            self._owner(b, needs[b.name])
            for b in plan.buffers
            if b.kind is not Kind.WORKSPACE and b.alias is None
        )

    def _layout(self) -> tuple[dict[str, int], int]:
        """Static offsets of workspace buffers (entry copies included)."""
        start = padded(self.header_bytes) if self.zeroed else 0
        found = layout(self.plan.buffers, self.plan.copied, self.sizes, ALIGNMENT, start)
        return {name: s.offset for name, s in found.spaces.items()}, found.nbytes

    def nbytes(self, b: PlanBuffer) -> int:
        return evaluate(product(b.shape), self.sizes) * b.dtype.bytes

    def _grids(self, driver: Driver, module: int) -> tuple[Grid, ...]:
        functions: dict[str, Function] = {}
        made, state = [], STATUS_BYTES
        for k, launch in enumerate(self.plan.launches):
            if launch.library is not None:
                made.append(self._library(driver, launch, k, launch.library))
                continue
            function = functions.get(launch.function)
            if function is None:
                function = functions[launch.function] = driver.function(module, launch.function)
            blocks = max(0, evaluate(launch.blocks, self.sizes))
            _check_grid(driver, launch, function, blocks)
            cells = tuple(self._cell(a, k) for a in launch.arguments)
            formats = tuple(self._format(a) for a in launch.arguments)
            table = tuple(self._cell(a, k) for a in launch.table)
            place = self._cell(Argument(Passing.TABLE), k) if table else -1
            made.append(Grid(launch, function, blocks, cells, formats, state, table, place))
            state += BARRIER_BYTES * any(a.passing is Passing.BARRIER for a in launch.arguments)
        return tuple(made)

    def _library(self, driver: Driver, launch: GridLaunch, k: int, product: MatrixProduct) -> Grid:
        dtypes = {n: b.dtype for n, b in self.buffers.items()}
        step = blas_of(driver).step(product, self.shapes, dtypes)
        cells = tuple(self._cell(a, k) for a in launch.arguments)
        formats = tuple(map(self._format, launch.arguments))
        return Grid(launch, Function(str(product), 0, 0, 0, 0, 0), 1, cells, formats, 0, product=step)

    def _cell(self, a: Argument, launch: int) -> int:
        # A launch has its own barrier state and table; all else is the same for all launches of a call.
        own = launch if a.passing in (Passing.BARRIER, Passing.TABLE) else a.dim
        return self._cells.setdefault((a.passing, a.name, own), len(self._cells))

    def _format(self, a: Argument) -> str:
        if a.passing is Passing.VALUE:
            return format_of(self.buffers[a.name].dtype)
        return NUMBER if a.passing in (Passing.SIZE, Passing.STRIDE) else POINTER

    def _alignment(self) -> dict[str, int]:
        """Buffer that owns memory -> bytes that its address must be a multiple of."""
        need = {b.name: b.dtype.bytes for b in self.plan.buffers}
        for name, nbytes in self.plan.alignment:
            owner = self.buffers[name].alias or name
            need[owner] = max(need[owner], nbytes)
        return need

    def _owner(self, b: PlanBuffer, alignment: int) -> Owner:
        copied = set(self.plan.copied)
        names = [b.name, *(other.name for other in self.plan.buffers if other.alias == b.name)]
        direct = [n for n in names if n not in copied]
        shape = self.shapes[b.name]
        strided = (
            (self._cells.get((Passing.STRIDE, n, dim)), dim) for n in direct for dim in range(len(shape))
        )
        return Owner(
            buffer=b,
            name=b.name,
            dtype=b.dtype.numpy,
            shape=shape,
            strides=dense_strides(shape, b.dtype.bytes),
            alignment=alignment,
            reads=b.kind is not Kind.OUTPUT,
            writes=b.kind is not Kind.INPUT,
            pointers=tuple(k for n in direct if (k := self._pointer(n)) is not None),
            entry=self._pointer(b.name) if b.name in copied else None,
            value=self._cells.get((Passing.VALUE, b.name, 0)),
            runtime_strides=tuple((k, dim) for k, dim in strided if k is not None),
        )

    def _pointer(self, name: str) -> int | None:
        """The cell of a buffer's address, if a launch takes it."""
        return self._cells.get((Passing.POINTER, name, 0))

    def cells(self) -> Cells:
        """Cells for one call at a time: what is the same in all calls is filled in."""
        made = Cells(len(self._cells))
        for (passing, name, dim), k in self._cells.items():
            if passing is Passing.SIZE:
                made.put(k, self.sizes[name])
            elif passing is Passing.STRIDE:
                b = self.buffers[name]
                made.put(k, dense_strides(self.shapes[name], b.dtype.bytes)[dim] // b.dtype.bytes)
        return made

    @property
    def cell_count(self) -> int:
        """How many cells a call has."""
        return len(self._cells)

    def fill_workspace(self, cells: Cells, base: int) -> None:
        """Addresses in a workspace block that begins at `base`."""
        for k, offset in self.workspace_cells():
            cells.put(k, base + offset)

    def workspace_cells(self) -> Iterator[tuple[int, int]]:
        """(cell, where in the workspace block the memory lies whose address it has)."""
        for (passing, name, launch), k in self._cells.items():
            if passing is Passing.STATUS:
                yield k, 0
            elif passing is Passing.BARRIER:
                yield k, self.grids[launch].state
            elif passing is Passing.POINTER and name in self.spaces:
                yield k, self.spaces[name]

    def parameter_cells(self) -> Iterator[tuple[Passing, str, int, int]]:
        """(how a parameter gets its value, of which buffer or size, along which dim, its cell)."""
        for (passing, name, dim), k in self._cells.items():
            yield passing, name, dim, k

    def parameters(self, cells: Cells) -> tuple[Parameters, ...]:
        """The parameters of each launch on these cells."""
        return tuple(Parameters(cells, g.cells, g.formats) for g in self.grids)


def padded(nbytes: int) -> int:
    """Whole units of a workspace."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _check_grid(driver: Driver, launch: GridLaunch, function: Function, blocks: int) -> None:
    threads = launch.threads[0] * launch.threads[1]
    if threads > function.max_threads:
        raise DeviceError(
            f"{launch.function} has blocks of {threads} threads; with its {function.registers} registers a "
            f"thread the device holds {function.max_threads}",
            code="PF744",
        )
    if blocks > driver.properties.max_grid:
        raise DeviceError(
            f"{launch.function} has {blocks} blocks, more than the {driver.properties.max_grid} of a grid",
            code="PF744",
            hint="blocks go through their work in steps of the grid's size: plan fewer",
        )
    most = driver.properties.shared_bytes_per_block_optin
    if launch.dynamic_bytes and launch.shared_bytes > most:
        raise DeviceError(
            f"a block of {launch.function} needs {launch.shared_bytes} bytes of shared memory, "
            f"the device has {most} for each",
            code="PF744",
            hint="the kernels were planned for another device: compile for this one",
        )
    if launch.dynamic_bytes:
        driver.allow_shared(function, launch.dynamic_bytes)
    if launch.cooperative and blocks:
        require_resident(driver, function, blocks, threads, launch.dynamic_bytes)


# --- tables of arguments ----------------------------------------------------------------------------------

# Tables of arguments: what a launch has too many of to pass, in the memory of the device.
#
# A table has a cell of 8 bytes for each argument.  It is uploaded when a call is prepared, and again only
# when what is in it has changed: a prepared call on fixed memory uploads it once, calls with the same arrays
# after each other as well.  Every new content gets new memory, for launches that are queued may still read
# the old one; that goes back to its pool, where work on the same stream comes after them.


class KeptTable:
    """The table of one launch, as it was last uploaded."""

    __slots__ = ("_block", "_content")

    def __init__(self) -> None:
        self._content = b""
        self._block: Block | None = None

    def place(self, memory: DeviceMemory, content: bytes, stream: int) -> Block:
        """Memory that has a content for launches on a stream, which must be queued while it is kept.

        Raises DeviceError PF749 while the stream is captured: the graph would be launched again when the
        table has changed.
        """
        if memory.driver.capturing(stream):
            raise DeviceError(
                "a launch with so many arguments that they are passed in a table cannot be captured",
                hint="call it outside of the graph, or update fewer arrays at once",
            )
        if self._block is None or self._block.stream != stream or content != self._content:
            block = memory.pool.take(len(content), stream)
            memory.staging.upload(np.frombuffer(content, np.uint8), block.address, stream)
            self._block, self._content = block, content
        return self._block


class Table:
    """The table of one launch, for one set of cells."""

    __slots__ = ("_cell", "_cells", "_kept", "_places", "_view", "changes")

    def __init__(self, grid: Grid, cells: Cells) -> None:
        self._cells, self._cell = cells, grid.table_cell
        self._view = np.ctypeslib.as_array(cells.memory)
        self._places = np.array(grid.table, np.intp)
        self._kept = KeptTable()
        self.changes = grid.values_in_table
        """May what is in it change from run to run of a prepared call?"""

    def bring(self, memory: DeviceMemory, stream: int) -> None:
        """Let the table on the device have what the cells have, for launches on a stream."""
        now = self._view[self._places].tobytes()
        self._cells.put(self._cell, self._kept.place(memory, now, stream).address)
