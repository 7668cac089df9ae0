"""What cannot be differentiated: code, line and column; and that the hint works."""

from __future__ import annotations

import pytest

import polyfuse as pf
from polyfuse.diagnostics import DslError

CASES = [
    ("PF792", 2, 10, ["w"], """op f(x: f32[N], w: f32[N]) -> (y: f32[N]) {
  y[i] = digamma(x[i]) * w[i]
}"""),
    ("PF793", 3, 13, [], """op f(x: f32[N], back: i64[N]) -> (c: f32[N]) where N >= 1 {
  h[0, n] = x[n]
  h[t, n] = h[t - 1, back[n]] * x[n] for t in 1..8, n in 0..N
  c[n] = h[7, n]
}"""),
]  # fmt: skip


@pytest.mark.parametrize(("code", "line", "column", "left", "text"), CASES, ids=[c[0] for c in CASES])
def test_the_place_is_told(code: str, line: int, column: int, left: list[str], text: str) -> None:
    with pytest.raises(DslError) as e:
        pf.grad(pf.parse(text))
    (found,) = e.value.diagnostics
    assert found.code == code and found.span is not None and found.hint
    assert (found.span.line, found.span.column) == (line, column)
    if left:
        pf.grad(pf.parse(text), left)
