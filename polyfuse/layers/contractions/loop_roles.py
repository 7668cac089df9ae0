"""Which dims of a contraction are rows and columns of its tiles: the way that takes the fewest cycles.

    t[i, j, u, b] = sum[a](c[u, a] * x[8 * i + a, 8 * j + b])      rows u; columns b, i or j

Besides the tiles themselves (`layers.contractions.tile_shapes`) a way takes

    what is written      along columns in whole vectors, else each element at a place of its own
    the right factor     read in place where memory lies along columns, else copied first, or transposed
    the left factor      in lines that hold more than the rows and steps of a tile where these lie apart

Columns that fill one vector, and lie as memory does, so are better than many that do not
(docs/lab/contractions.md).
Cycles are those of one core; that caches hold less of some factors is left to the tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from polyfuse.cost.cpu_device import lanes_of
from polyfuse.ir.cpu_core import L1_WAY, Core
from polyfuse.ir.index_expr import evaluate, variables
from polyfuse.ir.linear import Linear
from polyfuse.ir.tensor_graph import Statement, TensorGraph, depends_on, reads
from polyfuse.layers.contractions.factors import Contraction, extents_of, measures
from polyfuse.layers.contractions.tile_shapes import (
    COPY_CYCLES,
    FEWEST_READERS,
    FOLLOWED,
    STREAMED_FACTOR,
    TURN_CYCLES,
    Extents,
    TileShape,
    tile_shape,
)
from polyfuse.layers.mapping.nests import address, stride

# Cycles to write an element across memory, and for a line that is not all used, mostly from L2.
ACROSS_CYCLES, LINE_CYCLES = 3, 6
# The same from memory, where each step is in another page, or rows come to the same place in a cache; and
# rows of a tile that are looked at.
FAR_CYCLES, MOST_STARTS = 20, 16


def best_way(graph: TensorGraph, s: Statement, ways: Sequence[Contraction], core: Core) -> Contraction | None:
    """The way of a contraction that takes the fewest cycles; of equal ones that with the most rows."""
    if len(ways) < 2:
        return next(iter(ways), None)
    of = extents_of(s)
    return min(ways, key=lambda p: (way_cycles(graph, s, p, core), -of[p.row]))


def way_cycles(graph: TensorGraph, s: Statement, p: Contraction, core: Core) -> float:
    """Cycles of one core for a contraction with such rows and columns."""
    x = measures(graph, s, p)
    return tile_shape(x, core, 1).cycles + moving_cycles(graph, s, p, x, core)


def moving_cycles(graph: TensorGraph, s: Statement, p: Contraction, x: Extents, core: Core) -> float:
    """Those besides the tiles: what memory that lies otherwise takes of one core."""
    shape = tile_shape(x, core, 1)
    cycles = 0 if shape.dots else _copying(x, core) + _lines(graph, s, p, x, shape, core)
    if stride(address(graph, s.target, s.write), p.column) == 1:
        return cycles
    times = ceil(x.steps / shape.panel) if shape.streamed else 1
    return cycles + x.outer * x.rows * x.columns * times * ACROSS_CYCLES


def _copying(x: Extents, core: Core) -> float:
    """Cycles to copy the right factor."""
    if not x.copied:
        return 0
    elements = x.outer * x.steps * x.columns / (x.shared if x.once else 1)
    return elements / lanes_of(core, x.itemsize) * (TURN_CYCLES if x.transposed else COPY_CYCLES)


def _lines(
    graph: TensorGraph, s: Statement, p: Contraction, x: Extents, shape: TileShape, core: Core
) -> float:
    """Cycles for the left factor's lines, as far as they hold more than what is needed; none from L1."""
    of, size = extents_of(s), s.expr.dtype.bytes
    elements = prod(of[d] for d in depends_on(p.left))
    if elements * size <= core.l1 // 2:
        return 0
    readers = prod(of[d] for d in set(p.outer) - depends_on(p.left)) * ceil(x.columns / shape.columns)
    far = elements * size > STREAMED_FACTOR and x.steps > FOLLOWED and not shape.in_rows
    rows = min(x.rows, shape.rows * (shape.group if shape.in_rows else 1), MOST_STARTS)
    held = core.line // size
    alike = elements * size > 2 * core.l2 and x.apart > 0 and x.apart % L1_WAY == 0  # they share sets of L1
    cycles = elements / held * FAR_CYCLES if alike else 0.0
    for r in reads(p.left):
        where = address(graph, r.tensor, r.indices)
        run = max((of[d] for d in p.over if stride(where, d) == 1), default=1)
        if run >= held:
            continue  # lines are used whole
        found = {held // 2 + a + t for a in _starts(where, p.row, rows) for t in range(run)}
        lines = (len({a // held for a in found}) - len(found) / held) / (rows * run)
        times = 1 if run == 1 and readers >= FEWEST_READERS else readers  # it is copied for so many
        cycles += elements * times * lines * (FAR_CYCLES if far and run == 1 else LINE_CYCLES)
    return cycles


def _starts(where: Linear, row: str, rows: int) -> list[int]:
    """Elements from the first of neighbouring rows to each, for the first values of all other dims."""
    moving = [(a, c) for a, c in where.terms if row in variables(a)]
    first = dict.fromkeys((v for a, _ in moving for v in variables(a)), 0)
    return [sum(c * evaluate(a, {**first, row: r}) for a, c in moving) for r in range(rows)]
