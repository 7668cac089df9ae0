"""The ablation: every case of it compiles at every level, and its figures hang together."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from thinned import thinned

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the benchmarks are not part of the package

from benchmarks.ablate import LEVELS, PAGE, Case, Figures, cases, page

SMALLEST = {"V": 50, "E": 40, "T": 12, "C": 40, "N": 4, "H": 16}


def shrunk(case: Case) -> Case:
    """Sizes that compile as the large ones do, and run at once."""
    return replace(case, sizes={n: min(v, SMALLEST.get(n, 8)) for n, v in case.sizes.items()})


@pytest.mark.parametrize("case", thinned(cases(), 2), ids=lambda c: c.title)
def test_layers_move_no_more_and_launch_no_more(case: Case) -> None:
    for target in ("cpu", "cuda"):
        found = [shrunk(case).kernels(layers, target) for layers in LEVELS]
        launches = [k.launches for k in found]
        assert launches == sorted(launches, reverse=True)
        moved = [k.estimate() for k in found]
        assert all(e.seconds > 0 and e.read > 0 and e.written > 0 for e in moved)
        assert moved[2].read <= moved[0].read and moved[2].written <= moved[0].written


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.title)
def test_layer_two_stitches_reductions_on_a_cpu_or_says_why_not(case: Case) -> None:
    if not any(s.reduction for s in case.specialized.graph.statements):
        return
    lines = case.kernels(LEVELS[-1], "cpu").explain().splitlines()
    found = [x for x in lines if x.startswith(("+ stitch ", "- stitch "))]
    assert found and all(": " in x for x in found)
    assert any(x.startswith("+") and "it saves" in x for x in found) or all(x.startswith("-") for x in found)


def test_inputs_are_in_range() -> None:
    for case in map(shrunk, cases()):
        specialized = case.specialized.graph
        given = [n for n in specialized.inputs if specialized.tensor(n).default is None]
        for name, array in zip(given, case.inputs(), strict=True):
            if name in case.indices:
                assert array.min() >= 0 and array.max() < case.sizes[case.indices[name]]


def test_the_page() -> None:
    one = Figures(3, 4e6, {"H200": 8.0, "V100": 20.0}, 2, 90.0, 100.0, 90.0, 110.0)
    two = replace(one, launches=1, cpu_us=50.0)
    about = {"cpu": "a CPU", "date": "2026-01-01T00", "rounds": 31, "load": (0.1, 0.2)}
    text = page({"a case": [one, one, two]}, about)
    assert "| a case | 3 / 3 / 1 | 4 / 4 / 4 | 8 / 8 / 8 | 20 / 20 / 20 |" in text
    assert "layer II on top of it 2.00" in text
    titles = [c.title for c in cases()]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.read_text().splitlines()]
    assert [r for r in rows if r in titles] == titles
