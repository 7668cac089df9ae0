"""Programs that must fail: code, line, column and words of the message or the hint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.diagnostics import Diagnostic, DslError
from polyfuse.frontend_dsl.syntax.build_ast import MAX_HEIGHT
from polyfuse.frontend_dsl.syntax.lexical import MAX_BRACKETS, MAX_SOURCE_BYTES
from polyfuse.frontend_dsl.syntax.parse import parse_text

DOCS = Path(__file__).parents[2] / "docs" / "errors.d"


def failing(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(DslError) as caught:
        parse_text(text, "t.pf")
    return caught.value.diagnostics


def where(found: Diagnostic) -> tuple[str, int, int]:
    assert found.span is not None
    return found.code, found.span.line, found.span.column


# The statement stands on line 2; (statement, code, column, words of the rendered error).
STATEMENTS = [
    ("y[i] =", "PF101", 7, "expected an expression after '='"),
    ("y[i] = x[i] x[i]", "PF101", 13, "expected an operator or the end of the line after ']', found 'x'"),
    ("y[i] = 3 x", "PF101", 10, "a product is written with '*'"),
    ("y[i] = x[i] if i > 0", "PF101", 21, "expected 'else' and a value after '0'"),
    ("y[i] = (a if b)", "PF101", 15, "value if condition else other"),
    ("y[i] == 3", "PF101", 6, "define with '='"),
    ("// scale", "PF101", 1, "comments begin with '#'"),
    ("fn sq(a) = a * a", "PF101", 4, "not inside an operator"),
    ("y[i] = x[i] * 0.5f", "PF110", 15, "write 0.5"),
    ("y[i] = x[i] * 2F", "PF110", 15, "write 2.0"),
    ("y[i] := x[i]", "PF101", 6, "define with '='"),
    ("y[i] = x[i, :]", "PF101", 13, "there are no slices"),
    ("y[i] = x[i][j]", "PF101", 12, "one pair of brackets"),
    ("y[i] = f(x)[i]", "PF101", 12, "only names have indices"),
    ("y[i] = x[i] for i in 0:N", "PF101", 23, "a range is written '0..N'"),
    ("y[i] = x[i] for i in range(N)", "PF101", 30, "for i in 0..N"),
    ("y[i] = x[i]  // twice the value", "PF101", 23, "comments begin with '#'"),
    ("let z = 3.0", "PF101", 7, "a definition needs none: z = ..."),
    ("y[i] = x[i] = 3", "PF101", 13, "compare with '=='"),
    ("y[i] -= 3", "PF101", 6, "scatters are '+=', 'max=' and 'min='"),
    ("y[i] max = 3", "PF101", 6, "'max=' is written without a blank"),
    ("y[] = 3", "PF101", 3, "expected an index after '['"),
    ("y[i] = f(,)", "PF101", 10, "expected an expression or ')' after '('"),
    ("y[i] = f(x y)", "PF101", 12, "expected an operator, ',' or ')' after 'x'"),
    ("y[i] = x[i j]", "PF101", 12, "expected an operator, ',' or ']' after 'i'"),
    ("y[i] = f(a=1, 2)", "PF101", 15, "may not follow a keyword argument"),
    ("y[i] = x[i] for i", "PF101", 18, "expected 'in' after 'i'"),
    ("y[i] = x[i] for i in N", "PF101", 23, "expected '..' after 'N'"),
    ("y[i] = x[i] for in 0..3", "PF101", 20, "expected 'in' after 'in', found '0'"),
    ("y[i] = sum[i j](x)", "PF101", 14, "expected ',', 'in' or ']' after 'i'"),
    ("y[i] = +3", "PF101", 8, "there is no unary '+'"),
    ('y[i] = "s"', "PF101", 8, "strings are only used with import"),
    ("y[i] = x*/3", "PF101", 10, "expected an expression after '*', found '/'"),
    ("y[i] = if", "PF101", 8, "expected an expression after '=', found 'if'"),
    ("y, m = f(x)", "PF101", 2, "(y, m) = f(x)"),
    ("y: f32 = 3", "PF101", 2, "let y: f32[...]"),
    ("(y, m) = 3", "PF101", 10, "only a call of an operator gives several tensors"),
    ("f(x) = x", "PF101", 6, "indices stand in brackets: y[i] = ..."),
    ("f(x) + 1", "PF101", 6, "the end of the line or '}' after ')'"),
    ("return y", "PF101", 8, "a result is defined by its name"),
    ("let z f32", "PF101", 7, "expected ':' after 'z'"),
    ("let z:", "PF101", 7, "expected a dtype such as f32 after ':'"),
    ("sum[i](x[i])", "PF101", 1, "a reduction is part of a definition"),
    ("for i in 0..3", "PF101", 1, "ranges follow their definition"),
    ("if c { y = 1 }", "PF101", 1, "expected a statement"),
    ("else 3", "PF101", 1, "no statement begins with one"),
    ("y = not", "PF101", 8, "expected an expression after 'not'"),
    ('import "x.pf"', "PF101", 8, "imports stand before the first operator"),
    ("y = 1 = = 2", "PF101", 7, "compare with '=='"),
    ("y = x − 1", "PF104", 7, "it looks like ASCII '-'"),
    ("y = хx", "PF104", 5, "it looks like ASCII 'x'"),
    ("y = λ", "PF104", 5, "names are made of ASCII letters"),
    ("y = x && z", "PF104", 7, "write 'and'"),
    ("y = x || z", "PF104", 7, "write 'or'"),
    ("y = !z", "PF104", 5, "write 'not'"),
    ("y = x ^ ^ 2", "PF101", 9, "expected an expression after '^'"),
    ("y = x ~ 2", "PF101", 7, "expected an operator"),
    ("y = c ? a : b", "PF104", 7, "a if condition else b"),
    ("y = a @ b", "PF104", 7, "sum[k]"),
    ("y = a.b", "PF104", 6, "'.' is not part of the language"),
    ("y = 18446744073709551616", "PF105", 5, "this integer is too large"),
    ("y = -0x1_0000_0000_0000_0000", "PF105", 6, "this integer is too large"),
    ("y = 1e400", "PF105", 5, "this number is too large"),
    ("y = 1.", "PF110", 5, "digits on both sides of its point"),
    ("y = .5", "PF110", 5, "digits on both sides of its point"),
    ("y = 1.2.3", "PF110", 5, "not well formed"),
    ("y = 007", "PF110", 5, "write 7"),
    ("y = 1x", "PF110", 5, "neither a number nor a name"),
    ("y = 0x", "PF110", 5, "neither a number nor a name"),
    ("y = 0x1g", "PF110", 5, "neither a number nor a name"),
    ("y = 0x_1", "PF110", 5, "'_' may only stand between two digits"),
    ("y = 1__0", "PF110", 5, "'_' may only stand between two digits"),
    ("y = avg[i](x[i])", "PF109", 5, "'avg' is not a reduction"),
    ('y = "s', "PF111", 5, "this string has no end"),
]


@pytest.mark.parametrize(("statement", "code", "column", "words"), STATEMENTS)
def test_statement(statement: str, code: str, column: int, words: str) -> None:
    found = failing(f"op f() {{\n{statement}\n}}\n")
    assert where(found[0]) == (code, 2, column)
    assert words in found[0].render()
    assert len(found) == 1


# Whole files: (text, code, line, column, words).
FILES = [
    ("y = 3", "PF101", 1, 1, "expected an operator definition ('op') or 'import'"),
    ("op (x: f32) {}", "PF101", 1, 4, "expected the operator's name after 'op'"),
    ("op f", "PF101", 1, 4, "found the end of the file"),
    ("op f(x)", "PF101", 1, 7, "expected ':' after 'x'"),
    ("// scale", "PF101", 1, 1, "comments begin with '#'"),
    ("fn f(x: f32) = x", "PF101", 1, 7, "parameters of functions have no types"),
    ("op f(x: f32[N]? = None) {}", "PF104", 1, 15, "it may be left out"),
    ("op f(x: )", "PF101", 1, 9, "expected a dtype such as f32"),
    ("op f(x: f32[])", "PF101", 1, 13, "rank 0 is written without brackets"),
    ("op f(x: f32 y: f32) {}", "PF101", 1, 13, "expected ',', ')', '[' or '=' after 'f32', found 'y'"),
    ("op f(x: f32 = N) {}", "PF101", 1, 15, "expected a number, true or false after '='"),
    ("op f(x: f32) -> y: f32 {}", "PF101", 1, 17, "expected '(' after '->'"),
    ("op f(x: f32) -> (inout y: f32) {}", "PF101", 1, 18, "expected a name after '('"),
    ("op f() where {}", "PF101", 1, 14, "expected an expression after 'where'"),
    ("op f()\n\ny = 3", "PF101", 1, 7, "expected '->', 'where' or '{' after ')'"),
    ("op f() { y = 1 } }", "PF106", 1, 18, "'}' closes nothing"),
    ("op f() {\ny = f(x[i)\n}", "PF106", 2, 10, "expected ']' first"),
    ("op f() {\ny = (1\n}", "PF106", 3, 1, "'(' is opened here"),
    ("op f() {\ny = 1\n", "PF106", 1, 8, "'{' is never closed"),
    ("op f() {}\nop g() {}\nop f() {}", "PF108", 3, 4, "operator 'f' is defined twice"),
    ('op f() {}\nimport "x.pf"', "PF101", 2, 1, "imports stand before the first operator"),
    ("import x.pf", "PF101", 1, 8, "a file name in double quotes"),
    ("import 'x.pf'", "PF104", 1, 8, "strings stand in double quotes"),
    ("x" * (MAX_SOURCE_BYTES + 1), "PF102", 1, MAX_SOURCE_BYTES, "the source is too long"),
    ("(" * (MAX_BRACKETS + 1), "PF103", 1, MAX_BRACKETS + 1, "nested too deep"),
]


@pytest.mark.parametrize(("text", "code", "line", "column", "words"), FILES, ids=range(len(FILES)))
def test_file(text: str, code: str, line: int, column: int, words: str) -> None:
    found = failing(text)
    assert where(found[0]) == (code, line, column)
    assert words in found[0].render()
    assert len(found) == 1


@pytest.mark.parametrize(
    "expression",
    [
        "-" * 300 + "x",
        "not " * 300 + "x",
        "**".join("x" * 300),
        "**-".join("x" * 300),
        " + ".join("x" * 5000),
        "x if c else " * 300 + "x",
        "x[i] * " * 250 + "x",
        "t[" * 150 + "i" + "]" * 150,
        "(" * 150 + "--x" + " + 1)" * 150 + "-1" * 60,
    ],
)
def test_too_deep(expression: str) -> None:
    (found,) = failing(f"op f() {{\n  y = {expression}\n}}")
    assert found.code == "PF103" and found.span is not None and found.span.line == 2
    assert str(MAX_HEIGHT) in found.message


def test_several_errors_are_reported_together() -> None:
    text = (
        "op f() {\n  a = 1 2\n  b = 3\n  c = x[\n  ] + 3\n  d = f(1, , 2); e = / 2\n  ok = 1\n}\n"
        "op g(x f32) {\n  y = also unreadable\n}\n"
        "op h() {\n  z = 1 +\n}\nop h() {}"
    )
    assert [where(d)[1:] for d in failing(text)] == [
        (2, 9),
        (4, 9),
        (6, 12),
        (6, 22),
        (9, 8),
        (13, 10),
        (15, 4),
    ]


def test_no_echo_after_a_broken_statement() -> None:
    (found,) = failing("op f() {\n  a = = x\n    else y\n  b = 1\n}")
    assert where(found) == ("PF101", 2, 7)
    (found,) = failing("op f() {\n  a = x if c\n  b = 1\n}")
    assert where(found) == ("PF101", 2, 13)


def test_at_most_twenty_errors() -> None:
    assert len(failing("op f() {\n" + "a = = 1\n" * 100 + "}")) == 20
    assert len(failing("é" * 100)) == 20


def test_both_brackets_are_shown() -> None:
    (found,) = failing("op f() {\n  y = (a[i + 1)\n}")
    assert where(found) == ("PF106", 2, 15)
    assert [(s.line, s.column) for s, _ in found.related] == [(2, 9)]


def test_carets_are_under_the_error() -> None:
    (found,) = failing("op f() {\n  y = αβ\n}")[:1]
    line, carets = found.render().splitlines()[1:3]
    assert line.index("α") == carets.index("^")


def test_every_code_has_its_page() -> None:
    codes = {code for _, code, *_ in STATEMENTS} | {code for _, code, *_ in FILES} | {"PF107", "PF112"}
    for code in sorted(codes):
        text = (DOCS / f"{code}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {code}: ")


@pytest.mark.parametrize("code", ["PF101", "PF104", "PF106", "PF109", "PF110"])
def test_pages_show_what_is_printed(code: str) -> None:
    """The first block of a page is a program (or a statement on line 2 of one), the second its error."""
    page = (DOCS / f"{code}.md").read_text(encoding="utf-8")
    text, shown = (block.strip("\n") for block in page.split("```")[1:4:2])
    found = failing(text if text.startswith("op") else f"op f() {{\n{text}\n}}")
    printed = found[0].render().removesuffix(f"\n  more: polyfuse explain {code}")
    assert shown == printed


def test_indices_in_indices_compile_as_fast_as_others() -> None:
    """What estimates asked of an index that is data doubled with each index inside it."""
    index = "i"
    for _ in range(40):
        index = f"k[min(max({index}, 0), N - 1)]"
    text = f"op f(x: f32[N], k: i64[N]) -> (y: f32[N]) where N >= 1 {{ y[i] = x[{index}] for i in 0..N }}"
    x, k = np.arange(5, dtype=np.float32), np.array([1, 2, 3, 4, 0])
    want = np.arange(5)
    for _ in range(40):
        want = k[want]
    assert np.array_equal(pf.compile(text, target="interpret")(x, k), x[want])
