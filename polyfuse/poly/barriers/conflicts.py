"""Pairs of accesses that two threads must not make at the same time, and in which order they come.

For every two accesses of the same storage, one of them a write, and for threads of one block as well as
of different blocks, a `Demand` is one way in which the first can come before the second:

    carried      a common loop is in an earlier iteration (or: the block runs an earlier iteration)
    in order     common loops are in the same iteration, and the first stands before the second
    unordered    the same place, or a place that threads reach on different ways: no barrier can be between

A demand is kept by a barrier between the two, or because isl finds no such pair of one element.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import islpy as isl

from polyfuse.ir.index_expr import IndexExpr
from polyfuse.ir.kernel import Scope
from polyfuse.ir.linear import Range
from polyfuse.ir.loop_ir import BarrierScope
from polyfuse.poly.barriers.index_digits import Facts, Side, determined, of_place
from polyfuse.poly.barriers.loop_events import LANE, Access, Events, Wait
from polyfuse.poly.barriers.loop_regions import BLOCK, DATA, STRIDE, THREAD, Nest, Place, Region
from polyfuse.poly.model.isl_bridge import NotAffine, index_text, new_context, params_prefix, size_id

_VARIABLE = re.compile(r"\bi_(\w+)")

Names = Mapping[str, str]


def named(text: str, names: Names) -> str:
    """Canonical variables replaced by those of one event."""
    return _VARIABLE.sub(lambda m: names[m.group(1)], text)


def own_names(
    access: Access, side: str, shared: frozenset[str], ranges: Mapping[str, Range]
) -> dict[str, str]:
    """Names of an access's variables in a pair; those in `shared` are the same on both sides, and what is
    always 0 has no name."""
    mine = [r.name for r in access.place.regions if r.loop] + ["tx", "ty"]
    if access.count > 1:
        mine.append(LANE)
    return {v: "0" if ranges.get(v) == (0, 0) else f"{'c' if v in shared else side}_{v}" for v in mine}


def dims_of(left: Names, right: Names) -> list[str]:
    """The variables of a pair."""
    return [n for n in dict.fromkeys((*left.values(), *right.values())) if n != "0"]


@dataclass(frozen=True, slots=True)
class Demand:
    """`carried` is the common region (by depth) that carries the pair; `scope` the barrier it takes."""

    first: Access
    second: Access
    scope: BarrierScope
    carried: int | None
    ordered: bool
    shared: frozenset[str]

    @property
    def depth(self) -> int:
        """A barrier for this pair must be inside that many common regions."""
        return self.first.place.common(self.second.place) if self.carried is None else self.carried + 1


def steady(region: Region, scope: BarrierScope, joined: frozenset[int]) -> bool:
    """Do all threads concerned take the same way here?  `joined`: regions where this is proved by isl."""
    if region.number in joined:
        return True
    differ = {THREAD, DATA} if scope is BarrierScope.BLOCK else {THREAD, DATA, BLOCK}
    return not region.varies & differ


def demands(events: Events, joined: frozenset[int]) -> Iterator[list[Demand]]:
    """All demands, those of a pair of accesses and a scope together."""
    by_storage: dict[str, list[Access]] = {}
    for a in events.accesses:
        by_storage.setdefault(a.storage, []).append(a)
    facts: dict[Place, Facts] = {}
    for accesses in by_storage.values():
        distinct = list(dict.fromkeys(accesses))
        for a, b in itertools.combinations_with_replacement(distinct, 2):
            if not (a.write or b.write) or (a.atomic and b.atomic):
                continue
            blocks = _names(a.place.nest) if a.place.nest is b.place.nest else set()
            left, right = (_side(x, facts, events.ranges) for x in (a, b))
            same = determined(left, right, {"tx", "ty", *blocks}) if a.layout == b.layout else set()
            if not {"tx", "ty"} <= same:
                yield list(_of_pair(a, b, BarrierScope.BLOCK, joined))
            elsewhere = a.scope is not Scope.SHARED and events.blocks != 1
            if elsewhere and not (blocks and blocks <= same):
                yield list(_of_pair(a, b, BarrierScope.GRID, joined))


def _side(a: Access, facts: dict[Place, Facts], ranges: Mapping[str, Range]) -> Side:
    if a.place not in facts:
        facts[a.place] = of_place(ranges, (r.test for r in a.place.regions if r.test is not None))
    return Side(a.indices, a.count, facts[a.place])


def _of_pair(a: Access, b: Access, scope: BarrierScope, joined: frozenset[int]) -> Iterator[Demand]:
    common = a.place.common(b.place)
    regions = a.place.regions[:common]
    limit = next((k for k, r in enumerate(regions) if not steady(r, scope, joined)), common)
    shared: list[str] = []
    nest = a.place.nest
    strided = nest is not None and nest is b.place.nest and not nest.once
    for k, r in enumerate(regions[:limit]):
        if not r.loop:
            continue
        if r.nest and scope is BarrierScope.GRID:
            continue  # different blocks: a coordinate, not time
        last = nest is not None and r.name == nest.names[-1]
        if not r.nest or (strided and last):
            outer = frozenset(shared) - _names(nest) if r.nest else frozenset(shared)
            yield Demand(a, b, scope, k, True, outer)
            if a is not b:
                yield Demand(b, a, scope, k, True, outer)
        shared.append(r.name)
    left, right = a.place.positions[common], b.place.positions[common]
    branches = left // STRIDE == right // STRIDE and left != right
    if branches and limit == common and steady(a.place.regions[common], scope, joined):
        return  # two branches of a condition that is the same for all: only one is taken
    ordered = limit == common and left // STRIDE != right // STRIDE
    first, second = (b, a) if b.place < a.place else (a, b)
    yield Demand(first, second, scope, None, ordered, frozenset(shared))


def _names(nest: Nest | None) -> set[str]:
    return set() if nest is None else set(nest.names)


# --- conflicts as sets --------------------------------------------------------------------------------------


class Conflicts:
    """Sets of pairs that touch the same element, in one isl context; asked for often, made once."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.context = new_context()
        self.sets: dict[tuple[str, str], isl.Set] = {}

    def anything(self, pair: list[Demand]) -> bool:
        """Do threads ever meet in an element, whatever the order?"""
        d = pair[0]
        dims, terms = self.pair(d.first, d.second, frozenset())
        terms += self.apart(d.first, d.second, d.scope, *dims, d.first is d.second)
        return not self.set(dims, terms).is_empty()

    def of(self, d: Demand, near: bool) -> isl.Set:
        """The pairs of a demand; `near`: only those of neighbouring iterations."""
        names, terms = self.pair(d.first, d.second, d.shared)
        mirrored = d.first is d.second and d.carried is None
        terms += self.apart(d.first, d.second, d.scope, *names, mirrored)
        return self.set(names, terms + self.order(d, *names, near))

    def set(self, names: tuple[Names, Names], terms: list[str]) -> isl.Set:
        dims = ", ".join(dims_of(*names))
        body = " and ".join(dict.fromkeys(terms)) or "true"
        if (dims, body) not in self.sets:
            text = f"{params_prefix(self.events.sizes)}{{ [{dims}] : {body} }}"
            self.sets[dims, body] = isl.Set.read_from_str(self.context, text)
        return self.sets[dims, body]

    def pair(
        self, a: Access, b: Access, shared: frozenset[str]
    ) -> tuple[tuple[dict[str, str], dict[str, str]], list[str]]:
        """Names of both sides, and: both happen, to one element."""
        ranges = self.events.ranges
        names = own_names(a, "a", shared, ranges), own_names(b, "b", shared, ranges)
        terms = [f"{size_id(n)} >= 0" for n in self.events.sizes]
        for access, mine in zip((a, b), names, strict=True):
            terms += self.happens(access.place, mine)
            terms += [f"({named(g, mine)})" for g in access.guards]
            if access.count > 1:
                terms.append(f"0 <= {mine[LANE]} < {access.count}")
        alike = a.layout == b.layout
        for k, (i, j) in enumerate(zip(a.indices, b.indices, strict=True) if alike else ()):
            last = k == len(a.indices) - 1
            texts = [_index(e, x, n, last) for e, x, n in ((i, a, names[0]), (j, b, names[1]))]
            if None not in texts and texts[0] != texts[1]:
                terms.append(f"{texts[0]} = {texts[1]}")
        return names, terms

    def happens(self, place: Place, names: Names) -> list[str]:
        terms = [f"0 <= {names[v]} < {n}" for v, n in zip(("tx", "ty"), self.events.threads, strict=True)]
        return terms + [f"({named(c, names)})" for r in place.regions for c in r.conditions]

    def apart(
        self, a: Access, b: Access, scope: BarrierScope, left: Names, right: Names, mirrored: bool
    ) -> list[str]:
        """Different threads of one block, or different blocks.

        `mirrored`: both are the same access, so it is enough to look at one of two mirrored pairs.
        """
        differ = "<" if mirrored else "!="
        blocks = self.blocks(a.place.nest, b.place.nest, left, right)
        if scope is BarrierScope.BLOCK:
            size = self.events.threads[0]
            threads = f"{left['tx']} + {size} * {left['ty']} {differ} {right['tx']} + {size} * {right['ty']}"
            return [threads] if blocks is None or blocks[0] == blocks[1] else [threads, " = ".join(blocks)]
        if blocks is not None:
            return [f" {differ} ".join(blocks)]
        if a.place.nest is not None and a.place.nest is b.place.nest:
            return [f"({' or '.join(f'{left[v]} != {right[v]}' for v in a.place.nest.names)})"]
        return []

    def blocks(self, a: Nest | None, b: Nest | None, left: Names, right: Names) -> tuple[str, str] | None:
        """The numbers of the blocks of two events; None if one is run by all blocks, or not known."""
        if a is None or b is None or a.block is None or b.block is None:
            return None
        return named(a.block, left), named(b.block, right)

    def order(self, d: Demand, left: Names, right: Names, near: bool) -> list[str]:
        """First before second in the loop that carries the pair."""
        if d.carried is None:
            return []
        region = d.first.place.regions[d.carried]
        nest = d.first.place.nest
        if not region.nest or nest is None:
            a, b = left[region.name], right[region.name]
            return [f"{b} = {a} + 1" if near else f"{a} < {b}"]
        if nest.number is None or nest.blocks is None:
            return [before(list(nest.names), left, right, False)]
        a, b = named(nest.number, left), named(nest.number, right)
        return [f"{b} = {a} + {nest.blocks}" if near else f"{a} < {b}"]


def _index(e: IndexExpr | None, access: Access, names: Names, last: bool) -> str | None:
    if e is None:
        return None
    try:
        text = named(index_text(e), names)
    except NotAffine:
        return None
    return f"{text} + {names[LANE]}" if last and access.count > 1 else text


def before(loops: list[str], left: Names, right: Names, textual: bool) -> str:
    """isl text: earlier in lexicographic order of loops; `textual`: or in all the same iteration."""
    choices: list[str] = []
    same: list[str] = []
    for v in loops:
        choices.append(" and ".join([*same, f"{left[v]} < {right[v]}"]))
        same.append(f"{left[v]} = {right[v]}")
    if textual:
        choices.append(" and ".join(same) or "true")
    return "(" + (" or ".join(f"({c})" for c in choices) or "false") + ")"


# --- barriers in program order ----------------------------------------------------------------------------

# Barriers in program order: which of them can come between the two accesses of a demand?
#
# A barrier that keeps a pair in order stands inside the regions that both accesses must share
# (`Demand.depth`); and, where no loop carries the pair, between the two. Those follow each other in program
# order, so a search finds them, and the others need not be asked. So what one barrier is for is found among
# the demands that it can come between, not among all.


# Behind every position of a block.
_LAST = 1 << 62


class Barriers:
    """Some barriers of a kernel, in program order."""

    def __init__(self, waits: Iterable[Wait]) -> None:
        self.waits = sorted(waits, key=_position)

    def add(self, wait: Wait) -> None:
        insort(self.waits, wait, key=_position)

    def remove(self, wait: Wait) -> None:
        self.waits = [w for w in self.waits if w is not wait]

    def between(self, d: Demand, but: Wait | None = None) -> list[Wait]:
        """Those that can keep a demand, less one."""
        first, second, depth = d.first.place.positions, d.second.place.positions, d.depth
        low, high = first[:depth], (*first[:depth], _LAST)
        if d.carried is None:
            low, high = (*low, first[depth]), (*high[:depth], second[depth], _LAST)
        start = bisect_left(self.waits, low, key=_position)
        end = bisect_right(self.waits, high, key=_position)
        return [w for w in self.waits[start:end] if w is not but]


def concerned(demands: Sequence[Demand], barriers: Barriers) -> dict[int, list[Demand]]:
    """The demands that each barrier, by its `id`, can come between."""
    found: dict[int, list[Demand]] = {id(w): [] for w in barriers.waits}
    for d in demands:
        for w in barriers.between(d):
            found[id(w)].append(d)
    return found


def _position(wait: Wait) -> tuple[int, ...]:
    return wait.place.positions
