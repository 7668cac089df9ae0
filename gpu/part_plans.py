"""Part "plans": the plans of kernels that can be had for a case, each timed; an item is a case.

What comes out is data: for the model that projects times, and for whoever wants to learn a better one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from benchmarks.gpu_cases import GpuCase, cases, compilation_of, small_calls
from benchmarks.gpu_limits import by_distance, earlier
from gpu.job import Job
from polyfuse.driver.pipeline import Compilation, fixed_graph
from polyfuse.runtime.cache.disk import Cache
from polyfuse.tuning.candidates import choices_of
from polyfuse.tuning.candidates import compilation_of as changed
from polyfuse.tuning.gpu_candidates import made, plans
from polyfuse.tuning.gpu_trial import GpuTrials
from polyfuse.tuning.table import Variant
from polyfuse.tuning.trial import recipes

ROUNDS, FAR = 5, 3.0
"""Turns of each plan, fewer where it takes so many times as long as the fastest."""
SEEN = 16 << 20
QUICK_CASES = 2
BETWEEN = " | "


@cache
def _cases(quick: bool) -> dict[str, GpuCase]:
    return {c.label: c for c in (small_calls() if quick else cases())}


def items(job: Job) -> list[str]:
    """Labels of the cases; a rehearsal has few, as the emulator's kernels take long to compile."""
    found = job.selected(by_distance(_cases(job.quick), earlier(job.device)))
    return found[:QUICK_CASES] if job.quick else found


def units(items: list[str], job: Job) -> list[str]:
    """A compilation each: a case and a plan."""
    return [f"{item}{BETWEEN}{name}" for item in items for name in variants(item, job)]


def variants(item: str, job: Job) -> dict[str, Variant]:
    """The plans of a case, the model's first."""
    base = _base(item, job)
    return {str(v): v for v in plans(fixed_graph(base.graph, base.sizes), choices_of(base))}


def _base(item: str, job: Job) -> Compilation:
    return compilation_of(_cases(job.quick)[item], job.target)


def compile_item(unit: str, job: Job) -> dict[str, Any]:
    """Make and compile a plan."""
    item, _, name = unit.partition(BETWEEN)
    return made(_base(item, job), variants(item, job)[name], exact=False)  # that can be done elsewhere


def run(item: str, job: Job) -> Mapping[str, Any]:
    """Time the plans of a case that differ in code."""
    base, known = _base(item, job), job.compiled("plans")
    rows: list[dict[str, Any]] = []
    forms: set[str] = set()
    for name, variant in variants(item, job).items():
        about = known.get(f"{item}{BETWEEN}{name}")
        if about is None and known:  # there was no time to compile it ahead, and there is none now
            continue
        about = made(base, variant, exact=False) if about is None else about
        about = about if isinstance(about, dict) else {"error": about}
        if about.get("form", name) in forms:
            continue
        forms.add(about.get("form", name))
        row = {"plan": name, "changes": list(variant.changes), "key": changed(base, variant).key}
        rows.append(row | ({"note": about["error"]} if "error" in about else {"projected": about["seconds"]}))
    if job.target != "cuda":
        return {"status": "skipped", "message": "there is no device to time plans on", "rows": rows}
    if not rows:
        return {"status": "skipped", "message": "there was no time to compile plans"}
    trials = GpuTrials(SEEN)
    flush, given = base.options.denormals == "flush", [r.as_json() for r in recipes(base.graph, base.sizes)]
    trials.do_prepare(given, str(Cache.open_default().root), flush, 1)
    _time(trials, rows)
    wrong = [r for r in rows if "another" in r.get("note", "")]
    message = "; ".join(f"{r['plan']}: {r['note']}" for r in wrong)
    return {"status": "failed" if wrong else "ok", "message": message, "rows": rows}


def _time(trials: GpuTrials, rows: list[dict[str, Any]]) -> None:
    """Put milliseconds into the rows of plans that run."""
    for row in rows:
        if "note" in row:
            continue
        try:
            found = trials.do_run(row["key"])
        except Exception as error:  # a plan that the device refuses
            found = {"error": f"{type(error).__name__}: {error}"[:200]}
        row |= {"note": found["error"]} if "error" in found else {"described": found["described"]}
    alive = [row for row in rows if "described" in row]
    for k in range(ROUNDS):
        for row in alive:
            row.setdefault("turns", []).append(1e3 * trials.do_time(row["key"], 2)["seconds"])
            row["ms"] = min(row["turns"])
        least = min((row["ms"] for row in alive), default=0.0)
        alive = [row for row in alive if k < 1 or row["ms"] <= FAR * least]
