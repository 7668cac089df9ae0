"""Rules of unroll-and-jam: what a rule finds, and what is made of it.

A rule says which iterations go together, how many, and how loops of theirs are joined
(`codegen.transforms.unroll_and_jam.weave`).  This module does the rest:

- It asks whether that is legal (`codegen.analysis.dependence`): iterations of a sequential loop commute, rows
  of a parallel nest are independent.  A rule may ask for more.
- What is private to a copy is renamed: what it declares, and arrays of the worker.
- What is left of the iterations goes one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from polyfuse.codegen.analysis.dependence import commutes_but_for, independent_rows
from polyfuse.codegen.analysis.renaming import array_of_row, copy_of, row_variable, worker_arrays
from polyfuse.codegen.analysis.trip_count import in_steps
from polyfuse.codegen.function import ITERATION, Function
from polyfuse.codegen.passes import missed
from polyfuse.codegen.transforms.unroll_and_jam.weave import Joins, copies, weave
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.index_expr import IndexExpr, IVar
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Delinearize, For, Node, map_outermost


@dataclass(frozen=True, slots=True)
class Jam:
    """What a rule finds: `factor` copies of a body, their loops joined like this.

    tail: what is done for an iteration that is left, in place of the body.  around: what is done before and
    after all of them.  rows: so many rows are computed
    at a time in all (`Function.jammed`), in place of the factor.
    """

    factor: int
    body: Block
    joins: Joins
    tail: Block | None = None
    rows: int | None = None
    around: tuple[Block, Block] = ((), ())

    @property
    def alone(self) -> Block:
        """What is done for one iteration."""
        return self.body if self.tail is None else self.tail


def jammed(loop: For, jam: Jam) -> list[Node]:
    """So many iterations of a loop at a time, and what is left one by one."""
    woven = weave(copies(loop, jam.body, jam.factor), jam.joins)
    before, after = jam.around
    return [*before, *in_steps(replace(loop, body=jam.alone), woven, jam.factor), *after]


@dataclass(frozen=True, slots=True)
class LoopRule:
    """Iterations of sequential loops go together: of the outermost ones that the rule matches."""

    name: str
    does: str
    matches: Callable[[Kernel, For, CpuKnobs], Jam | None]

    def run(self, kernel: Kernel, functions: Sequence[Function], knobs: CpuKnobs) -> tuple[Function, ...]:
        """The functions of a kernel, with such loops in them jammed."""
        return tuple(self._in_function(kernel, t, knobs) for t in functions)

    def _in_function(self, kernel: Kernel, f: Function, knobs: CpuKnobs) -> Function:
        if f.pipelined or f.run:
            return f
        block = f.body
        body, rows = self.in_block(kernel, block, knobs)
        return f if body is block else replace(f.with_body(body), jammed=max(f.jammed, rows))

    def in_block(self, kernel: Kernel, block: Block, knobs: CpuKnobs) -> tuple[Block, int]:
        """A block with such loops jammed, and how many rows are computed at a time."""
        rows: list[int] = []

        def change(loop: For) -> Sequence[Node] | None:
            jam = self.matches(kernel, loop, knobs)
            if jam is None:
                return None
            if commutes_but_for(kernel, loop) is None:
                missed((loop,), "iterations may need one another")
                return None
            rows.append(jam.factor if jam.rows is None else jam.rows)
            nodes = jammed(loop, jam)
            return copy_of(tuple(nodes), f"nest{len(rows)}", {}) if any(jam.around) else nodes

        changed = map_outermost(block, change)
        return (changed, max(rows)) if rows else (block, 1)


@dataclass(frozen=True, slots=True)
class NestRule:
    """Rows of a parallel nest go together.  Its iterations may run in any order, so also at once."""

    name: str
    does: str
    matches: Callable[[Kernel, Function, CpuKnobs], Jam | None]

    def run(self, kernel: Kernel, functions: Sequence[Function], knobs: CpuKnobs) -> tuple[Function, ...]:
        """The functions of a kernel, with rows together in those that the rule matches."""
        return tuple(self._in_function(kernel, t, functions, knobs) for t in functions)

    def _in_function(
        self, kernel: Kernel, f: Function, others: Sequence[Function], knobs: CpuKnobs
    ) -> Function:
        jam = self.matches(kernel, f, knobs)
        if jam is None or not independent_rows(kernel, f, others):
            return f
        bodies = [_row(kernel, f, jam.body, k) for k in range(jam.factor)]
        places = [Delinearize(_nest_of_row(f, k), ITERATION + k) for k in range(jam.factor)]
        return f.with_body(jam.alone).with_batch(jam.factor, places, weave(bodies, jam.joins))


def _nest_of_row(f: Function, row: int) -> tuple[For, ...]:
    """The nest of a function, in variables of one of several rows."""
    return tuple(replace(x, var=row_variable(x.var, row)) for x in f.loops)


def _row(kernel: Kernel, f: Function, body: Block, row: int) -> Block:
    """What a function does for one of several rows."""
    if not row:
        return body
    at: dict[str, IndexExpr] = {x.var: IVar(row_variable(x.var, row)) for x in f.loops}
    arrays = {b.tensor: array_of_row(kernel, b.tensor, row) for b in worker_arrays(kernel)}
    return copy_of(body, f"row{row}", at, arrays)


def with_arrays(kernel: Kernel, rows: int) -> Kernel:
    """The kernel with arrays of a worker for each of several rows."""
    own = [
        replace(b, tensor=array_of_row(kernel, b.tensor, k))
        for k in range(1, rows)
        for b in worker_arrays(kernel)
    ]
    return replace(kernel, buffers=(*kernel.buffers, *own))
