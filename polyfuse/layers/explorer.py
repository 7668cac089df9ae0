"""FusionStitching's explorer: which sets of nodes of a graph may be worth a kernel each.

    for each vertex v, consumers first:   candidates(v) = the best `top` of  {v} + patterns of its consumers
    with several consumers:               halves of them, and halves of those; of each half the best `top`
    plans:                                vertex by vertex, the best `beam` sets of disjoint patterns

A pattern is a set of nodes that no path leaves and enters again: where one does, what it passes is taken in.
A plan is a set of disjoint patterns that make no cycle.  Sets are bits of a number, so that what follows from
a set is a few operations on numbers.  What a pattern gains is told by a function, so nothing here knows about
machines.  Work grows with nodes and edges: each edge is looked at with at most (top + 1) squared patterns.

Source: FusionStitching (2020) section 5, candidate patterns, PatternReduction and plan search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nlargest

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
