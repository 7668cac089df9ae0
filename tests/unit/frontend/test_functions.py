"""Functions, `fn f(x) = ...`: how they are written, found, put in place and refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special

import polyfuse as pf
from polyfuse.builder import fn
from polyfuse.diagnostics import Diagnostic, DslError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir import dtypes as dt

HEAD = "op f(x: f32[N], k: i32[N]) -> (y: f32[N]) { "


def graph(text: str) -> str:
    return str(instantiate(parse_text(text, "t.pf"), "f")).splitlines()[-1]


def errors(text: str) -> list[Diagnostic]:
    return check_program(parse_text(text, "t.pf")).errors


# --- text -----------------------------------------------------------------------------------------------


def test_the_formatter_keeps_them() -> None:
    text = """# squares
fn square(x) = x * x  # of x
fn zero() = 0.0

op g(x: f32[N]) -> (y: f32[N]) {
  y[i] = square(x[i]) + zero()
}

# the last
fn clamp(x, lo, hi) = min(max(x, lo), hi)
"""
    program = parse_text(text, "t.pf")
    assert format_program(program) == text
    assert [f.name for f in program.functions] == ["square", "zero", "clamp"]
    long = parse_text(f"fn f(x) = {' + '.join(['x * x'] * 30)}", "t.pf")
    once = format_program(long)
    assert once.count("\n") > 1 and parse_text(once, "t.pf") == long
    assert format_program(parse_text(once, "t.pf")) == once


def test_fn_is_a_name_elsewhere() -> None:
    text = "fn fn(op, where) = op * where\nop f(fn: f32[N]) -> (y: f32[N]) { y[i] = fn(fn[i], 2.0) }"
    assert "(fn[i] * 2.0)" in graph(text)


def test_the_builder_makes_the_same_tree() -> None:
    b = pf.ProgramBuilder()
    swish = b.function("swish", "x beta", lambda x, beta: x * fn.sigmoid(beta * x))
    f = b.op("f")
    x, y, i = f.param("x", "f32", "N"), f.result("y", "f32", "N"), f.index("i")
    y[i] = swish(x[i], 2.0) + fn.silu(x[i])
    assert parse_text(str(b), "t.pf") == b.tree()
    v = np.linspace(-3, 3, 7, dtype=np.float32)
    want = v * special.expit(2 * v) + v * special.expit(v)
    np.testing.assert_allclose(pf.compile(b.program(), target="interpret")(v), want, rtol=1e-5)
    with pytest.raises(DslError, match="PF108"):
        b.function("swish", "x", lambda x: x)


# --- what a call means --------------------------------------------------------------------------------


def test_arguments_are_put_in_unevaluated() -> None:
    text = "fn g(a, b) = a if b > 0.0 else inf\nfn h(x) = g(x, x) * pi\n" + HEAD + "y[i] = h(x[i] + 1.0) }"
    assert graph(text).endswith(
        "y[i] = (((x[i] + 1.0) if ((x[i] + 1.0) > 0.0) else inf) * 3.141592653589793)  for i in 0..N"
    )


def test_minus_infinity_in_a_body_is_one_of_the_argument_type() -> None:
    text = "fn g(a) = -inf if a == -inf else -pi\n" + HEAD + "y[i] = g(x[i]) }"
    x, k = np.float32([-np.inf, 1, np.nan]), np.zeros(3, np.int32)
    found = pf.compile(text, target="interpret")(x, k)
    np.testing.assert_array_equal(found, np.float32([-np.inf, -np.pi, -np.pi]))


@pytest.mark.parametrize("target", ["cpu", "interpret", "emulate"])
def test_a_guard_of_the_body_guards_the_reads_of_an_argument(target: Any) -> None:
    text = "fn inside(a, i, n) = a if i < n else 0.0\n"
    text += "op f(x: f32[N]) -> (y: f32[N + 2]) { y[i] = inside(x[i], i, N) }"
    found = pf.compile(text, target=target)(np.ones(3, np.float32))
    np.testing.assert_array_equal(found, [1, 1, 1, 0, 0])


def test_types_are_those_of_the_call() -> None:
    text = "fn twice(x) = x + x\nop f[F: float](x: F[N], k: i32[N]) -> (y: F[N], j: i32[N]) {\n"
    text += "  y[i] = twice(x[i])\n  j[i] = twice(k[i])\n}"
    for dtype in (dt.F64, dt.F32, dt.F16):
        built = instantiate(parse_text(text, "t.pf"), "f", dtypes={"F": dtype})
        assert built.tensor("y").dtype is dtype and built.tensor("j").dtype is dt.I32
    assert "x[min(max(i, 1), N - 1)]" in graph(
        "fn clamp(x, lo, hi) = min(max(x, lo), hi)\n" + HEAD + "y[i] = x[clamp(i, 1, N-1)] + x[i] }"
    )


def test_numbers_of_a_body_are_no_names_of_the_caller() -> None:
    text = (
        "fn top(x) = min(x, inf) + pi\nop f(inf: f32[N], pi: f32) -> (y: f32[N]) { y[i] = top(inf[i]) + pi }"
    )
    assert "((min(inf[i], inf) + 3.141592653589793) + pi[])" in graph(text)


def test_they_stand_everywhere_an_expression_may() -> None:
    text = """fn half(n) = n // 2
fn double(x) = 2.0 * x
op scale(x: f32[N], s: f32) -> (y: f32[N]) { y[i] = s * x[i] }
op f(x: f32[N], w: f32) -> (y: f32[N], z: f32, h: f32[N // 2]) {
  let a: f32[N] = double(1.0)
  a[half(i)] += double(x[i]) for i in 0..N
  t = scale(a, double(w))
  y[i] = t[i]
  z = double(sum[i](double(x[i])))
  h[i] = x[half(2*i)] for i in 0..half(N)
}"""
    x = np.arange(4, dtype=np.float32)
    y, z, h = pf.compile(text, target="interpret")(x, 0.5)  # type: ignore[misc]
    np.testing.assert_array_equal(y, [4, 12, 2, 2])
    assert z == 24
    np.testing.assert_array_equal(h, [0, 1])


# --- where they are found -------------------------------------------------------------------------------


def test_the_own_file_comes_first(tmp_path: Path) -> None:
    (tmp_path / "b.pf").write_text("fn silu(x) = 3.0 * x\nfn third(x) = silu(x) + 1.0\n")
    (tmp_path / "a.pf").write_text(
        'import "b.pf"\nfn silu(x) = 5.0 * x\n'
        "op f(x: f32[N]) -> (y: f32[N], z: f32[N]) { y[i] = silu(x[i]); z[i] = third(x[i]) }\n"
    )
    y, z = pf.compile(tmp_path / "a.pf", target="interpret")(np.ones(1, np.float32))  # type: ignore[misc]
    assert (y[0], z[0]) == (5, 4)
    text = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = silu(x[i]) }"
    found = pf.compile(text, target="interpret")(np.ones(1, np.float32))
    np.testing.assert_allclose(found, special.expit(1.0), rtol=1e-6)


def test_a_call_alone_is_an_operator_if_one_is_found_first() -> None:
    v = np.array([-1.0, 2.0], np.float32)
    text = "op f(x: f32[N]) -> (y: f32[N]) { y = relu(x) }"  # the library has both
    np.testing.assert_array_equal(pf.compile(text, target="interpret")(v), [0, 2])
    text = "fn relu(x) = x + 1.0\nop f(s: f32) -> (y: f32) { y = relu(s) }"
    assert pf.compile(text, target="interpret")(2.0) == 3
    text = "fn g(x) = x + 1.0\nop g(x: f32[N]) -> (y: f32[N]) { y[i] = g(x[i]) }\n"
    text += "op f(x: f32[N]) -> (y: f32[N]) { y = g(x) }"
    np.testing.assert_array_equal(pf.compile(text, target="interpret")(v), [0, 3])


def test_names_that_are_built_in_later_stay_those_of_the_program() -> None:
    """`isnan` is built in for good, `cbrt` may come: a program may call something so."""
    text = "fn cbrt(x) = x ** 3\n" + HEAD + "y[i] = cbrt(x[i]) }"
    assert "x[i] **" in graph(text) or "pow(x[i]" in graph(text)
    (found,) = errors("fn isnan(x) = x\n" + HEAD + "y[i] = x[i] }")
    assert found.code == "PF232"


# --- errors ---------------------------------------------------------------------------------------------

BAD = [
    ("fn g(x) = x\n" + HEAD + "y[i] = g(x[i], 1.0) }", "PF203", 2, 52, "g takes 1 argument, got 2"),
    ("fn g(x) = x\n" + HEAD + "y[i] = g(x=x[i]) }", "PF203", 2, 56, "takes no keyword arguments"),
    ("fn g(x) = h(x)\nfn h(x) = g(x)\n" + HEAD + "y[i] = x[i] }", "PF212", 2, 11, "g -> h -> g"),
    ("fn g(x, x) = x\n" + HEAD + "y[i] = x[i] }", "PF210", 1, 9, "declared twice"),
    ("fn g(x) = x + N\n" + HEAD + "y[i] = g(x[i]) }", "PF201", 1, 15, "unknown name 'N' in the function 'g'"),
    ("fn g(x) = foo(x)\n" + HEAD + "y[i] = g(x[i]) }", "PF202", 1, 11, "unknown function 'foo'"),
    ("fn g(x) = x[0]\n" + HEAD + "y[i] = x[i] }", "PF244", 1, 11, "a function has no tensors"),
    ("fn g(x) = sum[i](x)\n" + HEAD + "y[i] = x[i] }", "PF244", 1, 11, "without sum"),
    ("fn g(x) = old(x)\n" + HEAD + "y[i] = x[i] }", "PF244", 1, 11, "without old"),
    ("fn g(x) = f(x)\n" + HEAD + "y[i] = x[i] }", "PF244", 1, 11, "'f' is an operator"),
    ("fn g(x) = x\nfn g(y) = y\n" + HEAD + "y[i] = x[i] }", "PF108", 2, 4, "function 'g' is defined twice"),
    ("fn g(x) = x + x\n" + HEAD + f"y[i] = {'g(' * 13}x[i]{')' * 13} }}", "PF246", 2, 54, "10,000 nodes"),
    ("fn g(x) = \n" + HEAD + "y[i] = x[i] }", "PF101", 2, 4, "after 'op'"),
    ("fn (x) = x\n" + HEAD + "y[i] = x[i] }", "PF101", 1, 4, "the function's name"),
]


@pytest.mark.parametrize(("text", "code", "line", "column", "words"), BAD, ids=[b[0][:20] for b in BAD])
def test_errors(text: str, code: str, line: int, column: int, words: str) -> None:
    try:
        (found,) = errors(text)
    except DslError as e:
        (found,) = e.diagnostics
    assert found.span is not None and (found.code, found.span.line, found.span.column) == (code, line, column)
    assert words in found.render()


def test_an_error_inside_shows_both_places() -> None:
    text = "fn g(x) = sigmoid(x)\nfn h(x) = 2.0 * g(x)\n" + HEAD + "y[i] = h(k[i]) }"
    (found,) = errors(text)
    assert found.span is not None and (found.code, found.span.line, found.span.column) == ("PF216", 1, 11)
    assert [(s.line, s.column, words) for s, words in found.related] == [
        (2, 17, "called here"),
        (3, 52, "called here"),
    ]
    text = "fn less(a, b) = a < b < 3\n" + HEAD + "y[i] = x[i] if less(x[i], k[i]) else 0.0 }"
    (found,) = errors(text)
    assert found.code == "PF205" and "called here" in found.render()


def test_a_broken_function_does_not_hide_what_follows() -> None:
    with pytest.raises(DslError) as e:
        parse_text("fn g(x) = x z\nfn h = 1\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * }", "t.pf")
    assert len(e.value.diagnostics) == 3


# --- the library's --------------------------------------------------------------------------------------


def softplus(x: Any) -> Any:
    return np.logaddexp(x, 0)


LIBRARY: dict[str, Any] = {
    "relu(a)": lambda a, b: np.maximum(a, 0),
    "relu6(a)": lambda a, b: np.clip(a, 0, 6),
    "leaky_relu(a, 0.1)": lambda a, b: np.where(a > 0, a, 0.1 * a),
    "elu(a, 2.0)": lambda a, b: np.where(a > 0, a, 2 * np.expm1(a)),
    "selu(a)": lambda a, b: 1.0507009873554805 * np.where(a > 0, a, 1.6732632423543772 * np.expm1(a)),
    "silu(a)": lambda a, b: a * special.expit(a),
    "gelu(a)": lambda a, b: a * special.ndtr(a),
    "gelu_tanh(a)": lambda a, b: a / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))),
    "softplus(a)": lambda a, b: softplus(a),
    "log_sigmoid(a)": lambda a, b: -softplus(-a),
    "mish(a)": lambda a, b: a * np.tanh(softplus(a)),
    "hardsigmoid(a)": lambda a, b: np.clip(a / 6 + 0.5, 0, 1),
    "hardswish(a)": lambda a, b: a * np.clip(a / 6 + 0.5, 0, 1),
    "clamp(a, b, b + 1.0)": lambda a, b: np.clip(a, b, b + 1),
    "lerp(a, b, 0.25)": lambda a, b: a + 0.25 * (b - a),
    "square(a)": lambda a, b: a * a,
    "logaddexp(a, b)": np.logaddexp,
    "logit(sigmoid(a))": lambda a, b: a,
}


def test_all_of_the_library_are_tried() -> None:
    names = {f.name for p in pf.stdlib.programs for f in p.functions}
    names -= {"uniform", "normal"}  # test_random_numbers
    assert sorted(names) == sorted(call.partition("(")[0] for call in LIBRARY)


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16"])
def test_the_library_agrees_with_scipy(dtype: str) -> None:
    calls = list(LIBRARY)
    results = ", ".join(f"y{k}: {dtype}[N]" for k in range(len(calls)))
    lines = ""
    for k, call in enumerate(calls):
        name, _, arguments = call.partition("(")
        given = re.sub(r"\b[ab]\b", lambda m: {"a": "p[i]", "b": "q[i]"}[m[0]], arguments)
        lines += f"y{k}[i] = {name}({given}\n"
    text = f"op f(p: {dtype}[N], q: {dtype}[N]) -> ({results}) {{\n{lines}}}"
    a = np.concatenate([np.linspace(-7, 7, 29), [0.0, -0.0]])
    b = np.roll(a, 5)
    kind = dtype.replace("f", "float")
    found = pf.compile(text, target="interpret")(a.astype(kind), b.astype(kind))
    tolerance = {"f64": 1e-9, "f32": 2e-5, "f16": 2e-2}[dtype]
    for call, got in zip(calls, found, strict=True):  # type: ignore[call-overload]
        want = LIBRARY[call](a, b)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=call)


def test_special_values_of_the_library() -> None:
    text = "op f(a: f32[N], b: f32[N]) -> (y: f32[N], z: f32[N]) {\n"
    text += "y[i] = logaddexp(a[i], b[i]); z[i] = softplus(a[i]) }"
    inf, nan = np.inf, np.nan
    a, b = np.array([inf, -inf, inf, nan, 88.0], "f4"), np.array([inf, -inf, -inf, 1.0, 89.0], "f4")
    y, z = pf.compile(text, target="interpret")(a, b)  # type: ignore[misc]
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(y, np.logaddexp(a, b), rtol=1e-6)
        np.testing.assert_allclose(z, np.logaddexp(a, 0), rtol=1e-6)
