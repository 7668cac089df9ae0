"""Loops that add nothing, as a condition says before them, are passed by.

    for c in 0..C:                             if odd[o]:
      acc sum= (v[c] if odd[o] else 0)   ->      for c in 0..C:
                                                   acc sum= v[c]

The condition is an element of a temporary that was computed to tell so (`layers.guarded_products`), which no
loop changes.  Totals begin with 0.0, so that 0.0 changes none of them, zeros of both signs included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from polyfuse.codegen.hoist import aliases, written
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, If, Node, Update, map_nodes, map_outermost, nodes_of
from polyfuse.ir.tensor_graph import Const, Expr, Read, Role, Select, Statement, depends_on, reads


def passed_by(kernel: Kernel, block: Block) -> Block:
    """See the module docstring."""
    alias, graph = aliases(kernel), kernel.graph
    told = {t.name for t in graph.tensors if t.role is Role.TEMP and t.dtype.is_bool}
    other = {s.target for s in graph.statements if s.reduction is None and not _is_zero(s)}

    def change(loop: For) -> list[Node] | None:
        cond = next(_conditions(loop), None)
        if not isinstance(cond, Read) or cond.tensor not in told or any(c != cond for c in _conditions(loop)):
            return None
        changed = written((loop,), alias)
        if other & changed:
            return None
        if depends_on(cond) & changed or any(alias.get(r.tensor, r.tensor) in changed for r in reads(cond)):
            return None
        return [If(cond, map_nodes((loop,), _known))]

    return map_outermost(block, change)


def _is_zero(s: Statement) -> bool:
    """Does a statement begin totals with 0.0?"""
    return isinstance(s.expr, Const) and s.expr.value == 0 and not np.signbit(float(s.expr.value))


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
