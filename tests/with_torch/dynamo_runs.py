"""Graphs traced for tests, and regions run by the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from polyfuse.runtime.reference.evaluate import evaluate
from polyfuse.torch.dynamo.lowering import Lowered
from polyfuse.torch.dynamo.lowerings.table import TABLE, tensor_of
from polyfuse.torch.dynamo.settings import decompositions
from polyfuse.torch.dynamo.sizes import dense_order


def traced_function(f: Callable[..., Any], given: Sequence[Any]) -> Any:
    """The functional ATen graph of a function, with the backend's decompositions."""
    found: list[Any] = []

    def keep(module: Any, inputs: Any) -> Any:
        found.append(module)
        return make_boxed_func(module.forward)

    from functorch.compile import aot_function, make_boxed_func

    with torch.no_grad():
        aot_function(lambda *xs: f(*xs), fw_compiler=keep, decompositions=decompositions())(*given)
    return found[0]


def traced_call(f: Callable[..., Any], given: Sequence[Any]) -> Any:
    """The graph of the very operators that a function calls; without those that write, which some are made
    of in some versions."""
    found = make_fx(f, tracing_mode="fake")(*given)
    called = [n.target for n in found.graph.nodes if n.op == "call_function" and n.target not in TABLE]
    if any(o._schema.is_mutable for o in called if isinstance(o, torch._ops.OpOverload)):
        found = make_fx(torch.func.functionalize(f), tracing_mode="fake")(*given)
    return found


def evaluated(low: Lowered, tensors: Sequence[Any]) -> list[Any]:
    """The results of a region by the reference, for its arguments."""
    given = {}
    for k, (n, t) in enumerate(zip(low.inputs, tensors, strict=True)):
        t = t.detach().contiguous() if n in low.copied else t.detach()
        order = dense_order(tuple(t.shape), tuple(t.stride()))
        shape = [int(str(e)) for e in low.graph.tensor(f"p{k}").shape]
        given[f"p{k}"] = as_array(t.permute(order) if order else t).reshape(shape)
    found = evaluate(low.graph, {}, given, checked=False)
    results = []
    for k, n in enumerate(low.outputs):
        t = tensor_of(n)
        order = dense_order(tuple(t.shape), tuple(t.stride())) or ()
        flat = torch.from_numpy(np.array(found[f"o{k}"].value)).to(t.dtype)
        laid = flat.reshape([t.shape[d] for d in order]).permute([order.index(d) for d in range(t.dim())])
        results.append(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(laid))
    return results


def as_array(t: Any) -> Any:
    """A tensor as NumPy has it."""
    if t.dtype is torch.bfloat16:
        import ml_dtypes

        return t.float().numpy().astype(ml_dtypes.bfloat16)
    return t.contiguous().numpy()
