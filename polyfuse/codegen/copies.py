"""Values of 16 bits that a vector loop only copies stay as they are.

    for l: y[l] = f16(f32(x[i, l]))     ->     for l: y[l] = x[i, l]

The language computes in f32, so a copy is written as two conversions.  They change nothing but which NaN a
NaN is.  A loop that does something else as well keeps them: halves and floats do not fill the same vectors.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.dtypes import BF16, F16, F32
from polyfuse.ir.loop_ir import Block, For, Node, Store, map_nodes
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Cast, Read


def copied(block: Block) -> Block:
    """The block, with such loops as copies."""
    return map_nodes(block, _loop)


def _loop(node: Node) -> Node:
    if not isinstance(node, For) or node.coordinate is not Coordinate.VECTOR:
        return node
    body = [_copy(n) for n in node.body]
    return replace(node, body=tuple(n for n in body if n)) if all(body) else node


def _copy(node: Node) -> Store | None:
    """A store of what was read, if a node is that."""
    match node:
        case Store(_, _, Cast(Cast(Read() as value, wide), dtype)) if wide == F32:
            return replace(node, value=value) if value.dtype == dtype and dtype in (F16, BF16) else None
        case _:
            return None
