"""Timing of made samples, in a process that one program after the other is sent to.

    FOLDER/<name>.made  --one line of JSON-->  the process  --seconds of each plan-->  FOLDER/<name>.timed

All plans of a program are loaded, checked against the first one's results, and timed in turns: each round has
a repeat of each, which is the mean of so many calls as take `REPEAT_S`, after one that warms up.  A plan has
the median of its repeats; where these spread by more than `NOISY` it is timed again, and at last left out.
A program that crashes or hangs ends its process, not the collection.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfuse.learn.samples import Sample, Samples, collected, load
from polyfuse.support.processes import Child, ChildDied, ChildLate, ChildUnavailable, serve
from polyfuse.tuning.trial import Trials

TIMED = ".timed"
READY = "polyfuse timing 1"
NOISY = 0.10
ROUNDS, FEWEST, AGAIN = 7, 5, 2
REPEAT_S, MOST_CALLS = 150e-6, 200
# Plans that take longer have fewer rounds.
LONG_S = 5e-3
# Seconds of one program at most, and for its process to answer beyond that.
PROGRAM_S, GRACE_S = 12.0, 10.0
IDLE_S = 120.0

# --- in the process ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What was found of the plans of one program, by their keys: seconds with spread, or what is wrong."""

    seconds: Mapping[str, tuple[float, float]]
    notes: Mapping[str, str]
    complete: bool = True

    def as_json(self) -> dict[str, Any]:
        return {"seconds": dict(self.seconds), "notes": dict(self.notes), "complete": self.complete}

    def beside(self, before: Result) -> Result:
        """With what was found of other plans before."""
        seconds = {**before.seconds, **self.seconds}
        return Result(seconds, {k: n for k, n in self.notes.items() if k not in seconds}, self.complete)

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Result:
        seconds = {k: (float(a), float(b)) for k, (a, b) in data["seconds"].items()}
        return cls(seconds, dict(data["notes"]), bool(data["complete"]))


def answer(line: str) -> str:
    """One program as JSON for its times as JSON."""
    request = json.loads(line)
    if request["core"] is not None:
        os.sched_setaffinity(0, {request["core"]})
    trials = Trials()
    trials.do_prepare(request["inputs"], request["root"], True, request["threads"])
    until = time.monotonic() + request["seconds"]
    found, notes = calls_of(trials, request["keys"], until)
    complete = found.keys() | notes.keys() == {*request["keys"]}
    seconds = measured(found, until)
    noisy = {k: f"spreads by {s:.0%}" for k, (_, s) in seconds.items() if s > NOISY}
    kept = {k: v for k, v in seconds.items() if k not in noisy}
    complete = complete and seconds.keys() == found.keys()
    return json.dumps(Result(kept, {**notes, **noisy}, complete).as_json())


Calls = Mapping[str, tuple[Callable[[], None], float]]


def calls_of(trials: Trials, keys: Sequence[str], until: float) -> tuple[Calls, dict[str, str]]:
    """Each plan loaded and run: its call with the seconds of a warm one; and what is wrong with others."""
    found: dict[str, tuple[Callable[[], None], float]] = {}
    notes: dict[str, str] = {}
    for key in dict.fromkeys(keys):
        if time.monotonic() > until:
            break
        told = trials.do_run(key)
        if "error" in told:
            notes[key] = str(told["error"])
            continue
        call = trials.calls[key]
        found[key] = call, mean_of(call, 1)
    return found, notes


def measured(found: Calls, until: float) -> dict[str, tuple[float, float]]:
    """Median and spread of each; those that spread too much are timed again, beside the first one."""
    times: dict[str, list[float]] = {}
    left = [*found]
    for _ in range(1 + AGAIN):
        if not left or time.monotonic() > until:
            break
        times |= in_turns({k: found[k] for k in left}, until)
        left = [k for k in left if len(times[k]) >= FEWEST and spread(times[k]) > NOISY]
    return {k: (statistics.median(t), spread(t)) for k, t in times.items() if len(t) >= FEWEST}


def in_turns(found: Calls, until: float) -> dict[str, list[float]]:
    """A repeat of each in each round, the order of which moves on."""
    times: dict[str, list[float]] = {key: [] for key in found}
    order = [*found]
    for k in range(ROUNDS):
        for key in (*order[k % len(order) :], *order[: k % len(order)]):
            call, once = found[key]
            if time.monotonic() > until or (k >= FEWEST and once > LONG_S):
                continue
            times[key].append(mean_of(call, max(1, min(MOST_CALLS, math.ceil(REPEAT_S / max(once, 1e-7))))))
    return times


def mean_of(call: Callable[[], None], count: int) -> float:
    """Seconds of a call, on average over so many after one that warms up."""
    call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def spread(times: Sequence[float]) -> float:
    """How far the middle half of repeats lies apart, relative to their median."""
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / max(middle, 1e-12)


# --- outside of it ----------------------------------------------------------------------------------------


@dataclass
class Timer:
    """Sends programs to the process, and keeps what it finds beside them."""

    folder: Path
    core: int | None = None

    def __post_init__(self) -> None:
        self._child = Child("polyfuse.learn.timing", READY)

    def close(self) -> None:
        with self._child.lock:
            self._child.kill()

    def time(self, made: Path, seconds: float) -> Result | None:
        """The times of one program, in so many seconds at most; None where more are needed."""
        known = load(made)
        limit = min(PROGRAM_S, seconds)
        request = {
            "inputs": known.about["inputs"],
            "keys": known.about["keys"],
            "threads": known.about["threads"],
            "root": str(self.folder / "cache"),
            "seconds": limit,
            "core": self.core,
        }
        try:
            with self._child.lock:
                self._child.ensure_started()
                data = json.loads(self._child.exchange(json.dumps(request).encode(), limit + GRACE_S))
            result = Result.of_json(data)
        except (ChildDied, ChildLate, ChildUnavailable, ValueError, KeyError) as error:
            self.close()
            result = Result({}, dict.fromkeys(request["keys"], f"not timed: {type(error).__name__}"))
        if not result.complete and limit < PROGRAM_S:
            return None
        if (before := known_result(made)) is not None:
            result = result.beside(before)
        made.with_suffix(TIMED).write_text(json.dumps(result.as_json()), encoding="utf-8")
        return result


def known_result(made: Path) -> Result | None:
    """What was found of a program before."""
    file = made.with_suffix(TIMED)
    return Result.of_json(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def has_noise(made: Path) -> bool:
    """Was a plan of a program left out for noise?"""
    known = known_result(made)
    return known is not None and any(map(_is_noise, known.notes.values()))


def _is_noise(note: str) -> bool:
    return note.startswith("spreads")


def timed_samples(made: Iterable[Path]) -> tuple[list[Sample], dict[str, int]]:
    """The samples of programs that are timed, and counts: what was made, timed, left out for noise, and
    failed."""
    found: list[Sample] = []
    counts = {"made": 0, "timed": 0, "noisy": 0, "failed": 0}
    for file in made:
        result = known_result(file)
        if result is None:
            continue
        known = load(file)
        mine = [*_timed(known, result)]
        found += mine if any(s.default for s in mine) else []
        notes = [*map(_is_noise, result.notes.values())]
        counts["made"] += len({*known.about["keys"]})
        counts["timed"] += len(result.seconds)
        counts["noisy"] += sum(notes)
        counts["failed"] += len(notes) - sum(notes)
    return found, counts


def _timed(known: Samples, result: Result) -> Iterable[Sample]:
    for k, key in enumerate(known.about["keys"]):
        if key in result.seconds:
            known.seconds[k], known.spread[k] = result.seconds[key]
            yield known.sample(k)


def gathered(folder: Path, made: Iterable[Path], about: Mapping[str, Any]) -> Samples:
    """All that is timed in a folder, with what is known of it."""
    found, counts = timed_samples(made)
    return collected(found, {**about, **counts})


def main() -> None:
    serve(READY, answer, IDLE_S)


if __name__ == "__main__":
    main()
