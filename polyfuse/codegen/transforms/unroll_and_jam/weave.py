"""Unroll-and-jam: several iterations of a loop become one, and what they have in common is done once.

    for t in 0..T:  body            for t in 0..T by 2:  body at t and body at t + 1, woven
                              ->    for t in the rest:   body

Each copy has names of its own for what it declares (`codegen.analysis.renaming.copy_of`).  `weave` puts
copies together statement by statement: the first one of all copies, then the second one of all, and so on.
A loop that all copies have is joined in one of these ways, here for two copies with statements A, B and a, b:

    APART            for c: A; B                one loop for each copy
                     for c: a; b

    CONCATENATED     for c: A; B; a; b          one loop, one copy's body after the other

    INTERLEAVED      for c: A; a; B; b          one loop, the copies' statements in turns

    JAMMED           for c: (A; B and a; b)     one loop, the copies woven: loops in it are joined as well

    COMBINED         for c: y[c] += f + g       one loop, one update by the terms of all copies, which are
                                                y[c] += f and y[c] += g
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import TypeAlias

from polyfuse.codegen.analysis.reduction_nests import combined
from polyfuse.codegen.analysis.renaming import copy_of
from polyfuse.ir.index_expr import IVar
from polyfuse.ir.loop_ir import Block, For, Node, Update


class Join(Enum):
    """What becomes of a loop that all copies have; see the module docstring."""

    APART = auto()
    CONCATENATED = auto()
    INTERLEAVED = auto()
    JAMMED = auto()
    COMBINED = auto()


# Which way each loop is joined.
Joins: TypeAlias = Callable[[For], Join]


def apart(loop: For) -> Join:
    """No loop is joined: the copies' statements and loops are in turns."""
    return Join.APART


def copies(loop: For, body: Block, count: int) -> list[Block]:
    """A body of a loop for so many iterations that follow one another."""
    at = IVar(loop.var)
    return [copy_of(body, f"{loop.var}_{k}", {loop.var: at + k}) if k else body for k in range(count)]


def weave(bodies: Sequence[Block], joins: Joins) -> Block:
    """Copies of a body as one."""
    woven: list[Node] = []
    for same in zip(*bodies, strict=True):
        loops = [n for n in same if isinstance(n, For)]
        join = joins(loops[0]) if loops else Join.APART
        if join is Join.APART:
            woven += same
            continue
        body = _joined([n.body for n in loops], join, joins)
        lanes = dict.fromkeys(x for n in loops for x in n.lanes)
        woven.append(replace(loops[0], body=body, lanes=tuple(lanes)))
    return tuple(woven)


def _joined(bodies: Sequence[Block], join: Join, joins: Joins) -> Block:
    match join:
        case Join.CONCATENATED:
            return tuple(n for body in bodies for n in body)
        case Join.INTERLEAVED:
            return weave(bodies, apart)
        case Join.COMBINED:
            return tuple(_combined(same) for same in zip(*bodies, strict=True))
        case _:
            return weave(bodies, joins)


def _combined(same: Sequence[Node]) -> Update:
    """One update by the terms of several."""
    updates = [n for n in same if isinstance(n, Update)]
    assert len(updates) == len(same)
    first = updates[0]
    return replace(first, value=combined(first.op, [n.value for n in updates]))
