"""Lines that accesses across memory touch, and the sets of a cache that these lines fall into.

    for i: for k @vec: y[k, i] = ...        each store touches a line of its own, and meets it again for its
                                            neighbour only after all lines of the column

Lines a power of two apart fall into few sets: a column of 512 rows of 4 kB has 512 lines in one set of L1 and
in a few of L2, and has left both before it is met again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod

from polyfuse.cost.cpu_device import CpuDevice, Level
from polyfuse.cost.extents import dims_of, instances
from polyfuse.cost.nests import OUTSIDE, Nest, uses
from polyfuse.ir.index_expr import IBin, IConst, IVar, evaluate, sizes, variables
from polyfuse.ir.kernel import Buffer
from polyfuse.ir.linear import Linear, flat
from polyfuse.ir.loop_ir import For
from polyfuse.ir.schedule_tree import Member
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Statement

LINE = 64
# A line that is stored to is read before, and written back after it.
STORED = 2.0
# Of the ways of a set, what is left for one access beside the others of its loop.
FREE_WAYS = 0.5


@dataclass(frozen=True, slots=True)
class Jumps:
    """An access across memory: how often it is made, bytes from one lane's element to the next one's, lines
    that it touches before it comes back to the first of them (None: it does not)."""

    tensor: str
    written: bool
    count: float
    stride: int
    lines: float | None


def jumps(n: Nest) -> Iterator[Jumps]:
    """Of a nest with a vector loop: accesses to memory whose lanes are a line or more apart, except those of
    tiles that are transposed in registers."""
    if n.vector is None:
        return
    for s, found in n.timed:
        if s.name not in dict(n.vector.exprs):
            continue
        for tensor, indices, written in dict.fromkeys(uses(s)):
            buffer = n.kernel.buffer(tensor)
            if buffer.scope not in OUTSIDE or not indices:
                continue
            known = tuple(IConst(0) if isinstance(i, EXPR_TYPES) else i for i in indices)
            at = flat(known, buffer.shape)
            stride = abs(_step(at, n.vector, s)) * buffer.dtype.bytes
            if stride >= LINE and not in_tiles(n, s, at):
                yield Jumps(tensor, written, instances(found), stride, _between(n, s, at))


def _step(at: Linear, m: Member, s: Statement) -> int:
    """Elements from one iteration of a loop to the next."""
    if s.name not in dict(m.exprs):
        return 0
    factors = [at.factor(IVar(d)) for d in dims_of(m.of(s.name))]
    return max(factors, key=abs, default=0)


def _walks(n: Nest, s: Statement, at: Linear) -> int | None:
    """The place of the innermost loop that goes along memory, element by element."""
    places = [k for k, m in enumerate(n.loops) if abs(_step(at, m, s)) == 1 and not _cut(m, s)]
    return places[-1] if places else None


def _cut(m: Member, s: Statement) -> bool:
    """Does a loop go from block to block of another one?"""
    e = m.of(s.name)
    return isinstance(e, IBin) and e.op == "//"


def _between(n: Nest, s: Statement, at: Linear) -> float | None:
    """Lines touched from one iteration of the loop along memory to the next."""
    along = _walks(n, s, at)
    if along is None:
        return None
    inside = [m for m in n.loops[along + 1 :] if _step(at, m, s)]
    return prod(n.trip(m) for m in inside)


def in_tiles(n: Nest, s: Statement, at: Linear) -> bool:
    """Is the access in a tile of the lanes and of the loop along memory right around them, of which one at
    least is cut into blocks? Such tiles are transposed."""
    along = _walks(n, s, at)
    if along is None or n.vector is None or n.loops[along + 1 : along + 2] != (n.vector,):
        return False
    mine = {v for m in (n.loops[along], n.vector) for v in variables(m.of(s.name))}
    return any(
        _cut(m, s) and mine & dims_of(m.of(s.name)) for m in n.loops[:along] if s.name in dict(m.exprs)
    )


def fitting(level: Level, stride: int) -> float:
    """Lines so many bytes apart that a cache holds."""
    every = level.capacity / LINE
    if not level.private or stride % LINE:
        return every
    sets = max(1, round(every / level.ways))
    return sets / gcd(stride // LINE, sets) * level.ways * FREE_WAYS


def seconds(n: Nest, since: Mapping[str, float], m: CpuDevice) -> float:
    """What lines take, of all threads, that accesses across memory fetch again and again."""
    total = 0.0
    for j in jumps(n):
        level = m.level(since.get(j.tensor, 0.0) / m.threads)
        if j.lines is not None:
            held = (k for k, x in enumerate(m.levels[:level]) if j.lines <= fitting(x, j.stride))
            level = next(held, level)
        if level > 0:
            total += j.count * LINE * (STORED if j.written else 1.0) / m.levels[level].bandwidth
    return total


# Lanes that jump from line to line in the loops of a kernel, and the level of memory that has these lines.
#
#     for i in 0..512:                            a store touches a line for each of 256 lanes, and meets it
#       for k in 0..256 @vec:  y[k, i] = ...      again for its neighbour only after all of them
#
# As above, for loops as they are printed: tiles that are transposed are no such accesses any more.


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
    return Jump(stride, level, _between_loops(at, around, size))


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


def _between_loops(at: Linear, around: Sequence[Around], size: int) -> float | None:
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
