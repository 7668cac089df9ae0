"""f16, bf16 and f32 in one expression: nothing is lost, and no cast is needed; where one stays needed."""

from __future__ import annotations

import shutil

import ml_dtypes
import numpy as np
import pytest

import polyfuse as pf
from polyfuse.diagnostics import Diagnostic
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.library import standard_programs
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

HEAD = "op f(x: f32[N], h: f16[N], b: bf16[N], d: f64[N], k: i32[N]) -> (y: f32[N]) "
TARGETS = ["interpret", *(["cpu", "emulate"] if shutil.which("g++") else [])]


def graph(body: str) -> str:
    return str(instantiate(parse_text(f"{HEAD}{{\n{body}\n}}", "t.pf"), "f"))


def errors(body: str, more: str = "") -> list[Diagnostic]:
    return check_program(parse_text(f"{more}{HEAD}{{\n{body}\n}}", "t.pf")).errors


@pytest.mark.parametrize(
    ("mixed", "written"),
    [
        ("y[i] = x[i] * h[i]", "y[i] = x[i] * f32(h[i])"),
        ("y[i] = h[i] + b[i]", "y[i] = f32(h[i]) + f32(b[i])"),
        ("y[i] = max(h[i], x[i], b[i])", "y[i] = max(f32(h[i]), x[i], f32(b[i]))"),
        ("y[i] = h[i] if b[i] < x[i] else x[i]", "y[i] = f32(h[i]) if f32(b[i]) < x[i] else x[i]"),
        ("y[i] = select(k[i] > 0, b[i], x[i])", "y[i] = select(k[i] > 0, f32(b[i]), x[i])"),
        ("y[i] = h[i - 1 else x[i]]", "y[i] = f32(h[i - 1]) if 0 <= i - 1 else x[i]"),
        ("y[i] = sum[j](h[j] * x[j]) * b[i]", "y[i] = sum[j](f32(h[j]) * x[j]) * f32(b[i])"),
        ("y[i] = silu(h[i]) * x[i]", "y[i] = f32(h[i]) * sigmoid(f32(h[i])) * x[i]"),
    ],
)
def test_it_is_what_casts_to_f32_are(mixed: str, written: str) -> None:
    programs = [parse_text(f"{HEAD}{{\n{body}\n}}", "t.pf") for body in (mixed, written)]
    a, b = (instantiate((p, *standard_programs()), "f") for p in programs)
    assert a.statements == b.statements


def test_undeclared_tensors_of_them_are_f32() -> None:
    text = graph("t[i] = h[i] for i in 0..1; t[i] = x[i] + b[i] for i in 1..N; y[i] = t[i]")
    assert "temp   t: f32[" in text
    assert not errors("let t: bf16[N]; t[i] = h[i] * x[i]; y[i] = t[i]")  # rounded where it is declared


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("y[i] = h[i] * f32(d[i]) + f32(d[i] * b[i])", "PF205"),
        ("y[i] = h[i] + k[i]", "PF205"),
        ("let t: bf16[N]; t[i] = h[i]; y[i] = t[i]", "PF205"),
        ("y = two(x, h)", "PF231"),
        ("y = two(h, b)", "PF231"),
        ("y = one(h)", "PF205"),
    ],
)
def test_what_still_needs_a_cast(body: str, code: str) -> None:
    more = """op two[F: float](a: F[N], c: F[N]) -> (z: F[N]) { z[i] = a[i] + c[i] }
op one(a: f32[N]) -> (z: f32[N]) { z[i] = a[i] }
"""
    assert [d.code for d in errors(body, more)] == [code]


@pytest.mark.parametrize("target", TARGETS)
def test_products_of_mixed_matrices(target: str) -> None:
    text = """op f(a: bf16[M, K], w: f16[K, N], bias: f32[N]) -> (y: f32[M, N], z: f16[M, N]) {
  y[i, j] = sum[k](a[i, k] * w[k, j]) + bias[j]
  z[i, j] = y[i, j] * a[i, 0]
}"""
    rng = np.random.default_rng(0)
    for m, k, n in ((5, 7, 3), (1, 1, 1), (0, 3, 2), (3, 0, 2)):
        inputs = {
            "a": rng.normal(size=(m, k)).astype(ml_dtypes.bfloat16),
            "w": rng.normal(size=(k, n)).astype(np.float16),
            "bias": rng.normal(size=n).astype(np.float32),
        }
        if k == 0:
            text = text.replace("a[i, 0]", "bias[j]")
        if m * k > 4:
            inputs["a"][0, 0], inputs["w"][1, 0] = np.inf, np.nan
        g = instantiate(parse_text(text, "t.pf"), "f")
        want = evaluate(g, {"M": m, "K": k, "N": n}, inputs)
        found = pf.compile(text, target=target)(**inputs)
        for name, array in zip(("y", "z"), found, strict=True):
            result = agrees(array, want[name], g.tensor(name).dtype)
            assert result, result.message
