"""Scatters: owners of their results, and updates that may meet in one element.

Owner computes: each part of a kernel makes the stores and updates whose index is in its share.

for own in 0..parts @blk:                       low, high = own * share, (own + 1) * share
  for n in low..high:  y[n, f] = 0              bounds of a loop, where the index is its variable
  for e in 0..E:                                else an `OwnedLoop`, or a condition
    if low <= dst[e] < high:  y[dst[e], f] += ...

`serialize_conflicts` makes vector loops sequential in which two iterations may update one element of memory.

    for e in 0..E @vec:  deg[dst[e]] += 1         becomes         for e in 0..E:  deg[dst[e]] += 1

A scatter is such a loop, and a sum that was left in memory.  Legality does not see them: it takes updates
of one element for exchangeable, which they are, though not for simultaneous.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.codegen.analysis.dependence import steps
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, evaluate, product, sizes
from polyfuse.ir.kernel import Kernel, Owners, Scope
from polyfuse.ir.loop_ir import Block, For, If, Node, OwnedLoop, Store, Update, map_nodes
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    depends_on,
    reads,
)

OWN = "own"


def owner_computes(kernel: Kernel, owners: Owners, block: Block) -> Block:
    """The loop over parts (none, where there is one) of what each runs."""
    extent = kernel.buffer(owners.tensor).shape[owners.place]
    share = binary("//", binary("+", extent, owners.parts - 1), owners.parts)
    if owners.parts == 1:
        return _Shares(kernel, owners, (IConst(0), extent)).block(block)
    low = binary("*", IVar(OWN), share)
    high = binary("min", binary("+", low, share), extent)
    mine = _Shares(kernel, owners, (low, high)).block(block)
    return (For(OWN, IConst(0), IConst(owners.parts), 1, mine, Coordinate.BLK),)


class _Shares:
    """One part: loops and conditions over what it owns."""

    def __init__(self, kernel: Kernel, owners: Owners, share: tuple[IndexExpr, IndexExpr]) -> None:
        self.kernel = kernel
        self.owners = owners
        self.share = share
        self.extent = kernel.buffer(owners.tensor).shape[owners.place]

    def block(self, block: Block) -> Block:
        return tuple(self._node(n) for n in block)

    def _node(self, node: Node) -> Node:
        key = self._key(node)
        if key is None:
            return node
        if not isinstance(node, For):
            if isinstance(node, If):
                return replace(node, then=self.block(node.then), other=self.block(node.other))
            return If(self._mine(key), (node,))
        if isinstance(key, IVar) and key.name == node.var:
            low, high = self.share
            return replace(node, lower=binary("max", node.lower, low), upper=binary("min", node.upper, high))
        inside = {v for n in node.body for v in _loop_variables(n)}
        used = depends_on(key)
        if node.var in used and not used & inside:
            if isinstance(key, EXPR_TYPES):
                return OwnedLoop(node, key, self.extent, self.share, self.owners.tensor, self._ahead(node))
            return replace(node, body=(If(self._mine(key), node.body),))
        return replace(node, body=self.block(node.body))

    def _key(self, node: Node) -> Index | None:
        """The index that says whose a node's stores and updates are."""
        found: list[Index] = []

        def look(n: Node) -> Node:
            if isinstance(n, (Store, Update)) and n.buffer == self.owners.tensor:
                found.append(n.indices[self.owners.place])
            return n

        map_nodes((node,), look)
        return found[0] if found else None

    def _mine(self, key: Index) -> Expr:
        """The condition that an index is in the share."""
        low, high = (IndexValue(b, I64) for b in self.share)
        value: Expr = IndexValue(key, I64) if not isinstance(key, EXPR_TYPES) else self._clamped(key)
        return Apply("and", (Apply("le", (low, value), BOOL), Apply("lt", (value, high), BOOL)), BOOL)

    def _clamped(self, key: Expr) -> Expr:
        value = key if key.dtype == I64 else Cast(key, I64)
        last = IndexValue(binary("-", self.extent, 1), I64)
        return Apply("min", (Apply("max", (value, Const(0, I64)), I64), last), I64)

    def _ahead(self, loop: For) -> tuple[Read, ...]:
        """Rows of large tensors, of which each iteration reads its own."""
        found: dict[tuple[str, tuple[Index, ...]], Read] = {}

        def look(n: Node) -> Node:
            if isinstance(n, (Store, Update)):
                own = Read(n.buffer, n.indices, n.value.dtype)
                found.update({(r.tensor, r.indices): r for r in (own, *reads(n.value)) if self._far(loop, r)})
            return n

        map_nodes(loop.body, look)
        return tuple(found.values())

    def _far(self, loop: For, r: Read) -> bool:
        *before, last = r.indices or (None,)
        b = self.kernel.find(r.tensor)
        if b is None or last is None or isinstance(last, EXPR_TYPES):
            return False
        if loop.var in depends_on(last) or loop.var not in depends_on(*(i for i in before if i is not None)):
            return False
        elements = product(b.shape)
        return (
            bool(sizes(elements))
            or evaluate(elements, {}) * b.dtype.bytes >= FITTED.owner_computes_least_ahead_bytes
        )


def _loop_variables(node: Node) -> set[str]:
    found: set[str] = set()

    def look(n: Node) -> Node:
        if isinstance(n, For):
            found.add(n.var)
        return n

    map_nodes((node,), look)
    return found


# --- updates that may meet ----------------------------------------------------------------------------------


def serialize_conflicts(kernel: Kernel, block: Block) -> Block:
    """Vector loops whose iterations collide become sequential. To be called when accumulators are scalars
    already."""

    def change(node: Node) -> Node:
        if isinstance(node, For) and node.coordinate is Coordinate.VECTOR and _collide(kernel, node):
            return replace(node, coordinate=Coordinate.SEQ, lanes=())
        return node

    return map_nodes(block, change)


def _collide(kernel: Kernel, loop: For) -> bool:
    found = False

    def look(node: Node) -> Node:
        nonlocal found
        if isinstance(node, Update) and (b := kernel.find(node.buffer)) is not None:
            scalar = b.scope is Scope.REGISTER
            found = found or not (scalar or any(steps(i, loop) for i in node.indices))
        return node

    map_nodes(loop.body, look)
    return found
