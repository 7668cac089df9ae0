"""What the figures of a set of statements owe to the target: operations, and what mapping would spread.

`layers.stitching.figures` and `layers.stitching.figures` count what a kernel would touch; this says how many
blocks or chunks of it could run at the same time, and what one of its instances weighs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from math import prod
from typing import Protocol

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.cost.extents import Extents
from polyfuse.cost.operations import operations
from polyfuse.ir.schedule_tree import Band, Member
from polyfuse.ir.target import CpuTarget, GpuTarget, Target
from polyfuse.ir.tensor_graph import Statement, TensorGraph
from polyfuse.layers.contractions.times import tile_weight
from polyfuse.layers.mapping import cpu
from polyfuse.layers.mapping.gpu import threads_of_rows, trips
from polyfuse.layers.mapping.nests import has_band, trip_of, volume
from polyfuse.layers.stitching.group import Group


@dataclass(frozen=True, slots=True)
class PatternRows:
    """Common loops of statements before there are nests of them.

    size      instances of the statement that has most
    free      iterations of the loops over which nothing reduces
    points    have statements no other loops?
    inner     length of the innermost free loop of points
    split     length of the longest loop that reduces; None where there is none
    """

    size: float
    free: float
    points: bool
    inner: float | None
    split: float | None


class TargetFigures(Protocol):
    """Figures on one target. Parallelism is (blocks or chunks at the same time, launches that it takes)."""

    def weight(self, graph: TensorGraph, s: Statement, found: Extents) -> float:
        """Weighted operations of a statement, in all."""
        ...

    def of_group(
        self, graph: TensorGraph, group: Group, free: tuple[Member, ...], reducing: tuple[Member, ...]
    ) -> tuple[int, int]:
        """Parallelism of a group whose rows are free, or reduce."""
        ...

    def of_pattern(self, rows: PatternRows) -> tuple[int, int]:
        """Parallelism of statements that no nest is made of yet."""
        ...


@dataclass(frozen=True, slots=True)
class CpuFigures:
    """Chunks of a pool's workers."""

    threads: int

    def weight(self, graph: TensorGraph, s: Statement, found: Extents) -> float:
        tiles = tile_weight(graph, s, self.threads)
        return operations([(s, found)], "cpu").weighted if tiles is None else tiles

    def of_group(
        self, graph: TensorGraph, group: Group, free: tuple[Member, ...], reducing: tuple[Member, ...]
    ) -> tuple[int, int]:
        instances = volume(graph, group.names)
        if instances < FITTED.mapping_smallest_parallel:
            return 1, 1
        first = group.rows[0] if group.rows else None
        if first in reducing and (not free or (trip_of(graph, first) or 0) >= 64):
            trip = trip_of(graph, first) or 0
            if not cpu.worth_factoring(instances, trip):
                return 1, 1
            return min(trip, cpu.parts_of(self.threads)), 2
        return _chunks(graph, group, free), 1

    def of_pattern(self, rows: PatternRows) -> tuple[int, int]:
        """The innermost loop of plain points is left to the lanes."""
        if rows.size < FITTED.mapping_smallest_parallel:
            return 1, 1
        if rows.inner is not None:
            outer = rows.free / max(1.0, rows.inner)
            return max(1, int(outer if outer > 1 else rows.inner // FITTED.mapping_strip)), 1
        longest = rows.split or 0.0
        if rows.free >= self.threads or longest < FITTED.mapping_fewest_factored:
            return max(1, int(rows.free)), 1
        return int(min(longest, cpu.parts_of(self.threads))), 2


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """Blocks of a grid."""

    gpu: GpuTarget

    def weight(self, graph: TensorGraph, s: Statement, found: Extents) -> float:
        return operations([(s, found)], "gpu").weighted

    def of_group(
        self, graph: TensorGraph, group: Group, free: tuple[Member, ...], reducing: tuple[Member, ...]
    ) -> tuple[int, int]:
        ordered = Group((*free, *reducing), group.phases)
        blocks = -(-threads_of_rows(graph, free, ordered.tree(), self.gpu) // self.gpu.threads)
        return self._split(blocks, bool(reducing), volume(graph, group.names))

    def of_pattern(self, rows: PatternRows) -> tuple[int, int]:
        blocks = max(1, int(-(-rows.free // self.gpu.threads) if rows.points else rows.free))
        return self._split(blocks, rows.split is not None, int(rows.size))

    def _split(self, blocks: int, reducing: bool, size: int) -> tuple[int, int]:
        """The same where a large reduction is split over blocks that had nothing to do."""
        if not reducing or blocks >= self.gpu.sms or size < self.gpu.parallel:
            return blocks, 1
        return max(blocks, min(2 * self.gpu.sms, size // self.gpu.least)), 2


def _chunks(graph: TensorGraph, group: Group, free: tuple[Member, ...]) -> int:
    """Iterations of the leading free rows; the innermost loop of a perfect nest is left to the lanes."""
    tree = group.tree()
    perfect = isinstance(tree, Band) and not has_band(tree.child)
    if not perfect or not isinstance(tree, Band):
        return prod(trips(graph, free))
    outer = tuple(m for m in free if m is not tree.members[-1])
    count = prod(trips(graph, outer))
    if count == 1 and tree.members[-1] in free:
        return max(1, trips(graph, tree.members[-1:])[0] // FITTED.mapping_strip)
    return count


@singledispatch
def figures_on(target: Target) -> TargetFigures:
    """Figures on a target."""
    raise NotImplementedError(f"no figures for {target}")


@figures_on.register
def _(target: CpuTarget) -> TargetFigures:
    return CpuFigures(target.threads)


@figures_on.register
def _(target: GpuTarget) -> TargetFigures:
    return GpuFigures(target)
