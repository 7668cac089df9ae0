"""Time the workloads: `python -m benchmarks [--quick] [--only NAME ...] [--no-torch] [--no-jax]`.

A complete run, of all workloads or of all `--others`, takes the place of the last one of this kind of
machine in `benchmarks/results`.  What is `--quick`, drawn at random or chosen by `--only` is written only to
the folder that `--out` names.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks.measure import OURS, Outcome, Settings, run
from benchmarks.processes import Child, Seat
from benchmarks.random_shapes import draw
from benchmarks.report import line, print_table, save
from benchmarks.surroundings import RESULTS, load_average, machine_kind, surroundings
from benchmarks.turns import ContenderError
from benchmarks.workload import PLACES, load, names, select

QUICK_ROUNDS = 5
FILE_WIDTH = 200


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="workloads or cases")
    parser.add_argument("--others", action="store_true", help="at other shapes than the public ones")
    parser.add_argument("--random", type=int, metavar="N", help="at N shapes that are drawn at random")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (0)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, default allocator only")
    parser.add_argument("--repeat", type=int, default=31, metavar="N", help="rounds (31)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="cores for every contender (2)")
    parser.add_argument(
        "--patience", type=float, default=60, metavar="S", help="seconds per workload to wait for quiet (60)"
    )
    parser.add_argument("--numpy", action="store_true", help="time the NumPy functions too")
    parser.add_argument(
        "--places",
        choices=("lines", "numpy"),
        default="lines",
        help="all contenders' arrays begin at cache lines, or where NumPy puts them (lines)",
    )
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--no-jax", action="store_true")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the results",
    )
    parser.add_argument("--list", action="store_true", help="name the workloads and end")
    return parser.parse_args(arguments)


def seats(chosen: argparse.Namespace) -> list[Seat]:
    """Who takes part: each peer that is installed, with both allocator settings."""
    peers: list[str] = []
    if not chosen.no_torch and importlib.util.find_spec("torch"):
        peers += ["torch eager", "torch.compile"]
    if not chosen.no_jax and importlib.util.find_spec("jax"):
        peers.append("jax.jit")
    tuned = (False,) if chosen.quick or sys.platform != "linux" else (False, True)
    own = [OURS, "numpy"] if chosen.numpy or not peers else [OURS]
    return [*map(Seat, own), *(Seat(p, t) for p in peers for t in tuned)]


def folder_of(chosen: argparse.Namespace, about: Mapping[str, Any]) -> Path | None:
    """Where the results go; None of a run that is not complete and has no `--out`."""
    complete = not (chosen.quick or chosen.only or chosen.random is not None)
    kind: Path | None = RESULTS / machine_kind(about) if complete else None
    return chosen.out or kind


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, save. 1 if polyfuse was wrong anywhere."""
    chosen = options(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    if chosen.list:
        for name in names():
            w = load(name)
            console.print(f"{name}: {', '.join(w.other_cases if chosen.others else w.cases)}")
        return 0
    try:
        drawn = chosen.random is not None
        pairs = draw(chosen.random, chosen.seed, chosen.only) if drawn else select(chosen.only, chosen.others)
    except KeyError as error:
        console.print(error.args[0], markup=False)
        return 2
    rounds = QUICK_ROUNDS if chosen.quick else chosen.repeat
    settings = Settings(rounds, chosen.threads, chosen.patience)
    os.environ[PLACES] = chosen.places
    about = {
        **surroundings(),
        "threads": settings.threads,
        "rounds": settings.rounds,
        "places": chosen.places,
    }
    before = load_average()
    outcomes: list[Outcome] = []
    with ExitStack() as stack, console.status("starting") as status:
        cache = Path(stack.enter_context(TemporaryDirectory(prefix="polyfuse-bench-")))
        children = _children(seats(chosen), settings, cache, stack, console)
        about["versions"] = {n: v for c in children for n, v in c.versions.items()}
        for workload, case in pairs:
            outcomes.append(run(workload, case, children, settings, status.update))
            console.print(line(outcomes[-1]), markup=False, highlight=False)
    about["load"] = (before, load_average())
    print_table(outcomes, console)
    where = folder_of(chosen, about)
    name = "random" if drawn else "others" if chosen.others else "workloads"
    for file in save(outcomes, about, where, name) if where else ():
        console.print(f"written: {file}", markup=False, highlight=False)
    return 0 if all(o.ours.verdict.ok for o in outcomes) else 1


def _children(
    wanted: Sequence[Seat], settings: Settings, cache: Path, stack: ExitStack, console: Console
) -> list[Child]:
    """Their processes; a peer that cannot start is left out, polyfuse must."""
    started: list[Child] = []
    for seat in wanted:
        try:
            started.append(stack.enter_context(Child(seat, settings.threads, cache)))
        except ContenderError as error:
            if seat.contender == OURS:
                raise
            console.print(f"left out: {error}", markup=False)
    return started


if __name__ == "__main__":
    sys.exit(main())
