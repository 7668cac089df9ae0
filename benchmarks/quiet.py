"""How busy other programs keep the machine, so that rounds they disturb can be made again.

The judgement does not look at timings, only at processor time: what the machine spent beyond what the
contenders used. So it favours nobody.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

BUSY = 0.05
"""A share of the cores that is used by others and still counts as quiet."""
_TICK_S = 0.02
_PAUSE_S = 0.25


class Meter:
    """Processor time of everything but the given processes and this one."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._own = [psutil.Process(pid) for pid in (*pids, os.getpid())]
        self._cores = psutil.cpu_count() or 1
        self._start = (0.0, 0.0)
        self.start()

    def start(self) -> None:
        """Begin a stretch."""
        self._start = (time.perf_counter(), self._others())

    def others(self) -> float:
        """The share of all cores that others used since `start`."""
        spent = time.perf_counter() - self._start[0]
        used = self._others() - self._start[1]
        return max(0.0, used - _TICK_S) / (spent * self._cores)  # times come in ticks

    def _others(self) -> float:
        total = psutil.cpu_times()
        busy = sum(total) - total.idle - getattr(total, "iowait", 0.0)
        # Time of guests is part of user time already.
        busy -= getattr(total, "guest", 0.0) + getattr(total, "guest_nice", 0.0)
        for p in self._own:
            with suppress(psutil.NoSuchProcess):
                t = p.cpu_times()
                busy -= t.user + t.system
        return busy

    def wait(self, deadline: float) -> None:
        """Until others are quiet, or the clock `time.monotonic` says `deadline`."""
        while time.monotonic() < deadline:
            self.start()
            time.sleep(_PAUSE_S)
            if self.others() <= BUSY:
                return


def quiet_rounds(
    one: Callable[[int], None], undo: Callable[[], None], rounds: int, meter: Meter, deadline: float
) -> tuple[int, int]:
    """Call `one(k)` for `rounds` rounds; `undo` those that others disturbed, and make them again.

    From `deadline` on (of `time.monotonic`) every round counts. Returns how many were made again, and how
    many count although they were disturbed.
    """
    again = disturbed = k = 0
    while k < rounds:
        meter.start()
        one(k)
        if meter.others() <= BUSY:
            k += 1
        elif time.monotonic() < deadline:
            undo()
            again += 1
            meter.wait(deadline)
        else:
            disturbed += 1
            k += 1
    return again, disturbed
