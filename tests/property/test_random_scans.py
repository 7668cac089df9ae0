"""Random reductions over ranges that move: NumPy's program, which knows no scans, against the reference.

Targets and layers have them in `test_random_kinds`.
"""

from __future__ import annotations

import numpy as np
import pytest
from kinds import kind_call

from polyfuse.runtime.numpy_baseline import baseline
from polyfuse.runtime.numpy_text import Unsupported
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate


def agrees_with_numpy(seed: int) -> bool:
    """Does NumPy agree, if it can say?"""
    call = kind_call("ranges", seed)
    want = evaluate(call.graph, call.sizes, call.inputs)
    try:
        with np.errstate(all="ignore"):
            got = baseline(call.graph, call.sizes)(call.inputs)
    except Unsupported:
        return False
    for name, found in got.items():
        verdict = agrees(np.asarray(found), want[name], call.graph.tensor(name).dtype)
        assert verdict, f"{name}: {verdict.message}\n{call.text}{call.sizes}"
    return True


@pytest.mark.parametrize("seed", range(40))
def test_numpy_agrees_with_the_reference(seed: int) -> None:
    agrees_with_numpy(seed)


def test_numpy_can_say_of_most() -> None:
    assert sum(map(agrees_with_numpy, range(100, 130))) > 20


@pytest.mark.slow
def test_numpy_agrees_with_the_reference_on_many() -> None:
    for seed in range(1000, 2000):
        agrees_with_numpy(seed)
