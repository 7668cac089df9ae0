"""Memory of a call: arguments and results by name, as kernels get them and as the caller has them.

`CallMemory` places what lies on the host; the last part is about what lies on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyfuse.diagnostics import ArgumentError, PolyfuseError
from polyfuse.driver.open_sizes import Family
from polyfuse.driver.stages import BuiltStages
from polyfuse.frontend_dsl.semantics.signature import Signature, conversion
from polyfuse.interop.array_families import array_family
from polyfuse.interop.arrays import readable, to_numpy, widened
from polyfuse.interop.device_arrays import ResultKind, empty_result, result_kind, to_device
from polyfuse.interop.torch_tensors import is_torch, require_memory, write_tensors
from polyfuse.ir.dtypes import BF16, I64, DType, from_numpy
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import Scope
from polyfuse.ir.launch_plan import Kind
from polyfuse.ir.layouts import Layouts
from polyfuse.ir.tensor_graph import Role, Tensor, TensorGraph
from polyfuse.layers.graph.reindex.axis_order import memory_order
from polyfuse.runtime.arguments import (
    Array,
    check_array,
    dense,
    meets_itself,
    overlaps,
    share_elements,
    usable,
)
from polyfuse.runtime.cpu.memory import Arena
from polyfuse.runtime.cuda.arguments import DeviceView, shadow
from polyfuse.runtime.cuda.call import Job
from polyfuse.runtime.cuda.executable import CudaExecutable
from polyfuse.runtime.cuda.fast_path import bound_call
from polyfuse.runtime.interpreter.interpreter import InterpretedKernels
from polyfuse.runtime.machine.room import Wanted, no_room, require_room
from polyfuse.runtime.numpy_baseline import NumpyKernels

Back = Callable[[Array], object]
_NO_ARRAYS = (str, bytes, Mapping, Set)


@dataclass(frozen=True, slots=True)
class Given:
    """Arguments of a call by parameter, in order of the signature: NumPy values, numbers, views of a GPU's
    memory.  `back` is how results on the host go back, `kind` where results belong, `tensors` the arguments
    that are tensors of torch; `copied`: some are copies of what the caller has."""

    values: Mapping[str, Any]
    back: Back | None
    kind: ResultKind = "numpy"
    tensors: Mapping[str, Any] = field(default_factory=dict)
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """One executable with what a call needs to know about its tensors."""

    built: BuiltStages
    inputs: tuple[Tensor, ...]
    outputs: tuple[tuple[Tensor, tuple[int, ...]], ...]
    in_place: tuple[tuple[str, str], ...]  # (written tensor, inout parameter)
    sizes: Mapping[str, int]
    orders: Mapping[str, tuple[int, ...]]
    """Axes of inputs as they lie in memory and kernels read them, where that is another order."""
    family: Family
    """The variants of these types and layouts."""

    @property
    def temporaries(self) -> list[Wanted]:
        """What kernels keep in memory between them."""
        machine, found = self.built.executable, []
        if isinstance(machine, NumpyKernels):
            return []
        if isinstance(machine, InterpretedKernels):
            kept = [b for k in machine.kernels.kernels for b in k.buffers if b.scope is Scope.GLOBAL]
            temps = {t.name for t in machine.kernels.graph.tensors if t.role is Role.TEMP}
            found = [(b.tensor, b.dtype, b.shape) for b in kept if b.tensor in temps]
        else:
            found = [(b.name, b.dtype, b.shape) for b in machine.plan.buffers if b.kind is Kind.WORKSPACE]
        spans = {t.name: t.span for t in self.built.compilation.graph.tensors}
        shapes = {name: tuple(max(0, evaluate(e, self.sizes)) for e in shape) for name, _, shape in found}
        return [Wanted(n, dtype, shapes[n], spans.get(n)) for n, dtype, _ in dict.fromkeys(found)]

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raises HostMemoryError PF423 where memory for temporaries is not to be had."""
        try:
            yield
        except MemoryError as error:
            temporaries = self.temporaries
            if isinstance(error, PolyfuseError) or not temporaries:
                raise
            raise no_room(temporaries, "a temporary,") from error


def layout_of(value: Any) -> object:
    """What an executable depends on: dtype, shape, and whether memory is dense."""
    if isinstance(value, np.ndarray):
        flags = value.flags
        order = None if flags.c_contiguous else memory_order(value.shape, value.strides)
        dense_so = flags.c_contiguous or (order is not None and value.transpose(order).flags.c_contiguous)
        return value.dtype, value.shape, dense_so, order, flags.aligned
    if isinstance(value, DeviceView):
        if value.dense:  # as dense memory of the host, which is copied to such
            return value.dtype, value.shape, True, True
        return value.dtype, value.shape, "strided", all(s % value.dtype.itemsize == 0 for s in value.strides)
    if isinstance(value, np.generic):
        return value.dtype, ()
    return np.shape(value)


def by_name(signature: Signature, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Parameter name -> value, in order of the signature. Raises ArgumentError PF408."""
    params = signature.params
    if len(args) > len(params):
        raise ArgumentError(
            f"{signature.name} takes {len(params)} arguments, {len(args)} were given", code="PF408"
        )
    given: dict[str, Any] = {p.name: a for p, a in zip(params, args, strict=False)}
    for name, value in kwargs.items():
        if name in given:
            raise ArgumentError(f"argument '{name}' is given twice", code="PF408")
        if all(p.name != name for p in params):
            names = ", ".join([*(p.name for p in params), *(s.name for s in signature.size_params)])
            raise ArgumentError(
                f"{signature.name} has no parameter '{name}'", code="PF408", hint=f"it has {names}"
            )
        given[name] = value
    for p in params:
        if p.name not in given and not p.has_default and not p.optional:
            raise ArgumentError(f"argument '{p.name}' is missing: {signature}", code="PF408")
    return {p.name: given.get(p.name, p.default) for p in params}


def dtypes_of(signature: Signature, values: Mapping[str, Any]) -> dict[str, DType]:
    """The dtypes of the arguments that have one. Raises ArgumentError PF402 for one that there is not."""
    dtypes: dict[str, DType] = {}
    kinds = (np.ndarray, DeviceView)
    arrays = {p.dtype for p in signature.params if isinstance(values[p.name], kinds)}
    generics_names = {n for n, _ in signature.generics}
    for p in signature.params:
        name, value = p.name, values[p.name]
        # A NumPy scalar says what a generic is only where no array does; else it is like a Python number.
        strong = p.dtype in generics_names and p.dtype not in arrays
        if isinstance(value, kinds) or (isinstance(value, np.generic) and strong):
            found = from_numpy(value.dtype.newbyteorder("="))
            if found is None:
                raise ArgumentError(
                    f"argument '{name}' has dtype {value.dtype}, which the language does not have",
                    code="PF402",
                    span=p.span,
                    hint=conversion(p) if value.dtype.kind in "iuf" else None,
                )
            dtypes[name] = found
    return dtypes


def taken(signature: Signature, values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of kinds that operators take: narrower integers for an array of i64 are widened.

    Raises ArgumentError PF425 for what is neither an array nor a number.
    """
    found: dict[str, Any] = {}
    for p in signature.params:
        value = values[p.name]
        if value is None or isinstance(value, _NO_ARRAYS):
            what = "None" if value is None else f"a {type(value).__name__}"
            kind = "a number" if p.is_scalar else "an array"
            raise ArgumentError(
                f"argument '{p.name}' is {what}; {kind} is expected: {p}",
                code="PF425",
                span=p.span,
                hint=f"leave it out: its default is {p.default}" if p.has_default else None,
            )
        found[p.name] = widened(value) if p.dtype == I64.name and p.extents and not p.inout else value
    return found


def layouts_of(graph: TensorGraph, values: Mapping[str, Any], target: str) -> Layouts:
    """How the memory of arguments lies, as kernels of a target take it."""
    orders = _orders(graph, values) if target == "cpu" else {}
    strided = (n for n, v in values.items() if _is_strided(v, orders.get(n), target))
    return Layouts(frozenset(strided), orders)


def _orders(graph: TensorGraph, values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """In which order the axes of arrays lie in memory, where kernels of the CPU may know: of what they read
    alone. Kernels of a GPU take strides."""
    kept = [n for n in graph.inputs if graph.tensor(n).role is Role.INPUT]
    arrays = {n: v for n in kept if isinstance(v := values[n], np.ndarray) and usable(v)}
    found = {n: memory_order(v.shape, v.strides) for n, v in arrays.items()}
    return {n: order for n, order in found.items() if order is not None}


def _is_strided(value: object, order: tuple[int, ...] | None, target: str) -> bool:
    """Do kernels take an argument's own strides? Host memory becomes dense on its way to a GPU."""
    if isinstance(value, DeviceView):
        return not value.dense and all(s % value.dtype.itemsize == 0 for s in value.strides)
    if not isinstance(value, np.ndarray) or target == "cuda":
        return False
    return usable(value) and not dense(value if order is None else value.transpose(order))


def given_on_host(values: Mapping[str, Any]) -> Given:
    """Arguments for kernels on the CPU.

    Raises ArgumentError PF417 for arrays on a GPU, PF420 or PF421 for those that are more than their memory.
    """
    found: dict[str, Any] = {}
    back: Back | None = None
    for name, value in values.items():
        found[name], mine = to_numpy(value, name)
        back = back or mine
    return Given(found, back, tensors=tensors_of(values))


def tensors_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are tensors of torch."""
    return {n: v for n, v in values.items() if is_torch(v)}


class CallMemory:
    """Memory of every argument and result of one call, all of it on the host.

    Raises ArgumentError PF401, PF402, PF405 or PF418 for what does not fit, HostMemoryError PF423 for results
    that memory cannot hold.
    """

    def __init__(self, instance: Instance, given: Given, out: object) -> None:
        self.instance, self.given = instance, given
        self.arrays: dict[str, Any] = {}
        """For the executable: the memory of each argument and result."""
        self.finish: list[Callable[[], None]] = []
        """What to copy back after the run."""
        outputs = [t for t, _ in instance.outputs]
        self.out = {n: a for n, a in named_outputs(out, outputs).items() if a is not None}
        """By name, what was given for results."""
        self.made: dict[str, Any] = {}
        """Of these, what was made here, where results lie on a GPU."""
        self._tensors = {**given.tensors, **tensors_of(self.out)}
        changed = (*(t.name for t in instance.inputs if t.role is Role.INOUT), *self.out)
        self._written = [n for n in changed if n in self._tensors]
        for t in instance.inputs:
            array = self._argument(t, given.values[t.name])
            order = instance.orders.get(t.name)
            self.arrays[t.name] = array if order is None else array.transpose(order)
        self._separate()
        taken = {t.name: self.arrays[t.name] for t in instance.inputs if t.role is Role.INOUT}
        self._require_room()
        for t, shape in instance.outputs:
            given_out = self._given_output(t.name)
            if given_out is None:
                self.arrays[t.name] = self._fresh(t, shape)
            else:
                self.arrays[t.name] = self._output(t, shape, given_out)
                require_apart(t, given_out, taken)
                taken[t.name] = given_out
        for written, parameter in instance.in_place:
            self.arrays[written] = self.arrays[parameter]

    def begin(self) -> None:
        """Before each run: torch is told which of its tensors are written."""
        write_tensors({n: self._tensors[n] for n in self._written})

    def begin_again(self) -> None:
        """As `begin`, where tensors were looked at long ago: they may have come to require grad."""
        for name, tensor in self._tensors.items():
            require_memory(tensor, name)
        self.begin()

    @property
    def has_tensors(self) -> bool:
        """Are there tensors of torch, so that `begin_again` does something?"""
        return bool(self._tensors)

    def results(self) -> object:
        """What the call returns. Of rank 0 it is a number, which is there only after the run."""
        # What came in as out= goes out, the same object.
        found = [
            self.out[t.name] if t.name in self.out else self._result(t) for t, _ in self.instance.outputs
        ]
        return None if not found else found[0] if len(found) == 1 else tuple(found)

    @property
    def bindable(self) -> bool:
        """Do kernels use the caller's own memory, so that they may run on it again?"""
        values = self.given.values
        return not (self.finish or self.given.copied) and not any(
            _is_copied(v, self.arrays[n]) for n, v in values.items()
        )

    # --- each argument, each result ------------------------------------------------------------------------

    def _argument(self, t: Tensor, value: Any) -> Any:
        array = check_array(t, value, self.instance.sizes)
        if t.role is Role.INOUT:
            return self._inout(t, value, array)
        return array if usable(array) else np.array(array, dtype=t.dtype.numpy, order="C")

    def _inout(self, t: Tensor, value: object, array: Array) -> Array:
        require_writable(t, isinstance(value, np.ndarray) and value.flags.writeable, array)
        if usable(array):
            return array
        assert isinstance(value, np.ndarray)
        mine, copy = value, np.array(array, dtype=t.dtype.numpy, order="C")
        self.finish.append(lambda: np.copyto(mine, copy))
        return copy

    def _given_output(self, name: str) -> Any:
        """The memory given for a result, None if the call makes it."""
        if name not in self.out:
            return None
        array, _ = to_numpy(self.out[name], name)
        if not isinstance(array, np.ndarray):
            raise ArgumentError(f"out= for '{name}' must be an array", code="PF418")
        return array

    def _output(self, t: Tensor, shape: tuple[int, ...], given: Any) -> Any:
        require_output(t, shape, given, given.flags.writeable, given)
        if dense(given) and usable(given) and not any(overlaps(given, a) for a in self._on_host().values()):
            return given
        fresh = Arena.get().empty(shape, t.dtype.numpy)
        self.finish.append(lambda: np.copyto(given, fresh))
        return fresh

    def _fresh(self, t: Tensor, shape: tuple[int, ...]) -> Any:
        try:
            return Arena.get().empty(shape, t.dtype.numpy)
        except MemoryError as error:
            raise no_room([Wanted.by(t, shape)], "the result") from error

    def _require_room(self) -> None:
        """Raises HostMemoryError PF423 where the results that the call makes do not fit into memory."""
        made = [Wanted.by(t, shape) for t, shape in self.instance.outputs if t.name not in self.out]
        require_room(made, "the result")

    def _result(self, t: Tensor) -> object:
        array = self.arrays[t.name]
        return self.given.back(array) if self.given.back else array if t.shape else array[()]

    # --- what they have in common --------------------------------------------------------------------------

    def _on_host(self) -> dict[str, Array]:
        return {n: a for n, a in self.arrays.items() if isinstance(a, np.ndarray)}

    def _separate(self) -> None:
        """Copy inputs that share memory with an inout parameter: kernels assume that nothing else changes.

        Raises ArgumentError PF418 where two inout parameters overlap: the result would have no meaning.
        """
        arrays = self._on_host()
        inputs = [t for t in self.instance.inputs if t.name in arrays]
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
                self.arrays[other.name] = arrays[other.name] = arrays[other.name].copy(order="K")


def require_writable(t: Tensor, writable: bool, memory: Array) -> None:
    """Raises ArgumentError PF418 unless an inout argument can be written, each element once."""
    if not writable:
        raise ArgumentError(f"argument '{t.name}' is inout: it must be a writable array", code="PF418")
    if meets_itself(memory):
        raise ArgumentError(f"elements of the inout argument '{t.name}' share memory", code="PF418")


def require_output(t: Tensor, shape: tuple[int, ...], given: Any, writable: bool, memory: Array) -> None:
    """Raises ArgumentError PF418 unless memory given as `out=` fits its result, each element once."""
    if given.shape != shape or given.dtype != t.dtype.numpy or not writable:
        raise ArgumentError(
            f"out= for '{t.name}' must be a writable array of shape {shape} and dtype {t.dtype}, "
            f"not {given.dtype}{list(given.shape)}",
            code="PF418",
        )
    if meets_itself(memory):
        raise ArgumentError(f"elements of out= for '{t.name}' share memory", code="PF418")


def require_apart(t: Tensor, given: Any, written: Mapping[str, Any]) -> None:
    """Raises ArgumentError PF418 for an `out=` on the host in memory that another name is written to as well.

    What lies on a GPU is looked at where it is launched.
    """
    for name, memory in written.items():
        both = isinstance(given, np.ndarray) and isinstance(memory, np.ndarray)
        if both and overlaps(given, memory) and share_elements(given, memory):
            raise ArgumentError(f"out= for '{t.name}' and '{name}' share memory", code="PF418")


def named_outputs(out: object, outputs: list[Tensor]) -> dict[str, Any]:
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


def _is_copied(value: object, array: object) -> bool:
    """Does an argument on the host live elsewhere than in the caller's array?"""
    if not isinstance(value, np.ndarray) or not isinstance(array, np.ndarray):
        return False
    here, there = (a.__array_interface__["data"][0] for a in (value, array))
    return bool(here != there)


# --- memory of a GPU --------------------------------------------------------------------------------------

# Arguments and results lie there, on the host, or some on each side.
#
# What lies on the device is used as it lies; results are made where the arguments are.  How host memory gets
# to the device and back is the executable's matter (`runtime.cuda.call`).


def given_on_gpu(values: Mapping[str, Any]) -> Given:
    """Arguments for kernels on a GPU: views of what is there, NumPy values of all else.

    Raises ArgumentError PF402, PF417, PF420 or PF421 for arrays that cannot be used.
    """
    found: dict[str, Any] = {}
    back: Back | None = None
    for name, value in values.items():
        with readable(name):
            view = to_device(value, name)
        if view is None:
            found[name], mine = to_numpy(value, name)
            back = back or mine
        else:
            found[name] = view
    return Given(found, back, result_kind(values.values()), tensors_of(values))


class GpuCallMemory(CallMemory):
    """Memory of a call of a `CudaExecutable`."""

    def _argument(self, t: Tensor, value: Any) -> Any:
        if not isinstance(value, DeviceView):
            return super()._argument(t, value)
        # Its dtype and shape are those that the executable was made for: they were checked then.
        if t.role is Role.INOUT:
            require_writable(t, value.writeable, shadow(value))
        return value

    def _given_output(self, name: str) -> Any:
        view = to_device(self.out[name], name) if name in self.out else None
        return super()._given_output(name) if view is None else view

    def _output(self, t: Tensor, shape: tuple[int, ...], given: Any) -> Any:
        if not isinstance(given, DeviceView):
            return super()._output(t, shape, given)
        require_output(t, shape, given, given.writeable, shadow(given))
        return given

    def _fresh(self, t: Tensor, shape: tuple[int, ...]) -> Any:
        kind = self.given.kind
        if kind == "numpy":
            return super()._fresh(t, shape)
        executable = self.instance.built.executable
        assert isinstance(executable, CudaExecutable)
        if kind == "device" or (kind == "cupy" and t.dtype is BF16):  # a type that cupy may not know
            made: Any = executable.device_array(shape, t.dtype.numpy, self._stream())
        else:
            made = empty_result(kind, shape, t.dtype.numpy, executable.driver.properties.index)
        self.out[t.name] = self.made[t.name] = made
        return to_device(made, t.name)

    def _require_room(self) -> None:
        if self.given.kind == "numpy":
            super()._require_room()

    def _stream(self) -> int | None:
        """The one stream of all arguments on the device, if there is such a one."""
        views = (a for a in self.arrays.values() if isinstance(a, DeviceView))
        streams = {v.stream for v in views if v.stream is not None}
        return streams.pop() if len(streams) == 1 else None


# --- calls that are done again ---------------------------------------------------------------------------


def bound(call: CallMemory, named: Mapping[str, Any]) -> Callable[[], object]:
    """A function that does a call again on the same memory; `named` are its arguments."""
    machine = call.instance.built.executable
    job = machine.prepare(call.arrays) if isinstance(machine, CudaExecutable) else None
    run = machine.again(job) if isinstance(machine, CudaExecutable) and job else machine.bind(call.arrays)
    results = call.results()
    scalars = any(not shape for _, shape in call.instance.outputs)
    tensors = call.has_tensors

    def again() -> object:
        if tensors:
            call.begin_again()
        run()
        # A result of rank 0 is a number, made anew; the others are the same arrays each time.
        return call.results() if scalars else results

    quick = None if job is None else _bound_in_c(call, named, job)
    if quick is None:
        return again

    def short(quick: Callable[[], object] = quick) -> object:
        found = quick()
        return again() if found is NotImplemented else found

    return short


def _bound_in_c(call: CallMemory, named: Mapping[str, Any], job: Job) -> Callable[[], object] | None:
    """What a bound call on a GPU does, checked and launched in C where that can be."""
    machine = call.instance.built.executable
    assert isinstance(machine, CudaExecutable)
    given = {**named, **{n: v for n, v in call.out.items() if n not in call.made}}
    family = array_family(given.values(), machine.memory)
    if family is None:
        return None
    return bound_call(machine, family, given, call.made, call.arrays, job, call.results())
