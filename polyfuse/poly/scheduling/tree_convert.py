"""Our schedule trees to isl and back.

isl drops names of loops and sorts nothing; `to_isl` is exact, `from_isl` names loops after the axis
they follow in the largest statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import islpy as isl

from polyfuse.diagnostics import InternalError
from polyfuse.ir.index_expr import IndexExpr, IVar, variables
from polyfuse.ir.schedule_tree import (
    Band,
    Coordinate,
    Leaf,
    Member,
    Sequence,
    Tree,
    band,
    sequence,
    statements,
)
from polyfuse.poly.model.domains import PolyModel
from polyfuse.poly.model.isl_bridge import dim_id, from_aff, index_text, params_prefix, statement_id


def member_text(model: PolyModel, exprs: Iterable[tuple[str, IndexExpr]]) -> str:
    """isl text of one member as a union of affine functions, `{ S_a[i_t] -> [(i_t)]; ... }`."""
    pieces = []
    for name, e in exprs:
        dims = ", ".join(dim_id(d.name) for d in model.graph.statement(name).dims)
        pieces.append(f"{statement_id(name)}[{dims}] -> [({index_text(e)})]")
    return "{ " + "; ".join(pieces) + " }"


def value_map(model: PolyModel, name: str, e: IndexExpr) -> isl.Map:
    """From the instances of a statement to the value of an expression; made once."""
    if (name, e) not in model.values:
        text = params_prefix(model.params) + member_text(model, [(name, e)])
        values = isl.Map.read_from_str(model.context, text)
        model.values[name, e] = values.intersect_domain(model.domains[name])
    return model.values[name, e]


def member_map(model: PolyModel, member: Member) -> isl.UnionMap:
    """A member as a relation from statement instances to loop values."""
    return model.union_map(value_map(model, n, e) for n, e in member.exprs)


def with_one_value(model: PolyModel, pairs: isl.UnionMap, a: Member, b: Member) -> isl.UnionMap:
    """The pairs of instances of which loop `a` has at the first the value that loop `b` has at the second.

    Each pair of statements is looked at by itself, and only where there are instances: of n statements of a
    loop few depend on each other.
    """
    return model.union_map(m.intersect(same) for m, same in _with_values(model, pairs, a, b))


def with_two_values(model: PolyModel, pairs: isl.UnionMap, a: Member, b: Member) -> isl.UnionMap:
    """The pairs of which the two loops have different values."""
    return model.union_map(m.subtract(same) for m, same in _with_values(model, pairs, a, b))


def with_smaller_value(model: PolyModel, pairs: isl.UnionMap, m: Member) -> isl.UnionMap:
    """The pairs of which a loop has a smaller value at the second instance than at the first."""
    maps = pairs.get_map_list()
    found = []
    for k in range(maps.n_map()):
        each = maps.get_at(k)
        before, after = (value_map(model, n, m.of(n)) for n in _ends(each))
        found.append(each.intersect(before.lex_gt_map(after)))
    return model.union_map(found)


def _ends(m: isl.Map) -> tuple[str, str]:
    """The two statements whose instances a map pairs."""
    first, second = (m.get_tuple_name(end) or "" for end in (isl.dim_type.in_, isl.dim_type.out))
    return first.removeprefix("S_"), second.removeprefix("S_")


def lag(model: PolyModel, pairs: isl.UnionMap, m: Member) -> int | None:
    """By how much the value of a loop at a first instance exceeds that at the second, at most; None where
    that is not known. Without pairs 0."""
    values = member_map(model, m)
    found = pairs.intersect_params(model.assumptions).apply_domain(values).apply_range(values)
    if found.is_empty():
        return 0
    least = isl.Map.from_union_map(found).deltas().dim_min_val(0)
    return -int(least.to_python()) if least.is_int() else None


def length(model: PolyModel, m: Member) -> int | None:
    """How far the values of a loop go, first and last included; None where that is not known."""
    values = isl.Set.from_union_set(member_map(model, m).intersect_params(model.assumptions).range())
    if values.is_empty():
        return 0
    low, high = values.dim_min_val(0), values.dim_max_val(0)
    return int(high.to_python()) - int(low.to_python()) + 1 if low.is_int() and high.is_int() else None


def _with_values(
    model: PolyModel, pairs: isl.UnionMap, a: Member, b: Member
) -> Iterator[tuple[isl.Map, isl.Map]]:
    """The pairs of each two statements that have the loops, and where the values are the same."""
    first, second = dict(a.exprs), dict(b.exprs)
    maps = pairs.get_map_list()
    for k in range(maps.n_map()):
        m = maps.get_at(k)
        here, there = _ends(m)
        if here in first and there in second:
            before = value_map(model, here, first[here])
            yield m, before.apply_range(value_map(model, there, second[there]).reverse())


def to_isl(model: PolyModel, tree: Tree, *, separate: bool = False) -> isl.Schedule:
    """The tree as an isl schedule over the domains of its statements.

    `separate` asks the AST generator for loops without conditions: where statements of one loop have
    different ranges, the loop is cut at their ends.
    """
    root = isl.Schedule.from_domain(model.domain(sorted(statements(tree)))).get_root().child(0)
    return _insert(model, root, tree, separate).get_schedule()


def _insert(model: PolyModel, node: isl.ScheduleNode, tree: Tree, separate: bool) -> isl.ScheduleNode:
    """Insert `tree` at the leaf position `node`; returns the node at the same position."""
    match tree:
        case Leaf():
            return node
        case Band(members, child, permutable):
            text = "[" + ", ".join(member_text(model, m.exprs) for m in members) + "]"
            partial = isl.MultiUnionPwAff.read_from_str(model.context, params_prefix(model.params) + text)
            node = node.insert_partial_schedule(partial)
            for k, m in enumerate(members):
                node = node.band_member_set_coincident(k, int(m.coincident))
                if m.coordinate is Coordinate.BLK:
                    # one loop, never a part of an iteration by itself: storage of an iteration stays there
                    node = node.band_member_set_ast_loop_type(k, isl.ast_loop_type.atomic)
                elif separate:
                    node = node.band_member_set_ast_loop_type(k, isl.ast_loop_type.separate)
            node = node.band_set_permutable(int(permutable))
            return _insert(model, node.child(0), child, separate).parent()
        case Sequence(children):
            filters = isl.UnionSetList.alloc(model.context, len(children))
            for c in children:
                filters = filters.add(model.domain(sorted(statements(c))))
            node = node.insert_sequence(filters)
            for k, c in enumerate(children):
                node = _insert(model, node.child(k).child(0), c, separate).parent().parent()
            return node


def schedule_map(model: PolyModel, tree: Tree) -> isl.UnionMap:
    """Statement instances to time: one integer vector for all, sequences as positions, padded by zeros."""
    rows: dict[str, list[str]] = {}

    def go(t: Tree, outer: list[tuple[str, Member | int]]) -> None:
        match t:
            case Leaf(name):
                rows[name] = [str(x) if isinstance(x, int) else index_text(x.of(name)) for _, x in outer]
            case Band(members, child):
                go(child, outer + [("m", m) for m in members])
            case Sequence(children):
                for k, c in enumerate(children):
                    go(c, [*outer, ("s", k)])

    go(tree, [])
    width = max(map(len, rows.values()), default=0)
    pieces = []
    for name in sorted(rows):
        dims = ", ".join(dim_id(d.name) for d in model.graph.statement(name).dims)
        time = ", ".join(rows[name] + ["0"] * (width - len(rows[name])))
        pieces.append(f"{statement_id(name)}[{dims}] -> [{time}]")
    text = params_prefix(model.params) + "{ " + "; ".join(pieces) + " }"
    return isl.UnionMap.read_from_str(model.context, text).intersect_domain(model.domain(sorted(rows)))


def from_isl(model: PolyModel, schedule: isl.Schedule) -> Tree:
    """An isl schedule (domain, band, sequence, set and filter nodes at statement granularity) as our tree."""
    return _from_node(model, schedule.get_root(), tuple(sorted(model.domains)))


def _from_node(model: PolyModel, node: isl.ScheduleNode, active: tuple[str, ...]) -> Tree:
    kind: object = node.get_type()  # the stubs say int; it is an enum
    if kind == isl.schedule_node_type.domain:
        domain = _names(node.domain_get_domain())
        return _from_node(model, node.child(0), domain)
    if kind == isl.schedule_node_type.leaf:
        # Statements that isl leaves together depend on each other no more: the program's order will do.
        return sequence([Leaf(n) for n in _in_order(model, active)])
    if kind in (isl.schedule_node_type.sequence, isl.schedule_node_type.set):
        filters = [(_names(node.child(k).filter_get_filter()), k) for k in range(node.n_children())]
        if kind == isl.schedule_node_type.set:
            order = _in_order(model, active)
            filters.sort(key=lambda f: min(map(order.index, f[0])))
        return sequence([_from_node(model, node.child(k).child(0), names) for names, k in filters])
    if kind == isl.schedule_node_type.band:
        members = band_members(model, node, active)
        child = _from_node(model, node.child(0), active)
        return band(members, child, bool(node.band_get_permutable()))
    raise InternalError(f"unexpected isl schedule node {kind}", code="PF901")


def _in_order(model: PolyModel, names: tuple[str, ...]) -> list[str]:
    """Names by their place in the program."""
    return [s.name for s in model.graph.statements if s.name in names]


def band_members(model: PolyModel, node: isl.ScheduleNode, active: tuple[str, ...]) -> list[Member]:
    """The members of an isl band node for the active statements."""
    partial = node.band_get_partial_schedule()
    members = []
    for k in range(node.band_n_member()):
        exprs = dict(_union_exprs(model, partial.get_union_pw_aff(k)))
        rows = tuple((s, exprs[s]) for s in sorted(active))
        members.append(Member(axis_name(rows, k), rows, bool(node.band_member_get_coincident(k))))
    return members


def _union_exprs(model: PolyModel, union: isl.UnionPwAff) -> list[tuple[str, IndexExpr]]:
    pieces: list[isl.PwAff] = []
    union.foreach_pw_aff(pieces.append)
    found = []
    for piece in pieces:
        name = piece.get_tuple_id(isl.dim_type.in_).get_name().removeprefix("S_")
        affs: list[isl.Aff] = []
        piece.foreach_piece(lambda _, aff, out=affs: out.append(aff))  # type: ignore[misc]
        dims = tuple(d.name for d in model.graph.statement(name).dims)
        found.append((name, from_aff(affs[0], dims)))
    return found


def axis_name(rows: tuple[tuple[str, IndexExpr], ...], position: int) -> str:
    """The most common plain variable of a member, else the variables of its first expression."""
    counts: dict[str, int] = {}
    for _, e in rows:
        if isinstance(e, IVar):
            counts[e.name] = counts.get(e.name, 0) + 1
    if counts:
        return max(counts, key=lambda n: (counts[n], n))
    names = [v for _, e in rows for v in variables(e)]
    return "_".join(dict.fromkeys(names)) or f"d{position}"


def _names(union: isl.UnionSet) -> tuple[str, ...]:
    found: list[str] = []
    union.foreach_set(lambda s: found.append((s.get_tuple_name() or "").removeprefix("S_")))
    return tuple(sorted(set(found)))
