"""Reads with a value outside, `x[i - 1 else 0.0]`: text, ranges, conditions that are left out, errors."""

from __future__ import annotations

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.builder import fn
from polyfuse.diagnostics import Diagnostic, DslError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.parse import parse_text

HEAD = "op f(x: f32[N, M], v: f32[N], k: i32[N], u: u8[N], h: f16[N]) -> (y: f32[N]) "


def graph(body: str, head: str = HEAD) -> str:
    return str(instantiate(parse_text(f"{head}{{\n{body}\n}}", "t.pf"), "f")).splitlines()[-1].strip()


def errors(body: str) -> list[Diagnostic]:
    return check_program(parse_text(f"{HEAD}{{\n{body}\n}}", "t.pf")).errors


# --- text -----------------------------------------------------------------------------------------------


def test_the_formatter_keeps_them() -> None:
    text = """op f(x: f32[N, M], k: i32[N]) -> (y: f32[N]) {
  y[i] = x[i-1, 2*i else -x[0, 0] * 2.0] + x[k[i else 0], i else 1.0 if i < 2 else 0.0]
}
"""
    assert format_program(parse_text(text, "t.pf")) == text


def test_the_builder_makes_the_same_tree() -> None:
    b = pf.ProgramBuilder()
    f = b.op("f")
    x, y, i = f.param("x", "f32", "N"), f.result("y", "f32", "N"), f.index("i")
    y[i] = x.get(i - 1, 0.5) + fn.exp(x.get((i + 1,), x[i]))
    assert parse_text(str(b), "t.pf") == b.tree()
    np.testing.assert_allclose(
        pf.compile(b.program(), target="interpret")(np.zeros(3, np.float32)), [1.5, 1.0, 1.0], rtol=1e-6
    )
    with pytest.raises(DslError, match="read without indices"):
        y[i] = x.get((), 0.0)


# --- what they stand for ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("y[i] = v[i - 1 else 0.0]", "(v[i - 1] if (0 <= i64(i - 1)) else 0.0)"),
        ("y[i] = v[i + 2 else v[i]]", "(v[i + 2] if (i64(i + 2) < i64(N)) else v[i])"),
        ("y[i] = v[N - 1 - i else 0.0]", "v[N - 1 - i]  for"),
        ("y[i] = v[i // 2 else 0.0]", "(v[i//2] if ((0 <= i64(i//2)) and (i64(i//2) < i64(N))) else 0.0)"),
        ("y[i] = x[i, 0 else 2.0]", "(x[i, 0] if (0 < i64(M)) else 2.0)"),
        ("y[i] = v[k[i] else 0.0]", "(v[k[i]] if ((0 <= i64(k[i])) and (i64(k[i]) < i64(N))) else 0.0)"),
        ("y[i] = h[i - 1 else 0.1]", "(f32(h[i - 1]) if (0 <= i64(i - 1)) else 0.1)"),
    ],
)
def test_conditions_that_the_ranges_leave_open(body: str, right: str) -> None:
    assert right in graph(body)


def test_a_negative_number_after_a_call_is_outside() -> None:
    text = """op g[P: size](x: f32[N]) -> (y: f32) { y = x[P - 2 else 7.0] }
op f(x: f32[N]) -> (y: f32) { y = g(x, P=1) }"""
    x = np.arange(3, dtype=np.float32)
    assert pf.compile(text, "f", target="interpret")(x) == 7.0
    assert pf.compile(text, "g", target="interpret")(x, P=3) == 1.0


def test_a_recurrence_begins_with_it() -> None:
    text = "op f(x: f32[N]) -> (c: f32[N]) { c[i] = c[i-1 else 10.0] + x[i] }"
    for n in (0, 1, 5):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(pf.compile(text, target="interpret")(x), 10 + np.cumsum(x))


def test_outside_is_evaluated_only_there() -> None:
    """What stands after `else` reads under the condition that the index is outside."""
    assert not errors("y[i] = v[i + 2 else v[i - N + 2]] for i in 0..N")
    found = errors("y[i] = v[i + 2 else v[i - N]]")
    assert not found  # proofs come later
    with pytest.raises(DslError, match="PF350"):
        pf.parse(f"{HEAD}{{ y[i] = v[i + 2 else v[i - N]] }}").op("f").specialize(N=5, M=1)


def test_functions_take_them() -> None:
    text = "fn twice(a) = a + a\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = twice(x[i-1 else 1.0]) }"
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(pf.compile(text, target="interpret")(x), [2, 0, 2])


def test_old_takes_them() -> None:
    text = """op f(inout p: f32[N], x: f32[N]) -> (y: f32[N]) {
  p[i] = p[i] + x[i]
  y[i] = old(p[i-1 else 5.0])
}"""
    assert not check_program(parse_text(text, "t.pf")).found
    warned = check_program(parse_text(text.replace("old(p[i-1 else 5.0])", "p[i-1 else 5.0]"), "t.pf")).found
    assert [d.code for d in warned] == ["PF293"]
    inside = text.replace("else 5.0", "else p[0]")  # what is outside says nothing of `old`
    assert [d.code for d in check_program(parse_text(inside, "t.pf")).found] == ["PF293"]


# --- ranges -------------------------------------------------------------------------------------------------


def test_no_range_follows_from_them() -> None:
    (found,) = errors("t[j] = x[0, j else 0.0]\ny[i] = v[i] + t[0]")
    assert found.code == "PF302" and found.hint is not None
    assert "for j in 0..M" in found.hint
    assert not errors("t[j] = x[0, j else 0.0] for j in 0..M\ny[i] = v[i] + t[0 else 0.0]")


def test_ranges_follow_from_what_its_index_reads() -> None:
    text = "t[j] = v[k[j] else 0.0]\ny[i] = t[i]"
    assert not errors(text)


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code", "column", "words"),
    [
        ("y[i] = v[i - 1 else k[i]]", "PF205", 8, "the element and the value outside are f32 and i32"),
        ("y[i] = f32(k[i - 1 else 0.5])", "PF205", 12, "does not fit the type i32"),
        ("y[i] = f32(u[i - 1 else 256])", "PF217", 25, "no value of dtype u8"),
        ("y[i] = x[i - 1 else 0.0]", "PF204", 8, "'x' has 2 axes, got 1 index"),
        ("y[i] = z[i - 1 else 0.0]", "PF201", 8, "unknown tensor 'z'"),
        ("y[i] = v[i - 1 else z]", "PF201", 21, "unknown name 'z'"),
        ("y[i] = v[v[i] else 0.0]", "PF225", 10, "this index is a float"),
        ("y[i] = y[i else 0.0] * v[i]", "PF355", 8, ""),
    ],
)
def test_errors(body: str, code: str, column: int, words: str) -> None:
    if code == "PF355":
        with pytest.raises(DslError, match="PF355"):
            pf.parse(f"{HEAD}{{ {body} }}").op("f").specialize(N=5, M=1)
        return
    found = errors(body)[0]
    assert found.span is not None
    assert (found.code, found.span.line, found.span.column) == (code, 2, column)
    assert words in found.message


def test_reads_within_reads_have_a_limit() -> None:
    """Each index that is data stands in its condition twice."""
    deep = "k[i]"
    for _ in range(6):
        deep = f"k[{deep} else 0]"
    assert not errors(f"y[i] = v[i] * f32({deep})")
    for _ in range(8):
        deep = f"k[{deep} else 0]"
    assert errors(f"y[i] = v[i] * f32({deep})")[0].code == "PF246"


@pytest.mark.parametrize(
    ("body", "column", "words"),
    [
        ("y[i else 0.0] = v[i]", 5, "expected"),
        ("y[i] = v[else 0.0]", 10, "expected an index"),
        ("y[i] = v[i else]", 16, "expected an expression"),
        ("y[i] = v[i else 0.0, 1]", 20, "expected"),
        ("y[i] = v[i if i > 0]", 20, "expected 'else' and a value"),
    ],
)
def test_errors_of_syntax(body: str, column: int, words: str) -> None:
    with pytest.raises(DslError) as caught:
        parse_text(f"{HEAD}{{\n{body}\n}}", "t.pf")
    found = caught.value.diagnostics[0]
    assert found.span is not None and (found.code, found.span.column) == ("PF101", column)
    assert words in found.message
