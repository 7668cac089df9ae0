"""Groups of nests under common rows: what layer II makes kernels of.

B(t)B(h)(sum)     a group of one phase, rows t and h
B(t)[B(h)(sum); mu; B(h)(y)]     a group of three phases, rows t
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.ir.schedule_tree import Band, Member, Tree, band, sequence, statements
from polyfuse.layers.nest import has_band


@dataclass(frozen=True, slots=True)
class Group:
    """Phases under common rows. Each phase is a tree without the row loops."""

    rows: tuple[Member, ...]
    phases: tuple[Tree, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(n for p in self.phases for n in statements(p))

    @property
    def title(self) -> str:
        return ", ".join(self.names)

    def tree(self) -> Tree:
        inner = sequence(list(self.phases))
        if len(self.phases) == 1 and isinstance(inner, Band) and inner.permutable:
            return band([*self.rows, *inner.members], inner.child, True) if self.rows else inner
        return band(list(self.rows), inner, permutable=True)


def group_of(nest: Tree) -> Group:
    """A nest as a group of one phase; rows are its loops without an order."""
    if not isinstance(nest, Band):
        return Group((), (nest,))
    if nest.permutable:
        rows = tuple(m for m in nest.members if m.coincident)
        rest = tuple(m for m in nest.members if not m.coincident)
        return Group(rows, (band(list(rest), nest.child, nest.permutable),))
    count = 0
    while count < len(nest.members) and nest.members[count].coincident:
        count += 1
    return Group(nest.members[:count], (band(list(nest.members[count:]), nest.child, nest.permutable),))


def united(
    first: Group, second: Group, matched: list[tuple[Member, Member]], together: bool = False
) -> Group:
    """One group of both, the second's phases after the first's; rows that are not matched move inside.

    together: phases that had such a row in common go on sharing it, so that what they touch in one of its
    iterations stays near.
    """
    mine, theirs = [a for a, _ in matched], [b for _, b in matched]
    return Group(
        tuple(_both(a, b) for a, b in matched),
        (
            *_inside([m for m in first.rows if m not in mine], first.phases, together),
            *_inside([m for m in second.rows if m not in theirs], second.phases, together),
        ),
    )


def _inside(loops: list[Member], phases: tuple[Tree, ...], together: bool) -> tuple[Tree, ...]:
    """The phases with loops around them that are no rows any more: one nest if they stay together or have no
    loops of their own, else one of each."""
    if not loops:
        return phases
    if together or not any(map(has_band, phases)):
        phases = (sequence(list(phases)),)
    result = []
    for p in phases:
        mine = [m.restricted(frozenset(statements(p))) for m in loops]
        if isinstance(p, Band) and p.permutable:
            result.append(band([*mine, *p.members], p.child, True))
        else:
            result.append(band(mine, p, permutable=True))
    return tuple(result)


def _both(a: Member, b: Member) -> Member:
    """One loop of the statements of two."""
    return replace(a, exprs=tuple(sorted((*a.exprs, *b.exprs))))
