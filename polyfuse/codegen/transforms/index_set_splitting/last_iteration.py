"""Peeling: what follows a vector loop finds in scalars what its last iteration left there.

isl puts instances that come after all others behind their loop, where they read a register that the loop's
last iteration has set.  Lanes may leave something else: they compute several at once, or more than there are.

    for h in 0..17 @vec:  s = f(x[h]);  z[h] = s           for h in 0..16 @vec:  s = f(x[h]);  z[h] = s
    y[16] = g(s)                                    ->     for h in 16..17:  s = f(x[h]);  z[h] = s
                                                           y[16] = g(s)

In the same way what a vector loop finds in scalars is for its first iteration, where it sets them as well:
isl puts instances that come before all others in front of their loop, and lanes run in any order.

    s = 1                                                  s = 1
    for h in 0..17 @vec:                                   for h in 0..1:   (if h >= 1:  s = x[h]);  z[h] = s
      if h >= 1:  s = x[h]                          ->     for h in 1..17 @vec:
      z[h] = s                                               if h >= 1:  s = x[h]
                                                             z[h] = s
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.codegen.analysis.accesses import read_in
from polyfuse.ir.index_expr import binary
from polyfuse.ir.loop_ir import Block, For, If, Node, Store, Update, nodes_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import reads


def peel_last_iterations(block: Block, later: frozenset[str] = frozenset()) -> Block:
    """The block with such iterations apart; `later` are scalars that are read after it."""
    result: list[Node] = []
    for node, needed in zip(block, _needed_after(block), strict=True):
        after = later | needed
        match node:
            case For(coordinate=Coordinate.VECTOR) if left := _set(node.body) & after:
                result += _apart(node, left)
            case For():
                result.append(replace(node, body=peel_last_iterations(node.body, after | _needed(node.body))))
            case If():
                then, other = (peel_last_iterations(b, after) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case _:
                result.append(node)
    return tuple(result)


def _apart(loop: For, left: frozenset[str]) -> list[Node]:
    """The loop without its last iteration, and that one; what only this needs is not computed by others."""
    steps = binary("//", binary("-", binary("-", loop.upper, 1), loop.lower), loop.step)
    last = binary("max", loop.lower, binary("+", loop.lower, binary("*", steps, loop.step)))
    unread = left - read_in(loop.body)
    body = tuple(n for n in loop.body if not (isinstance(n, Store) and n.buffer in unread))
    alone = replace(loop, lower=last, coordinate=Coordinate.SEQ, lanes=())
    return [*([replace(loop, upper=last, body=body)] if body else []), alone]


def peel_first_iterations(block: Block, set_before: frozenset[str] = frozenset()) -> Block:
    """The block with iterations apart that find in scalars what was set before loops that set them, too."""
    result: list[Node] = []
    for node in block:
        match node:
            case For(coordinate=Coordinate.VECTOR) if _needed(node.body) & _set(node.body) & set_before:
                first = binary("min", node.upper, binary("+", node.lower, node.step))
                result.append(replace(node, upper=first, coordinate=Coordinate.SEQ, lanes=()))
                result.append(replace(node, lower=first))
            case For():
                result.append(replace(node, body=peel_first_iterations(node.body, set_before)))
            case If():
                then, other = (peel_first_iterations(b, set_before) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case _:
                result.append(node)
        set_before |= _left((node,))
    return tuple(result)


def _left(block: Block) -> frozenset[str]:
    """Scalars that a block stores to outside of vector loops: those of lanes are their own."""
    found: frozenset[str] = frozenset()
    for node in block:
        match node:
            case For(coordinate=c):
                found |= _left(node.body) if c is not Coordinate.VECTOR else frozenset()
            case If():
                found |= _left((*node.then, *node.other))
            case _:
                found |= _set((node,))
    return found


def _set(block: Block) -> frozenset[str]:
    """Scalars that a block stores to."""
    return frozenset(n.buffer for n in nodes_of(block) if isinstance(n, Store) and not n.indices)


def _needed(block: Block) -> frozenset[str]:
    """What a block reads or updates before it stores to it."""
    needed: frozenset[str] = frozenset()
    for node in reversed(block):
        needed = _before(node, needed)
    return needed


def _needed_after(block: Block) -> list[frozenset[str]]:
    """Of each node, what those behind it need."""
    found: list[frozenset[str]] = []
    needed: frozenset[str] = frozenset()
    for node in reversed(block):
        found.append(needed)
        needed = _before(node, needed)
    return found[::-1]


def _before(node: Node, after: frozenset[str]) -> frozenset[str]:
    """What is needed before a node, of what is needed after it."""
    match node:
        case For():
            return after | _needed(node.body)
        case If():
            return after | _needed(node.then) | _needed(node.other) | {r.tensor for r in reads(node.cond)}
        case Store(buffer, ()):
            return (after - {buffer}) | read_in((node,))
        case Update():
            return after | read_in((node,)) | {node.buffer}
        case _:
            return after | read_in((node,))
