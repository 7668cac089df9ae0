"""Sums of products, added up where the first of them lies.

    a = mm(x, y); b = mm(u, v); s = a + b       a = mm(x, y); s = addmm_(a, u, v)

Gradients of weights that are used several times are such sums, of tensors that are large: `b` is not made,
and neither is `s`.  Only the sum reads `a`, so that nobody sees it overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from polyfuse.torch.dynamo.lowerings.table import val
from polyfuse.torch.dynamo.sizes import Unsupported, equal, extent_of

Node: TypeAlias = Any

_ADDED_TO = {"mm": "addmm_", "bmm": "baddbmm_"}
_FIRST = {"mm": "mm addmm addmm_", "bmm": "bmm baddbmm baddbmm_"}
IN_PLACE = frozenset(_ADDED_TO.values())
"""What these give is their first argument."""
_FLOATS = ("torch.float32", "torch.float64")
"""Those of 16 bits are rounded before they are added."""


@dataclass(frozen=True)
class _Term:
    """A product that is added, as the operand `seen`: is that the product, or the product transposed?"""

    seen: Node
    product: Node
    turned: bool
    views: tuple[Node, ...]


def name_of(node: Any) -> str:
    """The operator of ATen that a node calls, "" for others."""
    target: Any = getattr(node, "target", None)
    if getattr(node, "op", "") != "call_function" or getattr(target, "namespace", "") != "aten":
        return ""
    return str(target._schema.name).removeprefix("aten::")


def add_up(graph: Any) -> int:
    """Have products of a graph add to those before them; how many there are."""
    place = {n: k for k, n in enumerate(graph.nodes)}
    found = 0
    for node in [*graph.nodes]:
        if name_of(node) != "add" or len(node.args) != 2 or node.kwargs:
            continue
        terms = [t for a in node.args if (t := _term(a)) is not None]
        terms.sort(
            key=lambda t: (name_of(t.product) in _ADDED_TO, not _alike(node, t.seen), place[t.product])
        )
        if len(terms) == 2 and _fit(node, terms[0], terms[1]):
            later = max((t.product for t in terms), key=lambda n: place[n])
            place[_added(graph, node, terms[0], terms[1], later)] = place[later]
            found += 1
    return found


def _added(graph: Any, node: Node, first: _Term, second: _Term, later: Node) -> Node:
    """One product that adds to another, in place of the sum `node` of both, at the place of the later one."""
    import torch

    aten, product = torch.ops.aten, second.product
    with graph.inserting_after(later):
        anchor = graph.call_function(torch.ops.aten.alias.default, (later,))
    with graph.inserting_before(anchor):
        factors = product.args
        if first.turned != second.turned:  # the transpose of a product is that of its factors, in reverse
            factors = tuple(_turned(graph, f) for f in reversed(factors))
        into = getattr(aten, _ADDED_TO[name_of(product)]).default
        made = graph.call_function(into, (first.product, *factors))
    made.meta = dict(first.product.meta)
    with graph.inserting_before(node):
        result = _turned(graph, made) if first.turned else made
    result.meta = {**node.meta, "val": val(node)}
    node.replace_all_uses_with(result)
    for n in (anchor, node, *first.views, *second.views, product):
        graph.erase_node(n)
    return made


def _turned(graph: Any, node: Node) -> Node:
    """The last two axes change places."""
    import torch

    rank = val(node).dim()
    order = [*range(rank - 2), rank - 1, rank - 2]
    made = graph.call_function(torch.ops.aten.permute.default, (node, order))
    made.meta = {**node.meta, "val": val(node).permute(order)}
    return made


def _term(node: Any) -> _Term | None:
    """The product that an operand of a sum is, where nothing else reads it."""
    seen, turned = node, False
    views: list[Node] = []
    while getattr(node, "op", "") == "call_function" and len(node.users) == 1:
        if name_of(node) in ("mm", "bmm", "addmm", "baddbmm", "addmm_", "baddbmm_"):
            return _Term(seen, node, turned, tuple(views))
        if not (turns := _turns(node)) and not _is_the_same(node):
            return None
        views.append(node)
        turned, node = turned != turns, node.args[0]
    return None


def _is_the_same(view: Node) -> bool:
    """Is it a view of all of a tensor as it is?"""
    if not getattr(view.target, "is_view", False) or not hasattr(val(view), "stride"):
        return False
    return _alike(view, view.args[0]) and val(view).dtype == val(view.args[0]).dtype


def _turns(node: Node) -> bool:
    """Is it a view in which the last two axes change places?"""
    if name_of(node) == "t":
        return len(val(node).shape) == 2
    if name_of(node) not in ("permute", "transpose"):
        return False
    rank = val(node).dim()
    order = [*range(rank)]
    if name_of(node) == "permute":
        order = [d % rank for d in node.args[1]]
    else:
        a, b = (d % rank for d in node.args[1:])
        order[a], order[b] = order[b], order[a]
    return rank > 1 and order == [*range(rank - 2), rank - 1, rank - 2]


def _fit(node: Node, first: _Term, second: _Term) -> bool:
    """Can the second be added to the first, and is the sum of floats laid out as that is?"""
    if (
        first.product is second.product
        or name_of(first.product) not in _FIRST.get(name_of(second.product), "").split()
    ):
        return False
    made, one, other = (val(n) for n in (node, first.seen, second.seen))
    if any(t.dtype != made.dtype for t in (one, other)) or str(made.dtype) not in _FLOATS:
        return False
    return _same(one.shape, other.shape) and _alike(node, first.seen)


def _alike(one: Node, other: Node) -> bool:
    """Have both one shape, and lie in memory in one way?"""
    one, other = val(one), val(other)
    return _same(one.shape, other.shape) and _same(one.stride(), other.stride())


def _same(one: Any, other: Any) -> bool:
    try:
        return len(one) == len(other) and all(map(equal, map(extent_of, one), map(extent_of, other)))
    except Unsupported:
        return False
