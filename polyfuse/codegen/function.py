"""A function of a kernel: loops that workers share, and how a worker runs its part of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polyfuse.ir.loop_ir import Block, For


@dataclass(frozen=True, slots=True)
class Together:
    """Several iterations of a task at once, `rows` of them: its loops as each of them has them, and one body
    for all.  Where loops of the body are over these rows (`codegen.transforms.unroll_and_jam.batched_rows`),
    the task's loops are there once.  Those that are left go as `rest` says, or one by one."""

    loops: tuple[tuple[For, ...], ...]
    body: Block
    rows: int
    rest: Together | None = None


@dataclass(frozen=True, slots=True)
class Skew:
    """Iterations that overlap: a part of the next one, `ahead` with the variables of `loops`, is in each.

    `carried` are scalars from one iteration to the next. The first one begins with `first`; each has `start`,
    `ahead` if there is a next one, and `last`.
    """

    carried: Block
    first: Block
    start: Block
    loops: tuple[For, ...]
    ahead: Block
    last: Block


@dataclass(frozen=True, slots=True)
class Task:
    """One function: `loops` is the parallel nest whose iterations are handed out (empty: serial).

    `together` is how several iterations that follow one another are run, as long as there are so many.
    `before` runs before the iterations that are handed out; with `skew` these overlap.
    In loops inside of it `jammed` rows are computed at a time.  With `time` each call is for one iteration of
    that loop, which is around `loops` (`codegen.transforms.outline`).  `along` is what is done in place of
    the body for iterations that follow one another along the innermost loop, from `begin_of` it to `end_of`
    it.
    """

    loops: tuple[For, ...]
    body: Block
    together: Together | None = None
    before: Block = ()
    skew: Skew | None = None
    jammed: int = 1
    time: For | None = None
    along: Block = ()

    @property
    def ways(self) -> Iterator[Together]:
        """How several iterations are run, and those that are left."""
        way = self.together
        while way is not None:
            yield way
            way = way.rest


def begin_of(loop: For) -> str:
    """What the first of the iterations along a loop that follow one another is called."""
    return f"{loop.var}_begin"


def end_of(loop: For) -> str:
    """What the end of these is called."""
    return f"{loop.var}_end"
