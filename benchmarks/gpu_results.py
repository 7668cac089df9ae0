"""What is kept of a run of part "bench" (`workloads.json`): medians of all contenders, case by case.

Peers that a run did not time have the times of an earlier run on a chip of the same name; their entries say
of which commit.  `benchmarks.gpu_table` makes a page of the file.  Only the standard library is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.gpu_limits import BARS, CHIP

OURS = "polyfuse"
ABOUT = ("device", "driver", "properties", "versions", "compiler", "date")
Data = Mapping[str, Any]


def saved(results: Data, before: Data) -> dict[str, Any]:
    """The file of a run's `results.json`; `before` is the file of an earlier run."""
    about = results["about"]
    items = results["parts"].get("bench", {"items": {}})["items"]
    timed = {label: r for label, r in items.items() if "entries" in r}
    return {
        "about": {name: about.get(name) for name in ABOUT},
        "commit": about.get("commit"),
        "cases": {label: _case(r, before["cases"].get(label), before) for label, r in timed.items()},
    }


def _case(r: Data, earlier: Data | None, before: Data) -> dict[str, Any]:
    entries = {label: _entry(e) for label, e in r["entries"].items()}
    if earlier is not None and earlier["sizes"] == r["sizes"]:
        others = {n: e for n, e in earlier["entries"].items() if n != OURS and n not in entries}
        entries |= {n: {**e, "of": e.get("of", before["commit"])} for n, e in others.items()}
    found = {
        "sizes": r["sizes"],
        "dtype": r["dtype"],
        "bytes": r["bytes"],
        "copy_bytes_per_s": r.get("copy", {}).get("bytes_per_s"),
        "share_of_copy": r.get("share_of_copy"),
        "entries": entries,
    }
    best = best_peer(found)
    found["best_peer_over_ours"] = best and entries[best]["ms"] / entries[OURS]["ms"]
    return found


def _entry(e: Data) -> dict[str, Any]:
    ms, error = e["ms"], e["verdict"]["error"]
    found = {"ms": ms["median"], "low": ms["low"], "high": ms["high"], "by": e["by"], "error": error}
    found |= {"host_us": 1e3 * e["host_ms"], "first_call_s": e["first_call_s"]}
    found["launches"] = e["kernels"] if e.get("kernels") is not None else e.get("launches")
    if "call_host_ms" in e:
        found["plain_call_host_us"] = 1e3 * e["call_host_ms"]
    if "kernels_of_ours" in e:
        found["kernels"] = e["kernels_of_ours"]
    if not e["verdict"]["ok"]:
        found["wrong"] = e["verdict"]["message"]
    return found


def best_peer(case: Data) -> str | None:
    """The fastest of the others that compute the right thing."""
    able = {n: e["ms"] for n, e in case["entries"].items() if n != OURS and e.get("ms") and "wrong" not in e}
    return min(able, key=able.__getitem__, default=None)


def bar(label: str, device: str | None) -> float | None:
    """Milliseconds that the case may take on the chip that bars are for."""
    return BARS.get(label) if device == CHIP else None
