"""Sums over several loops: which are kept in double, and how exact they are."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from equivalence import cpu_source

import polyfuse as pf
from polyfuse.codegen.transforms import wide_accumulators
from polyfuse.codegen.transforms.wide_accumulators import CHAIN
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs
from polyfuse.ir.dtypes import F32, F64
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Declare, For, Store, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Cast, Read, TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options

STATISTICS = """op f(x: f32[N, C, H, W]) -> (m: f32[C], v: f32[C]) where N * H * W >= 1 {
  m[c] = mean[n, h, w](x[n, c, h, w])
  v[c] = mean[n, h, w]((x[n, c, h, w] - m[c]) ** 2)
}"""
TOTAL = "op f(x: {0}[N, C]) -> (y: {0}[C]) {{ y[c] = {1} }}"
ROWS = "op f(x: {0}[N, C, H]) -> (y: {0}[C]) {{ y[c] = {1} }}"
IN_DOUBLE = {
    "several loops": (ROWS.format("f32", "sum[n, h](x[n, c, h])"), True),
    "squares": (ROWS.format("f32", "sum[n, h](x[n, c, h] ** 2)"), True),
    "few rows": (ROWS.format("f32", "sum[n in 0..8, h](x[n, c, h])"), False),
    "one loop": (TOTAL.format("f32", "sum[n](x[n, c])"), False),
    "extremes": (ROWS.format("f32", "max[n, h](x[n, c, h])").replace("{ y", "where N * H >= 1 { y"), False),
    "integers": (ROWS.format("i32", "sum[n, h](x[n, c, h])"), False),
}


def source(text: str) -> str:
    return cpu_source(text, N=16, C=64, H=2048)


@pytest.mark.parametrize("case", IN_DOUBLE)
def test_which_sums_are_kept_in_double(case: str) -> None:
    text, wide = IN_DOUBLE[case]
    assert ("double acc" in source(text)) == wide


def test_variances_of_channels_are_exact_to_their_last_places() -> None:
    """With totals in single precision the largest error was 2.7e-7."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((32, 16, 56, 56)).astype("f4") + rng.standard_normal((1, 16, 1, 1)).astype("f4")
    found: Any = pf.compile(STATISTICS)(x)
    mean, variance = found
    exact = x.astype("f8")
    np.testing.assert_allclose(mean, exact.mean((0, 2, 3)), rtol=1e-6, atol=5e-8)
    np.testing.assert_allclose(variance, exact.var((0, 2, 3)), rtol=1.3e-7)


def test_not_a_number_and_infinities_go_through() -> None:
    x = np.ones((3, 4, 5, 40), "f4")
    x[1, 0, 2, 7], x[2, 1, 4, 39], x[0, 2, 0, 0] = np.nan, np.inf, 3e38
    x[0, 2, 0, 1] = 3e38
    found: Any = pf.compile(STATISTICS)(x)
    assert np.isnan(found[0][0]) and np.isinf(found[0][1]) and np.isnan(found[1][:2]).all()
    assert found[0][3] == 1.0 and found[1][3] == 0.0


# A little more than what a chain of CHAIN additions is off by, and a sum that is rounded.
EXACT = 1e-6
LONG = {
    "row": ("x: f32[N]", "f32", "sum[i](x[i])", (3_000_000,)),
    "mean": ("x: f32[N]", "f32", "mean[i](x[i])", (3_000_000,)),
    "squares": ("x: f32[N]", "f32", "sqrt(sum[i](x[i] ** 2))", (3_000_000,)),
    "rows": ("x: f32[A, B]", "f32[A]", "sum[j](x[a, j])", (4, 700_001)),
    "dots": ("x: f32[A, B]", "f32[A]", "sum[j](x[a, j] * x[0, j])", (4, 700_001)),
    "all": ("x: f32[A, B]", "f32", "sum[a, j](x[a, j])", (1000, 3001)),
    "short rows": ("x: f32[A, B]", "f32", "sum[a, j](x[a, j])", (400_001, 7)),
    "columns": ("x: f32[B, A]", "f32[A]", "sum[j](x[j, a])", (700_001, 4)),
    "many columns": ("x: f32[B, A]", "f32[A]", "sum[j](x[j, a])", (90_001, 40)),
    "columns of blocks": ("x: f32[P, B, A]", "f32[P, A]", "sum[j](x[p, j, a])", (4, 30_011, 24)),
    "channels last": ("x: f32[P, B, A]", "f32[A]", "sum[p, j](x[p, j, a])", (50, 3_001, 16)),
    "branches": ("x: f32[N]", "f32", "sum[i in 0..N](x[i] if i % 7 != 2 else 0.0)", (7_000_000,)),
    "several terms": ("x: f32[N]", "f32", "sum[i in 0..N](x[i // 7 * 7])", (7_000_000,)),
    "a triangle": ("x: f32[A, B]", "f32[A]", "sum[j in 0..B - A + a](x[a, j])", (4, 700_001)),
}
TENTH = float(np.float32(0.1))


def call_of_long(name: str) -> tuple[str, tuple[int, ...], Any]:
    """A text, the shape of x, and what it makes of a tensor of tenths."""
    declared, result, value, shape = LONG[name]
    kept = [v for v in ("p", "a") if v.upper() in result[3:]]
    where = " where B >= A" if name == "a triangle" else ""
    text = f"op f({declared}) -> (y: {result}){where} {{ y[{', '.join(kept)}] = {value} }}"
    text = text.replace("y[] =", "y =").replace(
        " where A >= 1", " where B >= A" if name == "a triangle" else ""
    )
    letters = declared[7:-1].split(", ")
    sizes = dict(zip(letters, shape, strict=True))
    count = np.prod(shape) / np.prod([sizes[v.upper()] for v in kept])
    wanted: Any = {
        "mean": TENTH,
        "squares": TENTH * count**0.5,
        "dots": TENTH * TENTH * count,
        "branches": TENTH * count / 7 * 6,
        "a triangle": TENTH * (count - 4 + np.arange(4)),
    }.get(name, TENTH * count)
    return text, shape, wanted


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("threads", (1, 2))
def test_long_sums_are_as_exact_as_short_ones(name: str, threads: int) -> None:
    """Errors were up to 7e-4 of 30 million tenths, and grew with the length, by the width of vectors."""
    text, shape, wanted = call_of_long(name)
    found: Any = pf.compile(text, target="cpu", threads=threads)(np.full(shape, 0.1, "f4"))
    np.testing.assert_allclose(np.float64(found), wanted, rtol=EXACT)


@pytest.mark.parametrize("name", ("columns", "row"))
def test_long_sums_of_a_gpu_are_exact(name: str) -> None:
    text, shape, wanted = call_of_long(name)
    found: Any = pf.compile(text, target="emulate")(np.full(shape, 0.1, "f4"))
    np.testing.assert_allclose(np.float64(found), wanted, rtol=3e-6)


@pytest.mark.parametrize(("core", "lanes"), ((Core(), 64), (AVX2, 32)))
def test_a_piece_is_as_long_on_every_core(core: Core, lanes: int) -> None:
    """Additions of a lane, not elements: errors do not depend on the width of vectors."""
    graph = instantiate((parse_text("op f(x: f32[A, B]) -> (y: f32[A]) { y[a] = sum[j](x[a, j]) }"),), "f")
    sizes, knobs = {"A": 64, "B": 100_000}, CpuKnobs(core=core)
    compilation = Compilation(
        graph, sizes, LoopFusion(), Options(threads=1), stitching=Stitching(), knobs=knobs
    )
    text = emitted(Watch(Options()), compilation)[1].source
    assert f"float acc0_v[{lanes}]" in text and f"+ {CHAIN * lanes}," in text and "double acc0" in text


def test_short_rows_and_few_columns_are_computed_as_before() -> None:
    rows = cpu_source("op f(x: f32[A, B]) -> (y: f32[A]) { y[a] = sum[j](x[a, j]) }", A=64, B=4096)
    columns = cpu_source("op f(x: f32[B, A]) -> (y: f32[A]) { y[a] = sum[j](x[j, a]) }", A=64, B=4096)
    assert "double acc" not in rows and "double total" not in columns


def test_totals_of_long_columns_keep_infinities_and_start_where_they_did() -> None:
    text = """op f(x: f32[B, A], inout t: f32[A]) -> (y: f32[A]) { y[a] = sum[j](x[j, a])
      t[a] += x[j, a] }"""
    x = np.ones((70_001, 5), "f4")
    x[60_000, 1], x[3, 2], x[7, 3], x[8, 3] = np.inf, np.nan, np.inf, -np.inf
    t = np.arange(5, dtype="f4")
    y: Any = pf.compile(text, target="cpu")(x, t)
    wanted = np.array([70_001, np.inf, np.nan, np.nan, 70_001])
    np.testing.assert_allclose(y, wanted)
    np.testing.assert_allclose(t, wanted + np.arange(5))


def test_a_loop_that_does_not_run_leaves_its_total() -> None:
    """What was added before is where the pieces begin: the loop over 0..i has no iteration where i is 0."""
    term = Update("%acc", (), "sum", Read("x", (IVar("t"),), F32))
    rows = For("t", IConst(0), IVar("i"), 1, (term,), Coordinate.SEQ)
    kernel = Kernel("k", TensorGraph("g", (), (), (), (), (), ()), (), ())
    made = wide_accumulators._in_pieces(kernel, rows, itertools.count(), {"i": (0, 9999)})
    first, _, pieces, last = made
    assert isinstance(first, Declare) and first.value == Cast(Read("%acc", (), F32), F64)
    assert isinstance(pieces, For) and isinstance(last, Store) and last.buffer == "%acc"
