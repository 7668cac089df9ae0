"""Are results at full size right? The workload's formula in float64, on the same device.

Elements are compared with the size of the largest of their tensor.  The sharp rule, a bound for each
element, holds at small sizes, where the reference evaluator judges the same operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.gpu_cases import GpuCase
from benchmarks.gpu_contenders import Inputs, outcomes
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

ROUNDINGS = 2.0
"""Units of the type that results may be off: one for the result, one for what is rounded before it."""
CLOSE = 1e-5


def allowed(case: GpuCase) -> float:
    """The largest difference over the largest value."""
    return max(CLOSE, ROUNDINGS * BY_NAME[case.dtype].eps)


def truth(case: GpuCase, inputs: Inputs) -> dict[str, Any]:
    """Outcome -> float64 tensor on the device."""
    import torch

    floats = (torch.float32, torch.float16, torch.bfloat16)
    given = {
        n: a.double() if hasattr(a, "dtype") and a.dtype in floats else a for n, a in inputs.fresh(0).items()
    }
    with torch.no_grad():
        found = case.workload.function("torch")(torch, *given.values())
    return outcomes(case, found, given)


def judge(case: GpuCase, known: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """Compare one contender's results; `error` is the largest difference over the largest value."""
    import torch

    worst, where = 0.0, ""
    for name, want in known.items():
        got = results[name]
        got = got if hasattr(got, "detach") else torch.as_tensor(np.asarray(got, np.float64))
        got = got.to(want.device, torch.float64)
        if got.shape != want.shape:
            return {"ok": False, "error": float("inf"), "message": f"{name} has shape {tuple(got.shape)}"}
        scale = max(float(want.abs().max()), 1e-30)
        error = float((got - want).abs().max()) / scale
        if not error <= worst:
            worst, where = error, name
    ok = worst <= allowed(case)
    return {"ok": ok, "error": worst, "message": "" if ok else f"{where} is off by {worst:.2e}"}


def judge_small(case: GpuCase, results: Mapping[str, Any]) -> dict[str, Any]:
    """Compare with the reference evaluator, element by element (rehearsals, which have small sizes)."""
    graph = case.graph
    given = {n: np.asarray(a, graph.tensor(n).dtype.numpy) for n, a in case.inputs().items()}
    known = evaluate(graph, case.sizes, given)
    found = [agrees(np.asarray(results[n]), known[n], graph.tensor(n).dtype) for n in case.outcomes]
    bad = [a.message for a in found if not a]
    return {"ok": not bad, "error": max(a.worst_ratio for a in found), "message": "; ".join(bad)}
