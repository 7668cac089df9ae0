"""The table of ATen overloads that regions may have, and what each of them is.

    @lowers("aten.cumsum", whole="dim")
    def _cumsum(low, node, a): ...

A rule is found by the overload (`TABLE[node.target]`).  The modules beside this one fill it when they are
imported (`polyfuse.torch.dynamo.lowerings`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from polyfuse.torch.dynamo.lowering import Lowering
    from polyfuse.torch.dynamo.values import Value

Node: TypeAlias = Any
Arguments: TypeAlias = dict[str, Any]
"""The arguments of a node by the names of its schema, defaults included."""
Lower: TypeAlias = "Callable[[Lowering, Node, Arguments], Value | list[Value]]"
Refuse: TypeAlias = Callable[[Node, Arguments], str]
"""Why a node of an operator is none of ours; "" where it is."""


@dataclass(frozen=True)
class Rule:
    """What an operator is.

    group      of the page that lists operators
    is_view    a view: regions read through it, and it is no reason to make one
    reshapes   a view that joins or cuts axes
    alone      worth a kernel of its own: ATen has several passes over memory, or a slow one
    slow       ATen's loop for a CPU is a slow one: worth a kernel of its own there, of many elements
    free       costs nothing by itself: numbers, places
    whole      the argument with axes along which it runs one after the other, and which are not cut
    refuse     see `Refuse`
    """

    name: str
    group: str
    lower: Lower
    is_view: bool = False
    reshapes: bool = False
    alone: bool = False
    slow: bool = False
    free: bool = False
    whole: str = ""
    refuse: Refuse = lambda node, a: ""


TABLE: dict[Any, Rule] = {}
"""By overload (`torch.ops.aten.add.Tensor`)."""

_NO_TYPES = ("Dimname", "Generator", "Storage", "QScheme")


def lowers(
    *names: str,
    group: str,
    overloads: tuple[str, ...] | None = None,
    **facts: Any,
) -> Callable[[Lower], Lower]:
    """Make a function the rule of operators ("aten.cumsum"): of the overloads named, or of all that change
    nothing."""

    def register(lower: Lower) -> Lower:
        for name in names:
            _enter(Rule(name, group, lower, **facts), overloads)
        return lower

    return register


_LATER: list[tuple[Rule, tuple[str, ...] | None]] = []
"""Rules of operators that there were not, when they were made."""


def _enter(rule: Rule, overloads: tuple[str, ...] | None) -> None:
    found = dict.fromkeys(_overloads(rule.name, overloads), rule)
    TABLE.update(found)
    if not found:
        _LATER.append((rule, overloads))


def complete() -> None:
    """Enter what torch has made since: some operators are there as soon as Dynamo needs them."""
    left = _LATER[:]
    _LATER.clear()
    for rule, overloads in left:
        _enter(rule, overloads)


def _overloads(name: str, wanted: tuple[str, ...] | None) -> Iterator[Any]:
    """The overloads of an operator; none where this torch does not have it."""
    import torch

    namespace, _, short = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), short, None)
    for key in () if packet is None else packet.overloads():
        found = getattr(packet, key)
        if (key in wanted) if wanted is not None else _is_plain(found._schema, name):
            yield found


def _is_plain(schema: Any, name: str) -> bool:
    """Does an overload change none of its arguments, and take those that regions have?"""
    types = [str(a.type) for a in schema.arguments]
    return (name == "aten.copy_" or not schema.is_mutable) and not any(
        word in t for t in types for word in _NO_TYPES
    )


def rule_of(node: Node) -> Rule:
    """The rule of a node that has one."""
    return TABLE[node.target]


def bound(node: Node) -> Arguments:
    """The arguments of a node by name."""
    found: Arguments = {}
    for k, a in enumerate(node.target._schema.arguments):
        given = node.args[k] if k < len(node.args) else node.kwargs.get(a.name)
        if given is None and k >= len(node.args) and a.name not in node.kwargs and a.has_default_value():
            given = a.default_value
        found[a.name] = given
    return found


def val(node: Node) -> Any:
    """What a node gives, as torch traces it: a fake tensor, several, a size."""
    if node.op == "get_attr" and "val" not in node.meta:  # a constant, as older versions trace it
        return attrgetter(node.target)(node.graph.owning_module)
    return node.meta.get("val")


def tensor_of(node: Node) -> Any:
    """The fake tensor of a node that gives one, else None."""
    found = val(node)
    return found if hasattr(found, "stride") else None


def rounds(refused: bool, why: str) -> str:
    """The reason, if there is one."""
    return why if refused else ""
