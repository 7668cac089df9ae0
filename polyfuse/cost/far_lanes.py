"""Lanes that jump from line to line in the loops of a kernel, and the level of memory that has these lines.

    for i in 0..512:                            a store touches a line for each of 256 lanes, and meets it
      for k in 0..256 @vec:  y[k, i] = ...      again for its neighbour only after all of them

As in `cost.lines`, for loops as they are printed: tiles that are turned around are no such accesses any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.lines import LINE, STORED, fitting
from polyfuse.ir.index_expr import IConst, IVar, evaluate, sizes, variables
from polyfuse.ir.kernel import Buffer
from polyfuse.ir.linear import Linear, flat
from polyfuse.ir.loop_ir import For
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index

# How many times as long as in a stream a line takes that comes for one element.
ALONE = 3.0


@dataclass(frozen=True, slots=True)
class Around:
    """A loop around an access, and how often it runs."""

    loop: For
    trips: int


@dataclass(frozen=True, slots=True)
class Jump:
    """An access whose lanes are so many bytes apart, a line or more: the level of all of its buffer, and
    lines that it touches before it comes back to the first of them (None: it does not)."""

    stride: int
    level: int
    lines: float | None


def jump_of(
    buffer: Buffer, indices: tuple[Index, ...], around: Sequence[Around], machine: CpuDevice
) -> Jump | None:
    """An access in loops, the innermost of which is that of the lanes; None if these share lines."""
    if not around or len(indices) != len(buffer.extents) or sizes(buffer.elements):
        return None
    at = flat(tuple(IConst(0) if isinstance(i, EXPR_TYPES) else i for i in indices), buffer.extents)
    size = buffer.dtype.bytes
    stride = abs(at.factor(IVar(around[-1].loop.var))) * size
    if stride < LINE:
        return None
    level = machine.level(evaluate(buffer.elements, {}) * size / machine.threads)
    return Jump(stride, level, _between(at, around, size))


def lane_cycles(jump: Jump, count: int, written: bool, machine: CpuDevice) -> float:
    """Cycles of a lane beyond those of one in L1, beside so many accesses of its kind."""
    level = jump.level
    if jump.lines is not None:
        lines = jump.lines * (count if jump.stride % LINE else 1)  # sets of a cache have room beside
        held = (k for k, x in enumerate(machine.levels[:level]) if lines <= fitting(x, jump.stride))
        level = next(held, level)
    if level == 0:
        return 0.0
    bandwidth = machine.levels[level].bandwidth / machine.threads
    return LINE * (STORED if written else 1.0) * ALONE / bandwidth / machine.cycle_s


def _between(at: Linear, around: Sequence[Around], size: int) -> float | None:
    """Lines touched from one iteration of the loop along memory to the next; None without such a loop."""
    steps = [abs(at.factor(IVar(x.loop.var))) * size for x in around]
    near = [k for k, step in enumerate(steps) if 0 < step < LINE]
    if not near:
        return None
    touched = 1.0
    moving: set[str] = set()
    for x, step in reversed([*zip(around, steps, strict=True)][near[-1] + 1 :]):
        if step or x.loop.var in moving:
            touched *= x.trips
            moving |= {*variables(x.loop.lower)}
    return touched
