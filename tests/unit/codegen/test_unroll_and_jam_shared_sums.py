"""Rows that add to the same long sums are computed several at a time, with the same results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from equivalence import Array, assert_right, run_on, seeded_inputs
from row_kernels import made
from thinned import thinned

from polyfuse.codegen.analysis.dependence import commutes_but_for, independent
from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.cpu.pipeline import LoweredKernel, lower
from polyfuse.codegen.function import Function
from polyfuse.codegen.transforms.outline import outlined
from polyfuse.codegen.transforms.unroll_and_jam.shared_sums import SHARED_SUMS
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.dtypes import F32, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar
from polyfuse.ir.kernel import Kernel, KernelGraph, Scope
from polyfuse.ir.loop_ir import (
    Barrier,
    BarrierScope,
    Block,
    Declare,
    For,
    If,
    Node,
    Prefetch,
    Store,
    Update,
    nodes_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Const, Expr, Read
from polyfuse.runtime.cpu.executable import CpuExecutable

LN = """op f(dy: {0}[T, H], x: {0}[T, H], g: {0}[H]) -> (dx: {0}[T, H], dg: {0}[H], db: {0}[H]) {{
  a[t] = sum[h](dy[t, h] * g[h]); b[t] = sum[h](dy[t, h] * g[h] * x[t, h])
  dx[t, h] = dy[t, h] * g[h] - a[t] - x[t, h] * b[t]
  dg[h] = sum[t](dy[t, h] * x[t, h]); db[h] = sum[t](dy[t, h])
}}"""
RELU = """op f(dy: {0}[T, H], x: {0}[T, H]) -> (dx: {0}[T, H], db: {0}[H]) {{
  dx[t, h] = dy[t, h] if x[t, h] > {0}(0.0) else {0}(0.0); db[h] = sum[t](dx[t, h])
}}"""
COLUMNS = "op f(x: {0}[T, H]) -> (s: {0}[H]) {{ s[h] = sum[t](x[t, h] ** 2) }}"
EXTREMES = "op f(x: {0}[T, H]) -> (m: {0}[H], n: {0}[H]) {{ m[h] = max[t](x[t, h]); n[h] = min[t](x[t, h]) }}"
SIGMOID = """op f(dy: {0}[T, H], x: {0}[T, H]) -> (dx: {0}[T, H], db: {0}[H]) {{
  s[t, h] = sigmoid(x[t, h]); dx[t, h] = dy[t, h] * s[t, h] * ({0}(1.0) - s[t, h]); db[h] = sum[t](dx[t, h])
}}"""
COUNTS = """op f(x: i64[T, H]) -> (n: i64[H], any_: bool[H]) {
  n[h] = sum[t](x[t, h]); any_[h] = any[t](x[t, h] > 2)
}"""
TOTAL = """op f(x: f32[T, H]) -> (y: f32[T], s: f32[H], all: f32) {
  y[t] = sum[h](x[t, h]); s[h] = sum[t](x[t, h] * y[t]); all = sum[t](y[t])
}"""
CASES = {
    "norm": LN.format("f32"), "norm f64": LN.format("f64"), "norm bf16": LN.format("bf16"),
    "relu": RELU.format("f32"), "relu f16": RELU.format("f16"), "columns": COLUMNS.format("f32"),
    "extremes": EXTREMES.format("f32"), "sigmoid": SIGMOID.format("f32"), "counts": COUNTS, "total": TOTAL,
}  # fmt: skip
LONG = Core().l1 // 8 + 1  # so many sums of four bytes take more than half of L1


def lowered(text: str, rows: int | None = None, **sizes: int) -> list[LoweredKernel]:
    return [lower(k, CpuKnobs(rows=rows)) for k in made(text, **sizes).kernels]


def jammed(text: str, rows: int | None = None, **sizes: int) -> int:
    """Rows at a time; sums of what workers have found are left out."""
    return lowered(text, rows, **sizes)[0].functions[0].jammed


def compiled(kernels: KernelGraph, rows: Sequence[int]) -> list[CpuExecutable]:
    """For so many rows each, with so few lanes that no number of rows takes fewer."""
    codes = emit_together([Request(kernels, knobs=CpuKnobs(rows=n, lane_bytes=128)) for n in rows])
    return [CpuExecutable(code, {}) for code in codes]


def run(kernels: KernelGraph, rows: int, inputs: dict[str, Array]) -> dict[str, Array]:
    (made,) = compiled(kernels, [rows])
    return run_on(made, kernels.graph, inputs)


# --- when ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        (COLUMNS.format("f32"), LONG, 4),
        (COLUMNS.format("f32"), LONG - 1, 1),
        (COLUMNS.format("f64"), LONG // 2 + 1, 2),
        (LN.format("f32"), LONG // 2 + 1, 4),
        (LN.format("f32"), LONG // 2, 1),
        (RELU.format("f32"), LONG, 4),
        (RELU.format("bf16"), LONG, 1),  # f16 and bf16 are stored to two places
        (SIGMOID.format("f32"), LONG, 1),  # it computes for longer
    ],
)
def test_rows_with_long_sums_go_together(text: str, columns: int, rows: int) -> None:
    assert jammed(text, T=64, H=columns) == rows
    assert jammed(text, 1, T=64, H=columns) == 1
    assert jammed(text, 3, T=64, H=columns) == 3


def test_there_are_no_more_than_there_are() -> None:
    for count, rows in ((1, 1), (2, 2), (3, 3), (4, 4), (5, 4)):
        assert jammed(LN.format("f32"), T=count, H=LONG) == rows


def loops_over_rows(low: LoweredKernel) -> list[For]:
    return [
        n
        for t in low.functions
        for n in nodes_of(t.body)
        if isinstance(n, For) and any(isinstance(x, For) and x.lanes for x in n.body)
    ]


def test_each_share_of_the_rows_has_its_rest_which_alone_asks_for_lines(
    parallel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """67 rows in shares of eight: the last one has three."""
    monkeypatch.setattr(FITTED, "prefetch_share_of_l1", 99)
    monkeypatch.setattr(FITTED, "prefetch_share_in_l3", 0)
    for rows, count in ((None, 4), (3, 3)):
        low, *_ = lowered(LN.format("f32"), rows, T=67, H=LONG)
        main, rest = loops_over_rows(low)
        assert (main.step, rest.step, low.functions[0].jammed) == (count, 1, count)
        for n in (main, rest):
            assert any(isinstance(x, Prefetch) for x in nodes_of(n.body)) == (n is rest)
    (low, *_) = lowered(LN.format("f32"), T=64, H=LONG)
    assert [n.step for n in loops_over_rows(low)] == [4], "nothing is left"


def test_scalars_of_both_sides_of_a_condition_are_declared_in_each() -> None:
    """Not around it, where all rows would share them."""
    kernel = made(LN.format("f32"), T=8, H=40).kernels[0]
    scalar = next(b.tensor for b in kernel.buffers if b.scope is Scope.REGISTER)
    loop = rows_of(Store(scalar, (), ONE), columns(ADD), Update("y", (T,), "sum", at(scalar)))
    (task,) = outlined(kernel, (If(at("x", IConst(0), IConst(0)), (loop,), (loop,)),))
    (node,) = task.body
    assert isinstance(node, If)
    for (inner,) in (node.then, node.other):
        assert isinstance(inner, For) and inner.body == (Declare(scalar, F32), *loop.body)
    assert result(kernel, task.body).jammed == 2


def test_accumulators_of_all_rows_stay_in_half_of_the_registers(parallel: None) -> None:
    """Two totals in each row; what is left has lanes of the same number."""
    for rows, room in ((2, 256), (4, 128), (5, 64), (8, 64)):
        low, *_ = lowered(LN.format("f32"), rows, T=20, H=40)
        inner = [x for n in loops_over_rows(low) for x in n.body if isinstance(x, For) and x.lanes]
        assert {x.lane_bytes for x in inner} == {room}
        assert [len(x.lanes) for x in inner] in ([2 * rows], [2 * rows, 2])


def test_checked_code_goes_row_by_row() -> None:
    kernels = made(LN.format("f32"), T=8, H=40)
    (code,) = emit_together([Request(kernels, checked=True, knobs=CpuKnobs(rows=4))])
    assert "row1_" not in code.source


# --- which may ----------------------------------------------------------------------------------------

T, C = IVar("t"), IVar("c")
ONE = Const(1.0, F32)
WIDTH = IConst(40)


def at(name: str, *indices: IndexExpr | Expr) -> Read:
    return Read(name, indices, F32)


def columns(*body: Node, upper: IndexExpr = WIDTH, lanes: tuple[str, ...] = ()) -> For:
    return For("c", IConst(0), upper, 1, body, Coordinate.VECTOR, lanes)


def rows_of(*body: Node) -> For:
    return For("t", IConst(0), IConst(8), 1, body)


ADD = Update("s", (C,), "sum", at("x", T, C))
WRITE = Store("y", (T, C), at("x", T, C))


def kernel_of(text: str = "op f(x: f32[T, H], k: i64[T]) -> (y: f32[T, H], s: f32[H]) "
              "{ y[t, h] = x[t, h] + f32(k[t]); s[h] = sum[t](x[t, h]) }") -> Kernel:  # fmt: skip
    return made(text, T=8, H=40).kernels[0]


def result(kernel: Kernel, body: Block) -> Function:
    (task,) = SHARED_SUMS.run(kernel, [Function((), body)], CpuKnobs(rows=2))
    return task


def test_what_rows_add_to_and_what_they_write_apart() -> None:
    kernel = kernel_of()
    plain = rows_of(columns(WRITE, ADD))
    assert commutes_but_for(kernel, plain) == frozenset("s") and result(kernel, (plain,)).jammed == 2
    apart = rows_of(columns(Store("y", (T + 3, C), at("y", T + 3, C)), ADD))
    assert commutes_but_for(kernel, apart) == frozenset("s")
    assert independent(kernel, rows_of(columns(WRITE))), "nothing in common: nothing to gain"
    assert result(kernel, (rows_of(columns(WRITE)),)).jammed == 1


DATA = Read("k", (T,), I64)
REFUSED: dict[str, Block] = {
    "sums are read by another phase": (columns(ADD), columns(Store("y", (T, C), at("s", C)))),
    "sums are read by their own": (columns(Update("s", (C,), "sum", at("s", C))),),
    "two operators": (columns(ADD, Update("s", (C,), "max", at("x", T, C))),),
    "two phases": (columns(ADD), columns(ADD)),
    "stored and added to": (columns(Store("s", (C,), ONE), ADD),),
    "all rows store there": (columns(ADD, Store("y", (IConst(0), C), ONE)),),
    "the row before": (columns(ADD, Store("y", (T, C), at("y", T - 1, C))),),
    "another place": (columns(ADD, Store("y", (T, C), at("y", C, T))),),
    "rows meet": (columns(ADD, Store("y", (T + C, C), ONE)),),
    "places are data": (columns(ADD, Store("y", (DATA, C), ONE)),),
    "a total of all rows is read": (Store("%total", (), at("%total")), columns(ADD)),
    "other than loops": (Barrier(BarrierScope.BLOCK, "so"), columns(ADD)),
    "under a condition as well": (If(at("x", T, T), (Store("y", (WIDTH, WIDTH), ONE),)), columns(ADD)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_rows_that_depend_on_each_other_stay_apart(why: str) -> None:
    kernel = kernel_of()
    loop = rows_of(*REFUSED[why])
    assert commutes_but_for(kernel, loop) is None
    assert result(kernel, (loop,)) == Function((), (loop,))


def test_parameters_in_place_have_two_names() -> None:
    kernel = kernel_of(
        "op f(inout p: f32[T, H]) -> (s: f32[H]) { s[h] = sum[t](old(p[t, h])); p[t, h] = p[t, h] + 1.0 }"
    )
    names = {t.alias: t.name for t in kernel.graph.tensors if t.alias}
    (out,) = names.values()
    same = rows_of(columns(ADD, Store(out, (T, C), at("p", T, C))))
    other = rows_of(columns(ADD, Store(out, (T, C), at("p", T - 1, C))))
    assert commutes_but_for(kernel, same) == frozenset("s") and commutes_but_for(kernel, other) is None


@pytest.mark.parametrize(
    "phase",
    [
        columns(ADD, upper=T),  # rows of different lengths
        columns(ADD, Declare("%a", F32, ONE), rows_of()),  # loops inside
        columns(Update("s", (IConst(3),), "sum", ONE)),  # one element
        replace(columns(ADD), step=2),
        replace(columns(ADD), coordinate=Coordinate.SEQ),
        columns(ADD, Update("%all", (), "sum", ONE), lanes=("%all",)),  # a total of all rows
    ],
)
def test_phases_that_are_not_the_same_loop_for_all_rows_gain_nothing(phase: For) -> None:
    loop = rows_of(phase)
    assert commutes_but_for(kernel_of(), loop) is not None
    assert result(kernel_of(), (loop,)).jammed == 1


def test_only_sequential_loops_over_single_rows() -> None:
    loop = rows_of(columns(ADD))
    for other in (replace(loop, step=2), replace(loop, coordinate=Coordinate.VECTOR)):
        assert commutes_but_for(kernel_of(), other) is None


def test_sums_are_in_one_loop_and_other_phases_take_turns() -> None:
    total = Update("%acc", (), "sum", at("x", T, C))
    scaled = Store("y", (T, C), Apply("mul", (at("x", T, C), at("%acc")), F32))
    loop = rows_of(Declare("%acc", F32, ONE), columns(total, ADD, lanes=("%acc",)), columns(scaled))
    (main,) = result(kernel_of(), (loop,)).body
    assert isinstance(main, For) and (main.step, main.upper) == (2, IConst(7))
    first, second, both, one, two = main.body
    assert [n.name for n in (first, second) if isinstance(n, Declare)] == ["%acc", "%t_1_acc"]
    assert isinstance(both, For) and both.lanes == ("%acc", "%t_1_acc")
    assert [n.buffer for n in both.body if isinstance(n, Update)] == ["%acc", "s", "%t_1_acc", "s"]
    stored = [n.body[0] for n in (one, two) if isinstance(n, For)]
    assert [n.indices[0] for n in stored if isinstance(n, Store)] == [T, T + 1]


# --- results ------------------------------------------------------------------------------------------


def few_digits(inputs: dict[str, Array]) -> dict[str, Array]:
    """Products are exact: a compiler may or may not round them before it adds them to something."""
    return {n: (np.rint(v.astype("f8") * 8) / 8).astype(v.dtype) for n, v in inputs.items()}


def values_of(case: str) -> Iterator[float]:
    yield 1.0
    if case != "counts":
        yield from (np.nan, np.inf, -np.inf)


@pytest.mark.thin(2)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("count", "columns"), thinned([(67, 70), (1, 70), (3, 17), (2, 1), (5, 130)], 5, several=True)
)
def test_results_are_those_of_rows_alone(case: str, count: int, columns: int, parallel: None) -> None:
    kernels = made(CASES[case], T=count, H=columns)
    inputs = few_digits(seeded_inputs(kernels.graph))
    for rows in (2, 4):
        if count > 2:
            assert any(t.jammed > 1 for k in kernels.kernels for t in lower(k, CpuKnobs(rows=rows)).functions)
    single, *several = compiled(kernels, (1, 2, 4))
    for value in values_of(case):
        inputs["x"].flat[inputs["x"].size // 2] = value
        alone = run_on(single, kernels.graph, inputs)
        assert_right(kernels.graph, alone, inputs)
        for rows, made_for in zip((2, 4), several, strict=True):
            for name, found in run_on(made_for, kernels.graph, inputs).items():
                np.testing.assert_array_equal(
                    found.astype("f8"), alone[name].astype("f8"), err_msg=f"{rows} rows: {name}"
                )


def test_no_rows_and_no_columns(parallel: None) -> None:
    for sizes in ({"T": 0, "H": 40}, {"T": 6, "H": 0}):
        for case in ("relu", "columns"):
            kernels = made(CASES[case], **sizes)
            inputs = seeded_inputs(kernels.graph)
            assert_right(kernels.graph, run(kernels, 4, inputs), inputs)


def test_rows_of_a_triangle_begin_after_their_end(parallel: None) -> None:
    """The loop over rows is empty for most columns of blocks."""
    text = "op f(x: f32[T, H], n: f32[B]) -> (s: f32[B, H]) { s[b, h] = sum[t in b..3](x[t, h] * n[b]) }"
    kernels = made(text, T=9, H=40, B=9)
    inputs = seeded_inputs(kernels.graph)
    for rows in (1, 2, 4):
        assert_right(kernels.graph, run(kernels, rows, inputs), inputs)
