"""Loops that add nothing, as a condition says before them, are passed by.

    for c in 0..C:                             if odd[o]:
      acc sum= (v[c] if odd[o] else 0)   ->      for c in 0..C:
                                                   acc sum= v[c]

The condition reads data, which no loop changes, and no loop variable.  Totals begin with 0.0, so that 0.0
changes none of them, zeros of both signs included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyfuse.codegen.hoist import aliases, written
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, If, Node, Update, map_nodes, map_outermost, nodes_of
from polyfuse.ir.tensor_graph import Const, Expr, Select, depends_on, reads


def passed_by(kernel: Kernel, block: Block) -> Block:
    """See the module docstring."""
    alias = aliases(kernel)

    def change(loop: For) -> list[Node] | None:
        cond = next(_conditions(loop), None)
        if cond is None or any(c != cond for c in _conditions(loop)):
            return None
        changed = written((loop,), alias)
        if depends_on(cond) & changed or any(alias.get(r.tensor, r.tensor) in changed for r in reads(cond)):
            return None
        return [If(cond, map_nodes((loop,), _known))]

    return map_outermost(block, change)


def _conditions(loop: For) -> Iterator[Expr | None]:
    """The conditions under which a loop adds anything, None where it does something else."""
    for n in nodes_of(loop.body):
        match n:
            case Update(_, _, "sum", Select(cond, _, Const(zero)), atomic=False) if zero == 0 and reads(cond):
                yield cond
            case For():
                pass
            case _:
                yield None


def _known(n: Node) -> Node:
    if isinstance(n, Update) and isinstance(n.value, Select):
        return replace(n, value=n.value.then)
    return n
