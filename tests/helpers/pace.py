"""How fast the machine is, beside the one that limits of time were set on."""

from __future__ import annotations

import time

# Of the processor, for the loop below: seconds on a core of the machine that docs/performance.md is about.
THERE = 0.30


def pace() -> float:
    """How many times as long this process takes now as it would there; 1 if it is faster."""
    start = time.process_time()
    total = 0
    for k in range(5_000_000):
        total += k * k
    return max(1.0, (time.process_time() - start) / THERE)


def in_time(seconds: float, limit: float) -> bool:
    """Were so many seconds of the processor within a limit, or would have been there?"""
    return seconds < limit or seconds < limit * pace()
