"""Rows of threads: how many threads share a row, how many rows a block, and the loops that follow.

    B(t)B(h)      ->      B(t // TY: blk, t % TY: row)B(h // (TX V): rnd, h // V % TX: thr, h % V: vec)

Sources: AStitch (ASPLOS'22) section 4.3, adaptive thread mapping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.linear import Range, interval, linear
from polyfuse.ir.schedule_tree import Band, Coordinate, Member, Sequence, Tree, statements
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import Statement, TensorGraph
from polyfuse.layers.nest import has_band, trip_of
from polyfuse.layers.strides import contiguity

WARP = 32
# Rounds that one warp takes over a row before the row gets a block of its own.
ROUNDS_OF_A_WARP = 8
# Rows that a block has at least, where there are enough of them for two such blocks on each multiprocessor.
ROWS_OF_MANY = 32


def row_shape(lanes: int, width: int, rows: int, gpu: GpuTarget) -> tuple[int, int]:
    """(threads along a row, rows of a block) for rows of `lanes` vectors of `width` elements.

    Several short rows share a warp or a block (horizontal packing); a long row has a block of its own.
    """
    if gpu.row_threads is not None:
        fits = gpu.row_threads <= WARP and gpu.row_threads & (gpu.row_threads - 1) == 0
        return gpu.row_threads, max(1, gpu.threads // gpu.row_threads) if fits else 1
    if lanes <= WARP:
        tx = 1 << max(0, lanes - 1).bit_length()
        return tx, max(1, gpu.threads // tx, _of_many(tx, width, rows, gpu))
    warps_per_block = gpu.threads // WARP
    if lanes <= WARP * ROUNDS_OF_A_WARP and rows >= gpu.sms * warps_per_block * 2:
        return WARP, warps_per_block
    rounds = ceil(lanes, gpu.longest)
    return min(gpu.longest, ceil(ceil(lanes, rounds), WARP) * WARP), 1


def _of_many(tx: int, width: int, rows: int, gpu: GpuTarget) -> int:
    """Rows of a block at least, where there are very many short ones.

    Vectors take registers, of which the largest blocks would get either too few or more than they need.
    """
    together = min(ROWS_OF_MANY, (gpu.longest if width == 1 else gpu.longest // 2) // tx)
    return together if rows >= 2 * gpu.sms * together else 1


def extent(graph: TensorGraph, m: Member) -> int:
    """Iterations of a shared loop at most, counted from where its statements start."""
    found = 1
    for n, e in m.exprs:
        assert isinstance(e, IVar)
        dim = next(d for d in graph.statement(n).dims if d.name == e.name)
        ranges = _ranges(graph.statement(n))
        bound = interval(linear(_within(dim.upper, dim.lower)).expr(), ranges)
        found = max(found, bound[1] if bound is not None else 1024)
    return found


def _within(upper: IndexExpr, lower: IndexExpr) -> IndexExpr:
    """upper - lower; a minimum is taken apart, so that what both have in common goes away."""
    match upper:
        case IBin("min", left, right):
            return binary("min", _within(left, lower), _within(right, lower))
        case _:
            return linear(binary("-", upper, lower)).expr()


def _ranges(s: Statement) -> dict[str, Range]:
    """What the dims of a statement can be."""
    ranges: dict[str, Range] = {}
    for d in s.dims:
        low, high = interval(d.lower, ranges), interval(d.upper, ranges)
        if low is not None and high is not None:
            ranges[d.name] = low[0], max(low[0], high[1] - 1)
    return ranges


def trips(graph: TensorGraph, members: tuple[Member, ...]) -> list[int]:
    return [max(1, t) if (t := trip_of(graph, m)) is not None else 1024 for m in members]


def packed(rows: tuple[Member, ...], ty: int) -> tuple[list[Member], list[Member]]:
    """Block loops, and the loop over the rows of a block."""
    if not rows:
        return [], []
    last = rows[-1]
    if ty == 1:
        return [with_coordinate(m, Coordinate.BLK) for m in rows], []
    outer = derived(last, f"{last.name}_blk", lambda e: binary("//", e, ty), Coordinate.BLK)
    row = derived(last, last.name, lambda e: binary("%", e, ty), Coordinate.ROW)
    return [*(with_coordinate(m, Coordinate.BLK) for m in rows[:-1]), outer], [row]


def with_coordinate(m: Member, coordinate: Coordinate) -> Member:
    return replace(m, coordinate=coordinate)


def derived(m: Member, name: str, change: Callable[[IndexExpr], IndexExpr], coordinate: Coordinate) -> Member:
    return replace(m, name=name, exprs=tuple((n, change(e)) for n, e in m.exprs), coordinate=coordinate)


def spread_innermost(graph: TensorGraph, tree: Tree, tx: int, width: int) -> Tree:
    """The last loop of every innermost band in rounds, threads and vectors."""
    match tree:
        case Band(members, child, permutable) if spreads(graph, tree):
            return Band((*members[:-1], *spread(graph, members[-1], tx, width)), child, permutable)
        case Band(members, child, permutable) if has_band(child):
            return Band(members, spread_innermost(graph, child, tx, width), permutable)
        case Sequence(children):
            return Sequence(tuple(spread_innermost(graph, c, tx, width) for c in children))
        case _:
            return tree


def spreads(graph: TensorGraph, tree: Band) -> bool:
    """Do threads share the last loop of an innermost band? Else the first of them runs it alone."""
    return not has_band(tree.child) and shareable(graph, replace(tree, permutable=False)) is not None


def rows_together(wanted: int, rows: int | None, phases: bool) -> int:
    """Rows of a block. With several phases threads may wait for each other: it must be known who has none."""
    if rows is None:
        return 1 if phases else wanted
    return max(1, min(wanted, rows))


def spread(graph: TensorGraph, m: Member, tx: int, width: int) -> tuple[Member, ...]:
    """A loop as rounds of `tx` threads with vectors of `width` elements.

        h     ->     h // (tx width): rnd,  h // width % tx: thr,  h % width: vec

    Divisions are kept as they stand, so that `ir.kernel.sequential` finds the loop again.
    """
    starts = {n: _start(graph, n, e, tx * width) for n, e in m.exprs}
    if IConst(0) in starts.values():  # all of them must take an iteration in the same round
        starts = dict.fromkeys(starts, IConst(0))

    def part(suffix: str, coordinate: Coordinate, divisor: int, modulus: int | None) -> Member:
        rows = []
        for n, e in m.exprs:
            value: IndexExpr = IBin("//", binary("-", e, starts[n]), IConst(divisor))
            rows.append((n, value if modulus is None else IBin("%", value, IConst(modulus))))
        return replace(m, name=m.name + suffix, exprs=tuple(rows), coordinate=coordinate)

    return (
        part("_rnd", Coordinate.ROUND, tx * width, None),
        part("", Coordinate.THREAD, width, tx),
        part("_vec", Coordinate.VECTOR, 1, width),
    )


def _start(graph: TensorGraph, name: str, e: IndexExpr, step: int) -> IndexExpr:
    """Where a loop starts, if that is a multiple of `step`: a chunk of a factored reduction."""
    if not isinstance(e, IVar):
        return IConst(0)
    dim = next((d for d in graph.statement(name).dims if d.name == e.name), None)
    if dim is None or not variables(dim.lower):
        return IConst(0)
    form = linear(dim.lower)
    plain = all(isinstance(a, IVar) for a, _ in form.terms)
    return dim.lower if plain and form.divisible(step) else IConst(0)


def shareable(graph: TensorGraph, inner: Band) -> Member | None:
    """The loop of an innermost band that threads may share: one along contiguous memory if there is one."""
    names = statements(inner)
    movable = inner.members if inner.permutable else inner.members[-1:]
    able = [m for m in movable if m.coincident and _plain(graph, m, names)]
    return max(able, key=lambda m: contiguity(graph, m, names), default=None)


def _plain(graph: TensorGraph, m: Member, names: tuple[str, ...]) -> bool:
    """Is a loop a dim of its own, of every statement, none of them adding to what data finds?"""
    return all(isinstance(m.of(n), IVar) and not graph.statement(n).accumulate for n in names)


def ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
