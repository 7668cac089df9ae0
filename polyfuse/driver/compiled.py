"""A compiled operator as a Python function: arrays in and out, one executable per shape.

A call binds arguments to parameters, infers generics and sizes, and looks up the executable for this
combination of dtypes, shapes and layouts; the first call of a combination compiles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from inspect import Signature as PythonSignature
from pathlib import Path
from typing import Any

import numpy as np

from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.background import Frequent, Pending, Wanted, gain_at, in_numpy
from polyfuse.driver.call import (
    CallMemory,
    Given,
    Instance,
    bound,
    by_name,
    dtypes_of,
    given_on_host,
    layout_of,
    layouts_of,
    taken,
)
from polyfuse.driver.open_sizes import Family, Variant, open_sizes
from polyfuse.driver.pipeline import Built, build, compilation
from polyfuse.driver.stages import BuiltStages
from polyfuse.driver.targets import disabled_passes, resolve_target
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes, check_given
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.signature import (
    Signature,
    infer_generics,
    python_signature,
)
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.interop.array_families import array_family, know_torch
from polyfuse.interop.torch_tensors import in_graph, is_for_dispatcher, new_token
from polyfuse.ir.dtypes import DType
from polyfuse.ir.layouts import DENSE, Layouts
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options, Wish
from polyfuse.runtime.arguments import check_fits
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.cpu.fast_path import ShortWay, ShortWayInto
from polyfuse.runtime.cuda.arguments import DeviceView
from polyfuse.runtime.cuda.executable import CudaExecutable
from polyfuse.runtime.cuda.fast_path import DeviceShortWay
from polyfuse.runtime.machine.room import require_room
from polyfuse.runtime.numpy_text import Unsupported
from polyfuse.support.processes import ForkLock
from polyfuse.support.progress import followed
from polyfuse.tuning.table import keep_choices
from polyfuse.tuning.tuner import build_tuned
from polyfuse.visualize.launches import launch_names, plan_html, plan_picture, timeline
from polyfuse.visualize.svg import Picture

# --- signatures as Python's `inspect` shows them ----------------------------------------------------------


def _again(programs: tuple[ast.Program, ...], signature: Signature, settings: Mapping[str, Any]) -> Compiled:
    """A function from its pickle."""
    return Compiled(programs, signature, **settings)


MOST_INSTANCES = 512
"""Layouts of arguments that a function is compiled for at a time: each takes memory, and some of the mappings
that a process may have. The one that was compiled first goes; its code is in the cache."""
MOST_SIZES = 64
"""Choices of size parameters that a function remembers at a time; what was compiled for others is kept."""
_KEEPING = ForkLock()
"""Held while an instance is put among those of a function: the background does it too."""


class Compiled:
    """An operator compiled for a target; call it like a function. `compile` gives it.

    Positional and keyword arguments follow the operator's signature; scalars may be left out where they have
    defaults, and optional tensors are left out or None. Size parameters are given by keyword. `out=` takes an
    array, or a tuple or dict of arrays, for the results. Arrays have any memory layout; another
    dtype is refused, not converted, but narrower integers are widened for i64.

    Results are NumPy arrays, or torch tensors where an argument was one; several results come as a tuple, an
    operator with inout parameters only returns None. Small results of one call share a block of memory, which
    is there as long as any of them. On a GPU (target "cuda") arguments may lie on the device or on the host;
    results are made there if all arrays among the arguments are there, by their library.

    Raises
    ------
    ArgumentError
        PF4xx for arguments that do not fit.
    DslError
        For sizes at which the program reads out of range.
    ToolchainError
        PF7xx without a compiler.

    Examples
    --------
    >>> f = pf.compile("op scale(x: f32[N], a: f32 = 2.0) -> (y: f32[N]) { y[i] = a * x[i] }", target="cpu")
    >>> x, y = np.ones(3, "f4"), np.empty(3, "f4")
    >>> f(x), f(x, a=3.0, out=y) is y
    (array([2., 2., 2.], dtype=float32), True)
    >>> again = f.bind(x, 5.0, out=y)
    >>> again()
    array([5., 5., 5.], dtype=float32)
    """

    def __init__(
        self,
        programs: tuple[ast.Program, ...],
        signature: Signature,
        *,
        target: str,
        fusion: LoopFusion | None,
        stitching: Stitching | None,
        packing: Packing | None,
        clustering: Clustering | None,
        options: Options,
        sizes: Mapping[str, int] | None = None,
        wish: Wish | None = None,
    ) -> None:
        if options.disable:
            disabled_passes(options)  # raises for one that there is not
        self.signature = signature
        self._target = target
        self.options = options
        self._programs = programs
        self._fusion = fusion
        self._stitching = stitching
        self._packing = packing
        self._clustering = clustering
        self._wish = dict(wish or {})
        fixed = ((p.name, self._wish.get(p.name)) for p in signature.size_params)
        known = {n: v for n, v in fixed if isinstance(v, int)}
        self._sizes = {**known, **(sizes or {})}  # size parameters that calls need not give
        self._families: dict[object, Family] = {}
        self._is_open = signature.is_open  # which optional tensors there are is seen at each call
        self._ways: dict[tuple[object, ...], tuple[Compiled, frozenset[str]]] = {}
        self._at: dict[tuple[object, ...], Compiled] = {}
        self._instances: dict[object, Instance] = {}
        self._pending = Pending(signature.name)
        specialises = options.compile == "async" and options.specialise != "never"
        self._frequent = Frequent() if specialises else None
        self._graphs: dict[object, TensorGraph] = {}
        self._lock = ForkLock()
        self._names = tuple(p.name for p in signature.params)
        self._defaults = defaults = tuple(p.default for p in signature.params)
        self._short = ShortWay(defaults)
        self._short_into = ShortWayInto(defaults, len(signature.results), ShortWay)
        self._device_short = DeviceShortWay(defaults)
        self._device_short_into = ShortWayInto(defaults, len(signature.results), DeviceShortWay)

        self.__name__ = self.__qualname__ = signature.name
        self.token = new_token(self)

    @property
    def __signature__(self) -> PythonSignature:
        """What `inspect.signature` shows."""
        return python_signature(self.signature)

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles know the operator and the options; all else is compiled anew, or found in the
        cache."""
        passes = self._passes()
        settings = {"target": self._target, "options": self.options, **passes}
        names = ("__name__", "__qualname__", "__doc__", "__module__")
        settings |= {"sizes": self._sizes} if self._sizes else {}
        settings |= {"wish": self._wish} if self._wish else {}
        return _again, (self._programs, self.signature, settings), {n: getattr(self, n) for n in names}

    def _passes(self) -> dict[str, Any]:
        return {n: getattr(self, f"_{n}") for n in ("fusion", "stitching", "packing", "clustering")}

    @property
    def settings(self) -> tuple[str, dict[str, Any], Options, Wish]:
        """What it was asked for: target, passes, options, sizes (with those of size parameters)."""
        return self._target, self._passes(), self.options, {**self._wish, **self._sizes}

    @property
    def programs(self) -> tuple[ast.Program, ...]:
        """Where its operator is from."""
        return self._programs

    @property
    def is_for_any_target(self) -> bool:
        """Is it yet to be decided what it is compiled for?"""
        return self._target == "auto"

    def like(
        self, programs: tuple[ast.Program, ...], signature: Signature, target: str | None = None
    ) -> Compiled:
        """An operator, by `programs` and `signature`, compiled in the same way, or for another `target`."""
        passes, known = self._passes(), set(signature.sizes)
        passes["wish"] = {n: v for n, v in {**self._wish, **self._sizes}.items() if n in known}
        return Compiled(programs, signature, target=target or self._target, options=self.options, **passes)

    def __deepcopy__(self, memo: object) -> Compiled:
        return copy(self)  # what it is made of never changes

    def __repr__(self) -> str:
        return f"<polyfuse {self.signature} for {self._target}>"

    @property
    def target(self) -> str:
        """What it is compiled for; "auto" is decided here, when it is asked for or called first."""
        if self._target == "auto":
            self._target = resolve_target("auto")
        return self._target

    def __call__(self, /, *args: object, out: object = None, **kwargs: object) -> object:
        if self._is_open:
            chosen, args, kwargs = self.chosen(args, kwargs)
            return chosen(*args, out=out, **kwargs)
        given = args if not kwargs else self._in_order(args, kwargs)
        if given is None and (at := self._at_sizes(kwargs)) is not None:
            return at(*args, out=out, **_without(kwargs, at._sizes))
        if given is not None:
            if self._frequent is not None and (due := self._frequent.due(given)) is not None:
                self._specialise(given, *due)
            try:
                results = self._in_short(given, out)
            except MemoryError:  # the long way says of what there is too much
                results = NotImplemented
            if results is not NotImplemented:
                return results
        if is_for_dispatcher((*args, *kwargs.values())):
            return in_graph(self, *args, out=out, **kwargs)
        return self.run(args, kwargs, out)

    def run(self, args: tuple[object, ...], kwargs: dict[str, Any], out: object = None) -> Any:
        """A call that has not been seen before, with `args`, `kwargs` and `out` as a call has them."""
        if (other := self._elsewhere(args, kwargs)) is not None:
            at, args, kwargs = other
            return at.run(args, kwargs, out)
        given = args if not kwargs else self._in_order(args, kwargs)
        call = self.prepared(args, kwargs, out, wait=self.options.compile == "now")
        if not call.finish:
            self._learn(call, given, out)
        call.begin()
        try:
            with call.instance.explained():
                call.instance.built.executable.run(call.arrays)
        except Unsupported:  # of NumPy: the call waits for its kernels
            call = self.prepared(args, kwargs, out)
            call.instance.built.executable.run(call.arrays)
        for store in call.finish:
            store()
        return call.results()

    def bind(self, /, *args: object, out: object = None, **kwargs: object) -> Callable[[], object]:
        """A prepared call on fixed memory: arguments are checked once.

        The function that it gives reads and writes the same arrays each time, and returns the results. Use it
        from one thread at a time.

        Parameters
        ----------
        *args, **kwargs
            As a call has them.
        out
            Arrays for the results.

        Raises
        ------
        ArgumentError
            PF418 for arrays that kernels cannot use where they are.
        """
        if (other := self._elsewhere(args, kwargs)) is not None:
            at, args, kwargs = other
            return at.bind(*args, out=out, **kwargs)
        call = self.prepared(args, kwargs, out)
        if not call.bindable:
            raise ArgumentError(
                "these arrays cannot be bound: the kernels cannot use their memory directly "
                "(byte order, alignment, layout of out=, or out= overlapping an input)",
                code="PF418",
                hint="pass dense, aligned arrays that do not overlap",
            )
        return bound(call, by_name(self.signature, args, kwargs))

    def prepared(
        self, args: tuple[object, ...], kwargs: Mapping[str, Any], out: object, wait: bool = True
    ) -> CallMemory:
        """The executable of these arguments, with the memory of the call: all but the run.

        Parameters
        ----------
        args, kwargs, out
            As a call has them.
        wait
            False takes what else can run the call until its kernels are there.
        """
        if (other := self._elsewhere(args, dict(kwargs))) is not None:
            at, args, kwargs = other
            return at.prepared(args, kwargs, out, wait)
        given = self._given(args, kwargs)
        instance = self._instance(given.values, wait)
        if self._target != "cuda":
            return CallMemory(instance, given, out)
        from polyfuse.driver.call import GpuCallMemory  # only where there are kernels on a GPU

        return GpuCallMemory(instance, given, out)

    def in_short(self, args: tuple[object, ...]) -> Any:
        """Results of a call that was seen before, with arguments by position (`args`); else
        NotImplemented."""
        return NotImplemented if self._is_open else self._in_short(args, None)

    def named(self, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Parameter name -> value of a call's `args` and `kwargs`, in order of the signature; size parameters
        left out.

        Raises ArgumentError PF408 for arguments that do not fit.
        """
        sizes = {p.name for p in self.signature.size_params}
        return by_name(self.signature, args, {n: v for n, v in kwargs.items() if n not in sizes})

    def _in_short(self, given: tuple[object, ...], out: object) -> Any:
        """Results, or NotImplemented where the long way has to decide."""
        if self._target == "cuda":
            into = self._device_short_into
            return self._device_short.call(given) if out is None else into.call(given, out)
        return self._short.call(given) if out is None else self._short_into.call(given, out)

    def _learn(self, call: CallMemory, args: tuple[object, ...] | None, out: object) -> None:
        """Remember a layout that has passed all checks for the short way."""
        instance, given = call.instance, call.given.values
        executable = instance.built.executable
        if isinstance(executable, CudaExecutable) and args is not None:
            self._learn_on_gpu(executable, call, args, out)
        if not isinstance(executable, CpuExecutable):
            return
        if call.has_tensors:
            know_torch()
        at, orders = partial(open_sizes, instance.built, self._sizes), instance.orders
        more = at if executable.plan.sizes else None
        if not call.out:
            results = [(t.name, shape) for t, shape in instance.outputs]
            self._short.learn(executable, list(given), list(given.values()), results, orders, more)
        elif len(call.out) == len(instance.outputs):
            both = {**given, **{t.name: call.arrays[t.name] for t, _ in instance.outputs}}
            self._short_into.short.learn(executable, list(both), list(both.values()), (), orders, more)

    def _learn_on_gpu(
        self, executable: CudaExecutable, call: CallMemory, args: tuple[object, ...], out: object
    ) -> None:
        """The same for arrays on a GPU, which are looked at as the caller has them."""
        named = dict(zip(self._names, (*args, *self._defaults[len(args) :]), strict=True))
        results = {t.name: call.out[t.name] for t, _ in call.instance.outputs if t.name in call.out}
        given = {**named, **({} if out is None else results)}
        family = array_family(given.values(), executable.memory)
        if family is None or call.given.copied or len(results) < len(call.instance.outputs):
            return
        at = partial(open_sizes, call.instance.built, self._sizes) if executable.plan.sizes else None
        if out is None:
            self._device_short.learn(executable, family, named, results, call.arrays, at)
        else:
            self._device_short_into.short.learn(executable, family, given, {}, call.arrays, at)

    def _in_order(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[object, ...] | None:
        """Arguments by position; None where the names are not those of the parameters left."""
        if tuple(kwargs) == self._names[len(args) : len(args) + len(kwargs)]:
            return (*args, *kwargs.values())
        rest = self.signature.params[len(args) :]
        if sum(p.name in kwargs for p in rest) < len(kwargs):
            return None
        return (*args, *[kwargs.get(p.name, p.default) for p in rest])

    def _at_sizes(self, kwargs: Mapping[str, Any]) -> Compiled | None:
        """The function at the size parameters among keywords, None if there are none.

        It has short ways of its own, and shares what is compiled.
        """
        given = {p.name: kwargs[p.name] for p in self.signature.size_params if p.name in kwargs}
        if not given:
            return None
        check_given(self.signature.name, [*given], given)
        sizes = {n: int(v) for n, v in given.items()}
        key = tuple(sizes.items())
        return self._at.get(key) or self._remembered(key, self.signature, sizes)

    def chosen(
        self, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[Compiled, tuple[object, ...], dict[str, Any]]:
        """The function with those optional tensors that `args` and `kwargs` have, and both without the
        others."""
        if not self._is_open:
            return self, args, kwargs
        key = (*[a is None for a in args], *kwargs, *[v is None for v in kwargs.values()])
        found, left_out = self._ways.get(key) or self._way(key, args, kwargs)
        if left_out:
            args = tuple(a for n, a in zip(self._names, args, strict=False) if n not in left_out)
            kwargs = {n: v for n, v in kwargs.items() if n not in left_out}
        return found, args, kwargs

    def _way(
        self, key: tuple[object, ...], args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[Compiled, frozenset[str]]:
        """The function for arguments like these, and which of them are None for an optional tensor."""
        if len(args) > len(self._names) or not kwargs.keys().isdisjoint(self._names[: len(args)]):
            by_name(self.signature, args, kwargs)  # it says what is wrong
        optional = [p.name for p in self.signature.params if p.optional]
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        absent = tuple(n for n in optional if given.get(n) is None)
        found = self._at.get(absent) or self._remembered(absent, self.signature.without(absent), self._sizes)
        if len(self._ways) > MOST_SIZES:
            self._ways.clear()
        way = self._ways[key] = found, frozenset(absent) & given.keys()
        return way

    def _elsewhere(
        self, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[Compiled, tuple[object, ...], dict[str, Any]] | None:
        """The function that has these arguments, where it is not this one, with what is left to give it."""
        if self._is_open:
            return self.chosen(args, kwargs)
        at = self._at_sizes(kwargs)
        return None if at is None else (at, args, _without(kwargs, at._sizes))

    def _remembered(
        self, key: tuple[object, ...], signature: Signature, sizes: Mapping[str, int]
    ) -> Compiled:
        """A function with short ways of its own, which shares what is compiled."""
        found = Compiled(
            self._programs,
            signature,
            target=self.target,
            fusion=self._fusion,
            stitching=self._stitching,
            packing=self._packing,
            clustering=self._clustering,
            options=self.options,
            sizes=sizes,
            wish=self._wish,
        )
        found._instances, found._graphs, found._lock = self._instances, self._graphs, self._lock
        found._families, found._pending = self._families, self._pending
        with self._lock:
            found = self._at.setdefault(key, found)
            if len(self._at) > MOST_SIZES:
                del self._at[next(iter(self._at))]
        return found

    # --- stages for those who look ---------------------------------------------------------------------

    def built(self, /, *args: object, **kwargs: object) -> BuiltStages:
        """What was compiled for these arguments: `scheduled`, `kernels` (a `Kernels`), `code.source`,
        `executable`, `decisions`, `seconds`."""
        if (other := self._elsewhere(args, kwargs)) is not None:
            at, args, kwargs = other
            return at.built(*args, **kwargs)
        return self._instance(self._given(args, kwargs).values).built

    def explain(self, /, *args: object, **kwargs: object) -> str:
        """Every decision of the compiler for these arguments, one a line, with the innermost loops that the
        C++ compiler did not vectorise; where sizes are open, the variants in the order in which calls look
        them up; then the variants that were measured (`tune="measure"`)."""
        if (other := self._elsewhere(args, kwargs)) is not None:
            at, args, kwargs = other
            return at.explain(*args, **kwargs)
        instance = self._instance(self._given(args, kwargs).values)
        built, family = instance.built, instance.family
        measured = [str(built.tuning)] if built.tuning is not None else []
        decisions = (*built.decisions, *built.scalar_loops, *family.told(instance.sizes))
        return "\n".join([*map(str, decisions), *measured])

    @property
    def variants(self) -> tuple[Variant, ...]:
        """What was compiled so far: kernels for some values of sizes, and kernels with open sizes."""
        return tuple(v for family in self._families.values() for v in family.variants)

    def keep_tuning(self, path: str | os.PathLike[str]) -> None:
        """Write what `tune="measure"` has chosen so far into a file at `path`, beside the choices that it has
        of other operators; `tuned=path` takes them from there, on any machine.

        Raises ArgumentError PF490 for a file that is none of these.
        """
        found = [instance.built.tuning for instance in self._instances.values()]
        keep_choices(Path(path), [t for t in found if t is not None and t.timed])

    def cost(self, /, *args: object, **kwargs: object) -> str:
        """What the compilation for these arguments took: seconds by step, and memory."""
        return self.built(*args, **kwargs).cost

    def picture(self, /, *args: object, **kwargs: object) -> Picture:
        """The launches for these arguments: what is fused, packed, and waits for what."""
        return plan_picture(self.built(*args, **kwargs).lowered.kernels, self.signature.name)

    def _repr_html_(self) -> str:
        return plan_html([i.built.lowered.kernels for i in self._instances.values()], repr(self))

    def timeline(self, /, *args: object, **kwargs: object) -> str:
        """The launches of one call with their times, measured one by one, as JSON that Perfetto and
        chrome://tracing open.

        The arguments are computed on: inout parameters change. Raises ArgumentError PF414 for targets other
        than "cpu".
        """
        if (other := self._elsewhere(args, kwargs)) is not None:
            at, args, kwargs = other
            return at.timeline(*args, **kwargs)
        call = self.prepared(args, kwargs, None)
        machine = call.instance.built.executable
        if not isinstance(machine, CpuExecutable):
            raise ArgumentError("launches are timed on the CPU only", code="PF414", hint='target="cpu"')
        call.begin()
        kernels = call.instance.built.lowered.kernels.kernels
        names = launch_names(kernels, [x.kernel for x in machine.plan.launches])
        return timeline(self.signature.name, list(zip(names, machine.profile(call.arrays), strict=True)))

    # --- arguments ---------------------------------------------------------------------------------------

    def _given(self, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> Given:
        """Arguments by parameter, as kernels of the target can have them."""
        named = by_name(self.signature, args, kwargs)
        values = taken(self.signature, named)
        if self.target != "cuda":
            given = given_on_host(values)
        else:
            from polyfuse.driver.call import given_on_gpu  # only where there are kernels on a GPU

            given = given_on_gpu(values)
        copied = any(values[n] is not v for n, v in named.items())
        return replace(given, copied=True) if copied else given

    def _key(self, values: Mapping[str, Any]) -> object:
        key: object = tuple(map(layout_of, values.values()))
        key = (*self._sizes.items(), key) if self._sizes else key
        return (self.signature.absent, key) if self.signature.absent else key

    def _instance(self, values: Mapping[str, Any], wait: bool = True) -> Instance:
        """The executable of these arguments, or without a `wait` what else can run them until it is there."""
        key = self._key(values)
        found = self._instances.get(key)
        if found is None and not wait:
            found = self._pending.find(key) or self._begun(key, self._wanted(values))
        if found is None:
            wanted = self._wanted(values)
            with self._lock, followed(self.options.progress):
                found = self._instances.get(key) or self._loaded(wanted, self._compiled(wanted))
            self._keep(key, found)
        return found

    def _keep(self, key: object, instance: Instance) -> None:
        with _KEEPING:
            self._instances[key] = instance
            if len(self._instances) > MOST_INSTANCES:
                gone = self._instances.pop(next(iter(self._instances)))
                gone.family.forget(gone.sizes)

    def _wanted(self, values: Mapping[str, Any]) -> Wanted:
        graph = self._graph(values)
        sizes = bind_sizes(graph, {n: np.shape(v) for n, v in values.items()}, self._sizes)
        for t in map(graph.tensor, graph.inputs):
            view = values[t.name]
            if isinstance(view, DeviceView):  # the others are checked with their memory, at each call
                check_fits(t, view.dtype, view.shape, sizes)
        layouts = layouts_of(graph, values, self.target)
        return Wanted(sizes, layouts, self._family(graph, layouts))

    def _compiled(self, wanted: Wanted, own: bool = False) -> Built:
        return wanted.family.built(wanted.sizes, partial(self._build, wanted.layouts), own)

    def _loaded(self, wanted: Wanted, made: Built) -> Instance:
        instance = wanted.instance(BuiltStages.of(made))
        if self.target != "cuda":  # their memory is the device's
            require_room(instance.temporaries, "a temporary,")
        return instance

    # --- compilation in the background -------------------------------------------------------------------

    def _begun(self, key: object, wanted: Wanted) -> Instance | None:
        """What runs a call whose kernels the background compiles from now on; None where only they can."""
        if (variant := wanted.family.found(wanted.sizes)) is not None:
            self._keep(key, found := self._loaded(wanted, variant.at(wanted.sizes)))
            return found
        if self.target not in ("cpu", "emulate") or self.options.checked:
            return None
        if (made := in_numpy(wanted, self.target, self.options)) is None:
            return None
        found = self._loaded(replace(wanted, layouts=DENSE), made)
        self._pending.begin(key, found, partial(self._in_background, key, wanted))
        return found

    def _in_background(self, key: object, wanted: Wanted, own: bool = False) -> None:
        with self._lock:
            found = self._loaded(wanted, self._compiled(wanted, own))
        self._keep(key, found)
        if own:
            self._short.learn_again()

    def _specialise(self, args: tuple[object, ...], layout: object, calls: int) -> None:
        """Begin with kernels that know the sizes of these arguments, where those that run do not, and so many
        calls repay them."""
        values = self._given(args, {}).values
        key, wanted = self._key(values), self._wanted(values)
        variant = wanted.family.found(wanted.sizes)
        if variant is not None and variant.open and self.target == "cpu":
            task = partial(self._specialised, key, wanted, variant.built, layout, calls)
            self._pending.begin(key, self._instances.get(key), task)

    def _specialised(self, key: object, wanted: Wanted, open: Built, layout: object, calls: int) -> None:
        """Kernels that know the sizes, or when to think of them again."""
        needed = 0.0
        if self.options.specialise == "model":
            about, passes = (wanted.family.graph, wanted.sizes), self._passes_for(wanted.layouts)
            fixed = compilation(*about, target=self.target, options=self.options, **passes)
            needed = wanted.family.gain(wanted.sizes, partial(gain_at, open, fixed)).calls
        if calls >= needed:
            self._in_background(key, wanted, own=True)
        elif self._frequent is not None:
            self._frequent.wait(layout, needed)

    @property
    def _tuned(self) -> bool:
        """Is one of several variants of the code taken?"""
        return self.options.chooses

    def _family(self, graph: TensorGraph, layouts: Layouts) -> Family:
        """The variants for arguments of these types and layouts."""
        key = (id(graph), layouts.strided, tuple(sorted(layouts.orders.items())))
        usual = "fixed" if self._tuned else self.options.sizes  # what is measured is measured at sizes
        return self._families.setdefault(key, Family(graph, self._wish, usual))

    def _build(
        self,
        layouts: Layouts,
        graph: TensorGraph,
        fixed: Mapping[str, int],
        at: Mapping[str, int],
    ) -> Built:
        """A compilation at some fixed sizes, for calls at these."""
        passes = self._passes_for(layouts)
        if self._tuned and len(fixed) == len(at):
            return build_tuned(graph, fixed, target=self.target, options=self.options, **passes)
        return build(graph, fixed, target=self.target, options=self.options, **passes, at=at)

    def _passes_for(self, layouts: Layouts) -> dict[str, Any]:
        """The passes, for arguments of these layouts."""
        passes = self._passes() | {"layouts": DENSE if self.target == "interpret" else layouts}
        if self._fusion is not None and layouts.strided:
            passes["fusion"] = replace(self._fusion, strided=tuple(sorted(layouts.strided)))
        return passes

    def _graph(self, values: Mapping[str, Any]) -> TensorGraph:
        return self.graph_for(
            dtypes_of(self.signature, values), {n: len(np.shape(v)) for n, v in values.items()}
        )

    def graph_for(self, dtypes: Mapping[str, DType], ranks: Mapping[str, int]) -> TensorGraph:
        """The graph for arguments of these `dtypes` (of those that have one) and `ranks`."""
        generics = infer_generics(self.signature, dtypes, ranks)
        absent = self.signature.absent or ()
        key = (tuple(generics.dtypes.items()), tuple(generics.ranks.items()), absent)
        if key not in self._graphs:
            self._graphs[key] = instantiate(
                self._programs,
                self.signature.name,
                dtypes=generics.dtypes,
                ranks=generics.ranks,
                absent=absent,
            )
        return self._graphs[key]


Compiled.__call__._torchdynamo_inline = in_graph  # type: ignore[attr-defined]


def _without(kwargs: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Keywords that are no size parameters."""
    return {n: v for n, v in kwargs.items() if n not in sizes}
