"""Is a schedule legal?  Asked of isl's dataflow analysis on every compile, on the final tree.

The path is independent of the schedulers: they look at axes or at `dependences`; the checker puts
the accesses and the final tree into `UnionAccessInfo` and asks which writes come *before* each read.
Every pair of a write and a read of the same element must be among them, or the read would see an
element too early.  Reductions are may-sources, so that a read must follow *all* updates.

`parallel` asks the other question: may the instances that differ in one loop run at the same time?
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias, Union

import islpy as isl

from polyfuse.diagnostics import Diagnostic
from polyfuse.ir.index_expr import IndexExpr
from polyfuse.ir.schedule_tree import (
    Band,
    Coordinate,
    Leaf,
    Member,
    Sequence,
    Tree,
    map_members,
    members_of,
    path,
    statements,
)
from polyfuse.poly.model.dependences import ordering, reduction_self
from polyfuse.poly.model.domains import Access, PolyModel
from polyfuse.poly.model.isl_bridge import index_text, params_prefix, size_id
from polyfuse.poly.scheduling.tree_convert import (
    member_map,
    schedule_map,
    to_isl,
    with_one_value,
    with_smaller_value,
    with_two_values,
)
from polyfuse.source import Span


@dataclass(frozen=True, slots=True)
class Instance:
    """One statement instance: dims by name."""

    statement: str
    values: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{self.statement}({', '.join(f'{n}={v}' for n, v in self.values)})"


@dataclass(frozen=True, slots=True)
class Witness:
    """A pair of instances in the wrong order, and the sizes it was found at (empty when constants)."""

    source: Instance
    sink: Instance
    sizes: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        sizes = f" for {', '.join(f'{n}={v}' for n, v in self.sizes)}" if self.sizes else ""
        return f"{self.source} -> {self.sink}{sizes}"


@dataclass(frozen=True, slots=True)
class Legal:
    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Illegal:
    """Why not, with a concrete pair of instances and both places in the source."""

    code: str
    message: str
    witness: Witness | None
    diagnostic: Diagnostic

    def __bool__(self) -> bool:
        return False


Verdict: TypeAlias = Union[Legal, Illegal]  # noqa: UP007


def check_schedule(model: PolyModel, tree: Tree) -> Verdict:
    """Legal if every read follows all writes of its element, and every instance has its own time."""
    unordered = check_complete(model, tree)
    if not unordered:
        return unordered
    schedule = to_isl(model, tree)
    inside = frozenset(statements(tree))
    made = {model.writes[s].tensor for s in inside}
    mine = [a for a in model.reads if a.statement in inside and a.tensor in made]
    used = {a.tensor for a in mine}  # nothing else can be read too early
    reads = model.union_map(a.relation for a in mine)
    writes = model.union_map(
        a.relation for s in sorted(inside) for a in (model.writes[s],) if a.tensor in used
    )
    needed = writes.apply_range(reads.reverse())
    missing = needed.subtract(_earlier(schedule, reads, writes)).intersect_params(model.assumptions)
    if not missing.is_empty():
        return _illegal(model, missing, "PF501", "reads an element before it is written")
    return _check_accumulation(model, schedule, inside)


def check_turns(model: PolyModel, tree: Tree, tensor: str, extents: tuple[IndexExpr, ...]) -> Verdict:
    """Legal if every read of a tensor finds its own element, ``x`` at ``x mod extent``, and workers that run
    at the same time write no memory that another one touches."""
    inside = frozenset(statements(tree))
    reads = [a.relation for a in model.reads if a.statement in inside and a.tensor == tensor]
    writes = [a.relation for s, a in model.writes.items() if s in inside and a.tensor == tensor]
    if not reads or not writes:
        return Legal()
    own = model.union_map(writes).apply_range(model.union_map(reads).reverse())
    place = _places(model, writes[0], model.graph.tensor(tensor).shape, extents)
    info = isl.UnionAccessInfo.from_sink(model.union_map(reads).apply_range(place))
    info = info.set_must_source(model.union_map(writes).apply_range(place)).set_schedule(to_isl(model, tree))
    last = info.compute_flow().get_must_dependence()
    wrong = last.subtract(own).intersect_params(model.assumptions)
    if not wrong.is_empty():
        return _illegal(model, wrong, "PF501", "reads memory that another element has taken")
    written, every = (model.union_map(x).apply_range(place) for x in (writes, [*writes, *reads]))
    meeting = written.apply_range(every.reverse())
    meeting = meeting.union(meeting.reverse())
    verdicts = (parallel(model, tree, m, meeting) for m in members_of(tree, Coordinate.BLK))
    return next((v for v in verdicts if not v), Legal())


def _places(
    model: PolyModel, write: isl.Map, shape: tuple[IndexExpr, ...], extents: tuple[IndexExpr, ...]
) -> isl.UnionMap:
    """Element -> where it lives."""
    name = write.get_tuple_name(isl.dim_type.out)
    dims = [f"x{k}" for k in range(len(shape))]
    at = [
        d if e == full else f"{d} mod {index_text(e)}"
        for d, e, full in zip(dims, extents, shape, strict=True)
    ]
    text = f"{params_prefix(model.params)}{{ {name}[{', '.join(dims)}] -> {name}[{', '.join(at)}] }}"
    return isl.UnionMap.read_from_str(model.context, text)


def _earlier(schedule: isl.Schedule, sink: isl.UnionMap, source: isl.UnionMap) -> isl.UnionMap:
    """All pairs (source, sink) of one element with the source strictly earlier in the schedule."""
    if sink.is_empty() or source.is_empty():
        return source.apply_range(sink.reverse())  # nothing; isl would look at the whole schedule
    info = isl.UnionAccessInfo.from_sink(sink).set_may_source(source).set_schedule(schedule)
    return info.compute_flow().get_may_dependence()


def _check_accumulation(model: PolyModel, schedule: isl.Schedule, inside: frozenset[str]) -> Verdict:
    """Definitions must come before the scatters that add to them. One question for all scatters: isl looks at
    the whole schedule for each that it is asked."""
    scatters = [s for s in model.graph.statements if s.accumulate and s.name in inside]
    targets = dict.fromkeys(s.target for s in scatters)
    writers = [w.name for t in targets for w in model.graph.writers(t) if not w.accumulate]
    first = [n for n in writers if n in inside]
    if not first:
        return Legal()
    source = model.union_map(model.writes[n].relation for n in first)
    sink = model.union_map(model.writes[s.name].relation for s in scatters)
    missing = source.apply_range(sink.reverse()).subtract(_earlier(schedule, sink, source))
    missing = missing.intersect_params(model.assumptions)
    if missing.is_empty():
        return Legal()
    each = (missing.intersect_range(model.domain([s.name])) for s in scatters)
    bad = next(m for m in each if not m.is_empty())
    return _illegal(model, bad, "PF501", "adds to an element before it has its first value")


def check_complete(model: PolyModel, tree: Tree) -> Verdict:
    """Legal if every statement's loops tell its instances apart (each instance has its own time)."""
    for name in statements(tree):
        members = [m for m in path(tree, name) if isinstance(m, Member)]
        domain = isl.UnionSet.from_set(model.domains[name])
        same = isl.UnionMap.from_domain_and_range(domain, domain)
        for m in members:
            values = member_map(model, m.restricted(frozenset([name])))
            same = same.intersect(values.apply_range(values.reverse()))
        clash = same.subtract(domain.identity()).intersect_params(model.assumptions)
        if not clash.is_empty():
            return _illegal(model, clash, "PF502", "has instances that the schedule does not order")
    return Legal()


def earlier_than(model: PolyModel, tree: Tree, pairs: isl.UnionMap) -> Verdict:
    """Legal if the first instance of every pair comes strictly before the second in the tree's order."""
    times = schedule_map(model, tree)
    if _all_later(times, pairs.intersect_params(model.assumptions)):
        return Legal()
    wrong = pairs.intersect(times.lex_ge_union_map(times)).intersect_params(model.assumptions)
    return _illegal(model, wrong, "PF501", "comes too early")


def _all_later(times: isl.UnionMap, pairs: isl.UnionMap) -> bool:
    """Is the second instance of each pair later than the first? Asked of the times of these pairs only."""
    both = pairs.apply_domain(times).apply_range(times)
    maps = both.get_map_list()
    every = (maps.get_at(k) for k in range(maps.n_map()))
    return all(m.intersect(isl.Map.lex_ge(m.get_space().domain())).is_empty() for m in every)


def parallel(model: PolyModel, tree: Tree, member: Member, dependences: isl.UnionMap) -> Verdict:
    """May instances that agree on the loops outside `member` but differ in it run at the same time?

    `dependences` are those to keep inside one iteration: `ordering` for coincidence, and
    `reduction_self` with it where the updates of one element may not race.
    """
    inside = frozenset(s for s, _ in member.exprs)
    domain = model.domain(sorted(inside))
    pairs = dependences.intersect_domain(domain).intersect_range(domain)
    for outer in _outside(tree, member):
        pairs = with_one_value(model, pairs, outer, outer)
    crossing = with_two_values(model, pairs, member, member).intersect_params(model.assumptions)
    if crossing.is_empty():
        return Legal()
    return _illegal(model, crossing, "PF503", f"depends on another iteration of loop {member.name}")


def mark_coincident(model: PolyModel, tree: Tree, order: isl.UnionMap | None = None) -> Tree:
    """The tree with every `coincident` flag as `parallel` proves it, for the order that values ask for or
    another one."""
    order = ordering(model) if order is None else order
    return map_members(tree, lambda m: replace(m, coincident=bool(parallel(model, tree, m, order))))


def mark_bands(model: PolyModel, tree: Tree, more: isl.UnionMap | None = None) -> Tree:
    """The tree with what dependences say of each band: which of its loops are coincident, and whether they
    are permutable (no dependence inside the loops around goes back along any of them). Bands right inside
    of each other whose loops are permutable together are one. `more` are dependences that storage brings."""
    order = ordering(model) if more is None else ordering(model).union(more)
    return _permutable(model, mark_coincident(model, tree, order), order)


def _permutable(model: PolyModel, tree: Tree, around: isl.UnionMap) -> Tree:
    """`around`: the dependences inside one iteration of the loops outside."""
    match tree:
        case Leaf():
            return tree
        case Sequence(children):
            return Sequence(tuple(_permutable(model, c, around) for c in children))
        case Band(members, child):
            domain = model.domain(sorted(statements(tree)))
            inside = around.intersect_domain(domain).intersect_range(domain)
            together = forward(model, members, inside)
            while together and isinstance(child, Band) and forward(model, child.members, inside):
                members, child = members + child.members, child.child
            for m in members:
                inside = with_one_value(model, inside, m, m)
            return Band(members, _permutable(model, child, inside), together)


def forward(model: PolyModel, members: tuple[Member, ...], pairs: isl.UnionMap) -> bool:
    """Has no pair of instances a smaller value of one of the loops at the second than at the first?"""
    back = (with_smaller_value(model, pairs, m).intersect_params(model.assumptions) for m in members)
    return all(b.is_empty() for b in back)


def races(model: PolyModel, tree: Tree, member: Member, atomic: frozenset[str] = frozenset()) -> Verdict:
    """`parallel` for the updates of reductions: is each element updated by one iteration only?

    Statements in `atomic` may meet.
    """
    updates = reduction_self(model)
    if atomic:
        updates = updates.subtract_domain(model.domain(sorted(atomic)))
    return parallel(model, tree, member, updates)


def _outside(tree: Tree, member: Member) -> list[Member]:
    """The members around `member` on the path to its statements."""
    along = [m for m in path(tree, member.exprs[0][0]) if isinstance(m, Member)]
    # By identity: a tree may hold the same loop twice, one in the other.
    place = next((k for k, m in enumerate(along) if m is member), None)
    return along[: along.index(member) if place is None else place]


# --- witnesses -------------------------------------------------------------------------------------


def _illegal(model: PolyModel, bad: isl.UnionMap, code: str, what: str) -> Illegal:
    witness = sample_pair(model, bad)
    source = model.graph.statement(witness.source.statement)
    sink = model.graph.statement(witness.sink.statement)
    message = f"{witness.sink} {what}: it needs {witness.source}"
    if witness.sizes:
        message += f" (at {', '.join(f'{n}={v}' for n, v in witness.sizes)})"
    where = _read_span(model, witness) or sink.span
    diagnostic = Diagnostic(
        code, message, where, hint=None, related=((source.span, f"{witness.source} is defined here"),)
    )
    return Illegal(code, message, witness, diagnostic)


def sample_pair(model: PolyModel, pairs: isl.UnionMap) -> Witness:
    """One concrete pair of a non-empty relation, the first in order of statement names."""
    maps: list[isl.Map] = []
    pairs.foreach_map(maps.append)
    maps.sort(key=lambda m: (_tuple(m, isl.dim_type.in_), _tuple(m, isl.dim_type.out)))
    chosen = next(m for m in maps if not m.is_empty())
    point = chosen.lexmin().sample() if not model.params else chosen.sample()
    sizes = tuple(
        (n, _value(point, isl.dim_type.param, point.find_dim_by_name(isl.dim_type.param, f"N_{n}")))
        for n in model.params
        if point.find_dim_by_name(isl.dim_type.param, f"N_{n}") >= 0
    )
    return Witness(
        _instance(model, point, isl.dim_type.in_), _instance(model, point, isl.dim_type.out), sizes
    )


def _tuple(m: isl.Map, side: isl.dim_type) -> str:
    return (m.get_tuple_name(side) or "").removeprefix("S_")


def _instance(model: PolyModel, point: isl.BasicMap, side: isl.dim_type) -> Instance:
    name = (point.get_tuple_name(side) or "").removeprefix("S_")
    dims = model.graph.statement(name).dims
    return Instance(name, tuple((d.name, _value(point, side, k)) for k, d in enumerate(dims)))


def _value(point: isl.BasicMap, side: isl.dim_type, position: int) -> int:
    value = point.plain_get_val_if_fixed(side, position)
    return 0 if value.is_nan() else int(value.to_python())


def _read_span(model: PolyModel, witness: Witness) -> Span | None:
    """The read that causes the dependence."""
    target = model.graph.statement(witness.source.statement).target
    accesses: list[Access] = [
        a for a in model.reads if a.statement == witness.sink.statement and a.tensor == target
    ]
    written = _at(model, model.writes[witness.source.statement].relation, witness, witness.source)
    for a in accesses:
        if not written.intersect(_at(model, a.relation, witness, witness.sink)).is_empty():
            return a.span
    return accesses[0].span if accesses else None


def _at(model: PolyModel, relation: isl.Map, witness: Witness, instance: Instance) -> isl.Set:
    """The elements that one instance accesses, at the witness's sizes."""
    for k, (_, value) in enumerate(instance.values):
        relation = relation.fix_val(isl.dim_type.in_, k, value)
    for name, value in witness.sizes:
        position = relation.find_dim_by_name(isl.dim_type.param, size_id(name))
        if position >= 0:
            relation = relation.fix_val(isl.dim_type.param, position, value)
    return relation.range()
