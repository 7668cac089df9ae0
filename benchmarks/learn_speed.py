"""What `cost="learned"` brings where nothing is measured: `python -m benchmarks.learn speed`.

    ways     every variant of a case is lowered and printed, and its features are kept: no weights are asked
    choices  the shipped weights name one, as `tuning.tuner.ranked` does; it and the default are compiled
    times    both in turns, as samples are timed; the same code takes the same time

Cases are the workloads at public and at other shapes, and ordinary operators.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import golden_programs
from benchmarks.operators import CASES
from benchmarks.surroundings import RESULTS, write_json
from benchmarks.workload import load as workload
from benchmarks.workload import select
from polyfuse.driver.lowering import Lowered
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.driver.targets import told
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.learn.evaluate import predicted_by_each
from polyfuse.learn.features import KernelGraph, kernel_graphs
from polyfuse.learn.making import MADE, Maker, Program, file_name
from polyfuse.learn.model import Model, shipped
from polyfuse.learn.samples import VARIANTS, Sample, collected, load
from polyfuse.learn.timing import known_result
from polyfuse.runtime.cache.plans import keep_plan
from polyfuse.runtime.toolchain.compiler import compile_shared
from polyfuse.tuning import candidates
from polyfuse.tuning.judges import Prediction, surest
from polyfuse.tuning.table import Variant
from polyfuse.tuning.trial import recipes
from polyfuse.tuning.tuner import SURE

WAYS = ".ways"
FOUND = RESULTS / "learned_speed.json"
# A choice that takes so many times as long is a loss.
SLOWER = 1.03
STEPS = {
    "ways": "make features of all variants",
    "choices": "compile what the shipped model names",
    "times": "time these beside the default",
}
FAMILIES = {"workload": "workloads", "shape": "other shapes", "operator": "operators"}

# --- cases ------------------------------------------------------------------------------------------------


def programs() -> Iterator[Program]:
    """The cases, those that have a bar first."""
    for kind, others in (("workload", False), ("shape", True)):
        for w, case in select([], others=others):
            yield Program(f"{kind}/{case}", kind, partial(_of_workload, w.name, case))
    for case in CASES:
        yield Program(f"operator/{case.name}", "operator", partial(golden_programs.of_case, case))


def _of_workload(name: str, case: str) -> golden_programs.Sized:
    w = workload(name)
    return w.graph, w.sizes(case)


# --- ways -------------------------------------------------------------------------------------------------


class _Features:
    """A judge that keeps features; what it predicts is their number."""

    name = "features"

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.found: list[tuple[KernelGraph, ...]] = []

    def predict(self, made: Lowered, knobs: CpuKnobs) -> Prediction:
        self.found.append(kernel_graphs(made.kernels, self.maker.machine, knobs))
        return Prediction((float(len(self.found) - 1),))


def make_ways(maker: Maker, program: Program, file: Path) -> int:
    """The features of every variant of a case into a file; how many variants there are."""
    base = maker.compilation(*program.make())
    judge = _Features(maker)
    made = candidates.proposed(base, candidates.Maker(*maker.projected, judge), math.inf).candidates
    names = (program.name, "operator", VARIANTS)
    samples = [
        Sample(*names, str(k), k == 0, math.nan, 0.0, 0.0, judge.found[int(c.predicted)])
        for k, c in enumerate(made)
    ]
    collected(samples, {"variants": [c.variant.as_json() for c in made]}).save(file)
    return len(made)


# --- choices ----------------------------------------------------------------------------------------------


def choice(maker: Maker, base: Compilation, model: Model, file: Path) -> Variant:
    """The variant that `tuning.tuner.ranked` takes."""
    ways = load(file)
    variants = [Variant.of_json(v) for v in ways.about["variants"]]
    each = predicted_by_each(model, ways, np.arange(len(ways)))
    found = {v: Prediction(tuple(map(float, one))) for v, one in zip(variants, each.T, strict=True)}
    own = found[variants[0]]
    likely = sorted((v for v in found if found[v].surely_less(own, SURE)), key=lambda v: found[v].seconds)
    if len(likely) > 1 and (both := likely[0].joined(likely[1])) is not None:
        judge = _Features(maker)
        way = candidates.compilation_of(base, both)
        if candidates.Maker(*maker.projected, judge)(way, both) is not None:
            found[both] = Prediction(tuple(map(float, model.each(judge.found)[:, 0])))
    return [*found][surest([*found.values()], SURE)]


def make_choice(maker: Maker, program: Program, model: Model, file: Path) -> Variant:
    """Compile the default and what the model names into the folder; what that is."""
    base = maker.compilation(*program.make())
    chosen = choice(maker, base, model, file)
    keys, sources, samples = [], set(), []
    for variant in dict.fromkeys((Variant(), chosen)):
        way = candidates.compilation_of(base, variant)
        low, code = emitted(Watch(maker.options), way)
        if (form := (code.source, repr(replace(code.plan, chunks=None, threads=None)))) in sources:
            continue
        sources.add(form)
        compile_shared(code.source)
        keep_plan(way.key, code, told(low.decisions, code, low.kernels), base.graph.name)
        keys.append(way.key)
        samples.append(
            Sample(program.name, "operator", VARIANTS, str(variant), not samples, math.nan, 0, 0, ())
        )
    inputs = [r.as_json() for r in recipes(base.graph, base.sizes)]
    about = {"keys": keys, "inputs": inputs, "threads": maker.wanted.threads, "chosen": str(chosen)}
    collected(samples, about).save(maker.file(program))
    return chosen


# --- the command ------------------------------------------------------------------------------------------


def make(folder: Path, seconds: float, tell: Callable[[str], None], choose: bool) -> None:
    """Ways of all cases, or choices among those that are there, as far as the time goes."""
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    os.environ["POLYFUSE_CACHE_DIR"] = str(folder / "cache")
    maker, until, model = Maker(folder), time.monotonic() + seconds, shipped()
    for program in programs():
        base = folder / file_name(program.name)
        ways, made = (base.with_name(base.name + end) for end in (WAYS, MADE))
        if time.monotonic() > until or (made if choose else ways).exists() or choose > ways.exists():
            continue
        if choose and model is not None:
            tell(f"{program.name}: {make_choice(maker, program, model, ways)}")
        elif not choose:
            tell(f"{program.name}: {make_ways(maker, program, ways)} variants")


def ratios(folder: Path) -> dict[str, dict[str, float]]:
    """Of each family and case, how many times as fast the choice is."""
    found: dict[str, dict[str, float]] = {name: {} for name in FAMILIES.values()}
    for program in programs():
        base = folder / file_name(program.name)
        made = base.with_name(base.name + MADE)
        if not made.exists():
            continue
        keys, result = load(made).about["keys"], known_result(made)
        if len(keys) == 1:
            found[FAMILIES[program.family]][program.name] = 1.0
        elif result is not None and all(k in result.seconds for k in keys):
            own, other = (result.seconds[k][0] for k in keys)
            found[FAMILIES[program.family]][program.name] = own / other
    return found


def summary(found: Mapping[str, float]) -> dict[str, Any]:
    """Cases, those with other code, the geometric mean, those slower by more than 3 %, the worst."""
    worst = min(found, key=lambda n: found[n])
    return {
        "cases": len(found),
        "other": sum(r != 1.0 for r in found.values()),
        "mean": math.exp(fmean(map(math.log, found.values()))),
        "slower": sum(r < 1 / SLOWER for r in found.values()),
        "worst": found[worst],
        "name": worst,
    }


def tell_all(folder: Path, tell: Callable[[str], None]) -> None:
    """What was timed, as a table, and into the results."""
    found = {family: summary(each) for family, each in ratios(folder).items() if each}
    write_json(FOUND, found)
    tell(table(json.loads(FOUND.read_text(encoding="utf-8"))))


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """As Markdown."""
    head = "| cases | | other code | mean speedup | slower by over 3 % | slowest |\n|---|---|---|---|---|---|"
    rows = [
        f"| {family} | {x['cases']} | {x['other']} | {x['mean']:.3f} | {x['slower']} "
        f"| {x['worst']:.2f} ({x['name'].partition('/')[2]}) |"
        for family, x in found.items()
    ]
    return "\n".join([head, *rows])
