"""Random programs with the axes of their inputs in other orders: the same meaning, and kernels that agree."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn_ways import drawn_thresholds, drawn_way
from kinds import KINDS, kind_call
from targets import Call
from thinned import thinned
from ways import first_failure

from polyfuse.ir.tensor_graph import Role
from polyfuse.layers.graph.reindex.axis_order import in_memory_order
from polyfuse.runtime.reference.evaluate import Evaluated, evaluate

TOGETHER = 8


def turned(call: Call, seed: int) -> Call:
    """The call with the axes of its inputs shuffled, in the graph and in memory."""
    dice = random.Random(f"orders {seed}")
    orders: dict[str, tuple[int, ...]] = {}
    for t in call.graph.tensors:
        if t.role is Role.INPUT and len(t.shape) > 1:
            orders[t.name] = tuple(dice.sample(range(len(t.shape)), len(t.shape)))
    inputs = {
        n: np.array(a.transpose(orders[n]), order="C") if n in orders else a for n, a in call.inputs.items()
    }
    return replace(call, graph=in_memory_order(call.graph, orders, []), inputs=inputs)


def close(a: Evaluated, b: Evaluated) -> np.ndarray[Any, Any]:
    with np.errstate(invalid="ignore"):
        near = np.abs(a.value.astype(float) - b.value.astype(float)) <= a.bound + b.bound
    same = (a.value == b.value) | (np.isnan(a.value) & np.isnan(b.value))
    return np.asarray(near | same | a.undecided | b.undecided)


@pytest.mark.thin(4)
@pytest.mark.parametrize("group", thinned(range(4), 4))
@pytest.mark.parametrize("kind", KINDS)
def test_orders_of_axes(kind: str, group: int) -> None:
    seeds = range(group * TOGETHER + 500, (group + 1) * TOGETHER + 500)
    calls = {s: kind_call(kind, s) for s in seeds}
    other = {s: turned(call, s) for s, call in calls.items()}
    for s, call in calls.items():
        want = evaluate(call.graph, call.sizes, call.inputs, checked=False)
        got = evaluate(other[s].graph, call.sizes, other[s].inputs, checked=False)
        for name in call.graph.outputs:  # sums may go another way, in float64
            assert close(got[name], want[name]).all(), call.text
    with drawn_thresholds(group):
        failure = first_failure(
            [(c, drawn_way(s, on_cpu=True)) for s, c in other.items()], flush_denormals=False, vague=True
        )
        assert failure is None, failure
