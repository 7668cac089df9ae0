"""Results as a table on the terminal, JSON and Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import OURS, Outcome, Timing
from benchmarks.surroundings import write_json

PEERS = ("torch eager", "torch.compile", "jax.jit", "numpy")


def contenders(outcomes: Sequence[Outcome]) -> list[str]:
    """Peers that took part in any workload."""
    found = {e.contender for o in outcomes for e in o.entries}
    return [p for p in PEERS if p in found]


def header(peers: Sequence[str]) -> list[str]:
    """Columns of the table."""
    return [
        "workload", "polyfuse ms", "bound ms", *(f"{p} ms" for p in peers), "best peer / ours", "of floor",
        "kernels", "first call s", "load", "disturbed",
    ]  # fmt: skip


def rows(outcomes: Sequence[Outcome], peers: Sequence[str]) -> list[list[str]]:
    """One row per workload: median, then quartiles."""
    return [_row(o, peers) for o in outcomes]


def _row(o: Outcome, peers: Sequence[str]) -> list[str]:
    bound = o.entry(f"{OURS}, bound")
    cells = [o.case + ("" if o.ours.verdict.ok else " WRONG"), _time(o.ours.timing)]
    cells.append(_time(bound.timing) if bound else "")
    for p in peers:
        best = o.best_of(p)
        cells.append((_time(best.timing) + ("" if best.verdict.ok else " (wrong)")) if best else "failed")
    first = " / ".join(f"{e.first_call_s:.2f}" for n in (OURS, *peers) if (e := o.best_of(n)))
    launches = " / ".join("-" if e is None or e.launches is None else str(e.launches)
                          for e in (o.best_of(n) for n in (OURS, *peers)))  # fmt: skip
    ratio = f"{o.ratio:.2f}" if o.ratio else ""
    tail = [launches, first, f"{max(o.load):.1f}", f"{o.disturbed[1]} of {o.ours.timing.rounds}"]
    return [*cells, ratio, f"{o.share_of_floor:.0%}", *tail]


def _time(t: Timing) -> str:
    return f"{t.median:.3g} ({t.low:.3g}-{t.high:.3g})"


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers; 0 of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 0.0


def summary(outcomes: Sequence[Outcome]) -> str:
    """Geometric means over the workloads, by medians and by minima."""
    ratios = [o.ratio for o in outcomes if o.ratio]
    shares = [o.share_of_floor for o in outcomes]
    least = [r for o in outcomes if (r := least_ratio(o))]
    text = f"share of the floor {geometric_mean(shares):.0%}"
    if ratios:
        text = (
            f"{geometric_mean(ratios):.2f} times the speed of the best peer by medians, "
            f"{geometric_mean(least):.2f} by minima; " + text
        )
    return f"geometric means over {len(outcomes)} workloads: {text}"


def least_ratio(o: Outcome) -> float | None:
    """The ratio to the best peer by the fastest rounds of each."""
    peers = [e.timing.least for e in o.entries if e.contender != OURS and e.verdict.ok]
    return min(peers) / o.ours.timing.least if peers else None


def print_table(outcomes: Sequence[Outcome], console: Console) -> None:
    """The table, and what went wrong."""
    peers = contenders(outcomes)
    table = Table(*header(peers), title="milliseconds: median (quartiles); kernels and first call: "
                  + " / ".join((OURS, *peers)), header_style="bold")  # fmt: skip
    for row in rows(outcomes, peers):
        table.add_row(*row)
    console.print(table)
    for line in remarks(outcomes):
        console.print(line, markup=False)
    console.print(summary(outcomes))


def line(o: Outcome) -> str:
    """One workload in a line, while the others go on."""
    best = o.best_peer
    rival = f"{best.label} {best.timing.median:.3g} ms, ratio {o.ratio:.2f}" if best else "no peer"
    again, kept = o.disturbed
    noise = f"{again} rounds made again, {kept} disturbed ones kept"
    return f"{o.case}: {o.ours.timing.median:.3g} ms, {rival}; {noise}"


def remarks(outcomes: Sequence[Outcome]) -> list[str]:
    """Contenders that failed or are wrong."""
    found = [f"{o.case}: {f}" for o in outcomes for f in o.failures]
    wrong = [(o, e) for o in outcomes for e in o.entries if not e.verdict.ok]
    return found + [f"{o.case}: {e.label} is wrong: {e.verdict.message}" for o, e in wrong]


PLACEMENT = {"lines": "at cache lines", "numpy": "where NumPy puts them"}


def markdown(outcomes: Sequence[Outcome], about: Mapping[str, Any]) -> str:
    """The table as a page."""
    peers = contenders(outcomes)
    lines = [
        f"# {about['cpu']}, {about['threads']} threads, {about['date']}",
        "",
        ", ".join(f"{n} {v}" for n, v in about["versions"].items())
        + f"; {about['system']}, Python {about['python']}; {about['rounds']} rounds; "
        + f"arrays {PLACEMENT[about['places']]}; "
        + f"load average {about['load'][0]:.1f} before, {about['load'][1]:.1f} after.",
        "",
        "Milliseconds: median (quartiles); kernels and first call: " + " / ".join((OURS, *peers)) + ".",
        "",
        "| " + " | ".join(header(peers)) + " |",
        "|" + "---|" * len(header(peers)),
        *("| " + " | ".join(row) + " |" for row in rows(outcomes, peers)),
        "",
        summary(outcomes) + ".",
        *(f"\n{line}" for line in remarks(outcomes)),
    ]
    return "\n".join(lines) + "\n"


def save(outcomes: Sequence[Outcome], about: Mapping[str, Any], folder: Path, name: str) -> list[Path]:
    """NAME.json and NAME.md, in place of those of the last run."""
    data = {**about, "workloads": [o.as_json() for o in outcomes]}
    table = folder / f"{name}.md"
    written = write_json(folder / f"{name}.json", data)
    table.write_text(markdown(outcomes, about), encoding="utf-8")
    return [written, table]
