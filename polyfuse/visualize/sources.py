"""What pictures of points are drawn of: operators and their stages, or sets and relations of isl.

    source = source_of(op, ("y",), {"T": 3, "H": 4})
    source.spaces, source.dependences(), source.times()

A stage is known by what it has: a method `op` or `specialize`, a `graph`, a `tree`, a `schedule`; any other
object that has these will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.index_expr import IConst, IndexExpr, substitute
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Tree, map_members, statements, word_of
from polyfuse.ir.schedule_tree import Sequence as Steps
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.legality.schedules import mark_coincident
from polyfuse.poly.model.dependences import ordering
from polyfuse.poly.model.domains import build_model, specialize
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.model.points import (
    Node,
    Pair,
    Point,
    Space,
    UnionMap,
    UnionSet,
    is_isl,
    named,
    pairs,
    plain_map,
    plain_set,
    read,
    read_map,
    read_set,
    require_sizes,
    size_names,
    spaces,
    times,
    tuple_names,
)
from polyfuse.poly.scheduling.own_order import own_order
from polyfuse.poly.scheduling.tree_convert import schedule_map

MOST_POINTS = 400


@dataclass(frozen=True)
class Source:
    """Points at known sizes, and what relates them.

    A graph has relations and a program order of its own; else `given` is what isl was given. `tree` is the
    schedule that a stage has, `again` the domain at other sizes.
    """

    title: str
    domain: UnionSet
    sizes: Mapping[str, int]
    graph: TensorGraph | None = None
    tree: Tree | None = None
    given: object = None
    again: Callable[[Mapping[str, int]], UnionSet] | None = None

    @cached_property
    def spaces(self) -> tuple[Space, ...]:
        """Each statement; those of a graph in its order."""
        found = spaces(self.domain, self.sizes, MOST_POINTS, self.again)
        if self.graph is None:
            return found
        order = [s.name for s in self.graph.statements]
        return tuple(sorted(found, key=lambda s: order.index(s.name)))

    def dependences(self, relation: object = None) -> tuple[Pair, ...]:
        """Producer and consumer, of the points: those of the graph, or the pairs of a relation."""
        with isl_lock:
            if relation is None and self.graph is not None:
                found = plain_map(self.graph, ordering(build_model(self.graph)))
            else:
                found = read_map(self.given if relation is None else relation, self.domain.get_ctx())
            return pairs(found.intersect_domain(self.domain).intersect_range(self.domain), self.sizes)

    def times(self, schedule: object = None, *, parallel: bool = False) -> dict[Node, Point]:
        """When each point runs: under a schedule, under that of the stage, or in the order of the program.
        With `parallel` the iterations of parallel loops run at once.

        Raises ArgumentError: PF916 for a point without time, PF910 where no loops say what is parallel.
        """
        order = self._own_order() if schedule is None else _order_in(schedule)
        if parallel:
            order = self._at_once(order)
        with isl_lock:
            found = self._of_tree(order) if isinstance(order, Band | Steps | Leaf) else self._of_isl(order)
            return times(found.intersect_domain(self.domain), self.sizes, self.spaces)

    def _own_order(self) -> object:
        if self.graph is None:
            return self.given
        return own_order(self.graph) if self.tree is None else self.tree

    def _at_once(self, order: object) -> Tree:
        """A schedule tree without its parallel loops, which its dependences tell."""
        if self.graph is None or not isinstance(order, Band | Steps | Leaf):
            what = "isl's notation does not say what may run at once"
            raise ArgumentError(what, code="PF910", hint="give the schedule of an operator")
        graph = self.graph
        with isl_lock:
            marked = mark_coincident(build_model(graph), self._closed(order))
        return map_members(marked, lambda m: () if word_of(m, graph) == "parallel" else m)

    def _of_isl(self, given: object) -> UnionMap:
        return read_map(given, self.domain.get_ctx())

    def _of_tree(self, tree: Tree) -> UnionMap:
        """When the instances of a graph run under a schedule tree, whose sizes may be open."""
        closed = self._closed(tree)
        assert self.graph is not None
        return plain_map(self.graph, schedule_map(build_model(self.graph), closed))

    def _closed(self, tree: Tree) -> Tree:
        """A tree of the graph, its sizes known."""
        if self.graph is None:
            what = "a schedule tree of polyfuse orders the statements of an operator"
            raise ArgumentError(what, code="PF910", hint="give the operator first, or a stage of it")
        known = [s.name for s in self.graph.statements]
        if unknown := [n for n in statements(tree) if n not in known]:
            what = f"the schedule orders {unknown[0]}, which the operator does not have"
            raise ArgumentError(what, code="PF914", hint="draw the stage that the schedule is of")
        values: dict[str, IndexExpr] = {n: IConst(v) for n, v in self.sizes.items()}

        def closed(m: Member) -> Member:
            return replace(m, exprs=tuple((s, substitute(e, sizes=values)) for s, e in m.exprs))

        return map_members(tree, closed)


def source_of(given: object, names: Sequence[str], sizes: Mapping[str, int], *others: object) -> Source:
    """The points of statements of some names, or of all; `others` may have sizes of their own.

    Raises ArgumentError: PF910 for what has no points, PF911 for sizes, PF914 for names of no statement.
    """
    stage, left = _stage_of(given, sizes)
    graph = graph_of(stage)
    with isl_lock:
        if graph is None:
            return _of_isl(stage, names, left, others)
        extra = _size_names(others)
        require_sizes(graph.sizes, {n: v for n, v in left.items() if n not in extra})
        closed = specialize(graph, left)
        known = {s.name: (s.name, s.target) for s in closed.statements}
        chosen = _chosen(names, known)
        domain = plain_set(closed, build_model(closed).domain(chosen))
    tree = getattr(stage, "tree", None)

    def again(less: Mapping[str, int]) -> UnionSet:
        return source_of(given, names, less, *others).domain

    tree = tree if isinstance(tree, Band | Steps | Leaf) else None
    return Source(graph.name, domain, sizes, closed, tree, again=again)


def _of_isl(
    given: object, names: Sequence[str], sizes: Mapping[str, int], others: Sequence[object]
) -> Source:
    order = _order_in(given)
    found = read_set(order)
    require_sizes([*size_names(found), *_size_names((order, *others))], sizes)
    known = {n: (n,) for n in tuple_names(found)}
    return Source("", named(found, _chosen(names, known)) if names else found, sizes, given=order)


def _size_names(others: Sequence[object]) -> list[str]:
    """The sizes of sets and relations."""
    return [n for o in map(_order_in, others) if is_isl(o) for n in size_names(read(o))]


def _chosen(names: Sequence[str], known: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The statements that names ask for: by their own name, or by what they define."""
    for name in names:
        if not any(name in called for called in known.values()):
            hint = f"there are {', '.join(known)}"
            raise ArgumentError(f"there is no statement {name}", code="PF914", hint=hint)
    return [n for n, called in known.items() if not names or not set(names).isdisjoint(called)]


# --- stages, by what they have -----------------------------------------------------------------------------


def _stage_of(given: object, sizes: Mapping[str, int]) -> tuple[object, Mapping[str, int]]:
    """An operator at its sizes, and those sizes that are left; any other object as it is."""
    if (choose := _method(given, "op")) is not None:
        given = choose()
    if (specialized := _method(given, "specialize")) is not None:
        return specialized(**sizes), {}
    return given, sizes


def _method(given: object, name: str) -> Callable[..., Any] | None:
    """A method of the class: fields, and what `__getattr__` makes, are none."""
    return getattr(given, name) if callable(getattr(type(given), name, None)) else None


def graph_of(stage: object) -> TensorGraph | None:
    """The graph of a stage, or of the kernels that it has."""
    for found in (
        stage,
        getattr(stage, "graph", None),
        getattr(getattr(stage, "kernels", None), "graph", None),
    ):
        if isinstance(found, TensorGraph):
            return found
    return None


def _order_in(given: object) -> object:
    """What an object says of an order: its tree or its schedule; else the object itself."""
    if is_isl(given) or isinstance(given, Band | Steps | Leaf):
        return given
    for part in ("tree", "schedule"):
        found = getattr(given, part, None)
        if found is not None and not callable(found):
            return _order_in(found)
    return given
