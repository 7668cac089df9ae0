"""How long kernels take on this CPU: short runs on inputs that are made up."""

from __future__ import annotations

import time

import numpy as np

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.launch_plan import Kind, PlanBuffer
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.cpu.memory import Arena
from polyfuse.runtime.inputs import make_inputs

# Runs go on for so long, but there are no fewer and no more than so many.
WANTED_S = 0.03
FEWEST, MOST = 2, 50
# Inputs, results and workspace may take so much memory.
MOST_BYTES = 1 << 30


class TooLarge(Exception):
    """Kernels that are not run because of what they would take."""


def seconds_of_run(graph: TensorGraph, kernels: KernelGraph, copied: frozenset[str], threads: int) -> float:
    """The shortest run of the kernels of a graph whose sizes are known. Raises TooLarge."""
    code = emit_together([Request(kernels, copied=copied)])[0]
    buffers = [b for b in code.plan.buffers if b.kind is not Kind.WORKSPACE]
    if sum(map(_bytes, buffers)) > MOST_BYTES:
        raise TooLarge
    executable = CpuExecutable(code, {}, threads=threads)
    if executable.workspace()[1] > MOST_BYTES:
        raise TooLarge
    arrays, entry = _memory(graph, buffers)
    call = executable.bind(arrays)
    best, spent, runs = float("inf"), 0.0, 0
    while runs < FEWEST or (spent < WANTED_S and runs < MOST):
        for name, value in entry.items():
            arrays[name][...] = value
        start = time.perf_counter()
        call()
        taken = time.perf_counter() - start
        best, spent, runs = min(best, taken), spent + taken, runs + 1
    return best


def _bytes(b: PlanBuffer) -> int:
    count = b.dtype.bytes
    for extent in b.shape:
        count *= evaluate(extent, {})
    return count


def _memory(graph: TensorGraph, buffers: list[PlanBuffer]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Arrays of inputs and results, and what inout parameters are before each run."""
    inputs = make_inputs(graph, {})
    arrays: dict[str, Array] = {}
    for b in buffers:
        shape = tuple(evaluate(e, {}) for e in b.shape)
        if b.name in inputs:  # dims that were collapsed share the memory
            arrays[b.name] = np.ascontiguousarray(inputs[b.name]).reshape(shape)
        elif b.alias is None:
            arrays[b.name] = Arena.get().empty(shape, b.dtype.numpy)
    arrays |= {b.name: arrays[b.alias] for b in buffers if b.alias is not None}
    return arrays, {b.name: arrays[b.name].copy() for b in buffers if b.kind is Kind.INOUT}
