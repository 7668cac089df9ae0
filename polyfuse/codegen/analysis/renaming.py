"""Names that passes make: scalars and arrays of their own, and loops with other names in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyfuse.ir.loop_ir import Block, Declare, For, Node, Store, TurnedTile, Update, map_nodes, map_values
from polyfuse.ir.tensor_graph import Expr, Read


def scalar_name(name: str) -> str:
    """C name of a scalar: generated ones start with %, registers of tensors are prefixed."""
    return name[1:] if name.startswith("%") else f"r_{name}"


def row_variable(name: str, row: int) -> str:
    """What a row's own variable of a loop is called."""
    return f"row{row}_{name}" if row else name


def called(scalar: str, row: int) -> str:
    """What a row's own scalar is called."""
    return f"%{row_variable(scalar_name(scalar), row)}"


def renamed(block: Block, names: Mapping[str, str]) -> Block:
    """The block with other buffers and scalars."""

    def expr(e: Expr) -> Expr:
        return replace(e, tensor=names.get(e.tensor, e.tensor)) if isinstance(e, Read) else e

    def node(n: Node) -> Node:
        match n:
            case Store(buffer) | Update(buffer):
                return replace(n, buffer=names.get(buffer, buffer))
            case Declare(name):
                return replace(n, name=names.get(name, name))
            case TurnedTile(name, buffer=buffer):
                return replace(n, name=names.get(name, name), buffer=names.get(buffer, buffer))
            case For():
                return replace(n, lanes=tuple(names.get(x, x) for x in n.lanes))
            case _:
                return n

    return map_nodes(map_values(block, expr, lambda i: i), node)


# How the scalars' names begin.
CARRIED = "%step"


# What tiles are called that are stored from an array of the worker.
BACK = "%back"
