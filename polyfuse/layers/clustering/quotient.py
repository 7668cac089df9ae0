"""A graph whose nodes merge into groups without ever making a cycle.

Groups are kept in a topological order.  Two may merge if no path leads from the earlier one to the later one
through others, and such a path has all its nodes between the two in that order: only these are looked at.
After a merge those of them that come after the earlier one move behind the merged group.  Where what merges
lies close together, as in programs, the work grows about as the number of nodes does.

Source of the order under changes: Pearce and Kelly, "A dynamic topological sort algorithm for directed
acyclic graphs" (2007).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class Quotient:
    """Nodes 0 .. n-1 with edges between them, each a group of its own at first. The graph has no cycle."""

    def __init__(self, nodes: int, edges: Iterable[tuple[int, int]]) -> None:
        self.members: dict[int, list[int]] = {k: [k] for k in range(nodes)}
        self._group = list(range(nodes))
        self._inputs: list[set[int]] = [set() for _ in range(nodes)]
        self._outputs: list[set[int]] = [set() for _ in range(nodes)]
        for a, b in edges:
            if a != b:
                self._inputs[b].add(a)
                self._outputs[a].add(b)
        # A place holds a group or, where one has merged into another, None.
        self._order: list[int | None] = list(self._topological())
        self._place = [0] * nodes
        for k, g in enumerate(self._order):
            assert g is not None
            self._place[g] = k

    def __len__(self) -> int:
        return len(self.members)

    def group(self, node: int) -> int:
        """The group that a node is in."""
        return self._group[node]

    def inputs(self, group: int) -> set[int]:
        """The groups that edges lead from, directly."""
        return self._inputs[group]

    def outputs(self, group: int) -> set[int]:
        """The groups that edges lead to, directly."""
        return self._outputs[group]

    def can_merge(self, a: int, b: int) -> bool:
        """Would the graph of groups have no cycle with both as one?"""
        if a == b:
            return False
        first, last = sorted((a, b), key=lambda g: self._place[g])
        return all(last not in self._outputs[x] for x in self._between(first, last))

    def merge(self, a: int, b: int) -> int:
        """Two groups as one, which is returned; ask `can_merge` before."""
        first, last = sorted((a, b), key=lambda g: self._place[g])
        self._move_behind(first, last)
        place = self._place[last]
        keep, gone = sorted((a, b), key=lambda g: -len(self.members[g]))
        for x in self.members[gone]:
            self._group[x] = keep
        self.members[keep] = sorted((*self.members[keep], *self.members.pop(gone)))
        self._redirect(gone, keep)
        self._order[self._place[first]] = None
        self._order[place], self._place[keep] = keep, place
        return keep

    def ordered(self) -> list[list[int]]:
        """The groups, each with its nodes in order, in an order that edges agree with: the one that comes
        closest to the order of the nodes."""
        return [self.members[g] for g in self._topological()]

    def _between(self, first: int, last: int) -> set[int]:
        """What comes after the first group and stands before the last one."""
        end = self._place[last]
        found: set[int] = set()
        waiting = [first]
        while waiting:
            for x in self._outputs[waiting.pop()]:
                if self._place[x] < end and x not in found:
                    found.add(x)
                    waiting.append(x)
        return found

    def _move_behind(self, first: int, last: int) -> None:
        """Let what comes after the first group, and stands before the last one, stand behind it."""
        later = self._between(first, last)
        if not later:
            return
        start, end = self._place[first], self._place[last]
        window = [x for x in self._order[start + 1 : end] if x is not None]
        moved = [first, *(x for x in window if x not in later), last, *(x for x in window if x in later)]
        free = [None] * (end + 1 - start - len(moved))
        self._order[start : end + 1] = [*free, *moved]
        for k in range(start, end + 1):
            g = self._order[k]
            if g is not None:
                self._place[g] = k

    def _redirect(self, gone: int, keep: int) -> None:
        """The edges of a group that is no more."""
        for x in self._inputs[gone]:
            self._outputs[x].discard(gone)
            self._outputs[x].add(keep)
        for x in self._outputs[gone]:
            self._inputs[x].discard(gone)
            self._inputs[x].add(keep)
        self._inputs[keep] |= self._inputs[gone]
        self._outputs[keep] |= self._outputs[gone]
        for edges in (self._inputs, self._outputs):
            edges[keep] -= {keep, gone}
            edges[gone] = set()

    def _topological(self) -> list[int]:
        first = {g: members[0] for g, members in self.members.items()}
        waiting = {g: len(self._inputs[g]) for g in self.members}
        ready = [(first[g], g) for g in self.members if not waiting[g]]
        heapq.heapify(ready)
        found = []
        while ready:
            _, g = heapq.heappop(ready)
            found.append(g)
            for u in self._outputs[g]:
                waiting[u] -= 1
                if not waiting[u]:
                    heapq.heappush(ready, (first[u], u))
        return found
