"""Short rows go in vectors of several lengths, or in two that overlap."""

from __future__ import annotations

import re

import pytest
from equivalence import assert_compiled, cpu_source
from thinned import thinned

SHIFTED = "op f(x: {0}[T, H], a: {0}[T]) -> (y: {0}[T, H]) {{ y[t, h] = max(x[t, h] - a[t], 0) }}"
IN_PLACE = "op f(inout x: f32[T, H], a: f32[T]) { x[t, h] = x[t, h] * a[t] + 1.0 }"
# Both halves of a row change by each other.
TURNED = """op f(q: f32[S, T, 2*D], c: f32[T, D], s: f32[T, D]) -> (y: f32[S, T, 2*D]) {
  y[b, t, d] = q[b, t, d] * c[t, d] - q[b, t, d+D] * s[t, d] for d in 0..D
  y[b, t, d] = q[b, t, d] * c[t, d-D] + q[b, t, d-D] * s[t, d-D] for d in D..2*D
}"""
LOOKED_UP = "op f(x: f32[V, H], i: i64[T]) -> (y: f32[T, H]) { y[t, h] = x[i[t], h] * 2.0 }"
ADDED = """op f(x: f32[T, H], i: i64[T], z: f32[H]) -> (y: f32[50, H]) {
  y[i[t], h] += x[t, h] * z[h]
}"""
TOTALS = """op f(x: f32[T, H], a: f32[T]) -> (y: f32[T, H], s: f32[H]) {
  y[t, h] = x[t, h] - a[t]
  s[h] = sum[t](y[t, h])
}"""
FUNCTIONS = "op f(x: f32[T, H], a: f32[T]) -> (y: f32[T, H]) { y[t, h] = tanh(x[t, h] - a[t]) }"
PROGRAMS = {
    "shifted": SHIFTED.format("f32"),
    "shifted f64": SHIFTED.format("f64"),
    "shifted i32": SHIFTED.format("i32"),
    "shifted f16": SHIFTED.format("f16"),
    "shifted u8": SHIFTED.format("u8"),
    "in place": IN_PLACE,
    "turned": TURNED,
    "looked up": LOOKED_UP,
    "added": ADDED,
    "totals": TOTALS,
    "functions": FUNCTIONS,
}


def sizes(program: str, t: int, h: int) -> dict[str, int]:
    if program == "turned":
        return {"S": 3, "T": t, "D": h}
    return {"T": t, "H": h} | ({"V": 31} if program == "looked up" else {})


@pytest.mark.thin(4)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("h", range(1, 18))
@pytest.mark.parametrize("t", thinned([3001, 5, 1, 0], 2))
def test_results_are_right(program: str, t: int, h: int) -> None:
    assert_compiled(PROGRAMS[program], **sizes(program, t, h))


@pytest.mark.parametrize(
    ("program", "h", "expected"),  # loops; one element has none
    [
        ("shifted", 6, [(0, 4), (4, 6)]),
        ("shifted", 7, [(0, 4), (3, 7)]),
        ("shifted", 8, [(0, 8)]),
        ("shifted", 9, [(0, 8)]),
        ("shifted", 12, [(0, 8), (8, 12)]),
        ("shifted", 15, [(0, 8), (7, 15)]),
        ("shifted", 17, [(0, 17)]),
        ("shifted f64", 7, [(0, 4), (4, 6)]),
        ("in place", 7, [(0, 4), (4, 7)]),  # a second time is another one
        ("in place", 15, [(0, 8), (8, 12), (12, 15)]),
    ],
)
def test_how_rows_are_cut(program: str, h: int, expected: list[tuple[int, int]]) -> None:
    text = cpu_source(PROGRAMS[program], **sizes(program, 3000, h))
    found = re.findall(r"for \(pf_i64 c1 = (\d+); c1 < (\d+); ", text)
    assert [(int(a), int(b)) for a, b in found] == expected


def test_what_stays_whole() -> None:
    """Functions, and numbers of 16 bits, which have rests of their own."""
    for program in ("functions", "shifted f16"):
        text = cpu_source(PROGRAMS[program], **sizes(program, 3000, 13))
        assert not re.search(r"c1 = 8; c1 < 1\d; ", text)
