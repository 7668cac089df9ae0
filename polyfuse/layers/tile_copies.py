"""Factors of a contraction in the order in which its tiles read them.

    tiles[n // 32, k, n % 32] = right[k, n]

A copy has the dims of the factor that are not of the result's tile or summed, one of tiles, those that are
summed, and what lies side by side in a tile.  One that is made by the worker that reads it is made again for
each block of rows and each point of the outer dims (`layers.cpu_tiles` says when, and puts it there).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, substitute
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Tree
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
)
from polyfuse.layers.factors import Product, lies_along
from polyfuse.layers.fresh import fresh_name
from polyfuse.layers.product_measures import extents_of

# Elements of a factor, along memory, that are turned around together.
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
    def of(cls, graph: TensorGraph, s: Statement, p: Product, side: Side) -> Copy:
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
        if side.near and 0 < side.near < (rows := extents_of(s)[p.row]):
            block = IterDim(fresh_name(graph, f"{p.row}_block"), IConst(0), IConst(-(-rows // side.near)))
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
        of the dims that are summed, each tile is turned around, in strips of that dim (`codegen.transposed`).
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
