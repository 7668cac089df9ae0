"""CUDA without a GPU: emitted kernels compiled by the C++ compiler and run thread by thread, with checks.

The source is the one that a GPU gets, unchanged.  What a GPU would leave to chance is reported: races, reads
of what nothing wrote, accesses out of bounds, barriers that some threads never reach.  The docs
(docs/internals/emulator.md) say what counts as ordered, and what cannot be seen here.

    emulator_source     the text that is compiled
    emulator_engine     libraries, launches (emulator.h for kernels, emulator.cpp the engine)
    emulator_memory     buffers on arrays, and their shadow
    emulator_report     findings in words
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Collection, Mapping
from copy import copy
from typing import Literal

import numpy as np

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.diagnostics import ArgumentError, EmulationError
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.launch_plan import Argument, GridLaunch, GridPlan, Passing
from polyfuse.runtime.arguments import Array, element_strides
from polyfuse.runtime.emulator.engine import ENTRY, Engine, LaunchRecord, kernels
from polyfuse.runtime.emulator.memory import Memory, address, bind
from polyfuse.runtime.emulator.report import EmulationReport, Finding, Sectors, finding, too_much_shared

Order = Literal["forward", "reverse", "random"]
ORDERS: tuple[Order, ...] = ("forward", "reverse", "random")
MOST_THREADS = 1024
TIME_OUT_S = 60.0


class EmulatedKernels:
    """Kernels of one operator at known sizes, emulated. `run` is safe to call from several threads.

    order      in which blocks, warps and lanes run; "random" is the one that finds most
    seed       of the random order
    resident   how many blocks the device holds at once; None: all
    count      count loads and stores of every element
    sectors    count the sectors of memory that warps touch (with check)
    check      look at every access; without, only numbers come out, faster
    time_out_s a launch that takes longer does not end
    """

    def __init__(
        self,
        code: CudaCode,
        sizes: Mapping[str, int] | None = None,
        *,
        order: Order = "random",
        seed: int = 0,
        resident: int | None = None,
        count: bool = False,
        sectors: bool = False,
        check: bool = True,
        time_out_s: float = TIME_OUT_S,
    ) -> None:
        if order not in ORDERS:
            raise EmulationError(f"order {order!r} is none of {', '.join(ORDERS)}", code="PF737")
        self.code = code
        self.plan: GridPlan = code.plan
        self.sizes = dict(sizes or {})
        self.report = EmulationReport()
        self._order, self._seed, self._resident = ORDERS.index(order), seed, resident
        self._count, self._sectors, self._check = count and check, sectors and check, check
        self._time_out_ms = max(1, int(time_out_s * 1000))
        self._stacks = kernels(code.source)
        for launch in self.plan.launches:
            _check_launch(launch, self._stacks)
        self._engine = Engine.get()
        self._library = self._engine.kernels(code.source, check=check, sectors=self._sectors)

    def at(self, sizes: Mapping[str, int]) -> EmulatedKernels:
        """The same kernels at other values of the sizes that they have open."""
        other = copy(self)
        other.sizes, other.report = dict(sizes), EmulationReport()
        return other

    def run(self, arrays: Mapping[str, Array]) -> None:
        """Run on the given arrays: name -> memory, for every buffer that is not workspace.

        Raises EmulationError (PF730 to PF739) with what was found, and ArgumentError PF450 (checked builds)
        for an index from data out of range.
        """
        run = _Run(self, arrays)
        with self._engine.lock:
            start = time.perf_counter()
            self._engine.begin()
            for number, launch in enumerate(self.plan.launches):
                if run.launch(number, launch):
                    break
            self.report = run.report(time.perf_counter() - start)
        self.report.raise_if_wrong()
        if run.status[0]:
            self._report_index(int(run.status[0]))

    def bind(self, arrays: Mapping[str, Array]) -> Callable[[], None]:
        """A call on fixed memory."""
        return lambda: self.run(arrays)

    def _report_index(self, number: int) -> None:
        span, known = self.code.checks[number - 1]
        raise ArgumentError(
            f"an index from data is out of range: '{span.text}' is not in {known}",
            code="PF450",
            span=span,
        )


def _check_launch(launch: GridLaunch, known: Collection[str]) -> None:
    x, y = launch.threads
    if launch.function not in known:
        raise EmulationError(f"the source has no kernel '{launch.function}'", code="PF737")
    if not 0 < x * y <= MOST_THREADS:
        raise EmulationError(f"{launch.function}: a block cannot have {x} x {y} threads", code="PF737")


class _Run:
    """One run: its memory, and what came out."""

    def __init__(self, owner: EmulatedKernels, arrays: Mapping[str, Array]) -> None:
        self.owner = owner
        self.memory = bind(owner.plan, owner.sizes, arrays, check=owner._check)
        self.status = np.zeros(1, np.int64)
        self.found: list[Finding] = []
        self.kept = self.total = self.blocks = self.launches = 0
        self.loads, self.stores = self._counters(), self._counters()
        counted = (len(owner.plan.launches), len(self.memory), 3) if owner._sectors else (0, 0, 3)
        self.sectors = np.zeros(counted, np.uint64)  # loaded, stored, fetched
        self._keep: list[object] = []

    def _counters(self) -> dict[str, Array]:
        if not self.owner._count:
            return {}
        n = len(self.owner.plan.launches)
        return {m.buffer.name: np.zeros((n, max(1, m.count)), np.uint32) for m in self.memory.values()}

    def launch(self, number: int, launch: GridLaunch) -> bool:
        """Run one launch. Must the run end here?"""
        owner = self.owner
        blocks = evaluate(launch.blocks, owner.sizes)
        if blocks <= 0:
            return False
        self._keep = []
        slots = self._arguments(number, launch)
        function = owner._library.address(ENTRY + launch.function)
        record = LaunchRecord(
            kernel=function,
            slots=ctypes.cast(slots, ctypes.c_void_p),
            blocks=blocks,
            threads_x=launch.threads[0],
            threads_y=launch.threads[1],
            order=owner._order,
            seed=owner._seed * 1000003 + number + 1,
            resident=owner._resident or 0,
            cooperative=launch.cooperative,
            checked=owner._check,
            sectors=owner._sectors,
            stack_bytes=owner._stacks[launch.function],
            time_out_ms=owner._time_out_ms,
        )
        total, stopped = owner._engine.launch(record)
        self._collect(number, launch, total, int(record.shared_bytes))
        self.blocks += blocks
        self.launches += 1
        return stopped

    def _arguments(self, number: int, launch: GridLaunch) -> ctypes.Array[ctypes.c_void_p]:
        """Addresses of the arguments."""
        values = [self._slot(number, a) for a in launch.arguments]
        return (ctypes.c_void_p * max(1, len(values)))(*values)

    def _table(self, number: int, arguments: tuple[Argument, ...]) -> int:
        """The address of a table: numbers as they are, buffers as entry points get them."""
        cells = (ctypes.c_uint64 * len(arguments))()
        for k, a in enumerate(arguments):
            slot = self._slot(number, a)
            if a.passing is Passing.POINTER:
                cells[k] = slot
            else:
                size = self.memory[a.name].array.itemsize if a.passing is Passing.VALUE else 8
                ctypes.memmove(ctypes.addressof(cells) + 8 * k, slot, size)
        self._keep.append(cells)
        return ctypes.addressof(cells)

    def _slot(self, number: int, argument: Argument) -> int:
        match argument.passing:
            case Passing.POINTER:
                return self._pointer(number, self.memory[argument.name])
            case Passing.VALUE:
                return self.memory[argument.name].address
            case Passing.SIZE:
                return self._number(self.owner.sizes[argument.name])
            case Passing.STRIDE:
                strides = element_strides(self.memory[argument.name].array)
                return self._number(strides[argument.dim])
            case Passing.STATUS:
                return address(self.status)
            case Passing.BARRIER:
                state = np.zeros(2, np.uint32)
                self._keep.append(state)
                return address(state)
            case Passing.TABLE:
                return self._table(number, self.owner.plan.launches[number].table)

    def _number(self, value: int) -> int:
        cell = ctypes.c_int64(value)
        self._keep.append(cell)
        return ctypes.addressof(cell)

    def _pointer(self, number: int, memory: Memory) -> int:
        if not self.owner._check:
            return memory.address
        name = memory.buffer.name
        counted = name in self.loads
        record = memory.record(
            self.loads[name][number] if counted else None,
            self.stores[name][number] if counted else None,
            self.sectors[number, list(self.memory).index(name)] if self.owner._sectors else None,
        )
        self._keep.append(record)
        return ctypes.addressof(record)

    def _collect(self, number: int, launch: GridLaunch, total: int, shared_bytes: int) -> None:
        records = self.owner._engine.findings()
        self.found += [finding(r, number, launch) for r in records[self.kept :]]
        self.kept = len(records)
        if shared_bytes > launch.shared_bytes and self.owner._check:
            self.found.append(too_much_shared(number, launch, shared_bytes))
        self.total = total + len(self.found) - self.kept

    def report(self, seconds: float) -> EmulationReport:
        shaped = [
            {n: np.stack([self.memory[n].by_element(c) for c in counters]) for n, counters in table.items()}
            for table in (self.loads, self.stores)
        ]
        return EmulationReport(
            tuple(self.found),
            self.total,
            self.launches,
            self.blocks,
            seconds,
            shaped[0],
            shaped[1],
            self._touched(),
        )

    def _touched(self) -> tuple[Sectors, ...]:
        """The sectors of each launch and buffer, where there are any."""
        return tuple(
            Sectors(number, launch.function, name, int(loads), int(stores), int(fetched))
            for number, (launch, each) in enumerate(zip(self.owner.plan.launches, self.sectors, strict=False))
            for name, (loads, stores, fetched) in zip(self.memory, each, strict=True)
            if loads or stores
        )
