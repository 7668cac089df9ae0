"""Calls checked and started by a C function: `Launcher.get()`, `Front`, regions of graphs of other libraries.

``launcher.cpp`` is compiled once per machine and cached, without headers of Python or NumPy: it gets their
functions by address.  Of the interpreter's memory it reads an object's type and a NumPy array's fields,
whose places the C interfaces fix.  Before it is used, all of that is compared with what Python says of
arrays made for the purpose; an interpreter that is different in any way (PyPy, debug builds, builds without
the GIL, another NumPy interface) has no launcher, and `runtime.cpu.fast_path` does its work in Python.
"""

from __future__ import annotations

import ctypes
import importlib.resources
import math
import os
import struct
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyfuse.diagnostics import ToolchainError
from polyfuse.runtime.cpu.memory import Arena, lenders
from polyfuse.runtime.cpu.open_layouts import OpenTemplate
from polyfuse.runtime.cpu.pool import Pool, PreparedCall
from polyfuse.runtime.cpu.tensors import TensorLibrary, structure
from polyfuse.runtime.toolchain.compiler import load_shared
from polyfuse.runtime.toolchain.sanitizers import sanitized
from polyfuse.support.processes import ForkLock

ENV_LAUNCHER = "POLYFUSE_LAUNCHER"

_OBJECTS: tuple[object, ...] = (
    np.ndarray, float, int, bool, None, NotImplemented, True, False, Exception, RuntimeError,
    np.dtype(np.uint8),
)  # fmt: skip
_PYTHON = (
    "Py_IncRef", "Py_DecRef", "PyTuple_Size", "PyTuple_GetItem", "PyTuple_New", "PyTuple_SetItem",
    "PyFloat_AsDouble", "PyLong_AsLongLongAndOverflow", "PyObject_CallNoArgs",
    "PyObject_CallOneArg", "PyLong_FromLongLong", "PyErr_NoMemory",
    "PyErr_SetString", "PyEval_SaveThread", "PyEval_RestoreThread", "PyCFunction_NewEx", "PyCapsule_New",
    "PyCapsule_GetPointer", "PyObject_GetAttr", "PyObject_VectorcallMethod", "PyObject_Vectorcall",
    "PyObject_RichCompareBool", "PyObject_IsTrue", "PyErr_Occurred", "PyErr_ExceptionMatches", "PyErr_Clear",
)  # fmt: skip
# Places of functions in NumPy's table, the same for all versions of the interface 2.
_VERSION, _NEW_FROM_DESCR, _SET_BASE, _RETURN = 0, 94, 282, 76
_INTERFACE = 0x2000000
# Of what the arena may keep free, the launcher keeps so much itself.
_SHARE = 8
_HEAD = 16  # bytes of an object before its own fields: references, type
_FIELDS = 7  # words of an array that are read: data, rank, extents, strides, base, dtype, flags


class _Argument(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int64),
        ("place", ctypes.c_int64),
        ("also", ctypes.c_int64),
        ("dtype", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("extents", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("low", ctypes.c_int64),
        ("nbytes", ctypes.c_int64),
        ("align", ctypes.c_int64),
        ("written", ctypes.c_int64),
        ("code", ctypes.c_int64),
    )


class _Result(ctypes.Structure):
    _fields_ = (
        ("place", ctypes.c_int64),
        ("dtype", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("extents", ctypes.c_void_p),
        ("block", ctypes.c_int64),
        ("offset", ctypes.c_int64),
    )


class _Space(ctypes.Structure):
    _fields_ = (("place", ctypes.c_int64), ("offset", ctypes.c_int64))


class _Block(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_int64), ("allocate", ctypes.c_void_p), ("asked", ctypes.c_int64))


class _Layout(ctypes.Structure):
    _fields_ = (
        ("run", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("nsteps", ctypes.c_int64),
        ("numbers", ctypes.c_void_p),
        ("scratch", ctypes.c_int64),
        ("flags", ctypes.c_int64),
        ("buffers", ctypes.c_int64),
        ("status", ctypes.c_void_p),
        ("narguments", ctypes.c_int64),
        ("nresults", ctypes.c_int64),
        ("nspaces", ctypes.c_int64),
        ("nblocks", ctypes.c_int64),
        ("arguments", ctypes.c_void_p),
        ("results", ctypes.c_void_p),
        ("spaces", ctypes.c_void_p),
        ("blocks", ctypes.c_void_p),
        ("written", ctypes.c_int64),
        ("shared", ctypes.c_int64),
        ("space_bytes", ctypes.c_int64),
        ("space_block", ctypes.c_int64),
        ("finish", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
    )


class _Made(ctypes.Structure):
    _fields_ = (
        ("place", ctypes.c_int64),
        ("extents", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("dtype", ctypes.c_void_p),
    )


class _Region(ctypes.Structure):
    _fields_ = (("layout", ctypes.c_void_p), ("results", ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class ArrayArgument:
    """An array: its dtype object and shape, where its address goes, whether kernels write it.

    strides: in bytes; None for dense arrays.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    place: int
    also: int  # -1: nowhere else
    written: bool

    def memory(self) -> tuple[int, int]:
        """(where its memory begins, counted from its address; bytes from there to the end)."""
        if 0 in self.shape:
            return 0, 0
        if self.strides is None:
            return 0, math.prod(self.shape) * self.dtype.itemsize
        reach = [s * (n - 1) for s, n in zip(self.strides, self.shape, strict=True)]
        low = sum(r for r in reach if r < 0)
        return low, sum(map(abs, reach)) + self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class NumberArgument:
    """A Python number of exactly this type, for a kernel that reads a `code`."""

    type: type
    code: str
    place: int


@dataclass(frozen=True, slots=True)
class Result:
    """A result at `offset` of a large block, or (block -1) of the one that small results share."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    place: int
    block: int
    offset: int


@dataclass(frozen=True, slots=True)
class FreshTensor:
    """A result of a region: strides in elements, and the dtype of the library that makes it."""

    place: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: object


@dataclass(frozen=True, slots=True)
class Block:
    """Memory of its own, from the first multiple of 64 of an array that `allocate` makes, which owns it.

    Blocks of as many bytes are alike: one that nothing uses any more is taken again, by any operator.
    """

    nbytes: int
    allocate: Callable[[], np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the pool runs: the parts of `PreparedCall` that do not change from call to call."""

    run: int
    steps: ctypes.Array[Any]
    nsteps: int
    numbers: ctypes.Array[ctypes.c_int64]
    scratch: int
    flags: int
    buffers: int

    @staticmethod
    def of(call: PreparedCall) -> Prepared:
        """Of a call, which has to be kept alive."""
        return Prepared(
            run=Pool.get().run_address,
            steps=call.steps.array,
            nsteps=len(call.steps),
            numbers=call.numbers,
            scratch=call.scratch_bytes,
            flags=call.flags,
            buffers=len(call.buffers),
        )


@dataclass(frozen=True, slots=True)
class LaunchLayout:
    """A layout of arguments and the memory that a call with it needs.

    shared: bytes that small results have in common.  spaces: (place, offset) of temporaries in a block of
    `space_bytes`, the large one `space_block` or (-1) one that the launcher makes.  blocks: the large ones.
    open: what depends on sizes, where they are parameters of the kernels; the rest is then the layout of one
    call, as a template.  finish: called after the kernels where some steps are written in Python, it
    raises what went wrong in them.
    """

    prepared: Prepared
    arguments: Sequence[ArrayArgument | NumberArgument]
    results: Sequence[Result]
    shared: int
    spaces: Sequence[tuple[int, int]]
    space_bytes: int
    space_block: int
    blocks: Sequence[Block]
    finish: Callable[[], None] | None
    open: OpenTemplate | None = None


CODES = ("f64", "f32", "f16", "i64", "i32", "i16", "i8", "u8", "bool", "bf16", "u16", "u32", "u64")
"""Numbers that the launcher converts, by their code."""
_KINDS = {float: 1, int: 2, bool: 3}


class Front:
    """The layouts of one operator. `call(arguments)` is a C function: results, or NotImplemented."""

    def __init__(self, library: ctypes.PyDLL, defaults: tuple[object, ...], most: int) -> None:
        self._library = library
        self._capsule = library.pf_launcher_new(ctypes.py_object(defaults), ctypes.c_int64(most))
        self._room = most
        self.call: Callable[[tuple[object, ...]], Any] = library.pf_launcher_function(
            ctypes.py_object(self._capsule)
        )

    def add(self, layout: LaunchLayout, keep: object) -> None:
        """Learn one more layout; `keep` is kept alive with it. Raises MemoryError."""
        if not self._room:
            return
        made, parts = layout_structure(layout)
        held = ctypes.py_object((made, parts, layout, keep))
        if self._library.pf_launcher_add(ctypes.py_object(self._capsule), ctypes.byref(made), held):
            raise MemoryError("no memory for the layout of a call")
        self._room -= 1


class Launcher:
    """The process's launcher, if its interpreter is one that `launcher.cpp` knows."""

    _lock = ForkLock()
    _tried = False
    _instance: Launcher | None = None

    def __init__(self, library: ctypes.PyDLL) -> None:
        self._library = library
        self._tensors: list[object] = []
        self.tensor_types: tuple[type, ...] = ()

    @classmethod
    def get(cls) -> Launcher | None:
        """The launcher, compiled at the first call; None where calls have to go through Python."""
        if not cls._tried:
            with cls._lock:
                if not cls._tried:
                    cls._instance = cls._load()
                    cls._tried = True
        return cls._instance

    @classmethod
    def _load(cls) -> Launcher | None:
        wanted = os.environ.get(ENV_LAUNCHER, "").strip()
        # It puts results side by side, where sanitizers see no border between them.
        if wanted == "0" or (sanitized() and wanted != "1") or not trusted():
            return None
        addresses = functions()
        if addresses is None:
            return None
        try:
            loaded = load_shared(_source())
        except ToolchainError:  # a kernel was compiled before, but the next one may fail: Python can go on
            return None
        # Its functions need the GIL, and leave exceptions behind.
        library = ctypes.PyDLL(loaded._name, handle=loaded._handle)
        for made in (library.pf_launcher_new, library.pf_launcher_function, library.pf_launcher_region):
            made.restype = ctypes.py_object
        table = [*map(id, _OBJECTS), *addresses]
        most = Arena.get().cap // _SHARE
        library.pf_launcher_start((ctypes.c_int64 * len(table))(*table), ctypes.c_int64(most))
        library.pf_launcher_forget.restype = None
        lenders.append(library.pf_launcher_forget)
        return cls(library)

    def front(self, defaults: tuple[object, ...], most: int) -> Front:
        """A front for an operator with these defaults, one for each parameter, and up to `most` layouts."""
        return Front(self._library, defaults, most)

    def region(
        self, layout: LaunchLayout, results: Sequence[FreshTensor], keep: object
    ) -> Callable[[tuple[object, ...]], Any]:
        """A C function from the tensors of a call to those of its results, in a tuple; NotImplemented for
        other tensors than those of the layout. `keep` is kept alive with it."""
        made, parts = layout_structure(layout)
        made.nresults = len(results)
        fresh = (_Made * max(1, len(results)))(
            *(_Made(r.place, id(r.shape), id(r.strides), id(r.dtype)) for r in results)
        )
        region = _Region(ctypes.addressof(made), ctypes.addressof(fresh))
        held = ctypes.py_object((made, parts, fresh, region, layout, tuple(results), keep))
        found: Callable[[tuple[object, ...]], Any] = self._library.pf_launcher_region(
            ctypes.byref(region), held
        )
        return found

    def know(self, tensors: TensorLibrary) -> None:
        """Take tensors of a library from now on, where arrays are taken."""
        made, kept = structure(tensors)
        self._tensors += [made, kept]  # a call may be under way
        self._library.pf_launcher_know(ctypes.byref(made))
        self.tensor_types = tensors.types


def _source() -> str:
    """One text: the compiler gets a single file."""
    folder = importlib.resources.files("polyfuse.runtime.cpu")
    body = folder.joinpath("launcher.cpp").read_text("utf-8")
    shared, open_sizes = ("first_fit.h", "cut_steps.h", "expressions.h"), ("open_layouts.h", "kept_layouts.h")
    for name in ("launcher.h", *shared, "kept_blocks.h", "numbers.h", *open_sizes, "tensors.h", "regions.h"):
        part = folder.joinpath(name).read_text("utf-8").replace("#pragma once\n", "")
        body = body.replace(f'#include "{name}"\n', part)
    return body


def trusted() -> bool:
    """Are objects and arrays of this interpreter laid out as `launcher.cpp` reads them?"""
    ordinary = (
        sys.implementation.name == "cpython"
        and struct.calcsize("P") == struct.calcsize("l") == 8
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and not hasattr(sys, "gettotalrefcount")
        and object.__basicsize__ == _HEAD
        and np.ndarray.__basicsize__ >= _HEAD + 8 * _FIELDS
    )
    return (
        ordinary
        and all(map(_array_as_expected, _samples()))
        and all(map(_typed, (1.5, 7, True, None, ())))
        and _counted()
    )


def _samples() -> list[np.ndarray[Any, Any]]:
    """Arrays of all ranks that matter, dense, strided, reversed, read-only, unaligned, empty, not native."""
    cube = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    fixed = cube[1:]
    fixed.flags.writeable = False
    odd = np.zeros(17, np.uint8)[1:].view(np.int64)
    return [
        cube, cube.T, cube[::-1, ::2], fixed, odd, np.array(2.5), np.empty((0, 7), np.int16),
        np.arange(9, dtype=">i4"), np.broadcast_to(np.float64(1), (2, 3)), np.zeros((1,) * 9, bool),
    ]  # fmt: skip


def _typed(value: object) -> bool:
    return ctypes.c_int64.from_address(id(value) + _HEAD - 8).value == id(type(value))


def _counted() -> bool:
    """Is an array's number of references where it is read, and 1 for its only owner?"""
    holder = [np.empty(1)]
    count = ctypes.c_uint32.from_address(id(holder[0]))
    counts = [count.value]
    for _ in range(3):
        holder.append(holder[0])
        counts.append(count.value)
    return counts == [1, 2, 3, 4]


def _array_as_expected(a: np.ndarray[Any, Any]) -> bool:
    """Does an array have its fields where they are read? No pointer is followed before the others agree."""
    words = (ctypes.c_int64 * _FIELDS).from_address(id(a) + _HEAD)
    data, rank, extents, strides, base, dtype, flags = words
    low = (1 << 32) - 1  # ranks and flags are ints: the rest of their words is padding
    same = (
        _typed(a)
        and data == a.__array_interface__["data"][0]
        and rank & low == a.ndim
        and base == (0 if a.base is None else id(a.base))
        and dtype == id(a.dtype)
        and flags & low == a.flags.num
    )
    if not same or not a.ndim:
        return same
    if not extents or strides != extents + 8 * a.ndim:  # both in one piece of memory, in NumPy 1 and 2
        return False
    lists = [(ctypes.c_int64 * a.ndim).from_address(at) for at in (extents, strides)]
    return tuple(lists[0]) == a.shape and tuple(lists[1]) == a.strides


def functions() -> list[int] | None:
    """Addresses of the functions that `launcher.cpp` calls; None if any of them is not as expected."""
    try:
        table = ctypes.pythonapi.PyCapsule_GetPointer
        found = [ctypes.cast(getattr(ctypes.pythonapi, n), ctypes.c_void_p).value or 0 for n in _PYTHON]
        capsule: object = np._core._multiarray_umath._ARRAY_API  # type: ignore[attr-defined]
    except AttributeError:
        return None
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ctypes.cast(table, ctypes.c_void_p).value or 0
    )
    address = pointer(capsule, None)
    interface = (ctypes.c_void_p * (_SET_BASE + 1)).from_address(address)
    version = interface[_VERSION]
    if not version or ctypes.PYFUNCTYPE(ctypes.c_uint)(version)() != _INTERFACE:
        return None
    return [*found, *(interface[k] or 0 for k in (_NEW_FROM_DESCR, _SET_BASE, _RETURN))]


def layout_structure(layout: LaunchLayout) -> tuple[_Layout, list[object]]:
    """The layout as C reads it, and the memory it points to."""
    parts: list[object] = []

    def at(memory: Any) -> int:
        parts.append(memory)
        return ctypes.addressof(memory)

    def extents(shape: tuple[int, ...]) -> int:
        return at((ctypes.c_int64 * max(1, len(shape)))(*shape))

    p = layout.prepared
    arguments = [_argument(a, extents) for a in layout.arguments]
    spaces = [_Space(place, offset) for place, offset in layout.spaces]
    blocks = [_Block(b.nbytes, id(b.allocate), 0) for b in layout.blocks]
    results = [
        _Result(r.place, id(r.dtype), len(r.shape), extents(r.shape), r.block, r.offset)
        for r in layout.results
    ]
    made = _Layout(
        run=p.run,
        steps=at(p.steps),
        nsteps=p.nsteps,
        numbers=at(p.numbers),
        scratch=p.scratch,
        flags=p.flags,
        buffers=p.buffers,
        status=at(ctypes.c_int64(0)),
        narguments=len(arguments),
        nresults=len(results),
        nspaces=len(spaces),
        nblocks=len(blocks),
        arguments=at((_Argument * max(1, len(arguments)))(*arguments)),
        results=at((_Result * max(1, len(results)))(*results)),
        spaces=at((_Space * max(1, len(spaces)))(*spaces)),
        blocks=at((_Block * max(1, len(blocks)))(*blocks)),
        written=any(isinstance(a, ArrayArgument) and a.written for a in layout.arguments),
        shared=layout.shared,
        space_bytes=layout.space_bytes,
        space_block=layout.space_block,
        finish=id(layout.finish) if layout.finish else None,
        open=at(layout.open.structure) if layout.open else None,
        rank=layout.open.rank if layout.open else 0,
    )
    return made, parts


def _argument(a: ArrayArgument | NumberArgument, extents: Callable[[tuple[int, ...]], int]) -> _Argument:
    if isinstance(a, NumberArgument):
        return _Argument(kind=_KINDS[a.type], place=a.place, also=-1, code=CODES.index(a.code))
    low, nbytes = a.memory()
    return _Argument(
        kind=0,
        place=a.place,
        also=a.also,
        dtype=id(a.dtype),
        rank=len(a.shape),
        extents=extents(a.shape),
        strides=None if a.strides is None else extents(a.strides),
        low=low,
        nbytes=nbytes,
        align=a.dtype.itemsize,
        written=a.written,
    )
