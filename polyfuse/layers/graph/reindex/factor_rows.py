"""Dims of one factor of a contraction become one dim, whose values fill the rows of its tiles.

    y[n, k, p, q] = sum[c, r, s](x[n, c, p + r, q + s] * w[k, c, r, s])    for n in 0..8, p, q in 0..7
becomes
    j[m, k] = sum[c, r, s](x[m // 49, c, m // 7 % 7 + r, m % 7 + s] * w[k, c, r, s])    for m in 0..392
    y[n, k, p, q] = j[(n * 7 + p) * 7 + q, k]

(a convolution as a matrix product, whose windows are read in place).  One of several short dims leaves parts
of tiles empty, and each value of the others fetches the other factor again.  The second statement moves the
result once more, so that tiles have to be faster by more than that (`layers.contractions.times`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from polyfuse.cost.cpu_device import CpuDevice, lanes_of, table_cpu
from polyfuse.decisions import Decision
from polyfuse.ir.contraction import factors_of
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, sizes, substitute
from polyfuse.ir.linear import interval, of_size, simplify, size_ranges
from polyfuse.ir.tensor_graph import IterDim, Read, Role, Statement, Tensor, TensorGraph, depends_on, map_expr
from polyfuse.layers.contractions import cpu_tiles
from polyfuse.layers.contractions.contraction import contraction_of
from polyfuse.layers.contractions.factors import Contraction, measures, plain
from polyfuse.layers.contractions.loop_roles import moving_cycles
from polyfuse.layers.contractions.tile_shapes import TURN_CYCLES
from polyfuse.layers.contractions.times import moved_s, tiles_s
from polyfuse.layers.graph.names import depending, fresh_name
from polyfuse.layers.graph.reindex.collapse import collapse
from polyfuse.poly.model.domains import specialize

# The part of the time without that tiles of joined rows may take, how often elements of the result are moved
# then (stored, read again, stored), and cycles to find the elements of a row of a tile by digits.
LEAD, MOVES, DIGIT_CYCLES = 0.95, 3, 5
# What times are compared at where sizes are open.
OPEN_BATCHES = (1, 8, 64)


def collapse_factor_rows(
    graph: TensorGraph, decisions: list[Decision], threads: int, core: Core | None
) -> TensorGraph:
    """The graph with dims joined in contractions whose tiles are faster so, where sizes are open on the mean
    of some numbers of them."""
    machine = table_cpu(threads, core)
    for s in graph.statements:
        if _tiled(graph, s, machine) is None or s.name in depending(graph, s):
            continue
        alone = collapse(replace(graph, statements=(s,)), [])
        if _tiled(alone, alone.statements[0], machine) is None:
            continue
        before = sum(_alone_s(a, machine) for a in _at_sizes(alone))
        ways = _ways(graph, s, alone.statements[0])
        found = [(sum(_joined_s(at, machine) for at in x.at_sizes()), x) for x in ways]
        after, best = min(found, key=lambda x: x[0], default=(before, None))
        if best is not None and after < LEAD * before:
            graph, dims = best.graph, ", ".join(d.name for d in best.dims)
            why = f"tiles of its contraction take about {after * 1e6:.4g} us with {dims} as one dim"
            decisions.append(
                Decision("collapse rows", s.target, True, f"{why}, {before * 1e6:.4g} us without")
            )
    return graph


@dataclass(frozen=True, slots=True)
class _Joined:
    """A graph in which `dims` of a statement are one, `row`, in the contraction `summed`; `put` moves sums to
    their places."""

    graph: TensorGraph
    summed: Statement
    put: Statement
    row: str
    dims: tuple[IterDim, ...]

    def at_sizes(self) -> Iterator[_Joined]:
        """The same at some numbers of what is open."""
        alone = replace(self.graph, statements=(self.summed, self.put))
        for graph in _at_sizes(alone):
            summed, put = graph.statements
            yield replace(self, graph=graph, summed=summed, put=put)


def _at_sizes(graph: TensorGraph) -> Iterator[TensorGraph]:
    """A graph with some numbers for its open sizes: batches of images, few and many."""
    if not graph.sizes:
        yield graph
        return
    for number in OPEN_BATCHES:
        ranges = size_ranges(graph)
        low_high = {n: ranges.get(of_size(n), (0, number)) for n in graph.sizes}
        yield specialize(graph, {n: max(low, min(number, high)) for n, (low, high) in low_high.items()})


def _tiled(graph: TensorGraph, s: Statement, machine: CpuDevice) -> Contraction | None:
    """A statement as a contraction that has tiles."""
    p = contraction_of(graph, s, machine.core)
    return p if p is not None and cpu_tiles.fits(graph, p, machine.core) else None


def _joined_s(x: _Joined, machine: CpuDevice) -> float:
    """Seconds of tiles with joined rows, and of what puts sums in their places; inf where they have none."""
    s, size = x.summed, x.summed.expr.dtype.bytes
    p = _tiled(x.graph, s, machine)
    if p is None or p.row != x.row:
        return float("inf")
    found = measures(x.graph, s, p)
    shape = cpu_tiles.shape_of(x.graph, s, p, machine.core, machine.threads)
    sums = found.outer * found.rows * found.columns
    turned = sums * (x.put.write[-1] != s.write[-1])
    cycles: float = found.outer * found.rows * ceil(found.columns / shape.columns) * DIGIT_CYCLES
    cycles += turned / lanes_of(machine.core, size) * TURN_CYCLES
    seconds = _tiles_s(x.graph, s, p, machine) + cycles * machine.cycle_s / machine.threads
    return seconds + MOVES * moved_s(machine, sums * size) + machine.step_s


def _alone_s(graph: TensorGraph, machine: CpuDevice) -> float:
    """Seconds of the only statement of a graph; inf where it has no tiles."""
    (s,) = graph.statements
    p = _tiled(graph, s, machine)
    return float("inf") if p is None else _tiles_s(graph, s, p, machine)


def _tiles_s(graph: TensorGraph, s: Statement, p: Contraction, machine: CpuDevice) -> float:
    """Seconds of tiles and of what brings factors and results into their order."""
    cycles = moving_cycles(graph, s, p, measures(graph, s, p), machine.core)
    return tiles_s(graph, s, p, machine)[0] + cycles * machine.cycle_s / machine.threads


def _ways(graph: TensorGraph, s: Statement, collapsed: Statement) -> Iterator[_Joined]:
    """The graph with the dims joined that one factor alone depends on, unless they collapse to one."""
    for k, factor in enumerate(factors_of(s.expr) or ()):
        dims = _own_dims(s, k)
        # An index that is divided by an open size is not affine.
        known = all(d.lower == IConst(0) for d in dims) and not any(sizes(d.upper) for d in dims[1:])
        if len(_own_dims(collapsed, k)) > 1 and plain(factor) and known:
            yield _joined(graph, s, dims)


def _own_dims(s: Statement, k: int) -> tuple[IterDim, ...]:
    """The dims of the result that only one factor of a contraction depends on."""
    factors = factors_of(s.expr)
    assert factors is not None  # it has tiles
    own = depends_on(factors[k]) - depends_on(factors[1 - k])
    return tuple(d for d in s.dims if d.name in own and not d.reduce)


def _joined(graph: TensorGraph, s: Statement, dims: tuple[IterDim, ...]) -> _Joined:
    row = fresh_name(graph, f"{s.name}__row")
    number: IndexExpr = IConst(0)
    for d in dims:
        number = number * d.upper + IVar(d.name)
    digits: dict[str, IndexExpr] = {}
    rows: IndexExpr = IConst(1)
    for d in reversed(dims):
        digit = binary("//", IVar(row), rows)
        digits[d.name] = digit if d is dims[0] else binary("%", digit, d.upper)
        rows = binary("*", rows, d.upper)
    most = interval(rows, size_ranges(graph))
    ranges = {} if most is None else {row: (0, most[1] - 1)}
    expr = map_expr(s.expr, lambda e: e, lambda i: simplify(substitute(i, digits), ranges))
    kept = tuple(d for d in s.dims if d not in dims and not d.reduce)
    free = (*kept[:-1], IterDim(row, IConst(0), rows), *kept[-1:])
    place = tuple(IVar(d.name) for d in free)
    name = fresh_name(graph, f"{s.target}__rows")
    tensor = Tensor(name, s.expr.dtype, tuple(d.upper for d in free), Role.TEMP, s.span)
    over = tuple(d for d in s.dims if d.reduce)
    summed = replace(s, name=name, target=name, dims=(*free, *over), write=place, expr=expr)
    read = Read(name, tuple(substitute(i, {row: number}) for i in place), s.expr.dtype, s.span)
    put = replace(s, dims=tuple(d for d in s.dims if not d.reduce), expr=read, reduction=None)
    statements = tuple(x for t in graph.statements for x in ((summed, put) if t is s else (t,)))
    made = replace(graph, tensors=(*graph.tensors, tensor), statements=statements)
    return _Joined(made, summed, put, row, dims)
