"""Barriers in program order: which of them can come between the two accesses of a demand?

A barrier that keeps a pair in order stands inside the regions that both accesses must share (`Demand.depth`);
and, where no loop carries the pair, between the two. Those follow each other in program order, so a search
finds them, and the others need not be asked. So what one barrier is for is found among the demands that it
can come between, not among all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

from polyfuse.poly.conflicts import Demand
from polyfuse.poly.loop_events import Wait

# Behind every position of a block.
_LAST = 1 << 62


class Barriers:
    """Some barriers of a kernel, in program order."""

    def __init__(self, waits: Iterable[Wait]) -> None:
        self.waits = sorted(waits, key=_position)

    def add(self, wait: Wait) -> None:
        insort(self.waits, wait, key=_position)

    def remove(self, wait: Wait) -> None:
        self.waits = [w for w in self.waits if w is not wait]

    def between(self, d: Demand, but: Wait | None = None) -> list[Wait]:
        """Those that can keep a demand, less one."""
        first, second, depth = d.first.place.positions, d.second.place.positions, d.depth
        low, high = first[:depth], (*first[:depth], _LAST)
        if d.carried is None:
            low, high = (*low, first[depth]), (*high[:depth], second[depth], _LAST)
        start = bisect_left(self.waits, low, key=_position)
        end = bisect_right(self.waits, high, key=_position)
        return [w for w in self.waits[start:end] if w is not but]


def concerned(demands: Sequence[Demand], barriers: Barriers) -> dict[int, list[Demand]]:
    """The demands that each barrier, by its `id`, can come between."""
    found: dict[int, list[Demand]] = {id(w): [] for w in barriers.waits}
    for d in demands:
        for w in barriers.between(d):
            found[id(w)].append(d)
    return found


def _position(wait: Wait) -> tuple[int, ...]:
    return wait.place.positions
