"""Regions of random graphs: convex, in an order that runs, the same each time; results are eager's.

Regions are evaluated by the reference, so that no compiler is needed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from dynamo_runs import evaluated, traced_function
from test_dynamo_operators import close
from torch.fx.experimental.proxy_tensor import make_fx

from polyfuse.options import Options
from polyfuse.torch.dynamo import kernels
from polyfuse.torch.dynamo.assemble import assemble
from polyfuse.torch.dynamo.lowering import Lowered, lower
from polyfuse.torch.dynamo.partition import MOST_NODES, Kind, base_of, partition

ROWS, COLUMNS = 4, 6


class Program:
    """A random function of tensors of one shape, written as calls that are drawn one after the other."""

    def __init__(self, seed: int, length: int = 24) -> None:
        self.draw = random.Random(seed)
        self.steps = [self.step(k + 3) for k in range(length)]
        self.results = sorted({self.draw.randrange(3, 3 + length) for _ in range(4)} | {length + 2})

    def step(self, known: int) -> Callable[[Sequence[Any]], Any]:
        """A call; its operands are among those that are known, mostly late ones."""
        a, b = (max(self.draw.randrange(known), self.draw.randrange(known)) for _ in range(2))
        d = self.draw.randrange(2)
        chosen: Callable[[Any, Any], Any] = self.draw.choice(
            [
                lambda x, y: x + 0.5 * y,
                lambda x, y: x * torch.sigmoid(y),
                lambda x, y: torch.where(x > y, x, -y),
                lambda x, y: x.exp().clamp(max=3.0),
                lambda x, y: x - x.mean(d, keepdim=True),
                lambda x, y: x.softmax(d) + y,
                lambda x, y: x.amax(d, keepdim=True) * y,
                lambda x, y: torch.cat((x[: ROWS // 2], y[ROWS // 2 :])),
                lambda x, y: x.reshape(COLUMNS, ROWS).t() * 0.5,
                lambda x, y: x.view(2, ROWS // 2, COLUMNS).transpose(0, 1).reshape(ROWS, COLUMNS) + y,
                lambda x, y: x.flip(d) - y,
                lambda x, y: x.cumsum(d) * 0.1,
                lambda x, y: torch.stack((x, y)).sum(0),
                lambda x, y: x.var(d, keepdim=True) + y,
                lambda x, y: x.argmax(1)[:, None] * 0.1 + y,
                lambda x, y: (x @ y.t()) @ y * 0.1,
                lambda x, y: x.sort(d)[0],
                lambda x, y: torch.nn.functional.pad(x[1:], (0, 0, 1, 0)) + y,
                lambda x, y: x[:, torch.tensor([0, 2, 1, 5, 4, 3])] + y,
                lambda x, y: x.split(2, 1)[1].repeat(1, 3) + y,
            ]
        )
        return lambda values: chosen(values[a], values[b])

    def __call__(self, *given: Any) -> list[Any]:
        values = list(given)
        for step in self.steps:
            values.append(torch.tanh(step(values)) if len(values) % 3 == 0 else step(values))
        return [values[k] for k in self.results]


def inputs(seed: int) -> list[Any]:
    """Three arguments; the last is transposed in memory."""
    g = torch.Generator().manual_seed(seed)
    made = [torch.randn(ROWS, COLUMNS, generator=g, dtype=torch.float64) for _ in range(2)]
    return [*made, torch.randn(COLUMNS, ROWS, generator=g, dtype=torch.float64).t()]


def regions(graph: Any, change: Callable[[Any, Any], Any] | None = None) -> tuple[Any, dict[int, Lowered]]:
    """The partition of a graph, which `change` may change, and its regions lowered."""
    found = partition(graph, {})
    if change is not None:
        change(list(graph.nodes), found)
    return found, {k: lower(r.nodes, r.outputs) for k, r in enumerate(found.regions)}


def ran(module: Any, given: Sequence[Any], change: Callable[[Any, Any], Any] | None = None) -> list[Any]:
    """What the graph gives where regions are run by the reference."""
    found, lowered = regions(module.graph, change)

    def call(low: Lowered) -> Callable[..., Any]:
        def run(*tensors: Any) -> list[Any]:
            return evaluated(low, tensors)

        run.__name__ = "region"
        return run

    calls = {k: call(low) for k, low in lowered.items()}
    made = torch.fx.GraphModule(module, assemble(module.graph, found, lowered, calls))
    results: list[Any] = made(*given)
    return results


def check(seed: int) -> None:
    program, given = Program(seed), inputs(seed)
    module = traced_function(program, given)
    for got, want in zip(ran(module, given), program(*given), strict=True):
        assert got.dtype is want.dtype
        close(got.float(), want.float())  # places times 0.1 are of f32, which the reference does not round


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs_give_what_eager_gives(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(10))
def test_many_random_graphs_give_what_eager_gives(group: int) -> None:
    for seed in range(100 + 10 * group, 110 + 10 * group):
        check(seed)


@pytest.mark.parametrize("seed", range(8))
def test_a_region_waits_for_none_of_its_own_results(seed: int) -> None:
    module = traced_function(Program(seed, 60), inputs(seed))
    found, _ = regions(module.graph)
    home, after = found.region_of, dict[Any, set[int]]()
    for n in module.graph.nodes:  # the regions whose results a node has
        met: set[int] = set()
        for a in n.all_input_nodes:
            base = base_of(a)
            met |= after[base] | ({home[base]} if base in home and home[base] != home.get(n) else set())
        assert n not in home or home[n] not in met, (
            f"{n} of region {home[n]} has results of it through others"
        )
        after[n] = met


def on_two_sides(x: Any, w: Any, s: Any) -> Any:
    y = torch.relu(x * w) / s
    return y.sum(), (y - y.mean(1, keepdim=True)) * s


def test_numbers_on_a_gpu_stay_there() -> None:
    with torch._subclasses.FakeTensorMode():
        given = [torch.empty(s, device="cuda") for s in ((33, 20), (20,), ())]
        module = make_fx(on_two_sides)(*given)
    found = partition(module.graph, {})
    (low,) = (lower(r.nodes, r.outputs) for r in found.regions)
    assert [str(low.graph.tensor(n).shape[0]) for n in ("p2", "o0")] == ["1", "1"]
    x, w, s = torch.randn(33, 20), torch.randn(20), torch.tensor([1.5])
    arrays = {f"p{k}": t.numpy() for k, t in enumerate((x, w, s))}
    arrays |= {"o0": np.zeros(1, np.float32), "o1": np.zeros((33, 20), np.float32)}
    kernels.Program(low.graph, "emulate", Options()).built({}).executable.run(arrays)
    for k, want in enumerate(on_two_sides(x, w, s)):
        close(torch.from_numpy(arrays[f"o{k}"]).reshape(want.shape), want)


def test_devices_are_not_mixed() -> None:
    with torch._subclasses.FakeTensorMode():
        x, y = torch.empty(4, 4, device="cuda"), torch.empty(4, 4)
        s = torch.empty(())
        module = make_fx(lambda x, y, s: ((x.exp() + 1) * s, (y.exp() + 1) * s))(x, y, s)
    found = partition(module.graph, {})
    assert [{str(t.meta["val"].device) for t in r.nodes} for r in found.regions] == [{"cpu"}, {"cuda:0"}]
    assert "tensors on several devices" in found.reasons.values()


def test_a_partition_is_the_same_each_time() -> None:
    texts = []
    for _ in range(2):
        module = traced_function(Program(3, 60), inputs(3))
        found, lowered = regions(module.graph)
        texts.append(
            [str(x.graph) for x in lowered.values()] + [str(found.kinds[n]) for n in module.graph.nodes]
        )
    assert texts[0] == texts[1]


def chain(length: int) -> Any:
    """A graph of so many nodes: pairs of elementwise operators, a product after each eighth."""
    graph = torch.fx.Graph()
    fake = torch._subclasses.FakeTensorMode()
    with fake:
        value = torch.empty(4, 4)
    node = graph.placeholder("x")
    node.meta["val"] = value
    first = node
    for k in range(length):
        target = torch.ops.aten.mm.default if k % 8 == 7 else torch.ops.aten.add.Tensor
        node = graph.call_function(target, (node, first))
        node.meta["val"] = value
    graph.output([node])
    return graph


def test_long_graphs_are_cut_in_linear_time() -> None:
    def seconds(length: int) -> float:
        graph = chain(length)
        start = time.process_time()
        found = partition(graph, {})
        assert len(found.regions) == length // 8
        return time.process_time() - start

    short = min(seconds(1000) for _ in range(3))
    assert min(seconds(8000) for _ in range(2)) < 8 * 3 * short


def test_a_long_level_is_cut_into_bounded_regions() -> None:
    graph = torch.fx.Graph()
    with torch._subclasses.FakeTensorMode():
        value = torch.empty(4)
    node = graph.placeholder("x")
    node.meta["val"] = value
    for _ in range(3 * MOST_NODES):
        node = graph.call_function(torch.ops.aten.add.Tensor, (node, 1.0))
        node.meta["val"] = value
    graph.output([node])
    found = partition(graph, {})
    assert [len(r.nodes) for r in found.regions] == [MOST_NODES] * 3


@pytest.mark.parametrize("alone", ["relu", "softmax"])
def test_lone_operators_and_views_stay_with_aten(alone: str) -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        product = x @ y.t()
        return (product.relu() if alone == "relu" else product.softmax(1)), z.t()

    module = traced_function(f, inputs(0))
    found, _ = regions(module.graph)
    kinds = [found.kinds[n] for n in module.graph.nodes if n.op == "call_function"]
    assert kinds == [Kind.VIEW, Kind.ATEN, Kind.ATEN if alone == "relu" else Kind.OURS, Kind.VIEW]


@pytest.mark.parametrize(("alone", "length", "kind"), [
    ("relu", 50_000, Kind.ATEN), ("sum", 50_000, Kind.ATEN), ("tanh", 500, Kind.ATEN),
    ("tanh", 50_000, Kind.OURS), ("elu", 50_000, Kind.OURS), ("argmax", 50_000, Kind.OURS),
])  # fmt: skip
def test_a_lone_operator_is_ours_where_the_loop_of_aten_is_slow(alone: str, length: int, kind: Kind) -> None:
    operator = getattr(torch, alone, getattr(torch.nn.functional, alone, None))
    module = traced_function(operator, [torch.empty(length)])
    found = partition(module.graph, {})
    assert [found.kinds[n] for n in module.graph.nodes if n.op == "call_function"] == [kind]


def test_copies_in_another_order_of_memory_go_together() -> None:
    def f(x: Any, y: Any) -> Any:
        return x.transpose(0, 1).contiguous(), y.transpose(0, 1).contiguous(), x.clone()

    module = traced_function(f, [torch.randn(5, 4), torch.randn(3, 6)])
    found, _ = regions(module.graph)
    assert [r.counted for r in found.regions] == [2]
