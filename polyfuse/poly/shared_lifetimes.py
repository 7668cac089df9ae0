"""Are shared arrays that lie in the same memory never needed at the same time?  Asked of the printed loops.

Of two such arrays, all accesses of one must stand before all of the other, with no loop around both but those
over blocks: what is written as one array is never read as the other then, and nothing is carried around.
Barriers are another matter (`poly.barriers`): this is what one thread by itself must keep.
"""

from __future__ import annotations

import itertools

from polyfuse.diagnostics import Diagnostic
from polyfuse.ir.kernel import Scope
from polyfuse.poly.loop_events import Access, Events


def overlapping(events: Events) -> Diagnostic | None:
    """The finding for two arrays that are in each other's way, PF535."""
    together: dict[str, dict[str, list[Access]]] = {}
    for a in events.accesses:
        if a.scope is Scope.SHARED:
            together.setdefault(a.storage, {}).setdefault(a.buffer, []).append(a)
    for arrays in together.values():
        for one, other in itertools.combinations(arrays, 2):
            if not _apart(arrays[one], arrays[other]):
                message = f"the arrays {one} and {other} share memory and are needed at the same time"
                return Diagnostic("PF535", message, hint="give each a place of its own")
    return None


def _apart(one: list[Access], other: list[Access]) -> bool:
    """Do all accesses of the one come before all of the other, or after?"""
    orders = {_order(a, b) for a, b in itertools.product(one, other)}
    return orders in ({-1}, {1})


def _order(a: Access, b: Access) -> int:
    """-1: the first comes before the second in any iteration of the block loops; 1: after; 0: neither."""
    common = a.place.common(b.place)
    if any(r.loop and not r.nest for r in a.place.regions[:common]):
        return 0
    left, right = a.place.positions, b.place.positions
    return -1 if left < right else 1 if right < left else 0
