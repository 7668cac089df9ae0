"""Sets and relations of isl as plain Python: points, and pairs of points, at known sizes.

    read("{ S[i, j] : 0 <= j <= i < 5 }")        isl's notation of a set, a relation or a schedule
    spaces(found, {}, most=400)                  (Space(name="S", dims=("i", "j"), points=((0, 0), ...)),)

A point is a tuple of integers; a node is a point with the name of its statement or array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, Union

import islpy as isl

from polyfuse.diagnostics import ArgumentError, PolyfuseError
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.model.isl_bridge import isl_lock, new_context, statement_id

Point: TypeAlias = tuple[int, ...]
Node: TypeAlias = tuple[str, Point]
Pair: TypeAlias = tuple[Node, Node]
UnionSet: TypeAlias = isl.UnionSet
UnionMap: TypeAlias = isl.UnionMap
Found: TypeAlias = Union[isl.UnionSet, isl.UnionMap]  # noqa: UP007
SetOrMap = TypeVar("SetOrMap", isl.UnionSet, isl.UnionMap)

MOST_DIMS = 3
MOST_IN_A_BOX = 1_000_000
"""Values of all dims together, up to which points are counted one by one."""
MOST_PAIRS = 40_000
SMALLER = (16, 12, 10, 8, 6, 5, 4, 3, 2)
"""Sizes that a refusal of many points tries, to propose the first that fits."""
_OBJECTS = (isl.BasicSet, isl.Set, isl.UnionSet, isl.BasicMap, isl.Map, isl.UnionMap, isl.Schedule)


@dataclass(frozen=True, slots=True)
class Space:
    """The points of a statement or an array, in lexicographic order; dims without name are ""."""

    name: str
    dims: tuple[str, ...]
    points: tuple[Point, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple((self.name, p) for p in self.points)

    def shown(self, point: Point) -> str:
        """`S(i=1, j=2)`, as refusals of schedules name instances."""
        values = (f"{d}={v}" if d else str(v) for d, v in zip(self.dims, point, strict=True))
        return f"{self.name}({', '.join(values)})"


# --- what users give ---------------------------------------------------------------------------------------


def is_isl(given: object) -> bool:
    """Is it a set, a relation or a schedule of isl, or could it be the text of one?"""
    return isinstance(given, (str, isl.ScheduleNode, *_OBJECTS))


def read(given: object, context: isl.Context | None = None) -> Found:
    """A set or a relation from isl's notation or an object of islpy; of a schedule, when each instance runs.

    Raises ArgumentError PF910 for anything else.
    """
    found = _object(given, context)
    if isinstance(found, isl.Schedule):
        return found.get_map()
    if isinstance(found, isl.BasicSet | isl.Set):
        return isl.UnionSet(str(found), context=found.get_ctx())
    if isinstance(found, isl.BasicMap | isl.Map):
        return isl.UnionMap(str(found), context=found.get_ctx())
    assert isinstance(found, isl.UnionSet | isl.UnionMap)
    return found


def read_set(given: object, context: isl.Context | None = None) -> UnionSet:
    """A set; of a schedule what it orders, of a relation what it relates. Raises ArgumentError PF910."""
    found = _object(given, context)
    if isinstance(found, isl.Schedule):
        return found.get_domain()
    known = read(found, context)
    return known if isinstance(known, isl.UnionSet) else known.domain().union(known.range())


def read_map(given: object, context: isl.Context | None = None) -> UnionMap:
    """A relation, or when the instances of a schedule run. Raises ArgumentError PF910."""
    found = read(given, context)
    if isinstance(found, isl.UnionMap):
        return found
    hint = "a relation has an arrow: { S[i] -> S[i + 1] : 0 <= i < 4 }"
    raise ArgumentError(f"a relation is needed, and this is a set: {found}", code="PF910", hint=hint)


def _object(given: object, context: isl.Context | None) -> object:
    """An object of islpy in a context, or in its own."""
    if isinstance(given, isl.ScheduleNode):
        given = given.get_schedule()
    if isinstance(given, _OBJECTS):
        return given if context in (None, given.get_ctx()) else _parsed(str(given), context)
    if isinstance(given, str):
        return _parsed(given, context)
    kind = type(given).__name__
    hint = 'such as "{ S[i, j] : 0 <= j <= i < 5 }"; or an operator, a stage, an object of islpy'
    raise ArgumentError(f"{kind} is no set, relation or schedule of isl", code="PF910", hint=hint)


def _parsed(text: str, context: isl.Context | None) -> object:
    with isl_lock:
        known = context or new_context()
        for kind in (isl.UnionSet, isl.UnionMap, isl.Schedule):
            try:
                return kind.read_from_str(known, text)
            except isl.Error:
                continue
    hint = "a set is { S[i, j] : 0 <= j <= i < 5 }, a relation { S[i] -> S[i + 1] : 0 <= i < 4 }"
    raise ArgumentError(f"isl cannot read this text: {text.strip()}", code="PF910", hint=hint)


# --- names and sizes ---------------------------------------------------------------------------------------


def plain_set(graph: TensorGraph, found: UnionSet) -> UnionSet:
    """Instances of a graph under the names that users wrote."""
    result = isl.UnionSet.read_from_str(found.get_ctx(), "{ }")
    named = _statements(graph)
    sets = found.get_set_list()
    for k in range(sets.n_set()):
        name, dims = named[sets.get_at(k).get_tuple_name() or ""]
        s = sets.get_at(k).set_tuple_name(name)
        for position, dim in enumerate(dims):
            s = s.set_dim_name(isl.dim_type.set, position, dim)
        result = result.union(isl.UnionSet.from_set(s))
    return result


def plain_map(graph: TensorGraph, found: UnionMap) -> UnionMap:
    """A relation of instances of a graph under the names that users wrote."""
    result = isl.UnionMap.read_from_str(found.get_ctx(), "{ }")
    named = _statements(graph)
    maps = found.get_map_list()
    for k in range(maps.n_map()):
        m = maps.get_at(k)
        for side in (isl.dim_type.in_, isl.dim_type.out):
            if (known := named.get(m.get_tuple_name(side) or "")) is not None:
                m = m.set_tuple_name(side, known[0])
        result = result.union(isl.UnionMap.from_map(m))
    return result


def _statements(graph: TensorGraph) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {statement_id(s.name): (s.name, tuple(d.name for d in s.dims)) for s in graph.statements}


def tuple_names(found: UnionSet) -> tuple[str, ...]:
    """The statements of a set, in order."""
    sets = found.get_set_list()
    return tuple(sorted(sets.get_at(k).get_tuple_name() or "" for k in range(sets.n_set())))


def named(found: UnionSet, names: Iterable[str]) -> UnionSet:
    """The part of a set that some statements have."""
    result = isl.UnionSet.read_from_str(found.get_ctx(), "{ }")
    sets = found.get_set_list()
    for k in range(sets.n_set()):
        if (sets.get_at(k).get_tuple_name() or "") in names:
            result = result.union(isl.UnionSet.from_set(sets.get_at(k)))
    return result


def ends(found: UnionMap) -> tuple[UnionSet, UnionSet]:
    """What a relation starts at, and what it leads to."""
    return found.domain(), found.range()


def size_names(found: Found) -> tuple[str, ...]:
    """The sizes that a set or relation has as parameters."""
    space = found.get_space()
    count = space.dim(isl.dim_type.param)
    return tuple(space.get_dim_name(isl.dim_type.param, k) or "" for k in range(count))


def require_sizes(names: Iterable[str], sizes: Mapping[str, int]) -> None:
    """Raises ArgumentError PF911 for a size without value, and for the value of none of them."""
    known = tuple(dict.fromkeys(names))
    missing = [n for n in known if n not in sizes]
    if missing:
        what = f"the size {missing[0]} has" if len(missing) == 1 else f"the sizes {', '.join(missing)} have"
        hint = f"give a small one, as in {', '.join(f'{n}=6' for n in missing)}"
        raise ArgumentError(f"{what} no value", code="PF911", hint=hint)
    for name in sizes:
        if name not in known:
            hint = f"the sizes are {', '.join(known)}" if known else "it has no sizes that are open"
            raise ArgumentError(f"there is no size {name}", code="PF911", hint=hint)


def at_sizes(found: SetOrMap, sizes: Mapping[str, int]) -> SetOrMap:
    """A set or relation where sizes have values."""
    for name in size_names(found):
        text = f"[{name}] -> {{ : {name} = {sizes[name]} }}"
        found = found.intersect_params(isl.Set.read_from_str(found.get_ctx(), text))
    return found


# --- points ------------------------------------------------------------------------------------------------


def spaces(
    found: UnionSet,
    sizes: Mapping[str, int],
    most: int,
    again: Callable[[Mapping[str, int]], UnionSet] | None = None,
) -> tuple[Space, ...]:
    """The points of each statement, by name; `again` gives the set at other sizes, of which a refusal of many
    points proposes some.

    Raises ArgumentError: PF912 for a set without end, PF913 for more than `most` points, PF915 for more than
    three dims.
    """
    with isl_lock:
        sets = _sets(at_sizes(found, sizes))
        count = sum(map(_count, sets))
        if count > most:
            hint = _smaller(again or (lambda less: at_sizes(found, less)), sizes, most)
            raise ArgumentError(
                f"a picture has at most {most} points, not {count:,}", code="PF913", hint=hint
            )
        return tuple(sorted(map(_space, sets), key=lambda s: s.name))


def _sets(union: UnionSet) -> list[isl.Set]:
    found = union.get_set_list()
    return [_closed(found.get_at(k)) for k in range(found.n_set())]


def _closed(s: isl.Set) -> isl.Set:
    return s.project_out(isl.dim_type.param, 0, s.dim(isl.dim_type.param))


def _count(s: isl.Set) -> int:
    """How many points; the size of the box around them where that is very large."""
    if s.is_empty():
        return 0
    box = 1
    for k in range(s.dim(isl.dim_type.set)):
        low, high = s.dim_min_val(k), s.dim_max_val(k)
        if not (low.is_int() and high.is_int()):
            hint = "give each dim a least and a largest value"
            raise ArgumentError(f"this set has no end: {s}", code="PF912", hint=hint)
        box *= int(high.to_python()) - int(low.to_python()) + 1
    return box if box > MOST_IN_A_BOX else int(s.count_val().to_python())


def _smaller(at: Callable[[Mapping[str, int]], UnionSet], sizes: Mapping[str, int], most: int) -> str:
    """A hint with sizes at which there are some points, and not too many."""
    for k in SMALLER if sizes else ():
        less = {n: min(v, k) for n, v in sizes.items()}
        try:
            count = sum(map(_count, _sets(at(less))))
        except PolyfuseError:  # sizes that the operator forbids
            continue
        if 0 < count <= most:
            return "take smaller sizes, such as " + ", ".join(f"{n}={v}" for n, v in less.items())
    return "take smaller sizes"


def _space(s: isl.Set) -> Space:
    dims = [s.get_dim_name(isl.dim_type.set, k) or "" for k in range(s.dim(isl.dim_type.set))]
    name = s.get_tuple_name() or ""
    if len(dims) > MOST_DIMS:
        what = f"{name or 'the set'} has {len(dims)} dims, and a picture {MOST_DIMS}"
        raise ArgumentError(what, code="PF915", hint="name statements with fewer dims, or project some out")
    return Space(name, tuple(dims), _points(s))


def _points(s: isl.Set) -> tuple[Point, ...]:
    width = s.dim(isl.dim_type.set)
    found: list[Point] = []

    def take(point: isl.Point) -> None:
        values = (point.get_coordinate_val(isl.dim_type.set, k) for k in range(width))
        found.append(tuple(int(v.to_python()) for v in values))

    s.foreach_point(take)
    return tuple(sorted(found))


# --- pairs -------------------------------------------------------------------------------------------------


def pairs(relation: UnionMap, sizes: Mapping[str, int]) -> tuple[Pair, ...]:
    """All pairs of a relation, in order of names and points.

    Raises ArgumentError: PF912 for one without end, PF913 for very many.
    """
    found: list[Pair] = []
    with isl_lock:
        maps = at_sizes(relation, sizes).get_map_list()
        for k in range(maps.n_map()):
            m = maps.get_at(k)
            flat = _closed(m.wrap())
            if _count(flat) + len(found) > MOST_PAIRS:
                hint = "take smaller sizes, or a part of the relation"
                raise ArgumentError(f"a picture has at most {MOST_PAIRS} pairs", code="PF913", hint=hint)
            first, second = (m.get_tuple_name(side) or "" for side in (isl.dim_type.in_, isl.dim_type.out))
            cut = m.dim(isl.dim_type.in_)
            found += [((first, p[:cut]), (second, p[cut:])) for p in _points(flat)]
    return tuple(sorted(found))


def times(schedule: UnionMap, sizes: Mapping[str, int], wanted: Iterable[Space]) -> dict[Node, Point]:
    """When each point runs: vectors of one length, padded by zeros.

    Raises ArgumentError PF916 for a point that has no time, or several.
    """
    found: dict[Node, Point] = {}
    for node, (_, time) in pairs(schedule, sizes):
        if found.setdefault(node, time) != time:
            raise ArgumentError(f"the schedule runs {_text(node)} more than once", code="PF916")
    chosen = {}
    for node in (n for s in wanted for n in s.nodes):
        if node not in found:
            hint = "a schedule gives each point of the domain its time"
            raise ArgumentError(f"the schedule has no time for {_text(node)}", code="PF916", hint=hint)
        chosen[node] = found[node]
    width = max(map(len, chosen.values()), default=0)
    return {n: t + (0,) * (width - len(t)) for n, t in chosen.items()}


def _text(node: Node) -> str:
    return f"{node[0]}[{', '.join(map(str, node[1]))}]"
