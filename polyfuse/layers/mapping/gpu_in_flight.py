"""Several vectors that one thread has on the way: a loop over neighbouring rows, or pieces of one, inside it.

    B(t: blk, h // V: thr, h % V: vec)(y)     becomes     B(t // 2: blk, h // V: thr, t % 2, h % V: vec)(y)

The loop has a constant trip count, so that compilers write it out and put its loads before what uses them;
what does not change in it is loaded once.  A multiprocessor must have bandwidth times latency on the way,
25 KB of an H200; threads that take more than their share of that need registers that others could use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.index_expr import IVar, binary, variables
from polyfuse.ir.schedule_tree import Coordinate, Member
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.layers.mapping.nests import accesses, stride

# Bytes that a thread has on the way, where a multiprocessor is full of threads, and vectors at most.
IN_FLIGHT = 32
MOST_VECTORS = 4
# Times that the threads which are left must fill the device.
WAVES = 2


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over blocks, the one at `place`, of `moved`: a thread has iterations that are `apart` from each
    other.  `trip`: iterations of `member`."""

    place: int
    member: Member
    moved: Member
    apart: int
    trip: int


@dataclass(frozen=True, slots=True)
class Stream:
    """A nest of points: a vector of `width` elements along `axis` for each of `threads`."""

    graph: TensorGraph
    names: Sequence[str]
    axis: Member
    width: int
    threads: int
    gpu: GpuTarget

    def neighbours(self, blocks: list[Member], loops: Iterable[Loop]) -> tuple[int, list[Member]]:
        """How many vectors a thread takes, and a loop over them, which one of `blocks` gives up."""
        for x in loops:
            count = self.together(x.moved, x.trip // x.apart) if x.trip % x.apart == 0 else 1
            if count > 1:
                blocks[x.place], near = with_neighbours(x.member, x.apart, count)
                return count, [near]
        return 1, []

    def together(self, moved: Member, iterations: int) -> int:
        """A power of two that leaves no iterations over, and threads enough to fill the device."""
        nbytes = sum(self.bytes(n, moved) for n in self.names) * self.width
        wanted = self.gpu.unroll or (min(MOST_VECTORS, IN_FLIGHT // nbytes) if nbytes else 1)
        wanted >>= self.gpu.halvings
        least = 0 if self.gpu.unroll else WAVES * self.gpu.sms * self.gpu.resident_threads
        count = 1
        while 2 * count <= wanted and iterations % (2 * count) == 0 and self.threads // (2 * count) >= least:
            count *= 2
        return count

    def bytes(self, name: str, moved: Member) -> int:
        """Of an element of all that an iteration loads along memory, and the neighbouring one does not."""
        s, lane, other = self.graph.statement(name), self.axis.of(name), moved.of(name)
        if not isinstance(lane, IVar) or not isinstance(other, IVar):
            return 0
        return sum(
            self.graph.tensor(t).dtype.bytes
            for t, where in dict.fromkeys(accesses(self.graph, s))
            if t != s.target and self.graph.tensor(t).role is not Role.TEMP and stride(where, lane.name) == 1
            if any(other.name in variables(a) for a, _ in where.terms)
        )


def with_neighbours(m: Member, apart: int, count: int) -> tuple[Member, Member]:
    """A loop over blocks, and one over `count` of its iterations, `apart` from each other, in a thread.

    t     ->     t // (apart count): blk, t // apart % count
    """

    def part(name: str, divisor: int, modulus: int | None, coordinate: Coordinate) -> Member:
        rows = []
        for n, e in m.exprs:
            value = binary("//", e, divisor) if divisor > 1 else e
            rows.append((n, value if modulus is None else binary("%", value, modulus)))
        return replace(m, name=name, exprs=tuple(rows), coordinate=coordinate)

    return (
        part(f"{m.name}_blk", apart * count, None, Coordinate.BLK),
        part(f"{m.name}_next", apart, count, Coordinate.SEQ),
    )
