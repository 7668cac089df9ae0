"""A kernel made ready to be interpreted: its loops with the bodies of its statements.

    Node = Loop(var, lower, upper, step, body, block, safe)
         | Guard(cond, then, other)
         | Step(statement, buffer, indices, expr, op)       buffer[indices] = expr, or op= expr

The order is that of the kernel's schedule tree, by isl's AST generator.  Sizes are replaced by their
values, the statement's dims by expressions over the loops, and tensor indices by storage indices: those of
a register are dropped, others are taken modulo the buffer's extents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, Union

from polyfuse.diagnostics import InternalError
from polyfuse.ir.index_expr import IConst, IndexExpr, binary, evaluate, substitute
from polyfuse.ir.kernel import Buffer, Kernel, Scope, tree
from polyfuse.ir.loop_ir import Block, Exec, For, If
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Index, Read, Statement, map_expr, map_index
from polyfuse.poly.ast_build import loops_of

PRIVATE = (Scope.REGISTER, Scope.LOCAL, Scope.SHARED)


@dataclass(frozen=True, slots=True)
class Safe:
    """The iterations of a loop may run together, statement by statement.

    `most` is how many at a time at most (0: any number), `private` the registers that every iteration
    has for itself.
    """

    most: int
    private: tuple[str, ...]


@dataclass(eq=False, slots=True)
class Step:
    """Instances of a statement; `op` is the reduction that an accumulating statement makes."""

    statement: str
    buffer: str
    indices: tuple[Index, ...]
    expr: Expr
    op: str | None


@dataclass(eq=False, slots=True)
class Loop:
    """`block` marks the leading parallel loops, whose iterations start with storage of their own."""

    var: str
    lower: IndexExpr
    upper: IndexExpr
    step: int
    body: tuple[Node, ...]
    block: bool
    safe: Safe | None = None


@dataclass(eq=False, slots=True)
class Guard:
    cond: Expr
    then: tuple[Node, ...]
    other: tuple[Node, ...]


Node: TypeAlias = Union[Loop, Guard, Step]  # noqa: UP007


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a tensor lives in a kernel: `extents` of the memory, () for a register."""

    tensor: str
    buffer: Buffer
    shape: tuple[int, ...]
    extents: tuple[int, ...]

    @property
    def private(self) -> bool:
        return self.buffer.scope in PRIVATE

    @property
    def register(self) -> bool:
        return self.buffer.scope is Scope.REGISTER


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel at known sizes."""

    kernel: Kernel
    storage: Mapping[str, Storage]
    body: tuple[Node, ...]


def prepare(kernel: Kernel, sizes: Mapping[str, int]) -> Program:
    """The program of a kernel. Raises InternalError for a size that is not known."""
    open_sizes = [n for n in kernel.graph.sizes if n not in sizes]
    if open_sizes:
        raise InternalError(f"the interpreter needs the values of {', '.join(open_sizes)}")
    storage = {b.tensor: _storage(b, sizes) for b in kernel.buffers}
    builder = _Builder(kernel, storage, {n: IConst(v) for n, v in sizes.items()})
    body = builder.block(loops_of(kernel.graph, tree(kernel)), True)
    return Program(kernel, storage, body)


def _storage(b: Buffer, sizes: Mapping[str, int]) -> Storage:
    shape = tuple(max(0, evaluate(e, sizes)) for e in b.shape)
    extents = tuple(max(0, evaluate(e, sizes)) for e in b.extents)
    return Storage(b.tensor, b, shape, () if b.scope is Scope.REGISTER else extents)


@dataclass(frozen=True)
class _Builder:
    kernel: Kernel
    storage: Mapping[str, Storage]
    sizes: Mapping[str, IndexExpr]

    def block(self, nodes: Block, leading: bool) -> tuple[Node, ...]:
        """`leading`: every loop around is a block loop that holds nothing else."""
        return tuple(self.node(n, leading) for n in nodes)

    def node(self, node: object, leading: bool) -> Node:
        match node:
            case For(var, lower, upper, step, body, coordinate):
                block = leading and coordinate is Coordinate.BLK
                inner = self.block(body, block and len(body) == 1)
                return Loop(var, self.index(lower), self.index(upper), step, inner, block)
            case If(cond, then, other):
                known = map_expr(cond, lambda e: e, self.index)
                return Guard(known, self.block(then, False), self.block(other, False))
            case Exec(statement, args):
                return self.step(self.kernel.graph.statement(statement), args)
            case _:
                raise InternalError(f"unexpected node {type(node).__name__}")

    def index(self, e: IndexExpr) -> IndexExpr:
        return substitute(e, sizes=self.sizes)

    def step(self, s: Statement, args: tuple[IndexExpr, ...]) -> Step:
        env = {d.name: a for d, a in zip(s.dims, args, strict=True)}

        def index(e: IndexExpr) -> IndexExpr:
            return self.index(substitute(e, env))

        def place(e: Expr) -> Expr:
            return replace(e, indices=self.stored(e.tensor, e.indices)) if isinstance(e, Read) else e

        def expr(e: Expr) -> Expr:
            return map_expr(e, place, index)

        write = self.stored(s.target, tuple(map_index(i, expr, index) for i in s.write))
        op = s.reduction if s.accumulate else None
        if s.reduction is not None and not s.accumulate:
            raise InternalError(f"the reduction of {s.name} is not explicit", span=s.span)
        return Step(s.name, s.target, write, expr(s.expr), op)

    def stored(self, tensor: str, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        """Storage indices; those that are data are taken modulo the extent when their value is known."""
        where = self.storage[tensor]
        if where.register:
            return ()
        result: list[Index] = []
        for i, extent, full in zip(indices, where.extents, where.shape, strict=True):
            whole = extent == full or isinstance(i, EXPR_TYPES)
            result.append(i if whole else binary("%", i, extent))  # type: ignore[arg-type]
        return tuple(result)
