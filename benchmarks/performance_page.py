"""The tables of docs/performance.md from saved results: `python -m benchmarks.performance_page [--write]`.

The latest results of each kind of machine are in `benchmarks/results`. Workloads that a matrix product
dominates are apart: the others are limited by memory, or by the arithmetic of rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import gpu_table
from benchmarks.pages import write_measured
from benchmarks.report import PLACEMENT, geometric_mean
from benchmarks.surroundings import RESULTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
PEERS = ("torch eager", "torch.compile", "jax.jit")
PRODUCTS = ("mm_bias_gelu",)


@dataclass(frozen=True)
class Row:
    """One workload: milliseconds of a call, a bound call and the better setting of each peer."""

    case: str
    call: Mapping[str, float]
    bound: float
    peers: Mapping[str, float]
    floor: float
    launches: Sequence[int | None]
    error: float
    best_error: float

    @property
    def best(self) -> float:
        """The fastest peer."""
        return min(self.peers.values())

    def markdown(self) -> str:
        """A line of the table."""
        c = self.call
        times = [
            f"{c['median']:.3g} ({c['low']:.3g}-{c['high']:.3g})",
            f"{self.bound:.3g}",
            *(f"{self.peers[p]:.3g}" if p in self.peers else "fails" for p in PEERS),
        ]
        ratios = [f"{self.best / c['median']:.2f}", f"{self.best / self.bound:.2f}"]
        share = f"{self.floor / self.bound:.0%}"
        launches = ", ".join("-" if n is None else str(n) for n in self.launches)
        return "| " + " | ".join([self.case, *times, *ratios, share, launches]) + " |"


def row_of(data: Mapping[str, Any]) -> Row:
    """A workload of results.json."""
    entries = {e["label"]: e for e in data["entries"]}
    ours = entries["polyfuse"]
    right = [e for e in data["entries"] if e["contender"] != "polyfuse" and e["verdict"]["ok"]]
    peers = {p: [e["timing"]["median"] for e in right if e["contender"] == p] for p in PEERS}
    launches = [entries.get(n, {}).get("launches") for n in ("polyfuse", "torch eager", "torch.compile")]
    return Row(
        data["case"],
        ours["timing"],
        entries["polyfuse, bound"]["timing"]["median"],
        {p: min(times) for p, times in peers.items() if times},
        data["floor_ms"],
        launches,
        ours["verdict"]["error"],
        min(e["verdict"]["error"] for e in right),
    )


def three_means(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Geometric means: the best peer over a call, over a bound call; a bound call over the floor."""
    return (
        geometric_mean([r.best / r.call["median"] for r in rows]),
        geometric_mean([r.best / r.bound for r in rows]),
        geometric_mean([r.bound / r.floor for r in rows]),
    )


def means(rows: Sequence[Row]) -> str:
    """What the rows say together."""
    by_call, by_bound, floor = three_means(rows)
    return (
        f"{len(rows)} workloads, geometric means: a call is {by_call:.2f}x faster than the best peer, "
        f"a bound call {by_bound:.2f}x faster; it takes {floor:.2f}x the time of the floor"
    )


def first_calls(data: Mapping[str, Any]) -> str:
    """Seconds of compiling and the first call."""
    found = []
    for name in ("polyfuse", "torch.compile", "jax.jit"):
        seconds = [e["first_call_s"] for w in data["workloads"] for e in w["entries"] if e["label"] == name]
        found.append(f"{name} {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s")
    return "Compiling and first call, medians: " + "; ".join(found)


def page_of(data: Mapping[str, Any]) -> str:
    """The table of a CPU and what it says together, as Markdown."""
    rows = [row_of(w) for w in data["workloads"]]
    rows = [r for r in rows if r.case not in PRODUCTS] + [r for r in rows if r.case in PRODUCTS]
    versions = ", ".join(f"{n} {v}" for n, v in data["versions"].items())
    disturbed = sum(w["disturbed"][1] for w in data["workloads"])
    inexact = sorted(rows, key=lambda r: r.error / r.best_error if r.best_error else 0, reverse=True)[:3]
    errors = ", ".join(f"{r.case} {r.error / r.best_error:.1f}" for r in inexact if r.best_error)
    header = ["workload", "call", "bound", *PEERS, "best peer / call", "best peer / bound", "floor / bound"]
    header.append("launches: ours, eager, torch.compile")
    return "\n".join(
        [
            f"{data['cpu']}, {data['threads']} threads, {data['date'][:10]}, {data['rounds']} rounds; "
            f"{versions}.",
            f"Arrays of all contenders lie {PLACEMENT[data.get('places', 'numpy')]}; "
            f"other programs disturbed {disturbed} rounds.",
            "",
            "| " + " | ".join(header) + " |",
            "|" + "---|" * len(header),
            *(r.markdown() for r in rows),
            "",
            f"- Without matrix products: {means([r for r in rows if r.case not in PRODUCTS])}.",
            f"- All: {means(rows)}.",
            f"- {first_calls(data)}.",
            f"- Largest error against float64, over that of the most exact peer, the three worst: {errors}.",
        ]
    )


def overview(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for each kind of CPU: the geometric means, and where it loses."""
    header = ["machine", "best peer / call", "best peer / bound", "time / floor", "slower calls"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for kind, data in found.items():
        rows = [row_of(w) for w in data["workloads"]]
        kept = [r for r in rows if r.case not in PRODUCTS]
        lost = [f"{r.case} {ratio:.2f}" for r in rows if (ratio := r.best / r.call["median"]) < 1]
        cells = [f"`{kind}`", *(f"{mean:.2f}" for mean in three_means(kept)), ", ".join(lost) or "none"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parts() -> dict[str, str]:
    """The measured parts of the page: the overview, a table for each kind of CPU, the GPU's."""
    files = sorted(RESULTS.glob("*/workloads.json"))
    found = {f.parent.name: json.loads(f.read_text(encoding="utf-8")) for f in files}
    on_cpu = {kind: data for kind, data in found.items() if "workloads" in data}
    made = {"overview": overview(on_cpu)}
    return made | {
        kind: page_of(data) if kind in on_cpu else gpu_table.table(data) for kind, data in found.items()
    }


def main() -> None:
    """Print all parts, or write them into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    chosen = parser.parse_args()
    for part, text in parts().items():
        print(f"{part}\n\n{text}\n")
        if chosen.write:
            write_measured(PAGE, text, part)


if __name__ == "__main__":
    main()
