"""The table of functions in loops: each is measured, and counts are those of the machine's code."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.hot_loops import disassembled, hot_loops, missing
from benchmarks.vector_functions import FUNCTIONS, kinds, loop_of, table
from polyfuse.codegen.math.prelude import prelude
from polyfuse.ir.dtypes import F32, F64

pytestmark = pytest.mark.skipif(shutil.which("g++") is None or bool(missing()), reason="no g++ or objdump")


def test_every_function_has_a_line() -> None:
    head, rule, *lines = table(0.01)
    assert [line.split("|")[1].strip() for line in lines] == list(FUNCTIONS)
    assert all(line.count("|") == head.count("|") == rule.count("|") for line in lines)
    assert not any(word in line for line in lines for word in ("nan", "inf"))


@pytest.mark.parametrize(("title", "least"), [("exp", 9), ("log", 12), ("erf", 12), ("tanh", 10)])
def test_vectors_take_few_multiplications(title: str, least: int) -> None:
    """As many as a polynomial has terms, and two for what is around it."""
    loop = loop_of(title, FUNCTIONS[title], F32)
    assert loop is not None
    (body,) = [
        x.body
        for x in hot_loops(disassembled(prelude(loop.called) + loop.text, "x86-64-v4"))
        if x.function == loop.symbol and not x.around
    ]
    multiplied, divided, _, whole = kinds(body)
    assert least <= multiplied <= least + 2 and divided <= 1 and whole <= 2 * least + 8


def test_gelu_of_doubles_is_not_there() -> None:
    assert loop_of("GELU", FUNCTIONS["GELU"], F64) is None
