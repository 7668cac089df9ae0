"""One operator of the demo: compiled with and without layer I, checked, and timed beside NumPy."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from demo_cases import Case, Maker
from demo_numpy import Arrays

import polyfuse as pf
from polyfuse.driver.pipeline import Built
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.runtime.machine.probe import BandwidthReport, measure, working_set_class
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate
from polyfuse.visualize.schedule import count_nests

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Row:
    """What was measured of a case; the times are seconds."""

    name: str
    title: str
    shapes: dict[str, list[int]]
    elements: int
    checked: str
    worst_error_ratio: float
    problems: tuple[str, ...]
    compile_s: float
    seconds: float
    unfused_s: float
    numpy_s: float
    kernels_before: int
    kernels_after: int
    nests_before: int
    nests_after: int
    compulsory_bytes: int
    working_set: int
    floor_s: float

    @property
    def share(self) -> float:
        return self.floor_s / self.seconds


class Trial:
    """A case at one choice of sizes, with arrays to work on."""

    def __init__(self, case: Case, sizes: tuple[int, ...]) -> None:
        self.case = case
        program = pf.parse(HERE / f"{case.file}.pf")
        self.operator = program.op(case.name)
        self.fused = pf.compile(program, case.name)
        self.unfused = pf.compile(program, case.name, layers=())
        self.given = case.make(Maker(), *sizes)
        params = self.operator.signature.params
        self.changed = [p.name for p in params if p.inout]
        self.work = {n: a.copy() if n in self.changed else a for n, a in self.given.items()}

    def reset(self) -> None:
        for name in self.changed:
            np.copyto(self.work[name], self.given[name])

    def results(self, run: Callable[[Arrays], Arrays]) -> Arrays:
        """Every result of one run on the given inputs; `p__out` is what the inout parameter p became."""
        self.reset()
        found = run(self.work)
        return {**found, **{f"{n}__out": self.work[n].copy() for n in self.changed}}

    def call(self, compiled: pf.Compiled) -> Callable[[Arrays], Arrays]:
        """A compiled operator as a function of its arguments by name that names its results."""

        def run(arguments: Arrays) -> Arrays:
            got = compiled(**arguments)
            names = [r.name for r in self.operator.signature.results]
            return dict(zip(names, got if isinstance(got, tuple) else (got,), strict=bool(names)))

        return run


def run_case(case: Case, quick: bool, stage: Callable[[str], None]) -> tuple[Row, Built, Built]:
    """Everything for one row of the table, and what was compiled without and with layer I."""
    stage("inputs")
    trial = Trial(case, case.sizes[quick])
    stage("compile")
    start = time.perf_counter()
    after = trial.fused.built(**trial.work)
    compile_s = time.perf_counter() - start
    before = trial.unfused.built(**trial.work)
    stage("check")
    got = trial.results(trial.call(trial.fused))
    ratio, problems = check_part(trial, got)
    unfused = trial.call(trial.unfused)
    problems += compare(got, trial.results(case.numpy), "NumPy")
    problems += compare(got, trial.results(unfused), "the unfused kernels")
    stage("time")
    times = time_in_turn((trial.call(trial.fused), unfused, case.numpy), trial.work, quick)
    return make_row(trial, got, ratio, problems, compile_s, times, before, after), before, after


def make_row(
    trial: Trial,
    got: Arrays,
    ratio: float,
    problems: list[str],
    compile_s: float,
    times: list[float],
    before: Built,
    after: Built,
) -> Row:
    read, written = compulsory_bytes(trial, got)
    in_place = sum(trial.given[n].nbytes for n in trial.changed)
    return Row(
        name=trial.case.name,
        title=trial.case.title,
        shapes={n: list(np.shape(a)) for n, a in trial.given.items()},
        elements=sum(a.size for a in got.values()),
        checked=trial.case.part_of,
        worst_error_ratio=ratio,
        problems=tuple(problems),
        compile_s=compile_s,
        seconds=times[0],
        unfused_s=times[1],
        numpy_s=times[2],
        kernels_before=len(before.kernels.kernels),
        kernels_after=len(after.kernels.kernels),
        nests_before=count_nests(before.scheduled.tree),
        nests_after=count_nests(after.scheduled.tree),
        compulsory_bytes=read + written,
        working_set=read + written - in_place,
        floor_s=floor(read, written, read + written - in_place),
    )


def check_part(trial: Trial, got: Arrays) -> tuple[float, list[str]]:
    """(worst difference over allowed difference, what disagrees) on the case's part."""
    part = trial.case.part
    inputs = {n: np.asarray(a)[part.get(n, ...)] for n, a in trial.given.items()}
    graph = trial.operator.graph()
    sizes = bind_sizes(graph, {n: a.shape for n, a in inputs.items()})
    want = evaluate(graph, sizes, inputs)
    worst, problems = 0.0, []
    for name, array in got.items():
        mine = array[part.get(name.removesuffix("__out"), ...)]
        found = agrees(np.ascontiguousarray(mine), want[name], graph.tensor(name).dtype)
        worst = max(worst, found.worst_ratio)
        if not found:
            problems.append(f"{name}, {trial.case.part_of}, against the reference: {found.message}")
    return worst, problems


def compare(got: Arrays, other: Arrays, whose: str) -> list[str]:
    """What of the whole result is not finite, or far from the result of another way."""
    problems = []
    for name, array in got.items():
        if not np.isfinite(array).all():
            problems.append(f"{name} is not finite")
        elif not np.allclose(array, other[name], rtol=1e-3, atol=1e-4):
            problems.append(f"{name} is far from that of {whose}")
    return problems


def time_in_turn(ways: tuple[Callable[[Arrays], Arrays], ...], arguments: Arrays, quick: bool) -> list[float]:
    """Median seconds of warm runs of each way.

    They take turns, so that what else the machine does meets all of them; of two runs in a row the second
    counts, which finds its arrays in the caches if they fit.
    """
    spent: list[list[float]] = [[] for _ in ways]
    end = time.perf_counter() + (0.1 if quick else 2.0)
    while len(spent[0]) < 5 or (len(spent[0]) < 51 and time.perf_counter() < end):
        for times, run in zip(spent, ways, strict=True):
            run(arguments)
            start = time.perf_counter()
            run(arguments)
            times.append(time.perf_counter() - start)
    return [median(times) for times in spent]


def compulsory_bytes(trial: Trial, got: Arrays) -> tuple[int, int]:
    """(bytes that must be read, bytes that must be written); of a table, the rows that occur."""
    read = sum(a.nbytes for a in trial.given.values() if isinstance(a, np.ndarray))
    if "ids" in trial.given:
        table, ids = trial.given["word"], trial.given["ids"]
        read -= table.nbytes - len(np.unique(ids)) * table[0].nbytes
    return read, sum(a.nbytes for a in got.values())


@functools.cache
def rates(nbytes: int) -> BandwidthReport:
    """The better of two measurements, one of them new: the machine may have been busy during the other."""
    first = asdict(measure(nbytes))
    second = asdict(measure(nbytes, refresh=True))
    return BandwidthReport(**{name: max(value, second[name]) for name, value in first.items()})


def floor(read: int, written: int, working_set: int) -> float:
    """Seconds to move the bytes at the best measured rate of a working set of that size."""
    m = rates(working_set_class(working_set))
    apart = read / m.read + written / max(m.fill, m.fill_nt)
    together = (read + written) / max(m.copy, m.map, m.map_nt)
    return min(apart, together) / 1e9
