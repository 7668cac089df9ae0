"""Where functions of GPUs are approximate, and that results are right there.

The emulator runs them: its approximate instructions are as far off as they may be.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from equivalence import fixed_graph_of

import polyfuse as pf
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.functions import FORMS
from polyfuse.options import Options
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

Array = np.ndarray[Any, Any]
HEAD = "op f(x: {0}[T, H], g: {0}[H], c: {0}) -> (y: {0}[T, H]) "
SOFTMAX = """
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  d[t] = sum[h](e[t, h])
"""
# Program of f32, and the forms in its code.
TAKEN = {
    "roots": ("y[t, h] = sqrt(x[t, h]) + rsqrt(g[h])", {"fast_sqrt", "fast_rsqrt"}),
    "quotient": ("y[t, h] = x[t, h] / g[h]", {"fast_div"}),
    "by a number of the row": ("y[t, h] = x[t, h] / sum[k](x[t, k])", {"alike_div"}),
    "by a scalar": ("y[t, h] = x[t, h] / c", {"alike_div"}),
    "by a constant": ("y[t, h] = x[t, h] / 3.0", set()),
    "by a size": ("y[t, h] = x[t, h] / f32(H)", set()),
    "reciprocal": ("y[t, h] = 1.0 / x[t, h] - 0.5 / g[h]", {"fast_reciprocal"}),
    "sigmoid": ("y[t, h] = x[t, h] * sigmoid(x[t, h])", {"fast_sigmoid"}),
    "beside a constant": ("y[t, h] = x[t, h] * (1.0 + erf(x[t, h]))", {"near_erf"}),
    "a part of it": ("y[t, h] = 0.5 - 0.5 * tanh(x[t, h])", {"near_tanh"}),
    "negative": ("y[t, h] = 1.0 - sigmoid(x[t, h])", {"near_sigmoid"}),
    "the most exact of two": ("y[t, h] = sigmoid(g[h]) * (1.0 - sigmoid(g[h]))", {"fast_sigmoid"}),
    "falls": ("y[t, h] = exp(-0.5 * x[t, h] * x[t, h]) + exp(-abs(g[h]))", {"fast_exp"}),
    "below the largest": (SOFTMAX + "y[t, h] = e[t, h] / d[t]", {"fast_exp", "alike_div"}),
    "softplus": ("y[t, h] = max(x[t, h], 0.0) + log(1.0 + exp(-abs(x[t, h])))", {"near_log", "fast_exp"}),
    "log of a sum": ("y[t, h] = x[t, h] - log(sum[k](exp(x[t, k])))", {"near_log"}),
    "with a factor": (
        "y[t, h] = (1.0 + erf(x[t, h] * 0.7)) * (1.0 - tanh(3.0 * g[h]))",
        {"scaled_near_erf", "scaled_near_tanh"},
    ),
    "with a large factor": ("y[t, h] = 1.0 + erf(x[t, h] * 1e5)", {"near_erf"}),
    "of one argument": (
        """c1[t, h] = 0.5 * (1.0 + erf(x[t, h] * 0.7071067811865476))
      p[t, h] = exp(-0.5 * x[t, h] * x[t, h])
      y[t, h] = g[h] * (c1[t, h] + x[t, h] * p[t, h])""",
        {"joint_erf", "fast_exp"},
    ),
    "of another": (
        "y[t, h] = (1.0 + erf(x[t, h] * 0.5)) * exp(-0.5 * x[t, h] * x[t, h])",
        {"scaled_near_erf", "fast_exp"},
    ),
    "chosen": (
        "y[t, h] = 1.0 + (erf(x[t, h]) if x[t, h] > 0.0 else tanh(x[t, h]))",
        {"near_erf", "near_tanh"},
    ),
}
PRECISE = {
    "alone": "y[t, h] = erf(x[t, h]) * tanh(x[t, h])",
    "beside a small constant": "y[t, h] = 1e-3 + erf(x[t, h])",
    "a large part": "y[t, h] = 1.0 + 1000.0 * tanh(x[t, h])",
    "beside what is no constant": "y[t, h] = g[h] + erf(x[t, h])",
    "exponential": "y[t, h] = exp(x[t, h]) + exp(x[t, h] * abs(x[t, h])) + exp(g[h] - x[t, h])",
    "below the largest of others": """
      m[t] = max[h](abs(x[t, h]))
      y[t, h] = exp(x[t, h] - m[t])""",
    "logarithm": "y[t, h] = log(x[t, h]) + log(1.0 + x[t, h]) + log(max(exp(x[t, h]), 1.0))",
    "rounded down": "y[t, h] = floor(x[t, h] / g[h]) + f32(i64(sqrt(x[t, h])))",
    "compared": "y[t, h] = x[t, h] if sqrt(x[t, h]) < 1.0 / g[h] else 0.0",
    "by what is too small": "y[t, h] = x[t, h] / 1e-40",
}


def source_of(text: str, options: Options | None = None, **sizes: int) -> str:
    built = pf.compile(text, target="emulate", options=options or Options(progress=False))
    shapes = {"x": (sizes["T"], sizes["H"]), "g": (sizes["H"],), "c": ()}
    dtype = BY_NAME[re.findall(r"x: (\w+)", text)[0]].numpy
    return built.built(**{n: np.ones(s, dtype) for n, s in shapes.items()}).code.source


def called(body: str, dtype: str = "f32", options: Options | None = None, width: int = 96) -> set[str]:
    """The forms that kernels of an operator call."""
    source = source_of((HEAD + "{{ " + body + " }}").format(dtype), options, T=8, H=width)
    kernels = source[source.index("__global__") :]
    return {op for op in FORMS if f"pf_{op}_f32(" in kernels}


@pytest.mark.parametrize("case", TAKEN)
def test_where_they_are_taken(case: str) -> None:
    body, forms = TAKEN[case]
    assert called(body) == forms


@pytest.mark.parametrize("case", PRECISE)
def test_where_they_are_not(case: str) -> None:
    assert called(PRECISE[case]) == set()


def test_constant_divisors_are_factors() -> None:
    source = source_of((HEAD + "{{ y[t, h] = x[t, h] / 3.0 + g[h] / 8.0 }}").format("f32"), T=8, H=96)
    kernels = source[source.index("__global__") :]
    assert " / " not in re.sub(r"//.*", "", kernels[kernels.index("{") :]).replace("/ 32", "")
    assert "0x1.5555555555555p-2f" in kernels or "0x1.5555560000000p-2f" in kernels


def test_values_of_16_bits_have_shorter_ones() -> None:
    assert called(SOFTMAX + "y[t, h] = e[t, h] / d[t]", "bf16") == {"short_exp", "alike_div"}
    assert called("y[t, h] = x[t, h] * sigmoid(x[t, h])", "f16") == {"short_sigmoid"}


def test_terms_of_long_sums_have_shorter_ones() -> None:
    total = "y[t, h] = x[t, h] - log(sum[k](exp(x[t, k])))"
    assert called(total, width=1000) == {"short_exp", "near_log"}
    assert called(total, width=100) == {"near_log"}
    product = "y[t, h] = x[t, h] - log(sum[k](exp(x[t, k]) * sigmoid(x[t, k])))"
    assert "short_exp" not in called(product, width=1000)  # two errors
    assert called(SOFTMAX + "y[t, h] = e[t, h] / d[t]", width=1000) == {"alike_div", "fast_exp"}


def test_f64_stays_precise() -> None:
    assert called("y[t, h] = sigmoid(x[t, h]) / sqrt(g[h]) * (1.0 + erf(x[t, h]))", "f64") == set()


@pytest.mark.parametrize(
    "options", [Options(math="precise"), Options(denormals="keep")], ids=["precise", "keep"]
)
def test_options_that_want_no_forms(options: Options) -> None:
    assert called("y[t, h] = x[t, h] * sigmoid(x[t, h]) / g[h]", "bf16", options) == set()


def test_math_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_MATH", " Precise ")
    assert Options().math == "precise" and Options(math="auto").math == "auto"
    monkeypatch.setenv("POLYFUSE_MATH", "fast")
    with pytest.raises(pf.PolyfuseError, match="option math cannot be 'fast'"):
        Options()


def test_explain_tells_which_and_why() -> None:
    f = pf.compile(
        (HEAD + "{{ y[t, h] = x[t, h] * (1.0 + erf(x[t, h])) / g[h] }}").format("f32"), target="emulate"
    )
    arguments = {"x": np.ones((3, 4), "f4"), "g": np.ones(4, "f4"), "c": np.float32(1)}
    told = [line for line in f.explain(**arguments).splitlines() if line.startswith("+ math")]
    assert len(told) == 2
    assert any("erf by ex2.approx" in t and "constant" in t for t in told)
    assert any("div by div.full" in t for t in told)


def test_what_is_stored_in_bf16_and_added_up_is_rounded_as_f32() -> None:
    text = """op f(x: bf16[T, H]) -> (y: bf16[T, H], s: f32[H]) {
      y[t, h] = x[t, h] * 1.7
      s[h] = sum[t](f32(y[t, h])) }"""
    f: Any = pf.compile(text, target="emulate", progress=False)
    x = np.random.default_rng(1).standard_normal((256, 512)).astype(BY_NAME["bf16"].numpy)
    source = f.built(x).code.source
    assert "pf_bf16_rounded_f32(" in source[source.index("__global__") :]
    y, s = map(np.asarray, f(x))
    np.testing.assert_array_equal(y, (x.astype("f4") * np.float32(1.7)).astype(x.dtype))
    np.testing.assert_allclose(s, y.astype("f8").sum(0), rtol=1e-5, atol=1e-4)


# --- values -----------------------------------------------------------------------------------------------

EVERY = """
op f(x: {0}[N], z: {0}[N]) -> (
  r0: {0}[N], r1: {0}[N], r2: {0}[N], r3: {0}[N], r4: {0}[N], r5: {0}[N], r6: {0}[N], r7: {0}[N], r8: {0}[N],
  r9: {0}[N], r10: {0}[N], r11: {0}[N], r12: {0}[N], r13: {0}[N], r14: {0}[N], r15: {0}, r16: {0}[N],
  r17: {0}[N], r18: {0}[N], r19: {0}[N]
) {{
  r0[n] = exp(x[n])
  r1[n] = log(x[n])
  r2[n] = sqrt(x[n])
  r3[n] = rsqrt(x[n])
  r4[n] = tanh(x[n])
  r5[n] = sigmoid(x[n])
  r6[n] = erf(x[n])
  r7[n] = x[n] / z[n]
  r8[n] = 1.0 / x[n]
  r9[n] = 0.5 * x[n] * (1.0 + erf(x[n] * 0.7071067811865476))
  r10[n] = 1.0 - tanh(x[n])
  r11[n] = 2.0 - sigmoid(x[n]) * 2.0
  r12[n] = x[n] * sigmoid(x[n])
  r13[n] = x[n] / 3.0 - 0.25 / z[n]
  m = max[k](z[k] if z[k] < 88.0 else 0.0)
  r14[n] = exp(min(x[n], m) - m) / sum[k](exp(min(x[k], m) - m))
  r17[n] = max(x[n], 0.0) + log(1.0 + exp(-abs(x[n])))
  r19[n] = (1.0 - erf(z[n] * 0.5)) + z[n] * exp(-0.25 * z[n] * z[n])
  r18[n] = exp(-0.5 * z[n] * z[n])
  r15 = log(sum[k](exp(min(x[k], 3.0))))
  r16[n] = x[n] / m
}}
"""


def arguments(dtype: str, rng: np.random.Generator) -> dict[str, Array]:
    """All pairs of special values, and numbers of many sizes: a number of them that no vector divides."""
    special = [0.0, -0.0, 1.0, -1.0, 2.0**-14, 3.0, -88.0, 88.0, -200.0, 200.0, np.inf, -np.inf, np.nan, 6e4]
    if dtype != "f16":
        special += [2.0**126, 2.0**127, -(2.0**127), 2.0**-126, -(2.0**-126), 3e38]
    grid = [g.ravel() for g in np.meshgrid(special, special)]
    sizes = [np.exp2(rng.uniform(-14, 7, 1001)) * rng.choice([-1, 1], 1001) for _ in grid]
    made = [np.concatenate([a, b]).astype(BY_NAME[dtype].numpy) for a, b in zip(grid, sizes, strict=True)]
    return {"x": made[0], "z": made[1]}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_special_values_and_many_others_are_right(dtype: str) -> None:
    given = arguments(dtype, np.random.default_rng(3))
    text = EVERY.format(dtype)
    sizes = {"N": given["x"].size}
    graph = fixed_graph_of(text, **sizes)
    with np.errstate(all="ignore"):
        want = evaluate(graph, {}, given)
        found = pf.compile(text, target="emulate", progress=False)(**given)
    for name, got in zip(graph.outputs, found, strict=True):
        verdict = agrees(np.asarray(got), want[name], graph.tensor(name).dtype)
        assert verdict.mismatches == 0, f"{name}: {verdict.message}"
        assert verdict.worst_ratio <= 1.0
