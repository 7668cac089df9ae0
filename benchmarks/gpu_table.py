"""The GPU's table of docs/performance.md, from a saved `workloads.json`.

Kernels of one call are timed on the device, ours and those of PyTorch and JAX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import geometric_mean
from benchmarks.surroundings import RESULTS

RUN = RESULTS / "nvidia-h200" / "workloads.json"
"""The latest measurement on a GPU."""
OURS = "polyfuse"
BEHIND = 0.97
"""Below this ratio a case counts as behind the best peer."""


def peers(case: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds of those that ran and were right."""
    able = {n: e for n, e in case["entries"].items() if n != OURS and "wrong" not in e}
    return {n: e["ms"] for n, e in able.items() if e.get("ms") is not None}


def ratio(case: Mapping[str, Any]) -> float:
    """How many times as fast as the best peer the case is."""
    return float(min(peers(case).values()) / case["entries"][OURS]["ms"])


def ratios(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Of the cases that were timed beside somebody."""
    return {name: ratio(case) for name, case in cases.items() if peers(case)}


def table(data: Mapping[str, Any]) -> str:
    """All cases, those furthest behind first, and what they say together, as Markdown."""
    about, cases = data["about"], data["cases"]
    found = ratios(cases)
    order = [*sorted(found, key=found.__getitem__), *(n for n in cases if n not in found)]
    names = sorted({n for c in cases.values() for n in peers(c)})
    versions = ", ".join(f"{n} {about['versions'][n]}" for n in ("torch", "triton", "jax"))
    lines = [
        f"{about['device']}, driver {about['driver']}, {about['compiler']}, "
        f"commit {data['commit']}; {versions}.",
        "Milliseconds on the device, medians. Below 1 a peer is faster.",
        "",
        f"| case | polyfuse | {' | '.join(names)} | best peer / polyfuse | of a copy's bandwidth |",
        "|" + "---|" * (len(names) + 4),
        *(_line(name, cases[name], names) for name in order),
        "",
        f"- Geometric mean of {len(found)} cases: {geometric_mean([*found.values()]):.2f}x faster than "
        "the best peer.",
        f"- {sum(r < BEHIND for r in found.values())} cases are more than 3 % slower than the best peer, "
        f"{sum(r > 1 for r in found.values())} are faster.",
    ]
    old = sorted({e["of"] for c in cases.values() for e in c["entries"].values() if "of" in e})
    if old:
        lines.append(f"- Times with * are of an earlier run on such a chip, at commit {', '.join(old)}.")
    return "\n".join(lines)


def _line(name: str, case: Mapping[str, Any], names: Sequence[str]) -> str:
    known, entries = peers(case), case["entries"]
    times = [f"{known[n]:.4g}{'*' if 'of' in entries[n] else ''}" if n in known else "-" for n in names]
    cells = [name, f"{entries[OURS]['ms']:.4g}", *times, f"{ratio(case):.2f}" if known else "-"]
    return f"| {' | '.join([*cells, format(case['share_of_copy'], '.0%')])} |"
