"""Lints (PF295 to PF298), comments that silence them, and comments that silence nothing (PF299)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polyfuse.checking import check_programs, check_text
from polyfuse.diagnostics import Diagnostic
from polyfuse.library import standard_programs

PAGES = Path(__file__).parents[3] / "docs" / "errors.d"
GATHER = "op f(w: f32[V, H], k: i32[T]) -> (y: f32[T, H]) {{ y[t, h] = {} }}"
LARGE = 2**24 + 1


def found_in(text: str) -> list[Diagnostic]:
    return check_text(text, "t.pf").found.found


def codes_of(text: str) -> list[str]:
    return [d.code for d in found_in(text)]


@pytest.mark.parametrize("code", [f"PF29{k}" for k in range(5, 10)])
def test_the_page_shows_what_is_found(code: str) -> None:
    text = (PAGES / f"{code}.md").read_text(encoding="utf-8")
    program, output = re.findall(r"```\n(.*?)\n```", text, flags=re.S)[:2]
    (found,) = found_in(program)
    assert found.code == code and found.render().startswith(output)


@pytest.mark.parametrize(
    ("parameters", "body"),
    [
        ("x: f32[N], u: f32[N, K]", "y[i] = x[i] + sum[k](u[i, k])"),
        ("x: f32[N], u: f32[N, K]", "y[i] = x[i] + u[i, 0] for i in 0..N"),
        ("x: f32[N, K]", "y[i] = x[i, 0]"),  # K is of a tensor that is read
        ("x: f32[N], u: f32[N, K]", "y[i] = x[i] * K"),
        ("x: f32[N], _u: f32[N, K]", "y[i] = x[i]"),
        ("x: f32[N], u: f32[N]", "y[i] = x[i]"),  # N is used
    ],
)
def test_a_size_that_something_depends_on(parameters: str, body: str) -> None:
    where = "where K >= 1" if "K]" in parameters else ""
    assert codes_of(f"op f({parameters}) -> (y: f32[N]) {where} {{ {body} }}") == []


def test_a_constraint_uses_its_sizes() -> None:
    text = "op f(x: f32[N], u: f32[K]) -> (y: f32[N]) {} {{ y[i] = x[i] }}"
    assert codes_of(text.format("")) == ["PF295"]
    assert codes_of(text.format("where K == 2*N")) == []


def test_size_parameters() -> None:
    text = "op f[K: size = 2, S: size = K](x: f32[N]) -> (y: f32[N]) {{ y[i] = x[i] * {} }}"
    assert codes_of(text.format("S")) == codes_of(text.format("(K + S)")) == []
    assert codes_of(text.format("K")) == ["PF295"]


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ("y[t] = x[t] / H", ["PF296"]),
        ("y[t] = x[t] / f32(2*H)", ["PF296"]),
        ("y[t] = x[t] / (H * T)", ["PF296"]),  # where T is 0, y has no elements
        ("y[t] = x[t] / T", []),
        ("y[t] = x[t] / (H + 1)", []),
        ("y[t] = x[t] / max(H, 1)", []),
        ("s[t] = x[t] / H; y[t] = sum[h](q[h] * s[t])", []),  # nothing is summed where H is 0
        ("s[t] = x[t] / H; y[t] = s[t] + sum[h](q[h])", ["PF296"]),
        ("y[t] = x[t] + mean[h](q[h])", []),  # the mean of nothing is an error of its own
        ("y[t] = sum[h](q[h] / H)", []),
    ],
)
def test_divisions_by_sizes(body: str, codes: list[str]) -> None:
    assert codes_of(f"op f(x: f32[T], q: f32[H]) -> (y: f32[T]) where H <= 9*H {{ {body} }}") == codes


def test_a_size_that_is_not_0_divides() -> None:
    text = "op f(x: f32[T], q: f32[H]) -> (y: f32[T]) where {} {{ y[t] = x[t] / H }}"
    assert codes_of(text.format("H >= 1")) == codes_of(text.format("2*H > T, T >= 2")) == []
    assert codes_of(text.format("H >= 0")) == codes_of(text.format("H % 2 == 0")) == ["PF296"]


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        (f"y = sum[i in 0..{LARGE}](x)", ["PF297"]),
        (f"y = sum[i in 1..{LARGE}](x)", []),
        (f"y = sum[i in 0..4097, j in 0..4096](x * {LARGE})", ["PF297"]),
        (f"y = max[i in 0..{LARGE}](x)", []),
        (f"y = f32(sum[i in 0..{LARGE}](f64(x)))", []),
        (f"y = f32(sum[i in 0..{LARGE}](i64(1)))", []),
        (f"y = mean[i in 0..{LARGE}](x)", ["PF297"]),
    ],
)
def test_sums_in_f32(body: str, codes: list[str]) -> None:
    assert codes_of(f"op f(x: f32) -> (y: f32) {{ {body} }}") == codes


@pytest.mark.parametrize(
    ("value", "codes"),
    [
        ("w[k[t], h]", ["PF298"]),
        ("w[k[t] + 1, h]", ["PF298"]),
        ("w[max(k[t], 0), h]", ["PF298"]),
        ("w[min(k[t], V - 1), h]", ["PF298"]),
        ("w[min(max(k[t], 0), V - 1), h]", []),
        ("w[max(min(k[t], V - 1), 0), h]", []),
        ("w[k[t] % V, h]", []),
        ("w[k[t], h] if 0 <= k[t] < V else 0.0", []),
        ("w[k[t], h] if k[0] < V else 0.0", ["PF298"]),
    ],
)
def test_gathers(value: str, codes: list[str]) -> None:
    where = " where T >= 1, V >= 1 {{"
    assert codes_of(GATHER.replace(" {{", where, 1).format(value)) == codes


def test_an_index_that_argmax_gave_is_in_range() -> None:
    text = """op f(x: f32[T, H], w: f32[{}]) -> (y: f32[T]) where H >= 1 {{
      k[t] = argmax[h](x[t, h]); y[t] = w[k[t]]
    }}"""
    assert codes_of(text.format("H")) == []
    assert codes_of(text.format("V")) == ["PF298"]


@pytest.mark.parametrize(
    ("index", "codes"),
    [
        ("min(max(k[t], 0), V - 1)", []),
        ("min(max(k[t], 0), V - 1) if t < 3 else k[t] % V", []),
        ("max[u in 0..T](k[u] % V)", []),
        ("min(k[t], V - 1)", ["PF298"]),
        ("sum[u in 0..T](k[u] % V)", ["PF298"]),
        ("min(max(k[t], 0), V - 1) if t < 3 else k[t]", ["PF298"]),
    ],
)
def test_an_index_that_is_brought_in_range_by_a_statement_before(index: str, codes: list[str]) -> None:
    text = f"""op f(w: f32[V], k: i32[T]) -> (y: f32[T]) where T >= 1, V >= 1 {{
      j[t] = {index} for t in 0..T; y[t] = w[j[t]]
    }}"""
    assert codes_of(text) == codes


def test_an_index_that_a_recurrence_reads_from_argmax() -> None:
    text = """op f(x: f32[T, S, S]) -> (path: i64[T]) where T >= 1, S >= 1 {{
      before[t, s] = argmax[r](x[t, s, r])
      path[T-1] = {}
      path[t] = before[t, path[t+1]] for t in 0..T-1
    }}"""
    assert codes_of(text.format("before[0, 0]")) == []
    assert codes_of(text.format("argmax[t](x[t, 0, 0])")) == ["PF298"]


def test_the_quotient_of_a_position_in_a_flat_range() -> None:
    text = """op f(x: f32[T, K, V], w: f32[K]) -> (y: f32[T]) where K >= 1, V >= 1 {{
      flat[t, j] = x[t, j//V, j%V] for j in 0..K*V
      at[t] = argmax[j](flat[t, j])
      y[t] = {}
    }}"""
    assert codes_of(text.format("w[at[t] // V]")) == []
    assert codes_of(text.format("w[at[t] // K]")) == ["PF298"]
    # What is asked of one range says nothing of a narrower one.
    assert codes_of(text.format("w[at[t] // V if t == 0 else at[t]]")) == ["PF298"]


def test_the_row_of_an_element() -> None:
    text = """op f(x: f32[E], m: f32[{}], start: i32[N + 1]) -> (y: f32[E]) {{
      r[e] = row(start, e) for e in 0..E
      y[e] = x[e] - m[row(start, e)] * m[r[e]]
    }}"""
    assert codes_of(text.format("N")) == []
    assert set(codes_of(text.format("M"))) == {"PF298"}


GATHERING = "op f(w: f32[V], k: i32[T]) -> (y: f32[T]) {\n"


@pytest.mark.parametrize(
    "text",
    [
        GATHERING + "  y[t] = w[k[t]]  # pf: ignore[PF298]\n}",
        GATHERING + "  # pf: ignore[PF298]\n  y[t] = w[k[t]]\n}",
        GATHERING + "  y[t] = 2.0 *\n    w[k[t]] +  # pf: ignore[PF298]\n    1.0\n}",
        GATHERING + "  y[t] = w[k[t]] / V  # pf: ignore[PF296, PF298]: why\n}",
        "op f(x: f32[T],\n  u: f32[K]  # pf: ignore[PF295]\n) -> (y: f32[T]) { y[t] = x[t] }",
        "op f(x: f32[T]) -> (y: f32[T]) {\n  a[t] = x[t]  # pf: ignore[PF290]\n  y[t] = x[t]\n}",
    ],
)
def test_comments_silence(text: str) -> None:
    assert codes_of(text) == []
    assert codes_of(re.sub(r"#.*", "", text))


def test_what_is_called_from_another_file_is_told_of_there() -> None:
    text = "op f(x: f32[T, C], k: i64[T]) -> (loss: f32) { loss = cross_entropy(x, k) }"
    assert codes_of(text) == []


def test_a_comment_silences_its_own_statement_and_codes_only() -> None:
    text = """op f(w: f32[V], k: i32[T]) -> (y: f32[T], z: f32[T]) {
  y[t] = w[k[t]]  # pf: ignore[PF298]
  z[t] = w[k[t]]  # pf: ignore[PF290]
}"""
    assert [(d.code, d.span.line) for d in found_in(text) if d.span] == [("PF298", 3), ("PF299", 3)]


def test_errors_are_not_silenced() -> None:
    text = "op f(x: f32[N]) -> (y: f32[N]) {\n  y[i] = x[i+1]  # pf: ignore[PF350]\n}"
    assert codes_of(text) == ["PF350"]


def test_the_standard_library_divides_by_no_size_0() -> None:
    """What is left there is meant: gathers of indices that callers answer for."""
    standard = standard_programs()
    for p in standard:
        others = tuple(q for q in standard if q is not p)
        assert {d.code for d in check_programs((*others, p)).found.found} <= {"PF298"}
