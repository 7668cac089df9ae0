"""Which buffers and scalars loops and expressions touch, and how far apart.

`strides_of` says how far apart the elements are that a read takes in neighbouring iterations of loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyfuse.ir.cpu_core import Core
from polyfuse.ir.dtypes import F32, HALVES
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import flat, linear
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    If,
    Node,
    Prefetch,
    Store,
    TransposedTile,
    Update,
    map_nodes,
    map_values,
    nodes_of,
)
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Cast, Expr, Index, Read, Select, reads


def touched_otherwise(block: Block) -> set[str]:
    """Buffers that a block stores to, or of which it may read an element that it updates.

    Other elements do not count: a recurrence reads what earlier steps made (`y[k] max= min(x[v], y[k - 1])`).
    """
    touched: set[str] = set()
    updated: dict[str, set[tuple[Index, ...]]] = {}

    def look(node: Node) -> Node:
        match node:
            case Store(buffer):
                touched.add(buffer)
            case Update(buffer, indices):
                updated.setdefault(buffer, set()).add(indices)
            case _:
                pass
        return node

    def expr(e: Expr) -> Expr:
        if isinstance(e, Read) and not all(apart(e.indices, u) for u in updated.get(e.tensor, ())):
            touched.add(e.tensor)
        return e

    map_values(map_nodes(block, look), expr, lambda i: i)
    return touched


def accesses(block: Block) -> list[tuple[str, tuple[Index, ...]]]:
    """What a block reads, and what it stores or adds to."""
    found: list[tuple[str, tuple[Index, ...]]] = []

    def look(node: Node) -> Node:
        if isinstance(node, (Store, Update)):
            found.append((node.buffer, node.indices))
        if isinstance(node, TransposedTile):
            found.append((node.buffer, node.indices))
            found.extend([node.to] if node.to else [])
        return node

    def expr(e: Expr) -> Expr:
        if isinstance(e, Read):
            found.append((e.tensor, e.indices))
        return e

    map_values(map_nodes(block, look), expr, lambda i: i)
    return found


def memory_of(kernel: Kernel, name: str) -> str:
    """A parameter that is updated in place has two names, and one memory."""
    return next((t.alias for t in kernel.graph.tensors if t.name == name and t.alias), name)


def apart(a: tuple[Index, ...], b: tuple[Index, ...]) -> bool:
    """Are two elements of a buffer surely not one: do indices differ by a number, at some position?"""
    return any(
        not isinstance(i, EXPR_TYPES) and not isinstance(j, EXPR_TYPES) and _by_a_number(i, j)
        for i, j in zip(a, b, strict=True)
    )


def _by_a_number(i: IndexExpr, j: IndexExpr) -> bool:
    """Of steps that share memory (`i % 2`) the places are as far apart as the steps, less whole rounds."""
    match i, j:
        case IBin("%", a, IConst(m)), IBin("%", b, IConst(n)) if m == n > 0:
            difference = linear(binary("-", a, b))
            return not difference.terms and difference.constant % m != 0
        case _:
            difference = linear(binary("-", i, j))
            return not difference.terms and difference.constant != 0


def read_in(block: Block) -> set[str]:
    """What a block reads: values, conditions and indices."""
    found: set[str] = set()

    def expr(e: Expr) -> Expr:
        found.update({e.tensor} if isinstance(e, Read) else ())
        return e

    map_values(block, expr, lambda i: i)
    return found


def touched_in(block: Block) -> set[str]:
    """What a block reads, and stores to."""
    return read_in(block) | {n.buffer for n in nodes_of(block) if isinstance(n, (Store, Update))}


def read_names(value: Expr, indices: tuple[Index, ...]) -> set[str]:
    """What an expression reads, and indices that are expressions."""
    names = {r.tensor for r in reads(value)}
    return names | {r.tensor for i in indices if isinstance(i, EXPR_TYPES) for r in reads(i)}


# --- strides ----------------------------------------------------------------------------------------------


def strides_of(kernel: Kernel, r: Read, *loops: str) -> tuple[int, ...]:
    """In elements, by loop, along dense memory of the kernel; 0 for what is found by data and for scalars."""
    extents = next((b.extents for b in kernel.buffers if b.tensor == r.tensor), ())
    places = tuple(i for i in r.indices if not isinstance(i, EXPR_TYPES))
    if len(places) != len(extents):
        return (0,) * len(loops)
    form = flat(places, extents)
    return tuple(abs(form.factor(IVar(name))) for name in loops)


def converted(body: Block) -> Iterator[Read]:
    """Reads of 16 bits that are made f32 whatever the data."""
    for n in body:
        if isinstance(n, (Store, Update, Declare)) and n.value is not None:
            yield from _in(n.value)


def _in(e: Expr) -> Iterator[Read]:
    match e:
        case Cast(Read(dtype=source) as r, dtype) if source in HALVES and dtype == F32:
            yield r
        case Cast(arg):
            yield from _in(arg)
        case Apply(_, args):
            for a in args:
                yield from _in(a)
        case Select(cond):
            yield from _in(cond)
        case _:
            pass


LINE = Core().line


def along(s: Store | Update, var: str) -> bool:
    """Do iterations of a loop store to neighbours in memory?"""
    if not s.indices or any(isinstance(i, EXPR_TYPES) for i in s.indices):
        return False
    *leading, last = s.indices
    return last == IVar(var) and not any(
        not isinstance(i, EXPR_TYPES) and var in variables(i) for i in leading
    )


def plain(indices: tuple[Index, ...]) -> tuple[IndexExpr, ...]:
    """Those that are found without data."""
    return tuple(i for i in indices if not isinstance(i, EXPR_TYPES))


def steps_across(indices: tuple[Index, ...], row: str, lane: str) -> int:
    """How far apart in memory the neighbours in a row are that lanes store across it; 0 if they don't."""
    at = plain(indices)
    if len(at) < 2 or len(at) < len(indices):
        return 0
    *leading, last = at
    inside = {v for i in leading for v in variables(i)}
    hidden = {v for i in at for v in linear(i).hidden}
    if row in inside or lane not in inside or lane in variables(last) or hidden & {row, lane}:
        return 0
    return abs(linear(last).factor(IVar(row)))


START = IConst(0)


def taken_out(block: Block) -> tuple[Block, tuple[For, ...]]:
    """A row's phases without requests, and a loop over lines for each tensor that was asked for."""
    found: dict[str, For] = {}
    rest: list[Node] = []
    for node in block:
        match node:
            case If(_, then) if lines := _requests(then):
                found |= lines
            case For(body=(If(_, then), For(upper=IBin("min", _, end)) as last)) if lines := _requests(then):
                found |= lines
                rest.append(replace(last, lower=START, upper=end))
            case _:
                rest.append(node)
    return tuple(rest), tuple(found.values())


def _requests(nodes: Block) -> dict[str, For]:
    """The loops over lines that nodes are, if they are nothing else."""
    asked = {n.body[0].buffer: n for n in nodes if isinstance(n, For) and isinstance(n.body[0], Prefetch)}
    return asked if len(asked) == len(nodes) else {}
