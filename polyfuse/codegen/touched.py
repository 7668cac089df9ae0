"""Which buffers and scalars loops and expressions touch."""

from __future__ import annotations

from polyfuse.ir.loop_ir import Block, Node, Store, Update, map_nodes, map_values
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Index, Read, reads


def touched_otherwise(block: Block) -> set[str]:
    """Buffers that are stored to, or read, in a block (updates do not count)."""
    touched: set[str] = set()

    def look(node: Node) -> Node:
        match node:
            case Store(buffer, indices, value):
                touched.add(buffer)
                touched.update(read_names(value, indices))
            case Update(_, indices, _, value):
                touched.update(read_names(value, indices))
            case _:
                pass
        return node

    map_nodes(block, look)
    return touched


def read_in(block: Block) -> set[str]:
    """What a block reads: values, conditions and indices."""
    found: set[str] = set()

    def expr(e: Expr) -> Expr:
        found.update({e.tensor} if isinstance(e, Read) else ())
        return e

    map_values(block, expr, lambda i: i)
    return found


def read_names(value: Expr, indices: tuple[Index, ...]) -> set[str]:
    """What an expression reads, and indices that are expressions."""
    names = {r.tensor for r in reads(value)}
    return names | {r.tensor for i in indices if isinstance(i, EXPR_TYPES) for r in reads(i)}
