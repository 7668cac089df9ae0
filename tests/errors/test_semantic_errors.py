"""Programs whose meaning is wrong: code, line, column and words of the rendered error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polyfuse.diagnostics import Diagnostic, DslError
from polyfuse.frontend_dsl.semantics import calls
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.syntax.names import MAX_CALL_DEPTH
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import F64

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "errors.d"
PACKAGE = ROOT / "polyfuse" / "frontend_dsl"


def errors(text: str) -> list[Diagnostic]:
    return check_program(parse_text(text, "t.pf")).errors


def place(found: Diagnostic) -> tuple[str, int, int]:
    assert found.span is not None
    return found.code, found.span.line, found.span.column


HEAD = (
    "op f(x: f32[N, M], v: f32[N], w: f32[M], k: i32[N], b: bool[N], d: f64[N], h: f16[N], s: f32, n: i32)"
    " -> (y: f32[N]) {\n"
)
Y = "y[i] = v[i]\n"

# Statements on line 2 of an operator with the head above. Y defines the result where the statement does not.
STATEMENTS = [
    # names
    ("y[i] = u[i]", "PF201", 8, "unknown tensor 'u'"),
    ("y[i] = v[i] + q", "PF201", 15, "unknown name 'q'"),
    ("y[i] = v[i] + j", "PF201", 15, "an index variable stands on the left side or in a reduction"),
    ("gamma[i] = v[i]\ny[i] = gama[i]", "PF201", 8, "did you mean 'gamma'?", 3),
    ("y[i] = v[i] * sum[j](x[i, jj])", "PF201", 27, "unknown name 'jj'"),
    ("let t: f32[Q] = 0.0\ny[i] = t[i]", "PF201", 12, "unknown size 'Q' in an extent"),
    ("y[i] = expp(v[i])", "PF202", 8, "did you mean 'exp'?"),
    ("y[i] = sum(v)", "PF202", 8, "sum[i](x[i])"),
    ("t = sum(v, axis=0)\n" + Y, "PF202", 5, "sum[i](x[i])"),
    ("y[i] = max(v[i], -infinity)", "PF201", 19, "write inf"),
    ("y = v * 2.0", "PF204", 1, "a definition says what each element is: y[i] = ..."),
    ("y[i] = v[i] * k[i]", "PF205", 8, "as in f32(...)"),
    ("y[i] = k[i] * v[i]", "PF205", 8, "as in f32(...)"),
    ("y = softmx(v)", "PF202", 5, "unknown function or operator 'softmx'"),
    ("y[i] = exp(v[i], s)", "PF203", 8, "exp takes 1 argument, got 2"),
    ("y[i] = max(v[i])", "PF203", 8, "max takes 2 or more arguments, got 1"),
    ("y[i] = f32()", "PF203", 8, "the cast f32 takes 1 argument, got 0"),
    ("y[i] = exp(v[i], base=2.0)", "PF203", 23, "exp takes no keyword arguments"),
    # ranks
    ("y[i] = x[i]", "PF204", 8, "'x' has 2 axes, got 1 index"),
    ("y[i] = v[i, i]", "PF204", 8, "'v' has 1 axis, got 2 indices"),
    ("y[i] = v", "PF204", 8, "write v[i]"),
    ("y[i] = s[i]", "PF204", 8, "'s' has 0 axes, got 1 index"),
    ("y[i] = N[i]", "PF204", 8, "'N' is a size and has no elements"),
    ("y[i, j] = x[i, j]", "PF204", 1, "'y' is declared with 1 axis, here it has 2"),
    ("t[i] = v[i]\nt[i, j] = x[i, j]\n" + Y, "PF204", 1, "'t' has elsewhere 1 axis, here it has 2", 3),
    # dtypes
    ("y[i] = v[i] + k[i]", "PF205", 8, "dtype mismatch: the operands of '+' are f32 and i32"),
    ("y[i] = v[i] + d[i]", "PF205", 8, "cast the f32 side, as in f64(...)"),
    ("y[i] = h[i] * d[i]", "PF205", 8, "cast the f16 side, as in f64(...)"),
    ("let t: bf16[N]\nt[i] = h[i]\ny[i] = t[i]", "PF205", 8, "'t' is bf16, its definition is f16", 3),
    ("y[i] = exp(h[i]) * f32(d[i]) * d[i]", "PF205", 8, "cast the f32 side, as in f64(...)"),
    ("y[i] = h[i] * f16(k[i]) * f32(k[i] * h[i])", "PF205", 31, "cast one of them, as in f16(...)"),
    ("y[i] = d[i]", "PF205", 8, "'y' is f32, its definition is f64"),
    ("y[i] = k[i]", "PF205", 8, "'y' is f32, its definition is i32"),
    ("y[i] = v[i] < 3.0", "PF205", 8, "'y' is f32, its definition is bool"),
    ("y[i] = f32(k[i] * 0.5)", "PF205", 12, "a float literal does not fit the type i32"),
    ("y[i] = v[i] if k[i] > d[i] else 0.0", "PF205", 16, "the operands of '>' are i32 and f64"),
    ("y[i] = v[i] if b[i] else d[i]", "PF205", 8, "the branches of a conditional are f32 and f64"),
    ("y[i] = select(b[i], v[i], d[i])", "PF205", 8, "the branches of select"),
    ("y[i] = max(v[i], d[i])", "PF205", 8, "the arguments of max are f32 and f64"),
    ("t[i] = v[i] for i in 0..2\nt[i] = d[i] for i in 2..N\n" + Y, "PF205", 8, "have dtypes f32 and f64", 3),
    ("let t: i32 = 0.5\ny[i] = v[i] + f32(t)", "PF205", 14, "'t' is i32, its definition is a float literal"),
    # cycles
    ("y[i] = y[i] * 2.0", "PF207", 8, "'y' is defined by itself"),
    ("t = t + 1.0\n" + Y, "PF207", 5, "'t' is defined by itself"),
    ("t[i] = t[i-1]\n" + Y, "PF207", 8, "nothing but 't' itself defines 't'"),
    ("p[i] = q[i] + v[i]\nq[i] = p[i] * 2.0\n" + Y, "PF207", 8, "'p' -> 'q' -> 'p'"),
    ("let g: f32[N] = 0.0\ng[k[i]] += t[i]\nt[i] = g[i]\n" + Y, "PF207", 5, "through a scatter"),
    # definitions
    ("t[i] = v[i]", "PF208", 107, "result 'y' is never defined", 1),
    ("let t: f32[N]\n" + Y, "PF208", 5, "'t' is declared but never defined"),
    ("y[i] = v[i]\ny[i] = 0.0", "PF209", 1, "'y' is defined twice for the same elements", 3),
    ("y[0] = 0.0\ny[0] = 1.0", "PF209", 1, "'y' is defined twice", 3),
    ("let t: f32[N] = 0.0\nt[i] = v[i]\n" + Y, "PF209", 1, "'t' is defined twice", 3),
    ("let v: f32[N] = 0.0\n" + Y, "PF210", 5, "'v' is declared twice"),
    ("let t: f32 = 0.0\nlet t: f32 = 1.0\n" + Y, "PF210", 5, "'t' is declared twice", 3),
    ("let N: f32 = 0.0\n" + Y, "PF210", 5, "'N' is a size already"),
    ("N = 3\n" + Y, "PF210", 1, "'N' is a size and cannot be defined"),
    ("v[i] = 0.0\ny[i] = v[i]", "PF211", 1, "declare it `inout v: ...`"),
    # operations
    ("y[i] = v[i] * (1 / N)", "PF215", 16, "1.0 / H"),
    ("y[i] = f32(k[i] / 2)", "PF215", 12, "'/' on integers"),
    ("y[i] = v[i/2]", "PF215", 10, "use '//'"),
    ("y[i] = exp(k[i])", "PF216", 8, "exp takes floats, this is i32"),
    ("let q: f8e5m2[N]\nq[i] = v[i]\ny[i] = q[i]", "PF205", 8, "f8e5m2(...)", 3),
    ("y[i] = f32(bits(k[i]))", "PF216", 12, "bits takes floats, this is i32"),
    ("y[i] = from_bits(f32, k[i])", "PF216", 23, "from_bits(f32, ...) takes u32, this is i32"),
    ("y[i] = f32(philox4x32(1, 2.5, 3, 0))", "PF216", 26, "philox4x32 takes integers"),
    ("y[i] = from_bits(k[i])", "PF265", 8, "write from_bits(f32, u)"),
    ("y[i] = v[i] * from_bits(i32, k[i])", "PF265", 15, "takes the dtype of a float"),
    ("y[i] = f32(position(i + 1))", "PF266", 21, "position takes index variables"),
    ("y[i] = f32(position(k))", "PF266", 21, "such as (t + 1) * H + h"),
    ("y[i] = f32(philox4x32(1, 2, 3, 4))", "PF267", 32, "the words 0 to 3"),
    ("y[i] = -b[i]", "PF216", 8, "use 'not'"),
    ("y[i] = b[i] + b[i]", "PF216", 8, "'+' is not defined for bool"),
    ("y[i] = v[i] if k[i] else 0.0", "PF216", 16, "a condition must be a bool, this is i32"),
    ("y[i] = v[i] if b[i] and s else 0.0", "PF216", 25, "'and' takes bools, this is f32"),
    ("y[i] = v[i] if b[i] < b[i] else 0.0", "PF216", 16, "'<' is not defined for bool"),
    ("y[i] = f32(sum[j](b[j]))", "PF216", 19, "use any or all"),
    ("y[i] = v[i] if any[j](v[j]) else 0.0", "PF216", 23, "any takes bools, this is f32"),
    ("y[i] = f32(k[i] ** -2)", "PF216", 20, "a negative power of an integer"),
    ("y[i] = f32(mean[j](k[j]))", "PF216", 20, "mean takes floats"),
    ("y[i] = f32(k[i] + 3000000000)", "PF217", 19, "the literal 3000000000 is no value of dtype i32"),
    ("y[i] = v[i] * 1e39", "PF217", 15, "no value of dtype f32"),
    ("let t: f23[N] = 0\n" + Y, "PF218", 8, "did you mean 'f32'?"),
    ("let t: f32[N/2] = 0.0\n" + Y, "PF215", 12, "use '//'"),
    ("let t: f32[N > 2] = 0.0\n" + Y, "PF220", 12, "cannot stand in an extent"),
    ("let t: f32[-3] = 0.0\n" + Y, "PF220", 12, "the extent -3 is negative"),
    # variables
    ("y[i] = sum[i](x[i, 0])", "PF223", 12, "'i' is an index variable here already"),
    ("y[i] = sum[M](x[i, M])", "PF223", 12, "'M' is a size"),
    ("y[n] = v[n]", "PF223", 3, "'n' is a scalar and cannot be an index variable"),
    ("y[i] = v[i] * sum[s](v[s])", "PF223", 19, "'s' is a scalar"),
    ("let t: f32[B...] = 0.0\n" + Y, "PF224", 12, "unknown rank variable 'B...'"),
    ("y[i] = v[s]", "PF225", 10, "this index is a float, not an integer"),
    ("y[i] = v[b[i]]", "PF225", 10, "this index is of type bool"),
    # scatters
    ("t[k[i]] += v[i]\n" + Y, "PF226", 1, "let t: f32[...] = 0"),
    ("y[k[i]] += v[i]\ny[k[i]] max= v[i]", "PF227", 1, "different kinds: '+=' and 'max='", 3),
    (f"t[{', '.join('0' for _ in range(65))}] = s\n" + Y, "PF237", 1, "has 65 axes, the limit is 64"),
    ("y[i] = old(v[i])", "PF294", 8, "takes an inout parameter"),
    ("y[k[i]] += y[i] * v[i]", "PF228", 12, "reads its own target 'y'"),
    # ranges and indices
    ("y[i] = v[i] + w[i]", "PF301", 3, "the left side says 0..N, w[i] says 0..M"),
    ("t[i] = v[i] + w[i]\n" + Y, "PF301", 3, "add `where N == M`"),
    ("y[i] = sum[j](v[j] * w[j])", "PF301", 12, "v[j] says 0..N, w[j] says 0..M"),
    ("let t: f32[N+1] = 0.0\nu[i] = t[i] + v[i]\n" + Y, "PF301", 3, "such as for i in 0..N\n", 3),
    ("let t: f32[N+1] = 0.0\nu[i] = v[i] + t[i]\n" + Y, "PF301", 3, "such as for i in 0..N\n", 3),
    ("t[i] = v[i+1]\n" + Y, "PF302", 3, "for i in 0..N"),
    ("t[i] = 1.0\n" + Y, "PF302", 3, "nothing gives the range of 'i'"),
    ("t[i] = v[i] if i < 3 else 0.0\n" + Y, "PF302", 3, "no unguarded subscript"),
    ("t[i] = t[i-1] + v[0]\n" + Y, "PF302", 3, "nothing gives the range of 'i'"),
    ("y[i] = v[i] + sum[j](1.0)", "PF302", 19, "sum[j in 0..<size>](...)"),
    ("y[i] = sum[j](x[i, j] if j < k[i] else 0.0)", "PF302", 12, "sum[j in 0..M](...)"),
    ("y[i] = max[r](v[i+r-1] * w[r] if 1 <= i+r < N + 1 else 0.0)", "PF302", 12, "max[r in 0..M](...)"),
    ("y[i] = sum[r](v[i+r-1] if 1 <= i+r < N + 1 else 0.0)", "PF302", 12, "sum[r in 0..<size>](...)"),
    ("y[i] = sum[r, q](w[q-r] if 0 <= q-r < M else 0.0)", "PF302", 12, "sum[r in 0..<size>](...)"),
    ("t[j] = sum[r in 0..5](w[j+r-2] if 2 <= j+r < M + 2 else 0.0)\n" + Y, "PF302", 3, "for j in 0..M", 2),
    (
        "t[j] = v[2*j] if 2*j < N else 0.0\n" + Y,
        "PF302",
        3,
        "for j in 0..<size>, or declare the tensor: let t",
    ),
    ("t[j] = v[j] if j < N else w[j - N]\n" + Y, "PF302", 3, "for j in 0..<size>"),
    ("t[i] = t[i-1] + v[0]\n" + Y, "PF302", 3, "for i in 1..<size>"),
    ("y[i] = v[i*i]", "PF303", 10, "the product of 'i' with itself"),
    ("y[i] = sum[j](x[i, j] * v[i*j])", "PF303", 27, "the product of 'i' and 'j'"),
    ("y[i] = sum[j](x[i, j] * v[i//j])", "PF303", 27, "division by the variable 'j'"),
    ("y[i] = v[i % 0]", "PF303", 14, "it must be positive"),
    ("y[i] = v[0.5]", "PF303", 10, "no index expression"),
    ("y[max(i, 1)] = v[i]", "PF304", 3, "in a statement of its own"),
    ("y[i + 0.5] = v[i]", "PF304", 3, "a sum of variables times constants or sizes"),
    ("y[i*i] = v[i]", "PF303", 3, "a sum of variables times constants or sizes"),
    ("y[2*i + s] = v[i]", "PF223", 9, "another name"),
    ("y[2*j] = 0.0", "PF302", 5, "for j in 0..<size>"),
    ("y[k[i]] = v[i]", "PF304", 3, "scatter: t[idx[i]] += x[i]"),
    ("t[i, i] = v[i]\n" + Y, "PF305", 6, "stands twice on the left side"),
    ("y[i] = v[i] for j in 0..3", "PF306", 17, "'j' is no index variable of 'y'"),
    ("y[i] = v[i] for i in 0..3, i in 3..N", "PF306", 28, "'i' has two ranges"),
    ("y[i] = v[i] for i in 0..n", "PF307", 25, "a bound cannot depend on data"),
    ("t[i, j] = x[i, j] for i in 0..j, j in 0..i\n" + Y, "PF307", 23, "in a circle"),
    ("y[i] = sum[j in 0..i*i](x[i, j])", "PF307", 20, "product of 'i' with itself"),
    ("y[i] = sum[j in 0..s](x[i, j])", "PF260", 20, "this bound is a float"),
    ("y[i] = sum[j in b[i]..M](x[i, j])", "PF260", 17, "of type bool"),
    ("y[i] = sum[j in 0..max[l](k[l])](x[i, j])", "PF260", 20, "a bound holds a reduction"),
    ("y[i] = f32(argmin[j in 0..k[i]](x[i, j]))", "PF258", 27, "argmin takes no bounds from data"),
    ("y[i] = f32(arglargest[j in 0..k[i]](x[i, j], 0))", "PF258", 31, "arglargest takes no bounds from data"),
    ("y[i] = sum[j in 0..k[i]](x[i, min(j + 1, M - 1)])", "PF259", 12, "nothing gives the range"),
    ("y[i] = sum[j in 0..kk[i]](x[i, j])", "PF201", 20, "unknown tensor 'kk'"),
    ("y[i] = v[row(k[i], i)]", "PF261", 10, "the name of a tensor and an index"),
    ("y[i] = v[row(k)]", "PF261", 10, "the name of a tensor and an index"),
    ("y[i] = v[row(k, k[i])]", "PF262", 17, "this one is data"),
    ("y[i] = v[row(v, i)]", "PF263", 14, "these are f32"),
    ("y[i] = v[row(u, i)]\nu[j] = u64(j) for j in 0..M", "PF263", 14, "these are u64"),
    ("y[i] = sum[j in 0..u64(k[i])](x[i, j])", "PF260", 20, "not an integer that i64 has"),
    ("y[i] = v[row(x, i)]", "PF204", 14, "'x' has 2 axes"),
    ("y[i] = v[row(kk, i)]", "PF201", 14, "unknown tensor 'kk'"),
    ("y[i] = v[-1]", "PF308", 10, "indices do not wrap"),
    ("y[i] = max[j in 3..3](x[i, j])", "PF309", 8, "max over the empty range 3..3"),
    ("t = argmax[i, j](x[i, j])\n" + Y, "PF310", 5, "argmax takes one variable, got 2"),
    ("t = arglargest[i, j](x[i, j], 0)\n" + Y, "PF310", 5, "arglargest takes one variable, got 2"),
    ("t = argsmallest[i](b[i], 0)\n" + Y, "PF216", 20, "argsmallest is not defined for bool"),
    ("y[i] = max[j](x[i, j], 0)", "PF275", 24, "max takes one operand and no place"),
    ("t[i] = argmin[j](x[i, j], 0)\n" + Y, "PF275", 27, "argsmallest[i](x[i], k) gives the i"),
    ("t[i] = arglargest[j](x[i, j])\n" + Y, "PF276", 8, "arglargest[j](x[i, j], 0)"),
    ("t[i] = arglargest[j](x[i, j], k[i])\n" + Y, "PF277", 31, "not of data"),
    ("t[i] = arglargest[j](x[i, j], j)\n" + Y, "PF201", 31, "unknown name 'j'"),
    ("t[i] = arglargest[j](x[i, j], 0.5)\n" + Y, "PF303", 31, "index"),
    ("t[i, j] = v[0] for i in 0..N, j in 0..N % (i + 1)\n" + Y, "PF307", 39, "division by the variable 'i'"),
    # calls inside
    ("y = f(x, v, w, k, b, d, h, s, n)", "PF212", 5, "recursive call: f -> f"),
    ("y[i] = f(v)", "PF213", 8, "called inside an expression"),
]


def _normalised(row: tuple[object, ...]) -> tuple[str, str, int, str, int]:
    source, code, column, words, *line = row
    assert isinstance(source, str) and isinstance(code, str) and isinstance(words, str)
    assert isinstance(column, int)
    return source, code, column, words, int(str(line[0])) if line and line[0] is not None else 2


@pytest.mark.parametrize("row", STATEMENTS, ids=[str(r[0]).split("\n")[0] for r in STATEMENTS])
def test_statement(row: tuple[object, ...]) -> None:
    source, code, column, words, line = _normalised(row)
    found = errors(HEAD + source + "\n}")
    assert found, "no error"
    rendered = "\n".join(d.render() for d in found)
    assert (code, line, column) in [place(d) for d in found], rendered
    assert words in rendered


OPTIONAL = "op f(x: f32[N], b: f32[N]?) -> (y: f32[N]) {\n"
SOFTMAX = """op softmax[F: float](x: F[B..., H], scale: f32 = 1.0) -> (y: F[B..., H]) where H >= 2 {
y[b..., h] = exp(x[b..., h])
}
"""
NORM = """op norm[F: float](x: F[N, H], w: F[H]) -> (y: F[N, H], m: F[N]) {
y[n, h] = x[n, h] * w[h]; m[n] = x[n, 0]
}
"""
G = SOFTMAX + "op g(v: f32[N]) -> (y: f32[N]) {\n"
SPLIT = "op split(x: f32[N, 3*H]) -> (y: f32[N, H]) { y[n, h] = x[n, h] for h in 0..H }\n"

# Whole programs: (text, code, line, column, words of the rendered error).
PROGRAMS = [
    # heads
    (
        "op f(s: f8e4m3fn, x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * s }",
        "PF268",
        1,
        9,
        "only elements of tensors",
    ),
    ("op f(x: f32[N], x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", "PF210", 1, 17, "declared twice"),
    ("op f(x: f32[N]) -> (x: f32[N]) { x[i] = 1.0 }", "PF210", 1, 21, "as parameter and as result"),
    (
        "op f(N: i32, x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }",
        "PF210",
        1,
        21,
        "'N' is a parameter and cannot",
    ),
    ("op f[f32: float](x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", "PF210", 1, 6, "is a dtype"),
    ("op f(x: float[N]) -> (y: f32[N]) { y[i] = 1.0 }", "PF218", 1, 9, "unknown dtype 'float'"),
    # functions
    ("fn g(x) = sum[i](x)\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", "PF244", 1, 11, "without sum"),
    (
        "fn g(x) = x * x\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = "
        "g(g(g(g(g(g(g(g(g(g(g(g(g(x[i]))))))))))))) }",
        "PF246",
        2,
        43,
        "more than 10,000 nodes",
    ),
    # size parameters
    ("op f[K: sizes](x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", "PF218", 1, 6, "did you mean 'size'?"),
    ("op f[N: size](N: f32) -> (y: f32) { y = N }", "PF210", 1, 15, "as size and as parameter"),
    ("op f[K: size](x: K[N]) -> (y: f32[N]) { y[i] = 1.0 }", "PF218", 1, 18, "unknown dtype 'K'"),
    ("op f[out: size](x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", "PF240", 1, 6, "an argument of every"),
    ("op f[class: size](x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", "PF240", 1, 6, "a keyword of Python"),
    ("op f[K: size = K](x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", "PF241", 1, 16, "which is itself"),
    ("op f[K: size = n](x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", "PF241", 1, 16, "is not known before"),
    ("op f[K: size = G, G: size](x: f32[N]) -> (y: f32) { y = 1.0 }", "PF241", 1, 16, "comes later"),
    ("op f[K: size = 1.5](x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", "PF220", 1, 16, "the default of 'K'"),
    ("op f[F: float = 1](x: F[N]) -> (y: F[N]) { y[i] = x[i] }", "PF242", 1, 17, "has no default"),
    ("op f(s: f32) -> (y: f32[M]) { y[i] = s }", "PF219", 1, 25, "op f[M: size](...)"),
    (
        "op g[K: size](x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }\n"
        "op f(x: f32[N]) -> (y: f32[N]) { y = g(x, K=-2) }",
        "PF243",
        2,
        45,
        "cannot be -2",
    ),
    ("op f[F: flaot](x: F[N]) -> (y: F[N]) { y[i] = x[i] }", "PF218", 1, 6, "did you mean 'float'?"),
    ("op f(x: f32[N]) -> (y: f32[M]) { y[i] = 1.0 }", "PF219", 1, 28, "'M' does not follow"),
    ("op f(x: f32[G*K]) -> (y: f32[G]) { y[i] = 1.0 }", "PF219", 1, 13, "'G' does not follow"),
    ("op f(x: f32[N]) -> (y: f32) where N { y = 1.0 }", "PF221", 1, 35, "a constraint compares sizes"),
    (
        "op f(x: f32[N]) -> (y: f32) where M > 1 { y = 1.0 }",
        "PF201",
        1,
        35,
        "unknown size 'M' in a constraint",
    ),
    ("op f(x: f32[N]) -> (y: f32) where 3 > 4 { y = 1.0 }", "PF221", 1, 35, "never holds"),
    ("op f(x: f32[N] = 1.0) -> (y: f32) { y = 1.0 }", "PF222", 1, 18, "only scalar parameters"),
    ("op f(x: i32 = 1.5) -> (y: f32) { y = 1.0 }", "PF222", 1, 15, "no value of dtype i32"),
    ("op f(x: F[B..., H]) -> (y: f32) { y = 1.0 }", "PF218", 1, 9, "unknown dtype 'F'"),
    (
        "op f(x: f32[B...]) -> (y: f32[B...]) {\nt[b...] = position(b...)\ny[b...] = x[b...] + t[b...]\n}",
        "PF302",
        2,
        3,
        "range of 'b...'",
    ),
    ("op f(x: f32[B...]) -> (y: f32) { y = sum[b...](1.0) }", "PF302", 1, 42, "read a tensor at [b...]"),
    (
        "op g[K: size](x: f32[K]) -> (y: f32[K]) { y[k] = x[k] }\n"
        "op f(x: f32[N]) -> (y: f32[N]) { y = g(x, 2) }",
        "PF203",
        2,
        38,
        "g(x, K=...)",
    ),
    ("op f(x: f32[N], K: size = 2) -> (y: f32[N]) { y[i] = x[i] }", "PF218", 1, 20, "op f[K: size = 2](...)"),
    ("op f(x: f32[N]) -> (y: f32[B...]) { y[b...] = 1.0 }", "PF219", 1, 28, "no parameter's type mentions B"),
    (
        "op f(x: f32[A..., N], z: f32[B..., N]) -> (y: f32) {\ny = sum[c...](1.0) + x[0, 0, 0]\n}",
        "PF224",
        2,
        9,
        "how many indices 'c...' stands for is not known",
    ),
    ("op exp(x: f32) -> (y: f32) { y = x }", "PF232", 1, 4, "is a built-in function"),
    # calls
    (G + "y = softmax()\n}", "PF203", 5, 5, "also needs 'x'"),
    (G + "y = softmax(v, 1.0, 2.0)\n}", "PF203", 5, 5, "takes 2 arguments, got 3"),
    (G + "y = softmax(v, scal=1.0)\n}", "PF203", 5, 21, "did you mean 'scale'?"),
    (G + "y = softmax(v, x=v)\n}", "PF203", 5, 18, "'x' is given twice"),
    (G + "y = softmax(u)\n}", "PF201", 5, 13, "unknown name 'u'"),
    (G + "y = softmax(v[0])\n}", "PF204", 5, 13, "must be a tensor's name"),
    (
        SOFTMAX + "op g(v: f32, w: f32[N]) -> (y: f32[N]) {\ny = softmax(v)\n}",
        "PF204",
        5,
        13,
        "its argument has 0 axes",
    ),
    (OPTIONAL + "y[i] = x[i] + b[i]\n}", "PF247", 2, 15, "'b' may be absent here"),
    (OPTIONAL + "y[i] = x[i] if given(x) else b[i]\n}", "PF248", 2, 16, "an optional parameter"),
    (OPTIONAL + "y = f(b)\n}", "PF212", 2, 5, "recursive"),
    (SOFTMAX + OPTIONAL + "y = softmax(b)\n}", "PF249", 5, 13, "where 'b' is absent"),
    (SOFTMAX + "op g(v: f32[N]) -> (y: f32[N]) {\ny = softmax(None)\n}", "PF249", 5, 13, "is not optional"),
    ("op f(x: f32[N], a: f32?) -> (y: f32[N]) {\ny[i] = x[i]\n}", "PF250", 1, 17, "'a' is a scalar"),
    ("op f(x: f32[N], a: f32[M]?) -> (y: f32[N]) {\ny[i] = x[i] * f32(M)\n}", "PF251", 1, 20, "'M' follows"),
    (
        SOFTMAX + "op g(v: i32[N]) -> (y: f32[N]) {\ny = softmax(v)\n}",
        "PF205",
        5,
        13,
        "F is one of f64, f32, f16, bf16",
    ),
    (
        SOFTMAX + "op g(v: f64[N]) -> (y: f32[N]) {\ny = softmax(v)\n}",
        "PF205",
        5,
        1,
        "'y' is f32, 'softmax' gives f64",
    ),
    (
        SOFTMAX + "op g(v: f32[N], k: i32) -> (y: f32[N]) {\ny = softmax(v, k)\n}",
        "PF205",
        5,
        16,
        "cast it: f32(...)",
    ),
    (SOFTMAX + "op g(v: f32[N]) -> (y: f32[N, N]) {\ny = softmax(v)\n}", "PF204", 5, 1, "'softmax' gives 1"),
    (
        SOFTMAX + "op g(v: f32[N], w: f32[M]) -> (y: f32[M]) {\ny = softmax(v)\n}",
        "PF206",
        5,
        1,
        "axis 0 of 'y' has extent M",
    ),
    (SOFTMAX + "op g(v: f32[1]) -> (y: f32[1]) {\ny = softmax(v)\n}", "PF221", 5, 5, "needs H >= 2"),
    (G + "y = softmax(v) for i in 0..N\n}", "PF306", 5, 20, "takes no ranges"),
    (G + "y = softmax(y)\n}", "PF207", 5, 1, "through a call"),
    (G + "(y, z) = softmax(v)\n}", "PF230", 5, 1, "has 1 result (y)"),
    ("op h(inout p: f32[N]) { p[i] = 0.0 }\n" + G + "y = h(v)\n}", "PF230", 6, 1, "'h' has no results"),
    ("op h(p: f32[N]) { }\n" + G + "y[i] = v[i]; h(v)\n}", "PF230", 6, 14, "calling it does nothing"),
    ("op h(inout p: f32[N]) { p[i] = 0.0 }\n" + G + "y[i] = v[i]; h(v)\n}", "PF229", 6, 16, "is inout"),
    (G + "y[i] = v[i]; softmax(v)\n}", "PF230", 5, 14, "a call without a left side takes none"),
    (G + "y[i] = v[i]; exp(v)\n}", "PF202", 5, 14, "a call of it is no statement"),
    (G + "v = softmax(v)\ny[i] = v[i]\n}", "PF211", 5, 1, "is an input"),
    (
        G + "y = softmax(v)\ny[i] = v[i]\n}",
        "PF209",
        6,
        1,
        "'y' is defined twice",
    ),
    (
        NORM + "op g(v: f32[N, M], w: f32[K]) -> (y: f32[N, M]) {\n(y, m) = norm(v, w)\n}",
        "PF206",
        5,
        18,
        "axis 0 of 'w' (H) must be M; axis 1 of 'x' (H) says so, got K",
    ),
    (
        NORM + "op g(v: f32[N, M], w: f64[M]) -> (y: f32[N, M]) {\n(y, m) = norm(v, w)\n}",
        "PF231",
        5,
        18,
        "of one dtype (F), got f32 and f64",
    ),
    (
        NORM + "op g(v: f32[N, M], w: f32[M]) -> (y: f32[N, M]) {\n(y, y) = norm(v, w)\n}",
        "PF209",
        5,
        1,
        "twice",
    ),
    (
        SPLIT + "op g(v: f32[N, 7]) -> (y: f32[N, 2]) {\ny = split(v)\n}",
        "PF206",
        3,
        11,
        "no value of 'H' fits",
    ),
    (
        "op r(inout p: f32[N]) -> (l: f32) { p[i] = 0.0; l = 0.0 }\n"
        "op g(v: f32[N]) -> (l: f32) {\nl = r(v)\n}",
        "PF229",
        3,
        7,
        "only an inout parameter",
    ),
    (
        "op r(inout p: f32[N]) -> (l: f32) { p[i] = 0.0; l = 0.0 }\n"
        "op g(inout v: f32[N]) -> (l: f32) {\nl = r(v)\nv[i] = 1.0\n}",
        "PF209",
        3,
        7,
        "written elsewhere too",
    ),
    (
        "op a(x: f32) -> (y: f32) { y = b(x) }\nop b(x: f32) -> (y: f32) { y = a(x) }",
        "PF212",
        2,
        32,
        "a -> b -> a",
    ),
    (G + "(v, N) = softmax(v)\ny = softmax(v)\n}", "PF210", 5, 5, "'N' is a size"),
]


@pytest.mark.parametrize("row", PROGRAMS, ids=[f"{r[1]} {r[4]}" for r in PROGRAMS])
def test_program(row: tuple[str, str, int, int, str]) -> None:
    text, code, line, column, words = row
    found = errors(text)
    assert found, "no error"
    rendered = "\n".join(d.render() for d in found)
    assert (code, line, column) in [place(d) for d in found], rendered
    assert words in rendered


# --- other ways to fail ------------------------------------------------------------------------------


def test_all_errors_of_a_file_are_collected() -> None:
    text = "op f(x: f32[N]) -> (y: f32[N]) {\ny[i] = u[i] + q\nt[i] = expp(x[i])\n}\n"
    text += "op g(x: f32) -> (y: f32) {\n}"
    found = errors(text)
    assert [place(d)[:2] for d in found] == [("PF201", 2), ("PF201", 2), ("PF202", 3), ("PF208", 5)]


def test_errors_do_not_cascade() -> None:
    text = HEAD + "a[i] = u[i]\nc[i] = a[i] * 2.0\nlet d2: f23[N] = 0\ne = d2[0] + c[0]\ny[i] = c[i] + e\n}"
    assert [d.code for d in errors(text)] == ["PF218", "PF201"]


def test_errors_of_a_called_operator_come_once() -> None:
    text = (
        "op bad(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + z }\n"
        "op f(x: f32[N]) -> (y: f32[N]) { a = bad(x); y = bad(a) }"
    )
    assert [place(d) for d in errors(text)] == [("PF201", 1, 50)]


@pytest.mark.parametrize(
    ("params", "arguments", "shown"),
    [
        ("x: f32[N]", "v", "0..N"),
        ("x: f32[3]", "u", "0..3"),
        ("x: f32[2*N]", "w", "0..<size>"),
        ("x: f32[N], z: f32[K]", "v, v", "0..<size>"),
    ],
)
def test_a_hint_names_sizes_of_its_own_operator(params: str, arguments: str, shown: str) -> None:
    text = (
        f"op f(v: f32[M], u: f32[3], w: f32[2*L], k: i32) -> (y: f32) {{ y = bad({arguments}, k) }}\n"
        f"op bad({params}, n: i32) -> (y: f32) {{ y = sum[j](x[j] if j < n else 0.0) }}"
    )
    (found,) = errors(text)
    assert found.code == "PF302"
    assert shown in str(found.hint)


def test_errors_at_one_choice_of_generics() -> None:
    text = "op f[F: float](x: F[N], a: f32) -> (y: F[N]) { y[i] = x[i] * a }"
    assert not errors(text)
    with pytest.raises(DslError, match="the operands of '\\*' are f64 and f32"):
        instantiate(parse_text(text, "t.pf"), "f", dtypes={"F": F64})


def test_calls_nested_too_deep() -> None:
    depth = MAX_CALL_DEPTH + 2
    ops = [f"op g{k}(x: f32) -> (y: f32) {{ y = g{k + 1}(x) }}" for k in range(depth)]
    ops.append(f"op g{depth}(x: f32) -> (y: f32) {{ y = x }}")
    assert "PF212" in {d.code for d in errors("\n".join(ops))}


def test_calls_that_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_STATEMENTS", 500)
    ops = [f"op g{k + 1}(x: f32) -> (y: f32) {{ a = g{k}(x); y = g{k}(a) }}" for k in range(40)]
    found = errors("\n".join(["op g0(x: f32) -> (y: f32) { y = x }", *ops]))
    assert {d.code for d in found} == {"PF212"}
    assert "more than 500 statements" in found[0].message


def test_extents_that_cannot_be_derived() -> None:
    found = errors(HEAD + "t[i, j] = v[i] for i in 0..N, j in 0..i % 3\ny[i] = t[i, 0]\n}")
    assert [place(d) for d in found] == [("PF311", 2, 6)]


# --- documentation -----------------------------------------------------------------------------------

CODES = sorted(
    {
        code
        for file in PACKAGE.rglob("*.py")
        for code in re.findall(r'"(PF[23]\d\d)"', file.read_text("utf-8"))
    }
)


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_documented_with_a_program_that_has_it(code: str) -> None:
    text = (DOCS / f"{code}.md").read_text(encoding="utf-8")
    program, output = re.findall(r"```\n(.*?)\n```", text, flags=re.S)[:2]
    found = check_program(parse_text(program, "t.pf")).found
    rendered = [d.render() for d in found if d.code == code]
    assert rendered, f"the example of {code} does not have this error"
    assert rendered[0].startswith(output), "the page shows another message"


def test_every_code_has_a_program_that_must_fail() -> None:
    here = Path(__file__).read_text("utf-8")
    warnings = {"PF290", "PF291", "PF293"}  # in tests/unit: test_build_graph.py, test_entry_reads.py
    assert len(STATEMENTS) + len(PROGRAMS) >= 60
    assert not [c for c in CODES if f'"{c}"' not in here and c not in warnings]
