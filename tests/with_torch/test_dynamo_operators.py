"""Each lowering of an ATen operator, judged by eager: its graph is evaluated by the reference, without a
compiler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dynamo_runs import evaluated, traced_call
from dynamo_samples import SAMPLES, WITHOUT_VALUES, Call
from torch.torch_version import TorchVersion

from polyfuse.torch.dynamo import lowerings  # noqa: F401
from polyfuse.torch.dynamo.lowering import Lowered, is_item, is_view, lower
from polyfuse.torch.dynamo.lowerings.table import TABLE, complete
from polyfuse.torch.dynamo.partition import partition

DOCS = Path(__file__).parents[2] / "docs"
complete()
OTHERWISE = {"aten.hardswish_backward-1": "2.7"}
"""Samples where versions of torch before this one give other values (here: at the corners)."""
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

    graph = traced_call(run, tensors)
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


@pytest.mark.parametrize(("name", "k"), CASES, ids=[f"{n}-{k}" for n, k in CASES])
def test_a_lowering_agrees_with_eager(name: str, k: int) -> None:
    if torch.__version__ < TorchVersion(OTHERWISE.get(f"{name}-{k}", "0")):
        pytest.skip("this torch gives other values")
    graph, tensors, wanted = traced(name, SAMPLES[name][k])
    if not any(n.target in TABLE for n in graph.graph.nodes):
        pytest.skip("this torch traces it into nothing")
    low = lowered_of(graph)
    places = dict(zip((n for n in graph.graph.nodes if n.op == "placeholder"), tensors, strict=True))
    places |= {n: getattr(graph, n.target) for n in graph.graph.nodes if n.op == "get_attr"}
    found = evaluated(low, [places[n] for n in low.inputs])
    output = next(n for n in graph.graph.nodes if n.op == "output").args[0]
    for node, want in zip(output, wanted, strict=True):
        got = found[low.outputs.index(node)]
        close(got, want)


def close(got: Any, want: Any, *, rounded: torch.dtype | None = None) -> None:
    """Equal within what rounding leaves open, to a dtype other than theirs where that is given; integers the
    same."""
    assert got.shape == want.shape
    if not want.dtype.is_floating_point:
        assert torch.equal(got.to(want.dtype), want), (got, want)
        return
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 2e-5, torch.float64: 1e-9}[
        rounded or want.dtype
    ]
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
