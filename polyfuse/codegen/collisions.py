"""Vector loops in which two iterations may update one element of memory become sequential.

    for e in 0..E @vec:  deg[dst[e]] += 1         becomes         for e in 0..E:  deg[dst[e]] += 1

A scatter is such a loop, and a sum that was left in memory.  Legality does not see them: it takes updates
of one element for exchangeable, which they are, though not for simultaneous.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.codegen.windows import strip_of
from polyfuse.ir.index_expr import IBin, IConst, IVar, variables
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import Block, For, Node, Update, map_nodes
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Index


def order_collisions(kernel: Kernel, block: Block) -> Block:
    """See the module docstring. To be called when accumulators are scalars already."""

    def change(node: Node) -> Node:
        if isinstance(node, For) and node.coordinate is Coordinate.VECTOR and _collide(kernel, node):
            return replace(node, coordinate=Coordinate.SEQ, lanes=())
        return node

    return map_nodes(block, change)


def _collide(kernel: Kernel, loop: For) -> bool:
    found = False

    def look(node: Node) -> Node:
        nonlocal found
        if isinstance(node, Update) and not node.buffer.startswith("%"):
            scalar = kernel.buffer(node.buffer).scope is Scope.REGISTER
            found = found or not (scalar or any(steps(i, loop) for i in node.indices))
        return node

    map_nodes(loop.body, look)
    return found


def steps(i: Index, loop: For) -> bool:
    """Does an index have another value in every iteration?"""
    match i:
        case IVar(name):
            return name == loop.var
        case IBin("+" | "-", left, right):
            one, other = (right, left) if steps(right, loop) else (left, right)
            return steps(one, loop) and loop.var not in variables(other)
        case IBin("*", IConst(c), e) | IBin("*", e, IConst(c)):
            return c != 0 and steps(e, loop)
        case IBin("%", IVar(name), IConst(extent)):
            strip = strip_of(loop)
            return name == loop.var and strip is not None and strip.length <= extent
        case _:
            return False
