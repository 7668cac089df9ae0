"""What the cost model must know of a group of nests before there are kernels: bytes, operations, parallelism.

bytes         of tensors from and to outside, the boxes that accesses touch (`cost.extents`)
parallelism   what mapping would spread: rows that are free, or chunks of one that reduces
live          what one iteration of the rows touches in several phases

A size that is open counts as 1024.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from polyfuse.cost.extents import Touched, extents, inside, instances, touched, union
from polyfuse.cost.stitching_gain import NestFigures
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.schedule_tree import Member, statements
from polyfuse.ir.target import Target
from polyfuse.ir.tensor_graph import Role, Statement, TensorGraph, statement_reads
from polyfuse.layers.gpu_rows import trips
from polyfuse.layers.groups import Group
from polyfuse.layers.nest import is_free
from polyfuse.layers.target_figures import figures_on
from polyfuse.poly.domains import specialize

OPEN_SIZE = 1024
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
