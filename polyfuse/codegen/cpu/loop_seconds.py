"""What the loops of a kernel take of a CPU: `cost.loop_time` on what `codegen.cpu.pipeline` makes."""

from __future__ import annotations

from math import ceil

from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.codegen.function import Task, begin_of, end_of
from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.lines import Around
from polyfuse.cost.loop_time import LoopTime, Values, middle, trips
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import Kernel


def loop_seconds(kernel: Kernel, machine: CpuDevice, knobs: CpuKnobs) -> float:
    """Seconds of all loops of a kernel on all threads."""
    low = lower(kernel, knobs)
    time = LoopTime(low.kernel, machine)
    return sum(_task(time, t, machine.threads) for t in low.tasks) * machine.cycle_s


def _task(time: LoopTime, task: Task, threads: int) -> float:
    """Cycles of a task on its threads, whose last round may leave some of them idle."""
    loops = [*([task.time] if task.time else []), *task.loops]
    if task.along:  # the body is for all iterations of the last loop
        last = loops.pop()
    known: Values = {}
    count = 1
    around: tuple[Around, ...] = ()
    for x in loops:
        around = (*around, Around(x, trips(x, known)))
        count, known = count * around[-1].trips, middle(x, known)
    if task.along:
        ends = {begin_of(last): evaluate(last.lower, known), end_of(last): evaluate(last.upper, known)}
        each = time.block(task.along, {**known, **ends}, None, around)
    elif task.together is not None and count >= task.together.rows:
        each = time.block(task.together.body, known, None, around) / task.together.rows
    else:
        each = time.block(task.body, known, None, around)
    busy = min(threads, max(1, count)) if task.loops else 1
    rounds = ceil(count / busy) if task.loops else count
    return each * rounds + time.block(task.before, {})
