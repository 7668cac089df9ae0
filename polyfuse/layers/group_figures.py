"""What the cost model must know of a group of nests before there are kernels: bytes, operations, parallelism.

bytes         of tensors from and to outside, the boxes that accesses touch (`cost.extents`)
parallelism   what mapping would spread: rows that are free, or chunks of one that reduces
live          what one iteration of the rows touches in several phases

A size that is open counts as 1024.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from polyfuse.cost.cpu_device import CpuDevice, table_cpu
from polyfuse.cost.device import DEFAULT, Device
from polyfuse.cost.extents import Touched, extents, inside, instances, touched, union
from polyfuse.cost.operations import operations
from polyfuse.cost.stitching_gain import NestFigures
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.schedule_tree import Band, Member, statements
from polyfuse.ir.tensor_graph import Role, Statement, TensorGraph, statement_reads
from polyfuse.layers import cpu_mapping
from polyfuse.layers.gpu_mapping import threads_of_rows
from polyfuse.layers.gpu_rows import GpuTarget, trips
from polyfuse.layers.groups import Group
from polyfuse.layers.nest import has_band, is_free, trip_of, volume
from polyfuse.layers.product_times import tile_weight
from polyfuse.poly.domains import specialize

OPEN_SIZE = 1024
Boxes = dict[str, list[Touched]]


def machine_of(target: int | GpuTarget) -> Device | CpuDevice:
    """The machine of a target, by the tables: what was measured here must not decide what kernels are."""
    if isinstance(target, int):
        return table_cpu(target)
    return replace(
        DEFAULT,
        name="GPU",
        sms=target.sms,
        clock=target.clock,
        memory_bandwidth=target.bandwidth,
        l2_bytes=target.l2_bytes,
        launch_overhead_s=target.launch_s,
    )


@dataclass(frozen=True, slots=True)
class _Statement:
    """One statement: weighted operations, what it reads and writes, in all."""

    instances: float
    weight: float
    reads: Boxes
    writes: Boxes


class Figures:
    """`figures(group)` for groups of one graph."""

    def __init__(self, graph: TensorGraph, target: int | GpuTarget) -> None:
        self.graph = specialize(graph, dict.fromkeys(graph.sizes, OPEN_SIZE)) if graph.sizes else graph
        self.target = target
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
            kind = "gpu" if isinstance(self.target, GpuTarget) else "cpu"
            tiles = tile_weight(self.graph, s, self.target)
            plain = operations([(s, found)], kind).weighted  # type: ignore[arg-type]
            weight = plain if tiles is None else tiles
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
        if isinstance(self.target, GpuTarget):
            return self._on_gpu(group, free, reducing, self.target)
        return self._on_cpu(group, free, reducing, self.target)

    def _on_gpu(
        self, group: Group, free: tuple[Member, ...], reducing: tuple[Member, ...], gpu: GpuTarget
    ) -> tuple[int, int]:
        ordered = Group((*free, *reducing), group.phases)
        blocks = -(-threads_of_rows(self.graph, free, ordered.tree(), gpu) // gpu.threads)
        size = volume(self.graph, group.names)
        if not reducing or blocks >= gpu.sms or size < gpu.parallel:
            return blocks, 1
        return max(blocks, min(2 * gpu.sms, size // gpu.least)), 2

    def _on_cpu(
        self, group: Group, free: tuple[Member, ...], reducing: tuple[Member, ...], threads: int
    ) -> tuple[int, int]:
        instances = volume(self.graph, group.names)
        if instances < cpu_mapping.SMALLEST_PARALLEL:
            return 1, 1
        first = group.rows[0] if group.rows else None
        if first in reducing and (not free or (trip_of(self.graph, first) or 0) >= 64):
            trip = trip_of(self.graph, first) or 0
            if not cpu_mapping.worth_factoring(instances, trip):
                return 1, 1
            return min(trip, cpu_mapping.parts_of(threads)), 2
        return self._chunks(group, free), 1

    def _chunks(self, group: Group, free: tuple[Member, ...]) -> int:
        """Iterations of the leading free rows; the innermost loop of a perfect nest is left to the lanes."""
        tree = group.tree()
        perfect = isinstance(tree, Band) and not has_band(tree.child)
        if not perfect or not isinstance(tree, Band):
            return prod(trips(self.graph, free))
        outer = tuple(m for m in free if m is not tree.members[-1])
        count = prod(trips(self.graph, outer))
        if count == 1 and tree.members[-1] in free:
            return max(1, trips(self.graph, tree.members[-1:])[0] // cpu_mapping.STRIP)
        return count


def _merged(parts: list[Boxes]) -> Boxes:
    merged: Boxes = {}
    for p in parts:
        for t, boxes in p.items():
            merged.setdefault(t, []).extend(boxes)
    return merged
