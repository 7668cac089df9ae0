"""Part "calls": how long calls keep their caller (`benchmarks.calls`); an item is an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.calls import CASES, measure
from gpu.job import Job

ROUNDS, CALLS = 11, 200
QUICK_ROUNDS, QUICK_CALLS = 2, 5


def items(job: Job) -> list[str]:
    """The operators."""
    return job.selected(list(CASES))


def run(item: str, job: Job) -> Mapping[str, Any]:
    """Microseconds by library of the arrays and way to call."""
    calls, rounds = (QUICK_CALLS, QUICK_ROUNDS) if job.quick else (CALLS, ROUNDS)
    found = measure(calls, rounds, [item], compare=bool(job.peers))
    return {"status": "ok", "message": "", "us": found[item]}
