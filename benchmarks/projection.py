"""Projected against measured time of variants: `python -m benchmarks.projection [--only NAME ...] [--write]`.

Every workload is compiled in all the variants that `polyfuse.tuning` would propose for it; each is projected
(`polyfuse.cost.projection`, with rates measured on this machine first) and timed in a child process, all in
turns, the shortest time of each.  Told are, for each workload and for all: Spearman's rank correlation of
both times, the mean absolute error of the projected ones, and what the projected choice would lose.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polyfuse as pf
from benchmarks.surroundings import load_average, slug, surroundings
from benchmarks.workload import Workload, select
from polyfuse import tuning_code, tuning_turns
from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.projection import Rates
from polyfuse.estimates import projected_cpu
from polyfuse.layers.clusters import Clustering
from polyfuse.options import Options
from polyfuse.pipeline import Compilation
from polyfuse.runtime.machine import level_sets, measure
from polyfuse.runtime.op_rates import op_rates
from polyfuse.runtime.pool import Pool, default_threads
from polyfuse.runtime.toolchain import compile_shared
from polyfuse.trials import ChildTimer

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "projection.md"
RESULTS = Path(__file__).parent / "results"
FIGURES = "## Figures\n"
LOWER_S, TIME_S = 30.0, 3.0
MACHINE_RUNS = 4
NOISE = 0.1


@dataclass(frozen=True)
class Point:
    """One variant of one case: seconds."""

    case: str
    variant: str
    projected: float
    measured: float


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


def points(workload: Workload, case: str, make: tuning_code.Maker) -> list[Point]:
    """All variants of a case."""
    options = Options(threads=make.machine.threads, verify=False, dump=None)
    sizes = dict(workload.cases[case])
    layers = pf.LoopFusion(), pf.Stitching(), pf.Packing()
    base = Compilation(
        workload.graph, sizes, layers[0], options, frozenset(), "cpu", layers[1], layers[2], Clustering()
    )
    found = tuning_code.candidates(base, make, time.monotonic() + LOWER_S)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda c: compile_shared(c.code.source), found))
    notes: dict[str, str] = {}
    with ChildTimer(base) as timer:
        times = tuning_turns.in_turns([c.key for c in found], timer, notes, time.monotonic() + TIME_S)
    made = [(c, times.get(c.key)) for c in found]
    return [Point(case, str(c.variant), c.predicted, min(s)) for c, s in made if s]


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


def ordered(found: Sequence[Point]) -> tuple[int, int]:
    """Of pairs of variants that differ by more than noise: those that the model orders rightly, and all."""
    pairs = [(a, b) for k, a in enumerate(found) for b in found[k + 1 :]]
    clear = [(a, b) for a, b in pairs if abs(a.measured / b.measured - 1) > NOISE]
    right = sum((a.measured < b.measured) == (a.projected < b.projected) for a, b in clear)
    return right, len(clear)


def lost(found: Sequence[Point]) -> float:
    """How much slower than the best the variant with the shortest projected time is."""
    chosen = min(found, key=lambda p: p.projected)
    return chosen.measured / min(p.measured for p in found) - 1


def summary(found: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    """Figures of all cases, and of all points together."""
    everything = [p for each in found.values() for p in each]
    cases = {
        case: {
            "variants": len(each),
            "spearman": spearman(each),
            "mape": mape(each),
            "relative_error": shape_error(each),
            "ordered": ordered(each),
            "lost": lost(each),
        }
        for case, each in found.items()
    }
    within = [c["spearman"] for c in cases.values() if c["spearman"] is not None]
    return {
        "cases": cases,
        "variants": len(everything),
        "spearman": spearman(everything),
        "spearman_within": statistics.fmean(within) if within else None,
        "mape": mape(everything),
        "ordered": [sum(c["ordered"][k] for c in cases.values()) for k in (0, 1)],
        "relative_error": statistics.fmean(c["relative_error"] for c in cases.values()),
        "lost": statistics.fmean(c["lost"] for c in cases.values()),
    }


def table(figures: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    rows = [
        "| case | variants | Spearman | MAPE | relative | pairs | lost |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, c in figures["cases"].items():
        rank = "" if c["spearman"] is None else f"{c['spearman']:.2f}"
        rows.append(f"| {case} | {c['variants']} | {rank} | {_shares(c)} |")
    rank = f"{figures['spearman']:.2f} ({figures['spearman_within']:.2f} within a case)"
    rows.append(f"| all | {figures['variants']} | {rank} | {_shares(figures)} |")
    return "\n".join(rows)


def _shares(figures: Mapping[str, Any]) -> str:
    right, clear = figures["ordered"]
    pairs = f"{right} of {clear}" if clear else ""
    return f"{figures['mape']:.0%} | {figures['relative_error']:.0%} | {pairs} | {figures['lost']:.0%}"


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
    parser.add_argument("--threads", type=int, default=default_threads(), metavar="N", help="threads (all)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the results")
    parser.add_argument("--write", action="store_true", help="write the figures into the documentation")
    chosen = parser.parse_args(arguments)
    before = load_average()
    make = tuning_code.Maker(*measured_machine(chosen.threads))
    found: dict[str, list[Point]] = {}
    for workload, case in select(chosen.only):
        found[case] = points(workload, case, make)
        print(f"{case}: {len(found[case])} variants, lost {lost(found[case]):.0%}", flush=True)
    figures = summary(found)
    print(table(figures))
    about = {**surroundings(), "threads": make.machine.threads, "load": (before, load_average())}
    where = chosen.out or RESULTS / f"{about['date'][:10]}-{slug(about['cpu'])}" / "projection"
    where.mkdir(parents=True, exist_ok=True)
    every = [asdict(p) for each in found.values() for p in each]
    data = {"about": about, "figures": figures, "points": every}
    (where / "results.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    draw(found, where / "scatter.svg")
    if chosen.write:
        head = PAGE.read_text(encoding="utf-8").partition(FIGURES)[0]
        PAGE.write_text(f"{head}{FIGURES}\n{_measured_on(about)}\n\n{table(figures)}\n", encoding="utf-8")
    return 0


def _measured_on(about: Mapping[str, Any]) -> str:
    machine = f"{about['cpu']}, {about['threads']} threads, {about['date'][:10]}"
    return f"{machine}, load up to {max(about['load']):.1f}: other programs ran at the same time."


if __name__ == "__main__":
    sys.exit(main())
