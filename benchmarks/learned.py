"""The learned cost model, trained and judged: `python -m benchmarks.learned train | run | page`.

    train   the model that is shipped, from three seeds, on all programs but those that are held out
    run     kinds of models, their ablations, splits and parts of the data; goes on where it was stopped
    page    figures and plots of what `run` found and of the shipped model into the documentation

All read `benchmarks/data`, which `python -m benchmarks.learn` collects; `train` and `run` need PyTorch
(`pip install '.[learn]'`) and one core.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import learn_speed
from benchmarks.learned_page import SPLITS, USUAL, write
from benchmarks.learned_trees import TREES, boosted
from benchmarks.surroundings import RESULTS, write_json
from polyfuse.learn.evaluate import (
    ELSEWHERE,
    HELD_OUT_SEED,
    Array,
    Figures,
    Split,
    calibrated,
    confidence,
    figures,
    held_out_code_path,
    held_out_kernels,
    held_out_machine,
    held_out_programs,
    held_out_sizes,
    importance,
    predicted,
    predicted_by_each,
    repeated,
    ridge,
    samples_of,
    switching,
    timed_elsewhere,
    whole_programs,
)
from polyfuse.learn.features import GROUPS, KERNEL_FEATURES
from polyfuse.learn.model import Design, Model
from polyfuse.learn.samples import PLANS, VARIANTS, Samples

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "data"
SHIPPED = ROOT / "polyfuse" / "learn" / "cpu.npz"
FOUND = RESULTS / "learned.json"
# Experiments that run side by side write one after the other.
LOCK = Path(tempfile.gettempdir()) / "polyfuse-learned.lock"
SEEDS = (0, 1, 2)
THREADS, WIDTH = map(KERNEL_FEATURES.index, ("threads", "vector bytes"))
TASKS = {"variants": VARIANTS, "plans": PLANS}
MOST_POINTS = 1200
# How sure it has to be that a model chooses better.
CONFIDENT = 0.95
# How much faster a variant has to be, by the model, than what the passes do.
SURE = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
PARTS = (0.125, 0.25, 0.5)
# Samples that a core makes in five minutes.
CALIBRATION = 500

# --- what is trained --------------------------------------------------------------------------------------

# A kind of model: its design, and how its training differs from the usual one.
Kind = tuple[Design, Mapping[str, Any]]
KINDS: Mapping[str, Kind] = {
    USUAL: (Design(), {}),
    "time told from nothing": (Design(residual=False), {}),
    "no messages between nodes": (Design(layers=0), {}),
    "features of kernels only": (Design(pooling=()), {}),
    "nodes only": (Design(kernel=False), {}),
    "mean of nodes": (Design(pooling=("mean",)), {}),
    "maximum of nodes": (Design(pooling=("max",)), {}),
    "sum of nodes": (Design(pooling=("sum",)), {}),
    "one layer of messages": (Design(layers=1), {}),
    "three layers of messages": (Design(layers=3), {}),
    "features of kernels only, told from nothing": (Design(pooling=(), residual=False), {}),
    "squared error alone": (Design(), {"rank": "none"}),
    "hinge": (Design(), {"rank": "hinge"}),
}


@dataclass(frozen=True, slots=True)
class Experiment:
    """A kind of model on a split, with a part of the operators that may be trained on, from a seed."""

    kind: str
    split: str = "programs"
    part: float = 1.0
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind} | {self.split} | {self.part:g} | {self.seed}"


def experiments() -> Iterator[Experiment]:
    """All of them, from all seeds: what says most comes first."""
    ways = [(USUAL, split, 1.0) for split in SPLITS]
    ways += [(kind, "programs", 1.0) for kind in (TREES, *KINDS) if kind != USUAL]
    ways[4:4] = [(USUAL, "programs", part) for part in reversed(PARTS)]
    yield from (Experiment(*way, seed) for way in ways for seed in SEEDS)


def split_of(samples: Samples, name: str) -> Split | None:
    """One of the splits by its name; None where the data has none."""
    ways: Mapping[str, Callable[[Samples], Split | None]] = {
        "programs": held_out_programs,
        "sizes": held_out_sizes,
        "kernels": held_out_kernels,
        "code path": held_out_code_path,
        "machine": held_out_machine,
        "machine, calibrated": partial(held_out_machine, calibration=CALIBRATION),
    }
    return ways[name](samples)


def some_of(samples: Samples, which: Array, part: float, seed: int) -> Array:
    """The samples of a part of their programs, which is drawn."""
    if part == 1.0:
        return which
    known = np.unique(samples.program[which])
    chosen = np.random.default_rng(seed).permutation(known)[: round(part * len(known))]
    return which[np.isin(samples.program[which], chosen)]


def by_task(samples: Samples, which: Array, seconds: Array) -> dict[str, Any]:
    """Figures of all samples, and of each task."""
    found = {"all": asdict(figures(samples, which, seconds))}
    for name, task in TASKS.items():
        mine = samples.task[which] == task
        found[name] = asdict(figures(samples, which[mine], seconds[mine]))
    return found


def experiment(samples: Samples, e: Experiment, epochs: int | None) -> dict[str, Any] | None:
    """Train and judge; None where the data has no such split."""
    from polyfuse.learn.train import Recipe, trained  # PyTorch

    split = split_of(samples, e.split)
    if split is None:
        return None
    start, which = time.process_time(), some_of(samples, split.train, e.part, e.seed)
    if e.kind == TREES:
        known, unseen = boosted(samples, which, (which, split.test), e.seed)
    else:
        design, differs = KINDS[e.kind]
        recipe = replace(Recipe(design), **differs, **({"epochs": epochs} if epochs else {}))
        model = trained(samples, which, recipe, (e.seed,))
        known, unseen = (predicted(model, samples, some) for some in (which, split.test))
    return {
        **asdict(e),
        "samples": len(which),
        "epochs": None if e.kind == TREES else recipe.epochs,
        "cpu_seconds": round(time.process_time() - start, 1),
        "train": by_task(samples, which, known),
        "test": by_task(samples, split.test, unseen),
    }


# --- baselines --------------------------------------------------------------------------------------------


def baselines(samples: Samples, split: Split) -> dict[str, dict[str, Any]]:
    """What a model is compared with, on the same samples."""
    test = split.test
    mean = np.exp(np.log(samples.seconds[split.train]).mean())
    ways = {
        "a repeat of the measurement": repeated(samples, test),
        "projected model": samples.projected[test],
        "projected, on a fitted line": calibrated(samples, split),
        "linear correction": ridge(samples, split),
        "mean of all": np.full(len(test), mean),
    }
    if split.name == "machine":
        ways["its time on the other machine"] = timed_elsewhere(samples, split)
    return {name: by_task(samples, test, seconds) for name, seconds in ways.items()}


def judged(samples: Samples, model: Model) -> dict[str, Any]:
    """The shipped model on the programs that are held out: figures of all members together and of each,
    points for a plot, and what it reads."""
    split = held_out_programs(samples)
    seconds = predicted(model, samples, split.test)
    mine = samples.task[split.test] == VARIANTS
    each = predicted_by_each(model, samples, split.test)
    return {
        "figures": by_task(samples, split.test, seconds),
        "sure": sure_of(samples, split.test, seconds),
        "members": [by_task(samples, split.test, one) for one in each],
        "baselines": {name: baselines(samples, s) for name, s in _splits(samples).items()},
        "switching": [asdict(switching(samples, split.test[mine], each[:, mine], sure)) for sure in SURE],
        "importance": importance(model, samples, split.test, GROUPS),
        "points": points(samples, split.test, seconds),
    }


def points(samples: Samples, which: Array, seconds: Array) -> list[list[float]]:
    """Measured, predicted and projected seconds of some of them, for a plot."""
    rows = np.stack([samples.seconds[which], seconds, samples.projected[which]], axis=1)
    some = rows[:: math.ceil(len(rows) / MOST_POINTS)]
    return [[float(f"{x:.4g}") for x in row] for row in some]


def _splits(samples: Samples) -> dict[str, Split]:
    found = {name: split_of(samples, name) for name in SPLITS}
    return {name: s for name, s in found.items() if s is not None}


def wins(figures: Mapping[str, Any], projected: Mapping[str, Any], sure: float) -> bool:
    """Does a model tell times, order pairs and choose among variants better than the projected one, so surely
    that chance does not explain it?"""
    mine, other = figures["variants"], projected["variants"]
    better = mine["mape"] < other["mape"] and mine["right"] > other["right"] and sure >= CONFIDENT
    return better and all(mine[name] <= other[name] for name in ("first", "five"))


def sure_of(samples: Samples, which: Array, seconds: Array) -> float:
    """How sure it is that predicted times choose among variants better than the projected ones."""
    mine = samples.task[which] == VARIANTS
    return confidence(samples, which[mine], seconds[mine], samples.projected[which[mine]])


# --- commands ---------------------------------------------------------------------------------------------


def data(files: Sequence[Path]) -> Samples:
    """The samples of some files, or of all that there are."""
    return samples_of(*(files or [DATA]))


def train(given: argparse.Namespace) -> None:
    """The model that is shipped."""
    from polyfuse.learn.train import Recipe, trained  # PyTorch

    samples = data(given.data)
    split, recipe = held_out_programs(samples), Recipe()
    recipe = replace(recipe, epochs=given.epochs or recipe.epochs)
    start = time.process_time()
    model = trained(samples, split.train, recipe, SEEDS, lambda text: print(text, flush=True))
    seconds = predicted(model, samples, split.test)
    found = by_task(samples, split.test, seconds)
    about = {
        "samples": len(split.train),
        "programs": len(np.unique(samples.program[split.train])),
        "threads": sorted({round(2 ** g.kernel[THREADS] - 1) for g in samples.graphs}),
        "vector bytes": sorted({round(2 ** g.kernel[WIDTH] - 1) for g in samples.graphs}),
        "date": samples.about.get("date"),
        "held out by seed": HELD_OUT_SEED,
        "recipe": {k: v for k, v in asdict(recipe).items() if k != "design"},
        "held out": found,
        "wins": wins(
            found,
            by_task(samples, split.test, samples.projected[split.test]),
            sure_of(samples, split.test, seconds),
        ),
    }
    replace(model, about=about).save(given.out)
    print(f"{given.out}: {given.out.stat().st_size / 1e3:.0f} kB, {time.process_time() - start:.0f} s")
    print(Figures(**found["all"]))


def run(given: argparse.Namespace) -> None:
    """Experiments that were not made yet, as far as the time goes. Several may run side by side."""
    samples, until = data(given.data), time.monotonic() + 60 * given.minutes

    def known() -> dict[str, Any]:
        read = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
        made = read["experiments"] if read.get("samples") == len(samples) else {}
        return {**read, "samples": len(samples), "experiments": made}

    for e in experiments():
        if e.name in known()["experiments"]:
            continue
        if given.only and not any(text in e.name for text in given.only):
            continue
        if time.monotonic() > until:
            break
        found = experiment(samples, e, given.epochs)
        if found is not None:
            with LOCK.open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                before = known()
                write_json(FOUND, {**before, "experiments": {**before["experiments"], e.name: found}})
            print(f"{e.name}: {found['cpu_seconds']} s, {_told(found['test'])}", flush=True)


def _told(test: Mapping[str, Any]) -> str:
    tasks = (f"{n} tau {test[n]['tau']:.2f} first {test[n]['first']:.1%}" for n in TASKS)
    return f"MAPE {test['all']['mape']:.1%}, {', '.join(tasks)}"


def by_core(samples: Samples) -> dict[str, int]:
    """How many samples there are for each core."""
    cores = [name.partition(ELSEWHERE)[2] for name in samples.programs]
    counts = np.bincount(samples.program, minlength=len(cores))
    return {c: int(counts[[k for k, x in enumerate(cores) if x == c]].sum()) for c in sorted({*cores})}


def page(given: argparse.Namespace) -> None:
    """The figures of the shipped model into the results, then all into the page."""
    samples = data(given.data)
    known = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {"experiments": {}}
    shipped = judged(samples, Model.load(SHIPPED))
    about = {
        **{
            k: samples.about.get(k)
            for k in ("machine", "date", "threads", "made", "timed", "noisy", "failed")
        },
        "programs": int(whole_programs(samples).max()) + 1,
        "cores": by_core(samples),
        "graphs": len(samples.graphs),
    }
    projected = shipped["baselines"]["programs"]["projected model"]
    won = wins(shipped["figures"], projected, shipped["sure"])
    speed = json.loads(learn_speed.FOUND.read_text(encoding="utf-8")) if learn_speed.FOUND.exists() else {}
    found = {
        **known,
        "samples": len(samples),
        "about": about,
        "wins": won,
        "shipped": shipped,
        "speed": speed,
    }
    write_json(FOUND, found)
    write(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learned", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    ways = {"train": train, "run": run, "page": page}
    for name, what in ways.items():
        command = commands.add_parser(name, help=(what.__doc__ or "").split("\n")[0])
        command.add_argument("data", type=Path, nargs="*", help="files of samples (all of benchmarks/data)")
        if name != "page":
            command.add_argument("--epochs", type=int, metavar="N", help="instead of the usual number")
    commands.choices["train"].add_argument("--out", type=Path, default=SHIPPED, help="where to save it")
    commands.choices["run"].add_argument("--minutes", type=float, default=10.0, help="begin none after these")
    commands.choices["run"].add_argument(
        "--only", nargs="+", default=(), metavar="TEXT", help="with this in it"
    )
    given = parser.parse_args(arguments)
    ways[given.command](given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
