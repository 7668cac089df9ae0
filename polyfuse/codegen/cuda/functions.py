"""The functions of a GPU kernel: one for each of its nests, or one for all parts of a joined kernel.

Barriers come last: of a block where threads need them (`poly.barriers.insertion`), of the grid between the
parts of a joined kernel.  Parts may be laid on threads differently: thread number t is at (t mod x, t // x)
of a part with x threads along a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from polyfuse.codegen.cuda.pipeline import LOOPS
from polyfuse.codegen.cuda.spmd import TX, TY, DeviceTask, Spmd, compare, guarded, merged
from polyfuse.codegen.function import Function
from polyfuse.codegen.passes import Loops, PassContext
from polyfuse.codegen.transforms.outline import outlined
from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, evaluate, product
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.linear import Range, interval
from polyfuse.ir.loop_ir import Barrier, BarrierScope, Block, For, Node, substituted
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.poly.barriers.insertion import insert_barriers, without_unneeded
from polyfuse.poly.barriers.proof import Unsafe, check_barriers


def lower_device(
    kernel: Kernel,
    strided: frozenset[str] = frozenset(),
    copied: frozenset[str] = frozenset(),
    threads: int = 0,
    cx: PassContext | None = None,
) -> list[DeviceTask]:
    """The functions of a kernel. Buffers in `strided` have strides of their own: no vectors; `copied` are
    inout parameters whose entry values have memory of their own.

    Where blocks have more `threads` than the kernel needs, the rest come to its barriers only.
    """
    cx = _afresh(cx or PassContext(strided=strided))
    if kernel.parts:
        return [_joined(kernel, copied, cx)]
    found = []
    for t in outlined(kernel, _loops(kernel, cx)):
        spare = threads > prod(kernel.threads)
        place = compare("lt", TY, as_index(kernel.threads[1])) if spare else None
        mapped = Spmd(kernel, copied, cx, mask=place)
        try:
            found.append(_alone(mapped.task(t), copied))
        except ScheduleError:  # threads without a row would leave out barriers: they come to these only
            waiting = Spmd(kernel, copied, cx, mask=place, waiting=True)
            found.append(_alone(waiting.task(t), copied))
    return found


def _afresh(cx: PassContext) -> PassContext:
    """For another function: names may be the same."""
    return replace(cx, numbers=itertools.count())


def _loops(kernel: Kernel, cx: PassContext) -> Block:
    """Loops in which all that threads add up comes together. Raises ScheduleError PF536."""
    return LOOPS.run(Loops(kernel), cx).block


@dataclass(frozen=True, slots=True)
class PartTask:
    """The function of a kernel that shares a launch with others. Kernels with equal `form` differ in names
    only, and `task` is made for the first of them: the others have its loops."""

    kernel: Kernel
    form: object
    task: DeviceTask


def lower_parts(
    kernel: Kernel,
    form: Callable[[Kernel], object],
    copied: frozenset[str],
    cx: PassContext,
) -> list[PartTask]:
    """The functions of the kernels of a pack, on ranges of blocks of their own."""
    known: dict[object, list[DeviceTask]] = {}
    found = []
    for p in kernel.packed:
        key = form(p)
        if key not in known:  # one that has nothing to do has no function
            known[key] = lower_device(p, copied=copied, threads=prod(kernel.threads), cx=cx)
        found += [PartTask(p, key, _for(p, task)) for task in known[key]]
    return found


def lower_stages(
    kernel: Kernel,
    form: Callable[[Kernel], object],
    copied: frozenset[str],
    cx: PassContext,
) -> list[list[PartTask]]:
    """The functions of a kernel whose parts are packs: for each stage, those of its kernels.

    Blocks are fewer than iterations here, so one takes several at once where it has the threads.
    """
    threads = prod(kernel.threads)
    found = []
    for stage in kernel.parts:
        whole = replace(stage, packed=stage.packed or (stage,), threads=kernel.threads)
        made = lower_parts(whole, form, copied, cx)
        crowd = max(1, sum(_count(t.task.loops) for t in made) // kernel.resident)
        known: dict[object, DeviceTask] = {}
        for t in made:
            if t.form not in known:
                known[t.form] = _several_at_once(t.kernel, t.task, copied, threads, crowd, _afresh(cx))
        found.append([replace(t, task=_for(t.kernel, known[t.form])) for t in made])
    return found


def _for(kernel: Kernel, task: DeviceTask) -> DeviceTask:
    """The task of a kernel of one form, as far as others of it are not told apart from it."""
    if kernel.name == task.kernel.name:
        return task
    names = {a.tensor: b.tensor for a, b in zip(task.kernel.arguments, kernel.arguments, strict=True)}
    return replace(task, kernel=kernel, aligned={names[n]: nbytes for n, nbytes in task.aligned.items()})


def _several_at_once(
    part: Kernel, task: DeviceTask, copied: frozenset[str], threads: int, crowd: int, cx: PassContext
) -> DeviceTask:
    """A function whose threads take up to `crowd` iterations of its block loops side by side, where none
    waits for another."""
    most = min(crowd, threads // prod(part.threads))
    own = any(b.scope is Scope.SHARED for b in task.kernel.buffers)
    if most == 1 or own or not task.loops:
        return task
    (only,) = outlined(part, _loops(part, cx))
    free = Spmd(part, copied, cx).task(only)
    if _waits(free, copied):
        return task
    rest = threads % prod(part.threads) > 0
    made = _packed(free, most, rest or most < threads // prod(part.threads), 1)
    if made.ranges is None:
        return made
    return replace(made, ranges={**made.ranges, "ty": (0, threads // part.threads[0])})


def _count(loops: tuple[For, ...]) -> int:
    """Iterations of loops whose bounds are known."""
    return evaluate(product(tuple(binary("-", x.upper, x.lower) for x in loops)), {})


def _alone(task: DeviceTask, copied: frozenset[str]) -> DeviceTask:
    """A function of its own with its barriers: each block has an iteration of the block loops, or takes
    several in turn."""
    count = product(tuple(binary("-", x.upper, x.lower) for x in task.loops))
    resident = task.kernel.resident
    whole = _nest(task.loops, task.body)
    if resident and isinstance(count, IConst) and count.value > resident:
        whole = _with_barriers(task.kernel, whole, as_index(resident), copied)
        return replace(task, loops=(), body=whole, resident=resident)
    whole = _with_barriers(task.kernel, whole, count, copied)
    for _ in task.loops:
        (node,) = whole
        assert isinstance(node, For)
        whole = node.body
    return replace(task, body=whole)


def _joined(kernel: Kernel, copied: frozenset[str], cx: PassContext) -> DeviceTask:
    """One function for all parts of a kernel, with barriers of the grid where blocks wait for others."""
    threads = kernel.threads[0]
    nests: list[Node] = []
    ranges: dict[str, Range] | None = {}
    aligned: dict[str, int] = {}
    shared: list[Buffer] = []
    for part in kernel.parts:
        for t in outlined(part, _loops(part, cx)):
            task = _part(part, t, kernel, copied, shared, cx)
            if nests:
                nests.append(Barrier(BarrierScope.GRID, "all blocks have done the part before"))
            alone = For(f"z{len(nests)}", as_index(0), as_index(1), 1, (), Coordinate.BLK)
            nest = _nest(task.loops or (alone,), task.body)
            x = part.threads[0]
            if x != threads:
                nest = substituted(nest, {"tx": binary("%", TX, x), "ty": binary("//", TX, x)})
            nests += nest
            ranges = _united(ranges, task.ranges)
            aligned |= {n: max(b, aligned.get(n, 0)) for n, b in task.aligned.items()}
    whole = replace(kernel, buffers=(*kernel.buffers, *shared))
    if ranges is not None:
        ranges |= {"tx": (0, threads - 1), "ty": (0, 0)}
    blocks = as_index(kernel.resident)
    body = _with_barriers(whole, without_unneeded(whole, tuple(nests), blocks, copied), blocks, copied)
    return DeviceTask(whole, (), body, ranges, aligned, kernel.resident)


def _part(
    part: Kernel,
    task: Function,
    whole: Kernel,
    copied: frozenset[str],
    shared: list[Buffer],
    cx: PassContext,
) -> DeviceTask:
    """What the threads of a joined kernel do in one of its parts. `shared` grows by the arrays it needs.

    A part may need fewer threads.  Where none of them waits for another, the rest take further
    iterations of its block loops; else they have no place, and come to the barriers only.
    """
    count, mine = whole.threads[0], prod(part.threads)
    arrays = list(shared)
    found = Spmd(part, copied, cx, shared=arrays).task(task)
    if count > mine and len(arrays) == len(shared) and not _waits(found, copied):
        own = any(b.scope is Scope.SHARED for b in part.buffers)
        return _packed(found, 1 if own else count // mine, count % mine > 0, whole.resident)
    if count > mine:
        arrays = list(shared)
        place = compare("lt", TY, as_index(part.threads[1]))
        found = Spmd(part, copied, cx, shared=arrays, mask=place).task(task)
    shared[:] = arrays
    return found


def _packed(task: DeviceTask, most: int, spare: bool, resident: int) -> DeviceTask:
    """A block takes several iterations of the block loops at once, where there are more than blocks.

        block b: f(b, ty)     becomes     block b: f(b G + ty // TY, ty % TY)

    At most `most` of them; `spare`: are there threads left that belong to none?
    """
    ty = task.kernel.threads[1]
    groups = most
    counts = [binary("-", x.upper, x.lower) for x in task.loops]
    whole = product(tuple(counts))
    if isinstance(whole, IConst):
        groups = max(1, min(most, whole.value // resident))
    if groups == 1 or not task.loops:
        return replace(task, body=guarded([compare("lt", TY, as_index(ty))], task.body))
    last = task.loops[-1]
    rounds = binary("//", counts[-1] + (groups - 1), groups)
    outer = For(f"{last.var}_{groups}", as_index(0), rounds, 1, (), Coordinate.BLK)
    value = binary("+", last.lower, IVar(outer.var) * groups + binary("//", TY, ty))
    exact = isinstance(counts[-1], IConst) and counts[-1].value % groups == 0
    conditions = [] if exact else [compare("lt", value, last.upper)]
    if spare or groups < most:
        conditions.append(compare("lt", TY, as_index(groups * ty)))
    body = guarded(conditions, substituted(task.body, {last.var: value, "ty": binary("%", TY, ty)}))
    ranges = task.ranges
    if ranges is not None:
        bound = interval(rounds, ranges)
        ranges = None if bound is None else {**ranges, outer.var: (0, max(0, bound[1] - 1))}
    return replace(task, loops=(*task.loops[:-1], outer), body=body, ranges=ranges)


def _waits(task: DeviceTask, copied: frozenset[str]) -> bool:
    """Do threads of a block wait for each other in a task?"""
    count = product(tuple(binary("-", x.upper, x.lower) for x in task.loops))
    return bool(insert_barriers(task.kernel, _nest(task.loops, task.body), count, copied)[1])


def _nest(loops: tuple[For, ...], body: Block) -> Block:
    """Loops around a body."""
    for loop in reversed(loops):
        body = (replace(loop, body=body),)
    return body


def _united(a: Mapping[str, Range] | None, b: Mapping[str, Range] | None) -> dict[str, Range] | None:
    """What variables can be in two nests; a name may stand for a loop in both."""
    if a is None or b is None:
        return None
    both = {**a, **b}
    for name in a.keys() & b.keys():
        both[name] = min(a[name][0], b[name][0]), max(a[name][1], b[name][1])
    return both


def _with_barriers(kernel: Kernel, whole: Block, blocks: IndexExpr, copied: frozenset[str]) -> Block:
    """The nests with the barriers of a block that they need; proved to be enough."""
    whole, added = insert_barriers(kernel, whole, blocks, copied)
    whole = merged(whole) if kernel.parts else whole
    if added or kernel.parts or any(b.place is not None for b in kernel.buffers):
        verdict = check_barriers(kernel, whole, blocks, copied)
        if isinstance(verdict, Unsafe):
            raise ScheduleError([verdict.diagnostic])
    return whole
