"""The GPU's table of docs/performance.md, from a saved `workloads.json`.

Kernels of one call are timed on the device, ours and those of PyTorch and JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.report import geometric_mean
from benchmarks.surroundings import RESULTS

RUN = RESULTS / "nvidia-h200" / "workloads.json"
"""The latest measurement on a GPU."""
OURS = "polyfuse"
BEHIND = 0.97
"""Below this ratio a case counts as behind the best peer."""


def peers(case: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds of those that ran."""
    return {n: e["ms"] for n, e in case["entries"].items() if n != OURS and e.get("ms") is not None}


def ratio(case: Mapping[str, Any]) -> float:
    """How many times as fast as the best peer the case is."""
    return float(min(peers(case).values()) / case["entries"][OURS]["ms"])


def table(data: Mapping[str, Any]) -> str:
    """All cases, those furthest behind first, and what they say together, as Markdown."""
    about, cases = data["about"], data["cases"]
    order = sorted(cases, key=lambda n: ratio(cases[n]))
    names = sorted({n for c in cases.values() for n in peers(c)})
    ratios = [ratio(c) for c in cases.values()]
    behind = sum(r < BEHIND for r in ratios)
    versions = ", ".join(f"{n} {about['versions'][n]}" for n in ("torch", "triton", "jax"))
    lines = [
        f"{about['device']}, driver {about['driver']}, {about['compiler']}, "
        f"commit {data['commit']}; {versions}.",
        "Milliseconds on the device, medians. Below 1 a peer is faster.",
        "",
        f"| case | polyfuse | {' | '.join(names)} | best peer / polyfuse | of a copy's bandwidth |",
        "|" + "---|" * (len(names) + 4),
    ]
    for name in order:
        case = cases[name]
        times = [f"{peers(case)[n]:.4g}" if n in peers(case) else "-" for n in names]
        cells = [name, f"{case['entries'][OURS]['ms']:.4g}", *times]
        lines.append(f"| {' | '.join(cells)} | {ratio(case):.2f} | {case['share_of_copy']:.0%} |")
    old = sorted({e["of"] for c in cases.values() for e in c["entries"].values() if "of" in e})
    mean = geometric_mean(ratios)
    lines += [
        "",
        f"- Geometric mean of {len(cases)} cases: {mean:.2f} times the speed of the best peer.",
        f"- {behind} cases are more than 3 % slower than the best peer, "
        f"{sum(r > 1 for r in ratios)} are faster.",
        *(f"- Some peers have times of an earlier run on such a chip, at commit {commit}." for commit in old),
    ]
    return "\n".join(lines)
