"""PyTorch's own samples of operators (OpInfo), as far as regions have what they are made of.

Each region of a sample's graph is evaluated by the reference, on what ATen gives it, and must give what ATen
gives.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from dynamo_runs import evaluated, traced_function
from test_dynamo_operators import close

from polyfuse.torch.dynamo.lowering import lower
from polyfuse.torch.dynamo.partition import partition

pytest.importorskip("expecttest")  # which torch's own samples import

from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 2
LEFT_OUT = (
    *(
        "rand",
        "bernoulli",
        "multinomial",
        "normal",
        "uniform",
        "cauchy",
        "exponential",
        "geometric",
        "dropout",
    ),
    *("rrelu", "empty", "fft", "linalg", "sparse", "svd", "lu", "eig", "cholesky", "signal", "conv"),
    *("ctc", "stft", "qr", "geqrf", "pca", "jiterator", "multi_head"),
)
"""Random numbers, what has no values, and what stays with ATen as a whole."""
KNOWN = {
    "nn.functional.pad": "circular padding reads memory that nobody has written, and overwrites it",
    "nn.functional.hardtanh": "bounds of integers that are none: the node stays with ATen",
    "nn.functional.hinge_embedding_loss": "a mean that cancels: eager adds in 16 bits, we in 32",
    "_unsafe_masked_index_put_accumulate": "a sum that cancels: eager adds in 16 bits, we in 32",
}


def samples(dtype: torch.dtype) -> Iterator[tuple[str, Any, list[Any]]]:
    """Operators, how a sample calls them, and its tensors."""
    for op in op_db:
        if dtype not in op.dtypes or any(w in op.name for w in LEFT_OUT):
            continue
        for s in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES):
            flat, spec = torch.utils._pytree.tree_flatten((s.input, s.args, s.kwargs))
            at = [k for k, x in enumerate(flat) if isinstance(x, torch.Tensor)]

            def call(*xs: Any, op: Any = op, flat: Any = flat, spec: Any = spec, at: Any = at) -> list[Any]:
                own = list(flat)
                for k, x in zip(at, xs, strict=True):
                    own[k] = x
                a, b, c = torch.utils._pytree.tree_unflatten(own, spec)
                return [
                    y for y in torch.utils._pytree.tree_leaves(op(a, *b, **c)) if isinstance(y, torch.Tensor)
                ]

            yield op.name, call, [flat[k].detach() for k in at]


def check(module: Any, given: list[Any]) -> int:
    """Compare the regions of a graph; how many there are."""
    found, values, left = partition(module.graph, {}), dict[Any, Any](), iter(given)
    for n in module.graph.nodes:
        if n.op == "placeholder":
            values[n] = next(left)
        elif n.op == "get_attr":
            values[n] = getattr(module, n.target)
        elif n.op == "call_function":
            args, kwargs = torch.fx.map_arg((n.args, n.kwargs), lambda a: values[a])
            values[n] = n.target(*args, **kwargs)
    for r in found.regions:
        low = lower(r.nodes, r.outputs)
        for n, got in zip(low.outputs, evaluated(low, [values[a] for a in low.inputs]), strict=True):
            close(got, values[n])
    return len(found.regions)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_samples_of_torch_agree(dtype: torch.dtype) -> None:
    warnings.simplefilter("ignore")
    counts, wrong = Counter[str](), Counter[str]()
    for name, call, tensors in samples(dtype):
        try:
            module = traced_function(call, tensors)
        except Exception:  # what torch cannot trace
            counts["untraced"] += 1
            continue
        try:
            counts["right" if check(module, tensors) else "of ATen"] += 1
        except Exception as problem:
            wrong[name] += 1
            if name not in KNOWN:
                raise AssertionError(f"{name}: {problem}") from problem
    assert counts["right"] > 80
    assert wrong.total() <= 0.02 * (counts["right"] + wrong.total())
