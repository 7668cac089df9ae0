"""Calls with arrays on a GPU, checked and launched by a C function: `DeviceLauncher.get()`, `Front`.

``launcher.cpp`` is compiled once per machine and cached, without headers of Python: it gets functions of the
interpreter, of CUDA's driver and of the arrays' library by address.  What it knows of a library is a
`Family`; what it knows of a call a `CallLayout`.  Interpreters that `runtime.cpu.launcher` does not trust
have no launcher, nor have machines without a C++ compiler: there calls go the long way.
"""

from __future__ import annotations

import ctypes
import importlib.resources
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyfuse.diagnostics import ToolchainError
from polyfuse.runtime.cpu.launcher import CODES, ENV_LAUNCHER, trusted
from polyfuse.runtime.cuda.driver import Entries
from polyfuse.runtime.toolchain.compiler import load_shared
from polyfuse.runtime.toolchain.sanitizers import sanitized
from polyfuse.support.processes import ForkLock

_OBJECTS: tuple[object, ...] = (None, NotImplemented, True, False, Exception)
_PYTHON = (
    "Py_IncRef", "Py_DecRef", "PyTuple_Size", "PyTuple_GetItem", "PyTuple_New", "PyTuple_SetItem",
    "PyFloat_AsDouble", "PyLong_AsLongLongAndOverflow", "PyLong_AsUnsignedLongLongMask",
    "PyLong_FromUnsignedLongLong", "PyObject_GetAttr", "PyObject_VectorcallMethod", "PyObject_Vectorcall",
    "PyObject_RichCompareBool", "PyObject_IsTrue", "PyErr_Occurred", "PyErr_ExceptionMatches",
    "PyErr_Clear", "PyErr_Fetch", "PyErr_Restore", "PyErr_NoMemory", "PyEval_SaveThread",
    "PyEval_RestoreThread", "PyCFunction_NewEx", "PyCapsule_New", "PyCapsule_GetPointer",
)  # fmt: skip
_FLOATS, _INTEGERS = (
    (float, np.float64, np.float32, np.float16),
    (int, np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32, np.uint16, np.uint8),
)
_KINDS: dict[type, int] = {**dict.fromkeys(_FLOATS, 1), **dict.fromkeys(_INTEGERS, 2), bool: 3, np.bool_: 3}
NUMBERS = frozenset(_KINDS)
"""Types of numbers that calls take, of Python and NumPy."""
_LEGACY = 1  # the legacy default stream, to DLPack
_MOST_DIMS = 64

# --- what is known of arrays and calls ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fact:
    """What an array says of itself: an attribute, a method without arguments, an attribute of either."""

    name: str
    then: str | None = None
    calls: bool = False

    def of(self, array: object) -> object:
        """The fact, of one array."""
        found = getattr(array, self.name)
        found = found() if self.calls else found
        return found if self.then is None else getattr(found, self.then)


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The arrays of one library on one device, and what is to be asked of them at each call.

    types: exactly these.  facts: all that must be as it was when a layout was
    learnt. address: of the first element.  exchange: addresses of two functions of DLPack's exchange
    interface (the array as a DLTensor, the current stream), which then tell of the memory in place of facts.
    flag: must be false, unless `excuse()` is.  refuse: must be false of each array.  guard: (object,
    attribute, value) that must be so at each call.  busy: functions that tell of tracers and the like,
    which must give something false.  stream: the library's current one; or `own_stream`, which
    each array says.  write: told of the arrays that will be written, in a tuple; where it returns False the
    long way decides. make: (shape, dtype) -> what makes such an array; it takes the stream where arrays have
    their own. make_shaped: dtype -> the same for any shape, which it takes first.  shape_facts: which facts
    are shape and strides (-1: none, arrays are dense), and whether strides are in bytes.  made, made_address:
    the type of results, and their address where it is had in another way.
    lends: arrays lend their memory by DLPack, which tells of it, and work of theirs comes before what is
    launched on the legacy stream then; `hold` keeps what was lent until the launches on a stream are done.
    """

    types: tuple[type, ...]
    facts: tuple[Fact, ...]
    address: Fact
    device: int
    make: Callable[[tuple[int, ...], Any], Callable[..., object]]
    exchange: tuple[int, int] | None = None
    flag: Fact | None = None
    excuse: Callable[[], object] | None = None
    refuse: Callable[[Any], object] | None = None
    guard: tuple[object, str, object] | None = None
    busy: Sequence[Callable[[], object]] = ()
    stream: Callable[[], int] | None = None
    own_stream: Fact | None = None
    write: Callable[[tuple[Any, ...]], bool] | None = None
    made: type | None = None
    made_address: Fact | None = None
    make_shaped: Callable[[Any], Callable[..., object]] | None = None
    shape_facts: tuple[int, int, bool] = (-1, -1, False)
    lends: bool = False
    hold: Callable[[tuple[object, ...], int], None] | None = None

    @property
    def result(self) -> Any:
        """The type of results."""
        return self.made or self.types[0]

    @property
    def describes(self) -> bool:
        """Do arrays tell of their memory in DLPack's words?"""
        return self.lends or self.exchange is not None


@dataclass(frozen=True, slots=True)
class ArrayArgument:
    """An array like `like`, of which `low` and `nbytes` say where its memory begins and how much that is."""

    like: object
    low: int
    nbytes: int
    align: int
    written: bool


@dataclass(frozen=True, slots=True)
class NumberArgument:
    """A number of exactly this type, for a kernel that reads a `code`; cell -1: none does."""

    type: type
    code: str
    cell: int


@dataclass(frozen=True, slots=True)
class Made:
    """A result, or the workspace."""

    make: Callable[..., object]
    nbytes: int
    align: int
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Put:
    """The address of a source, and so many bytes more, goes into a cell."""

    cell: int
    source: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Fill:
    """Zeros."""

    source: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy on the device."""

    source: int
    to: int
    to_offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A launch of a function of the driver, whose parameters lie in these cells."""

    function: int
    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared: int
    cooperative: bool
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PythonStep:
    """A function of the address of the cells and the stream."""

    call: Callable[[int, int], None]


Step = Fill | Copy | KernelLaunch | PythonStep


@dataclass(frozen=True, slots=True)
class ArgumentTable:
    """Arguments of a launch that are too many to be passed: these cells, in memory on the device whose
    address goes into `cell`. `bring(address of the content, stream)` gives memory that has it, with an
    `address`."""

    cells: tuple[int, ...]
    cell: int
    bring: Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class OpenCall:
    """What of a call depends on sizes (`runtime.cuda.open_layouts`): its structure, and the memory that this
    points to. Layouts of a smaller rank are tried first."""

    structure: ctypes.Structure
    parts: Sequence[object]
    rank: int


@dataclass(frozen=True, slots=True)
class CallLayout:
    """A call: arguments, results, and behind them the workspace if there is one; what goes into which cell
    (sources are counted in this order), and the steps.

    entries: of the driver; None where `run(cells, addresses, stream, steps)` does all steps.  failed(status,
    step) raises what the driver said.  open: what depends on sizes, where they are parameters of the kernels;
    the rest is then the layout of one call, as a template, whose results are made of a shape.
    """

    family: Family
    arguments: Sequence[ArrayArgument | NumberArgument]
    results: Sequence[Made]
    workspace: Made | None
    puts: Sequence[Put]
    steps: Sequence[Step]
    cells: Sequence[int]
    entries: Entries | None
    run: Callable[[int, int, int, int], None]
    failed: Callable[[int, int], None]
    tables: Sequence[ArgumentTable] = ()
    open: OpenCall | None = None


# --- the same in C -----------------------------------------------------------------------------------------

_I64, _PTR = ctypes.c_int64, ctypes.c_void_p


def _struct(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def _words(names: str, kind: Any = _I64) -> list[tuple[str, Any]]:
    return [(n, kind) for n in names.split()]


_Tensor = _struct(
    "_Tensor", ("data", _PTR),
    *_words("device_type device_id rank", ctypes.c_int32), ("code", ctypes.c_uint8),
    ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), *_words("extents strides", _PTR),
    ("offset", ctypes.c_uint64),
)  # fmt: skip
_Driver = _struct(
    "_Driver", *_words("get_current push pop launch launch_cooperative fill copy context", _PTR)
)
_Fact = _struct("_Fact", *_words("name then", _PTR), ("calls", _I64))
_Family = _struct(
    "_Family", ("ntypes", _I64), ("types", _PTR), ("nfacts", _I64), ("facts", _PTR), ("address", _Fact),
    *_words("tensor lend lend_names lend_stream", _PTR), ("flag", _Fact),
    *_words("excuse refuse guard guard_name guard_value", _PTR), ("nbusy", _I64),
    *_words("busy stream_of stream", _PTR),
    ("own_stream", _Fact), ("device", _I64), ("made_type", _PTR), ("made_address", _Fact),
    *_words("hold write", _PTR),
)  # fmt: skip
_Argument = _struct(
    "_Argument",
    ("kind", _I64),
    ("type", _PTR),
    *_words("code cell"),
    *_words("facts tensor", _PTR),
    *_words("low nbytes align written"),
)
_Result = _struct("_Result", ("make", _PTR), *_words("nbytes align rank"), ("extents", _PTR))
_Put = _struct("_Put", *_words("cell source offset"))
_Step = _struct(
    "_Step", *_words("kind source offset to to_offset nbytes"), ("function", _PTR), ("grid", _I64 * 3),
    ("block", _I64 * 3), *_words("shared cooperative ncells"), *_words("cells call", _PTR),
)  # fmt: skip
_Table = _struct("_Table", *_words("ncells cell"), *_words("cells bring", _PTR), ("address", _Fact))
_Layout = _struct(
    "_Layout", *_words("driver family", _PTR),
    *_words("narguments nresults workspace nputs nsteps ncells most_parameters ntables most_content"),
    *_words("arguments results puts steps tables cells", _PTR), ("written", _I64),
    *_words("run failed open", _PTR), ("rank", _I64),
)  # fmt: skip


class _Parts:
    """Memory that structures point to, kept for as long as this is."""

    def __init__(self) -> None:
        self._kept: list[object] = []

    def keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value

    def reference(self, value: object) -> int | None:
        return None if value is None else id(self.keep(value))

    def at(self, memory: Any) -> int:
        return ctypes.addressof(self.keep(memory))

    def array(self, kind: Any, values: Sequence[Any]) -> int:
        return self.at((kind * max(1, len(values)))(*values))

    def objects(self, values: Sequence[object], skipped: Sequence[int] = ()) -> int:
        held = [self.reference(v) if v is not None else id(None) for v in values]
        return self.array(_PTR, [None if k in skipped else at for k, at in enumerate(held)])

    def fact(self, fact: Fact | None) -> Any:
        if fact is None:
            return _Fact()
        return _Fact(self.reference(fact.name), self.reference(fact.then), fact.calls)


def _family(family: Family, parts: _Parts) -> ctypes.Structure:
    view, stream = family.exchange or (None, None)
    guard, guard_name, guard_value = family.guard or (None, None, None)
    lends = ("__dlpack__", ("stream",), _LEGACY) if family.lends else (None, None, None)
    return _Family(
        len(family.types), parts.objects(family.types),
        len(family.facts), parts.array(_Fact, [parts.fact(f) for f in family.facts]),
        parts.fact(family.address), view, *(parts.reference(x) for x in lends), parts.fact(family.flag),
        parts.reference(family.excuse), parts.reference(family.refuse),
        parts.reference(guard), parts.reference(guard_name), parts.reference(guard_value),
        len(family.busy), parts.objects(family.busy), stream,
        parts.reference(family.stream), parts.fact(family.own_stream), family.device,
        parts.reference(family.result), parts.fact(family.made_address),
        parts.reference(family.hold), parts.reference(family.write),
    )  # fmt: skip


def _step(step: Step, parts: _Parts) -> ctypes.Structure:
    if isinstance(step, Fill):
        return _Step(kind=0, source=step.source, offset=step.offset, nbytes=step.nbytes)
    if isinstance(step, Copy):
        return _Step(kind=1, source=step.source, to=step.to, to_offset=step.to_offset, nbytes=step.nbytes)
    if isinstance(step, PythonStep):
        return _Step(kind=3, call=parts.reference(step.call))
    return _Step(
        kind=2, function=step.function, grid=(_I64 * 3)(*step.blocks), block=(_I64 * 3)(*step.threads),
        shared=step.shared, cooperative=step.cooperative, ncells=len(step.cells),
        cells=parts.array(_I64, step.cells),
    )  # fmt: skip


def steps_in_c(address: int, count: int) -> list[Any]:
    """The steps of a call, as the launcher has them."""
    return list((_Step * count).from_address(address)) if count else []


class DeviceLauncher:
    """The process's launcher of device calls, if its interpreter is one that `launcher.cpp` knows."""

    _lock = ForkLock()
    _tried = False
    _instance: DeviceLauncher | None = None

    def __init__(self, library: ctypes.PyDLL, numbers: object) -> None:
        self._library, self._numbers = library, numbers
        self._families: dict[Family, tuple[ctypes.Structure, _Parts]] = {}

    @classmethod
    def get(cls) -> DeviceLauncher | None:
        """The launcher, compiled at the first call; None where calls have to go through Python."""
        if not cls._tried:
            with cls._lock:
                if not cls._tried:
                    cls._instance = cls._load()
                    cls._tried = True
        return cls._instance

    @classmethod
    def _load(cls) -> DeviceLauncher | None:
        wanted = os.environ.get(ENV_LAUNCHER, "").strip()
        if wanted == "0" or (sanitized() and wanted != "1") or not trusted():
            return None
        try:
            addresses = [ctypes.cast(getattr(ctypes.pythonapi, n), _PTR).value or 0 for n in _PYTHON]
            loaded = load_shared(_source())
        except (AttributeError, ToolchainError):
            return None
        library = ctypes.PyDLL(loaded._name, handle=loaded._handle)
        for made in ("pf_device_new", "pf_device_function", "pf_device_bind"):
            getattr(library, made).restype = ctypes.py_object
        table = [*map(id, _OBJECTS), *addresses]
        numbers = (_PTR * len(_KINDS))(*map(id, _KINDS))
        library.pf_device_start((_I64 * len(table))(*table), numbers, _I64(len(_KINDS)))
        os.register_at_fork(after_in_child=library.pf_device_forked)
        return cls(library, numbers)

    def front(self, defaults: tuple[object, ...], most: int) -> Front:
        """A front for an operator with these defaults, one for each parameter, and up to `most` layouts."""
        return Front(self, self._library, defaults, most)

    def bind(
        self,
        layout: CallLayout,
        addresses: Sequence[int],
        stream: int,
        arrays: tuple[object, ...],
        written: tuple[object, ...],
        results: object,
        keep: object,
    ) -> Callable[[], Any]:
        """A function without arguments that runs a layout on fixed memory: results, or NotImplemented.

        arrays: what the family looks at each time; written: of these, what it is told of.
        """
        made, parts = self.structure(layout)
        memory = (ctypes.c_uint64 * max(1, len(addresses)))(*addresses)
        held = (made, parts, memory, layout, keep)
        objects = map(ctypes.py_object, (arrays, written, results))
        function: Callable[[], Any] = self._library.pf_device_bind(
            ctypes.byref(made), ctypes.py_object(held), memory, ctypes.c_uint64(stream), *objects
        )
        return function

    def structure(self, layout: CallLayout) -> tuple[ctypes.Structure, _Parts]:
        """The layout as C reads it, and what owns the memory that it points to.

        Raises ValueError for an array that cannot be looked at.
        """
        parts = _Parts()
        family = self._family(layout.family)
        skipped = layout.family.shape_facts[:2] if layout.open is not None else ()
        arguments = [self._argument(a, layout.family, family, parts, skipped) for a in layout.arguments]
        results = [*layout.results, *([layout.workspace] if layout.workspace else [])]
        made = [_Result(parts.reference(r.make), r.nbytes, r.align, r.rank) for r in results]
        address = parts.fact(Fact("address"))
        puts = [_Put(p.cell, p.source, p.offset) for p in layout.puts]
        steps = [_step(s, parts) for s in layout.steps]
        tables = [
            _Table(len(t.cells), t.cell, parts.array(_I64, t.cells), parts.reference(t.bring), address)
            for t in layout.tables
        ]
        kernels = [len(s.cells) for s in layout.steps if isinstance(s, KernelLaunch)]
        e = layout.entries
        driver = _Driver(*e.functions, e.context) if e is not None else None
        written = any(isinstance(a, ArrayArgument) and a.written for a in layout.arguments)
        found = _Layout(
            None if driver is None else parts.at(driver), ctypes.addressof(family),
            len(arguments), len(layout.results), layout.workspace is not None, len(puts), len(steps),
            len(layout.cells), max(kernels, default=0),
            len(tables), max((len(t.cells) for t in layout.tables), default=0),
            parts.array(_Argument, arguments), parts.array(_Result, made), parts.array(_Put, puts),
            parts.array(_Step, steps), parts.array(_Table, tables),
            parts.array(_I64, [_signed(c) for c in layout.cells]), written,
            parts.reference(layout.run), parts.reference(layout.failed),
            None if layout.open is None else parts.at(parts.keep(layout.open).structure),
            0 if layout.open is None else layout.open.rank,
        )  # fmt: skip
        return found, parts

    def _family(self, family: Family) -> ctypes.Structure:
        """Families are few, and kept for good."""
        if family not in self._families:
            parts = _Parts()
            self._families[family] = _family(family, parts), parts
        return self._families[family][0]

    def _argument(
        self,
        a: ArrayArgument | NumberArgument,
        family: Family,
        made: ctypes.Structure,
        parts: _Parts,
        skipped: Sequence[int] = (),
    ) -> ctypes.Structure:
        if isinstance(a, NumberArgument):
            kind, code = _KINDS[a.type], CODES.index(a.code)
            return _Argument(kind=kind, type=id(a.type), code=code, cell=a.cell)
        seen = self._look(made, a.like, parts) if family.describes else _Tensor()
        facts = [f.of(a.like) for f in family.facts]
        return _Argument(
            kind=0, cell=-1, facts=parts.objects(facts, skipped), tensor=parts.at(seen), low=a.low,
            nbytes=a.nbytes, align=a.align, written=a.written,
        )  # fmt: skip

    def _look(self, family: ctypes.Structure, array: object, parts: _Parts) -> Any:
        """An array as it tells of itself; lists of extents and strides are kept by `parts`."""
        seen, lists = _Tensor(), (_I64 * (2 * _MOST_DIMS))()
        given = ctypes.byref(family), ctypes.py_object(array), ctypes.byref(seen)
        if self._library.pf_device_look(*given, ctypes.byref(parts.keep(lists)), _I64(2 * _MOST_DIMS)):
            raise ValueError("an array does not tell of its memory")
        return seen

    def look(self, family: Family, array: object) -> tuple[int, tuple[int, ...], tuple[int, ...] | None, int]:
        """(address, shape, strides in elements, device) as an array tells them of itself.

        Raises ValueError, or what the array raises, if it does not.
        """
        parts = _Parts()
        seen = self._look(self._family(family), array, parts)
        shape, strides = (
            tuple((_I64 * seen.rank).from_address(at)) if at and seen.rank else () if at else None
            for at in (seen.extents, seen.strides)
        )
        return (seen.data or 0) + seen.offset, shape or (), strides, seen.device_id


class Front:
    """The layouts of one operator. `call(arguments)` is a C function: results, or NotImplemented."""

    def __init__(
        self, launcher: DeviceLauncher, library: ctypes.PyDLL, defaults: tuple[object, ...], most: int
    ) -> None:
        self._launcher, self._library = launcher, library
        self._capsule = library.pf_device_new(ctypes.py_object(defaults), _I64(most))
        self._room = most
        self.call: Callable[[tuple[object, ...]], Any] = library.pf_device_function(
            ctypes.py_object(self._capsule)
        )

    def add(self, layout: CallLayout, keep: object) -> bool:
        """Learn one more layout; `keep` is kept alive with it. False where there is no room for it."""
        if not self._room:
            return False
        made, parts = self._launcher.structure(layout)
        held = ctypes.py_object((made, parts, layout.family, keep))
        if self._library.pf_device_add(ctypes.py_object(self._capsule), ctypes.byref(made), held):
            return False
        self._room -= 1
        return True


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _source() -> str:
    """One text: the compiler gets a single file."""
    ours, shared = (importlib.resources.files(f"polyfuse.runtime.{n}") for n in ("cuda", "cpu"))
    body = ours.joinpath("launcher.cpp").read_text("utf-8")
    parts = [(ours, name) for name in ("launcher.h", "array_facts.h", "steps.h", "open_layouts.h")]
    parts += [(shared, name) for name in ("numbers.h", "first_fit.h", "expressions.h")]
    for folder, name in parts:
        part = folder.joinpath(name).read_text("utf-8").replace("#pragma once\n", "")
        body = body.replace(f'#include "{name}"\n', part)
    return body
