"""Part "bench": the workloads at GPU sizes against PyTorch, JAX and Liger's kernels; an item is a case."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from benchmarks.gpu_cases import GpuCase, cases, compile_case, small_calls
from benchmarks.gpu_contenders import OURS, Inputs, prepare_torch, warm_up
from benchmarks.gpu_limits import by_distance, earlier
from benchmarks.gpu_measure import run_case
from gpu.job import Job

QUICK_ROUNDS = 3
DEFAULT = "torch.compile"


@cache
def _cases(quick: bool) -> dict[str, GpuCase]:
    return {c.label: c for c in (small_calls() if quick else cases())}


def items(job: Job) -> list[str]:
    """Labels of the cases, those first that are furthest from where they should be."""
    return job.selected(by_distance(_cases(job.quick), earlier(job.device)))


def compile_item(item: str, job: Job) -> float:
    """What the first calls would compile, ours and Inductor's in its default mode; the seconds of ours.

    What tunes itself by the clock compiles alone, when it is timed.
    """
    start, case = time.perf_counter(), _cases(job.quick)[item]
    compile_case(case, job.target)
    seconds = round(time.perf_counter() - start, 3)
    if job.target == "cuda" and DEFAULT in job.peers:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        with suppress(Exception):  # it fails once more when it is timed, and is told there
            prepare_torch(case, Inputs.make(case, job.target, 1), DEFAULT)
    return seconds


_warm = cache(warm_up)


def run(item: str, job: Job) -> Mapping[str, Any]:
    """Check and time a case."""
    _warm(job.target, job.peers)
    rounds, compiled = QUICK_ROUNDS if job.quick else job.rounds, job.compiled("bench").get(item)
    seconds = compiled if isinstance(compiled, float) else 0.0
    result = run_case(_cases(job.quick)[item], job.target, rounds, job.peers, seconds)
    verdict = result["entries"][OURS]["verdict"]
    return {"status": "ok" if verdict["ok"] else "failed", "message": verdict["message"], **result}
