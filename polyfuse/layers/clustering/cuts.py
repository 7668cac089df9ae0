"""Cuts of a graph as values: clusters by the names of their statements.

    (("m__sum", "m"), ("y",))

A cut can be given (`Clustering.groups`), drawn, and changed in one place.  What comes out is a cut that the
graph can have: each statement once, together what must stay together, and no cycle of clusters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from polyfuse.diagnostics import ArgumentError
from polyfuse.layers.clustering.quotient import Quotient
from polyfuse.layers.clustering.search import Nodes, bits

Cut = tuple[tuple[str, ...], ...]
# Statements that an error names.
NAMED = 8


@dataclass(frozen=True)
class Cuts:
    """The cuts of one graph. names: its statements, in order; nodes: those of them that stay together."""

    graph: str
    names: tuple[str, ...]
    nodes: Nodes

    def checked(self, cut: Cut) -> Cut:
        """The cut in an order that dependences agree with.

        Raises ArgumentError PF427 where the graph cannot be cut so.
        """
        self._require_names([n for members in cut for n in members])
        home = {n: k for k, members in enumerate(cut) for n in members}
        groups: list[list[int]] = [[] for _ in cut]
        for k, node in enumerate(self.nodes.statements):
            where = {home[self.names[s]] for s in node}
            if len(where) > 1:
                message = f"{self._told(node)} define or need each other, and cannot be in different clusters"
                raise _unfit(message, "put them into one cluster")
            groups[where.pop()].append(k)
        quotient = self._quotient(groups)
        if isinstance(quotient, tuple):
            a, b = (self._told(self.nodes.statements[k]) for k in quotient)
            message = f"what lies between {a} and {b} is in another cluster, so each would wait for the other"
            raise _unfit(message, f"put what lies between into their cluster, or {a} and {b} into two")
        return self._named(quotient)

    def drawn(self, dice: random.Random, joined: float) -> Cut:
        """Nodes merge along data flow, each pair by chance; contractions stay apart."""
        found = Quotient(len(self.nodes.statements), self.nodes.edges)
        readers = [[*bits(s)] for s in self.nodes.shared]
        pairs = [*self.nodes.edges, *(tuple(sorted(dice.sample(r, 2))) for r in readers if len(r) > 1)]
        dice.shuffle(pairs)
        for pair in pairs:
            alone = any(self.nodes.alone >> k & 1 for k in pair)
            a, b = (found.group(k) for k in pair)
            if not alone and dice.random() < joined and found.can_merge(a, b):
                found.merge(a, b)
        return self._named(found)

    def changed(self, cut: Cut, dice: random.Random, tries: int = 8) -> Cut | None:
        """A cut beside this one: two clusters as one, one as two, or a node in another cluster. None where
        none is found."""
        steps: tuple[Callable[[list[int], random.Random], None], ...] = (
            self._merge,
            self._split,
            self._move,
            self._move,
        )
        for _ in range(tries):
            homes = self._homes(cut)
            dice.choice(steps)(homes, dice)
            groups = [[k for k, h in enumerate(homes) if h == home] for home in dict.fromkeys(homes)]
            quotient = self._quotient(groups)
            if isinstance(quotient, Quotient) and (found := self._named(quotient)) != cut:
                return found
        return None

    # --- one step -------------------------------------------------------------------------------------------

    def _homes(self, cut: Cut) -> list[int]:
        """The cluster of each node."""
        home = {n: k for k, members in enumerate(cut) for n in members}
        return [home[self.names[node[0]]] for node in self.nodes.statements]

    def _merge(self, homes: list[int], dice: random.Random) -> None:
        pairs = sorted({(homes[a], homes[b]) for a, b in self._ties if homes[a] != homes[b]})
        if pairs:
            a, b = dice.choice(pairs)
            homes[:] = [a if h == b else h for h in homes]

    def _split(self, homes: list[int], dice: random.Random) -> None:
        """Nodes from some place on leave their cluster."""
        large = [h for h in dict.fromkeys(homes) if homes.count(h) > 1]
        if large:
            home = dice.choice(large)
            members = [k for k, h in enumerate(homes) if h == home]
            for k in members[dice.randrange(1, len(members)) :]:
                homes[k] = len(homes)

    def _move(self, homes: list[int], dice: random.Random) -> None:
        """A node joins a neighbour's cluster."""
        pairs = [(k, homes[n]) for a, b in self._ties for k, n in ((a, b), (b, a)) if homes[a] != homes[b]]
        if pairs:
            node, home = dice.choice(sorted(set(pairs)))
            homes[node] = home

    @cached_property
    def _ties(self) -> tuple[tuple[int, int], ...]:
        """Nodes between which something goes, or that read one thing."""
        shared = (tuple(bits(s)) for s in self.nodes.shared)
        return (*self.nodes.edges, *((a, b) for r in shared for a, b in pairwise(r)))

    # --- groups -------------------------------------------------------------------------------------------

    def _quotient(self, groups: Iterable[Sequence[int]]) -> Quotient | tuple[int, int]:
        """Groups of nodes, or two nodes of a group that others lie between. Nodes are in dependence order, so
        each next one can join unless the groups make a cycle."""
        found = Quotient(len(self.nodes.statements), self.nodes.edges)
        for members in groups:
            for a, b in pairwise(members):
                if not found.can_merge(found.group(a), found.group(b)):
                    return a, b
                found.merge(found.group(a), found.group(b))
        return found

    def _named(self, quotient: Quotient) -> Cut:
        groups = [
            sorted(s for k in members for s in self.nodes.statements[k]) for members in quotient.ordered()
        ]
        return tuple(tuple(self.names[s] for s in members) for members in groups)

    def _require_names(self, given: Sequence[str]) -> None:
        """Raises ArgumentError PF427 unless each statement is given once."""
        some = ", ".join(self.names[:NAMED]) + (", ..." if len(self.names) > NAMED else "")
        for n in given:
            if n not in self.names:
                raise _unfit(f"{self.graph} has no statement '{n}'", f"its statements are {some}")
            if given.count(n) > 1:
                raise _unfit(f"the clusters name '{n}' twice", "each statement is in one cluster")
        missing = [n for n in self.names if n not in given]
        if missing:
            raise _unfit(f"no cluster has '{missing[0]}'", f"each statement is in one: {some}")

    def _told(self, node: Sequence[int]) -> str:
        return " and ".join(f"'{self.names[s]}'" for s in node)


def _unfit(message: str, hint: str) -> ArgumentError:
    return ArgumentError(message, code="PF427", hint=hint)
