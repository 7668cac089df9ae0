"""A compiled operator as a Python function: NumPy (or torch) in and out, one executable per shape.

A call binds arguments to parameters, infers generics and sizes, and looks up the executable for this
combination of dtypes, shapes and layouts; the first call of a combination compiles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyfuse.diagnostics import ArgumentError
from polyfuse.frontend_dsl import ast
from polyfuse.frontend_dsl.bind import bind_sizes
from polyfuse.frontend_dsl.build_graph import instantiate
from polyfuse.frontend_dsl.signature import Signature, infer_generics
from polyfuse.interop.arrays import to_numpy
from polyfuse.ir.dtypes import DType, from_numpy
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.tensor_graph import Role, Tensor, TensorGraph
from polyfuse.layers.loop_fusion import LoopFusion
from polyfuse.layers.stitching import Stitching
from polyfuse.options import Options
from polyfuse.pipeline import Built, build
from polyfuse.runtime.arena import Arena
from polyfuse.runtime.arguments import (
    Array,
    check_array,
    dense,
    meets_itself,
    overlaps,
    share_elements,
    usable,
)
from polyfuse.runtime.cpu import CpuExecutable
from polyfuse.runtime.quick import QuickCall, layout

Back = Callable[[Array], object]
MOST_LAYOUTS = 64
"""Layouts of one operator that are remembered for the short way."""


@dataclass(frozen=True, slots=True)
class _Instance:
    """One executable with what a call needs to know about its tensors."""

    built: Built
    inputs: tuple[Tensor, ...]
    outputs: tuple[tuple[Tensor, tuple[int, ...]], ...]
    in_place: tuple[tuple[str, str], ...]  # (written tensor, inout parameter)
    sizes: Mapping[str, int]


class Compiled:
    """An operator compiled for a target; call it like a function.

    Positional and keyword arguments follow the operator's signature; scalars may be left out where they
    have defaults.  `out=` takes an array, or a tuple or dict of arrays, for the results.  Results are
    NumPy arrays, or torch tensors where an argument was one; several results come as a tuple, an operator
    with inout parameters only returns None.

    Raises ArgumentError (PF4xx) for arguments that do not fit, DslError for sizes at which the program
    reads out of range, ToolchainError (PF7xx) without a compiler.
    """

    def __init__(
        self,
        programs: tuple[ast.Program, ...],
        signature: Signature,
        *,
        target: str,
        fusion: LoopFusion | None,
        stitching: Stitching | None,
        options: Options,
    ) -> None:
        self.signature = signature
        self.target = target
        self.options = options
        self._programs = programs
        self._fusion = fusion
        self._stitching = stitching
        self._instances: dict[object, _Instance] = {}
        self._graphs: dict[object, TensorGraph] = {}
        self._lock = threading.RLock()
        self._quick: dict[object, QuickCall] = {}
        self._defaults = tuple(p.default for p in signature.params)

    def __repr__(self) -> str:
        return f"<polyfuse {self.signature} for {self.target}>"

    def __call__(self, /, *args: object, out: object = None, **kwargs: object) -> object:
        if out is None and not kwargs and len(args) <= len(self._defaults):
            given = args + self._defaults[len(args) :]
            key = layout(given)
            quick = self._quick.get(key) if key else None
            results = quick(given) if quick else None
            if results is not None:
                return None if not results else results[0] if len(results) == 1 else tuple(results)
        values, back = self._values(args, kwargs)
        instance = self._instance(values)
        arrays, finish = self._arrays(instance, values, out)
        if out is None and not finish:
            self._learn(instance, list(values.values()))
        instance.built.executable.run(arrays)
        for store in finish:
            store()
        return self._results(instance, arrays, back, out)

    def bind(self, /, *args: object, out: object = None, **kwargs: object) -> Callable[[], object]:
        """A prepared call on fixed memory: `g = f.bind(x, out=y); g()`.

        Arguments are checked once; afterwards `g` reads and writes the same arrays each time and
        returns the results.  Use it from one thread at a time.
        """
        values, back = self._values(args, kwargs)
        instance = self._instance(values)
        arrays, finish = self._arrays(instance, values, out)
        if finish or any(_is_copied(v, arrays[n]) for n, v in values.items()):
            raise ArgumentError(
                "these arrays cannot be bound: the kernels cannot use their memory directly "
                "(byte order, alignment, layout of out=, or out= overlapping an input)",
                code="PF418",
                hint="pass dense, aligned arrays that do not overlap",
            )
        run = instance.built.executable.bind(arrays)
        results = self._results(instance, arrays, back, out)
        scalars = any(not shape for _, shape in instance.outputs)

        def bound() -> object:
            run()
            # A result of rank 0 is a number, made anew; the others are the same arrays each time.
            return self._results(instance, arrays, back, out) if scalars else results

        return bound

    def _learn(self, instance: _Instance, values: list[object]) -> None:
        """Remember a layout that has passed all checks for the short way (`runtime.quick`)."""
        executable = instance.built.executable
        key = layout(values)
        if key and isinstance(executable, CpuExecutable) and QuickCall.fits(executable, values):
            results = [(t.name, shape) for t, shape in instance.outputs]
            if len(self._quick) < MOST_LAYOUTS:
                names = [t.name for t in instance.inputs]
                self._quick[key] = QuickCall(executable, names, values, results)

    # --- stages for those who look ---------------------------------------------------------------------

    def built(self, /, *args: object, **kwargs: object) -> Built:
        """What was compiled for these arguments (schedule, kernels, source, decisions, seconds)."""
        return self._instance(self._values(args, kwargs)[0]).built

    def explain(self, /, *args: object, **kwargs: object) -> str:
        """Every decision of the compiler for these arguments, one a line."""
        return "\n".join(map(str, self.built(*args, **kwargs).decisions))

    # --- arguments ---------------------------------------------------------------------------------------

    def _values(
        self, args: tuple[object, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Back | None]:
        """Parameter name -> NumPy value, in order of the signature; and how results go back."""
        params = self.signature.params
        if len(args) > len(params):
            raise ArgumentError(
                f"{self.signature.name} takes {len(params)} arguments, {len(args)} were given", code="PF408"
            )
        given: dict[str, Any] = {p.name: a for p, a in zip(params, args, strict=False)}
        for name, value in kwargs.items():
            if name in given:
                raise ArgumentError(f"argument '{name}' is given twice", code="PF408")
            if all(p.name != name for p in params):
                names = ", ".join(p.name for p in params)
                raise ArgumentError(
                    f"{self.signature.name} has no parameter '{name}'", code="PF408", hint=f"it has {names}"
                )
            given[name] = value
        back: Back | None = None
        values: dict[str, Any] = {}
        for p in params:
            if p.name not in given and not p.has_default:
                raise ArgumentError(f"argument '{p.name}' is missing: {self.signature}", code="PF408")
            value = given.get(p.name, p.default)
            values[p.name], mine = to_numpy(value, p.name)
            back = back or mine
        return values, back

    def _instance(self, values: Mapping[str, Any]) -> _Instance:
        key = tuple(map(_layout, values.values()))
        found = self._instances.get(key)
        if found is None:
            with self._lock:
                found = self._instances.get(key) or self._compile(values)
                self._instances[key] = found
        return found

    def _compile(self, values: Mapping[str, Any]) -> _Instance:
        graph = self._graph(values)
        shapes = {n: np.shape(v) for n, v in values.items()}
        sizes = bind_sizes(graph, shapes)
        strided = frozenset(
            n for n, v in values.items() if isinstance(v, np.ndarray) and not dense(v) and usable(v)
        )
        fusion = self._fusion
        if fusion is not None and strided:
            fusion = replace(fusion, strided=tuple(sorted(strided)))
        built = build(
            graph,
            sizes,
            target=self.target,
            fusion=fusion,
            stitching=self._stitching,
            options=self.options,
            strided=strided if self.target != "interpret" else frozenset(),
        )
        outputs = tuple(
            (t, tuple(evaluate(e, sizes) for e in t.shape)) for t in map(graph.tensor, graph.outputs)
        )
        pairs = tuple((t.name, t.alias) for t in graph.tensors if t.alias is not None)
        return _Instance(built, tuple(map(graph.tensor, graph.inputs)), outputs, pairs, sizes)

    def _graph(self, values: Mapping[str, Any]) -> TensorGraph:
        dtypes: dict[str, DType] = {}
        arrays = {p.dtype for p in self.signature.params if isinstance(values[p.name], np.ndarray)}
        generics_names = {n for n, _ in self.signature.generics}
        for p in self.signature.params:
            name, value = p.name, values[p.name]
            # A NumPy scalar says what a generic is only where no array does; else it is like a Python number.
            strong = p.dtype in generics_names and p.dtype not in arrays
            if isinstance(value, np.ndarray) or (isinstance(value, np.generic) and strong):
                found = from_numpy(value.dtype.newbyteorder("="))
                if found is None:
                    raise ArgumentError(
                        f"argument '{name}' has dtype {value.dtype}, which the language does not have",
                        code="PF402",
                    )
                dtypes[name] = found
        generics = infer_generics(
            self.signature,
            dtypes,
            {n: np.ndim(v) for n, v in values.items()},
        )
        key = (tuple(generics.dtypes.items()), tuple(generics.ranks.items()))
        if key not in self._graphs:
            self._graphs[key] = instantiate(
                self._programs, self.signature.name, dtypes=generics.dtypes, ranks=generics.ranks
            )
        return self._graphs[key]

    # --- memory --------------------------------------------------------------------------------------------

    def _arrays(
        self, instance: _Instance, values: Mapping[str, Any], out: object
    ) -> tuple[dict[str, Array], list[Callable[[], None]]]:
        """Memory of every argument and result, and what to copy back after the run."""
        arrays: dict[str, Array] = {}
        finish: list[Callable[[], None]] = []
        for t in instance.inputs:
            array = check_array(t, values[t.name], instance.sizes)
            if t.role is Role.INOUT:
                array = self._inout(t, values[t.name], array, finish)
            elif not usable(array):
                array = np.array(array, dtype=t.dtype.numpy, order="C")
            arrays[t.name] = array
        _separate(instance.inputs, arrays)
        given = _given_outputs(out, [t for t, _ in instance.outputs])
        for t, shape in instance.outputs:
            arrays[t.name] = self._output(t, shape, given.get(t.name), arrays, finish)
        for written, parameter in instance.in_place:
            arrays[written] = arrays[parameter]
        return arrays, finish

    def _inout(self, t: Tensor, value: object, array: Array, finish: list[Callable[[], None]]) -> Array:
        if not isinstance(value, np.ndarray) or not value.flags.writeable:
            raise ArgumentError(f"argument '{t.name}' is inout: it must be a writable array", code="PF418")
        if meets_itself(array):
            raise ArgumentError(f"elements of the inout argument '{t.name}' share memory", code="PF418")
        if usable(array):
            return array
        copy = np.array(array, dtype=t.dtype.numpy, order="C")
        finish.append(lambda: np.copyto(value, copy))
        return copy

    def _output(
        self,
        t: Tensor,
        shape: tuple[int, ...],
        given: Array | None,
        arrays: Mapping[str, Array],
        finish: list[Callable[[], None]],
    ) -> Array:
        if given is None:
            return Arena.get().empty(shape, t.dtype.numpy)
        if given.shape != shape or given.dtype != t.dtype.numpy or not given.flags.writeable:
            raise ArgumentError(
                f"out= for '{t.name}' must be a writable array of shape {shape} and dtype {t.dtype}, "
                f"not {given.dtype}{list(given.shape)}",
                code="PF418",
            )
        if dense(given) and usable(given) and not any(overlaps(given, a) for a in arrays.values()):
            return given
        fresh = Arena.get().empty(shape, t.dtype.numpy)
        finish.append(lambda: np.copyto(given, fresh))
        return fresh

    def _results(
        self, instance: _Instance, arrays: Mapping[str, Array], back: Back | None, out: object
    ) -> object:
        given = _named_outputs(out, [t for t, _ in instance.outputs])
        results = []
        for t, _ in instance.outputs:
            array = arrays[t.name]
            if given.get(t.name) is not None:
                results.append(given[t.name])  # what came in goes out, the same object
            else:
                results.append(back(array) if back else array if t.shape else array[()])
        return None if not results else results[0] if len(results) == 1 else tuple(results)


def _is_copied(value: object, array: Array) -> bool:
    """Does an argument live elsewhere than in the caller's array?"""
    if not isinstance(value, np.ndarray):
        return False
    here, there = (a.__array_interface__["data"][0] for a in (value, array))
    return bool(here != there)


def _layout(value: Any) -> object:
    """What an executable depends on: dtype, shape, and whether memory is dense."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.flags.c_contiguous, value.flags.aligned
    if isinstance(value, np.generic):
        return value.dtype, ()
    return np.shape(value)


def _separate(inputs: tuple[Tensor, ...], arrays: dict[str, Array]) -> None:
    """Copy inputs that share memory with an inout parameter: kernels assume that nothing else changes.

    Raises ArgumentError PF418 where two inout parameters overlap: the result would have no meaning.
    """
    for t in inputs:
        if t.role is not Role.INOUT:
            continue
        for other in inputs:
            if other.name == t.name or not overlaps(arrays[t.name], arrays[other.name]):
                continue
            if other.role is Role.INOUT:
                if not share_elements(arrays[t.name], arrays[other.name]):
                    continue
                both = f"inout arguments '{t.name}' and '{other.name}'"
                raise ArgumentError(f"{both} share memory", code="PF418", span=other.span)
            arrays[other.name] = arrays[other.name].copy(order="K")


def _named_outputs(out: object, outputs: list[Tensor]) -> dict[str, Any]:
    """`out=` as name -> what was given. Raises ArgumentError PF418 if it does not fit the results."""
    if out is None:
        return {}
    if isinstance(out, Mapping):
        pairs = dict(out)
    elif isinstance(out, (tuple, list)):
        if len(out) != len(outputs):
            raise ArgumentError(f"out= has {len(out)} arrays for {len(outputs)} results", code="PF418")
        pairs = {t.name: a for t, a in zip(outputs, out, strict=True)}
    elif len(outputs) == 1:
        pairs = {outputs[0].name: out}
    else:
        raise ArgumentError(f"out= must be a tuple or dict: there are {len(outputs)} results", code="PF418")
    known = {t.name for t in outputs}
    for name in pairs:
        if name not in known:
            raise ArgumentError(f"out= names '{name}', which is no result", code="PF418")
    return pairs


def _given_outputs(out: object, outputs: list[Tensor]) -> dict[str, Array]:
    """`out=` as name -> NumPy array."""
    result: dict[str, Array] = {}
    for name, value in _named_outputs(out, outputs).items():
        if value is None:
            continue
        array, _ = to_numpy(value, name)
        if not isinstance(array, np.ndarray):
            raise ArgumentError(f"out= for '{name}' must be an array", code="PF418")
        result[name] = array
    return result
