"""Steps of a recurrence that workers share: each in order, parallel inside, with barriers between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from equivalence import assert_all_right, assert_right, fixed_graph_of, run_kernels, run_on, seeded_inputs
from forked import right_in_child
from recurrence_programs import BACKWARDS, CHOSEN, HEAT

import polyfuse as pf
from polyfuse.codegen.cpu.emit import emit
from polyfuse.cost import cpu_time
from polyfuse.cost.cpu_device import table_cpu
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.cost.speed_of_light import estimate
from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.kernel import KernelGraph, Scope, in_steps, tree
from polyfuse.ir.schedule_tree import Coordinate, map_members, members_of
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import entry_copies, form_kernels
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.poly.legality.schedules import Illegal, check_turns
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.scheduling.axis_planner import plan
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.cpu.pool import Pool

WAVE = """op f(x: f32[N]) -> (y: f32[N]) where N >= 1 {
  u[0, i] = x[i]
  u[1, i] = 0.5 * x[i]
  u[t, i] = 0.5 * u[t-1, (i + 1) % N] - u[t-2, N - 1 - i] for t in 2..12, i in 0..N
  y[i] = u[11, i]
}"""
PATHS = """op f(x: f32[N, N]) -> (y: f32[N, N]) where N >= 1 {
  d[0, i, k] = x[i, k]
  d[t, i, k] = min(d[t-1, i, k], d[t-1, i, t-1] + d[t-1, t-1, k]) for t in 1..N+1, i in 0..N, k in 0..N
  y[i, k] = d[N, i, k]
}"""
POWER = """op f(a: f32[N, N], x: f32[N]) -> (y: f32[N], r: f32[7]) where N >= 1 {
  v[0, i] = x[i]
  w[t, i] = sum[k](a[i, k] * v[t-1, k]) for t in 1..7
  n[0] = 1.0
  n[t] = sqrt(sum[i](w[t, i] * w[t, i])) + 1.0 for t in 1..7
  v[t, i] = w[t, i] / n[t] for t in 1..7
  y[i] = v[6, i]
  r[t] = n[t]
}"""
SUMS = """op f(x: f32[N]) -> (y: f32[N], s: f32[N], m: f32[9]) where N >= 1 {
  u[0, i] = x[i]
  u[t, i] = 0.5 * u[t-1, (i + 1) % N] + x[i] * m[t-1] for t in 1..9
  m[t] = max[i](u[t, i] * 0.125) for t in 0..9
  y[i] = u[8, i]
  s[i] = sum[t in 0..9](u[t, i])
}"""
LAYER = """op f(x: f32[T, H], u: f32[2*H, H], h0: f32[H], c0: f32[H]) -> (h: f32[T, H], c: f32[H])
    where T >= 1 {
  g[0, j] = sum[k](u[j, k] * h0[k])
  g[t, j] = sum[k](u[j, k] * h[t-1, k]) for t in 1..T
  e[0, j] = sigmoid(g[0, j]) * c0[j] + tanh(g[0, j+H]) for j in 0..H
  e[t, j] = sigmoid(g[t, j]) * e[t-1, j] + tanh(g[t, j+H]) for t in 1..T, j in 0..H
  h[t, j] = tanh(e[t, j]) + x[t, j]
  c[j] = e[T-1, j]
}"""
HALVES = """op f(x: f16[T, H], u: f16[H, H], h0: f16[H]) -> (h: f16[T, H]) where T >= 1 {
  h[0, j] = tanh(x[0, j] + 0.0625 * sum[k](u[j, k] * h0[k]))
  h[t, j] = tanh(x[t, j] + 0.0625 * sum[k](u[j, k] * h[t-1, k])) for t in 1..T
}"""
INOUT = """op f(inout p: f32[N], x: f32[N]) where N >= 1 {
  u[0, i] = p[i]
  u[t, i] = 0.5 * u[t-1, (i + 1) % N] + p[i] for t in 1..6
  p[i] = u[5, N - 1 - i] + x[i]
}"""
SIZES: list[tuple[str, dict[str, int]]] = [
    (HEAT, {"H": 3, "W": 3}),
    (HEAT, {"H": 31, "W": 35}),
    (HEAT, {"H": 32, "W": 3}),
    (WAVE, {"N": 1}),
    (WAVE, {"N": 17}),
    (WAVE, {"N": 1003}),
    (PATHS, {"N": 1}),
    (PATHS, {"N": 2}),
    (PATHS, {"N": 37}),
    (POWER, {"N": 1}),
    (POWER, {"N": 45}),
    (BACKWARDS, {"T": 1, "N": 40}),
    (BACKWARDS, {"T": 2, "N": 41}),
    (BACKWARDS, {"T": 9, "N": 333}),
    (CHOSEN, {"N": 77}),
    (SUMS, {"N": 100}),
    (LAYER, {"T": 5, "H": 19}),
    (LAYER, {"T": 1, "H": 8}),
    (HALVES, {"T": 6, "H": 33}),
    (INOUT, {"N": 51}),
]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be shared is, in short strips."""
    monkeypatch.setattr(cpu_time, "LEAST_PART", -1e30)
    monkeypatch.setattr(FITTED, "mapping_strip", 8)


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool.get()
    before = pool.threads
    yield pool
    pool.set_threads(before)


def formed(graph: TensorGraph, threads: int = 2) -> tuple[KernelGraph, tuple[Decision, ...]]:
    return form_kernels(LoopFusion().schedule(graph), threads, Stitching())


def kernels_of(graph: TensorGraph) -> KernelGraph:
    return formed(graph)[0]


def shares(kernels: KernelGraph) -> bool:
    return any(in_steps(p) for k in kernels.kernels for p in k.parts or (k,))


def inputs_of(graph: TensorGraph) -> dict[str, np.ndarray]:
    inputs = seeded_inputs(graph)
    if "z" in inputs:
        n = len(inputs["z"])
        inputs["z"] = np.random.default_rng(1).integers(0, n, n)
    return inputs


# --- right -----------------------------------------------------------------------------------------------


@pytest.mark.thin(2)
@pytest.mark.parametrize(("text", "sizes"), SIZES)
def test_results_with_any_number_of_threads(
    text: str, sizes: dict[str, int], always: None, pool: Pool
) -> None:
    graph = fixed_graph_of(text, **sizes)
    kernels, inputs = kernels_of(graph), inputs_of(graph)
    small = min(sizes.values()) < 3 or sizes.get("W") == 3
    assert shares(kernels) or small
    copied, _ = entry_copies(kernels)
    code = emit(kernels, copied=copied)
    found = [run_kernels(kernels, inputs)]
    for threads in (1, 2, 3, 7):
        pool.set_threads(threads)
        machine = CpuExecutable(code, {})
        for _ in range(5):
            found.append(run_on(machine, graph, {n: a.copy() for n, a in inputs.items()}))
    assert_all_right(graph, found, inputs)


def test_no_elements(always: None) -> None:
    text = WAVE.replace("where N >= 1 ", "").replace("(i + 1) % N", "i").replace("N - 1 - i", "i")
    f = pf.compile(text, options=pf.Options(threads=2))
    assert f(np.zeros(0, "f4")).shape == (0,)
    x = np.arange(40, dtype="f4")
    np.testing.assert_allclose(f(x), pf.compile(text, options=pf.Options(threads=1))(x))


def test_nan_and_infinities_go_their_way(always: None) -> None:
    x = np.random.default_rng(0).standard_normal(100).astype("f4")
    x[[3, 50]] = np.nan, np.inf
    found = pf.compile(WAVE, options=pf.Options(threads=2))(x)
    want = pf.compile(WAVE, options=pf.Options(threads=1))(x)
    np.testing.assert_array_equal(found, want)


def test_strided_arguments(always: None) -> None:
    x = np.random.default_rng(0).standard_normal((70, 36)).astype("f4")[::-2, 1:]
    f = pf.compile(HEAT, options=pf.Options(threads=2))
    np.testing.assert_array_equal(f(x), f(x.copy()))


# --- again and again, in children, beside others ----------------------------------------------------------


@pytest.mark.parametrize("threads", [2, 7])
def test_thousands_of_calls(threads: int, always: None, pool: Pool) -> None:
    pool.set_threads(threads)
    graph = fixed_graph_of(POWER, N=40)
    inputs = inputs_of(graph)
    machine = CpuExecutable(emit(kernels_of(graph)), {})
    first = run_on(machine, graph, inputs)
    assert_right(graph, first, inputs)
    memory = dict(inputs) | {n: np.empty_like(a) for n, a in first.items()}
    call = machine.bind(memory)
    for _ in range(3000):
        call()
    for name, wanted in first.items():
        np.testing.assert_array_equal(memory[name], wanted)


def test_forked_child(always: None) -> None:
    x = np.random.default_rng(0).random((40, 40)).astype("f4")
    f = pf.compile(PATHS, options=pf.Options(threads=2))
    want = f(x)
    assert right_in_child(lambda: all(np.array_equal(f(x), want) for _ in range(50)))
    np.testing.assert_array_equal(f(x), want)


# --- what is decided --------------------------------------------------------------------------------------


def test_large_steps_are_shared_and_small_ones_are_not() -> None:
    for width, taken in ((600, True), (40, False)):
        kernels, decisions = formed(fixed_graph_of(HEAT, H=width, W=width))
        (line,) = [d for d in decisions if d.kind == "share steps"]
        assert line.taken == shares(kernels) == taken
        assert "barrier" in line.reason
        assert "8 steps of t" in line.reason


def test_one_thread_shares_nothing() -> None:
    kernels, decisions = formed(fixed_graph_of(HEAT, H=600, W=600), threads=1)
    assert not shares(kernels)
    assert not [d for d in decisions if d.kind == "share steps"]


def test_rows_that_are_independent_stay_whole() -> None:
    text = WAVE.replace("[N]", "[B, N]").replace("x[", "x[b, ").replace("y[", "y[b, ").replace("u[", "u[b, ")
    text = (
        text.replace("[b, B, N]", "[B, N]")
        .replace("for t in", "for b in 0..B, t in")
        .replace("x[b, i]\n", "x[b, i] for b in 0..B\n")
    )
    kernels, _ = formed(fixed_graph_of(text, B=64, N=4000))
    assert not shares(kernels)
    assert any(m.coordinate is Coordinate.BLK for k in kernels.kernels for m in members_of(tree(k)))


def test_what_workers_exchange_is_in_memory_of_all(always: None) -> None:
    kernels = kernels_of(fixed_graph_of(POWER, N=45))
    kernel = next(p for k in kernels.kernels for p in k.parts or (k,) if in_steps(p))
    assert len(kernel.stages[0].phases) == 3
    assert kernel.buffer("w").scope is Scope.GLOBAL
    assert str(kernel.buffer("w").extents[0]) == "2"  # two steps of it take turns


def test_steps_that_wait_for_workers_are_part_of_the_time(always: None) -> None:
    machine = table_cpu(2)
    few, many = (
        estimate(
            kernels_of(
                fixed_graph_of(HEAT.replace("1..9", f"1..{t}").replace("[8,", f"[{t - 1},"), H=40, W=40)
            ),
            machine,
        )
        for t in (3, 203)
    )
    assert many.seconds - few.seconds > 200 * machine.step_s


def test_packs_leave_them_alone(always: None) -> None:
    graph = fixed_graph_of(
        HEAT.replace("f(x", "f(g: f32[H, W], x")
        .replace("-> (y", "-> (q: f32[H, W], y")
        .replace("{\n", "{\n  q[i, k] = g[i, k] + 1.0\n", 1),
        H=40,
        W=40,
    )
    packed = Packing(always=True).pack(form_kernels(LoopFusion().schedule(graph), 2)[0], table_cpu(2), [])
    assert not any(in_steps(p) for k in packed.kernels for p in k.packed)
    assert_right(graph, run_kernels(packed, inputs_of(graph), "cpu"), inputs_of(graph))


# --- what is proved ---------------------------------------------------------------------------------------


def test_memory_that_two_workers_would_touch_at_once_is_refused() -> None:
    """One step of memory in place of two: a worker overwrites what another one still reads."""
    graph = fixed_graph_of(WAVE, N=100)
    with isl_lock:
        model = build_model(graph)
        whole = plan(graph)
        shared = map_members(
            whole,
            lambda m: replace(m, coordinate=Coordinate.BLK) if m.coincident else m,
        )
        three, one = ((e, graph.tensor("u").shape[1]) for e in map(IConst, (3, 1)))
        assert check_turns(model, shared, "u", three)
        assert isinstance(check_turns(model, shared, "u", one), Illegal)
