"""What an editor is told of a text, without the protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyfuse.lsp.document import Document, RenameError
from polyfuse.lsp.symbols import Kind, at

TEXT = """\
# Rows, scaled.
op rows[F: float](x: F[T, H], w: F[H]) -> (y: F[T, H]) where H >= 1 {
  ms[t] = sum[h](x[t, h] ** 2) / H
  y[t, h] = x[t, h] * rsqrt(ms[t]) * w[h]
}

op twice(x: f32[N, 4], w: f32[4]) -> (y: f32[N, 4]) {
  a = rows(x, w)
  y[n, k] = a[n, k] + sum[j in 0..2](w[j])
}
"""
CALLING = "op f(x: f32[T, H]) -> (y: f32[T, H]) {\n  y = softmax(x)\n}\n"


def document(text: str = TEXT) -> Document:
    return Document(text, "t.pf")


def place(marked: str, text: str = TEXT) -> int:
    """The place of | in a line that is given with its surroundings."""
    before, bar, after = marked.partition("|")
    assert bar and text.count(before + after) >= 1, marked
    return text.index(before + after) + len(before)


def hover(marked: str, text: str = TEXT) -> str:
    found = document(text).hover(place(marked, text))
    assert found is not None
    return found[1]


def definition(marked: str, text: str = TEXT) -> tuple[int, str]:
    span = document(text).definition(place(marked, text))
    assert span is not None
    return span.line, span.text


# --- names ---


def test_variables_of_a_computed_left_side() -> None:
    body = "  y[2*d] = x[d]\n  y[2*d + 1] = 0.0 for d in 0..N"
    text = f"op f(x: f32[N], d: f32[N]) -> (y: f32[2*N]) {{\n{body}\n}}\n"
    found = [(s.name, s.kind) for s in document(text).symbols if s.span.line == 2]
    assert found == [("y", Kind.TENSOR), ("d", Kind.VARIABLE), ("x", Kind.TENSOR), ("d", Kind.VARIABLE)]


def test_kinds_and_scopes() -> None:
    found = document().symbols
    kinds = [(s.name, s.kind) for s in found if s.span.line in (2, 3)]
    assert kinds[:4] == [
        ("rows", Kind.OPERATOR),
        ("F", Kind.GENERIC),
        ("x", Kind.TENSOR),
        ("F", Kind.GENERIC),
    ]
    assert ("T", Kind.SIZE) in kinds and ("t", Kind.VARIABLE) in kinds
    inner, outer = at(found, place("sum[|h]")), at(found, place("y[t, |h]"))
    assert inner is not None and outer is not None and not inner.is_same(outer)


def test_references() -> None:
    d = document()
    assert [s.line for s in d.references(place("|ms[t] ="))] == [3, 4]
    assert [s.line for s in d.references(place("op |rows"))] == [2, 8]
    assert [s.column for s in d.references(place("sum[|h]"))] == [15, 23]
    assert len(d.references(place("x: F[T, |H]"))) == 5
    assert d.references(place("| = rows(")) == d.references(place("|a = rows("))
    assert d.references(0) == []


# --- definitions ---


@pytest.mark.parametrize(
    ("marked", "line", "text"),
    [
        ("rsqrt(|ms[t])", 3, "ms"),
        ("a = |rows(", 2, "rows"),
        ("sum[h](|x[t, h]", 2, "x"),
        ("** 2) / |H", 2, "H"),
        ("|y: F[T, H]", 4, "y"),
        ("y[t, |h] =", 4, "h"),
        ("(w[|j])", 9, "j"),
    ],
)
def test_definitions(marked: str, line: int, text: str) -> None:
    assert definition(marked) == (line, text)


def test_definitions_in_the_library() -> None:
    span = document(CALLING).definition(place("|softmax(x)", CALLING))
    assert span is not None and span.source.name == "stdlib/softmax.pf" and span.text == "softmax"


def test_definitions_in_an_imported_file(tmp_path: Path) -> None:
    (tmp_path / "other.pf").write_text("op g(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }\n")
    text = 'import "other.pf"\nop f(x: f32[N]) -> (y: f32[N]) { y = g(x) }\n'
    d = Document(text, str(tmp_path / "t.pf"))
    span = d.definition(place("y = |g(x)", text))
    assert span is not None and span.source.name == str(tmp_path / "other.pf") and span.column == 4
    with pytest.raises(RenameError, match="another file"):
        d.renamed(place("y = |g(x)", text), "h")


# --- hover ---


@pytest.mark.parametrize(
    ("marked", "parts"),
    [
        ("rsqrt(|ms[t])", ["ms: f32[T]", "(F = f32)", "ms[t] = sum[h](x[t, h] ** 2) / H"]),
        ("sum[h](|x[t, h]", ["x: F[T, H]"]),
        ("|y[t, h] =", ["y: F[T, H]", "y[t, h] = x[t, h] * rsqrt(ms[t]) * w[h]"]),
        ("|ms[t] =", ["ms: f32[T]"]),
        ("y[|t, h] =", ["t in 0..T"]),
        ("sum[|h](", ["h in 0..H"]),
        ("sum[|j in", ["j in 0..2"]),
        ("a[n, |k]", ["k in 0..4"]),
        ("/ |H", ["size `H`", "`x: F[T, H]`", "`w: F[H]`", "where `H >= 1`"]),
        (
            "a = |rows(",
            ["op rows[F: float](x: F[T, H], w: F[H]) -> (", "where H >= 1", "Rows, scaled."],
        ),
        ("|rsqrt(", ["rsqrt(x)"]),
        ("x: |F[T, H]", ["F: float", "F = f32"]),
    ],
)
def test_hover(marked: str, parts: list[str]) -> None:
    shown = hover(marked)
    assert all(p in shown for p in parts), shown


def test_hover_of_a_library_operator_shows_its_comment() -> None:
    assert "op softmax[F: float](x: F[B..., H])" in hover("|softmax(x)", CALLING)


def test_nothing_to_hover() -> None:
    assert document().hover(place("# |Rows")) is None
    assert document("op f(").hover(3) is None


# --- renaming ---


def after_rename(marked: str, new: str, text: str = TEXT) -> str:
    for span in reversed(document(text).renamed(place(marked, text), new)):
        text = text[: span.start] + new + text[span.end :]
    return text


def test_renaming() -> None:
    assert after_rename("rsqrt(|ms[t])", "mean_square") == TEXT.replace("ms[t]", "mean_square[t]")
    assert after_rename("sum[|h]", "j") == TEXT.replace("sum[h](x[t, h]", "sum[j](x[t, j]")
    assert after_rename("op |rows", "lines") == TEXT.replace("rows(", "lines(").replace("rows[", "lines[")
    assert after_rename("* |w[h]", "v") == TEXT.replace("w: F", "v: F").replace("* w[h]", "* v[h]")


def test_renaming_of_a_size_parameter() -> None:
    text = "op f[K: size = 2, S: size = K](x: f32[K*N]) -> (y: f32[N]) { y[i] = x[i*K] * S }"
    assert after_rename("op f[|K", "M", text) == text.replace("K", "M")


@pytest.mark.parametrize(
    ("marked", "new", "why"),
    [
        ("rsqrt(|ms[t])", "x", "called 'x' already"),
        ("rsqrt(|ms[t])", "2x", "not a name"),
        ("rsqrt(|ms[t])", "else", "not a name"),
        ("op |rows", "twice", "called 'twice' already"),
        ("|rsqrt(", "f", "no name here"),
        ("# |Rows", "f", "no name here"),
    ],
)
def test_renaming_that_is_refused(marked: str, new: str, why: str) -> None:
    with pytest.raises(RenameError, match=why):
        document().renamed(place(marked), new)


def test_a_parameter_that_a_keyword_names_is_not_renamed() -> None:
    text = TEXT.replace("rows(x, w)", "rows(x, w=w)")
    with pytest.raises(RenameError, match="would not mean the same"):
        document(text).renamed(place(", |w: F[H]", text), "scale")


# --- completion ---


def proposed(text: str, kind: str | None = None) -> list[str]:
    """What is proposed at | in a text."""
    offset = text.index("|")
    found = document(text.replace("|", "")).proposals(offset)
    return [p.label for p in found if kind in (None, p.kind)]


def test_completion_at_the_top() -> None:
    assert proposed("|") == ["op", "import"]
    assert proposed(TEXT + "|") == ["op", "import"]


def test_completion_of_types() -> None:
    assert "bf16" in proposed("op f[F: float](x: |") and "F" in proposed("op f[F: float](x: |")
    assert proposed("op f[F: float, K: |") == ["float", "int", "number", "size"]


def test_completion_in_a_body() -> None:
    text = TEXT.replace("rsqrt(ms[t])", "rsqrt(|")
    assert {"ms", "x", "w", "T", "H", "t", "h"} <= set(proposed(text, "name"))
    assert "a" not in proposed(text, "name")  # of the other operator
    assert {"exp", "rsqrt", "sum", "argmax", "old"} <= set(proposed(text, "function"))
    assert {"softmax", "layer_norm"} <= set(proposed(text, "operator"))
    assert "rows" in proposed(TEXT.replace("a = rows(x, w)", "a = |rows(x, w)"), "operator")


@pytest.mark.parametrize("text", ["# so |", 'import "a|', "op f() {\n  y = 1.0  # |\n}"])
def test_no_completion_in_comments_and_strings(text: str) -> None:
    assert proposed(text) == []
