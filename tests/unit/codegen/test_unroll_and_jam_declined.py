"""Loops that rules of unroll-and-jam look for and leave as they are: the reason is told, by tensor."""

from __future__ import annotations

import pytest
from row_kernels import made

from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.codegen.decisions import DECLINED
from polyfuse.codegen.passes import Loops, Pass, PassContext, Pipeline, on_block
from polyfuse.codegen.transforms.unroll_and_jam.rule import Jam, LoopRule
from polyfuse.codegen.transforms.unroll_and_jam.weave import apart
from polyfuse.ir.cpu_core import AVX2, CpuKnobs
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.loop_ir import Block, For, Store
from polyfuse.ir.tensor_graph import Read

COLUMNS = "op f(x: f32[N, C]) -> (y: f32[C]) { y[c] = sum[n](x[n, c]) }"
BLUR = """op f(x: f32[H, W], w: f32[R, S]) -> (y: f32[H-R+1, W-S+1]) where H >= R, W >= S {
  y[p, q] = sum[r, s](x[p + r, q + s] * w[r, s])
}"""
HIGHEST = """op f(x: f32[H, W]) -> (y: f32[H-2, W-2]) where H >= 2, W >= 2 {
  y[p, q] = max[r in 0..3, s in 0..3](x[p + r, q + s])
}"""


def reasons(rule: str, text: str, **sizes: int) -> set[tuple[str, str]]:
    """Why the rule left loops as they were, and of which tensor."""
    head = f"{DECLINED}unroll-and-jam:{rule}: "
    noted = [d for k in made(text, **sizes).kernels for d in lower(k, CpuKnobs(core=AVX2)).noted]
    return {(kind.removeprefix(head), name) for kind, name in noted if kind.startswith(head)}


@pytest.mark.parametrize(
    ("rule", "text", "sizes", "reason"),
    [
        (
            "reductions",
            COLUMNS,
            {"N": 5, "C": 33},
            "terms are few, or their number is not known",
        ),
        (
            "reductions",
            COLUMNS,
            {"N": 33, "C": 1000},
            "rows are so long that no total waits for the one before it",
        ),
        (
            "stencils",
            BLUR,
            {"H": 70, "W": 300, "R": 1, "S": 33},
            "a window has more terms or rows than go at once",
        ),
        ("stencils", HIGHEST, {"H": 30, "W": 66}, "extremes are more than go at once"),
    ],
)
def test_a_reason_is_told(rule: str, text: str, sizes: dict[str, int], reason: str) -> None:
    assert reasons(rule, text, **sizes) == {(reason, "y")}


@pytest.mark.parametrize(
    ("rule", "text", "sizes"),
    [
        ("reductions", COLUMNS, {"N": 33, "C": 9}),
        ("stencils", BLUR, {"H": 70, "W": 300, "R": 3, "S": 3}),
        ("stencils", COLUMNS, {"N": 33, "C": 1000}),
    ],
)
def test_what_goes_together_or_is_no_such_loop_has_none(rule: str, text: str, sizes: dict[str, int]) -> None:
    assert not reasons(rule, text, **sizes)


def test_a_rule_leaves_iterations_that_may_need_one_another() -> None:
    rule = LoopRule("any", "", lambda k, loop, knobs: Jam(2, loop.body, apart))
    (kernel,) = made("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", N=9).kernels
    step = Store("y", (IVar("i"),), Read("y", (IVar("i") - 1,), F32))
    loops: Block = (For("i", IConst(1), IConst(9), 1, (step,)),)
    context = PassContext()
    jam = Pass("any", "", on_block(lambda k, b, cx: rule.in_block(k, b, cx.knobs)[0]))
    assert Pipeline("loops", (jam,)).run(Loops(kernel, loops), context).block == loops
    assert context.declined == {("any", "iterations may need one another"): ("y",)}
