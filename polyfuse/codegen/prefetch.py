"""Rows that are to be fetched ahead (`Buffer.ahead`): a loop over their cache lines before the last phase.

Memory is idle while the last phase computes:

    for t:                            for t:
      phases                            phases
      for h: y[t, h] = x[t, h] ...      if t + 1 < T:  for l in 0..H by 16:  fetch x[t + 1, l]
                                        for h: y[t, h] = x[t, h] ...
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar
from polyfuse.ir.kernel import Buffer, Kernel
from polyfuse.ir.loop_ir import Block, For, If, Node, Prefetch, Store, Update, map_nodes
from polyfuse.ir.tensor_graph import Apply, Index, IndexValue, reads

LINE_BYTES = 64


def fetch_ahead(kernel: Kernel, block: Block) -> Block:
    """See the module docstring."""
    chosen = [b for b in kernel.buffers if b.ahead]

    def change(node: Node) -> Node:
        return _with_fetches(node, chosen) if isinstance(node, For) else node

    return map_nodes(block, change) if chosen else block


def _with_fetches(rows: For, chosen: list[Buffer]) -> For:
    """The loop over rows with the next one's lines fetched before its last loop; other loops stay."""
    phases = [k for k, n in enumerate(rows.body) if isinstance(n, For)]
    fetches = [f for b in chosen for f in _lines(rows, b)] if len(phases) > 1 else []
    if not fetches:
        return rows
    following = (IndexValue(IVar(rows.var) + chosen[0].ahead, I64), IndexValue(rows.upper, I64))
    ahead = If(Apply("lt", following, BOOL), tuple(fetches))
    return replace(rows, body=(*rows.body[: phases[-1]], ahead, *rows.body[phases[-1] :]))


def _lines(rows: For, b: Buffer) -> list[For]:
    """A loop over the lines of a row ahead of this one; none if nothing reads a row of this loop."""
    leading = _leading(rows, b.tensor)
    if leading is None:
        return []
    name = f"{rows.var}_l"
    line = Prefetch(b.tensor, (*leading, IVar(rows.var) + b.ahead, IVar(name)))
    return [For(name, IConst(0), b.shape[-1], LINE_BYTES // b.dtype.bytes, (line,))]


def _leading(rows: For, tensor: str) -> tuple[IndexExpr, ...] | None:
    found: list[tuple[Index, ...]] = []

    def look(node: Node) -> Node:
        if isinstance(node, (Store, Update)):
            found.extend(r.indices for r in reads(node.value) if r.tensor == tensor)
        return node

    map_nodes(rows.body, look)
    mine = [i for i in found if i[-2] == IVar(rows.var)]
    return tuple(mine[0][:-2]) if mine else None  # type: ignore[arg-type]
