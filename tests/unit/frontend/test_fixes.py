"""Hints as edits, and what `polyfuse check --fix` makes of a text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from polyfuse.checking import check_text
from polyfuse.diagnostics import Diagnostic, DslError
from polyfuse.fixes import fix_of, mended
from polyfuse.frontend_dsl.syntax import ast


def check(text: str) -> tuple[ast.Program | None, Sequence[Diagnostic]]:
    try:
        found = check_text(text, "t.pf")
    except DslError as error:
        return None, error.diagnostics
    return found.program, found.found.found


def op(body: str, head: str = "op f(x: f32[N]) -> (y: f32[N])") -> str:
    return f"{head} {{\n{body}\n}}\n"


INOUT = "op f(inout m: f32[N], inout p: f32[N])"
TOTAL = "op f(x: f32[H]) -> (y: f32)"
TWO = "op f(x: f32[N]) -> (y: f32[N]) where N >= 2"
AVERAGE = "  y = sum[h](x[h]) / H"
SAFE = [
    (op("  y[i] = x[i] − 1.0"), op("  y[i] = x[i] - 1.0")),
    (op("  y[i] = x[i]\N{NO-BREAK SPACE}- 1.0"), op("  y[i] = x[i] - 1.0")),
    (op("  y[i] = x[i] -\N{ZERO WIDTH SPACE} 1.0"), op("  y[i] = x[i] - 1.0")),
    (op("  y[i] = x[i] * 007"), op("  y[i] = x[i] * 7")),
    (op("  m[i] = m[i] + 1.0\n  p[i] = m[i]", INOUT), op("  m[i] = m[i] + 1.0\n  p[i] = old(m[i])", INOUT)),
    # one that is never used, and then what only it used
    (op("  a[i] = x[i]\n  b[i] = a[i]\n  y[i] = x[i]  # kept"), op("  y[i] = x[i]  # kept")),
    (op("  a[i] = x[i]; y[i] = x[i]"), op("  y[i] = x[i]")),
    (op("  a[0] = 1.0\n  a[i] = a[i-1] for i in 1..N\n  y[i] = x[i]"), op("  y[i] = x[i]")),
]
UNSAFE = [
    (op("  y[i] = exq(x[i])"), op("  y[i] = exp(x[i])")),
    (op("  y[i] = x[i] ^ 2"), op("  y[i] = x[i] ** 2")),
    (op("  bias[i] = x[i]\n  y[i] = bais[i]"), op("  bias[i] = x[i]\n  y[i] = bias[i]")),
    (
        op("  s[i] = x[i-1]\n  y[i] = s[max(i, 1)]", TWO),
        op("  s[i] = x[i-1] for i in 1..N\n  y[i] = s[max(i, 1)]", TWO),
    ),
    (op("  y = sum[k](x[k+1] + x[k+2])", TOTAL), op("  y = sum[k in 0..H - 2](x[k+1] + x[k+2])", TOTAL)),
    (op(AVERAGE, TOTAL), op(AVERAGE, f"{TOTAL} where H >= 1")),
    (op(AVERAGE, f"{TOTAL} where H % 2 == 0"), op(AVERAGE, f"{TOTAL} where H % 2 == 0, H >= 1")),
]


@pytest.mark.parametrize(("text", "expected"), SAFE, ids=lambda t: "")
def test_hints_that_keep_the_meaning_are_carried_out(text: str, expected: str) -> None:
    new, count = mended(text, check)
    assert new == expected and count >= 1
    assert mended(new, check) == (new, 0)


@pytest.mark.parametrize(("text", "expected"), UNSAFE, ids=lambda t: "")
def test_others_need_to_be_asked_for(text: str, expected: str | None) -> None:
    assert mended(text, check) == (text, 0)
    new, count = mended(text, check, unsafe=True)
    assert count >= 1 and (expected is None or new == expected)
    assert not check(new)[1]


def test_a_call_that_may_write_is_not_removed() -> None:
    text = """op g(inout p: f32[N]) -> (s: f32) { p[i] = 0.0; s = 1.0 }
op f(inout p: f32[N]) { _ = 1.0; s = g(p) }
"""
    program, found = check(text)
    assert [d.code for d in found] == ["PF290"]
    assert fix_of(found[0], program) is None and mended(text, check, unsafe=True) == (text, 0)


def test_fixes_that_make_it_worse_are_taken_back() -> None:
    """The second round finds more errors than the first, whatever they are."""
    rounds = [check(op("  y[i] = exq(x[i])"))]

    def worse(text: str) -> tuple[ast.Program | None, Sequence[Diagnostic]]:
        found = rounds[0][1]
        return (rounds[0][0], found) if text == op("  y[i] = exq(x[i])") else (None, [*found, *found])

    assert mended(op("  y[i] = exq(x[i])"), worse, unsafe=True) == (op("  y[i] = exq(x[i])"), 0)


def test_findings_of_other_files_are_left_alone() -> None:
    program, found = check(op("  y[i] = exq(x[i])"))
    assert mended("op g() {}", lambda text: (program, found), unsafe=True) == ("op g() {}", 0)
