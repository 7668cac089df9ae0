"""Operators on bits: how tightly they bind, what they mean of indices and bools, and what is refused."""

from __future__ import annotations

import ast as python
import itertools

import pytest

import polyfuse as pf
from polyfuse.builder import fn, literal
from polyfuse.diagnostics import Diagnostics, DslError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.expr_text import expr_text
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import I32, I64, U16, U32, U64
from polyfuse.ir.intervals import of_tree
from polyfuse.ir.tensor_graph import Apply, Const, Read
from polyfuse.poly.legality.ranges import prove_ranges

HEAD = "op f(a: u32[N], k: i32[N], l: i64[N], w: u64[N], m: bool[N], x: f32[N]) -> "
SIGNS = {
    "BitOr": "|", "BitXor": "^", "BitAnd": "&", "LShift": "<<", "RShift": ">>", "Add": "+", "Sub": "-",
    "Mult": "*", "FloorDiv": "//", "Mod": "%", "Pow": "**", "Lt": "<", "USub": "-", "Invert": "~",
}  # fmt: skip


def right(text: str, dtype: str = "u32") -> str:
    """The right side of a definition, as the graph has it."""
    program = parse_text(f"{HEAD}(y: {dtype}[N]) {{ y[i] = {text} }}", "t.pf")
    return str(instantiate(program, "f")).splitlines()[-1].partition(" = ")[2].partition("  for ")[0].strip()


def refused(text: str, dtype: str = "u32") -> tuple[str, str, str]:
    program, errors = parse_text(f"{HEAD}(y: {dtype}[N]) {{ y[i] = {text} }}", "t.pf"), Diagnostics()
    try:
        prove_ranges(instantiate(program, "f"), {"N": 4}, errors)
    except DslError as error:
        errors.found.extend(error.diagnostics)
    (found,) = errors.errors
    return found.code, found.message, found.hint or ""


def ours(e: ast.Expr) -> str:
    match e:
        case ast.Binary(op, left, right):
            return f"({ours(left)} {op} {ours(right)})"
        case ast.Compare((left, right), (op,)):
            return f"({ours(left)} {op} {ours(right)})"
        case ast.Unary(op, arg):
            return f"({op}{ours(arg)})"
        case ast.Number(_, text):
            return text
    raise AssertionError(e)


def pythons(e: python.expr) -> str:
    match e:
        case python.BinOp(left, op, right):
            return f"({pythons(left)} {SIGNS[type(op).__name__]} {pythons(right)})"
        case python.Compare(left, [op], [right]):
            return f"({pythons(left)} {SIGNS[type(op).__name__]} {pythons(right)})"
        case python.UnaryOp(op, operand):
            return f"({SIGNS[type(op).__name__]}{pythons(operand)})"
        case python.Constant(value):
            return str(value)
    raise AssertionError(e)


def test_precedence_is_that_of_python() -> None:
    signs = [s for s in dict.fromkeys(SIGNS.values()) if s != "~"]
    for first, second, third in itertools.product(signs, repeat=3):
        text = f"1 {first} -2 {second} 3 {third} ~4"
        if (first, second, third).count("<") > 1:
            continue  # a chain
        (define,) = parse_text(f"op f() -> (y: i64) {{ y = {text} }}", "t.pf").ops[0].body
        assert isinstance(define, ast.Define)
        assert ours(define.value) == pythons(python.parse(text, mode="eval").body)
        assert expr_text(define.value) == text


def test_unary_ones_are_looser_than_powers() -> None:
    assert right("~a[i] ** 2") == right("~(a[i] ** 2)") != right("(~a[i]) ** 2")
    assert right("~-~a[i]") == "(~(-(~a[i])))"
    assert right("~a[i] << 1") == right("(~a[i]) << 1")


def test_a_line_goes_on_at_them() -> None:
    for op in ("|", "^", "&", "<<", ">>"):
        assert right(f"a[i]\n  {op} 3") == right(f"a[i] {op}\n 3") == right(f"a[i] {op} 3")


def test_the_formatter_breaks_lines_at_the_loosest() -> None:
    terms = " | ".join(f"a[i] << {k} & 0xff_{k}0" for k in range(10, 20))
    program = parse_text(f"{HEAD}(y: u32[N]) {{ y[i] = {terms} }}", "t.pf")
    once = format_program(program)
    assert format_program(parse_text(once, "t.pf")) == once
    assert any(line.rstrip().endswith("|") or line.lstrip().startswith("| ") for line in once.splitlines())


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("l[i >> 1]", "l[i // 2]"),
        ("l[(i & 3) << 1]", "l[i % 4 * 2]"),
        ("l[i] + (i << 40)", "l[i] + i * 1099511627776"),
        ("l[i] + (1 << 62)", "l[i] + 4611686018427387904"),
        ("(i & 1) + l[i]", "i % 2 + l[i]"),
        ("l[i] + (0x10 & 0xf)", "l[i]  + 16 % 16"),
    ],
)
def test_of_indices_they_are_arithmetic(text: str, same: str) -> None:
    assert right(text, "i64") == right(same, "i64")


def test_others_of_indices_are_numbers() -> None:
    assert right("l[i] + (i ^ 5)", "i64") == "(l[i] + (i64(i) ^ 5))"
    assert right("x[i] * (i ^ 5)", "f32") == "(x[i] * f32((i64(i) ^ 5)))"
    assert right("x[i] * ~i", "f32") == "(x[i] * f32((~i64(i))))"
    assert right("a[i] & ~0xff") == "(a[i] & (~255))"
    assert right("a[i] + (1 << i)") == "(a[i] + (1 << u32(i)))"
    code, _, hint = refused("l[i ^ 1]", "i64")
    assert code == "PF303" and "<< and >> by a literal" in hint


def test_of_bools_they_join() -> None:
    assert right("m[i] & (a[i] > 1)", "bool") == right("m[i] and a[i] > 1", "bool")
    assert right("m[i] | m[i] ^ ~m[i]", "bool") == right("m[i] or (m[i] != (not m[i]))", "bool")
    assert refused("m[i] << m[i]", "bool")[0] == "PF216"


@pytest.mark.parametrize(
    ("text", "code", "words", "hint"),
    [
        ("x[i] ^ 2", "PF216", "'^' takes integers, this is f32", "'**'"),
        ("x[i] & x[i]", "PF216", "'&' takes integers", ""),
        ("~x[i]", "PF216", "'~' takes integers", ""),
        ("~1.5", "PF216", "'~' takes integers", ""),
        ("a[i] & k[i]", "PF205", "are u32 and i32", "cast one of them, as in i32(...)"),
        ("m[i] & a[i] > 1", "PF205", "are bool and u32", "in parentheses"),
        ("a[i] >> w[i]", "PF205", "are u32 and u64", "cast one of them"),
        ("a[i] & -1", "PF217", "-1 is no value of dtype u32", "write 4294967295, which has the same bits"),
        ("a[i] + 0x1_0000_0000", "PF217", "0x1_0000_0000 is no value", "as in i64(...)"),
        ("w[i] - 1 + (0 - 5)", "PF217", "is no value of dtype u64", "write 18446744073709551611"),
        ("l[i] + 0x8000_0000_0000_0000", "PF217", "is no value of dtype i64", "as in u64(...)"),
        ("w[i] + (i - 1)", "PF363", "i - 1 is no value of u64", "u64(...), which wraps"),
        ("a[i] + i * 3000000000", "PF363", "is no value of u32", "i64(...)"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, code: str, words: str, hint: str) -> None:
    dtype = {"x": "f32", "w": "u64", "l": "i64", "m": "bool"}.get(text.strip("~")[0], "u32")
    found = refused(text, dtype)
    assert found[0] == code and words in found[1] and hint in found[2]


def test_hints_work_when_followed() -> None:
    for text in (
        "x[i] ** 2 * 1.0",
        "i32(a[i]) & k[i]",
        "u64(a[i]) >> w[i]",
        "a[i] & 4294967295",
        "i64(a[i]) + 0x1_0000_0000",
    ):
        dtype = {"x": "f32", "i": "i64" if "i64" in text else "i32", "u": "u64"}.get(text[0], "u32")
        assert right(text, dtype)


def test_literals_go_to_the_end_of_u64() -> None:
    assert "18446744073709551615" in right("w[i] & 0xffff_ffff_ffff_ffff", "u64")
    assert right("u64(0x8000000000000000) + w[i]", "u64") == right("9223372036854775808 + w[i]", "u64")
    assert refused("l[18446744073709551615]", "i64")[0] == "PF105"
    y = pf.compile("op f(k: u64 = 0xffff_ffff_ffff_fff0) -> (y: u64) { y = k | 1 }", target="interpret")
    assert int(y()) == 2**64 - 15 and int(y(k=2**63)) == 2**63 + 1


def test_an_index_of_u64_ends_where_i64_does() -> None:
    text = "op f(x: f32[N], w: u64[M]) -> (y: f32[M]) { y[i] = x[w[i]] }"
    assert "x[i64(min(w[i], 9223372036854775807))]" in str(instantiate(parse_text(text, "t.pf"), "f"))


def test_the_builder_writes_them() -> None:
    b = pf.ProgramBuilder()
    f = b.op("f")
    a, m, i = f.param("a", "u32", "N"), f.param("m", "bool", "N"), f.index("i")
    y, z = f.result("y", "u32", "N"), f.result("z", "bool", "N")
    y[i] = (~a[i] << 3 | 0xF0 & a[i]) ^ (1 << a[i]) >> 2 | literal(7) & 5 ^ 2**64 - 2**64
    z[i] = (m[i] & ~m[i]) | (a[i] > 3) & ~(a[i] == 5) | ~fn.bool(a[i])
    text = str(b)
    assert "y[i] = (~a[i] << 3 | 240 & a[i]) ^ 1 << a[i] >> 2 | 7 & 5 ^ 0" in text
    assert "m[i] & ~m[i] or a[i] > 3 and not a[i] == 5 or not bool(a[i])" in text
    assert parse_text(text, "t.pf") == b.tree()


def test_values_have_ranges() -> None:
    u, s = Read("u", (), U32), Read("s", (), I32)

    def of(op: str, a: object, b: int) -> tuple[float, float]:
        operand = a if isinstance(a, Read) else u
        return of_tree(Apply(op, (operand, Const(b, operand.dtype)), operand.dtype))

    assert of("bitand", u, 12) == of("bitand", s, 12) == (0, 12)
    assert of("bitor", Read("h", (), U16), 1) == of("bitxor", Read("h", (), U16), 1) == (0, 65535)
    assert of("shr", u, 28) == (0, 15) and of("bitor", s, 1) == (-(2**31), 2**31 - 1)
    assert of("bitand", s, -4) == (-(2**31), 2**31 - 1)
    assert U64.holds(U32) and not I64.holds(U64) and not U64.holds(I32) and I64.holds(U32)
