"""What part "bench" found, as Markdown: a short table first, then all that was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_results import OURS, bar, best_peer

BEHIND = 0.97
"""Below this ratio to the best peer a case is behind."""


def summary(file: Mapping[str, Any]) -> list[str]:
    """Lines of the table of a `workloads.json`: each case with its best peer and its bar, those furthest
    from their bars first; then the means."""
    device = file["about"].get("device")
    rows = [_summed(label, case, bar(label, device)) for label, case in file["cases"].items()]
    if not rows:
        return []
    rows.sort(key=lambda r: (r.of_bar or 9.0, r.ratio or 9.0))
    head = ["case", "ours ms", "best peer ms", "best peer", "peer / ours", "bar ms", "bar / ours", "of copy"]
    ratios, bars = ([x for r in rows if (x := getattr(r, n))] for n in ("ratio", "of_bar"))
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *(r.line for r in rows), ""]
    if ratios:
        lines.append(
            f"Geometric mean of {len(ratios)} cases: {geometric_mean(ratios):.3f} times the speed of the "
            f"best peer, the slowest {min(ratios):.2f}; {sum(r < BEHIND for r in ratios)} below {BEHIND}."
        )
    if bars:
        lines.append(
            f"Of {len(bars)} bars: {geometric_mean(bars):.3f} of their speed, the furthest {min(bars):.2f}."
        )
    shares = [c["share_of_copy"] for c in file["cases"].values() if c["share_of_copy"]]
    if shares:
        lines.append(f"Of the speed of a copy: {geometric_mean(shares):.0%}.")
    old = {e["of"] for c in file["cases"].values() for e in c["entries"].values() if "of" in e}
    if old:
        lines.append(
            f"Peers marked * have times of an earlier run on this kind of chip ({', '.join(sorted(old))})."
        )
    return [*lines, ""]


@dataclass(frozen=True)
class Summed:
    """A case: the best peer's time over ours, the bar over ours."""

    line: str
    ratio: float | None
    of_bar: float | None


def _summed(label: str, case: Mapping[str, Any], allowed: float | None) -> Summed:
    ours, who = case["entries"][OURS], best_peer(case)
    best = case["entries"][who] if who else None
    ratio, of_bar = best and best["ms"] / ours["ms"], allowed and allowed / ours["ms"]
    cells = [
        label,
        f"{ours['ms']:.4g}" + (" WRONG" if "wrong" in ours else ""),
        f"{best['ms']:.4g}" if best else "",
        f"{who}{' *' if 'of' in best else ''}" if best else "",
        f"{ratio:.2f}" if ratio else "",
        f"{allowed:.4g}" if allowed else "",
        f"{of_bar:.2f}" if of_bar else "",
        f"{case['share_of_copy']:.0%}" if case["share_of_copy"] else "",
    ]
    return Summed(f"| {' | '.join(cells)} |", ratio, of_bar)


def bench_table(items: Mapping[str, Mapping[str, Any]], real: bool) -> list[str]:
    """Lines of the table of times, then the means."""
    if not items:
        return []
    peers = list(dict.fromkeys(n for r in items.values() for n in r["entries"] if n != OURS))
    head = ["workload", f"{OURS} ms", *(f"{p} ms" for p in peers), "best peer / ours", "of copy bandwidth"]
    head += ["launches", "registers", "host us", "first call s", "error"]
    lines = [
        "Milliseconds on the device, median (quartiles); launches, first call and error: "
        + " / ".join((OURS, *peers))
        + ". *Host* is how long a bound call, then a plain one, keeps its caller."
        if real
        else "Wall time in the emulator, of small sizes: no figures of a GPU.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    lines += ["| " + " | ".join(_row(name, r, peers)) + " |" for name, r in items.items()]
    ratios = [r["ratio"] for r in items.values() if r.get("ratio")]
    shares = [r["share_of_copy"] for r in items.values() if r.get("share_of_copy")]
    if ratios and shares:
        lines += [
            "",
            f"Geometric means over {len(ratios)} workloads: {geometric_mean(ratios):.2f} times the speed of "
            f"the best peer, {geometric_mean(shares):.0%} of the copy bandwidth.",
        ]
    lines += [f"\n{name}: {f}" for name, r in items.items() for f in r.get("failures", ())]
    return lines


def _row(name: str, r: Mapping[str, Any], peers: Sequence[str]) -> list[str]:
    entries = r["entries"]
    ours = entries[OURS]
    present = [entries.get(p) for p in (OURS, *peers)]
    failed = {f.partition(":")[0] for f in r.get("failures", ())}
    kernels = [k.get("registers") for k in (ours.get("kernels_of_ours") or {}).values()]
    return [
        name,
        *(_time(e, p in failed) for e, p in zip(present, (OURS, *peers), strict=True)),
        f"{r['ratio']:.2f}" if r.get("ratio") else "",
        f"{r['share_of_copy']:.0%}" if r.get("share_of_copy") else "",
        " / ".join(_launches(e) for e in present),
        ", ".join(str(k) for k in kernels if k is not None),
        ", ".join(f"{1e3 * ours[k]:.0f}" for k in ("host_ms", "call_host_ms") if k in ours),
        " / ".join(f"{e['first_call_s']:.2f}" if e else "-" for e in present),
        " / ".join(f"{e['verdict']['error']:.1e}" if e else "-" for e in present),
    ]


def _time(entry: Mapping[str, Any] | None, failed: bool) -> str:
    if entry is None:
        return "failed" if failed else "-"
    ms = entry["ms"]
    mark = "" if entry["by"] in ("events", "wall") else f" by {entry['by']}"
    wrong = "" if entry["verdict"]["ok"] else " WRONG"
    return f"{ms['median']:.4g} ({ms['low']:.4g}-{ms['high']:.4g}){mark}{wrong}"


def _launches(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "-"
    seen = entry.get("kernels")
    return f"{seen:g}" if seen is not None else str(entry.get("launches", "-"))


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))
