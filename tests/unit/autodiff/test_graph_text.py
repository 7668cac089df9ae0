"""Graphs as text: parsed again, the text gives the graph."""

from __future__ import annotations

import pytest
from programs import random_program

import polyfuse as pf
from polyfuse.api import Operator
from polyfuse.autodiff.graph_text import operator_text
from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.dtypes import F32, U32
from polyfuse.ir.tensor_graph import Apply, Read, TensorGraph


def lines(graph: TensorGraph) -> list[str]:
    """What a graph says, without the names of statements."""
    text = str(graph).replace("(-inf)", "-inf").splitlines()[1:]
    return sorted(x.strip().split(": ", 1)[-1] for x in text)


def check(operator: Operator) -> None:
    graph = operator.graph()
    assert lines(pf.parse(operator_text(graph)).op().graph()) == lines(graph)


# A mean of rows that data bound is a quotient of two statements, and both have these bounds.
@pytest.mark.thin(3)
@pytest.mark.parametrize("name", [n for n in pf.stdlib.ops if n not in ("segment_mean", "segment_softmax")])
def test_the_library(name: str) -> None:
    check(pf.stdlib.op(name))


@pytest.mark.parametrize("seeds", [range(k, k + 10) for k in range(0, 20, 10)], ids=str)
def test_random_programs(seeds: range) -> None:
    for seed in seeds:
        check(pf.parse(random_program(seed).text).op())


def test_floats_of_8_bits_are_cast() -> None:
    text = """op f(x: f8e5m2[N], s: f32) -> (y: f8e5m2[N], z: f16[N]) {
      y[i] = f8e5m2(x[i] * s)
      z[i] = x[i] * s
    }"""
    check(pf.parse(text).op())
    assert "dx[i] = f8e5m2(" in str(pf.grad(pf.parse(text)).backward.program)


def test_comments_come_first() -> None:
    text = operator_text(pf.stdlib.relu.graph(), ["one", "two"])
    assert text.startswith("# one\n# two\nop relu(x: f32[B_0])")


def test_what_the_language_has_no_words_for_is_refused() -> None:
    graph = pf.parse("op f(x: f32[N]) -> (y: u32[N]) { y[i] = bits(x[i]) }").op().graph()
    (s,) = graph.statements
    assert isinstance(s.expr, Apply) and isinstance(s.expr.args[0], Read)
    secret = Apply("bits_f16", s.expr.args, U32)
    assert s.expr.args[0].dtype is F32
    from dataclasses import replace

    with pytest.raises(ArgumentError) as e:
        operator_text(replace(graph, statements=(replace(s, expr=secret),)))
    assert e.value.diagnostics[0].code == "PF794"
