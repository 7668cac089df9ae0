"""How good the search among plans is: `python -m benchmarks.tune_search make | search | time | page`.

    make     a bounded space of each program: plans of fusion times variants of code, compiled; any machine
    search   `pf.tune` of each program, some seconds; wants a quiet machine
    time     the whole space, what the search found and the default, in turns; wants a quiet machine
    page     a table of both into docs/lab/tune_search.md

Each goes on where it was stopped; `--only NAME` does one program, `--most N` so many that are left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Any

import polyfuse as pf
from benchmarks.pages import write_measured
from benchmarks.surroundings import RESULTS, machine_kind, surroundings, write_json
from polyfuse.driver.pipeline import Compilation, Watch, compilation, fixed_graph
from polyfuse.driver.targets import projected_cpu
from polyfuse.layers.clustering.clusters import cuts_of
from polyfuse.options import Options
from polyfuse.runtime.toolchain.compiler import compile_shared
from polyfuse.tuning.candidates import Maker, choices_of, compilation_of, proposals
from polyfuse.tuning.search import Wanted, search
from polyfuse.tuning.space import having
from polyfuse.tuning.table import LIMITS, OF_THREADS, PLAN_CHANGES, Variant
from polyfuse.tuning.trials import ChildTimer
from polyfuse.tuning.tuner import in_turns, spread

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "lab" / "tune_search.md"
WORKLOADS = ROOT / "benchmarks" / "workloads"
MADE = Path.home() / ".cache" / "polyfuse-tune-search"
# Plans of a space at most, cuts that are drawn for it, and the seconds of a search and of timing a space.
MOST, DRAWN, SECONDS, TIMED_S = 40, 4, 60.0, 24.0
# What a search may lose against the fastest plan of a space.
AIM = 0.015
OF_LAYERS = (
    *("temporaries stored", "kernels apart", "stitched wherever possible", "micro-graphs"),
    *("reductions in one pass", "reductions in two passes", *PLAN_CHANGES),
)

# Operators of the standard library, and files of `benchmarks/workloads`; some leave L2, some do not.
PROGRAMS: Mapping[str, Mapping[str, int]] = {
    "stdlib:layer_norm": {"B_0": 512, "H": 768},
    "stdlib:softmax": {"B_0": 1024, "H": 512},
    "stdlib:layer_norm_backward": {"B_0": 256, "H": 512},
    "stdlib:adamw": {"N_0": 200_000},
    "stdlib:group_norm": {"N": 4, "C": 32, "B_0": 1024, "G": 8},
    "stdlib:masked_softmax": {"N": 4, "B_0": 128, "H": 256},
    "gelu_bwd_dbias": {"T": 256, "H": 1024},
    "bn_train_relu": {"N": 4, "C": 32, "H": 28, "W": 28},
    "rms_swiglu": {"T": 256, "H": 1024},
    "dien_attention": {"B": 64, "H": 36, "T": 50},
}


def base_of(name: str) -> Compilation:
    """A program as the compiler has it, for one thread."""
    library = name.startswith("stdlib:")
    operator = pf.stdlib.op(name[7:]) if library else pf.parse(WORKLOADS / f"{name}.pf").op()
    made = operator.specialize(**PROGRAMS[name])
    options = Options(threads=1, verify=False, dump=None, cost="learned")
    layers = {"fusion": pf.LoopFusion(), "stitching": pf.Stitching(), "packing": pf.Packing()}
    return compilation(
        operator.graph(), dict(made.origin.sizes), target="cpu", clustering=None, options=options, **layers
    )


# --- the space --------------------------------------------------------------------------------------------


def plans(base: Compilation) -> Iterator[Variant]:
    """Plans times variants: each by itself, then pairs in an order that is drawn."""
    graph = base.prepared(Watch(Options(dump=None)), [])
    machine = projected_cpu(1)[0]
    fixed = fixed_graph(base.graph, base.sizes)
    singles = [*proposals(fixed, choices_of(base), machine, True)][1:]
    ways = [v for v in singles if v.changes[0] in OF_LAYERS]
    code = [v for v in singles if v not in ways and v.changes[0] not in OF_THREADS]
    dice = random.Random(base.graph.name)
    few = [v for v in ways if LIMITS.get(v.changes[0], 0) <= 4]
    if len(graph.statements) > 1:
        few += [Variant((), cuts_of(graph).drawn(dice, joined)) for joined in (0.3, 0.5, 0.7, 0.9)[:DRAWN]]
    yield from (Variant(), *few, *code)
    pairs = [*product(few, code)]
    dice.shuffle(pairs)
    yield from (having(a, b) for a, b in pairs)


def make(name: str, file: Path) -> None:
    """Print and compile the space of a program, each code once."""
    base = base_of(name)
    maker, forms, found = Maker(*projected_cpu(1)), set[object](), []
    for plan in plans(base):
        if len(found) >= MOST:
            break
        made = maker(compilation_of(base, plan), plan)
        if made is not None and (form := (made.code.source, repr(made.code.plan))) not in forms:
            forms.add(form)
            compile_shared(made.code.source)
            found.append(plan.as_json())
    write_json(file, {"plans": found})


def space_of(name: str) -> list[Variant]:
    """What was made."""
    data = json.loads(made_file(name).read_text(encoding="utf-8"))
    return [Variant.of_json(p) for p in data["plans"]]


def made_file(name: str) -> Path:
    return MADE / f"{name.replace(':', '_')}.json"


# --- measurements -----------------------------------------------------------------------------------------


@dataclass
class Results:
    """A file of what was found."""

    file: Path
    data: dict[str, Any]

    @classmethod
    def open(cls) -> Results:
        about = surroundings()
        file = RESULTS / machine_kind(about) / "tune_search.json"
        data = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"programs": {}}
        return cls(file, {**data, "about": about})

    def keep(self, name: str, **found: Any) -> None:
        self.data["programs"].setdefault(name, {}).update(found)
        write_json(self.file, self.data)

    def has(self, name: str, what: str) -> bool:
        return what in self.data["programs"].get(name, {})


def searched(name: str) -> dict[str, Any]:
    """A search with the learned model; it clears its cache of what it does not take."""
    os.environ["POLYFUSE_CACHE_DIR"] = str(MADE / "cache")
    found = search(base_of(name), Wanted(seconds=SECONDS))
    rows, t = found.tuning.rows, found.tuning
    return {
        "plan": found.plan.as_json(),
        "model": found.tuning.judge,
        "asked": found.asked,
        "measured": len(t.timed),
        "seconds": t.seconds,
        "speedup": found.speedup,
        "likely": min(rows, key=lambda r: r.predicted).variant.as_json(),
        "note": t.note,
    }


def timed(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The space, what the search took, and the model's own first choice, in turns."""
    base, space = base_of(name), space_of(name)
    chosen, likely = Variant.of_json(found["plan"]), Variant.of_json(found["likely"])
    maker = Maker(*projected_cpu(1))
    every = list(dict.fromkeys((Variant(), chosen, likely, *space)))
    keys = {v: compilation_of(base, v).key for v in every}
    for plan in (Variant(), chosen, likely):
        made = maker(compilation_of(base, plan), plan)
        if made is not None:
            compile_shared(made.code.source)
    notes: dict[str, str] = {}
    until = time.monotonic() + TIMED_S
    with ChildTimer(base, deadline=until + 5) as timer:
        times = in_turns(list(dict.fromkeys(keys.values())), timer, notes, until)
    seconds = {v: min(times[k]) for v, k in keys.items() if times.get(k)}
    best = min((v for v in space if v in seconds), key=seconds.__getitem__)
    return {
        "space": len(space),
        "timed": len(seconds),
        "default": seconds[Variant()],
        "search": seconds.get(chosen),
        "by model": seconds.get(likely),
        "best": seconds[best],
        "best plan": str(best),
        "search plan": str(chosen),
        "spread": spread(times[keys[best]]),
        "rounds": len(times[keys[best]]),
    }


# --- the page ---------------------------------------------------------------------------------------------


def page(results: Results) -> str:
    """A table, and the means."""
    rows, done = [], results.data["programs"]
    ready = {n: done[n] for n in PROGRAMS if n in done and "best" in done[n].get("times", {})}
    for name, found in ready.items():
        t = found["times"]
        us = [1e6 * t[k] for k in ("default", "best", "search")]
        loss = [t[k] / t["best"] - 1 for k in ("default", "by model", "search")]
        sizes = ", ".join(f"{n}={v}" for n, v in PROGRAMS[name].items())
        rows.append(
            f"| {name.removeprefix('stdlib:')} {sizes} | {t['space']} | {us[0]:.1f} | {us[1]:.1f} "
            f"| {us[2]:.1f} | {loss[0]:.1%} | {loss[1]:.1%} | {loss[2]:.1%} | {t['search plan']} |"
        )
    head = (
        "| program | plans | default us | best us | search us | default loses | model's first loses "
        "| search loses | what the search took |\n|---|---:|---:|---:|---:|---:|---:|---:|---|"
    )
    return "\n".join([head, *rows, "", _means(ready), "", _about(results, ready)])


def _means(ready: Mapping[str, Any]) -> str:
    times = [found["times"] for found in ready.values()]
    kinds = "default", "by model", "search"
    loss = {k: round(sum(t[k] / t["best"] - 1 for t in times) / len(times), 4) + 0.0 for k in kinds}
    gain = exp(sum(log(t["default"] / t["search"]) for t in times) / len(times))
    losses = [t["search"] / t["best"] - 1 for t in times]
    worst, within = max(losses), sum(x <= AIM for x in losses)
    return (
        f"In the mean the default loses {loss['default']:.1%} against the fastest plan of the space, the "
        f"model's first choice {loss['by model']:.1%}, and the search {loss['search']:.1%} ({worst:.1%} at "
        f"worst; {within} of {len(times)} are within the aim of {AIM:.1%}). What the search "
        f"takes is {gain:.2f} times as fast as the default (geometric mean)."
    )


def _about(results: Results, ready: Mapping[str, Any]) -> str:
    asked = [f["search"]["asked"] for f in ready.values()]
    measured = [f["search"]["measured"] for f in ready.values()]
    about = results.data["about"]
    return (
        f"{about['cpu']}, 1 thread, {about['date'][:10]}; searches of {SECONDS:.0f} s with the "
        f"{next(iter(ready.values()))['search']['model']} model, which was asked about {min(asked)} to "
        f"{max(asked)} plans; {min(measured)} to {max(measured)} were measured."
    )


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune_search", description=__doc__)
    parser.add_argument("do", choices=("make", "search", "time", "page"))
    parser.add_argument("--only", choices=list(PROGRAMS))
    parser.add_argument("--most", type=int, default=len(PROGRAMS))
    asked = parser.parse_args(words)
    results = Results.open()
    if asked.do == "page":
        write_measured(PAGE, page(results))
        return 0
    for name in _left(asked, results)[: asked.most]:
        start = time.monotonic()
        if asked.do == "make":
            make(name, made_file(name))
            told = f"{len(space_of(name))} plans"
        elif asked.do == "search":
            results.keep(name, search=(found := searched(name)))
            told = f"{found['speedup']:.2f} times as fast, {found['note']}"
        else:
            found = results.data["programs"][name]["search"]
            results.keep(name, times=(times := timed(name, found)))
            told = ", ".join(f"{k} {1e6 * (times[k] or 0):.1f} us" for k in ("default", "best", "search"))
        print(f"{name}: {told} ({time.monotonic() - start:.0f} s)", flush=True)
    return 0


def _left(asked: argparse.Namespace, results: Results) -> list[str]:
    names = [asked.only] if asked.only else list(PROGRAMS)
    if asked.do == "make":
        return [n for n in names if not made_file(n).exists()]
    what = "times" if asked.do == "time" else "search"
    ready = [n for n in names if made_file(n).exists() and (what == "search" or results.has(n, "search"))]
    return [n for n in ready if not results.has(n, what)]


if __name__ == "__main__":
    sys.exit(main())
