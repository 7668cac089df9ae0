"""`tune="measure"` on a GPU: which plans are made, that they compute the same, what a trial does on the
device, and choices that are kept in a file. A driver stands in that has the emulator run what is launched."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_stand_ins
import numpy as np
import pytest
from gpu_stand_ins import EmulatingDriver
from test_tuner import FakeTimer, child_of

import polyfuse as pf
from polyfuse.diagnostics import DeviceError
from polyfuse.driver.pipeline import Compilation, fixed_graph
from polyfuse.driver.targets import knobs_for
from polyfuse.ir.target import GpuTarget
from polyfuse.options import Options
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate
from polyfuse.tuning import gpu_candidates, tuner
from polyfuse.tuning.candidates import LATE, choices_of, compilation_of
from polyfuse.tuning.gpu_candidates import Makers, made, plans
from polyfuse.tuning.gpu_trial import GpuTrials
from polyfuse.tuning.table import GPU_CHANGES, Row, Tuning, Variant, choice_in, keep_choices
from polyfuse.tuning.trial import recipes
from polyfuse.tuning.trials import GpuTimer, TrialFailed

NORM = """op norm(x: f32[T, H], g: f32[H]) -> (y: f32[T, H], s: f32[H]) {
  m[t] = mean[h](x[t, h])
  v[t] = mean[h]((x[t, h] - m[t]) ** 2)
  y[t, h] = (x[t, h] - m[t]) * rsqrt(v[t] + 1e-5) * g[h]
  s[h] = sum[t](y[t, h])
}"""
UPDATE = "op update(inout p: f32[N], g: f32[N], lr: f32 = 0.5) { p[n] = p[n] - lr * g[n] }"


def compilation(text: str = NORM, target: str = "cuda", **sizes: int) -> Compilation:
    graph = pf.parse(text).op().graph()
    options = Options(verify=False, dump=None, progress=False)
    layers = {"stitching": pf.Stitching(), "packing": pf.Packing()}
    knobs = knobs_for(target, options)
    known = sizes or {"T": 37, "H": 131}
    return Compilation(graph, known, pf.LoopFusion(), options, target=target, knobs=knobs, **layers)


def variants(base: Compilation) -> list[Variant]:
    return [*plans(fixed_graph(base.graph, base.sizes), choices_of(base))]


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EmulatingDriver:
    """A cache of its own, this process alone, no limits."""
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("POLYFUSE_JOBS", "1")
    monkeypatch.setattr(tuner, "GPU_BUDGET_S", 1e9)
    monkeypatch.setattr(tuner, "MOST_ROUNDS", 4)
    monkeypatch.setattr(tuner, "HOPELESS", 1e9)
    monkeypatch.setattr(tuner, "MOST", 99)
    monkeypatch.setattr(tuner, "_gpu", lambda: [("gpu", "none")])
    return gpu_stand_ins.use(monkeypatch)


# --- plans ------------------------------------------------------------------------------------------------


def test_a_change_is_a_field_of_what_kernels_are_mapped_for() -> None:
    base = compilation()
    own = base.machine
    assert isinstance(own, GpuTarget)
    both = Variant(("16 threads a row",)).joined(Variant(("vectors of 2",)))
    assert both is not None
    changed = compilation_of(base, both)
    assert changed.machine == replace(own, row_threads=16, vector=2)
    assert changed.key != base.key and compilation_of(base, Variant()).key == base.key
    assert Variant(("16 threads a row",)).joined(Variant(("8 threads a row",))) is None


def test_plans_suit_the_graph() -> None:
    names = {str(v) for v in variants(compilation())}
    assert {"as the model has it", "32 threads a row", "kernels apart", "vectors of 4"} <= names
    plain = {str(v) for v in variants(compilation(UPDATE, N=9))}
    assert "kernels apart" not in plain and not any(n.startswith("reductions") for n in plain)


@pytest.mark.parametrize(
    "text, sizes",
    [pytest.param(NORM, {"T": 37, "H": 131}, marks=pytest.mark.slow), (UPDATE, {"N": 1001})],
)
def test_every_plan_computes_what_the_reference_does(text: str, sizes: dict[str, int]) -> None:
    base = compilation(text, **sizes)
    graph = base.graph
    x = {r.name: np.asarray(r.make(k)) for k, r in enumerate(recipes(graph, base.sizes))}
    want = evaluate(fixed_graph(graph, base.sizes), {}, x)
    results = {t.name: t.alias or t.name for t in graph.tensors if t.alias or t.name in graph.outputs}
    trials, forms = prepared(base), set()
    for variant in variants(base):
        found = made(base, variant)
        assert "error" not in found, (str(variant), found)
        if found["form"] in forms:
            continue
        forms.add(found["form"])
        told = trials.do_run(compilation_of(base, variant).key)
        assert "error" not in told, (str(variant), told)
        for name, place in results.items():
            got = trials.placed[place].get().reshape(want[name].value.shape)
            assert agrees(got, want[name], graph.tensor(name).dtype), (str(variant), name)
    assert len(forms) >= 3


# --- makers -----------------------------------------------------------------------------------------------


def test_equal_code_is_one_candidate_and_the_models_plan_comes_first() -> None:
    base = compilation()
    some = variants(base)[::3]
    with Makers(base) as makers:
        found = makers.make(some, time.monotonic() + 1e6)
    assert found.candidates[0].variant == Variant() and not found.notes
    assert len({c.form for c in found.candidates}) == len(found.candidates) < len(some)
    rest = [c.predicted for c in found.candidates[1:]]
    assert rest == sorted(rest)


MAKER = """
import json, os, sys, time
sys.path.insert(0, {root!r})
from polyfuse.support.processes import serve
from polyfuse.tuning.gpu_candidates import GREETING
def answer(line):
    if "apart" in line: os.abort()
    if "stored" in line: time.sleep(60)
    return json.dumps({{"seconds": 1.0, "form": line}})
serve(GREETING, answer)
"""


def test_a_compiler_that_crashes_or_hangs_costs_its_plan_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYFUSE_JOBS", "4")
    script = tmp_path / "maker.py"
    script.write_text(MAKER.format(root=str(Path(pf.__file__).parents[1])))

    def here(base: Compilation, variant: Variant) -> dict[str, Any]:
        time.sleep(0 if not variant.changes else 60)
        return {"seconds": 2.0, "form": "here"}

    def waits(self: Makers, *_: object) -> None:
        time.sleep(2)

    monkeypatch.setattr(gpu_candidates, "made", here)
    monkeypatch.setattr(Makers, "_here", waits)
    few = [Variant(), *(Variant((n,)) for n in ("kernels apart", "temporaries stored", "vectors of 4"))]
    start = time.monotonic()
    with Makers(compilation(), (sys.executable, str(script))) as makers:
        found = makers.make(few, start + 6)
    assert time.monotonic() - start < 9
    assert {str(c.variant) for c in found.candidates} == {"as the model has it", "vectors of 4"}
    assert {str(v): note for v, note in found.notes.items()} == {
        "kernels apart": gpu_candidates.CRASHED,
        "temporaries stored": LATE,
    }


def test_processes_make_what_this_one_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ones, for the emulator, which needs no device."""
    base = compilation(UPDATE, target="emulate", N=100)
    few = [Variant(), *(Variant((n,)) for n in ("4 vectors together", "vectors of 2"))]
    monkeypatch.setenv("POLYFUSE_JOBS", "3")
    monkeypatch.setattr(Makers, "_here", lambda *_: None)
    with Makers(base) as makers:
        found = makers.make(few, time.monotonic() + 100)
    assert not found.notes, found.notes
    forms = {v: made(base, v)["form"] for v in few}
    assert {c.variant: c.form for c in found.candidates}.items() <= forms.items()
    assert {c.form for c in found.candidates} == set(forms.values())


def test_without_a_gpu_the_process_of_trials_says_so() -> None:
    timer = GpuTimer(compilation(), deadline=time.monotonic() + 60)
    with timer, pytest.raises(TrialFailed, match=r"driver|device|GPU|is not in the cache"):
        timer.first("0" * 64, 5.0)


# --- trials on a device -----------------------------------------------------------------------------------


def prepared(base: Compilation, **options: Any) -> GpuTrials:
    trials = GpuTrials(**options)
    from polyfuse.runtime.cache.disk import Cache

    given = [r.as_json() for r in recipes(base.graph, base.sizes)]
    told = trials.answer(
        json.dumps({"do": "prepare", "inputs": given, "root": str(Cache.open_default().root)} | _SETTINGS)
    )
    assert json.loads(told) == {}
    return trials


_SETTINGS = {"flush": True, "threads": 1}


def test_inputs_on_the_device_are_those_of_the_recipes() -> None:
    base = compilation(UPDATE, N=2_500_001)
    trials = prepared(base)
    for k, recipe in enumerate(recipes(base.graph, base.sizes)):
        placed = trials.placed[recipe.name]
        got = placed.get() if hasattr(placed, "get") else placed
        np.testing.assert_array_equal(got, recipe.make(k))


def test_a_plan_is_timed_and_leaves_what_it_updates_as_it_was() -> None:
    base = compilation(UPDATE, N=100)
    made(base, Variant())
    trials = prepared(base)
    given = trials.placed["p"].get()
    told = json.loads(trials.answer(json.dumps({"do": "run", "key": base.key})))
    assert told["seconds"] > 0 and "pf_" in told["described"]
    changed = trials.placed["p"].get()
    assert not np.array_equal(changed, given)
    told = json.loads(trials.answer(json.dumps({"do": "time", "key": base.key, "calls": 2})))
    assert told == {"seconds": pytest.approx(1e-6 / 8)}
    trials._restore()
    np.testing.assert_array_equal(trials.placed["p"].get(), given)


def test_a_plan_that_cannot_be_captured_is_timed_call_by_call(
    monkeypatch: pytest.MonkeyPatch, driver: EmulatingDriver
) -> None:
    def refused(stream: int) -> int:
        raise DeviceError("no cooperative launch in a graph", code="PF749")

    base = compilation(UPDATE, N=100)
    made(base, Variant())
    trials = prepared(base)
    monkeypatch.setattr(driver, "end_capture", refused)
    assert "seconds" in trials.do_run(base.key)
    assert trials.do_time(base.key, 2) == {"seconds": pytest.approx(1e-6)}


@pytest.mark.parametrize("seen", [1 << 30, 4096])
def test_other_results_are_refused_wherever_they_are(seen: int, driver: EmulatingDriver) -> None:
    base = compilation(UPDATE, N=50_000)
    other = compilation_of(base, Variant(("vectors of 2",)))
    for variant in (Variant(), Variant(("vectors of 2",))):
        made(base, variant)
    trials = prepared(base, seen=seen)
    assert "seconds" in trials.do_run(base.key)
    assert "seconds" in trials.do_run(other.key)
    spoiled = trials.first["p"]
    spoiled[-1] += 5.0  # as if the first plan had computed another last element
    assert trials.do_run(other.key) == {"error": "it computes another p"}


def test_a_lost_device_ends_the_process(monkeypatch: pytest.MonkeyPatch, driver: EmulatingDriver) -> None:
    base = compilation(UPDATE, N=100)
    made(base, Variant())
    trials = prepared(base)

    def lost(*_: object) -> None:
        raise DeviceError("an illegal address", code="PF743")

    class Ended(Exception):
        pass

    def end(status: int) -> None:
        raise Ended

    monkeypatch.setattr(driver, "launch", lost)
    assert "illegal" in json.loads(trials.answer(json.dumps({"do": "run", "key": base.key})))["error"]
    monkeypatch.setattr(driver, "synchronize", lost)
    monkeypatch.setattr("os._exit", end)
    with pytest.raises(Ended):
        trials.answer(json.dumps({"do": "run", "key": base.key}))


# --- the choice -------------------------------------------------------------------------------------------


FEW = ("8 threads a row", "kernels apart", "temporaries stored")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some plans stand for all."""
    found = [Variant(), *(Variant((n,)) for n in FEW)]
    monkeypatch.setattr(tuner, "plans", lambda graph, base: iter(found))


class Told(FakeTimer):
    """Seconds by plan."""

    def __init__(self, base: Compilation, told: dict[str, float | str]) -> None:
        self.names = {compilation_of(base, v).key: str(v) for v in variants(base)}
        self.told, self.other, self.asked = told, 1.0, []


def test_the_fastest_plan_is_taken_and_kept(few: None) -> None:
    base = compilation()
    timer = Told(base, {"kernels apart": 0.5, "temporaries stored": "it crashed"})
    found = tuner.tuned(base, timer)
    assert str(found.chosen) == "kernels apart" and not found.note
    assert {r.note for r in found.rows if str(r.variant) == "temporaries stored"} <= {"it crashed"}
    again = Told(base, {})
    assert tuner.tuned(base, again) == found and again.asked == []


def test_gains_of_different_things_are_tried_together(few: None) -> None:
    base = compilation()
    timer = Told(base, {"8 threads a row": 0.8, "kernels apart": 0.7, "joined": 0.5})
    assert set(tuner.tuned(base, timer).chosen.changes) == {"8 threads a row", "kernels apart"}


def test_a_trial_that_crashes_or_hangs_hurts_nobody_else(tmp_path: Path) -> None:
    notes: dict[str, str] = {}
    with GpuTimer(compilation(), child_of(tmp_path)) as timer:
        found = tuner.in_turns(["good", "boom", "wait", "better"], timer, notes, time.monotonic() + 9)
    assert set(found) == {"good", "better"}
    assert notes == {"boom": "it crashed", "wait": "it did not end in 3 s"}


def test_the_callers_budget_is_the_limit(few: None) -> None:
    base = compilation()
    base = replace(base, options=replace(base.options, tune_budget=1e-9))
    found = tuner.tuned(base, Told(base, {"kernels apart": 0.5}))
    assert found.chosen == Variant() and found.note.startswith("not measured")
    assert tuner._kept(tuner.tuning_key(base)) is None, "it is measured another time"
    for bad in (0, -1, float("inf"), "4"):
        with pytest.raises(pf.ArgumentError, match="tune_budget"):
            Options(tune_budget=bad)  # type: ignore[arg-type]


def test_a_device_that_does_not_open_is_no_error(few: None) -> None:
    class Never(Told):
        def seconds(self, key: str, calls: int) -> float:
            raise TrialFailed("no process can be started for trials")

    found = tuner.tuned(compilation(), Never(compilation(), {}))
    assert found.chosen == Variant() and "no process" in found.note


class Here:
    """A timer that tries plans in this process, on the driver that stands in."""

    def __init__(self, base: Compilation, deadline: float) -> None:
        self.trials = prepared(base)

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None: ...

    def begin(self) -> None: ...

    def first(self, key: str, limit_s: float) -> float:
        told = self.trials.do_run(key)
        if "error" in told:
            raise TrialFailed(told["error"])
        return float(told["seconds"])

    def seconds(self, key: str, calls: int) -> float:
        return float(self.trials.do_time(key, 1)["seconds"])


def test_from_the_source_to_a_pinned_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "op scaled(x: f32[T, H], s: f32[T]) -> (y: f32[T, H]) { y[t, h] = x[t, h] * s[t] }"
    monkeypatch.setattr(tuner, "GpuTimer", Here)
    f = pf.compile(text, target="cuda", tune="measure", verify=False, progress=False)
    x = np.random.default_rng(0).standard_normal((9, 70)).astype("f4")
    s = np.arange(9, dtype="f4")
    np.testing.assert_array_equal(f(x, s), x * s[:, None])
    told = f.explain(x, s)
    tuned = f.built(x, s).tuning
    assert tuned is not None and len(tuned.timed) >= 3 and "measured us" in told, told
    assert f"the fastest of {len(tuned.timed)} variants measured" in told
    file = tmp_path / "choices.json"
    f.keep_tuning(file)
    g = pf.compile(text, target="cuda", tuned=str(file), verify=False, progress=False)
    np.testing.assert_array_equal(g(x, s), x * s[:, None])
    assert f"{tuned.chosen}: chosen in {file}" in g.explain(x, s)
    h = pf.compile(text, target="emulate", tune="measure", verify=False, progress=False)
    assert "plans are not timed for emulate" in h.explain(x, s)


# --- choices as a file ------------------------------------------------------------------------------------


def tuning(name: str, problem: str, *changes: str) -> Tuning:
    rows = (Row(Variant(), 1.0, 2e-6), Row(Variant(changes), 1.0, 1e-6))
    return Tuning(name, rows, Variant(changes), problem=problem, sizes=(("N", 4),))


def test_choices_are_kept_beside_those_of_others(tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    keep_choices(
        file, [tuning("f", "1", "vectors of 4"), Tuning("g", (), Variant(), "not measured", problem="3")]
    )
    keep_choices(file, [tuning("h", "2", "16 threads a row", "kernels apart")])
    assert choice_in(file, "1") == Variant(("vectors of 4",))
    assert choice_in(file, "2") == Variant(("16 threads a row", "kernels apart"))
    assert choice_in(file, "3") is None, "nothing was measured"
    told = json.loads(file.read_text())["choices"]["1"]
    assert told["operator"] == "f" and told["sizes"] == {"N": 4}
    assert told["microseconds"] == {"as the model has it": 2.0, "vectors of 4": 1.0}


@pytest.mark.parametrize(
    "text, why",
    [(None, "cannot be read"), ("{}", "no file of choices"), ("what", "no file of choices")],
)
def test_a_file_of_something_else_is_refused(text: str | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(pf.ArgumentError, match=why):
        choice_in(file, "1")
    file.write_text(json.dumps({"format": 1, "choices": {"1": {"changes": ["a change of another version"]}}}))
    with pytest.raises(pf.ArgumentError, match="this version cannot take"):
        choice_in(file, "1")


@pytest.mark.parametrize("target", ["emulate", "cpu"])
def test_a_choice_of_a_file_is_taken_and_told(target: str, tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    base = compilation(target=target)
    change = "8 threads a row" if target == "emulate" else "kernels apart"
    keep_choices(file, [tuning("norm", tuner.problem(base), change)])
    f = pf.compile(NORM, target=target, tuned=file, verify=False)
    x, g = np.random.default_rng(0).standard_normal((37, 131)).astype("f4"), np.ones(131, "f4")
    y, _ = f(x, g)
    m, v = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    np.testing.assert_allclose(y, (x - m) / np.sqrt(v + 1e-5), rtol=1e-4, atol=1e-4)
    assert f"{change}: chosen in {file}" in f.explain(x, g)
    other = x[:36]
    assert "has no choice for it" in f.explain(other, g)


def test_gpu_changes_change_something() -> None:
    base = choices_of(compilation())
    for name in GPU_CHANGES:
        if name not in ("stitched wherever possible",):
            assert Variant((name,)).of(base) != base, name
