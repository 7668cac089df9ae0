"""One statement instance at a time: the definition of what a kernel does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, assert_never

import numpy as np

from polyfuse.diagnostics import ArgumentError, InternalError
from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IndexExpr, evaluate
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
)
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.interpreter_ops import UPDATES, Value, apply_op, cast, constant, poison
from polyfuse.runtime.interpreter_program import Program, Step, Storage


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
            case Apply(op, args):
                return apply_op(op, [self.expr(a, env) for a in args], args[0].dtype)
            case Select(cond, then, other):
                return self.expr(then if self.expr(cond, env) else other, env)
            case Cast(arg, dtype):
                return cast(self.expr(arg, env), arg.dtype, dtype)
            case _:
                assert_never(e)
