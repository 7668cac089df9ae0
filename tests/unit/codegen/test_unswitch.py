"""Conditions that are the same for all lanes become branches around vector loops."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import cpu_source, fixed_graph_of
from targets import Call, check_everywhere
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.transforms.unswitch import unswitch
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import BOOL, F32, I64
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.loop_ir import Declare, For, If, Store
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Const, Expr, IndexValue, Read, Select

T, C = IVar("t"), IVar("c")
ZERO = Const(0.0, F32)
SHAPE = (IConst(5), IConst(64))
KERNEL = Kernel(
    "k",
    fixed_graph_of("op f() -> (y: f32) { y = 0.0 }"),
    (),
    (Buffer("x", F32, Scope.ARGUMENT, SHAPE, SHAPE),),
)


def at_least(i: IVar, k: int) -> Expr:
    return Apply("ge", (IndexValue(i, I64), IndexValue(IConst(k), I64)), BOOL)


def lanes(value: Expr, coordinate: Coordinate = Coordinate.VECTOR) -> For:
    return For("c", IConst(0), IConst(64), 1, (Store("y", (T, C), value),), coordinate)


def guarded(cond: Expr, rest: Expr = ZERO) -> Expr:
    return Select(cond, Read("x", (T, C), F32), rest, F32)


def test_a_condition_on_outer_loops_chooses_the_loop() -> None:
    (node,) = unswitch(KERNEL, (lanes(guarded(at_least(T, 3))),))
    assert node == If(at_least(T, 3), (lanes(Read("x", (T, C), F32)),), (lanes(ZERO),))


def test_what_depends_on_lanes_or_data_or_guards_no_load_stays() -> None:
    flag = Apply("gt", (Read("f", (T,), F32), ZERO), BOOL)
    for loop in (
        lanes(guarded(at_least(C, 3))),
        lanes(Select(at_least(T, 3), Const(1.0, F32), ZERO, F32)),
        lanes(guarded(Apply("and", (at_least(T, 3), flag), BOOL))),
        lanes(guarded(at_least(T, 3)), Coordinate.SEQ),
    ):
        assert unswitch(KERNEL, (loop,)) == (loop,)


def test_few_conditions_are_unswitched() -> None:
    value: Expr = ZERO
    for k in range(FITTED.unswitch_most_conditions + 1):
        value = guarded(at_least(T, k), value)

    def depth(block: tuple[object, ...]) -> int:
        return max((1 + max(depth(n.then), depth(n.other)) for n in block if isinstance(n, If)), default=0)

    assert depth(unswitch(KERNEL, (lanes(value),))) == FITTED.unswitch_most_conditions


@pytest.mark.parametrize(("b", "t", "c", "k"), [(2, 9, 70, 4), (1, 2, 5, 3), (1, 1, 1, 1), (0, 3, 8, 2)])
def test_a_convolution_with_a_border_of_zeros(b: int, t: int, c: int, k: int) -> None:
    text = """
    op conv(x: f32[B, T, C], w: f32[C, K]) -> (y: f32[B, T, C]) {
      y[b, t, c] = sum[k]((x[b, t-K+1+k, c] if t - K + 1 + k >= 0 else 0.0) * w[c, k])
    }
    """
    rng = np.random.default_rng(b + t)
    x = rng.standard_normal((b, t, c)).astype(np.float32)
    w = rng.standard_normal((c, k)).astype(np.float32)
    w.flat[:1] = np.inf  # a border of zeros times infinity is NaN
    f = pf.compile(text)
    padded = np.pad(x.astype(np.float64), ((0, 0), (k - 1, 0), (0, 0)))
    with np.errstate(invalid="ignore"):
        want = sum(padded[:, j : j + t] * w[:, j] for j in range(k))
    np.testing.assert_allclose(f(x, w), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 16])
def test_short_rows_under_a_condition_are_not_put_side_by_side(columns: int) -> None:
    """gcc 12 unrolls the loop over a short row, then vectorises the one around it, wrongly."""
    text = """
    op shifted(x: f32[T, C]) -> (y: f32[T + 2, C]) {
      y[t, c] = x[t - 1, c] if 1 <= t <= T else 0.25 for t in 0..T + 2, c in 0..C
    }
    """
    x = np.random.default_rng(columns).standard_normal((3, columns)).astype(np.float32)
    sizes = {"T": 3, "C": columns}
    check_everywhere([Call("shifted", text, instantiate(parse_text(text), "shifted"), sizes, {"x": x})])


# Conditions that lanes answer differently: both sides load the same.
SHARED = {
    "sides": "y[a, i] = sin(x[a, i]) if i != a else cos(x[a, i])",
    "one of two": "y[a, i] = -x[a, i] if i < a or i > a + 9 else x[a, i] * x[a, i]",
    "besides": "y[a, i] = x[a, i] + (x[a, i] * 2.0 if i != a else 0.0)",
    "nested": "y[a, i] = (x[a, i] if i != a + 3 else -x[a, i]) if i != a else x[a, i] * w[i] - w[i] * 0.5",
    "data": "y[a, i] = (x[a, k[i]] if i != a else -x[a, k[i]])",
    "by a remainder": "y[a, i] = x[a, i] if i % 37 == 0 else -x[a, i]",
    "one side, in range": "y[a, i] = x[a, i] / w[i] if i != a else 1.0",
    "turned": "y[a, i] = w[M - 1 - i] * x[a, i] if i != a else 0.5",
    "in range once the loop is cut": "y[a, i] = x[a, i - 1] if i >= 1 and i != a + 1 else x[a, i]",
}
KEPT = {
    "by a remainder": "y[a, i] = x[a, i - 1] if i % 37 != 0 else x[a, i]",
    "too far": "y[a, i] = w[i + a] if i + a < M and i != a else 1.0",
}
HEAD = "op f(x: f32[N, M], w: f32[M], k: i32[M]) -> (y: f32[N, M])"


def whole(body: str, dtype: str = "f32") -> str:
    return f"{HEAD} {{ {body} for a in 0..N, i in 0..M }}".replace("f32", dtype)


def test_what_both_sides_load_is_loaded_before_the_condition() -> None:
    x = Read("x", (T, C), F32)
    (loop,) = unswitch(KERNEL, (lanes(Select(at_least(C, 3), Apply("neg", (x,), F32), x, F32)),))
    assert isinstance(loop, For)
    load, store = loop.body
    assert load == Declare("%u0", F32, x)
    u = Read("%u0", (), F32)
    assert store == Store("y", (T, C), Select(at_least(C, 3), Apply("neg", (u,), F32), u, F32))


def test_a_load_in_range_is_made_before_the_condition() -> None:
    x = Read("x", (IConst(4), C), F32)
    cond = Apply("ne", (IndexValue(C, I64), IndexValue(T, I64)), BOOL)
    (loop,) = unswitch(KERNEL, (lanes(Select(cond, x, ZERO, F32)),))
    assert isinstance(loop, For)
    u = Read("%u0", (), F32)
    assert loop.body == (Declare("%u0", F32, x), Store("y", (T, C), Select(cond, u, ZERO, F32)))
    for row in (T, IConst(5), IConst(-1)):  # the row is not known to be one
        loops = (lanes(Select(cond, Read("x", (row, C), F32), ZERO, F32)),)
        assert unswitch(KERNEL, loops) == loops


@pytest.mark.parametrize("name", [n for n in SHARED if n != "nested"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_no_load_of_both_sides_is_guarded(name: str, dtype: str) -> None:
    assert "a guarded load" not in cpu_source(whole(SHARED[name], dtype), N=40, M=200)


@pytest.mark.parametrize("name", KEPT)
def test_a_load_that_may_be_out_of_range_stays_guarded(name: str) -> None:
    assert "a guarded load" in cpu_source(whole(KEPT[name]), N=40, M=200)


@pytest.mark.thin(2)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize(("n", "m"), thinned([(4, 77), (2, 256), (0, 3), (1, 1), (3, 0)], 2, several=True))
def test_shared_loads_compute_the_same(n: int, m: int, dtype: str) -> None:
    rng = np.random.default_rng(m)
    calls = []
    for name, body in {**SHARED, **KEPT}.items():
        graph = instantiate(parse_text(whole(body, dtype)), "f")
        x, w = (rng.standard_normal(s).astype(graph.tensor("x").dtype.numpy) for s in ((n, m), (m,)))
        x.flat[::7] = np.nan
        x.flat[3::11] = np.inf
        k = rng.integers(0, max(1, m), m).astype(np.int32)
        calls.append(Call(name, body, graph, {"N": n, "M": m}, {"x": x, "w": w, "k": k}))
    check_everywhere(calls)


@pytest.mark.parametrize("name", SHARED)
def test_shared_loads_of_strided_and_changed_arrays(name: str) -> None:
    rng = np.random.default_rng(3)
    x, w, k = rng.standard_normal((9, 154)).astype("f4"), rng.standard_normal(77).astype("f4"), np.arange(77)
    f = pf.compile(whole(SHARED[name]))
    k = k[::-1].astype(np.int32)
    want = f(np.ascontiguousarray(x[:, ::2]), w, np.ascontiguousarray(k))
    np.testing.assert_array_equal(f(x[:, ::2], w, k), want)
    g = pf.compile("op g(inout x: f32[N]) { x[i] = x[i] if i != 5 else -x[i] }")
    changed = np.arange(40, dtype=np.float32)
    g(changed)
    assert changed.tolist() == [-5.0 if i == 5 else float(i) for i in range(40)]
