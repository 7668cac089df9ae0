"""Size parameters, `op f[K: size = 2](...)`: how they are written, found and refused."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.builder import fn
from polyfuse.diagnostics import ArgumentError, Diagnostic
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.semantics.signature import signature
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.parse import parse_text

WINDOWS = """op windows[K: size = 2, S: size = K, P: size = 0](x: f32[N]) -> (y: f32[(N + 2*P - K)//S + 1])
    where K >= 1, S >= 1 {
  y[i] = max[a in 0..K](x[i*S + a - P] if 0 <= i * S + a - P < N else -inf)
}
"""


def errors(text: str) -> list[Diagnostic]:
    return check_program(parse_text(text, "t.pf")).errors


def expected(x: np.ndarray[Any, Any], k: int, s: int, p: int) -> np.ndarray[Any, Any]:
    padded = np.pad(x, p, constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, k)[::s].max(-1)


# --- text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "generics",
    ["K: size", "K: size = 2", "F: float, K: size = 2*N + 1", "K: size = 1, F: float, S: size = max(K, 2)"],
)
def test_the_formatter_keeps_them(generics: str) -> None:
    text = f"op f[{generics}](x: f32[N]) -> (y: f32[N]) {{\n  y[i] = x[i]\n}}\n"
    program = parse_text(text, "t.pf")
    assert format_program(program) == text
    assert parse_text(format_program(program), "t.pf") == program


def test_the_graph_shows_defaults() -> None:
    graph = instantiate(parse_text(WINDOWS, "t.pf"), "windows")
    assert str(graph).startswith("graph windows(N, P = 0, K = 2, S = K)")


def test_python_sees_keywords() -> None:
    shown = str(inspect.signature(pf.compile(WINDOWS)))
    assert shown.startswith("(x: 'f32[N]', *, K: 'size' = 2, S: 'size' = K, P: 'size' = 0)")


def test_the_builder_makes_the_same_tree() -> None:
    b = pf.ProgramBuilder()
    f = b.op("f")
    k = f.size_parameter("K", 2)
    s = f.size_parameter("S", k)
    x, y = f.param("x", "f32", "N"), f.result("y", "f32", (f.size("N") // s,))
    i, a = f.index("i"), f.index("a")
    f.where(s >= k, k >= 1)
    y[i] = fn.sum[a.range(0, k)](x[i * s + a])
    g = b.op("g")
    v, z = g.param("v", "f32", "N"), g.result("z", "f32", (g.size("N") // 3,))
    g.call("f", v, into=z, S=3)
    text = str(b)
    assert parse_text(text, "t.pf").ops == b.tree().ops
    x_ = np.arange(7, dtype=np.float32)
    np.testing.assert_array_equal(pf.compile(b.program(), "g", target="interpret")(x_), [1.0, 7.0])


# --- values ---------------------------------------------------------------------------------------------

ORDER = "op f[{}](x: f32[{}]) -> (y: f32) where {} {{ y = 1.0 }}"
VALUES: list[tuple[tuple[str, str, str], int, dict[str, int], dict[str, int]]] = [
    (("K: size = 2", "N", "N >= 0"), 5, {}, {"N": 5, "K": 2}),
    (("K: size = 2", "N", "N >= 0"), 5, {"K": 7}, {"N": 5, "K": 7}),
    (("K: size = 2", "K", "K >= 0"), 5, {}, {"K": 5}),  # a shape comes before a default
    (("K: size = 2", "K", "K >= 0"), 5, {"K": 5}, {"K": 5}),
    (("K: size = 2, G: size", "K*G", "K >= 0"), 12, {"G": 3}, {"K": 4, "G": 3}),
    (("K: size = 2, G: size", "K*G", "K >= 0"), 12, {}, {"K": 2, "G": 6}),  # a default, then an extent
    (("G: size, K: size = 2", "N", "N == G*K"), 12, {}, {"N": 12, "G": 6, "K": 2}),
    (("G: size = 9, K: size = 2", "N", "N == G*K"), 12, {"G": 3}, {"N": 12, "G": 3, "K": 4}),
    (("K: size = N, S: size = K // 2", "N", "N >= 0"), 12, {}, {"N": 12, "K": 12, "S": 6}),
]  # fmt: skip


@pytest.mark.parametrize("row", VALUES, ids=str)
def test_values_are_found_in_the_order_of_the_page(row: Any) -> None:
    head, shape, given, sizes = row
    program = parse_text(ORDER.format(*head), "t.pf")
    for what in (instantiate(program, "f"), signature(program.ops[0])):
        assert bind_sizes(what, {"x": (shape,)}, given) == sizes


REFUSED: list[tuple[tuple[str, str, str], dict[str, Any], str, str]] = [
    (("K: size = 2", "K", "K >= 0"), {"K": 4}, "PF405", "axis 0 is K = 4; K = 4 because it is given"),
    (("K: size", "N", "N >= 0"), {}, "PF406", "do not give the size K"),
    (("K: size = N - 9", "N", "N >= 0"), {}, "PF406", "its default N - 9 is -4 for N = 5"),
    (("K: size = 2", "N", "N >= 0"), {"K": -1}, "PF412", "size K cannot be -1"),
    (("K: size = 2", "N", "N >= 0"), {"K": 2.0}, "PF412", "size K cannot be 2.0"),
    (("K: size = 2", "N", "N >= 3*K"), {}, "PF407", "f needs N >= 3*K, but N = 5 (axis 0 of 'x'), K = 2"),
    (("K: size = 2", "N", "N >= 0"), {"N": 5}, "PF408", "f has no parameter 'N'"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_what_a_call_cannot_have_is_refused(row: Any) -> None:
    head, given, code, words = row
    f = pf.compile(ORDER.format(*head), target="interpret")
    with pytest.raises(ArgumentError) as e:
        f(np.zeros(5, np.float32), **given)
    assert code in str(e.value) and words in str(e.value)


@pytest.mark.parametrize("target", ["cpu", "interpret", "emulate"])
@pytest.mark.parametrize("n", [1, 7, 16])
def test_each_choice_is_an_instance_of_its_own(target: Any, n: int) -> None:
    f = pf.compile(WINDOWS, target=target)
    x = np.random.default_rng(n).normal(size=n).astype(np.float32)
    for given in ({"K": 3, "S": 1, "P": 1}, {"K": 1}, {"S": 1, "K": 1}):
        k, p = given["K"], given.get("P", 0)
        for _ in range(2):  # the second call goes the short way
            np.testing.assert_array_equal(f(x, **given), expected(x, k, given.get("S", k), p))
    out = np.empty(n, np.float32)
    assert f(x, K=1, out=out) is out
    np.testing.assert_array_equal(out, x)


def test_all_entries_take_them() -> None:
    f = pf.compile(WINDOWS, target="cpu")
    x = np.arange(9, dtype=np.float32)
    np.testing.assert_array_equal(f.bind(x, K=3)(), [2, 5, 8])
    assert f.built(x, K=3).executable is not f.built(x, K=4).executable
    assert f.built(x, K=3).executable is f.built(x, K=np.int64(3)).executable
    assert "seconds" in f.cost(x, K=3) or f.cost(x, K=3)
    with pytest.raises(ArgumentError, match=r"PF408.*\n?.*it has x, K, S, P"):
        f(x, Q=3)


def test_specialize_takes_defaults() -> None:
    operator = pf.parse(WINDOWS).op()
    assert (
        operator.specialize(N=9, S=1).graph.tensor("y").shape
        == pf.parse(WINDOWS).op().specialize(N=9, K=2, S=1, P=0).graph.tensor("y").shape
    )
    assert str(operator.specialize().graph).startswith("graph windows(N)")


# --- calls ----------------------------------------------------------------------------------------------


def test_calls_take_size_expressions() -> None:
    text = (
        WINDOWS
        + """
op f[K: size](x: f32[N]) -> (y: f32[N // (2*K)], z: f32[N // 2]) where K >= 1, N >= 2*K {
  y = windows(x, K=2*K)
  z = windows(x)
}
"""
    )
    x = np.arange(13, dtype=np.float32)
    text = text.replace("y: f32[N // (2*K)]", "y: f32[(N - 2*K) // (2*K) + 1]")
    y, z = pf.compile(text, "f", target="interpret")(x, K=3)  # type: ignore[misc]
    np.testing.assert_array_equal(y, expected(x, 6, 6, 0))
    np.testing.assert_array_equal(z, expected(x, 2, 2, 0))


def test_a_constraint_gives_a_size_in_a_call() -> None:
    text = """op g[G: size](x: f32[C]) -> (y: f32[K]) where C == G*K { y[k] = sum[i in 0..G](x[i*K + k]) }
op f(x: f32[12]) -> (y: f32[4]) { y = g(x, G=3) }
"""
    x = np.arange(12, dtype=np.float32)
    np.testing.assert_array_equal(pf.compile(text, target="interpret")(x), x.reshape(3, 4).sum(0))


G = "op g[K: size](x: f32[N], w: f32[K]) -> (y: f32[N]) { y[i] = x[i] + w[0] if K >= 1 else x[i] }\n"
H = "op h[K: size](x: f32[N]) -> (y: f32[N + K]) { y[i] = 0.0 }\n"
CALLS = [
    (
        G + "op f(x: f32[N], w: f32[3]) -> (y: f32[N]) { y = g(x, w, K=4) }",
        "PF206",
        54,
        "must be 4; K=4 says so",
    ),
    (H + "op f(x: f32[N]) -> (y: f32[N]) { y = h(x) }", "PF219", 38, "give it: h(..., K=...)"),
    (H + "op f(x: f32[N]) -> (y: f32[N]) { y = h(x, k=2) }", "PF203", 45, "it takes x, K"),
    (H + "op f(x: f32[N]) -> (y: f32[N]) { y = h(x, N=2) }", "PF203", 45, "op h[N: size](...)"),
    (H + "op f(x: f32[N]) -> (y: f32[N]) { y = h(x, K=2, K=3) }", "PF203", 50, "given twice"),
    (
        H + "op f(x: f32[N], n: i64) -> (y: f32[N]) { y = h(x, K=n) }",
        "PF201",
        53,
        "unknown size 'n' in the size 'K'",
    ),
    (H + "op f(x: f32[N]) -> (y: f32[N]) { y = h(x, K=2.0) }", "PF220", 45, "cannot stand in the size 'K'"),
    (H + "op f(x: f32[N]) -> (y: f32[N]) { y = h(x, K=1-2) }", "PF243", 45, "cannot be -1"),
]


@pytest.mark.parametrize(("text", "code", "column", "words"), CALLS)
def test_errors_of_calls(text: str, code: str, column: int, words: str) -> None:
    (found,) = errors(text)
    assert found.span is not None
    assert (found.code, found.span.line, found.span.column) == (code, 2, column)
    assert words in found.render()


def test_a_size_that_may_be_negative_is_checked_by_calls() -> None:
    f = pf.compile(H + "op f(x: f32[N]) -> (y: f32[2*N - 3]) { y = h(x, K=N-3) }", target="interpret")
    assert np.shape(f(np.zeros(5, np.float32))) == (7,)
    with pytest.raises(ArgumentError, match="PF407"):
        f(np.zeros(2, np.float32))


# --- proofs ---------------------------------------------------------------------------------------------


def test_a_proof_waits_for_the_size() -> None:
    text = "op f[S: size](x: f32[N]) -> (y: f32[N // S]) where S >= 1 { y[i] = x[i*S + 1] }"
    f = pf.compile(text, target="interpret")
    np.testing.assert_array_equal(f(np.arange(6, dtype=np.float32), S=2), [1, 3, 5])
    with pytest.raises(pf.DslError, match="PF350"):
        f(np.arange(6, dtype=np.float32), S=1)
    pieces = "op f[S: size](x: f32[N]) -> (y: f32[N]) {\n  y[i] = 1.0 for i in 0..N//S*S\n"
    pieces += "  y[i] = 2.0 for i in S..N\n}"
    f = pf.compile(pieces, target="interpret")
    np.testing.assert_array_equal(f(np.zeros(7, np.float32), S=6), [1.0] * 6 + [2.0])
    with pytest.raises(pf.DslError, match="PF352"):
        f(np.zeros(7, np.float32), S=2)


def test_one_size_is_not_taken_for_another() -> None:
    """`(H - K)//S + 1` of the callee at K = S = 2 is the caller's `H // 2`."""
    assert not errors(WINDOWS + "op f(x: f32[H]) -> (y: f32[H // 2]) { y = windows(x) }")
    (found,) = errors(WINDOWS + "op f(x: f32[H]) -> (y: f32[H // 2]) { y = windows(x, K=3, S=2) }")
    assert found.code == "PF206"
