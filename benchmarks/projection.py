"""Projected against measured time of variants: `python -m benchmarks.projection [--only NAME ...] [--write]`.

Every workload is compiled in all the variants that `polyfuse.tuning.tuner` would propose for it; each is
projected (`polyfuse.cost.projection`, with rates measured on this machine first) and timed in a child
process, all in turns, the shortest time of each.  Told are, for each workload and for all: Spearman's rank
correlation of both times, the mean absolute error of the projected ones, and what the projected choice would
lose.

A run of all workloads takes the place of the last one in `benchmarks/results`, in the folder of this kind of
machine; one of some is written only to the folder that `--out` names.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import polyfuse as pf
from benchmarks.pages import write_measured
from benchmarks.surroundings import RESULTS, load_average, machine_kind, surroundings, write_json
from benchmarks.workload import Workload, select
from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.projection import Rates
from polyfuse.driver.pipeline import Compilation
from polyfuse.driver.targets import projected_cpu
from polyfuse.ir.layouts import Layouts
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.options import Options
from polyfuse.runtime.cpu.pool import Pool, default_threads
from polyfuse.runtime.machine.op_rates import op_rates
from polyfuse.runtime.machine.probe import level_sets, measure
from polyfuse.runtime.toolchain.compiler import compile_shared
from polyfuse.tuning import candidates, tuner
from polyfuse.tuning.trials import ChildTimer

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "lab" / "projection.md"
LOWER_S, TIME_S = 30.0, 2.5
MACHINE_RUNS, REPEATS = 4, 2
# Two variants differ clearly where the slower one is slower in each process, by so much at least.
CLEAR = 0.05


@dataclass(frozen=True)
class Point:
    """One variant of one case: seconds, the shortest time of each process that measured it."""

    case: str
    variant: str
    projected: float
    repeats: tuple[float, ...]

    @property
    def measured(self) -> float:
        """The shortest of all."""
        return min(self.repeats)


def measured_machine(threads: int) -> tuple[CpuDevice, Rates]:
    """This machine's rates, each the best of several measurements: other programs only make them worse."""
    found: list[tuple[CpuDevice, Rates]] = []
    Pool.get().set_threads(threads)
    for _ in range(MACHINE_RUNS):
        for size in level_sets(threads):
            measure(size, refresh=True)
        op_rates(threads, refresh=True)
        found.append(projected_cpu(threads))
    machines = [m for m, _ in found]
    levels = tuple(
        max(each, key=lambda x: x.bandwidth) for each in zip(*(m.levels for m in machines), strict=True)
    )
    seconds = {kind: min(r.seconds[kind] for _, r in found) for kind in found[0][1].seconds}
    best = max(m.operations for m in machines)
    return replace(machines[0], levels=levels, operations=best), Rates(seconds, True)


def points(workload: Workload, case: str, make: candidates.Maker) -> list[Point]:
    """All variants of a case."""
    options = Options(threads=make.machine.threads, verify=False, dump=None)
    sizes = workload.sizes(case)
    layers = pf.LoopFusion(), pf.Stitching(), pf.Packing()
    base = Compilation(
        workload.graph, sizes, layers[0], options, Layouts(), "cpu", layers[1], layers[2], Clustering()
    )
    found = candidates.proposed(base, make, time.monotonic() + LOWER_S).candidates
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda c: compile_shared(c.code.source), found))
    times: list[tuner.Times] = []
    for _ in range(REPEATS):
        with ChildTimer(base) as timer:
            keys = [c.key for c in found]
            times.append(tuner.in_turns(keys, timer, {}, time.monotonic() + TIME_S, far=inf))
    complete = [c for c in found if all(each.get(c.key) for each in times)]
    return [
        Point(case, str(c.variant), c.predicted, tuple(min(each[c.key]) for each in times)) for c in complete
    ]


# --- figures ---------------------------------------------------------------------------------------------


def ranks(values: Sequence[float]) -> list[float]:
    """Places in rising order; equal values share the mean of theirs."""
    order = sorted(values)
    return [order.index(v) + (order.count(v) - 1) / 2 for v in values]


def spearman(found: Sequence[Point]) -> float | None:
    """Correlation of the ranks of projected and measured times; None where there is no order."""
    if len(found) < 3:
        return None
    a, b = ranks([p.projected for p in found]), ranks([p.measured for p in found])
    if len(set(a)) == 1 or len(set(b)) == 1:
        return None
    return statistics.correlation(a, b)


def mape(found: Sequence[Point]) -> float:
    """Mean of |projected / measured - 1|."""
    return statistics.fmean(abs(p.projected / p.measured - 1) for p in found)


def shape_error(found: Sequence[Point]) -> float:
    """The same of times relative to the model's choice, which is what a choice among variants needs."""
    first = found[0]
    ratio = first.measured / first.projected
    return statistics.fmean(abs(p.projected * ratio / p.measured - 1) for p in found)


def clearly(a: Point, b: Point) -> bool:
    """Does the slower of two variants stay behind the other one, whichever processes are compared?"""
    fast, slow = sorted((a, b), key=lambda p: p.measured)
    return min(slow.repeats) > (1 + CLEAR) * max(fast.repeats)


def ordered(found: Sequence[Point]) -> tuple[int, int]:
    """Of pairs of variants that differ clearly: those that the model orders rightly, and all."""
    pairs = [(a, b) for k, a in enumerate(found) for b in found[k + 1 :]]
    clear = [(a, b) for a, b in pairs if clearly(a, b)]
    right = sum((a.measured < b.measured) == (a.projected < b.projected) for a, b in clear)
    return right, len(clear)


def noise(found: Sequence[Point]) -> float:
    """How far the processes' times of one variant are apart: the median over the variants."""
    return statistics.median(max(p.repeats) / min(p.repeats) - 1 for p in found)


def spread(found: Sequence[Point]) -> float:
    """How far the variants are apart: the slowest over the fastest."""
    return max(p.measured for p in found) / min(p.measured for p in found) - 1


def ceiling(found: Sequence[Point]) -> float | None:
    """Spearman's correlation of one process's times with the other's: a perfect model reaches no more."""
    return spearman([Point(p.case, p.variant, p.repeats[0], p.repeats[-1:]) for p in found])


def lost(found: Sequence[Point]) -> float:
    """How much slower than the best the variant with the shortest projected time is."""
    chosen = min(found, key=lambda p: p.projected)
    return chosen.measured / min(p.measured for p in found) - 1


def summary(found: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    """Figures of all cases, and of all points together."""
    everything = [p for each in found.values() for p in each]
    cases: dict[str, dict[str, Any]] = {
        case: {
            "variants": len(each),
            "spearman": spearman(each),
            "mape": mape(each),
            "relative_error": shape_error(each),
            "ceiling": ceiling(each),
            "noise": noise(each),
            "spread": spread(each),
            "ordered": ordered(each),
            "lost": lost(each),
        }
        for case, each in found.items()
    }
    within, most = (
        [c[name] for c in cases.values() if c[name] is not None] for name in ("spearman", "ceiling")
    )
    return {
        "cases": cases,
        "variants": len(everything),
        "spearman": spearman(everything),
        "spearman_within": statistics.fmean(within) if within else None,
        "ceiling": statistics.fmean(most) if most else None,
        "mape": mape(everything),
        "noise": statistics.median(c["noise"] for c in cases.values()),
        "spread": statistics.median(c["spread"] for c in cases.values()),
        "ordered": [sum(c["ordered"][k] for c in cases.values()) for k in (0, 1)],
        "relative_error": statistics.fmean(c["relative_error"] for c in cases.values()),
        "lost": statistics.fmean(c["lost"] for c in cases.values()),
    }


def table(figures: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    rows = [
        "| case | variants | apart | noise | Spearman | of a repeat | MAPE | relative | pairs | lost |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, c in figures["cases"].items():
        rows.append(f"| {case} | {_cells(c, _rank(c['spearman']))} |")
    rank = f"{figures['spearman']:.2f} ({figures['spearman_within']:.2f} within a case)"
    rows.append(f"| all | {_cells(figures, rank)} |")
    return "\n".join(rows)


def _rank(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _cells(figures: Mapping[str, Any], rank: str) -> str:
    right, clear = figures["ordered"]
    shares = [f"{figures[name]:.0%}" for name in ("spread", "noise")]
    errors = [f"{figures[name]:.0%}" for name in ("mape", "relative_error")]
    pairs = f"{right} of {clear}" if clear else ""
    cells = [str(figures["variants"]), *shares, rank, _rank(figures["ceiling"]), *errors, pairs]
    return " | ".join([*cells, f"{figures['lost']:.0%}"])


def draw(found: Mapping[str, Sequence[Point]], file: Path) -> None:
    """A scatter plot: on the line, projected and measured times are the same. None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "polyfuse"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 7))
    colors = plt.get_cmap("tab20")
    for k, (case, each) in enumerate(found.items()):
        xs, ys = [p.measured * 1e6 for p in each], [p.projected * 1e6 for p in each]
        axes.scatter(xs, ys, s=14, color=colors(k % 20), marker="ov^s"[k // 20 % 4], label=case)
    ends = [min(p.measured for e in found.values() for p in e) * 1e6, 0.0]
    ends[1] = max(p.measured for e in found.values() for p in e) * 1e6
    axes.plot(ends, ends, color="#888888", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="measured, us", ylabel="projected, us")
    axes.legend(fontsize=6, ncols=2)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the machine, then all variants; print, save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.projection", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="workloads or cases")
    parser.add_argument("--others", action="store_true", help="at shapes beside the public ones")
    parser.add_argument("--threads", type=int, default=default_threads(), metavar="N", help="threads (all)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the results",
    )
    parser.add_argument("--write", action="store_true", help="write the figures into the documentation")
    chosen = parser.parse_args(arguments)
    before = load_average()
    make = candidates.Maker(*measured_machine(chosen.threads))
    found: dict[str, list[Point]] = {}
    for workload, case in select(chosen.only, chosen.others):
        found[case] = points(workload, case, make)
        print(f"{case}: {len(found[case])} variants, lost {lost(found[case]):.0%}", flush=True)
    figures = summary(found)
    print(table(figures))
    about = {**surroundings(), "threads": make.machine.threads, "load": (before, load_average())}
    name = "projection-others" if chosen.others else "projection"
    where = chosen.out or (None if chosen.only else RESULTS / machine_kind(about))
    if where:
        every = [asdict(p) for each in found.values() for p in each]
        write_json(where / f"{name}.json", {"about": about, "figures": figures, "points": every})
        draw(found, where / f"{name}.svg")
    if chosen.write:
        text = f"{_measured_on(about)}\n\n{table(figures)}\n"
        write_measured(PAGE, text, "other shapes" if chosen.others else "public shapes")
    return 0


def _measured_on(about: Mapping[str, Any]) -> str:
    machine = f"{about['cpu']}, {about['threads']} threads, {about['date'][:10]}"
    return f"{machine}, load up to {max(about['load']):.1f}: other programs ran at the same time."


if __name__ == "__main__":
    sys.exit(main())
