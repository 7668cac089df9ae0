"""Whatever the text: a `DslError` with a place, quickly, or a program; never another exception."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from dsl_samples import SAMPLES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pace import in_time

from polyfuse.diagnostics import DslError
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.parse import parse_file, parse_text

MB = 1_000_000
IN_OP = "op f() {{ y = {} }}"

# name: (text, code)
HOSTILE = {
    "ten megabytes": ("x" * (10 * MB), "PF102"),
    "ten megabytes of lines": ("\n" * (10 * MB), "PF102"),
    "a megabyte in bytes, not in characters": ("# " + "é" * (600_000), "PF102"),
    "nested parentheses": ("(" * 100_000 + ")" * 100_000, "PF103"),
    "nested brackets": ("[" * 100_000, "PF103"),
    "nested braces": ("op f() " + "{" * 100_000, "PF103"),
    "closing brackets": (")" * MB, "PF106"),
    "minus chain": (IN_OP.format("-" * (MB - 100) + "x"), "PF103"),
    "not chain": (IN_OP.format("not " * 200_000 + "x"), "PF103"),
    "power chain": (IN_OP.format("x**" * 300_000 + "x"), "PF103"),
    "sum chain": (IN_OP.format("x+" * 400_000 + "x"), "PF103"),
    "conditional chain": (IN_OP.format("x if c else " * 80_000 + "x"), "PF103"),
    "names": ("x " * 400_000, "PF101"),
    "statements": ("op f() {" + "x\n" * 400_000 + "}", "PF101"),
    "operators": ("op " * 300_000, "PF101"),
    "one long name": (IN_OP.format("x" * (MB - 100) + " y"), "PF101"),
    "one long integer": (IN_OP.format("9" * (MB - 100)), "PF105"),
    "one long exponent": (IN_OP.format("1e" + "9" * (MB - 100)), "PF105"),
    "one long bad number": (IN_OP.format("1." * 400_000), "PF110"),
    "dots": (IN_OP.format("." * (MB - 100)), "PF101"),
    "quotes": ('"' * (MB - 1), "PF111"),
    "strings": ('""' * 400_000, "PF101"),
    "question marks": (IN_OP.format("?" * (MB - 100)), "PF104"),
    "accents": ("é" * 500_000, "PF104"),
    "look-alike operator": (IN_OP.format("a − b"), "PF104"),
    "look-alike letter": ("op f() { у = 1 }", "PF104"),
    "full width": (IN_OP.format("（x）"), "PF104"),
    "mathematical letter": (IN_OP.format("𝑥"), "PF104"),
    "no-break space": (IN_OP.format("a +\u00a0b"), "PF104"),
    "zero width space": (IN_OP.format("a\u200bb"), "PF104"),
    "bidi in code": (IN_OP.format("a \u202e b"), "PF104"),
    "bidi in a comment": ("# \u202e }\nop f() {}", "PF104"),
    "comment end of C": (IN_OP.format("x */ y"), "PF101"),
    "comment begin of C": (IN_OP.format("x /* y */"), "PF101"),
    "trigraph": (IN_OP.format("x ??/\n y"), "PF104"),
    "nul": (IN_OP.format("x\0"), "PF104"),
    "nul in a comment": ("# \0\nop f() {}", "PF104"),
    "escape in a comment": ("# \x1b[31m\nop f() {}", "PF104"),
    "line separator in a comment": ("# x\u2028op f() {}", "PF104"),
    "lone carriage return": ("op f() {\r}", "PF104"),
    "carriage return in a comment": ("# x\rop f() {}", "PF104"),
    "form feed": ("\fop f() {}", "PF104"),
    "second byte order mark": ("\ufeff\ufeffop f() {}", "PF104"),
    "lone surrogate": (IN_OP.format("\ud800"), "PF104"),
    "lone surrogate in a comment": ("# \udfff\nop f() {}", "PF104"),
    "surrogate in a path": ('import "\ud800.pf"', "PF104"),
    "nul in a path": ('import "a\0.pf"', "PF104"),
    "escaped quote": ('import "a\\"b"', "PF111"),
    "marker of the grammar": ("op f() { BROKEN_STATEMENT }", "PF101"),
    "end marker": (IN_OP.format("$END"), "PF104"),
    "backslash": (IN_OP.format("a \\\n b"), "PF104"),
    "preprocessor": ("op f() { y = x %:define z }", "PF101"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name: str) -> None:
    text, code = HOSTILE[name]
    parse_text("op f() {}")  # the parser is built
    begin = time.process_time()
    with pytest.raises(DslError) as caught:
        parse_text(text)
    took = time.process_time() - begin
    first = caught.value.diagnostics[0]
    assert first.code == code
    assert first.span is not None and first.span.line >= 1 and first.span.column >= 1
    assert len(str(caught.value)) < 20_000
    str(caught.value).encode("utf-8")
    assert in_time(took, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffop f() {}",
        "op f() {\r\n\ty\t=\t1\r\n}\r\n",
        "op int(main: f32) -> (__asm__: f32) { __asm__ = main }",
        "op main(int: f32, template: f32, signed: f32) { reinterpret_cast = int }",
        "# */ ??/ \\\n# \\\nop f() { y = 1 }  # 日本語 é −",
        "",
        "\n\n\t ;;; \n",
        "#",
        "op f() {}" + " " * 500_000 + "# end",
        "# x\n" * 50_000,
    ],
)
def test_accepted(text: str) -> None:
    program = parse_text(text)
    assert parse_text(format_program(program)) == program


def test_backslash_at_the_end_of_a_comment_does_not_swallow_the_next_line() -> None:
    assert len(parse_text("# x \\\nop f() {}").ops) == 1


def test_a_megabyte_of_good_program() -> None:
    line = "  y{} = sum[i](x[i] * w[i]) / N + b\n"
    body = "".join(line.format(i) for i in range(5000))
    assert len(parse_text(f"op f() {{\n{body}}}").ops[0].body) == 5000


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.pf"
    path.write_bytes(b"op f() {\n  y = 1 # caf\xe9\n}")
    with pytest.raises(DslError, match="byte 0xe9, which is not UTF-8") as caught:
        parse_file(path)
    span = caught.value.diagnostics[0].span
    assert span is not None and (span.line, span.column) == (2, 14)
    path.write_bytes(b"\xff\xfeo\0p\0")
    with pytest.raises(DslError, match="PF104"):
        parse_file(path)


alphabet = "xyN019_.,;:()[]{}+-*/%<>=!&\"'#\\ \n\t\r\0éх−\u200b" + "opinif"
KEYWORDS = ("op", "import", "let", "in", "inout", "where", "if", "else", "and", "or", "not", "for", "true")
SIGNS = ("max=", "+=", "->", "..", "...", "**", "//", "<=", "#", '"', *"()[]{}\n;=,")
OPERANDS = ("1", "1.", ".5", "1e5", "x", "max", "b...", "f32[N]", "sum[i](x)")
words = st.sampled_from([*KEYWORDS, *SIGNS, *OPERANDS])
edits = st.lists(
    st.tuples(
        st.sampled_from(["delete", "insert", "swap", "word", "copy"]),
        st.integers(0, 10**6),
        st.integers(0, 40),
    ),
    min_size=1,
    max_size=6,
)
relaxed = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))


def mutate(text: str, edit: tuple[str, int, int], word: str) -> str:
    kind, place, amount = edit
    i = place % (len(text) + 1)
    match kind:
        case "delete":
            return text[:i] + text[i + 1 + amount % 5 :]
        case "insert":
            return text[:i] + alphabet[amount % len(alphabet)] + text[i:]
        case "swap":
            return text[:i] + text[i + 1 : i + 2] + text[i : i + 1] + text[i + 2 :]
        case "word":
            return f"{text[:i]} {word} {text[i:]}"
        case _:
            return text[:i] + text[i : i + amount] * 2 + text[i + amount :]


def survives(text: str) -> None:
    """Parses or raises `DslError`; what parses survives formatting."""
    try:
        program = parse_text(text)
    except DslError as error:
        assert all(d.span is not None and d.code.startswith("PF1") for d in error.diagnostics)
        return
    formatted = format_program(program)
    again = parse_text(formatted)
    assert again == program
    assert format_program(again) == formatted
    assert sorted(c.text for c in again.comments) == sorted(c.text for c in program.comments)


@relaxed
@given(st.sampled_from(sorted(SAMPLES.values())), edits, words)
def test_mutations(text: str, changes: list[tuple[str, int, int]], word: str) -> None:
    for change in changes:
        text = mutate(text, change, word)
    survives(text)


@relaxed
@given(st.lists(words | st.sampled_from(alphabet), max_size=40))
def test_random_words(found: list[str]) -> None:
    survives(" ".join(found))
    survives(f"op f() {{ y = {' '.join(found)} }}")


@relaxed
@given(st.text(max_size=60))
def test_random_text(text: str) -> None:
    survives(text)
    survives(f"op f() {{ y = x # {text}\n}}")
