"""Contractions on a CPU: tiles of the result in vector registers, and copies of factors in their order.

    c[m, n] = sum[k](left[m, k] * right[k, n])
becomes, in tiles of 12 rows and 32 columns,
    right_tiles[n // 32, k, n % 32] = right[k, n]
    c[m, n] = sum[k](left[m, k] * right_tiles[...])
        B(m // 1200 @blk, n // 128 @blk)B(k // 512)[
          B(k, n // 32, n)(right_tiles);
          B(m // 120, n // 32, m // 12)[B(k // 256, k, m, n @vec)(c); B(m, n @vec)(followers)]]

The innermost loops over rows and columns are what registers hold (`codegen.transforms.register_tiling`); how
many there are, and how many a block has, is up to the core (`layers.contractions.tile_shapes`).  What follows
an element runs behind its tile, in the last panel of what is summed; an accumulator takes a part of a panel.

The left factor is read in place where memory lies along what is summed, the right one where few tiles read
it; else the worker of a block copies it into the order of its tiles, a panel at a time, and it stays in its
caches.  Other left factors are copied before, for all workers.  A copy also computes what is more than an
element of memory, once; where it would take much more memory than there is to read (the windows of a
convolution), tiles read in place.  One across memory goes in strips and is transposed in registers
(`codegen.transforms.transpose_loads`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from polyfuse.decisions import Decision
from polyfuse.ir.contraction import factors_of, joined
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, evaluate, sizes, substitute
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
    Expr,
    IterDim,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    depends_on,
    map_expr,
    reads,
    statement_reads,
)
from polyfuse.layers.contractions.contraction import contraction_of, from_zero
from polyfuse.layers.contractions.factors import (
    Contraction,
    along,
    contiguous,
    exceeds,
    extents_of,
    lies_along,
    measures,
    most_of,
    plain,
    usual_extents,
    usual_sizes,
)
from polyfuse.layers.contractions.tile_shapes import FEWEST_READERS, MOST_STEPS, TileShape, tile_shape
from polyfuse.layers.graph.inline import inlinable, inline
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.graph.quantized import with_packed_words

# --- copies of factors ------------------------------------------------------------------------------------

# Factors of a contraction in the order in which its tiles read them.
#
#     tiles[n // 32, k, n % 32] = right[k, n]
#
# A copy has the dims of the factor that are not of the result's tile or summed, one of tiles, those that are
# summed, and what lies side by side in a tile.  One that is made by the worker that reads it is made again
# for each block of rows and each point of the outer dims (`map_contraction` says when, and puts it there).


# Elements of a factor, along memory, that are transposed together.
STRIP = 64


@dataclass(frozen=True, slots=True)
class Side:
    """A factor with its dim of the result; tiles are `size` long, and so many others read each; a copy pays
    for `fewest`.

    near: a copy is made by the worker that reads it, for each block of so many rows.
    """

    name: str
    factor: Expr
    dim: str
    size: int
    readers: int
    fewest: int
    near: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """A factor in the order of tiles: dims `outer`, one for tiles, those that are summed, one in a tile;
    `along` is that of those that are summed along which memory lies."""

    name: str
    side: Side
    outer: tuple[IterDim, ...]
    tile: IterDim
    over: tuple[IterDim, ...]
    lanes: IterDim
    along: IterDim | None
    block: IterDim | None
    row: str

    @classmethod
    def of(cls, graph: TensorGraph, s: Statement, p: Contraction, side: Side) -> Copy:
        """One that is made near its readers is made for each point of the outer dims."""
        used = depends_on(side.factor) | (set(p.outer) if side.near else set())
        name = fresh_name(graph, f"{s.name}__{side.dim}_tiles")
        tile = fresh_name(graph, f"{side.dim}_tile")
        length = next(d.upper for d in s.dims if d.name == side.dim)
        start = binary("*", IVar(tile), side.size)
        count = binary("//", length + (side.size - 1), side.size)
        lanes = IterDim(side.dim, IConst(0), binary("min", IConst(side.size), binary("-", length, start)))
        others = [replace(d, reduce=False) for d in s.dims if d.name in used and d.name != side.dim]
        outer = tuple(d for d in others if d.name not in s.reduction_dims)
        over = tuple(d for d in others if d.name in s.reduction_dims)
        along = next((d for d in over if lies_along(graph, side.factor, d.name)), None)
        block = None
        if side.near and exceeds(graph, s, p.row, side.near):
            rows = next(d.upper for d in s.dims if d.name == p.row)
            blocks = binary("//", rows + (side.near - 1), side.near)
            block = IterDim(fresh_name(graph, f"{p.row}_block"), IConst(0), blocks)
        return cls(name, side, outer, IterDim(tile, IConst(0), count), over, lanes, along, block, p.row)

    def added(self, graph: TensorGraph, s: Statement) -> tuple[TensorGraph, Expr]:
        """(The graph with the copy before its reader, what reads an element of it)."""
        side, blocks = self.side, () if self.block is None else (self.block,)
        own = (*self.outer, *blocks, self.tile, *self.over, self.lanes)
        shape = (*(d.upper for d in own[:-1]), as_index(side.size))
        moved = {side.dim: binary("+", binary("*", IVar(self.tile.name), side.size), IVar(side.dim))}
        value = map_expr(side.factor, lambda e: e, lambda i: substitute(i, moved))
        dtype = s.expr.dtype
        copy = Statement(self.name, self.name, own, tuple(IVar(d.name) for d in own), value, span=s.span)
        graph = replace(
            graph,
            tensors=(*graph.tensors, Tensor(self.name, dtype, shape, Role.TEMP, s.span)),
            statements=tuple(x for t in graph.statements for x in ((copy, t) if t is s else (t,))),
        )
        at: list[IndexExpr] = [IVar(d.name) for d in self.outer]
        at += [binary("//", IVar(self.row), side.near) for _ in blocks]
        at.append(binary("//", IVar(side.dim), side.size))
        at += [IVar(d.name) for d in self.over]
        at.append(binary("%", IVar(side.dim), side.size))
        return graph, Read(self.name, tuple(at), dtype, s.span)

    def tree(self) -> Tree:
        """A nest of its own."""
        blocks = [
            loop(d.name, (self.name, IVar(d.name)), at=Coordinate.BLK) for d in (*self.outer, self.tile)
        ]
        return Band((*blocks, *self.loops(())), Leaf(self.name), True)

    def loops(self, tiles: tuple[IterDim, ...]) -> list[Member]:
        """Over what is summed, some tiles, and what lies side by side in one. Where memory lies along one
        of the dims that are summed, each tile is transposed, in strips of that dim
        (`codegen.transforms.transpose_loads`).
        """
        if self.along is None:
            loops = [self._loop(d) for d in (*self.over, *tiles)]
        else:
            others = [self._loop(d) for d in self.over if d != self.along]
            d = self.along.name
            strip = loop(f"{d}_strip", (self.name, binary("//", IVar(d), STRIP)))
            loops = [*map(self._loop, tiles), strip, *others, self._loop(self.along)]
        return [*loops, self._loop(self.lanes, Coordinate.VECTOR)]

    def _loop(self, d: IterDim, at: Coordinate = Coordinate.SEQ) -> Member:
        return loop(d.name, (self.name, IVar(d.name)), at=at)


def loop(name: str, *exprs: tuple[str, IndexExpr], at: Coordinate = Coordinate.SEQ) -> Member:
    return Member(name, tuple(sorted(exprs, key=lambda e: e[0])), True, at)


# --- tiles ------------------------------------------------------------------------------------------------

# A factor is copied by all workers if so many tiles read it, where memory lies along what is summed and tiles
# read it in place about as fast (elsewhere `FEWEST_READERS`); and if the copy takes at most so many times its
# memory.
FEWEST_ALONG, MOST_COPIED = 256, 2
# Open numbers of steps of so many accumulators at most are not cut into panels.
MOST_AT_ONCE = 9
# What is more than elements of memory has to be copied, unless it takes more than this.
LARGEST_COPY = 256 * 1024 * 1024


def fits(graph: TensorGraph, p: Contraction, core: Core) -> bool:
    """Is there memory for the copies that tiles need?"""
    s = graph.statement(p.statement)
    return all(
        _copied(graph, s, side) is not None for side in _sides(graph, s, p, shape_of(graph, s, p, core, 1))
    )


def shape_of(graph: TensorGraph, s: Statement, p: Contraction, core: Core, threads: int) -> TileShape:
    """The tiles of a contraction."""
    return tile_shape(measures(graph, s, p), core, threads)


def copied_bytes(graph: TensorGraph, s: Statement, p: Contraction, shape: TileShape) -> int:
    """Bytes of the copies of factors that all workers read."""
    extents = usual_extents(graph, s)
    return sum(
        prod(extents[d] for d in extents if d in depends_on(side.factor)) * s.expr.dtype.bytes
        for side in _sides(graph, s, p, shape)
        if not side.near and _copied(graph, s, side)
    )


def with_prologues(
    graph: TensorGraph, phases: list[Tree], decisions: list[Decision], core: Core
) -> tuple[TensorGraph, list[Tree]]:
    """The graph and phases without statements that copies of factors can compute: each element is needed
    there once, and nowhere else.

        u[m, k] = exp(x[m, k]);  c[m, n] = sum[k](u[m, k] * w[k, n])     ->     left_tiles[...] = exp(x[m, k])
    """
    for name in [s.name for s in graph.statements]:
        while (found := _prologue(graph, name, core)) is not None:
            graph = inline(graph, found.target)
            parts = (restrict(t, frozenset(statements(t)) - {found.name}) for t in phases)
            phases = [t for t in parts if t is not None]
            why = f"the copy of a factor of {name} computes it"
            decisions.append(Decision("prologue", found.target, True, why))
    return graph, phases


def _prologue(graph: TensorGraph, name: str, core: Core) -> Statement | None:
    """What computes a factor of a contraction that is copied, if nothing else needs it."""
    s = next((s for s in graph.statements if s.name == name), None)
    p = contraction_of(graph, s, core) if s is not None else None
    if s is None or p is None or not fits(graph, p, core):
        return None
    for side in _sides(graph, s, p, shape_of(graph, s, p, core, 1)):
        e = side.factor
        if not isinstance(e, Read) or not plain(e) or not _copied(graph, s, side):
            continue
        readers = [r for t in graph.statements for r in statement_reads(t) if r.tensor == e.tensor]
        made = inlinable(graph, e.tensor)
        if side.near and (exceeds(graph, s, p.row, side.near) or not set(p.outer) <= depends_on(e)):
            continue  # it would be computed for each point of the outer dims and each block of rows
        if made is not None and len(readers) == 1 and _each_once(e):
            return made
    return None


def _each_once(e: Read) -> bool:
    """Is every element read by one element of the copy only?"""
    return len({i.name for i in e.indices if isinstance(i, IVar)}) == len(e.indices)


def map_contraction(
    graph: TensorGraph, p: Contraction, core: Core, threads: int, decisions: list[Decision]
) -> tuple[TensorGraph, list[Tree]]:
    """A contraction in tiles, after nests that copy its factors."""
    graph, p = with_packed_words(*from_zero(graph, p), core)
    s = graph.statement(p.statement)
    shape = shape_of(graph, s, p, core, threads)
    trees: list[Tree] = []
    factors = {"left": p.left, "right": p.right}
    copied: dict[str, str] = {}
    inside: Copy | None = None
    for side in _sides(graph, s, p, shape):
        if _copied(graph, s, side):
            copy = Copy.of(graph, s, p, side)
            graph, read = copy.added(graph, s)
            if side.near:
                inside = copy
            else:
                trees.append(copy.tree())
            copied[side.name] = "by the worker that needs it" if side.near else "into their order"
            factors[side.name] = read
    order = ("left", "right") if factors_of(s.expr) != (p.right, p.left) else ("right", "left")
    tiled = replace(s, expr=joined(s.expr, *(factors[name] for name in order)))
    graph = replace(graph, statements=tuple(tiled if x is s else x for x in graph.statements))
    decisions.append(_decision(s, p, shape, copied))
    return graph, [*trees, _nest(graph, p, s, shape, inside)]


def _sides(graph: TensorGraph, s: Statement, p: Contraction, shape: TileShape) -> tuple[Side, ...]:
    """The factors that may be copied: none where both are read along what is summed, not the right one where
    memory brings it in order."""
    if shape.dots:
        return ()
    x = measures(graph, s, p)
    again = prod(usual_extents(graph, s)[d] for d in set(p.outer) - depends_on(p.left))
    # Else a worker's array would be narrower, or made again for one outer point after the other.
    near = x.columns >= shape.columns and not x.once
    readers = shape.group if near else x.shared * -(-x.rows // shape.rows)
    left = Side("left", p.left, p.row, shape.rows, again * -(-x.columns // shape.columns), FEWEST_READERS)
    fewest = shape.fewest_near if near else FEWEST_READERS
    rows = shape.rows * shape.group if near else 0
    right = Side("right", p.right, p.column, shape.columns, readers, fewest, rows)
    return (left,) if shape.streamed and not shape.in_rows else (left, right)


def _decision(s: Statement, p: Contraction, shape: TileShape, copied: dict[str, str]) -> Decision:
    products = prod(extents_of(s).values())
    why = f"{products / 1e6:.3g} M products" if products else "products of open sizes"
    why += f" in tiles of {shape.rows} rows and {shape.columns} columns"
    why += " along what is summed" if shape.dots else ""
    why += "".join(f", {side} factor copied {how}" for side, how in copied.items())
    if p.followers:
        why += f"; then {', '.join(f.statement for f in p.followers)} of each tile"
    return Decision("tile", p.statement, True, why)


def _copied(graph: TensorGraph, s: Statement, side: Side) -> bool | None:
    """Is a factor copied? None if it should be and is too large."""
    extents = usual_extents(graph, s)
    used = depends_on(side.factor)
    elements = prod(extents[d] for d in extents if d in used)
    source = sum({r.tensor: _elements(graph, r.tensor) for r in reads(side.factor)}.values())
    direct = plain(side.factor) if side.name == "left" else contiguous(graph, side.factor, side.dim)
    if direct and extents[side.dim] >= side.size:
        along = any(lies_along(graph, side.factor, d) for d in s.reduction_dims if extents[d] > 1)
        if side.name == "left" and along and side.readers < FEWEST_ALONG:
            return False
        return side.readers >= side.fewest and elements <= MOST_COPIED * source
    modest = elements * s.expr.dtype.bytes <= LARGEST_COPY or (
        graph.sizes and elements <= MOST_COPIED * source
    )
    return True if modest else None


def _elements(graph: TensorGraph, name: str) -> int:
    return prod(evaluate(e, usual_sizes(graph)) for e in graph.tensor(name).shape)


# Values of a dim of the contraction, divided by a number, for some statements.
_Values: TypeAlias = Callable[[str, int, Iterable[str]], list[tuple[str, IndexExpr]]]


def _nest(graph: TensorGraph, p: Contraction, s: Statement, shape: TileShape, inside: Copy | None) -> Tree:
    """The loops of the tiled contraction and of what follows each tile; `inside` is what a worker copies."""
    of = {s.name: {d.name: d.name for d in s.dims}, **{f.statement: dict(f.dims) for f in p.followers}}

    def values(dim: str, by: int, names: Iterable[str]) -> list[tuple[str, IndexExpr]]:
        return [(n, binary("//", IVar(of[n][dim]), by)) for n in names]

    later = tuple(of)[1:]
    copies = [] if inside is None else [inside.name]
    tiles = [] if inside is None else [(inside.name, binary("//", IVar(inside.tile.name), shape.across))]
    of_rows = [] if inside is None or inside.block is None else [(inside.name, IVar(inside.block.name))]
    loops = [loop(d, *values(d, 1, of), *((n, IVar(d)) for n in copies), at=Coordinate.BLK) for d in p.outer]
    if exceeds(graph, s, p.row, shape.rows * shape.group):
        rows = values(p.row, shape.rows * shape.group, of)
        loops.append(loop(f"{p.row}_block", *rows, *of_rows, at=Coordinate.BLK))
    across = values(p.column, shape.columns * shape.across, of)
    loops.append(loop(f"{p.column}_block", *across, *tiles, at=Coordinate.BLK))
    if shape.dots:
        return band(loops, _dots(p, s, shape, along(graph, p), values), True)
    cut, parts = _panels(graph, p, s, shape, inside is not None)
    for d, size, last in cut:
        found = [*values(d, size, (s.name,)), *((n, _panel_of(inside, d, size)) for n in copies)]
        loops.append(loop(f"{d}_panel", *found, *((n, last) for n in later)))
    tile = _tile(p, s, shape, parts, values)
    if inside is not None:
        tile = sequence([band(inside.loops((inside.tile,)), Leaf(inside.name), True), tile])
    return band(loops, tile, True)


def _panel_of(copy: Copy | None, dim: str, size: int) -> IndexExpr:
    """The panel of a dim that is summed in which an element is copied: the first, where it serves all."""
    needed = copy is not None and any(d.name == dim for d in copy.over)
    return binary("//", IVar(dim), size) if needed else IConst(0)


def _dots(p: Contraction, s: Statement, shape: TileShape, along: str | None, values: _Values) -> Tree:
    """Sums along memory of a few rows and columns, for all of a block; then what follows its elements."""
    mine, later = (s.name,), tuple(f.statement for f in p.followers)
    others = [d for d in p.over if d != along]
    loops = [loop(f"{p.column}_tile", *values(p.column, shape.columns, mine))]
    loops.append(loop(f"{p.row}_tile", *values(p.row, shape.rows, mine)))
    loops += [loop(d, *values(d, 1, mine)) for d in (p.row, p.column, *others)]
    loops.append(loop(along or "", *values(along or "", 1, mine), at=Coordinate.VECTOR))
    sums = band(loops, Leaf(s.name), True)
    if not later:
        return sums
    after = [
        loop(p.row, *values(p.row, 1, later)),
        loop(p.column, *values(p.column, 1, later), at=Coordinate.VECTOR),
    ]
    return sequence([sums, band(after, sequence([Leaf(n) for n in later]), True)])


def _tile(
    p: Contraction, s: Statement, shape: TileShape, parts: list[tuple[str, int]], values: _Values
) -> Tree:
    """The tiles of a block in a panel, each with what follows it."""
    mine, later = (s.name,), tuple(f.statement for f in p.followers)
    each = (*mine, *later)
    visits = []
    if shape.kept < shape.group:
        visits.append(loop(f"{p.row}_group", *values(p.row, shape.rows * shape.kept, each)))
    visits.append(loop(f"{p.column}_tile", *values(p.column, shape.columns, each)))
    visits.append(loop(f"{p.row}_tile", *values(p.row, shape.rows, each)))
    sums = [loop(f"{d}_part", *values(d, size, mine)) for d, size in parts]
    sums += [loop(d, *values(d, 1, mine)) for d in (*p.over, p.row)]
    sums.append(loop(p.column, *values(p.column, 1, mine), at=Coordinate.VECTOR))
    if not later:
        return band([*visits, *sums], Leaf(s.name), True)
    after = [
        loop(p.row, *values(p.row, 1, later)),
        loop(p.column, *values(p.column, 1, later), at=Coordinate.VECTOR),
    ]
    following = band(after, sequence([Leaf(n) for n in later]), True)
    return band(visits, sequence([band(sums, Leaf(s.name), True), following]), True)


def _panels(
    graph: TensorGraph, p: Contraction, s: Statement, shape: TileShape, near: bool
) -> tuple[list[tuple[str, int, IndexExpr]], list[tuple[str, int]]]:
    """The dim that is summed in panels, how much of it is one, so that a tile's column stays in L2, and the
    number of the last; and how much of it one accumulator takes.  An open number of steps that may all stay
    there is no panel of its own where no copy is made `near`: usually they are few."""
    extents = usual_extents(graph, s)
    longest = max(p.over, key=lambda d: extents[d])
    steps = next(binary("-", d.upper, d.lower) for d in s.dims if d.name == longest)
    length, others = most_of(graph, steps), prod(extents[d] for d in p.over if d != longest)

    def cut(size: int) -> list[tuple[str, int, IndexExpr]]:
        return [(longest, size, binary("//", steps - 1, size))] if size < length else []

    if shape.streamed and cut(size := max(1, shape.panel // others)):
        return cut(size), []
    panel = shape.panel
    part = _even(length, max(1, MOST_STEPS // others), 1) if 2 * length * others > 3 * MOST_STEPS else length
    if sizes(steps) and not near and length * others <= MOST_AT_ONCE * MOST_STEPS:
        return [], [(longest, part)] if part < length else []
    size = _even(length, max(1, panel // others), part) if 2 * length * others > 3 * panel else length
    return cut(size), [(longest, part)] if part < size else []


def _even(length: int, most: int, unit: int) -> int:
    """How long equal parts are that `most` holds, in units; whole strips where they are long."""
    size = -(-length // -(-length // most))
    unit = STRIP if unit == 1 and size > STRIP else unit
    return -(-size // unit) * unit
