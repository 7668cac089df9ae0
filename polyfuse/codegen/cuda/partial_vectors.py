"""Rows that begin anywhere: vectors of which only some elements exist are read as a whole, and the others
count for nothing.

    for v in 0..8: if low <= h + v < high: acc += f(x[h + v])
becomes
    for v in 0..8: a = x[h + v]; b = f(a); acc += b if low <= h + v < high else 0

So no thread of a warp has another way than its neighbours, and the elements come by one access.  If a tensor
is a whole number of vectors, an aligned vector that has one of its elements has no others.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from math import prod

from polyfuse.codegen.analysis.accesses import plain
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, substitute, variables
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.linear import flat, linear
from polyfuse.ir.loop_ir import Block, Declare, Exec, For, If, Node, Store, Update, map_nodes, nodes_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
    map_expr,
    reads,
)

# --- bounds of rows ---------------------------------------------------------------------------------------


def bounds_of_rows(graph: TensorGraph, block: Block) -> Block:
    """Loops over rows that begin anywhere with the bounds that their statements' dims have.

    Those that isl prints are equal, and hide how near to an aligned place a row begins:

        for h in 2*c1 - 8*c0 ..     becomes     for h in 2 * (c1 % 4) ..          where 4*c0 <= c1 < 4*c0 + 4
    """
    statements = {s.name: s for s in graph.statements}

    def loop(n: Node) -> Node:
        if not isinstance(n, For) or n.coordinate is not Coordinate.ROUND or isinstance(n.lower, IConst):
            return n
        found = {_bounds(statements[x.statement], x, n.var) for x in nodes_of(n.body) if isinstance(x, Exec)}
        bounds = found.pop() if len(found) == 1 else None
        if bounds is None or linear(n.upper - n.lower) != linear(bounds[1] - bounds[0]):
            return n
        return replace(n, lower=bounds[0], upper=bounds[1])

    return map_nodes(block, loop)


def without_certain(block: Block) -> Block:
    """The block without conditions that such bounds decide: a row has as many elements wherever it begins."""

    def branch(n: Node) -> Node | Block:
        match n:
            case If(Apply("lt", (IndexValue(left), IndexValue(right))), then, _):
                gap = linear(right - left)
                return then if not gap.terms and gap.constant > 0 else n
            case _:
                return n

    return map_nodes(block, branch)


def _bounds(s: Statement, instance: Exec, var: str) -> tuple[IndexExpr, IndexExpr] | None:
    """Of the dim of a statement that is a loop."""
    of = {d.name: e for d, e in zip(s.dims, instance.args, strict=True)}
    own = [d for d in s.dims if of[d.name] == IVar(var)]
    if len(own) != 1:
        return None
    return substitute(own[0].lower, of), substitute(own[0].upper, of)


# --- vectors of which some elements exist -----------------------------------------------------------------


_OWN = (Scope.REGISTER, Scope.LOCAL)


@dataclass(slots=True)
class PartialVector:
    """`lane` is the loop over the `width` elements of a vector; the element exists where `inside` holds, and
    `length` of them do."""

    kernel: Kernel
    strided: frozenset[str]
    lane: str
    width: int
    inside: Expr
    length: IndexExpr
    numbers: itertools.count[int]
    before: dict[Read, Declare] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)

    def block(self, body: Block) -> Block | None:
        """What is done for an element, whether it exists or not; None where that cannot be."""
        made: list[Node] = []
        self.stored = {n.buffer for n in body if isinstance(n, Store)}
        for node in body:
            found = self.node(node)
            if found is None:
                return None
            made += found
        return (*self.before.values(), *made)

    def node(self, node: Node) -> Block | None:
        match node:
            case Declare(value=value, count=0) if value is not None:
                read = self.hoisted(value)
                return None if read is None else (replace(node, value=read),)
            case Declare(value=None):
                return (node,)
            case Store(buffer, indices, value) if self.own(buffer) or self.padded(buffer, indices):
                read = self.hoisted(value)
                return None if read is None else (replace(node, value=read),)
            case Update(buffer, _, op, value, False) if self.own(buffer):
                read = self.hoisted(value)
                if read is None:
                    return None
                name, dtype = f"%p{next(self.numbers)}", value.dtype
                found, nothing = Read(name, (), dtype), Const(identity(op, dtype), dtype)
                chosen = Select(self.inside, found, nothing, dtype)
                return Declare(name, dtype, read), replace(node, value=chosen)
            case _:
                return None

    def own(self, buffer: str) -> bool:
        b = self.kernel.find(buffer)
        return b is None or b.scope in _OWN

    def hoisted(self, e: Expr) -> Expr | None:
        """The expression with what it reads from memory in scalars; None if it must not be read."""
        if not all(self.own(r.tensor) or self.whole(r) for r in reads(e)):
            return None

        def scalar(x: Expr) -> Expr:
            if not isinstance(x, Read) or self.own(x.tensor):
                return x
            if x not in self.before:
                self.before[x] = Declare(f"%p{next(self.numbers)}", x.dtype, x)
            return Read(self.before[x].name, (), x.dtype)

        return map_expr(e, scalar)

    def whole(self, r: Read) -> bool:
        """Is all of an aligned vector in memory that nothing writes meanwhile?"""
        b = self.kernel.find(r.tensor)
        if b is None or r.tensor in self.stored or any(isinstance(i, EXPR_TYPES) for i in r.indices):
            return False
        if b.scope is not Scope.ARGUMENT:
            return self.padded(r.tensor, r.indices)
        graph = self.kernel.graph
        if any(r.tensor in (s.target, graph.tensor(s.target).alias) for s in graph.statements):
            return False
        if r.tensor in self.strided:
            return False
        if all(self.lane not in variables(atom) for atom, _ in flat(plain(r.indices), b.extents).terms):
            return True
        elements = [d.value for d in b.extents if isinstance(d, IConst)]
        tiled = len(elements) == len(b.extents) and prod(elements) % self.width == 0
        return tiled and self.aligned(b, r.indices)

    def padded(self, buffer: str, indices: tuple[Index, ...]) -> bool:
        """Do elements of a vector that do not exist belong to nobody, in rows that are whole vectors?"""
        b = self.kernel.find(buffer)
        if b is None or b.scope not in (Scope.SHARED, Scope.GLOBAL) or not b.extents:
            return False
        graph, last = self.kernel.graph, b.extents[-1]
        writers = [s for s in graph.statements if s.target == buffer]
        alone = len(writers) == 1 and not writers[0].accumulate and graph.tensor(buffer).role is Role.TEMP
        rows = isinstance(last, IConst) and last.value % self.width == 0
        return alone and rows and self.all_of_a_row(writers[0]) and self.aligned(b, indices)

    def all_of_a_row(self, writer: Statement) -> bool:
        """Are the elements that exist here all that a row of this statement's target has?"""
        *leading, last = writer.write
        own = next((d for d in writer.dims if last == IVar(d.name)), None)
        if own is None:
            return False
        rows = {i.name for i in leading if isinstance(i, IVar)}
        count = linear(own.upper - own.lower)
        of_rows = {*variables(own.lower), *variables(own.upper)} <= rows
        return of_rows and not count.terms and count == linear(self.length)

    def aligned(self, b: Buffer, indices: tuple[Index, ...]) -> bool:
        """Are the elements over the lanes neighbours, beginning at a multiple of the vector?"""
        if any(isinstance(i, EXPR_TYPES) for i in indices):
            return False
        lane = IVar(self.lane)
        where = flat(plain(indices), b.extents)
        rest = where.without(lane)
        return where.factor(lane) == 1 and self.lane not in rest.hidden and rest.divisible(self.width)
