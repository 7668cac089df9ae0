"""Groups of nests under common rows: what layer II makes kernels of."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.schedule_tree import Band, Member, Tree, band, sequence, statements


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
