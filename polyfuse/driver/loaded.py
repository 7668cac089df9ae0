"""An exported operator as a Python function: `pf.load`. Nothing is compiled; the program is not needed."""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyfuse.codegen.cpu.exported import STATUS
from polyfuse.codegen.interface import FORMAT
from polyfuse.diagnostics import ArgumentError, ToolchainError
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.interop.arrays import to_numpy
from polyfuse.ir.dtypes import BY_NAME, F32, F64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, evaluate
from polyfuse.ir.tensor_graph import Constraint, Role, SizeParameter, Tensor, TensorGraph
from polyfuse.runtime.arguments import Array, check_array, dense, element_strides, overlaps, usable
from polyfuse.runtime.cpu.memory import Arena

_SELF = "polyfuse_library"


def load(path: str | os.PathLike[str]) -> Loaded:
    """The operator of a library that `export` wrote, as a function of arrays.

    Raises ToolchainError PF765 for a file that is no such library.
    """
    file = Path(path)
    if file.suffix == ".json":
        from polyfuse.driver.loaded_grids import load_grids  # only where there are kernels on a GPU

        return load_grids(file)
    try:
        library = _opened(file.resolve(strict=True))
        text = ctypes.c_char_p(ctypes.addressof(ctypes.c_char.in_dll(library, _SELF))).value
    except (OSError, ValueError) as e:
        raise no_library(file, str(e)) from None
    about = json.loads(text or b"{}")
    require_format(file, about)
    return LoadedLibrary(file, library, about)


def require_format(file: Path, about: Mapping[str, Any]) -> None:
    """Raises ToolchainError PF765 for what another polyfuse has written in another way."""
    if about.get("polyfuse") != FORMAT:
        raise no_library(file, f"it was written by polyfuse {about.get('version')}, in another format")


def _opened(file: Path) -> ctypes.CDLL:
    """The system knows a library by its path: one that was written anew there needs another name."""
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, file.name)
        link.symlink_to(file)
        return ctypes.CDLL(str(link))


def no_library(file: Path, why: str) -> ToolchainError:
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
            tuple(map(constraint, about["constraints"])),
            (*inputs, *results),
            (),
            tuple(t.name for t in inputs),
            tuple(t.name for t in results),
            size_parameters=tuple(
                SizeParameter(n, None if e is None else index(e)) for n, e in about["parameters"]
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


def _by_value(array: Array, t: Tensor) -> Any:
    """A scalar as C has it: of bool and of short floats the bits."""
    if t.dtype in (F32, F64) or t.dtype.is_integer:
        return np.ctypeslib.as_ctypes_type(t.dtype.numpy)(array.item())
    bits = np.dtype(f"u{t.dtype.bytes}")
    return np.ctypeslib.as_ctypes_type(bits)(array.view(bits).item())


def _shape(t: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(e, sizes) for e in t.shape)


def _tensor(about: Mapping[str, Any]) -> Tensor:
    shape = tuple(map(index, about["shape"]))
    dtype, role = BY_NAME[about["dtype"]], Role(about["role"])
    return Tensor(about["name"], dtype, shape, role, default=about.get("default"))


def constraint(about: Sequence[Any]) -> Constraint:
    """A condition of sizes from JSON."""
    op, left, right = about
    return Constraint(op, index(left), index(right))


def index(e: Any) -> IndexExpr:
    """An index expression from JSON."""
    if isinstance(e, int):
        return IConst(e)
    if isinstance(e, str):
        return ISize(e)
    op, left, right = e
    return IBin(op, index(left), index(right))
