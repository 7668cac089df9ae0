"""PyTorch's own samples of operators (OpInfo) and their gradients, as far as regions have what they need.

Each region of a sample's graph is evaluated by the reference, on what ATen gives it, and must give what ATen
gives.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from dynamo_runs import evaluated, traced_function
from test_dynamo_operators import close

from polyfuse.torch.dynamo import partition as partitioning
from polyfuse.torch.dynamo.lowering import lower
from polyfuse.torch.dynamo.partition import Region, partition

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
    **dict.fromkeys(
        ("ldexp", "pow", "kron"), "a gradient that cancels: eager rounds what it adds to 16 bits"
    ),
    "nn.functional.linear_cross_entropy": "parts of a gradient come into memory that nobody has written",
    "nn.functional.hardsigmoid": "eager's gradient of f64 multiplies by a sixth of 24 bits",
    "atanh": "a gradient near a pole: eager rounds the distance to it to 16 bits",
    "_unsafe_masked_index_put_accumulate": "a sum that cancels: eager adds in 16 bits, we in 32",
}


@dataclass(frozen=True)
class Sample:
    """A call of an operator: what it gives for tensors, and which of these have gradients."""

    name: str
    call: Callable[..., list[Any]]
    tensors: list[Any]
    wanted: tuple[bool, ...]

    def gradients(self, *tensors: Any) -> list[Any]:
        """Those of a weighted sum of all results."""
        with torch.enable_grad():
            pairs = list(zip(tensors, self.wanted, strict=True))
            own = [x.detach().requires_grad_() if w else x for x, w in pairs]
            results = [y for y in self.call(*own) if y.requires_grad and y.is_floating_point()]
            weights = [torch.arange(y.numel()).double().view(y.shape).cos().to(y.dtype) for y in results]
            total = sum((y * w).sum() for y, w in zip(results, weights, strict=True))
            found = torch.autograd.grad(total, [x for x in own if x.requires_grad], allow_unused=True)
        return [g for g in found if g is not None]


def samples(dtype: torch.dtype, gradients: bool, part: tuple[int, int] = (0, 1)) -> Iterator[Sample]:
    """Those of operators, a part of them: number of parts and which."""
    for op in op_db[part[0] :: part[1]]:
        if dtype not in op.dtypes or any(w in op.name for w in LEFT_OUT):
            continue
        if gradients and not (op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")):
            continue
        for s in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), SAMPLES):
            flat, spec = torch.utils._pytree.tree_flatten((s.input, s.args, s.kwargs))
            at = [k for k, x in enumerate(flat) if isinstance(x, torch.Tensor)]
            tensors = [flat[k].detach() for k in at]
            yield Sample(
                op.name,
                partial(_called, op, flat, spec, at),
                tensors,
                tuple(flat[k].requires_grad for k in at),
            )


def _called(op: Any, flat: list[Any], spec: Any, at: list[int], *xs: Any) -> list[Any]:
    own = list(flat)
    for k, x in zip(at, xs, strict=True):
        own[k] = x
    a, b, c = torch.utils._pytree.tree_unflatten(own, spec)
    return [y for y in torch.utils._pytree.tree_leaves(op(a, *b, **c)) if isinstance(y, torch.Tensor)]


def _is_empty(region: Region) -> str:
    return "" if region.outputs and region.counted else "it computes nothing"


def check(module: Any, given: list[Any], short: torch.dtype) -> int:
    """Compare the regions of a graph; how many there are.  The reference does not round between operators: of
    `short` floats results of more bits differ as much as these."""
    with patch.object(partitioning, "why_it_does_not_pay", _is_empty):  # those of one operator as well
        found = partition(module.graph, {})
    values, left = dict[Any, Any](), iter(given)
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
            close(got, values[n], rounded=short if short is torch.bfloat16 else None)
    return len(found.regions)


def judged(
    dtype: torch.dtype, gradients: bool, part: tuple[int, int] = (0, 1)
) -> tuple[Counter[str], list[str]]:
    """How many samples are right, of ATen alone, and untraced; and those that are wrong, with the reason."""
    warnings.simplefilter("ignore")
    counts, wrong = Counter[str](), []
    for s in samples(dtype, gradients, part):
        try:
            module = traced_function(s.gradients if gradients else s.call, s.tensors)
        except Exception:  # what torch cannot trace
            counts["untraced"] += 1
            continue
        try:
            counts["right" if check(module, s.tensors, dtype) else "of ATen"] += 1
        except Exception as problem:
            wrong.append(f"{s.name}: {problem}")
    return counts, wrong


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("gradients", [False, True], ids=["values", "gradients"])
def test_samples_of_torch_agree(dtype: torch.dtype, gradients: bool) -> None:
    if gradients and not dtype.is_floating_point:
        pytest.skip("integers have no gradients")
    counts, wrong = judged(dtype, gradients)
    assert [w for w in wrong if w.split(":")[0] not in KNOWN] == []
    assert counts["right"] > 200
    assert len(wrong) <= 0.02 * (counts["right"] + len(wrong))
