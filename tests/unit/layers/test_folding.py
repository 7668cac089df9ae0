"""Steps of recurrences take turns in memory, as many as live at a time."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import fixed_graph_of, seeded_inputs
from recurrence_programs import BACKWARDS, CHOSEN, HEAT
from targets import Call, check_everywhere

import polyfuse as pf
from polyfuse.ir.index_expr import IConst, evaluate, product
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.launch_plan import Kind
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.poly.legality.schedules import Illegal, check_turns
from polyfuse.poly.model import storage
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.scheduling.axis_planner import plan

WAVE = """op f(x: f32[N]) -> (y: f32[N]) where N >= 1 {
  u[0, i] = x[i]
  u[1, i] = 0.5 * x[i]
  u[t, i] = 1.5 * u[t-1, (i + 1) % N] - u[t-2, i] for t in 2..12, i in 0..N
  y[i] = u[11, i]
}"""
STATES = """op f(x: f32[B, T, K], w: f32[K, K]) -> (y: f32[B, K]) where T >= 1, K >= 1 {
  s[b, 0, k] = x[b, 0, k]
  s[b, t, k] = max[j](s[b, t-1, j] + w[j, k]) + x[b, t, k] for t in 1..T
  y[b, k] = s[b, T-1, k]
}"""
FIRST = HEAT.replace("= u[8, i, k]", "= u[8, i, k] + u[0, i, k]")
EVERY = HEAT.replace("(y: f32[H, W])", "(y: f32[9, H, W])").replace(
    "y[i, k] = u[8, i, k]", "y[t, i, k] = u[8 - t, i, k]"
)


def kernels_of(text: str, **sizes: int) -> KernelGraph:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2, Stitching())[0]


def steps(text: str, tensor: str, dim: int, **sizes: int) -> set[str]:
    """How many steps of a tensor its storage has, in all kernels."""
    buffers = [b for k in kernels_of(text, **sizes).kernels for b in k.buffers if b.tensor == tensor]
    return {str(b.extents[dim]) for b in buffers}


@pytest.mark.parametrize(
    ("text", "tensor", "sizes", "found"),
    [
        (HEAT, "u", {"H": 300, "W": 300}, {"2"}),
        (HEAT, "u", {"H": 5, "W": 5}, {"2"}),
        (WAVE, "u", {"N": 100_000}, {"3"}),
        (BACKWARDS, "u", {"T": 20, "N": 3000}, {"2"}),
        (CHOSEN, "u", {"N": 3000}, {"2"}),
        (FIRST, "u", {"H": 300, "W": 300}, {"9"}),
        (EVERY, "u", {"H": 300, "W": 300}, {"9"}),
    ],
    ids=["kernels", "one kernel", "two steps before", "backwards", "data", "the first", "all"],
)
def test_so_many_steps_live_at_a_time(text: str, tensor: str, sizes: dict[str, int], found: set[str]) -> None:
    assert steps(text, tensor, 0, **sizes) == found


def test_a_worker_has_its_own_steps() -> None:
    assert steps(STATES, "s", 1, B=16, T=128, K=48) == {"2"}


@pytest.mark.parametrize(("fewer", "right"), [(1, False), (2, True), (3, True)])
def test_dataflow_is_asked_again(fewer: int, right: bool) -> None:
    graph = fixed_graph_of(HEAT, H=5, W=6)
    with isl_lock:
        model, order = build_model(graph), plan(graph)
        extents = (IConst(fewer), *graph.tensor("u").shape[1:])
        verdict = check_turns(model, order, "u", extents)
    assert bool(verdict) == right
    if isinstance(verdict, Illegal):
        assert verdict.code == "PF501" and "memory that another element has taken" in verdict.message


def test_storage_that_is_too_small_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_smaller", lambda extent, steps: IConst(1))
    with pytest.raises(pf.PolyfuseError, match="PF501"):
        kernels_of(HEAT, H=30, W=30)


def test_explanations_tell_how_many() -> None:
    f, x = pf.compile(HEAT), np.zeros((400, 400), "f4")
    assert "+ fold u: 2 steps of it live at a time, and take turns in their memory" in f.explain(x)
    assert memory(f, x) == 2 * x.nbytes


def memory(f: pf.Compiled, *args: object) -> int:
    """Bytes of what is global and no argument."""
    plan = f.built(*args).code.plan
    own = [b for b in plan.buffers if b.kind is Kind.WORKSPACE]
    return sum(evaluate(product(b.shape), {}) * b.dtype.bytes for b in own)


PROGRAMS = {
    "heat": (HEAT, [{"H": 3, "W": 3}, {"H": 7, "W": 41}, {"H": 210, "W": 200}]),
    "wave": (WAVE, [{"N": 1}, {"N": 40_001}]),
    "states": (STATES, [{"B": 3, "T": 1, "K": 5}, {"B": 20, "T": 40, "K": 17}, {"B": 0, "T": 3, "K": 2}]),
    "first": (FIRST, [{"H": 6, "W": 35}, {"H": 190, "W": 200}]),
    "every": (EVERY, [{"H": 6, "W": 35}]),
    "backwards": (BACKWARDS, [{"T": 1, "N": 4}, {"T": 9, "N": 4100}]),
    "chosen": (CHOSEN, [{"N": 1}, {"N": 33_000}]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_targets_agree(name: str) -> None:
    text, shapes = PROGRAMS[name]
    calls = []
    for sizes in shapes:
        graph = fixed_graph_of(text, **sizes)
        inputs = seeded_inputs(graph)
        if "z" in inputs:
            inputs["z"] = np.random.default_rng(1).integers(0, sizes["N"], sizes["N"])
        calls.append(Call(name, text, graph, sizes, inputs))
    check_everywhere(calls, interpret=False)


def test_many_steps_need_little_memory() -> None:
    text = HEAT.replace("1..9", "1..400").replace("u[8,", "u[399,")
    x = np.random.default_rng(0).standard_normal((64, 65)).astype("f4")
    want = x.astype("f8")
    for _ in range(399):
        inner = want[:-2, 1:-1] + want[2:, 1:-1] + want[1:-1, :-2] + want[1:-1, 2:]
        want[1:-1, 1:-1] = 0.25 * inner
    f = pf.compile(text)
    np.testing.assert_allclose(f(x), want, rtol=1e-3, atol=1e-4)
    assert memory(f, x) <= 2 * x.nbytes
