"""Clusters by search: the plan of patterns that the cost model likes best.

    candidates  ->  plans of disjoint patterns  ->  finished greedily  ->  the fastest

A plan is finished by merging what it leaves apart, two groups at a time, where that gains most, as long as it
gains and makes no cycle.  More plans take part: one without patterns, and one of everything that is
connected, as far as it may be one kernel; both once with and once without ties by what several read.

Remote fusion: kernels that have nothing in common may be one launch.  A virtual producer of all groups stands
for it, and PatternReduction finds sets of independent ones.  This only decides between plans: each connected
part is a cluster of its own, and layer III makes packs of their kernels, so that a launch is saved once.

Source: FusionStitching (2020) section 5.

`Explorer` has candidates and plans, `packs` remote fusion, and `PlanSearch` puts all together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nlargest
from itertools import pairwise

from polyfuse.cost.machines import machine_of
from polyfuse.cost.stitching_gain import MARGIN, NestFigures, PatternCost, StitchingCost, microseconds, terms
from polyfuse.decisions import Decision, counted
from polyfuse.ir.target import Target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.quotient import Quotient
from polyfuse.layers.stitching.figures import PatternFigures

# --- candidates and plans of patterns ---------------------------------------------------------------------

# FusionStitching's explorer: which sets of nodes of a graph may be worth a kernel each.
#
#     for each vertex v, consumers first:   candidates(v) = the best `top` of  {v} + patterns of its consumers
#     with several consumers:               halves of them, and halves of those; of each half the best `top`
#     plans:                                vertex by vertex, the best `beam` sets of disjoint patterns
#
# A pattern is a set of nodes that no path leaves and enters again: where one does, what it passes is taken
# in. A plan is a set of disjoint patterns that make no cycle.  Sets are bits of a number, so that what
# follows from a set is a few operations on numbers.  What a pattern gains is told by a function, so nothing
# here knows about machines.  Work grows with nodes and edges: each edge is looked at with at most (top + 1)
# squared patterns.
#
# Source: FusionStitching (2020) section 5, candidate patterns, PatternReduction and plan search.


TOP, BEAM = 3, 3


def bits(nodes: int) -> Iterator[int]:
    """The nodes of a set, in order."""
    while nodes:
        low = nodes & -nodes
        yield low.bit_length() - 1
        nodes ^= low


def union(sets: Iterable[int]) -> int:
    """Of sets of nodes."""
    found = 0
    for s in sets:
        found |= s
    return found


def connected(nodes: int, tied: Sequence[int]) -> int:
    """All that ties lead to from some nodes, with them."""
    new = nodes
    while new:
        nodes |= new
        new = union(tied[k] for k in bits(new)) & ~nodes
    return nodes


@dataclass(frozen=True, slots=True)
class Order:
    """Nodes 0 .. n-1 so that edges go to higher numbers, and who can be reached from each."""

    outputs: tuple[int, ...]
    after: tuple[int, ...]
    before: tuple[int, ...]

    @staticmethod
    def of(count: int, edges: Iterable[tuple[int, int]]) -> Order:
        """Of a graph whose edges go to higher numbers."""
        outputs, before, after = [0] * count, [0] * count, [0] * count
        for a, b in sorted(edges):
            outputs[a] |= 1 << b
            before[b] |= before[a] | 1 << a
        for a in reversed(range(count)):
            after[a] = union(after[b] | 1 << b for b in bits(outputs[a]))
        return Order(tuple(outputs), tuple(after), tuple(before))

    def __len__(self) -> int:
        return len(self.outputs)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A set of nodes, what comes after and before any of them, and what it gains."""

    nodes: int
    after: int
    before: int
    gain: float


NOTHING = Pattern(0, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """Disjoint patterns, in the order of their first nodes; `covered` are their nodes."""

    patterns: tuple[Pattern, ...] = ()
    covered: int = 0
    gain: float = 0.0

    def makes_cycle(self, p: Pattern) -> bool:
        """Would a path lead from the pattern through others back to it?"""
        ahead, waiting = p.after & ~p.nodes, list(self.patterns)
        while True:
            reached = [q for q in waiting if q.nodes & ahead]
            if not reached:
                return False
            if any(q.after & p.nodes for q in reached):
                return True
            ahead |= union(q.after | q.nodes for q in reached)
            waiting = [q for q in waiting if not q.nodes & ahead]

    def having(self, p: Pattern) -> Plan:
        """The plan with one more pattern."""
        return Plan((*self.patterns, p), self.covered | p.nodes, self.gain + p.gain)


@dataclass(frozen=True)
class Explorer:
    """Patterns and plans of a graph.

    gain(nodes): what one kernel of them saves, negative where it costs; 0 for one node.  alone: nodes that
    are in no pattern with others.  shared: for each thing read from outside, who reads it.  most: what a
    pattern may weigh; a node weighs 1, and what `heavy` says on top of it.
    """

    order: Order
    gain: Callable[[int], float]
    alone: int = 0
    shared: Sequence[int] = ()
    heavy: Mapping[int, int] = field(default_factory=dict)
    most: int = 40
    top: int = TOP
    beam: int = BEAM
    _found: dict[int, list[Pattern]] = field(default_factory=dict)

    def candidates(self) -> dict[int, list[Pattern]]:
        """The best patterns of each vertex with what it produces for, not those of the vertex alone."""
        for v in reversed(range(len(self.order))):
            if not self.alone >> v & 1:
                first = Pattern(1 << v, self.order.after[v], self.order.before[v], 0.0)
                self._found[v] = self._best(self._reduced(first, self._among(self.order.outputs[v])))
        return self._found

    def siblings(self) -> list[Pattern]:
        """The best patterns of nodes that read one thing which none of them produces: what is read from
        outside, and what nodes that stay alone produce.  It stands for a producer."""
        sources = [*self.shared, *(self.order.outputs[v] for v in bits(self.alone))]
        found = [self._best(self._reduced(NOTHING, self._among(readers))) for readers in sources]
        return [p for patterns in found for p in patterns]

    def _among(self, consumers: int) -> list[int]:
        return list(bits(consumers & ~self.alone))

    def _reduced(self, first: Pattern, consumers: Sequence[int]) -> list[Pattern]:
        """PatternReduction: the best patterns of a producer with patterns of its consumers, by halves."""
        if not consumers:
            return []
        if len(consumers) == 1:
            c = consumers[0]
            alone = Pattern(1 << c, self.order.after[c], self.order.before[c], 0.0)
            return self._kept([(first, p) for p in (alone, *self._found[c])])
        half = len(consumers) // 2
        left = self._reduced(first, consumers[:half])
        right = self._reduced(first, consumers[half:])
        return self._kept([(a, b) for a in (first, *left) for b in (first, *right)])

    def _kept(self, pairs: Iterable[tuple[Pattern, Pattern]]) -> list[Pattern]:
        found: dict[int, Pattern] = {}
        for a, b in pairs:
            after, before = a.after | b.after, a.before | b.before
            nodes = a.nodes | b.nodes | after & before
            if nodes not in found and nodes & (nodes - 1):
                if self._fits(nodes):
                    found[nodes] = Pattern(nodes, after, before, self.gain(nodes))
            elif nodes and not (a.nodes and b.nodes):
                found[nodes] = a if a.nodes else b
        return nlargest(self.top, found.values(), key=lambda p: (p.gain, -p.nodes))

    def _fits(self, nodes: int) -> bool:
        return not nodes & self.alone and self.size(nodes) <= self.most

    def size(self, nodes: int) -> int:
        """What a set of nodes weighs."""
        return nodes.bit_count() + sum(self.heavy[k] for k in bits(nodes & self._any_heavy))

    @cached_property
    def _any_heavy(self) -> int:
        return union(1 << k for k in self.heavy)

    @staticmethod
    def _best(patterns: Iterable[Pattern]) -> list[Pattern]:
        return [p for p in patterns if p.nodes & (p.nodes - 1)]

    def plans(self) -> list[Plan]:
        """The best plans, best first, of the patterns that gain something."""
        starting: dict[int, dict[int, Pattern]] = {}
        for p in (*(p for found in self.candidates().values() for p in found), *self.siblings()):
            if p.gain > 0:
                first = (p.nodes & -p.nodes).bit_length() - 1
                starting.setdefault(first, {})[p.nodes] = p
        plans = [Plan()]
        for v in sorted(starting):
            longer = [q for plan in plans for q in self._extended(plan, starting[v].values())]
            plans = nlargest(self.beam, (*plans, *longer), key=lambda p: p.gain)
        return plans

    def whole(self, tied: Sequence[int]) -> Plan:
        """One pattern of all that ties connect, wherever it is one; ties: for each node, its neighbours."""
        plan, left = Plan(), (1 << len(self.order)) - 1 & ~self.alone
        while left:
            nodes = connected(left & -left, tied) & left
            left &= ~nodes
            after = union(self.order.after[k] for k in bits(nodes))
            before = union(self.order.before[k] for k in bits(nodes))
            if self._fits(nodes | after & before) and nodes & (nodes - 1):
                p = Pattern(nodes, after, before, self.gain(nodes))
                plan = plan if plan.makes_cycle(p) else plan.having(p)
        return plan

    @staticmethod
    def _extended(plan: Plan, patterns: Iterable[Pattern]) -> Iterator[Plan]:
        for p in patterns:
            if not p.nodes & plan.covered and not plan.makes_cycle(p):
                yield plan.having(p)


# --- remote fusion ----------------------------------------------------------------------------------------

# Remote fusion: sets of groups that have nothing in common, and would share one launch.
#
#     virtual producer -> g0, g1, ... (all groups)     candidates of the producer = sets of independent groups
#
# PatternReduction over all groups gives the sets that gain most; the best is a pack, and the rest is looked
# at again.  Groups of which no path leads from one to another can always be one: no cycle comes of it.
#
# Source: FusionStitching (2020) section 5.3.


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


# --- the search -------------------------------------------------------------------------------------------


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
