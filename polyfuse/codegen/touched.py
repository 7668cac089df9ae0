"""Which buffers and scalars loops and expressions touch."""

from __future__ import annotations

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, binary
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import Block, Node, Store, TurnedTile, Update, map_nodes, map_values
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Index, Read, reads


def touched_otherwise(block: Block) -> set[str]:
    """Buffers that a block stores to, or of which it may read an element that it updates.

    Other elements do not count: a recurrence reads what earlier steps made (`y[k] max= min(x[v], y[k - 1])`).
    """
    touched: set[str] = set()
    updated: dict[str, set[tuple[Index, ...]]] = {}

    def look(node: Node) -> Node:
        match node:
            case Store(buffer):
                touched.add(buffer)
            case Update(buffer, indices):
                updated.setdefault(buffer, set()).add(indices)
            case _:
                pass
        return node

    def expr(e: Expr) -> Expr:
        if isinstance(e, Read) and not all(apart(e.indices, u) for u in updated.get(e.tensor, ())):
            touched.add(e.tensor)
        return e

    map_values(map_nodes(block, look), expr, lambda i: i)
    return touched


def accesses(block: Block) -> list[tuple[str, tuple[Index, ...]]]:
    """What a block reads, and what it stores or adds to."""
    found: list[tuple[str, tuple[Index, ...]]] = []

    def look(node: Node) -> Node:
        if isinstance(node, (Store, Update)):
            found.append((node.buffer, node.indices))
        if isinstance(node, TurnedTile):
            found.append((node.buffer, node.indices))
            found.extend([node.to] if node.to else [])
        return node

    def expr(e: Expr) -> Expr:
        if isinstance(e, Read):
            found.append((e.tensor, e.indices))
        return e

    map_values(map_nodes(block, look), expr, lambda i: i)
    return found


def memory_of(kernel: Kernel, name: str) -> str:
    """A parameter that is updated in place has two names, and one memory."""
    return next((t.alias for t in kernel.graph.tensors if t.name == name and t.alias), name)


def apart(a: tuple[Index, ...], b: tuple[Index, ...]) -> bool:
    """Are two elements of a buffer surely not one: do indices differ by a number, at some position?"""
    return any(
        not isinstance(i, EXPR_TYPES) and not isinstance(j, EXPR_TYPES) and _by_a_number(i, j)
        for i, j in zip(a, b, strict=True)
    )


def _by_a_number(i: IndexExpr, j: IndexExpr) -> bool:
    """Of steps that share memory (`i % 2`) the places are as far apart as the steps, less whole rounds."""
    match i, j:
        case IBin("%", a, IConst(m)), IBin("%", b, IConst(n)) if m == n > 0:
            difference = linear(binary("-", a, b))
            return not difference.terms and difference.constant % m != 0
        case _:
            difference = linear(binary("-", i, j))
            return not difference.terms and difference.constant != 0


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
