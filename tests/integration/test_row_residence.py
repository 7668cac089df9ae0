"""Where the rows of a stitched kernel stay between its phases, and how often global memory is read.

Load counters of the emulator: a row that fits the registers of its threads, or the shared memory of the
block, is read once; one that fits neither is read again in each phase, and `explain()` says why.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from targets import Array
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.cpu.emit import Request, emit
from polyfuse.codegen.cuda.emit import emit_cuda
from polyfuse.driver.lowering import schedule
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import evaluate as value_of
from polyfuse.ir.kernel import Buffer, Scope
from polyfuse.ir.launch_plan import GridLaunch
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

LAYER_NORM = """
op f(x: f32[T, H], gamma: f32[H], beta: f32[H], eps: f32 = 1e-5) -> (y: f32[T, H]) {
  mu[t] = mean[h](x[t, h])
  var[t] = mean[h]((x[t, h] - mu[t]) ** 2)
  y[t, h] = (x[t, h] - mu[t]) * rsqrt(var[t] + eps) * gamma[h] + beta[h]
}"""
MASKED_SOFTMAX = """
op f(x: f32[T, H], mask: f32[H], scale: f32 = 0.125) -> (y: f32[T, H]) {
  z[t, h] = x[t, h] * scale + mask[h]
  m[t] = max[h](z[t, h])
  e[t, h] = exp(z[t, h] - m[t])
  d[t] = sum[h](e[t, h])
  y[t, h] = e[t, h] / d[t]
}"""
GRADIENT = """
op f(dy: f32[T, H], x: f32[T, H], gamma: f32[H], mu: f32[T], rstd: f32[T])
    -> (dx: f32[T, H], dgamma: f32[H], dbeta: f32[H]) {
  xhat[t, h] = (x[t, h] - mu[t]) * rstd[t]
  g[t, h] = dy[t, h] * gamma[h]
  c1[t] = mean[h](g[t, h])
  c2[t] = mean[h](g[t, h] * xhat[t, h])
  dx[t, h] = rstd[t] * (g[t, h] - c1[t] - xhat[t, h] * c2[t])
  dgamma[h] = sum[t](dy[t, h] * xhat[t, h])
  dbeta[h] = sum[t](dy[t, h])
}"""
OPERATORS = {"layer_norm": LAYER_NORM, "masked_softmax": MASKED_SOFTMAX}
WIDE = GpuTarget(sms=2)  # blocks of up to 1024 threads, vectors of 4
NARROW = GpuTarget(sms=2, longest=64, vector=1)  # 1024 elements of a row in the registers of a block
AMPLE = replace(NARROW, shared_bytes=227 * 1024)  # what a block of Hopper's may ask for


@dataclass(frozen=True)
class Outcome:
    """What a stitched operator did: kernels, loads of elements of a buffer, storage, decisions."""

    kernels: int
    loads: dict[str, Array]
    buffers: dict[str, Buffer]
    explained: str
    launches: tuple[GridLaunch, ...]

    def loads_of(self, name: str) -> set[int]:
        return {int(n) for n in self.loads[name].sum(axis=0).flat}


def inputs_of(graph: TensorGraph) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    found: dict[str, Array] = {}
    for name in graph.inputs:
        t = graph.tensor(name)
        shape = tuple(value_of(e, {}) for e in t.shape)
        given = rng.standard_normal(shape) if t.default is None else t.default
        found[name] = np.asarray(given).astype(t.dtype.numpy)
    return found


@cache
def stitched(
    text: str, rows: int, length: int, gpu: GpuTarget, fused: bool = True, barriers: bool | None = None
) -> Outcome:
    """Run in the emulator; asserts that the result is the reference's."""
    graph = fixed_graph(instantiate(parse_text(text), "f"), {"T": rows, "H": length})
    scheduled = schedule(graph, LoopFusion() if fused else None)
    kernels, decisions = form_kernels(scheduled, gpu, Stitching(rows=1, barriers=barriers))
    code = emit_cuda(Request(kernels))
    machine = EmulatedKernels(code, count=True)
    inputs = inputs_of(graph)
    outputs = {t.name: t for t in graph.tensors if t.role is Role.OUTPUT}
    memory = {n: np.full(tuple(value_of(e, {}) for e in t.shape), 77, np.float32) for n, t in outputs.items()}
    machine.run({**inputs, **memory})
    want = evaluate(graph, {}, inputs)
    for name, t in outputs.items():
        outcome = agrees(memory[name], want[name], t.dtype)
        assert outcome, f"{name}: {outcome.message}"
    buffers = {b.tensor: b for k in kernels.kernels for b in k.buffers}
    text = "\n".join(map(str, decisions))
    return Outcome(len(kernels.kernels), dict(machine.report.loads), buffers, text, code.plan.launches)


each_operator = pytest.mark.parametrize("op", OPERATORS)
each_layer_one = pytest.mark.parametrize("fused", (True, False), ids=("layer I", "no layer I"))


@each_layer_one
@pytest.mark.parametrize("length", (20, 64, 768, 1001, 4096, 16380, 32768))
@each_operator
def test_rows_in_registers_are_read_once(op: str, length: int, fused: bool) -> None:
    found = stitched(OPERATORS[op], 2, length, WIDE, fused)
    assert found.kernels == 1
    assert found.loads_of("x") == {1}
    assert "shared memory" not in found.explained


@each_layer_one
@pytest.mark.parametrize("length", (1025, 3000, 6000))
@each_operator
def test_rows_in_shared_memory_are_read_once(op: str, length: int, fused: bool) -> None:
    found = stitched(OPERATORS[op], 3, length, NARROW, fused)
    assert found.kernels == 1
    assert found.loads_of("x") == {1}
    shared = [b for b in found.buffers.values() if b.scope is Scope.SHARED]
    assert shared and all(value_of(b.elements, {}) >= length for b in shared)
    assert "of shared memory" in found.explained or "to shared memory" in found.explained


@pytest.mark.parametrize("length", (12300, 20001))
@each_operator
def test_rows_that_fit_neither_are_read_again(op: str, length: int) -> None:
    found = stitched(OPERATORS[op], 2, length, NARROW)
    phases = {"layer_norm": 3, "masked_softmax": 2}[op]  # e is kept, or written and read
    assert found.kernels == 1
    assert found.loads_of("x") == {phases}
    reason = f"- cache row x: a row of {length} elements fits neither registers nor shared memory"
    assert reason in found.explained


@each_layer_one
@pytest.mark.parametrize("length", (12300, 20001, 58000))
@each_operator
def test_launches_ask_for_the_shared_memory_of_long_rows(op: str, length: int, fused: bool) -> None:
    """More than 48 KB: not declared by the kernel, but given to it by the launch, in one block of memory."""
    found = stitched(OPERATORS[op], 2, length, AMPLE, fused)
    assert found.kernels == 1
    assert found.loads_of("x") == {1}
    (launch,) = found.launches
    assert 4 * length <= launch.dynamic_bytes == launch.shared_bytes <= AMPLE.shared_bytes
    if op == "masked_softmax" and length == 58000:  # the second row has no place there
        assert {b.scope for n, b in found.buffers.items() if n in "ez"} & {Scope.GLOBAL}


def test_the_end_of_shared_memory() -> None:
    """A row takes what the block has, less what its warps combine their sums in; one more does not fit."""
    scratch = 2 * 16
    most = (AMPLE.shared_bytes - scratch) // 4
    fits, beyond = (stitched(LAYER_NORM, 1, n, AMPLE) for n in (most, most + 1))
    assert fits.loads_of("x") == {1} and beyond.loads_of("x") == {3}
    assert fits.launches[0].shared_bytes <= AMPLE.shared_bytes
    assert beyond.launches[0].dynamic_bytes == 0


@each_layer_one
@pytest.mark.parametrize("length", (100_000, 99_999))
@each_operator
def test_very_long_rows(op: str, length: int, fused: bool) -> None:
    found = stitched(OPERATORS[op], 2, length, WIDE, fused)
    assert found.kernels == 1
    if op == "layer_norm" or fused:
        assert f"a row of {length} elements fits neither registers nor shared memory" in found.explained
        assert min(found.loads_of("x")) >= 2
    if op == "masked_softmax":
        assert "- contract e: " in found.explained
        assert found.buffers["e"].scope is Scope.GLOBAL


@pytest.mark.parametrize("op", OPERATORS)
def test_very_long_rows_on_a_cpu(op: str) -> None:
    graph = fixed_graph(instantiate(parse_text(OPERATORS[op]), "f"), {"T": 2, "H": 100_000})
    kernels, _ = form_kernels(schedule(graph, LoopFusion()), 2, Stitching(rows=1))
    assert len(kernels.kernels) == 1
    inputs, y = inputs_of(graph), np.empty((2, 100_000), np.float32)
    CpuExecutable(emit(kernels), {}).run({**inputs, "y": y})
    assert agrees(y, evaluate(graph, {}, inputs)["y"], graph.tensor("y").dtype)


def test_explain_says_it() -> None:
    kernels = pf.parse(LAYER_NORM).op().specialize(T=4096, H=100_000).schedule().apply(pf.LoopFusion())
    lines = kernels.lower(target="cuda").apply(pf.Stitching()).explain()
    assert "- cache row x: a row of 100000 elements fits neither registers nor shared memory" in lines


@pytest.mark.parametrize("barriers", (False, True), ids=("two kernels", "a grid barrier"))
@pytest.mark.parametrize(("rows", "length"), ((64, 768), (66, 516)))
def test_rows_and_columns_are_summed_in_one_pass(rows: int, length: int, barriers: bool) -> None:
    """Rows, and columns in parts, of the same two inputs; then the parts are added up.

    Where vectors are possible: a vector is loaded once for all statements of an iteration.
    """
    found = stitched(GRADIENT, rows, length, GpuTarget(sms=4), barriers=barriers)
    assert found.kernels == (1 if barriers else 2)
    assert found.loads_of("x") == found.loads_of("dy") == {1}
    beyond = {0} if length % 16 else set()  # rows of partial sums end where a line does
    assert found.loads_of("dgamma__part") == {1} | beyond


# --- ten rows at once ---------------------------------------------------------------------------------


def ten_rows(form: str) -> str:
    """Ten rows that live across a reduction: of inputs, or of temporaries."""
    given = ", ".join(f"x{k}: f32[T, H]" for k in range(10 if form == "inputs" else 1))
    lines = []
    for k in range(10):
        right = f"x{k}[t, h]" if form == "inputs" else f"tanh(x0[t, h] * {k + 1}.0 + {k}.0)"
        if form == "temporaries":
            lines.append(f"u{k}[t, h] = {right}")
            right = f"u{k}[t, h]"
        lines.append(f"r{k}[t] = max[h]({right})")
        lines.append(f"s{k}[t] = sum[h]({right} * " + (f"r{k}[t])" if k == 0 else f"s{k - 1}[t]) * 0.001"))
    terms = " + ".join(f"{'x' if form == 'inputs' else 'u'}{k}[t, h] * s9[t]" for k in range(10))
    body = "\n".join(f"  {line}" for line in [*lines, f"y[t, h] = {terms}"])
    return f"op f({given}) -> (y: f32[T, H]) {{\n{body}\n}}"


@pytest.mark.parametrize(
    ("form", "length", "fused"),
    thinned(itertools.product(("inputs", "temporaries"), (100, 1024, 4095), (True, False)), 5, several=True),
)
def test_ten_live_rows(form: str, length: int, fused: bool) -> None:
    gpu = GpuTarget(sms=2, longest=256)
    found = stitched(ten_rows(form), 2, length, gpu, fused)
    if form == "inputs" and fused and length <= 1024:  # one kernel; ten rows of 4 elements in each thread
        assert all(found.loads_of(f"x{k}") == {1} for k in range(10))
    local = [b for b in found.buffers.values() if b.scope is Scope.LOCAL]
    assert sum(value_of(b.elements, {}) for b in local) <= 10 * 64
    shared = [b for b in found.buffers.values() if b.scope is Scope.SHARED]
    assert sum(4 * value_of(b.elements, {}) for b in shared) <= gpu.shared_bytes


def test_some_of_ten_rows_stay() -> None:
    """16 elements of a row in each thread: some rows stay, the others are read again."""
    found = stitched(ten_rows("inputs"), 2, 4096, GpuTarget(sms=2, longest=256))
    assert found.kernels == 1
    once = [k for k in range(10) if found.loads_of(f"x{k}") == {1}]
    assert 4 <= len(once) < 10
    kept = [n for n in found.buffers if n.endswith("__row")]
    assert sorted(kept) == [f"x{k}__row" for k in once]
    assert {found.buffers[n].scope for n in kept} == {Scope.LOCAL, Scope.SHARED}
    for k in once:  # each where its decision says
        (line,) = [x for x in found.explained.splitlines() if x.startswith(f"+ cache row x{k}:")]
        assert ("of shared memory" in line) == (found.buffers[f"x{k}__row"].scope is Scope.SHARED)
    again = [k for k in range(10) if k not in once]
    assert all(f"- cache row x{k}: a row of 4096 elements fits neither" in found.explained for k in again)
