"""What the cost model must know of a set of statements that would be one kernel, before any is scheduled.

rows       loops that all of them have in common: axes (`poly.axes`) along which every edge between two of
           them goes from an element to the same element; free where no statement reduces over them
bytes      of tensors from and to outside, the boxes that accesses touch, each tensor once
phases     a statement is a phase later than what it reads of another iteration of the loops inside
live       what one iteration of the rows touches in several phases

`layers.group_figures` counts the same of nests that layer I has made; here there are many more sets to judge,
so what can be is known of each statement beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from polyfuse.cost.extents import Touched, extents, instances, touched, union
from polyfuse.cost.stitching_gain import NestFigures
from polyfuse.ir.index_expr import variables
from polyfuse.ir.target import Target
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Role, Statement, TensorGraph, statement_reads
from polyfuse.layers.target_figures import PatternRows, figures_on
from polyfuse.poly.axes import Axes, Dim, Edge, find_axes, plain

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
