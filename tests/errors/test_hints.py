"""Hints can be followed: each is carried out as it is written, and what comes out compiles."""

from __future__ import annotations

import re

import pytest

from polyfuse.api import Program, standard_programs
from polyfuse.diagnostics import Diagnostic
from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.syntax.parse import parse_text

V = "op f(x: f32[T, H], u: f32[T, H], v: f32[T], k: i64[T], s: f32) -> (y: f32[T, H]) {{\n  {}\n}}"
ROW = "op f(x: f32[N], g: f32[N], k: i32[N], b: bool[N]) -> (y: f32[N]) {{\n  {}\n}}"
PROGRAMS = [
    # names
    *(V.format(f"y[t, h] = {e}") for e in (
        "xx[t, h]", "exq(x[t, h])", "sqtr(x[t, h])", "sigmiod(x[t, h])", "x[t, h] * ss", "x[t, h] + vv[t]",
        "log10(x[t, h])", "log_softmax(x[t, h])", "clip(x[t, h], 0.0, s)", "where(x[t, h] > 0.0, x[t, h], s)",
        "maximum(x[t, h], 0.0)", "fma(x[t, h], u[t, h], s)", "sgn(x[t, h]) * u[t, h]", "sqr(x[t, h] + s)",
        "cot(x[t, h])", "gammaln(x[t, h])", "arctan2(x[t, h], u[t, h])", "reciprocal(x[t, h] + 2.0)",
        "Relu(x[t, h])", "leakyrelu(x[t, h], 0.1) * s",
        "float(k[t])", "f32(int(x[t, h]))", "softmax(x[t, h]) * silu(u[t, h])",
    )),
    # operators inside expressions, tensors without indices
    *(V.format(f"y[t, h] = {e}") for e in (
        "softmax(x[t, h]) * u[t, h]", "log_softmax(x[t, h])", "softmax(x[t, h] + u[t, h]) * s",
        "softmax(x) * u[t, h]", "softmax(x[t, h]) + log_softmax(u[t, h])", "softmax(x[t, h] * v[t])",
        "silu(x) * u[t, h]", "x * u[t, h]", "x[t, h] * v", "softmax(x)",
        "softmax(x[t, h]) * 2.0",
    )),
    V.format("a = silu(x[t, h])\n  y[t, h] = a * u[t, h]"),
    V.format("a = softmax(x[t, h])\n  y[t, h] = a[t, h]"),
    # types
    *(V.format(f"y[t, h] = {e}") for e in (
        "x[t, h] * k[t]", "x[t, h] * (t / 2)", "k[t] + x[t, h]", "x[t, h] / (H / 2)",
    )),
    *(ROW.format(f"y[i] = {e}") for e in ("k[i]", "g[i] * b[i]", "exp(k[i])", "x[i] + f64(g[i])")),
    # ranges
    ROW.format("c[0] = x[0]\n  c[i] = c[i-1] * 0.5 + x[i-1]\n  y[i] = c[i]"),
    ROW.format("c[0] = x[0]\n  c[i] = c[i-1] * 0.5\n  y[i] = c[i]"),
    ROW.format("d[i] = x[i+1] - x[i-1]\n  y[i] = x[i] + d[N-2] + d[1]").replace("{\n", "where N >= 4 {\n"),
    ROW.format("d[i] = x[i+2] * 2.0\n  y[i] = d[i] if i < N - 2 else 0.0"),
    ROW.format("d[i] = x[i-1]\n  y[i] = d[i] if i >= 1 else 0.0"),
    ROW.format("c[N-1] = x[N-1]\n  c[i] = c[i+1] + x[i+1]\n  y[i] = c[i]").replace("{\n", "where N >= 2 {\n"),
    ROW.format("c[0] = 0.0; c[1] = x[1]\n  c[i] = c[i-1] + c[i-2] * x[i-2]\n  y[i] = c[i]"),
    ROW.format("y[i] = sum[j](x[j+1]) * g[i]"),
    ROW.format("y[i] = g[i] + sum[j](x[j-1] * x[j+1])"),
    V.format("y[t, h] = x[t, h] * sum[j](u[t, j+1])"),
    ROW.format("y[i] = sum[j in 0..k[i]](x[j+1])"),
    ROW.format("y[i] = sum[j in 0..x[i]](g[j])"),
    # sizes
    "op f(x: f32[N, C]) -> (y: f32[N, G]) {\n  y[n, g] = sum[c](x[n, c])\n}",
    "op f(x: f32[G*K]) -> (y: f32[G]) {\n  y[g] = sum[k in 0..K](x[g*K + k])\n}",
    "op f(x: f32[N]) -> (y: f32[M]) {\n  y[i] = 1.0\n}",
    # left sides
    "op f(x: f32[J]) -> (y: f32[J, J]) {\n  y[j, j] = x[j]\n}",
    "op f(x: f32[N]) -> (y: f32[N, N, 2]) {\n  y[i, i, k] = x[i]\n}",
    "op f(x: f32[N]) -> (y: f32[2*N]) {\n  y[2*i] = x[i]\n  y[2*i + 1] = 0.0\n}",
    # in place
    "op f(p: f32[N], g: f32[N]) {\n  p[i] = p[i] - g[i]\n}",
    "op f(inout p: f32[N], inout m: f32[N]) {\n  m[i] = 0.9 * m[i]\n  p[i] = p[i] - m[i]\n}",
    "op f(inout p: f32[N], g: f32[N]) -> (n: f32) {\n  p[i] = p[i] - g[i]\n  n = sum[i](p[i])\n}",
    # dtypes
    "op f(x: float32[N]) -> (y: f32[N]) {\n  y[i] = x[i]\n}",
    "op f(x: f23[N]) -> (y: f32[N]) {\n  y[i] = x[i]\n}",
    "op f(x: double[N]) -> (y: f64[N]) {\n  y[i] = x[i]\n}",
]  # fmt: skip


def of_call(text: str, start: int) -> int:
    """Where a call ends that begins with a name at `start`; the end of the name where there is none."""
    at = re.compile(r"\w+").match(text, start)
    assert at is not None
    end = at.end()
    if text[end : end + 1] != "(":
        return end
    depth = 0
    for k in range(end, len(text)):
        depth += (text[k] == "(") - (text[k] == ")")
        if depth == 0:
            return k + 1
    raise AssertionError(text)


def follow(text: str, d: Diagnostic) -> list[str]:
    """The programs that a hint may mean: one, or one for each operand that can be cast."""
    assert d.span is not None and d.hint, d.render()
    hint, start, end = d.hint, d.span.start, d.span.end
    line_end = (text + "\n").index("\n", start)
    line = text.rindex("\n", 0, start) + 1 if "\n" in text[:start] else 0

    def put(new: str, upto: int = end) -> str:
        return text[:start] + new + text[upto:]

    def said(pattern: str) -> re.Match[str] | None:
        return re.search(pattern, hint)

    if m := said(r"did you mean '(\w+)'"):
        return [put(m[1])]
    if m := said(r"such as: (for .*)"):
        return [f"{text[:line_end]} {m[1]}{text[line_end:]}"]
    if m := said(r"such as: \w+\[(.*)\]\(\.\.\.\)"):
        return [put(m[1])]
    if m := said(r"such as `(where .*)`"):
        more = m[1].replace("where", ",") if " where " in text else f" {m[1]}"
        return [text.replace(" {\n", f"{more} {{\n", 1)]
    if m := said(r"call one '(\w+)' and write: \.\.\.( if .*)"):
        return [text[:start] + m[1] + text[end:line_end] + m[2] + text[line_end:]]
    if m := said(r"whole tensor: (.*); then read (.*) here"):
        return [f"{text[:line]}  {m[1]}\n{text[line:start]}{m[2]}{text[of_call(text, start) :]}"]
    if m := said(r"declare it `inout (\w+): "):
        return [text.replace(f"{m[1]}:", f"inout {m[1]}:", 1)]
    if m := said(r"write (old\(.*?\)) for"):
        return [put(m[1])]
    if m := said(r"^write (.*), the whole tensor$"):
        return [put(m[1])]
    if m := said(r"^write (.*)$"):
        return [put(m[1], max(end, of_call(text, start)))]
    if said(r"use '//'"):
        return [put(text[start:end].replace("/", "//"))]
    if m := said(r"(?:cast [^,:]*|cast)(?:, as in|:) (?:\w+\()?(\w+)\(\.\.\."):
        operands = (r"\w+\[[^\]]*\]", r"\w+\(\w+\[[^\]]*\]\)", r"\([^()]*\)")
        reads = [r for o in operands for r in re.finditer(o, text[start:end])]
        return [
            text[: start + r.start()] + f"{t}({r[0]})" + text[start + r.end() :]
            for r in reads
            for t in dict.fromkeys((m[1], "f32"))
        ]
    raise AssertionError(f"nobody can follow this:\n{d.render()}")


def findings(text: str) -> list[Diagnostic]:
    found = check_program(parse_text(text, "t.pf"), standard_programs())
    first = [*found.errors, *(d for d in found.warnings if d.code == "PF293")]
    return sorted(first, key=lambda d: d.span.start if d.span else 0)


@pytest.mark.parametrize("text", PROGRAMS)
def test_hints_are_followed_until_the_program_compiles(text: str) -> None:
    assert findings(text), "this program is right"
    waiting, tried = [text], set[str]()
    for _ in range(40):
        if not waiting:
            break
        program = waiting.pop(0)
        wrong = findings(program)
        if not wrong:
            parsed = parse_text(program, "t.pf")
            Program((parsed, *standard_programs())).op("f").graph()
            return
        new = [p for p in follow(program, wrong[0]) if p not in tried]
        tried.update(new)
        waiting += new
    raise AssertionError("\n".join(d.render() for d in findings(max(tried, key=len))))


def test_the_corpus_is_large() -> None:
    assert len(PROGRAMS) >= 60 and len({d.code for p in PROGRAMS for d in findings(p)}) >= 10
