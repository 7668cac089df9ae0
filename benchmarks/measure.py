"""Timing: all contenders of a workload in turns, many rounds.

In a round each contender has one turn, in an order that rotates: it wakes up, makes some calls that do not
count (caches and pools are cold after the others), then some that do. The round's value is the median of
those; reported are median, quartiles and minimum over the rounds. Rounds that other programs disturbed
are made again for a while (`benchmarks.quiet`). Bandwidth takes turns with the contenders, for a working
set as large as theirs, and the floor is its median over the rounds: memory that gets slower does so for all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.check import Truth, Verdict
from benchmarks.floor import Compulsory, compulsory
from benchmarks.processes import Child
from benchmarks.quiet import Meter, quiet_rounds
from benchmarks.surroundings import load_average
from benchmarks.turns import ContenderError
from benchmarks.workload import Workload
from polyfuse.runtime.machine.probe import RATES

OURS = "polyfuse"
TURN_S = 0.010
MOST_CALLS = 9


@dataclass(frozen=True)
class Settings:
    """rounds: how often each contender is at turn.  patience_s: per workload, to wait for quiet."""

    rounds: int = 31
    threads: int = 2
    patience_s: float = 60.0


@dataclass(frozen=True)
class Timing:
    """Milliseconds over the rounds."""

    median: float
    low: float
    high: float
    least: float
    rounds: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        ms = sorted(1e3 * s for s in seconds)
        low, _, high = statistics.quantiles(ms, n=4, method="inclusive") if len(ms) > 1 else (ms[0],) * 3
        return cls(statistics.median(ms), low, high, ms[0], len(ms))


@dataclass(frozen=True)
class Entry:
    """One contender on one workload."""

    label: str
    contender: str
    timing: Timing
    first_call_s: float
    launches: int | None
    verdict: Verdict
    facts: Mapping[str, Any]


@dataclass
class Outcome:
    """One workload at one case."""

    workload: str
    case: str
    sizes: dict[str, int]
    need: Compulsory
    floor_ms: float
    rates: dict[str, Any]
    load: tuple[float, float]
    disturbed: tuple[int, int]  # rounds made again, rounds that count though disturbed
    entries: list[Entry]
    failures: list[str] = field(default_factory=list)

    def entry(self, label: str) -> Entry | None:
        """A contender's entry, if it took part."""
        return next((e for e in self.entries if e.label == label), None)

    @property
    def ours(self) -> Entry:
        return next(e for e in self.entries if e.label == OURS)

    @property
    def best_peer(self) -> Entry | None:
        """The fastest contender that is not polyfuse and computes the right thing."""
        peers = [e for e in self.entries if e.contender != OURS and e.verdict.ok]
        return min(peers, key=lambda e: e.timing.median, default=None)

    def best_of(self, contender: str) -> Entry | None:
        """The better one of a contender's settings."""
        mine = [e for e in self.entries if e.contender == contender]
        return min(mine, key=lambda e: e.timing.median, default=None)

    @property
    def ratio(self) -> float | None:
        """How many times faster than the best peer we are."""
        best = self.best_peer
        return best.timing.median / self.ours.timing.median if best else None

    @property
    def share_of_floor(self) -> float:
        """Floor over our time: 1 is the limit of the machine."""
        return self.floor_ms / self.ours.timing.median

    def as_json(self) -> dict[str, Any]:
        """Everything, with the derived figures."""
        best = self.best_peer
        derived = {
            "best_peer": best.label if best else None,
            "ratio": self.ratio,
            "share_of_floor": self.share_of_floor,
        }
        return {**asdict(self), **derived}


@dataclass(frozen=True)
class _Seated:
    """A child that has prepared the workload, in one of its modes."""

    label: str
    child: Child
    mode: str
    answer: dict[str, Any]
    folder: Path


def run(
    workload: Workload, case: str, children: Sequence[Child], settings: Settings, say: Callable[[str], None]
) -> Outcome:
    """Time one case of a workload. Raises ContenderError if polyfuse itself fails."""
    sizes = workload.sizes(case)
    need = compulsory(workload.graph, sizes)
    with TemporaryDirectory() as folder:
        say(f"{case}: compiling")
        seats, failures = _prepare(workload, sizes, children, Path(folder))
        say(f"{case}: float64 reference")
        truth = Truth(workload, sizes)
        verdicts = {s.label: truth.judge(s.folder, strict=s.child.seat.contender == OURS) for s in seats}
    del truth
    say(f"{case}: timing")
    before, floors = load_average(), _Floors.of(children, need)
    seconds, disturbed = _rounds(seats, floors, settings)
    entries = [_entry(s, seconds[s.label], verdicts[s.label]) for s in seats]
    load = (before, load_average())
    floor, rates = 1e3 * floors.seconds(), floors.medians()
    return Outcome(workload.name, case, sizes, need, floor, rates, load, disturbed, entries, failures)


def _prepare(
    workload: Workload, sizes: dict[str, int], children: Sequence[Child], folder: Path
) -> tuple[list[_Seated], list[str]]:
    seats: list[_Seated] = []
    failures: list[str] = []
    for k, child in enumerate(children):
        own = folder / str(k)
        own.mkdir()
        try:
            answer = child.ask(do="prepare", workload=workload.name, sizes=sizes, folder=str(own))
        except ContenderError as error:
            if child.seat.contender == OURS:
                raise
            failures.append(str(error))
            continue
        for mode in answer["modes"]:
            label = child.seat.label + ("" if mode == "call" else f", {mode}")
            seats.append(_Seated(label, child, mode, answer, own))
    return seats, failures


@dataclass(frozen=True)
class _Floors:
    """What the machine reaches in our own process, for a working set: rates of each round, and the floor."""

    child: Child
    need: Compulsory
    rates: list[dict[str, float]]

    @classmethod
    def of(cls, children: Sequence[Child], need: Compulsory) -> _Floors:
        return cls(next(c for c in children if c.seat.contender == OURS), need, [])

    def take(self) -> None:
        self.rates.append({name: self._rate(name) for name in RATES})

    def _rate(self, name: str) -> float:
        answer = self.child.ask(do="rate", name=name, nbytes=self.need.working_set, runs=1)
        return float(answer["rate"])

    def seconds(self) -> float:
        """The median over the rounds."""
        return statistics.median(map(self.need.seconds, self.rates))

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(r[name] for r in self.rates) for name in RATES}


def _rounds(
    seats: Sequence[_Seated], floors: _Floors, settings: Settings
) -> tuple[dict[str, list[float]], tuple[int, int]]:
    meter = Meter(sorted({s.child.pid for s in seats}))
    deadline = time.monotonic() + settings.patience_s
    meter.wait(deadline)
    calls = {s.label: _calls(s) for s in seats}
    seconds: dict[str, list[float]] = {s.label: [] for s in seats}

    def one(k: int) -> None:
        shift = k % len(seats)
        for s in (*seats[shift:], *seats[:shift]):
            turn = s.child.ask(do="turn", mode=s.mode, warm=2, calls=calls[s.label])
            seconds[s.label].append(statistics.median(turn["seconds"]))
        floors.take()

    def undo() -> None:
        floors.rates.pop()
        for found in seconds.values():
            found.pop()

    return seconds, quiet_rounds(one, undo, settings.rounds, meter, deadline)


def _calls(s: _Seated) -> int:
    """Timed calls in a turn: one for slow functions, several for fast ones; also warms up."""
    found = s.child.ask(do="turn", mode=s.mode, warm=3, calls=3)["seconds"]
    return max(1, min(MOST_CALLS, int(TURN_S / min(found)))) | 1


def _entry(s: _Seated, seconds: Sequence[float], verdict: Verdict) -> Entry:
    facts = {k: v for k, v in s.answer.items() if k not in ("first_call_s", "modes", "launches")}
    return Entry(
        s.label,
        s.child.seat.contender,
        Timing.of(seconds),
        s.answer["first_call_s"],
        s.answer.get("launches"),
        verdict,
        facts,
    )
