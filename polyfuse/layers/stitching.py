"""Layer II: dependent nests stitched into one kernel.

    B(t)B(h)(sum);  B(t)(mu);  B(t)B(h)(y)        becomes        B(t)[B(h)(sum); mu; B(h)(y)]

Nests join where loops of theirs, the *rows*, agree on every element that goes from one to the other: a
subset test on relations, no look at operators.  What is between phases of one row then stays with the
threads of the row (registers, shared memory) or with the worker (L1, L2).  A loop that reduces may be a
row as well: its partial results are combined afterwards.

Sources: AStitch (ASPLOS'22) sections 3 and 4, FusionStitching (2020) section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.schedule_tree import (
    Band,
    Member,
    Tree,
    band,
    sequence,
    statements,
)
from polyfuse.ir.tensor_graph import Role, TensorGraph, statement_reads
from polyfuse.layers.nest import iterations, volume
from polyfuse.poly.domains import PolyModel
from polyfuse.poly.placement import Links


@dataclass(frozen=True, slots=True)
class Filling:
    """What fills a target: so much of what `width` gives for rows and the nest they are around; below
    `small` instances nothing has to."""

    needed: int
    small: int
    width: Callable[[tuple[Member, ...], Tree], int]


@dataclass(frozen=True, slots=True)
class Stitching:
    """Layer II as a pass.

    rows    so many iterations of the rows are always enough to run in parallel (None: what the target
            needs; where fewer are left, kernels are not stitched).
    barriers  kernels in one launch with barriers of the grid between: wherever it can be done (True),
            nowhere (False), or where it pays (None).
    """

    rows: int | None = None
    barriers: bool | None = None

    def groups(
        self, model: PolyModel, nests: list[Tree], filling: Filling, decisions: list[Decision]
    ) -> list[Tree]:
        """Nests that stay kernels of their own, and stitched ones, in an order that respects dependences."""
        stitcher = _Stitcher(model, self, filling, decisions)
        for nest in nests:
            stitcher.add(nest)
        return [g.tree() for g in stitcher.groups]


@dataclass(frozen=True, slots=True)
class _Group:
    """Phases under common rows. Each phase is a tree without the row loops."""

    rows: tuple[Member, ...]
    phases: tuple[Tree, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(n for p in self.phases for n in statements(p))

    def tree(self) -> Tree:
        inner = sequence(list(self.phases))
        if len(self.phases) == 1 and isinstance(inner, Band) and inner.permutable:
            return band([*self.rows, *inner.members], inner.child, True) if self.rows else inner
        return band(list(self.rows), inner, permutable=True)


class _Stitcher:
    def __init__(
        self, model: PolyModel, options: Stitching, filling: Filling, decisions: list[Decision]
    ) -> None:
        self.model = model
        self.graph: TensorGraph = model.graph
        self.options = options
        self.filling = filling
        self.decisions = decisions
        self.groups: list[_Group] = []
        self.links = Links(model)

    def add(self, nest: Tree) -> None:
        """Put a nest into the latest group that takes it, or into one of its own."""
        mine = _group_of(nest)
        for k in range(len(self.groups) - 1, -1, -1):
            group = self.groups[k]
            pairs = self.links.flow(group.names, mine.names)
            if not pairs.is_empty() or not self.links.sharing(group.names, mine.names).is_empty():
                joined = self.join(group, mine)
                if joined is not None:
                    self.groups[k] = joined
                    return
            if not pairs.is_empty():
                break  # it must come after this group
        self.groups.append(mine)

    # --- joining ------------------------------------------------------------------------------------------

    def join(self, group: _Group, mine: _Group) -> _Group | None:
        """One group of both, or None with the reason noted."""
        ties = group.names, mine.names
        pairs = self.links.flow(*ties).union(self.links.sharing(*ties))
        matched: list[tuple[Member, Member]] = []
        left = list(mine.rows)
        for r in group.rows:
            partner = next((m for m in left if self.links.agree(pairs, r, m)), None)
            if partner is not None:
                matched.append((r, partner))
                left.remove(partner)
        what = f"{', '.join(mine.names)} to {', '.join(group.names)}"
        if not matched and (group.rows or mine.rows):
            self.refuse(what, "no loop of the two agrees on what goes from one to the other")
            return None
        joined = _Group(
            tuple(_both(a, b) for a, b in matched),
            (
                *_inside([r for r in group.rows if r not in [a for a, _ in matched]], group.phases),
                *_inside(left, mine.phases),
            ),
        )
        reason = self.too_narrow(joined, group, mine)
        if reason is not None:
            self.refuse(what, reason)
            return None
        saved = self.saved_bytes(group, mine)
        rows = ", ".join(m.name for m in joined.rows) or "nothing"
        self.decisions.append(Decision("stitch", what, True, f"they agree on {rows}", saved_bytes=saved))
        return joined

    def too_narrow(self, joined: _Group, *parts: _Group) -> str | None:
        """Why the rows of a joined group would leave the target idle, if they would."""
        if volume(self.graph, joined.names) < self.filling.small:
            return None
        rows = iterations(self.graph, joined.rows)
        if self.options.rows is not None and rows >= self.options.rows:
            return None
        width = self.width(joined)
        if width >= self.filling.needed or width >= min(self.width(p) for p in parts):
            return None
        loops = ", ".join(m.name for m in joined.rows) or "no loop"
        return f"only {rows} iterations of {loops} would run in parallel"

    def width(self, group: _Group) -> int:
        return self.filling.width(group.rows, group.tree())

    def refuse(self, what: str, reason: str) -> None:
        self.decisions.append(Decision("stitch", what, False, reason))

    def saved_bytes(self, group: _Group, mine: _Group) -> int:
        """Traffic that goes away: what one writes and the other reads, and inputs that both read."""
        if self.graph.sizes:
            return 0
        total = 0
        for t in self.graph.tensors:
            nbytes = evaluate(product(t.shape), {}) * t.dtype.bytes
            written = any(s.name in group.names for s in self.graph.writers(t.name))
            both = [any(self._reads(n, t.name) for n in g.names) for g in (group, mine)]
            if written and both[1]:
                inside = {s.name for s in self.graph.readers(t.name)} <= {*group.names, *mine.names}
                total += nbytes * (2 if inside and t.role is Role.TEMP else 1)
            elif all(both):
                total += nbytes
        return total

    def _reads(self, statement: str, tensor: str) -> bool:
        return any(r.tensor == tensor for r in statement_reads(self.graph.statement(statement)))


def _group_of(nest: Tree) -> _Group:
    """A nest as a group of one phase; rows are its loops without an order."""
    if not isinstance(nest, Band):
        return _Group((), (nest,))
    count = 0
    if nest.permutable:
        rows = tuple(m for m in nest.members if m.coincident)
        rest = tuple(m for m in nest.members if not m.coincident)
        return _Group(rows, (band(list(rest), nest.child, nest.permutable),))
    while count < len(nest.members) and nest.members[count].coincident:
        count += 1
    return _Group(nest.members[:count], (band(list(nest.members[count:]), nest.child, nest.permutable),))


def _inside(loops: list[Member], phases: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """The phases with loops around each of them that are no rows any more."""
    if not loops:
        return phases
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
