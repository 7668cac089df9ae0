"""Recurrences along memory: rows are the lanes of vectors, and tiles of them are turned around."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_right, cpu_source, fixed_graph_of, run_on, seeded_inputs
from row_kernels import made
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.analysis.row_batch import ROW
from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.cpu.pipeline import LoweredKernel, lower
from polyfuse.codegen.transforms.outer_vectorize.recurrences import _Arrays
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.kernel import Scope
from polyfuse.ir.loop_ir import For, TransposedTile, nodes_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.runtime.cpu.executable import CpuExecutable

SUMS = """op f(x: {0}[B, T]) -> (y: {0}[B, T]) where T >= 1 {{
  y[b, 0] = x[b, 0]
  y[b, t] = y[b, t-1] + x[b, t] for t in 1..T
}}"""
# A filter: what is read a step and two steps back lies in one tile with what is read now.
FILTER = """op f(x: f32[B, T], a: f32[B], w: f32[T]) -> (y: f32[B, T]) where T >= 2 {
  y[b, 0] = x[b, 0]
  y[b, 1] = x[b, 1] + x[b, 0]
  y[b, t] = a[b] * y[b, t-1] - 0.25 * y[b, t-2] + x[b, t] + w[t] * x[b, t-1] + x[b, t-2] for t in 2..T
}"""
BACKWARDS = """op f(w: f32[B, T], v: f32[B, T+1]) -> (a: f32[B, T]) where T >= 1 {
  a[b, T-1] = w[b, T-1]
  a[b, t] = w[b, t] + 0.8 * v[b, t+1] * a[b, t+1] for t in 0..T-1
}"""
# What is eliminated forwards stays in arrays of the worker until it is put in backwards.
TRIDIAGONAL = """op f(a: f32[B, T], d: f32[B, T]) -> (x: f32[B, T]) where T >= 1 {
  c[b, 0] = 1.0 / (3.0 + a[b, 0] * a[b, 0])
  c[b, t] = 1.0 / (3.0 + a[b, t] * a[b, t] - c[b, t-1]) for t in 1..T
  e[b, 0] = d[b, 0] * c[b, 0]
  e[b, t] = (d[b, t] - e[b, t-1]) * c[b, t] for t in 1..T
  x[b, T-1] = e[b, T-1]
  x[b, t] = e[b, t] - c[b, t] * x[b, t+1] for t in 0..T-1
}"""
RUNS = """op f(x: f32[B, T], k: i32[B, T]) -> (y: f32[B, T], n: i32[B, T]) where T >= 1 {
  y[b, 0] = x[b, 0]
  y[b, t] = max(y[b, t-1], x[b, t]) if k[b, t] > 0 else tanh(x[b, t]) for t in 1..T
  n[b, 0] = k[b, 0]
  n[b, t] = n[b, t-1] + 1 if k[b, t] > 0 else 0 for t in 1..T
}"""
WIDER = """op f(x: f32[B, T], q: f64[B, T]) -> (y: f64[B, T]) where T >= 1 {
  y[b, 0] = f64(x[b, 0])
  y[b, t] = 0.5 * y[b, t-1] + f64(x[b, t]) * q[b, t] + f64(b + t) for t in 1..T
}"""
ROWS_BELOW = """op f(x: f32[B, T]) -> (y: f32[B-1, T]) where B >= 1, T >= 1 {
  y[b, 0] = x[b+1, 0] for b in 0..B-1
  y[b, t] = 0.5 * y[b, t-1] + x[b+1, t] - x[b, t] for b in 0..B-1, t in 1..T
}"""
# What was stored in earlier strips as well as in this one.
SEASONS = """op f(x: f32[B, T]) -> (y: f32[B, T], z: f32[B, T]) where T >= 7 {
  y[b, t] = x[b, t] for t in 0..7
  y[b, t] = 0.5 * y[b, t-7] + 0.25 * y[b, t-1] + x[b, t] * y[b, t-5] for t in 7..T
  z[b, t] = x[b, t] for t in T-6..T
  z[b, t] = x[b, t] - 0.5 * z[b, t+6] for t in 0..T-6
}"""
FAR = """op f(x: f32[B, T]) -> (y: f32[B, T]) where T >= 40 {{
  y[b, t] = x[b, t] for t in 0..40
  y[b, t] = 0.5 * y[b, t-{0}] + 0.25 * y[b, t-6] + x[b, t] for t in 40..T
}}"""
# The first values are a short loop of their own.
THREE_BACK = """op f(x: f32[B, T]) -> (y: f32[B, T]) where T >= 3 {
  y[b, t] = x[b, t] for t in 0..3
  y[b, t] = max(y[b, t-3], x[b, t]) for t in 3..T
}"""
# Tiles of the same memory are longer in the second pass.
PASSES = """op f(x: f32[B, T]) -> (y: f32[B, T], z: f32[B, T]) where T >= 3 {
  y[b, 0] = x[b, 0]
  y[b, t] = max(y[b, t-1], x[b, t]) + 1.0 for t in 1..T
  z[b, t] = x[b, t] for t in T-2..T
  z[b, t] = 0.5 * z[b, t+1] + x[b, t] * x[b, t+2] for t in 0..T-2
}"""
CASES = {
    "sums": SUMS.format("f32"), "f64": SUMS.format("f64"), "i64": SUMS.format("i64"),
    "filter": FILTER, "backwards": BACKWARDS, "tridiagonal": TRIDIAGONAL, "runs": RUNS, "wider": WIDER,
    "three back": THREE_BACK, "seasons": SEASONS, "rows below": ROWS_BELOW, "passes": PASSES,
}  # fmt: skip
# Their elements are converted, divided as integers, found by data, or read under a condition on indices.
ALONE = {
    "f16": SUMS.format("f16"),
    "i8": SUMS.format("i8"),
    "divided": """op f(x: i32[B, T], k: i32) -> (y: i32[B, T]) where T >= 1 {
      y[b, 0] = x[b, 0]
      y[b, t] = y[b, t-1] // max(x[b, t], 1) + k for t in 1..T
    }""",
    "gathered": """op f(x: f32[B, T], k: i64[B, T]) -> (y: f32[B, T]) where T >= 1 {
      y[b, 0] = x[b, 0]
      y[b, t] = y[b, t-1] + x[b, k[b, t]] for t in 1..T
    }""",
    "steps back in another row": """op f(x: f32[B, T], r: i64[B]) -> (y: f32[B, T]) where T >= 1 {
      y[b, 0] = x[b, 0]
      y[b, t] = y[b, t-1] + x[r[b], t] for t in 1..T
    }""",
    "across memory": """op f(x: f32[B, T, 3]) -> (y: f32[B, T]) where T >= 1 {
      y[b, 0] = x[b, 0, 1]
      y[b, t] = y[b, t-1] + x[b, t, 1] for t in 1..T
    }""",
}


def lowered(text: str, knobs: CpuKnobs | None = None, **sizes: int) -> LoweredKernel:
    """The last kernel."""
    return lower(made(text, **sizes).kernels[-1], knobs)


def tiles(low: LoweredKernel) -> list[TransposedTile]:
    every = (n for t in low.functions for x in t.batches for n in nodes_of(x.body))
    return [n for n in every if isinstance(n, TransposedTile)]


# --- whether ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_rows_are_lanes_and_what_is_left_goes_in_step(case: str) -> None:
    low = lowered(CASES[case], B=128, T=512)
    wide = case in ("f64", "i64", "wider")
    assert [tuple(x.step for x in t.batches) for t in low.functions] == [(8 if wide else 16, 4)]
    (steps, *_) = (
        n
        for n in nodes_of(low.functions[0].batches[0].body)
        if isinstance(n, For) and n.step == FITTED.strip_tiles_steps
    )
    inner = [n for n in nodes_of(steps.body) if isinstance(n, For) and n.coordinate is Coordinate.VECTOR]
    assert inner and {n.var for n in inner} == {ROW}


@pytest.mark.parametrize("case", ALONE)
def test_others_go_in_step(case: str) -> None:
    low = lowered(ALONE[case], B=256, T=512)
    assert not tiles(low)
    assert all(x.step == 4 for t in low.functions for x in t.batches)


def test_one_tile_has_all_that_steps_read_of_a_run() -> None:
    low = lowered(FILTER, B=256, T=512)
    loaded, stored = tiles(low)
    assert (loaded.buffer, stored.to and stored.to[0]) == ("x", "y")
    arrays = {b.tensor: b for b in low.kernel.buffers}
    assert [str(e) for e in arrays[loaded.to[0]].extents] == [str(FITTED.strip_tiles_steps + 2), "16"]
    assert [str(e) for e in arrays[stored.buffer].extents] == [str(FITTED.strip_tiles_steps), "16"]


def test_few_rows_few_steps_and_knobs_leave_it() -> None:
    text = SUMS.format("f32")
    assert tiles(lowered(text, B=5000, T=9))
    assert not tiles(lowered(text, B=5000, T=8))
    assert not tiles(lowered(text, CpuKnobs(rows=4), B=256, T=512))
    assert not tiles(lowered(text, CpuKnobs(jointly=False), B=256, T=512))
    assert "pf_turn" in cpu_source(text, B=16, T=64)
    assert "pf_turn" not in cpu_source(text, B=15, T=64)
    assert not tiles(lowered(text, B=512, T=4000)), "as fast as memory"
    assert tiles(lowered(FILTER, B=512, T=4000))


def test_arrays_of_the_worker_stay_in_l2() -> None:
    assert tiles(lowered(TRIDIAGONAL, B=256, T=5000))
    low = lowered(TRIDIAGONAL, B=256, T=50_000)
    assert not tiles(low)
    assert not [b for b in low.kernel.buffers if b.scope is Scope.LOCAL and b.reason == "rows are lanes"]


def test_loops_of_other_numbers_of_rows_have_arrays_of_their_own() -> None:
    arrays = _Arrays(made(FILTER, B=64, T=64).kernels[0], 1 << 20)
    sixteen, eight = (arrays.array("x", F32, (IConst(FITTED.strip_tiles_steps),), rows) for rows in (16, 8))
    assert sixteen is arrays.array("x", F32, (IConst(FITTED.strip_tiles_steps),), 16)
    assert [str(b.extents[-1]) for b in (sixteen, eight)] == ["16", "8"]
    assert sixteen.tensor != eight.tensor


def test_strips_begin_at_lines_of_what_is_stored() -> None:
    for text, begins in ((SUMS.format("f32"), "= 0;"), (BACKWARDS, "from = -")):
        source = cpu_source(text, B=256, T=512)
        (line,) = (x for x in source.splitlines() if "_from = " in x and "for (" in x)
        assert begins in line


def test_what_is_changed_in_place_is_not_read_ahead() -> None:
    text = """op f(inout x: f32[B, T]) {
      x[b, 0] = 1.0
      x[b, t] = x[b, t] * 2.0 for t in 1..T
    }"""
    assert "lanes0" not in cpu_source(text, B=64, T=64)


# --- results ------------------------------------------------------------------------------------------


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("case", "spread"),
    [
        # In a usual run every other case in loops, all of them in nests.
        pytest.param(case, spread, marks=[pytest.mark.slow] * (not spread and k % 2 > 0))
        for k, case in enumerate([*CASES, *ALONE])
        for spread in (False, True)
    ],
)
@pytest.mark.parametrize(
    ("count", "steps"), thinned([(33, 100), (16, 9), (1, 40), (0, 33), (40, 33), (17, 64)], 6, True)
)
def test_results_are_right(
    case: str, count: int, steps: int, spread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strips that are whole and those that are not, in nests that are handed out and in loops."""
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 1 if spread else 1 << 40)
    count += case == "rows below"
    text = (CASES | ALONE)[case]
    kernels, graph = made(text, B=count, T=steps), fixed_graph_of(text, B=count, T=steps)
    inputs = seeded_inputs(graph)
    if "r" in inputs:
        inputs["r"] %= max(1, count)  # rows that there are
    (code,) = emit_together([Request(kernels)])
    assert_right(graph, run_on(CpuExecutable(code, {}), kernels.graph, inputs), inputs)


@pytest.mark.parametrize(
    ("rows", "read"), [("H // 2", "2*i, 2*j"), ("H", "H - 1 - i, j"), ("2*H", "i // 2, j")]
)
@pytest.mark.parametrize(("h", "w"), [(16, 16), (17, 33), (40, 64)])
def test_rows_whose_readers_come_after_all_of_them(rows: str, read: str, h: int, w: int) -> None:
    """The worker's array of running sums is not one row's alone."""
    columns = "W // 2" if "2*j" in read else "W"
    text = f"""op f(x: f32[C, H, W]) -> (y: f32[C, {rows}, {columns}]) {{
      s[c, i, j] = x[c, i, j] + (s[c, i, j - 1] if j >= 1 else 0.0) for i in 0..H, j in 0..W, c in 0..C
      y[c, i, j] = s[c, {read}] for c in 0..C, i in 0..{rows}, j in 0..{columns}
    }}"""
    x = np.random.default_rng(0).standard_normal((3, h, w)).astype("f4")
    sums = np.cumsum(x.astype("f8"), 2)
    expected = {"2*i, 2*j": sums[:, : h // 2 * 2 : 2, : w // 2 * 2 : 2], "H - 1 - i, j": sums[:, ::-1]}
    found = pf.compile(text)(x)
    np.testing.assert_allclose(found, expected.get(read, sums.repeat(2, axis=1)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("back", [30, 32, 33])
def test_steps_back_into_the_strip_before_and_farther(back: int, parallel: None) -> None:
    text = FAR.format(back)
    assert bool(tiles(lowered(text, B=128, T=512))) == (back <= FITTED.strip_tiles_steps)
    kernels = made(text, B=33, T=140)
    inputs = seeded_inputs(kernels.graph)
    (code,) = emit_together([Request(kernels)])
    assert_right(kernels.graph, run_on(CpuExecutable(code, {}), kernels.graph, inputs), inputs)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_in_one_row_stays_in_it(value: float, parallel: None) -> None:
    kernels = made(FILTER, B=37, T=50)
    clean = seeded_inputs(kernels.graph)
    (code,) = emit_together([Request(kernels)])
    want = run_on(CpuExecutable(code, {}), kernels.graph, clean)["y"]
    for row in range(37):
        x = clean["x"].copy()
        x[row, 20] = value
        got = run_on(CpuExecutable(code, {}), kernels.graph, {**clean, "x": x})["y"]
        others = np.arange(37) != row
        np.testing.assert_array_equal(got[others], want[others])
        np.testing.assert_array_equal(got[row, :20], want[row, :20])


@pytest.mark.parametrize("stride", [-2, 2])
def test_strides_of_any_kind(stride: int, parallel: None) -> None:
    kernels = made(FILTER, B=39, T=45)
    inputs = seeded_inputs(kernels.graph)
    x = np.random.default_rng(3).standard_normal((90, 39)).astype("f4").T[:, ::stride]
    inputs["x"] = x
    (code,) = emit_together([Request(kernels, strided=frozenset({"x"}))])
    assert_right(kernels.graph, run_on(CpuExecutable(code, {}), kernels.graph, inputs), inputs)
