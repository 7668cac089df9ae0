"""The definitions of an operator, grouped by what they define and put in order of dependence.

A group is all definitions of one tensor, or one call with all its targets.  `ordered_groups` gives
the strongly connected components, each a recurrence or a single group, dependences first and
otherwise in the order of the text; hopeless cycles (PF207) are reported here, the others are
recurrences, whose legality isl decides.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from polyfuse.frontend_dsl.semantics.scope import Context, Scope
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import bounds, children, free_names, walk
from polyfuse.source import Span


@dataclass(eq=False)
class Group:
    """Everything that defines `targets`: several for a call with several results, none for one without."""

    targets: tuple[str, ...]
    order: int
    span: Span
    defines: list[ast.Define] = field(default_factory=list)
    scatters: list[ast.Define] = field(default_factory=list)
    let: ast.Let | None = None
    call: ast.CallStmt | None = None
    reads: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.targets[0]


def left_variables(stmt: ast.Define, scope: Scope) -> tuple[ast.Name, ...]:
    """The index variables of a definition's left side: its names that are no sizes, each once."""
    found: dict[str, ast.Name] = {}
    for name in (x for i in stmt.indices or () for x in walk(i) if isinstance(x, ast.Name)):
        if name.id not in scope.sizes:
            found.setdefault(name.id, name)
    return tuple(found.values())


def is_plain(stmt: ast.Define, scope: Scope) -> bool:
    """Whether the left side has a variable for each axis: it defines a box of elements."""
    names = [i.id for i in stmt.indices or () if isinstance(i, ast.Name) and i.id not in scope.sizes]
    return len(set(names)) == len(stmt.indices or ())


def statement_names(stmt: ast.Define, scope: Scope) -> Iterator[str]:
    """Names of tensors (and scalars) that a definition may read."""
    mine = frozenset(r.var for r in stmt.ranges)
    tops: list[ast.Expr] = [*bounds(stmt.ranges), stmt.value]
    if stmt.op == "=":
        mine |= {v.id for v in left_variables(stmt, scope)}
    else:
        tops += stmt.indices or ()
    for top in tops:
        for e in free_names(top, mine):
            yield e.id if isinstance(e, ast.Name) else e.name


def collect_reads(groups: list[Group], scope: Scope) -> None:
    """Fill in `Group.reads` with the names of groups of this scope; inout names mean entry values."""
    targets = {t for grp in groups for t in grp.targets} - scope.inouts
    for grp in groups:
        found: set[str] = set()
        for stmt in (*grp.defines, *grp.scatters):
            found.update(statement_names(stmt, scope))
        for e in (grp.let.value if grp.let else None, grp.call.call if grp.call else None):
            if e is not None:
                found.update(x.id if isinstance(x, ast.Name) else x.name for x in free_names(e))
        grp.reads = found & targets


def ordered_groups(groups: list[Group], ctx: Context, scope: Scope) -> list[list[Group]]:
    """Components in dependence order; see the module docstring."""
    collect_reads(groups, scope)
    by_target = {t: grp for grp in groups for t in grp.targets}
    edges = {id(grp): [by_target[r] for r in sorted(grp.reads)] for grp in groups}
    components = _components(groups, edges)
    for members in components:
        if len(members) > 1 or members[0] in edges[id(members[0])]:
            _check_cycle(members, by_target, ctx, scope)
    return _stable_order(components, edges)


def _components(groups: list[Group], edges: dict[int, list[Group]]) -> list[list[Group]]:
    """Tarjan's algorithm, without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[Group] = []
    on_stack: set[int] = set()
    found: list[list[Group]] = []
    for root in groups:
        work: list[tuple[Group, Iterator[Group]]] = []
        if id(root) not in index:
            work.append((root, iter(edges[id(root)])))
            index[id(root)] = low[id(root)] = len(index)
            stack.append(root)
            on_stack.add(id(root))
        while work:
            node, successors = work[-1]
            nxt = next(successors, None)
            if nxt is None:
                work.pop()
                if work:
                    low[id(work[-1][0])] = min(low[id(work[-1][0])], low[id(node)])
                if low[id(node)] == index[id(node)]:
                    found.append(_pop_component(node, stack, on_stack))
            elif id(nxt) not in index:
                index[id(nxt)] = low[id(nxt)] = len(index)
                stack.append(nxt)
                on_stack.add(id(nxt))
                work.append((nxt, iter(edges[id(nxt)])))
            elif id(nxt) in on_stack:
                low[id(node)] = min(low[id(node)], index[id(nxt)])
    return found


def _pop_component(node: Group, stack: list[Group], on_stack: set[int]) -> list[Group]:
    members = []
    while True:
        member = stack.pop()
        on_stack.discard(id(member))
        members.append(member)
        if member is node:
            return sorted(members, key=lambda grp: grp.order)


def _stable_order(components: list[list[Group]], edges: dict[int, list[Group]]) -> list[list[Group]]:
    """Topological order that keeps the text's order where it can."""
    owner = {id(grp): n for n, members in enumerate(components) for grp in members}
    needs: list[set[int]] = [
        {owner[id(d)] for grp in members for d in edges[id(grp)]} - {n}
        for n, members in enumerate(components)
    ]
    users: list[list[int]] = [[] for _ in components]
    for n, before in enumerate(needs):
        for b in before:
            users[b].append(n)
    ready = [(members[0].order, n) for n, members in enumerate(components) if not needs[n]]
    heapq.heapify(ready)
    result = []
    while ready:
        _, n = heapq.heappop(ready)
        result.append(components[n])
        for user in users[n]:
            needs[user].discard(n)
            if not needs[user]:
                heapq.heappush(ready, (components[user][0].order, user))
    return result


# --- cycles ------------------------------------------------------------------------------------------


def _check_cycle(members: list[Group], by_target: dict[str, Group], ctx: Context, scope: Scope) -> None:
    """Report cycles through calls or scatters, and elements that are defined by themselves."""
    names = {t for grp in members for t in grp.targets}
    for grp in members:
        if grp.call is not None or grp.scatters:
            if grp.scatters and len(members) == 1:
                continue  # "reads its own target" is reported with the statement
            how = "a call" if grp.call is not None else "a scatter"
            _report(ctx, grp, members, f"through {how}, which needs its operands finished")
            for name in names:
                scope.writes[name].failed = True
            return
    same: dict[str, dict[str, Span]] = {grp.name: {} for grp in members}
    for grp in members:
        only = len(grp.defines) == 1 and not grp.defines[0].ranges
        for stmt in grp.defines:
            for read, span in _same_element_reads(stmt, scope):
                if read in names and (read == grp.name or (only and is_plain(stmt, scope))):
                    same[grp.name].setdefault(by_target[read].name, span)
    cycle = _find_cycle(same)
    if cycle:
        chain = " -> ".join(f"'{n}'" for n in [*cycle, cycle[0]])
        first = by_target[cycle[0]]
        span = same[cycle[0]][cycle[1] if len(cycle) > 1 else cycle[0]]
        what = f"cyclic definition: {chain}" if len(cycle) > 1 else f"'{cycle[0]}' is defined by itself"
        hint = "a recurrence reads elements defined earlier, such as c[t-1] with c[0] defined on its own"
        ctx.diags.error("PF207", what, span, hint, ((first.span, f"'{first.name}' is defined here"),))
        for n in cycle:
            scope.writes[n].failed = True


def _report(ctx: Context, grp: Group, members: list[Group], how: str) -> None:
    names = ", ".join(f"'{t}'" for m in members for t in m.targets)
    ctx.diags.error("PF207", f"cyclic definition of {names} {how}", grp.span)


def _same_element_reads(stmt: ast.Define, scope: Scope) -> Iterator[tuple[str, Span]]:
    """Unguarded reads of the element with the very indices that the statement defines."""
    left = stmt.indices or ()
    bound = frozenset(v.id for v in left_variables(stmt, scope))
    stack = [stmt.value]
    while stack:
        e = stack.pop()
        if isinstance(e, ast.Subscript) and e.indices == left:
            yield e.name, e.span
        elif isinstance(e, ast.Name) and not left and e.id not in bound:
            yield e.id, e.span
        stack += _always_evaluated(e)


def _always_evaluated(e: ast.Expr) -> tuple[ast.Expr, ...]:
    """The parts of a node, without those that a condition may leave out."""
    match e:
        case ast.Conditional(cond):
            return (cond,)
        case ast.Padded(read):
            return read.indices[::-1]
        case _:
            return children(e)[::-1]


def _find_cycle(edges: dict[str, dict[str, Span]]) -> list[str]:
    """Some cycle of a small graph, or nothing."""
    for start in edges:
        came: dict[str, str] = {}
        stack = [start]
        while stack:
            node = stack.pop()
            for nxt in edges.get(node, ()):
                if nxt == start:
                    path = [node]
                    while path[-1] != start:
                        path.append(came[path[-1]])
                    return path[::-1]
                if nxt not in came:
                    came[nxt] = node
                    stack.append(nxt)
    return []
