"""Short rows of a parallel nest are computed several at a time, with the same results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from equivalence import (
    Array,
    assert_all_right,
    assert_right,
    fixed_graph_of,
    run_on,
    seeded_inputs,
    shape_of,
)
from row_kernels import made
from thinned import thinned

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.cpu.pipeline import LoweredKernel, lower
from polyfuse.codegen.function import Function, head, inside
from polyfuse.codegen.transforms.unroll_and_jam.interleaved_rows import INTERLEAVED_ROWS
from polyfuse.codegen.transforms.unroll_and_jam.rule import with_arrays
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.kernel import KernelGraph, Scope
from polyfuse.ir.loop_ir import Declare, For, Prefetch, Store
from polyfuse.runtime.cpu.executable import CpuExecutable

SOFTMAX = """op f(x: {0}[T, H]) -> (y: {0}[T, H]) {{
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  d[t] = sum[h](e[t, h])
  y[t, h] = e[t, h] / d[t]
}}"""
NORM = """op f(x: {0}[T, H], g: {0}[H]) -> (y: {0}[T, H], mu: {0}[T], var: {0}[T]) {{
  mu[t] = sum[h](x[t, h]) * {0}(0.125)
  var[t] = sum[h]((x[t, h] - mu[t]) ** 2)
  y[t, h] = (x[t, h] - mu[t]) * rsqrt(var[t] + {0}(1.0)) * g[h]
}}"""
ROOT_MEAN = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h] ** 2); y[t, h] = x[t, h] * rsqrt(s[t] + 1.0)
}"""
LOSS = """op f(x: f32[T, H], k: i64[T]) -> (loss: f32[T], top: i64[T]) {
  m[t] = max[h](x[t, h]); s[t] = sum[h](exp(x[t, h] - m[t])); loss[t] = m[t] + log(s[t]) - x[t, k[t]]
  top[t] = argmax[h](x[t, h])
}"""
HEADS = """op f(x: f32[B, T, H], mask: f32[B, H]) -> (y: f32[B, T, H], z: f32[T, B]) {
  row1_e[b, t, h] = x[b, t, h] + mask[b, h]
  m[b, t] = max[h](row1_e[b, t, h])
  e[b, t, h] = exp(row1_e[b, t, h] - m[b, t])
  d[b, t] = sum[h](e[b, t, h])
  y[b, t, h] = e[b, t, h] / d[b, t]
  z[t, b] = m[b, t] - log(d[b, t])
}"""
POOL = """op f(s: f32[B, T], k: f32[B, T, H]) -> (y: f32[B, H]) {
  m[b] = max[t](s[b, t]); e[b, t] = exp(s[b, t] - m[b]); d[b] = sum[t](e[b, t])
  y[b, h] = sum[t](e[b, t] / d[b] * k[b, t, h])
}"""
CASES = {
    "softmax": SOFTMAX.format("f32"), "halves": SOFTMAX.format("bf16"), "f16": NORM.format("f16"),
    "norm": NORM.format("f32"), "doubles": NORM.format("f64"), "root": ROOT_MEAN, "loss": LOSS, "pool": POOL,
}  # fmt: skip


def lowered(text: str, rows: int | None = None, **sizes: int) -> LoweredKernel:
    (kernel,) = made(text, **sizes).kernels
    return lower(kernel, CpuKnobs(rows=rows, jointly=False))


def run(kernels: KernelGraph, rows: int | None, inputs: dict[str, Array], strided: bool) -> dict[str, Array]:
    (found,) = results(kernels, [rows], inputs, strided)
    return found


def results(
    kernels: KernelGraph, rows: Sequence[int | None], inputs: dict[str, Array], strided: bool
) -> list[dict[str, Array]]:
    """Those of one source with code for each number of rows."""
    names = frozenset(inputs) if strided else frozenset()
    found = []
    for code in emit_together([Request(kernels, strided=names, knobs=CpuKnobs(rows=n)) for n in rows]):
        found.append(run_on(CpuExecutable(code, {}), kernels.graph, inputs))
    return found


# --- when ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "columns", "rows"),
    [("f32", 30, 4), ("f32", 96, 4), ("f32", 97, 2), ("f32", 208, 2), ("f32", 209, 1),
     ("f64", 48, 4), ("f64", 104, 2), ("f64", 105, 1), ("bf16", 96, 4)],
)  # fmt: skip
def test_as_many_rows_as_have_few_bytes(kind: str, columns: int, rows: int) -> None:
    for text in (SOFTMAX, NORM):
        low = lowered(text.format(kind), T=40960, H=columns)
        assert low.rows == rows
        size = {"f64": 8, "f32": 4, "bf16": 4}[kind]  # halves are computed in f32
        assert rows == 1 or rows * columns * size <= FITTED.interleaved_rows_most_bytes[2][rows]


def test_rows_that_wait_once_stay_alone_unless_they_are_very_short() -> None:
    """One total, and what needs it: the core is in the next row by then."""
    assert lowered(ROOT_MEAN, T=40960, H=32).rows == 4
    assert lowered(ROOT_MEAN, T=40960, H=33).rows == 1
    assert lowered(ROOT_MEAN, 3, T=40960, H=33).rows == 3
    assert lowered("op f(x: f32[T, H]) -> (s: f32[T]) { s[t] = sum[h](x[t, h]) }", T=4096, H=16).rows == 1


def test_rows_of_what_stays_in_l2_may_be_longer() -> None:
    """x and y have 8 bytes of each element."""
    small = (Core().l2 // (8 * 128), 128)
    for t, h, norm, root in ((*small, 2, 1), (small[0] + 1, 128, 2, 1), (1024, 64, 4, 4), (1024, 65, 4, 1)):
        assert lowered(SOFTMAX.format("f32"), T=t, H=h).rows == norm
        assert lowered(ROOT_MEAN, T=t, H=h).rows == root


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_rows_of_halves_may_be_longer_unless_lines_are_asked_for(kind: str) -> None:
    for columns, rows in ((128, 4), (129, 2), (768, 2), (769, 1)):
        assert lowered(SOFTMAX.format(kind), T=40960, H=columns).rows == rows
    assert lowered(SOFTMAX.format(kind).replace(f"y: {kind}", "y: f32"), T=40960, H=256).rows == 1
    (kernel,) = made(SOFTMAX.format(kind), T=40960, H=256).kernels
    asked = replace(kernel, buffers=tuple(replace(b, soon=b.tensor == "x") for b in kernel.buffers))
    knobs = CpuKnobs(jointly=False)
    assert (lower(kernel, knobs).rows, lower(asked, knobs).rows) == (2, 1)


def test_rows_of_loops_inside_of_loops_stay_alone() -> None:
    assert lowered(POOL, B=4096, T=24, H=16).rows == 1


def test_a_serial_loop_stays_as_it_is() -> None:
    low = lowered(SOFTMAX.format("f32"), 4, T=8, H=16)
    assert low.rows == 1 and not low.functions[0].loops


def test_tasks_that_share_arrays_or_hold_other_than_loops_are_left_alone() -> None:
    low = lowered(SOFTMAX.format("f32"), 1, T=4096, H=32)
    (task,), two = low.functions, CpuKnobs(rows=2)
    (alone,) = INTERLEAVED_ROWS.run(low.kernel, [task], two)
    assert [len(head(x)) for x in alone.batches] == [2]
    (array,) = (b for b in low.kernel.buffers if b.scope is Scope.LOCAL)
    other = Function((), tuple(n for n in task.body if isinstance(n, For)))
    assert array.tensor == "e"
    assert not any(t.batches for t in INTERLEAVED_ROWS.run(low.kernel, [task, other], two))
    fetching = task.with_body((*task.body, Prefetch("x", ())))
    assert INTERLEAVED_ROWS.run(low.kernel, [fetching], two) == (fetching,)


# --- how ----------------------------------------------------------------------------------------------


def test_phases_take_turns_in_names_of_their_own() -> None:
    low = lowered(SOFTMAX.format("f32"), 3, T=4096, H=40)
    (task,) = low.functions
    (batch,) = task.batches
    assert [n.variables for n in head(batch)] == [("c0",), ("row1_c0",), ("row2_c0",)]
    assert len(inside(batch)) == 3 * len(task.body)
    scalars = [n.name for n in batch.body if isinstance(n, Declare)]
    assert len(scalars) == len(set(scalars)) and scalars[:3] == ["m", "%row1_r_m", "%row2_r_m"]
    loops = [n for n in batch.body if isinstance(n, For)]
    assert [n.lanes for n in loops[:3]] == [("%acc1",), ("%row1_acc1",), ("%row2_acc1",)]
    stored = [n.buffer for x in loops[3:6] for n in x.body if isinstance(n, Store)]
    assert stored == ["e", "row1_e", "row2_e"]
    own = [b.tensor for b in low.kernel.buffers if b.scope is Scope.LOCAL]
    assert own == ["e", "row1_e", "row2_e"]


def test_arrays_have_names_that_no_other_has(parallel: None) -> None:
    (kernel,) = made(HEADS, B=2, T=3, H=5).kernels
    names = [b.tensor for b in with_arrays(kernel, 4).buffers]
    assert len(names) == len(set(names)) > len(kernel.buffers)


# --- results ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("count", "columns"), thinned([(9, 40), (1, 3), (30, 17), (2, 1)], 4, several=True))
def test_results_are_those_of_rows_alone(case: str, count: int, columns: int, parallel: None) -> None:
    """Chunks of one row, of fewer than a turn takes, and of what is no multiple of it."""
    known = {"B": count, "T": 5} if case == "pool" else {"T": count}
    kernels = made(CASES[case], H=columns, **known)
    inputs = seeded_inputs(fixed_graph_of(CASES[case], H=columns, **known))
    if case == "loss":
        inputs["k"] = inputs["k"] % columns
    # An axis of one element is no axis of the kernels.
    inputs = {n: a.reshape(shape_of(kernels.graph.tensor(n))) for n, a in inputs.items()}
    turns = (1, 2, 3, 4)
    for rows in turns[1:] if count > 2 else ():
        low = [lower(k, CpuKnobs(rows=rows)) for k in kernels.kernels]
        assert any(rows in (k.rows, *(t.jammed for t in k.functions)) for k in low)
    assert_all_right(kernels.graph, results(kernels, turns, inputs, strided=False), inputs)


@pytest.mark.parametrize("rows", [None, 2, 5])
def test_several_loops_over_rows_and_strides_of_any_kind(rows: int | None, parallel: None) -> None:
    kernels = made(HEADS, B=3, T=7, H=33)
    rng = np.random.default_rng(4)
    x = rng.standard_normal((7, 66, 3)).astype("f4").transpose(2, 0, 1)[:, :, ::-2]
    inputs = {"x": x, "mask": np.broadcast_to(rng.standard_normal(33).astype("f4"), (3, 33))}
    assert_right(kernels.graph, run(kernels, rows, inputs, strided=True), inputs)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_in_one_row_stays_in_it(value: float, parallel: None) -> None:
    kernels = made(SOFTMAX.format("f32"), T=11, H=20)
    (clean,) = seeded_inputs(kernels.graph).values()
    want = run(kernels, 1, {"x": clean}, strided=False)["y"]
    for row in range(11):
        x = clean.copy()
        x[row, 7] = value
        y = run(kernels, 4, {"x": x}, strided=False)["y"]
        assert_right(kernels.graph, {"y": y}, {"x": x})
        others = np.arange(11) != row
        np.testing.assert_allclose(y[others], want[others], rtol=1e-6)


def test_no_rows_at_all(parallel: None) -> None:
    for text in (SOFTMAX.format("f32"), NORM.format("f32")):
        kernels = made(text, T=0, H=16)
        inputs: dict[str, Any] = seeded_inputs(kernels.graph)
        assert_right(kernels.graph, run(kernels, 4, inputs, strided=False), inputs)


def test_equal_kernels_share_code_and_have_arrays_for_all_rows(parallel: None) -> None:
    """The second kernel runs the function of the first one, with its own part of a worker's memory."""
    text = """op f(x: f32[T, H], u: f32[S, H]) -> (y: f32[T, H], v: f32[S, H]) {
      m[t] = max[h](x[t, h]); e[t, h] = exp(x[t, h] - m[t]); d[t] = sum[h](e[t, h]); y[t, h] = e[t, h] / d[t]
      n[t] = max[h](u[t, h]); k[t, h] = exp(u[t, h] - n[t]); c[t] = sum[h](k[t, h]); v[t, h] = k[t, h] / c[t]
    }"""
    kernels = made(text, T=23, S=23, H=24)
    (code,) = emit_together([Request(kernels, knobs=CpuKnobs(rows=4))])
    assert code.plan.scratch_bytes == 4 * 128
    inputs = seeded_inputs(kernels.graph)
    assert_right(kernels.graph, run(kernels, 4, inputs, strided=False), inputs)
