"""Gradients of operators of the library beside those of PyTorch's autograd, both in float64."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if (spec := find_spec("torch")) is None or spec.origin is None:  # this folder is no PyTorch
    pytest.skip("PyTorch is not there", allow_module_level=True)

import torch
import torch.nn.functional as F
from gradient_checks import gradients

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.bind_sizes import with_defaults
from polyfuse.ir.index_expr import ISize

RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape)


ROW, IMAGE = floats(3, 5), floats(2, 3, 7, 8)
# The operator, PyTorch's function, sizes that no shape says, arguments.
CASES: list[tuple[str, Callable[..., Any], dict[str, int], list[Any]]] = [
    ("softmax", lambda x: F.softmax(x, -1), {}, [ROW]),
    ("log_softmax", lambda x: F.log_softmax(x, -1), {}, [ROW]),
    ("relu", F.relu, {}, [floats(7)]),
    ("gelu", F.gelu, {}, [floats(7)]),
    ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), {}, [floats(7)]),
    ("silu", F.silu, {}, [floats(7)]),
    ("elu", F.elu, {}, [floats(7)]),
    ("softplus", F.softplus, {}, [floats(7)]),
    ("leaky_relu", F.leaky_relu, {}, [floats(7)]),
    ("layer_norm", lambda x, g, b: F.layer_norm(x, (5,), g, b), {}, [ROW, floats(5), floats(5)]),
    ("rms_norm", lambda x, g: F.rms_norm(x, (5,), g, 1e-6), {}, [ROW, floats(5)]),
    (
        "group_norm",
        lambda x, g, b: F.group_norm(x, 3, g, b),
        {"G": 3},
        [floats(2, 6, 5), floats(6), floats(6)],
    ),
    ("l2_normalize", lambda x: F.normalize(x, dim=-1, eps=1e-6), {}, [ROW]),
    ("cross_entropy", F.cross_entropy, {}, [floats(4, 6), np.array([1, 5, 0, 2])]),
    ("binary_cross_entropy", F.binary_cross_entropy_with_logits, {}, [floats(6), RNG.random(6)]),
    ("mse_loss", F.mse_loss, {}, [floats(6), floats(6)]),
    (
        "conv2d",
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, groups=2),
        {"S": 2, "P": 1, "D": 1, "G": 2, "C": 2, "K": 3},
        [floats(2, 4, 7, 8), floats(6, 2, 3, 3), floats(6)],
    ),
    ("max_pool", lambda x: F.max_pool2d(x, 3, 2, 1), {"K": 3, "S": 2, "P": 1}, [IMAGE]),
    ("avg_pool", lambda x: F.avg_pool2d(x, 3, 2, 1), {"K": 3, "S": 2, "P": 1}, [IMAGE]),
    ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), {"R": 2, "C": 3}, [floats(2, 12, 3, 4)]),
    ("unfold", lambda x: F.unfold(x, 3, padding=1, stride=2), {"K": 3, "P": 1, "S": 2}, [IMAGE]),
    (
        "interpolate_bilinear",
        lambda x: F.interpolate(x, (5, 9), mode="bilinear"),
        {"O": 5, "Q": 9},
        [floats(2, 3, 4, 6)],
    ),
    (
        "attention",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m[:, None]),
        {},
        [floats(2, 3, 4, 5), floats(2, 3, 6, 5), floats(2, 3, 6, 7), floats(2, 4, 6)],
    ),
    ("embedding", lambda t, i: F.embedding(i, t), {}, [floats(5, 3), np.array([1, 1, 4, 0])]),
    ("cumsum", lambda x: x.cumsum(-1), {}, [ROW]),
    ("cumprod", lambda x: x.cumprod(-1), {}, [np.array([[1.0, 2, 0, 3, 4], [2, 0, 3, 0, 1]])]),
    ("cummax", lambda x: x.cummax(-1)[0], {}, [ROW]),
    ("topk", lambda x: x.topk(2, -1)[0], {"K": 2}, [ROW]),
    ("sort", lambda x: x.sort(-1)[0], {}, [ROW]),
    ("linear", F.linear, {}, [ROW, floats(4, 5), floats(4)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "sizes", "arguments"), CASES, ids=[c[0] for c in CASES])
def test_gradients_are_those_of_autograd(
    name: str, function: Callable[..., Any], sizes: dict[str, int], arguments: list[Any]
) -> None:
    op = pf.stdlib.op(name)
    dtypes = {x.name: "i64" if x.kind == "int" else "f64" for x in op.op.generics if x.kind != "size"}
    pair, graph = pf.grad(op, dtypes=dtypes), op.graph(dtypes)
    inputs = {
        n: np.asarray(graph.tensor(n).default) for n in graph.inputs if graph.tensor(n).default is not None
    }
    inputs |= dict(zip(graph.inputs, arguments, strict=False))
    known = dict(sizes)
    for n, a in inputs.items():
        known |= {
            e.name: k for e, k in zip(graph.tensor(n).shape, a.shape, strict=True) if isinstance(e, ISize)
        }
    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arguments]
    y = function(*tensors)
    cotangent = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y.backward(cotangent)
    found = gradients(pair, with_defaults(graph, known), inputs, {pair.of[0]: cotangent.numpy()})
    expected = {n: t.grad for n, t in zip(graph.inputs, tensors, strict=False) if t.requires_grad}
    for n in pair.wrt:
        np.testing.assert_allclose(found[n], expected[n].numpy(), rtol=1e-9, atol=1e-12)
