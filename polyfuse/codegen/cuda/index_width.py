"""Are 32 bits enough for every index of a GPU function?

A bound of the absolute value of each index expression, and of every part of it, from the ranges of the
loop variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from polyfuse.codegen.cuda.spmd import DeviceTask
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, binary, evaluate, sizes
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import Range
from polyfuse.ir.loop_ir import (
    For,
    Node,
    Store,
    Update,
    VectorLoad,
    VectorStore,
    block_nest,
    map_nodes,
    map_values,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Index, Read

LIMIT = 2**31 - 1


def fits_32(task: DeviceTask) -> bool:
    """May all indices, addresses included, be computed in 32 bits?"""
    if task.ranges is None or any(sizes(b.elements) for b in task.kernel.buffers):
        return False
    if any(evaluate(b.elements, {}) > LIMIT for b in task.kernel.buffers):
        return False
    blocks = 1
    for x in task.loops:
        blocks *= magnitude(binary("-", x.upper, x.lower), task.ranges)
    found = [blocks, *(magnitude(e, task.ranges) for x in task.loops for e in (x.lower, x.upper))]

    def index(e: IndexExpr) -> IndexExpr:
        found.append(magnitude(e, task.ranges or {}))
        return e

    def expr(e: Expr) -> Expr:
        if isinstance(e, Read):
            found.append(_address(task.kernel, e.tensor, e.indices, task.ranges or {}))
        return e

    def place(node: Node) -> Node:
        if isinstance(node, (Store, Update, VectorLoad, VectorStore)):
            found.append(_address(task.kernel, node.buffer, node.indices, task.ranges or {}))
        return node

    if task.resident:  # the number of a block grows by that of all blocks, once past the last
        found += [_iterations(node, task.ranges) + task.resident for node in task.body]
    map_values(task.body, expr, index)
    map_nodes(task.body, place)
    return max(found) <= LIMIT


def _iterations(node: Node, ranges: Mapping[str, Range]) -> int:
    """Of a nest over blocks, at most."""
    if not isinstance(node, For) or node.coordinate is not Coordinate.BLK:
        return 1
    loops, _ = block_nest(node)
    return prod(magnitude(binary("-", x.upper, x.lower), ranges) for x in loops)


def _address(kernel: Kernel, buffer: str, indices: tuple[Index, ...], ranges: Mapping[str, Range]) -> int:
    b = kernel.find(buffer)
    if b is None or not indices:
        return 0
    total = 0
    for i, extent in zip(indices, b.extents, strict=True):
        size = evaluate(extent, {})
        mine = size if isinstance(i, EXPR_TYPES) else magnitude(i, ranges)
        total = total * size + mine
    return total


def magnitude(e: IndexExpr, ranges: Mapping[str, Range]) -> int:
    """A bound of the absolute value of an expression and its parts."""
    match e:
        case IConst(value):
            return abs(value)
        case IVar(name):
            low, high = ranges.get(name, (0, LIMIT + 1))
            return max(abs(low), abs(high))
        case ISize():
            return LIMIT + 1
        case IBin("*", left, right):
            return magnitude(left, ranges) * magnitude(right, ranges)
        case IBin("+" | "-", left, right):
            return magnitude(left, ranges) + magnitude(right, ranges)
        case IBin(_, left, right):
            return max(magnitude(left, ranges), magnitude(right, ranges))
