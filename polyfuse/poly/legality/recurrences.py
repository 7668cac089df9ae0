"""PF355: no element needs itself, directly or through other statements.

Statements that read each other's tensors in a cycle form a recurrence.  It is well founded if its
instances can be ordered, and a schedule found by isl's scheduler for their flow dependences is a
certificate of that.  If there is none, the dependences between the instances at small sizes (or at
the sizes given) are searched for a cycle, which is the example of the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import islpy as isl

from polyfuse.diagnostics import Diagnostics
from polyfuse.ir.tensor_graph import Statement
from polyfuse.poly.legality.obligations import Example, Obligation, Proofs
from polyfuse.poly.model.dependences import Element, outer_dims, reads_of, write_of
from polyfuse.poly.model.isl_bridge import NotAffine
from polyfuse.poly.model.isl_text import DivisionByZero
from polyfuse.poly.scheduling.axis_planner import strongly_connected

_SMALL_SIZES = (4, 3, 5, 2, 6, 1)
_MOST_POINTS = 60_000

Instance = tuple[int, tuple[int, ...]]  # statement number, values of its outer dims


@dataclass(frozen=True)
class _Flow:
    """Instances of statement `source` -> instances of `sink` that read what they define."""

    source: int
    sink: int
    read: Element
    relation: isl.Map


def prove_order(proofs: Proofs) -> None:
    """Check every recurrence of the graph."""
    statements = proofs.graph.statements
    by_target: dict[str, list[int]] = {}
    for k, s in enumerate(statements):
        by_target.setdefault(s.target, []).append(k)
    needs = {
        k: sorted({w for a in reads_of(s) for w in by_target.get(a.tensor, ())})
        for k, s in enumerate(statements)
    }
    for group in cycles(needs):
        if not any(statements[k].target in proofs.refuted for k in group):
            _prove_group(proofs, group)


def cycles(needs: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """Strongly connected components that are cycles, each sorted, in order of their first members."""
    inside = {k: [n for n in dict.fromkeys(near) if n in needs] for k, near in needs.items()}
    parts = strongly_connected(tuple(inside), inside)
    return sorted(sorted(p) for p in parts if len(p) > 1 or p[0] in inside[p[0]])


def _prove_group(proofs: Proofs, group: Sequence[int]) -> None:
    statements = proofs.graph.statements
    first = statements[group[0]]
    members = ", ".join(statements[k].name for k in group)
    o = Obligation("PF355", first.name, f"the instances of {members} can be ordered", first.span)
    if not proofs.wanted(o):
        return
    if not proofs.symbolic and _holds_for_all_sizes(proofs, group):
        return
    found: list[tuple[list[Instance], list[_Flow], Example]] = []

    def proof() -> bool:
        flows = _flows(proofs, group)
        needs: dict[int, list[int]] = {k: [f.source for f in flows if f.sink == k] for k in group}
        for part in cycles(needs):
            inner = [f for f in flows if f.source in part and f.sink in part]
            if _has_schedule(proofs, inner):
                continue
            example = _counterexample(proofs, inner)
            if example is not None and not (proofs.symbolic and proofs.text.vague):
                found.append(example)
                return False
            if proofs.symbolic:
                proofs.open.add(o)
        return True

    proofs.attempt(o, proof)
    if found:
        _report(proofs, *found[0])


def _holds_for_all_sizes(proofs: Proofs, group: Sequence[int]) -> bool:
    """Whether the order is proved with symbolic sizes: easier for isl than large constants."""
    if not proofs.graph.sizes:
        return False
    general = Proofs(proofs.graph, {}, Diagnostics(), None)
    _prove_group(general, group)
    return not general.open and not general.diagnostics.found


# --- dependences ------------------------------------------------------------------------------------------


def _flows(proofs: Proofs, group: Sequence[int]) -> list[_Flow]:
    statements = proofs.graph.statements
    group = [k for k in group if not proofs.never_runs(statements[k].dims)]
    writes = {k: _relation(proofs, k, write_of(statements[k])) for k in group}
    flows: list[_Flow] = []
    for sink in group:
        for a in reads_of(statements[sink]):
            sources = [k for k in group if statements[k].target == a.tensor]
            read = _relation(proofs, sink, a) if sources else None
            for source in sources:
                assert read is not None
                relation = writes[source].apply_range(read.reverse())
                if not relation.is_empty():
                    flows.append(_Flow(source, sink, a, relation))
    return flows


def _relation(proofs: Proofs, k: int, a: Element) -> isl.Map:
    """Instances of statement k (their outer dims) -> elements accessed."""
    s = proofs.graph.statements[k]
    outer = outer_dims(s)
    scope = proofs.scope((*outer, *(d for d in a.dims if d not in outer)))
    outs = [f"o{n}" for n in range(len(a.indices))]
    inside = " and ".join([*proofs.inside(a, scope), *proofs.element(a, outs, scope)]) or "true"
    hidden = [name for d, name in scope.items() if all(d != x.name for x in outer)]
    exists = f"exists {', '.join(hidden)} : " if hidden else ""
    source = f"S{k}[{', '.join(scope[d.name] for d in outer)}]"
    tensor = [t.name for t in proofs.graph.tensors].index(a.tensor)
    return proofs.text.map(source, f"A{tensor}[{', '.join(outs)}]", [f"({exists}{inside})"])


def _has_schedule(proofs: Proofs, flows: Sequence[_Flow]) -> bool:
    """Whether isl finds an order that respects the flows."""
    total = isl.UnionMap.from_map(flows[0].relation)
    for f in flows[1:]:
        total = total.union(isl.UnionMap.from_map(f.relation))
    domain = total.domain().union(total.range())
    proofs.context.reset_operations()
    try:
        schedule = isl.ScheduleConstraints.on_domain(domain).set_validity(total).compute_schedule().get_map()
        # isl lets an instance depend on itself; an order is strict.
        times = isl.Map.from_union_map(total.apply_domain(schedule).apply_range(schedule))
        return bool(times.intersect(isl.Map.lex_ge(times.get_space().domain())).is_empty())
    except isl.Error:
        proofs.context.reset_operations()
        return False


# --- counterexamples --------------------------------------------------------------------------------------


def _counterexample(
    proofs: Proofs, flows: Sequence[_Flow]
) -> tuple[list[Instance], list[_Flow], Example] | None:
    """A cycle of instances at small sizes or, if sizes are known, at those."""
    names = proofs.text.size_names()
    choices = [dict.fromkeys(names, n) for n in _SMALL_SIZES] if names else [{}]
    for choice in choices:
        edges: dict[Instance, list[tuple[Instance, _Flow]]] = {}
        points = 0
        for f in flows:
            relation = f.relation
            for p, value in choice.items():
                at = relation.find_dim_by_name(isl.dim_type.param, p)
                if at >= 0:
                    relation = relation.fix_val(
                        isl.dim_type.param, at, isl.Val.int_from_si(proofs.context, value)
                    )
            points += _collect(f, relation, edges)
        found = _cycle(edges)
        if found:
            return (*found, Example({}, {names[p]: v for p, v in choice.items()}))
        if not names and points >= _MOST_POINTS:
            raise isl.Error("too many instances")
    return None


def _collect(f: _Flow, relation: isl.Map, edges: dict[Instance, list[tuple[Instance, _Flow]]]) -> int:
    """Add the instance pairs of a relation without parameters, up to a limit: sink -> source."""
    cut = relation.dim(isl.dim_type.in_)
    rank = cut + relation.dim(isl.dim_type.out)
    points = relation.project_out_all_params().wrap()
    size = points.count_val().to_python() if points.is_bounded() else _MOST_POINTS
    if size is None or size >= _MOST_POINTS:
        return _MOST_POINTS

    def add(p: isl.Point) -> None:
        values = tuple(int(p.get_coordinate_val(isl.dim_type.set, k).to_python()) for k in range(rank))
        edges.setdefault((f.sink, values[cut:]), []).append(((f.source, values[:cut]), f))

    points.foreach_point(add)
    return int(size)


def _cycle(
    edges: Mapping[Instance, Sequence[tuple[Instance, _Flow]]],
) -> tuple[list[Instance], list[_Flow]] | None:
    """Some cycle: its instances, each needing the next, and the flows between them."""
    done: set[Instance] = set()
    for root in sorted(edges):
        if root in done:
            continue
        path, place = [root], {root: 0}
        via: list[_Flow] = []
        work = [iter(edges[root])]
        while work:
            step = next(work[-1], None)
            if step is None:
                work.pop()
                done.add(path[-1])
                del place[path.pop()]
                if via:
                    via.pop()
            elif step[0] in place:
                at = place[step[0]]
                return path[at:], [*via[at:], step[1]]
            elif step[0] not in done:
                place[step[0]] = len(path)
                path.append(step[0])
                via.append(step[1])
                work.append(iter(edges.get(step[0], ())))
    return None


def _report(proofs: Proofs, path: list[Instance], via: list[_Flow], example: Example) -> None:
    start = min(range(len(path)), key=lambda k: path[k])
    path, via = path[start:] + path[:start], via[start:] + via[:start]
    elements = [_element_text(proofs, proofs.graph.statements[k], point) for k, point in path]
    chain = " needs ".join([*elements[:4], *(["..."] if len(elements) > 4 else []), elements[0]])
    dims = outer_dims(proofs.graph.statements[path[0][0]])
    place = proofs.place(
        dims, Example(dict(zip((d.name for d in dims), path[0][1], strict=True)), example.sizes)
    )
    message = f"reads {via[0].read}, which is not defined before it: {place}, {chain}"
    proofs.diagnostics.error(
        "PF355", message, via[0].read.span, "a recurrence may read only elements that are defined earlier"
    )


def _element_text(proofs: Proofs, s: Statement, point: tuple[int, ...]) -> str:
    """``c[1, 0]``, the element an instance defines (or adds to)."""
    values = dict(zip((d.name for d in outer_dims(s)), point, strict=True))
    try:
        shown = [str(proofs.value(i, Example(values, {}))) for i in s.write]  # type: ignore[arg-type]
    except (KeyError, AttributeError, TypeError, NotAffine, DivisionByZero):
        return f"{s.target}[{', '.join(f'{n} = {v}' for n, v in values.items())}]"
    return f"{s.target}[{', '.join(shown)}]"
