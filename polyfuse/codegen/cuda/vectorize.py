"""Vectors and tiles of a GPU's thread: vector accesses, sums of vectors in registers, register tiles.

`VectorAccess`, `vector_sums_in_registers` and `thread_tiles` are passes (`codegen.cuda.pipeline`).

Loops over the elements of a vector access memory once: aligned loads before, stores after.

    for v in 0..4: y[4*tx + v] = x[4*tx + v] + b
becomes
    w0[4] = x[4*tx ...]
    for v in 0..4: w1[v] = w0[v] + b
    y[4*tx ...] = w1[4]
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.accesses import touched_otherwise
from polyfuse.codegen.analysis.index_ranges import strip_of
from polyfuse.codegen.c_printer import certain_reads
from polyfuse.codegen.cuda.interleaved import interleaved
from polyfuse.codegen.transforms.register_tiling import SumNest, span_of, sum_nest
from polyfuse.codegen.transforms.scalar_replacement import nonempty
from polyfuse.ir.contraction import joined
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, substitute, variables
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.linear import Linear, flat, linear
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    If,
    Node,
    Store,
    Update,
    VectorLoad,
    VectorStore,
    map_nodes,
    map_outermost,
    substituted,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    map_expr,
    reads,
    walk,
)

# --- vector accesses --------------------------------------------------------------------------------------

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
        turns = interleaved(self.kernel, self.strided, loop, self.numbers)
        for buffer, nbytes in turns.aligned.items():
            self.aligned[buffer] = max(self.aligned.get(buffer, 0), nbytes)
        loop = turns.loop
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
            waits = isinstance(node, Store) and self.stores(node, written, loop)
            if isinstance(node, (Store, Update, Declare)) and node.value is not None:
                node = replace(node, value=map_expr(node.value, loaded))
            if isinstance(node, Store) and waits:
                name = f"%w{next(self.numbers)}"
                dtype = self.kernel.buffer(node.buffer).dtype
                declared.append(Declare(name, dtype, None, count))
                after.append(VectorStore(node.buffer, _at(node.indices, loop.var), name, count))
                node = Store(name, (lane,), node.value)
            body.append(node)
        loads = (*turns.before, *before.values())
        return (*loads, *declared, replace(loop, body=tuple(body)), *after, *turns.after)

    def stores(self, node: Store, written: list[str], loop: For) -> bool:
        """May a store wait until after the loop? Not if the loop writes or reads the elements elsewhere."""
        if not self.fits(node.buffer, node.indices, loop):
            return False
        if written.count(node.buffer) > 1 and not self.apart(node, loop):
            return False
        return not any(
            r.tensor == node.buffer
            for n in loop.body
            if isinstance(n, (Store, Update, Declare)) and n.value is not None
            for r in reads(n.value)
        )

    def apart(self, node: Store, loop: For) -> bool:
        """Do all other stores of the loop to the buffer touch other vectors: pieces of a row?"""
        mine = self.address(node.buffer, node.indices)
        for other in loop.body:
            if isinstance(other, (Store, Update)) and other is not node and other.buffer == node.buffer:
                gap = linear(binary("-", self.address(other.buffer, other.indices).expr(), mine.expr()))
                known = not any(isinstance(i, EXPR_TYPES) for i in (*node.indices, *other.indices))
                fits = known and not gap.terms and self.fits(other.buffer, other.indices, loop)
                if not fits or gap.constant == 0 or isinstance(other, Update):
                    return False
        return True

    def address(self, buffer: str, indices: tuple[Index, ...]) -> Linear:
        """The element number of an access; an index that is data is an atom of its own."""
        plain = (IVar(f"%data{k}") if isinstance(i, EXPR_TYPES) else i for k, i in enumerate(indices))
        return flat(tuple(plain), self.kernel.buffer(buffer).extents)

    def fits(self, buffer: str, indices: tuple[Index, ...], loop: For) -> bool:
        """Are the elements over the loop neighbours, beginning at a multiple of the vector?"""
        assert isinstance(loop.upper, IConst)
        count = loop.upper.value
        b = self.kernel.find(buffer)
        if b is None or buffer in self.strided:
            return False
        if b.scope not in _MEMORY or not indices:
            return False
        if any(_uses(i, loop.var) for i in indices if isinstance(i, EXPR_TYPES)):
            return False
        where = self.address(buffer, indices)
        lane = IVar(loop.var)
        if where.factor(lane) != 1 or any(a != lane and loop.var in variables(a) for a, _ in where.terms):
            return False
        if not where.without(lane).divisible(count):
            return False
        if b.scope is not Scope.SHARED:
            nbytes = min(VECTOR_BYTES, b.dtype.bytes * count)
            self.aligned[buffer] = max(self.aligned.get(buffer, 0), nbytes)
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


# --- sums of vectors --------------------------------------------------------------------------------------

# Sums of a vector's elements over a loop around it are kept in a small array of the thread.
#
#     for k: for v in 0..4: y[4*tx + v] += a[k] * b[k, 4*tx + v]
# becomes
#     s[4] = 0; for k: for v in 0..4: s[v] += ...;  for v in 0..4: y[4*tx + v] += s[v]


@dataclass(frozen=True, slots=True)
class _Found:
    update: Update
    vector: For
    guards: tuple[Expr, ...]


def vector_sums_in_registers(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """The block with such sums in arrays, around the outermost loop that allows it."""
    sequential = (Coordinate.SEQ, Coordinate.ROUND)
    return map_outermost(
        block, lambda loop: _around(kernel, loop, numbers) if loop.coordinate in sequential else None
    )


def _around(kernel: Kernel, loop: For, numbers: itertools.count[int]) -> list[Node]:
    before: list[Node] = []
    after: list[Node] = []
    for found in _sums(kernel, loop):
        u, vector = found.update, found.vector
        dtype = kernel.buffer(u.buffer).dtype
        name = f"%s{next(numbers)}"
        lane = IVar(vector.var)
        before.append(Declare(name, dtype, Const(identity(u.op, dtype), dtype), kernel.vector))
        total: Node = replace(vector, body=(replace(u, value=Read(name, (lane,), dtype)),))
        for cond in found.guards:
            total = If(cond, (total,))
        after.append(total)
        loop = replace(loop, body=_redirected(loop.body, u, name, lane))
    inner = loop if before else replace(loop, body=vector_sums_in_registers(kernel, loop.body, numbers))
    return [*before, inner, *after]


def _sums(kernel: Kernel, loop: For) -> list[_Found]:
    found: list[_Found] = []
    inner = {loop.var}

    def go(block: Block, vector: For | None, guards: tuple[Expr, ...] | None) -> None:
        for node in block:
            match node:
                case For() if guards is not None:
                    mine = nonempty(node, inner)
                    if node.coordinate is Coordinate.VECTOR:
                        own = vector is None and not _bounds(node) & inner
                        go(node.body, node if own else None, guards if own else None)
                    else:
                        inner.add(node.var)
                        go(node.body, None, None if mine is None else (*guards, *mine))
                case Update() if vector is not None and guards is not None:
                    if kernel.find(node.buffer) is not None and _only_lane(node, vector.var, inner):
                        found.append(_Found(node, vector, guards))
                case _:
                    pass

    go(loop.body, None, nonempty(loop, set()))
    updates = _all_updates(loop.body)
    others = touched_otherwise(loop.body)
    return [f for f in found if f.update.buffer not in others and updates.count(f.update.buffer) == 1]


def _bounds(loop: For) -> set[str]:
    return set(variables(loop.lower)) | set(variables(loop.upper))


def _only_lane(u: Update, lane: str, inner: set[str]) -> bool:
    if u.atomic or any(isinstance(i, EXPR_TYPES) for i in u.indices):
        return False
    used = {v for i in u.indices if not isinstance(i, EXPR_TYPES) for v in variables(i)}
    return lane in used and not used & inner


def _all_updates(block: Block) -> list[str]:
    found: list[str] = []

    def look(node: Node) -> Node:
        if isinstance(node, Update):
            found.append(node.buffer)
        return node

    map_nodes(block, look)
    return found


def _redirected(block: Block, update: Update, name: str, lane: IVar) -> Block:
    def change(node: Node) -> Node:
        return replace(node, buffer=name, indices=(lane,)) if node == update else node

    return map_nodes(block, change)


# --- register tiles ---------------------------------------------------------------------------------------

# Sums of products over a tile of rows and a vector of columns stay in registers of a GPU's thread.
#
#     for k: for i in 0..R: for v in 0..4 @vec: c[4*ty + i, 4*tx + v] += a[4*ty + i, k] * b[k, 4*tx + v]
# becomes
#     s0[4] = 0, s1[4] = 0, ...
#     for k: for v in 0..4 @vec: s0[v] += a[4*ty, k] * b[k, 4*tx + v]; s1[v] += a[4*ty + 1, k] * ...
#     c[4*ty, 4*tx + v] += s0[v]; ...
#
# Rows are written out, because an array stays in registers only where every index is known.  A tile is
# computed whole: where the result ends inside of it, its last row or column is read again, and not stored.


MOST_ROWS = 8


def thread_tiles(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """The block with such sums in registers. `numbers` numbers the arrays."""

    def tile(loop: For) -> list[Node] | None:
        nest = sum_nest(loop)
        return _tile(kernel, nest, numbers) if nest is not None else None

    return map_outermost(block, tile)


def _tile(kernel: Kernel, nest: SumNest, numbers: itertools.count[int]) -> list[Node] | None:
    row, lane, update = nest.row, nest.lane, nest.update
    strips = strip_of(row), strip_of(lane)
    if strips[0] is None or strips[1] is None or row.lower != IConst(0) or lane.lower != IConst(0):
        return None
    rows, lanes = strips[0].length, strips[1].length
    if rows > MOST_ROWS or lanes > kernel.vector or any(_outside(kernel, nest, x) for x in (row, lane)):
        return None
    dtype = update.value.dtype
    names = [f"%s{next(numbers)}" for _ in range(rows)]
    zero = Const(0.0, dtype)
    before: list[Node] = [Declare(n, dtype, zero, kernel.vector) for n in names]
    column = _last(lane, IVar(lane.var))
    sums: list[Node] = []
    for r, name in enumerate(names):
        left = _substituted(nest.left, {row.var: _last(row, as_index(r))})
        right = _substituted(nest.right, {lane.var: column})
        sums.append(Update(name, (IVar(lane.var),), "sum", joined(update.value, left, right)))
    inner: Block = (replace(lane, upper=as_index(kernel.vector), body=tuple(sums)),)
    for loop in reversed(nest.over):
        inner = (replace(loop, body=inner),)
    after: list[Node] = []
    for r, name in enumerate(names):
        total = replace(update, value=Read(name, (IVar(lane.var),), dtype))
        stored = substituted((replace(lane, body=(total,)),), {row.var: as_index(r)})
        after += stored if row.upper == IConst(rows) else [If(_less(as_index(r), row.upper), stored)]
    whole: Block = (*before, *inner, *after)
    for cond in (*(nonempty(row, set()) or ()), *(nonempty(lane, set()) or ())):
        whole = (If(cond, whole),)
    return list(whole)


def _less(a: IndexExpr, b: IndexExpr) -> Apply:
    return Apply("lt", (IndexValue(a, I64), IndexValue(b, I64)), BOOL)


def _last(loop: For, value: IndexExpr) -> IndexExpr:
    """A place of a tile, or the last one that exists; the first one does."""
    if isinstance(loop.upper, IConst) and not isinstance(value, IConst):
        return value
    return value if value == IConst(0) else binary("min", value, binary("-", loop.upper, 1))


def _substituted(e: Expr, env: Mapping[str, IndexExpr]) -> Expr:
    return map_expr(e, lambda x: x, lambda i: substitute(i, env))


def _outside(kernel: Kernel, nest: SumNest, loop: For) -> bool:
    """May the last place of a tile, with what is summed for other places, be outside of a tensor?"""
    return not isinstance(span_of(kernel, nest.update, loop.var), IConst)
