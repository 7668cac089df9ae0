"""What the threads of a launch do, one by one: the oracle of the barrier check.

Every thread of every block runs the loop IR by itself and notes its accesses, with the number of barriers
it has passed.  Two threads race if they touch one element, one of them writes, and both have passed the
same number of barriers (of the block, or of the grid for different blocks).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, product

from polyfuse.ir.index_expr import evaluate, variables
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import (
    Barrier,
    BarrierScope,
    Block,
    Combine,
    Declare,
    For,
    If,
    Node,
    Store,
    Update,
    VectorLoad,
    VectorStore,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Cast, Const, Expr, Index, IndexValue, Read, Select

_COMPARE = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}

Env = Mapping[str, int]
Key = tuple[object, ...]


@dataclass(frozen=True)
class Event:
    """`buffer` is the storage, `name` how it is called; `met` and `grid`: the barriers passed so far, of any
    scope and of the grid."""

    buffer: str
    name: str
    element: tuple[int | None, ...]
    write: bool
    atomic: bool
    loops: tuple[tuple[str, int], ...]
    block: int
    thread: tuple[int, int]
    met: int
    grid: int


@dataclass
class Thread:
    kernel: Kernel
    blocks: int
    block: int
    tx: int
    ty: int
    events: list[Event] = field(default_factory=list)
    waits: list[Key] = field(default_factory=list)
    grid_waits: list[Key] = field(default_factory=list)
    combines: list[Key] = field(default_factory=list)

    def __post_init__(self) -> None:
        shared = (Scope.SHARED, Scope.GLOBAL, Scope.ARGUMENT)
        self.memory = {b.tensor for b in self.kernel.buffers if b.scope in shared}

    def run(self, block: Block) -> Thread:
        self.go(block, {"tx": self.tx, "ty": self.ty}, (), (), ())
        return self

    def go(self, block: Block, env: Env, loops: tuple[tuple[str, int], ...], key: Key, blk: Key) -> None:
        """`key` is where we are, `blk` the block iteration."""
        for k, node in enumerate(block):
            here = (*key, k)
            match node:
                case For(coordinate=Coordinate.BLK) if not blk:
                    self.nest(node, env, loops, here)
                case For(var, body=body):
                    for n, v in enumerate(values(node, env)):
                        self.go(body, {**env, var: v}, (*loops, (var, v)), (*here, n), blk)
                case If(cond, then, other):
                    self.value(cond, env, loops)
                    yes = truth(cond, env)
                    self.go(then if yes else other, env, loops, (*here, yes), blk)
                case Barrier(scope):
                    self.waits.append((here, blk))
                    if scope is BarrierScope.GRID:
                        self.grid_waits.append(here)
                case Combine():
                    self.combines.append((here, blk))
                case _:
                    self.touch(node, env, loops)

    def nest(self, node: For, env: Env, loops: tuple[tuple[str, int], ...], key: Key) -> None:
        nest, body = [node], node.body
        while len(body) == 1 and isinstance(body[0], For) and body[0].coordinate is Coordinate.BLK:
            inner = body[0]
            if {x.var for x in nest} & {*variables(inner.lower), *variables(inner.upper)}:
                break
            nest.append(inner)
            body = inner.body
        for n, chosen in enumerate(product(*(values(x, env) for x in nest))):
            if n % self.blocks == self.block:
                own = tuple((x.var, v) for x, v in zip(nest, chosen, strict=True))
                self.go(body, {**env, **dict(own)}, (*loops, *own), key, ("block", n))

    def touch(self, node: Node, env: Env, loops: tuple[tuple[str, int], ...]) -> None:
        match node:
            case Declare(_, _, value):
                if value is not None:
                    self.value(value, env, loops)
            case Store(buffer, indices, value):
                self.value(value, env, loops)
                self.access(buffer, indices, env, loops, write=True)
            case Update(buffer, indices, _, value, atomic):
                self.value(value, env, loops)
                self.access(buffer, indices, env, loops, write=True, atomic=atomic)
            case VectorLoad(_, _, buffer, indices, count):
                self.access(buffer, indices, env, loops, count=count)
            case VectorStore(buffer, indices, _, count):
                self.access(buffer, indices, env, loops, write=True, count=count)

    def value(self, e: Expr, env: Env, loops: tuple[tuple[str, int], ...]) -> None:
        match e:
            case Read(name, indices):
                self.access(name, indices, env, loops)
            case Apply(_, args):
                for a in args:
                    self.value(a, env, loops)
            case Cast(arg):
                self.value(arg, env, loops)
            case Select(cond, then, other):
                self.value(then if truth(cond, env) else other, env, loops)

    def access(
        self,
        name: str,
        indices: tuple[Index, ...],
        env: Env,
        loops: tuple[tuple[str, int], ...],
        write: bool = False,
        atomic: bool = False,
        count: int = 1,
    ) -> None:
        if name not in self.memory:
            return
        alias = {t.name: t.alias for t in self.kernel.graph.tensors if t.alias}
        at = [None if isinstance(i, EXPR_TYPES) else evaluate(i, env) for i in indices]
        for lane in range(count):
            element = tuple(at)
            if count > 1 and at[-1] is not None:
                element = (*at[:-1], at[-1] + lane)
            self.events.append(
                Event(
                    alias.get(name, name),
                    name,
                    element,
                    write,
                    atomic,
                    loops,
                    self.block,
                    (self.tx, self.ty),
                    len(self.waits),
                    len(self.grid_waits),
                )
            )


def values(node: For, env: Env) -> range:
    return range(evaluate(node.lower, env), evaluate(node.upper, env), node.step)


def truth(cond: Expr, env: Env) -> bool:
    match cond:
        case Const(value):
            return bool(value)
        case Apply("and", (a, b)):
            return truth(a, env) and truth(b, env)
        case Apply("or", (a, b)):
            return truth(a, env) or truth(b, env)
        case Apply("not", (a,)):
            return not truth(a, env)
        case Apply(op, (IndexValue(a), IndexValue(b))):
            return _COMPARE[op](evaluate(a, env), evaluate(b, env))
    raise AssertionError(cond)


@dataclass
class Launch:
    """All threads of a launch, and what is wrong with them."""

    kernel: Kernel
    threads: list[Thread]

    def divergent(self) -> bool:
        """Do threads of a block wait at different barriers, or blocks at different grid barriers?"""
        by_block: dict[int, list[Thread]] = {}
        for t in self.threads:
            by_block.setdefault(t.block, []).append(t)
        differ = any(t.waits != ts[0].waits for ts in by_block.values() for t in ts)
        differ |= any(t.grid_waits != self.threads[0].grid_waits for t in self.threads)
        return differ

    def races(self) -> Iterator[tuple[Event, Event]]:
        """Pairs of accesses with no barrier between, `first` in no particular order."""
        scopes = {b.tensor: b.scope for b in self.kernel.buffers}
        places: dict[Key, dict[Event, None]] = {}
        for t in self.threads:
            for e in t.events:
                own = (e.block,) if scopes.get(e.buffer) is Scope.SHARED else ()
                places.setdefault((e.buffer, *own), {})[e] = None
        for found in places.values():
            by_element: dict[tuple[int | None, ...], list[Event]] = {}
            for e in found:
                by_element.setdefault(e.element, []).append(e)
            for mine in by_element.values():
                yield from (p for p in combinations(mine, 2) if race(*p))
            for one, two in combinations(by_element, 2):
                if all(None in (i, j) or i == j for i, j in zip(one, two, strict=True)):
                    yield from (p for p in product(by_element[one], by_element[two]) if race(*p))


def race(a: Event, b: Event) -> bool:
    if not (a.write or b.write) or (a.atomic and b.atomic):
        return False
    if a.block != b.block:
        return a.grid == b.grid
    return a.thread != b.thread and a.met == b.met


def launch(kernel: Kernel, block: Block, blocks: int) -> Launch:
    tx, ty = kernel.threads
    return Launch(
        kernel,
        [
            Thread(kernel, blocks, b, x, y).run(block)
            for b in range(blocks)
            for y in range(ty)
            for x in range(tx)
        ],
    )
