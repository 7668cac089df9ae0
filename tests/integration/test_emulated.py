"""CUDA kernels in the emulator: every standard operator, no race, the numbers of the reference."""

from __future__ import annotations

import numpy as np
import pytest
from stdlib_cases import CASES, StdlibCase
from targets import DEVICES, Call, check_emulated
from test_stdlib_targets import groups, on_devices
from thinned import thinned

import polyfuse as pf
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.layers.graph.one_pass.online import online_forms


def calls(cases: list[StdlibCase]) -> list[Call]:
    found = []
    for case in cases:
        graph = case.graph()
        inputs = {n: np.asarray(a) for n, a in case.inputs.items()}
        found.append(Call(str(case), "", graph, case.sizes(graph), inputs))
    return found


@pytest.mark.parametrize("cases", thinned(groups(on_devices()), 4), ids=lambda g: f"{g[0].op}..{g[-1].op}")
def test_operators_agree_with_the_reference(cases: list[StdlibCase]) -> None:
    check_emulated(calls(cases))


@pytest.mark.parametrize(
    "cases", thinned(groups(on_devices())[::2], 6), ids=lambda g: f"{g[0].op}..{g[-1].op}"
)
def test_unfused_operators_agree_with_the_reference(cases: list[StdlibCase]) -> None:
    check_emulated(calls(cases), fused=(False,), devices=("usual",), orders=("random",))


# A row of which isl prints the last element by itself: the thread of the element must compute it, as it keeps
# it in a register for the second pass over the row; and rows of one element.
APART = """op p(x: f32[A, C]) -> (t: f32[A, C], best: i64[A], y: f32[A, C]) {
  t[i, j] = x[i, j] + 0.5 * (t[i - 1, j + 1] if i >= 1 and j < C - 1 else 0.0) for i in 0..A, j in 0..C
  best[i] = argmax[j](x[i, j])
  e[i, j] = exp(x[i, j])
  s[i] = sum[j](e[i, j])
  y[i, j] = e[i, j] / s[i] if j < C - 1 else e[i, j]
}"""


@pytest.mark.parametrize("columns", thinned((1, 2, 33, 17, 70), 4))
def test_elements_apart_from_their_rows(columns: int) -> None:
    x = np.random.default_rng(columns).standard_normal((5, columns), np.float32)
    graph = instantiate(parse_text(APART), "p")
    call = Call("apart", APART, graph, {"A": 5, "C": columns}, {"x": x})
    check_emulated([call], fused=(True, False), stitched=(False, True))


# Sums of one term each, whose element and term isl knows to be the same: a thread adds to its own element.
ALONE = """op p(x: f32[R, C], g: f32[C]) -> (y1: i64[R], y2: f32[R, C], y3: f32[R, C]) where C >= 1 {
  u[r, c] = tanh(x[r, c])
  y1[r] = argmax[c](x[r, c])
  m2[r] = max[c](u[r, c])
  e2[r, c] = exp(u[r, c] - m2[r])
  y2[r, c] = e2[r, c] / sum[k](e2[r, k])
  m3[r] = sum[c](u[r, c]) / C
  v3[r] = sum[c]((u[r, c] - m3[r]) ** 2) / C
  y3[r, c] = (u[r, c] - m3[r]) * rsqrt(v3[r] + 0.01) * g[c]
}"""


@pytest.mark.parametrize("columns", [2, 33])
def test_parts_of_one_element(columns: int) -> None:
    rng = np.random.default_rng(columns)
    inputs = {
        "x": rng.standard_normal((5, columns), np.float32),
        "g": rng.standard_normal(columns, np.float32),
    }
    fixed = fixed_graph(instantiate(parse_text(ALONE), "p"), {"R": 5, "C": columns})
    parts = online_forms(fixed, DEVICES["narrow"], [], wanted=True, chunk=1)
    assert any(t.name.endswith("__part") for t in parts.tensors)
    check_emulated([Call("alone", ALONE, parts, {}, inputs)], devices=("narrow", "odd"), stitched=(True,))


# One memory has two names, p and p__out: vectors are read by the one, the plan speaks of the other.
NAMES = """op p(inout p: f32[N, M], inout q: f32[N], g: f32[N, M]) -> (o: f32[N, M]) where M >= 1 {
  rs[i] = sum[j](old(p[i, j]))
  cs[j] = sum[i](old(p[i, j])) for j in 0..M
  p[i, j] = g[i, j] for i in 0..N, j in 0..M-1
  q[i] = q[i] + old(p[i, 0])
  o[i, j] = old(p[i, j]) + old(q[i]) + rs[i] - cs[j]
}"""


def test_vectors_of_memory_with_two_names() -> None:
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(s, np.float32) for n, s in (("p", (17, 1)), ("q", 17), ("g", (17, 1)))}
    call = Call("names", NAMES, instantiate(parse_text(NAMES), "p"), {"N": 17, "M": 1}, inputs)
    check_emulated([call], devices=("odd",), stitched=(True,), barriers=None)


# Kernels without a block, side by side in one stage of a launch.
EMPTY = """op p(x: f32[R, B, C]) -> (best: i64[R, B], least: f32[R, B], all: f32) where C >= 1 {
  best[r, b] = argmax[c](x[r, b, c])
  least[r, b] = min[c](x[r, b, c]) * 2.0
  all = sum[r, b, c](abs(x[r, b, c]))
}"""


def test_no_rows() -> None:
    best, least, total = pf.compile(EMPTY, target="emulate")(np.zeros((0, 2, 1), np.float32))
    assert best.shape == least.shape == (0, 2)
    assert total == 0


# isl prints the sums of the first row and of the others by themselves, each with a total of its own.
COPIES = """op p(x: f32[C, H, W]) -> (y: f32[C, H, W]) {
  t[c, p, q] = sum[r in 1..p+1](x[c, p - r, q]) for c in 0..C, p in 0..H, q in 0..W
  y[c, p, q] = max(t[c, p, q], 0.0) for c in 0..C, p in 0..H, q in 0..W
}"""


def test_copies_of_a_loop_have_one_total() -> None:
    x = np.random.default_rng(0).standard_normal((2, 2, 3), np.float32)
    call = Call("copies", COPIES, instantiate(parse_text(COPIES), "p"), {"C": 2, "H": 2, "W": 3}, {"x": x})
    check_emulated([call], fused=(True, False), stitched=(False, True))


# Loops of one name: over rows of an image, and over the elements of a vector.
SAME = """op p(x: f32[B, H, W, C]) -> (y: f32[B, H, W, C]) {
  t[b, p, q, c] = sum[r in 0..min(3, p + 1), s in 0..min(2, q + 1)](x[b, p - r, q - s, c])
      for b in 0..B, p in 0..H, q in 0..W, c in 0..C
  y[b, p, q, c] = t[b, p, q, c] - (t[b, p - 1, q, c] if p >= 1 else 1.0)
      for b in 0..B, p in 0..H, q in 0..W, c in 0..C
}"""


def test_loops_of_one_name_have_the_ranges_of_all() -> None:
    x = np.random.default_rng(0).standard_normal((2, 7, 3, 64), np.float32)
    sizes = {"B": 2, "H": 7, "W": 3, "C": 64}
    call = Call("same", SAME, instantiate(parse_text(SAME), "p"), sizes, {"x": x}, scheduler="isl")
    check_emulated([call], devices=("odd",), stitched=(True,))


def test_values_of_indices_that_need_64_bits() -> None:
    """Threads have numbers of 32 bits, and these are factors."""
    f = pf.compile("op f(x: f32[N]) -> (y: f32[N]) { y[n] = x[n] * f32(n * 4194304) }", target="emulate")
    np.testing.assert_array_equal(f(np.ones(1000, np.float32)), 4194304.0 * np.arange(1000))


@pytest.mark.slow
@pytest.mark.parametrize("cases", groups(CASES), ids=lambda g: f"{g[0]}..")
def test_all_cases_agree_with_the_reference(cases: list[StdlibCase]) -> None:
    check_emulated(calls(cases), fused=(True, False))
