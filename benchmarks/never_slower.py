"""Is the default ever slower than less fusion? `python -m benchmarks.never_slower [--count 400] [--seed 39]`.

Random programs: chains of maps, reductions over rows and columns, broadcasts, gathers, strided and shifted
reads, recurrences, products; results stored as computed, transposed, strided or at gathered places; sizes
that are powers of two and others, in and out of the caches.  Each is compiled by default, without fusion and
with each single layer, and timed on the same arrays in one process, in turns.  A program counts as slower
where the default takes more than 1.25 times as long as the best of the others in each of three measurements.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

import polyfuse as pf
from benchmarks.pages import write_measured
from benchmarks.random_programs import TRANSPOSED, Drawn, draw
from benchmarks.surroundings import load_average, surroundings

PLANS: dict[str, tuple[str, ...]] = {
    "default": ("loop", "stitch", "pack"),
    "none": (),
    "loop": ("loop",),
    "stitch": ("stitch",),
    "pack": ("pack",),
}
OTHERS = tuple(p for p in PLANS if p != "default")
"""The plans that the default is held against."""
SEED = 39
BOUND = 1.25
MEASUREMENTS = 3
LEAST_S = 20e-6
"""Calls shorter than this measure the call, not the code: such programs are left out."""
TURN_S = 0.002
ROUNDS = 7
WARM_UP_S = 0.01
AHEAD = 8
"""Programs that are compiled while others are measured; the compiler uses a core meanwhile."""
PAGE = Path(__file__).resolve().parents[1] / "docs" / "lab" / "never_slower.md"


@dataclass(frozen=True)
class Row:
    """A program and seconds of a call by plan, for each measurement."""

    number: int
    kinds: tuple[str, ...]
    text: str
    seconds: dict[str, list[float]]

    def ratio(self, k: int) -> float:
        """The default over the best of the others, in one measurement."""
        return self.seconds["default"][k] / min(self.seconds[p][k] for p in OTHERS)

    @property
    def worst(self) -> float:
        """The ratio that all measurements bear out."""
        return min(self.ratio(k) for k in range(len(self.seconds["default"])))

    @property
    def over_unfused(self) -> float:
        """The default over no fusion, of the best times."""
        return min(self.seconds["default"]) / min(self.seconds["none"])

    @property
    def rival(self) -> str:
        """The fastest of the others."""
        return min(OTHERS, key=lambda p: min(self.seconds[p]))


def compiled(program: Drawn, arrays: dict[str, np.ndarray]) -> dict[str, Callable[[], Any]]:
    """A call of each plan, on the same arrays."""
    made = {name: pf.compile(program.text, layers=layers, target="cpu") for name, layers in PLANS.items()}
    return {name: f.bind(**arrays) for name, f in made.items()}


def prepare(program: Drawn) -> str:
    """Compile all plans, so that the kernels are in the cache; "" or what failed."""
    try:
        compiled(program, program.arrays())
    except pf.PolyfuseError as error:
        return f"{error}"
    return ""


def measure(
    program: Drawn, turn_s: float = TURN_S, measurements: int = MEASUREMENTS
) -> dict[str, list[float]] | None:
    """Seconds of a call by plan; None for a program that is too short."""
    calls = compiled(program, program.arrays())
    counts = {}
    for name, call in calls.items():
        began, count = time.perf_counter(), 0
        while time.perf_counter() < began + WARM_UP_S:
            call()
            count += 1
        counts[name] = max(1, round(turn_s / ((time.perf_counter() - began) / count)))
    found: dict[str, list[float]] = {name: [] for name in PLANS}
    for _ in range(measurements):
        rounds = _measurement(calls, counts)
        for name in PLANS:
            found[name].append(min(rounds[name]))
    return found if min(found["default"]) >= LEAST_S else None


def _measurement(calls: dict[str, Callable[[], Any]], counts: dict[str, int]) -> dict[str, list[float]]:
    """Seconds of a call, the best of a turn, in turns of all plans."""
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for k in range(ROUNDS):
        for name in order if k % 2 else reversed(order):
            call, best = calls[name], math.inf
            for _ in range(counts[name]):
                began = time.perf_counter()
                call()
                best = min(best, time.perf_counter() - began)
            rounds[name].append(best)
    return rounds


def geomean(values: Sequence[float]) -> float:
    """Their geometric mean; nan of none."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def collect(
    count: int, seed: int, only: Sequence[int], told: Callable[[int], None]
) -> tuple[list[Row], list[str]]:
    """So many rows, and what was left out; `told` hears how many there are."""
    rows: list[Row] = []
    left: list[str] = []
    drawn = draw(seed)
    wanted = (p for p in drawn if p.number in only) if only else drawn
    count = len(only) or count
    with ProcessPoolExecutor(1) as pool:
        ahead: list[tuple[Drawn, Future[str]]] = []
        while len(rows) + (len(left) if only else 0) < count:
            while len(ahead) < (AHEAD if not only else min(AHEAD, count - len(rows) - len(left))):
                program = next(wanted)
                ahead.append((program, pool.submit(prepare, program)))
            program, made = ahead.pop(0)
            if failed := made.result():
                left.append(f"{program.number}: {failed}")
            elif (seconds := measure(program)) is None:
                left.append(f"{program.number}: a call is shorter than {LEAST_S * 1e6:.0f} us")
            else:
                rows.append(Row(program.number, program.kinds, program.text, seconds))
            told(len(rows))
        for _, made in ahead:
            made.cancel()
    return rows, left


def report(rows: Sequence[Row], worst: int) -> str:
    """A summary, and the rows in which the default is slowest beside the others, as Markdown."""
    groups = {
        "all": rows,
        "with a transposed result": [r for r in rows if TRANSPOSED in r.kinds],
        "without": [r for r in rows if TRANSPOSED not in r.kinds],
    }
    lines = [
        f"| programs | number | default / no fusion | default / best | above {BOUND} | above 2 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, some in groups.items():
        ratios = [r.worst for r in some]
        slow = " | ".join(str(sum(x > bound for x in ratios)) for bound in (BOUND, 2))
        over = f"{geomean([r.over_unfused for r in some]):.2f} | {geomean(ratios):.2f}"
        lines.append(f"| {name} | {len(some)} | {over} | {slow} |")
    lines += ["", "| program | default / best | " + " | ".join(f"{p}, us" for p in PLANS) + " | has |"]
    lines.append("|---:|---:|" + "---:|" * len(PLANS) + "---|")
    for r in sorted(rows, key=lambda r: -r.worst)[:worst]:
        times = " | ".join(f"{min(r.seconds[p]) * 1e6:.0f}" for p in PLANS)
        lines.append(f"| {r.number} | {r.worst:.2f} | {times} | {', '.join(r.kinds)} |")
    return "\n".join(lines)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    about = "python -m benchmarks.never_slower", __doc__ or ""
    return parser_of(*about, count=400, worst=20, shown="the text").parse_args(arguments)


def parser_of(prog: str, about: str, *, count: int, worst: int, shown: str) -> argparse.ArgumentParser:
    """The command line of a comparison of plans on random programs."""
    parser = argparse.ArgumentParser(prog=prog, description=about.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=count, metavar="N", help=f"programs ({count})")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"of what is drawn ({SEED})")
    parser.add_argument("--only", type=int, nargs="+", default=[], metavar="N", help="these programs alone")
    parser.add_argument("--worst", type=int, default=worst, metavar="N", help=f"rows of the table ({worst})")
    parser.add_argument("--show", action="store_true", help=f"print {shown} of what is above the bound")
    parser.add_argument("--out", type=Path, metavar="FILE", help="all rows as JSON")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, save. 1 if the default is slower than the bound allows anywhere."""
    chosen, console = options(arguments), Console(stderr=True)
    warnings.simplefilter("ignore", pf.PolyfuseWarning)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("programs", total=len(chosen.only) or chosen.count)
        rows, left = collect(
            chosen.count, chosen.seed, chosen.only, lambda n: progress.update(bar, completed=n)
        )
    about = surroundings()
    found = report(rows, chosen.worst)
    head = f"{about['cpu']}, {about['date'][:10]}, seed {chosen.seed}, load average {load_average():.1f}; "
    head += f"{len(left)} programs were left out.\n\n"
    print(head + found)
    if chosen.show:
        print(*(f"\n# {r.number}\n{r.text}" for r in rows if r.worst > BOUND))
    if chosen.out:
        chosen.out.write_text(json.dumps({"about": about, "rows": [asdict(r) for r in rows], "left": left}))
    if chosen.write:
        write_measured(PAGE, head + found)
    return 1 if any(r.worst > BOUND for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
