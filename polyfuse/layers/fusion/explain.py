"""Why two statements share loops, and what keeps them apart where they do not."""

from __future__ import annotations

from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.schedule_tree import Member, ScheduledGraph, path, statements
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.legality.schedules import Witness, sample_pair
from polyfuse.poly.model.dependences import flow
from polyfuse.poly.model.domains import PolyModel, build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.scheduling.axes import Axes, Dim, Edge, find_axes
from polyfuse.poly.scheduling.tree_convert import member_map

# Decisions after which a statement is no more.
_REMOVING = ("rematerialise", "merge", "remove")


def explain_pair(scheduled: ScheduledGraph, first: str, second: str) -> str:
    """Which loops two statements share, and why they share no more; a witness where one exists."""
    graph, tree = scheduled.graph, scheduled.tree
    names = statements(tree)
    for name in (first, second):
        if name not in names:
            gone = [d for d in scheduled.decisions if d.subject == name and d.kind in _REMOVING and d.taken]
            if gone:
                return f"{name} has no loops of its own: {gone[0]}"
            raise ArgumentError(
                f"there is no statement '{name}'", code="PF416", hint=f"there are {', '.join(names)}"
            )
    if names.index(first) > names.index(second):
        first, second = second, first
    shared, own_first, own_second = _loops(scheduled, first, second)
    lines = [f"{first} and {second} share {_list(shared)}"]
    axes = find_axes(graph)
    for a in own_first:
        for b in own_second:
            if _axis(axes, a, first) == _axis(axes, b, second) and _axis(axes, a, first) is not None:
                lines.append(_why_apart(graph, axes, first, second, a, b))
    if not own_first or not own_second:
        lines.append("one of them has no further loops")
    elif len(lines) == 1:
        lines.append("their other loops run over different axes")
    return "\n".join(lines)


def _loops(scheduled: ScheduledGraph, first: str, second: str) -> tuple[list[Member], ...]:
    """(shared loops, further loops of the first, further loops of the second)."""
    paths = [list(path(scheduled.tree, n)) for n in (first, second)]
    same = 0
    for a, b in zip(*paths, strict=False):
        if a != b:
            break
        same += 1
    shared = [m for m in paths[0][:same] if isinstance(m, Member)]
    rest = [[m for m in p[same:] if isinstance(m, Member)] for p in paths]
    return shared, rest[0], rest[1]


def _list(members: list[Member]) -> str:
    names = [f"{m.name}{'' if m.coincident else ' (ordered)'}" for m in members]
    return f"the loop{'s' if len(names) > 1 else ''} over {', '.join(names)}" if names else "no loop"


def _axis(axes: Axes, m: Member, statement: str) -> Dim | None:
    e = m.of(statement)
    return axes.axis(statement, str(e)) if axes.dim_of(statement, axes.axis(statement, str(e))) else None


def _why_apart(graph: TensorGraph, axes: Axes, first: str, second: str, a: Member, b: Member) -> str:
    """The chain of dependences that forbids one loop over an axis, with a concrete pair."""
    axis = _axis(axes, a, first)
    assert axis is not None
    chain = _chain(axes, first, second)
    if chain is None:
        return f"nothing forbids one loop over {a.name} for both: no tensor leads from {first} to {second}"
    via = " -> ".join([first, *(e.sink for e in chain)])
    with isl_lock:
        witness = _crossing(build_model(graph), chain, a, b)
    if witness is None:
        return f"one loop over {a.name} would be legal for these two ({via}), but not for all around them"
    return (
        f"one loop over {a.name} is illegal: {via} crosses its iterations; "
        f"{witness.sink} needs {witness.source}"
    )


def _chain(axes: Axes, first: str, second: str) -> list[Edge] | None:
    """A shortest way from one statement to the other along flow edges."""
    best: dict[str, list[Edge]] = {first: []}
    queue = [first]
    while queue:
        at = queue.pop(0)
        if at == second and best[at]:
            return best[at]
        for e in axes.edges:
            if e.source == at and e.sink not in best and not e.anti:
                best[e.sink] = [*best[at], e]
                queue.append(e.sink)
    return None


def _crossing(model: PolyModel, chain: list[Edge], a: Member, b: Member) -> Witness | None:
    """A pair of instances on the chain in different iterations of the two loops, if there is one."""
    pairs = model.domain([chain[0].source]).identity()
    dependences = flow(model)
    for e in chain:
        step = dependences.intersect_domain(model.domain([e.source])).intersect_range(model.domain([e.sink]))
        pairs = pairs.apply_range(step)
    first, last = chain[0].source, chain[-1].sink
    source = member_map(model, a.restricted(frozenset([first])))
    sink = member_map(model, b.restricted(frozenset([last])))
    later = pairs.intersect(source.lex_gt_union_map(sink)).intersect_params(model.assumptions)
    return None if later.is_empty() else sample_pair(model, later)
