"""What a matrix product takes on a CPU: in tiles or loops that are generated, and as a call of the library.

    tiles      cycles of the tiles (`layers.contractions.tile_shapes`), of the worker that has the most
               pieces, or the time to fetch the right factor once for each block of rows; copies of factors
    loops      where there are no tiles: an element of the larger factor for each product, from where it is
    library    multiply-adds at nearly the peak of the cores, columns in whole vectors; copies of both factors
               into its order, the result, the call; and the result written and read again where something
               follows it, which tiles do while they have it

Rates are those of a common server (`cost.cpu_device`): a choice must not change with a measurement.  A call
has to be faster by a `LEAD`: the library's threads run beside the pool's, and where another program has one
of the cores a call waits for it (docs/lab/contractions.md), while the other core takes pieces of
tiles.  The same seconds are the weight of a contraction where sets of statements are judged (`tile_weight`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from polyfuse.cost.cpu_device import CpuDevice, lanes_of, table_cpu
from polyfuse.ir.contraction import MatrixProduct, Operand
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.tensor_graph import Role, Statement, TensorGraph, statement_reads
from polyfuse.layers.contractions import cpu_tiles
from polyfuse.layers.contractions.contraction import contraction_of, with_epilogue
from polyfuse.layers.contractions.factors import Contraction, measures
from polyfuse.layers.contractions.tile_shapes import STREAMED_FACTOR

# So many times as fast must the library be.
LEAD = 1.25
# Cycles for a vector of a factor, which it copies, and of the result: measured with OpenBLAS on AVX2, one
# thread, 8 to 256 steps and columns of 300,000 elements.
LIBRARY_COPY = 6
# So many times as long memory takes to give the library a large factor that does not lie along what is
# summed: products of 8 columns with 32 to 64 steps of 4 M elements, OpenBLAS on AVX2, one thread.
LIBRARY_ACROSS = 2.5


@dataclass(frozen=True, slots=True)
class ContractionTimes:
    """Seconds; `tiles` is None where there are none for the product, and plain `loops` compute it."""

    tiles: float | None
    loops: float
    library: float

    @property
    def generated(self) -> bool:
        """Is the library no faster than tiles, or not by enough?"""
        return (self.loops if self.tiles is None else self.tiles) <= LEAD * self.library

    def __str__(self) -> str:
        if self.tiles is None:
            return (
                f"about {self.library * 1e6:.4g} us, loops about {self.loops * 1e6:.4g} us: it has no tiles"
            )
        return f"about {self.library * 1e6:.4g} us, tiles about {self.tiles * 1e6:.4g} us"


def contraction_times(
    graph: TensorGraph, s: Statement, found: MatrixProduct, core: Core, threads: int
) -> ContractionTimes:
    """Of a statement that is a matrix product, with what follows each element of it."""
    machine = table_cpu(threads, core)
    library = library_s(graph, found, s.expr.dtype.bytes, machine)
    loops = machine.step_s + _loops_s(graph, s, found.products, machine)
    p = contraction_of(graph, s, core)
    if p is None or not cpu_tiles.fits(graph, p, core):
        return ContractionTimes(None, loops, library)
    if with_epilogue(graph, p).followers:
        back = 1 if graph.tensor(s.target).role is not Role.TEMP else 2
        library += moved_s(machine, back * _bytes(graph, s.target)) + machine.step_s
    tiles, copies = tiles_s(graph, s, p, machine)
    return ContractionTimes(tiles + machine.step_s * (2 if copies else 1), loops, library)


def tile_weight(graph: TensorGraph, s: Statement, threads: int) -> float | None:
    """Lanes' operations that take as long as the tiles of a contraction on a CPU; None where it has none."""
    p = contraction_of(graph, s, Core())
    if p is None or not cpu_tiles.fits(graph, p, Core()):
        return None
    machine = table_cpu(threads)
    return tiles_s(graph, s, p, machine)[0] * machine.operations


def tiles_s(graph: TensorGraph, s: Statement, p: Contraction, machine: CpuDevice) -> tuple[float, int]:
    """Seconds of tiles and of copies of factors that all workers read; bytes of these."""
    x = measures(graph, s, p)
    shape = cpu_tiles.shape_of(graph, s, p, machine.core, machine.threads)
    pieces = x.outer * shape.blocks(x) * ceil(x.columns / (shape.columns * shape.across))
    computing = shape.cycles * machine.cycle_s / pieces * ceil(pieces / machine.threads)
    right = x.outer * x.steps * x.columns * s.expr.dtype.bytes
    fetched = moved_s(machine, right * shape.blocks(x))
    copies = cpu_tiles.copied_bytes(graph, s, p, shape)
    return max(computing, fetched) + moved_s(machine, 2 * copies), copies


def library_s(graph: TensorGraph, found: MatrixProduct, itemsize: int, machine: CpuDevice) -> float:
    """Seconds of a call: columns are computed in whole vectors, and factors come from memory, or through
    registers, into the order of the library's tiles."""
    lanes = lanes_of(machine.core, itemsize)
    shape = graph.tensor(found.right.tensor).shape
    columns = prod(evaluate(shape[k], {}) for k in found.right.inner)
    computed = found.products / columns * ceil(columns / lanes) * lanes if columns else 0
    factors = _bytes(graph, found.left.tensor) + _bytes(graph, found.right.tensor)
    brought = _brought(graph, found.left, found.left.inner) + _brought(graph, found.right, found.right.outer)
    vectors = (factors + _bytes(graph, found.out.tensor)) / machine.core.vector_bytes / machine.threads
    copying = max(moved_s(machine, 2 * brought), vectors * LIBRARY_COPY * machine.cycle_s)
    return machine.library_s(computed, itemsize) + copying


def _brought(graph: TensorGraph, factor: Operand, over: tuple[int, ...]) -> float:
    """Bytes of a factor, as many more as it takes longer."""
    size = _bytes(graph, factor.tensor)
    across = len(graph.tensor(factor.tensor).shape) - 1 not in over
    return size * LIBRARY_ACROSS if across and size > STREAMED_FACTOR else size


def _loops_s(graph: TensorGraph, s: Statement, products: int, machine: CpuDevice) -> float:
    """Seconds of plain loops: each product reads an element of the larger factor again."""
    larger = max(_bytes(graph, r.tensor) for r in statement_reads(s))
    return products * s.expr.dtype.bytes / machine.levels[machine.level(larger / machine.threads)].bandwidth


def moved_s(machine: CpuDevice, nbytes: float) -> float:
    """Seconds to move so many bytes through the level that holds them."""
    return nbytes / machine.levels[machine.level(nbytes / machine.threads)].bandwidth


def _bytes(graph: TensorGraph, name: str) -> int:
    t = graph.tensor(name)
    return prod(evaluate(e, {}) for e in t.shape) * t.dtype.bytes
