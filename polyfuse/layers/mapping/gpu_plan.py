"""The plans that kernels of a GPU have in the end, read off their loops and buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from polyfuse.gpu_plan import GpuPlan, Keep
from polyfuse.ir.index_expr import IBin, IConst
from polyfuse.ir.kernel import Kernel, Scope, tree
from polyfuse.ir.schedule_tree import Coordinate, Member, path
from polyfuse.ir.tensor_graph import Purpose


def plans_of(kernel: Kernel) -> Iterator[tuple[str, GpuPlan]]:
    """What a kernel has in the end, with its name; a launch of several has one for each."""
    inner = kernel.parts or kernel.packed
    if not inner:
        yield ", ".join(kernel.computed) or kernel.name, plan_of(kernel)
    for k in inner:
        for name, plan in plans_of(k):
            yield name, replace(plan, barriers=bool(kernel.parts) or plan.barriers)


def plan_of(kernel: Kernel) -> GpuPlan:
    """The plan of one kernel, read off its loops and buffers."""
    ways = [[m for m in path(tree(kernel), n) if isinstance(m, Member)] for n in kernel.statements]
    kinds = [{m.coordinate for m in way} for way in ways]
    rows = any(Coordinate.ROUND in k for k in kinds)
    warps = any({Coordinate.STEP, Coordinate.ROUND} <= k for k in kinds)
    steps = any(Coordinate.STEP in k for k in kinds)
    x, y = kernel.threads
    past = any(b.past for b in kernel.buffers)
    return GpuPlan(
        threads=x * y,
        row_threads=x if rows else None,
        block_rows=y if rows else None,
        vector=kernel.vector,
        unroll=max(map(_together, ways), default=1) if not rows else None,
        keep=_kept(kernel),
        columns="warps" if warps else "blocks" if steps else None,
        resident=bool(kernel.resident) or None,
        stores="streaming" if past else None,
    )


def _kept(kernel: Kernel) -> Keep | None:
    """Where the rows are that the kernel reads once for several loops."""
    copies = {s.target for s in kernel.graph.statements if s.purpose is Purpose.COPY}
    scopes = {b.scope for b in kernel.buffers if b.tensor in copies}
    if Scope.SHARED in scopes:
        return "shared"
    return "registers" if Scope.LOCAL in scopes else None


def _together(way: list[Member]) -> int:
    """Vectors that a thread takes one after the other: loops over remainders behind that over threads."""
    places = [k for k, m in enumerate(way) if m.coordinate is Coordinate.THREAD]
    behind = way[places[-1] + 1 :] if places else []
    counts = []
    for m in behind:
        e = next(iter(m.exprs))[1]
        match e:
            case IBin("%", _, IConst(n)) if m.coordinate is Coordinate.SEQ:
                counts.append(n)
            case _:
                pass
    return prod(counts)
