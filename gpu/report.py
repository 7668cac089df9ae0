"""The results as a page: what ran where, what is wrong, and the table of times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

OURS = "polyfuse"
TITLES = {
    "tests": "Tests",
    "reference": "Against the float64 reference",
    "sanitize": "Memory checker",
    "bench": "Benchmarks",
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
            timed = {name: r for name, r in items.items() if "entries" in r}
            lines += ["", *bench_table(timed, data["about"].get("target") == "cuda")]
    return "\n".join(lines) + "\n"


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
    if part == "reference":
        compared, wrong = (sum(r.get(k, 0) for r in items) for k in ("compared", "wrong"))
        text += f"; {compared} runs of operators compared, {wrong} wrong"
    return text + "."


def _problems(items: Mapping[str, Mapping[str, Any]]) -> list[str]:
    bad = [(n, r) for n, r in items.items() if r["status"] not in ("ok", "skipped")]
    lines = []
    for name, r in bad[:MOST_PROBLEMS]:
        lines += ["", f"**{name}: {r['status']}**", "", "```", str(r.get("message", "")).strip(), "```"]
    if len(bad) > MOST_PROBLEMS:
        lines += ["", f"and {len(bad) - MOST_PROBLEMS} more, see results.json"]
    skipped = sorted({str(r.get("message", "")) for r in items.values() if r["status"] == "skipped"})
    return [*lines, *(f"\nSkipped: {why}" for why in skipped if why)]


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
    kernels = [k.get("registers") for k in (ours.get("kernels_of_ours") or {}).values()]
    return [
        name,
        *(_time(e) for e in present),
        f"{r['ratio']:.2f}" if r.get("ratio") else "",
        f"{r['share_of_copy']:.0%}" if r.get("share_of_copy") else "",
        " / ".join(_launches(e) for e in present),
        ", ".join(str(k) for k in kernels if k is not None),
        ", ".join(f"{1e3 * ours[k]:.0f}" for k in ("host_ms", "call_host_ms") if k in ours),
        " / ".join(f"{e['first_call_s']:.2f}" if e else "-" for e in present),
        " / ".join(f"{e['verdict']['error']:.1e}" if e else "-" for e in present),
    ]


def _time(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "failed"
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
