"""Figures before there are kernels: of groups of nests (`Figures`), of sets of statements (`PatternFigures`).

Of a group of nests:

bytes         of tensors from and to outside, the boxes that accesses touch (`cost.extents`)
parallelism   what mapping would spread: rows that are free, or chunks of one that reduces
live          what one iteration of the rows touches in several phases

A size that is open counts as 1024.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from polyfuse.cost.extents import OPEN_SIZE, Touched, extents, inside, instances, touched, union
from polyfuse.cost.stitching_gain import NestFigures
from polyfuse.ir.index_expr import evaluate, variables
from polyfuse.ir.schedule_tree import Member, statements
from polyfuse.ir.target import Target
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Role, Statement, TensorGraph, statement_reads
from polyfuse.layers.mapping.gpu import trips
from polyfuse.layers.mapping.nests import is_free
from polyfuse.layers.stitching.group import Group
from polyfuse.layers.stitching.targets import PatternRows, figures_on
from polyfuse.poly.model.domains import specialize
from polyfuse.poly.scheduling.axes import Axes, Dim, Edge, find_axes, plain

# --- nests ------------------------------------------------------------------------------------------------

Boxes = dict[str, list[Touched]]


@dataclass(frozen=True, slots=True)
class _Statement:
    """One statement: weighted operations, what it reads and writes, in all."""

    instances: float
    weight: float
    reads: Boxes
    writes: Boxes


class Figures:
    """`figures(group)` for groups of one graph."""

    def __init__(self, graph: TensorGraph, target: Target) -> None:
        self.graph = specialize(graph, dict.fromkeys(graph.sizes, OPEN_SIZE)) if graph.sizes else graph
        self.target, self._on = target, figures_on(target)
        self._known: dict[str, _Statement] = {}
        self._groups: dict[tuple[tuple[str, ...], tuple[str, ...]], NestFigures] = {}
        self._reads = {s.name: statement_reads(s) for s in self.graph.statements}
        self._readers: dict[str, set[str]] = {}
        for name, found in self._reads.items():
            for r in found:
                self._readers.setdefault(r.tensor, set()).add(name)

    def __call__(self, group: Group) -> NestFigures:
        """Kept by the statements and their common loops."""
        names = group.names
        key = names, tuple(m.name for m in group.rows)
        if key not in self._groups:
            self._groups[key] = self._found(group, names)
        return self._groups[key]

    def _found(self, group: Group, names: tuple[str, ...]) -> NestFigures:
        known = [self._of(n) for n in names]
        count = sum(s.instances for s in known)
        parallel, launches = self.parallel(group)
        live, again = self._live(group) if len(group.phases) > 1 else (0.0, 0.0)
        read, written = self._outside(frozenset(names), known)
        return NestFigures(
            bytes_in=read,
            bytes_out=written,
            instances=count,
            parallel=parallel,
            live=live,
            again=again,
            weight=sum(s.weight for s in known) / max(1.0, count),
            launches=launches,
        )

    # --- bytes --------------------------------------------------------------------------------------------

    def _of(self, name: str) -> _Statement:
        if name not in self._known:
            s = self.graph.statement(name)
            found = extents(s)
            weight = self._on.weight(self.graph, s, found)
            reads, writes = self._boxes(s, ())
            self._known[name] = _Statement(instances(found), weight, reads, writes)
        return self._known[name]

    def _outside(self, names: frozenset[str], known: list[_Statement]) -> tuple[float, float]:
        """Bytes from outside of these statements, and to it."""
        written = _merged([s.writes for s in known])
        read = {t: b for t, b in _merged([s.reads for s in known]).items() if t not in written}
        leaving = {t: b for t, b in written.items() if self._leaves(t, names)}
        return self._bytes(read), self._bytes(leaving)

    def _leaves(self, tensor: str, names: frozenset[str]) -> bool:
        if self.graph.tensor(tensor).role is not Role.TEMP:
            return True
        return not self._readers.get(tensor, set()) <= names

    def _live(self, group: Group) -> tuple[float, float]:
        """Bytes that one iteration of the rows touches in several phases; what later ones touch again, in all
        iterations.  One element is in a register, and pieces that nobody reads have none in common."""
        touching: list[Boxes] = []
        for p in group.phases:
            each = [self._boxes(self.graph.statement(n), group.rows) for n in statements(p)]
            touching.append(_merged([b for pair in each for b in pair]))
        live = again = 0.0
        every = [self.graph.statement(n) for n in group.names]
        met = {r.tensor for s in every for r in self._reads[s.name]}
        met |= {s.target for s in every if s.accumulate}
        for t in dict.fromkeys(t for boxes in touching for t in boxes if t in met):
            sizes = [union(b[t]) for b in touching if t in b]
            if len(sizes) > 1 and max(sizes) > 1:
                live += max(sizes) * self.graph.tensor(t).dtype.bytes
                again += (sum(sizes) - max(sizes)) * self.graph.tensor(t).dtype.bytes
        return live, again * self.rows(group)

    def _bytes(self, boxes: Boxes) -> float:
        return sum(union(b) * self.graph.tensor(t).dtype.bytes for t, b in boxes.items())

    def row_bytes(self, tensor: str) -> int:
        """Bytes of a tensor along its last dim."""
        found = self.graph.tensor(tensor)
        return evaluate(found.shape[-1], {}) * found.dtype.bytes

    def _boxes(self, s: Statement, rows: tuple[Member, ...]) -> tuple[Boxes, Boxes]:
        """(what a statement reads, what it writes) in one iteration of the rows."""
        found = inside(s, rows)
        reads: Boxes = {}
        for r in self._reads[s.name]:
            box = touched(r.indices, self.graph.tensor(r.tensor).shape, found)
            reads.setdefault(r.tensor, []).append(box)
        return reads, {s.target: [touched(s.write, self.graph.tensor(s.target).shape, found)]}

    # --- parallelism --------------------------------------------------------------------------------------

    def rows(self, group: Group) -> int:
        """Iterations of the rows."""
        return prod(trips(self.graph, group.rows))

    def parallel(self, group: Group) -> tuple[int, int]:
        """(blocks or chunks that can run at the same time, launches that it takes)."""
        names = group.names
        free = tuple(m for m in group.rows if is_free(self.graph, m, names))
        reducing = tuple(m for m in group.rows if m not in free)
        return self._on.of_group(self.graph, group, free, reducing)


def _merged(parts: list[Boxes]) -> Boxes:
    merged: Boxes = {}
    for p in parts:
        for t, boxes in p.items():
            merged.setdefault(t, []).extend(boxes)
    return merged


# --- statements -------------------------------------------------------------------------------------------

# Of a set of statements that would be one kernel, before any is scheduled:
#
# rows       loops that all of them have in common: axes (`poly.scheduling.axes`) along which every edge
#            between two of them goes from an element to the same element; free where no statement
#            reduces over them
# bytes      of tensors from and to outside, the boxes that accesses touch, each tensor once
# phases     a statement is a phase later than what it reads of another iteration of the loops inside
# live       what one iteration of the rows touches in several phases
#
# `Figures` counts the same of nests that layer I has made; here there are many more sets to
# judge, so what can be is known of each statement beforehand.


Axis = frozenset[Dim]
Places = frozenset[tuple[Dim, int]]


@dataclass(frozen=True, slots=True)
class _Touch:
    """A tensor in one statement: the boxes touched, whether written, the axes that its indices follow, each
    with the position."""

    tensor: str
    boxes: frozenset[Touched]
    written: bool
    follows: Places


@dataclass(frozen=True, slots=True)
class _Facts:
    """Of one statement: operations, axes with their lengths, those that it reduces over, what it touches, and
    for each producer the axes on which both agree."""

    instances: float
    weight: float
    lengths: dict[Dim, float]
    reduced: Axis
    touches: tuple[_Touch, ...]
    producers: tuple[tuple[int, Axis], ...]

    def is_local(self, agreed: Axis) -> bool:
        """Does a reader that agrees on these axes need one element of this statement only?"""
        return not self.reduced and agreed >= set(self.lengths)


class PatternFigures:
    """`figures(statements)`, by their numbers in the graph, whose sizes are known."""

    def __init__(self, graph: TensorGraph, target: Target, kernels_alone: frozenset[int]) -> None:
        self.graph, self._on = graph, figures_on(target)
        self._readers: dict[str, set[int]] = {}
        for k, s in enumerate(graph.statements):
            for r in statement_reads(s):
                self._readers.setdefault(r.tensor, set()).add(k)
        chosen = [s for k, s in enumerate(graph.statements) if k not in kernels_alone]
        axes = find_axes(graph, chosen)
        agreed = _agreed(axes, {s.name: k for k, s in enumerate(graph.statements)})
        self._facts = [
            self._of(s, None if k in kernels_alone else axes, agreed.get(k, {}))
            for k, s in enumerate(graph.statements)
        ]
        self._unions: dict[frozenset[Touched], float] = {}
        self._along: dict[tuple[Places, Axis], tuple[Places, float]] = {}
        self._lengths: dict[Dim, float] = {}
        for a, n in (x for f in self._facts for x in f.lengths.items()):
            self._lengths[a] = max(n, self._lengths.get(a, 0.0))
        self._bytes = {t.name: t.dtype.bytes for t in graph.tensors}
        self._kept = {t.name for t in graph.tensors if t.role is not Role.TEMP}

    def _of(self, s: Statement, axes: Axes | None, producers: dict[int, Axis]) -> _Facts:
        found = extents(s)
        axis = {d.name: axes.axis(s.name, d.name) if axes else (s.name, d.name) for d in s.dims}
        uses = [(r.tensor, r.indices, False) for r in statement_reads(s)] + [(s.target, s.write, True)]
        together: dict[tuple[str, bool], tuple[set[Touched], set[tuple[Dim, int]]]] = {}
        for tensor, indices, written in uses:
            boxes, follows = together.setdefault((tensor, written), (set(), set()))
            boxes.add(touched(indices, self.graph.tensor(tensor).shape, found))
            follows |= {(axis[v], at) for v, at in _used(indices) if v in axis}
        return _Facts(
            instances(found),
            self._on.weight(self.graph, s, found),
            {axis[d.name]: found[d.name].length for d in s.dims},
            frozenset(axis[d.name] for d in s.dims if d.reduce),
            tuple(_Touch(t, frozenset(b), w, frozenset(f)) for (t, w), (b, f) in together.items()),
            tuple(producers.items()),
        )

    def __call__(self, statements: Iterable[int]) -> NestFigures:
        """Of one kernel of these statements."""
        chosen = sorted(statements)
        facts = [self._facts[k] for k in chosen]
        rows, phases = self._rows_and_phases(chosen)
        reduced = frozenset().union(*(f.reduced for f in facts))
        free, split = rows - reduced, rows & reduced
        lengths = {a: self._lengths[a] for a in rows}
        parallel, launches = self._parallel(facts, lengths, free, split)
        bytes_in, bytes_out = self._outside(frozenset(chosen), facts, rows)
        live, again = self._live(facts, phases, rows)
        count = sum(f.instances for f in facts)
        return NestFigures(
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            instances=count,
            parallel=parallel,
            live=live,
            again=again,
            weight=sum(f.weight for f in facts) / max(1.0, count),
            launches=launches,
        )

    def _rows_and_phases(self, chosen: list[int]) -> tuple[Axis, list[int]]:
        """The loops that all have in common, and the phase of each statement."""
        rows = frozenset.intersection(*(frozenset(self._facts[k].lengths) for k in chosen))
        phase: dict[int, int] = {}
        inside = set(chosen)
        for k in chosen:
            at = 0
            for p, agreed in self._facts[k].producers:
                if p in inside:
                    rows &= agreed
                    at = max(at, phase.get(p, 0) + (not self._facts[p].is_local(agreed)))
            phase[k] = at
        return rows, [phase[k] for k in chosen]

    # --- bytes --------------------------------------------------------------------------------------------

    def _outside(self, names: frozenset[int], facts: list[_Facts], rows: Axis) -> tuple[float, float]:
        """Bytes from outside of these statements, and to it. What two of them read is read once where one
        iteration of the rows has the same of it for both."""
        written = {t.tensor for f in facts for t in f.touches if t.written}
        reads: dict[tuple[str, object], frozenset[Touched]] = {}
        writes: dict[tuple[str, object], frozenset[Touched]] = {}
        for t in (t for f in facts for t in f.touches):
            if not t.written:
                if t.tensor not in written:
                    _take(reads, (t.tensor, self._in_row(t, rows)[0]), t.boxes)
            elif t.tensor in self._kept or not self._readers.get(t.tensor, _NOBODY) <= names:
                _take(writes, (t.tensor, None), t.boxes)
        return self._of_boxes(reads), self._of_boxes(writes)

    def _of_boxes(self, boxes: dict[tuple[str, object], frozenset[Touched]]) -> float:
        return sum(self._union(b) * self._bytes[t] for (t, _), b in boxes.items())

    def _union(self, boxes: frozenset[Touched]) -> float:
        found = self._unions.get(boxes)
        if found is None:
            found = self._unions[boxes] = union(boxes)
        return found

    def _in_row(self, t: _Touch, rows: Axis) -> tuple[Places, float]:
        """What tells which part of a tensor one iteration of the rows touches; how many such parts it has."""
        key = t.follows, rows
        found = self._along.get(key)
        if found is None:
            places = frozenset(x for x in t.follows if x[0] in rows)
            parts = prod(max(1.0, self._lengths[a]) for a in {a for a, _ in places})
            found = self._along[key] = places, parts
        return found

    def _live(self, facts: list[_Facts], phases: list[int], rows: Axis) -> tuple[float, float]:
        """Bytes that one iteration of the rows touches in several phases; what later ones touch again, in all
        iterations. One element is in a register."""
        if max(phases) == 0:
            return 0.0, 0.0
        first: dict[str, int] = {}
        several: dict[str, set[int]] = {}
        for f, phase in zip(facts, phases, strict=True):
            for t in f.touches:
                if first.setdefault(t.tensor, phase) != phase:
                    several.setdefault(t.tensor, {first[t.tensor]}).add(phase)
        most = dict.fromkeys(several, 0.0)
        for t in (t for f in facts for t in f.touches if t.tensor in several):
            most[t.tensor] = max(most[t.tensor], self._union(t.boxes) / self._in_row(t, rows)[1])
        kept = {n: each * self._bytes[n] for n, each in most.items() if each > 1}
        again = sum(nbytes * (len(several[n]) - 1) for n, nbytes in kept.items())
        return sum(kept.values()), again * prod(self._lengths[a] for a in rows)

    # --- parallelism --------------------------------------------------------------------------------------

    def _parallel(
        self, facts: list[_Facts], lengths: dict[Dim, float], free: Axis, split: Axis
    ) -> tuple[int, int]:
        """(blocks or chunks that can run at the same time, launches that it takes), as mapping makes them."""
        points = all(len(f.lengths) == len(free) for f in facts)
        innermost = next((a for a in reversed(facts[0].lengths) if a in free), None) if points else None
        rows = PatternRows(
            size=max(f.instances for f in facts),
            free=prod(lengths[a] for a in free),
            points=points,
            inner=None if innermost is None else lengths[innermost],
            split=max((lengths[a] for a in split), default=None),
        )
        return self._on.of_pattern(rows)


_NOBODY: frozenset[int] = frozenset()


def _take(
    boxes: dict[tuple[str, object], frozenset[Touched]], key: tuple[str, object], more: frozenset[Touched]
) -> None:
    """Boxes of one tensor with more of them, which are mostly the same."""
    known = boxes.setdefault(key, more)
    if known is not more and known != more:
        boxes[key] = known | more


def _used(indices: tuple[Index, ...]) -> set[tuple[str, int]]:
    """The variables in indices, each with the position."""
    return {(v, at) for at, i in enumerate(indices) if not isinstance(i, EXPR_TYPES) for v in variables(i)}


def _agreed(axes: Axes, number: dict[str, int]) -> dict[int, dict[int, Axis]]:
    """For each statement and each producer: axes along which all that it reads is of its own iteration."""
    found: dict[int, dict[int, Axis]] = {}
    for e in (e for e in axes.edges if not e.anti):
        of = found.setdefault(number[e.sink], {})
        w = number[e.source]
        same = _same(axes, e)
        of[w] = of[w] & same if w in of else same
    return found


def _same(axes: Axes, e: Edge) -> Axis:
    result: set[Dim] = set()
    for w, r in zip(e.written, e.read, strict=True):
        a, b = plain(w), plain(r)
        if a is not None and b is not None and axes.axis(e.source, a) == axes.axis(e.sink, b):
            result.add(axes.axis(e.source, a))
    return frozenset(result)
