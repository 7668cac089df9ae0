"""`cost="learned"`: the variant that a learned model names, and which ones are measured because of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from test_tuner import NORM, FakeTimer, compilation, quick, without_compiler  # noqa: F401

import polyfuse as pf
from polyfuse.driver.pipeline import Compilation
from polyfuse.learn.features import KERNEL_FEATURES, KernelGraph
from polyfuse.learn.model import Array
from polyfuse.options import Options
from polyfuse.tuning import judges, tuner
from polyfuse.tuning.table import Variant

FEW = ("128 bytes of accumulators", "1 chunk a thread", "32 chunks a thread")


@dataclass
class Told:
    """A model that likes accumulators or chunks of one number: how long each member says that it takes, where
    others take 100 us."""

    feature: str = "accumulator bytes"
    value: float = 128.0
    seconds_of_it: tuple[float, ...] = (50e-6,)
    better: bool = True
    about: dict[str, object] = field(default_factory=dict)
    asked: int = 0

    def wins(self, vector_bytes: int, threads: int) -> bool:
        return self.better

    def each(self, plans: Sequence[Sequence[KernelGraph]]) -> Array:
        self.asked += len(plans)
        column = KERNEL_FEATURES.index(self.feature)
        liked = [any(np.isclose(2 ** g.kernel[column] - 1, self.value) for g in plan) for plan in plans]
        return np.where(liked, np.array(self.seconds_of_it)[:, None], 100e-6)


def shipped(monkeypatch: pytest.MonkeyPatch, model: Told | None) -> None:
    monkeypatch.setattr(judges, "shipped", lambda kind: model)


def base(**fields: object) -> Compilation:
    own = compilation()
    return replace(own, options=replace(own.options, **fields))


@pytest.mark.usefixtures("without_compiler")
def test_the_model_names_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Told()
    shipped(monkeypatch, model)
    found = tuner.ranked(base(cost="learned"))
    assert found.chosen == Variant((FEW[0],)) and found.judge == "learned" and found.timed == ()
    assert found.note == "the learned model: 50.0 us instead of 100.0 us"
    assert "learned us" in str(found) and f"* {FEW[0]}" in str(found)
    asked = model.asked
    assert tuner.ranked(base(cost="learned")) == found and model.asked == asked, "it is kept"


@pytest.mark.usefixtures("without_compiler")
def test_little_is_no_reason_to_leave_what_the_passes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped(monkeypatch, Told(seconds_of_it=(95e-6,)))
    found = tuner.ranked(base(cost="learned"))
    assert found.chosen == Variant() and found.note == "the learned model: 100.0 us"


@pytest.mark.usefixtures("without_compiler")
def test_members_that_disagree_leave_what_the_passes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean says 40 % less, and one of three networks says 1 % more."""
    shipped(monkeypatch, Told(seconds_of_it=(45e-6, 50e-6, 101e-6)))
    assert tuner.ranked(base(cost="learned")).chosen == Variant()
    shipped(monkeypatch, Told(seconds_of_it=(45e-6, 50e-6, 80e-6)))
    assert tuner.ranked(base(cost="learned", threads=1)).chosen == Variant((FEW[0],))


def test_no_model_of_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped(monkeypatch, None)
    assert tuner.ranked(base(cost="learned")).note == "no learned model for cpu"
    shipped(monkeypatch, Told())
    text = pf.compile(NORM, target="interpret", cost="learned", verify=False, dump=None, progress=False)
    x, g = np.ones((4, 8), np.float32), np.ones(8, np.float32)
    text(x, g)
    assert "no learned model for interpret" in str(text.explain(x, g))


@pytest.mark.parametrize(
    ("cost", "wins", "learned"),
    [
        ("projected", True, False),
        ("auto", True, True),
        ("auto", False, False),
        ("learned", False, True),
    ],
)
@pytest.mark.usefixtures("without_compiler")
def test_which_model_says_what_is_measured(
    monkeypatch: pytest.MonkeyPatch, cost: str, wins: bool, learned: bool
) -> None:
    model = Told("chunks", 1.0, better=wins)
    shipped(monkeypatch, model)
    monkeypatch.setattr(tuner, "MOST", 2)
    own = base(tune="measure", cost=cost)
    found = tuner.tuned(own, FakeTimer(own, {}))
    assert found.judge == ("learned" if learned else "projected") and (model.asked > 0) == learned
    measured = {str(r.variant) for r in found.timed}
    assert len(measured) == 2 and (FEW[1] in measured or not learned)


def test_choices_of_other_models_are_other_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    keys = set()
    for model in (None, Told(), Told(about={"date": "later"})):
        shipped(monkeypatch, model)
        keys |= {
            tuner.tuning_key(base(cost=c, tune=t)) for c in ("auto", "learned") for t in ("model", "measure")
        }
    assert len(keys) == 6


@pytest.mark.machine("zen5")
@pytest.mark.usefixtures("without_compiler")
def test_its_choice_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it names is compiled, and `explain` tells why."""
    shipped(monkeypatch, Told())
    options = Options(cost="learned", threads=2, verify=False, dump=None, progress=False)
    f = pf.compile(NORM, target="cpu", options=options)
    random = np.random.default_rng(0)
    x, g = random.standard_normal((37, 301), np.float32), random.standard_normal(301, np.float32)
    usual = pf.compile(NORM, target="cpu", threads=2, verify=False, dump=None)(x, g)
    np.testing.assert_allclose(f(x, g), usual, rtol=2e-4, atol=2e-5)
    told = str(f.explain(x, g))
    assert "128 bytes of accumulators" in told and "the learned model: 50.0 us instead of 100.0 us" in told


def test_the_option() -> None:
    assert not Options().chooses and Options(cost="learned").chooses and Options(tune="measure").chooses
    with pytest.raises(pf.ArgumentError, match="PF490"):
        Options(cost="best")  # type: ignore[arg-type]
