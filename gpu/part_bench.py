"""Part "bench": the workloads at GPU sizes against torch.compile and jax.jit; an item is a case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.gpu_cases import GpuCase, cases, small_calls
from benchmarks.gpu_measure import OURS, run_case
from gpu.job import Job

QUICK_ROUNDS = 3


def _cases(job: Job) -> dict[str, GpuCase]:
    return {c.label: c for c in (small_calls() if job.quick else cases())}


def items(job: Job) -> list[str]:
    """Labels of the cases, plain ones first."""
    return job.selected(list(_cases(job)))


def run(item: str, job: Job) -> Mapping[str, Any]:
    """Check and time a case."""
    result = run_case(_cases(job)[item], job.target, QUICK_ROUNDS if job.quick else job.rounds)
    verdict = result["entries"][OURS]["verdict"]
    return {"status": "ok" if verdict["ok"] else "failed", "message": verdict["message"], **result}
