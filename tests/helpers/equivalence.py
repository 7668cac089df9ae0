"""Do two programs compute the same?  The untransformed one is the oracle, through the float64 reference.

graph = fixed_graph_of("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", N=5)
assert_equivalent(graph, rewritten)
assert_computes(graph, kernels)            # by the interpreter of kernels, or target="cpu"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import polyfuse as pf
from polyfuse.codegen.cpu.emit import emit
from polyfuse.driver.pipeline import Compilation, Watch, emitted, fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import evaluate as evaluate_index
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.tensor_graph import Role, Tensor, TensorGraph
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import entry_copies
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.interpreter.interpreter import InterpretedKernels
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate
from polyfuse.runtime.reference.values import tiny

Array = np.ndarray[Any, np.dtype[Any]]


def fixed_graph_of(text: str, **sizes: int) -> TensorGraph:
    """The graph of the last operator of a text at the given sizes."""
    program = parse_text(text)
    return fixed_graph(instantiate(program, program.ops[-1].name), sizes)


def cpu_source(text: str, **sizes: int) -> str:
    """The C++ of the operator f of a text at these sizes."""
    graph = instantiate((parse_text(text),), "f")
    compilation = Compilation(graph, sizes, LoopFusion(), Options(), stitching=Stitching())
    return emitted(Watch(Options()), compilation)[1].source


def shape_of(t: Tensor) -> tuple[int, ...]:
    return tuple(evaluate_index(e, {}) for e in t.shape)


def seeded_inputs(graph: TensorGraph, seed: int = 0) -> dict[str, Array]:
    """An array for every input: standard normal floats, small integers (0 to 2), coins."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for name in graph.inputs:
        t = graph.tensor(name)
        if t.default is not None:
            arrays[name] = np.asarray(t.default).astype(t.dtype.numpy)
        elif t.dtype.is_float:
            arrays[name] = np.asarray(rng.standard_normal(shape_of(t))).astype(t.dtype.numpy)
        else:
            arrays[name] = np.asarray(rng.integers(0, 2 if t.dtype.is_bool else 3, shape_of(t))).astype(
                t.dtype.numpy
            )
    return arrays


def results_of(graph: TensorGraph) -> list[Tensor]:
    return [t for t in graph.tensors if t.role is Role.OUTPUT]


def assert_equivalent(before: TensorGraph, after: TensorGraph, seed: int = 0) -> None:
    """Both graphs are well formed and give the same results, within their bounds."""
    verify_graph(after)
    assert (before.inputs, before.outputs) == (after.inputs, after.outputs)
    inputs = seeded_inputs(before, seed)
    moved = {n: a.reshape(shape_of(after.tensor(n))) for n, a in inputs.items()}
    wanted, found = evaluate(before, {}, inputs), evaluate(after, {}, moved)
    for t in results_of(before):
        want, got = wanted[t.name], found[t.name]
        got_value = got.value.reshape(want.value.shape)  # collapsed dims keep the memory
        room = want.bound + got.bound.reshape(want.bound.shape) + tiny(t.dtype)
        with np.errstate(invalid="ignore"):
            same = (got_value == want.value) | (np.abs(got_value.astype(float) - want.value) <= room)
        same |= np.isnan(got_value.astype(float)) & np.isnan(want.value.astype(float))
        assert same.all(), f"{t.name}: {got_value[~same][:3]} instead of {want.value[~same][:3]}"


def run_kernels(
    kernels: KernelGraph, inputs: Mapping[str, Array], target: str = "interpret"
) -> dict[str, Array]:
    """The results of kernels at known sizes (and what inout parameters become)."""
    copied, _ = entry_copies(kernels)
    machine: InterpretedKernels | CpuExecutable
    if target == "interpret":
        machine = InterpretedKernels(kernels, checked=True, copied=copied)
    else:
        machine = CpuExecutable(emit(kernels, copied=copied), {})
    given = {n: a.copy().reshape(shape_of(kernels.graph.tensor(n))) for n, a in inputs.items()}
    return run_on(machine, kernels.graph, given)


def run_on(
    machine: InterpretedKernels | CpuExecutable, graph: TensorGraph, inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Results, in memory that held something else, and what inout parameters become in theirs."""
    memory = dict(inputs)
    for t in results_of(graph):
        memory[t.name] = memory[t.alias] if t.alias else np.full(shape_of(t), 77).astype(t.dtype.numpy)
    machine.run(memory)
    return {t.name: memory[t.name] for t in results_of(graph)}


def assert_computes(
    graph: TensorGraph, kernels: KernelGraph, *, target: str = "interpret", seed: int = 0
) -> None:
    """The kernels give what the graph means."""
    inputs = seeded_inputs(graph, seed)
    assert_right(graph, run_kernels(kernels, inputs, target), inputs)


def assert_right(graph: TensorGraph, found: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:
    """Results are what the graph means."""
    assert_all_right(graph, [found], inputs)


def assert_all_right(
    graph: TensorGraph, runs: Iterable[Mapping[str, Array]], inputs: Mapping[str, Array]
) -> None:
    """The results of several runs on the same inputs."""
    wanted = evaluate(graph, {}, inputs)
    for found in runs:
        for t in results_of(graph):
            outcome = agrees(found[t.name].reshape(shape_of(t)), wanted[t.name], t.dtype)
            assert outcome, f"{t.name}: {outcome.message}"


def assert_compiled(text: str, **sizes: int) -> None:
    """A program as it is called gives what it means, inout parameters in place."""
    graph = fixed_graph_of(text, **sizes)
    inputs = seeded_inputs(graph)
    given = {name: a.copy() for name, a in inputs.items()}
    found: Any = pf.compile(text)(**given)
    fresh = iter(found if isinstance(found, tuple) else (found,))
    outcome = {t.name: given[t.alias] if t.alias else next(fresh) for t in results_of(graph)}
    assert_right(graph, outcome, inputs)
