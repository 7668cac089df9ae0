"""Where a graph needs most memory, and what is done about it: a region there is called in parts.

    a region makes t, u from x, y      x, y, t, u are there at once
    t from x, then u from y            x dies before u is made

A region makes all its results before what it reads dies.  Parts that read nothing of one another can be
called one by one: first those whose arguments take more memory than their results.  That costs calls, and is
done where the whole graph needs less then.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from polyfuse.torch.dynamo.assemble import Units
from polyfuse.torch.dynamo.partition import (
    Kind,
    Partition,
    Region,
    base_of,
    bytes_of,
    components,
    results_of,
    why_it_does_not_pay,
    writes,
)
from polyfuse.torch.dynamo.products import IN_PLACE, name_of

Node: TypeAlias = Any

MOST_PARTED = 8
"""Regions of a graph that are called in parts."""
WORTH = 1 / 64
"""So much less memory, as a part of the peak, is worth a call."""


@dataclass(frozen=True)
class _Moment:
    """While a unit runs: the bytes that are there, and the tensors that it is the last to read."""

    unit: int
    bytes: int
    dying: frozenset[Node]


def relieve(nodes: Sequence[Node], found: Partition, arguments_die: bool) -> None:
    """Have regions at the peak of memory called in parts, as long as that takes the peak down."""
    for _ in range(MOST_PARTED):
        moments = _moments(nodes, found, arguments_die)
        peak = max(moments, key=lambda m: m.bytes, default=None)
        if peak is None or peak.unit < len(nodes):
            return
        k = peak.unit - len(nodes)
        early, late, saved = _parts(found.regions[k], peak.dying, found)
        others = max((m.bytes for m in moments if m is not peak), default=0)
        if not early or peak.bytes - max(others, peak.bytes - saved) < WORTH * peak.bytes:
            return
        first, second = (Region(tuple(p), results_of(p, found.kinds)) for p in (early, late))
        if why_it_does_not_pay(first) or why_it_does_not_pay(second):
            return
        found.regions[k] = second
        found.regions.append(first)
        found.earlier[k] = len(found.regions) - 1


def _parts(region: Region, dying: frozenset[Node], found: Partition) -> tuple[list[Node], list[Node], int]:
    """Nodes to call early and late, and the bytes that are free between."""
    if any(map(writes, region.nodes)):
        return [], [], 0
    parts = components(region.nodes)
    reads = [frozenset(_reads(p, found)) & dying for p in parts]
    early: list[Node] = []
    late: list[Node] = []
    saved = made = 0
    for k, part in enumerate(parts):
        own = reads[k].difference(*(r for j, r in enumerate(reads) if j != k))
        freed = sum(map(bytes_of, own))
        results = sum(map(bytes_of, results_of(part, found.kinds)))
        (early if freed > results else late).extend(part)
        saved += freed * (freed > results)
        made += results * (freed <= results)
    return (early, late, min(saved, made)) if late else ([], [], 0)


def _moments(nodes: Sequence[Node], found: Partition, arguments_die: bool) -> list[_Moment]:
    """What is there while each unit runs, in order; all of them are those of `Units`."""
    units = Units(nodes, found)
    order = units.order()
    last: dict[Node, int] = {}
    for u in order:
        last.update(dict.fromkeys(_reads(units.members[u], found), u))
    stay = {_owner(a, found) for n in nodes if n.op == "output" for a in n.all_input_nodes}
    if not arguments_die:
        stay.update(n for n in nodes if n.op == "placeholder")
    dying: dict[int, set[Node]] = {}
    for n, u in last.items():
        if n not in stay:
            dying.setdefault(u, set()).add(n)
    alive = sum(bytes_of(n) for n in nodes if n.op == "placeholder")
    moments = []
    for u in order:
        made = _made(units.members[u], u >= len(nodes), found)
        alive += sum(map(bytes_of, made))
        gone = frozenset(dying.get(u, ()))
        moments.append(_Moment(u, alive, gone))
        unread = (n for n in made if n not in last and n not in stay)
        alive -= sum(map(bytes_of, gone)) + sum(map(bytes_of, unread))
    return moments


def _made(members: Sequence[Node], is_region: bool, found: Partition) -> tuple[Node, ...]:
    """The nodes of a unit whose tensors have memory of their own."""
    if is_region:
        return results_of(members, found.kinds)
    node = members[0]
    own = node.op == "call_function" and _owner(node, found) is node and found.kinds[node] is Kind.ATEN
    return (node,) if own else ()


def _reads(members: Sequence[Node], found: Partition) -> Iterable[Node]:
    """The owners of what a unit reads from others."""
    inside = set(members)
    for n in members:
        for a in n.all_input_nodes:
            through = a if found.kinds[n] is not Kind.OURS else base_of(a)
            if through not in inside:
                yield _owner(through, found)


def _owner(node: Node, found: Partition) -> Node:
    """The node whose memory a node's tensor lies in."""
    while node.op == "call_function" and found.kinds[node] is not Kind.OURS:
        part = node.target is operator.getitem
        if not (part or getattr(node.target, "is_view", False) or name_of(node) in IN_PLACE):
            return node
        node = node.args[0]
    return node
