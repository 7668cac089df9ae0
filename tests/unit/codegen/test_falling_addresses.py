"""Addresses that fall where a variable rises: gcc 12 counted such a loop's iterations wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.cpu.emit import BACKWARDS
from polyfuse.codegen.cpu.workarounds import falls
from polyfuse.ir.dtypes import BOOL, F32
from polyfuse.ir.index_expr import IndexExpr, ISize, IVar, as_index
from polyfuse.ir.loop_ir import For, If, Node, Update
from polyfuse.ir.tensor_graph import Const
from polyfuse.runtime.cpu import executable as runtime_cpu

FLIP = """op f(x: f64[N, M]) -> (t: f64[N, M]) where N >= 6, M >= 5 {
  t[i, j] = 0.25 for i in 0..N - 2, j in 0..M
  t[i, j] = x[i, j] - 1.0 for i in N - 2..N, j in 0..3
  t[i, j] = x[N - 1 - i, j] + 1.0 for i in N - 2..N, j in 3..4
  t[i, j] = x[i, j] * 0.5 for i in N - 2..N, j in 4..M
}"""
PLAIN = "op f(x: f64[N, M]) -> (t: f64[N, M]) { t[i, j] = x[i, j] - 3.0 * x[i, 0] }"


@pytest.mark.parametrize(("text", "asks"), [(FLIP, True), (PLAIN, False)])
def test_who_asks_for_the_flag(text: str, asks: bool) -> None:
    built = pf.compile(text).built(np.ones((17, 34)))
    assert (BACKWARDS in built.code.source) == asks


@pytest.mark.parametrize("shape", [(17, 34), (6, 5), (40, 100)], ids=str)
def test_rows_that_are_read_backwards(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_cpu, "PARALLEL_WORK", 1)
    n, _ = shape
    x = np.random.default_rng(n).standard_normal(shape)
    f: Any = pf.compile(FLIP, options=pf.Options(threads=3))
    want = np.full(shape, 0.25)
    want[n - 2 :] = x[n - 2 :] * 0.5
    want[n - 2 :, :3] = x[n - 2 :, :3] - 1
    want[n - 2 :, 3] = x[1::-1, 3] + 1
    np.testing.assert_array_equal(f(x), want)


def at(*indices: IndexExpr) -> Update:
    return Update("x", indices, "add", Const(1.0, F32))


ROW, COLUMN = IVar("i"), IVar("j")
TILE = at(COLUMN - ROW * 13)


def loop(var: str, lower: IndexExpr, *body: Node) -> For:
    return For(var, lower, lower + 13, 1, body)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (at(as_index(16) - ROW, COLUMN), True),
        (at(COLUMN, ISize("N") - ROW * 2), True),
        (at(COLUMN - ROW), True),
        (at(ROW - IVar("tile_row")), False),
        (loop("k", as_index(0), If(Const(True, BOOL), (at(IVar("k") - ROW),))), True),
        (at(ROW - 1, COLUMN), False),
        (loop("j", ROW * 13, TILE), False),
        (loop("j", ROW * 12, TILE), True),
        (at(ISize("N") - ISize("M")), False),
    ],
)
def test_what_falls(body: Node, found: bool) -> None:
    assert falls((loop("i", as_index(0), body),)) == found
