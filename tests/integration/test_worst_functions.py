"""Workloads with functions on the emulator, whose approximate instructions are as far off as they may be.

They agree with the reference there, in each element type, and so on every GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from benchmarks.gpu_cases import GpuCase
from benchmarks.workload import load
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

# Rows that no vector divides and sums of few and of many terms; statistics, gradients, losses.
SIZES = {
    "bias_gelu": {"T": 3, "H": 77},
    "gelu_bwd_dbias": {"T": 7, "H": 40},
    "ln_bwd": {"T": 5, "H": 77},
    "lstm_cell": {"B": 3, "H": 19},
    "msoftmax": {"N": 1, "A": 2, "S": 3, "T": 300},
    "rms_swiglu": {"T": 3, "H": 33},
    "softmax": {"T": 3, "H": 300},
    "xent_fwd": {"N": 5, "C": 1033},
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", SIZES)
def test_workloads_agree_at_worst(name: str, dtype: str) -> None:
    sizes = SIZES[name]
    case = GpuCase(load(name), sizes, dtype)
    given = case.inputs()
    want = evaluate(case.graph, sizes, given)
    found: Any = pf.compile(case.program, name, target="emulate", progress=False)(**given)
    results = found if isinstance(found, tuple) else (found,)
    for tensor, got in zip(case.graph.outputs, results, strict=True):
        verdict = agrees(np.asarray(got), want[tensor], case.graph.tensor(tensor).dtype)
        assert verdict.ok and verdict.worst_ratio < 0.5, f"{tensor}: {verdict}"
