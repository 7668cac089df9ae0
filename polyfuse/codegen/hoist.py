"""Functions and divisions of values that a loop does not change are computed once, before it.

    for c1 in 0..C:                             h0 = log(s)
      y[c0, c1] = x[c0, c1] - log(s)     ->     for c1 in 0..C:
                                                  y[c0, c1] = x[c0, c1] - h0

C++ compilers move cheap expressions out of loops, but no function with branches.  Only what every
iteration computes is moved: nothing under a condition, nothing of a loop inside that may be empty.
Where the loop itself may be empty, the value is computed under the condition that it is not:

    f32 h0
    if lower < upper: h0 = log(s[c0])

No value changes: the expressions stay as they are, a division by an invariant remains a division
(`codegen.quotients` is another pass).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyfuse.codegen.c_family import guards_index
from polyfuse.codegen.trips import trip_of
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IndexExpr, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Combine, Declare, For, If, Node, Store, Update, VectorLoad, VectorStore
from polyfuse.ir.ops import Cost, of_cost
from polyfuse.ir.powers import is_product
from polyfuse.ir.schedule_tree import Coordinate
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
# What compilers move out of loops themselves, or what costs no more than reading it back.
CHEAP = of_cost(Cost.CHEAP) | {"quotient"}
# Iterations of these loops are shared out; what they have in common is computed by each.
_SHARED = (Coordinate.BLK, Coordinate.ROW, Coordinate.THREAD)


def hoist(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """See the module docstring. `numbers` numbers the scalars."""
    return _block(block, aliases(kernel), numbers)


def aliases(kernel: Kernel) -> dict[str, str]:
    """What tensors that share the memory of another one share it with."""
    return {t.name: t.alias for t in kernel.graph.tensors if t.alias is not None}


def _block(block: Block, alias: Mapping[str, str], numbers: itertools.count[int]) -> Block:
    result: list[Node] = []
    for node in block:
        match node:
            case For() if node.coordinate in _SHARED or node.upper == node.lower + 1:
                result.append(replace(node, body=_block(node.body, alias, numbers)))
            case For():
                moved = Moved(written((node,), alias), alias, numbers)
                body = moved.block(node.body, runs_of(node))
                result += [*moved.before, replace(node, body=_block(body, alias, numbers))]
            case If():
                then, other = (_block(b, alias, numbers) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case _:
                result.append(node)
    return tuple(result)


def runs_of(loop: For) -> tuple[Expr, ...]:
    """What must hold for a loop to run at all: nothing where its bounds tell."""
    low, high = loop.lower, loop.upper
    if trip_of(loop):
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
    before: list[Node] = field(default_factory=list)
    known: dict[Key, Read] = field(default_factory=dict)

    def block(self, block: Block, runs: tuple[Expr, ...]) -> Block:
        """A block whose instances all run, once or more, if `runs` holds."""
        return tuple(self._node(n, runs) for n in block)

    def _node(self, node: Node, runs: tuple[Expr, ...]) -> Node:
        match node:
            case For() if all(self._invariant(e) for e in runs_of(node)):
                return replace(node, body=self.block(node.body, (*runs, *runs_of(node))))
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


def computes_little(e: Apply, *besides: str) -> bool:
    """Is an operation cheap, or one of those?"""
    return e.op in CHEAP or e.op in besides or is_product(e)


def costly(e: Expr) -> bool:
    """Is there a function in it, of something that is not a constant?"""
    return any(
        isinstance(x, Apply) and x.op not in CHEAP and any(isinstance(y, (Read, IndexValue)) for y in walk(x))
        for x in walk(e)
    )


def _may_leave(e: Select, side: Expr) -> bool:
    """May an index be legal only where the condition chooses this side, or be reported only there?"""
    return guards_index(e.cond) or any(isinstance(i, EXPR_TYPES) for r in reads(side) for i in r.indices)
