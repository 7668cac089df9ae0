"""Part "sizes": operators with open sizes, each called at many sizes, against float64; an item is one.

Beside what is wrong it says how many variants there were, and what a call at new sizes takes that compiles
nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from gpu.job import Job
from gpu.pack import ROOT
from gpu.part_reference import keep

SEEDS, QUICK_SEEDS = 8, 1
MOST_MESSAGES = 4


def _helpers() -> Any:
    for folder in (ROOT, ROOT / "tests", ROOT / "tests" / "helpers", ROOT / "tests" / "gpu"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    import sizes_on_device

    return sizes_on_device


def items(job: Job) -> list[str]:
    """Operators of the library, then random programs."""
    return job.selected(_helpers().sizes_items(job.seed, QUICK_SEEDS if job.quick else SEEDS))


def run(item: str, job: Job) -> Mapping[str, Any]:
    """Call an operator at many sizes."""
    found = _helpers().check_sizes_on_device(item, job.target, keep)
    return {
        "status": "failed" if found.wrong else "ok",
        "compared": found.compared,
        "wrong": len(found.wrong),
        "worst_ratio": found.ratio,
        "variants": found.variants,
        "new_sizes_us": found.median_us,
        "short": len(found.short_us),
        "short_us": found.median_short_us,
        "message": "\n".join(f"{w.how}: {w.message}" for w in found.wrong[:MOST_MESSAGES]),
    }
