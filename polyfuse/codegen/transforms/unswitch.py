"""Conditions in loops: unswitching, speculative loads, loops that are skipped.

`unswitch` and `skip_empty_loops` are passes; where lanes choose differently, the first makes loads before the
condition (`with_speculative_loads`).

Guarded loads whose condition is the same for all lanes become a branch around the loop.

    for c @vec: s[c] += (x[t - k, c] if t >= k else 0) * w[k, c]
becomes
    if t >= k:  for c @vec: s[c] += x[t - k, c] * w[k, c]
    else:       for c @vec: s[c] += 0 * w[k, c]

Loads under a condition are not vectorised (`Printer.fence`).  Where lanes choose differently, those that may
be made in any case are made before the condition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from polyfuse.codegen.analysis.guards import Loops, never_negative
from polyfuse.codegen.analysis.invariants import aliases, written
from polyfuse.codegen.c_printer import guarded_load, guards_index
from polyfuse.codegen.passes import missed
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import size_ranges
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    If,
    Node,
    Store,
    Update,
    map_nodes,
    map_outermost,
    map_values,
    nodes_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    IndexValue,
    Read,
    Role,
    Select,
    Statement,
    children,
    depends_on,
    map_expr,
    reads,
    walk,
)

# --- speculative loads ------------------------------------------------------------------------------------

# Loads that both sides of a condition make, or that are in range whatever it says, are made before it.
#
#     for i @vec: y[i] = x[i] if i != k else -x[i]
#     for j @vec: s += 1 / d[i, j] if i != j else 0
# becomes
#     for i @vec: u = x[i]; y[i] = u if i != k else -u
#     for j @vec: u = d[i, j]; s += 1 / u if i != j else 0
#
# What a condition on indices guards is not loaded in vectors (`Printer.fence`), as it may be outside of its
# tensor.


def with_speculative_loads(kernel: Kernel, loop: For, around: Loops, numbers: itertools.count[int]) -> For:
    """See the head of this section; a loop where other loads stay guarded remains as it is. `around` are the
    loops that it is in; `numbers` numbers the scalars."""
    if not guarded_load(loop.body):
        return loop
    body = tuple(n for node in loop.body for n in _freed(kernel, node, (*around, loop), numbers))
    return loop if guarded_load(body) else replace(loop, body=body)


def _freed(kernel: Kernel, node: Node, around: Loops, numbers: itertools.count[int]) -> list[Node]:
    if not isinstance(node, (Store, Update)):
        return [node]
    guarded, certain = _guarded(node.value), _certain(node.value)
    free = [x for x in guarded if x in certain or _in_range(kernel, x, around)]
    scalars = {x: Read(f"%u{next(numbers)}", (), x.dtype) for x in free}
    value = map_expr(node.value, lambda e: scalars.get(e, e))
    return [*(Declare(s.tensor, s.dtype, x) for x, s in scalars.items()), replace(node, value=value)]


def _in_range(kernel: Kernel, load: Expr, around: Loops) -> bool:
    """Is an element inside of its tensor in all iterations of the loops?"""
    if not isinstance(load, Read):
        return isinstance(load, Cast) and _in_range(kernel, load.arg, around)
    b, sizes = kernel.buffer(load.tensor), size_ranges(kernel.graph)
    return b.extents == b.shape and all(
        not isinstance(i, EXPR_TYPES)
        and never_negative(i, around, sizes)
        and never_negative(e - 1 - i, around, sizes)
        for i, e in zip(load.indices, b.shape, strict=True)
    )


def _is_load(e: Expr) -> bool:
    """Does an expression only load an element, converted perhaps?"""
    return _is_load(e.arg) if isinstance(e, Cast) else isinstance(e, Read) and bool(e.indices)


def _certain(e: Expr) -> dict[Expr, None]:
    """Loads that are made whatever the conditions in an expression are, in order."""
    if _is_load(e):
        return {e: None}
    if isinstance(e, Select):
        other = _certain(e.other)
        both = {x: None for x in _certain(e.then) if x in other}
        return {**_certain(e.cond), **both}
    return {x: None for part in children(e) for x in _certain(part)}


def _guarded(e: Expr) -> dict[Expr, None]:
    """Loads under a condition on indices, in order."""
    found = {x: None for part in children(e) for x in _guarded(part)}
    if isinstance(e, Select) and guards_index(e.cond):
        found |= {x: None for side in (e.then, e.other) for x in _loads(side)}
    return found


def _loads(e: Expr) -> dict[Expr, None]:
    return {e: None} if _is_load(e) else {x: None for part in children(e) for x in _loads(part)}


# --- unswitching ------------------------------------------------------------------------------------------


def unswitch(kernel: Kernel, block: Block) -> Block:
    """See the module docstring."""
    numbers = itertools.count()

    def branches(loop: For, left: int, around: Loops) -> Node:
        cond = _same_for_all(loop) if left else None
        if cond is None:
            made = with_speculative_loads(kernel, loop, around, numbers)
            if guarded_load(made.body):
                missed((made,), "a load may be outside of its tensor where a lane does not make it")
            return made
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


# --- loops that add nothing -------------------------------------------------------------------------------

# Loops that add nothing, as a condition says before them, are passed by.
#
#     for c in 0..C:                             if odd[o]:
#       acc sum= (v[c] if odd[o] else 0)   ->      for c in 0..C:
#                                                    acc sum= v[c]
#
# The condition is an element of a temporary that was computed to tell so (`layers.graph.guarded_products`),
# which no loop changes.  Totals begin with 0.0, so that 0.0 changes none of them, zeros of both signs
# included.


def skip_empty_loops(kernel: Kernel, block: Block) -> Block:
    """See the head of this section."""
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
