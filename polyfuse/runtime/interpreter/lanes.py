"""Many iterations of safe loops at once: every value is an array with an element for each lane.

A lane is one choice of values for the loops that run together.  Statements run one after the other, each
for all lanes; where a condition holds for some lanes only, the rest is left out (so `Select` stays lazy).
Updates of one element are made in the order of the lanes, which is the order of the loops: results are
those of one instance at a time to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, assert_never

import numpy as np

from polyfuse.diagnostics import ArgumentError, InternalError
from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, evaluate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    Select,
    within_text,
)
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.interpreter.ops import UPDATES, Value, apply_op, cast, constant, poison
from polyfuse.runtime.interpreter.program import Guard, Loop, Node, Program, Step, Storage

# --- one statement instance at a time: the definition -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """The arrays of one run of a kernel. `checked`: an index from data out of range is an error."""

    program: Program
    arrays: Mapping[str, Array]
    checked: bool

    def poison(self) -> None:
        """Forget what private storage holds."""
        for s in self.program.storage.values():
            if s.private:
                self.arrays[s.tensor][...] = poison(s.buffer.dtype)

    def out_of_range(self, index: Expr, value: int, extent: int) -> NoReturn:
        raise ArgumentError(
            f"an index from data is out of range: '{index.span.text}' is {value}, not in 0..{extent}",
            code="PF450",
            span=index.span,
        )

    def within(self, e: Apply, value: Value, least: Value, most: Value) -> Value:
        """The first number, which lies between the others where that is checked."""
        bad = (value < least) | (value > most)
        if self.checked and np.any(bad):
            found = np.ravel(np.broadcast_to(value, np.shape(bad)))[np.argmax(np.ravel(bad))]
            raise ArgumentError(
                f"an index from data is out of range: '{e.span.text}' is {found}, not in {within_text(e)}",
                code="PF450",
                span=e.span,
            )
        return value

    def outside(self, where: Storage, at: tuple[Value, ...]) -> NoReturn:
        """An affine index that leaves its storage: the kernel is wrong."""
        text = ", ".join(map(str, at))
        raise InternalError(
            f"{self.program.kernel.name} accesses {where.tensor}[{text}], which has the extents "
            f"{list(where.extents)}",
        )


@dataclass(frozen=True, slots=True)
class ScalarRun:
    """Runs instances; `env` maps loop variables to their values."""

    memory: Memory

    def step(self, step: Step, env: Mapping[str, int]) -> None:
        array = self.memory.arrays[step.buffer]
        value = self.expr(step.expr, env)
        at = self.place(step.buffer, step.indices, env)
        if step.op is not None:
            value = UPDATES[step.op](array[at], value)
        if value.dtype.type is not array.dtype.type:
            raise InternalError(f"{step.statement} stores {value.dtype} as {array.dtype}")
        array[at] = value

    def place(self, name: str, indices: tuple[Index, ...], env: Mapping[str, int]) -> tuple[int, ...]:
        """Where in the buffer's array an element lives."""
        where = self.memory.program.storage[name]
        at = []
        for i, full, extent in zip(indices, where.shape, where.extents, strict=False):
            if isinstance(i, EXPR_TYPES):
                at.append(self.data_index(i, env, full) % extent)
            else:
                at.append(evaluate(i, env))
        if not all(0 <= x < extent for x, extent in zip(at, where.extents, strict=True)):
            self.memory.outside(where, tuple(at))
        return tuple(at)

    def data_index(self, e: Expr, env: Mapping[str, int], extent: int) -> int:
        value = int(cast(self.expr(e, env), e.dtype, I64))
        if 0 <= value < extent:
            return value
        if self.memory.checked or extent == 0:
            self.memory.out_of_range(e, value, extent)
        return min(max(value, 0), extent - 1)

    def index(self, e: IndexExpr, env: Mapping[str, int]) -> int:
        return evaluate(e, env)

    def expr(self, e: Expr, env: Mapping[str, int]) -> Value:
        match e:
            case Const(value, dtype):
                return constant(value, dtype)
            case IndexValue(index, dtype):
                return cast(np.int64(evaluate(index, env)), I64, dtype)
            case Read(tensor, indices):
                return self.memory.arrays[tensor][self.place(tensor, indices, env)]
            case Apply("within", args):
                return self.memory.within(e, *(self.expr(a, env) for a in args))
            case Apply(op, args):
                return apply_op(op, [self.expr(a, env) for a in args], args[0].dtype)
            case Select(cond, then, other):
                return self.expr(then if self.expr(cond, env) else other, env)
            case Cast(arg, dtype):
                return cast(self.expr(arg, env), arg.dtype, dtype)
            case _:
                assert_never(e)


# About as many lanes at a time: arrays of them stay in the caches.
MOST_LANES = 1 << 14


@dataclass(frozen=True, slots=True)
class Lanes:
    """Which iterations run: loop variable -> one value, or one for each of `count` lanes.

    `own` holds the registers that belong to lanes: their memory, and each lane's place in it.
    """

    env: Mapping[str, Value]
    count: int
    own: Mapping[str, tuple[Array, Array]]

    def chosen(self, lanes: Array) -> Lanes:
        """Some of the lanes (by number), perhaps several times."""
        env = {n: v[lanes] if isinstance(v, np.ndarray) else v for n, v in self.env.items()}
        own = {n: (memory, at[lanes]) for n, (memory, at) in self.own.items()}
        return Lanes(env, len(lanes), own)

    def with_variable(self, name: str, value: Value) -> Lanes:
        return Lanes({**self.env, name: value}, self.count, self.own)

    def with_registers(self, storages: Iterable[Storage]) -> Lanes:
        """New registers for every lane, holding nothing."""
        fresh = {
            s.tensor: (np.full(self.count, poison(s.buffer.dtype)), np.arange(self.count)) for s in storages
        }
        return Lanes(self.env, self.count, {**self.own, **fresh})


def one(env: Mapping[str, int]) -> Lanes:
    """A single lane."""
    return Lanes(env, 1, {})


@dataclass(frozen=True, slots=True)
class LaneRun:
    memory: Memory

    # --- loops ------------------------------------------------------------------------------------------

    def block(self, nodes: tuple[Node, ...], lanes: Lanes) -> None:
        for node in nodes:
            match node:
                case Step():
                    self.step(node, lanes)
                case Loop():
                    self.loop(node, lanes)
                case Guard():
                    self._guard(node, lanes)
                case _:
                    assert_never(node)

    def _guard(self, node: Guard, lanes: Lanes) -> None:
        cond = self.expr(node.cond, lanes)
        if np.ndim(cond) == 0:
            self.block(node.then if cond else node.other, lanes)
            return
        for part, mask in ((node.then, cond), (node.other, ~cond)):
            chosen = np.flatnonzero(mask)
            if part and len(chosen):
                self.block(part, lanes.chosen(chosen))

    def loop(self, loop: Loop, lanes: Lanes) -> None:
        lower, upper = self.index(loop.lower, lanes), self.index(loop.upper, lanes)
        trips = -((lower - upper) // loop.step)
        most = max(1, MOST_LANES // lanes.count)
        if loop.safe is None:
            most = 1
        elif loop.safe.most:
            most = min(most, loop.safe.most)
        if np.ndim(trips) == 0:
            self._even(loop, lanes, lower, int(trips), most)
        else:
            self._uneven(loop, lanes, lower, np.maximum(trips, 0), most)

    def _even(self, loop: Loop, lanes: Lanes, lower: Value, trips: int, most: int) -> None:
        """A loop with the same number of iterations in every lane, `most` at a time."""
        for start in range(0, trips, most):
            number = min(most, trips - start)
            if number == 1:
                self.block(loop.body, lanes.with_variable(loop.var, lower + start * loop.step))
                continue
            values = np.tile(np.arange(start, start + number) * loop.step, lanes.count)
            inner = lanes.chosen(np.repeat(np.arange(lanes.count), number))
            first = np.repeat(lower, number) if np.ndim(lower) else lower
            self._together(loop, inner.with_variable(loop.var, first + values))

    def _uneven(self, loop: Loop, lanes: Lanes, lower: Value, trips: Array, most: int) -> None:
        lower = np.broadcast_to(lower, trips.shape)
        for start in range(0, int(trips.max(initial=0)), most):
            counts = np.clip(trips - start, 0, most)
            chosen = np.repeat(np.arange(lanes.count), counts)
            offsets = np.arange(len(chosen)) - np.repeat(np.cumsum(counts) - counts, counts)
            values = lower[chosen] + (start + offsets) * loop.step
            self._together(loop, lanes.chosen(chosen).with_variable(loop.var, values))

    def _together(self, loop: Loop, lanes: Lanes) -> None:
        if loop.safe is not None and loop.safe.private:
            storage = self.memory.program.storage
            lanes = lanes.with_registers(storage[n] for n in loop.safe.private)
        self.block(loop.body, lanes)

    # --- statements ---------------------------------------------------------------------------------------

    def step(self, step: Step, lanes: Lanes) -> None:
        value = self.expr(step.expr, lanes)
        array, at = self._memory(step.buffer, step.indices, lanes)
        if value.dtype.type is not array.dtype.type:
            raise InternalError(f"{step.statement} stores {value.dtype} as {array.dtype}")
        if step.op is None:
            array[at] = value
        elif any(isinstance(x, np.ndarray) for x in at):
            UPDATES[step.op].at(array, at, value)
        else:
            terms = np.empty(lanes.count + 1, array.dtype)
            terms[0], terms[1:] = array[at], value
            array[at] = UPDATES[step.op].accumulate(terms, dtype=terms.dtype)[-1]

    def _memory(self, name: str, indices: tuple[Index, ...], lanes: Lanes) -> tuple[Array, tuple[Value, ...]]:
        """The array of a buffer, and where in it the element of each lane lives."""
        if name in lanes.own:
            memory, places = lanes.own[name]
            return memory, (places,)
        return self.memory.arrays[name], self.place(name, indices, lanes)

    def place(self, name: str, indices: tuple[Index, ...], lanes: Lanes) -> tuple[Value, ...]:
        where = self.memory.program.storage[name]
        at: list[Value] = []
        for i, full, extent in zip(indices, where.shape, where.extents, strict=False):
            if isinstance(i, EXPR_TYPES):
                value = self.data_index(i, lanes, full)
                at.append(value if full == extent else value % extent)
                continue
            value = self.index(i, lanes)
            at.append(value)
            low, high = (value.min(), value.max()) if isinstance(value, np.ndarray) else (value, value)
            if low < 0 or high >= extent:
                self.memory.outside(where, (low, high))
        return tuple(at)

    def data_index(self, e: Expr, lanes: Lanes, extent: int) -> Value:
        value = cast(self.expr(e, lanes), e.dtype, I64)
        bad = (value < 0) | (value >= extent)
        if not np.any(bad):
            return value
        if self.memory.checked or extent == 0:
            self.memory.out_of_range(e, int(np.ravel(value)[np.argmax(np.ravel(bad))]), extent)
        return np.clip(value, 0, extent - 1)

    # --- values ---------------------------------------------------------------------------------------------

    def index(self, e: IndexExpr, lanes: Lanes) -> Value:
        match e:
            case IConst(value):
                return value
            case IVar(name):
                return lanes.env[name]
            case IBin(op, left, right):
                return _INDEX[op](self.index(left, lanes), self.index(right, lanes))
            case ISize(name):
                raise InternalError(f"size {name} is not known")
            case _:
                assert_never(e)

    def expr(self, e: Expr, lanes: Lanes) -> Value:
        match e:
            case Const(value, dtype):
                return constant(value, dtype)
            case IndexValue(index, dtype):
                number = self.index(index, lanes)
                return cast(number if isinstance(number, np.ndarray) else np.int64(number), I64, dtype)
            case Read(tensor, indices):
                array, at = self._memory(tensor, indices, lanes)
                return array[at]
            case Apply("within", args):
                return self.memory.within(e, *(self.expr(a, lanes) for a in args))
            case Apply(op, args):
                return apply_op(op, [self.expr(a, lanes) for a in args], args[0].dtype)
            case Select():
                return self._select(e, lanes)
            case Cast(arg, dtype):
                return cast(self.expr(arg, lanes), arg.dtype, dtype)
            case _:
                assert_never(e)

    def _select(self, e: Select, lanes: Lanes) -> Value:
        cond = self.expr(e.cond, lanes)
        if not isinstance(cond, np.ndarray):
            return self.expr(e.then if cond else e.other, lanes)
        if cond.all():
            return self.expr(e.then, lanes)
        if not cond.any():
            return self.expr(e.other, lanes)
        result = np.empty(lanes.count, e.dtype.numpy)
        yes, no = np.flatnonzero(cond), np.flatnonzero(~cond)
        result[yes] = self.expr(e.then, lanes.chosen(yes))
        result[no] = self.expr(e.other, lanes.chosen(no))
        return result


_INDEX: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": lambda a, b: np.minimum(a, b) if _many(a, b) else min(a, b),
    "max": lambda a, b: np.maximum(a, b) if _many(a, b) else max(a, b),
}


def _many(a: Value, b: Value) -> bool:
    return isinstance(a, np.ndarray) or isinstance(b, np.ndarray)
