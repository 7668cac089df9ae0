"""Part "bench": the workloads at GPU sizes against torch.compile and jax.jit; an item is a case."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Mapping
from functools import cache
from tempfile import mkdtemp
from typing import Any

from benchmarks.gpu_cases import GpuCase, cases, small_calls
from benchmarks.gpu_contenders import OURS, warm_up
from benchmarks.gpu_measure import run_case
from gpu.job import Job

QUICK_ROUNDS = 3


def _cases(job: Job) -> dict[str, GpuCase]:
    return {c.label: c for c in (small_calls() if job.quick else cases())}


def items(job: Job) -> list[str]:
    """Labels of the cases, plain ones first."""
    return job.selected(list(_cases(job)))


@cache
def _start(target: str) -> None:
    """Caches of nobody else, so that first calls compile; and compilers loaded, as that is not compiling."""
    if target == "cuda":
        for name in ("POLYFUSE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            os.environ[name] = folder = mkdtemp(prefix="polyfuse-bench-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
    warm_up(target)


def run(item: str, job: Job) -> Mapping[str, Any]:
    """Check and time a case."""
    _start(job.target)
    result = run_case(_cases(job)[item], job.target, QUICK_ROUNDS if job.quick else job.rounds)
    verdict = result["entries"][OURS]["verdict"]
    return {"status": "ok" if verdict["ok"] else "failed", "message": verdict["message"], **result}
