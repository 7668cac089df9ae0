"""Sums of a vector's elements over a loop around it are kept in a small array of the thread.

    for k: for v in 0..4: y[4*tx + v] += a[k] * b[k, 4*tx + v]
becomes
    s[4] = 0; for k: for v in 0..4: s[v] += ...;  for v in 0..4: y[4*tx + v] += s[v]
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from polyfuse.codegen.accumulators import nonempty
from polyfuse.codegen.touched import touched_otherwise
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IVar, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Update, map_nodes, map_outermost
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Const, Expr, Read


@dataclass(frozen=True, slots=True)
class _Found:
    update: Update
    vector: For
    guards: tuple[Expr, ...]


def keep_sums(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """The block with such sums in arrays, around the outermost loop that allows it."""
    sequential = (Coordinate.SEQ, Coordinate.ROUND)
    return map_outermost(
        block, lambda loop: _around(kernel, loop, numbers) if loop.coordinate in sequential else None
    )


def _around(kernel: Kernel, loop: For, numbers: itertools.count[int]) -> list[Node]:
    before: list[Node] = []
    after: list[Node] = []
    for found in _sums(loop):
        u, vector = found.update, found.vector
        dtype = kernel.buffer(u.buffer).dtype
        name = f"%s{next(numbers)}"
        lane = IVar(vector.var)
        before.append(Declare(name, dtype, Const(identity(u.op, dtype), dtype), kernel.vector))
        total: Node = replace(vector, body=(replace(u, value=Read(name, (lane,), dtype)),))
        for cond in found.guards:
            total = If(cond, (total,))
        after.append(total)
        loop = replace(loop, body=_redirected(loop.body, u, name, lane))
    inner = loop if before else replace(loop, body=keep_sums(kernel, loop.body, numbers))
    return [*before, inner, *after]


def _sums(loop: For) -> list[_Found]:
    found: list[_Found] = []
    inner = {loop.var}

    def go(block: Block, vector: For | None, guards: tuple[Expr, ...] | None) -> None:
        for node in block:
            match node:
                case For() if guards is not None:
                    mine = nonempty(node, inner)
                    if node.coordinate is Coordinate.VECTOR:
                        own = vector is None and not _bounds(node) & inner
                        go(node.body, node if own else None, guards if own else None)
                    else:
                        inner.add(node.var)
                        go(node.body, None, None if mine is None else (*guards, *mine))
                case Update() if vector is not None and guards is not None:
                    if _only_lane(node, vector.var, inner):
                        found.append(_Found(node, vector, guards))
                case _:
                    pass

    go(loop.body, None, nonempty(loop, set()))
    updates = _all_updates(loop.body)
    others = touched_otherwise(loop.body)
    return [f for f in found if f.update.buffer not in others and updates.count(f.update.buffer) == 1]


def _bounds(loop: For) -> set[str]:
    return set(variables(loop.lower)) | set(variables(loop.upper))


def _only_lane(u: Update, lane: str, inner: set[str]) -> bool:
    if u.atomic or u.buffer.startswith("%") or any(isinstance(i, EXPR_TYPES) for i in u.indices):
        return False
    used = {v for i in u.indices if not isinstance(i, EXPR_TYPES) for v in variables(i)}
    return lane in used and not used & inner


def _all_updates(block: Block) -> list[str]:
    found: list[str] = []

    def look(node: Node) -> Node:
        if isinstance(node, Update):
            found.append(node.buffer)
        return node

    map_nodes(block, look)
    return found


def _redirected(block: Block, update: Update, name: str, lane: IVar) -> Block:
    def change(node: Node) -> Node:
        return replace(node, buffer=name, indices=(lane,)) if node == update else node

    return map_nodes(block, change)
