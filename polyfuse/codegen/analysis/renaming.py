"""Names that passes make: scalars and arrays of their own, and loops with other names in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from polyfuse.ir.index_expr import IndexExpr, IVar, substitute
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    LocalRole,
    Node,
    Store,
    TransposedTile,
    Update,
    map_nodes,
    map_values,
    nodes_of,
    substituted,
)
from polyfuse.ir.tensor_graph import Expr, Read


def scalar_name(name: str) -> str:
    """C name of a scalar: generated ones start with %, registers of tensors are prefixed."""
    return name[1:] if name.startswith("%") else f"r_{name}"


def row_variable(name: str, row: int) -> str:
    """What a row's own variable of a loop is called."""
    return f"row{row}_{name}" if row else name


def private(scalar: str, copy: str) -> str:
    """What a copy's own scalar is called."""
    return f"%{copy}_{scalar_name(scalar)}"


def worker_arrays(kernel: Kernel) -> tuple[Buffer, ...]:
    return tuple(b for b in kernel.buffers if b.scope is Scope.LOCAL)


def array_of_row(kernel: Kernel, tensor: str, row: int) -> str:
    """What a row's own array for a tensor is called: no other begins so."""
    stem = "row"
    while any(b.tensor.startswith(stem) for b in kernel.buffers):
        stem += "_"
    return f"{stem}{row}_{tensor}"


def arrays_of_rows(kernel: Kernel, rows: int) -> dict[str, Buffer]:
    """Arrays of workers that later rows of a batch have for themselves, by their names."""
    arrays = product(worker_arrays(kernel), range(1, rows))
    return {array_of_row(kernel, b.tensor, k): b for b, k in arrays}


def copy_of(
    block: Block, copy: str, at: Mapping[str, IndexExpr], arrays: Mapping[str, str] | None = None
) -> Block:
    """One of several copies of a block: with loop variables that have the values `at`, and names of its own
    for what the block declares and for `arrays`."""
    declared = (n.name for n in nodes_of(block) if isinstance(n, Declare | TransposedTile))
    names = {**(arrays or {}), **{name: private(name, copy) for name in declared}}
    return renamed(substituted(block, at), names)


def renamed(block: Block, names: Mapping[str, str]) -> Block:
    """The block with other buffers and scalars."""

    def expr(e: Expr) -> Expr:
        return replace(e, tensor=names.get(e.tensor, e.tensor)) if isinstance(e, Read) else e

    indices = {
        n.name: IVar(names[n.name])
        for n in nodes_of(block)
        if isinstance(n, Declare) and n.role is LocalRole.INDEX and n.name in names
    }

    def index(i: IndexExpr) -> IndexExpr:
        return substitute(i, indices) if indices else i

    def node(n: Node) -> Node:
        match n:
            case Store(buffer) | Update(buffer):
                return replace(n, buffer=names.get(buffer, buffer))
            case Declare(name):
                return replace(n, name=names.get(name, name))
            case TransposedTile(name, buffer=buffer):
                return replace(n, name=names.get(name, name), buffer=names.get(buffer, buffer))
            case For():
                return replace(n, lanes=tuple(names.get(x, x) for x in n.lanes))
            case _:
                return n

    return map_nodes(map_values(block, expr, index), node)
