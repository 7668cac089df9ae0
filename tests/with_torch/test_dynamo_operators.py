"""Each lowering of an ATen operator, judged by eager: its graph is evaluated by the reference, without a
compiler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dynamo_samples import SAMPLES, WITHOUT_VALUES, Call
from torch.fx.experimental.proxy_tensor import make_fx

from polyfuse.runtime.reference.evaluate import evaluate
from polyfuse.torch.dynamo import lowerings  # noqa: F401
from polyfuse.torch.dynamo.lowering import Lowered, is_item, is_view, lower
from polyfuse.torch.dynamo.lowerings.table import TABLE, complete, tensor_of
from polyfuse.torch.dynamo.partition import partition
from polyfuse.torch.dynamo.sizes import dense_order

DOCS = Path(__file__).parents[2] / "docs"
complete()
CASES = [(name, k) for name, calls in sorted(SAMPLES.items()) for k in range(len(calls))]


def test_there_is_a_sample_of_each_operator() -> None:
    names = {r.name for r in TABLE.values()}
    assert sorted(names - SAMPLES.keys() - set(WITHOUT_VALUES)) == []
    assert len(names) >= 160


def test_the_page_has_the_table() -> None:
    sys.path.insert(0, str(DOCS))
    try:
        import build_aten_operators as page
    finally:
        sys.path.remove(str(DOCS))
    assert page.TARGET.read_text(encoding="utf-8") == page.build(), "run docs/build_aten_operators.py"


def traced(name: str, call: Call) -> tuple[Any, list[Any], list[Any]]:
    """The graph of one call, its tensors, and what eager gives."""
    space, short = name.split(".")
    operator = getattr(getattr(torch.ops, space), short)
    tensors: list[Any] = []

    def taken(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            tensors.append(x)
            return ("tensor", len(tensors) - 1)
        return [taken(y) for y in x] if isinstance(x, list) else x

    args = [taken(a) for a in call.args]
    kwargs = {k: taken(v) for k, v in call.kwargs.items()}

    def given(x: Any, ts: Any) -> Any:
        if isinstance(x, tuple) and x and x[0] == "tensor":
            return ts[x[1]]
        return [given(y, ts) for y in x] if isinstance(x, list) else x

    def run(*ts: Any) -> Any:
        found = operator(*[given(a, ts) for a in args], **{k: given(v, ts) for k, v in kwargs.items()})
        many = isinstance(found, list | tuple)
        return [copied(y) for y in (found if many else [found])]

    def copied(y: Any) -> Any:
        view = (
            any(is_alias(y, t) for t in tensors)
            or "copy" in name
            or short in ("detach", "alias", "lift_fresh")
        )
        return torch.ops.aten.clone(y) if view else y

    def is_alias(y: Any, t: Any) -> bool:
        return short in VIEWS

    graph = make_fx(run, tracing_mode="fake")(*tensors)
    return graph, tensors, run(*tensors)


VIEWS = {r.name.split(".")[1] for r in TABLE.values() if r.is_view}


def lowered_of(graph: Any, precision: str = "eager") -> Lowered:
    """All nodes but views as one region."""
    graph.graph.eliminate_dead_code()
    kinds = partition(graph.graph, {})
    nodes = [n for n in graph.graph.nodes if n.op == "call_function"]
    refused = {
        n: kinds.reasons[n]
        for n in nodes
        if not is_item(n) and n.target in TABLE and kinds.reasons.get(n, "alone").split()[0] != "alone"
    }
    assert not refused, refused
    members = [n for n in nodes if not is_view(n)]
    output = next(n for n in graph.graph.nodes if n.op == "output")
    return lower(members, list(dict.fromkeys(output.all_input_nodes)), precision)


def evaluated(low: Lowered, graph: Any, tensors: list[Any]) -> list[Any]:
    """The results of a region by the reference."""
    places = dict(zip((n for n in graph.graph.nodes if n.op == "placeholder"), tensors, strict=True))
    constants = {n: getattr(graph, n.target) for n in graph.graph.nodes if n.op == "get_attr"}
    given = {}
    for k, n in enumerate(low.inputs):
        t = {**places, **constants}[n].detach()
        if n in low.copied:
            t = t.contiguous()
        order = dense_order(tuple(t.shape), tuple(t.stride()))
        shape = [int(str(e)) for e in low.graph.tensor(f"p{k}").shape]
        given[f"p{k}"] = as_array(t.permute(order) if order else t).reshape(shape)
    found = evaluate(low.graph, {}, given)
    results = []
    for k, n in enumerate(low.outputs):
        t = tensor_of(n)
        order = dense_order(tuple(t.shape), tuple(t.stride())) or ()
        flat = torch.from_numpy(np.array(found[f"o{k}"].value))
        results.append(
            flat.reshape([t.shape[d] for d in order]).permute([order.index(d) for d in range(t.dim())])
        )
    return results


def as_array(t: Any) -> Any:
    """A tensor as NumPy has it."""
    if t.dtype is torch.bfloat16:
        import ml_dtypes

        return t.float().numpy().astype(ml_dtypes.bfloat16)
    return t.contiguous().numpy()


@pytest.mark.parametrize(("name", "k"), CASES, ids=[f"{n}-{k}" for n, k in CASES])
def test_a_lowering_agrees_with_eager(name: str, k: int) -> None:
    graph, tensors, wanted = traced(name, SAMPLES[name][k])
    if not any(n.target in TABLE for n in graph.graph.nodes):
        pytest.skip("this torch traces it into nothing")
    low = lowered_of(graph)
    found = evaluated(low, graph, tensors)
    output = next(n for n in graph.graph.nodes if n.op == "output").args[0]
    for node, want in zip(output, wanted, strict=True):
        got = found[low.outputs.index(node)]
        close(got, want)


def close(got: Any, want: Any) -> None:
    """Equal within what rounding leaves open; integers the same."""
    assert got.shape == want.shape
    if not want.dtype.is_floating_point:
        assert torch.equal(got.to(want.dtype), want), (got, want)
        return
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 2e-5, torch.float64: 1e-9}[
        want.dtype
    ]
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
