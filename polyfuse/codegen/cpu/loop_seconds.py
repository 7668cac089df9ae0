"""What the loops of a kernel take of a CPU: `cost.loop_time` on what `codegen.cpu.pipeline` makes."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from polyfuse.codegen.cpu.pipeline import LoweredKernel, lower
from polyfuse.codegen.function import Function, inside, is_iteration
from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.lines import Around
from polyfuse.cost.loop_time import LoopTime, Values, middle, trips
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Delinearize, For, If, Node, begin_of, end_of, map_nodes
from polyfuse.ir.schedule_tree import Coordinate


def loop_seconds(kernel: Kernel, machine: CpuDevice, knobs: CpuKnobs) -> float:
    """Seconds of all loops of a kernel on all threads."""
    return lowered_seconds(lower(kernel, knobs), machine)


def lowered_seconds(low: LoweredKernel, machine: CpuDevice) -> float:
    """The same of loops that are there."""
    time = LoopTime(low.kernel, machine)
    return sum(_function(time, f, machine.threads) for f in low.functions) * machine.cycle_s


def _function(time: LoopTime, f: Function, threads: int) -> float:
    """Cycles of a function on its threads, whose last round may leave some of them idle."""
    loops = [*([f.time] if f.time else []), *f.loops]
    along = f.run is not None and f.row is None
    if along:  # the body is for all iterations of the last loop
        last = loops.pop()
    known: Values = {}
    count = 1
    around: tuple[Around, ...] = ()
    for x in loops:
        around = (*around, Around(x, trips(x, known)))
        count, known = count * around[-1].trips, middle(x, known)
    batch = next((x for x in f.batches if count >= x.step), None)
    if along:
        ends = {begin_of(last): evaluate(last.lower, known), end_of(last): evaluate(last.upper, known)}
        each = time.block(f.body, {**known, **ends}, None, around)
    elif batch is not None:
        each = time.block(inside(batch), known, None, around) / batch.step
    elif f.pipelined:
        parts, known = _of_one(f.body, known)
        each = time.block(parts, known, None, around)
    else:
        each = time.block(f.body if f.row is None else f.row, known, None, around)
    busy = min(threads, max(1, count)) if f.loops else 1
    rounds = ceil(count / busy) if f.loops else count
    before = tuple(n for n in f.before if not is_iteration(n))  # a part of one more iteration
    return each * rounds + time.block(before, {})


def _of_one(body: Block, known: Values) -> tuple[Block, Values]:
    """What makes up an iteration, of which a part is done in the one before; requests in a vector loop stand
    before it."""
    parts: list[Node] = []
    for n in body:
        if isinstance(n, If) and is_iteration(n):
            for x in n.then:
                for loop in x.loops if isinstance(x, Delinearize) else ():
                    known = middle(loop, known)
            parts += n.then
        else:
            parts.append(n)

    def apart(n: Node) -> Node | Block:
        if not isinstance(n, For) or n.coordinate is not Coordinate.VECTOR:
            return n
        asked = tuple(x for x in n.body if isinstance(x, For))
        return (*asked, replace(n, body=tuple(x for x in n.body if x not in asked)))

    return map_nodes(tuple(parts), apart), known
