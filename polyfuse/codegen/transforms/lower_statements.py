"""From kernel IR to loop IR: instances of statements become stores and updates; what is read again, scalars.

    s[c0, c1] = x[c0, c1] + b[c1]; acc sum= s[c0, c1]
becomes
    f0 = x[c0, c1] + b[c1]; s[c0, c1] = f0; acc sum= f0
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from polyfuse.codegen.analysis.invariants import aliases, written
from polyfuse.ir.index_expr import IndexExpr, substitute, variables
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.loop_ir import Block, Declare, Exec, For, If, Node, Store, Update, map_nodes, map_values
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Index, Read, map_expr, map_index, reads


def lower_statements(kernel: Kernel, block: Block) -> Block:
    """Each instance as what it does to a buffer."""

    def body(node: Node) -> Node:
        return _instance(kernel, node) if isinstance(node, Exec) else node

    return map_nodes(block, body)


def _instance(kernel: Kernel, node: Exec) -> Node:
    s = kernel.graph.statement(node.statement)
    env: dict[str, IndexExpr] = {d.name: a for d, a in zip(s.dims, node.args, strict=True)}

    def index(i: IndexExpr) -> IndexExpr:
        return substitute(i, env)

    def place(e: Expr) -> Expr:
        if not isinstance(e, Read):
            return e
        return replace(e, indices=_storage_indices(kernel.buffer(e.tensor), e.indices))

    def expr(e: Expr) -> Expr:
        return map_expr(e, place, index)

    write = tuple(map_index(i, expr, index) for i in s.write)
    target = kernel.buffer(s.target)
    indices = _storage_indices(target, write)
    if s.accumulate:
        assert s.reduction is not None
        return Update(s.target, indices, s.reduction, expr(s.expr), s.name in kernel.atomic)
    return Store(s.target, indices, expr(s.expr))


def _storage_indices(buffer: Buffer, indices: tuple[Index, ...]) -> tuple[Index, ...]:
    """Where an element lives; a register has no indices."""
    return () if buffer.scope is Scope.REGISTER else buffer.storage_index(indices)


def forward_stores(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """A value that is stored and read again in the same block is kept in a scalar (the module docstring)."""
    result: list[Node] = []
    rest = list(block)
    while rest:
        node = rest.pop(0)
        match node:
            case For():
                result.append(replace(node, body=forward_stores(kernel, node.body, numbers)))
            case If():
                then, other = (forward_stores(kernel, b, numbers) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case Store(buffer, indices, value) if _reread(node, rest):
                name = f"%f{next(numbers)}"
                scalar = Read(name, (), value.dtype)
                result += [Declare(name, value.dtype, value), replace(node, value=scalar)]
                rest = _with_scalar(rest, Read(buffer, indices, value.dtype), scalar)
            case _:
                result.append(node)
    return tuple(result)


def _reread(store: Store, rest: list[Node]) -> bool:
    """Is the stored element read by a later statement of the block before it may change?"""
    if not store.indices or any(isinstance(i, EXPR_TYPES) for i in store.indices):
        return False
    for node in rest:
        if not isinstance(node, (Store, Update)):
            return False
        element = (store.buffer, store.indices)
        if any((r.tensor, r.indices) == element for r in reads(node.value)):
            return True
        if node.buffer == store.buffer:
            return False
    return False


def _with_scalar(rest: list[Node], element: Read, scalar: Read) -> list[Node]:
    """Replace reads of an element by a scalar, up to the next statement that may change the buffer."""
    changed: list[Node] = []
    for k, node in enumerate(rest):
        if not isinstance(node, (Store, Update)):
            return changed + rest[k:]
        value = map_expr(node.value, lambda e: scalar if e == element else e)
        changed.append(replace(node, value=value))
        if node.buffer == element.tensor:
            return changed + rest[k + 1 :]
    return changed


# --- what later loops read --------------------------------------------------------------------------------

# What all threads of a row know is not read again from memory that one of them stores it in.
#
#     m[c0] = acc; for c1: s sum= exp(x[c0, c1] - m[c0])
# becomes
#     f0 = acc; m[c0] = f0; for c1: s sum= exp(x[c0, c1] - f0)


_SHARED = (Coordinate.ROUND, Coordinate.STEP, Coordinate.VECTOR)


def forward_to_loops(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """A value that is stored outside of loops that threads share, and read later, is kept in a scalar."""
    result: list[Node] = []
    rest = list(block)
    while rest:
        node = rest.pop(0)
        match node:
            case For(coordinate=c, body=body) if c not in _SHARED:
                result.append(replace(node, body=forward_to_loops(kernel, body, numbers)))
            case Store(buffer, indices, value) if _read_later(kernel, node, rest):
                name = f"%f{next(numbers)}"
                element, scalar = Read(buffer, indices, value.dtype), Read(name, (), value.dtype)
                result += [Declare(name, value.dtype, value), replace(node, value=scalar)]
                rest = list(_replaced(tuple(rest), element, scalar))
            case _:
                result.append(node)
    return tuple(result)


def _replaced(block: Block, element: Read, scalar: Read) -> Block:
    return map_values(block, lambda e: scalar if e == element else e, lambda i: i)


def _read_later(kernel: Kernel, store: Store, rest: list[Node]) -> bool:
    """Is the stored element read later in the block, and nothing of the buffer written any more?"""
    b = kernel.find(store.buffer)
    if b is None or b.scope in (Scope.REGISTER, Scope.LOCAL):
        return False
    if not store.indices or any(isinstance(i, EXPR_TYPES) for i in store.indices):
        return False
    alias = aliases(kernel)
    changed = written(tuple(rest), alias)
    index = {v for i in store.indices if not isinstance(i, EXPR_TYPES) for v in variables(i)}
    if alias.get(store.buffer, store.buffer) in changed or index & changed:
        return False
    element = Read(store.buffer, store.indices, store.value.dtype)
    return _replaced(tuple(rest), element, Read("", (), element.dtype)) != tuple(rest)
