"""Sixteen short rows are computed at once, with the same results."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from equivalence import Array, assert_right, fixed_graph_of, run_on, seeded_inputs
from test_unroll_and_jam_interleaved_rows import CASES, HEADS, NORM, ROOT_MEAN, SOFTMAX, made
from thinned import thinned

from polyfuse.codegen.analysis.row_batch import of_all
from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.cpu.pipeline import LoweredKernel, lower
from polyfuse.codegen.function import head
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, CpuKnobs, joint_room
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.kernel import KernelGraph, Scope
from polyfuse.ir.loop_ir import Declare, For, format_block
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.runtime.cpu.executable import CpuExecutable

SUM = "op f(x: {0}[T, H]) -> (s: {0}[T]) {{ s[t] = sum[h](x[t, h]) }}"
EXTREMES = """op f(x: {0}[T, H]) -> (a: {0}[T], b: {0}[T], c: {0}[T]) {{
  a[t] = max[h](x[t, h]); b[t] = min[h](x[t, h] * {0}(2)); c[t] = prod[h](x[t, h])
}}"""
TESTS = """op f(x: f32[T, H]) -> (a: bool[T], b: f32[T], k: i64[T]) {
  a[t] = any[h](x[t, h] > 2.0); b[t] = sum[h](x[t, h]); k[t] = argmax[h](x[t, h])
}"""
LOG_SUM = """op f(x: f32[T, H]) -> (y: f32[T]) {
  m[t] = max[h](x[t, h]); s[t] = sum[h](exp(x[t, h] - m[t])); y[t] = m[t] + log(s[t])
}"""
TWICE = """op f(x: f32[T, H], u: f32[T, H]) -> (y: f32[T, H], v: f32[T, H]) {
  e[t, h] = exp(x[t, h]); d[t] = sum[h](e[t, h]); k[t, h] = exp(e[t, h] / d[t]); c[t] = sum[h](k[t, h])
  y[t, h] = e[t, h] + k[t, h] / c[t]
  f[t, h] = exp(u[t, h]); a[t] = sum[h](f[t, h]); l[t, h] = exp(f[t, h] / a[t]); b[t] = sum[h](l[t, h])
  v[t, h] = f[t, h] + l[t, h] / b[t]
}"""
IN_PLACE = """op f(inout x: f32[T, H]) {
  m[t] = max[h](x[t, h]); d[t] = sum[h](exp(x[t, h] - m[t])); x[t, h] = exp(x[t, h] - m[t]) / d[t]
}"""
ALL_CASES = CASES | {
    "sum": SUM.format("f32"), "sum i64": SUM.format("i64"), "sum i32": SUM.format("i32"),
    "sum f64": SUM.format("f64"), "sum bf16": SUM.format("bf16"), "extremes": EXTREMES.format("f32"),
    "extremes i64": EXTREMES.format("i64"), "extremes f64": EXTREMES.format("f64"), "tests": TESTS,
    "log": LOG_SUM, "norm bf16": NORM.format("bf16"), "in place": IN_PLACE,
}  # fmt: skip
ONCE = CpuKnobs(jointly=True)


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nests of any size are spread over workers."""
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 1)


def lowered(text: str, knobs: CpuKnobs | None = None, **sizes: int) -> LoweredKernel:
    (kernel,) = made(text, **sizes).kernels
    return lower(kernel, knobs)


def rows_of(low: LoweredKernel) -> int:
    """How many are computed at once."""
    (f,) = low.functions
    return next((x.step for x in f.batches if any(n.over for n in head(x))), 1)


def run(
    kernels: KernelGraph, inputs: dict[str, Array], strided: bool = False, knobs: CpuKnobs = ONCE
) -> dict[str, Array]:
    names = frozenset(inputs) if strided else frozenset()
    (code,) = emit_together([Request(kernels, strided=names, knobs=knobs)])
    given = {n: a if strided else a.copy() for n, a in inputs.items()}
    return run_on(CpuExecutable(code, {}), kernels.graph, given)


# --- when ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count", "columns", "rows"),
    [(NORM.format("f32"), 40960, 48, 16), (NORM.format("f32"), 40960, 49, 1),
     (NORM.format("f64"), 40960, 24, 8), (NORM.format("f64"), 40960, 25, 1),
     (NORM.format("f32"), 256, 256, 16), (NORM.format("f32"), 256, 257, 1),
     (ROOT_MEAN, 1024, 64, 16), (ROOT_MEAN, 1024, 65, 1),
     (ROOT_MEAN, 400960, 16, 16), (ROOT_MEAN, 400960, 15, 1),
     (SOFTMAX.format("f32"), 1024, 32, 16), (SOFTMAX.format("f32"), 1024, 33, 1),
     (NORM.format("f16"), 40960, 256, 16), (NORM.format("f16"), 40960, 257, 1),
     (LOG_SUM, 256, 512, 16), (LOG_SUM, 256, 513, 1), (LOG_SUM, 40960, 200, 16), (LOG_SUM, 40960, 257, 1),
     (SUM.format("i64"), 40960, 16, 8), (SUM.format("i16"), 40960, 16, 1)],
)  # fmt: skip
def test_short_rows_go_at_once(text: str, count: int, columns: int, rows: int) -> None:
    assert rows_of(lowered(text, T=count, H=columns)) == rows


def test_knobs_decide() -> None:
    text = NORM.format("f32")
    for knobs, rows in (
        (ONCE, 16),
        (CpuKnobs(rows=1), 1),
        (CpuKnobs(rows=4), 1),
        (CpuKnobs(jointly=False), 1),
    ):
        assert rows_of(lowered(text, knobs, T=4096, H=32)) == rows
    assert rows_of(lowered(text, CpuKnobs(rows=1, jointly=True), T=4096, H=200)) == 16


def test_large_arrays_keep_rows_apart() -> None:
    """A softmax has its exponentials in an array of the worker."""
    most = joint_room(Core()) // 64
    assert rows_of(lowered(SOFTMAX.format("f32"), ONCE, T=4096, H=most)) == 16
    assert rows_of(lowered(SOFTMAX.format("f32"), ONCE, T=4096, H=most + 1)) == 1
    smaller = replace(ONCE, core=Core(l2=512 << 10))
    assert rows_of(lowered(SOFTMAX.format("f32"), smaller, T=4096, H=most // 2)) == 16
    assert rows_of(lowered(SOFTMAX.format("f32"), smaller, T=4096, H=most)) == 1


def test_what_has_no_totals_that_join_stays_as_it_is() -> None:
    text = "op f(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] * 2.0 }"
    (kernel,) = made(text, T=4096, H=16).kernels
    assert not any(t.batches for t in lower(kernel, ONCE).functions)


# --- how ----------------------------------------------------------------------------------------------


def test_each_phase_is_a_loop_over_rows() -> None:
    low = lowered(SOFTMAX.format("f32"), ONCE, T=4096, H=40)
    (task,) = low.functions
    (batch,) = task.batches
    first, of_row = head(batch)
    assert (first.variables, of_row.variables) == (("c0_0",), ("c0",)) and of_row.over
    loops = [n for n in batch.body if isinstance(n, For)]
    assert all(x.joint and x.var == "row" and x.upper == IConst(16) for x in loops)
    inner = [x for x in loops if x.coordinate is Coordinate.SEQ]
    assert [x.lanes for x in inner] == [("%acc1",), ("%acc2",), ()]
    assert {n.name for n in batch.body if isinstance(n, Declare)} >= {of_all("m"), of_all("%acc1")}
    assert "for row in 0..16 of rows at once accumulating %acc1" in format_block((inner[0],))
    (array,) = (b for b in low.kernel.buffers if b.scope is Scope.LOCAL)
    assert [str(e) for e in array.extents] == ["16", "1", "48"]  # each row begins a line


# --- results ------------------------------------------------------------------------------------------


@pytest.mark.thin(2)
@pytest.mark.parametrize("case", ALL_CASES)
@pytest.mark.parametrize(
    ("count", "columns"), thinned([(35, 17), (16, 1), (33, 64), (19, 100), (47, 9)], 5, several=True)
)
def test_results_are_those_of_rows_alone(case: str, count: int, columns: int, parallel: None) -> None:
    """Chunks with sixteen rows, and with what is left."""
    text = ALL_CASES[case]
    known = {"B": count, "T": 5} if case == "pool" else {"T": count}
    kernels = made(text, H=columns, **known)
    inputs = seeded_inputs(fixed_graph_of(text, H=columns, **known))
    if case == "loss":
        inputs["k"] = inputs["k"] % columns
    if "i" in case.split()[-1]:
        inputs = {n: a % 7 for n, a in inputs.items()}
    if columns > 1 and case not in ("sum bf16", "pool"):
        assert any(x.step >= 8 for k in kernels.kernels for t in lower(k, ONCE).functions for x in t.batches)
    assert_right(kernels.graph, run(kernels, inputs), inputs)


@pytest.mark.parametrize("columns", [5, 33])
def test_several_loops_over_rows_and_strides_of_any_kind(columns: int, parallel: None) -> None:
    kernels = made(HEADS, B=3, T=17, H=columns)
    rng = np.random.default_rng(4)
    x = rng.standard_normal((17, 2 * columns, 3)).astype("f4").transpose(2, 0, 1)[:, :, ::-2]
    mask = np.broadcast_to(rng.standard_normal(columns).astype("f4"), (3, columns))
    inputs = {"x": x, "mask": mask}
    assert_right(kernels.graph, run(kernels, inputs, strided=True), inputs)


@pytest.mark.thin(2)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0])
@pytest.mark.parametrize("case", ["softmax", "extremes", "norm", "doubles", "halves", "tests"])
def test_what_is_in_one_row_stays_in_it(case: str, value: float, parallel: None) -> None:
    kernels = made(ALL_CASES[case], T=33, H=20)
    clean = seeded_inputs(kernels.graph)
    want = run(kernels, clean)
    for row in (0, 7, 15, 16, 32):
        x = clean["x"].copy()
        x[row, row % 20] = value
        inputs = clean | {"x": x}
        found = run(kernels, inputs)
        assert_right(kernels.graph, found, inputs)
        others = np.arange(33) != row
        for name, result in found.items():
            np.testing.assert_array_equal(result[others], want[name][others])


SEGMENTS = """op f(x: f32[E], p: i32[T + 1]) -> (y: f32[T]) {
  m[t] = max[e in p[t]..p[t + 1]](x[e]) for t in 0..T
  y[t] = sum[e in p[t]..p[t + 1]](exp(x[e] - m[t]))
}"""


def test_each_row_has_its_bounds_from_data(parallel: None) -> None:
    kernels = made(SEGMENTS, T=37, E=500)
    (kernel,) = kernels.kernels
    assert rows_of(lower(kernel, ONCE)) == 16
    ends = np.sort(np.random.default_rng(0).integers(0, 500, 38)).astype(np.int32)
    x = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    found = run(kernels, {"x": x, "p": ends})["y"]
    each = [x[a:b].astype(np.float64) for a, b in pairwise(ends)]
    np.testing.assert_allclose(found, [np.exp(v - v.max(initial=-np.inf)).sum() for v in each], 1e-5)


def test_no_rows_at_all(parallel: None) -> None:
    for text in (SOFTMAX.format("f32"), ROOT_MEAN):
        for sizes in ({"T": 0, "H": 16}, {"T": 17, "H": 0}):
            kernels = made(text, **sizes)
            inputs = seeded_inputs(kernels.graph)
            assert_right(kernels.graph, run(kernels, inputs), inputs)


def test_equal_kernels_share_code_and_have_arrays_for_all_rows(parallel: None) -> None:
    """The second kernel runs the function of the first one; both arrays have a place for each row."""
    kernels = made(TWICE, T=35, H=24)
    assert len(kernels.kernels) == 2
    (code,) = emit_together([Request(kernels, knobs=ONCE)])
    assert code.plan.scratch_bytes % (16 * 128) == 0 and code.source.count("pf_k0_0_body(") == 3
    inputs = seeded_inputs(kernels.graph)
    assert_right(kernels.graph, run(kernels, inputs), inputs)


def test_equal_kernels_with_rows_that_overlap_have_arrays_for_two(parallel: None) -> None:
    kernels = made(TWICE, T=35, H=200)
    knobs = CpuKnobs(rows=1, skew=True)
    assert all(t.pipelined for k in kernels.kernels for t in lower(k, knobs).functions)
    inputs = seeded_inputs(kernels.graph)
    assert_right(kernels.graph, run(kernels, inputs, knobs=knobs), inputs)


def test_checked_builds_have_rows_one_by_one() -> None:
    kernels = made(SOFTMAX.format("f32"), T=4096, H=16)
    (code,) = emit_together([Request(kernels, checked=True, knobs=ONCE)])
    assert "pf_join" not in code.source
    assert "pf_join" in emit_together([Request(kernels, knobs=ONCE)])[0].source
