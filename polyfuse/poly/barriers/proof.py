"""Are the barriers of a GPU kernel enough?  Asked of the loops that are printed, on every compile.

Where two threads touch one element and one of them writes, a barrier must lie between the two in program
order: one of the block for threads of a block, one of the grid for threads of different blocks
(`poly.barriers.conflicts` says which pairs there are).  Most pairs are decided by their places: a barrier
that stands after the first access, in the iteration it is in, is passed on the way to any later one.  isl
decides the rest: whether two threads meet in an element at all, and what barriers under conditions cover.

A barrier itself must be reached by all threads (of all blocks) or by none.  Arrays in the same shared memory
must not be needed at the same time (`overlapping`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, Union

import islpy as isl

from polyfuse.diagnostics import Diagnostic, Severity
from polyfuse.ir.index_expr import IndexExpr, evaluate
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import Barrier, BarrierScope, Block, Combine
from polyfuse.poly.barriers.conflicts import (
    Barriers,
    Conflicts,
    Demand,
    Names,
    before,
    concerned,
    demands,
    dims_of,
    named,
    own_names,
    steady,
)
from polyfuse.poly.barriers.loop_events import LANE, Access, Events, Wait, events
from polyfuse.poly.barriers.loop_regions import Nest, Place, Region
from polyfuse.poly.legality.schedules import Legal
from polyfuse.poly.model.isl_bridge import isl_lock, params_prefix

# --- two accesses in conflict, as a reader understands them -----------------------------------------------


@dataclass(frozen=True, slots=True)
class Touch:
    """One access of one thread. Indices that data decide are None; so is a block that may be any."""

    buffer: str
    write: bool
    element: tuple[int | None, ...]
    loops: tuple[tuple[str, int], ...]
    thread: tuple[int, int]
    block: int | None

    @property
    def place(self) -> str:
        index = ", ".join("?" if i is None else str(i) for i in self.element)
        return f"{self.buffer}[{index}]"

    def who(self, threads: tuple[int, int]) -> str:
        loops = [f"{n}={v}" for n, v in self.loops]
        row = [f"ty {self.thread[1]}"] if threads[1] > 1 else []
        block = [f"block {self.block}"] if self.block is not None else []
        at = f" (at {', '.join(loops)})" if loops else ""
        return f"tx {', '.join([str(self.thread[0]), *row, *block])}{at}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """`first` comes before `second` in program order where there is one; `scope` is the barrier it takes."""

    first: Touch
    second: Touch
    scope: BarrierScope
    threads: tuple[int, int]
    sizes: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        a, b = self.first, self.second
        sizes = f" for {', '.join(f'{n}={v}' for n, v in self.sizes)}" if self.sizes else ""
        return (
            f"{b.who(self.threads)} {'writes' if b.write else 'reads'} {b.place}, which"
            f" {a.who(self.threads)} {'writes' if a.write else 'reads'} before{sizes}"
        )


def witness(events: Events, d: Demand, pairs: isl.Set) -> Conflict:
    """One pair of a set that is not empty."""
    point = pairs.sample_point()
    names = tuple(own_names(a, s, d.shared, events.ranges) for a, s in ((d.first, "a"), (d.second, "b")))
    values = {n: _at(point, isl.dim_type.set, k) for k, n in enumerate(dims_of(*names))} | {"0": 0}
    sizes = {n: _at(point, isl.dim_type.param, k) for k, n in enumerate(events.sizes)}
    sides = [
        _touch(a, {v: values[n] for v, n in mine.items()} | sizes)
        for a, mine in zip((d.first, d.second), names, strict=True)
    ]
    return Conflict(sides[0], sides[1], d.scope, events.threads, tuple(sizes.items()))


def _at(point: isl.Point, kind: isl.dim_type, position: int) -> int:
    return int(point.get_coordinate_val(kind, position).to_python())


def _touch(access: Access, env: Mapping[str, int]) -> Touch:
    def value(e: IndexExpr | None) -> int | None:
        return None if e is None else evaluate(e, env)

    element = [value(i) for i in access.indices]
    if access.count > 1 and element and element[-1] is not None:
        element[-1] += env[LANE]
    loops = [
        (r.var, evaluate(r.value, env))
        for r in access.place.regions
        if r.var is not None and r.value is not None
    ]
    nest = access.place.nest
    block = None if nest is None or nest.count is None else evaluate(nest.count, env)
    if block is not None and nest is not None and not nest.once:
        block = block % nest.blocks if nest.blocks is not None else None
    return Touch(access.buffer, access.write, tuple(element), tuple(loops), (env["tx"], env["ty"]), block)


# --- arrays in the same memory ----------------------------------------------------------------------------

# Shared arrays that lie in the same memory are never needed at the same time.
#
# Of two such arrays, all accesses of one must stand before all of the other, with no loop around both but
# those over blocks: what is written as one array is never read as the other then, and nothing is carried
# around. Barriers are another matter: this is what one thread by itself must keep.


def overlapping(events: Events) -> Diagnostic | None:
    """The finding for two arrays that are in each other's way, PF535."""
    together: dict[str, dict[str, list[Access]]] = {}
    for a in events.accesses:
        if a.scope is Scope.SHARED:
            together.setdefault(a.storage, {}).setdefault(a.buffer, []).append(a)
    for arrays in together.values():
        for one, other in itertools.combinations(arrays, 2):
            if not _apart(arrays[one], arrays[other]):
                message = f"the arrays {one} and {other} share memory and are needed at the same time"
                return Diagnostic("PF535", message, hint="give each a place of its own")
    return None


def _apart(one: list[Access], other: list[Access]) -> bool:
    """Do all accesses of the one come before all of the other, or after?"""
    orders = {_iteration_order(a, b) for a, b in itertools.product(one, other)}
    return orders in ({-1}, {1})


def _iteration_order(a: Access, b: Access) -> int:
    """-1: the first comes before the second in any iteration of the block loops; 1: after; 0: neither."""
    common = a.place.common(b.place)
    if any(r.loop and not r.nest for r in a.place.regions[:common]):
        return 0
    left, right = a.place.positions, b.place.positions
    return -1 if left < right else 1 if right < left else 0


# --- the proof --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unsafe:
    """Why not; the witness is a pair of accesses that no barrier keeps apart."""

    code: str
    message: str
    witness: Conflict | None
    diagnostic: Diagnostic

    def __bool__(self) -> bool:
        return False


BarrierVerdict: TypeAlias = Union[Legal, Unsafe]  # noqa: UP007


@dataclass(frozen=True, slots=True)
class Unneeded:
    """A barrier that the kernel is as safe without. `place`: its positions, as in `loop_events.Place`."""

    barrier: Barrier
    place: tuple[int, ...]
    diagnostic: Diagnostic


def check_barriers(
    kernel: Kernel, block: Block, blocks: IndexExpr | int, copied: frozenset[str] = frozenset()
) -> BarrierVerdict:
    """Legal if no two threads of a launch with that many blocks meet in an element without a barrier.

    `block` is the loop IR as it is printed, loops over blocks included; tx and ty are free in it. `copied`
    names the inout parameters that have memory apart from that of their new values.
    """
    found = events(kernel, block, blocks, copied)
    if not found.waits and not found.accesses:
        return Legal()
    alive = overlapping(found)
    if alive is not None:
        return Unsafe(alive.code, alive.message, None, alive)
    with isl_lock:
        checker = Checker(found)
        problem = checker.any_divergent()
        if problem is not None:
            return problem
        barriers = checker.barriers
        for demand in checker.demands():
            rest = checker.uncovered(demand, barriers)
            if rest is not None:
                return checker.unsafe(demand, rest)
    return Legal()


def unneeded_barriers(
    kernel: Kernel, block: Block, blocks: IndexExpr | int, copied: frozenset[str] = frozenset()
) -> tuple[Unneeded, ...]:
    """The barriers of a legal kernel each of which could be deleted, by itself."""
    found = events(kernel, block, blocks, copied)
    with isl_lock:
        checker = Checker(found)
        if checker.any_divergent() is not None:
            return ()
        barriers, todo = checker.barriers, list(checker.demands())
        if any(checker.uncovered(d, barriers) is not None for d in todo):
            return ()
        mine = concerned(todo, barriers)
        result = []
        for wait in barriers.waits:
            assert isinstance(wait.node, Barrier)
            if all(checker.uncovered(d, barriers, wait) is None for d in mine[id(wait)]):
                message = f"a barrier of the {wait.node.scope.value} is not needed: {wait.node.reason}"
                finding = Diagnostic("PF534", message, severity=Severity.WARNING)
                result.append(Unneeded(wait.node, wait.place.positions, finding))
        return tuple(result)


class Checker:
    """The questions about one kernel; answers that do not depend on barriers are kept. Hold `isl_lock`."""

    def __init__(self, found: Events) -> None:
        self.events = found
        self.joined: set[int] = set()
        self.conflicts = Conflicts(found)
        self._demands: list[Demand] | None = None
        self.barriers = Barriers(w for w in found.waits if isinstance(w.node, Barrier))

    # --- do all threads come together? ---------------------------------------------------------------------

    def any_divergent(self) -> Unsafe | None:
        """The first finding of `divergent`. Asked first: it learns where threads stay together."""
        # A finding is false, as every refusal is: filter(None) would drop it.
        return next((p for p in map(self.divergent, self.events.waits) if p is not None), None)

    def divergent(self, wait: Wait) -> Unsafe | None:
        """The finding if not all threads come to a barrier, or all lanes of a group to their combination."""
        grid = isinstance(wait.node, Barrier) and wait.node.scope is BarrierScope.GRID
        scope = BarrierScope.GRID if grid else BarrierScope.BLOCK
        nest = wait.place.nest
        if grid and nest is not None and not nest.whole:
            return _diverges(wait, "blocks run different numbers of iterations of the loop around it")
        for r in wait.place.regions:
            if not steady(r, scope, frozenset()) and not r.exact:
                return _diverges(wait, "it stands under a condition on data")
        if any(not steady(r, scope, frozenset()) for r in wait.place.regions):
            if not self.together(wait, nest if grid else None):
                return _diverges(wait, "threads that should meet there may take different ways")
            if isinstance(wait.node, Barrier):
                self.joined |= {r.number for r in wait.place.regions}
        return None

    def together(self, wait: Wait, nest: Nest | None) -> bool:
        """Asked of isl: where one thread comes, do all of its group?  `nest`: of all its blocks as well."""
        loops = [r for r in wait.place.regions if r.loop]
        blocks = [r for r in loops if nest is not None and r.nest]
        dims = [r.name for r in loops] + ["tx", "ty"]
        mine: Names = {v: f"a_{v}" for v in dims}
        free = {r.name for r in blocks} | {"tx", "ty"}
        other: Names = {v: f"b_{v}" if v in free else f"a_{v}" for v in dims}
        one = " and ".join(self.conflicts.happens(wait.place, mine))
        terms = [f"0 <= {other[v]} < {n}" for v, n in zip(("tx", "ty"), self.events.threads, strict=True)]
        terms += [named(c, other) for r in blocks for c in r.conditions]
        if isinstance(wait.node, Combine):
            width = wait.node.width
            terms += [f"floor(a_tx / {width}) = floor(b_tx / {width})", "a_ty = b_ty"]
        prefix = params_prefix(self.events.sizes)
        here, there = (f"[{', '.join(n[v] for v in dims)}]" for n in (mine, other))
        reached = isl.Set.read_from_str(self.conflicts.context, f"{prefix}{{ {here} : {one} }}")
        text = f"{prefix}{{ {here} -> {there} : {' and '.join(terms)} }}"
        return bool(reached.apply(isl.Map.read_from_str(self.conflicts.context, text)).is_subset(reached))

    # --- is there a barrier between? -----------------------------------------------------------------------

    def demands(self) -> Iterator[Demand]:
        """All that barriers must keep in order, in program order of the accesses."""
        if self._demands is None:
            self._demands = []
            for pair in demands(self.events, frozenset(self.joined)):
                open_ = [d for d in pair if not self.passed(d, self.barriers.between(d))]
                if len(open_) < 2 or self.conflicts.anything(open_):
                    self._demands += pair
        return iter(self._demands)

    def uncovered(self, demand: Demand, barriers: Barriers, but: Wait | None = None) -> isl.Set | None:
        """The pairs of a demand that no barrier, `but` left out, keeps in order; None if there are none."""
        near = barriers.between(demand, but)
        if self.passed(demand, near):
            return None
        enough = [w for w in near if _suffices(w, demand)] if demand.ordered else []
        rest = self.conflicts.of(demand, demand.carried is not None and _every(demand, enough))
        for w in enough:
            if rest.is_empty():
                return None
            covered = self.between(demand, w) if _at_times(demand, w.place) else None
            if covered is not None:
                rest = rest.subtract(covered)
        return None if rest.is_empty() else rest

    def passed(self, demand: Demand, barriers: Sequence[Wait]) -> bool:
        """Does the place of a barrier alone tell that it comes between?"""
        return demand.ordered and any(_suffices(w, demand) and _passed(demand, w.place) for w in barriers)

    def between(self, d: Demand, wait: Wait) -> isl.Set | None:
        """The pairs of a demand between which the barrier comes; None if that cannot be told."""
        place = wait.place
        if not all(r.exact for r in place.regions):
            return None
        sides, _ = self.conflicts.pair(d.first, d.second, d.shared)
        loops = [r.name for r in place.regions if r.loop]
        mine: Names = {v: f"x_{v}" for v in (*loops, "tx", "ty")}
        terms = self.conflicts.happens(place, mine)
        if d.scope is BarrierScope.BLOCK and place.nest is not None:
            where = self._same_block(place.nest, mine, d, *sides)
            if where is None:
                return None
            terms.append(where)
        for first, second, left, right in (
            (d.first.place, place, sides[0], mine),
            (place, d.second.place, mine, sides[1]),
        ):
            terms.append(_order(first, second, left, right, d.scope))
        dims = ", ".join(dims_of(*sides))
        text = f"[{dims}] : exists ({', '.join(mine.values())} : {' and '.join(terms)})"
        prefix = params_prefix(self.events.sizes)
        return isl.Set.read_from_str(self.conflicts.context, f"{prefix}{{ {text} }}")

    def _same_block(self, nest: Nest, mine: Names, d: Demand, left: Names, right: Names) -> str | None:
        """isl text: the block of the two accesses comes by the barrier."""
        if nest.block is not None:
            for place, names in ((d.first.place, left), (d.second.place, right)):
                if place.nest is not None and place.nest.block is not None:
                    return f"{named(nest.block, mine)} = {named(place.nest.block, names)}"
            return None
        for place, names in ((d.first.place, left), (d.second.place, right)):
            if place.nest is nest:
                return " and ".join(f"{mine[v]} = {names[v]}" for v in nest.names)
        return None

    def unsafe(self, demand: Demand, rest: isl.Set) -> Unsafe:
        """The finding for pairs that no barrier keeps in order."""
        seen = witness(self.events, demand, rest)
        if demand.ordered:
            code, hint = "PF530", f"a barrier of the {demand.scope.value} must come between the two"
        else:
            code, hint = "PF533", "no barrier can come between the two"
        message = f"threads meet in an element with no barrier between: {seen}"
        return Unsafe(code, message, seen, Diagnostic(code, message, hint=hint))


def _diverges(wait: Wait, why: str) -> Unsafe:
    what = f"the barrier '{wait.node.reason}'" if isinstance(wait.node, Barrier) else "a combination of lanes"
    loops = [r.var for r in wait.place.regions if r.loop]
    inside = f" (in the loops {', '.join(map(str, loops))})" if loops else ""
    message = f"not all threads come to {what}{inside}: {why}"
    hint = "it must stand outside of conditions on threads and data"
    return Unsafe("PF531", message, None, Diagnostic("PF531", message, hint=hint))


def _suffices(wait: Wait, demand: Demand) -> bool:
    assert isinstance(wait.node, Barrier)
    return wait.node.scope is BarrierScope.GRID or demand.scope is BarrierScope.BLOCK


def _passed(d: Demand, place: Place) -> bool:
    if not place.inside(d.first.place, d.depth):
        return False
    after = d.first.place < place and _surely(place, place.common(d.first.place))
    ahead = place < d.second.place and _surely(place, place.common(d.second.place))
    if d.carried is not None:
        return after or ahead
    common = max(place.common(d.first.place), place.common(d.second.place))
    return d.first.place < place and place < d.second.place and _surely(place, common)


def _at_times(d: Demand, place: Place) -> bool:
    """May a barrier come between some pairs of a demand, when its place alone does not tell?

    Not if it stands outside of what happens between the two, or is reached once in each iteration.
    """
    depth = d.depth
    if not place.inside(d.first.place, depth):
        return False
    here, ends = place.positions[depth], (d.first.place.positions[depth], d.second.place.positions[depth])
    if d.carried is None and not ends[0] <= here <= ends[1]:
        return False
    inner = place.regions[depth : max(place.common(d.first.place), place.common(d.second.place))]
    return not _surely(place, depth) or any(r.loop for r in inner)


def _every(d: Demand, barriers: Sequence[Wait]) -> bool:
    """Is there a barrier in every iteration of the loop that carries the pair?"""
    return any(w.place.inside(d.first.place, d.depth) and _surely(w.place, d.depth) for w in barriers)


def _surely(place: Place, depth: int) -> bool:
    """Is a place reached whenever its outer `depth` regions are run?"""
    return all(r.always for r in place.regions[depth:])


def _order(first: Place, second: Place, left: Names, right: Names, scope: BarrierScope) -> str:
    common = first.common(second)
    loops: list[Region] = [r for r in first.regions[:common] if r.loop]
    if scope is BarrierScope.GRID:
        loops = [r for r in loops if not r.nest]
    textual = first.positions[common] < second.positions[common]
    return before([r.name for r in loops], left, right, textual)
