"""CUDA kernels in the emulator: every standard operator, no race, the numbers of the reference."""

from __future__ import annotations

import numpy as np
import pytest
from stdlib_cases import CASES, StdlibCase
from targets import Call, check_emulated
from test_stdlib_targets import chosen, groups


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


@pytest.mark.slow
@pytest.mark.parametrize("cases", groups(CASES), ids=lambda g: f"{g[0]}..")
def test_all_cases_agree_with_the_reference(cases: list[StdlibCase]) -> None:
    check_emulated(calls(cases), fused=(True, False))
