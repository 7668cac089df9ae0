"""The results as a page: what ran where, what is wrong, and the table of times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu_limits import earlier
from benchmarks.gpu_results import saved
from gpu.bench_report import bench_table, summary

TITLES = {
    "tests": "Tests",
    "reference": "Against the float64 reference",
    "sizes": "Open sizes",
    "sanitize": "Memory checker",
    "bench": "Benchmarks",
    "calls": "Calls",
    "plans": "Plans of kernels",
}
MOST_PROBLEMS = 12


def page(data: Mapping[str, Any]) -> str:
    """Markdown of everything that is known so far."""
    lines = list(_about(data["about"]))
    for part, kept in data["parts"].items():
        items = kept["items"]
        lines += ["", f"## {TITLES.get(part, part)}", "", _summary(part, kept), *_problems(items)]
        if older := [name for name, r in items.items() if "sources" in r]:
            lines += ["", f"{len(older)} of these are results of earlier sources, kept."]
        if part == "reference" and "scipy" not in (data["about"].get("versions") or {}):
            lines += ["", "SciPy is missing: the cases of the standard library were left out."]
        if part == "bench":
            real = data["about"].get("target") == "cuda"
            timed = {name: r for name, r in items.items() if "entries" in r}
            lines += ["", *(summary(kept_file(data)) if real else []), *bench_table(timed, real)]
        if part == "reference":
            lines += ["", *kinds_table(items)]
        if part == "sizes":
            lines += ["", *sizes_table(items)]
        if part == "plans":
            lines += ["", *plans_table(items)]
        if part == "calls":
            lines += ["", *calls_table(items)]
    return "\n".join(lines) + "\n"


def kept_file(data: Mapping[str, Any]) -> dict[str, Any]:
    """`workloads.json` of the results so far."""
    return saved(data, earlier(data["about"].get("device")))


def _about(about: Mapping[str, Any]) -> Iterator[str]:
    real = about.get("target") == "cuda"
    yield f"# {about.get('device') or 'No GPU'}, {str(about.get('date', ''))[:16]}"
    yield ""
    if not real:
        yield "**Rehearsal in the emulator: times mean nothing.** " + str(about.get("why") or "")
        yield ""
    versions = ", ".join(f"{n} {v}" for n, v in (about.get("versions") or {}).items())
    yield f"- Python {about.get('python')}; {versions}"
    if real:
        p = about.get("properties") or {}
        if isinstance(p, Mapping) and p:
            yield (
                f"- compute capability {p['capability']}, {p['multiprocessors']} multiprocessors, "
                f"{p['memory_bytes'] / 2**30:.0f} GiB, L2 {p['l2_bytes'] / 2**20:.0f} MiB; "
                f"driver {about.get('driver')}, PyTorch's CUDA {p['cuda_of_torch']}"
            )
        yield f"- way to the driver: {about.get('way_to_driver')}"
    yield f"- PyCUDA: {about.get('pycuda')}"
    yield f"- compiler: {about.get('compiler')}"


def _summary(part: str, kept: Mapping[str, Any]) -> str:
    items = kept["items"].values()
    counts = Counter(r["status"] for r in items)
    text = f"{len(kept['items'])} of {kept['total']} done: " + (
        ", ".join(f"{n} {status}" for status, n in sorted(counts.items())) or "nothing yet"
    )
    if part == "tests":
        text += "; tests: " + ", ".join(
            f"{sum(r.get(k, 0) for r in items)} {k}" for k in ("passed", "failed", "skipped")
        )
    if part in ("reference", "sizes"):
        compared, wrong = (sum(r.get(k, 0) for r in items) for k in ("compared", "wrong"))
        text += f"; {compared} runs of operators compared, {wrong} wrong"
    return text + "."


def kinds_table(items: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each kind of operators: runs compared, wrong ones, the worst difference over its bound."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for name, r in items.items():
        kinds.setdefault(name.partition(" ")[0], []).append(r)
    lines = ["| operators | groups | compared | wrong | worst / bound | s |", "|" + "---|" * 6]
    for kind, mine in kinds.items():
        compared, wrong = (sum(r.get(k, 0) for r in mine) for k in ("compared", "wrong"))
        worst = max((r["worst_ratio"] for r in mine if r.get("worst_ratio") is not None), default=0.0)
        seconds = sum(r.get("seconds", 0.0) for r in mine)
        lines.append(f"| {kind} | {len(mine)} | {compared} | {wrong} | {worst:.3g} | {seconds:.0f} |")
    return lines if kinds else []


def sizes_table(items: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each operator with open sizes that was called at new sizes without a compilation."""
    known = {n: r for n, r in items.items() if r.get("new_sizes_us") is not None}
    lines = ["| operator | calls | variants | us at new sizes | in C | us in C |", "|" + "---|" * 6]
    for name, r in known.items():
        us = "" if r.get("short_us") is None else f"{r['short_us']:.0f}"
        figures = f"{r['compared']} | {r['variants']} | {r['new_sizes_us']:.0f} | {r.get('short', 0)} | {us}"
        lines.append(f"| {name} | {figures} |")
    return lines if known else []


def _problems(items: Mapping[str, Mapping[str, Any]]) -> list[str]:
    bad = [(n, r) for n, r in items.items() if r["status"] not in ("ok", "skipped")]
    lines = []
    for name, r in bad[:MOST_PROBLEMS]:
        lines += ["", f"**{name}: {r['status']}**", "", "```", str(r.get("message", "")).strip(), "```"]
    if len(bad) > MOST_PROBLEMS:
        lines += ["", f"and {len(bad) - MOST_PROBLEMS} more, see results.json"]
    skipped = sorted({str(r.get("message", "")) for r in items.values() if r["status"] == "skipped"})
    return [*lines, *(f"\nSkipped: {why}" for why in skipped if why)]


def plans_table(items: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each case whose plans were timed: the model's own, and the fastest."""
    timed = {name: r["rows"] for name, r in items.items() if r.get("rows")}
    if not timed:
        return []
    lines = ["| case | plans | model's ms | fastest ms | model / fastest | fastest |", "|" + "---|" * 6]
    for name, rows in timed.items():
        known = [row for row in rows if row.get("ms")]
        if not known:
            continue
        best, own = min(known, key=lambda row: row["ms"]), rows[0].get("ms")
        times = [f"{own:.4g}" if own else "failed", f"{best['ms']:.4g}"]
        ratio = f"{own / best['ms']:.2f}" if own else ""
        lines.append(f"| {name} | {len(known)} | {' | '.join(times)} | {ratio} | {best['plan']} |")
    return lines


def calls_table(items: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Microseconds of host time, a line for each operator and library of its arrays."""
    found = {name: r["us"] for name, r in items.items() if r.get("us")}
    ways = list(dict.fromkeys(way for us in found.values() for times in us.values() for way in times))
    if not ways:
        return []
    lines = [f"| operator | arrays | {' us | '.join(ways)} us |", "|" + "---|" * (len(ways) + 2)]
    for name, us in found.items():
        for library, times in us.items():
            cells = (f"{times[way]:.1f}" if way in times else "" for way in ways)
            lines.append(f"| {name} | {library} | {' | '.join(cells)} |")
    return lines
