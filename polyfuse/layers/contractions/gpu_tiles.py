"""A contraction on a GPU: each thread has a tile of the result in registers.

    B(m, n)B(k)(c)     ->     B(m // 64: blk, n // 64: blk, m // 4 % 16: row, n // 4 % 16: thr)
                                [B(k, m % 4, n % 4: vec)(c); B(m % 4, n % 4: vec)(followers)]

A block of 16 x 16 threads has 64 rows and 64 columns; where such blocks would be too few for the device a
thread has two rows.  Factors are read as they lie: neighbouring threads share rows of the left one, which are
one access, and read vectors of the right one; the rest is left to L1 (`codegen.cuda.vectorize`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.contraction import is_difference
from polyfuse.ir.index_expr import IndexExpr, IVar, binary
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Tree, band, sequence
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import Cast, TensorGraph
from polyfuse.layers.contractions.factors import Contraction, extents_of, plain
from polyfuse.layers.mapping.gpu_row_shape import WARP, ceil
from polyfuse.layers.mapping.nests import Nest

# Columns of a thread, and the numbers of rows that it may have.
COLUMNS = 4
ROWS = (4, 2)
THREADS = 16


def fits(graph: TensorGraph, p: Contraction, gpu: GpuTarget) -> bool:
    """Do tiles fill the device, and are both factors elements of memory, or their conversions?"""
    lie = all(plain(e.arg if isinstance(e, Cast) else e) for e in (p.left, p.right))
    product = not is_difference(graph.statement(p.statement).expr)
    return product and lie and _rows(graph, p, gpu) is not None


def _rows(graph: TensorGraph, p: Contraction, gpu: GpuTarget) -> int | None:
    """Rows of a thread: the most of which there are enough blocks."""
    extents = extents_of(graph.statement(p.statement))
    if extents[p.column] < COLUMNS or gpu.vector is not None or gpu.row_threads is not None:
        return None
    for rows in ROWS:
        tx, ty = _threads(extents, p, rows)
        tiles = ceil(extents[p.row], rows * ty) * ceil(extents[p.column], COLUMNS * tx)
        if tx * ty >= 2 * WARP and tiles * prod(extents[d] for d in p.outer) >= gpu.sms:
            return rows
    return None


def _threads(extents: dict[str, int], p: Contraction, rows: int) -> tuple[int, int]:
    return min(THREADS, ceil(extents[p.column], COLUMNS)), min(THREADS, ceil(extents[p.row], rows))


def map_contraction(
    graph: TensorGraph, p: Contraction, gpu: GpuTarget, decisions: list[Decision]
) -> tuple[TensorGraph, list[Nest]]:
    """A contraction in tiles of threads."""
    extents, rows = extents_of(graph.statement(p.statement)), _rows(graph, p, gpu)
    assert rows is not None  # `fits` was asked
    tx, ty = _threads(extents, p, rows)
    why = f"{prod(extents.values()) / 1e6:.3g} M products: {rows} rows and {COLUMNS} columns in each of "
    why += f"{tx} x {ty} threads"
    if p.followers:
        why += f"; then {', '.join(f.statement for f in p.followers)} of each tile"
    decisions.append(Decision("tile", p.statement, True, why))
    return graph, [Nest(_nest(graph, p, rows, tx, ty), (tx, ty), COLUMNS)]


def _nest(graph: TensorGraph, p: Contraction, rows: int, tx: int, ty: int) -> Tree:
    s = graph.statement(p.statement)
    of = {s.name: {d.name: d.name for d in s.dims}, **{f.statement: dict(f.dims) for f in p.followers}}

    def loop(name: str, dim: str, by: int, modulus: int, at: Coordinate, names: Iterable[str] = of) -> Member:
        found: list[tuple[str, IndexExpr]] = []
        for n in sorted(names):
            value = binary("//", IVar(of[n][dim]), by)
            found.append((n, binary("%", value, modulus) if modulus else value))
        return Member(name, tuple(found), True, at)

    def tile(names: Iterable[str]) -> list[Member]:
        return [
            loop(p.row, p.row, 1, rows, Coordinate.SEQ, names),
            loop(p.column, p.column, 1, COLUMNS, Coordinate.VECTOR, names),
        ]

    around = [
        *(loop(d, d, 1, 0, Coordinate.BLK) for d in p.outer),
        loop(f"{p.row}_blk", p.row, rows * ty, 0, Coordinate.BLK),
        loop(f"{p.column}_blk", p.column, COLUMNS * tx, 0, Coordinate.BLK),
        loop(f"{p.row}_row", p.row, rows, ty, Coordinate.ROW),
        loop(f"{p.column}_thr", p.column, COLUMNS, tx, Coordinate.THREAD),
    ]
    mine, later = (s.name,), tuple(f.statement for f in p.followers)
    over = [loop(d, d, 1, 0, Coordinate.SEQ, mine) for d in p.over]
    parts: list[Tree] = [band([*over, *tile(mine)], Leaf(s.name), True)]
    if later:
        parts.append(band(tile(later), sequence([Leaf(n) for n in later]), True))
    return Band(tuple(around), sequence(parts), True)
