"""Choices of the learned model beside the default: which variant is named, and what a table says of times."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from timed_samples import graph

from benchmarks import learn_speed
from polyfuse.learn.making import Maker
from polyfuse.learn.samples import VARIANTS, Sample, collected
from polyfuse.tuning.table import Variant


@dataclass
class Told:
    """A model that says what it was told, variant by variant."""

    times: tuple[float, ...]
    joined: float = 1.0

    def each(self, plans: Any) -> np.ndarray[Any, Any]:
        return np.full((1, len(plans)), self.joined)


def ways(path: Path, *changes: str) -> Path:
    """A file of the default and of variants with one change each."""
    random = np.random.default_rng(0)
    variants = [Variant(), *(Variant((c,)) for c in changes)]
    samples = [
        Sample("p", "operator", VARIANTS, str(v), v.is_model, math.nan, 0, 0, (graph(random),))
        for v in variants
    ]
    collected(samples, {"variants": [v.as_json() for v in variants]}).save(path / "p.ways")
    return path / "p.ways"


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ((1.0, 0.95, 1.2), Variant()),  # not surely faster
        ((1.0, 0.5, 1.2), Variant(("plain stores",))),
        ((1.0, 1.1, 0.3), Variant(("1 thread",))),
    ],
)
def test_a_variant_that_is_surely_faster_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times: tuple[float, ...], chosen: Variant
) -> None:
    monkeypatch.setattr(
        learn_speed, "predicted_by_each", lambda model, samples, which: np.array([model.times])
    )
    file = ways(tmp_path, "plain stores", "1 thread")
    model: Any = Told(times)
    base: Any = None  # nothing is compiled where a single variant is likely
    assert learn_speed.choice(Maker(tmp_path), base, model, file) == chosen


def test_a_table_has_the_mean_and_the_worst() -> None:
    found = learn_speed.summary({"operator/a": 1.0, "operator/b": 2.0, "operator/c": 0.5, "operator/d": 0.98})
    assert (found["cases"], found["other"], found["slower"]) == (4, 3, 1)
    assert (found["worst"], found["name"]) == (0.5, "operator/c")
    np.testing.assert_allclose(found["mean"], 0.98**0.25)
    assert "| operators | 4 | 3 | 0.995 | 1 | 0.50 (c) |" in learn_speed.table({"operators": found})


def test_cases_are_workloads_other_shapes_and_operators() -> None:
    names = [p.name for p in learn_speed.programs()]
    assert len(names) == len({*names})
    assert {n.partition("/")[0] for n in names} == {*learn_speed.FAMILIES}
