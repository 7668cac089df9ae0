"""An element that is set to the identity of a reduction and updated once is stored once.

    y[i] = 0; %acc = 0; for ...: %acc += ...; y[i] += %acc
becomes
    %acc = 0; for ...: %acc += ...; y[i] = %acc

Both may stand in loops and conditions of the same form (the elements of a vector, a mask).
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IVar
from polyfuse.ir.loop_ir import Block, For, If, Node, Store, Update, VectorLoad, VectorStore, substituted
from polyfuse.ir.tensor_graph import EXPR_TYPES, Const, Expr, reads


def merge_initial(block: Block) -> Block:
    """The block with initial stores merged into the updates that follow them."""
    nodes = [_inside(n) for n in block]
    k = 0
    while k < len(nodes):
        place = _update_of(nodes, k)
        if place is None:
            k += 1
            continue
        nodes[place] = _stored(nodes[place])
        del nodes[k]
    return tuple(nodes)


def _inside(node: Node) -> Node:
    match node:
        case For():
            return replace(node, body=merge_initial(node.body))
        case If():
            return replace(node, then=merge_initial(node.then), other=merge_initial(node.other))
        case _:
            return node


def _update_of(nodes: list[Node], k: int) -> int | None:
    """The position of the one update that the initial store at k may be merged into."""
    store = _single(nodes[k])
    if not isinstance(store, Store) or not isinstance(store.value, Const):
        return None
    if any(isinstance(i, EXPR_TYPES) for i in store.indices):
        return None
    for place in range(k + 1, len(nodes)):
        node = nodes[place]
        if not _touches(node, store.buffer):
            continue
        update = _single(node)
        fits = (
            isinstance(update, Update)
            and not update.atomic
            and store.buffer not in {r.tensor for r in reads(update.value)}
            and store.value == Const(identity(update.op, store.value.dtype), store.value.dtype)
            and _same_form(nodes[k], node)
        )
        return place if fits else None
    return None


def _single(node: Node) -> Node | None:
    """The one statement inside loops and conditions."""
    while isinstance(node, (For, If)):
        body = node.body if isinstance(node, For) else node.then
        if len(body) != 1 or (isinstance(node, If) and node.other):
            return None
        node = body[0]
    return node


def _same_form(a: Node, b: Node) -> bool:
    """Do two nodes run their one statement for the same element, up to the names of loop variables?"""
    match a, b:
        case For(), For():
            heads = (a.lower, a.upper, a.step) == (b.lower, b.upper, b.step)
            return heads and _same_form(a.body[0], substituted(b.body, {b.var: IVar(a.var)})[0])
        case If(), If():
            return a.cond == b.cond and _same_form(a.then[0], b.then[0])
        case Store(buffer, indices), Update():
            return (buffer, indices) == (b.buffer, b.indices)
        case _:
            return False


def _stored(node: Node) -> Node:
    match node:
        case For():
            return replace(node, body=(_stored(node.body[0]),))
        case If():
            return replace(node, then=(_stored(node.then[0]),))
        case Update(buffer, indices, _, value):
            return Store(buffer, indices, value)
        case _:
            raise AssertionError(node)


def _touches(node: Node, buffer: str) -> bool:
    match node:
        case For():
            return any(_touches(n, buffer) for n in node.body)
        case If(cond, then, other):
            return _reads(cond, buffer) or any(_touches(n, buffer) for n in (*then, *other))
        case Store() | Update():
            used = any(_reads(i, buffer) for i in node.indices if isinstance(i, EXPR_TYPES))
            return node.buffer == buffer or used or _reads(node.value, buffer)
        case VectorLoad() | VectorStore():
            return node.buffer == buffer
        case _:
            value = getattr(node, "value", None)
            return value is not None and _reads(value, buffer)


def _reads(e: Expr, buffer: str) -> bool:
    return any(r.tensor == buffer for r in reads(e))
