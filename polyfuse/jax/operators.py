"""`pf.jax.op`: an operator inside of what JAX traces: one custom call of XLA, with gradients and batches."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.tree_util import Partial

from polyfuse.api import Operator, Program, compile, grad, parse
from polyfuse.autodiff.batching import batched
from polyfuse.autodiff.graph_text import operator_text
from polyfuse.autodiff.structure import live_tensors
from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.compiled import Compiled
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.frontend_dsl.semantics.signature import Signature, infer_generics
from polyfuse.gradient_pairs import Gradients, Source
from polyfuse.interop.by_hand import gradient_of, source_of, unfit
from polyfuse.ir.dtypes import BY_NAME, DType, from_numpy
from polyfuse.jax.calls import TARGET, Abstract, kernels

Arrays = tuple[Any, ...]


def op(
    function: Compiled | Operator | Program | str | os.PathLike[str], *, backward: Any = None
) -> JaxOperator:
    """An operator for JAX, on the CPU: `jax.jit`, `jax.grad` and `jax.vmap` take it.

    Parameters
    ----------
    function
        What `pf.compile` returned, or what it takes.
    backward
        What computes the gradients, as for `pf.torch.op`.

    Returns
    -------
    JaxOperator
        A function of arrays of JAX. An operator with inout parameters returns what they become, behind its
        results.

    Raises
    ------
    ArgumentError
        PF807 for a function of another target.

    Examples
    --------
    >>> import jax
    >>> square = pf.jax.op("op square(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * x[i] }")
    >>> jax.grad(lambda x: square(x).sum())(jax.numpy.array([1.0, 2.0]))
    Array([2., 4.], dtype=float32)
    """
    compiled = function if isinstance(function, Compiled) else compile(function, target="cpu")
    return JaxOperator(compiled, backward)


class JaxOperator:
    """An operator that JAX calls like a function of its own: what `op` gives. Size parameters are numbers, by
    keyword."""

    def __init__(self, function: Compiled, backward: Any = None) -> None:
        if not (function.is_for_any_target or function.target == "cpu"):
            message = f"{function.signature.name} is compiled for {function.target}"
            raise ArgumentError(
                message, code="PF807", hint='pf.jax.op takes what is compiled with target="cpu"'
            )
        self.function = function.like(function.programs, function.signature, "cpu")
        self.backward = backward
        self._by_hand = None if backward is None else _by_hand(self.function.signature, backward)
        self._steps: dict[object, _Step] = {}
        self.__name__ = self.__qualname__ = function.__name__
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<polyfuse {self.function.signature} for JAX>"

    def __reduce__(self) -> tuple[object, ...]:
        return JaxOperator, (self.function, self.backward)

    def __deepcopy__(self, memo: object) -> JaxOperator:
        return self

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        named = self.function.named(args, kwargs)
        sizes = {s.name: int(kwargs[s.name]) for s in self.function.signature.size_params if s.name in kwargs}
        function, _, given = self.function.chosen((), named)
        key = (tuple(given), tuple(sizes.items()))
        if key not in self._steps:
            self._steps[key] = _Step(function, sizes, self._by_hand)
        found = self._steps[key](given)
        return found[0] if len(found) == 1 else found


class _Step:
    """An operator at its size parameters, all optional tensors decided: a function of arrays only.  Nothing
    need flow through one that is derived, which a gradient consists of."""

    def __init__(
        self,
        function: Compiled,
        sizes: Mapping[str, int],
        by_hand: _ByHand | None = None,
        is_derived: bool = False,
    ) -> None:
        self.function, self.sizes, self.by_hand, self.is_derived = function, sizes, by_hand, is_derived
        self.params = function.signature.params
        self._gradients: dict[object, _Gradient | None] = {}
        self._batched: dict[object, tuple[_Step, tuple[bool, ...]]] = {}
        self._wide = custom_vmap(self._called)
        self._wide.def_vmap(self._on_vmap)
        self._differentiable = jax.custom_vjp(self._wide)
        self._differentiable.defvjp(self._forward, _backward, symbolic_zeros=True)
        self._compiled = jax.jit(self._differentiable)

    def __call__(self, given: Mapping[str, Any]) -> Arrays:
        """Results, and what inout parameters become."""
        with jax.enable_x64(True):
            found: Arrays = self._compiled(*self._arrays(given))
        return found if jax.config.jax_enable_x64 else tuple(map(_narrow, found))

    def _arrays(self, given: Mapping[str, Any]) -> list[Any]:
        """Arguments as arrays: numbers get the types of their parameters, integers for i64 are widened."""
        for p in self.params:
            if p.extents and not hasattr(given[p.name], "dtype"):
                message = f"argument '{p.name}' is {given[p.name]!r:.40}; an array is expected"
                raise ArgumentError(message, code="PF425")
        dtypes, ranks = self._types({n: v for n, v in given.items() if hasattr(v, "dtype")})
        ranks |= {n: 0 for n in given if n not in ranks}
        generics = infer_generics(self.function.signature, dtypes, ranks).dtypes
        found = []
        for p in self.params:
            value, wanted = given[p.name], generics.get(p.dtype) or BY_NAME[p.dtype]
            narrow = (
                hasattr(value, "dtype") and wanted.name == "i64" and np.issubdtype(value.dtype, np.integer)
            )
            number = not hasattr(value, "dtype")
            found.append(jnp.asarray(value, wanted.numpy) if number or narrow else jnp.asarray(value))
        return found

    def _types(self, arrays: Mapping[str, Any]) -> tuple[dict[str, DType], dict[str, int]]:
        """Types and ranks of arrays; i64 where integers are widened to it."""
        wide = {p.name for p in self.params if p.dtype == "i64"}
        dtypes: dict[str, DType] = {}
        for n, a in arrays.items():
            try:
                own = np.dtype(a.dtype)
            except TypeError:  # keys of random numbers, tensors of others
                own = np.dtype(object)
            dtype = from_numpy(np.dtype(np.int64) if n in wide and own.kind in "iu" else own)
            if dtype is None:
                message = f"argument '{n}' has dtype {a.dtype}, which the language does not have"
                raise ArgumentError(message, code="PF402")
            dtypes[n] = dtype
        return dtypes, {n: len(a.shape) for n, a in arrays.items()}

    def _named(self, arrays: Sequence[Any]) -> dict[str, Any]:
        return dict(zip((p.name for p in self.params), arrays, strict=True))

    # --- the call ---

    def _called(self, *arrays: Any) -> Arrays:
        given = {n: Abstract(a.shape, np.dtype(a.dtype)) for n, a in self._named(arrays).items()}
        found = kernels(self.function, given, self.sizes)
        call = jax.ffi.ffi_call(
            TARGET,
            [jax.ShapeDtypeStruct(r.shape, r.dtype) for r in found.results],
            input_output_aliases=dict(found.aliases),
        )
        return tuple(call(*arrays, name=found.name))

    def _on_vmap(self, size: int, which: Sequence[bool], *arrays: Any) -> tuple[Arrays, tuple[bool, ...]]:
        """A call with a batch axis in front of some arrays: that of the operator with this axis."""
        names = tuple(p.name for p, b in zip(self.params, which, strict=True) if b)
        dtypes, ranks = self._types(self._named(arrays))
        ranks = {n: r - (n in names) for n, r in ranks.items()}
        key = (names, *((n, d.name, ranks[n]) for n, d in dtypes.items()))
        if key not in self._batched:
            made = batched(self.function.graph_for(dtypes, ranks), names)
            operator = parse(operator_text(made.graph)).op()
            function = self.function.like(operator.program.programs, operator.signature)
            step = _Step(function, self.sizes, None, self.is_derived)
            results = [r.name in made.results for r in self.function.signature.results]
            self._batched[key] = step, (*results, *(p.name in names for p in self.params if p.inout))
        step, results_batched = self._batched[key]
        return step._differentiable(*arrays), results_batched

    # --- gradients ---

    def _forward(self, *primals: Any) -> tuple[Arrays, Any]:
        """Results, and what the backward needs: a function of cotangents."""
        values = tuple(p.value for p in primals)
        flows = [p.perturbed and jnp.issubdtype(p.value.dtype, jnp.floating) for p in primals]
        wrt = tuple(p.name for p, f in zip(self.params, flows, strict=True) if f)
        if not wrt:
            return self._wide(*values), Partial(_nothing, len(primals))
        if self.by_hand is not None:
            return self.by_hand.forward(self, values)
        dtypes, ranks = self._types(self._named(values))
        key = (wrt, *((n, d.name, ranks[n]) for n, d in dtypes.items()))
        if key not in self._gradients:
            graph = self.function.graph_for(dtypes, ranks)
            of = [r for r in graph.outputs if graph.tensor(r).dtype.is_float]
            flowing = tuple(n for n in wrt if n in live_tensors(graph, of, wrt))
            writes = any(p.inout for p in self.params)
            none = not writes and (not of or (self.is_derived and not flowing))
            self._gradients[key] = None if none else _Gradient(self, flowing or wrt, of, dtypes, ranks)
        gradient = self._gradients[key]
        if gradient is None:
            return self._wide(*values), Partial(_nothing, len(primals))
        return gradient.forward(values)


class _Gradient:
    """The gradient of a step for one choice of types."""

    def __init__(
        self,
        step: _Step,
        wrt: tuple[str, ...],
        of: Sequence[str],
        dtypes: Mapping[str, DType],
        ranks: Mapping[str, int],
    ) -> None:
        function, signature = step.function, step.function.signature
        if any(p.inout for p in signature.params):
            message = f"{signature.name} writes an argument: it has no gradient"
            raise ArgumentError(message, code="PF420", hint="jax.lax.stop_gradient, if none is to flow")
        operator = Operator(Program(function.programs), signature.op)
        graph = function.graph_for(dtypes, ranks)
        generics = infer_generics(signature, dtypes, ranks)
        self._pair: Gradients = grad(operator, wrt, of=of, dtypes=generics.dtypes, ranks=generics.ranks)
        self._step, self._results = step, [r.name for r in signature.results]
        self._graph = graph
        self._forward_step = self._of(self._pair.forward, step.sizes)
        self._backwards: dict[object, tuple[_Step, Callable[..., Arrays]]] = {}

    def _of(self, operator: Operator, sizes: Mapping[str, int]) -> _Step:
        function = self._step.function.like(operator.program.programs, operator.signature)
        return _Step(function, sizes, None, is_derived=True)

    def forward(self, values: Arrays) -> tuple[Arrays, Any]:
        """Results, and a function of cotangents, with the values that it needs."""
        every = self._forward_step._differentiable(*values)
        named = self._step._named(values)
        made = dict(zip([*self._results, *self._pair.kept], every, strict=True))
        sources = [s for s in self._pair.sources if s.kind != "cotangent"]
        needed = [named[s.name] if s.kind == "argument" else made[s.name] for s in sources]
        sizes = bind_sizes(self._graph, {n: v.shape for n, v in named.items()}, self._step.sizes)
        return every[: len(self._results)], Partial(self._backward_at(sizes), *needed)

    def _backward_at(self, sizes: Mapping[str, int]) -> Callable[..., Arrays]:
        """The backward at these sizes of the operator: some of them no argument of it may say."""
        key = tuple((n, sizes[n]) for n in self._pair.sizes)
        if key not in self._backwards:
            step = self._of(self._pair.backward, dict(key))
            self._backwards[key] = step, partial(self._backward, step)
        return self._backwards[key][1]

    def _backward(self, step: _Step, *needed_and_cotangents: Any) -> Arrays:
        *needed, cotangents = needed_and_cotangents
        values, given = iter(needed), dict(zip(self._results, cotangents, strict=True))
        args = [given[s.name] if s.kind == "cotangent" else next(values) for s in self._pair.sources]
        found = dict(zip(self._pair.wrt, step._differentiable(*args), strict=True))
        return tuple(found.get(p.name) for p in self._step.params)


@dataclass(frozen=True)
class _ByHand:
    """A backward that is given: what it takes, and a function that gives gradients by names of parameters."""

    sources: tuple[Source, ...]
    gradients: Callable[..., Mapping[str, Any]]

    def forward(self, step: _Step, values: Arrays) -> tuple[Arrays, Any]:
        """Results, and a function of cotangents, with the values that it needs."""
        found = step._wide(*values)
        results = [r.name for r in step.function.signature.results]
        known = {**dict(zip(results, found, strict=False)), **step._named(values)}
        needed = [known[s.name] for s in self.sources if s.kind != "cotangent"]
        return found, Partial(partial(self.backward, results, tuple(p.name for p in step.params)), *needed)

    def backward(self, results: list[str], params: tuple[str, ...], *needed_and_cotangents: Any) -> Arrays:
        """Gradients by parameter."""
        *needed, cotangents = needed_and_cotangents
        values, given = iter(needed), dict(zip(results, cotangents, strict=False))
        args = {s.parameter: given[s.name] if s.kind == "cotangent" else next(values) for s in self.sources}
        found = self.gradients(**args)
        if not isinstance(found, Mapping) or not found.keys() <= set(params):
            raise unfit("a backward gives no gradients by name of parameters", params)
        return tuple(found.get(n) for n in params)


def _by_hand(signature: Signature, backward: Any) -> _ByHand:
    """Raises ArgumentError PF804 for names that do not fit."""
    if not isinstance(backward, (Compiled, Operator, Program, JaxOperator, str)):
        names = inspect.signature(backward).parameters
        return _ByHand(tuple(source_of(signature, n) for n in names), backward)
    call = backward if isinstance(backward, JaxOperator) else op(backward)
    own = call.function.signature
    if any(p.inout for p in own.params):
        raise unfit(f"{own.name} writes an argument", ["those of results, as in dx"])
    of = [gradient_of(signature, own.name, r.name) for r in own.results]

    def gradients(**named: Any) -> Mapping[str, Any]:
        found = call(**named)
        return dict(zip(of, found if isinstance(found, tuple) else (found,), strict=True))

    return _ByHand(tuple(source_of(signature, p.name) for p in own.params), gradients)


def _backward(residual: Callable[[Arrays], Arrays], cotangents: Sequence[Any]) -> Arrays:
    return residual(
        tuple(
            jnp.zeros(c.shape, c.dtype) if isinstance(c, SymbolicZero) and c.dtype != jax.dtypes.float0 else c
            for c in cotangents
        )
    )


def _nothing(count: int, cotangents: Arrays) -> Arrays:
    return (None,) * count


def _narrow(array: Any) -> Any:
    """As JAX has it where it has no types of 64 bits."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return array if dtype == array.dtype else jax.lax.convert_element_type(array, dtype)
