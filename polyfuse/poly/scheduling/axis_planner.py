"""The axis planner: schedule trees from axes, without solving an integer program.

One recursive rule (`_plan`).  Of the statements at hand, take the axis along which the most work can
share a loop: statements that lie on the axis, joined only by edges that carry the element from one
iteration to the same iteration (or, in a recurrence, to a later one), and with no way out of the group
and back in.  A reduction joins a loop over what it sums up only where that leaves it reading rows
(`_reduces_across`).  These become a band over the axis, planned further inside; what they need comes before,
what is left comes after.  Nothing left to share: single statements, each in its own loops.

Deterministic: candidates are compared by work shared, then parallel before ordered, then stride order.
The result is a proposal; `poly.legality.schedules` proves it.  Its `coincident` flags are claims that
legality checks as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.functions import has_function
from polyfuse.ir.index_expr import IndexExpr, IVar, binary, evaluate, sizes, variables
from polyfuse.ir.schedule_tree import HEAD, Band, Leaf, Member, Tree, sequence
from polyfuse.ir.tensor_graph import IterDim, Statement, TensorGraph, depends_on, statement_reads
from polyfuse.poly.scheduling.axes import Axes, Dim, Edge, find_axes, offset, plain

Node = TypeVar("Node", bound=Hashable)


def plan(graph: TensorGraph, statements: tuple[str, ...] | None = None) -> Tree:
    """A schedule tree for the given statements (default: all).

    Raises ScheduleError (PF510) where a recurrence advances along no axis: the isl scheduler is asked then.
    """
    chosen = tuple(s for s in graph.statements if statements is None or s.name in statements)
    axes = find_axes(graph, chosen)
    order = {s.name: k for k, s in enumerate(_topological(chosen, axes))}
    planner = _Planner(axes, order, {s.name: s for s in chosen}, _uses(chosen))
    return planner.plan(tuple(planner.order), _distinct(axes.edges), frozenset())


def loops_of(graph: TensorGraph, name: str, without: frozenset[str]) -> Tree:
    """A statement that needs itself no more, in its loops but for dims whose values loops outside tell."""
    statement = graph.statement(name)
    axes = find_axes(graph, (statement,))
    planner = _Planner(axes, {name: 0}, {name: statement}, _uses((statement,)))
    return planner.plan((name,), (), frozenset((name, d) for d in without))


def _distinct(edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """One of the edges that the planner cannot tell apart: distances follow from offsets of indices alone."""
    found: dict[object, Edge] = {}
    for e in edges:
        places = (tuple(map(offset, e.written)), tuple(map(offset, e.read)))
        found.setdefault((e.source, e.sink, places), e)
    return tuple(found.values())


OPEN = 1024
"""What a size that is open is taken for, where lengths are compared."""


def _trip(d: IterDim) -> int | None:
    """How long the range of a dim is, by sizes alone; None where other dims or data say."""
    if variables(d.lower) or variables(d.upper):
        return None
    trip = binary("-", d.upper, d.lower)
    return evaluate(trip, dict.fromkeys(sizes(trip), OPEN))


@dataclass(frozen=True, slots=True)
class _Group:
    """Statements that share a loop over `axis`; `direction` is 0 for a parallel loop, else +1 or -1."""

    axis: Dim
    statements: tuple[str, ...]
    direction: int
    distance: int  # of the axis from the contiguous end of the tensors, in thousandths of an index


@dataclass(frozen=True, slots=True)
class _Planner:
    axes: Axes
    order: dict[str, int]
    statement: dict[str, Statement]
    uses: dict[Dim, tuple[int, int]]  # dim -> (plain uses in accesses, places from their contiguous end)

    def plan(self, names: tuple[str, ...], edges: tuple[Edge, ...], used: frozenset[Dim]) -> Tree:
        """A tree for `names` (in topological order) under loops over the axes in `used`."""
        parts = self._components(names, edges)
        if len(parts) > 1:
            return sequence([self.plan(p, _within(edges, p), used) for p in parts])
        cycles = self._cycles(names, edges)
        group = self._best_group(cycles, edges, used)
        if group is None:
            return self._without_loops(names, edges)
        before, after = self._around(cycles, edges, group.statements)
        inner = self._inner_edges(_within(edges, group.statements), group)
        body = self.plan(group.statements, inner, used | {group.axis})
        tree = _merge(self._member(group), body, group.direction)
        rest = [self.plan(p, _within(edges, p), used) for p in (before, after) if p]
        return sequence(([rest.pop(0)] if before else []) + [tree] + rest)

    def _without_loops(self, names: tuple[str, ...], edges: tuple[Edge, ...]) -> Tree:
        for e in edges:
            if self.order[e.source] >= self.order[e.sink]:
                span = self.statement[e.sink].span
                message = f"the recurrence through '{e.sink}' advances along no single axis"
                raise ScheduleError(message, code="PF510", span=span)
        return sequence([Leaf(n) for n in names])

    # --- components ---------------------------------------------------------------------------------

    def _components(self, names: tuple[str, ...], edges: tuple[Edge, ...]) -> list[tuple[str, ...]]:
        """Connected parts (through edges and shared inputs), ordered by their first statement."""
        part = {n: n for n in names}

        def find(n: str) -> str:
            while part[n] != n:
                n = part[n]
            return n

        links = [(e.source, e.sink) for e in edges]
        links += [pair for tied in self.axes.ties for pair in pairwise(n for n in tied if n in part)]
        for a, b in links:
            part[find(b)] = find(a)
        groups: dict[str, list[str]] = {}
        for n in names:
            groups.setdefault(find(n), []).append(n)
        return [tuple(g) for g in groups.values()]

    # --- choosing a loop ------------------------------------------------------------------------------

    def _best_group(
        self, cycles: list[tuple[str, ...]], edges: tuple[Edge, ...], used: frozenset[Dim]
    ) -> _Group | None:
        axes = dict.fromkeys(
            a for part in cycles for n in part for a in self.axes.axes_of(n) if a not in used
        )
        into: dict[str, dict[str, list[Edge]]] = {}
        for e in edges:
            into.setdefault(e.sink, {}).setdefault(e.source, []).append(e)
        recurrent = _recurrent(cycles, edges)
        short = self._short([n for n, *more in cycles if not more], used)
        place = {n: k for k, part in enumerate(cycles) for n in part}
        groups = []
        for a in axes:
            on = [place[n] for n in self.axes.statements_on(a) if n in place]
            near = cycles[
                min(on) : max(on) + 1
            ]  # what is before or behind all of its statements decides nothing
            groups += self._groups(a, near, into, (recurrent, short), used)
        settled = {n for g in groups if g.direction and self._settles(g, edges) for n in g.statements}
        return max(
            (g for g in groups if not self._delays(g, edges, settled)),
            key=lambda g: (self._work(g), -abs(g.direction), g.distance, g.direction),
            default=None,
        )

    def _settles(self, g: _Group, edges: tuple[Edge, ...]) -> bool:
        """Does a loop run in order carry each recurrence of its statements, so that those inside are free?"""
        left = self._inner_edges(_within(edges, g.statements), g)
        return not _recurrent(self._cycles(g.statements, left), left)

    def _delays(self, g: _Group, edges: tuple[Edge, ...], settled: set[str]) -> bool:
        """Does a loop run in order leave recurrences inside which another loop carries all at once?

        u[t, i] needs u[t-1, i-1] and u[t-1, i]: both may go forwards, but only with t outside is i free.
        """
        if not g.direction or self._settles(g, edges):
            return False
        inside = _within(edges, g.statements)
        return _recurrent(self._cycles(g.statements, inside), inside) <= settled

    def _work(self, g: _Group) -> int:
        """How much work shares the loop: a statement of more dims outweighs any number with fewer."""
        return sum(1000 ** len(self.statement[n].dims) for n in g.statements)

    def _groups(
        self,
        axis: Dim,
        cycles: list[tuple[str, ...]],
        into: Mapping[str, Mapping[str, list[Edge]]],
        kinds: tuple[set[str], frozenset[str]],
        used: frozenset[Dim],
    ) -> list[_Group]:
        """The statements that can share a loop over `axis`, for each direction that makes a difference.

        A loop is run in order for the sake of a recurrence only, never to fuse what could be parallel.
        `kinds`: the statements of recurrences, and those with a small part of an axis (`_short`)."""
        recurrent, short = kinds
        alone = [n for n, *more in cycles if not more and self.axes.dim_of(n, axis) is not None]
        later = frozenset(n for n in alone if self._reduces_across(n, axis, used))
        vectors = frozenset(n for n in alone if n not in recurrent and self._fills_vectors(n, axis))
        tried = [(d, later | vectors if d else later) for d in ((0, 1, -1) if recurrent else (0,))]
        tried += [(0, later | short)] if short else []
        groups = []
        for direction, out in tried:
            chosen = self._share(axis, direction, cycles, into, out)
            if chosen and (direction == 0 or not recurrent.isdisjoint(chosen)):
                groups.append(_Group(axis, chosen, direction, self._from_contiguous(axis, chosen)))
        return groups

    def _short(self, names: Iterable[str], used: frozenset[Dim]) -> frozenset[str]:
        """Statements with only a small part of the longest range along an axis.

        What needs all of a sum over some first elements cannot share the loop of that sum; it can share with
        the statements of the whole range if the sum has a loop of its own.
        """
        trips: dict[Dim, dict[str, int]] = {}
        for n in names:
            for d in self.statement[n].dims:
                axis = self.axes.axis(n, d.name)
                trip = None if axis in used else _trip(d)
                if trip is not None:
                    trips.setdefault(axis, {})[n] = trip
        return frozenset(n for t in trips.values() for n, trip in t.items() if trip * HEAD < max(t.values()))

    def _share(
        self,
        axis: Dim,
        direction: int,
        cycles: list[tuple[str, ...]],
        into: Mapping[str, Mapping[str, list[Edge]]],
        later: frozenset[str],
    ) -> tuple[str, ...]:
        """Statements of one loop over `axis`, none of `later`: no edge may leave the loop and come back."""
        chosen: dict[str, None] = {}
        blocked: set[str] = set()  # needs a finished loop over the axis
        for part in cycles:
            sources = [x for n in part for x in into.get(n, {}).items()]
            fits = all(self.axes.dim_of(n, axis) is not None and n not in later for n in part) and all(
                _carries(self._distance(e, axis), direction)
                for n, between in sources
                if n in chosen or n in part
                for e in between
            )
            waits = any(n in blocked for n, _ in sources)
            if fits and not waits:
                chosen.update(dict.fromkeys(part))
            elif waits or any(n in chosen for n, _ in sources):
                blocked.update(part)
        return tuple(chosen)

    def _fills_vectors(self, name: str, axis: Dim) -> bool:
        """Does a statement compute functions along memory?  Steps would take them one after the other."""
        s, dim = self.statement[name], self.axes.dim_of(name, axis)
        return dim is not None and dim in map(plain, s.write[-1:]) and has_function(s.expr)

    def _reduces_across(self, name: str, axis: Dim, used: frozenset[Dim]) -> bool:
        """Would a loop over `axis` around the others of a reduction walk memory against its order?

        `s[k] = sum[j](x[j] * u[k, j])` with j outside reads `u` down its columns, for the sake of a loop that
        makes `x[j]` as well; `sum[j](x[j] * u[j, k])` is read along its rows so.
        """
        s, dim = self.statement[name], self.axes.dim_of(name, axis)
        if dim not in s.reduction_dims:
            return False
        inside = {d.name for d in s.dims if not d.reduce and self.axes.axis(name, d.name) not in used}
        down = along = False
        for r in statement_reads(s):
            if r.indices and dim in depends_on(*r.indices):
                last = depends_on(r.indices[-1])
                along |= not last.isdisjoint(inside)
                down |= dim in last and not depends_on(*r.indices[:-1]).isdisjoint(inside)
        return down and not along

    def _from_contiguous(self, axis: Dim, chosen: tuple[str, ...]) -> int:
        count = far = 0
        for n in chosen:
            dim = self.axes.dim_of(n, axis)
            uses, places = self.uses.get((n, dim or ""), (0, 0))
            count, far = count + uses, far + places
        return 1000 * far // max(1, count)

    def _distance(self, e: Edge, axis: Dim) -> int | None:
        """Iterations between writing and reading along an axis, where constant."""
        source, sink = self.axes.dim_of(e.source, axis), self.axes.dim_of(e.sink, axis)
        for w, r in zip(e.written, e.read, strict=True):
            a, b = offset(w), offset(r)
            if a and b and a[0] == source and b[0] == sink:
                return a[1] - b[1]
        return None

    def _cycles(self, names: tuple[str, ...], edges: tuple[Edge, ...]) -> list[tuple[str, ...]]:
        """Strongly connected parts, in topological order."""
        successors: dict[str, list[str]] = {n: [] for n in names}
        for e in edges:
            successors[e.source].append(e.sink)
        parts = strongly_connected(names, successors)
        return [tuple(sorted(p, key=self.order.__getitem__)) for p in parts]

    # --- what goes around a loop -----------------------------------------------------------------------

    def _around(
        self, cycles: list[tuple[str, ...]], edges: tuple[Edge, ...], group: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(what the group needs and what has no tie to it, what needs the group)."""
        inside = frozenset(group)
        needs, into = set(group), _sources(edges)
        for part in cycles:
            if any(n in needs for m in part for n in into.get(m, ())):
                needs.update(part)
        names = sorted((n for part in cycles for n in part), key=self.order.__getitem__)
        before = tuple(n for n in names if n not in needs)
        return before, tuple(n for n in names if n in needs and n not in inside)

    def _inner_edges(self, edges: tuple[Edge, ...], group: _Group) -> tuple[Edge, ...]:
        """Edges that the loop does not satisfy already by going to a later iteration."""
        return tuple(e for e in edges if self._distance(e, group.axis) == 0)

    def _member(self, group: _Group) -> Member:
        rows = []
        for n in sorted(group.statements):
            dim = self.axes.dim_of(n, group.axis)
            assert dim is not None
            value: IndexExpr = IVar(dim)
            rows.append((n, value if group.direction >= 0 else binary("-", 0, value)))
        widest = max(group.statements, key=lambda n: (len(self.statement[n].dims), -self.order[n]))
        name = self.axes.dim_of(widest, group.axis) or group.axis[1]
        return Member(name, tuple(rows), coincident=group.direction == 0)


def _carries(distance: int | None, direction: int) -> bool:
    """Does the element stay in its iteration (0), or go to the same or a later one (+1, -1)?"""
    return distance is not None and distance * direction >= 0 and (direction != 0 or distance == 0)


def _recurrent(cycles: Iterable[tuple[str, ...]], edges: tuple[Edge, ...]) -> set[str]:
    """The statements that depend on themselves, of strongly connected parts."""
    own = {e.source for e in edges if e.source == e.sink}
    return {n for part in cycles for n in part if len(part) > 1 or n in own}


def _sources(edges: tuple[Edge, ...]) -> dict[str, list[str]]:
    into: dict[str, list[str]] = {}
    for e in edges:
        into.setdefault(e.sink, []).append(e.source)
    return into


def _uses(chosen: tuple[Statement, ...]) -> dict[Dim, tuple[int, int]]:
    """For each dim: how many accesses use it as a plain index, and how far from their last index in sum.

    Only a statement's accesses of most axes count: the strides of its large tensors are what matters.  An
    element that is read twice is loaded once.
    """
    found: dict[Dim, tuple[int, int]] = {}
    for s in chosen:
        places = {(s.target, s.write), *((r.tensor, r.indices) for r in statement_reads(s))}
        accesses = [indices for _, indices in places]
        most = max(map(len, accesses))
        for indices in (x for x in accesses if len(x) == most):
            for k, i in enumerate(indices):
                dim = plain(i)
                if dim is not None:
                    count, far = found.get((s.name, dim), (0, 0))
                    found[s.name, dim] = count + 1, far + len(indices) - 1 - k
    return found


def _merge(member: Member, body: Tree, direction: int) -> Tree:
    """A loop around a body; directly nested parallel loops are one permutable band."""
    if isinstance(body, Band) and direction == 0 and all(m.coincident for m in body.members):
        return replace(body, members=(member, *body.members), permutable=True)
    return Band((member,), body, permutable=True)


def _within(edges: tuple[Edge, ...], names: tuple[str, ...]) -> tuple[Edge, ...]:
    inside = frozenset(names)
    return tuple(e for e in edges if e.source in inside and e.sink in inside)


def program_order(graph: TensorGraph, names: Iterable[str]) -> tuple[str, ...]:
    """Statements in dependence order; those of a recurrence as one of its iterations runs them."""
    inside = frozenset(names)
    chosen = tuple(s for s in graph.statements if s.name in inside)
    return tuple(s.name for s in _topological(chosen, find_axes(graph, chosen)))


def _topological(chosen: tuple[Statement, ...], axes: Axes) -> list[Statement]:
    """Statements in dependence order, ties by place in the program; members of a cycle stay together."""
    names = tuple(s.name for s in chosen)
    successors: dict[str, list[str]] = {n: [] for n in names}
    for e in axes.edges:
        successors[e.source].append(e.sink)
    by_name = {s.name: s for s in chosen}
    position = {n: k for k, n in enumerate(names)}
    parts = strongly_connected(names, successors)
    # Inside a cycle, edges that stay in one iteration decide; the place in the program otherwise.
    flat: list[Statement] = []
    for part in parts:
        flat += [by_name[n] for n in _by_zero_distance(sorted(part, key=position.__getitem__), axes)]
    return flat


def _by_zero_distance(part: list[str], axes: Axes) -> list[str]:
    """Order a cycle's statements by the edges whose every index is the same on both sides."""
    inside = set(part)
    needs: dict[str, set[str]] = {n: set() for n in part}
    for e in axes.edges:
        if e.source in inside and e.sink in inside and e.source != e.sink and _stays(e):
            needs[e.sink].add(e.source)
    done: list[str] = []
    while len(done) < len(part):
        ready = [n for n in part if n not in done and needs[n] <= set(done)]
        done.append(ready[0] if ready else next(n for n in part if n not in done))
    return done


def _stays(e: Edge) -> bool:
    return all(
        (a := offset(w)) is not None and (b := offset(r)) is not None and a[1] == b[1]
        for w, r in zip(e.written, e.read, strict=True)
    )


def strongly_connected(
    names: tuple[Node, ...], successors: Mapping[Node, Sequence[Node]]
) -> list[list[Node]]:
    """Tarjan's components in topological order, without recursion; ties by order of `names`."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    found: list[list[Node]] = []
    for root in reversed(names):
        if root in index:
            continue
        work = [(root, iter(successors[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            step = next(rest, None)
            if step is not None:
                if step not in index:
                    index[step] = low[step] = len(index)
                    stack.append(step)
                    on_stack.add(step)
                    work.append((step, iter(successors[step])))
                elif step in on_stack:
                    low[node] = min(low[node], index[step])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                part: list[Node] = []
                while True:
                    n = stack.pop()
                    on_stack.discard(n)
                    part.append(n)
                    if n == node:
                        break
                found.append(part)
    return found[::-1]
