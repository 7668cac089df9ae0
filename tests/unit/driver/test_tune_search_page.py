"""The benchmark of the search: its spaces, and the table that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import tune_search
from benchmarks.tune_search import PROGRAMS, Results, base_of, page, plans
from polyfuse.tuning.table import Variant


def found(default: float, likely: float, search: float) -> dict[str, Any]:
    """What was measured of one program whose best plan takes 100 us."""
    times = {"default": default, "by model": likely, "search": search, "best": 100e-6}
    return {
        "search": {"asked": 40, "measured": 20, "model": "learned"},
        "times": {**times, "space": 72, "search plan": "no packs"},
    }


def test_the_table_has_losses_and_their_means() -> None:
    first, second = list(PROGRAMS)[:2]
    about = {"cpu": "a CPU", "date": "2026-11-28T00:00:00"}
    programs = {first: found(110e-6, 120e-6, 101e-6), second: found(100e-6, 100e-6, 99e-6)}
    text = page(Results(Path("nowhere"), {"about": about, "programs": programs}))
    assert "| 72 | 110.0 | 100.0 | 101.0 | 10.0% | 20.0% | 1.0% | no packs |" in text
    assert "the default loses 5.0%" in text
    assert "first choice 10.0%, and the search 0.0% (1.0% at worst; 2 of 2" in text
    assert "1.05 times as fast" in text and "asked about 40 to 40 plans" in text


@pytest.mark.parametrize("name", ["stdlib:softmax", "rms_swiglu"])
def test_a_space_has_plans_variants_and_both(name: str) -> None:
    space = list(dict.fromkeys(plans(base_of(name))))
    assert space[0] == Variant() and len(space) > tune_search.MOST
    parts = {len(v.changes) + (v.cut is not None) for v in space}
    assert parts >= {0, 1, 2} and any(v.cut for v in space)
    assert [*plans(base_of(name))] == [*plans(base_of(name))]
