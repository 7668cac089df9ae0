"""Several terms are added to a row of totals at a time, and loops along memory run inside of those across."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.transforms.unroll_and_jam.reductions import (
    REDUCTIONS,
)
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.dtypes import BY_NAME, F32, I64
from polyfuse.ir.index_expr import IConst, IVar, binary, evaluate
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.loop_ir import Block, Declare, For, Node, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Read, TensorGraph, reads

POOL = """op pool(s: f32[B, T], k: f32[B, T, H]) -> (y: f32[B, H], top: f32[B]) {
  top[b] = max[t](s[b, t])
  e[b, t] = exp(s[b, t] - top[b])
  d[b] = sum[t](e[b, t])
  y[b, h] = sum[t](e[b, t] / d[b] * k[b, t, h])
}"""
FAR = """op f(x: f32[K], w: {0}[K, N], b: f32[N]) -> (y: f32[N], s: f32[N]) {{
  y[n] = sum[k](x[k] * f32(w[k, n])) + b[n]
  s[n] = sum[k](f32(w[k, n])) }}"""
NOTHING = Kernel("k", TensorGraph("f", (), (), (), (), (), ()), (), ())
CORE = Core()
W, ROW = Read("w", (IVar("t"),), F32), Read("x", (IVar("t"), IVar("c")), F32)


def jam(kernel: Kernel, block: Block, core: Core) -> Block:
    return REDUCTIONS.in_block(kernel, block, CpuKnobs(core=core))[0]


def nest(
    value: Any,
    trip: int = 11,
    scalars: tuple[Node, ...] = (),
    op: str = "sum",
    at: Any = "c",
    columns: int = 36,
) -> For:
    update = Update("y", (IVar(at),), op, value)
    inner = For("c", IConst(0), IConst(columns), 1, (update,), Coordinate.VECTOR)
    return For("t", IConst(2), IConst(trip), 1, (*scalars, inner))


def test_terms_together_and_the_rest_one_by_one() -> None:
    scalars = (Declare("%h", F32, Apply("exp", (W,), F32)),)
    main, rest = jam(NOTHING, (nest(Apply("mul", (Read("%h", (), F32), ROW), F32), 13, scalars),), CORE)
    assert isinstance(main, For) and isinstance(rest, For)
    assert (main.step, main.upper, rest.lower, rest.step) == (
        FITTED.jam_reductions_together,
        IConst(10),
        IConst(10),
        1,
    )
    *own, inner = main.body
    assert [n.name for n in own if isinstance(n, Declare)] == ["%h", "%t_1_h", "%t_2_h", "%t_3_h"]
    assert isinstance(inner, For) and isinstance(inner.body[0], Update)
    value = inner.body[0].value
    assert isinstance(value, Apply) and value.op == "add"
    assert len(jam(NOTHING, (nest(ROW, 10),), CORE)) == 1


@pytest.mark.parametrize(
    "other",
    [
        nest(ROW, 5),
        nest(ROW, columns=FITTED.jam_reductions_longest + 1),
        nest(ROW, op="max", columns=FITTED.jam_reductions_longest_extremes + 1),
        nest(ROW, op="any"),
        nest(ROW, at="t"),
        nest(Apply("mul", (Read("y", (IVar("c"),), F32), ROW), F32)),
        nest(Read("x", (IVar("c"),), I64)),
        nest(ROW, scalars=(Declare("%h", F32),)),
    ],
    ids=[
        "short",
        "long rows",
        "long extremes",
        "no sum",
        "not the same elements",
        "needs the total",
        "integers",
        "no value",
    ],
)
def test_what_stays_as_it_is(other: For) -> None:
    assert jam(NOTHING, (other,), CORE) == (other,)


@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_of_few_columns_together(op: str) -> None:
    main, _ = jam(NOTHING, (nest(ROW, op=op, columns=12),), CORE)
    assert isinstance(main, For) and isinstance(main.body[0], For)
    (update,) = main.body[0].body
    assert isinstance(update, Update) and isinstance(update.value, Apply)
    assert (main.step, update.value.op) == (FITTED.jam_reductions_together, op)


@pytest.mark.parametrize("op", ["sum", "min"])
def test_terms_of_one_row_and_numbers_in_rows_of_any_length(op: str) -> None:
    """What is loaded of the row serves several terms, and the numbers bring nothing into caches."""
    row = Read("a", (IVar("c"),), F32)
    long = nest(Apply("sub", (row, W), F32), op=op, columns=5000)
    main, rest = jam(NOTHING, (long,), CORE)
    assert (
        isinstance(main, For)
        and main.step == FITTED.jam_reductions_together
        and isinstance(rest, For)
        and rest.step == 1
    )
    alone = nest(Apply("sub", (W, W), F32), op=op, columns=5000)
    assert jam(NOTHING, (alone,), CORE) == (alone,)


def test_strips_of_rows_that_begin_anywhere() -> None:
    """Those of partial results, the last of which is shorter."""
    start = binary("*", IVar("p"), 30)
    end = binary("min", binary("+", start, 30), 101)
    main, rest = jam(NOTHING, (replace(nest(ROW), lower=start, upper=end),), CORE)
    assert (
        isinstance(main, For)
        and isinstance(rest, For)
        and (main.step, rest.step) == (FITTED.jam_reductions_together, 1)
    )
    for p in range(4):
        low, high = 30 * p, min(30 * p + 30, 101)
        done = range(low, evaluate(main.upper, {"p": p}), FITTED.jam_reductions_together)
        assert [t + k for t in done for k in range(FITTED.jam_reductions_together)] + [
            *range(evaluate(rest.lower, {"p": p}), high)
        ] == [*range(low, high)]


FEW = """op f(x: {0}[B, T, V]) -> (high: {1}[B, V], low: {1}[B, V], total: {1}[B, V]) where T >= 1 {{
  high[b, v] = max[t]({1}(x[b, t, v]))
  low[b, v] = min[t]({1}(x[b, t, v]))
  total[b, v] = sum[t]({1}(x[b, t, v])) }}"""


@pytest.mark.thin(2)
@pytest.mark.parametrize("columns", thinned([1, 3, 12, 24, 37], 2))
@pytest.mark.parametrize("rows", [7, 20, 6001])
@pytest.mark.parametrize("dtype", thinned(["f32", "f64", "f16", "i32"], 2))
def test_columns_of_few_elements(dtype: str, rows: int, columns: int) -> None:
    """In one piece for each sample, or in parts that workers share."""
    rng = np.random.default_rng(rows * columns)
    kind, compute = BY_NAME[dtype], "f32" if dtype == "f16" else dtype
    values = rng.standard_normal((2 if rows < 100 else 1, rows, columns)) * 100
    if kind.is_float:
        values[rng.random(values.shape) < 1 / rows], values[0, 0, 0] = np.nan, -np.inf
    x = values.astype(kind.numpy)
    f: Any = pf.compile(FEW.format(dtype, compute))
    high, low, total = f(x)
    np.testing.assert_array_equal(high, x.max(1))
    np.testing.assert_array_equal(low, x.min(1))
    np.testing.assert_allclose(total, x.astype("f8").sum(1), rtol=1e-4, atol=1e-2)


@pytest.mark.thin(2)
@pytest.mark.parametrize("h", [1, 7, 16, 36, 300])
@pytest.mark.parametrize("t", [1, 3, 8, 101])
def test_pooling(t: int, h: int) -> None:
    rng = np.random.default_rng(t * h)
    s, k = rng.standard_normal((5, t)).astype("f4"), rng.standard_normal((5, t, h)).astype("f4")
    f: Any = pf.compile(POOL)
    y, top = f(s, k)
    e = np.exp(s.astype("f8") - s.max(1, keepdims=True))
    want = np.einsum("bt,bth->bh", e / e.sum(1, keepdims=True), k.astype("f8"))
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(top, s.max(1))


def of_memory(elements: int) -> Kernel:
    shape = (IConst(elements),)
    return replace(NOTHING, buffers=(Buffer("x", F32, Scope.ARGUMENT, shape, shape),))


def test_long_rows_from_memory_go_eight_at_a_time() -> None:
    kernel = of_memory(FITTED.jam_reductions_far_bytes // 4)
    main, rest = jam(kernel, (nest(ROW, 13, columns=FITTED.jam_reductions_far_row // 4),), CORE)
    assert (
        isinstance(main, For)
        and isinstance(rest, For)
        and (main.step, rest.step) == (FITTED.jam_reductions_far_together, 1)
    )
    (inner,) = main.body
    assert isinstance(inner, For) and isinstance(inner.body[0], Update)
    rows = {r.indices for r in reads(inner.body[0].value)}
    assert len(rows) == FITTED.jam_reductions_far_together, (
        "the totals are loaded and stored once for so many rows"
    )


@pytest.mark.parametrize(
    ("elements", "columns", "value"),
    [
        (FITTED.jam_reductions_far_bytes // 4 - 1, FITTED.jam_reductions_far_row // 4, ROW),
        (FITTED.jam_reductions_far_bytes // 4, FITTED.jam_reductions_far_row // 4 - 1, ROW),
        (
            FITTED.jam_reductions_far_bytes // 4,
            FITTED.jam_reductions_far_row // 4,
            Apply("mul", (ROW, Read("x", (IVar("c"), IVar("t")), F32)), F32),
        ),
    ],
    ids=["in a cache", "shorter rows", "two reads"],
)
def test_rows_that_stay_one_by_one(elements: int, columns: int, value: Any) -> None:
    other = nest(value, 13, columns=columns)
    assert jam(of_memory(elements), (other,), CORE) == (other,)


@pytest.mark.parametrize(("k", "n"), [(131, 4099), (1, 4100), (7, 4096), (33, 3000)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_totals_of_rows_from_memory(k: int, n: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FITTED, "jam_reductions_far_bytes", 1)
    rng = np.random.default_rng(k)
    kind = np.dtype("f4") if dtype == "f32" else np.dtype(ml_dtypes.bfloat16)
    x, w, b = (rng.standard_normal(s).astype("f4") for s in (k, (k, n + 3), n))
    wide = w.astype(kind)[:, 3:]  # rows that begin anywhere
    f: Any = pf.compile(FAR.format(dtype), target="cpu", options=pf.Options(library="never"))
    y, s = f(x, wide, b)
    exact = wide.astype("f8")
    np.testing.assert_allclose(y, x.astype("f8") @ exact + b, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(s, exact.sum(0), rtol=1e-5, atol=1e-4)


def test_loops_along_memory_run_innermost() -> None:
    made: Any = pf.compile(POOL)
    made(np.ones((5, 40), "f4"), np.ones((5, 40, 4000), "f4"))
    y = made(np.ones((2, 9), "f4"), np.full((2, 9, 4100), 3, "f4"))[0]
    np.testing.assert_allclose(y, 3, rtol=1e-6)


def turns(value: Any, rows: int = 1000, upper: Any = None) -> For:
    """Rows of totals that have their turn before the next term."""
    update = Update("y", (IVar("r"), IVar("c")), "sum", value)
    inner = For("c", IConst(0), IConst(36), 1, (update,), Coordinate.VECTOR)
    return For("t", IConst(2), IConst(13), 1, (For("r", IConst(0), upper or IConst(rows), 1, (inner,)),))


def test_rows_that_have_turns_get_several_terms_in_each() -> None:
    main, rest = jam(
        NOTHING, (turns(Apply("mul", (Read("w", (IVar("r"), IVar("t")), F32), ROW), F32)),), CORE
    )
    assert isinstance(main, For) and isinstance(rest, For)
    assert (main.step, main.upper, rest.lower) == (FITTED.jam_reductions_together, IConst(10), IConst(10))
    (rows,) = main.body
    assert isinstance(rows, For) and (rows.var, rows.step) == ("r", 1)
    (inner,) = rows.body
    assert isinstance(inner, For) and isinstance(inner.body[0], Update)
    assert len(reads(inner.body[0].value)) == 2 * FITTED.jam_reductions_together


@pytest.mark.parametrize(
    "loop",
    [
        turns(ROW, rows=100),  # which L1 holds
        turns(Read("x", (IVar("t"), IVar("r"), IVar("c")), F32)),  # terms come from memory as well, each once
        turns(ROW, upper=IVar("t") + 1000),
    ],
)
def test_others_that_have_turns_get_one(loop: For) -> None:
    assert jam(NOTHING, (loop,), CORE) == (loop,)


def test_the_core_says_what_l1_holds() -> None:
    loop = turns(ROW)
    assert jam(NOTHING, (loop,), replace(CORE, l1=1000 * 36 * 4)) == (loop,)
    assert len(jam(NOTHING, (loop,), replace(CORE, l1=1000 * 36 * 4 - 1))) == 2


@pytest.mark.parametrize(("rows", "terms", "columns"), [(300, 37, 51), (211, 64, 200), (3, 5, 7), (0, 9, 9)])
def test_products_with_factors_that_data_choose(rows: int, terms: int, columns: int) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((rows, terms)).astype("f4")
    w = rng.standard_normal((5, terms, columns)).astype("f4")
    kind = rng.integers(0, 5, rows)
    f = pf.compile(
        """op f(x: f32[T, D], kind: i64[T], w: f32[5, D, H]) -> (y: f32[T, H]) {
          y[t, h] = sum[d](x[t, d] * w[kind[t], d, h])
        }"""
    )
    expected = np.einsum("td,tdh->th", x.astype("f8"), w[kind].astype("f8"))
    np.testing.assert_allclose(f(x, kind, w), expected, rtol=1e-4, atol=1e-4)
