"""Clusters by search: the plan of patterns that the cost model likes best.

    candidates (`layers.explorer`)  ->  plans of disjoint patterns  ->  finished greedily  ->  the fastest

A plan is finished by merging what it leaves apart, two groups at a time, where that gains most, as long as it
gains and makes no cycle.  More plans take part: one without patterns, and one of everything that is
connected, as far as it may be one kernel; both once with and once without ties by what several read.

Remote fusion: kernels that have nothing in common may be one launch.  A virtual producer of all groups stands
for it, and PatternReduction finds sets of independent ones.  This only decides between plans: each connected
part is a cluster of its own, and layer III makes packs of their kernels, so that a launch is saved once.

Source: FusionStitching (2020) section 5.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from polyfuse.cost.machines import machine_of
from polyfuse.cost.pattern_gain import PatternCost, terms
from polyfuse.cost.stitching_gain import MARGIN, NestFigures, StitchingCost, microseconds
from polyfuse.decisions import Decision, counted
from polyfuse.ir.target import Target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.explorer import Explorer, Order, Plan, bits, union
from polyfuse.layers.pattern_figures import PatternFigures
from polyfuse.layers.quotient import Quotient
from polyfuse.layers.remote import Part, packs


@dataclass(frozen=True, slots=True)
class Nodes:
    """What is searched: sets of statements, by number, that stay together, in an order that edges agree with.

    edges: pairs of nodes.  shared: for each tensor from outside, its readers.  alone: nodes that are
    clusters of their own.
    """

    statements: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, int], ...]
    shared: tuple[int, ...]
    alone: int


@dataclass(frozen=True, slots=True)
class Found:
    """Groups of nodes in dependence order, packs among them, and seconds by the model."""

    groups: tuple[int, ...]
    packs: tuple[tuple[int, ...], ...]
    seconds: float


class PlanSearch:
    """The search for one graph at known sizes on one machine."""

    def __init__(self, graph: TensorGraph, nodes: Nodes, target: Target, most: int) -> None:
        self.graph, self.nodes, self.most = graph, nodes, most
        apart = frozenset(s for k in bits(nodes.alone) for s in nodes.statements[k])
        self.figures = PatternFigures(graph, target, apart)
        self._known: dict[int, NestFigures] = {}
        self._gains: dict[int, float] = {}
        singles = [self.of(1 << k) for k in range(len(nodes.statements))]
        self.cost = PatternCost(StitchingCost(machine_of(target)), sum(f.nbytes for f in singles))
        self._single = [self.cost.seconds(f) for f in singles]

    def of(self, group: int) -> NestFigures:
        """The figures of nodes as one kernel."""
        if group not in self._known:
            self._known[group] = self.figures(s for k in bits(group) for s in self.nodes.statements[k])
        return self._known[group]

    def seconds(self, groups: Iterable[int]) -> float:
        """Of kernels one after the other."""
        return sum(self.cost.seconds(self.of(g)) for g in groups)

    def gain(self, group: int) -> float:
        """Seconds that one kernel of nodes saves, compared with one for each."""
        if group not in self._gains:
            apart = sum(self._single[k] for k in bits(group))
            self._gains[group] = apart - self.cost.seconds(self.of(group))
        return self._gains[group]

    def run(self, decisions: list[Decision], remote: bool = True) -> list[tuple[int, ...]]:
        """Clusters of statements in dependence order; `remote`: layer III will pack kernels."""
        best = self.best(remote)
        self._explain(best, decisions)
        return [tuple(sorted(s for k in bits(g) for s in self.nodes.statements[k])) for g in best.groups]

    def best(self, remote: bool = True) -> Found:
        """The fastest of the plans that are tried, finished.

        Plans that keep readers of one tensor apart hope for layer III, and must be faster by a margin.
        """
        kinds = []
        for tied, plans in ((self._tied, self.explorer.plans()), (self._joined, [])):
            tried = [*plans, Plan(), self.explorer.whole(tied)]
            kinds.append(min((self.finished(p, tied, remote) for p in tried), key=lambda f: f.seconds))
        together, apart = kinds
        return apart if apart.seconds * MARGIN < together.seconds else together

    @cached_property
    def explorer(self) -> Explorer:
        nodes = self.nodes
        order = Order.of(len(nodes.statements), nodes.edges)
        heavy = {k: len(s) - 1 for k, s in enumerate(nodes.statements) if len(s) > 1}
        return Explorer(order, self.gain, nodes.alone, nodes.shared, heavy, self.most)

    # --- plans to groups ----------------------------------------------------------------------------------

    def finished(self, plan: Plan, tied: Sequence[int], remote: bool = True) -> Found:
        """The groups of a plan, merged further along ties, with packs."""
        quotient = Quotient(len(self.nodes.statements), self.nodes.edges)
        for p in plan.patterns:
            first, *rest = bits(p.nodes)
            for k in rest:
                quotient.merge(quotient.group(first), quotient.group(k))
        self._merge(quotient, tied)
        groups = tuple(union(1 << k for k in members) for members in quotient.ordered())
        packed = self._packs(groups) if remote else []
        total = self.seconds(groups)
        for pack in packed:
            total += self.cost.packed([self.of(g) for g in pack]) - self.seconds(pack)
        return Found(groups, tuple(packed), total)

    def _merge(self, quotient: Quotient, tied: Sequence[int]) -> None:
        """Put two groups together where that gains most, again and again."""
        of = {g: union(1 << k for k in members) for g, members in quotient.members.items()}

        def offers(group: int) -> list[tuple[float, int, int]]:
            around = union(tied[k] for k in bits(group)) & ~group
            others = dict.fromkeys(of[quotient.group(k)] for k in bits(around))
            gains = [(self._gained(group, o), o) for o in others]
            return [(-gain, min(group, o), max(group, o)) for gain, o in gains if gain > 0]

        waiting = [e for g in of.values() for e in offers(g) if g == e[1]]
        heapq.heapify(waiting)
        while waiting:
            _, a, b = heapq.heappop(waiting)
            x, y = (quotient.group((s & -s).bit_length() - 1) for s in (a, b))
            if of[x] == a and of[y] == b and quotient.can_merge(x, y):
                merged = quotient.merge(x, y)
                of[merged] = a | b
                for offer in offers(a | b):
                    heapq.heappush(waiting, offer)

    def _gained(self, a: int, b: int) -> float:
        """Seconds that two groups gain as one; nothing where that is too large."""
        if self.explorer.size(a | b) > self.most:
            return 0.0
        return self.gain(a | b) - self.gain(a) - self.gain(b)

    @cached_property
    def _joined(self) -> list[int]:
        """For each node that is not alone, the others that a tensor goes to or comes from."""
        tied = [0] * len(self.nodes.statements)
        for a, b in self.nodes.edges:
            if not (1 << a | 1 << b) & self.nodes.alone:
                tied[a] |= 1 << b
                tied[b] |= 1 << a
        return tied

    @cached_property
    def _tied(self) -> list[int]:
        """The same, and its neighbours among the readers of one tensor."""
        tied = [*self._joined]
        for readers in (*self.nodes.shared, *self.explorer.order.outputs):
            for a, b in pairwise(bits(readers & ~self.nodes.alone)):
                tied[a] |= 1 << b
                tied[b] |= 1 << a
        return tied

    # --- remote fusion ------------------------------------------------------------------------------------

    def _packs(self, groups: Sequence[int]) -> list[tuple[int, ...]]:
        able = [g for g in groups if not g & self.nodes.alone]
        parts = {g: Part.of(self.cost, self.of(g)) for g in able}
        return packs(groups, self.explorer.order.outputs, parts, self.cost.stitching.launch_s)

    # --- why ----------------------------------------------------------------------------------------------

    def _explain(self, best: Found, decisions: list[Decision]) -> None:
        apart = sum(self._single)
        for g in best.groups:
            if g & (g - 1):
                gain = self.cost.gain([self.of(1 << k) for k in bits(g)], self.of(g))
                why = f"it saves {microseconds(gain.seconds)} = {terms(gain)}"
                saved = max(0, int(gain.traffic_bytes))
                decisions.append(Decision("pattern", self._names(g), True, why, saved_bytes=saved))
        for pack in best.packs:
            gained = self.seconds(pack) - self.cost.packed([self.of(g) for g in pack])
            what = " | ".join(self._names(g) for g in pack)
            why = f"{microseconds(gained)} less side by side in one launch, which layer III makes of them"
            decisions.append(Decision("remote", what, True, why))
        took = f"{microseconds(best.seconds)} by the model, {microseconds(apart)} one by one"
        why = f"{counted(len(best.groups), 'cluster')} found by search: {took}"
        decisions.append(Decision("clusters", self.graph.name, True, why))

    def _names(self, group: int) -> str:
        return ", ".join(self.graph.statements[s].name for k in bits(group) for s in self.nodes.statements[k])
