"""Layer II: dependent nests stitched into one kernel.

    B(t)B(h)(sum);  B(t)(mu);  B(t)B(h)(y)        becomes        B(t)[B(h)(sum); mu; B(h)(y)]

Nests join where loops of theirs, the *rows*, agree on every element that goes from one to the other: a
subset test on relations, no look at operators.  What is between phases of one row then stays with the
threads of the row (registers, shared memory) or with the worker (L1, L2).  A loop that reduces may be a
row as well: its partial results are combined afterwards.  On a CPU nests join that define pieces of the same
rows of a tensor as well.  Whether it pays says the cost model.

Sources: AStitch (ASPLOS'22) sections 3 and 4, FusionStitching (2020) section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from polyfuse.cost.extents import OPEN_SIZE
from polyfuse.cost.machines import machine_of
from polyfuse.cost.stitching_gain import MARGIN, StitchingCost, microseconds
from polyfuse.decisions import Decision, format_bytes
from polyfuse.ir.functions import has_function
from polyfuse.ir.index_expr import IVar, variables
from polyfuse.ir.schedule_tree import Band, Member, Tree, band, restrict, sequence, statements
from polyfuse.ir.target import Target, as_target
from polyfuse.ir.tensor_graph import Role, TensorGraph, depends_on, plain_variables, statement_reads
from polyfuse.layers.fusion.rematerialise import too_large
from polyfuse.layers.graph.domains import sums_windows
from polyfuse.layers.graph.fission import FEWEST_AGAIN
from polyfuse.layers.graph.inline import inlinable, inline
from polyfuse.layers.mapping.loop_order import walked
from polyfuse.layers.mapping.nests import has_band, side_by_side, volume
from polyfuse.layers.stitching.figures import Figures
from polyfuse.layers.stitching.group import Group, group_of
from polyfuse.layers.stitching.schemes import dominants
from polyfuse.poly.model.domains import PolyModel, build_model
from polyfuse.poly.scheduling.placement import Links

# --- groups -----------------------------------------------------------------------------------------------

# Groups of nests under common rows: what layer II makes kernels of.
#
# B(t)B(h)(sum)     a group of one phase, rows t and h
# B(t)[B(h)(sum); mu; B(h)(y)]     a group of three phases, rows t


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


# --- rematerialisation ------------------------------------------------------------------------------------

# Recompute rather than store what goes from one group of nests to another, where that is faster.
#
#     e[t, h] = exp(x[t, h] - m[t]);  d[t] = sum[h](e[t, h])    in one kernel
#     y[t, h] = e[t, h] / d[t]                                  in the next
#
# moves e twice; with exp(x[t, h] - m[t]) in its place y reads x and m instead.  Layer I does the same by
# bytes alone and before it is known what shares a kernel; here the cost model has groups to judge, and weighs
# operations as well.


# Functions of fewer elements take no longer than a kernel of their own.
FEWEST_REPEATED = 8192


def crossing(graph: TensorGraph, groups: Sequence[Group]) -> Iterator[str]:
    """Temporaries that go from one group to another and could be recomputed, in order of the graph."""
    place = {n: k for k, g in enumerate(groups) for n in g.names}
    for t in graph.tensors:
        if t.role is not Role.TEMP or not t.shape:
            continue
        made = {place[s.name] for s in graph.writers(t.name)}
        if {place[s.name] for s in graph.readers(t.name)} - made and inlinable(graph, t.name) is not None:
            yield t.name


def without(graph: TensorGraph, trees: Iterable[Tree]) -> list[Tree]:
    """Trees without the statements that a graph has no more."""
    keep = frozenset(s.name for s in graph.statements)
    return [r for t in trees if (r := restrict(t, keep)) is not None]


def saved_seconds(
    graph: TensorGraph, groups: Sequence[Group], tensor: str, target: Target, cost: StitchingCost
) -> float:
    """What the groups as they are gain if a temporary is recomputed (negative: lose); 0.0 if that is within
    what the model is wrong by, or if vector loops would repeat a function: the model counts its values."""
    if target.vector_loops and _repeats(graph, tensor):
        return 0.0
    now = Figures(graph, target)
    before = cost.seconds([now(g) for g in groups])
    fewer = inline(graph, tensor)
    then = Figures(fewer, target)
    left = [g for h in groups if (g := _restricted(fewer, h)) is not None]
    after = cost.seconds([then(g) for g in left])
    return before - after if max(before, after) > min(before, after) * MARGIN else 0.0


def _repeats(graph: TensorGraph, tensor: str) -> bool:
    """Would loops compute the functions of a temporary again and again, innermost, if its readers did it?"""
    producer = inlinable(graph, tensor)
    if producer is None or not has_function(producer.expr):
        return False
    size = volume(graph, (producer.name,))
    return any(
        depends_on(*r.indices) & (plain_variables(s.write[-1:]) | set(s.reduction_dims))
        for s in graph.readers(tensor)
        for r in statement_reads(s)
        if r.tensor == tensor and volume(graph, (s.name,)) >= max(FEWEST_AGAIN * size, FEWEST_REPEATED)
    )


def _restricted(graph: TensorGraph, group: Group) -> Group | None:
    phases = tuple(without(graph, group.phases))
    inside = frozenset(n for p in phases for n in statements(p))
    return Group(tuple(m.restricted(inside) for m in group.rows), phases) if phases else None


# --- layer II ---------------------------------------------------------------------------------------------

# Pieces of longer rows share one line of 32 or more.
LONGEST_ROW = 2048
# Pieces of one row in a kernel, at most: as many statements as a cluster has.
MOST_PIECES = 40


@dataclass(frozen=True, slots=True)
class Stitching:
    """Layer II as a pass: dependent kernels become phases of one.

    Parameters
    ----------
    rows
        So many iterations of the rows are enough to run in parallel, and fewer are not (None: what the cost
        model says; where kernels of their own are faster, they are not stitched).
    barriers
        Kernels in one launch with barriers of the grid between: wherever it can be done (True), nowhere
        (False), or where it pays (None).
    online
        A reduction and a sum that needs its total in one pass over memory: True, False or None as for
        `barriers`.

    Notes
    -----
    AStitch (ASPLOS 2022), sections 3 and 4; FusionStitching (2020), section 4.

    Examples
    --------
    >>> f = pf.compile("stdlib:softmax", stitching=pf.Stitching(barriers=False), target="interpret")
    >>> f(np.zeros((1, 4), "f4"))
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """

    rows: int | None = None
    barriers: bool | None = None
    online: bool | None = None

    def run(
        self, graph: TensorGraph, nests: list[Tree], target: Target | int, decisions: list[Decision]
    ) -> tuple[TensorGraph, list[Tree]]:
        """Nests that stay kernels of their own, and stitched ones, in an order that respects dependences; the
        graph less what is recomputed instead.

        Parameters
        ----------
        graph, nests
            The statements, and their loop nests in order.
        target
            What kernels are for; a number is a CPU with so many threads.
        decisions
            The list that what is decided goes to.
        """
        target = as_target(target)
        found = self._grouped(graph, nests, target)
        refused: dict[str, Decision] = {}
        while (taken := self._recomputed(graph, found, target, refused)) is not None:
            decisions.append(taken)
            graph = inline(graph, taken.subject)
            nests = without(graph, nests)
            found = self._grouped(graph, nests, target)
        found.name_dominants()
        decisions += [*refused.values(), *found.decisions]
        if len(nests) == 1 and any(s.reduction for s in graph.statements):
            why = "one nest has all of it: nothing goes from one kernel to another"
            decisions.append(Decision("stitch", found.groups[0].title, False, why))
        return graph, [g.tree() for g in found.groups]

    def _grouped(self, graph: TensorGraph, nests: list[Tree], target: Target) -> Stitcher:
        stitcher = Stitcher(build_model(graph), self, target)
        for nest in nests:
            stitcher.add(nest)
        return stitcher

    def _recomputed(
        self, graph: TensorGraph, found: Stitcher, target: Target, refused: dict[str, Decision]
    ) -> Decision | None:
        """What to recompute in the groups that read it; `refused` has what is not worth it."""
        for tensor in crossing(graph, found.groups):
            if tensor in refused:
                continue
            if (large := too_large(graph.writers(tensor)[0])) is not None:
                refused[tensor] = Decision("recompute", tensor, False, large)
                continue
            saved = saved_seconds(graph, found.groups, tensor, target, found.cost)
            if saved > 0:
                return Decision("recompute", tensor, True, f"{microseconds(saved)} less than storing it")
            why = (
                f"{microseconds(-saved)} more than storing it" if saved else "it takes as long as storing it"
            )
            refused[tensor] = Decision("recompute", tensor, False, why)
        return None


@dataclass(frozen=True, slots=True)
class AsWritten(Stitching):
    """Kernels of the nests of a schedule as they were made by hand: one for each, nothing else joined."""

    tree: Tree | None = None

    def run(
        self, graph: TensorGraph, nests: list[Tree], target: Target | int, decisions: list[Decision]
    ) -> tuple[TensorGraph, list[Tree]]:
        """The nests of the tree, in place of the phases that they are cut into."""
        assert self.tree is not None
        return graph, side_by_side(self.tree)


class Stitcher:
    """Groups so far, in an order that respects dependences."""

    def __init__(self, model: PolyModel, options: Stitching, target: Target) -> None:
        self.model = model
        self.graph: TensorGraph = model.graph
        self.options = options
        self.decisions: list[Decision] = []
        self.groups: list[Group] = []
        self.apart: list[tuple[frozenset[str], frozenset[str]]] = []
        self.full: set[tuple[str, ...]] = set()
        self.links = Links(model)
        self.figures = Figures(model.graph, target)
        self.cost = StitchingCost(machine_of(target))

    def add(self, nest: Tree) -> None:
        """Join a nest with all groups that take it, the latest first; else it is a group of its own."""
        mine = group_of(nest)
        earlier = list(self.groups)
        self.groups.append(mine)
        for other in reversed(earlier):
            if not self.tied(other, mine) or self.known_apart(other, mine):
                continue
            order = self.around(other, mine)
            joined = self.join(other, mine) if order is not None else None
            if order is not None and joined is not None:
                before, after = order
                self.groups = [*before, joined, *after]
                mine = joined

    def tied(self, first: Group, second: Group) -> bool:
        """Does something go from one to the other, do both read one element, or are they pieces of rows?"""
        return self.links.tied(first.names, second.names) or self.beside(first, second)

    def beside(self, first: Group, second: Group) -> bool:
        """On a CPU: do they define parts of the same rows, whose lines come and go together then?

        Not so for long rows that no cache holds: they share few lines, and what the next row reads would wait
        behind what is written."""
        tensors = self.links.pieces(first.names, second.names)
        if not self.figures.target.row_caches or not tensors:
            return False
        if len(first.names) + len(second.names) > MOST_PIECES:
            self.note_full(first, second)
            return False
        if not self.matched(first, second):
            return False
        touched = self.figures(first).nbytes + self.figures(second).nbytes
        cached = touched <= self.cost.machine.cache_bytes
        return cached or max(map(self.figures.row_bytes, tensors)) <= LONGEST_ROW

    def known_apart(self, first: Group, second: Group) -> bool:
        """Were parts of these two groups found not to agree?"""
        return any(a <= set(first.names) and b <= set(second.names) for a, b in self.apart)

    def around(self, first: Group, second: Group) -> tuple[list[Group], list[Group]] | None:
        """What runs before and after the two as one, or None if something must run between them."""
        low, high = self.groups.index(first), self.groups.index(second)
        before, after = self.groups[:low], list[Group]()
        for g in self.groups[low + 1 : high]:
            late = any(self.links.leads(x.names, g.names) for x in (first, *after))
            (after if late else before).append(g)
        if any(self.links.leads(g.names, second.names) for g in after):
            return None
        return before, [*after, *self.groups[high + 1 :]]

    def name_dominants(self) -> None:
        """A decision for each dominant that others follow."""
        for g in self.groups:
            for d in dominants(self.model, g.names, self.links) if len(g.names) > 1 else ():
                if d.followers:
                    self.decisions.append(Decision("dominant", d.name, True, d.followers))

    # --- joining ------------------------------------------------------------------------------------------

    def join(self, first: Group, second: Group) -> Group | None:
        """One group of both, or None with the reason noted."""
        matched = self.matched(first, second)
        if not matched and (first.rows or second.rows):
            self.apart.append((frozenset(first.names), frozenset(second.names)))
            parts = self.figures(first), self.figures(second)
            both = self.figures(united(first, second, []))
            between = format_bytes(sum(p.nbytes for p in parts) - both.nbytes)
            why = (
                f"no loop of the two agrees on what goes from one to the other; {between} pass through memory"
            )
            self.refuse(first, second, why)
            return None
        joined = united(first, second, matched, self.together(first) or self.together(second))
        gain = self.cost(self.figures(first), self.figures(second), self.figures(joined))
        rows = ", ".join(m.name for m in joined.rows)
        asked = self.options.rows
        count = self.figures.rows(joined)
        if not gain.pays if asked is None else count < asked:
            why = f"only {count} iterations of {rows or 'no loop'} would run in parallel"
            why = why if gain.parallelism > 0 or asked is not None else "it would not pay"
            why += f", not the {asked} asked for" if asked is not None else ""
            self.refuse(first, second, f"{why}: {self.words(str(gain))}")
            return None
        reason = f"they agree on {rows or 'nothing'}: {self.words(gain.brief)}"
        saved = None if self.graph.sizes else int(gain.traffic_bytes)
        self.decisions.append(Decision("stitch", _what(first, second), True, reason, saved_bytes=saved))
        return joined

    def together(self, group: Group) -> bool:
        """Do phases go on sharing a loop that is no row any more? On a CPU, where what it touches stays in a
        cache, and where the ranges of loops inside follow it: those are chunks."""
        if self.figures.target.row_caches:
            return True
        moving = {n: {v for m in group.rows for v in variables(m.of(n))} for n in group.names}
        dims = ((n, e) for n in group.names for d in self.graph.statement(n).dims for e in (d.lower, d.upper))
        return any(moving[n] & set(variables(e)) for n, e in dims)

    def matched(self, first: Group, second: Group) -> list[tuple[Member, Member]]:
        """Rows of the two that agree on every element that ties them."""
        ties = first.names, second.names
        if self.links.tied(*ties):
            pairs = self.links.flow(*ties).union(self.links.sharing(*ties))
        else:
            pairs = self.links.beside(*ties)
            if pairs.is_empty():
                return []
        found: list[tuple[Member, Member]] = []
        left = list(second.rows)
        for r in first.rows:
            partner = next((m for m in left if self.links.agree(pairs, r, m)), None)
            if partner is not None:
                found.append((r, partner))
                left.remove(partner)
        found = [x for x in found if not self.crosses_memory((first, second), x, found)]
        rows = [x for x in found if not self.fills_lanes(first, second, *x)]
        return rows or found

    def crosses_memory(
        self, groups: tuple[Group, Group], pair: tuple[Member, Member], rows: list[tuple[Member, Member]]
    ) -> bool:
        """On a CPU: would a sum over a loop along memory and others run across memory, that loop being a row?

        No loop along memory were left inside, and the mapping sinks none into it that the sum is over."""
        if not self.figures.target.vector_loops:
            return False
        for group, r, members in zip(groups, pair, zip(*rows, strict=True), strict=True):
            for s in map(self.graph.statement, group.names):
                outer = {v for m in members for v in variables(m.of(s.name))}
                inner = [d for d in s.reduction_dims if d not in outer]
                along = r.of(s.name)
                if inner and isinstance(along, IVar) and along.name in s.reduction_dims:
                    mine = walked(self.graph, s, along.name)
                    if mine > max(walked(self.graph, s, d) for d in inner) and mine[0] > 0:
                        return True
        return False

    def fills_lanes(self, first: Group, second: Group, r: Member, partner: Member) -> bool:
        """On a CPU: do sums of windows run along memory in a loop that the other nest reduces over?

        Both are lanes, in loops of their own; in a common one they would be numbers, window by window."""
        if not self.figures.target.vector_loops:
            return False
        dims = {n: set(self.graph.statement(n).reduction_dims) for n in second.names}
        reduced = any(dims[n].intersection(variables(partner.of(n))) for n in second.names)
        along = (s for s in map(self.graph.statement, first.names) if s.write[-1:] == (r.of(s.name),))
        return reduced and any(map(sums_windows, along))

    def words(self, gain: str) -> str:
        return f"{gain}, open sizes taken as {OPEN_SIZE}" if self.graph.sizes else gain

    def note_full(self, first: Group, second: Group) -> None:
        """Of each kernel that takes no more pieces the first one that it did not take."""
        if first.names not in self.full and len(first.names) > 1:
            self.full.add(first.names)
            self.refuse(first, second, f"a kernel has {MOST_PIECES} pieces of a row at most")

    def refuse(self, first: Group, second: Group, reason: str) -> None:
        self.decisions.append(Decision("stitch", _what(first, second), False, reason))


def _what(first: Group, second: Group) -> str:
    return f"{second.title} to {first.title}"
