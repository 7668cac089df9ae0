"""A contraction on a CPU: tiles of its result in vector registers.

    c[m, n] = sum[k](left[m, k] * right[k, n])
becomes
    left_tiles[m // 6, k, m % 6] = left[m, k]           B(m // 6 @blk)B(k, m)
    right_tiles[n // 16, k, n % 16] = right[k, n]       B(n // 16 @blk)B(k, n)
    c[m, n] = sum[k](left_tiles[...] * right_tiles[...])
        B(m // 96 @blk, n // 16 @blk)[B(k // 256, m // 6, k, m, n @vec)(c); B(m, n @vec)(followers)]

The innermost loops over 6 rows and 16 columns (one cache line) are what registers hold
(`codegen.register_tiles`).  Factors are copied into the order in which tiles read them, which also computes
what is more than an element of memory, once; where that would take much more memory than there is to read
(the windows of a convolution), tiles read it in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, substitute
from polyfuse.ir.schedule_tree import (
    Band,
    Coordinate,
    Leaf,
    Member,
    Tree,
    band,
    restrict,
    sequence,
    statements,
)
from polyfuse.ir.tensor_graph import (
    Apply,
    Expr,
    IterDim,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    reads,
    statement_reads,
)
from polyfuse.layers.fresh import fresh_name
from polyfuse.layers.products import Product, contiguous, depends_on, plain, product_of
from polyfuse.layers.rewrites import inlinable, inline

# Rows of a tile: with two vectors of columns, 12 accumulators of the 16 registers that most machines have.
ROWS = 6
COLUMN_BYTES = 64
# Tiles of rows that one worker takes with a tile of columns, which stays in L1 for so long.
GROUP = 16
# Bytes of a tile of columns between two visits of the accumulators to memory: half of L1.
PANEL_BYTES = 16 * 1024
# A factor is copied if so many tiles read it, and the copy takes at most so many times its memory.
FEWEST_READERS = 4
MOST_COPIED = 2
# What is more than elements of memory has to be copied, unless it takes more than this.
LARGEST_COPY = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Side:
    """A factor with its dim of the result; tiles are `size` long, and so many others read each."""

    name: str
    factor: Expr
    dim: str
    size: int
    readers: int


def fits(graph: TensorGraph, p: Product) -> bool:
    """Is there memory for the copies that tiles need?"""
    s = graph.statement(p.statement)
    return all(_copied(graph, s, side) is not None for side in _sides(s, p))


def with_prologues(
    graph: TensorGraph, phases: list[Tree], decisions: list[Decision]
) -> tuple[TensorGraph, list[Tree]]:
    """The graph and phases without statements that copies of factors can compute: each element is needed
    there once, and nowhere else.

        u[m, k] = exp(x[m, k]);  c[m, n] = sum[k](u[m, k] * w[k, n])     ->     left_tiles[...] = exp(x[m, k])
    """
    for name in [s.name for s in graph.statements]:
        while (found := _prologue(graph, name)) is not None:
            graph = inline(graph, found.target)
            parts = (restrict(t, frozenset(statements(t)) - {found.name}) for t in phases)
            phases = [t for t in parts if t is not None]
            why = f"the copy of a factor of {name} computes it"
            decisions.append(Decision("prologue", found.target, True, why))
    return graph, phases


def _prologue(graph: TensorGraph, name: str) -> Statement | None:
    """What computes a factor of a contraction that is copied, if nothing else needs it."""
    s = next((s for s in graph.statements if s.name == name), None)
    p = product_of(graph, s) if s is not None else None
    if s is None or p is None or not fits(graph, p):
        return None
    for side in _sides(s, p):
        e = side.factor
        if not isinstance(e, Read) or not plain(e) or not _copied(graph, s, side):
            continue
        readers = [r for t in graph.statements for r in statement_reads(t) if r.tensor == e.tensor]
        made = inlinable(graph, e.tensor)
        if made is not None and len(readers) == 1 and _each_once(e):
            return made
    return None


def _each_once(e: Read) -> bool:
    """Is every element read by one element of the copy only?"""
    return len({i.name for i in e.indices if isinstance(i, IVar)}) == len(e.indices)


def map_product(graph: TensorGraph, p: Product, decisions: list[Decision]) -> tuple[TensorGraph, list[Tree]]:
    """A contraction in tiles, after nests that copy its factors."""
    s = graph.statement(p.statement)
    trees: list[Tree] = []
    factors: list[Expr] = []
    copied: list[str] = []
    for side in _sides(s, p):
        read = side.factor
        if _copied(graph, s, side):
            graph, read, tree = _copy(graph, s, side)
            trees.append(tree)
            copied.append(side.name)
        factors.append(read)
    tiled = replace(s, expr=Apply("mul", tuple(factors), s.expr.dtype, s.expr.span))
    graph = replace(graph, statements=tuple(tiled if x is s else x for x in graph.statements))
    decisions.append(_decision(s, p, copied))
    return graph, [*trees, _nest(p, s)]


def _sides(s: Statement, p: Product) -> tuple[_Side, _Side]:
    extents, columns = _extents(s), _columns(s)
    return (
        _Side("left", p.left, p.row, ROWS, -(-extents[p.column] // columns)),
        _Side("right", p.right, p.column, columns, -(-extents[p.row] // ROWS)),
    )


def _columns(s: Statement) -> int:
    return COLUMN_BYTES // s.expr.dtype.bytes


def _extents(s: Statement) -> dict[str, int]:
    found = {}
    for d in s.dims:
        assert isinstance(d.lower, IConst) and isinstance(d.upper, IConst)  # `layers.products` has seen to it
        found[d.name] = d.upper.value - d.lower.value
    return found


def _decision(s: Statement, p: Product, copied: list[str]) -> Decision:
    products = prod(_extents(s).values())
    why = f"{products / 1e6:.3g} M products in tiles of {ROWS} rows and {_columns(s)} columns"
    if copied:
        why += f", {' and '.join(copied)} factor copied into their order"
    if p.followers:
        why += f"; then {', '.join(f.statement for f in p.followers)} of each tile"
    return Decision("tile", p.statement, True, why)


# --- copies of factors -----------------------------------------------------------------------------------


def _copied(graph: TensorGraph, s: Statement, side: _Side) -> bool | None:
    """Is a factor copied? None if it should be and is too large."""
    extents = _extents(s)
    used = depends_on(side.factor)
    elements = prod(extents[d] for d in extents if d in used)
    source = sum({r.tensor: _elements(graph, r.tensor) for r in reads(side.factor)}.values())
    direct = plain(side.factor) if side.name == "left" else contiguous(graph, side.factor, side.dim)
    if direct and extents[side.dim] >= side.size:
        return side.readers >= FEWEST_READERS and elements <= MOST_COPIED * source
    return True if elements * s.expr.dtype.bytes <= LARGEST_COPY else None


def _elements(graph: TensorGraph, name: str) -> int:
    return prod(e.value for e in graph.tensor(name).shape if isinstance(e, IConst))


def _copy(graph: TensorGraph, s: Statement, side: _Side) -> tuple[TensorGraph, Expr, Tree]:
    """(graph with a factor in the order of tiles, what reads an element of that, the nest that fills it)."""
    used = depends_on(side.factor)
    name = fresh_name(graph, f"{s.name}__{side.dim}_tiles")
    tile = fresh_name(graph, f"{side.dim}_tile")
    dims = {d.name: d for d in s.dims if d.name in used}
    length = dims[side.dim].upper
    start = binary("*", IVar(tile), side.size)
    count = binary("//", length + (side.size - 1), side.size)
    lanes = IterDim(side.dim, IConst(0), binary("min", IConst(side.size), binary("-", length, start)))
    others = [replace(d, reduce=False) for d in dims.values() if d.name != side.dim]
    outer = [d for d in others if d.name not in s.reduction_dims]
    over = [d for d in others if d.name in s.reduction_dims]
    own = (*outer, IterDim(tile, IConst(0), count), *over, lanes)
    shape = (*(d.upper for d in outer), count, *(d.upper for d in over), as_index(side.size))
    moved = {side.dim: binary("+", start, IVar(side.dim))}
    value = map_expr(side.factor, lambda e: e, lambda i: substitute(i, moved))
    dtype = s.expr.dtype
    copy = Statement(name, name, own, tuple(IVar(d.name) for d in own), value, span=s.span)
    graph = replace(
        graph,
        tensors=(*graph.tensors, Tensor(name, dtype, shape, Role.TEMP, s.span)),
        statements=tuple(x for t in graph.statements for x in ((copy, t) if t is s else (t,))),
    )
    at: list[IndexExpr] = [IVar(d.name) for d in outer]
    at.append(binary("//", IVar(side.dim), side.size))
    at += [IVar(d.name) for d in over]
    at.append(binary("%", IVar(side.dim), side.size))
    loops = [_loop(d.name, (name, IVar(d.name)), at=Coordinate.BLK) for d in own[: len(outer) + 1]]
    loops += [_loop(d.name, (name, IVar(d.name))) for d in over]
    loops.append(_loop(lanes.name, (name, IVar(lanes.name)), at=Coordinate.VECTOR))
    return graph, Read(name, tuple(at), dtype, s.span), Band(tuple(loops), Leaf(name), True)


# --- loops -----------------------------------------------------------------------------------------------


def _loop(name: str, *exprs: tuple[str, IndexExpr], at: Coordinate = Coordinate.SEQ) -> Member:
    return Member(name, tuple(sorted(exprs, key=lambda e: e[0])), True, at)


def _nest(p: Product, s: Statement) -> Tree:
    """The loops of the tiled contraction and of what follows each tile."""
    of = {s.name: {d.name: d.name for d in s.dims}, **{f.statement: dict(f.dims) for f in p.followers}}

    def values(dim: str, by: int = 1, names: Iterable[str] = of) -> list[tuple[str, IndexExpr]]:
        return [(n, binary("//", IVar(of[n][dim]), by)) for n in names]

    extents, columns = _extents(s), _columns(s)
    rows = ROWS * max(1, min(GROUP, -(-extents[p.row] // ROWS)))
    blocks = [_loop(d, *values(d), at=Coordinate.BLK) for d in p.outer]
    blocks.append(_loop(f"{p.row}_block", *values(p.row, rows), at=Coordinate.BLK))
    blocks.append(_loop(f"{p.column}_tile", *values(p.column, columns), at=Coordinate.BLK))
    mine = (s.name,)
    loops = [_loop(f"{d}_panel", *values(d, f, mine)) for d, f in _panels(p, extents)]
    loops.append(_loop(f"{p.row}_tile", *values(p.row, ROWS, mine)))
    loops += [_loop(d, *values(d, 1, mine)) for d in (*p.over, p.row)]
    loops.append(_loop(p.column, *values(p.column, 1, mine), at=Coordinate.VECTOR))
    parts: list[Tree] = [band(loops, Leaf(s.name), True)]
    later = tuple(f.statement for f in p.followers)
    if later:
        around = [
            _loop(p.row, *values(p.row, 1, later)),
            _loop(p.column, *values(p.column, 1, later), at=Coordinate.VECTOR),
        ]
        parts.append(band(around, sequence([Leaf(n) for n in later]), True))
    return Band(tuple(blocks), sequence(parts), True)


def _panels(p: Product, extents: dict[str, int]) -> list[tuple[str, int]]:
    """The dim that is summed in panels, and how much of it is one, so that a tile's column stays in L1."""
    panel = PANEL_BYTES // COLUMN_BYTES
    steps = prod(extents[d] for d in p.over)
    longest = max(p.over, key=lambda d: extents[d])
    size = max(1, panel * extents[longest] // steps)
    return [(longest, size)] if 2 * steps > 3 * panel and size < extents[longest] else []
