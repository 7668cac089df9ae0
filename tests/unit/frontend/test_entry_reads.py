"""`old(m[i])`, and the warning where an inout parameter is read beside a statement that writes it (PF293)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.api import standard_programs
from polyfuse.builder import fn
from polyfuse.diagnostics import Diagnostic
from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.parse import parse_text

ROOT = Path(__file__).parents[3]
HEAD = "op f(inout p: f32[N], inout m: f32[N], inout s: f32, g: f32[N], k: i32[N]) -> (y: f32[N]) {\n"
STEP = "op step(inout a: f32[N], b: f32[N]) { a[i] = a[i] - b[i] }\n"
REST = {"p": "p[i] = 2.0", "m": "m[i] = 2.0", "s": "s = 2.0", "y": "y[i] = 1.0"}


def found_in(text: str, code: str = "PF293") -> list[Diagnostic]:
    diags = check_program(parse_text(text, "t.pf"), standard_programs())
    assert {d.code for d in diags.errors} <= {code}, [d.render() for d in diags.errors]
    return [d for d in diags.found if d.code == code]


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ("m[i] = 0.9 * m[i] + g[i]; p[i] = p[i] - m[i]; s = 1.0; y[i] = g[i]", "m[i]"),
        ("p[i] = m[i]; m[i] = g[i]; s = 1.0; y[i] = g[i]", "m[i]"),
        ("m[i] = m[i] + p[i]; p[i] = p[i] - m[i]; s = 1.0; y[i] = g[i]", "p[i] m[i]"),
        ("y[i] = g[i] * s; s = s + 1.0; m[i] = g[i]; p[i] = g[i]", "s"),
        ("step(p, g); y[i] = p[i]; m[i] = g[i]; s = 1.0", "p[i]"),
        ("y = relu(p); p[i] = g[i]; m[i] = g[i]; s = 1.0", "p"),
        ("step(p, m); step(m, g); y[i] = g[i]; s = 1.0", "m"),
        ("p[k[i]] += g[i]; y[i] = p[i]; m[i] = g[i]; s = 1.0", "p[i]"),
        ("p[0] = 1.0; p[i] = p[i-1] for i in 1..N; y[i] = g[i]; m[i] = g[i]; s = 1.0", "p[i-1]"),
        ("t[i] = p[i] * 2.0; y[i] = t[i]; p[i] = g[i]; m[i] = g[i]; s = 1.0", "p[i]"),
    ],
)
def test_a_read_beside_a_write_is_a_warning(body: str, read: str) -> None:
    warned = found_in(STEP + HEAD + body + "\n}")
    assert sorted(d.span.text for d in warned if d.span) == sorted(read.split())
    assert all("written here" in d.render() and "old(" in d.render() for d in warned)


@pytest.mark.parametrize(
    "body",
    [
        "m_new[i] = 0.9 * m[i] + g[i]; m[i] = m_new[i]; p[i] = p[i] - m_new[i]; s = 1.0; y[i] = g[i]",
        "m[i] = 0.9 * m[i] + g[i]; p[i] = p[i] - old(m[i]); s = 1.0; y[i] = g[i]",
        "r = sum[i](p[i] * p[i]); q[i] = r * g[i]; p[i] = p[i] - q[i]; m[i] = g[i]; s = 1.0; y[i] = g[i]",
        "y[i] = g[i] * old(s); s = s + 1.0; m[i] = g[i]; p[i] = g[i]",
        "step(p, g); y[i] = old(p[i]); m[i] = g[i]; s = 1.0",
        "y = relu(old(p)); p[i] = g[i]; m[i] = g[i]; s = 1.0",
        "p[i] = p[N-1-i]; y[i] = g[i]; m[i] = g[i]; s = 1.0",
        "p[0] = p[0] + 1.0; p[i] = p[i] for i in 1..N; y[i] = g[i]; m[i] = g[i]; s = 1.0",
    ],
)
def test_what_is_said_is_no_mistake(body: str) -> None:
    assert not found_in(STEP + HEAD + body + "\n}")


@pytest.mark.parametrize(
    "right", ["old(g[i])", "old(2.0)", "old(2.0 * m[i])", "old(m[i], m[i])", "old()", "old(x=m[i])"]
)
def test_old_takes_inout_parameters(right: str) -> None:
    (error,) = found_in(HEAD + f"y[i] = {right}; p[i] = 1.0; m[i] = 1.0; s = 1.0\n}}", "PF294")
    assert error.span is not None and error.span.text == right


def test_old_is_the_value_at_entry() -> None:
    text = STEP + HEAD + (
        "  m[i] = 0.5 * m[i] + g[i]\n  p[i] = p[i] - old(m[N - 1 - i])\n  s = old(s) + 1.0\n"
        "  t = relu(old(p))\n  y[i] = t[i] + old(m[k[i]]) * old(s) + sum[j](old(p[j]))\n}\n"
    )  # fmt: skip
    p, m, g = (np.arange(5, dtype=np.float32) + k for k in range(3))
    s, k = np.array(2, np.float32), np.array([4, 0, 1, 1, 2], np.int32)
    got = [x.copy() for x in (p, m, s)]
    y = pf.compile(text, op="f", target="interpret")(*got, g, k)
    np.testing.assert_array_equal(y, np.maximum(p, 0) + m[k] * 2 + p.sum())
    for found, want in zip(got, (p - m[::-1], 0.5 * m + g, 3), strict=True):
        np.testing.assert_array_equal(found, want)


def test_old_is_printed_as_it_is_written() -> None:
    text = "op f(inout p: f32[N]) -> (y: f32[N]) {\n  y[i] = 2.0 * old(p[N - 1 - i])\n  p[i] = 0.0\n}\n"
    tree = parse_text(text)
    printed = format_program(tree)
    assert "y[i] = 2.0 * old(p[N-1-i])" in printed and parse_text(printed) == tree


def test_old_in_programs_that_python_builds() -> None:
    b = pf.ProgramBuilder()
    f = b.op("f")
    i = f.index("i")
    p, y = f.inout("p", "f32", "N"), f.result("y", "f32", "N")
    y[i] = fn.old(p[i]) * 2.0
    p[i] = 0.0
    assert "old(p[i])" in str(b)
    assert not found_in(str(b))


def texts() -> Iterator[tuple[str, str]]:
    """Operators of the project: files, and texts in Python of benchmarks and examples."""
    for folder in ("polyfuse/stdlib", "benchmarks", "examples", "docs/course"):
        for path in sorted((ROOT / folder).rglob("*.pf")):
            yield str(path), path.read_text(encoding="utf-8")
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and "inout" in node.value:
                    yield f"{path}:{node.lineno}", node.value


def test_no_operator_of_the_project_is_warned_of() -> None:
    checked = 0
    for where, text in texts():
        if "op " not in text:
            continue
        try:
            program = parse_text(text)
        except pf.PolyfuseError:
            continue  # words, or a part of a text
        warned = [d for d in check_program(program, standard_programs()).warnings if d.code == "PF293"]
        assert not warned, f"{where}: {warned[0].render()}"
        checked += "inout" in text
    assert checked >= 8
