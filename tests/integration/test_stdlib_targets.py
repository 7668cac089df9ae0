"""Every operator of the standard library on every target, fused and unfused.

The Agreement rule is against the reference evaluator, which `test_stdlib.py` compares with NumPy and SciPy
on the same cases.
"""

from __future__ import annotations

import numpy as np
import pytest
from stdlib_cases import CASES, StdlibCase
from targets import Call, check_everywhere
from thinned import thinned

TOGETHER = 12


def chosen() -> list[StdlibCase]:
    """For every operator one case of each dtype it has cases for."""
    found: dict[tuple[str, str], StdlibCase] = {}
    for case in CASES:
        found.setdefault((case.op, case.dtype), case)
    return list(found.values())


def on_devices(usual: bool = True) -> list[StdlibCase]:
    """Of the chosen those that a usual run compiles for GPUs: f32, and of every third operator the other
    dtypes. Or else the rest."""
    places = {op: k for k, op in enumerate(dict.fromkeys(case.op for case in CASES))}
    return [c for c in chosen() if usual == (c.dtype == "f32" or places[c.op] % 3 == 0)]


def groups(cases: list[StdlibCase]) -> list[list[StdlibCase]]:
    return [cases[k : k + TOGETHER] for k in range(0, len(cases), TOGETHER)]


def check(cases: list[StdlibCase]) -> None:
    calls = []
    for case in cases:
        graph = case.graph()
        inputs = {n: np.asarray(a) for n, a in case.inputs.items()}
        calls.append(Call(str(case), "", graph, case.sizes(graph), inputs))
    check_everywhere(calls)


# All of them run for a CPU in `test_stdlib.py`, every twentieth group on all targets in a usual run.
@pytest.mark.parametrize("cases", thinned(groups(chosen())[::-1], 20), ids=lambda g: f"{g[0].op}..{g[-1].op}")
def test_operators_agree_with_the_reference(cases: list[StdlibCase]) -> None:
    check(cases)


@pytest.mark.slow
@pytest.mark.parametrize("cases", groups(CASES), ids=lambda g: f"{g[0]}..")
def test_all_cases_agree_with_the_reference(cases: list[StdlibCase]) -> None:
    check(cases)
