"""Loops over a row, one after the other, become one where each element needs its own only.

    for c @vec: s[c] = 0                                     for c @vec:
    for c @vec: s[c] sum= x[c] + x[c + 1] + x[c + 2]   ->      s[c] = 0; s[c] sum= x[c] + x[c + 1] + x[c + 2]
    for c @vec: y[c] = s[c] / 3                                y[c] = s[c] / 3

Schedules keep them apart: there were loops over a window in between (`codegen.jammed_windows`).  In one loop
totals stay in registers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from polyfuse.codegen.collisions import steps
from polyfuse.codegen.touched import memory_of
from polyfuse.ir.index_expr import IndexExpr, IVar
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, Update, map_values, substituted
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Expr, Index, Read, reads


def merged_rows(kernel: Kernel, block: Block) -> Block:
    """See the module docstring."""
    result: list[Node] = []
    for node in block:
        match node:
            case For():
                node = replace(node, body=merged_rows(kernel, node.body))
            case If():
                node = replace(
                    node, then=merged_rows(kernel, node.then), other=merged_rows(kernel, node.other)
                )
            case _:
                pass
        if result and (whole := _merged(kernel, result[-1], node)):
            result[-1] = whole
        else:
            result.append(node)
    return tuple(result)


def _merged(kernel: Kernel, a: Node, b: Node) -> For | None:
    if not (isinstance(a, For) and isinstance(b, For) and is_row(a) and is_row(b)):
        return None
    if (a.lower, a.upper) != (b.lower, b.upper) or not (has_window(a) or has_window(b)):
        return None
    if not own_elements(kernel, [a, b]):
        return None
    return replace(a, body=(*a.body, *at(b, IVar(a.var))))


def is_row(loop: For) -> bool:
    """A loop over lanes that does no more than compute elements?"""
    plain = loop.coordinate is Coordinate.VECTOR and loop.step == 1 and not (loop.lanes or loop.joint)
    return plain and all(isinstance(n, (Declare, Store, Update)) for n in loop.body)


def has_window(row: For) -> bool:
    """Are several elements of one tensor added to a total at once?"""
    for n in row.body:
        if isinstance(n, Update):
            places = Counter(r.tensor for r in {(r.tensor, r.indices): r for r in reads(n.value)}.values())
            if max(places.values(), default=0) > 1:
                return True
    return False


def own_elements(kernel: Kernel, rows: Sequence[For]) -> bool:
    """Does each iteration of some loops over one row touch one element, its own, of what they change?"""
    lane = rows[0]
    body = [n for row in rows for n in at(row, IVar(lane.var))]
    places: dict[str, set[tuple[Index, ...]]] = {}
    for n in body:
        if isinstance(n, (Store, Update)):
            places.setdefault(memory_of(kernel, n.buffer), set()).add(n.indices)

    def expr(e: Expr) -> Expr:
        if isinstance(e, Read) and (memory := memory_of(kernel, e.tensor)) in places:
            places[memory].add(e.indices)
        return e

    map_values(tuple(body), expr, lambda i: i)
    return all(
        len(found) == 1 and any(steps(i, lane) for i in next(iter(found))) for found in places.values()
    )


def at(row: For, place: IndexExpr) -> Block:
    """What a loop does in one iteration."""
    return substituted(row.body, {row.var: place})
