"""The choice among variants: which are proposed, which is taken, and what a variant that fails may do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.cost.cpu_device import table_cpu
from polyfuse.cost.projection import table_rates
from polyfuse.driver.pipeline import Compilation, fixed_graph, run
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.layouts import Layouts
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.options import Options
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.tuning import candidates, tuner
from polyfuse.tuning import tuner as tuning_turns
from polyfuse.tuning.candidates import proposals
from polyfuse.tuning.judges import Prediction
from polyfuse.tuning.table import CHANGES, Choices, Row, Tuning, Variant
from polyfuse.tuning.trial import READY, Recipe, Trials, agree, recipes
from polyfuse.tuning.trials import ChildTimer, TrialFailed

NORM = """op norm(x: f32[T, H], g: f32[H]) -> (y: f32[T, H]) {
  m[t] = mean[h](x[t, h])
  v[t] = mean[h]((x[t, h] - m[t]) ** 2)
  y[t, h] = (x[t, h] - m[t]) * rsqrt(v[t] + 1e-5) * g[h]
}"""


def compilation(text: str = NORM, **sizes: int) -> Compilation:
    graph = pf.parse(text).op().graph()
    known = sizes or {"T": 64, "H": 300}
    options = Options(threads=2, verify=False, dump=None)
    return Compilation(
        graph, known, pf.LoopFusion(), options, Layouts(), "cpu", pf.Stitching(), pf.Packing(), Clustering()
    )


def maker() -> candidates.Maker:
    return candidates.Maker(table_cpu(2), table_rates(table_cpu(2)))


class FakeTimer:
    """Seconds by variant, as told; an exception is raised instead."""

    def __init__(self, base: Compilation, told: dict[str, float | str], other: float = 1.0) -> None:
        names = {
            c.compilation.key: str(c.variant) for c in candidates.proposed(base, maker(), 1e9).candidates
        }
        self.names, self.told, self.other = names, told, other
        self.asked: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def begin(self) -> None: ...

    def first(self, key: str, limit_s: float) -> float:
        return self.seconds(key, 1)

    def seconds(self, key: str, calls: int) -> float:
        name = self.names.get(key, "joined")
        self.asked.append(name)
        value = self.told.get(name, self.other)
        if isinstance(value, str):
            raise TrialFailed(value)
        return value


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of its own; no limit on lowering, few rounds."""
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuner, "BUDGET_S", 1e9)
    monkeypatch.setattr(tuning_turns, "MOST_ROUNDS", 6)
    monkeypatch.setattr(tuner, "HOPELESS", 1e9)
    monkeypatch.setattr(tuner, "MOST", 99)
    monkeypatch.setattr(tuner, "tuning_key", lambda base: base.key[::-1])
    monkeypatch.setattr(tuner, "projected_cpu", lambda threads: (table_cpu(2), table_rates(table_cpu(2))))


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled, and only variants that share their kernels are proposed."""
    monkeypatch.setattr(candidates, "compile_shared", lambda source: None)
    few = ("128 bytes of accumulators", "1 chunk a thread", "32 chunks a thread")
    variants = [Variant(), *(Variant((n,)) for n in few)]
    monkeypatch.setattr(candidates, "proposals", lambda *_: iter(variants))


# --- variants ---------------------------------------------------------------------------------------------


def test_no_two_candidates_have_the_same_code() -> None:
    found = candidates.proposed(compilation(T=4096, H=512), maker(), 1e9).candidates
    forms = [(c.code.source, repr(c.code.plan)) for c in found]
    assert len(forms) == len(set(forms)) and len(forms) >= 6
    assert found[0].variant == Variant()
    assert [c.predicted for c in found[1:]] == sorted(c.predicted for c in found[1:])


def test_proposals_suit_the_graph() -> None:
    base = Choices(pf.LoopFusion(), pf.Stitching(), pf.Packing(), CpuKnobs())
    small, large = ({"T": 4, "H": 64}, {"T": 8192, "H": 1024})
    graph = pf.parse(NORM).op().graph()
    names = [{str(v) for v in proposals(fixed_graph(graph, s), base, table_cpu(2))} for s in (small, large)]
    assert "1 thread" in names[0] and "non-temporal stores" not in names[0]
    assert "1 thread" not in names[1] and "non-temporal stores" in names[1]
    assert "unroll-and-jam of 4 rows" in names[0] and not any("unroll-and-jam" in n for n in names[1])
    added = pf.parse("op f(x: f32[T, H]) -> (s: f32[H]) { s[h] = sum[t](x[t, h]) }").op().graph()
    for columns, tried in ((30_000, True), (300, False)):
        fixed = fixed_graph(added, {"T": 600, "H": columns})
        assert any("unroll-and-jam" in str(v) for v in proposals(fixed, base, table_cpu(2))) == tried
    plain = pf.parse("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1.0 }").op().graph()
    assert not any("accum" in str(v) for v in proposals(fixed_graph(plain, {"N": 9}), base, table_cpu(2)))


def test_changes_join_unless_they_change_the_same() -> None:
    past, ahead, fewer = (
        Variant((n,)) for n in ("non-temporal stores", "prefetch 2 rows ahead", "prefetch 1 row ahead")
    )
    both = past.joined(ahead)
    assert both is not None and set(both.changes) == {*past.changes, *ahead.changes}
    assert ahead.joined(fewer) is None
    made = both.of(Choices(None, None, None, CpuKnobs()))
    assert made.knobs == CpuKnobs(stream=True, ahead=2)


def test_every_change_computes_the_same() -> None:
    """The graph has reductions of rows and of columns, broadcasts and two results; lengths are odd."""
    text = NORM.replace("-> (y: f32[T, H])", "-> (y: f32[T, H], s: f32[H])")
    base = compilation(text[:-1] + "  s[h] = sum[t](x[t, h] * y[t, h])\n}", T=131, H=301)
    x = np.random.default_rng(1).standard_normal((131, 301)).astype(np.float32)
    g = np.random.default_rng(2).standard_normal(301).astype(np.float32)
    first: dict[str, Any] = {}
    sources: set[str] = set()
    for variant in (Variant(), *(Variant((name,)) for name in CHANGES)):
        made = maker()(candidates.compilation_of(base, variant), variant)
        assert made is not None
        if made.code.source in sources:
            continue
        sources.add(made.code.source)
        built = run(made.compilation)
        assert isinstance(built.executable, CpuExecutable)
        arrays: dict[str, Any] = {"y": np.empty((131, 301), np.float32), "s": np.empty(301, np.float32)}
        shapes = {b.name: tuple(int(str(e)) for e in b.shape) for b in built.executable.plan.buffers}
        built.executable.run({n: a.reshape(shapes[n]) for n, a in {"x": x, "g": g, **arrays}.items()})
        first = first or arrays
        for n in ("y", "s"):
            np.testing.assert_allclose(arrays[n], first[n], rtol=2e-5, atol=2e-5, err_msg=str(variant))
    assert len(sources) >= 6


# --- the choice -------------------------------------------------------------------------------------------


def test_the_fastest_is_taken_and_kept(without_compiler: None) -> None:
    base = compilation(T=512, H=300)
    timer = FakeTimer(base, {"128 bytes of accumulators": 0.5})
    found = tuner.tuned(base, timer)
    assert str(found.chosen) == "128 bytes of accumulators" and not found.note
    again = FakeTimer(base, {})
    assert tuner.tuned(base, again) == found
    assert again.asked == []


def test_less_than_noise_changes_nothing(without_compiler: None) -> None:
    base = compilation(T=512, H=300)
    found = tuner.tuned(base, FakeTimer(base, {"128 bytes of accumulators": 0.98}))
    assert found.chosen == Variant()


def test_changes_that_gain_are_tried_together(without_compiler: None) -> None:
    base = compilation(T=512, H=300)
    gains: dict[str, float | str] = {"128 bytes of accumulators": 0.8, "1 chunk a thread": 0.9, "joined": 0.7}
    found = tuner.tuned(base, FakeTimer(base, gains))
    assert set(found.chosen.changes) == {"128 bytes of accumulators", "1 chunk a thread"}
    assert candidates.compilation_of(base, found.chosen).knobs == CpuKnobs(lane_bytes=128, chunks=1)


def test_what_fails_is_left_out(without_compiler: None) -> None:
    base = compilation(T=512, H=300)
    told: dict[str, float | str] = {"128 bytes of accumulators": "it crashed", "1 chunk a thread": 0.5}
    found = tuner.tuned(base, FakeTimer(base, told))
    row = next(r for r in found.rows if str(r.variant) == "128 bytes of accumulators")
    assert row.measured is None and row.note == "it crashed"
    assert str(found.chosen) == "1 chunk a thread"
    assert "it crashed" in str(found)


def test_without_a_measurement_the_models_choice_stands(without_compiler: None) -> None:
    base = compilation(T=512, H=300)
    found = tuner.tuned(base, FakeTimer(base, {"as the model has it": "no process"}))
    assert found.chosen == Variant() and "no process" in found.note
    assert tuner._kept(tuner.tuning_key(base)) is None, "it is measured another time"


class SlowTimer(FakeTimer):
    """Each request takes a while, as on a busy machine."""

    def seconds(self, key: str, calls: int) -> float:
        time.sleep(0.02)
        return super().seconds(key, calls)


@pytest.mark.parametrize("slow", ("compilers", "timer", "both"))
def test_the_budget_is_kept(slow: str, without_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    base = compilation(T=512, H=300)
    own = maker()(base, Variant())
    assert own is not None

    def compiled(source: str) -> None:
        if source != own.code.source and slow != "timer":
            time.sleep(3)

    timer = (FakeTimer if slow == "compilers" else SlowTimer)(base, {"128 bytes of accumulators": 0.5})
    monkeypatch.setattr(candidates, "compile_shared", compiled)
    monkeypatch.setattr(tuning_turns, "MOST_ROUNDS", 1000)
    monkeypatch.setattr(tuner, "BUDGET_S", 2.0)
    start = time.monotonic()
    found = tuner.tuned(base, timer)
    assert time.monotonic() - start < 2.6
    late = {str(r.variant) for r in found.rows if r.note == candidates.LATE}
    if slow == "timer":
        assert str(found.chosen) == "128 bytes of accumulators" and not late
    else:
        assert found.chosen == Variant() and late == {"128 bytes of accumulators"}


def test_where_no_variant_has_other_code_nothing_is_run(
    without_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "proposals", lambda *_: iter([Variant()]))
    base = compilation(T=512, H=300)
    timer = FakeTimer(base, {})
    found = tuner.tuned(base, timer)
    assert found.chosen == Variant() and found.note == tuner.ALONE and timer.asked == []
    assert tuner._kept(tuner.tuning_key(base)) == found


def test_while_candidates_are_few_lowering_goes_on(
    without_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = compilation(T=512, H=300)
    counts = [
        len(candidates.proposed(base, maker(), 0.0, last).candidates)
        for last in (None, time.monotonic() + 100)
    ]
    assert counts == [1, candidates.FEW]
    monkeypatch.setattr(tuner, "BUDGET_S", -1.0)
    found = tuner.tuned(base, FakeTimer(base, {}))
    assert "no variant was ready" in found.note
    assert tuner._kept(tuner.tuning_key(base)) is None, "it is measured another time"


def test_noise_gains_nothing_and_a_gain_is_found() -> None:
    """Times of 40 runs with up to 30 % of noise: equal variants, and one that is faster by a fifth."""

    class Noisy:
        def __init__(self, seed: int, gain: float) -> None:
            self.rng, self.gain = np.random.default_rng(seed), gain

        def first(self, key: str, limit_s: float) -> float:
            return 1e-3

        def seconds(self, key: str, calls: int) -> float:
            slow = float(self.rng.random()) ** 3 * 0.3
            return 1e-3 * (1 + slow) * (self.gain if key == "3" else 1.0)

    def faster(seed: int, gain: float) -> str:
        keys = [str(k) for k in range(9)]
        timer: Any = Noisy(seed, gain)
        times = tuning_turns.in_turns(keys, timer, {}, time.monotonic() + 10)
        rows = [tuning_turns.timed(Row(Variant((k,)), 1.0, None), times, k, "") for k in keys]
        return tuning_turns.fastest(rows).variant.changes[0]

    def chosen(seed: int, gain: float) -> str:
        first, again = faster(seed, gain), faster(seed + 1000, gain)
        return first if first == again else "0"

    assert {chosen(seed, 1.0) for seed in range(40)} == {"0"}
    assert sum(chosen(seed, 0.8) == "3" for seed in range(40)) >= 36


def test_what_no_variant_was_ready_for_is_measured_another_time(
    without_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = compilation(T=512, H=300)
    timer = FakeTimer(base, dict.fromkeys(CHANGES, "it crashed"))
    found = tuner.tuned(base, timer)
    assert found.chosen == Variant() and "no variant was ready" in found.note
    assert tuner._kept(tuner.tuning_key(base)) is None


def test_too_few_rounds_tell_nothing() -> None:
    slow, fast = [1.0, 1.0], [0.5, 0.5]
    rows = [
        Row(Variant((k,)), 1.0, min(x), "", tuning_turns.spread(x)) for k, x in (("a", slow), ("b", fast))
    ]
    assert tuning_turns.fastest(rows) is rows[0]
    told = [replace(r, spread=tuning_turns.spread([r.measured or 0.0] * 3)) for r in rows]
    assert tuning_turns.fastest(told) is told[1]


def test_the_models_choice_is_compiled_first_then_the_likeliest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_JOBS", "1")  # of several compilers none would be the first
    base = compilation(T=512, H=300)
    first = maker()(base, Variant())
    assert first is not None
    order: list[str] = []
    gate = threading.Event()

    def compiled(source: str) -> None:
        order.append(source)
        assert gate.wait(10)

    with candidates.Compilers(compiled) as compilers:
        made = []
        for k, predicted in enumerate((2.0, 1.0, 9.0, 3.0, 4.0)):
            variant = Variant((f"change {k}",)) if k else Variant()
            own = replace(base, sizes={"T": k + 1, "H": 3})
            code = replace(first.code, source=str(k))
            made.append(candidates.Candidate(variant, own, code, Prediction((predicted,))))
            compilers.add(made[-1])
        gate.set()
        assert compilers.notes(made[0], time.monotonic() + 10) == {}
    assert order == ["0", "1", "3", "4", "2"]


def test_a_table_shows_both_times() -> None:
    rows = (
        Row(Variant(), 1e-6, 2e-6),
        Row(Variant(("1 thread",)), 3e-6, 1e-6),
        Row(Variant(), 1.0, None, "no"),
    )
    text = str(Tuning("f", rows, Variant(("1 thread",))))
    assert "* 1 thread" in text and "projected us" in text and " 2.0" in text and text.endswith("no")
    found = Tuning("f", rows, Variant(("1 thread",)))
    assert Tuning.of_json(json.loads(json.dumps(found.as_json()))) == found
    with pytest.raises(ValueError):
        Tuning.of_json({**found.as_json(), "chosen": {"changes": ["faster"]}})


# --- trials -----------------------------------------------------------------------------------------------


CHILD = """
import os, sys, time
sys.path.insert(0, {root!r})
from polyfuse.support.processes import serve
def answer(line):
    if "boom" in line: os.abort()
    if "wait" in line: time.sleep(60)
    return '{{"seconds": 0.001, "pid": %d}}' % os.getpid()
serve({ready!r}, answer)
"""


def child_of(tmp_path: Path) -> Any:
    from polyfuse.support.processes import Child

    script = tmp_path / "child.py"
    script.write_text(CHILD.format(root=str(Path(pf.__file__).parents[2]), ready=READY))
    return Child("polyfuse.tuning.trial", READY, command=(sys.executable, str(script)))


def test_a_crash_and_a_hang_hurt_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ChildTimer(compilation(), child_of(tmp_path)) as timer:
        notes: dict[str, str] = {}
        keys = ["good", "boom", "wait", "better"]
        found = tuning_turns.in_turns(keys, timer, notes, time.monotonic() + 5)
    assert set(found) == {"good", "better"}
    assert notes == {"boom": "it crashed", "wait": "it did not end in 0.4 s"}


def test_a_process_that_cannot_start_is_told(tmp_path: Path) -> None:
    from polyfuse.support.processes import Child

    child = Child("polyfuse.tuning.trial", READY, command=(str(tmp_path / "nothing"),))
    with ChildTimer(compilation(), child) as timer, pytest.raises(TrialFailed, match="no process"):
        timer.first("any", 1.0)


def test_a_trial_that_needs_too_much_memory_is_refused() -> None:
    large = compilation(T=1 << 22, H=1 << 20)
    with pytest.raises(TrialFailed, match="would take"), ChildTimer(large):
        pass


def test_other_results_are_refused() -> None:
    a = np.array([1.0, np.nan, np.inf, -2e3], np.float32)
    assert agree(a, a.copy())
    assert agree(a, a + np.float32(1e-2))  # within 1e-4 of the largest
    assert not agree(a, np.array([1.0, 0.0, np.inf, -2e3], np.float32))
    assert not agree(a, np.array([2.0, np.nan, np.inf, -2e3], np.float32))
    assert not agree(a, np.array([1.0, np.nan, -np.inf, -2e3], np.float32))
    whole = np.array([1, 2, 3], np.int32)
    assert agree(whole, whole.copy()) and not agree(whole, whole + 1)


def test_trials_answer_errors_and_go_on() -> None:
    trials = Trials()
    assert "error" in json.loads(trials.answer("nonsense\n"))
    assert "error" in json.loads(trials.answer('{"do": "run", "key": "' + "0" * 64 + '"}\n'))


def test_recipes_keep_to_their_ranges() -> None:
    text = """op pick(x: f32[V, H], i: i32[N], mask: f32[N], step: i64, a: f32 = 0.5) -> (y: f32[N, H]) {
      y[n, h] = x[i[n], h] * a + mask[n] + f32(step)
    }"""
    base = compilation(text, V=5, H=3, N=1000)
    made = {
        r.name: Recipe.of_json(json.loads(json.dumps(r.as_json()))) for r in recipes(base.graph, base.sizes)
    }
    arrays = {name: r.make(k) for k, (name, r) in enumerate(made.items())}
    assert arrays["i"].dtype == np.int32 and set(np.unique(arrays["i"])) == set(range(5))
    assert arrays["a"] == np.float32(0.5) and arrays["step"].shape == ()
    assert set(np.unique(arrays["mask"])) == {np.float32(0), np.float32(-1e4)}
    assert np.array_equal(arrays["x"], made["x"].make(0)) and np.isfinite(arrays["x"]).all()
    assert np.all(np.diff(replace(made["i"], offsets=True, below=7).make(0)) >= 0)


# --- end to end -------------------------------------------------------------------------------------------

PROGRAM = """
import numpy as np
import polyfuse as pf
import polyfuse.tuning.tuner as t
t.BUDGET_S = 60.0  # as long as a machine under load takes
f = pf.compile({text!r}, target="cpu", tune="measure")
x = np.random.default_rng(0).standard_normal((256, 300)).astype(np.float32)
g = np.ones(300, np.float32)
y = f(x, g)
m, v = x.mean(1, keepdims=True), x.var(1, keepdims=True)
np.testing.assert_allclose(y, (x - m) / np.sqrt(v + 1e-5), rtol=1e-4, atol=1e-4)
built = f.built(x, g)
print(len(built.tuning.timed), built.tuning.note, "|", built.tuning.chosen)
print(f.explain(x, g))
"""


def test_a_measured_operator_and_a_second_process_that_pays_nothing() -> None:
    """The real thing: a compiler, a child, a cache."""
    env = {n: v for n, v in os.environ.items() if n != "POLYFUSE_VERIFY"}
    program = PROGRAM.format(text=NORM)
    outputs = []
    for text in (program, program.replace("f = pf", "t._search = None\nf = pf")):
        command = [sys.executable, "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    first, second = outputs
    timed, chosen = first.splitlines()[0].split("|")
    assert int(timed.split()[0]) >= 2 and "not measured" not in first, first
    assert "measured us" in first and f"* {chosen.strip()}" in first
    assert second == first, "the second process has found what the first one measured"
