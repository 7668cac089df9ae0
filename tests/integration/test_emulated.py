"""CUDA kernels in the emulator: every standard operator, no race, the numbers of the reference."""

from __future__ import annotations

import numpy as np
import pytest
from stdlib_cases import CASES, StdlibCase
from targets import Call, check_emulated
from test_stdlib_targets import chosen, groups

from polyfuse.frontend_dsl.build_graph import instantiate
from polyfuse.frontend_dsl.parse import parse_text


def calls(cases: list[StdlibCase]) -> list[Call]:
    found = []
    for case in cases:
        graph = case.graph()
        inputs = {n: np.asarray(a) for n, a in case.inputs.items()}
        found.append(Call(str(case), "", graph, case.sizes(graph), inputs))
    return found


@pytest.mark.parametrize("cases", groups(chosen()), ids=lambda g: f"{g[0].op}..{g[-1].op}")
def test_operators_agree_with_the_reference(cases: list[StdlibCase]) -> None:
    check_emulated(calls(cases))


@pytest.mark.parametrize("cases", groups(chosen())[::3], ids=lambda g: f"{g[0].op}..{g[-1].op}")
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


@pytest.mark.parametrize("columns", [1, 2, 17, 33, 70])
def test_elements_apart_from_their_rows(columns: int) -> None:
    x = np.random.default_rng(columns).standard_normal((5, columns), np.float32)
    graph = instantiate(parse_text(APART), "p")
    call = Call("apart", APART, graph, {"A": 5, "C": columns}, {"x": x})
    check_emulated([call], fused=(True, False), stitched=(False, True))


@pytest.mark.slow
@pytest.mark.parametrize("cases", groups(CASES), ids=lambda g: f"{g[0]}..")
def test_all_cases_agree_with_the_reference(cases: list[StdlibCase]) -> None:
    check_emulated(calls(cases), fused=(True, False))
