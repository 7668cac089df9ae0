"""What follows a tile reads its sums where the tile has left them, not from an array that they are copied to.

    t[6, 16] = ...                                           t[6, 16] = ...
    for m in 6*c0..min(M, 6*c0 + 6):                         for m in 6*c0..min(M, 6*c0 + 6):
      for n in 16*c1..16*c1 + 16 @vec:                         for n in 16*c1..16*c1 + 16 @vec:
        c[m - 6*c0, n - 16*c1] = t[m - 6*c0, n - 16*c1]   ->     y[m, n] = t[m - 6*c0, n - 16*c1] + b[m]
    for m in 6*c0..min(M, 6*c0 + 6):
      for n in 16*c1..16*c1 + 16 @vec:
        y[m, n] = c[m - 6*c0, n - 16*c1] + b[m]

`c` is an array of one worker that nothing else reads.  Where few steps are summed, as in a convolution of
three channels, such copies took as long as all else that follows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from polyfuse.ir.index_expr import IndexExpr, IVar, substitute
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import (
    Block,
    For,
    If,
    Node,
    RegisterTile,
    Store,
    Update,
    map_nodes,
    map_values,
)
from polyfuse.ir.tensor_graph import Expr, Index, Read, map_index


def follow_tiles(kernel: Kernel, block: Block) -> Block:
    """The block without such copies."""
    local = {b.tensor for b in kernel.buffers if b.scope is Scope.LOCAL}
    uses = _uses(block)

    def spared(block: Block) -> Block:
        result: list[Node] = []
        while block:
            node, *rest = block
            copy = _copy(result[-1], node) if result else None
            block = tuple(rest)
            if copy is not None and copy.to in local:
                later = tuple(map(copy.spared, rest))
                if uses[copy.to] == 1 + _uses(block)[copy.to] and not _uses(later)[copy.to]:
                    block = later
                    continue
            if isinstance(node, For):
                node = replace(node, body=spared(node.body))
            elif isinstance(node, If):
                node = replace(node, then=spared(node.then), other=spared(node.other))
            result.append(node)
        return tuple(result)

    return spared(block)


@dataclass(frozen=True, slots=True)
class _Copy:
    """Loops that store `sums` of a tile to elements of `to`."""

    row: For
    lane: For
    to: str
    indices: tuple[Index, ...]
    sums: Read

    def spared(self, node: Node) -> Node:
        """A later node, which reads the tile if it has the same rows and lanes."""
        match node:
            case For(body=(For() as lane,)) if _as_long(node, self.row) and _as_long(lane, self.lane):
                names: dict[str, IndexExpr] = {self.row.var: IVar(node.var), self.lane.var: IVar(lane.var)}
                at, sums = _renamed(self.indices, names), _renamed(self.sums.indices, names)

                def read(e: Expr) -> Expr:
                    mine = isinstance(e, Read) and e.tensor == self.to and e.indices == at
                    return replace(self.sums, indices=sums) if mine else e

                (made,) = map_values((node,), read, lambda i: i)
                return made
            case _:
                return node


def _copy(tile: Node, node: Node) -> _Copy | None:
    """What copies all of a tile, right after it."""
    match tile, node:
        case RegisterTile(), For(body=(For(body=(Store(to, indices, Read() as sums),)) as lane,)):
            return _Copy(node, lane, to, indices, sums) if sums.tensor == tile.name else None
        case _:
            return None


def _as_long(a: For, b: For) -> bool:
    return (a.lower, a.upper, a.step) == (b.lower, b.upper, b.step)


def _renamed(indices: tuple[Index, ...], names: dict[str, IndexExpr]) -> tuple[Index, ...]:
    return tuple(map_index(i, lambda e: e, lambda i: substitute(i, names)) for i in indices)


def _uses(block: Block) -> Counter[str]:
    """How often each buffer is named."""
    found: Counter[str] = Counter()

    def expr(e: Expr) -> Expr:
        found.update([e.tensor] if isinstance(e, Read) else [])
        return e

    def node(n: Node) -> Node:
        match n:
            case Store() | Update():
                found.update([n.buffer])
            case RegisterTile():
                found.update([n.left.tensor, n.right.tensor])
            case _:
                pass
        return n

    map_nodes(map_values(block, expr, lambda i: i), node)
    return found
