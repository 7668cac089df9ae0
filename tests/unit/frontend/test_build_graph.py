"""Graphs from programs: their text, and what they compute (by the reference evaluator)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfuse.diagnostics import ArgumentError, Diagnostics, InternalError
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.semantics.signature import signature
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BOOL, F16, F32, F64, I32, DType
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.library import standard_programs
from polyfuse.poly.legality.ranges import prove_ranges
from polyfuse.runtime.reference.evaluate import evaluate

Array = np.ndarray[Any, Any]


def graph(
    text: str,
    op: str | None = None,
    dtypes: Mapping[str, DType] | None = None,
    ranks: Mapping[str, int] | None = None,
) -> g.TensorGraph:
    program = parse_text(text, "t.pf")
    assert not check_program(program).errors
    return instantiate(program, op or program.ops[-1].name, dtypes=dtypes, ranks=ranks)


def body(built: g.TensorGraph) -> str:
    return "\n".join(map(str, built.statements))


def run(text: str, dtypes: Mapping[str, DType] | None = None, **inputs: Array) -> dict[str, Array]:
    built = graph(text, dtypes=dtypes)
    sizes = bind_sizes(built, {n: np.shape(a) for n, a in inputs.items()})
    return {n: e.value for n, e in evaluate(built, sizes, inputs).items()}


def test_layer_norm() -> None:
    built = graph(
        """
        op add_layer_norm(x: f32[T, H], r: f32[T, H], gamma: f32[H], beta: f32[H], eps: f32 = 1e-5)
            -> (y: f32[T, H]) {
          s[t, h]  = x[t, h] + r[t, h]
          mu[t]    = sum[h](s[t, h]) / H
          var[t]   = sum[h]((s[t, h] - mu[t]) ** 2) / H
          y[t, h]  = (s[t, h] - mu[t]) * rsqrt(var[t] + eps) * gamma[h] + beta[h]
        }
        """
    )
    expected = """\
graph add_layer_norm(T, H)
  input  x: f32[T, H]
  input  r: f32[T, H]
  input  gamma: f32[H]
  input  beta: f32[H]
  input  eps: f32[] = 1e-05
  output y: f32[T, H]
  temp   s: f32[T, H]
  temp   mu: f32[T]
  temp   var: f32[T]
  temp   mu__sum: f32[T]
  temp   var__sum: f32[T]
  s: s[t, h] = (x[t, h] + r[t, h])  for t in 0..T, h in 0..H
  mu__sum: mu__sum[t] = sum[h in 0..H](s[t, h])  for t in 0..T
  mu: mu[t] = (mu__sum[t] / f32(H))  for t in 0..T
  var__sum: var__sum[t] = sum[h in 0..H](((s[t, h] - mu[t]) ** 2.0))  for t in 0..T
  var: var[t] = (var__sum[t] / f32(H))  for t in 0..T
"""
    assert str(built).startswith(expected)


HEAD = "op f(x: f32[N, M], v: f32[N], u: f16[N], k: i32[N], s: f32) -> (y: f32[N]) {\n"

# A body for the head above (y is added where it is missing) and the statements it becomes.
BODIES = [
    # weak literals, sizes and index values
    ("y[i] = v[i] * 2 + N", "y: y[i] = ((v[i] * 2.0) + f32(N))  for i in 0..N"),
    ("y[i] = v[i] * (1.0 / N)", "y: y[i] = (v[i] * (1.0 / f32(N)))  for i in 0..N"),
    ("y[i] = f32(k[i] * 2 + i)", "y: y[i] = f32(((k[i] * 2) + i32(i)))  for i in 0..N"),
    ("y[i] = v[i] + (2*i + 1) // 2", "y: y[i] = (v[i] + f32((2*i + 1)//2))  for i in 0..N"),
    ("y[i] = v[i] // 2 + v[i] % 0.5", "y: y[i] = ((v[i] // 2.0) + (v[i] % 0.5))  for i in 0..N"),
    ("t[i] = k[i] ** 2 + pow(k[i], i)", "t: t[i] = ((k[i] ** 2) + (k[i] ** i32(i)))  for i in 0..N"),
    ("y[i] = -1.5 + -v[i]", "y: y[i] = (-1.5 + (-v[i]))  for i in 0..N"),
    ("t = 2 * 3", "t: t[] = 6"),
    ("t = 1 / 2.0", "t: t[] = (1.0 / 2.0)"),
    ("t[i] = 1 if i == k[i] else 0", "t: t[i] = (1 if (i32(i) == k[i]) else 0)  for i in 0..N"),
    ("t[i] = sqrt(i) for i in 0..N", "t: t[i] = sqrt(f32(i))  for i in 0..N"),
    # f16 computes in f32 and rounds where it is declared
    ("t[i] = u[i] * 2", "t: t[i] = (f32(u[i]) * 2.0)  for i in 0..N"),
    ("let t: f16[N]\nt[i] = u[i] + 1", "t: t[i] = f16((f32(u[i]) + 1.0))  for i in 0..N"),
    ("t[i] = f16(v[i]) * 3", "t: t[i] = (f32(f16(v[i])) * 3.0)  for i in 0..N"),
    ("let t: f16[N]\nt[i] = sum[j](u[j])", "t__sum: t__sum[] = sum[j in 0..N](f32(u[j]))\n"
     "t: t[i] = f16(t__sum[])  for i in 0..N"),
    # reductions
    ("y[i] = sum[j](x[i, j])", "y: y[i] = sum[j in 0..M](x[i, j])  for i in 0..N"),
    ("t = mean[i, j](x[i, j])", "t__sum: t__sum[] = sum[i in 0..N, j in 0..M](x[i, j])\n"
     "t: t[] = (t__sum[] / f32(N*M))"),
    ("y[i] = v[i] - max[j](x[i, j] - sum[q](v[q]))", "y__sum: y__sum[] = sum[q in 0..N](v[q])\n"
     "y__max: y__max[i] = max[j in 0..M]((x[i, j] - y__sum[]))  for i in 0..N\n"
     "y: y[i] = (v[i] - y__max[i])  for i in 0..N"),
    ("y[i] = sum[j](v[j]) + sum[j](v[j]) * 2", "y__sum: y__sum[] = sum[j in 0..N](v[j])\n"
     "y: y[i] = (y__sum[] + (y__sum[] * 2.0))  for i in 0..N"),
    ("y[i] = v[argmax[j](x[i, j])]", "y__argmax: y__argmax[i] = argmax[j in 0..M](x[i, j])  for i in 0..N\n"
     "y: y[i] = v[y__argmax[i]]  for i in 0..N"),
    ("t[i] = any[j](x[i, j] > 0)", "t: t[i] = any[j in 0..M]((x[i, j] > 0.0))  for i in 0..N"),
    ("y[i] = sum[j in 0..i+1](v[j]) * s", "y__sum: y__sum[i] = sum[j in 0..i + 1](v[j])  for i in 0..N\n"
     "y: y[i] = (y__sum[i] * s[])  for i in 0..N"),
    # guards move into reductions that need them
    ("y[i] = sum[j in 0..3](v[i-j]) if i >= 2 else 0.0",
     "y__sum: y__sum[i] = sum[j in 0..3]((v[i - j] if (i64(i) >= 2) else 0.0))  for i in 0..N\n"
     "y: y[i] = (y__sum[i] if (i64(i) >= 2) else 0.0)  for i in 0..N"),
    ("y[i] = sum[j](x[i, j]) if i >= 2 else 0.0",
     "y__sum: y__sum[i] = sum[j in 0..M](x[i, j])  for i in 0..N\n"
     "y: y[i] = (y__sum[i] if (i64(i) >= 2) else 0.0)  for i in 0..N"),
    ("y[i] = s if i < 2 else max[j in 0..2](v[i-j])",
     "y__max: y__max[i] = max[j in 0..2]((v[i - j] if not((i64(i) < 2)) else -inf))  for i in 0..N\n"
     "y: y[i] = (s[] if (i64(i) < 2) else y__max[i])  for i in 0..N"),
    ("y[i] = v[i] if 0 <= i < 3 else v[k[i]]",
     "y: y[i] = (v[i] if ((0 <= i64(i)) and (i64(i) < 3)) else v[k[i]])  for i in 0..N"),
    ("y[i] = select(k[i] > 0, v[i], s)", "y: y[i] = (v[i] if (k[i] > 0) else s[])  for i in 0..N"),
    # pieces and extents
    ("t[0] = v[0]\nt[i] = t[i-1] + v[i] for i in 1..N",
     "t: t[0] = v[0]\nt__2: t[i] = (t[i - 1] + v[i])  for i in 1..N"),
    ("t[i] = v[i] for i in 0..N\nt[i] = s for i in N..N+3",
     "t: t[i] = v[i]  for i in 0..N\nt__2: t[i] = s[]  for i in N..N + 3"),
    # scatters
    ("y[k[i]] += v[i]", "y: y[i0] = 0.0  for i0 in 0..N\ny__2: y[k[i]] sum= v[i]  for i in 0..N"),
    ("y[k[i]] max= v[i]\ny[i] = s",
     "y: y[i] = s[]  for i in 0..N\ny__2: y[k[i]] max= v[i]  for i in 0..N"),
    ("let t: i32[4] = 7\nt[k[i] % 4] min= k[i]",
     "t: t[i0] = 7  for i0 in 0..4\nt__2: t[(k[i] % 4)] min= k[i]  for i in 0..N"),
    # names
    ("sum[i] = v[i]\nt = sum[i](sum[i])",
     "sum: sum[i] = v[i]  for i in 0..N\nt: t[] = sum[i in 0..N](sum[i])"),
    ("t__sum = 1.0\nt = 2.0 * sum[i](v[i]) + t__sum",
     "t__sum: t__sum[] = 1.0\nt__sum_2: t__sum_2[] = sum[i in 0..N](v[i])\n"
     "t: t[] = ((2.0 * t__sum_2[]) + t__sum[])"),
]  # fmt: skip


@pytest.mark.parametrize("row", BODIES, ids=[r[0].split("\n")[0] for r in BODIES])
def test_statements(row: tuple[str, str]) -> None:
    source, expected = row
    defines_y = any(line.startswith("y[") for line in source.split("\n"))
    built = graph(HEAD + source + ("" if defines_y else "\ny[i] = v[i]") + "\n}")
    got = body(built)
    assert got == expected if defines_y else got == expected + "\ny: y[i] = v[i]  for i in 0..N"


def test_order_of_statements_is_irrelevant() -> None:
    built = graph("op f(x: f32[N]) -> (y: f32[N]) {\ny[i] = b[i] * c\nc = sum[i](b[i])\nb[i] = x[i] + 1.0\n}")
    assert [s.name for s in built.statements] == ["b", "c", "y"]


def test_extents_of_undeclared_tensors() -> None:
    built = graph(
        """op f(x: f32[N, M], v: f32[N]) -> (y: f32[N]) {
          pad[0] = 0.0
          pad[i] = v[i-1] for i in 1..N+1
          tri[i, j] = x[i, j] for i in 0..N, j in 0..i+1
          y[i] = pad[i] + tri[i, 0] for i in 0..N
        }"""
    )
    assert [str(e) for e in built.tensor("pad").shape] == ["N + 1"]
    assert [str(e) for e in built.tensor("tri").shape] == ["N", "N"]


def test_constraints_that_extents_need() -> None:
    built = graph(
        "op f(x: f32[T]) -> (y: f32[T]) {\nc[0] = x[0]\nc[t] = c[t-1] for t in 1..T\ny[t] = c[t]\n}"
    )
    assert [str(c) for c in built.constraints] == ["T >= 1"]
    assert [str(e) for e in built.tensor("c").shape] == ["T"]


def test_equality_constraints_make_ranges_agree() -> None:
    text = "op f(a: f32[N], b: f32[2*M]) -> (y: f32[N]) where N == 2*M { y[i] = a[i] + b[i] }"
    assert body(graph(text)) == "y: y[i] = (a[i] + b[i])  for i in 0..N"


def test_mutual_recurrence() -> None:
    built = graph(
        """op lstm(g: f32[T, 2*H]) -> (h: f32[T, H]) {
          c[0, j] = g[0, j] for j in 0..H
          c[t, j] = c[t-1, j] * sigmoid(h[t-1, j]) + g[t, j] for t in 1..T, j in 0..H
          h[t, j] = g[t, j + H] * tanh(c[t, j])
        }"""
    )
    assert [s.name for s in built.statements] == ["c", "c__2", "h"]
    assert built.tensor("c").dtype is F32


def test_inout() -> None:
    built = graph(
        "op f(inout p: f32[N], g: f32[N]) -> (l: f32) {\np[i] = p[i] - g[i]\nl = sum[i](old(p[i]))\n}"
    )
    assert built.tensor("p").role is g.Role.INOUT
    out = built.tensor("p__out")
    assert (out.role, out.alias) == (g.Role.OUTPUT, "p")
    assert body(built) == "p: p__out[i] = (p[i] - g[i])  for i in 0..N\nl: l[] = sum[i in 0..N](p[i])"


# --- calls -------------------------------------------------------------------------------------------

STEP = """op step[F: float](inout p: F[N...], g: F[N...], lr: F = 0.5) {
  p[n...] = p[n...] - lr * g[n...]
}
op both(inout a: f32[N, M], b: f32[N, M], lr: f32) {
  step(a, b, lr)
}
"""


def test_call_for_what_it_changes() -> None:
    """Two levels deep, twice, and beside a reader of the value at entry."""
    text = (
        STEP
        + """op f(inout p: f32[4, 3], g: f32[4, 3], inout q: f32[4], h: f32[4]) -> (s: f32) {
      both(p, g, 2.0)
      step(q, h)
      s = sum[i](q[i])
    }"""
    )
    w = np.full((4, 3), 0.25, dtype=np.float32)
    found = run(text, p=X, g=w, q=V, h=V)
    assert found["p__out"].tolist() == (X - 0.5).tolist()
    assert found["q__out"].tolist() == (V * 0.5).tolist()
    assert found["s"] == V.sum()


def test_call_for_what_it_changes_needs_tensors_of_its_own() -> None:
    for body_text in ("step(p, p); step(p, g)", "step(p, g); p[i] = g[i]"):
        text = STEP + f"op f(inout p: f32[N], g: f32[N]) {{ {body_text} }}"
        assert [d.code for d in check_program(parse_text(text, "t.pf")).errors] == ["PF209"]


SOFTMAX = """op softmax[F: float](x: F[B..., H], scale: F = 1.0) -> (y: F[B..., H]) {
  m[b...] = max[h](x[b..., h])
  e[b..., h] = exp(scale * (x[b..., h] - m[b...]))
  y[b..., h] = e[b..., h] / sum[k](e[b..., k])
}
"""


def test_call_is_inlined() -> None:
    built = graph(
        SOFTMAX + "op f(x: f32[T, K]) -> (y: f32[T, K]) {\ns[t, k] = x[t, k] * 2\ny = softmax(s)\n}"
    )
    assert (
        body(built)
        == """\
s: s[t, k] = (x[t, k] * 2.0)  for t in 0..T, k in 0..K
softmax_1__m: softmax_1__m[b_0] = max[h in 0..K](s[b_0, h])  for b_0 in 0..T
softmax_1__e: softmax_1__e[b_0, h] = exp((1.0 * (s[b_0, h] - softmax_1__m[b_0])))  for b_0 in 0..T, h in 0..K
y__sum: y__sum[b_0] = sum[k in 0..K](softmax_1__e[b_0, k])  for b_0 in 0..T
y: y[b_0, h] = (softmax_1__e[b_0, h] / y__sum[b_0])  for b_0 in 0..T, h in 0..K"""
    )


def test_index_variables_called_like_a_size() -> None:
    built = graph(SOFTMAX + "op f(x: f32[h, b_0]) -> (y: f32[h, b_0]) {\ny = softmax(x)\n}")
    assert built.sizes == ("h", "b_0")
    names = {d.name for s in built.statements for d in s.dims}
    assert not names & set(built.sizes)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = evaluate(built, {"h": 2, "b_0": 3}, {"x": x})["y"].value
    assert np.allclose(got, np.exp(x) / np.exp(x).sum(1, keepdims=True))


def test_scalar_arguments() -> None:
    text = SOFTMAX + "op f(x: f32[K], a: f32) -> (y: f32[K], z: f32[K]) {\n{body}\n}"
    built = graph(text.replace("{body}", "y = softmax(x, 0.5)\nz = softmax(x, scale=a * 2 + K)"))
    assert "softmax_2__scale: softmax_2__scale[] = ((a[] * 2.0) + f32(K))" in body(built)
    assert "exp((0.5 * (x[h]" in body(built)


def test_sizes_as_arguments_stay_affine_indices() -> None:
    text = """op at(x: f32[N], n: i64) -> (y: f32) { y = x[n] }
    op last(x: f32[N]) -> (y: f32) where N >= 1 { y = at(x, N - 1) }"""
    assert body(graph(text)) == "y: y[] = x[N - 1]"


def test_several_results_and_unused_ones() -> None:
    text = """op stats(x: f32[N]) -> (lo: f32, hi: f32) { lo = min[i](x[i]); hi = max[i](x[i]) }
    op f(x: f32[N]) -> (y: f32[N]) { (_lo, hi) = stats(x); y[i] = x[i] / hi }"""
    assert [s.name for s in graph(text).statements] == ["_lo", "hi", "y"]


def test_operators_of_the_called_file_come_first() -> None:
    library = parse_text(
        "op half(x: f32[N]) -> (y: f32[N]) { y = scaled(x) }\n"
        "op scaled(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 0.5 }",
        "library.pf",
    )
    mine = parse_text("op scaled(x: f32[N]) -> (y: f32[N]) { y = half(x) }", "mine.pf")
    built = instantiate([mine, library], "scaled")
    assert body(built) == "y: y[i] = (x[i] * 0.5)  for i in 0..N"


def test_sizes_of_a_call_are_solved() -> None:
    text = """op part(x: f32[3*H + 1], w: f32[G, K]) -> (y: f32[H, G*K]) where H % 2 == 0 {
      y[h, g] = x[3*h] * w[0, 0]
    }
    op f(x: f32[6*Q + 7], w: f32[4, Q]) -> (y: f32[2*Q + 2, 4*Q]) { y = part(x, w) }"""
    assert [str(d) for d in graph(text, "f").statements[0].dims] == ["h in 0..2*Q + 2", "g in 0..4*Q"]
    uneven = """op part(x: f32[3*H]) -> (y: f32[H]) { y[h] = x[h + 2*H] }
    op f(x: f32[N]) -> (y: f32[M]) where M == N // 3 { y = part(x) }"""
    built = graph(uneven, "f")
    assert [str(c) for c in built.constraints] == ["M == N//3", "N%3 == 0"]


def test_f16_beside_computed_f32_in_calls() -> None:
    text = SOFTMAX + (
        "op f[F: float](x: F[N, M], v: F[M]) -> (y: F[N, M], z: F[N]) {\n"
        "s[i, j] = x[i, j] * 2\ny = softmax(s)\np = softmax(s)\nz[i] = sum[j](p[i, j] * v[j])\n}"
    )
    built = graph(text, "f", {"F": F16})
    assert built.tensor("p").dtype is F32
    assert "y: y[i0, i1] = f16(softmax_1__y[i0, i1])" in body(built)
    assert graph(text, "f", {"F": F64}).tensor("p").dtype is F64


def test_generics() -> None:
    text = "op f[F: float, I: int](x: F[N], k: I[B...]) -> (y: F[B...]) {\ny[b...] = F(x[k[b...]]) + x[0]\n}"
    built = graph(text, dtypes={"F": F16, "I": I32}, ranks={"B": 2})
    assert body(built).startswith("y: y[b_0, b_1] = f16((f32(f16(f32(x[k[b_0, b_1]]))) + f32(x[0])))")
    assert built.sizes == ("N", "B_0", "B_1")
    assert graph(text, dtypes={"F": F64, "I": I32}, ranks={"B": 0}).tensor("y").shape == ()


@pytest.mark.parametrize(
    ("dtypes", "ranks", "words"),
    [
        ({}, {}, "F is not given; B is not given"),
        ({"F": I32}, {"B": 1}, "F: float cannot be i32"),
        ({"F": F32, "G": F32}, {"B": 1}, "there is no G"),
        ({"F": F32}, {"B": -1}, "B... cannot stand for -1 axes"),
    ],
)
def test_wrong_generics(dtypes: dict[str, DType], ranks: dict[str, int], words: str) -> None:
    with pytest.raises(ArgumentError, match="PF410") as caught:
        graph(SOFTMAX, "softmax", dtypes, ranks)
    assert words in str(caught.value)


def test_unknown_operator() -> None:
    with pytest.raises(ArgumentError, match="did you mean 'softmax'") as caught:
        instantiate(parse_text(SOFTMAX, "t.pf"), "softmx")
    assert caught.value.code == "PF411"


def test_warnings() -> None:
    text = """op f(inout p: f32[N], x: f32[N]) -> (y: f32[N]) {
      a[i] = x[i]
      b[i] = a[i]
      _c[i] = x[i]
      y[i] = x[i]
    }"""
    found = check_program(parse_text(text, "t.pf")).warnings
    assert [(d.code, d.span.line) for d in found if d.span] == [("PF291", 1), ("PF290", 3)]


# --- meaning -----------------------------------------------------------------------------------------

X = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
V = np.array([1.0, -2.0, 0.5, 4.0], dtype=np.float32)
K = np.array([2, 0, 2, 1], dtype=np.int32)


def test_guarded_reduction_means_what_it_says() -> None:
    text = "op f(v: f32[N]) -> (y: f32[N]) { y[i] = sum[j in 0..2](v[i-j]) * 2 if i >= 1 else -1.0 }"
    assert run(text, v=V)["y"].tolist() == [-1.0, -2.0, -3.0, 9.0]


def test_downward_recurrence() -> None:
    text = """op f(v: f32[N]) -> (c: f32[N]) {
      c[N-1] = v[N-1]
      c[t] = c[t+1] * 0.5 + v[t] for t in 0..N-1
    }"""
    expected, last = [], 0.0
    for value in V[::-1].tolist():
        last = last * 0.5 + value
        expected.append(last)
    assert run(text, v=V)["c"].tolist() == expected[::-1]


def test_scatter_onto_f16_rounds_once() -> None:
    text = "op f(u: f16[N], k: i32[N]) -> (y: f16[N]) { y[k[i]] += u[i] }"
    u = np.array([2048.0, 1.0, 1.0, 3.0], dtype=np.float16)
    assert run(text, u=u, k=K)["y"].tolist() == [1.0, 3.0, 2049.0, 0.0]


def test_inout_scatter_starts_from_the_entry_value() -> None:
    text = "op f(inout p: f32[N], k: i32[N]) -> (s: f32) { p[k[i]] += p[i]; s = sum[i](old(p[i])) }"
    got = run(text, p=V, k=K)
    assert got["p__out"].tolist() == [1.0 - 2.0, -2.0 + 4.0, 0.5 + 1.0 + 0.5, 4.0]
    assert got["s"] == V.sum()


def test_triangular_mean() -> None:
    text = "op f(x: f32[N, M]) -> (m: f32) { m = mean[i in 0..N, j in 0..i](x[i, j]) for_unused }"
    text = text.replace(" for_unused", "").replace("0..i]", "0..max(i - 1, 0)]")
    picked = [X[i, j] for i in range(4) for j in range(max(i - 1, 0))]
    assert np.isclose(run(text, x=X)["m"], np.mean(picked))


def test_argmax_gather_and_index_values() -> None:
    text = """op f(x: f32[N, M], k: i32[N]) -> (y: f32[N], hot: f32[N, M]) {
      y[i] = x[i, argmin[j](abs(x[i, j] - 1))] + i
      hot[i, j] = 1.0 if j == k[i] else 0.0
    }"""
    got = run(text, x=X, k=K)
    picked = np.abs(X - 1).argmin(1)
    assert got["y"].tolist() == (X[range(4), picked] + np.arange(4)).tolist()
    assert np.array_equal(got["hot"], np.eye(3)[K])


# --- the written reference ---------------------------------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs" / "language.md"
EXAMPLES = re.findall(r"```pf\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=[e.split("(")[0].split("op ")[-1] for e in EXAMPLES])
def test_examples_of_the_reference(text: str) -> None:
    program = parse_text(text, "language.md")
    programs = (program, *standard_programs())
    assert not check_program(program, programs[1:]).found
    for op in program.ops:
        head = signature(op)
        dtypes = {name: F16 if kind == "float" else I32 for name, kind in head.generics}
        built = instantiate(programs, op.name, dtypes=dtypes, ranks=dict.fromkeys(head.rank_variables, 1))
        found = Diagnostics()
        prove_ranges(built, None, found)
        assert not found.found


# --- the verifier ------------------------------------------------------------------------------------


def test_verifier_names_the_broken_fact() -> None:
    built = graph(HEAD + "y[i] = v[i] * sum[j](x[i, j])\n}")
    first, last = built.statements
    broken = {
        "nothing writes y__sum": replace(built, statements=(last,)),
        "two statements are called": replace(built, statements=(first, first, last)),
        "the input v is written": replace(built, statements=(first, replace(last, target="v"))),
        "reads the unknown tensor": replace(built, tensors=built.tensors[:-1], statements=(last,)),
        "no earlier dims|which are no dims": replace(built, statements=(first, replace(last, dims=()))),
        "has reduction dims and no reduction": replace(
            built, statements=(replace(first, reduction=None), last)
        ),
        "operands of mul differ": replace(
            built,
            statements=(
                first,
                replace(last, expr=g.Apply("mul", (g.Const(1.0, F32), g.Const(1.0, F64)), F32)),
            ),
        ),
        "uses unknown sizes": replace(built, sizes=("N",)),
    }
    one, two = g.Const(1.0, F32), g.Const(2, I32)
    wrong_types = {
        "mul of 1 operands": g.Apply("mul", (one,), F32),
        "sqr of 1 operands": g.Apply("sqr", (one,), F32),
        "div of i32": g.Cast(g.Apply("div", (two, two), I32), F32),
        "and of f32": g.Cast(g.Apply("and", (one, one), BOOL), F32),
        "lt of f32 gives f32": g.Apply("lt", (one, one), F32),
    }
    broken |= {
        words: replace(built, statements=(first, replace(last, expr=e))) for words, e in wrong_types.items()
    }
    verify_graph(built)
    for words, wrong in broken.items():
        with pytest.raises(InternalError, match=words):
            verify_graph(wrong)


def test_the_order_of_definitions_has_no_meaning() -> None:
    lines = [
        "m[t] = max[h](x[t, h])",
        "e[t, h] = exp(x[t, h] - m[t])",
        "s[t] = sum[h](e[t, h])",
        "y[t] = s[t]",
    ]
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    found = []
    for order in (lines, lines[::-1]):
        made = graph("op f(x: f32[T, H]) -> (y: f32[T]) {\n" + "\n".join(order) + "\n}")
        assert [s.name for s in made.statements] == ["m", "e", "s", "y"]
        found.append(evaluate(made, {"T": 3, "H": 5}, {"x": x})["y"].value)
    assert np.array_equal(*found)
