"""Named changes of schedule trees, for layer I by hand. Nothing here asks whether the result is legal.

A loop is addressed by its name, ``"h"``, where the tree has one such loop, else by a statement below it
and its name, ``"y.h"``; the children of a sequence by any statement in them.  Every function returns a
new tree; `poly.legality.schedules` judges it.  A `coincident` flag is kept where it still follows and dropped
otherwise: `legality.mark_bands` proves it anew.

Errors (ScheduleError): PF520 no such loop or statement, PF521 the address fits several loops,
PF522 the change does not fit the tree at this place, PF523 wrong order or factor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Names
from dataclasses import replace

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.index_expr import IndexLike, binary
from polyfuse.ir.schedule_tree import (
    Band,
    Leaf,
    Member,
    Sequence,
    Tree,
    band,
    map_members,
    path,
    sequence,
    statements,
)

# A loop of a changed band: the member, the place of the loop it comes from, and whether iterations that
# agree on it (and on what is outside) agree on that loop.
Derived = tuple[Member, int, bool]


def interchange(tree: Tree, at: str, order: Names[str]) -> Tree:
    """Reorder the loops of a perfect nest. `at` is one of them, `order` names all of them.

    ``interchange(t, "i", ("j", "i"))``::

        band i (parallel)            band j (ordered)
          band j (ordered)     ->         i (parallel)
            y                        y
    """

    def change(b: Band) -> Tree:
        nest, child, permutable = _nest(b)
        names = [m.name for m in nest]
        if sorted(order) != sorted(names):
            raise _error("PF523", f"'{', '.join(order)}' is no order of the loops {', '.join(names)}")
        moved = [names.index(n) for n in order]
        return Band(_flagged(nest, [(nest[k], k, True) for k in moved]), child, permutable)

    return _at_band(tree, find(tree, at), change, whole_nest=True)


def tile(tree: Tree, at: Names[str], factors: Names[int]) -> Tree:
    """Split loops of a perfect nest; the loops over tiles come first, then those inside a tile.

    ``tile(t, ("i", "j"), (4, 8))``::

        band i: i                    band i_tile: i//4, j_tile: j//8, i: i%4, j: j%8
             j: j              ->      y
          y
    """
    if len(at) != len(factors) or not at or any(f < 1 for f in factors):
        raise _error("PF523", f"loops {', '.join(at)} cannot be split by {', '.join(map(str, factors))}")
    chosen = [find(tree, n) for n in at]

    def change(b: Band) -> Tree:
        nest, child, _ = _nest(b)
        place = {id(m): k for k, m in enumerate(nest)}
        if any(id(m) not in place for m in chosen):
            raise _error("PF522", f"the loops {', '.join(at)} are not in one perfect nest")
        factor = {place[id(m)]: f for m, f in zip(chosen, factors, strict=True)}
        outer: list[Derived] = [
            (replace(_mapped(nest[k], "//", f), name=_tile_name(tree, nest[k])), k, False)
            for k, f in factor.items()
        ]
        inner: list[Derived] = [
            (_mapped(m, "%", factor[k]) if k in factor else m, k, True) for k, m in enumerate(nest)
        ]
        first = min(factor)
        members = _flagged(nest, [*inner[:first], *outer, *inner[first:]])
        return Band(members, child, all(m.coincident for m in members))

    return _at_band(tree, chosen[0], change, whole_nest=True)


def _tile_name(tree: Tree, m: Member) -> str:
    """A name that no loop around the same statements has."""
    near = dict(m.exprs).keys()
    taken = {x.name for x in loops(tree) if not near.isdisjoint(dict(x.exprs))}
    name = f"{m.name}_tile"
    return next(n for k in itertools.count(1) if (n := name if k == 1 else f"{name}{k}") not in taken)


def split(tree: Tree, at: str, factor: int) -> Tree:
    """`tile` of one loop.

    ``split(t, "i", 4)``:  ``band i: i``  ->  ``band i_tile: i//4, i: i%4``
    """
    return tile(tree, (at,), (factor,))


def fuse(tree: Tree, first: str, second: str, at: str | None = None) -> Tree:
    """Run two neighbours in a sequence in common loops: those at their head that have the same names, down to
    the loop `at` if one is named.

    ``fuse(t, "a", "b")``::

        - band i                     band i
            a                  ->      - a
        - band i                       - b
            b
    """

    def change(children: list[Tree], k: int, n: int) -> list[Tree]:
        a, b = children[k], children[n]
        if n != k + 1:
            raise _error("PF522", f"'{second}' does not come right after '{first}'")
        common = _common_loops(a, b)
        if not (isinstance(a, Band) and isinstance(b, Band) and common):
            raise _error("PF522", f"'{first}' and '{second}' have no loops of the same names to share")
        if at is not None:
            heads = [m.name for m in a.members[:common]]
            if at not in heads:
                raise _error("PF522", f"'{first}' and '{second}' can share {', '.join(heads)}, not '{at}'")
            common = heads.index(at) + 1
        rest = [band(list(x.members[common:]), x.child, x.permutable) for x in (a, b)]
        shared = [
            replace(m, exprs=tuple(sorted(m.exprs + o.exprs, key=lambda row: row[0])), coincident=False)
            for m, o in zip(a.members[:common], b.members[:common], strict=True)
        ]
        return [*children[:k], band(shared, sequence(rest)), *children[n + 1 :]]

    return _at_sequence(tree, first, second, change)


def distribute(tree: Tree, at: str) -> Tree:
    """Give each child of a sequence its own copy of the loops around. `at` is a loop of that band.

    ``distribute(t, "i")``::

        band i                       - band i
          - a                  ->        a
          - b                        - band i
                                         b
    """

    def change(b: Band) -> Tree:
        if not isinstance(b.child, Sequence):
            raise _error("PF522", f"below loop {b.members[-1].name} is no sequence to distribute over")
        copies: list[Tree] = []
        for c in b.child.children:
            inside = frozenset(statements(c))
            copies.append(replace(b, members=tuple(m.restricted(inside) for m in b.members), child=c))
        return sequence(copies)

    return _at_band(tree, find(tree, at), change)


def shift(tree: Tree, at: str, statement: str, by: IndexLike) -> Tree:
    """Run a statement `by` iterations later in a loop.

    ``shift(t, "i", "b", 1)``:  ``band i: a->i; b->i``  ->  ``band i: a->i; b->i + 1``
    """
    target = find(tree, at)
    _known(dict(target.exprs), statement, f"under loop {target.name}")

    def on_band(b: Band) -> Tree:
        # What agrees on this loop is new, so nothing is known of the loops inside that others share.
        inside = {id(m) for m in loops(b)} - {id(m) for m in itertools.takewhile(_is_not(target), b.members)}

        def change(m: Member) -> Member:
            by_now = tuple((s, binary("+", e, by) if s == statement else e) for s, e in m.exprs)
            shared = id(m) in inside and len(m.exprs) > 1 and statement in dict(m.exprs)
            return replace(
                m, exprs=by_now if m is target else m.exprs, coincident=m.coincident and not shared
            )

        new = map_members(b, change)
        assert isinstance(new, Band)
        return replace(new, permutable=all(m.coincident for m in new.members))

    return _at_band(tree, target, on_band)


def skew(tree: Tree, at: str, by: str, factor: int = 1) -> Tree:
    """Start a loop `factor` iterations later in each iteration of another loop around it.

    ``skew(t, "i", "t")``:  ``band t: a->t, i: a->i``  ->  ``band t: a->t, i: a->i + t``
    """
    target = find(tree, at)
    names = [n for n, _ in target.exprs]
    outside = {n: _around(tree, n, target) for n in names}
    common = [m for m in outside[names[0]] if all(m in found for found in outside.values())]
    found = next((m for m in common if m.name == loop_name(by)), None)
    if found is None:
        there = ", ".join(m.name for m in common)
        raise _error("PF522", f"loop '{by}' is not around loop '{target.name}'; there are: {there or 'none'}")
    if factor == 0:
        raise _error("PF523", f"loop {target.name} cannot be skewed by 0")

    def change(m: Member) -> Member:
        steps = {s: binary("*", e, abs(factor)) for s, e in found.exprs}
        rows = ((s, binary("+" if factor > 0 else "-", e, steps[s])) for s, e in m.exprs)
        return replace(m, exprs=tuple(rows))

    return _at_member(tree, target, change)


def _around(tree: Tree, statement: str, target: Member) -> list[Member]:
    """The loops of a statement that are around another loop of it."""
    along = (m for m in path(tree, statement) if isinstance(m, Member))
    return list(itertools.takewhile(_is_not(target), along))


def reverse(tree: Tree, at: str) -> Tree:
    """Run a loop backwards.

    ``reverse(t, "i")``:  ``band i: a->i``  ->  ``band i: a->0 - i``
    """

    def change(m: Member) -> Member:
        return replace(m, exprs=tuple((s, binary("-", 0, e)) for s, e in m.exprs))

    return _at_member(tree, find(tree, at), change)


def rename(tree: Tree, at: str, name: str) -> Tree:
    """Give a loop another name, so that `fuse` finds it."""
    target = find(tree, at)
    near = dict(target.exprs).keys()
    if any(m.name == name and not near.isdisjoint(dict(m.exprs)) for m in loops(tree)):
        raise _error("PF521", f"there is a loop '{name}' around the same statements")

    def on_band(b: Band) -> Tree:
        return replace(b, members=tuple(replace(m, name=name) if m is target else m for m in b.members))

    return _at_band(tree, target, on_band)


def move(tree: Tree, statement: str, *, before: str | None = None, after: str | None = None) -> Tree:
    """Move a child that holds one statement only to another place in its sequence.

    ``move(t, "c", before="a")``:  ``a; b; c``  ->  ``c; a; b``
    """
    anchor = before if before is not None else after
    if anchor is None or (before is not None and after is not None):
        raise _error("PF523", "give one of before= and after=")

    def change(children: list[Tree], k: int, n: int) -> list[Tree]:
        if statements(children[k]) != (statement,):
            inside = ", ".join(statements(children[k]))
            raise _error("PF522", f"'{statement}' shares its place in the sequence with others: {inside}")
        moved, neighbour = children[k], children[n]
        rest = [c for c in children if c is not moved]
        place = next(p for p, c in enumerate(rest) if c is neighbour) + (before is None)
        return [*rest[:place], moved, *rest[place:]]

    return _at_sequence(tree, statement, anchor, change)


def reorder(tree: Tree, order: Names[str]) -> Tree:
    """Put the children of a sequence in the given order; each is named by one of its statements.

    ``reorder(t, ("b", "a"))``:  ``a; b``  ->  ``b; a``
    """
    if len(order) < 2:
        raise _error("PF523", "an order needs two statements or more")

    def change(children: list[Tree], _k: int, _n: int) -> list[Tree]:
        places = [k for s in order for k, c in enumerate(children) if s in statements(c)]
        if sorted(places) != list(range(len(children))):
            inside = "; ".join(", ".join(statements(c)) for c in children)
            raise _error("PF523", f"'{', '.join(order)}' does not name each child once: {inside}")
        return [children[k] for k in places]

    return _at_sequence(tree, order[0], order[1], change)


# --- addresses -------------------------------------------------------------------------------------


def loops(tree: Tree) -> list[Member]:
    """All members, outermost first, in order of the leaves."""
    match tree:
        case Leaf():
            return []
        case Sequence(children):
            return [m for c in children for m in loops(c)]
        case Band(members, child):
            return [*members, *loops(child)]


def apart(tree: Tree, statement: str, other: str) -> tuple[str, ...]:
    """The statements that are together with one where the tree parts it from another."""
    match tree:
        case Band(_, child):
            return apart(child, statement, other)
        case Sequence(children):
            inside = next(c for c in children if statement in statements(c))
            return apart(inside, statement, other) if other in statements(inside) else statements(inside)
        case Leaf():
            raise AssertionError("one leaf holds no two statements")


def nest_of(tree: Tree, at: str) -> list[str]:
    """The addresses of the loops of the perfect nest that a loop is in, outermost first."""
    found: list[str] = []
    names = [m.name for m in loops(tree)]

    def note(b: Band) -> Tree:
        for m in _nest(b)[0]:
            found.append(m.name if names.count(m.name) == 1 else f"{_first(m)}.{m.name}")
        return b

    _at_band(tree, find(tree, at), note, whole_nest=True)
    return found


def loop_name(at: str) -> str:
    """The name of the loop of an address."""
    return _parts(at)[1]


def _parts(at: str) -> tuple[str, str]:
    statement, _, name = at.rpartition(".")
    return statement, name


def find(tree: Tree, at: str) -> Member:
    """The loop of an address. Raises ScheduleError PF520, PF521."""
    statement, name = _parts(at)
    known = loops(tree)
    if statement:
        _known(statements(tree), statement, "in the tree")
    found = [m for m in known if m.name == name and (not statement or statement in dict(m.exprs))]
    if len(found) == 1:
        return found[0]
    if found:
        ways = ", ".join(f"'{_first(m)}.{m.name}'" for m in found)
        raise _error("PF521", f"'{at}' may be any of several loops: {ways}")
    there = ", ".join(dict.fromkeys(m.name for m in known if not statement or statement in dict(m.exprs)))
    where = f"around '{statement}'" if statement else "in the tree"
    raise _error("PF520", f"there is no loop '{name}' {where}; there are: {there or 'none'}")


def _first(m: Member) -> str:
    return m.exprs[0][0]


def _known(names: Iterable[str], statement: str, where: str) -> None:
    inside = list(names)
    if statement not in inside:
        there = ", ".join(inside)
        raise _error("PF520", f"there is no statement '{statement}' {where}; there are: {there}")


def _error(code: str, message: str) -> ScheduleError:
    return ScheduleError(message, code=code)


# --- rebuilding ------------------------------------------------------------------------------------


def _at_band(tree: Tree, member: Member, change: Callable[[Band], Tree], whole_nest: bool = False) -> Tree:
    """Rebuild with the band that holds `member` changed, or the topmost band of its perfect nest."""
    match tree:
        case Leaf():
            return tree
        case Sequence(children):
            return sequence([_at_band(c, member, change, whole_nest) for c in children])
        case Band(members, child):
            inside = _nest(tree)[0] if whole_nest else members
            if any(m is member for m in inside):
                return change(tree)
            return replace(tree, child=_at_band(child, member, change, whole_nest))


def _is_not(member: Member) -> Callable[[Member], bool]:
    return lambda m: m is not member


def _at_member(tree: Tree, member: Member, change: Callable[[Member], Member]) -> Tree:
    """Rebuild with one loop changed; its band stays permutable only if all its loops are parallel."""

    def on_band(b: Band) -> Tree:
        members = tuple(change(m) if m is member else m for m in b.members)
        return Band(members, b.child, all(m.coincident for m in members))

    return _at_band(tree, member, on_band)


def _at_sequence(
    tree: Tree, first: str, second: str, change: Callable[[list[Tree], int, int], list[Tree]]
) -> Tree:
    """Rebuild the sequence in which two statements part, given their places in it."""
    for s in (first, second):
        _known(statements(tree), s, "in the tree")
    if first == second:
        raise _error("PF522", f"'{first}' is named twice")
    match tree:
        case Band(_, child):
            return replace(tree, child=_at_sequence(child, first, second, change))
        case Sequence(children):
            place = {s: k for k, c in enumerate(children) for s in statements(c)}
            k, n = place[first], place[second]
            if k != n:
                return sequence(change(list(children), k, n))
            new = list(children)
            new[k] = _at_sequence(children[k], first, second, change)
            return sequence(new)
        case Leaf():
            raise AssertionError("one leaf holds no two statements")


def _nest(b: Band) -> tuple[tuple[Member, ...], Tree, bool]:
    """All loops of the perfect nest from a band on, what is below it, and whether that is permutable."""
    members, permutable = b.members, b.permutable
    child = b.child
    while isinstance(child, Band):
        members, child, permutable = members + child.members, child.child, False
    return members, child, permutable or all(m.coincident for m in members)


def _flagged(old: tuple[Member, ...], new: list[Derived]) -> tuple[Member, ...]:
    """The new loops; one stays parallel if each loop that was around it still is, or was parallel itself."""
    flagged = []
    agreed: set[int] = set()
    for m, origin, complete in new:
        around = all(k in agreed or old[k].coincident for k in range(origin))
        flagged.append(replace(m, coincident=old[origin].coincident and around))
        if complete:
            agreed.add(origin)
    return tuple(flagged)


def _mapped(m: Member, op: str, factor: int) -> Member:
    return replace(m, exprs=tuple((s, binary(op, e, factor)) for s, e in m.exprs))


def _common_loops(a: Tree, b: Tree) -> int:
    """How many loops at the head of two trees have the same names."""
    if not (isinstance(a, Band) and isinstance(b, Band)):
        return 0
    count = 0
    for m, o in zip(a.members, b.members, strict=False):
        if m.name != o.name:
            break
        count += 1
    return count
