"""Threads that have no place in a part of a joined kernel do nothing there, but they wait with the others.

    red[tx] = a; a = red[0]         becomes          if (ty < 1) { red[tx] = a }
                                                     barrier of the block
                                                     if (ty < 1) { a = red[0] }

Every access to memory is masked by itself, so that barriers find their place between any two; conditions that
are left side by side are one again (`merged`).  What touches no memory, combinations of lanes above all, is
done by every thread.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import variables
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import Block, Combine, Declare, For, If, Node, Store, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Const, Expr, IndexValue, Read, walk

OUTSIDE = (Scope.SHARED, Scope.GLOBAL, Scope.ARGUMENT)


def masked(kernel: Kernel, block: Block, cond: Expr) -> Block:
    """The block with every access to memory that others see under a condition on the thread."""
    outside = frozenset(b.tensor for b in kernel.buffers if b.scope in OUTSIDE)
    return tuple(n for node in block for n in _masked(node, cond, outside))


def _masked(node: Node, cond: Expr, outside: frozenset[str]) -> Block:
    if not _touches((node,), outside):
        return (node,)
    match node:
        case For(coordinate=Coordinate.VECTOR) if not _combines(node.body):
            return (If(cond, (node,)),)
        case For(body=body):
            return (replace(node, body=_all_masked(body, cond, outside)),)
        case If(asked, then, other) if not _reads(asked, outside):
            return (If(asked, _all_masked(then, cond, outside), _all_masked(other, cond, outside)),)
        case Declare(name, dtype, value, count) if value is not None:
            if not count:
                return Declare(name, dtype, _zero(dtype)), If(cond, (Store(name, (), value),))
            one = f"{name}m"
            start = _masked(Declare(one, dtype, value), cond, outside)
            return (*start, replace(node, value=Read(one, (), dtype)))
        case _:
            return (If(cond, (node,)),)


def _all_masked(block: Block, cond: Expr, outside: frozenset[str]) -> Block:
    return tuple(n for node in block for n in _masked(node, cond, outside))


def _zero(dtype: DType) -> Const:
    return Const(0.0 if dtype.is_float else False if dtype.is_bool else 0, dtype)


def _touches(block: Block, outside: frozenset[str]) -> bool:
    """Does a block access memory that other threads see?"""
    for node in block:
        match node:
            case For(body=body):
                found = _touches(body, outside)
            case If(asked, then, other):
                found = _reads(asked, outside) or _touches((*then, *other), outside)
            case Store(buffer, indices, value) | Update(buffer, indices, _, value):
                places = [i for i in indices if isinstance(i, EXPR_TYPES)]
                found = buffer in outside or any(_reads(e, outside) for e in (value, *places))
            case Declare(value=value) if value is not None:
                found = _reads(value, outside)
            case _:
                found = False
        if found:
            return True
    return False


def _reads(e: Expr, outside: frozenset[str]) -> bool:
    return any(isinstance(x, Read) and x.tensor in outside for x in walk(e))


def _combines(block: Block) -> bool:
    return any(
        isinstance(n, Combine)
        or (isinstance(n, For) and _combines(n.body))
        or (isinstance(n, If) and _combines((*n.then, *n.other)))
        for n in block
    )


def merged(block: Block, in_blocks: bool = False) -> Block:
    """Neighbours under one condition on indices in one branch, and such conditions around loops.

    `in_blocks`: inside a loop over blocks. Those that are nested stay together, because blocks take their
    iterations in turn, all loops at once: a condition goes outside of all of them or stays inside.
    """
    result: list[Node] = []
    for node in block:
        match node:
            case For(coordinate=Coordinate.BLK):
                node = replace(node, body=merged(node.body, True))
                node = node if in_blocks else _outside_loop(node)
            case For():
                node = _outside_loop(replace(node, body=merged(node.body)))
            case If():
                node = replace(node, then=merged(node.then), other=merged(node.other))
            case _:
                pass
        last = result[-1] if result else None
        if (
            isinstance(node, If)
            and isinstance(last, If)
            and last.cond == node.cond
            and not last.other
            and not node.other
            and _on_indices(node.cond)
        ):
            result[-1] = replace(last, then=merged((*last.then, *node.then)))
        else:
            result.append(node)
    return tuple(result)


def _outside_loop(loop: For) -> Node:
    """A loop all of whose body is under a condition that it does not change; loops over blocks as one."""
    match loop.body:
        case (If(cond, then, ()),) if _on_indices(cond) and not _asks(cond, loop.var):
            return If(cond, (replace(loop, body=then),))
        case (For(coordinate=Coordinate.BLK) as inner,) if loop.coordinate is Coordinate.BLK:
            match _outside_loop(inner):
                case If(cond, then, ()) if not _asks(cond, loop.var):
                    return If(cond, (replace(loop, body=then),))
                case _:
                    return loop
        case _:
            return loop


def _on_indices(cond: Expr) -> bool:
    return not any(isinstance(x, Read) for x in walk(cond))


def _asks(cond: Expr, var: str) -> bool:
    return any(isinstance(x, IndexValue) and var in variables(x.index) for x in walk(cond))
