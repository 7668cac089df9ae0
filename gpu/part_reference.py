"""Part "reference": examples, standard operators, random programs of each kind and of the whole language, the
benchmarks' operators against float64.

An item is a group of calls; each is compiled by no layer, by layer I and by both, and every element must be
within the bound of the reference evaluator.  Of what is wrong, operator and kernels stay in `FAILED`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from typing import Any

from gpu.job import Job
from gpu.pack import ROOT

FAILED = ROOT / "build" / "gpu-logs" / "failed"
KINDS = ("examples", "stdlib", "gradients", "kinds", "workloads", "random")
RANDOM, QUICK_RANDOM = 400, 8
GRADIENTS, QUICK_GRADIENTS = 60, 4
SEEDS, QUICK_SEEDS = 22, 1
"""Programs of each kind."""
TOGETHER, QUICK_TOGETHER = 6, 4
QUICK_GROUPS = 2
MOST_MESSAGES = 4


def _helpers() -> Any:
    """The tests' own helpers, which are not part of a package."""
    for folder in (ROOT / "tests", ROOT / "tests" / "helpers", ROOT / "tests" / "gpu"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    import on_device

    return on_device


def items(job: Job) -> list[str]:
    """`kind first-last`: groups of numbers into the lists of calls."""
    together = QUICK_TOGETHER if job.quick else TOGETHER
    helpers = _helpers()
    counts = {"workloads": len(helpers.workload_names()), "random": QUICK_RANDOM if job.quick else RANDOM}
    counts["gradients"] = QUICK_GRADIENTS if job.quick else GRADIENTS
    counts["kinds"] = helpers.kind_count(QUICK_SEEDS if job.quick else SEEDS)
    if importlib.util.find_spec("scipy"):  # cases say with it what is expected
        counts |= {"stdlib": helpers.stdlib_count(), "examples": helpers.example_count()}
    first = {"random": job.seed, "gradients": job.seed, "kinds": helpers.kind_count(job.seed)}
    found = []
    for kind in KINDS:
        begin, end = first.get(kind, 0), first.get(kind, 0) + counts.get(kind, 0)
        groups = [(a, min(a + together, end)) for a in range(begin, end, together)]
        found += [f"{kind} {a}-{b - 1}" for a, b in (groups[:QUICK_GROUPS] if job.quick else groups)]
    return job.selected(found)


def run(item: str, job: Job, *, api: bool = True) -> Mapping[str, Any]:
    """Check a group; `api`: also through torch tensors."""
    kind, _, numbers = item.partition(" ")
    first, last = map(int, numbers.split("-"))
    helpers = _helpers()
    calls = [helpers.call_of(kind, k) for k in range(first, last + 1)]
    outcomes = helpers.outcomes_on_device(calls, job.target, api=api, failed=keep)
    bad = [o for o in outcomes if o.message]
    return {
        "status": "failed" if bad else "ok",
        "compared": len(outcomes),
        "wrong": len(bad),
        "worst_ratio": max((o.ratio for o in outcomes if o.ratio is not None), default=None),
        "message": "\n".join(f"{o.name} ({o.how}): {o.message}" for o in bad[:MOST_MESSAGES]),
    }


def keep(wrong: Any) -> None:
    """Operator and kernels of a result that is wrong, in a file of their own."""
    FAILED.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{wrong.name}-{wrong.how}")[:120]
    (FAILED / f"{name}.cu").write_text(wrong.source, encoding="utf-8")
