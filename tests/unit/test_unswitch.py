"""Conditions that are the same for all lanes become branches around vector loops."""

from __future__ import annotations

import numpy as np
import pytest
from targets import Call, check_everywhere

import polyfuse as pf
from polyfuse.codegen.unswitch import MOST_CONDITIONS, unswitch
from polyfuse.frontend_dsl.build_graph import instantiate
from polyfuse.frontend_dsl.parse import parse_text
from polyfuse.ir.dtypes import BOOL, F32, I64
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.loop_ir import For, If, Store
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Const, Expr, IndexValue, Read, Select

T, C = IVar("t"), IVar("c")
ZERO = Const(0.0, F32)


def at_least(i: IVar, k: int) -> Expr:
    return Apply("ge", (IndexValue(i, I64), IndexValue(IConst(k), I64)), BOOL)


def lanes(value: Expr, coordinate: Coordinate = Coordinate.VECTOR) -> For:
    return For("c", IConst(0), IConst(64), 1, (Store("y", (T, C), value),), coordinate)


def guarded(cond: Expr, rest: Expr = ZERO) -> Expr:
    return Select(cond, Read("x", (T, C), F32), rest, F32)


def test_a_condition_on_outer_loops_chooses_the_loop() -> None:
    (node,) = unswitch((lanes(guarded(at_least(T, 3))),))
    assert node == If(at_least(T, 3), (lanes(Read("x", (T, C), F32)),), (lanes(ZERO),))


def test_what_depends_on_lanes_or_data_or_guards_no_load_stays() -> None:
    flag = Apply("gt", (Read("f", (T,), F32), ZERO), BOOL)
    for loop in (
        lanes(guarded(at_least(C, 3))),
        lanes(Select(at_least(T, 3), Const(1.0, F32), ZERO, F32)),
        lanes(guarded(Apply("and", (at_least(T, 3), flag), BOOL))),
        lanes(guarded(at_least(T, 3)), Coordinate.SEQ),
    ):
        assert unswitch((loop,)) == (loop,)


def test_few_conditions_are_unswitched() -> None:
    value: Expr = ZERO
    for k in range(MOST_CONDITIONS + 1):
        value = guarded(at_least(T, k), value)

    def depth(block: tuple[object, ...]) -> int:
        return max((1 + max(depth(n.then), depth(n.other)) for n in block if isinstance(n, If)), default=0)

    assert depth(unswitch((lanes(value),))) == MOST_CONDITIONS


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
