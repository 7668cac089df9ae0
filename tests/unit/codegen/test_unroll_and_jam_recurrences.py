"""Recurrences: values that steps carry are scalars, and rows go together step by step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from equivalence import assert_all_right, assert_right, cpu_source, fixed_graph_of, run_on, seeded_inputs
from row_kernels import made
from thinned import thinned

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.cpu.pipeline import LoweredKernel, lower
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs
from polyfuse.ir.loop_ir import Declare, For, Node, Store, TransposedTile, nodes_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Read, reads
from polyfuse.runtime.cpu.executable import CpuExecutable, _chunk

SUMS = """op f(x: {0}[B, T]) -> (y: {0}[B, T]) where T >= 1 {{
  y[b, 0] = x[b, 0]
  y[b, t] = y[b, t-1] + x[b, t] for t in 1..T
}}"""
# What is smoothed is not a result.
SMOOTH = """op f(x: f32[B, T], a: f32) -> (y: f32[B, T]) where T >= 1 {
  s[b, 0] = x[b, 0]
  s[b, t] = a * s[b, t-1] + (1.0 - a) * x[b, t] for t in 1..T
  y[b, t] = x[b, t] - s[b, t]
}"""
TWO_BACK = """op f(x: f32[B, T], a: f32) -> (y: f32[B, T]) where T >= 2 {
  y[b, 0] = x[b, 0]
  y[b, 1] = x[b, 1]
  y[b, t] = 0.5 * y[b, t-1] - 0.25 * y[b, t-2] + a * x[b, t] for t in 2..T
}"""
ONLY_THREE_BACK = """op f(x: f32[B, T]) -> (y: f32[B, T]) where T >= 3 {
  y[b, t] = x[b, t] for t in 0..3
  y[b, t] = max(y[b, t-3], x[b, t]) for t in 3..T
}"""
BACKWARDS = """op f(w: f32[B, T], v: f32[B, T+1], d: f32[B, T]) -> (a: f32[B, T]) where T >= 1 {
  delta[b, t] = w[b, t] + 0.9 * v[b, t+1] * d[b, t] - v[b, t] for t in 0..T
  a[b, T-1] = delta[b, T-1]
  a[b, t] = delta[b, t] + 0.8 * d[b, t] * a[b, t+1] for t in 0..T-1
}"""
# Each reads what the other one was a step before.
PAIR = """op f(x: f32[B, T]) -> (y: f32[B, T], z: f32[B, T]) where T >= 1 {
  y[b, 0] = x[b, 0]
  z[b, 0] = 1.0
  y[b, t] = 0.5 * y[b, t-1] + 0.25 * z[b, t-1] + x[b, t] for t in 1..T
  z[b, t] = 0.5 * z[b, t-1] - 0.5 * y[b, t-1] for t in 1..T
}"""
CHANNELS = """op f(x: f32[B, T, C], a: f32[C]) -> (y: f32[B, T, C]) where T >= 1 {
  y[b, 0, c] = x[b, 0, c]
  y[b, t, c] = 0.5 * a[c] * y[b, t-1, c] + x[b, t, c] for t in 1..T
}"""
RNN = """op f(x: {0}[T, B, H], u: {0}[H, H], h0: {0}[B, H]) -> (h: {0}[T, B, H]) where T >= 1 {{
  h[0, b, j] = tanh(x[0, b, j] + sum[k](u[j, k] * h0[b, k]))
  h[t, b, j] = tanh(x[t, b, j] + sum[k](u[j, k] * h[t-1, b, k])) for t in 1..T
}}"""
# What is multiplied by the matrix lies in an array of the row's own.
CHOSEN = """op f(x: f32[T, B, H], u: f32[H, H], h0: f32[B, H]) -> (h: f32[T, B, H]) where T >= 1 {
  before[t, b, j] = h0[b, j] if t == 0 else h[t-1, b, j] for t in 0..T, b in 0..B, j in 0..H
  g[t, b, j] = sum[k](u[j, k] * before[t, b, k])
  h[t, b, j] = tanh(x[t, b, j] + g[t, b, j]) * 0.5 + before[t, b, j]
}"""
# The sums read tiles that are turned around.
RENDERED = """op f(a: f32[B, T], c: f32[B, T, 3]) -> (y: f32[B, 3]) where T >= 1 {
  p[b, t] = 1.0 - exp(-abs(a[b, t]))
  s[b, 0] = 1.0 for b in 0..B
  s[b, t] = s[b, t-1] * (1.0 - p[b, t-1]) for b in 0..B, t in 1..T
  w[b, t] = log(s[b, t] + p[b, t])
  y[b, k] = sum[t](w[b, t] * c[b, t, k])
}"""
CASES = {
    "sums": (SUMS.format("f32"), {}), "f16": (SUMS.format("f16"), {}), "bf16": (SUMS.format("bf16"), {}),
    "f64": (SUMS.format("f64"), {}), "i64": (SUMS.format("i64"), {}), "smooth": (SMOOTH, {}),
    "two": (TWO_BACK, {}), "three": (ONLY_THREE_BACK, {}), "backwards": (BACKWARDS, {}), "pair": (PAIR, {}),
    "channels": (CHANNELS, {"C": 5}), "rendered": (RENDERED, {}), "rnn": (RNN.format("f32"), {"H": 19}),
    "rnn of halves": (RNN.format("f16"), {"H": 19}), "rnn of doubles": (RNN.format("f64"), {"H": 6}),
    "chosen": (CHOSEN, {"H": 19}),
}  # fmt: skip


def lowered(text: str, knobs: CpuKnobs | None = None, **sizes: int) -> LoweredKernel:
    """The last kernel."""
    return lower(made(text, **sizes).kernels[-1], knobs or CpuKnobs(jointly=False))


def steps_of(low: LoweredKernel) -> Iterator[For]:
    for task in low.functions:
        found = (n for n in nodes_of(task.body) if isinstance(n, For) and n.coordinate is Coordinate.SEQ)
        yield from found


# --- scalars ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "carried"),
    [(SUMS.format("f32"), 1), (TWO_BACK, 2), (ONLY_THREE_BACK, 3), (BACKWARDS, 1), (PAIR, 2)],
)
def test_what_steps_before_left_is_not_read_from_memory(text: str, carried: int) -> None:
    *_, loop = steps_of(lowered(text, B=256, T=512))
    results = {n.buffer for n in loop.body if isinstance(n, Store) and n.indices}
    assert not results & {r.tensor for n in nodes_of(loop.body) for r in _reads(n)}
    assert sum(isinstance(n, Store) and not n.indices for n in loop.body) == carried


def _reads(n: Node) -> tuple[Read, ...]:
    return reads(n.value) if isinstance(n, (Declare, Store)) and n.value is not None else ()


def test_an_array_that_nobody_reads_is_not_written() -> None:
    source = cpu_source(SMOOTH, B=256, T=512)
    assert "b_s[" not in source


def test_steps_that_may_not_happen_load_nothing_before() -> None:
    """Two steps do not reach what is three steps back; the loads before the loop would be those of no row."""
    for steps, scalars in ((2, False), (3, True)):
        source = cpu_source(ONLY_THREE_BACK, B=64, T=3 + steps)
        assert ("step" in source) == scalars


def test_what_a_condition_guards_is_not_loaded_before() -> None:
    text = """op f(x: f32[B, T]) -> (y: f32[B, T]) {
      y[b, t] = (y[b, t-1] if t >= 1 else 0.0) + x[b, t]
    }"""
    for n in (0, 1, 2, 9):
        kernels = made(text, B=3, T=n)
        inputs = seeded_inputs(kernels.graph)
        (code,) = emit_together([Request(kernels)])
        assert_right(kernels.graph, run_on(CpuExecutable(code, {}), kernels.graph, inputs), inputs)


# --- rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [SUMS.format("f32"), SMOOTH, TWO_BACK, BACKWARDS, PAIR])
def test_four_rows_go_in_step(text: str) -> None:
    low = lowered(text, B=256, T=512)
    (batch,) = [x for t in low.functions for x in t.batches]
    loops = [n for n in batch.body if isinstance(n, For) and n.coordinate is Coordinate.SEQ]
    (alone,) = steps_of(low)
    assert batch.step == 4 and len(loops) == 1
    assert len(loops[0].body) == 4 * len(alone.body), "the steps of all rows are in one loop"


def test_rows_with_tiles_that_are_turned_around_go_in_step() -> None:
    (task,) = lowered(RENDERED, B=256, T=64).functions
    (batch,) = task.batches
    tiles = [n for n in nodes_of(batch.body) if isinstance(n, TransposedTile)]
    assert len({n.name for n in tiles}) == len({n.indices[0] for n in tiles}) == batch.step == 4


def test_rows_of_few_channels_go_in_step_and_those_of_many_alone() -> None:
    assert lowered(CHANNELS, B=64, T=64, C=32).rows == 4
    assert lowered(CHANNELS, B=64, T=64, C=33).rows == 1


@pytest.mark.parametrize("text", [RNN.format("f32"), CHOSEN])
@pytest.mark.parametrize(("core", "columns"), [(AVX2, 3), (Core(), 6)])
def test_a_row_of_the_matrix_is_loaded_once_for_all_rows(text: str, core: Core, columns: int) -> None:
    low = lowered(text, CpuKnobs(core=core), B=32, T=9, H=64)
    (batch,) = [x for t in low.functions for x in t.batches]
    sums = [n for n in nodes_of(batch.body) if isinstance(n, For) and n.lanes]
    assert {len(n.body) for n in sums} == {4 * columns, 4} and {n.lane_bytes for n in sums} == {
        core.vector_bytes
    }


def test_tasks_without_steps_and_knobs_for_single_rows_leave_rows_alone() -> None:
    plain = "op f(x: f32[B, T]) -> (y: f32[B, T]) { y[b, t] = x[b, t] + 1.0 }"
    assert lowered(plain, B=256, T=512).rows == 1
    assert lowered(SUMS.format("f32"), CpuKnobs(rows=1), B=256, T=512).rows == 1
    assert lowered(SUMS.format("f32"), CpuKnobs(rows=3), B=256, T=512).rows == 3


@pytest.mark.parametrize(
    ("count", "together", "chunk"),
    [
        (64, (4,), 4), (32, (4,), 4), (32, (), 2), (200, (16,), 16), (40, (16,), 16), (20, (16,), 2),
        (7, (4,), 1), (8, (4,), 4), (40, (16, 4), 16), (20, (16, 4), 4), (7, (16, 4), 1),
    ],
)  # fmt: skip
def test_chunks_are_whole_groups_where_each_thread_has_one(
    count: int, together: tuple[int, ...], chunk: int
) -> None:
    assert _chunk(count, 16, 2, together) == chunk


def test_chunks_that_compute_something_first_are_not_short() -> None:
    assert [_chunk(n, 16, 2, (), least=16) for n in (1000, 200, 64, 20, 1)] == [63, 16, 16, 10, 1]
    assert _chunk(64, 16, 2, (2,), least=16) == 16 and _chunk(40, 16, 2, (2,), least=15) == 16


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] * c.startswith("rnn of")) for c in CASES]
)
@pytest.mark.parametrize(
    ("count", "steps"), thinned([(9, 7), (1, 3), (30, 4), (0, 5), (4, 40), (9, 17)], 6, True)
)
def test_results_are_right(case: str, count: int, steps: int, parallel: None) -> None:
    """Chunks of whole groups, and of what is left of them; of loops that hardly run."""
    text, sizes = CASES[case]
    kernels, graph = made(text, B=count, T=steps, **sizes), fixed_graph_of(text, B=count, T=steps, **sizes)
    inputs = seeded_inputs(graph)
    knobs = [CpuKnobs(), *(CpuKnobs(rows=n) for n in (1, 2, 4, 5)), CpuKnobs(core=AVX2)]
    found = [
        run_on(CpuExecutable(code, {}), kernels.graph, inputs)
        for code in emit_together([Request(kernels, knobs=k) for k in knobs])
    ]
    # The graph of the kernels has sums apart from the steps that they belong to.
    assert_all_right(graph, found, inputs)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_in_one_row_stays_in_it(value: float, parallel: None) -> None:
    kernels = made(RNN.format("f32"), B=11, T=5, H=9)
    clean = seeded_inputs(kernels.graph)
    (code,) = emit_together([Request(kernels)])
    want = run_on(CpuExecutable(code, {}), kernels.graph, clean)["h"]
    for row in range(11):
        h0 = clean["h0"].copy()
        h0[row, 4] = value
        got = run_on(CpuExecutable(code, {}), kernels.graph, {**clean, "h0": h0})["h"]
        others = np.arange(11) != row
        np.testing.assert_array_equal(got[:, others], want[:, others])


def test_strides_of_any_kind(parallel: None) -> None:
    kernels = made(SMOOTH, B=9, T=21)
    x = np.random.default_rng(3).standard_normal((42, 9)).astype("f4").T[:, ::-2]
    inputs = {"x": x, "a": np.asarray(0.5, "f4")}
    (code,) = emit_together([Request(kernels, strided=frozenset({"x"}))])
    assert_right(kernels.graph, run_on(CpuExecutable(code, {}), kernels.graph, inputs), inputs)
