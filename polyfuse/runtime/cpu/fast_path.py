"""The short way of a call: NumPy arrays and Python numbers that were seen before with these shapes.

A call spends its time in checking arguments, not in kernels, where these are small.  Once a layout (dtypes,
shapes, strides and the kinds of numbers) has gone through all checks, a call with the same layout only
needs those that depend on the memory itself: alignment, writability, overlap.  Whatever is out of the
ordinary gets NotImplemented, and the long way decides.

`ShortWay` keeps the layouts of one operator, `ShortWayInto` those of calls with `out=`.  Calls are made by
`runtime.cpu.launcher`, in C, or where the interpreter is not one that it knows, by `QuickCall`.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from polyfuse.ir.dtypes import BF16
from polyfuse.ir.launch_plan import Kind
from polyfuse.runtime.arguments import Array, dense, element_strides, usable
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.cpu.launcher import (
    ArrayArgument,
    Block,
    Front,
    Launcher,
    LaunchLayout,
    NumberArgument,
    Prepared,
    Result,
)
from polyfuse.runtime.cpu.memory import ALIGNMENT, LARGE, Arena
from polyfuse.runtime.cpu.open_layouts import OpenSizes, OpenTemplate, open_template

MOST_LAYOUTS = 64
"""Layouts of one operator that are remembered."""
SHARED = 64 << 10
"""Results of up to this many bytes share a block with the others of their call."""
NUMBERS = (float, int, bool)
# struct codes of scalar arguments; that of bf16 is for its bits.
_CODES = {"f64": "d", "f32": "f", "f16": "e", "i64": "q", "i32": "i", "i16": "h", "i8": "b", "u8": "B"}
_CODES |= {"u64": "Q", "u32": "I", "u16": "H", "bool": "?", "bf16": "H"}
_CELL = 8
_WRITTEN = (Kind.INOUT, Kind.OUTPUT)


class Way(Protocol):
    """Calls of arguments that are known: results, or NotImplemented."""

    call: Callable[[tuple[Any, ...]], Any]


Learnt = TypeVar("Learnt", bound=Way)


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


def _shapeless(
    names: Sequence[str], args: Sequence[Any], executable: CpuExecutable
) -> Iterator[tuple[object, ...]]:
    """As `layout`, without what kernels with open sizes do not depend on."""
    strided = {b.name for b in executable.plan.buffers if b.strided}
    for name, a in zip(names, args, strict=True):
        is_array = isinstance(a, np.ndarray)
        yield (a.dtype, a.ndim, name in strided) if is_array else (type(a),)


def fits(executable: CpuExecutable, names: Sequence[str], args: Sequence[Any]) -> bool:
    """May the short way be taken for this executable and these arguments, their axes as kernels have them?"""
    plan = executable.plan
    buffers = {b.name: b for b in plan.buffers}
    for b, a in zip(map(buffers.__getitem__, names), args, strict=True):
        if not isinstance(a, np.ndarray):
            if b.dtype.name not in _CODES:
                return False
        elif not usable(a) or not (dense(a) or b.strided):
            return False
    from_arguments = all(b.name in names or b.alias in names for b in plan.buffers if b.strided)
    return from_arguments and not plan.copied and not executable.code.checks


class ShortWay:
    """What was learnt of an operator. `call(arguments)` gives results, or NotImplemented."""

    def __init__(self, defaults: tuple[object, ...]) -> None:
        """`defaults`: by parameter; a tuple of arguments may end where the others have theirs."""
        self._defaults = defaults
        self._lock = threading.Lock()
        self._known: set[object] = set()
        self._at_sizes: set[object] = set()
        self._front: Front | None = None
        self._quick: dict[object, QuickCall] = {}
        self.call: Callable[[tuple[Any, ...]], Any] = not_learnt

    def learn_again(self) -> None:
        """Let calls go the long way until one has been learnt: there are other kernels for its layout."""
        if len(self._known) < MOST_LAYOUTS:
            self.call = not_learnt

    def learn(
        self,
        executable: CpuExecutable,
        names: Sequence[str],
        args: Sequence[Any],
        results: Sequence[tuple[str, tuple[int, ...]]],
        orders: Mapping[str, tuple[int, ...]],
        open_sizes: Callable[[], OpenSizes] | None = None,
    ) -> None:
        """Remember the layout of a call that has passed all checks; at all sizes, where the kernels have
        `open_sizes`.

        `names` and `args` are the parameters and the results that are given, `results` the names and shapes
        of those that the call makes, `orders` the axes of those that kernels have in another order.
        """
        key = layout(args)
        if key is None or key in self._known:
            return
        wide = None
        if open_sizes is not None and Launcher.get() is not None:
            # By the code, not its text: variants for other regions of sizes may have the same.
            wide = (id(executable.code), *_shapeless(names, args, executable), *orders.items())
        if wide in self._known:
            return
        turned = [a.transpose(orders[n]) if n in orders else a for n, a in zip(names, args, strict=True)]
        if not fits(executable, names, turned):
            return
        if not self._lock.acquire(blocking=False):  # another thread learns, or did when the process forked
            return
        try:
            if key not in self._known and len(self._known) < MOST_LAYOUTS:
                more = None
                if open_sizes is not None and wide not in self._at_sizes:
                    made = [n for n, _ in results]
                    more = open_template(executable, names, args, made, orders, open_sizes())
                self._add(executable, names, args, turned, results, more)
                self._known.add(key if more is None else wide)
                self._at_sizes |= {wide} if more is None else set()
        finally:
            self._lock.release()

    def _add(
        self,
        executable: CpuExecutable,
        names: Sequence[str],
        args: Sequence[Any],
        turned: Sequence[Any],
        results: Sequence[tuple[str, tuple[int, ...]]],
        more: OpenTemplate | None,
    ) -> None:
        launcher = Launcher.get()
        if launcher is None:
            if any(b.strided for b in executable.plan.buffers):
                return
            self._quick[layout(args)] = QuickCall(executable, names, args, results)
            self.call = self._in_python
            return
        if self._front is None:
            self._front = launcher.front(self._defaults, MOST_LAYOUTS)
        found = launch_layout(executable, names, args, turned, results)
        self._front.add(replace(found, open=more), executable)
        self.call = self._front.call

    def _in_python(self, args: tuple[Any, ...]) -> Any:
        if len(args) > len(self._defaults):
            return NotImplemented
        given = args + self._defaults[len(args) :]
        quick = self._quick.get(layout(given))
        results = quick(given) if quick else None
        if results is None:
            return NotImplemented
        return None if not results else results[0] if len(results) == 1 else tuple(results)


class ShortWayInto(Generic[Learnt]):
    """A short way of calls with `out=`: what is given for results is looked at as arguments are."""

    def __init__(
        self, defaults: tuple[object, ...], results: int, kind: Callable[[tuple[object, ...]], Learnt]
    ) -> None:
        """`kind`: of the short way, with parameters and results as its parameters."""
        self._defaults, self._results = defaults, results
        self.short = kind((*defaults, *[None] * results))

    def call(self, args: tuple[Any, ...], out: object) -> Any:
        """What was given for results, or NotImplemented."""
        outs = out if type(out) is tuple else (out,)
        if len(args) > len(self._defaults) or len(outs) != self._results:
            return NotImplemented
        done = self.short.call((*args, *self._defaults[len(args) :], *outs))
        return done if done is NotImplemented else outs[0] if len(outs) == 1 else outs


def not_learnt(args: tuple[Any, ...]) -> Any:
    """What calls do until the first layout is known."""
    return NotImplemented


def launch_layout(
    executable: CpuExecutable,
    names: Sequence[str],
    args: Sequence[Any],
    turned: Sequence[Any],
    results: Sequence[tuple[str, tuple[int, ...]]],
) -> LaunchLayout:
    """A layout for the launcher; parameters as in `ShortWay.learn`, `turned` as kernels have `args`."""
    plan = executable.plan
    place = {b.name: k for k, b in enumerate(plan.buffers)}
    aliases = {b.alias: place[b.name] for b in plan.buffers if b.alias is not None}
    arguments: list[ArrayArgument | NumberArgument] = []
    for name, a in zip(names, args, strict=True):
        at, b = place[name], plan.buffers[place[name]]
        if isinstance(a, np.ndarray):
            written = b.kind in _WRITTEN
            strides = a.strides if b.strided or not dense(a) else None
            arguments.append(ArrayArgument(a.dtype, a.shape, strides, at, aliases.get(name, -1), written))
        else:
            arguments.append(NumberArgument(type(a), b.dtype.name, at))
    call = executable.prepare()
    given = dict(zip(names, turned, strict=True))
    strided = [given[b.name if b.name in given else b.alias or ""] for b in plan.buffers if b.strided]
    for k, stride in enumerate(s for a in strided for s in element_strides(a)):
        call.numbers[len(plan.sizes) + k] = stride
    typed = [(place[n], shape, plan.buffers[place[n]].dtype.numpy) for n, shape in results]
    blocks: list[int] = []
    made, shared = _results(typed, blocks)
    spaces, space_bytes = executable.workspace()
    space_block = len(blocks) if space_bytes > SHARED else -1
    if space_block >= 0:
        blocks.append(space_bytes)
    return LaunchLayout(
        prepared=Prepared.of(call),
        arguments=arguments,
        results=made,
        shared=shared,
        spaces=[(place[n], offset) for n, offset in spaces.items()],
        space_bytes=space_bytes,
        space_block=space_block,
        blocks=[_block(nbytes) for nbytes in blocks],
        finish=executable.check_library if any(x.library for x in plan.launches) else None,
    )


def _results(
    typed: Sequence[tuple[int, tuple[int, ...], np.dtype[Any]]], blocks: list[int]
) -> tuple[list[Result], int]:
    """Where results lie, and the bytes that small ones share unless a block of its own is better.

    Sizes of large blocks are added to `blocks`."""
    sizes = [math.prod(shape) * dtype.itemsize for _, shape, dtype in typed]
    shared = sum(_lines(n) for n in sizes if n <= SHARED)
    small = -1
    if shared >= LARGE:  # pages of the arena are there already
        small = len(blocks)
        blocks.append(shared)
    made: list[Result] = []
    offset = 0
    for (place, shape, dtype), nbytes in zip(typed, sizes, strict=True):
        if nbytes <= SHARED:
            made.append(Result(dtype, shape, place, small, offset))
            offset += _lines(nbytes)
        else:
            made.append(Result(dtype, shape, place, len(blocks), 0))
            blocks.append(nbytes)
    return made, shared if small < 0 else 0


def _lines(nbytes: int) -> int:
    return max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT


def _block(nbytes: int) -> Block:
    return Block(Arena.get().block_bytes(nbytes), lambda: Arena.get().block(nbytes))


@dataclass(frozen=True, slots=True)
class _ArraySlot:
    argument: int
    places: tuple[int, ...]  # in the pointer table: its own, and that of the output in its place
    nbytes: int
    align: int
    written: bool


class QuickCall:
    """The short way of one layout in Python: a prepared pointer table. Safe to call from several threads.

    One call at a time: while it runs, the long way has to decide of others."""

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
        self._check_library = executable.check_library
        self._status = np.zeros(1, np.int64)
        self._call.buffers[len(plan.buffers)] = self._status.__array_interface__["data"][0]
        self._arrays: list[_ArraySlot] = []
        self._numbers: list[tuple[int, struct.Struct, int, bool]] = []
        for k, (name, a) in enumerate(zip(names, args, strict=True)):
            b = plan.buffers[place[name]]
            if isinstance(a, np.ndarray):
                also = (aliases[name],) if name in aliases else ()
                written = b.kind in _WRITTEN
                slot = _ArraySlot(k, (place[name], *also), a.nbytes, a.itemsize, written)
                self._arrays.append(slot)
            else:
                self._numbers.append((k, struct.Struct(_CODES[b.dtype.name]), k * _CELL, b.dtype == BF16))
                self._call.buffers[place[name]] = base + k * _CELL
        self._written = any(s.written for s in self._arrays)
        self._outputs = [
            (place[name], shape, plan.buffers[place[name]].dtype.numpy) for name, shape in results
        ]
        self._temporaries = executable.temporaries
        self._places = place

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
        if not self._lock.acquire(blocking=False):  # by another thread, or by this one, in a finaliser
            return None
        try:
            return self._run(args, ranges)
        finally:
            self._lock.release()

    def _run(self, args: Sequence[Any], ranges: Sequence[tuple[int, int, bool]]) -> list[Array] | None:
        """As `__call__`, under the lock, with where arrays lie."""
        buffers = self._call.buffers
        for s, (address, _, _) in zip(self._arrays, ranges, strict=True):
            for place in s.places:
                buffers[place] = address
        try:
            for k, code, offset, brain in self._numbers:
                code.pack_into(self._raw, offset, _bits(args[k]) if brain else args[k])
        except (struct.error, OverflowError):
            return None
        arena = Arena.get()
        results: list[Array] = []
        for place, shape, dtype in self._outputs:
            array, buffers[place] = arena.place(shape, dtype)
            results.append(array)
        memory = self._temporaries()
        for name, (_, address) in memory.items():
            buffers[self._places[name]] = address
        self._call.check()
        self._check_library()
        del memory
        return [array if array.ndim else array[()] for array in results]


def _bits(x: float) -> int:
    """Of the bf16 that is nearest."""
    return int(np.float32(x).astype(BF16.numpy).view(np.uint16))


def _meet(ranges: list[tuple[int, int, bool]]) -> bool:
    """Does memory that is written meet other memory of the call?"""
    high = written_high = -1  # the furthest ends of memory seen so far, and of what is written of it
    for start, end, written in sorted(ranges):
        if start < end and start < (high if written else written_high):
            return True
        high = max(high, end)
        written_high = max(written_high, end) if written else written_high
    return False
