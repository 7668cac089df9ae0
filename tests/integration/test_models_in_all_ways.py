"""The models at small sizes by every subset of the layers, on a CPU and emulated.

One model of each kind is compiled in three of the sixteen ways, drawn by its name; `make test-all` does all
of them.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from models import MODELS, Model
from targets import Call
from ways import WAYS, check

# The optimizers over many tensors compile for seconds.
SMALL = [m for m in MODELS if not m.name.endswith(("-50", "-200"))]
CHOSEN = [
    next(m for m in SMALL if m.name.split("-")[0] == kind)
    for kind in {m.name.split("-")[0]: 0 for m in SMALL}
]


def call_of(model: Model) -> Call:
    graph = model.graph()
    kinds = {n: graph.tensor(n).dtype.numpy for n in model.inputs}
    inputs = {n: np.ascontiguousarray(a, kinds[n]).reshape(np.shape(a)) for n, a in model.inputs.items()}
    return Call(model.name, model.op, graph, model.sizes(graph), inputs)


USUAL = CHOSEN[::3]
LONGEST = "dien"  # it compiles for a quarter of a minute


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(m, marks=[pytest.mark.slow] * (m not in USUAL or m.name.split("-")[0] == LONGEST))
        for m in CHOSEN
    ],
    ids=str,
)
def test_layers_and_targets_agree(model: Model) -> None:
    first, second = (
        random.Random(model.name).choice([w for w in WAYS if w.on_cpu == x]) for x in (True, False)
    )
    check([(call_of(model), way) for way in (WAYS[15], first, second)])


@pytest.mark.slow
@pytest.mark.parametrize("model", SMALL, ids=str)
def test_all_layers_and_targets_agree(model: Model) -> None:
    check([(call_of(model), way) for way in WAYS])
