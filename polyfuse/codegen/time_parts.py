"""Kernels whose steps workers share, as one kernel for each part of a step.

    B(t @tim)[B(i @blk, k)(u); m]      becomes      B(t @tim)B(i @blk, k)(u)  and  B(t @tim)(m)

The pool runs them in turns, for one t after the other, and no worker begins one before all others are done
with the one before.  To what makes code of a part, loop t is one over blocks: nothing is kept from one of its
iterations to the next, and its variable is the same in a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyfuse.codegen.tasks import Task
from polyfuse.ir.index_expr import IndexExpr, binary, evaluate, product
from polyfuse.ir.kernel import Kernel, Stage, in_steps, tree
from polyfuse.ir.schedule_tree import Coordinate, Member, Tree, map_members, statements
from polyfuse.ir.tensor_graph import statement_reads


def time_parts(kernel: Kernel) -> tuple[Kernel, ...]:
    """The parts of a kernel's steps, in order; of one that has none, the kernel itself."""
    if not in_steps(kernel):
        return (kernel,)
    (stage,) = kernel.stages
    return tuple(_part(kernel, stage.band, k, p.tree) for k, p in enumerate(stage.phases))


def _part(kernel: Kernel, time: tuple[Member, ...], number: int, part: Tree) -> Kernel:
    inside = frozenset(statements(part))
    chosen = tuple(s for s in kernel.graph.statements if s.name in inside)
    touched = {s.target for s in chosen} | {r.tensor for s in chosen for r in statement_reads(s)}
    graph = replace(
        kernel.graph,
        statements=chosen,
        tensors=tuple(t for t in kernel.graph.tensors if t.name in touched),
    )
    return replace(
        kernel,
        name=f"{kernel.name}_{number}",
        graph=graph,
        stages=(
            Stage(tuple(m.restricted(inside) for m in time), kernel.stages[0].phases[number : number + 1]),
        ),
        buffers=tuple(b for b in kernel.buffers if b.tensor in touched),
    )


@dataclass(frozen=True, slots=True)
class Series:
    """Launches that take turns: how many, the step that round 0 is, and how many rounds there are."""

    length: int = 1
    first: int = 0
    rounds: int = 1


def series_of(tasks: Sequence[Task]) -> Series:
    """What the tasks of a kernel are as launches: those of steps take turns, others run once."""
    loops = [t.time for t in tasks if t.time is not None]
    if not loops:
        return Series()
    first, end = min(evaluate(x.lower, {}) for x in loops), max(evaluate(x.upper, {}) for x in loops)
    return Series(len(loops), first, end - first)


def round_text(task: Task, series: Series) -> list[str]:
    """What finds the step of a call and its iterations in this step; nothing is done for a step that is not
    one of the part."""
    if task.time is None:
        return []
    var, low, high = task.time.var, evaluate(task.time.lower, {}), evaluate(task.time.upper, {})
    count = max(1, evaluate(iteration_count(task), {}))
    lines = [f"const pf_i64 {var} = {series.first} + begin / {count};"]
    if high - low < series.rounds:
        lines.append(f"if ({var} < {low} || {var} >= {high}) return;")
    return [
        *lines,
        f"begin -= ({var} - {series.first}) * {count};",
        f"end -= ({var} - {series.first}) * {count};",
    ]


def iteration_count(task: Task) -> IndexExpr:
    """Iterations of a task that are handed out, those of one step."""
    return product(tuple(binary("-", x.upper, x.lower) for x in task.loops))


def block_tree(kernel: Kernel) -> Tree:
    """The tree of a kernel, with a loop over steps as one over blocks."""

    def as_block(m: Member) -> Member:
        return replace(m, coordinate=Coordinate.BLK) if m.coordinate is Coordinate.TIME else m

    return map_members(tree(kernel), as_block) if in_steps(kernel) else tree(kernel)
