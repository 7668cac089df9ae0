"""Remote fusion: sets of groups that have nothing in common, and would share one launch.

    virtual producer -> g0, g1, ... (all groups)     candidates of the producer = sets of independent groups

PatternReduction over all groups gives the sets that gain most; the best is a pack, and the rest is looked at
again.  Groups of which no path leads from one to another can always be one: no cycle comes of it.

Source: FusionStitching (2020) section 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

from polyfuse.cost.pattern_gain import PatternCost
from polyfuse.cost.stitching_gain import NestFigures
from polyfuse.layers.explorer import TOP, bits, union


@dataclass(frozen=True, slots=True)
class Part:
    """Groups as they would run side by side.

    launches of all, and of the one that has most; seconds apart, one after the other, of all their work on a
    busy machine, and of the longest.
    """

    launches: int
    most: int
    apart: float
    work: float
    longest: float

    @staticmethod
    def of(cost: PatternCost, f: NestFigures) -> Part:
        """Of one group."""
        busy, real = cost.stitching.times(f, cost.touched)
        return Part(f.launches, f.launches, real, busy, real)

    def beside(self, other: Part) -> Part:
        """Of both."""
        return Part(
            self.launches + other.launches,
            max(self.most, other.most),
            self.apart + other.apart,
            self.work + other.work,
            max(self.longest, other.longest),
        )

    def gain(self, launch_s: float) -> float:
        """Seconds that one launch saves."""
        return (self.launches - self.most) * launch_s + self.apart - max(self.work, self.longest)


@dataclass(frozen=True, slots=True)
class _Set:
    """Independent groups, by place, the places after any of them, and how they would run."""

    places: int
    after: int
    part: Part


def packs(
    groups: Sequence[int], outputs: Sequence[int], parts: Mapping[int, Part], launch_s: float
) -> list[tuple[int, ...]]:
    """Packs of groups that gain, each with two or more.

    groups: sets of nodes, in dependence order.  outputs: for each node, those that edges lead to.  Groups
    that are not among the parts take no part.
    """
    after = _after(groups, outputs)
    places = [k for k, g in enumerate(groups) if g in parts]
    found = []
    while len(places) > 1:
        sets = _reduced([_Set(1 << k, after[k], parts[groups[k]]) for k in places], launch_s)
        best = max(sets, key=lambda s: s.part.gain(launch_s))
        if best.part.gain(launch_s) <= 0:
            break
        found.append(tuple(groups[k] for k in bits(best.places)))
        places = [k for k in places if not best.places >> k & 1]
        # What comes before one of them comes before all of them now, and before what comes after any.
        after = [a | best.places | best.after if a & best.places else a for a in after]
    return found


def _after(groups: Sequence[int], outputs: Sequence[int]) -> list[int]:
    """For each group, by place, the places of those that can be reached from it."""
    place = {node: k for k, g in enumerate(groups) for node in bits(g)}
    after = [0] * len(groups)
    for k in reversed(range(len(groups))):
        direct = {place[node] for node in bits(union(outputs[n] for n in bits(groups[k])) & ~groups[k])}
        after[k] = union(after[p] | 1 << p for p in direct)
    return after


def _reduced(sets: Sequence[_Set], launch_s: float) -> list[_Set]:
    """PatternReduction of the virtual producer: the best sets of each half, and of both together."""
    if len(sets) == 1:
        return [*sets]
    half = len(sets) // 2
    left, right = _reduced(sets[:half], launch_s), _reduced(sets[half:], launch_s)
    both = [
        _Set(a.places | b.places, a.after | b.after, a.part.beside(b.part))
        for a in left
        for b in right
        if not (a.after & b.places or b.after & a.places)
    ]
    return nlargest(TOP, (*both, *left, *right), key=lambda s: s.part.gain(launch_s))
