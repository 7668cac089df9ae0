"""What all threads of a row know is not read again from memory that one of them stores it in."""

from __future__ import annotations

import itertools

import pytest

from polyfuse.codegen.transforms.lower_statements import forward_to_loops
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index
from polyfuse.ir.kernel import Buffer, Kernel, Scope, Stage
from polyfuse.ir.loop_ir import Block, For, Store, Update, format_block
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Expr, Read, TensorGraph

ROWS, LENGTH = as_index(4), as_index(64)


def kernel(scope: Scope = Scope.GLOBAL) -> Kernel:
    """Its buffers are `m`, one for each row, and `x`."""
    m = Buffer("m", F32, scope, (ROWS,), (ROWS,))
    x = Buffer("x", F32, Scope.ARGUMENT, (ROWS, LENGTH), (ROWS, LENGTH))
    graph = TensorGraph("f", (), (), (), (), (), ())
    return Kernel("k0", graph, (Stage((), ()),), (m, x))


def m(i: IndexExpr) -> Read:
    return Read("m", (i,), F32)


def store(value: Expr, i: IndexExpr) -> Store:
    return Store("m", (i,), value)


def sums(value: Expr) -> For:
    """A loop that threads share."""
    update = Update("%acc", (), "sum", value)
    return For("c1", IConst(0), LENGTH, 1, (update,), Coordinate.ROUND)


def after(*nodes: object, scope: Scope = Scope.GLOBAL) -> str:
    block: Block = (For("c0", IConst(0), ROWS, 1, nodes, Coordinate.BLK),)  # type: ignore[arg-type]
    return format_block(forward_to_loops(kernel(scope), block, itertools.count()))


ROW, TOTAL = IVar("c0"), Read("%total", (), F32)


@pytest.mark.parametrize("scope", (Scope.GLOBAL, Scope.SHARED, Scope.ARGUMENT))
def test_a_loop_reads_the_scalar(scope: Scope) -> None:
    assert after(store(TOTAL, ROW), sums(m(ROW)), scope=scope).splitlines()[1:] == [
        "  f32 %f0 = %total[]",
        "  m[c0] = %f0[]",
        "  for c1 in 0..64 @rnd:",
        "    %acc sum= %f0[]",
    ]


def test_another_element_is_read_from_memory() -> None:
    assert "%f0" not in after(store(TOTAL, ROW), sums(m(IConst(0))))


def test_what_is_written_again_is_read_from_memory() -> None:
    assert "%f0" not in after(store(TOTAL, ROW), sums(m(ROW)), store(TOTAL, IConst(0)))


def test_an_index_that_a_later_loop_counts_is_another() -> None:
    loop = For("c0", IConst(0), ROWS, 1, (sums(m(ROW)),), Coordinate.SEQ)
    assert "%f0" not in after(store(TOTAL, ROW), loop)


def test_what_threads_have_parts_of_stays_in_memory() -> None:
    inside = For("c1", IConst(0), LENGTH, 1, (store(TOTAL, ROW), sums(m(ROW))), Coordinate.ROUND)
    assert "%f0" not in after(inside)


def test_a_register_is_no_memory() -> None:
    assert "%f0" not in after(store(TOTAL, ROW), sums(m(ROW)), scope=Scope.LOCAL)
