"""Tensors of torch: which of them are no more than their memory, and what torch is told of what is written.

torch is asked only where it is loaded already.  What autograd, vmap and tensor subclasses know of a tensor
does not lie in its memory, which is all that kernels see; so where they know something, it is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from polyfuse.diagnostics import ArgumentError


def is_torch(value: object) -> bool:
    """Is it a tensor of torch?"""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def require_memory(tensor: Any, name: str) -> None:
    """Refuse a tensor of which torch knows more than lies in its memory.

    Raises ArgumentError PF421 for one that stands for others, PF420 for one whose gradient is asked for.
    """
    torch: Any = sys.modules["torch"]
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter):
        raise _no_memory(
            name,
            f"a {kind.__module__}.{kind.__qualname__}, a subclass of torch.Tensor: it may not lie in memory",
            f"pass a plain tensor: {name}.as_subclass(torch.Tensor) if it has data, real data for a fake one",
        )
    if _is_wrapped(tensor):
        raise _no_memory(
            name,
            "inside of a transformation of torch.func (vmap, grad, jvp, functionalize): it has no memory",
            "call the operator outside of the transformation, and give it whole tensors",
        )
    if tensor.device.type == "meta":
        raise _no_memory(name, "on the device 'meta', where tensors have no data", "pass a tensor with data")
    if torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
        raise _no_memory(
            name,
            "a dual tensor, and its tangent would be lost",
            f"pass torch.autograd.forward_ad.unpack_dual({name}).primal; operators have no derivatives",
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        raise no_gradient(f"argument '{name}'", name)


def no_gradient(
    what: str,
    name: str,
    because: str = "none would flow here",
    remedy: str = "pf.torch.op(f) has one, unless it writes an argument (inout)",
) -> ArgumentError:
    """The error PF420 for an argument whose gradient is asked for; `remedy` says how it can be had."""
    return ArgumentError(
        f"{what} requires grad, but this operator has no gradient: {because}",
        code="PF420",
        hint=f"{remedy}; or, if no gradient is to flow, call it within "
        f"`with torch.no_grad():`, or pass {name}.detach()",
    )


def write_tensors(tensors: Mapping[str, Any]) -> None:
    """Tell torch that these will be written, so that a later backward that needs the old values is an error.

    Raises ArgumentError PF418 for a tensor that torch lets nobody write.
    """
    if not tensors:
        return
    torch: Any = sys.modules["torch"]
    for name, tensor in tensors.items():
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise ArgumentError(
                f"argument '{name}' was made in torch.inference_mode(): it can be written there only",
                code="PF418",
                hint=f"call it within `with torch.inference_mode():`, or pass {name}.clone()",
            )
    for tensor in tensors.values():
        if not tensor.is_inference():  # those have no version
            torch.autograd.graph.increment_version(tensor)


def is_more_than_memory(tensor: Any) -> bool:
    """Is it a tensor that stands for others, or one that has a tangent?"""
    torch: Any = sys.modules["torch"]
    dual = torch.autograd.forward_ad.unpack_dual(tensor)
    return _is_wrapped(tensor) or dual.tangent is not None


def functorch_test(torch: Any) -> Callable[[Any], object] | None:
    """What says whether a tensor is inside of a transformation of `torch.func`; there is no public way."""
    found: Any = getattr(getattr(torch, "_C", None), "_functorch", None)
    test: Callable[[Any], object] | None = getattr(found, "is_functorch_wrapped_tensor", None)
    return test


def watchers(torch: Any) -> list[Callable[[], object]]:
    """What tells of those who look at each operator: modes of dispatch, the tracer of torch.jit."""
    found: Any = getattr(torch, "_C", None)
    names = ("_len_torch_dispatch_stack", "_get_tracing_state")
    return [f for f in (getattr(found, n, None) for n in names) if f is not None]


def is_for_dispatcher(values: Iterable[object]) -> bool:
    """Does the memory of some tensor say too little, or does somebody look at each operator?"""
    tensors: list[Any] = [v for v in values if is_torch(v)]
    torch: Any = sys.modules.get("torch")
    if not tensors or not hasattr(torch, "library"):
        return False
    plain = (torch.Tensor, torch.nn.Parameter)
    odd = any(type(t) not in plain or _is_wrapped(t) or t.device.type == "meta" for t in tensors)
    return odd or any(f() for f in watchers(torch))


def _is_wrapped(tensor: Any) -> bool:
    """Is it a tensor inside of a transformation of `torch.func`?"""
    asked = functorch_test(sys.modules["torch"])
    return asked is not None and bool(asked(tensor))


def _no_memory(name: str, what: str, hint: str) -> ArgumentError:
    return ArgumentError(f"argument '{name}' is {what}", code="PF421", hint=hint)


# --- functions inside of what torch traces ------------------------------------------------------------------

BY_TOKEN: WeakValueDictionary[str, Any] = WeakValueDictionary()
_tokens = count()


def new_token(function: Any) -> str:
    """A word for a function, in this process: what graphs of torch can have in place of an object."""
    token = f"{function.__name__}#{next(_tokens)}"
    BY_TOKEN[token] = function
    return token


def in_graph(function: Any, /, *args: Any, out: object = None, **kwargs: Any) -> Any:
    """What `torch.compile` reads where a model calls a function: the call as one node of its graph."""
    from polyfuse.interop.traced import traced  # only where torch is used

    return traced(function.token, out is not None, args, kwargs)
