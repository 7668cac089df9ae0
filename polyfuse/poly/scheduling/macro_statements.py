"""Macro-statements: chains that run instance by instance over one domain, scheduled as one statement.

    a[t,h] = x[t,h] + 1
    b[t,h] = exp(a[t,h])       ->  one statement a(t,h), which stands for a, b and s in this order
    s[t] sum= b[t,h]

isl's time grows steeply with the number of statements, and such chains are fused anyway.  A statement
joins the macro-statement of a producer if each of its instances needs exactly one instance of it, and
if nothing outside comes between the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import islpy as isl

from polyfuse.ir.index_expr import IndexExpr, substitute
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Sequence, Tree, sequence
from polyfuse.poly.model.domains import PolyModel
from polyfuse.poly.model.isl_bridge import from_aff
from polyfuse.poly.scheduling.axis_planner import program_order

Pairs = dict[tuple[str, str], isl.Map]


@dataclass(slots=True)
class Macro:
    """`members` run in order for each instance of the leader, the first of them.

    `maps` takes an instance of a member to the leader's instance; `values` says the same as the
    leader's loop variables in terms of the member's.
    """

    leader: str
    members: list[str]
    maps: dict[str, isl.Map]
    values: dict[str, dict[str, IndexExpr]] = field(default_factory=dict)
    needs: set[str] = field(default_factory=set)  # leaders of macro-statements it depends on


def pairs_of(relation: isl.UnionMap) -> Pairs:
    """The maps of a relation between statements, by names, sorted."""
    found: list[isl.Map] = []
    relation.foreach_map(found.append)
    return dict(sorted(((_name(m, isl.dim_type.in_), _name(m, isl.dim_type.out)), m) for m in found))


def _name(m: isl.Map, side: isl.dim_type) -> str:
    return (m.get_tuple_name(side) or "").removeprefix("S_")


def single(model: PolyModel, name: str) -> Macro:
    return Macro(name, [name], {name: model.domains[name].identity()})


def contract(model: PolyModel, names: tuple[str, ...], order: isl.UnionMap) -> list[Macro]:
    """Macro-statements of the given statements, in order of their leaders."""
    pairs = pairs_of(order)
    sequence_ = program_order(model.graph, names)
    position = {n: k for k, n in enumerate(sequence_)}
    forward = {p: m for p, m in pairs.items() if position[p[0]] < position[p[1]]}
    of: dict[str, Macro] = {}
    for name in sequence_:
        sources = sorted((a for a, b in forward if b == name), key=position.__getitem__, reverse=True)
        chosen = next((of[a] for a in sources if _joins(model, name, a, of, pairs, sources)), None)
        if chosen is None:
            chosen = single(model, name)
        of[name] = chosen
        chosen.needs.update({of[a].leader for a in sources} - {chosen.leader})
    return list({m.leader: m for m in of.values()}.values())


def _joins(
    model: PolyModel, name: str, producer: str, of: dict[str, Macro], pairs: Pairs, sources: list[str]
) -> bool:
    """Add `name` to the macro-statement of a producer, if it may join."""
    macro, through = of[producer], pairs[producer, name]
    if any(_reaches(of, of[a].leader, macro.leader) for a in sources if of[a] is not macro):
        return False
    whole = through.domain().is_equal(model.domains[producer]) and through.range().is_equal(
        model.domains[name]
    )
    if not whole or not through.is_bijective():
        return False
    to_leader = through.reverse().apply_range(macro.maps[producer])
    identity = model.domains[macro.leader].identity()
    for member in macro.members:
        there, back = pairs.get((member, name)), pairs.get((name, member))
        mine = macro.maps[member]
        if there is not None and not there.apply_domain(mine).apply_range(to_leader).is_subset(identity):
            return False
        if back is not None:
            carried = back.apply_domain(to_leader).apply_range(mine)
            if not carried.intersect(identity).is_empty():
                return False
    values = _values(model, name, macro.leader, to_leader)
    if values is None:
        return False
    macro.members.append(name)
    macro.maps[name], macro.values[name] = to_leader, values
    return True


def _reaches(of: dict[str, Macro], start: str, goal: str) -> bool:
    """Does the macro-statement led by `start` need, at any distance, the one led by `goal`?"""
    seen, stack = {start}, [start]
    while stack:
        node = stack.pop()
        if node == goal:
            return True
        new = of[node].needs - seen
        seen |= new
        stack.extend(new)
    return False


def _values(model: PolyModel, name: str, leader: str, to_leader: isl.Map) -> dict[str, IndexExpr] | None:
    function = to_leader.as_pw_multi_aff()
    pieces: list[isl.MultiAff] = []
    function.foreach_piece(lambda _, piece: pieces.append(piece))
    if len(pieces) != 1:
        return None
    dims = tuple(d.name for d in model.graph.statement(name).dims)
    mine = model.graph.statement(leader).dims
    return {d.name: from_aff(pieces[0].get_at(k), dims) for k, d in enumerate(mine)}


def project(model: PolyModel, relation: isl.UnionMap, macros: list[Macro]) -> isl.UnionMap:
    """A relation between statements as one between leaders, without what a macro-statement orders itself."""
    of = {n: m for m in macros for n in m.members}
    maps = []
    for (a, b), m in pairs_of(relation).items():
        moved = m.apply_domain(of[a].maps[a]).apply_range(of[b].maps[b])
        if a != b and of[a] is of[b]:
            moved = moved.subtract(model.domains[of[a].leader].identity())
        maps.append(moved)
    return model.union_map(maps)


def expand(tree: Tree, macros: dict[str, Macro]) -> Tree:
    """Replace each leader by its members, one after the other."""
    match tree:
        case Leaf(name):
            return sequence([Leaf(n) for n in macros[name].members])
        case Sequence(children):
            return sequence([expand(c, macros) for c in children])
        case Band(members, child):
            return replace(
                tree, members=tuple(_expand(m, macros) for m in members), child=expand(child, macros)
            )


def _expand(member: Member, macros: dict[str, Macro]) -> Member:
    rows = []
    for leader, e in member.exprs:
        macro = macros[leader]
        rows += [(n, substitute(e, macro.values[n]) if n != leader else e) for n in macro.members]
    return replace(member, exprs=tuple(sorted(rows, key=lambda row: row[0])))
