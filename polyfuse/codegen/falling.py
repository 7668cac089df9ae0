"""Loops along which an address falls: gcc 12 counts their iterations by it, wrongly (docs/targets.md)."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.ir.index_expr import IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import Block, For, If, map_places
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index


def falls(block: Block, begins: Mapping[str, IndexExpr] | None = None) -> bool:
    """Does an index fall where a variable of a loop rises?

    `begins` are the variables of loops around the block, as sums of where they begin and how far they are: a
    tile's own place falls nowhere, since the beginning of its loop makes up for it.
    """
    env = begins or {}
    for node in block:
        match node:
            case For(var, lower):
                begin = binary("+", substitute(lower, env), IVar(var))
                found = falls(node.body, {**env, var: begin})
            case If(_, then, other):
                found = falls((*then, *other), env) or _any_falls((If(node.cond, ()),), env)
            case _:
                found = _any_falls((node,), env)
        if found:
            return True
    return False


def _any_falls(block: Block, env: Mapping[str, IndexExpr]) -> bool:
    falling: list[Index] = []

    def at(_: str, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        falling.extend(
            i for i in indices if not isinstance(i, EXPR_TYPES) and _falls(substitute(i, env), env)
        )
        return indices

    map_places(block, at)
    return bool(falling)


def _falls(index: IndexExpr, loops: Mapping[str, IndexExpr]) -> bool:
    """Is there less of it where a loop's variable is greater? What else rises with that one makes up for it:
    a tile begins at a minimum or maximum of its places."""
    terms = [({*variables(atom)} & {*loops}, factor) for atom, factor in linear(index).terms]
    rising = {v for found, factor in terms if factor > 0 for v in found}
    return any(factor < 0 and not found <= rising for found, factor in terms)
