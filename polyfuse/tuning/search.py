"""A search among plans of fusion and variants of code: by a cost model first, then on the hardware.

    Space --annealed, drawn--> plans by rising predicted time --batches--> measured, in turns with the default
                                                             --met again--> the fastest, or the default

The model runs nothing, so it sees hundreds of plans.  What it likes is compiled and timed some at a time
(`_Hardware`); what these times say of single changes corrects the model for the next ones.  What the compiler
does on its own is timed in each batch, and stands unless another is faster by more than the noise in the end.

Where seconds are given, how far a search comes depends on the clock; with steps alone it does not.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polyfuse.checking import open_graph
from polyfuse.diagnostics import ArgumentError, ScheduleError
from polyfuse.driver.pipeline import Compilation, Watch, compilation, fixed_graph
from polyfuse.driver.targets import projected_cpu
from polyfuse.frontend_dsl.semantics.bind_sizes import check_constraints, check_given, with_defaults
from polyfuse.ir.dtypes import DType
from polyfuse.layers.clustering.clusters import cuts_of
from polyfuse.options import Options
from polyfuse.runtime.cache.disk import Cache
from polyfuse.support.progress import followed, tell
from polyfuse.tuning.candidates import (
    LATE,
    Candidate,
    Compilers,
    Maker,
    choices_of,
    compilation_of,
    proposals,
)
from polyfuse.tuning.judges import Prediction, judge_for, surest
from polyfuse.tuning.space import WALKS, Space, Steps, Walk, first_steps, having
from polyfuse.tuning.table import OF_THREADS, Row, Tuning, Variant, keep_choices
from polyfuse.tuning.trials import ChildTimer, Timer, TrialFailed
from polyfuse.tuning.tuner import NO_TIME, SURE, about, in_turns, is_faster, timed

if TYPE_CHECKING:
    from polyfuse.driver.compiled import Compiled

# Steps where neither seconds nor steps are given.
STEPS = 300
# The part of the seconds after which the model has told, and that after which the fastest meet again.
BY_MODEL, MET = 0.3, 0.9
# Plans that are compiled and timed together, seconds for timing them, and batches without a limit of time.
BATCH, TURNS_S, BATCHES = 8, 2.0, 4
# Batches that may fail because the default does.
MOST_FAILED = 1
# The fastest ones, which meet the default again; one of them takes its place if it is faster by so much.
LAST, GAIN, LAST_S = 4, 0.99, 4.0
# How strongly measured effects of changes are drawn to what the model says.
PRIOR = 0.5
# What each change adds to the logarithm of a time: of plans that are alike the simplest is tried, and taken.
SIMPLE = 0.001
# What a plan that failed adds to the logarithms of those like it.
FAILED = 1.0
# Rows that are shown.
SHOWN = 12


@dataclass(frozen=True)
class Tuned:
    """What a search has found for one operator at its sizes: what `tune` gives. `print` shows the table.

    Attributes
    ----------
    tuning
        The table of plans, and the one that is taken; times are seconds.
    asked
        Plans that the model told the time of.
    interrupted
        Was it ended early?

    Examples
    --------
    >>> found = pf.tune("stdlib:softmax", sizes={"B_0": 64, "H": 64}, budget=None, steps=5, measure=False)
    >>> found.speedup, str(found.save("plan.json"))
    (1.0, 'plan.json')
    """

    tuning: Tuning
    asked: int
    interrupted: bool = False

    @property
    def plan(self) -> Variant:
        """What is taken: changes by name, and clusters."""
        return self.tuning.chosen

    @property
    def default(self) -> Row:
        """What the compiler does on its own."""
        return self.tuning.rows[0]

    @property
    def best(self) -> Row:
        """The plan that is taken, with its times."""
        return next(r for r in self.tuning.rows if r.variant == self.plan)

    @property
    def speedup(self) -> float:
        """How many times faster the plan is than the default, measured; 1 where nothing was."""
        if not (self.best.measured and self.default.measured):
            return 1.0
        return self.default.measured / self.best.measured

    def save(self, path: str | Path) -> Path:
        """Write the plan into a file at `path`, beside those that it has of other operators and sizes.

        Raises ArgumentError PF490 for a file that is something else.
        """
        keep_choices(Path(path), [self.tuning])
        return Path(path)

    @cached_property
    def table(self) -> tuple[Row, ...]:
        """The default, what was measured, and what the model likes best, by rising time."""
        first, *rest = self.tuning.rows
        rest.sort(key=lambda r: (r.measured is None, r.measured or r.predicted))
        return first, *rest[: SHOWN - 1]

    def __str__(self) -> str:
        shown = replace(self.tuning, rows=self.table)
        told = f"{self.asked} plans by the {self.tuning.judge} model, {len(self.tuning.timed)} measured"
        return f"{told} in {self.tuning.seconds:.0f} s: {self.speedup:.2f} times as fast\n{shown}"

    def _repr_html_(self) -> str:
        head = ("plan", f"{self.tuning.judge} us", "measured us")
        rows = [(str(r.variant), f"{1e6 * r.predicted:.1f}", r.shown) for r in self.table]
        cells = ["".join(f"<td>{escape(c)}</td>" for c in row) for row in rows]
        body = "".join(f"<tr>{c}</tr>" for c in cells)
        title = "".join(f"<th>{h}</th>" for h in head)
        return f"<table><thead><tr>{title}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True)
class Wanted:
    """How to search. walk: one of `WALKS`; seconds: for all, or None; steps: of the walk, or None; measure:
    are the likeliest timed, or does the model decide?"""

    walk: str = "anneal"
    seed: int = 0
    seconds: float | None = 60.0
    steps: int | None = None
    measure: bool = True

    def __post_init__(self) -> None:
        if self.walk not in WALKS:
            raise _wrong("search", self.walk, f"one of {', '.join(map(repr, WALKS))}")
        if self.seconds is not None and not (isinstance(self.seconds, int | float) and self.seconds > 0):
            raise _wrong("budget", self.seconds, "a number of seconds, or None")
        if self.steps is not None and not (type(self.steps) is int and self.steps > 0):
            raise _wrong("steps", self.steps, "a whole number from 1 on, or None")


def search(base: Compilation, wanted: Wanted | None = None, timer: Timer | None = None) -> Tuned:
    """The fastest plan of a compilation that is found; `timer` is replaced in tests.

    Raises ArgumentError PF414 for kernels of a GPU, ScheduleError PF513 for open sizes.  An interrupt from
    the keyboard ends the search, and what was found until then is taken.
    """
    if base.target != "cpu":
        hint = 'tune="measure" tries plans of a GPU\'s kernels'
        raise ArgumentError("plans are searched for the CPU", code="PF414", hint=hint)
    missing = [n for n in base.graph.sizes if n not in base.sizes]
    if missing:
        message = f"a plan is of known sizes, and {', '.join(missing)} is not given"
        raise ScheduleError(message, code="PF513", hint=f'sizes={{"{missing[0]}": 1024}}')
    return _Search(base, wanted or Wanted(), timer).run()


def search_of(
    function: Compiled,
    sizes: Mapping[str, int],
    dtypes: Mapping[str, DType | str] | None,
    ranks: Mapping[str, int] | None,
    wanted: Wanted,
) -> Tuned:
    """The same for a compiled function at some sizes; what it is told, is told as of a compilation."""
    target, passes, options, wish = function.settings
    signature = function.signature
    graph = open_graph(function.programs, signature.op, dtypes, ranks, signature.absent or ())
    check_given(graph.name, graph.sizes, sizes)
    fixed = {n: v for n, v in wish.items() if isinstance(v, int) and n in graph.sizes}
    known = with_defaults(graph, {**fixed, **sizes})
    check_constraints(graph, known)
    made_for = "cpu" if target == "auto" else target
    options = replace(options, tune="model", tuned=None, plan=options.gpu_plan)
    with followed(options.progress):
        return search(compilation(graph, known, target=made_for, options=options, **passes), wanted)


def _wrong(name: str, value: object, expected: str) -> ArgumentError:
    hint = 'tune(program, sizes={"T": 4096}, budget=60, search="anneal")'
    return ArgumentError(f"{name}= cannot be {value!r}: {expected} is expected", code="PF490", hint=hint)


class _Search:
    def __init__(self, base: Compilation, wanted: Wanted, timer: Timer | None) -> None:
        self.base, self.wanted, self.timer = base, wanted, timer
        self.start = time.monotonic()
        self.machine, rates = projected_cpu(base.options.threads)
        self.make = Maker(self.machine, rates, judge_for(base.options, base.knobs.on, self.machine, rates))
        self.walk = Walk(self._seconds)
        self.rows: dict[Variant, Row] = {}
        self.last: list[Row] = []
        self.made: dict[Variant, Candidate] = {}
        self.predictions: dict[Variant, Prediction] = {}

    def run(self) -> Tuned:
        note, interrupted = "", False
        try:
            self._by_model()
            if self.wanted.measure:
                self._on_hardware()
        except KeyboardInterrupt:
            interrupted, note = True, "interrupted"
        except (TrialFailed, OSError) as error:
            some = any(r.measured is not None for r in self.rows.values())
            note = "" if some else f"not measured: {error}"
        found = self._tuning(note, failed=bool(note) and not interrupted)
        for plan, c in self.made.items():  # only what may be taken stays in the cache
            if plan not in (Variant(), found.chosen):
                Cache.open_default().remove(c.key)
        return Tuned(replace(found, seconds=time.monotonic() - self.start), len(self.walk.known), interrupted)

    def until(self, part: float) -> float:
        """The time at which a part of the seconds is spent."""
        return math.inf if self.wanted.seconds is None else self.start + part * self.wanted.seconds

    # --- by the model -------------------------------------------------------------------------------------

    def _by_model(self) -> None:
        graph = self.base.prepared(Watch(Options(dump=None, verify=False)), [])
        usual = tuple(self.base.clusters_of(graph, []))
        choices = choices_of(self.base)
        fixed = fixed_graph(self.base.graph, self.base.sizes)
        singles = [*proposals(fixed, choices, self.machine, plans=len(graph.statements) > 1)]
        if self.machine.threads == 1:
            singles = [v for v in singles if not {*v.changes} & {*OF_THREADS}]
        space = Space(cuts_of(graph), usual, tuple(n for v in singles for n in v.changes))
        first_steps(self.walk, singles, self._steps())
        WALKS[self.wanted.walk](space, self.walk, random.Random(self.wanted.seed), self._steps())

    def _seconds(self, plan: Variant) -> float:
        self.predictions[plan] = self._predicted(plan)
        return self.predictions[plan].seconds

    def _predicted(self, plan: Variant) -> Prediction:
        with followed(False):
            return self.make.predict(compilation_of(self.base, plan))

    def _steps(self) -> Steps:
        most, seconds = self.wanted.steps, self.wanted.seconds
        if most is None and seconds is None:
            most = STEPS
        until = self.until(BY_MODEL if self.wanted.measure else 1.0)
        while (most is None or len(self.walk.known) < most) and time.monotonic() < until:
            spent = 0.0 if seconds is None else (time.monotonic() - self.start) / (until - self.start)
            yield max(spent, 0.0 if most is None else len(self.walk.known) / most)
            self.tell()

    def tell(self) -> None:
        """How far it is."""
        best, first = self.walk.best, self.walk.known[Variant()]
        said = f"{1e6 * self.walk.known[best]:.1f} us instead of {1e6 * first:.1f} us by the model"
        measured = [r.measured for r in self.rows.values() if r.measured is not None]
        if measured:
            usual = self.rows[Variant()].measured or 0.0
            said = f"{1e6 * min(measured):.1f} us instead of {1e6 * usual:.1f} us, {len(measured)} measured"
        seconds, spent = self.wanted.seconds or 0.0, time.monotonic() - self.start
        tell(f"{len(self.walk.known)} plans, {said}; second", round(spent), round(seconds))

    # --- on the hardware ----------------------------------------------------------------------------------

    def _on_hardware(self) -> None:
        with self.timer or ChildTimer(self.base, deadline=self.until(1.0)) as timer:
            _Hardware(self, timer).run()

    def _tuning(self, note: str, failed: bool) -> Tuning:
        """The table, and the plan that is taken: the fastest, or where nothing was to be measured what the
        model says, if that is surely less."""
        measured = [r for r in self.rows.values() if r.measured is not None]
        first = self.rows.get(Variant())
        likely = self.walk.ranked[:SHOWN]
        rows = [Row(Variant(), self.walk.known.get(Variant(), math.inf), None, note or "not measured")]
        if first is not None and measured:
            rows = [first, *(r for v, r in self.rows.items() if not v.is_model)]
        seen = {r.variant for r in rows}
        rows += [Row(v, self.walk.known[v], None, "not measured") for v in likely if v not in seen]
        if first is not None and measured:
            chosen = _taken(self.last or [r for r in rows if r.measured is not None])
        else:
            chosen = Variant() if failed else self._surest()
            note = note or f"the {self.make.judge.name} model decides"
        made = Tuning(self.base.graph.name, tuple(rows), chosen, note, judge=self.make.judge.name)
        return about(made, self.base)

    def _surest(self) -> Variant:
        """What each member of the model surely likes better than the default, which is asked of first."""
        plans = [*self.predictions]
        return plans[surest([*self.predictions.values()], SURE)] if plans[:1] == [Variant()] else Variant()


def _taken(rows: Sequence[Row]) -> Variant:
    """The default, which is the first, or the best of those that are faster by more than noise."""
    able = [r for r in rows[1:] if is_faster(r, rows[0], GAIN)]
    return min(able, key=_slow, default=rows[0]).variant


def _slow(r: Row) -> float:
    """The logarithm of a measured time, and a little for each change."""
    return math.log(r.measured or math.inf) + SIMPLE * len([*_parts(r.variant)])


class _Hardware:
    """Batches of plans that are compiled and timed, by what the model says and earlier batches have told."""

    def __init__(self, search: _Search, timer: Timer) -> None:
        self.search, self.timer = search, timer
        self.rows, self.walk, self.make, self.made = search.rows, search.walk, search.make, search.made
        self.forms: dict[object, Variant] = {}
        self.skipped: set[Variant] = set()
        self.failed = 0

    def run(self) -> None:
        """As many batches as time allows; then the fastest meet the default again."""
        threading.Thread(target=self.timer.begin, daemon=True).start()
        first = self._candidate(Variant())
        assert first is not None
        limit = BATCHES if self.search.wanted.seconds is None else math.inf
        done = 0
        while done < limit and time.monotonic() < self.search.until(MET) and (batch := self._batch()):
            try:
                self._measure(first, batch)
            except TrialFailed:  # of the default: a busy machine may be the reason
                self.failed += 1
                if self.failed > MOST_FAILED:
                    raise
            self.search.tell()
            done += 1
        self._meet_again(first)

    def _candidate(self, plan: Variant) -> Candidate | None:
        """A plan as code; None where it cannot be made, or its code was there before."""
        with followed(False):
            made = self.make(compilation_of(self.search.base, plan), plan)
        if made is None or self.forms.setdefault((made.code.source, repr(made.code.plan)), plan) != plan:
            self.skipped.add(plan)
            return None
        self.made[plan] = made
        return made

    def _batch(self) -> list[Candidate]:
        """The likeliest plans that are not measured yet."""
        found: list[Candidate] = []
        for plan in self._ranked():
            if len(found) == BATCH or time.monotonic() > self.search.until(MET):
                break
            made = self._candidate(plan)
            found += [made] if made is not None else []
        return found

    def _ranked(self) -> list[Variant]:
        """Plans by what is expected of them, the fastest first: those that the model knows, and what gained
        together with the fastest one."""
        expected = self._expected()
        told = {v: self.walk.known[v] for v in self.walk.ranked}
        best = min(self._measured, key=lambda r: r.measured or math.inf, default=None)
        if best is not None:
            for r in self._measured:
                joined = having(best.variant, r.variant)
                told.setdefault(joined, best.predicted * r.predicted / told[Variant()])
        out = {Variant(), *self.rows, *self.skipped}
        waiting = [v for v in told if v not in out]
        return sorted(waiting, key=lambda v: told[v] * math.exp(expected(v) + SIMPLE * len([*_parts(v)])))

    @property
    def _measured(self) -> list[Row]:
        return [r for r in self.rows.values() if r.measured is not None]

    def _expected(self) -> _Correction:
        usual = self.rows.get(Variant())
        if usual is None or usual.measured is None:
            return _Correction()
        told = [
            (r.variant, math.log(r.measured / usual.measured) - math.log(r.predicted / usual.predicted))
            for r in self._measured
            if r.measured is not None
        ]
        failed = [r.variant for r in self.rows.values() if r.measured is None]
        late = {r.variant for r in self.rows.values() if r.note in (LATE, NO_TIME)}
        return _Correction.of([*told, *((v, FAILED) for v in failed if v not in late)])

    def _measure(self, first: Candidate, batch: Sequence[Candidate]) -> None:
        """Compile and time a batch, in turns with the default and the fastest one so far."""
        with Compilers() as compilers:
            for c in (first, *batch):
                compilers.add(c)
            notes = compilers.notes(first, self.search.until(MET))
        if first.key in notes:
            raise TrialFailed(notes[first.key])
        best = min(self._measured, key=lambda r: r.measured or math.inf, default=None)
        known = [self.made[best.variant]] if best is not None and not best.variant.is_model else []
        ready = [first, *known, *(c for c in batch if c.key not in notes)]
        until = min(time.monotonic() + TURNS_S, self.search.until(1.0))
        for found in self._turns(ready, notes, until):
            before = self.rows.get(found.variant)
            times = [r.measured for r in (before, found) if r is not None and r.measured is not None]
            self.rows[found.variant] = replace(found, measured=min(times, default=None))
        for c in batch:
            if c.key in notes:
                self.rows[c.variant] = Row(c.variant, c.predicted, None, notes[c.key])

    def _turns(self, ready: Sequence[Candidate], notes: dict[str, str], until: float) -> list[Row]:
        times = in_turns([c.key for c in ready], self.timer, notes, until)
        return [timed(Row(c.variant, c.predicted, None), times, c.key, notes.get(c.key, "")) for c in ready]

    def _meet_again(self, first: Candidate) -> None:
        """What seems faster is timed once more beside the default; these times count."""
        usual = self.rows.get(Variant())
        faster = [r for r in self._measured if usual is not None and is_faster(r, usual, GAIN)]
        faster.sort(key=_slow)
        if not faster or time.monotonic() > self.search.until(1.0):
            return
        last = [first, *(self.made[r.variant] for r in faster[:LAST])]
        self.search.last = self._turns(last, {}, min(time.monotonic() + LAST_S, self.search.until(1.0)))
        self.rows.update({r.variant: r for r in self.search.last})


@dataclass(frozen=True)
class _Correction:
    """What measurements add to the logarithm of a predicted time, for each change and each cut."""

    effects: dict[object, float] = field(default_factory=dict)

    def __call__(self, plan: Variant) -> float:
        return sum(self.effects.get(part, 0.0) for part in _parts(plan))

    @classmethod
    def of(cls, told: Sequence[tuple[Variant, float]]) -> _Correction:
        """The effects that explain best how far predictions were off, as small as that allows."""
        parts = list(dict.fromkeys(p for plan, _ in told for p in _parts(plan)))
        if not parts:
            return cls()
        place = {p: k for k, p in enumerate(parts)}
        x = np.zeros((len(told), len(parts)))
        for row, (plan, _) in enumerate(told):
            x[row, [place[p] for p in _parts(plan)]] = 1.0
        y = np.array([off for _, off in told])
        found = np.linalg.solve(x.T @ x + PRIOR * np.eye(len(parts)), x.T @ y)
        return cls({p: float(w) for p, w in zip(parts, found, strict=True)})


def _parts(plan: Variant) -> Iterator[object]:
    yield from plan.changes
    if plan.cut is not None:
        yield plan.cut
