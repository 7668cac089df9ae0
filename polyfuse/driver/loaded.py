"""An exported operator as a Python function: `pf.load`. Nothing is compiled; the program is not needed."""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.codegen.interface import FORMAT, STATUS
from polyfuse.diagnostics import ArgumentError, DeviceError, ToolchainError
from polyfuse.driver.call import GpuCallMemory, Instance, given_on_gpu
from polyfuse.driver.open_sizes import holds
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes, check_constraints
from polyfuse.interop.arrays import to_numpy
from polyfuse.ir.dtypes import BY_NAME, F32, F64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, evaluate
from polyfuse.ir.launch_plan import Argument, GridLaunch, GridPlan, Kind, Passing, PlanBuffer
from polyfuse.ir.tensor_graph import Constraint, Role, SizeParameter, Tensor, TensorGraph
from polyfuse.runtime.arguments import (
    Array,
    check_array,
    check_fits,
    dense,
    element_strides,
    overlaps,
    usable,
)
from polyfuse.runtime.cpu.memory import Arena
from polyfuse.runtime.cuda.arguments import DeviceView
from polyfuse.runtime.cuda.driver import Driver
from polyfuse.runtime.cuda.executable import CudaExecutable
from polyfuse.runtime.cuda.open import open_driver

_SELF = "polyfuse_library"


def load(path: str | os.PathLike[str]) -> Loaded:
    """A function from what `export` wrote.

    Parameters
    ----------
    path
        A shared library, or a description of launches on a GPU (.json).

    Returns
    -------
    Loaded
        It takes the arguments of the operator; `set_threads(n)` says how many threads compute.

    Raises
    ------
    ToolchainError
        PF765 for a file that is none of these; as DeviceError PF740, PF741 without the GPU that a description
        needs, PF781 for machine code of another one.

    Examples
    --------
    >>> header = pf.export("stdlib:relu", "relu.so", sizes={"B_0": 2}, strides=False)
    >>> pf.load("relu.so")(np.array([-1, 2], "f4"))
    array([0., 2.], dtype=float32)
    """
    file = Path(path)
    return _grids(file) if file.suffix == ".json" else _library(file)


def _library(file: Path) -> LoadedLibrary:
    try:
        library = _opened(file.resolve(strict=True))
        text = ctypes.c_char_p(ctypes.addressof(ctypes.c_char.in_dll(library, _SELF))).value
    except (OSError, ValueError) as e:
        raise _no_library(file, str(e)) from None
    about = json.loads(text or b"{}")
    _require_format(file, about)
    return LoadedLibrary(file, library, about)


def _require_format(file: Path, about: Mapping[str, Any]) -> None:
    """Raises ToolchainError PF765 for what another polyfuse has written in another way."""
    if about.get("polyfuse") != FORMAT:
        raise _no_library(file, f"it was written by polyfuse {about.get('version')}, in another format")


def _opened(file: Path) -> ctypes.CDLL:
    """The system knows a library by its path: one that was written anew there needs another name."""
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, file.name)
        link.symlink_to(file)
        return ctypes.CDLL(str(link))


def _no_library(file: Path, why: str) -> ToolchainError:
    """What is said of a file that cannot be loaded."""
    hint = "pf.export(f, path) writes one, for processors like that of the machine it runs on"
    return ToolchainError(f"'{file}' is no library of an operator: {why}", code="PF765", hint=hint)


class Loaded(ABC):
    """An operator that `export` wrote; call it like a function. Sizes may be given by keyword.

    It takes NumPy arrays and what converts to such without a copy, on a GPU arrays there as well, and returns
    what the operator returns; inout parameters change. `variants` says which sizes there are kernels for.

    Raises ArgumentError (PF4xx) for arguments that do not fit, PF767 for sizes without kernels.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], variants: Sequence[str]) -> None:
        self.path = path
        self.variants = tuple(variants)
        self.__name__ = self.__qualname__ = about["name"]
        self._text: str = about["text"]
        inputs, results = (tuple(map(_tensor, about[k])) for k in ("inputs", "results"))
        self._graph = TensorGraph(
            about["name"],
            tuple(about["sizes"]),
            tuple(map(_constraint, about["constraints"])),
            (*inputs, *results),
            (),
            tuple(t.name for t in inputs),
            tuple(t.name for t in results),
            size_parameters=tuple(
                SizeParameter(n, None if e is None else _index(e)) for n, e in about["parameters"]
            ),
        )
        self._inputs, self._results = inputs, results

    def __repr__(self) -> str:
        return f"<polyfuse {self._text} from {self.path}>"

    @abstractmethod
    def __call__(self, /, *args: object, **kwargs: object) -> object:
        """The results."""

    @abstractmethod
    def set_threads(self, threads: int) -> int:
        """Use so many threads, the caller included; how many there are. Kernels on a GPU have none."""

    def _no_kernels(self, sizes: Mapping[str, int]) -> ArgumentError:
        told = ", ".join(f"{n} = {v}" for n, v in sizes.items())
        have = "; ".join(self.variants)
        message = f"{self.path.name} has no kernels of {self.__name__} for these sizes or strides: {told}"
        return ArgumentError(message, code="PF767", hint=f"it has kernels for {have}")

    def _given(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Arguments by parameter. Raises ArgumentError PF408."""
        names = [t.name for t in self._inputs]
        if len(args) > len(names):
            message = f"{self.__name__} takes {len(names)} arguments, {len(args)} were given"
            raise ArgumentError(message, code="PF408")
        found = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name in found or name not in (*names, *self._graph.sizes):
                what = "is given twice" if name in found else f"is none of {self._text}"
                raise ArgumentError(f"argument '{name}' {what}", code="PF408")
            if name in names:
                found[name] = value
        for t in self._inputs:
            if t.name not in found and t.default is None:
                raise ArgumentError(f"argument '{t.name}' is missing: {self._text}", code="PF408")
        return {t.name: found.get(t.name, t.default) for t in self._inputs}


class LoadedLibrary(Loaded):
    """One from a library for the CPU."""

    def __init__(self, path: Path, library: ctypes.CDLL, about: Mapping[str, Any]) -> None:
        super().__init__(path, about, about["variants"])
        self._threads = library[f"{about['symbol']}_set_threads"]
        self._function = library[about["symbol"]]
        if about.get("blas"):
            library[f"{about['symbol']}_use_blas"](*_PRODUCTS)

    def set_threads(self, threads: int) -> int:
        return int(self._threads(ctypes.c_int(threads)))

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        given = self._given(args, kwargs)
        named: dict[str, Any] = {n: kwargs[n] for n in kwargs if n in self._graph.sizes}
        arrays: dict[str, Any] = {n: to_numpy(v, n)[0] for n, v in given.items()}
        sizes = bind_sizes(self._graph, {n: np.shape(v) for n, v in arrays.items()}, named)
        memory = {t.name: self._argument(t, arrays[t.name], sizes) for t in self._inputs}
        self._require_apart(memory)
        for t in self._results:
            memory[t.name] = Arena.get().empty(_shape(t, sizes), t.dtype.numpy)
        self._run(sizes, memory)
        made = [memory[t.name] for t in self._results]
        found = [a if a.ndim else a[()] for a in made]
        return None if not found else found[0] if len(found) == 1 else tuple(found)

    def _argument(self, t: Tensor, value: object, sizes: Mapping[str, int]) -> Array:
        array = check_array(t, value, sizes)
        if t.role is Role.INOUT:
            if not (
                isinstance(value, np.ndarray) and value.flags.writeable and usable(array) and dense(array)
            ):
                message = f"argument '{t.name}' is inout: it must be a writable, dense array"
                raise ArgumentError(message, code="PF418")
            return array
        return array if usable(array) and array.ndim else np.array(array, dtype=t.dtype.numpy, order="C")

    def _require_apart(self, memory: dict[str, Array]) -> None:
        """Inputs that share memory with what is written are copied, as calls of compiled functions do."""
        written = [t.name for t in self._inputs if t.role is Role.INOUT]
        for w in written:
            for n, a in memory.items():
                if n == w or not overlaps(memory[w], a):
                    continue
                if n in written:
                    raise ArgumentError(f"inout arguments '{w}' and '{n}' share memory", code="PF418")
                memory[n] = a.copy()

    def _run(self, sizes: Mapping[str, int], memory: Mapping[str, Array]) -> None:
        passed: list[Any] = [ctypes.c_int64(sizes[n]) for n in self._graph.sizes]
        for t in (*self._inputs, *self._results):
            array = memory[t.name]
            if t.role is Role.INPUT and not t.shape:
                passed.append(_by_value(array, t))
                continue
            passed.append(ctypes.c_void_p(array.__array_interface__["data"][0]))
            if t.role is Role.INPUT:
                told = None if dense(array) else element_strides(array)
                passed.append(None if told is None else (ctypes.c_int64 * len(told))(*told))
        status = self._function(*passed)
        if status:
            self._raise(STATUS[status][0], sizes)

    def _raise(self, what: str, sizes: Mapping[str, int]) -> None:
        if what == "no memory":
            raise MemoryError("no memory for the temporaries of a call")
        told = ", ".join(f"{n} = {v}" for n, v in sizes.items())
        if what == "index":
            raise ArgumentError(f"{self.__name__}: an index from data is out of range", code="PF450")
        if what == "sizes":
            raise ArgumentError(f"{self._text} does not take {told}", code="PF407")
        raise self._no_kernels(sizes)


def _multiplied(kind: Any) -> Any:
    """A matrix product as `cblas_sgemm` does it, by NumPy; matrices lie column by column."""

    def multiply(_: int, turn_a: int, turn_b: int, m: int, n: int, k: int, *rest: Any) -> None:
        _, a, lda, b, ldb, _, c, ldc = rest
        left = _turned(a, lda, (m, k), turn_a == _TRANSPOSED, kind)
        right = _turned(b, ldb, (k, n), turn_b == _TRANSPOSED, kind)
        with np.errstate(all="ignore"):
            _turned(c, ldc, (m, n), False, kind)[...] = right @ left

    number, pointer, whole = kind, ctypes.c_void_p, ctypes.c_int
    matrix = (pointer, whole)
    return ctypes.CFUNCTYPE(None, *[whole] * 6, number, *matrix, *matrix, number, *matrix)(multiply)


def _turned(address: int, leading: int, shape: tuple[int, int], transposed: bool, kind: Any) -> Array:
    """The transpose of a matrix of this shape that lies column by column, or row by row if transposed."""
    rows, columns = shape[::-1] if transposed else shape
    memory = (kind * ((columns - 1) * leading + rows)).from_address(address)
    strides = (leading * ctypes.sizeof(kind), ctypes.sizeof(kind))
    found: Array = np.ndarray((columns, rows), np.dtype(kind), memory, strides=strides)
    return found.T if transposed else found


_TRANSPOSED = 112  # as in cblas.h
_PRODUCTS = tuple(map(_multiplied, (ctypes.c_float, ctypes.c_double)))


def _by_value(array: Array, t: Tensor) -> Any:
    """A scalar as C has it: of bool and of short floats the bits."""
    if t.dtype in (F32, F64) or t.dtype.is_integer:
        return np.ctypeslib.as_ctypes_type(t.dtype.numpy)(array.item())
    bits = np.dtype(f"u{t.dtype.bytes}")
    return np.ctypeslib.as_ctypes_type(bits)(array.view(bits).item())


def _shape(t: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(e, sizes) for e in t.shape)


def _tensor(about: Mapping[str, Any]) -> Tensor:
    shape = tuple(map(_index, about["shape"]))
    dtype, role = BY_NAME[about["dtype"]], Role(about["role"])
    return Tensor(about["name"], dtype, shape, role, default=about.get("default"))


def _constraint(about: Sequence[Any]) -> Constraint:
    """A condition of sizes from JSON."""
    op, left, right = about
    return Constraint(op, _index(left), _index(right))


def _index(e: Any) -> IndexExpr:
    """An index expression from JSON."""
    if isinstance(e, int):
        return IConst(e)
    if isinstance(e, str):
        return ISize(e)
    op, left, right = e
    return IBin(op, _index(left), _index(right))


# --- machine code of a GPU -------------------------------------------------------------------------------


MOST_SIZES = 512
"""Choices of sizes that a function remembers launches for."""


def _grids(file: Path) -> LoadedGrids:
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        cubins = {v["cubin"]: file.with_name(v["cubin"]).read_bytes() for v in about["variants"]}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise _no_library(file, str(e)) from None
    _require_format(file, about)
    driver = open_driver()
    _require_arch(file, about["arch"], driver)
    return LoadedGrids(file, about, cubins, driver)


def _require_arch(file: Path, made_for: str, driver: Driver) -> None:
    """Machine code runs on GPUs of its major version, from its minor one on."""
    major, minor = driver.properties.capability
    number = int("".join(c for c in made_for if c.isdigit()))
    if number // 10 != major or number % 10 > minor:
        message = f"'{file}' has machine code for {made_for}, and this GPU is {driver.properties.arch}"
        hint = f"export it for this one: Options(device='{driver.properties.arch}')"
        raise DeviceError(message, code="PF781", hint=hint)


@dataclass
class _Variant:
    """Kernels for a region of sizes. `executable` is at the sizes that came first."""

    fixed: Mapping[str, int]
    conditions: tuple[Constraint, ...]
    strided: frozenset[str]
    plan: GridPlan
    cubin: bytes
    executable: CudaExecutable | None = field(default=None, repr=False)

    def has(self, sizes: Mapping[str, int], strided: frozenset[str]) -> bool:
        """Is a call with these sizes, and inputs of any strides, one of its own?"""
        known = all(sizes[n] == v for n, v in self.fixed.items()) and strided <= self.strided
        return known and all(holds(c, sizes) for c in self.conditions)

    def at(self, sizes: Mapping[str, int], driver: Driver) -> CudaExecutable:
        """Its kernels at these sizes."""
        mine = {n: sizes[n] for n in self.plan.sizes}
        if self.executable is None:
            self.executable = CudaExecutable(CudaCode("", self.plan, ()), self.cubin, mine, driver)
        return self.executable if self.executable.sizes == mine else self.executable.at(mine)


class LoadedGrids(Loaded):
    """One for a GPU."""

    def __init__(
        self, path: Path, about: Mapping[str, Any], cubins: Mapping[str, bytes], driver: Driver
    ) -> None:
        super().__init__(path, about, [v["about"] for v in about["variants"]])
        self._driver = driver
        self._variants = [_variant(v, cubins) for v in about["variants"]]
        self._executables: dict[object, CudaExecutable] = {}

    def set_threads(self, threads: int) -> int:
        return 1

    def __call__(self, /, *args: object, out: object = None, **kwargs: object) -> object:
        named: dict[str, Any] = {n: kwargs[n] for n in kwargs if n in self._graph.sizes}
        given = given_on_gpu(self._given(args, kwargs))
        sizes = bind_sizes(self._graph, {n: np.shape(v) for n, v in given.values.items()}, named)
        for t in self._inputs:
            view = given.values[t.name]
            if isinstance(view, DeviceView):
                check_fits(t, view.dtype, view.shape, sizes)
        executable = self._executable(sizes, _strided(given.values))
        call = GpuCallMemory(self._instance(executable, sizes), given, out)
        call.begin()
        if not self._writes_nothing(sizes):
            executable.run(call.arrays)
        for store in call.finish:
            store()
        return call.results()

    def _executable(self, sizes: Mapping[str, int], strided: frozenset[str]) -> CudaExecutable:
        key = (tuple(sizes.items()), strided)
        if key not in self._executables:
            check_constraints(self._graph, sizes)
            fitting = [v for v in self._variants if v.has(sizes, strided)]
            variant = next(iter(self._variants if self._writes_nothing(sizes) else fitting), None)
            if variant is None:
                raise self._no_kernels(sizes)
            if len(self._executables) >= MOST_SIZES:
                self._executables.clear()
            self._executables[key] = variant.at(sizes, self._driver)
        return self._executables[key]

    def _writes_nothing(self, sizes: Mapping[str, int]) -> bool:
        """Has all that is written no elements?"""
        written = [*self._results, *(t for t in self._inputs if t.role is Role.INOUT)]
        return all(0 in _shape(t, sizes) for t in written)

    def _instance(self, executable: CudaExecutable, sizes: Mapping[str, int]) -> Instance:
        built: Any = SimpleNamespace(executable=executable)
        none: Any = None
        outputs = tuple((t, tuple(evaluate(e, sizes) for e in t.shape)) for t in self._results)
        in_place = tuple((b.name, b.alias) for b in executable.plan.buffers if b.alias is not None)
        return Instance(built, self._inputs, outputs, in_place, sizes, {}, none)


def _strided(values: Mapping[str, Any]) -> frozenset[str]:
    """Arrays on the device whose strides kernels have to take; host memory becomes dense on its way there."""
    views = {n: v for n, v in values.items() if isinstance(v, DeviceView)}
    return frozenset(n for n, v in views.items() if not v.dense)


def _variant(about: Mapping[str, Any], cubins: Mapping[str, bytes]) -> _Variant:
    plan = GridPlan(
        tuple(map(_buffer, about["buffers"])),
        tuple(map(_launch, about["launches"])),
        tuple((n, nbytes) for n, nbytes in about["alignment"]),
        tuple(about["open"]),
        tuple(about["copied"]),
    )
    conditions = tuple(map(_constraint, about["conditions"]))
    return _Variant(about["sizes"], conditions, frozenset(about["strided"]), plan, cubins[about["cubin"]])


def _buffer(about: Mapping[str, Any]) -> PlanBuffer:
    shape, live = tuple(map(_index, about["shape"])), about["live"]
    return PlanBuffer(
        about["name"],
        BY_NAME[about["dtype"]],
        shape,
        Kind(about["kind"]),
        about["strided"],
        about["alias"],
        live and tuple(live),
    )


def _launch(about: Mapping[str, Any]) -> GridLaunch:
    x, y = about["threads"]
    return GridLaunch(
        about["function"],
        about["kernel"],
        _index(about["blocks"]),
        (x, y),
        about["shared"],
        tuple(Argument(Passing(how), name, dim) for how, name, dim in about["arguments"]),
        about["cooperative"],
        about["dynamic"],
    )
