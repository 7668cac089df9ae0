"""Part "bench": the workloads at GPU sizes against PyTorch, JAX and Liger's kernels; an item is a case."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from benchmarks.gpu_cases import GpuCase, cases, compile_case, small_calls
from benchmarks.gpu_contenders import OURS, warm_up
from benchmarks.gpu_limits import by_distance, earlier
from benchmarks.gpu_measure import run_case
from gpu.job import Job

QUICK_ROUNDS = 3


@cache
def _cases(quick: bool) -> dict[str, GpuCase]:
    return {c.label: c for c in (small_calls() if quick else cases())}


def items(job: Job) -> list[str]:
    """Labels of the cases, those first that are furthest from where they should be."""
    return job.selected(by_distance(_cases(job.quick), earlier(job.device)))


def compile_item(item: str, job: Job) -> None:
    """What the first call would compile."""
    compile_case(_cases(job.quick)[item], job.target)


_warm = cache(warm_up)


def run(item: str, job: Job) -> Mapping[str, Any]:
    """Check and time a case."""
    _warm(job.target, job.peers)
    rounds, compiled = QUICK_ROUNDS if job.quick else job.rounds, job.compiled("bench").get(item)
    seconds = compiled if isinstance(compiled, float) else 0.0
    result = run_case(_cases(job.quick)[item], job.target, rounds, job.peers, seconds)
    verdict = result["entries"][OURS]["verdict"]
    return {"status": "ok" if verdict["ok"] else "failed", "message": verdict["message"], **result}
