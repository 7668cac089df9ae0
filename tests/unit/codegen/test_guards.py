"""Conditions that loops decide are resolved, others stay."""

from __future__ import annotations

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.analysis.guards import settled, simplify_guards
from polyfuse.ir.dtypes import BOOL, F32, I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, binary
from polyfuse.ir.loop_ir import For, If, Store
from polyfuse.ir.tensor_graph import Apply, Const, Expr, IndexValue, Read, Select

S, T = IVar("s"), IVar("t")


def compare(op: str, left: IndexExpr, right: IndexExpr) -> Expr:
    return Apply(op, (IndexValue(left, I64), IndexValue(right, I64)), BOOL)


def loop(var: IVar, lower: IndexExpr, upper: IndexExpr, *body: For | If | Store) -> For:
    return For(var.name, lower, upper, 1, body)


ROWS = loop(S, IConst(0), IConst(100))
LEFT = loop(T, IConst(0), S + 1)
RIGHT = loop(T, binary("max", S + 1, IConst(3)), binary("min", IConst(128), ISize("N")))


@pytest.mark.parametrize(
    ("op", "left", "right", "inner", "verdict"),
    [
        ("le", T, S, LEFT, True),
        ("gt", T, S, LEFT, False),
        ("le", T, S, RIGHT, False),
        ("ge", T, IConst(3), RIGHT, True),
        ("lt", T, IConst(128), RIGHT, True),
        ("lt", T, ISize("N"), RIGHT, True),
        ("lt", T, IConst(127), RIGHT, None),
        ("lt", T, S, LEFT, None),
        ("eq", T, S, RIGHT, False),
        ("eq", T, T, LEFT, True),
        ("ne", T, S, LEFT, None),
        ("lt", T + S, IConst(199), LEFT, True),
        ("lt", T + S, IConst(198), LEFT, None),
        ("ge", S - T, IConst(0), LEFT, True),
        ("ge", IBin("//", T, IConst(2)), IConst(0), LEFT, None),
    ],
)
def test_a_comparison_is_decided_by_the_bounds_of_loops(
    op: str, left: IndexExpr, right: IndexExpr, inner: For, verdict: bool | None
) -> None:
    cond = compare(op, left, right)
    found = settled(cond, (ROWS, inner))
    assert found == (cond if verdict is None else Const(verdict, BOOL))


def test_of_a_conjunction_remains_what_is_open() -> None:
    known, unknown = compare("le", T, S), compare("lt", T, S)
    around = (ROWS, LEFT)
    assert settled(Apply("and", (known, unknown), BOOL), around) == unknown
    assert settled(Apply("or", (unknown, known), BOOL), around) == Const(True, BOOL)
    assert settled(Apply("and", (unknown, Apply("not", (known,), BOOL)), BOOL), around) == Const(False, BOOL)
    both = Apply("or", (unknown, unknown), BOOL)
    assert settled(both, around) is both


def test_selects_and_branches_become_the_side_that_is_taken() -> None:
    inside, outside = Read("x", (S, T), F32), Const(0.0, F32)
    value = Select(compare("le", T, S), inside, outside, F32)
    store = Store("y", (S, T), value)
    branch = If(compare("gt", T, S), (store,), (Store("y", (S, T), outside),))
    (rows,) = simplify_guards((loop(S, IConst(0), IConst(100), loop(T, IConst(0), S + 1, store, branch)),))
    assert isinstance(rows, For)
    (inner,) = rows.body
    assert isinstance(inner, For)
    assert inner.body == (Store("y", (S, T), inside), Store("y", (S, T), outside))


@pytest.mark.parametrize("target", ["cpu", "emulate"])
@pytest.mark.parametrize(("s", "t"), [(5, 7), (7, 5), (1, 1), (0, 3)])
def test_rows_up_to_the_diagonal(target: str, s: int, t: int) -> None:
    text = """
    op below(x: f32[S, T]) -> (m: f32[S], e: f32[S, T]) {
      m[s] = max[t in 0..T](x[s, t] if t <= s else x[s, 0] - 1.0) for s in 0..S
      e[s, t] = x[s, t] if t <= s else 0.0 for s in 0..S, t in 0..T
    }
    """
    x = np.random.default_rng(s + t).standard_normal((s, t)).astype(np.float32)
    m, e = pf.compile(text, target=target)(x)
    below = np.arange(t) <= np.arange(s)[:, None]
    np.testing.assert_array_equal(e, np.where(below, x, 0))
    if s and t:
        np.testing.assert_allclose(m, np.where(below, x, x[:, :1] - 1).max(1), rtol=1e-6)
