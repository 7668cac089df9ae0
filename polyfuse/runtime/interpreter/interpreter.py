"""Kernels without a compiler: the executable definition of the kernel IR (target "interpret").

Every kernel runs its statement instances in the order of its schedule tree, on storage as its buffers
declare it: a register is one cell, a worker's array is addressed modulo its extents, and both hold NaN (or
garbage) at the start of each iteration of the block loops, so that a read of what was not written shows.
Arithmetic happens in the dtypes of the graph.  Nothing is shared with the code generator.

    interpreter_program    a kernel's loops with the bodies of its statements
    interpreter_scalar     one instance at a time: the definition
    interpreter_lanes      many iterations of a loop at once, with the same bits; much faster
    interpreter_safety     for which loops that holds
    interpreter_ops        the scalar operations
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import assert_never

import numpy as np

from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import KernelGraph, Scope
from polyfuse.ir.tensor_graph import Role, Tensor, TensorGraph
from polyfuse.runtime.arguments import Array, check_array
from polyfuse.runtime.interpreter.lanes import LaneRun, Memory, ScalarRun, one
from polyfuse.runtime.interpreter.ops import poison
from polyfuse.runtime.interpreter.program import Guard, Loop, Node, Program, Step, prepare
from polyfuse.runtime.interpreter.safety import mark_safe


class InterpretedKernels:
    """Kernels of one operator at known sizes, interpreted. Safe to run from several threads.

    sizes       values of the sizes that the kernels still have open
    checked     an index from data out of range is an error (else it is clamped)
    copied      inout parameters whose entry values are copied first (no in-place order exists)
    one_by_one  run every instance by itself, slowly: the definition
    """

    def __init__(
        self,
        kernels: KernelGraph,
        sizes: Mapping[str, int] | None = None,
        *,
        checked: bool = True,
        copied: frozenset[str] = frozenset(),
        one_by_one: bool = False,
    ) -> None:
        self.kernels = kernels
        self.sizes = dict(sizes or {})
        self.checked = checked
        self.copied = copied
        self._aliases = _aliases(kernels.graph)
        self._programs = tuple(prepare(k, self.sizes) for k in kernels.kernels)
        if not one_by_one:
            entry = {w: p for w, p in self._aliases.items() if p not in copied}
            for program in self._programs:
                mark_safe(program, entry)

    def at(self, sizes: Mapping[str, int]) -> InterpretedKernels:
        """The same kernels at other values of the sizes that they have open."""
        return InterpretedKernels(self.kernels, sizes, checked=self.checked, copied=self.copied)

    def run(self, arrays: Mapping[str, Array]) -> None:
        """Run on the given arrays: name -> memory, for every input and output (`p__out` of an inout p too).

        Any strides do; `p__out` may be the memory of `p`, and gets its values first where it is not.
        Raises ArgumentError: PF450 (checked) for an index from data out of range, others for an array that
        does not fit.
        """
        known, finish = self._arguments(arrays)
        with np.errstate(all="ignore"):
            for program in self._programs:
                _Machine(program, known, self.checked).run()
        for array, copy in finish:
            array[...] = copy.reshape(array.shape)

    def bind(self, arrays: Mapping[str, Array]) -> Callable[[], None]:
        """A call on fixed memory."""
        return lambda: self.run(arrays)

    def _arguments(self, arrays: Mapping[str, Array]) -> tuple[dict[str, Array], list[tuple[Array, Array]]]:
        """Memory of every tensor that lives outside of kernels, and what to copy where at the end."""
        known: dict[str, Array] = {}
        finish: list[tuple[Array, Array]] = []
        for t in self.kernels.graph.tensors:
            if t.role is not Role.TEMP:
                known[t.name] = self._argument(t, np.asarray(arrays[t.name]), finish)
        for written, p in self._aliases.items():
            if _same_memory(arrays[written], arrays[p]):
                known[p] = known[written]
            else:
                known[written][...] = known[p]
            if p in self.copied:
                known[p] = known[p].copy()
        for program in self._programs:
            for s in program.storage.values():
                if s.buffer.scope is Scope.GLOBAL and s.tensor not in known:
                    known[s.tensor] = np.full(s.shape, poison(s.buffer.dtype))
        return known, finish

    def _argument(self, t: Tensor, array: Array, finish: list[tuple[Array, Array]]) -> Array:
        """An argument in the shape that the kernels know it by: layer I may have merged dims."""
        shape = tuple(evaluate(e, self.sizes) for e in t.shape)
        if array.shape == shape or array.size != math.prod(shape):
            return check_array(t, array, self.sizes)
        merged = array.reshape(shape)
        if t.role is Role.OUTPUT and array.size and not np.may_share_memory(merged, array):
            finish.append((array, merged))
        return check_array(t, merged, self.sizes)


def _aliases(graph: TensorGraph) -> dict[str, str]:
    """Written tensor -> inout parameter."""
    return {t.name: t.alias for t in graph.tensors if t.alias is not None}


def _same_memory(a: Array, b: Array) -> bool:
    return a.__array_interface__["data"] == b.__array_interface__["data"] and a.strides == b.strides


class _Machine:
    """One run of one kernel."""

    def __init__(self, program: Program, outside: Mapping[str, Array], checked: bool) -> None:
        arrays = {
            s.tensor: np.full(s.extents, poison(s.buffer.dtype)) if s.private else outside[s.tensor]
            for s in program.storage.values()
        }
        self.program = program
        self.memory = Memory(program, arrays, checked)
        self.scalar = ScalarRun(self.memory)
        self.lanes = LaneRun(self.memory)

    def run(self) -> None:
        self.block(self.program.body, {})

    def block(self, nodes: tuple[Node, ...], env: Mapping[str, int]) -> None:
        for node in nodes:
            match node:
                case Step():
                    self.scalar.step(node, env)
                case Guard(cond, then, other):
                    self.block(then if self.scalar.expr(cond, env) else other, env)
                case Loop():
                    self.loop(node, env)
                case _:
                    assert_never(node)

    def loop(self, loop: Loop, env: Mapping[str, int]) -> None:
        lower, upper = evaluate(loop.lower, env), evaluate(loop.upper, env)
        if loop.safe is not None and upper - lower > loop.step:
            self.lanes.loop(loop, one(env))
            return
        for value in range(lower, upper, loop.step):
            if loop.block:
                self.memory.poison()
            self.block(loop.body, {**env, loop.var: value})
