"""Names of other libraries: the hint is the way to write them here, which compiles and is right."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.special

import polyfuse as pf
from polyfuse.diagnostics import DslError
from polyfuse.frontend_dsl.syntax import names
from polyfuse.frontend_dsl.syntax.names import FUNCTIONS, slips

X = np.array([-2.5, -1.0, 0.25, 0.75, 3.0], np.float32)
A, B = X[::-1].copy(), X + 0.5
C = X > 0
WANTED = {
    "double": lambda x: x, "float": lambda x: x, "float32": lambda x: x, "half": lambda x: x, "int": np.trunc,
    "cot": lambda x: 1 / np.tan(x), "sec": lambda x: 1 / np.cos(x),
    "csc": lambda x: 1 / np.sin(x), "sqr": np.square, "long": np.trunc,
    "neg": np.negative, "rint": np.rint, "sgn": np.sign, "mul": np.multiply, "mod": np.mod,
    "clip": np.clip, "fma": lambda a, b, c: a * b + c, "ifelse": np.where,
    "sub": np.subtract,
    "gammaln": scipy.special.gammaln,
}  # fmt: skip


def hint_of(right: str, dtype: str = "f32") -> str:
    head = "op f(x: f32[N], a: f32[N], b: f32[N], c: bool[N], k: i32[N])"
    text = f"{head} -> (y: {dtype}[N]) {{ y[i] = {right} }}"
    with pytest.raises(DslError) as caught:
        pf.parse(text)
    (found,) = caught.value.diagnostics
    return found.hint or ""


@pytest.mark.parametrize("name", names._WRITTEN)
def test_functions_of_other_libraries_are_written_in_ours(name: str) -> None:
    parameters = names._WRITTEN[name][0].split()
    logical = name.startswith("logical")
    reads = [
        "c[i]" if (p == "c" and name != "fma") or logical else f"{p.replace('c', 'x').replace('t', 'x')}[i]"
        for p in parameters
    ]
    hint = hint_of(f"{name}({', '.join(reads)})")
    assert hint.startswith("write ")
    right = hint.removeprefix("write ")
    right = f"(1.0 if {right} else 0.0)" if logical else f"f32({right})"
    text = (
        f"op f(x: f32[N], a: f32[N], b: f32[N], c: bool[N]) -> (y: f32[N]) {{ y[i] = {right} for i in 0..N }}"
    )
    got = pf.compile(text, target="interpret")(X, A, B, C)
    given = [{"x": X, "a": A, "b": B, "c": C}[r[0]] for r in reads]
    want = WANTED.get(name) or getattr(np, name, None)
    if want is not None:
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(got, want(*given).astype(np.float64), rtol=1e-5, atol=1e-6)


# What takes or gives bools.
BOOLS = ("where", "ifelse", "logical_and", "logical_not", "logical_or")


@pytest.mark.parametrize("name", [n for n in names._WRITTEN if n not in BOOLS])
def test_what_is_written_keeps_together_in_an_operand(name: str) -> None:
    """`2.0 * logaddexp(x, a)` is not `2.0 * max(x, a) + ...`."""
    parameters = names._WRITTEN[name][0].split()
    call = f"{name}({', '.join('xab'[q] + '[i]' for q in range(len(parameters)))})"
    written = hint_of(f"2.0 * {call}").removeprefix("write ")
    written = f"f32({written})" if written.startswith(("f64", "f16", "i")) else written
    text = f"q[i] = {written}\n y[i] = 2.0 * q[i]\n z[i] = 2.0 * {written}"
    head = "op f(x: f32[N], a: f32[N], b: f32[N]) -> (y: f32[N], z: f32[N]) {"
    y, z = pf.compile(f"{head} {text} }}", target="interpret")(X, A, B)
    np.testing.assert_allclose(z, y, rtol=1e-5)


@pytest.mark.parametrize("name", ("cot", "isin", "cov", "logb", "isqrt", "sinc", "sqr", "isnat"))
def test_functions_that_are_known_elsewhere_are_no_slips(name: str) -> None:
    assert "did you mean" not in hint_of(f"{name}(x[i])")


@pytest.mark.parametrize(("name", "meant"), [("F32", "f32"), ("Exp", "exp"), ("BF16", "bf16")])
def test_capitals_are_no_other_letters(name: str, meant: str) -> None:
    assert hint_of(f"{name}(x[i])") == f"did you mean '{meant}'?"


def test_a_dtype_in_capitals_is_that_dtype() -> None:
    with pytest.raises(DslError, match="did you mean 'f32'") as caught:
        pf.parse("op f(x: F32[N]) -> (y: f32[N]) { y[i] = x[i] }")
    assert caught.value.diagnostics[0].code == "PF218"


def test_casts_of_other_libraries_are_written_in_ours() -> None:
    assert hint_of("f32(int32(k[i]))") == "write i32(k[i])"
    assert hint_of("f32(uint32(k[i]))") == "write u32(k[i])"


@pytest.mark.parametrize(
    ("right", "hint"),
    [
        ("clip(x[i] + 1.0, 0.0, 1.0)", "write min(max((x[i] + 1.0), 0.0), 1.0)"),
        ("where(x[i] > 0.0, x[i], 0.0)", "write (x[i] if (x[i] > 0.0) else 0.0)"),
        ("clip(x[i], 0.0)", "clip(x, a, b) is written min(max(x, a), b)"),
        ("arctan2(x[i], a[i])", "write atan2(x[i], a[i])"),
        ("gammaln(x[i])", "write lgamma(x[i])"),
        ("erfinv(x[i])", "the language has no 'erfinv'"),
        ("expp(x[i])", "did you mean 'exp'?"),
        ("sqtr(x[i])", "did you mean 'sqrt'?"),
        ("sigmiod(x[i])", "did you mean 'sigmoid'?"),
        ("f23(x[i])", "did you mean"),
    ],
)
def test_hints(right: str, hint: str) -> None:
    assert hint_of(right).startswith(hint if right[0] != "f" else "")


@pytest.mark.parametrize(
    "right", ["blob(x[i])", "expp(x[i], a[i])", "c64(x[i])", "u31(x[i])", "lamp(x[i])", "seal(x[i])"]
)
def test_nothing_else_is_suggested(right: str) -> None:
    """Another arity, another kind, or no slip at all."""
    assert "did you mean" not in hint_of(right)


@pytest.mark.parametrize("name", sorted({*names._WRITTEN, *names._LINES, *names._NONE} - {"mod"}))
def test_no_known_function_becomes_another(name: str) -> None:
    assert name not in FUNCTIONS
    assert "did you mean" not in (names.function_hint(name, ["x"]) or "did you mean")


@pytest.mark.parametrize("name", names._LINES)
def test_lines_of_reductions_compile(name: str) -> None:
    lines = hint_of(f"{name}[j](x[j])" if name != "einsum" else "einsum(x[i])").partition("rows: ")[2]
    target, axes = re.match(r".*?; ", "") or lines.split("; ")[-1].split("[")[0], lines.split("; ")[-1]
    shape = "I, J" if "[i, j]" in axes.split("=")[0] else "T, H" if "h]" in axes.split("=")[0] else "T"
    dtype = "i64" if name == "count_nonzero" else "f32"
    pf.parse(
        "op f(x: f32[T, H], w: f32[H], a: f32[I, K], b: f32[K, J]) "
        f"-> ({target}: {dtype}[{shape}]) where H >= 1 {{ {lines} }}"
    )


@pytest.mark.parametrize(
    ("dtype", "hint"),
    [
        ("float32", "write f32"),
        ("uint32", "write u32"),
        ("c64", "there are no complex numbers"),
        ("f23", "did you mean 'f32'?"),
        ("i128", "dtypes are"),
        ("f8", "dtypes are"),
    ],
)
def test_dtypes_of_other_languages(dtype: str, hint: str) -> None:
    with pytest.raises(DslError) as caught:
        pf.parse(f"op f(x: {dtype}[N]) -> (y: f32) {{ y = 1.0 }}")
    assert (caught.value.diagnostics[0].hint or "").startswith(hint)


def test_a_suggested_tensor_has_the_axes() -> None:
    head = "op f(gamma: f32[N], gamme: f32[N, N], gam: f32) -> (y: f32[N]) {"
    for read, near in (("gamm[i, i]", "gamme"), ("gamm[i]", "gamma"), ("gamm", "gam")):
        with pytest.raises(DslError, match=f"did you mean '{near}'"):
            pf.parse(f"{head} y[i] = {read} for i in 0..N }}")


def test_bits_of_integers_are_no_bools() -> None:
    with pytest.raises(DslError, match=r"'&' takes integers"):
        pf.parse("op f(k: f32[N]) -> (y: f32[N]) { y[i] = k[i] & k[i] }")


@pytest.mark.parametrize(
    ("a", "b", "count"), [("exp", "exp", 0), ("epx", "exp", 1), ("ab", "", 2), ("kitten", "sitting", 3)]
)
def test_slips_are_counted(a: str, b: str, count: int) -> None:
    assert slips(a, b) == slips(b, a) == count


@pytest.mark.parametrize(
    ("name", "number"), [("Inf", np.inf), ("INFINITY", np.inf), ("NaN", np.nan), ("M_PI", np.pi)]
)
def test_numbers_with_a_name_elsewhere(name: str, number: float) -> None:
    written = hint_of(f"x[i] * {name}").removeprefix("write ")
    y = pf.compile(f"op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = x[i] * {written} }}", target="interpret")(X)
    np.testing.assert_array_equal(y, X * np.float32(number))
