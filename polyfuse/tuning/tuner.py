"""The fastest of several variants of an operator's code, measured (`tune="measure"`).

    proposals --lowered, printed--> code of each, once --projected--> the likeliest
              --compiled, two at a time--> libraries --run and timed in a child process--> the fastest

On a GPU processes make and compile plans side by side (`tuning.gpu_candidates`), and the child runs them on
the device (`tuning.gpu_trial`); all else is the same.

All is bounded in time: a budget is shared out to the steps, each of which may use what the ones before have
left, and goes on with what there is when its time is up, in the order of projected times.  The child starts
and makes inputs while variants are lowered, and the likeliest are compiled meanwhile (`tuning.candidates`).
It runs a variant only after it was compiled, compares its results with those of the model's choice, and times
all in turns (`in_turns`).  What crashes, hangs or computes something else is left out with a note; where
nothing can be measured, the model's choice stands, and so it does unless another is faster by more than the
noise, twice.  The choice is kept in the cache by what the compilation follows from, compiler and machine.
"""

from __future__ import annotations

import json
import math
import platform
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from polyfuse.decisions import Decision
from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.pipeline import Built, Compilation, compilation, fixed_graph, run
from polyfuse.driver.targets import chip, projected_cpu
from polyfuse.ir.layouts import DENSE, Layouts
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import ON_GPU, Options
from polyfuse.runtime.cache.disk import Cache, cache_key, read_file
from polyfuse.runtime.cuda.compiler import find_cuda_compiler
from polyfuse.runtime.toolchain.compiler import cpu_identity, cpu_name, find_compiler
from polyfuse.tuning.candidates import (
    LATE,
    Candidate,
    Compilers,
    Maker,
    choices_of,
    compilation_of,
    proposed,
)
from polyfuse.tuning.gpu_candidates import Makers, plans
from polyfuse.tuning.judges import LearnedJudge, judge_for, learned_for, surest
from polyfuse.tuning.table import Row, Tuning, Variant, choice_in, plan_in, unfit
from polyfuse.tuning.trials import ChildTimer, GpuTimer, Timer, TrialFailed

# --- times ------------------------------------------------------------------------------------------------

# Variants timed in turns, and which of them is faster by more than the noise.
#
#     first runs, one after the other --> rounds: each in turn, without what is far behind --> times of each
#
# The shortest time of a variant counts: other programs only make it longer.  How far that can be trusted is
# its `spread`: how much the shortest times of the even and of the odd rounds differ.  A variant takes the
# place of the model's choice only if it is faster by more than the spread of both.


# In each turn a variant runs for about so long; after some rounds those far behind are out.
TURN_S, MOST_CALLS, MOST_ROUNDS = 0.002, 64, 100
FEWEST_ROUNDS, FAR = 2, 1.25
# The model's choice stands unless another is faster by more than this, and by more than the spread of both,
# which fewer rounds do not tell.
GAIN, TOLD = 0.97, 3
# Seconds for a first run of the model's choice; of others, so many times what that took, at least the least.
FIRST_S, FIRST_TIMES, LEAST_S = 3.0, 20.0, 0.4
NO_TIME = "no time was left"

Times = dict[str, list[float]]


def in_turns(
    keys: Sequence[str], timer: Timer, notes: dict[str, str], deadline: float, far: float = FAR
) -> Times:
    """Seconds of each that runs, one for each round; what fails is told in `notes`, and what takes more than
    `far` times as long as the fastest has fewer rounds.

    Raises TrialFailed if the first one fails: there is nothing to compare with.
    """
    alive = _first_runs(keys, timer, notes, deadline)
    found: Times = {key: [] for key in alive}
    for k in range(MOST_ROUNDS):
        for key in list(alive):
            if k and time.monotonic() > deadline:
                break
            calls = max(1, min(MOST_CALLS, int(TURN_S / max(alive[key], 1e-9))))
            try:
                found[key].append(timer.seconds(key, calls))
            except TrialFailed as failed:
                if key == keys[0]:
                    raise
                notes[key] = str(failed)
                del alive[key]
        if time.monotonic() > deadline:
            break
        if k + 1 >= FEWEST_ROUNDS:
            least = min(min(found[key]) for key in alive)
            alive = {key: x for key, x in alive.items() if key == keys[0] or min(found[key]) <= far * least}
    return {key: times for key, times in found.items() if key not in notes}


def _first_runs(
    keys: Sequence[str], timer: Timer, notes: dict[str, str], deadline: float
) -> dict[str, float]:
    """Seconds of the first run of each that comes to an end."""
    alive: dict[str, float] = {}
    limit = FIRST_S
    for key in keys:
        if alive and time.monotonic() > deadline:
            notes[key] = NO_TIME
            continue
        try:
            alive[key] = timer.first(key, limit)
        except TrialFailed as failed:
            if key == keys[0]:
                raise
            notes[key] = str(failed)
        limit = min(FIRST_S, max(LEAST_S, FIRST_TIMES * alive[keys[0]]))
    return alive


def spread(times: Sequence[float]) -> float:
    """How much the shortest time of a variant can be trusted, relative to it; infinite for too few rounds."""
    if len(times) < TOLD:
        return math.inf
    even, odd = min(times[::2]), min(times[1::2])
    return max(even, odd) / max(min(even, odd), 1e-12) - 1


def timed(row: Row, times: Mapping[str, Sequence[float]], key: str, note: str) -> Row:
    """The row of a variant with what was measured."""
    mine = times.get(key, ())
    if not mine:
        return Row(row.variant, row.predicted, None, note or NO_TIME)
    return Row(row.variant, row.predicted, min(mine), note, spread(mine))


def is_faster(row: Row, first: Row, gain: float = GAIN) -> bool:
    """Is a variant faster than the model's choice, by more than noise?"""
    if row.measured is None or first.measured is None:
        return False
    noise = max(row.spread, first.spread)
    return row.measured < gain * first.measured and row.measured * (1 + noise) < first.measured


def fastest(rows: Sequence[Row]) -> Row:
    """The model's choice, which is the first, or the fastest of those that are faster by more than noise."""
    able = [r for r in rows[1:] if is_faster(r, rows[0])]
    return min(able, key=lambda r: r.measured or 0.0, default=rows[0])


# --- variants that are tried ------------------------------------------------------------------------------

# Variants that are timed at most.
MOST = 9
# A projected time so many times the model's choice's is not worth a measurement.
HOPELESS = 1.6
# Seconds for all, and by which part of them a step ends: variants are lowered (later, while they are few),
# compiled, timed; what gained is compiled together; the fastest meet the model's choice again.
BUDGET_S, GPU_BUDGET_S = 4.0, 10.0
LOWERED, LONGEST, COMPILED, TIMED, JOINED, AGAIN = 0.3, 0.5, 0.6, 0.78, 0.88, 0.98
# The learned model's choice stands without a measurement if it is faster by so much, by each of its networks:
# from here on no variant of held-out programs lost over 3 % (docs/lab/learned_cost.md, Zen 4 and 5,
# 2026-11-28).
SURE = 0.85
DIGITS = 16
ALONE = "no variant has other code"


class Tried(Protocol):
    """A variant whose code is in the cache."""

    @property
    def variant(self) -> Variant: ...
    @property
    def key(self) -> str: ...
    @property
    def predicted(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds from a moment on."""

    start: float
    seconds: float

    def until(self, part: float) -> float:
        """The time at which a part of them is spent."""
        return self.start + part * self.seconds


def build_tuned(
    graph: TensorGraph,
    sizes: Mapping[str, int],
    *,
    target: str = "cpu",
    fusion: LoopFusion | None,
    stitching: Stitching | None = None,
    packing: Packing | None = None,
    clustering: Clustering | None = None,
    options: Options,
    layouts: Layouts = DENSE,
) -> Built:
    """As `pipeline.build`, with the variant that a file has (`Options.tuned`), or else the one that was
    measured to be the fastest."""
    base = compilation(
        graph,
        sizes,
        target=target,
        fusion=fusion,
        stitching=stitching,
        packing=packing,
        clustering=clustering,
        options=options,
        layouts=layouts,
    )
    if options.plan_file is not None:
        return _pinned(base, options.plan_file)
    pinned = choice_in(options.tuned, problem(base)) if options.tuned is not None else None
    if pinned is not None:
        found_in = Tuning(graph.name, (), pinned, f"chosen in {options.tuned}")
        return _with(run(compilation_of(base, pinned)), found_in, acted=True)
    if options.tune == "measure" and target in ("cpu", "cuda") and base.kept:
        tuning = tuned(base)
        return _with(run(compilation_of(base, tuning.chosen)), tuning)
    if options.tune == "model" and options.cost == "learned" and base.kept:
        tuning = ranked(base)
        return _with(run(compilation_of(base, tuning.chosen)), tuning, acted=bool(tuning.rows))
    why = f"plans are not timed for {target}" if base.kept else "its steps are to be looked at"
    why = why if options.tune == "measure" or not base.kept else f"{options.tuned} has no choice for it"
    return _with(run(base), Tuning(graph.name, (), Variant(), f"not measured: {why}"))


def _pinned(base: Compilation, path: Path) -> Built:
    """The variant that a file must have. Raises ArgumentError PF428 where it has none that fits."""
    pinned = plan_in(path, problem(base), base.graph.name, base.sizes)
    try:
        built = run(compilation_of(base, pinned))
    except ArgumentError as e:
        if e.code != "PF427" or base.clustering.groups is not None:
            raise
        why = f"has clusters that {base.graph.name} cannot have: {e.diagnostics[0].message}"
        raise unfit(path, why, "`polyfuse tune` finds a plan for this version") from None
    return _with(built, Tuning(base.graph.name, (), pinned, f"pinned by {path}"), acted=True)


def _with(built: Built, tuning: Tuning, acted: bool = False) -> Built:
    tuning = about(tuning, built.compilation)
    why = tuning.note or f"the fastest of {len(tuning.timed)} variants measured"
    decision = Decision("tune", str(tuning.chosen), acted or not tuning.note, why)
    return replace(built, decisions=(*built.decisions, decision), tuning=tuning)


def about(tuning: Tuning, made: Compilation) -> Tuning:
    """With what a file of choices says of it."""
    machine = chip(made.options, made.target).name if made.target in ON_GPU else cpu_name()
    at = tuple(made.sizes.items())
    return replace(tuning, problem=problem(made), sizes=at, target=made.target, machine=machine)


def ranked(base: Compilation) -> Tuning:
    """The variant that the learned model names, among plans of fusion too; nothing is measured."""
    machine, rates = projected_cpu(base.options.threads)
    model = learned_for(base.options, base.target, base.knobs.on, machine.threads)
    if model is None:
        return Tuning(base.graph.name, (), Variant(), f"no learned model for {base.target}")
    key = tuning_key(base)
    kept = _kept(key)
    if kept is not None:
        return kept
    make = Maker(machine, rates, LearnedJudge(model, machine.threads))
    found = [*proposed(base, make, math.inf, plans=True).candidates]
    usual = found[0]
    likely = [c for c in found[1:] if c.prediction.surely_less(usual.prediction, SURE)]
    if len(likely) > 1 and (both := likely[0].variant.joined(likely[1].variant)) is not None:
        found += filter(None, [make(compilation_of(base, both), both)])
    best = found[surest([c.prediction for c in found], SURE)]
    times = f"{1e6 * usual.predicted:.1f} us"
    if best is not usual:
        times = f"{1e6 * best.predicted:.1f} us instead of {times}"
    rows = tuple(replace(_row(c), note="not measured") for c in found)
    made = Tuning(base.graph.name, rows, best.variant, f"the learned model: {times}", judge=make.judge.name)
    _keep(key, made)
    return made


def tuned(base: Compilation, timer: Timer | None = None) -> Tuning:
    """The choice for a compilation, from the cache if it was made before; `timer` is replaced in tests."""
    key = tuning_key(base)
    kept = _kept(key)
    if kept is not None:
        return kept
    on_gpu = base.target in ON_GPU
    seconds = base.options.tune_budget or (GPU_BUDGET_S if on_gpu else BUDGET_S)
    budget = Budget(time.monotonic(), seconds)
    own, search = (GpuTimer, _search_on_gpu) if on_gpu else (ChildTimer, _search)
    failed = False
    try:
        with timer or own(base, deadline=budget.until(1.0)) as measuring:
            found = search(base, measuring, budget)
    except (TrialFailed, OSError) as error:
        failed, found = True, Tuning(base.graph.name, (), Variant(), f"not measured: {error}")
    found = replace(found, seconds=time.monotonic() - budget.start)
    if not failed:
        _keep(key, found)
    return found


def tuning_key(base: Compilation) -> str:
    """What a choice follows from: the compilation, the model that is asked, the compiler, the machine."""
    threads = projected_cpu(base.options.threads)[0].threads
    model = learned_for(base.options, base.target, base.knobs.on, threads)
    return cache_key(
        [
            ("kind", "tuning"),
            ("compilation", base.key),
            ("denormals", base.options.denormals),
            ("tune", base.options.tune),
            ("cost", repr(sorted(model.about.items())) if model is not None else ""),
            *(_gpu() if base.target in ON_GPU else _cpu()),
        ]
    )


def _cpu() -> list[tuple[str, str]]:
    compiler, cpu = find_compiler().identity, cpu_identity()
    return [("compiler", compiler), ("cpu", cpu), ("host", platform.node())]


def _gpu() -> list[tuple[str, str]]:
    """The device, its driver, and what compiles for it."""
    from polyfuse.runtime.cuda.open import open_driver  # only where there is one

    p = open_driver().properties
    return [("compiler", find_cuda_compiler().identity), ("gpu", str(p)), ("driver", str(p.driver_version))]


def problem(base: Compilation) -> str:
    """An operator with its sizes and layouts, whatever compiles it: its name in a file of choices."""
    layouts = sorted(base.layouts.strided), sorted(base.layouts.orders.items())
    text = f"{base.graph}\0{sorted(base.sizes.items())}\0{layouts}\0{base.target in ON_GPU}"
    return sha256(text.encode()).hexdigest()[:DIGITS]


def _keep(key: str, found: Tuning) -> None:
    data = json.dumps(found.as_json()).encode()
    Cache.open_default().put(key, {"tuning.json": data}, {"kind": "tuning", "operator": found.operator})


def _kept(key: str) -> Tuning | None:
    entry = Cache.open_default().get(key)
    if entry is None:
        return None
    try:
        return Tuning.of_json(json.loads(read_file(entry / "tuning.json")))
    except (OSError, ValueError, KeyError, TypeError):
        Cache.open_default().remove(key)
        return None


# --- the search ------------------------------------------------------------------------------------------


def _search(base: Compilation, timer: Timer, budget: Budget) -> Tuning:
    threading.Thread(target=timer.begin, daemon=True).start()
    machine, rates = projected_cpu(base.options.threads)
    make = Maker(machine, rates, judge_for(base.options, base.knobs.on, machine, rates))
    with Compilers() as compilers:
        likely = _Likely(compilers)
        until, fused = (budget.until(LOWERED), budget.until(LONGEST)), isinstance(make.judge, LearnedJudge)
        some = proposed(base, make, *until, likely.add, plans=fused)
        found = [*some.candidates]
        if len(found) == 1 and some.complete:
            return Tuning(base.graph.name, (_row(found[0]),), Variant(), ALONE, judge=make.judge.name)
        if len(found) == 1:
            raise TrialFailed(_none_ready(budget))
        notes = compilers.notes(found[0], budget.until(COMPILED))
        chosen, rows = _measured(found, notes, timer, budget.until(TIMED))
        joined = _joined(rows)
        more = make(compilation_of(base, joined), joined) if joined is not None else None
        if more is not None and time.monotonic() < budget.until(TIMED):
            compilers.add(more)
            found.append(more)
            late = compilers.notes(found[0], budget.until(JOINED))
            chosen, rows = [*chosen, more], [*rows, replace(_row(more), note=late.get(more.key, ""))]
        if sum(r.measured is not None for r in rows) < 2:
            raise TrialFailed(_none_ready(budget))
        best, rows = _met_again(chosen, rows, timer, budget.until(AGAIN))
    for c in found:
        if c.variant not in (best, Variant()):
            Cache.open_default().remove(c.key)
    return Tuning(base.graph.name, tuple(rows), best, judge=make.judge.name)


def _search_on_gpu(base: Compilation, timer: Timer, budget: Budget) -> Tuning:
    """As `_search`. All plans are made before any is timed: what compiles keeps the host busy, which
    launches."""
    threading.Thread(target=timer.begin, daemon=True).start()
    variants = [*plans(fixed_graph(base.graph, base.sizes), choices_of(base))]
    with Makers(base) as makers:
        some = makers.make(variants, budget.until(COMPILED))
        found = [*some.candidates]
        if not found or found[0].variant != Variant():
            raise TrialFailed(some.notes.get(Variant(), _none_ready(budget)))
        late = LATE in some.notes.values()
        if len(found) == 1 and not late:
            return Tuning(base.graph.name, (_row(found[0]),), Variant(), ALONE)
        chosen, rows = _measured(found, {}, timer, budget.until(TIMED))
        rows += [Row(v, math.inf, None, note) for v, note in some.notes.items()]
        joined = _joined(rows)
        if joined is not None and time.monotonic() < budget.until(TIMED):
            more = makers.make([joined], budget.until(JOINED)).candidates
            chosen, rows = [*chosen, *more], [*rows, *map(_row, more)]
        if sum(r.measured is not None for r in rows) < 2:
            raise TrialFailed(_none_ready(budget))
        best, rows = _met_again(chosen, rows, timer, budget.until(AGAIN))
    return Tuning(base.graph.name, tuple(rows), best)


class _Likely:
    """Passes on to the compilers what may be worth a measurement: the model's choice comes first."""

    def __init__(self, compilers: Compilers) -> None:
        self.compilers, self.first = compilers, float("inf")

    def add(self, c: Candidate) -> None:
        if not c.variant.changes:
            self.first = c.predicted
        if c.predicted <= HOPELESS * self.first:
            self.compilers.add(c)


def _none_ready(budget: Budget) -> str:
    return f"no variant was ready in {budget.seconds:.3g} s"


def _row(c: Tried) -> Row:
    return Row(c.variant, c.predicted, None)


def _measured(
    found: Sequence[Tried], notes: dict[str, str], timer: Timer, deadline: float
) -> tuple[list[Tried], list[Row]]:
    """The candidates that were measured, and a row for each; then those of the others.

    Raises TrialFailed where the first one cannot be measured.
    """
    first = found[0]
    if first.key in notes:
        raise TrialFailed(notes[first.key])
    near = [c for c in found if c.predicted <= HOPELESS * first.predicted or c is first]
    ready = [c for c in near if c.key not in notes][:MOST]
    late = [c for c in near if c.key in notes and notes[c.key] == LATE]
    tried = [c for c in near if c in ready or (c.key in notes and c not in late)]
    times = in_turns([c.key for c in ready], timer, notes, deadline)
    rows = [timed(_row(c), times, c.key, notes.get(c.key, "")) for c in tried]
    left = [
        replace(_row(c), note=LATE if c in late else "by its projected time") for c in found if c not in tried
    ]
    return tried, [*rows, *left]


def _met_again(
    chosen: Sequence[Tried], rows: list[Row], timer: Timer, deadline: float
) -> tuple[Variant, list[Row]]:
    """The model's choice, or what was faster, and is again when both, and the joined changes, have met once
    more; the rows with what that gave."""
    best = fastest(rows).variant
    last = [c for c in chosen if c.variant in (Variant(), best) or len(c.variant.changes) > 1]
    if best.is_model or time.monotonic() > deadline:
        return Variant(), rows
    notes = {c.key: r.note for c in last for r in rows if r.variant == c.variant and r.note}
    times = in_turns([c.key for c in last if c.key not in notes], timer, notes, deadline)
    again = {c.variant: timed(_row(c), times, c.key, notes.get(c.key, "")) for c in last}
    winner = fastest([again[c.variant] for c in last]).variant
    return winner, [again.get(r.variant, r) for r in rows]


def _joined(rows: Sequence[Row]) -> Variant | None:
    """The changes that gained, together, as far as they are of different things; None for fewer than two."""
    gained = [r for r in rows[1:] if is_faster(r, rows[0])]
    found: Variant | None = None
    for r in sorted(gained, key=lambda r: r.measured or 0.0)[:4]:
        both = found.joined(r.variant) if found is not None else r.variant
        found = both or found
    return found if found is not None and len(found.changes) > 1 else None
