"""The best partition of a small graph into groups, exactly: what a search is measured by.

A partition without cycles can be put in an order in which every group together with those before it is closed
under what comes before.  So the best one is a shortest way through such sets, `ideals`:

    best(ideal) = min over groups that lead to a larger ideal of   seconds(group) + best(larger ideal)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from polyfuse.layers.clustering.search import bits


def best_partition(
    count: int, edges: Iterable[tuple[int, int]], seconds: Callable[[int], float | None]
) -> tuple[float, tuple[int, ...]]:
    """Seconds and groups of the best partition. `seconds(group)` is None for one that must not be."""
    before = [0] * count
    for a, b in edges:
        before[b] |= 1 << a
    known = cache(seconds)
    everything = (1 << count) - 1

    @cache
    def best(ideal: int) -> tuple[float, tuple[int, ...]]:
        if ideal == everything:
            return 0.0, ()
        found = (float("inf"), ())
        for group in _steps(ideal, everything & ~ideal, before):
            cost = known(group)
            if cost is not None and cost < found[0]:
                rest, groups = best(ideal | group)
                if cost + rest < found[0]:
                    found = cost + rest, (group, *groups)
        return found

    return best(0)


def _steps(ideal: int, left: int, before: list[int]) -> Iterable[int]:
    """Every set of nodes that together with an ideal is a larger one."""
    found = [0]
    for k in bits(left):
        found += [s | 1 << k for s in found if not before[k] & ~(ideal | s)]
    return found[1:]


def partitions(parts: list[int]) -> Iterable[tuple[int, ...]]:
    """Every way to put sets of nodes together."""
    if not parts:
        yield ()
        return
    first, *rest = parts
    for others in partitions(rest):
        yield (first, *others)
        for k, x in enumerate(others):
            yield (*others[:k], x | first, *others[k + 1 :])


def components(group: int, tied: list[int]) -> list[int]:
    """The parts of a set of nodes that ties connect."""
    found = []
    while group:
        part, grown = 0, group & -group
        while grown != part:
            part = grown
            for k in bits(part):
                grown |= tied[k] & group
        found.append(part)
        group &= ~part
    return found
