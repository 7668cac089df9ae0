"""The barrier check against an enumerator of threads, on random loop programs.

The check must find fault with exactly the programs in which two threads meet in an element with no
barrier between, and its witness must be two accesses that do.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import product

import pytest
from thinned import thinned
from thread_traces import Event, Launch, launch, race, truth

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.dtypes import BOOL, F32, I64
from polyfuse.ir.index_expr import IndexExpr, IVar, as_index, binary, evaluate
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.loop_ir import (
    Barrier,
    BarrierScope,
    Block,
    For,
    If,
    Node,
    Store,
    Update,
    VectorLoad,
    VectorStore,
    format_block,
    map_nodes,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Const, Expr, IndexValue, Read, TensorGraph
from polyfuse.poly.barriers.index_digits import Side, determined, of_place
from polyfuse.poly.barriers.insertion import insert_barriers
from polyfuse.poly.barriers.proof import Conflict, Touch, Unsafe, check_barriers, unneeded_barriers

PROGRAMS = 60
SEEDS = range(8)
TX, TY = IVar("tx"), IVar("ty")


@dataclass
class Program:
    """A random kernel. Barriers stand where all threads come, mostly; the share `tidy` of the writes is to
    the thread's own element."""

    rng: random.Random
    kernel: Kernel
    blocks: int
    tidy: float
    loops: int = 0
    variables: list[IndexExpr] = field(default_factory=list)

    def make(self) -> Block:
        nodes: list[Node] = []
        for _ in range(self.rng.choice((1, 1, 2))):
            nodes.append(self.nest() if self.rng.random() < 0.8 else self.store())
            if self.rng.random() < 0.5:
                nodes.append(Barrier(BarrierScope.GRID, "between"))
        return tuple(nodes)

    def nest(self) -> Node:
        count = self.rng.choice((self.blocks, self.blocks, 2 * self.blocks, 3, 1))
        split = count % 2 == 0 and self.rng.random() < 0.4
        names = [self.name() for _ in range(2 if split else 1)]
        self.variables += map(IVar, names)
        body = self.body(3, uniform=True, grid=count == self.blocks)
        del self.variables[-len(names) :]
        for name, extent in zip(names[::-1], (2, count // 2) if split else (count,), strict=True):
            body = (For(name, as_index(0), as_index(extent), 1, body, Coordinate.BLK),)
        return body[0]

    def name(self) -> str:
        self.loops += 1
        return f"c{self.rng.randrange(3) if self.rng.random() < 0.2 else self.loops + 2}"

    def body(self, depth: int, uniform: bool, grid: bool = False) -> Block:
        nodes: list[Node] = []
        for _ in range(self.rng.randint(1, 3)):
            nodes.append(self.node(depth, uniform, grid))
            if uniform and self.rng.random() < 0.5:
                scope = BarrierScope.GRID if grid and self.rng.random() < 0.4 else BarrierScope.BLOCK
                nodes.append(Barrier(scope, "a reason"))
        return tuple(nodes)

    def node(self, depth: int, uniform: bool, grid: bool) -> Node:
        kind = self.rng.random()
        if depth == 0 or kind < 0.45:
            return self.access()
        if kind < 0.7:
            return self.loop(depth, uniform, grid)
        mine = self.rng.random() < 0.5
        test = self.condition(TX if mine else self.rng.choice(self.variables))
        inner = uniform and (not mine or self.rng.random() < 0.05) and not grid
        then = self.body(depth - 1, inner)
        other = self.body(depth - 1, inner) if self.rng.random() < 0.3 else ()
        return If(test, then, other)

    def loop(self, depth: int, uniform: bool, grid: bool) -> Node:
        name, kind = self.name(), self.rng.random()
        lower, upper, step = as_index(0), as_index(self.rng.choice((0, 1, 2, 3))), 1
        if kind < 0.2:
            lower, upper, step = TX, as_index(self.rng.choice((3, 4))), self.rng.choice((1, 2))
        elif kind < 0.4:
            lower = self.rng.choice([*self.variables, TX])
            upper, step = lower + 2, self.rng.choice((1, 2))
        elif kind < 0.5:
            lower = binary("max", as_index(1), self.rng.choice(self.variables))
            upper = binary("min", as_index(3), self.rng.choice(self.variables) + 2)
        same = kind < 0.2 or (0.4 <= kind < 0.5 and grid)
        self.variables.append(IVar(name))
        body = self.body(depth - 1, uniform and not same, grid and not same)
        self.variables.pop()
        return For(name, lower, upper, step, body)

    def condition(self, e: IndexExpr) -> Expr:
        op, c = self.rng.choice(("lt", "ge", "eq", "ne")), as_index(self.rng.randint(0, 2))
        if self.rng.random() < 0.3:
            e = binary("%", e, 2)
        test: Expr = Apply(op, (IndexValue(e, I64), IndexValue(c, I64)), BOOL)
        return Apply("not", (test,), BOOL) if self.rng.random() < 0.2 else test

    def element(self) -> IndexExpr:
        e = self.rng.choice([TX, TX, TX + TY * self.kernel.threads[0], as_index(0), *self.variables])
        kind = self.rng.random()
        if kind < 0.2:
            return binary("//", e, 2)
        if kind < 0.4:
            return binary("%", e + self.rng.choice((0, 1, *self.variables)), 2)
        if kind < 0.7 and self.variables:
            return e + self.rng.choice((2, 4)) * self.rng.choice(self.variables)
        return e + self.rng.choice((0, 0, 1))

    def own(self) -> IndexExpr:
        return TX + TY * self.kernel.threads[0] if self.rng.random() < self.tidy else self.element()

    def access(self) -> Node:
        name = self.rng.choice(("s", "s", "s", "g"))
        kind, at = self.rng.random(), (self.element(),)
        if kind < 0.35:
            return Store("%f", (), Read(name, at, F32))
        if kind < 0.45:
            return Update(name, (self.own(),), "sum", Const(1.0, F32), atomic=self.rng.random() < 0.5)
        if kind < 0.52:
            return VectorLoad("%w", F32, name, at, 2)
        if kind < 0.58:
            return VectorStore(name, (2 * self.own(),), "%w", 2)
        return self.store()

    def store(self) -> Node:
        name, other = self.rng.choice(("s", "s", "g")), self.rng.choice(("s", "%f", "%f", "%f"))
        indices = () if other.startswith("%") else (self.element(),)
        return Store(name, (self.own(),), Read(other, indices, F32))


def random_program(rng: random.Random, tidy: float = 0.75) -> tuple[Kernel, Block, int]:
    extents = (as_index(16),)
    buffers = (
        Buffer("s", F32, Scope.SHARED, extents, extents),
        Buffer("g", F32, Scope.GLOBAL, extents, extents),
    )
    graph = TensorGraph("k", (), (), (), (), (), ())
    threads = rng.choice(((2, 1), (3, 1), (4, 1), (2, 2)))
    kernel = Kernel("k", graph, (), buffers, threads)
    blocks = rng.choice((1, 1, 2, 3))
    return kernel, Program(rng, kernel, blocks, tidy).make(), blocks


def events(run: Launch, touch: Touch) -> list[Event]:
    return [
        e
        for t in run.threads
        for e in t.events
        if (e.buffer, e.element, e.write) == (touch.buffer, touch.element, touch.write)
        and e.loops == touch.loops
        and e.thread == touch.thread
        and touch.block in (None, e.block)
    ]


def really(run: Launch, witness: Conflict) -> bool:
    """Do the two accesses of a witness race?"""
    return any(race(a, b) for a in events(run, witness.first) for b in events(run, witness.second))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_check_agrees_with_all_threads(seed: int) -> None:
    rng, seen = random.Random(seed), Counter[str]()
    for _ in range(PROGRAMS):
        kernel, block, blocks = random_program(rng)
        run = launch(kernel, block, blocks)
        verdict = check_barriers(kernel, block, blocks)
        text = f"{kernel.threads} threads, {blocks} blocks\n{format_block(block)}\n{verdict}"
        code = verdict.code if isinstance(verdict, Unsafe) else "legal"
        seen[code] += 1
        if run.divergent():
            assert code == "PF531", text
        elif code == "PF531":
            continue
        else:
            assert (code == "legal") == (next(run.races(), None) is None), text
        if isinstance(verdict, Unsafe) and verdict.witness is not None:
            assert really(run, verdict.witness), text
    assert seen["legal"] > 5 and seen["PF530"] > 5 and seen["PF533"] > 5, seen


@pytest.mark.parametrize("seed", thinned(SEEDS, 2))
def test_insertion_is_enough_and_not_too_much(seed: int) -> None:
    rng, seen = random.Random(100 + seed), Counter[str]()
    for _ in range(PROGRAMS):
        kernel, block, blocks = random_program(rng, 0.95)
        bare = map_nodes(block, lambda n: () if n == Barrier(BarrierScope.BLOCK, "a reason") else n)
        try:
            full, reasons = insert_barriers(kernel, bare, blocks)
        except ScheduleError as error:
            seen[error.code] += 1
            assert error.code in ("PF531", "PF532", "PF533")
            assert error.code == "PF531" or next(launch(kernel, bare, blocks).races(), None) is not None
            continue
        seen["some" if reasons else "none"] += 1
        text = f"{kernel.threads} threads, {blocks} blocks\n{format_block(full)}"
        run = launch(kernel, full, blocks)
        assert not run.divergent() and next(run.races(), None) is None, text
        superfluous = [u.barrier for u in unneeded_barriers(kernel, full, blocks)]
        assert all(b.scope is BarrierScope.GRID for b in superfluous), text
        assert [b.reason for b in barriers(full) if b.scope is BarrierScope.BLOCK] == list(reasons), text
        assert map_nodes(full, lambda n: () if is_block_barrier(n) else n) == bare, text
    assert seen["some"] > 2 and seen["none"] > 2 and seen["PF533"] > 2, seen


def is_block_barrier(n: Node) -> bool:
    return isinstance(n, Barrier) and n.scope is BarrierScope.BLOCK


def barriers(block: Block) -> list[Barrier]:
    """In the order of the program."""
    found: list[Barrier] = []
    for n in block:
        match n:
            case Barrier():
                found.append(n)
            case For(body=body):
                found += barriers(body)
            case If(_, then, other):
                found += [*barriers(then), *barriers(other)]
    return found


# --- digits -------------------------------------------------------------------------------------------------


def random_index(rng: random.Random, names: list[str]) -> IndexExpr:
    total = as_index(rng.randint(0, 3))
    for name in rng.sample(names, rng.randint(0, len(names))):
        total = total + rng.choice((1, 1, 2, 3, 4, 6, 8, -1)) * IVar(name)
    if rng.random() < 0.3:
        total = total + rng.choice((1, 2)) * binary("//", IVar("tx"), 2)
    return binary("//", total, 3) if rng.random() < 0.1 else total


def random_tests(rng: random.Random, names: list[str]) -> list[tuple[Expr, bool]]:
    found: list[tuple[Expr, bool]] = []
    for _ in range(rng.randint(0, 2)):
        e: IndexExpr = IVar(rng.choice(names))
        e = rng.choice((e, e, binary("%", e, 2), rng.choice((2, -1)) * e + 1))
        sides = (IndexValue(e, I64), IndexValue(as_index(rng.randint(-1, 3)), I64))
        found.append(
            (Apply(rng.choice(("lt", "le", "gt", "ge", "eq", "ne")), sides, BOOL), rng.random() < 0.7)
        )
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_digits_tell_only_what_is_true(seed: int) -> None:
    """Against all values of all variables."""
    rng, told = random.Random(200 + seed), 0
    for _ in range(150):
        names = ["tx", "ty", "k0", "k1"]
        ranges = {n: (low := rng.randint(0, 1), low + rng.randint(0, 3)) for n in names}
        coordinates = {"tx", "ty"}
        indices = [tuple(random_index(rng, names) for _ in range(2)) for _ in range(2)]
        if rng.random() < 0.5:
            e = random_index(rng, names)
            indices[0] = binary("//", e, 4), binary("%", e, 4)
            indices[1] = rng.choice((indices[0], indices[1]))
        tests = [random_tests(rng, names) for _ in range(2)]
        counts = [rng.choice((1, 1, 2, 4)) for _ in range(2)]
        one, two = (Side(indices[s], counts[s], of_place(ranges, tests[s])) for s in range(2))
        said = determined(one, two, coordinates)
        told += bool(said)
        elements: list[dict[tuple[int, ...], list[dict[str, int]]]] = [{}, {}]
        for s in range(2):
            for values in product(*(range(ranges[n][0], ranges[n][1] + 1) for n in names)):
                env = dict(zip(names, values, strict=True))
                if all(truth(t, env) == yes for t, yes in tests[s]):
                    first, last = (evaluate(i, env) for i in indices[s])
                    for lane in range(counts[s]):
                        elements[s].setdefault((first, last + lane), []).append(env)
        for element in elements[0].keys() & elements[1].keys():
            for v in said:
                seen = {env[v] for s in range(2) for env in elements[s][element]}
                assert len(seen) == 1, f"{v} in {indices} with {ranges} under {tests} by {counts}"
    assert told > 50
