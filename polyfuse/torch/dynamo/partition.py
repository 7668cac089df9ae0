"""Which nodes of an ATen graph go together into regions.

    mm -> add -> gelu -> mm -> add -> layer norm          levels 0 0 | 1 1 1

A node's level is how many of ATen's nodes that read results of ours lie before it, at most; ours of one
level never wait for one another through ATen, so any set of them is convex.  A level is cut into regions of
a bounded number of nodes, connected ones together.  A region must pay: it saves launches, or passes over
memory, or ATen's loop is slow.  All is linear in nodes and edges but for sorting, and depends on nothing
but the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, TypeAlias

from polyfuse.ir.ops import Cost, of_cost
from polyfuse.ir.tensor_graph import Apply, walk
from polyfuse.torch.dynamo.lowering import WITH_ATEN, device_of, is_item, is_view, lower
from polyfuse.torch.dynamo.lowerings.table import TABLE, bound, rule_of, val
from polyfuse.torch.dynamo.sizes import Unsupported, dense_order, extent_of, is_number
from polyfuse.torch.dynamo.values import dtype_of

Node: TypeAlias = Any

MOST_NODES = 256
"""Of a region; more are cut, in the order of the graph."""
MOST_MOVED = 32
"""Nodes that move to a later level together."""
UNKNOWN_SIZE = 32
"""Stands for a size that calls give, where bytes are compared."""
FEW_ELEMENTS = 1 << 15
"""So many cost less in ATen's slow loops than the call of a kernel."""


class Kind(Enum):
    """What becomes of a node."""

    INPUT = "input"
    OUTPUT = "output"
    SIZE = "size"
    VIEW = "view"
    OURS = "ours"
    ATEN = "aten"


@dataclass(frozen=True)
class Region:
    """Nodes that are computed together, in order; `outputs` are those that others read."""

    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]

    @property
    def counted(self) -> int:
        """How many nodes it has that compute something, or lay memory out anew."""
        return sum(not is_item(n) and (not rule_of(n).free or _lays_out(n)) for n in self.nodes)


@dataclass
class Partition:
    """Kinds of all nodes, regions in order, and why nodes stay with ATen."""

    kinds: dict[Node, Kind] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    reasons: dict[Node, str] = field(default_factory=dict)
    earlier: dict[int, int] = field(default_factory=dict)
    """Regions that are called before others, as it takes less memory, by these."""

    @property
    def region_of(self) -> dict[Node, int]:
        """The region of each node that is in one."""
        return {n: k for k, r in enumerate(self.regions) for n in r.nodes}


def partition(graph: Any, refused: Mapping[Node, str]) -> Partition:
    """The regions of a graph; `refused` nodes stay with ATen, for these reasons."""
    found = Partition()
    nodes = list(graph.nodes)
    for n in nodes:
        n.meta[WITH_ATEN] = False
        kind, why = _kind(n, found.kinds, refused)
        n.meta[WITH_ATEN] = kind is Kind.ATEN
        found.kinds[n] = kind
        if why:
            found.reasons[n] = why
    levels = _levels(nodes, found.kinds)
    _sink(nodes, found.kinds, levels)
    by_level: dict[tuple[int, str], list[Node]] = {}
    for n in nodes:
        if found.kinds[n] is Kind.OURS:
            by_level.setdefault((levels[n], device_of([n])), []).append(n)
    for place in sorted(by_level):
        for members in _pieces(by_level[place]):
            region = Region(tuple(members), results_of(members, found.kinds))
            if why := why_it_does_not_pay(region):
                found.reasons.update(dict.fromkeys(members, why))
                found.kinds.update(dict.fromkeys(members, Kind.ATEN))
            else:
                found.regions.append(region)
    return found


# --- kinds ------------------------------------------------------------------------------------------------


def _kind(node: Node, kinds: Mapping[Node, Kind], refused: Mapping[Node, str]) -> tuple[Kind, str]:
    """The kind of a node, and why it is none of ours."""
    if node.op != "call_function":
        return (Kind.OUTPUT if node.op == "output" else Kind.INPUT), ""
    if is_item(node):
        source = kinds[node.args[0]]
        return (source, "") if source in (Kind.VIEW, Kind.OURS) else (Kind.ATEN, "")
    if val(node) is not None and not list(_tensors(node)):
        return Kind.SIZE, ""
    if node in refused:
        return Kind.ATEN, refused[node]
    if node.target not in TABLE:
        return Kind.ATEN, f"{node.target} is left to ATen"
    why = _why_not(node)
    if why:
        return Kind.ATEN, why
    return (Kind.VIEW if is_view(node) else Kind.OURS), ""


def _tensors(node: Node) -> Iterator[Any]:
    found = val(node)
    for t in found if isinstance(found, list | tuple) else [found]:
        if hasattr(t, "stride"):
            yield t


def _why_not(node: Node) -> str:
    """Why a node that has a rule is none of ours; "" where it is."""
    args = [a for a in node.all_input_nodes if not isinstance(val(a), list | tuple)]
    every = [*_tensors(node), *(t for a in args for t in _tensors(a))]
    if len({t.device for t in every}) > 1:
        return "tensors on several devices"
    for t in every:
        if dtype_of(t.dtype) is None:
            return f"a tensor of {t.dtype}"
        if str(t.layout) != "torch.strided" or getattr(t, "is_nested", False):
            return f"a tensor of layout {t.layout}"
        if t.device.type not in ("cpu", "cuda"):
            return f"a tensor on {t.device.type}"
        try:
            if any(n == 0 for n in map(extent_of, t.shape) if is_number(n)):
                return "a tensor without elements"
        except Unsupported as problem:
            return str(problem)
    if not is_view(node) and (why := _has_gaps(node)):
        return why
    return _refusal(node)


def _refusal(node: Node) -> str:
    try:
        return rule_of(node).refuse(node, bound(node))
    except (Unsupported, TypeError, IndexError, AttributeError) as problem:
        return f"its arguments are not those of a usual call ({problem})"


def _has_gaps(node: Node) -> str:
    for t in _tensors(node):
        if dense_order(tuple(map(extent_of, t.shape)), tuple(map(extent_of, t.stride()))) is None:
            return "a result has gaps in memory"
    return ""


def base_of(node: Node) -> Node:
    """What a view is a view of."""
    while is_view(node):
        node = node.args[0]
    return node


# --- levels -----------------------------------------------------------------------------------------------


def _levels(nodes: Sequence[Node], kinds: Mapping[Node, Kind]) -> dict[Node, int]:
    """The level of each node: those of ATen that read ours are one higher, random ones are in order."""
    levels: dict[Node, int] = {}
    readers: dict[Node, int] = {}
    random = 0
    for n in nodes:
        aten = kinds[n] is Kind.ATEN and not is_item(n)
        found = 0
        for a in n.all_input_nodes:
            ours = aten and kinds[base_of(a)] is Kind.OURS
            found = max(found, levels[a] + ours)
        if writes(n):  # after all that read what it writes
            found = max(found, readers.get(n.args[0], 0))
        if is_random(n):
            found = random = max(found, random)
        levels[n] = found
        for a in n.all_input_nodes:
            root = base_of(a)
            readers[root] = max(readers.get(root, 0), found)
    return levels


def is_random(node: Node) -> bool:
    """May it take random numbers? Operators of others may."""
    if node.op != "call_function" or is_item(node):
        return False
    space = getattr(node.target, "namespace", "")
    if space in ("aten", "prims"):
        return "nondeterministic_seeded" in " ".join(map(str, node.target.tags))
    return space not in ("", "polyfuse")


def writes(node: Node) -> bool:
    return node.op == "call_function" and str(node.target) == "aten.copy_.default"


def _sink(nodes: Sequence[Node], kinds: Mapping[Node, Kind], levels: dict[Node, int]) -> None:
    """Move nodes to the level of their only readers where no more bytes cross levels then."""
    for n in reversed(nodes):
        if kinds[n] is not Kind.OURS or is_item(n) or writes(n):
            continue
        readers = list(_readers(n, kinds))
        if not readers or any(kinds[r] is not Kind.OURS or writes(r) for r in readers):
            continue
        later = min(levels[r] for r in readers)
        if later <= levels[n]:
            continue
        cone = _cone(n, kinds, levels)
        leaves = {base_of(a) for x in cone for a in x.all_input_nodes} - set(cone)
        crossing = sum(bytes_of(a) for a in leaves if kinds[a] not in (Kind.INPUT, Kind.SIZE))
        if crossing <= bytes_of(n):
            for x in cone:
                _set_level(x, later, kinds, levels)
    for n in filter(writes, nodes):  # still after all that read what it writes
        before = (r for r in _readers(base_of(n.args[0]), kinds) if r.op != "output")
        levels[n] = max([levels[n], *(levels[r] for r in before)])


def _readers(node: Node, kinds: Mapping[Node, Kind]) -> Iterator[Node]:
    """What reads a node, through views and parts of it as well."""
    for u in node.users:
        if kinds[u] is Kind.VIEW or (is_item(u) and kinds[u] is Kind.OURS):
            yield from _readers(u, kinds)
        else:
            yield u


def _cone(node: Node, kinds: Mapping[Node, Kind], levels: Mapping[Node, int]) -> dict[Node, None]:
    """The node, and what only it needs of its level."""
    cone = {node: None}
    for x in cone_order(cone):
        for a in x.all_input_nodes:
            b = base_of(a)
            b = base_of(b.args[0]) if is_item(b) else b
            mine = kinds[b] is Kind.OURS and levels[b] == levels[node] and not writes(b)
            if (
                mine
                and b not in cone
                and len(cone) < MOST_MOVED
                and all(r in cone for r in _readers(b, kinds))
            ):
                cone[b] = None
    return cone


def cone_order(cone: dict[Node, None]) -> Iterator[Node]:
    """Its nodes, those that are added meanwhile as well."""
    seen = 0
    while seen < len(cone):
        batch = list(cone)[seen:]
        seen += len(batch)
        yield from batch


def _set_level(node: Node, level: int, kinds: Mapping[Node, Kind], levels: dict[Node, int]) -> None:
    left = [node]
    while left:
        x = left.pop()
        levels[x] = level
        left += [u for u in x.users if kinds[u] is Kind.VIEW or (is_item(u) and kinds[u] is Kind.OURS)]


def bytes_of(node: Node) -> int:
    """How much memory its tensors take."""
    return sum(t.element_size() * _elements(t) for t in _tensors(node))


def _elements(tensor: Any) -> int:
    """How many a tensor has."""
    return prod(s if isinstance(s, int) else UNKNOWN_SIZE for s in tensor.shape)


# --- pieces of a level ------------------------------------------------------------------------------------


def _pieces(members: Sequence[Node]) -> Iterator[list[Node]]:
    """The nodes of a level, connected ones together, in runs of at most `MOST_NODES`."""
    run: list[Node] = []
    for part in components(members):
        if run and len(run) + len(part) > MOST_NODES:
            yield run
            run = []
        run = [*run, *part]
        while len(run) > MOST_NODES:
            cut = _cut(run)
            yield run[:cut]
            run = run[cut:]
    if run:
        yield run


def _cut(run: Sequence[Node]) -> int:
    """Where a run that is too long ends: parts of one node stay together."""
    cut = MOST_NODES
    while cut < len(run) and is_item(run[cut]):
        cut += 1
    return cut


def components(members: Sequence[Node]) -> list[list[Node]]:
    """Connected ones, in order of their first nodes; what they read from outside connects none."""
    parent = {n: n for n in members}

    def root(n: Node) -> Node:
        while parent[n] is not n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    for n in members:
        for a in n.all_input_nodes:
            b = base_of(a)
            if b in parent:
                one, other = root(b), root(n)
                if one is not other:
                    parent[other] = one
    found: dict[Node, list[Node]] = {}
    for n in members:
        found.setdefault(root(n), []).append(n)
    return list(found.values())


def results_of(members: Iterable[Node], kinds: Mapping[Node, Kind]) -> tuple[Node, ...]:
    """The members that others read, views of them included."""
    inside = dict.fromkeys(members)
    found = []
    for n in inside:
        if writes(n) or isinstance(val(n), list | tuple):
            continue
        if any(u not in inside for u in _outer(n, kinds)):
            found.append(n)
    return tuple(found)


def _outer(node: Node, kinds: Mapping[Node, Kind]) -> Iterator[Node]:
    for u in node.users:
        if kinds[u] is Kind.VIEW:
            yield from _outer(u, kinds)
        else:
            yield u


def why_it_does_not_pay(region: Region) -> str:
    """Why ATen computes it as well; "" where a kernel pays."""
    if not region.outputs and not any(map(writes, region.nodes)):
        return "nobody reads it"
    if any(not is_item(n) and rule_of(n).alone for n in region.nodes):
        return ""
    if region.counted >= 2 or (region.counted == 1 and _is_slow_with_aten(region)):
        return ""
    return "alone it is as fast with ATen"


def _lays_out(node: Node) -> bool:
    """Is it a copy in another order of memory?"""
    if rule_of(node).group != "copies" or not node.all_input_nodes:
        return False
    tensors = [t for n in (node, node.all_input_nodes[0]) for t in _tensors(n)]
    found = [(tuple(map(extent_of, t.shape)), tuple(map(extent_of, t.stride()))) for t in tensors]
    return len({dense_order(*f) for f in found}) > 1


def _is_slow_with_aten(region: Region) -> bool:
    """Do ATen's loops over many elements lose to ours on a CPU: of functions (some are scalar code, most have
    vectors of 32 bytes), and of reductions that are marked?"""
    nodes = [n for n in region.nodes if not is_item(n)]
    tensors = [t for n in nodes for x in (n, *n.all_input_nodes) for t in _tensors(x)]
    if "cpu" not in device_of(nodes) or max(map(_elements, tensors)) < FEW_ELEMENTS:
        return False
    if any(rule_of(n).slow for n in nodes):
        return True
    try:
        statements = lower(region.nodes, region.outputs).graph.statements
    except Unsupported:
        return False
    parts = (e for s in statements for e in walk(s.expr))
    return any(isinstance(e, Apply) and e.op in of_cost(Cost.FUNCTION) for e in parts)
