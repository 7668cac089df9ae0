"""Loops over the elements of a vector access memory once: aligned loads before, stores after.

    for v in 0..4: y[4*tx + v] = x[4*tx + v] + b
becomes
    w0[4] = x[4*tx ...]
    for v in 0..4: w1[v] = w0[v] + b
    y[4*tx ...] = w1[4]
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from polyfuse.codegen.c_family import certain_reads
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, substitute, variables
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.linear import flat
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    Node,
    Store,
    Update,
    VectorLoad,
    VectorStore,
    map_outermost,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    Index,
    IndexValue,
    Read,
    map_expr,
    reads,
    walk,
)

VECTOR_BYTES = 16
_MEMORY = (Scope.ARGUMENT, Scope.GLOBAL, Scope.SHARED)


@dataclass(slots=True)
class VectorAccess:
    """`aligned` collects the buffers that are accessed by vectors, with the bytes of the widest."""

    kernel: Kernel
    strided: frozenset[str]
    numbers: itertools.count[int]
    aligned: dict[str, int] = field(default_factory=dict)

    def block(self, nodes: Block) -> Block:
        return map_outermost(nodes, self.loop)

    def loop(self, loop: For) -> Block | None:
        if loop.coordinate is not Coordinate.VECTOR or not _straight(loop.body):
            return None
        assert isinstance(loop.upper, IConst)
        count = loop.upper.value
        written = [n.buffer for n in loop.body if isinstance(n, (Store, Update))]
        before: dict[Read, VectorLoad] = {}
        for node in loop.body:
            if isinstance(node, (Store, Update, Declare)) and node.value is not None:
                for r in certain_reads(node.value):
                    if r not in before and r.tensor not in written and self.fits(r.tensor, r.indices, loop):
                        name = f"%w{next(self.numbers)}"
                        first = _at(r.indices, loop.var)
                        before[r] = VectorLoad(name, r.dtype, r.tensor, first, count)
        lane = IVar(loop.var)

        def loaded(e: Expr) -> Expr:
            return Read(before[e].name, (lane,), e.dtype) if isinstance(e, Read) and e in before else e

        body: list[Node] = []
        after: list[Node] = []
        declared: list[Node] = []
        for node in loop.body:
            if isinstance(node, (Store, Update, Declare)) and node.value is not None:
                node = replace(node, value=map_expr(node.value, loaded))
            if isinstance(node, Store) and self.stores(node, written, loop):
                name = f"%w{next(self.numbers)}"
                dtype = self.kernel.buffer(node.buffer).dtype
                declared.append(Declare(name, dtype, None, count))
                after.append(VectorStore(node.buffer, _at(node.indices, loop.var), name, count))
                node = Store(name, (lane,), node.value)
            body.append(node)
        return (*before.values(), *declared, replace(loop, body=tuple(body)), *after)

    def stores(self, node: Store, written: list[str], loop: For) -> bool:
        """May a store wait until after the loop? Not if the loop writes or reads the buffer elsewhere."""
        if written.count(node.buffer) > 1 or not self.fits(node.buffer, node.indices, loop):
            return False
        return not any(
            r.tensor == node.buffer
            for n in loop.body
            if isinstance(n, (Store, Update, Declare)) and n.value is not None
            for r in reads(n.value)
        )

    def fits(self, buffer: str, indices: tuple[Index, ...], loop: For) -> bool:
        """Are the elements over the loop neighbours, beginning at a multiple of the vector?"""
        assert isinstance(loop.upper, IConst)
        count = loop.upper.value
        if buffer.startswith("%") or buffer in self.strided:
            return False
        b = self.kernel.buffer(buffer)
        if b.scope not in _MEMORY or b.dtype.bytes * count > VECTOR_BYTES or not indices:
            return False
        plain: list[IndexExpr] = []
        for k, i in enumerate(indices):
            if isinstance(i, EXPR_TYPES):
                if _uses(i, loop.var):
                    return False
                plain.append(IVar(f"%data{k}"))
            else:
                plain.append(i)
        where = flat(tuple(plain), b.extents)
        lane = IVar(loop.var)
        if where.factor(lane) != 1 or any(a != lane and loop.var in variables(a) for a, _ in where.terms):
            return False
        if not where.without(lane).divisible(count):
            return False
        if b.scope is not Scope.SHARED:
            self.aligned[buffer] = max(self.aligned.get(buffer, 0), b.dtype.bytes * count)
        return True


def _straight(body: Block) -> bool:
    return all(isinstance(n, (Store, Update, Declare)) for n in body)


def _at(indices: tuple[Index, ...], var: str) -> tuple[Index, ...]:
    """The indices of the first element."""
    return tuple(i if isinstance(i, EXPR_TYPES) else substitute(i, {var: as_index(0)}) for i in indices)


def _uses(e: Expr, var: str) -> bool:
    for x in walk(e):
        if isinstance(x, IndexValue) and var in variables(x.index):
            return True
        if isinstance(x, Read) and any(
            not isinstance(i, EXPR_TYPES) and var in variables(i) for i in x.indices
        ):
            return True
    return False
