"""The formatter: golden layout, idempotence, comments, and random trees that survive print and parse."""

from __future__ import annotations

import math
import re

import pytest
from dsl_samples import SAMPLES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.expr_text import expr_text
from polyfuse.frontend_dsl.syntax.formatter import WIDTH, format_program
from polyfuse.frontend_dsl.syntax.names import REDUCTIONS
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.source import SourceText

EVERYTHING_FORMATTED = """\
# head

# about the imports
import "norms.pf"  # first
import "deep/more.pf"

op everything[F: float, G: float](
    x: F[B..., H],  # input
    # the table
    table: f32[N, 3*H],
    inout p: G[2*N + 1],
    idx: i32[T],
    lr: f32 = -1e-3,
    flag: bool = true,
) -> (
    y: F[B..., H],
    l: f32,  # results
) where
    H % 4 == 0,
    N >= 3 and N < 1_000 {  # body
  let agg: f32[N, H] = 0
  agg[idx[e], h] += table[e, h]

  # scatter
  agg[idx[e], h] max= table[e, h]  # twice
  agg[idx[e], h] min= -table[e, h] ** -2
  m = max[i in 0..2, j in 0..N-1](x[i*2, j+1] if 0 <= i + j < N else 0.0)
  # inner
  (a, b) = softmax(x, 2 * l, eps=1e-5, max=3)
  c[0, j] = x[0, j]
  c[t, j] = c[t-1, j] + x[t, j] for t in 1..T, j in 0..H//2
  mean[b..., h] = sum[b...](x[b..., h]) - (1 - 2) - not_a_keyword

  # the last word
}  # end

op tiny() {
}  # tail

# eof
"""


def stays(text: str) -> str:
    """Formats, and checks that nothing but the layout changed."""
    program = parse_text(text)
    formatted = format_program(program)
    again = parse_text(formatted)
    assert again == program
    assert sorted(c.text for c in again.comments) == sorted(c.text for c in program.comments)
    assert format_program(again) == formatted
    return formatted


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_survive(name: str) -> None:
    stays(SAMPLES[name])


def test_layout() -> None:
    assert stays(SAMPLES["everything"]) == EVERYTHING_FORMATTED


def test_long_signatures_are_wrapped() -> None:
    params = ", ".join(f"parameter_{i}: f32[T, H]" for i in range(12))
    results = ", ".join(f"result_{i}: f32[T, H]" for i in range(8))
    where = ", ".join(f"SIZE_{i} % 2 == 0" for i in range(12))
    text = stays(f"op f({params}) -> ({results}) where {where} {{ }}")
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.splitlines()[0].startswith("op f(parameter_0: f32[T, H], ")
    assert "\n    -> (result_0" in text and "\n    where SIZE_0" in text


def test_long_lists_of_size_parameters_are_wrapped() -> None:
    sizes = ", ".join(f"SIZE_{i}: size = {i} * T" for i in range(20))
    for comment in ("", "  # why\n"):
        text = stays(f"op f[F: float, {sizes}](x: F[T],{comment} y: F[T]) -> (z: F[T]) {{ }}")
        assert max(map(len, text.splitlines())) <= WIDTH
        assert text.startswith("op f[F: float, SIZE_0: size = 0") and "SIZE_19: size = 19*T](" in text


def test_result_goes_on_its_own_line_first() -> None:
    assert stays(SAMPLES["layer_norm"]).splitlines()[1:3] == [
        "op add_layer_norm(x: f32[T, H], r: f32[T, H], gamma: f32[H], beta: f32[H], eps: f32 = 1e-5)",
        "    -> (y: f32[T, H]) {",
    ]


def test_long_statements_are_wrapped() -> None:
    terms = " + ".join(f"weights[{i}] * f(inputs[t + {i}], scale)" for i in range(20))
    text = stays(f"op f() {{ y[t] = {terms} for t in 0..T }}")
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize(
    ("value", "ends"),
    [
        # a sum of products breaks between its terms, wherever the products end
        ("A[i] * B[i] + C[i] * D[i]", "+"),
        # what is in brackets stays together while something outside breaks
        ("A * (B + C + D)", "*"),
        ("A + B if C < 0 else D * D", "else"),
        ("A + B if C < D + C else 0", "if"),
        ("A + B < C * 2 and D < E", "and"),
        ("A / B < C * 4 + D", "<"),
    ],
)
def test_long_statements_break_at_the_loosest_operator(value: str, ends: str) -> None:
    wide = "".join(c.lower() * 21 if c.isupper() else c for c in value)
    text = format_program(parse_text(f"op f() {{ y = {wide} }}"))
    first, *rest = text.splitlines()[1:-1]
    assert len(rest) == 1 and first.endswith(f" {ends}")
    stays(text)


def test_a_short_right_side_stays_whole() -> None:
    left = "y[min(max(i64((x[i] - lower_bound) / (upper_bound - lower_bound)), 0), K - 1)]"
    text = format_program(parse_text(f"op f() {{ {left} += 1 if low <= x[i] <= high else 0 }}"))
    assert text.splitlines()[1:3] == [f"  {left} +=", "      1 if low <= x[i] <= high else 0"]
    stays(text)


@pytest.mark.parametrize(
    ("statement", "ends"),
    [
        # neither the left side nor the variables of a reduction are torn apart
        ("A[i, j, k, l] = sum[a, b](u[a] * B[n[i], k, m[i, a, b]] * C[k])", " *"),
        # ranges of variables have brackets of their own; a line breaks between the ranges
        ("A[i] = max[u in max(s, 0)..min(C, N), v in max(s, 0)..min(B, N)](x[u, v])", "N),"),
    ],
)
def test_indices_stay_together(statement: str, ends: str) -> None:
    wide = re.sub("[ABC]", lambda name: name[0].lower() * 21, statement)
    text = format_program(parse_text(f"op f() {{ {wide} }}"))
    first, *_ = text.splitlines()[1:-1]
    assert first.endswith(ends)
    stays(text)


def test_ranges_of_a_statement_have_a_line_of_their_own() -> None:
    value = " + ".join(f"x[t, i-{k}] * w[{k}]" for k in range(4))
    text = format_program(parse_text(f"op f() {{ y[t, i] = {value} for t in 0..T, i in 3..N }}"))
    assert text.splitlines()[1:3] == [f"  y[t, i] = {value}", "      for t in 0..T, i in 3..N"]
    stays(text)


def test_a_name_longer_than_a_line() -> None:
    stays(f"op f({'x' * 200}: f32[{'N' * 200}]) where {'N' * 200} > 3 {{ y = {'x' * 200} + {'x' * 200} }}")


@pytest.mark.parametrize(
    "text",
    [
        "op f( # a\n) { # b\n y = 1 # c\n} # d\n# e",
        "op # a\n f # b\n ( # c\n x # d\n : # e\n f32 # f\n [ # g\n N # h\n ] # i\n ) # j\n { # k\n } # l",
        "op f() -> # a\n ( # b\n y: f32 # c\n ) # d\n where # e\n N > 3 # f\n { # g\n y = 1 }",
        "op f() where N > 3 # a\n # b\n { y = ( # c\n 1 # d\n # e\n ); z = 2 # f\n # g\n\n\n # h\n }",
        "op f[F: # a\n float # b\n]() { let x: # c\n f32 = # d\n 1\n }",
        'import # a\n "x.pf" # b\n# c\n\n# d\nop f() {}\n\n# e\n\n\n# f\n',
        "# a\n\n\nop f() {}\n# b\nop g() {}",
        "op f(x: f32, # a\n y: f32) # b\n -> (z: f32) # c\n{ z = x +\n # d\n y }",
    ],
)
def test_comments_anywhere(text: str) -> None:
    stays(text)


def test_deep_expressions_are_printed() -> None:
    stays("op f() { y = " + " + (".join("x" * 190) + ")" * 189 + " }")
    stays("op f() { y = " + "x[" * 95 + "i" + "]" * 95 + " }")
    stays("op f() { y = " + "x if c else " * 190 + "x }")
    stays("op f() { y = " + "sum[i](" * 190 + "x" + ")" * 190 + " }")


# --- random trees --------------------------------------------------------------------------------------

ORDINARY = ("x", "y", "i", "j", "N", "H", "a_1", "_", "__asm__", "int", "main", "e", "f32", "true_", "iff")
SOFT = ("in", "op", "let", "where", "inout", "import")
names = st.sampled_from([*ORDINARY, *SOFT, *REDUCTIONS])
integers = st.integers(0, 2**63 - 1).map(lambda v: ast.Number(v, str(v)))
floats = (
    st.floats(min_value=0, allow_nan=False, allow_infinity=False)
    .filter(lambda v: math.copysign(1, v) > 0)
    .map(lambda v: ast.Number(v, repr(v)))
)
spellings = st.sampled_from([ast.Number(1e-5, "1.0e-05"), ast.Number(1000, "1_000"), ast.Number(1.0, "1e0")])
numbers = integers | floats | spellings
leaves = numbers | st.booleans().map(ast.BoolLit) | names.map(ast.Name)


def test_variables_of_a_reduction_stay_together() -> None:
    term = "x[n, k//K*C + c, p*S + r*D - P, q*S + v*D - P else 0.0] * w[k, c, r, v]"
    text = format_program(parse_text(f"op f() {{ y[n, k, p, q] = sum[c, r, v]({term}) + bias[k] }}"))
    assert "sum[c, r, v](x" in text and " else 0.0] *\n" in text


def tuples(strategy: st.SearchStrategy[object], least: int = 0, most: int = 3) -> st.SearchStrategy[object]:
    return st.lists(strategy, min_size=least, max_size=most).map(tuple)


def grow(inner: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
    binary = st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "and", "or"])
    compare = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    chain = st.integers(1, 3).flatmap(
        lambda n: st.builds(
            ast.Compare,
            st.tuples(*[inner] * (n + 1)),
            st.tuples(*[compare] * n),
        )
    )
    variables = st.builds(ast.VarRange, names, inner, inner) | st.builds(
        ast.VarRange, names, st.none(), st.none(), st.booleans()
    )
    return st.one_of(
        st.builds(ast.Binary, binary, inner, inner),
        st.builds(ast.Unary, st.sampled_from(["-", "not"]), inner),
        chain,
        st.builds(ast.Conditional, inner, inner, inner),
        st.builds(ast.Subscript, names, tuples(inner | names.map(ast.Splat), 1)),
        st.builds(
            ast.Padded, st.builds(ast.Subscript, names, tuples(inner | names.map(ast.Splat), 1)), inner
        ),
        st.builds(ast.Reduce, st.sampled_from(REDUCTIONS), tuples(variables, 1), inner),
        st.builds(ast.Call, names, tuples(inner), tuples(st.tuples(names, inner), 0, 2)),
    )


expressions = st.recursive(leaves, grow, max_leaves=12)
small = st.recursive(leaves, grow, max_leaves=3)
types = st.builds(ast.TensorType, names, tuples(small | names.map(ast.Splat)))
defaults = numbers | st.booleans().map(ast.BoolLit) | numbers.map(lambda n: ast.Unary("-", n))
params = st.builds(ast.Param, names, types, st.booleans(), st.none() | defaults)
results = st.builds(ast.Param, names, types, st.just(False), st.none())
for_ranges = st.builds(ast.VarRange, names, small, small)
statements = st.one_of(
    st.builds(
        ast.Define,
        names,
        st.none() | tuples(small | names.map(ast.Splat), 1),
        st.sampled_from(["=", "+=", "max=", "min="]),
        expressions,
        tuples(for_ranges, 0, 2),
    ),
    st.builds(ast.Let, names, types, st.none() | expressions),
    st.builds(
        ast.CallStmt,
        tuples(names),
        st.builds(ast.Call, names, tuples(small), tuples(st.tuples(names, small), 0, 2)),
    ),
)
ops = st.builds(
    ast.OpDef,
    names,
    tuples(st.builds(ast.Generic, names, names)),
    tuples(params),
    tuples(results),
    tuples(small, 0, 2),
    tuples(statements, 0, 4),
)
programs = st.builds(
    ast.Program,
    st.just(SourceText("<random>", "")),
    tuples(st.builds(ast.Import, st.sampled_from(["a.pf", "sub/b.pf", "ü.pf"]))),
    st.lists(ops, max_size=2, unique_by=lambda op: op.name).map(tuple),
)
relaxed = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@relaxed
@given(expressions)
def test_random_expressions(expr: ast.Expr) -> None:
    (stmt,) = parse_text(f"op f() {{ y = {expr_text(expr)} }}").ops[0].body
    assert isinstance(stmt, ast.Define) and stmt.value == expr


@relaxed
@given(programs)
def test_random_programs(program: ast.Program) -> None:
    text = format_program(program)
    assert parse_text(text) == program
    assert format_program(parse_text(text)) == text


@relaxed
@given(programs, st.randoms(use_true_random=False))
def test_random_layout_and_comments(program: ast.Program, random: object) -> None:
    """Blanks, newlines and comments strewn between tokens change nothing but their own place."""
    text = format_program(program)
    pieces = [p for p in text.replace(", ", ",\0 ").replace("\n", "\0\n").split("\0") if p]
    strewn = ""
    for i, piece in enumerate(pieces):
        roll = random.randrange(4)  # type: ignore[attr-defined]
        if piece.startswith(" ") and roll == 0:
            strewn += f" # comment {i}\n"
        elif piece.startswith("\n") and roll == 1:
            strewn += f"  # comment {i}"
        strewn += piece
    assert parse_text(strewn) == program
    stays(strewn)
