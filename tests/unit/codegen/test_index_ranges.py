"""Addresses in contracted buffers without `%`, where a strip of a loop is the window."""

from __future__ import annotations

import pytest

from polyfuse.codegen.transforms.strength_reduction import simplify_windows
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, evaluate, substitute
from polyfuse.ir.loop_ir import Declare, For, Node, Store
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Read

START = binary("*", IVar("c0"), 8)


def strip(lower: IndexExpr, upper: IndexExpr, body: Node) -> For:
    return For("c1", lower, upper, 1, (body,), Coordinate.SEQ)


def nodes(index: IndexExpr) -> list[Node]:
    """A read of the window in a stored value and in a scalar's, and a write to it."""
    read = Read("s", (index,), F32)
    return [Store("y", (IVar("c1"),), read), Declare("%f0", F32, read), Store("s", (index,), read)]


@pytest.mark.parametrize("place", range(3))
def test_a_strip_is_the_window(place: int) -> None:
    upper = binary("min", START + 8, IConst(99))
    loop = strip(START, upper, nodes(binary("%", IVar("c1"), 8))[place])
    want = strip(START, upper, nodes(binary("-", IVar("c1"), START))[place])
    assert simplify_windows((loop,), {}) == (want,)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(("extent", "length"), [(8, 9), (3, 3), (16, 9), (20, 8)])
def test_other_strips_keep_the_remainder(place: int, extent: int, length: int) -> None:
    """Too long for the window, or not beginning at a multiple of it."""
    loop = strip(START, START + length, nodes(binary("%", IVar("c1"), extent))[place])
    assert simplify_windows((loop,), {}) == (loop,)


@pytest.mark.parametrize("op", ["%", "//"])
def test_a_strip_that_is_a_piece_of_a_window(op: str) -> None:
    """What remains to be divided is the same for all of the strip."""
    index = binary(op, IVar("c1"), 24)
    (loop,) = simplify_windows((strip(START, START + 8, Store("y", (index,), Read("s", (index,), F32))),), {})
    assert isinstance(loop, For) and isinstance(loop.body[0], Store)
    (found,) = loop.body[0].indices
    assert found != index
    for c0 in range(7):
        for c1 in range(8 * c0, 8 * c0 + 8):
            env = {"c0": c0, "c1": c1}
            assert evaluate(substitute(found, {k: IConst(v) for k, v in env.items()}), {}) == (
                c1 % 24 if op == "%" else c1 // 24
            )
