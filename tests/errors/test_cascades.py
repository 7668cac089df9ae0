"""A mistake is reported once: what follows from it is silent."""

from __future__ import annotations

import pytest

from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.syntax.parse import parse_text

ROPE = """op rope(x: f32[B, T, H, D], base: f32) -> (y: f32[B, T, H, D]) where D == 2*K {
  freq[k] = 1.0 / (base ** (2 * k / D))
  angle[t, k] = f32(t) * freq[k]
  c[t, k] = cos(angle[t, k])
  s[t, k] = sin(angle[t, k])
  y[b, t, h, k] = x[b, t, h, k] * c[t, k] - x[b, t, h, k + K] * s[t, k] for k in 0..K
  y[b, t, h, k] = x[b, t, h, k] * c[t, k - K] + x[b, t, h, k - K] * s[t, k - K] for k in K..D
}"""
CTC = """op ctc(lp: f32[T, V], lab: i64[S]) -> (loss: f32) where T >= 1, S >= 2 {
  ext[s] = lab[s // 2] if s % 2 == 1 else blank for s in 0..2*S+1
  a[0, 0] = lp[0, blank]
  a[0, 1] = lp[0, ext[1]]
  a[0, s] = -inf for s in 2..2*S+1
  m[t, s] = max(a[t-1, s], a[t-1, s-1] if s >= 1 else -inf)
  a[t, s] = m[t, s] + lp[t, ext[s]] for t in 1..T, s in 0..2*S+1
  z = logaddexp(a[T-1, 2*S], a[T-1, 2*S-1])
  loss = -z
}"""
V = "op f(v: f32[N], w: f32[M]) -> (y: f32[N]) { "


def errors(text: str) -> list[tuple[str, str]]:
    found = check_program(parse_text(text, "t.pf")).errors
    found.sort(key=lambda d: d.span.start if d.span else 0)
    return [(d.code, d.span.text if d.span else "") for d in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ROPE, [("PF201", "K"), ("PF215", "2 * k / D")]),
        (CTC, [("PF201", "blank"), ("PF202", "logaddexp")]),
        (V + "y[i] = v[i] * a + b * a; z = a + y[0]; _u = z + a }", [("PF201", "a"), ("PF201", "b")]),
        (V + "y[i] = u[i] + u[i]; z = sum[j](u[j]); _r = z }", [("PF201", "u")]),
        (V + "y[i] = fun(v[i]) + fun(1.0); _z[i] = fun(v[i]) }", [("PF202", "fun")]),
        (V + "a = fun(v); b = fun(a); y[i] = v[i] + a[i] * b[i] }", [("PF202", "fun")]),
        (V + "(a, b) = fun(v); y[i] = a[i]; _z[j] = b[j] }", [("PF202", "fun")]),
        (V + "t[i] = q * v[i] for i in 0..K; y[i] = t[i]; _u[j] = t[j] }", [("PF201", "q"), ("PF201", "K")]),
        (V + "t[max(i, 2)] = v[i]; y[i] = t[i] }", [("PF304", "max(i, 2)")]),
        (V + "t[i] = v[i] / q; r[i, k] = t[i]; y[i] = r[i, 0] }", [("PF201", "q")]),
        (V + "let t: f32[K] = 0.0; let u: f32[K] = 1.0; y[i] = t[i] + u[i] }", [("PF201", "K")]),
        (V + "y[i] = sum[j in 0..K](v[i]) + sum[j in 0..K](v[i]) }", [("PF201", "K")]),
        (V + "a = relux(v); y[i] = a[i] + max[k](a[k]) }", [("PF202", "relux")]),
        ("op f(x: floot[N]) -> (y: f32[N]) { t[i] = x[i]; y[i] = t[i] + x[i] }", [("PF218", "floot")]),
        (V + "t[i] = v[i] + w; y[i] = t[i] * 2; _s = sum[i](t[i]) }", [("PF204", "w")]),
    ],
)  # fmt: skip
def test_uses_of_what_failed_are_silent(text: str, expected: list[tuple[str, str]]) -> None:
    assert errors(text) == expected


def test_names_of_operators_fail_apart() -> None:
    text = "op f(v: f32[N]) -> (y: f32[N]) { y[i] = v[i] * a }\nop g(v: f32[N]) -> (y: f32[N]) { y[i] = a }"
    assert errors(text) == [("PF201", "a"), ("PF201", "a")]


def test_a_mistake_of_its_own_is_told_beside_a_name_that_failed() -> None:
    assert errors(V + "t = q; y[i] = q * v[i] + exp(v[i], 2.0) }") == [
        ("PF201", "q"),
        ("PF203", "exp(v[i], 2.0)"),
    ]
