"""Projected against measured times of GPU kernels: `python -m benchmarks.gpu_projection [--fit] [--write]`.

`benchmarks/baseline/gpu_points.json` has 166 timings of one hour on an H200 with what a warp of each kernel
does, counted in its machine code: 34 operators as they were generated at commit 6063148, and 132 kernels that
were written by hand in sweeps.  A third of them, by a hash of the name, is kept out of the fit.

Told are the mean absolute error (MAPE) of both parts, and how many pairs of hand-written kernels of one
pattern that differ clearly, by more than 5 %, are ordered rightly.  `--fit` prints constants as they would be
fitted (SciPy), `--write` writes the figures into the documentation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from hashlib import sha256
from itertools import combinations
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.pages import write_measured
from polyfuse.cost.device import device, occupancy
from polyfuse.cost.gpu_projection import FITTED, Constants, Launched, Projected, projected
from polyfuse.ir.warp_work import WarpWork

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "benchmarks" / "baseline" / "gpu_points.json"
PAGE = ROOT / "docs" / "lab" / "gpu_projection.md"
H200 = device("H200")
# One in so many is kept out of the fit.
KEPT_OUT = 3
CLEAR = 0.05
# Generated operators count more in the fit: there are fewer of them, and they are what is projected.
WEIGHTS = {"operator": 2.0, "hand": 1.0}
# Where constants may lie; outside they would mean nothing.
BOUNDS = {
    "bandwidth": (0.8, 0.94),
    "issue": (0.5, 1.0),
    "alu": (0.5, 1.0),
    "mufu": (0.5, 1.0),
    "lsu": (0.4, 1.0),
    "load_s": (0.3e-6, 0.66e-6),
    "block_barrier_s": (1e-9, 0.2e-6),
    "grid_barrier_s": (0.5e-6, 5e-6),
    "launch_s": (0.5e-6, 6e-6),
    "fill": (1e-3, 3.0),
    "power": (1.5, 8.0),
}


@dataclass(frozen=True, slots=True)
class Point:
    """A measured case: its kernels, in the order of their launches, and milliseconds of all."""

    name: str
    kind: str
    kernels: tuple[Launched, ...]
    measured: float

    @property
    def held(self) -> bool:
        """Is it kept out of the fit?"""
        return int(sha256(self.name.encode()).hexdigest(), 16) % KEPT_OUT == 0

    @property
    def pattern(self) -> str:
        """What hand-written kernels of one sweep share."""
        return self.name.split()[0].partition("(")[0]

    def parts(self, constants: Constants = FITTED) -> list[Projected]:
        return [projected(k, H200, constants) for k in self.kernels]

    def projected(self, constants: Constants = FITTED) -> float:
        """Milliseconds."""
        return 1e3 * sum(p.seconds for p in self.parts(constants))


@cache
def points() -> tuple[Point, ...]:
    """All that is in the file."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return tuple(
        Point(p["name"], p["kind"], tuple(map(_launched, p["kernels"])), p["ms"]) for p in found["points"]
    )


def _launched(k: Mapping[str, Any]) -> Launched:
    fits = occupancy(H200, k["threads"], k["registers"], k["shared"])
    return Launched(_work(k["work"]), k["blocks"], k["threads"], max(1, fits.blocks_per_sm), k["memory"])


def _work(w: Mapping[str, Any]) -> WarpWork:
    widths = {n: {int(b): v for b, v in w.get(n, {}).items()} for n in ("loads", "stores")}
    rest = {n: v for n, v in w.items() if n not in ("loads", "stores", "phases")}
    return WarpWork(**rest, **widths, phases=tuple(map(_work, w.get("phases", ()))))


# --- figures ---------------------------------------------------------------------------------------------


def mape(found: Sequence[Point], constants: Constants = FITTED) -> float:
    """Mean of |projected / measured - 1|."""
    return fmean(abs(p.projected(constants) / p.measured - 1) for p in found)


def ordered(found: Sequence[Point], constants: Constants = FITTED) -> tuple[int, int]:
    """Of pairs of one pattern that differ clearly: those that are ordered rightly, and all."""
    hand = [(p.pattern, p.measured, p.projected(constants)) for p in found if p.kind == "hand"]
    clear = [
        (a, b)
        for a, b in combinations(hand, 2)
        if a[0] == b[0] and max(a[1], b[1]) > (1 + CLEAR) * min(a[1], b[1])
    ]
    return sum((a[1] < b[1]) == (a[2] < b[2]) for a, b in clear), len(clear)


def summary() -> dict[str, Any]:
    """The figures of all points, of those that were fitted, and of those that were not."""
    found: dict[str, Any] = {}
    groups: dict[str, Callable[[Point], bool]] = {
        "fitted": lambda p: not p.held,
        "kept out": lambda p: p.held,
        "kept out, operators": lambda p: p.held and p.kind == "operator",
        "kept out, by hand": lambda p: p.held and p.kind == "hand",
        "all": lambda p: True,
    }
    for name, inside in groups.items():
        chosen = [p for p in points() if inside(p)]
        found[name] = {"points": len(chosen), "mape": mape(chosen), "ordered": ordered(chosen)}
    return found


def table() -> str:
    """The figures as Markdown, then the operators, then the patterns of hand-written kernels."""
    rows = ["| points | number | MAPE | clear pairs of one pattern |", "|---|---|---|---|"]
    for name, f in summary().items():
        right, clear = f["ordered"]
        pairs = f"{right} of {clear} ({right / clear:.0%})" if clear else ""
        rows.append(f"| {name} | {f['points']} | {f['mape']:.1%} | {pairs} |")
    rows += ["", "| by hand | number | MAPE | clear pairs | worst |", "|---|---|---|---|---|"]
    hand = [p for p in points() if p.kind == "hand"]
    for pattern in dict.fromkeys(p.pattern for p in hand):
        mine = [p for p in hand if p.pattern == pattern]
        right, clear = ordered(mine)
        worst = max(mine, key=lambda p: abs(log(p.projected() / p.measured)))
        ratio = f"{worst.name}: {worst.projected() / worst.measured:.2f}"
        rows.append(f"| {pattern} | {len(mine)} | {mape(mine):.1%} | {right} of {clear} | {ratio} |")
    rows += [
        "",
        "| operator | measured, ms | projected, ms | ratio | limit | kept out |",
        "|---|---|---|---|---|---|",
    ]
    for p in points():
        if p.kind == "operator":
            most = max(p.parts(), key=lambda k: k.seconds)
            ms, held = p.projected(), "yes" if p.held else ""
            rows.append(
                f"| {p.name} | {p.measured:.4f} | {ms:.4f} | {ms / p.measured:.2f} | {most.limit} | {held} |"
            )
    return "\n".join(rows)


# --- the fit ---------------------------------------------------------------------------------------------


def loss(found: Sequence[Point], constants: Constants) -> float:
    """What is made small: the mean of |log(projected / measured)|, by weight."""
    errors = [WEIGHTS[p.kind] * abs(log(p.projected(constants) / p.measured)) for p in found]
    return sum(errors) / sum(WEIGHTS[p.kind] for p in found)


def fitted(rounds: int = 4) -> Constants:
    """The constants that fit the points that are not kept out best. Needs SciPy."""
    from scipy.optimize import minimize

    chosen = [p for p in points() if not p.held]
    limits = [BOUNDS[f.name] for f in fields(Constants)]

    def constants(logs: Sequence[float]) -> Constants:
        return Constants(*(min(max(exp(x), lo), hi) for x, (lo, hi) in zip(logs, limits, strict=True)))

    def bounded(logs: Sequence[float]) -> float:
        made = constants(logs)
        return loss(chosen, made) + sum(abs(x - log(v)) for x, v in zip(logs, astuple(made), strict=True))

    logs = [log(v) for v in astuple(FITTED)]
    for k in range(rounds):
        how = "Powell" if k % 2 else "Nelder-Mead"
        logs = list(minimize(bounded, logs, method=how, options={"maxiter": 1500, "maxfev": 2000}).x)
    return constants(logs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; fit, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--fit", action="store_true", help="fit the constants to the points again")
    parser.add_argument("--write", action="store_true", help="write the figures into the documentation")
    options = parser.parse_args(arguments)
    if options.fit:
        made = fitted()
        for f in fields(made):
            print(f"    {f.name}={getattr(made, f.name):.4g},")
        chosen = [p for p in points() if p.held]
        print(f"kept out: {mape(chosen, made):.2%}, {ordered(chosen, made)}; all {ordered(points(), made)}")
        return 0
    print(table())
    if options.write:
        write_measured(PAGE, table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
