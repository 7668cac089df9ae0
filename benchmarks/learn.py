"""Samples for the learned cost model: `python -m benchmarks.learn collect [--seconds N]`.

Programs are the workloads at public, other and drawn shapes, the standard library at typical and at drawn
sizes, the operators of the benchmarks and of the examples, the models, and random ones (`programs`).  Each is
compiled in all variants that tuning knows and in drawn plans of fusion, then timed on one core.

Making takes compilers and all cores (`--make-only`), timing wants them quiet (`--time-only`): both in turns,
as often as there is time; what is done is not done again.  `gather` puts what is timed into one file.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import polyfuse as pf
from benchmarks import golden_programs, learn_speed, model_cases, random_programs, random_shapes, stdlib_sizes
from benchmarks.surroundings import machine_kind, surroundings
from benchmarks.workload import load, select
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.learn.collect import gather, make_programs, refused, time_programs
from polyfuse.learn.making import CORES, Program, Wanted
from polyfuse.learn.samples import Samples, merge
from polyfuse.learn.samples import load as load_samples
from polyfuse.runtime.inputs import default_sizes

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "data"
EXAMPLES = ROOT / "examples" / "operators"
FOLDER = Path.home() / ".cache" / "polyfuse-learn"
SEED = 45
SHAPES, LIBRARY, RANDOM, MODEL_SIZES = 160, 2, 800, 3
# Sizes of the library are multiplied by powers of two from this range.
FACTORS = (0.125, 0.25, 0.5, 0.5, 2.0)
Sized = tuple[TensorGraph, Mapping[str, int]]

# --- programs ---------------------------------------------------------------------------------------------


@cache
def programs() -> tuple[Program, ...]:
    """All programs, in an order that is drawn, so that any part of them is like the whole."""
    every = [*_kept(), *_shapes(), *_library(), *_examples(), *_models(), *_random()]
    random.Random(SEED).shuffle(every)
    return tuple(every)


_FAMILIES = {"workload": "workload", "half": "workload", "rows": "workload", "operator": "operator"}


def _kept() -> Iterator[Program]:
    """Those whose code `benchmarks.golden` holds."""
    for name, make in golden_programs.programs().items():
        yield Program(name, _FAMILIES.get(name.partition("/")[0], "stdlib"), make)


def _shapes() -> Iterator[Program]:
    """Workloads at other shapes than the public ones, and at drawn ones."""
    for w, case in (*select([], others=True), *random_shapes.draw(SHAPES, SEED, [])):
        yield Program(f"shape/{case}", "workload", partial(_of_workload, w.name, case))


def _of_workload(name: str, case: str) -> Sized:
    w = load(name)
    return w.graph, w.sizes(case)


def _library() -> Iterator[Program]:
    """The standard library at sizes beside the typical ones."""
    for name, axes in stdlib_sizes.table().items():
        for k in range(LIBRARY):
            yield Program(f"stdlib/{name} drawn {k}", "stdlib", partial(_of_library, name, axes, k))


def _of_library(name: str, axes: Mapping[str, tuple[int, ...]], number: int) -> Sized:
    dice = random.Random(f"{SEED} {name} {number}")
    drawn = {
        n: tuple(max(1, round(v * dice.choice(FACTORS))) if v >= 16 else v for v in values)
        for n, values in axes.items()
    }
    signature = pf.stdlib.op(name).signature
    given = stdlib_sizes.arguments(signature, drawn)
    return golden_programs.called(pf.stdlib.op(name), given, stdlib_sizes.given(signature, drawn))


def _examples() -> Iterator[Program]:
    """The operators of examples/operators and examples."""
    for file in (*sorted(EXAMPLES.glob("*.pf")), *sorted(EXAMPLES.parent.glob("*.pf"))):
        for op in pf.parse(file).ops:
            yield Program(f"example/{file.stem}.{op}", "operator", partial(_of_example, file, op))


def _of_example(file: Path, op: str) -> Sized:
    graph = pf.parse(file).op(op).graph()
    return graph, default_sizes(graph, {})


def _models() -> Iterator[Program]:
    """Operators of models at usual and at smaller sizes."""
    for c in model_cases.cases():
        for k in range(MODEL_SIZES if c.sizes else 1):
            yield Program(f"model/{c.name}" + f" part {k}" * bool(k), "model", partial(_of_model, c.name, k))


def _of_model(name: str, number: int) -> Sized:
    c = model_cases.case(name)
    dice = random.Random(f"{SEED} {name} {number}")
    factors = FACTORS[:4] if number else (1.0,)
    return c.graph, {n: max(1, round(v * dice.choice(factors))) if v >= 16 else v for n, v in c.sizes.items()}


def _random() -> Iterator[Program]:
    """Random programs from tiny to large."""
    for k in range(RANDOM):
        yield Program(f"random/{k}", "random", partial(_of_random, k))


@cache
def _drawn() -> tuple[tuple[str, ...], ...]:
    """Texts of random programs: in turns of few and of many elements."""
    limits = ((2**11, 2**15), (2**15, 2**18), (2**17, 2**21))
    found: list[list[str]] = []
    for least, most in limits:
        numbered = zip(range(RANDOM), random_programs.draw(SEED, least, most), strict=False)
        found.append([d.text for _, d in numbered])
    return tuple(map(tuple, found))


def _of_random(number: int) -> Sized:
    text = _drawn()[number % 3][number]
    return instantiate(pf.parse(text).programs, "f"), {}


# --- the command ------------------------------------------------------------------------------------------


def _tell(text: str) -> None:
    print(text, flush=True)


def _chosen(texts: Sequence[str]) -> list[str]:
    return [p.name for p in programs() if not texts or any(t in p.name for t in texts)]


def collect(given: argparse.Namespace) -> None:
    """Make, time, and tell how far it is."""
    wanted = Wanted(given.variants, given.plans, given.threads, core=given.core)
    if given.core == "avx2":  # with each compiler, also of the process that times
        os.environ["CXX"] = "g++ -mno-avx512f"
    half = given.seconds if given.make_only or given.time_only else given.seconds / 2
    if not given.time_only:
        os.nice(19)
        made = make_programs(
            given.folder, programs, _chosen(given.programs), wanted, half, given.workers, _tell
        )
        _tell(f"{made} samples made")
    if not given.make_only:
        core = None if given.threads > 1 else max(os.sched_getaffinity(0))
        _tell(f"{time_programs(given.folder, half, core, _tell, given.noisy)} plans timed")


def speeds(given: argparse.Namespace) -> None:
    """The steps of `learn_speed` that are wanted; without any, what they found."""
    folder = given.folder / "speed"
    for step in ("ways", "choices"):
        if getattr(given, step):
            learn_speed.make(folder, given.seconds, _tell, step == "choices")
    if given.times:
        time_programs(folder, given.seconds, max(os.sched_getaffinity(0)), _tell)
    if not any(getattr(given, step) for step in learn_speed.STEPS):
        learn_speed.tell_all(folder, _tell)


def summary(samples: Samples) -> str:
    """What there is, in a few lines."""
    by_family = {
        f: len({*samples.program[samples.family == k].tolist()}) for k, f in enumerate(samples.families)
    }
    counts = {k: samples.about.get(k) for k in ("made", "timed", "noisy", "failed")}
    return (
        f"{len(samples)} samples of {len(samples.programs)} programs {by_family}, "
        f"{len(samples.graphs)} graphs, {int((samples.task == 1).sum())} of plans, {counts}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("collect", help="make and time samples")
    making.add_argument("--seconds", type=float, default=600, help="time that it may take")
    making.add_argument("--programs", nargs="+", default=(), metavar="TEXT", help="with this in their names")
    making.add_argument("--make-only", action="store_true", help="make, and time nothing")
    making.add_argument("--time-only", action="store_true", help="time what is made")
    making.add_argument("--noisy", action="store_true", help="time again what was left out for noise")
    making.add_argument("--workers", type=int, default=1, help="processes that make")
    making.add_argument("--variants", type=int, default=Wanted().variants, help="of an operator, at most")
    making.add_argument("--plans", type=int, default=Wanted().plans, help="of an operator, at most")
    gathering = commands.add_parser("gather", help="put what is timed into a file, beside others")
    gathering.add_argument("--out", type=Path, help="the file (default: that of this machine)")
    gathering.add_argument("--others", nargs="*", type=Path, default=(), help="files to put in as well")
    speed = commands.add_parser("speed", help="the choices of the learned model beside the default")
    speed.add_argument("--seconds", type=float, default=600, help="time that it may take")
    for name, what in learn_speed.STEPS.items():
        speed.add_argument(f"--{name}", action="store_true", help=what)
    for each in (making, gathering):
        each.add_argument("--threads", type=int, default=1, help="of kernels")
        each.add_argument("--core", choices=CORES, default="own", help="what code is made for")
    for each in (
        making,
        gathering,
        speed,
        commands.add_parser("refused", help="what could not be made, and why"),
    ):
        each.add_argument("--folder", type=Path, default=FOLDER, help="where made programs are")
    given = parser.parse_args(arguments)
    if given.command == "collect":
        collect(given)
    elif given.command == "speed":
        speeds(given)
    elif given.command == "refused":
        _tell("\n".join(refused(given.folder)))
    else:
        name = f"cpu_{machine_kind(surroundings())}" + f"_{given.core}" * (given.core != "own")
        out = given.out or DATA / f"{name}.xz"
        found = gather(given.folder, out, Wanted(threads=given.threads, core=given.core))
        if given.others:
            found = merge([found, *map(load_samples, given.others)])
            found.save(out)
        _tell(f"{out}: {out.stat().st_size / 1e6:.2f} MB, {summary(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
