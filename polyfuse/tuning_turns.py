"""Variants timed in turns, and which of them is faster by more than the noise.

    first runs, one after the other --> rounds: each in turn, what is far behind is left out --> times of each

The shortest time of a variant counts: other programs only make it longer.  How far that can be trusted is its
`spread`: how much the shortest times of the even and of the odd rounds differ.  A variant takes the place of
the model's choice only if it is faster by more than the spread of both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from polyfuse.trials import Timer, TrialFailed
from polyfuse.tuned import Row

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


def is_faster(row: Row, first: Row) -> bool:
    """Is a variant faster than the model's choice, by more than noise?"""
    if row.measured is None or first.measured is None:
        return False
    noise = max(row.spread, first.spread)
    return row.measured < GAIN * first.measured and row.measured * (1 + noise) < first.measured


def fastest(rows: Sequence[Row]) -> Row:
    """The model's choice, which is the first, or the fastest of those that are faster by more than noise."""
    able = [r for r in rows[1:] if is_faster(r, rows[0])]
    return min(able, key=lambda r: r.measured or 0.0, default=rows[0])
