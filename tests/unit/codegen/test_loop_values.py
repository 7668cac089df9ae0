"""Integers of compared loops wrap as those of emitted code do."""

from __future__ import annotations

import pytest

from polyfuse.codegen.analysis.loop_values import LoopProgram, Memories
from polyfuse.ir.dtypes import BY_NAME, F32, DType
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.loop_ir import Store, Update
from polyfuse.ir.tensor_graph import Apply, Cast, Const, Expr, IndexValue

I8, I32, U8, U32, I64 = (BY_NAME[n] for n in ("i8", "i32", "u8", "u32", "i64"))
PLACE = (IConst(0),)


def left(*nodes: Store | Update, dtype: DType) -> int:
    """What nodes leave in the one element of an array."""
    p, memories = LoopProgram({}), Memories()
    p.block(nodes)
    p.run(memories, {}, 100)
    return memories.of("y", dtype)[0,]


def apply(op: str, dtype: DType, *values: int) -> Expr:
    return Apply(op, tuple(Const(v, dtype) for v in values), dtype)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (apply("add", I32, 2**31 - 1, 1), -(2**31)),
        (apply("mul", I32, 2**16 + 1, 2**16), 2**16),
        (apply("mul", I64, 2**40, 3), 3 * 2**40),
        (apply("sub", U8, 3, 5), 254),
        (apply("neg", U32, 1), 2**32 - 1),
        (apply("neg", I8, -128), -128),
        (apply("abs", I8, -128), -128),
        (apply("floordiv", I8, -128, -1), -128),
        (Cast(Const(300, I32), U8), 44),
        (Cast(Const(200, U8), I8), -56),
        (Cast(Const(2.0**33 + 7, F32), I32), 7),
        (IndexValue(IConst(2**32 + 5), I32), 5),
    ],
)
def test_integers_wrap(value: Expr, expected: int) -> None:
    assert left(Store("y", PLACE, value), dtype=value.dtype) == expected


@pytest.mark.parametrize(("op", "neutral"), [("min", 2**31 - 1), ("max", -(2**31))])
def test_the_neutral_element_of_an_extreme_bounds_all_values(op: str, neutral: int) -> None:
    """Numbers of unknown functions are large, and their products larger."""
    unknown = Apply("xor", (Const(5, I32), Const(7, I32)), I32)
    value = Apply("mul", (unknown, Apply("or", (Const(9, I32), Const(2, I32)), I32)), I32)
    first = Store("y", PLACE, Const(neutral, I32))
    stored = left(Store("y", PLACE, value), dtype=I32)
    assert left(first, Update("y", PLACE, op, value), dtype=I32) == stored
    negative = Apply("neg", (value,), I32)
    assert left(first, Update("y", PLACE, op, negative), dtype=I32) == -stored
