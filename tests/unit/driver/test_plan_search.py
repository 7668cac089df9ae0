"""The search among plans: walks, batches on the hardware, and what is taken in the end."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest
from test_cuts import TEXT, graph_of

import polyfuse as pf
from polyfuse.cost.cpu_device import table_cpu
from polyfuse.cost.projection import table_rates
from polyfuse.driver.pipeline import Compilation, compilation
from polyfuse.layers.clustering.clusters import cuts_of
from polyfuse.options import Options
from polyfuse.tuning import candidates, search
from polyfuse.tuning.judges import Prediction
from polyfuse.tuning.search import Tuned, Wanted
from polyfuse.tuning.space import Space, Walk, annealed, drawn, having
from polyfuse.tuning.table import PLAN_CHANGES, Variant, choice_in
from polyfuse.tuning.trials import TrialFailed

CHANGES = ("kernels apart", "temporaries stored", "non-temporal stores", "plain stores", "no packs")
PLANTED = Variant(("non-temporal stores", "temporaries stored"), (("m", "e"), ("z__sum", "z", "y")))


def space() -> Space:
    graph = graph_of(TEXT, T=4, H=5)
    return Space(cuts_of(graph), (tuple(s.name for s in graph.statements),), CHANGES)


def distance(plan: Variant) -> int:
    """Steps from the planted plan, about."""
    cut = {frozenset(c) for c in plan.cut or ()} ^ {frozenset(c) for c in PLANTED.cut or ()}
    return len({*plan.changes} ^ {*PLANTED.changes}) + len(cut)


def planted(plan: Variant) -> float:
    return 1e-4 * (1 + distance(plan) / 10)


def so_many(steps: int) -> Iterator[float]:
    return (k / steps for k in range(steps))


def walked(seed: int, steps: int = 600) -> Walk:
    walk = Walk(planted)
    walk.ask(Variant())
    annealed(space(), walk, random.Random(seed), so_many(steps))
    return walk


# --- walks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_annealing_finds_a_planted_plan(seed: int) -> None:
    walk = walked(seed)
    assert walk.best == PLANTED
    assert [*walk.known] == [*walked(seed).known], "the same seed takes the same steps"
    assert [*walk.known] != [*walked(seed + 9).known]


def test_annealing_leaves_a_plan_that_cannot_be_made() -> None:
    walk = Walk(lambda plan: planted(plan) if plan.changes else math.inf)
    walk.ask(Variant())
    annealed(space(), walk, random.Random(0), so_many(200))
    assert walk.best.changes and math.isfinite(walk.known[walk.best])


def test_random_plans_are_what_the_space_has() -> None:
    walk = Walk(planted)
    walk.ask(Variant())
    drawn(space(), walk, random.Random(1), so_many(300))
    assert {n for v in walk.known for n in v.changes} == {*CHANGES}
    assert any(v.cut for v in walk.known) and planted(walk.best) < planted(Variant())
    for v in walk.known:
        assert v.cut is None or space().cuts.checked(v.cut) == v.cut
        assert not {"non-temporal stores", "plain stores"} <= {*v.changes}, "both are of one thing"


def test_what_cannot_be_made_is_never_stayed_at() -> None:
    def seconds(plan: Variant) -> float:
        return math.inf if "kernels apart" in plan.changes else planted(plan)

    walk = Walk(seconds)
    walk.ask(Variant())
    annealed(space(), walk, random.Random(0), so_many(300))
    assert "kernels apart" not in walk.best.changes
    assert all("kernels apart" not in v.changes for v in walk.ranked)


def test_a_walk_without_anything_new_ends() -> None:
    one = graph_of("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1.0 }", N=4)
    small = Space(cuts_of(one), (("y",),), ("plain stores",))
    walk = Walk(planted)
    walk.ask(Variant())
    annealed(small, walk, random.Random(0), so_many(10**9))
    assert len(walk.known) == 2


def test_a_step_leaves_what_changes_the_same() -> None:
    plan = Variant(("non-temporal stores", "no packs"), (("a",),))
    assert having(plan, Variant(("plain stores",))) == Variant(("plain stores", "no packs"), (("a",),))
    assert having(plan, Variant(("clusters by search",))).cut is None
    assert having(Variant(("clusters by search",)), Variant((), (("a",),))) == Variant((), (("a",),))


# --- the whole search ------------------------------------------------------------------------------------


def base(**fields: Any) -> Compilation:
    options = Options(threads=1, verify=False, dump=None, progress=False, **fields)
    layers = {"fusion": pf.LoopFusion(), "stitching": pf.Stitching(), "packing": pf.Packing()}
    graph = pf.parse(TEXT).op().graph()
    return compilation(graph, {"T": 64, "H": 96}, target="cpu", clustering=None, options=options, **layers)


@dataclass
class Machine:
    """A model and a hardware: seconds by plan."""

    predicted: Callable[[Variant], float] = planted
    measured: Callable[[Variant], float | str] = planted
    judge: Any = field(default_factory=lambda: SimpleNamespace(name="fake"))
    by_key: dict[str, Variant] = field(default_factory=dict)
    timed: list[Variant] = field(default_factory=list)

    def __call__(self, made: Compilation, plan: Variant) -> candidates.Candidate:
        self.by_key[made.key] = plan
        code: Any = SimpleNamespace(source=str(plan), plan=plan)
        return candidates.Candidate(plan, made, code, Prediction((self.predicted(plan),)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def begin(self) -> None: ...

    def first(self, key: str, limit_s: float) -> float:
        return self.run(key)

    def run(self, key: str) -> float:
        plan = self.by_key[key]
        self.timed.append(plan)
        value = self.measured(plan)
        if isinstance(value, str):
            raise TrialFailed(value)
        return value


class Clock:
    """The hardware as a timer."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def begin(self) -> None: ...

    def first(self, key: str, limit_s: float) -> float:
        return self.machine.run(key)

    def seconds(self, key: str, calls: int) -> float:
        return self.machine.run(key)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Tuned]:
    """A search on a machine, with steps in place of seconds."""
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(candidates, "compile_shared", lambda source: None)
    monkeypatch.setattr(search, "projected_cpu", lambda _: (table_cpu(1), table_rates(table_cpu(1))))
    monkeypatch.setattr("polyfuse.tuning.tuner.MOST_ROUNDS", 6)

    def run(machine: Machine, **wanted: Any) -> Tuned:
        def predicted(self: Any, plan: Variant) -> Prediction:
            return Prediction((machine.predicted(plan),))

        monkeypatch.setattr(search._Search, "_predicted", predicted)
        monkeypatch.setattr(search, "Maker", lambda *_: machine)
        asked = Wanted(**{"seconds": None, "steps": 200, **wanted})
        return search.search(base(), asked, Clock(machine))

    return run


def likes(*names: str) -> Callable[[Variant], float]:
    """Seconds that fall by a tenth for each of these changes that a plan has."""
    return lambda plan: 1e-4 * 0.9 ** len({*plan.changes} & {*names})


def test_the_fastest_is_found_where_the_model_is_wrong(found: Callable[..., Tuned]) -> None:
    """Times of single changes say more than a model that likes others."""
    machine = Machine(likes("kernels apart"), likes("temporaries stored", "no loop fusion"))
    got = found(machine)
    assert {"temporaries stored", "no loop fusion"} & {*got.plan.changes}
    assert got.speedup > 1.1 and got.tuning.judge == "fake" and not got.interrupted
    assert Variant() in machine.timed and got.default.variant.is_model
    assert got.best.measured == machine.measured(got.plan)


def test_of_plans_that_are_alike_the_simplest_is_taken(found: Callable[..., Tuned]) -> None:
    def measured(plan: Variant) -> float:
        return likes("temporaries stored")(plan) * 0.9999 ** len(plan.changes)

    assert found(Machine(likes("temporaries stored"), measured)).plan.changes == ("temporaries stored",)


def test_noise_changes_nothing(found: Callable[..., Tuned]) -> None:
    dice = random.Random(0)
    got = found(Machine(likes("kernels apart"), lambda plan: 1e-4 * (1 + 0.002 * dice.random())))
    assert got.plan.is_model and got.speedup == 1.0 and len(got.tuning.timed) > 5


def test_what_fails_is_told_and_left_out(found: Callable[..., Tuned]) -> None:
    def crashes(plan: Variant) -> float | str:
        return "it crashed" if "kernels apart" in plan.changes else likes("temporaries stored")(plan)

    got = found(Machine(likes("kernels apart"), crashes))
    assert "temporaries stored" in got.plan.changes and "kernels apart" not in got.plan.changes
    assert any(r.note == "it crashed" for r in got.tuning.rows)


def test_where_the_default_cannot_be_timed_it_stands(found: Callable[..., Tuned]) -> None:
    fast, runs = likes("temporaries stored"), 0

    def at_first(plan: Variant) -> float | str:
        nonlocal runs
        runs += plan.is_model
        return "it did not end" if plan.is_model and runs == 1 else fast(plan)

    assert found(Machine(fast, at_first)).plan.changes == ("temporaries stored",), "tried once more"
    got = found(Machine(fast, lambda plan: "it crashed"))
    assert got.plan.is_model and not got.tuning.timed and got.tuning.note == "not measured: it crashed"


def test_without_a_measurement_the_model_decides(found: Callable[..., Tuned]) -> None:
    machine = Machine(likes("temporaries stored", "no packs"))
    got = found(machine, measure=False)
    assert {"temporaries stored", "no packs"} <= {*got.plan.changes} and machine.timed == []
    assert got.tuning.note == "the fake model decides" and found(machine, measure=False).plan == got.plan
    assert found(Machine(lambda plan: 1e-4), measure=False).plan.is_model


def test_without_a_measurement_all_members_have_to_agree(
    found: Callable[..., Tuned], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean likes three changes, both members only two of them."""
    one, other = (
        likes("temporaries stored", "no packs"),
        likes("temporaries stored", "no packs", "no loop fusion"),
    )

    def predicted(self: Any, plan: Variant) -> Prediction:
        liked = "no loop fusion" in plan.changes
        return Prediction((one(plan) * (1.5 if liked else 1.0), other(plan) * (0.1 if liked else 1.0)))

    found(Machine(), measure=False)  # nothing is compiled from here on
    monkeypatch.setattr(search._Search, "_predicted", predicted)
    made = search.search(base(), Wanted(seconds=None, steps=200, measure=False), None)
    assert {"temporaries stored", "no packs"} <= {
        *made.plan.changes
    } and "no loop fusion" not in made.plan.changes


def test_an_interrupt_keeps_the_best_so_far(found: Callable[..., Tuned]) -> None:
    calls = 0

    def interrupted(plan: Variant) -> float:
        nonlocal calls
        calls += 1
        if calls > 150:
            raise KeyboardInterrupt
        return likes("temporaries stored")(plan)

    got = found(Machine(likes("temporaries stored"), interrupted))
    assert got.interrupted and "temporaries stored" in got.plan.changes and got.tuning.timed

    def early(plan: Variant) -> float:
        if len(plan.changes) > 1:
            raise KeyboardInterrupt
        return likes("temporaries stored")(plan) ** 2

    got = found(Machine(early))
    assert got.interrupted and got.plan.changes == ("temporaries stored",) and not got.tuning.timed


def test_the_table_and_the_file(found: Callable[..., Tuned], tmp_path: Path) -> None:
    got = found(Machine(likes("temporaries stored"), likes("temporaries stored")))
    assert "times as fast" in str(got) and "fake us" in str(got) and "* " in str(got)
    assert "<td>" in got._repr_html_() and got.table[0] == got.default
    file = got.save(tmp_path / "plan.json")
    assert choice_in(file, got.tuning.problem) == got.plan


def test_a_plan_of_the_search_has_the_code_that_was_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What `tune` finds, `compile(plan=...)` makes."""
    monkeypatch.setattr(search, "projected_cpu", lambda _: (table_cpu(1), table_rates(table_cpu(1))))
    liked: dict[str, str] = {}

    def predict(self: candidates.Maker, made: Compilation) -> Prediction:
        code = candidates.emitted(self._watch, made)[1]
        liked[made.key] = code.source
        return Prediction((1e-4 if "k1_" in code.source else 2e-4,))

    monkeypatch.setattr(candidates.Maker, "predict", predict)
    text = TEXT.replace("op f", "op g")
    more = {"threads": 1, "verify": False, "dump": None, "progress": False}
    got = pf.tune(text, sizes={"T": 64, "H": 96}, budget=None, steps=24, measure=False, **more)
    assert not got.plan.is_model
    file = got.save(tmp_path / "plan.json")
    f = pf.compile(text, target="cpu", plan=file, **more)
    x = np.random.default_rng(0).standard_normal((64, 96)).astype("f4")
    assert f.built(x).code.source in liked.values() and "k1_" in f.built(x).code.source
    usual = pf.compile(text, target="cpu", **more)
    for a, b in zip(f(x), usual(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"search": "best"}, "PF490"),
        ({"budget": 0}, "PF490"),
        ({"steps": 0.5}, "PF490"),
        ({"target": "emulate"}, "PF414"),
        ({"sizes": {"T": 4}}, "PF513"),
        ({"sizes": {"T": 4, "H": 4, "K": 4}}, "PF412"),
    ],
)
def test_what_cannot_be_searched_is_refused(more: dict[str, Any], code: str) -> None:
    with pytest.raises(pf.PolyfuseError) as refused:
        pf.tune(TEXT, **{"sizes": {"T": 4, "H": 4}, "verify": False, "dump": None, **more})
    assert refused.value.code == code and refused.value.diagnostics[0].hint


def test_plans_of_fusion_are_proposed_where_they_are_asked_for() -> None:
    made = base()
    choices, graph = candidates.choices_of(made), graph_of(TEXT, T=64, H=96)
    few = {str(v) for v in candidates.proposals(graph, choices, table_cpu(1))}
    more = {str(v) for v in candidates.proposals(graph, choices, table_cpu(1), True)}
    assert few < more and more - few <= {*PLAN_CHANGES}
    assert "clusters of at most 10" not in more, "the graph has fewer statements"
    alone = replace(choices, packing=None)
    assert "no packs" not in {str(v) for v in candidates.proposals(graph, alone, table_cpu(1), True)}
