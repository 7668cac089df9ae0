"""Loads of the rounds of a row that may not exist come before the rounds that do.

    for r in 0..3: w = x[8*(128*r + tx) ...]; acc += ...
    if 8*tx + 3072 < 3200: w3 = x[8*tx + 3072 ...]; acc += ...
becomes
    w3 = x[8*tx + 3072 ...] if 8*tx + 3072 < 3200
    for r in 0..3: ...
    if 8*tx + 3072 < 3200: acc += ...

Compilers move loads in straight code, and not out of a branch: the branch would wait for memory once more.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, Update, VectorLoad, VectorStore
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Read, walk

# Vectors of a branch that are loaded before it, at most.
MOST_EARLY = 4


def early_loads(kernel: Kernel, block: Block) -> Block:
    """The block with such loads before the loops over rounds that lead to their branches."""
    written = {s.target for s in kernel.graph.statements}
    written |= {t.alias for t in kernel.graph.tensors if t.name in written and t.alias is not None}
    inside = tuple(_inside(kernel, n, written) for n in block)
    return _sorted(kernel, inside, written)


def _inside(kernel: Kernel, node: Node, written: set[str]) -> Node:
    def go(nodes: Block) -> Block:
        return _sorted(kernel, tuple(_inside(kernel, n, written) for n in nodes), written)

    match node:
        case For(body=body):
            return replace(node, body=go(body))
        case If(_, then, other):
            return replace(node, then=go(then), other=go(other))
        case _:
            return node


def _sorted(kernel: Kernel, block: Block, written: set[str]) -> Block:
    made: list[Node] = []
    for node in block:
        first = _start(made)
        if isinstance(node, If) and first < len(made):
            early, node = _taken(kernel, node, written)
            made[first:first] = early
        made.append(node)
    return tuple(made)


def _start(made: list[Node]) -> int:
    """Where the rounds begin that a block ends with."""
    first = len(made)
    while first and _in_rounds(made[first - 1]):
        first -= 1
    while first < len(made) and not isinstance(made[first], For):
        first += 1
    return first


def _in_rounds(node: Node) -> bool:
    """Is a node part of what a thread does with its elements of a row, without waiting for others?"""
    match node:
        case For(coordinate=Coordinate.ROUND | Coordinate.VECTOR, body=body) | If(_, body, ()):
            return all(map(_in_rounds, body))
        case _:
            return isinstance(node, (Declare, Store, Update, VectorLoad, VectorStore))


def _taken(kernel: Kernel, branch: If, written: set[str]) -> tuple[list[Node], If]:
    """The loads that a branch begins with, under its condition, and the branch without them."""
    loads = [n for n in branch.then if isinstance(n, VectorLoad)]
    on_indices = not any(isinstance(x, Read) for x in walk(branch.cond))
    if branch.other or not on_indices or len(loads) > MOST_EARLY or len(loads) == len(branch.then):
        return [], branch
    early = [
        n
        for n in loads
        if (b := kernel.find(n.buffer)) is not None and b.scope is Scope.ARGUMENT and n.buffer not in written
        if n.cond is None and not any(isinstance(i, EXPR_TYPES) for i in n.indices)
    ]
    rest = tuple(n for n in branch.then if n not in early)
    return [replace(n, cond=branch.cond) for n in early], replace(branch, then=rest)
