"""`pf.torch.op`: an operator that models call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from polyfuse.api import Operator, Program, compile, parse
from polyfuse.autodiff.batching import batched
from polyfuse.autodiff.graph_text import operator_text
from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.compiled import Compiled
from polyfuse.driver.names import digest
from polyfuse.interop.torch_tensors import BY_TOKEN
from polyfuse.torch.gradients import Differentiation
from polyfuse.torch.registration import NAMESPACE, Registered, dtype_of


def op(
    function: Compiled | Operator | Program | str | os.PathLike[str],
    *,
    name: str | None = None,
    backward: Any = None,
) -> TorchOperator:
    """An operator of torch: it has gradients, and works in `torch.compile`, `torch.export`, `torch.vmap`.

    function  what `compile` returned, or what it takes
    name      "namespace::name", as torch has it; one that is made of the program where it is not given
    backward  what computes the gradients, if they are not to be derived
    """
    compiled = function if isinstance(function, Compiled) else compile(function)
    if name is None and backward is None:
        return automatic(compiled)
    return TorchOperator(compiled, name, backward)


def automatic(function: Compiled) -> TorchOperator:
    """The operator of a function that nothing more is said of: one for all functions that are the same."""
    return _kept(function, None)


def _kept(function: Compiled, backward: Any) -> TorchOperator:
    name = _full_name(function, None, backward)
    if name not in _automatic:
        _automatic[name] = TorchOperator(function, None, backward)
    return _automatic[name]


_automatic: dict[str, TorchOperator] = {}
NONE = "none"
"""In place of a backward: there is no gradient, not even a derived one."""


class TorchOperator:
    """An operator that models call like a function of torch; arguments are tensors and numbers.

    Tensors that are no more than their memory take a short way; all others go through torch's dispatcher, so
    that autograd, autocast, tracers, `torch.func` and subclasses see one operator, `overload`.
    """

    def __init__(self, function: Compiled, name: str | None, backward: Any) -> None:
        self.function, self.backward = function, backward
        self.name = _full_name(function, name, backward)
        self._given_name = name
        self._on: dict[str, Compiled] = {}
        self._last = function
        self._gradient = Differentiation(function, None if backward == NONE else backward, automatic)
        self._batched: dict[object, tuple[TorchOperator, tuple[str, ...]]] = {}
        self._registered: dict[frozenset[str], Registered] = {}
        self.overload: Any = self._register(frozenset()).overload
        self.__name__ = self.__qualname__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return _result(self.overload(*args, **kwargs))
        if not kwargs:
            found = self._last.in_short(args)
            if found is not NotImplemented:
                return found
        return self._dispatched(args, kwargs)

    def __repr__(self) -> str:
        return f"<polyfuse {self.function.signature} as torch.ops.{self.name.replace('::', '.')}>"

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self.function, self._given_name, self.backward)

    def __deepcopy__(self, memo: object) -> TorchOperator:
        return self

    # --- calls ---

    def _dispatched(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call through torch's dispatcher."""
        named = self.function.named(args, kwargs)
        sizes = {s.name: kwargs[s.name] for s in self.function.signature.size_params if s.name in kwargs}
        if not any(isinstance(v, torch.Tensor) for v in named.values()):
            return self.function(*args, **kwargs)
        params = self.function.signature.params
        scalars = (p.name for p in params if p.is_scalar and isinstance(named[p.name], torch.Tensor))
        registered = self._register(frozenset(scalars))
        return _result(registered.overload(*named.values(), **sizes))

    def _register(self, tensors: frozenset[str]) -> Registered:
        """The operator of torch where these scalar parameters are given as tensors."""
        if tensors not in self._registered:
            name = "_with_".join([self.name, *sorted(tensors)])
            made = Registered(name, self.function.signature, self._for, tensors)
            if self.backward == NONE or any(p.inout for p in self.function.signature.params):
                made.without_gradient()
            else:
                self._gradient.attach(made)
            made.on_vmap(self._batch)
            self._registered[tensors] = made
        return self._registered[tensors]

    def _batch(self, values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
        """Results of a call in which some tensors have a batch axis in front, and which results have it."""
        params = {p.name for p in self.function.signature.params}
        function, _, given = self.function.chosen((), dict(values))
        dtypes = {n: dtype_of(n, v) for n, v in given.items() if isinstance(v, torch.Tensor)}
        ranks = {n: v.dim() - (n in names) if n in dtypes else 0 for n, v in given.items() if n in params}
        key = (names, *((n, d.name, ranks[n]) for n, d in dtypes.items()))
        if key not in self._batched:
            made = batched(function.graph_for(dtypes, ranks), names)
            operator = parse(operator_text(made.graph)).op()
            like = function.like(operator.program.programs, operator.signature)
            self._batched[key] = automatic(like), made.results
        op, results = self._batched[key]
        return op(**given), results

    def _for(self, values: Mapping[str, Any]) -> Compiled:
        """The function for the device on which these tensors are."""
        if not self.function.is_for_any_target:
            return self.function
        on_gpu = any(isinstance(v, torch.Tensor) and v.device.type == "cuda" for v in values.values())
        target = "cuda" if on_gpu else "cpu"
        if target not in self._on:
            self._on[target] = self.function.like(self.function.programs, self.function.signature, target)
        self._last = self._on[target]
        return self._last


def _result(found: Any) -> Any:
    return None if isinstance(found, tuple) and not found else found


def _again(function: Compiled, name: str | None, backward: Any) -> TorchOperator:
    """An operator from its pickle."""
    return op(function, name=name, backward=backward)


def _full_name(function: Compiled, name: str | None, backward: Any = None) -> str:
    """The name with its namespace. Raises ArgumentError PF804 for what torch cannot have."""
    if name is None:
        return f"{NAMESPACE}::{function.signature.name}_{digest(function, backward)}"
    found = name if "::" in name else f"{NAMESPACE}::{name}"
    if not all(part.isidentifier() for part in found.split("::")) or found.count("::") != 1:
        hint = 'as in name="mine::layer_norm"'
        raise ArgumentError(f"name= cannot be {name!r}: torch has no such names", code="PF804", hint=hint)
    return found


# --- functions that `pf.compile` made -----------------------------------------------------------------------

# Called with tensors that are more than their memory, or where somebody looks at each operator, they go
# through torch's dispatcher as well.


def dispatched(token: str, given: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A call of the function that has a token. Raises ArgumentError PF805 for one with `out=`."""
    if given:
        message = "out= cannot be used in what torch traces"
        raise ArgumentError(message, code="PF805", hint="leave it out: torch makes the results")
    return _kept(BY_TOKEN[token], NONE)(*args, **kwargs)
