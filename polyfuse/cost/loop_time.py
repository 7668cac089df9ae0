"""Cycles of a core for the loops that are printed, with all data in L1 but what lanes jump over.

    vector loop     ceil(trip / lanes) times its body, and what it takes to begin
    other loop      trip times its body, each number of which is computed alone
    body            operations of its expressions, loads, stores; lanes that lie apart are loaded one by one

`cost.cpu_time` counts operations of the statements of a kernel.  This sees what became of them: whether
rows go in lanes, which loops hold branches or indices with arms, what is loaded lane by lane, what is
transposed in registers, what is computed outside of a loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf, prod

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.lines import Around, jump_of, lane_cycles
from polyfuse.cost.operations import weight_of
from polyfuse.ir.cpu_core import LANE_VECTORS, Core
from polyfuse.ir.functions import has_function
from polyfuse.ir.index_expr import IndexExpr, IVar, evaluate, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import flat, linear
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    If,
    Node,
    OwnedLoop,
    Prefetch,
    RegisterTile,
    Store,
    TransposedTile,
    Update,
    values_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Index, IndexValue, Read, reads, walk

# Cycles of an access of a vector, or of a number; of a lane that is loaded or stored alone, or found by an
# index of its own.
LOAD, STORE = 0.5, 1.0
LANE_LOADED, LANE_STORED, LANE_FOUND = 0.6, 1.5, 2.0
# Of the beginning and the end of a vector loop; of lanes that become one number; of an element of a tile that
# is transposed; of an iteration; of a step that waits for the one before it.
BEGUN, JOINED, TURNED, ITERATION, STEP = 8.0, 16.0, 0.4, 1.0, 8.0
# Compilers write loops of so few iterations out, and find vectors in the loop around; that takes so much more
# than whole vectors.
WRITTEN_OUT, SPREAD_OUT = 8, 2.0
# Lanes of the shortest vectors; times as long as one of them take iterations that meet in memory.
QUARTER, MEETING = 4, 2.0
# Lanes that lie so many elements apart at most are loaded as whole vectors, and chosen from.
INTERLEAVED = 4
# A vector may not read behind the last of such elements: so many iterations go one by one, behind half a
# vector.
LEFT = 8
# A function of one number takes so many times as long as of a vector: its operations wait for one another.
ALONE, FUNCTION = 3.0, 9.0
# Extremes that let NaN through take more than one instruction.
CAREFUL = 1.5
Values = Mapping[str, int]


@dataclass(frozen=True)
class LoopTime:
    """Cycles of blocks of one kernel on one core; variables of loops around have known values."""

    kernel: Kernel
    machine: CpuDevice

    @property
    def core(self) -> Core:
        return self.machine.core

    def block(
        self, nodes: Block, known: Values, lane: str | None = None, around: tuple[Around, ...] = ()
    ) -> float:
        """Cycles of nodes in loops; with `lane`, of as many iterations of its loop as a vector has lanes."""
        seen: set[Expr] = set()
        return sum(self._node(n, known, lane, seen, around) for n in nodes)

    def _node(
        self, n: Node, known: Values, lane: str | None, seen: set[Expr], around: tuple[Around, ...]
    ) -> float:
        match n:
            case For():
                return self._loop(n, known, around)
            case OwnedLoop():
                return self._loop(n.loop, known, around)
            case If():
                arms = (self.block(arm, known, lane, around) for arm in (n.then, n.other))
                return max(arms)
            case Declare():
                return 0.0 if n.value is None else self._value(n.value, lane, seen)
            case Store():
                return self._value(n.value, lane, seen) + self._access(n.buffer, n.indices, lane, STORE)
            case Update():
                kept = not n.indices or self.kernel.find(n.buffer) is None
                access = 0.0 if kept else self._access(n.buffer, n.indices, lane, STORE) + LOAD
                each = CAREFUL if n.op in ("min", "max") and n.nan else 1 / self.core.units
                return self._value(n.value, lane, seen) + access + each
            case TransposedTile():
                return TURNED * n.rows * n.lanes * n.dtype.bytes / 4 + BEGUN
            case RegisterTile():
                steps = prod(trips(x, known) for x in n.loops)
                return n.rows * n.lanes / self._lanes(n.dtype.bytes) / self.core.units * steps
            case _:
                return 0.0

    def _loop(self, x: For, known: Values, around: tuple[Around, ...]) -> float:
        trip, inside = trips(x, known), middle(x, known)
        around = (*around, Around(x, trip))
        if x.coordinate is Coordinate.VECTOR and _is_straight(x.body):
            lanes = self._lanes(_widest(x.body))
            body = self.block(x.body, inside, x.var)
            if trip <= WRITTEN_OUT and not x.lanes:
                return self._short(x, inside, body, trip) + self._far(x.body, around[:-1])
            alone = self._after_gaps(x, inside, ceil(trip / (LANE_VECTORS * lanes)) if x.lanes else 1)
            far = trip * self._far(x.body, around)
            return ceil(trip / lanes) * body + alone + far + BEGUN + JOINED * len(x.lanes)
        body = self.block(x.body, inside, None, around)
        steps = not any(isinstance(n, (For, If)) for n in x.body)
        return trip * (max(body, STEP if steps else 0.0) + ITERATION)

    def _short(self, x: For, inside: Values, body: float, trip: int) -> float:
        """Cycles of a vector loop of so few iterations, each vector of which takes `body`."""
        functions = any(has_function(v) for v in values_of(x.body))
        if x.vector or (functions and QUARTER < trip < WRITTEN_OUT):  # as it is, with short vectors
            whole, left = divmod(trip, QUARTER)
            return whole * body + left * self.block(x.body, inside)
        if functions and trip <= QUARTER and not x.written:
            return MEETING * body
        return body * trip / self._lanes(_widest(x.body)) * SPREAD_OUT

    def _far(self, body: Block, around: tuple[Around, ...]) -> float:
        """Cycles of a lane whose lines are not in L1 any more when they are met again."""
        found: set[tuple[str, tuple[Index, ...], bool]] = set()
        for n in body:
            if isinstance(n, (Store, Update)):
                found.add((n.buffer, n.indices, True))
            if isinstance(n, (Declare, Store, Update)) and n.value is not None:
                found.update((r.tensor, r.indices, False) for r in reads(n.value))
        stored = {(name, at) for name, at, written in found if written}
        buffers = {b.tensor: b for b in self.kernel.buffers}
        lines = [
            (jump, written)
            for name, at, written in found
            if name in buffers and at and (written or (name, at) not in stored)
            if (jump := jump_of(buffers[name], at, around, self.machine)) is not None
        ]
        return sum(lane_cycles(jump, len(lines), written, self.machine) for jump, written in lines)

    def _after_gaps(self, x: For, inside: Values, strips: int) -> float:
        """Cycles of iterations that are made one by one behind the vectors of each strip, where a read leaves
        elements out."""
        found = (
            r for n in x.body if isinstance(n, (Declare, Store, Update)) and n.value for r in reads(n.value)
        )
        if not any(1 < self._apart_of(r, x.var) <= INTERLEAVED for r in found):
            return 0.0
        return min(LEFT, trips(x, inside)) * strips * self.block(x.body, inside)

    def _apart_of(self, r: Read, lane: str) -> float:
        plain = [i for i in r.indices if not isinstance(i, EXPR_TYPES)]
        return self._apart(r.tensor, plain, lane) if len(plain) == len(r.indices) else inf

    def _lanes(self, size: int) -> int:
        return self.core.vector_bytes // max(1, size)

    def _value(self, e: Expr, lane: str | None, seen: set[Expr]) -> float:
        """Operations and loads of an expression; what is the same for all lanes is computed outside."""
        total = 0.0
        for x in walk(e):
            if x in seen or (lane is not None and not _varies(x, lane)):
                continue
            seen.add(x)
            if isinstance(x, Read):
                total += self._access(x.tensor, x.indices, lane, LOAD) if x.indices else 0.0
                continue
            weight = weight_of(x)
            total += weight * (ALONE if lane is None and weight > FUNCTION else 1.0) / self.core.units
        return total

    def _access(self, buffer: str, indices: tuple[Index, ...], lane: str | None, whole: float) -> float:
        """Cycles of an access that takes `whole` along memory.  What passes declared stays near."""
        b = self.kernel.find(buffer)
        if b is None:
            return whole / 2
        if lane is None:
            return whole
        plain = [i for i in indices if not isinstance(i, EXPR_TYPES)]
        by_data = any(_varies(i, lane) for i in indices if isinstance(i, EXPR_TYPES))
        apart = inf if by_data else self._apart(buffer, plain, lane)
        if apart > INTERLEAVED:
            loaded = LANE_FOUND if apart == inf else LANE_LOADED
            return (LANE_STORED if whole == STORE else loaded) * self._lanes(4)
        return whole * (1 if apart <= 1 else 2 * apart)

    def _apart(self, buffer: str, plain: list[IndexExpr], lane: str) -> float:
        """Elements from lane to lane; without end where an index goes over to another arm."""
        forms = [linear(i) for i in plain]
        if any(lane in f.hidden for f in forms):
            return inf
        extents = next((b.extents for b in self.kernel.buffers if b.tensor == buffer), ())
        if len(extents) == len(plain):
            return abs(flat(tuple(plain), extents).factor(IVar(lane)))
        steps = [abs(f.factor(IVar(lane))) for f in forms]
        return inf if any(steps[:-1]) else steps[-1] if steps else 0


def trips(x: For, known: Values) -> int:
    """Iterations of a loop; 1 where its bounds need what is not known."""
    try:
        return max(0, -(-(evaluate(x.upper, known) - evaluate(x.lower, known)) // x.step))
    except (KeyError, ZeroDivisionError):
        return 1


def middle(x: For, known: Values) -> Values:
    """The values with that of the loop's variable halfway through."""
    try:
        low = evaluate(x.lower, known)
    except (KeyError, ZeroDivisionError):
        return {**known, x.var: 0}
    return {**known, x.var: low + max(0, trips(x, known) - 1) // 2 * x.step}


def _is_straight(body: Block) -> bool:
    """Has a loop no loops or branches in it?"""
    return all(isinstance(n, (Declare, Store, Update, Prefetch)) for n in body)


def _varies(e: Index, var: str) -> bool:
    """May a value be another one in the next iteration of a loop? Scalars of the body may."""
    if not isinstance(e, EXPR_TYPES):
        return var in variables(e)
    for x in walk(e):
        if isinstance(x, Read) and (not x.indices or any(_varies(i, var) for i in x.indices)):
            return True
        if isinstance(x, IndexValue) and var in variables(x.index):
            return True
    return False


def _widest(body: Block) -> int:
    """Bytes of the widest value that a body computes."""
    values = (n.value for n in body if isinstance(n, (Declare, Store, Update)))
    return max((v.dtype.bytes for v in values if v is not None), default=4)
