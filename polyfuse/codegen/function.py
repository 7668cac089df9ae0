"""A function of a kernel, and the loop in it over a worker's share of a parallel nest.

    for i in 0..I @blk:                  for it in begin..end @wrk:
      for j in 0..J @blk:        ->        i, j = iteration it of i in 0..I, j in 0..J
        body                               body

The loop is one of the function's block.  Passes change it as they change others: several iterations go at a
time (a loop with a step before it), a part of the next one is in each (`codegen.transforms.
software_pipelining`), or those that differ in the innermost variable only are a loop of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import is_

from polyfuse.ir.index_expr import IndexExpr, IVar, binary
from polyfuse.ir.loop_ir import Block, Delinearize, For, If, Node, begin_of, end_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Expr

# The share of a worker, and the number of an iteration in it.
BEGIN, END, ITERATION = IVar("begin"), IVar("end"), IVar("it")


@dataclass(frozen=True, slots=True)
class Shares:
    """Of a function whose iterations are handed out by what its `rows` have, one of its loops: a row has what
    is from `low` to `high`; there are `outer` iterations around the rows, and `inner` in each.  Work is in so
    `many` shares.  Its ends are called `ends` in the code.  Rows are cut where they are the terms of totals:
    `cut` is the reduction and the number of the kernel's buffer."""

    outer: IndexExpr
    rows: For
    inner: IndexExpr
    low: Expr
    high: Expr
    ends: tuple[str, str]
    many: int
    cut: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """`block` is what it does; with `loops`, a parallel nest, for the iterations of it from `begin` to `end`.

    In loops inside of it `jammed` rows are computed at a time.  With `time` each call is for one iteration of
    that loop, which is around `loops` (`codegen.transforms.outline`).  With `shares` these are handed out
    (`codegen.transforms.load_balance`).
    """

    loops: tuple[For, ...]
    block: Block
    jammed: int = 1
    time: For | None = None
    shares: Shares | None = None

    # --- parts ------------------------------------------------------------------------------------------

    @property
    def worker(self) -> tuple[For, ...]:
        """The loops over a worker's share, one after the other: each goes on where the one before stops."""
        return tuple(n for n in self.block if isinstance(n, For) and n.coordinate is Coordinate.WORKER)

    @property
    def batches(self) -> tuple[For, ...]:
        """Those with several iterations at a time, as long as there are so many."""
        return tuple(x for x in self.worker if x.step > 1)

    @property
    def before(self) -> Block:
        """What comes before the loops over a worker's share."""
        return self.block[: len(self.block) - len(self.worker)] if self.loops else ()

    @property
    def body(self) -> Block:
        """What the last one of these loops does in an iteration, or all that there is to do."""
        return inside(self.worker[-1]) if self.loops else self.block

    # --- how iterations go ------------------------------------------------------------------------------

    @property
    def pipelined(self) -> bool:
        """Is a part of the next iteration in each (`codegen.transforms.software_pipelining`)?"""
        return bool(self.loops) and any(is_iteration(n) for n in self.body)

    @property
    def run(self) -> Delinearize | None:
        """What finds iterations that follow one another along the innermost loop, if the body is for such."""
        heads = head(self.worker[-1]) if self.loops else ()
        return next((n for n in heads if n.until is not None), None)

    @property
    def row(self) -> Block | None:
        """What is done in an iteration, if they go one by one."""
        if not self.loops or self.batches or self.pipelined:
            return None
        if self.run is None:
            return self.body
        match self.body:
            case (For() as along,) if replace(along, body=()) == along_run(self.loops[-1], ()):
                return along.body
            case _:
                return None

    @property
    def one_by_one(self) -> bool:
        """Has no pass put iterations, or rows of loops in them, together?"""
        return not (self.jammed > 1 or self.batches or self.pipelined or self.run)

    # --- changed ----------------------------------------------------------------------------------------

    def with_body(self, body: Block) -> Function:
        """The function with another body; itself if that is the one it has."""
        old = self.body
        if len(body) == len(old) and all(map(is_, body, old)):
            return self
        if not self.loops:
            return replace(self, block=body)
        last = self.worker[-1]
        return self._with_loops((*self.worker[:-1], replace(last, body=(*head(last), *body))))

    def with_before(self, nodes: Sequence[Node]) -> Function:
        """The function with something more to do before its iterations."""
        behind = self.worker or self.block
        return replace(self, block=(*self.before, *nodes, *behind)) if nodes else self

    def with_batch(self, rows: int, places: Sequence[Delinearize], body: Block) -> Function:
        """The function with so many iterations at a time, before those that go in smaller steps."""
        batch = For(ITERATION.name, BEGIN, END, rows, (*places, *body), Coordinate.WORKER)
        return self._with_loops((batch, *self.worker))

    def with_batches(self, bodies: Sequence[Block]) -> Function:
        """The function with other bodies of the loops with several iterations at a time."""
        if not bodies:
            return self
        pairs = zip(self.batches, bodies, strict=True)
        batches = (replace(x, body=(*head(x), *body)) for x, body in pairs)
        return self._with_loops((*batches, *self.worker[len(self.batches) :]))

    def in_runs(self, body: Block) -> Function:
        """The function with a body for iterations that follow one another along the innermost loop."""
        places = Delinearize(self.loops, ITERATION, until=END)
        loop = replace(self.worker[-1], body=(places, *body))
        return self._with_loops((*self.worker[:-1], loop))

    @property
    def without_batches(self) -> Function:
        return self._with_loops(self.worker[len(self.batches) :]) if self.batches else self

    def _with_loops(self, loops: Sequence[For]) -> Function:
        return replace(self, block=(*self.before, *in_turn(loops)))


def function_of(loops: tuple[For, ...], body: Block, time: For | None = None) -> Function:
    """The function of a parallel nest with a body, or of a serial piece."""
    if not loops:
        return Function(loops, body, time=time)
    places = Delinearize(loops, ITERATION)
    worker = For(ITERATION.name, BEGIN, END, 1, (places, *body), Coordinate.WORKER)
    return Function(loops, (worker,), time=time)


def in_turn(loops: Sequence[For]) -> list[For]:
    """Loops over a worker's share: each has as many whole steps as are left."""
    made: list[For] = []
    lower: IndexExpr = BEGIN
    for x in loops:
        made.append(replace(x, lower=lower, upper=whole_steps(lower, x.step)))
        lower = made[-1].upper
    return made


def whole_steps(lower: IndexExpr, step: int) -> IndexExpr:
    """Where the last whole step of a worker's share ends."""
    return END if step == 1 else lower + binary("//", END - lower, step) * step


def along_run(loop: For, body: Block) -> For:
    """The loop over iterations that follow one another along the innermost loop of a nest."""
    return For(loop.var, IVar(begin_of(loop)), IVar(end_of(loop)), 1, body)


def head(loop: For) -> tuple[Delinearize, ...]:
    """What finds the variables of a worker's iteration."""
    found = []
    for n in loop.body:
        if not isinstance(n, Delinearize):
            break
        found.append(n)
    return tuple(found)


def inside(loop: For) -> Block:
    """What a worker does in an iteration, behind its head."""
    return loop.body[len(head(loop)) :]


def is_iteration(n: Node) -> bool:
    """Is it (a part of) an iteration, under a condition?"""
    return isinstance(n, If) and bool(n.then) and isinstance(n.then[0], Delinearize)
