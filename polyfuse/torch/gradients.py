"""What autograd does with an operator: a forward that keeps values, a backward that is an operator too.

    y, mu = layer_norm_forward(x, gamma)    mu is kept
    dx, dgamma = layer_norm_backward(dy, x, gamma, mu)

Both are operators of torch, so that tracers see them; the backward one has a gradient itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from polyfuse.api import Operator, Program, compile, grad
from polyfuse.autodiff.structure import live_tensors
from polyfuse.diagnostics import PolyfuseError
from polyfuse.driver.compiled import Compiled
from polyfuse.frontend_dsl.semantics.signature import Signature, infer_generics
from polyfuse.gradient_pairs import Gradients, Source
from polyfuse.interop.by_hand import gradient_of, source_of, unfit
from polyfuse.interop.torch_tensors import no_gradient
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.torch.registration import Registered, dtype_of, requires_grad
from polyfuse.torch.shapes import sizes_of

Named = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """How one choice of types is differentiated.

    forward   the operator that has the results and then the values kept; None: none are
    sources   where the arguments of `backward` come from
    backward  gives the gradients of `wrt`, in a tuple
    sizes     those that it takes by name, and the graph of the forward that says them
    kept      names of the values kept
    """

    forward: Any
    sources: tuple[Source, ...]
    backward: Callable[..., tuple[Any, ...]]
    wrt: tuple[str, ...]
    sizes: tuple[str, ...] = ()
    graph: TensorGraph | None = None
    kept: tuple[str, ...] = ()

    def batched(self) -> Rule:
        """A rule that does this for each element of a batch, which all tensors have in front."""

        def backward(*args: Any, **sizes: Any) -> tuple[Any, ...]:
            at: list[int] = []

            def of_each(*given: Any) -> tuple[Any, ...]:
                every = self.backward(*given, **sizes)
                at[:] = [k for k, g in enumerate(every) if g is not None]
                return tuple(every[k] for k in at)

            dims = tuple(0 if isinstance(a, torch.Tensor) else None for a in args)
            found = dict(zip(at, torch.vmap(of_each, dims)(*args), strict=True))
            return tuple(found.get(k) for k in range(len(self.wrt)))

        return replace(self, backward=backward)


NOTHING_FLOWS = Rule(None, (), tuple, ())
MakeOperator = Callable[[Compiled], Any]


class Differentiation:
    """The gradient of an operator of torch. `make`: an operator of torch from a function.  Of what is derived
    nothing need flow to an argument: the gradient of a gradient is 0 then."""

    def __init__(self, function: Compiled, backward: Any, make: MakeOperator, is_derived: bool) -> None:
        self.function, self.make, self.is_derived = function, make, is_derived
        self.by_hand: Rule | None = None
        if backward is not None:
            given = isinstance(backward, Rule)
            self.by_hand = backward if given else _by_hand(function.signature, backward, make)
        self._rules: dict[object, Rule] = {}

    def attach(self, registered: Registered) -> None:
        """Have calls differentiated in which a gradient is asked for."""
        apply = _function_of(registered, self._rule)
        registered.on_autograd(lambda keyset, *args, **kwargs: apply(keyset, args, kwargs))

    def _rule(self, named: Named) -> Rule:
        """The rule for a call. Raises ArgumentError PF420 where there is none, and says why."""
        if self.by_hand is not None:
            return self.by_hand
        wrt = tuple(n for n, v in named.items() if requires_grad(v))
        dtypes = {n: dtype_of(n, v) for n, v in named.items() if isinstance(v, torch.Tensor)}
        ranks = {n: v.dim() if isinstance(v, torch.Tensor) else 0 for n, v in named.items() if v is not None}
        key = (wrt, *((n, d.name, ranks[n]) for n, d in dtypes.items()))
        if key not in self._rules:
            self._rules[key] = self._derived(wrt, named, dtypes, ranks)
        return self._rules[key]

    def _derived(self, wrt: tuple[str, ...], named: Named, dtypes: Any, ranks: Any) -> Rule:
        function, _, values = self.function.chosen((), dict(named))
        signature = function.signature
        operator = Operator(Program(function.programs), self.function.signature.op, signature.absent)
        ranks = {n: r for n, r in ranks.items() if n in values}
        graph = function.graph_for(dtypes, ranks)
        generics = infer_generics(signature, dtypes, ranks)
        of = [r for r in graph.outputs if graph.tensor(r).dtype.is_float]
        flowing = tuple(n for n in wrt if n in live_tensors(graph, of, wrt))
        if not of or (self.is_derived and not flowing):
            return NOTHING_FLOWS
        try:
            pair = grad(operator, flowing or wrt, of=of, dtypes=generics.dtypes, ranks=generics.ranks)
        except PolyfuseError as error:
            what = f"argument '{wrt[0]}' of {signature.name}"
            because, remedy = error.diagnostics[0].message, "give it one: pf.torch.op(f, backward=...)"
            raise no_gradient(what, wrt[0], because, remedy) from error
        return self._of_pair(pair, graph)

    def _of_pair(self, pair: Gradients, graph: TensorGraph) -> Rule:
        forward = self.make(self.function.like(pair.forward.program.programs, pair.forward.signature))
        backward = self.make(self.function.like(pair.backward.program.programs, pair.backward.signature))

        def call(*args: Any, **sizes: Any) -> tuple[Any, ...]:
            return _tuple(backward(*args, **sizes))

        return Rule(
            forward if pair.kept else None, pair.sources, call, pair.wrt, pair.sizes, graph, pair.kept
        )


def _tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


# --- the step of autograd -----------------------------------------------------------------------------------


def _function_of(registered: Registered, rule_of: Callable[[Named], Rule]) -> Callable[..., Any]:
    """What differentiates calls of an operator: (keys of the dispatcher, arguments, sizes) -> results."""
    signature = registered.signature
    results = [r.name for r in signature.results]

    def forward(ctx: Any, keyset: Any, kwargs: Named, rule: Rule, *args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd(), _outer_levels():
            keys = keyset & torch._C._after_autograd_keyset
            op = registered.overload if rule.forward is None else rule.forward.overload
            every = _tuple(op.redispatch(keys, *args, **kwargs))
        named = registered.named(args, kwargs)
        ctx.rule, ctx.kwargs = rule, kwargs
        ctx.sizes = _sizes(rule, named, kwargs)
        kept = () if rule.forward is None else args  # to keep values that have gradients
        ctx.saved = _Saved(ctx, [_value(s, named, [*results, *rule.kept], every) for s in rule.sources], kept)
        found = every[: len(results)]
        ctx.mark_non_differentiable(*(r for r in found if not rule.wrt or not r.is_floating_point()))
        return found[0] if len(found) == 1 else found

    def backward(ctx: Any, *grads: Any) -> Any:
        rule: Rule = ctx.rule
        values, inputs = ctx.saved.all(ctx)
        every: tuple[Any, ...] = ()
        if inputs and torch.is_grad_enabled():  # gradients of gradients flow through what was kept
            every = _tuple(rule.forward(*inputs, **ctx.kwargs))
        cotangents = dict(zip(results, grads, strict=True))
        args = [
            cotangents[s.name].contiguous()
            if s.kind == "cotangent"
            else _value(s, {}, [*results, *rule.kept], every)
            if s.kind == "kept" and every
            else v
            for s, v in zip(rule.sources, values, strict=True)
        ]
        gradients = dict(zip(rule.wrt, rule.backward(*args, **ctx.sizes), strict=True))
        return None, None, None, *(gradients.get(p.name) for p in signature.params)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    step: Any = type(f"{signature.name}_gradient", (_SingleLevelFunction,), members)

    def apply(keyset: Any, args: tuple[Any, ...], kwargs: Named) -> Any:
        named = registered.named(args, kwargs)
        every = [named[p.name] for p in signature.params]
        rule = rule_of({p.name: named[p.name] for p in signature.params})
        with enable_single_level_autograd_function():  # of torch.func, which has peeled off its levels
            return step.apply(keyset, kwargs, rule, *every)

    return apply


@contextmanager
def _outer_levels() -> Iterator[None]:
    """Autograd is off while a step goes forward; the levels of torch.func around this one need it on."""
    if not torch._C._are_functorch_transforms_active():
        yield
        return
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


def _sizes(rule: Rule, named: Named, given: Named) -> Named:
    """Sizes of the forward call that the backward is given by name."""
    if rule.graph is None or not rule.sizes:
        return {}
    shapes = {n: v.shape for n, v in named.items() if isinstance(v, torch.Tensor)}
    found = sizes_of(rule.graph, shapes, {n: v for n, v in given.items() if v is not None})
    return {n: found[n] for n in rule.sizes}


class _Saved:
    """Values for a backward: tensors lie with autograd, which sees when they are written."""

    def __init__(self, ctx: Any, values: Sequence[Any], inputs: Sequence[Any]) -> None:
        every = [*values, *inputs]
        self._count = len(values)
        self._is_tensor = [isinstance(v, torch.Tensor) for v in every]
        self._others = [None if isinstance(v, torch.Tensor) else v for v in every]
        ctx.save_for_backward(*(v for v in every if isinstance(v, torch.Tensor)))

    def all(self, ctx: Any) -> tuple[list[Any], list[Any]]:
        """The values, and the inputs."""
        tensors = iter(ctx.saved_tensors)
        every = [next(tensors) if here else v for here, v in zip(self._is_tensor, self._others, strict=True)]
        return every[: self._count], every[self._count :]


def _value(s: Source, named: Named, names: Sequence[str], every: Sequence[Any]) -> Any:
    """What is known of an argument of the backward when the forward has given results of these names."""
    if s.kind == "cotangent":
        return None
    if s.kind == "argument":
        return named[s.name]
    return every[names.index(s.name)]


# --- backwards by hand --------------------------------------------------------------------------------------


def _by_hand(signature: Signature, backward: Any, make: MakeOperator) -> Rule:
    """The rule of a backward that is given: an operator, or a function that gives gradients by name.

    Its parameters are called as parameters and results, or as `d` and the name of a result. Raises
    ArgumentError PF804 for others.
    """
    if isinstance(backward, (Compiled, Operator, Program, str)) or hasattr(backward, "function"):
        function = getattr(backward, "function", backward)
        compiled = function if isinstance(function, Compiled) else compile(function)
        return _by_operator(signature, compiled, make)
    names = list(inspect.signature(backward).parameters)
    sources = tuple(source_of(signature, n) for n in names)
    wrt = tuple(p.name for p in signature.params)

    def call(*args: Any) -> tuple[Any, ...]:
        found = backward(**dict(zip(names, args, strict=True)))
        if not isinstance(found, Mapping) or not found.keys() <= set(wrt):
            raise unfit(f"the backward of {signature.name} gives no gradients by name of parameters", wrt)
        return tuple(found.get(n) for n in wrt)

    return Rule(None, sources, call, wrt)


def _by_operator(signature: Signature, backward: Compiled, make: MakeOperator) -> Rule:
    op = make(backward)
    own = backward.signature
    sums = [p.name for p in own.params if p.inout]  # gradients that are added to, from 0
    params = {n: gradient_of(signature, own.name, n) for n in (*(r.name for r in own.results), *sums)}
    sources = tuple(
        Source(p.name, "argument", params[p.name]) if p.inout else source_of(signature, p.name)
        for p in own.params
    )

    def call(*args: Any) -> tuple[Any, ...]:
        given = [torch.zeros_like(a) if p.inout else a for p, a in zip(own.params, args, strict=True)]
        found = op(*given)
        results = () if found is None else _tuple(found)
        return (*results, *(a for p, a in zip(own.params, given, strict=True) if p.inout))

    return Rule(None, sources, call, tuple(params.values()))
