"""What a loop does not change: memory and scalars it sets, expressions that depend on none of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.op_cost import costly
from polyfuse.codegen.analysis.trip_count import fewest_of
from polyfuse.codegen.c_printer import guards_index
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IndexExpr, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import Range
from polyfuse.ir.loop_ir import Block, Combine, Declare, For, If, Node, Store, Update, VectorLoad, VectorStore
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    Select,
    reads,
    walk,
)

Key = tuple[Expr, tuple[Expr, ...], tuple[str, ...]]


def aliases(kernel: Kernel) -> dict[str, str]:
    """What tensors that share the memory of another one share it with."""
    return {t.name: t.alias for t in kernel.graph.tensors if t.alias is not None}


def runs_of(loop: For, ranges: Mapping[str, Range]) -> tuple[Expr, ...]:
    """What must hold for a loop to run at all: nothing where its bounds tell, with the values of sizes."""
    low, high = loop.lower, loop.upper
    if fewest_of(loop, ranges):
        return ()
    return (Apply("lt", (IndexValue(low, I64), IndexValue(high, I64)), BOOL),)


def written(block: Block, alias: Mapping[str, str]) -> set[str]:
    """Loop variables, scalars and memory that a block sets."""
    found: set[str] = set()
    for node in block:
        match node:
            case For():
                found |= {node.var} | written(node.body, alias)
            case If():
                found |= written(node.then, alias) | written(node.other, alias)
            case Store(buffer) | Update(buffer) | VectorStore(buffer):
                found.add(alias.get(buffer, buffer))
            case Declare(name) | Combine(name) | VectorLoad(name):
                found.add(name)
            case _:
                pass
    return found


@dataclass(slots=True)
class Moved:
    """What is moved out of one loop; `before` comes to stand before it.

    `written` holds what the loop sets: all that expressions must not depend on.
    """

    written: set[str]
    alias: Mapping[str, str]
    numbers: itertools.count[int]
    ranges: Mapping[str, Range] = field(default_factory=dict)
    before: list[Node] = field(default_factory=list)
    known: dict[Key, Read] = field(default_factory=dict)

    def block(self, block: Block, runs: tuple[Expr, ...]) -> Block:
        """A block whose instances all run, once or more, if `runs` holds."""
        return tuple(self._node(n, runs) for n in block)

    def _node(self, node: Node, runs: tuple[Expr, ...]) -> Node:
        match node:
            case For() if all(map(self._invariant, more := runs_of(node, self.ranges))):
                return replace(node, body=self.block(node.body, (*runs, *more)))
            case If():
                return replace(node, cond=self._expr(node.cond, runs))
            case Store() | Update():
                indices = tuple(self._index(i, runs) for i in node.indices)
                return replace(node, indices=indices, value=self._expr(node.value, runs))
            case Declare(_, _, value) if value is not None:
                return replace(node, value=self._expr(value, runs))
            case _:
                return node

    def _index(self, i: Index, runs: tuple[Expr, ...]) -> Index:
        return self._expr(i, runs) if isinstance(i, EXPR_TYPES) else i

    def _expr(self, e: Expr, runs: tuple[Expr, ...]) -> Expr:
        """The expression with what is invariant in it replaced by scalars."""
        if self.costly(e) and self._invariant(e):
            return self.kept(e, runs)
        match e:
            case Apply(_, args):
                return replace(e, args=tuple(self._expr(a, runs) for a in args))
            case Cast(arg):
                return replace(e, arg=self._expr(arg, runs))
            case Read(_, indices):
                return replace(e, indices=tuple(self._index(i, runs) for i in indices))
            case Select(cond, then, other):
                # A side that is not chosen must not be evaluated where it may leave a tensor.
                sides = [s if _may_leave(e, s) else self._expr(s, runs) for s in (then, other)]
                return replace(e, cond=self._expr(cond, runs), then=sides[0], other=sides[1])
            case _:
                return e

    def costly(self, e: Expr) -> bool:
        """Is it worth to be kept?"""
        return costly(e)

    def kept(self, e: Expr, runs: tuple[Expr, ...]) -> Expr:
        """Where the value of an invariant expression is found."""
        key = self.key(e, runs)
        if key not in self.known:
            name = f"%h{next(self.numbers)}"
            self.known[key] = Read(name, (), e.dtype, e.span)
            if runs:
                value: Node = Store(name, (), e)
                for cond in reversed(runs):
                    value = If(cond, (value,))
                self.before += [Declare(name, e.dtype), value]
            else:
                self.before.append(Declare(name, e.dtype, e))
        return self.known[key]

    def key(self, e: Expr, runs: tuple[Expr, ...]) -> Key:
        """What is the same for equal values; constants by their text: zeros of both signs are equal, and are
        not the same."""
        return e, runs, tuple(repr(x.value) for x in walk(e) if isinstance(x, Const))

    def _invariant(self, e: Expr) -> bool:
        for x in walk(e):
            places: tuple[IndexExpr, ...] = ()
            match x:
                case Read(tensor, indices):
                    if self.alias.get(tensor, tensor) in self.written:
                        return False
                    places = tuple(i for i in indices if not isinstance(i, EXPR_TYPES))
                case IndexValue(index):
                    places = (index,)
                case _:
                    pass
            if any(v in self.written for i in places for v in variables(i)):
                return False
        return True


def _may_leave(e: Select, side: Expr) -> bool:
    """May an index be legal only where the condition chooses this side, or be reported only there?"""
    return guards_index(e.cond) or any(isinstance(i, EXPR_TYPES) for r in reads(side) for i in r.indices)
