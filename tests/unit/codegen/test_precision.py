"""Short functions: how exact they are, where they are taken, and what a result may differ by."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from equivalence import cpu_source

import polyfuse as pf
from polyfuse.codegen.math.prelude import SHORT_FUNCTIONS, prelude
from polyfuse.codegen.transforms.precision import MOST, UNIT
from polyfuse.ir.functions import SHORT

GXX = shutil.which("g++")
EXACT: dict[str, Callable[[Any], Any]] = {
    "short_exp": np.exp,
    "short_sigmoid": lambda x: np.where(x < 0, np.exp(x), 1.0) / (1 + np.exp(-abs(x))),
}
LOOP = 'extern "C" void {0}(float* x, long n) {{ for (long k = 0; k < n; ++k) x[k] = pf_{0}_f32(x[k]); }}\n'
HEAD = "op f(x: {0}[T, H], keep: bool[T, H]) -> (y: {0}[T, H]) "
SOFTMAX = """
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  d[t] = sum[h](e[t, h])
"""
# Program, and the short functions in its code.
TAKEN = {
    "softmax": (SOFTMAX + "y[t, h] = e[t, h] / d[t]", {"short_exp"}),
    "masked": (
        SOFTMAX.replace("- m[t])", "- m[t]) if keep[t, h] else 0.0") + "y[t, h] = e[t, h] / max(d[t], 1e-9)",
        {"short_exp"},
    ),
    "silu": ("y[t, h] = x[t, h] * sigmoid(x[t, h])", {"short_sigmoid"}),
    "soft sum": ("d[t] = sum[h](exp(x[t, h]))\n y[t, h] = 1.0 / (1.0 + sqrt(d[t]) * 2.0)", {"short_exp"}),
    "two": ("y[t, h] = exp(x[t, h]) * sigmoid(x[t, h])", {"short_exp", "short_sigmoid"}),
    "its own rounding": ("y[t, h] = log(f32({0}(exp(x[t, h]))) + 1.0) - 1.0", {"short_exp"}),
}
EXACT_THERE = {
    "difference": "y[t, h] = exp(x[t, h]) - 1.0",
    "sum of either sign": "y[t, h] = x[t, h] + sigmoid(x[t, h])",
    "logarithm": SOFTMAX + "y[t, h] = x[t, h] - m[t] - log(d[t])",
    "argument": "y[t, h] = sigmoid(exp(x[t, h]) * 100.0) - 0.5",
    "condition": "y[t, h] = 1.0 if exp(x[t, h]) < 2.0 else 0.0",
    "signed terms": "d[t] = sum[h](exp(x[t, h]) * x[t, h])\n y[t, h] = d[t]",
    "too many": "y[t, h] = exp(x[t, h]) * sigmoid(x[t, h]) * exp(x[t, h] * 0.5)",
    "squared twice": "e[t, h] = sigmoid(x[t, h])\n y[t, h] = e[t, h] * e[t, h] * e[t, h]",
    "recurrence": """a[t, 0] = exp(x[t, 0])
      a[t, h] = a[t, h-1] * exp(x[t, h]) for h in 1..H
      y[t, h] = a[t, h]""",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if GXX is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("short")
    (folder / "f.cpp").write_text(prelude(SHORT_FUNCTIONS) + "".join(map(LOOP.format, SHORT.values())))
    flags = ["-O3", "-std=c++17", "-march=native", "-fno-math-errno", "-fPIC", "-shared"]
    subprocess.run([GXX, *flags, str(folder / "f.cpp"), "-o", str(folder / "f.so")], check=True)
    return ctypes.CDLL(str(Path(folder / "f.so")))


def apply(library: ctypes.CDLL, name: str, x: Any) -> Any:
    y = np.array(x, np.float32)
    getattr(library, name)(ctypes.c_void_p(y.ctypes.data), ctypes.c_long(y.size))
    return y


@pytest.mark.parametrize("name", SHORT.values())
def test_errors_are_within_the_unit(name: str, library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(5)
    few, many = rng.normal(0, 1e-6, 9999), rng.standard_normal(200_000)
    x = np.concatenate([rng.uniform(-87, 88, 400_000), many, few]).astype("f4")
    want = EXACT[name](x.astype("f8"))
    error = np.abs(apply(library, name, x) / want - 1)
    assert 2.0**-20 < error.max() < UNIT * 0.6


@pytest.mark.parametrize("name", SHORT.values())
def test_special_arguments(name: str, library: ctypes.CDLL) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 200.0, -200.0, 3e38, -3e38], "f4")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(apply(library, name, x), EXACT[name](x).astype("f4"))
    below = np.linspace(-103.5, -87.5, 1001, dtype="f4")  # results are subnormal
    want = EXACT[name](below.astype("f8"))
    np.testing.assert_allclose(apply(library, name, below), want, rtol=UNIT, atol=2.0**-149)


def called(text: str) -> set[str]:
    """The short functions that an operator's code calls."""
    source = cpu_source(text, T=8, H=96)
    body = source[source.index("#define PF_EXPORT") :]
    return {name for name in SHORT.values() if name in body}


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("case", TAKEN)
def test_where_they_are_taken(case: str, half: str) -> None:
    body, names = TAKEN[case]
    assert called((HEAD + "{{ " + body + " }}").format(half)) == names


@pytest.mark.parametrize("case", EXACT_THERE)
def test_where_they_are_not(case: str) -> None:
    assert called((HEAD + "{{ " + EXACT_THERE[case] + " }}").format("f16")) == set()


@pytest.mark.parametrize("case", TAKEN)
def test_results_in_f32_have_none(case: str) -> None:
    if case != "its own rounding":
        assert called((HEAD + "{{ " + TAKEN[case][0] + " }}").format("f32")) == set()


def test_what_another_kernel_reads_is_exact() -> None:
    text = (HEAD + "{{" + SOFTMAX + "y[t, h] = e[t, h] / d[t] }}").format("f16")
    built = pf.compile(text, layers=()).built(np.ones((8, 96), "f2"), np.ones((8, 96), bool))
    assert len(built.kernels.kernels) > 1
    assert not any(f"pf_{name}" in built.code.source for name in SHORT.values())


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("case", ["softmax", "masked", "silu", "two"])
@pytest.mark.parametrize("shape", [(3, 1), (5, 17), (4, 100), (2, 1000)], ids=str)
def test_results_are_within_six_tenths_of_a_unit(case: str, half: str, shape: tuple[int, int]) -> None:
    dtype: Any = np.float16 if half == "f16" else ml_dtypes.bfloat16
    rng = np.random.default_rng(shape[1])
    x = (rng.standard_normal(shape) * 2).astype(dtype)
    keep = rng.random(shape) < 0.7
    f: Any = pf.compile((HEAD + "{{ " + TAKEN[case][0] + " }}").format(half))
    y = np.asarray(f(x, keep)).astype("f8")
    want = reference(case, x.astype("f8"), keep)
    lowest, bits = (-14, 10) if half == "f16" else (-126, 7)
    unit = 2.0 ** (np.maximum(np.floor(np.log2(np.maximum(abs(want), 1e-300))), lowest) - bits)
    assert np.all(np.abs(y - want) <= unit * (0.5 + MOST * UNIT * 2 ** (bits + 1) + 0.01))


def reference(case: str, x: Any, keep: Any) -> Any:
    if case in ("silu", "two"):
        return (x if case == "silu" else np.exp(x)) / (1 + np.exp(-x))
    e = np.exp(x - x.max(1, keepdims=True))
    e = e if case == "softmax" else np.where(keep, e, 0)
    return e / np.maximum(e.sum(1, keepdims=True), 1e-9)
