"""Optional tensors, `bias: f32[M]?`: text, what `given` decides, calls, errors."""

from __future__ import annotations

import inspect
import pickle
import shutil
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.builder import fn, when
from polyfuse.checking import check_text
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.semantics.optionals import MOST_OPTIONALS, choices
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.parse import parse_text

Array = np.ndarray[Any, Any]
DENSE = """op dense(x: f32[N, K], w: f32[M, K], bias: f32[M]?, r: f32[N, M]?) -> (y: f32[N, M]) {
  s[n, m] = sum[k](x[n, k] * w[m, k])
  y[n, m] = (s[n, m] + bias[m] if given(bias) else s[n, m]) * (r[n, m] if given(r) else 2.0)
}
"""
X, W = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(4, 3) - 5
B, R = np.arange(4, dtype=np.float32), np.arange(8, dtype=np.float32).reshape(2, 4)
TARGETS = ["interpret", *(["cpu", "emulate"] if shutil.which("g++") else [])]


def dense(bias: Array | None = None, r: Array | None = None) -> Array:
    return np.asarray((X @ W.T + (0 if bias is None else bias)) * (2 if r is None else r))


def statements(body: str, head: str, *absent: str) -> list[str]:
    g = instantiate(parse_text(f"op f({head}) -> (y: f32[N]) {{\n{body}\n}}", "t.pf"), "f", absent=absent)
    return [str(s) for s in g.statements]


# --- text -------------------------------------------------------------------------------------------------


def test_the_formatter_keeps_them() -> None:
    text = """op f(x: f32[N], bias: f32[N]?, mask: bool[N]?, a: f32 = 1.0) -> (y: f32[N]) {
  y[n] = x[n] * a + bias[n] if given(bias) and not given(mask) else 0.0
}
"""
    assert format_program(parse_text(text, "t.pf")) == text


def test_the_builder_makes_the_same_tree() -> None:
    b = pf.ProgramBuilder()
    f = b.op("f")
    x, bias = f.param("x", "f32", "N"), f.param("bias", "f32", "N", optional=True)
    y, n = f.result("y", "f32", "N"), f.index("n")
    y[n] = when(fn.given(bias), x[n] + bias[n], x[n])
    g = b.op("g")
    x = g.param("x", "f32", "N")
    g.call("f", g.call("f", x, None), bias=None, into=g.result("z", "f32", "N"))
    assert parse_text(str(b), "t.pf") == b.tree()
    assert "bias: f32[N]?" in str(b) and "f(x, None)" in str(b)
    np.testing.assert_array_equal(pf.compile(b.program(), op="g", target="interpret")(B), B)


# --- what `given` decides ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "there", "absent"),
    [
        ("x[n] + b[n] if given(b) else x[n]", "(x[n] + b[n])", "x[n]"),
        ("select(given(b), b[n], x[n])", "b[n]", "x[n]"),
        ("b[n] if given(b) and b[0] > 0.0 else x[n]", "(b[n] if (b[0] > 0.0) else x[n])", "x[n]"),
        ("x[n] if not given(b) else b[n]", "b[n]", "x[n]"),
        ("x[n] if not given(b) or n > 3 else b[n]", "(x[n] if (i64(n) > 3) else b[n])", "x[n]"),
        ("x[n] + (b[n - 1 else 0.5] if given(b) else 0.0)", "else 0.5))", "(x[n] + 0.0)"),
        ("f32(given(b)) * x[n]", "(f32(true) * x[n])", "(f32(false) * x[n])"),
    ],
)
def test_it_is_known_when_an_operator_is_compiled(right: str, there: str, absent: str) -> None:
    head = "x: f32[N], b: f32[N]?"
    assert there in statements(f"y[n] = {right} for n in 0..N", head)[-1]
    assert absent in statements(f"y[n] = {right} for n in 0..N", head, "b")[-1]


def test_definitions_that_only_some_choices_read_are_used() -> None:
    text = """op f(x: f32[N], b: f32[N]?) -> (y: f32[N]) {
  m = max[n](x[n])
  y[n] = b[n] if given(b) else x[n] - m
}"""
    assert not check_program(parse_text(text, "t.pf")).found


def test_all_choices_of_few_are_checked() -> None:
    few = parse_text("op f(x: f32[N], a: f32[N]?, b: f32[N]?) -> (y: f32[N]) { y[n] = x[n] }", "t.pf").ops[0]
    assert [*choices(few)] == [(), ("a",), ("b",), ("a", "b")]
    names = ", ".join(f"p{k}: f32[N]?" for k in range(MOST_OPTIONALS + 3))
    many = parse_text(f"op f(x: f32[N], {names}) -> (y: f32[N]) {{ y[n] = x[n] }}", "t.pf").ops[0]
    assert len([*choices(many)]) == 2 + 2 * (MOST_OPTIONALS + 3)


def test_indices_are_proved_for_each_choice() -> None:
    text = "op f(x: f32[N], b: f32[N]?) -> (y: f32[N]) {\n  y[n] = b[n] if given(b) else x[n + 1]\n}"
    assert [d.code for d in check_text(text, "t.pf").found.errors] == ["PF350"]


# --- calls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_left_out_or_none_from_python(target: str) -> None:
    f = pf.compile(DENSE, target=target)
    for _ in range(2):  # the second time by the short way
        np.testing.assert_array_equal(f(X, W), dense())
        np.testing.assert_array_equal(f(X, W, B), dense(B))
        np.testing.assert_array_equal(f(X, W, None, R), dense(None, R))
        np.testing.assert_array_equal(f(X, W, r=R, bias=None), dense(None, R))
        np.testing.assert_array_equal(f(r=R, w=W, bias=B, x=X), dense(B, R))
    out = np.zeros((2, 4), np.float32)
    bound = f.bind(X, W, r=R, out=out)
    bound()
    np.testing.assert_array_equal(out, dense(None, R))


def test_functions_show_and_keep_them() -> None:
    f = pf.compile(DENSE, target="interpret")
    assert str(f.signature) == str(inspect.cleandoc(DENSE).split(" {")[0].removeprefix("op "))
    assert inspect.signature(f).parameters["bias"].default is None
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(f))(X, W, None, R), dense(None, R))
    assert f.explain(X, W, B) and f.built(X, W).code is None


def test_operators_without_them() -> None:
    op = pf.parse(DENSE).op()
    without = op.without("bias")
    assert "bias" not in str(without.signature) and "r: f32[N, M])" in str(without.signature)
    assert without.graph().inputs == ("x", "w", "r") and op.graph().inputs == ("x", "w", "bias", "r")
    np.testing.assert_array_equal(pf.compile(without, target="interpret")(X, W, R), dense(None, R))
    assert "bias" not in str(op.without("bias", "r").specialize(N=2, K=3, M=4))
    with pytest.raises(pf.ArgumentError, match="no optional tensor 'x'"):
        op.without("x")


def test_arguments_that_are_wrong() -> None:
    f = pf.compile(DENSE, target="interpret")
    for args, kwargs, code in (
        ((X,), {}, "PF408"),
        ((X, W, B, R, R), {}, "PF408"),
        ((X, W, B), {"bias": B}, "PF408"),
        ((None, W), {}, "PF425"),
        ((X, W, B[:3]), {}, "PF405"),
        ((X, W), {"other": None}, "PF408"),
    ):
        with pytest.raises(pf.ArgumentError) as found:
            f(*args, **kwargs)
        assert found.value.code == code


def test_an_optional_tensor_is_passed_on() -> None:
    text = (
        DENSE
        + """op f(x: f32[N, K], w: f32[M, K], bias: f32[M]?) -> (y: f32[N, M]) {
  a = dense(x, w)
  b = dense(x, w, bias)
  c = dense(x, w, None, r=b)
  y[n, m] = a[n, m] + c[n, m]
}"""
    )
    f = pf.compile(text, op="f", target="interpret")
    np.testing.assert_array_equal(f(X, W, B), dense() + dense(None, dense(B)))
    np.testing.assert_array_equal(f(X, W), dense() + dense(None, dense()))


def test_generics_and_ranks_follow_from_what_is_there() -> None:
    text = """op f[F: float, H: size = 3](x: F[B..., N], g: F[N]?, k: F[H]?) -> (y: F[B..., N]) {
  y[b..., n] = x[b..., n] * (g[n] if given(g) else 1.0) + (k[0] if given(k) and H > 0 else f32(H))
}"""
    f = pf.compile(text, target="interpret")
    x = np.ones((2, 3, 4), np.float16)
    assert f(x).dtype == np.float16 and f(x)[0, 0, 0] == 4
    assert f(x, None, np.full(2, 7, np.float16))[0, 0, 0] == 8


def test_an_operator_of_the_name_given_stays_callable() -> None:
    text = """op given(x: f32[N]) -> (y: f32[N]) { y[n] = 2.0 * x[n] }
op f(x: f32[N], b: f32[N]?) -> (y: f32[N]) { z = given(x); y[n] = z[n] + (b[n] if given(b) else 0.0) }"""
    np.testing.assert_array_equal(pf.compile(text, op="f", target="interpret")(B), 2 * B)


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "body", "code", "text"),
    [
        ("b: f32[N]?", "y[n] = x[n] + b[n]", "PF247", "b[n] if given(b) else 0.0"),
        ("b: f32[N]?", "y[n] = x[n] + b[n] if given(b) else b[n]", "PF247", "may be absent here"),
        ("b: f32[N]?, c: f32[N]?", "y[n] = x[n] + (b[n] if given(c) else 0.0)", "PF247", "'b' may be"),
        ("b: f32[N]?", "y[n] = x[n] + (b[n] if given(b) or n > 3 else 0.0) for n in 0..N", "PF247", "'b'"),
        ("b: f32[N]", "y[n] = b[n] if given(b) else x[n]", "PF248", "declare it with '?'"),
        ("b: f32[N]?", "y = twice(b)", "PF249", "where 'b' is absent"),
        ("b: f32[N]", "y = twice(None)", "PF249", "declare it x: f32[N]?"),
        ("inout b: f32[N]?", "y[n] = x[n]", "PF250", "'b' is inout"),
        ("b: f32?", "y[n] = x[n]", "PF250", "a scalar has a default"),
        ("b: f32[M]?", "y[n] = x[n] * f32(M)", "PF251", "[M: size = 1]"),
        ("b: f32[N, M]?, c: f32[M]", "y[n] = x[n] + f32(M)", "", ""),
        ("b: f32[N, M]?", "y[n] = sum[j in 0..M](b[n, j]) if given(b) else x[n]", "", ""),
        ("b: f32[N]?", "t[j] = 1.0 if given(b) else 2.0; y[n] = x[n] + t[0]", "PF302", "range of 'j'"),
    ],
)
def test_errors(head: str, body: str, code: str, text: str) -> None:
    twice = "op twice(x: f32[N]) -> (y: f32[N]) { y[n] = 2.0 * x[n] }"
    program = f"{twice}\nop f(x: f32[N], {head}) -> (y: f32[N]) {{\n{body}\n}}"
    found = check_program(parse_text(program, "t.pf")).errors
    assert [d.code for d in found] == ([code] if code else [])
    assert not code or text in found[0].render()


def test_a_question_mark_elsewhere_is_no_part_of_the_language() -> None:
    for body in ("y[n] = x[n] > 0.0 ? x[n] : 0.0", "y[n] = x[n]?"):
        with pytest.raises(pf.DslError, match="write 'a if condition else b'"):
            parse_text(f"op f(x: f32[N]) -> (y: f32[N]) {{ {body} }}", "t.pf")
