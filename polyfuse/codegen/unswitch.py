"""Vector loops whose guarded loads have conditions that are the same for all lanes are chosen by branches.

    for c @vec: s[c] += (x[t - k, c] if t >= k else 0) * w[k, c]
becomes
    if t >= k:  for c @vec: s[c] += x[t - k, c] * w[k, c]
    else:       for c @vec: s[c] += 0 * w[k, c]

Loads under a condition are not vectorised (`Printer.fence`).  Where lanes choose differently, those that may
be made in any case are made before the condition (`codegen.shared_loads`).
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from polyfuse.codegen.c_family import guarded_load
from polyfuse.codegen.decided import Loops
from polyfuse.codegen.shared_loads import with_shared_loads
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, If, Node, Store, Update, map_values
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Const, Expr, IndexValue, Select, walk


def unswitch(kernel: Kernel, block: Block) -> Block:
    """See the module docstring."""
    numbers = itertools.count()

    def branches(loop: For, left: int, around: Loops) -> Node:
        cond = _same_for_all(loop) if left else None
        if cond is None:
            return with_shared_loads(kernel, loop, around, numbers)
        return If(cond, *((branches(_with(loop, cond, known), left - 1, around),) for known in (True, False)))

    def change(node: Node, around: Loops) -> Node:
        match node:
            case For(coordinate=Coordinate.VECTOR):
                return branches(node, FITTED.unswitch_most_conditions, around)
            case For():
                return replace(node, body=tuple(change(n, (*around, node)) for n in node.body))
            case If():
                then, other = (tuple(change(n, around) for n in x) for x in (node.then, node.other))
                return replace(node, then=then, other=other)
            case _:
                return node

    return tuple(change(n, ()) for n in block)


def _same_for_all(loop: For) -> Expr | None:
    """A condition of a guarded load that the loop does not change, and that reads no data."""
    if not guarded_load(loop.body):
        return None
    values = [n.value for n in loop.body if isinstance(n, (Store, Update))]
    found = (e.cond for v in values for e in walk(v) if isinstance(e, Select))
    return next((c for c in found if _of_indices(c, loop.var)), None)


def _of_indices(cond: Expr, var: str) -> bool:
    match cond:
        case Apply(_, args):
            return all(_of_indices(a, var) for a in args)
        case IndexValue(index):
            return var not in variables(index)
        case _:
            return isinstance(cond, Const)


def _with(loop: For, cond: Expr, known: bool) -> For:
    """The loop where the condition is known."""

    def expr(e: Expr) -> Expr:
        if isinstance(e, Select) and e.cond == cond:
            return e.then if known else e.other
        return e

    return replace(loop, body=map_values(loop.body, expr, lambda i: i))
