"""`pf.torch.op`: an operator that models call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import count
from typing import Any

import torch

from polyfuse.api import Operator, Program, compile, parse
from polyfuse.autodiff.batching import batched
from polyfuse.autodiff.graph_text import operator_text
from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.compiled import Compiled
from polyfuse.driver.names import digest
from polyfuse.interop.torch_tensors import BY_TOKEN
from polyfuse.support.processes import ForkLock
from polyfuse.torch.gradients import Differentiation
from polyfuse.torch.registration import NAMESPACE, Registered, dtype_of, require_tensors


def op(
    function: Compiled | Operator | Program | str | os.PathLike[str],
    *,
    name: str | None = None,
    backward: Any = None,
) -> TorchOperator:
    """An operator of torch: it has gradients, and works in `torch.compile`, `torch.export`, `torch.vmap`.

    Parameters
    ----------
    function
        What `pf.compile` returned, or what it takes.
    name
        "namespace::name", as torch has it; one that is made of the program where it is not given.
    backward
        What computes the gradients, if they are not to be derived: an operator, or a Python function that
        gives them by name of parameters. Its parameters are called as those of `function` and its results, or
        as ``d`` and the name of a result.

    Returns
    -------
    TorchOperator
        A function of tensors, on the CPU or a GPU.

    Raises
    ------
    ArgumentError
        PF804 for a name that torch cannot have, or a `backward` whose parameters are others.

    Examples
    --------
    >>> import torch
    >>> square = pf.torch.op("op square(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * x[i] }")
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> square(x).sum().backward()
    >>> x.grad
    tensor([2., 4.])
    """
    compiled = function if isinstance(function, Compiled) else compile(function)
    return _made(compiled, name, backward)


def derived(function: Compiled) -> TorchOperator:
    """The operator of a forward or backward that a gradient consists of."""
    return _made(function, None, DERIVED)


_lock = ForkLock()
_operators: dict[str, TorchOperator] = {}
"""By name: of several that are the same there is one."""
NONE, DERIVED = "none", "derived"
"""In place of a backward: there is no gradient, not even a derived one; it is what a gradient is made of, and
nothing has to flow through it."""


def _made(function: Compiled, given_name: str | None, backward: Any) -> TorchOperator:
    """An operator that is not there yet, or the one that is.  Of names that are given the last one counts."""
    name = _full_name(function, given_name, backward)
    with _lock:
        for k in count(2):
            known = _operators.get(name)
            if known is not None and known.is_of(function, backward):
                return known
            if known is None or given_name is not None:
                break
            name = f"{_full_name(function, None, backward)}_{k}"  # closures of one text
        if known is not None:
            known.is_replaced = True
        made = _operators[name] = TorchOperator(function, name, backward)
        made.given_name = given_name
        return made


class TorchOperator:
    """An operator that models call like a function of torch; arguments are tensors and numbers. `op` gives
    it.

    Tensors that are no more than their memory take a short way; all others go through torch's dispatcher, so
    that autograd, autocast, tracers, `torch.func` and subclasses see one operator, `overload`.
    """

    def __init__(self, function: Compiled, name: str, backward: Any) -> None:
        self.function, self.backward, self.name = function, backward, name
        self.given_name: str | None = None
        self.is_replaced = False
        self._on: dict[str, Compiled] = {}
        self._last = function
        by_hand = None if backward in (NONE, DERIVED) else backward
        self._gradient = Differentiation(function, by_hand, derived, is_derived=backward == DERIVED)
        self._batched: dict[object, tuple[TorchOperator, tuple[str, ...]]] = {}
        self._registered: dict[frozenset[str], Registered] = {}
        self.overload: Any = self._register(frozenset()).overload
        self.__name__ = self.__qualname__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self.is_replaced:
            raise self._replaced()
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
        return _made, (self.function, self.given_name, self.backward)

    def __deepcopy__(self, memo: object) -> TorchOperator:
        return self

    def is_of(self, function: Compiled, backward: Any) -> bool:
        """Is it made of this `function` and this `backward`?"""
        of_python = callable(backward) and not isinstance(
            backward, (Compiled, Operator, Program, TorchOperator)
        )
        same = self.backward == backward or not of_python
        return same and digest(function, backward) == digest(self.function, self.backward)

    def _replaced(self) -> ArgumentError:
        message = f"{self.name} is another operator by now: this one was made before it"
        return ArgumentError(message, code="PF426", hint="call the new one, or give one of them another name")

    # --- calls ---

    def _dispatched(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call through torch's dispatcher."""
        named = self.function.named(args, kwargs)
        sizes = {s.name: kwargs[s.name] for s in self.function.signature.size_params if s.name in kwargs}
        if not any(isinstance(v, torch.Tensor) for v in named.values()):
            return self.function(*args, **kwargs)
        require_tensors(self.function.signature, named)
        params = self.function.signature.params
        scalars = (p.name for p in params if p.is_scalar and isinstance(named[p.name], torch.Tensor))
        registered = self._register(frozenset(scalars))
        return _result(registered.overload(*named.values(), **sizes))

    def _register(self, tensors: frozenset[str]) -> Registered:
        """The operator of torch where these scalar parameters are given as tensors."""
        with _lock:
            if tensors in self._registered:
                return self._registered[tensors]
            name = "_with_".join([self.name, *sorted(tensors)])
            made = Registered(name, self.function.signature, self._for, tensors)
            if self.backward == NONE or any(p.inout for p in self.function.signature.params):
                made.without_gradient()
            else:
                self._gradient.attach(made)
            made.on_vmap(self._batch)
            self._registered[tensors] = made
            return made

    def _batch(self, size: int, values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
        """Results of a call in which some tensors have a batch axis in front, and which results have it."""
        params = {p.name for p in self.function.signature.params}
        function, _, given = self.function.chosen((), dict(values))
        if by_hand := self._gradient.by_hand:  # it is computed for each element of the batch
            tensors = [n for n, v in given.items() if isinstance(v, torch.Tensor)]
            given |= {n: given[n].expand(size, *given[n].shape) for n in tensors if n not in names}
            names = tuple(tensors)
        dtypes = {n: dtype_of(n, v) for n, v in given.items() if isinstance(v, torch.Tensor)}
        ranks = {n: v.dim() - (n in names) if n in dtypes else 0 for n, v in given.items() if n in params}
        key = (names, *((n, d.name, ranks[n]) for n, d in dtypes.items()))
        if key not in self._batched:
            made = batched(function.graph_for(dtypes, ranks), names)
            operator = parse(operator_text(made.graph)).op()
            like = function.like(operator.program.programs, operator.signature)
            if by_hand:
                own = TorchOperator(like, f"{self.name}_{digest(like)}", by_hand.batched())
            else:
                own = _made(like, None, self.backward)
            self._batched[key] = own, made.results
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
    return _made(BY_TOKEN[token], None, NONE)(*args, **kwargs)
