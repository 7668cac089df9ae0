"""Costly values of columns are computed once, before the rows, if rows compute them at all."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from equivalence import assert_computes, cpu_source, fixed_graph_of
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.transforms.invariant_motion import hoist_columns
from polyfuse.ir.cpu_core import Core, kept_room
from polyfuse.ir.dtypes import BOOL, F32, F64
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.loop_ir import Declare, For, Node, Store, Update, format_block
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Const, Expr, Read, Select
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels

CORE = Core()
T, V = IVar("t"), IVar("v")
X, S, R = Read("x", (T, V), F32), Read("s", (V,), F32), Read("r", (T,), F32)

STANDARD = """op f(x: DT[T, V]) -> (y: DT[T, V]) where T >= 1 {
  m[v] = mean[t](x[t, v])
  s[v] = mean[t]((x[t, v] - m[v]) ** 2)
  y[t, v] = (x[t, v] - m[v]) * rsqrt(s[v] + 1e-5)
}"""
SHARED = """op f(x: f32[N, C], m: f32[C], s: f32[C]) -> (y: f32[N, C]) {
  y[n, c] = (x[n, c] - m[c]) * rsqrt(s[c] + 1e-5)
}"""
GUARDED = """op f(x: f32[N, C], s: f32[C], i: i64[C]) -> (y: f32[N, C], z: f32[N, C]) where C >= 3 {
  y[n, c] = x[n, c] * exp(s[i[c]]) if x[n, c] > 0.0 else exp(s[c])
  z[n, c] = x[n, c] / exp(s[c - 1]) if c >= 1 else exp(s[c]) for n in 0..N, c in 0..C
}"""
INOUT = """op f(inout p: f32[N, C]) where N >= 1 {
  p[n, c] = p[n, c] * exp(p[0, c])
}"""


def exp(e: Expr) -> Expr:
    return Apply("exp", (e,), e.dtype)


def mul(a: Expr, b: Expr) -> Expr:
    return Apply("mul", (a, b), F32)


def rows(*body: Node, trip: int = 9, lanes: int = 12) -> For:
    lane = For("v", IConst(0), IConst(lanes), 1, body, Coordinate.VECTOR)
    return For("t", IConst(0), IConst(trip), 1, (lane,))


def changed(loop: For, core: Core = CORE) -> str:
    graph = fixed_graph_of("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", N=9)
    return format_block(hoist_columns(Kernel("k0", graph, (), ()), (loop,), itertools.count(), core))


def test_before_and_after() -> None:
    value = mul(X, exp(S))
    assert changed(rows(Store("y", (T, V), value), Update("z", (V,), "sum", exp(S)))) == format_block(
        (
            Declare("%column0", F32, None, 12),
            For("v", IConst(0), IConst(12), 1, (Store("%column0", (V,), exp(S)),), Coordinate.VECTOR),
            rows(
                Store("y", (T, V), mul(X, Read("%column0", (V,), F32))),
                Update("z", (V,), "sum", Read("%column0", (V,), F32)),
            ),
        )
    )


def test_zeros_of_both_signs_have_arrays_of_their_own() -> None:
    values = [exp(mul(S, Const(z, F32))) for z in (0.0, -0.0)]
    assert changed(rows(*(Store(f"y{k}", (T, V), v) for k, v in enumerate(values)))).count("exp") == 2


STAYS = {
    "cheap": rows(Store("y", (T, V), mul(X, mul(S, S)))),
    "of the row": rows(Store("y", (T, V), mul(X, exp(R)))),
    "few rows": rows(Store("y", (T, V), exp(S)), trip=3),
    "long": rows(Store("y", (T, V), exp(S)), lanes=kept_room(CORE) // 4 + 1),
    "stored by the rows": rows(Store("s", (V,), exp(S))),
    "of a scalar": rows(Declare("s", F32, X), Store("y", (T, V), exp(Read("s", (), F32)))),
    "guarded": rows(
        Store(
            "y",
            (T, V),
            Select(Apply("lt", (X, S), BOOL), exp(Read("s", (Read("i", (V,), F64),), F32)), X, F32),
        )
    ),
}


@pytest.mark.parametrize("loop", STAYS.values(), ids=STAYS.keys())
def test_what_stays_as_it_is(loop: For) -> None:
    assert changed(loop) == format_block((loop,))


def test_room_for_columns_is_that_of_the_core_at_hand() -> None:
    loop = rows(Store("y", (T, V), exp(S)), lanes=3000)
    assert "%column0" in changed(loop, Core(l1=48 << 10))
    assert "%column" not in changed(loop, Core(l1=32 << 10))


@pytest.mark.parametrize("dtype", thinned(["f32", "f64"], 2))
@pytest.mark.parametrize("shape", [(1, 7), (4, 1), (9, 700), (700, 301), (3000, 33)], ids=str)
def test_standardised_columns(shape: tuple[int, int], dtype: str) -> None:
    graph = fixed_graph_of(STANDARD.replace("DT", dtype), T=shape[0], V=shape[1])
    assert_computes(graph, form_kernels(LoopFusion().schedule(graph), 2)[0], target="cpu")


@pytest.mark.machine("zen5")
def test_rows_divide_no_more() -> None:
    source = cpu_source(STANDARD.replace("DT", "f32"), T=700, V=301)
    lines = source.splitlines()
    assert sum("pf_rsqrt_f32(" in x for x in lines) == 2, "its definition and one use"
    assert all(re.match(r" +column\d+\[", x) for x in lines if "/ pf_f32_from_i64(700)" in x)


def test_each_chunk_of_rows_that_are_shared_out_has_its_own() -> None:
    source = cpu_source(SHARED, N=3000, C=40)
    assert source.index("pf_rsqrt_f32(b_s[") < source.index("for (pf_i64 it = begin")
    few = cpu_source(SHARED, N=200, C=400)
    assert few.index("pf_rsqrt_f32(b_s[") > few.index("for (pf_i64 it = begin")


@pytest.mark.parametrize("text", [SHARED, GUARDED, INOUT], ids=["shared", "guarded", "inout"])
@pytest.mark.parametrize("shape", [(3000, 40), (700, 3), (5, 33)], ids=str)
def test_results_stay_the_same(text: str, shape: tuple[int, int]) -> None:
    graph = fixed_graph_of(text, N=shape[0], C=shape[1])
    assert_computes(graph, form_kernels(LoopFusion().schedule(graph), 2)[0], target="cpu")


@pytest.mark.parametrize("rows", [0, 1, 300])
def test_any_number_of_rows_and_nan(rows: int) -> None:
    rng = np.random.default_rng(0)
    x, m, s = (rng.random(n).astype(np.float32) for n in ((rows, 5), (5,), (5,)))
    s[:2], m[2] = (np.nan, np.inf), -np.inf
    want = (x - m) / np.sqrt(s + np.float32(1e-5))
    np.testing.assert_allclose(np.asarray(pf.compile(SHARED)(x, m, s)), want, rtol=1e-6)


NEAREST = """op f(a: DT[N, C], b: DT[M, C]) -> (d: DT[N], t: DT[N]) where M >= 1 {
  d[i] = min[j](sum[c]((a[i, c] - b[j, c]) ** 2))
  t[i] = sum[j](a[i, 1] * b[j, 0])
}"""


def test_what_lies_apart_is_gathered_once() -> None:
    graph = fixed_graph_of(
        "op f(x: f32[T, V], p: f32[V, 5]) -> (y: f32[T, V]) { y[t, v] = x[t, v] * p[v, 2] }", T=9, V=12
    )
    p, turned = Read("p", (V, IConst(2)), F32), Read("p", (IConst(2), V), F32)
    shape = (IConst(12), IConst(5))
    kernel = Kernel("k0", graph, (), (Buffer("p", F32, Scope.ARGUMENT, shape, shape),))

    def block(value: Expr, **sizes: int) -> str:
        return format_block(
            hoist_columns(kernel, (rows(Store("y", (T, V), value), **sizes),), itertools.count(), CORE)
        )

    assert block(mul(X, p)).count("p[v, 2]") == 1 and "%column0[v] = p[v, 2]" in block(mul(X, p))
    assert "%column" not in block(mul(X, turned))
    assert "%column" not in block(mul(X, p), trip=3)
    assert "%column" not in block(mul(X, p), lanes=kept_room(CORE))


@pytest.mark.parametrize("c", thinned([5, 2, 3, 7, 9], 4))
@pytest.mark.parametrize("sizes", [(0, 3), (1, 1), (5, 9), (33, 300), (300, 7)])
@pytest.mark.parametrize("dtype", thinned(["f32", "f64", "f16", "bf16"], 4))
def test_nearest_points(c: int, sizes: tuple[int, int], dtype: str) -> None:
    graph = fixed_graph_of(NEAREST.replace("DT", dtype), N=sizes[0], M=sizes[1], C=c)
    assert_computes(graph, form_kernels(LoopFusion().schedule(graph), 2)[0], target="cpu")


def test_nearest_points_of_strided_arguments() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((n, 10)).astype(np.float32) for n in (40, 90))
    a[3, 4], b[7, 2] = np.nan, np.inf
    f = pf.compile(NEAREST.replace("DT", "f32"))
    want = f(np.ascontiguousarray(a[:, ::2]), np.ascontiguousarray(b[::3, 1::2]))
    for got, expected in zip(f(a[:, ::2], b[::3, 1::2]), want, strict=True):
        np.testing.assert_array_equal(got, expected)
