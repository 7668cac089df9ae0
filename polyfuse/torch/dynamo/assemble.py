"""The graph that runs: ATen's nodes as they were, and a call for each region.

    mm, add, gelu, mm, add      mm, call of region 0, mm, call of region 1

Order is that of the graph, as far as regions allow; what overwrites an argument comes after all that read it.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from polyfuse.torch.dynamo.lowering import Lowered
from polyfuse.torch.dynamo.partition import Kind, Partition, base_of, is_random

Node: TypeAlias = Any


class Units:
    """Nodes of ATen one by one, and regions as one each."""

    def __init__(self, nodes: Sequence[Node], found: Partition) -> None:
        self.place = {n: k for k, n in enumerate(nodes)}
        wanted = _wanted(nodes, found)
        nodes = [n for n in nodes if n in wanted]
        region_of = found.region_of
        self.unit = {n: (len(self.place) + region_of[n] if n in region_of else self.place[n]) for n in nodes}
        self.earlier = {len(self.place) + b: len(self.place) + a for b, a in found.earlier.items()}
        self.members: dict[int, list[Node]] = {}
        for n in nodes:
            self.members.setdefault(self.unit[n], []).append(n)

    def order(self) -> list[int]:
        """The units in an order in which each has what it needs; the first of the graph first."""
        needs: dict[int, set[int]] = {u: set() for u in self.members}
        for u, members in self.members.items():
            for n in members:
                through = u >= len(self.place)
                needs[u] |= {self.unit[base_of(a) if through else a] for a in n.all_input_nodes} - {u}
        for u, members in self.members.items():
            for n in members:
                if n.op == "call_function" and str(n.target) == "aten.copy_.default":
                    readers = _readers(base_of(n.args[0]))
                    early = {r for r in readers if r is not n and r.op != "output"}
                    needs[u] |= {self.unit[r] for r in early if r in self.unit} - {u}
        for later, earlier in self.earlier.items():
            needs[later].add(earlier)
        random = [self.unit[n] for members in self.members.values() for n in members if is_random(n)]
        for one, next_one in pairwise(sorted(random)):  # they are ATen's: the units are their places
            needs[next_one].add(one)
        users: dict[int, list[int]] = {u: [] for u in self.members}
        for u, before in needs.items():
            for b in before:
                users[b].append(u)
        first = {u: self.place[members[0]] for u, members in self.members.items()}
        left = {u: len(before) for u, before in needs.items()}
        ready = [(first[u], u) for u, n in left.items() if n == 0]
        heapq.heapify(ready)
        found: list[int] = []
        while ready:
            _, u = heapq.heappop(ready)
            found.append(u)
            for user in users[u]:
                left[user] -= 1
                if left[user] == 0:
                    heapq.heappush(ready, (first[user], user))
        assert len(found) == len(self.members), "regions wait for one another"
        return found


def _readers(node: Node) -> list[Node]:
    """What reads the memory of a node, through views as well."""
    found: list[Node] = []
    left = [node]
    while left:
        for u in left.pop().users:
            found.append(u)
            if u.op == "call_function" and (
                getattr(u.target, "is_view", False) or u.target is operator.getitem
            ):
                left.append(u)
    return found


def assemble(
    graph: Any, found: Partition, lowered: Mapping[int, Lowered], calls: Mapping[int, Callable[..., Any]]
) -> Any:
    """The new graph; `lowered` and `calls` are by region."""
    import torch

    nodes = list(graph.nodes)
    units = Units(nodes, found)
    made = torch.fx.Graph(graph.owning_module)
    new: dict[Node, Node] = {}
    sizes = _SizeNodes(nodes, made, new)
    for n in nodes:  # arguments keep their order
        if n.op == "placeholder":
            new[n] = made.node_copy(n)
    output = nodes[-1]
    for u in units.order():
        members = units.members[u]
        if u >= len(nodes):
            _call(made, new, sizes, members, lowered[u - len(nodes)], calls[u - len(nodes)])
        elif members[0].op not in ("placeholder", "output"):
            new[members[0]] = made.node_copy(members[0], lambda a: new[a])
    made.output(torch.fx.map_arg(output.args[0], lambda a: new[a]))
    return made


def _call(
    made: Any,
    new: dict[Node, Node],
    sizes: _SizeNodes,
    members: Sequence[Node],
    low: Lowered,
    call: Callable[..., Any],
) -> None:
    """Add the call of a region, and the nodes of what it gives."""
    arguments = [new[a] for a in low.inputs]
    arguments += [sizes.find(s) for s in low.symbols]
    node = made.call_function(call, tuple(arguments))
    for k, n in enumerate(low.outputs):
        new[n] = made.call_function(operator.getitem, (node, k))
        new[n].meta = dict(n.meta)
    for target, write in low.mutated.items():
        new[write] = new[target]


def _wanted(nodes: Sequence[Node], found: Partition) -> set[Node]:
    """The nodes, without views that only regions read: they are composed into these."""
    wanted: set[Node] = set()
    for n in reversed(nodes):
        read = any(u in wanted and found.kinds[u] is not Kind.OURS for u in n.users)
        if found.kinds[n] is not Kind.VIEW or read:
            wanted.add(n)
    return wanted


class _SizeNodes:
    """Where the values of sizes come from: arguments of the graph that are sizes, or extents of tensors."""

    def __init__(self, nodes: Sequence[Node], made: Any, new: Mapping[Node, Node]) -> None:
        self.nodes = [n for n in nodes if n.op == "placeholder"]
        self.made, self.new = made, new
        self.known: dict[Any, Node] = {}

    def find(self, symbol: Any) -> Node:
        """A node that gives the value of a symbol."""
        if symbol not in self.known:
            self.known[symbol] = self._made(symbol)
        return self.known[symbol]

    def _made(self, symbol: Any) -> Node:
        for n in self.nodes:
            value = n.meta.get("val")
            if getattr(getattr(value, "node", None), "expr", None) == symbol and not hasattr(value, "stride"):
                return self.new[n]
        import torch

        for n in self.nodes:
            for d, extent in enumerate(getattr(n.meta.get("val"), "shape", ())):
                if getattr(getattr(extent, "node", None), "expr", None) == symbol:
                    return self.made.call_function(torch.ops.aten.sym_size.int, (self.new[n], d))
        raise LookupError(f"no argument has the size {symbol}")
