"""Rows of sequential loops go sixteen at once where they may, with the same results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from equivalence import assert_right, fixed_graph_of, seeded_inputs
from test_unroll_and_jam_batched_rows import ALL_CASES, ONCE, lowered, run
from test_unroll_and_jam_interleaved_rows import NORM, SOFTMAX, made
from thinned import thinned

from polyfuse.codegen.cpu.pipeline import LoweredKernel, lower
from polyfuse.codegen.transforms.unroll_and_jam import batched_loops
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.loop_ir import Declare, For, Node, nodes_of

BACKWARD = """op f(dy: {0}[T, H], x: {0}[T, H], g: {0}[H]) -> (dx: {0}[T, H], dg: {0}[H], db: {0}[H]) {{
  s[t] = sum[h](dy[t, h] * g[h]); p[t] = sum[h](dy[t, h] * x[t, h])
  dx[t, h] = dy[t, h] - s[t] - x[t, h] * p[t]
  dg[h] = sum[t](dy[t, h] * x[t, h]); db[h] = sum[t](dy[t, h])
}}"""
MEAN_LOSS = """op f(x: f32[T, H]) -> (loss: f32, most: f32) {
  m[t] = max[h](x[t, h]); s[t] = sum[h](exp(x[t, h] - m[t])); l[t] = m[t] + log(s[t])
  loss = sum[t](l[t]); most = max[t](l[t])
}"""
CARRIED = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  y[0, h] = x[0, h]; y[t, h] = x[t, h] - 0.5 * n[t - 1] for t in 1..T
  n[t] = sum[h](y[t, h])
}"""
ONE_TOTAL = """op f(x: f32[T, H]) -> (y: f32[T], all: f32) {
  y[t] = sum[h](x[t, h]); all = sum[t, h](x[t, h] * x[t, h])
}"""
CASES = ALL_CASES | {
    "backward": BACKWARD.format("f32"), "backward f16": BACKWARD.format("f16"),
    "backward f64": BACKWARD.format("f64"), "loss of all": MEAN_LOSS, "carried": CARRIED,
    "one total": ONE_TOTAL,
}  # fmt: skip


def joint_rows(low: LoweredKernel) -> list[For]:
    """Loops over rows at once, inside of others."""
    return [
        n for t in low.functions for x in t.body for n in nodes_of((x,)) if isinstance(n, For) and n.joint
    ]


# --- when ---------------------------------------------------------------------------------------------


@pytest.fixture
def serial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of small kernels are not shared out, and take no turns."""
    monkeypatch.setattr(FITTED, "mapping_smallest_rows", 1 << 40)


def test_rows_of_a_serial_kernel_go_at_once(serial: None) -> None:
    for text in (SOFTMAX, NORM):
        low = lowered(text.format("f32"), T=100, H=30)
        assert not low.functions[0].loops and joint_rows(low) and low.functions[0].jammed == 16
        assert not joint_rows(lowered(text.format("f32"), T=15, H=30))
        assert not joint_rows(lowered(text.format("f32"), T=100, H=300))
        assert not joint_rows(lowered(text.format("f32"), CpuKnobs(rows=1), T=100, H=30))
        assert not joint_rows(lowered(text.format("f32"), CpuKnobs(jointly=False), T=100, H=30))


def test_rows_that_need_the_row_before_stay_in_order() -> None:
    for k in made(CARRIED, T=64, H=20).kernels:
        assert not joint_rows(lower(k, ONCE))


def test_what_rows_add_to_gets_an_array_around_them() -> None:
    low = lowered(BACKWARD.format("f32"), T=4000, H=20)
    assert joint_rows(low)
    names = [n.name for t in low.functions for n in t.body if isinstance(n, Declare) and n.count]
    assert names == ["%sums0", "%sums1"]
    long = lowered(BACKWARD.format("f32"), ONCE, T=4000, H=FITTED.batched_loops_most_sums // 4 + 1)
    assert not any(isinstance(n, Declare) and n.count for t in long.functions for n in t.body)


def test_an_array_that_is_read_first_keeps_rows_apart(serial: None) -> None:
    """It may have what an earlier row has stored."""
    (kernel,) = made(SOFTMAX.format("f32"), T=100, H=30).kernels
    (task,) = lower(kernel, CpuKnobs(jointly=False)).functions
    (loop,) = (n for n in task.body if isinstance(n, For))

    def at_once(body: tuple[Node, ...], more: tuple[Node, ...] = ()) -> bool:
        changed = task.with_body((replace(loop, body=body), *more))
        (found,) = batched_loops.loops_jointly(kernel, [changed], ONCE)[1]
        return found.jammed > 1

    vectors = [n for n in loop.body if isinstance(n, For)]
    assert at_once(loop.body)
    assert not at_once((vectors[-1], *loop.body))
    assert not at_once(loop.body, (vectors[-1],))
    short = replace(vectors[-1], upper=vectors[-1].upper - 1)
    assert not at_once((*loop.body[:-1], short))


# --- results ------------------------------------------------------------------------------------------


@pytest.mark.thin(2)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("count", "columns"), thinned([(37, 20), (16, 7), (64, 100)], 3, several=True))
def test_results_are_those_of_rows_alone(case: str, count: int, columns: int) -> None:
    text = CASES[case]
    known = {"B": count, "T": 5} if case == "pool" else {"T": count}
    kernels = made(text, H=columns, **known)
    graph = fixed_graph_of(text, H=columns, **known)
    inputs = seeded_inputs(graph)
    if case == "loss":
        inputs["k"] = inputs["k"] % columns
    if "i" in case.split()[-1]:
        inputs = {n: a % 7 for n, a in inputs.items()}
    assert_right(graph, run(kernels, inputs), inputs)


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nests of any size are spread over workers."""
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 1)


@pytest.mark.thin(2)
@pytest.mark.parametrize("case", ["backward", "backward f16", "backward f64", "loss of all"])
@pytest.mark.parametrize(("count", "columns"), [(1000, 30), (3001, 16), (777, 64)])
def test_sums_of_all_rows(case: str, count: int, columns: int, parallel: None) -> None:
    kernels = made(CASES[case], T=count, H=columns)
    inputs = seeded_inputs(fixed_graph_of(CASES[case], T=count, H=columns))
    inputs = {n: (a * 0.1).astype(a.dtype) for n, a in inputs.items()}
    assert any(joint_rows(lower(k, ONCE)) for k in kernels.kernels)
    assert_right(kernels.graph, run(kernels, inputs), inputs)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_in_one_row_stays_in_it(value: float) -> None:
    kernels = made(BACKWARD.format("f32"), T=50, H=20)
    clean = seeded_inputs(kernels.graph)
    for row in (0, 15, 16, 49):
        x = clean["x"].copy()
        x[row, 3] = value
        inputs = clean | {"x": x}
        assert_right(kernels.graph, run(kernels, inputs), inputs)
