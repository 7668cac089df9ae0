"""Eight operators: compiled, checked against the float64 reference, timed, and compared with NumPy.

    python examples/demo.py            full sizes, about a minute with an empty cache
    python examples/demo.py --quick    small sizes, some seconds

The operators are the files beside this one.  For each, the table shows

    error       largest |difference| from the float64 reference, in units of the bound on rounding errors that
                comes with the reference: below 1 agrees.  It is evaluated for a part of the results, such as
                every 8th row; all elements must be finite and close to NumPy's (relative 1e-3).
    ms          time of a call, median of warm calls; "unfused" is the same without layer I
    x NumPy     how much faster than the NumPy function below
    nests       loop nests, and kernels launched, without and with layer I
    share       the least bytes that must be moved (every input and output once) over the time, as a share
                of the bandwidth that was measured on this machine for a working set of that size
    compile s   from the checked program to loaded kernels (the cache keeps them: next time it is less)

Pictures of the schedule trees and the numbers
(`results.json`) go to the folder `demo-output`.  The exit status is 1 if anything disagrees.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import polyfuse as pf
from polyfuse.decisions import format_bytes
from polyfuse.frontend_dsl.bind import bind_sizes
from polyfuse.pictures import before_after_svg, count_nests
from polyfuse.pipeline import Built
from polyfuse.runtime.agreement import agrees
from polyfuse.runtime.machine import BandwidthReport, measure, working_set_class
from polyfuse.runtime.reference import evaluate

HERE = Path(__file__).resolve().parent
Arrays = dict[str, Any]  # NumPy arrays, and Python numbers for scalar arguments

# --- the operators in NumPy --------------------------------------------------------------------------
# As one would write them with care: float32, in place where that is natural, no needless temporaries.


def normalise(s: Any, gamma: Any, beta: Any, eps: float) -> Any:
    s -= s.mean(-1, keepdims=True)
    s *= 1.0 / np.sqrt(np.mean(s * s, -1, keepdims=True) + np.float32(eps))
    s *= gamma
    s += beta
    return s


def numpy_layer_norm(a: Arrays) -> Arrays:
    return {"y": normalise(a["x"] + a["bias"] + a["r"], a["gamma"], a["beta"], 1e-5)}


def numpy_softmax(a: Arrays) -> Arrays:
    z = a["x"] * np.float32(0.125) + a["mask"]
    z -= z.max(-1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(-1, keepdims=True)
    return {"y": z}


def erf(x: Any) -> Any:
    """NumPy has none: Abramowitz and Stegun, 7.1.26, absolute error below 2e-7 and rounding."""
    t = 1.0 / (1.0 + np.float32(0.3275911) * np.abs(x))
    p = np.full_like(t, 1.061405429)
    for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        p *= t
        p += np.float32(c)
    p *= t
    p *= np.exp(-x * x)
    return np.copysign(1.0 - p, x)


def numpy_gelu(a: Arrays) -> Arrays:
    s = a["x"] + a["bias"]
    y = erf(s * np.float32(math.sqrt(0.5)))
    y += 1.0
    y *= s
    y *= np.float32(0.5)
    return {"y": y}


def numpy_batch_norm(a: Arrays) -> Arrays:
    x, momentum = a["x"], np.float32(0.1)
    count = x.size // x.shape[1]
    mu = x.mean((0, 2, 3), keepdims=True)
    y = x - mu
    var = np.mean(y * y, (0, 2, 3), keepdims=True)
    y *= a["gamma"][:, None, None] / np.sqrt(var + np.float32(1e-5))
    y += a["beta"][:, None, None]
    np.maximum(y, 0, out=y)
    for name, new in (("running_mean", mu), ("running_var", var * np.float32(count / (count - 1)))):
        a[name] *= 1 - momentum
        a[name] += momentum * new.ravel()
    return {"y": y}


def numpy_lstm(a: Arrays) -> Arrays:
    g = a["gx"] + a["gh"] + a["bias"]
    i, f, new, o = np.split(g, 4, axis=1)
    i, f, o = (1.0 / (1.0 + np.exp(-gate)) for gate in (i, f, o))
    c_next = f * a["c"] + i * np.tanh(new)
    return {"h_next": o * np.tanh(c_next), "c_next": c_next}


def numpy_adamw(a: Arrays) -> Arrays:
    p, g, m, v, step = a["p"], a["g"], a["m"], a["v"], a["step"]
    m *= np.float32(0.9)
    m += np.float32(0.1) * g
    v *= np.float32(0.999)
    v += np.float32(0.001) * g * g
    update = np.sqrt(v)
    update *= np.float32(1 / math.sqrt(1 - 0.999**step))
    update += np.float32(1e-8)
    np.divide(m, update, out=update)
    update *= np.float32(1e-3 / (1 - 0.9**step))
    p *= np.float32(1 - 1e-3 * 0.01)
    p -= update
    return {}


def numpy_stencil(a: Arrays) -> Arrays:
    start, dt = a["start"], a["dt"]
    u = np.empty((len(dt) + 1, len(start)), np.float32)
    u[0] = start
    u[:, 0], u[:, -1] = start[0], start[-1]
    for old, new, step in zip(u, u[1:], dt, strict=False):
        new[1:-1] = old[1:-1] + step * (old[:-2] - 2 * old[1:-1] + old[2:])
    return {"u": u}


def numpy_embedding(a: Arrays) -> Arrays:
    e = a["word"][a["ids"]]
    e += a["position"][: a["ids"].shape[1]]
    e += a["kind"][a["kinds"]]
    return {"y": normalise(e, a["gamma"], a["beta"], 1e-12)}


# --- the cases ---------------------------------------------------------------------------------------


CHANNELS = ("gamma", "beta", "running_mean", "running_var")


class Maker:
    """Seeded inputs."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)

    def normal(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def positive(self, *shape: int) -> np.ndarray:
        return self.rng.random(shape, dtype=np.float32) + np.float32(0.01)

    def ids(self, count: int, *shape: int) -> np.ndarray:
        return self.rng.integers(0, count, shape)


@dataclass(frozen=True)
class Case:
    """An operator, its sizes (full, quick), its inputs, and the same in NumPy.

    `part` gives the slice of inputs and results on which the reference is evaluated: a choice along an
    axis that the operator treats independently.  `part_of` says in words what that is.
    """

    title: str
    file: str
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    make: Callable[..., Arrays]
    numpy: Callable[[Arrays], Arrays]
    part: Mapping[str, Any]
    part_of: str
    op: str = field(default="")

    @property
    def name(self) -> str:
        return self.op or self.file


def layer_norm_inputs(n: Maker, t: int, h: int) -> Arrays:
    vectors = {name: n.normal(h) for name in ("bias", "gamma", "beta")}
    return {"x": n.normal(t, h), "r": n.normal(t, h), **vectors}


def softmax_inputs(n: Maker, b: int, heads: int, s: int) -> Arrays:
    mask = np.where(n.positive(b, 1, 1, s) < 0.2, np.float32(-1e4), np.float32(0))
    return {"x": n.normal(b, heads, s, s), "mask": mask}


def gelu_inputs(n: Maker, t: int, h: int) -> Arrays:
    return {"x": n.normal(t, h), "bias": n.normal(h)}


def batch_norm_inputs(n: Maker, b: int, c: int, h: int) -> Arrays:
    return {"x": n.normal(b, c, h, h), **{name: n.positive(c) for name in CHANNELS}}


def lstm_inputs(n: Maker, b: int, h: int) -> Arrays:
    return {"gx": n.normal(b, 4 * h), "gh": n.normal(b, 4 * h), "bias": n.normal(4 * h), "c": n.normal(b, h)}


def adamw_inputs(n: Maker, count: int) -> Arrays:
    return {
        "p": n.normal(count),
        "g": n.normal(count),
        "m": n.normal(count),
        "v": n.positive(count),
        "step": 10,
    }


def stencil_inputs(n: Maker, points: int, steps: int) -> Arrays:
    return {"start": n.normal(points), "dt": n.positive(steps) * np.float32(0.4)}


def embedding_inputs(n: Maker, b: int, s: int, words: int, d: int) -> Arrays:
    return {
        "word": n.normal(words, d), "position": n.normal(s, d), "kind": n.normal(2, d),
        "ids": n.ids(words, b, s), "kinds": n.ids(2, b, s), "gamma": n.normal(d), "beta": n.normal(d),
    }  # fmt: skip


def each(step: int, *names: str) -> dict[str, Any]:
    return dict.fromkeys(names, np.s_[::step])


CASES = (
    Case(
        "bias+residual+LayerNorm", "bias_residual_layer_norm", ((4096, 768), (96, 128)),
        layer_norm_inputs, numpy_layer_norm, each(8, "x", "r", "y"), "every 8th row",
    ),
    Case(
        "masked softmax", "masked_softmax", ((8, 12, 128), (2, 3, 32)),
        softmax_inputs, numpy_softmax, {"x": np.s_[:, ::4], "y": np.s_[:, ::4]}, "every 4th head",
    ),
    Case(
        "bias+GELU", "bias_gelu", ((4096, 3072), (96, 256)),
        gelu_inputs, numpy_gelu, each(32, "x", "y"), "every 32nd row", op="bias_gelu",
    ),
    Case(
        "BatchNorm train+ReLU", "batch_norm_train", ((32, 64, 56), (4, 16, 8)),
        batch_norm_inputs, numpy_batch_norm,
        {n: np.s_[:, ::16] if n in "xy" else np.s_[::16] for n in (*"xy", *CHANNELS)},
        "every 16th channel",
    ),
    Case(
        "LSTM cell", "lstm_cell", ((256, 1024), (16, 64)),
        lstm_inputs, numpy_lstm, each(4, "gx", "gh", "c", "h_next", "c_next"), "every 4th row",
    ),
    Case(
        "AdamW", "adamw", ((21_900_000,), (50_000,)),
        adamw_inputs, numpy_adamw, each(64, "p", "g", "m", "v"), "every 64th parameter",
    ),
    Case(
        "stencil over time", "stencil", ((65_536, 256), (1000, 32)),
        stencil_inputs, numpy_stencil, {"dt": np.s_[:16], "u": np.s_[:17]}, "the first 16 steps",
    ),
    Case(
        "embedding+LayerNorm", "embedding_layer_norm", ((8, 512, 30_522, 768), (2, 16, 500, 64)),
        embedding_inputs, numpy_embedding, each(2, "ids", "kinds", "y"), "every 2nd text",
    ),
)  # fmt: skip


# --- one case ----------------------------------------------------------------------------------------


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


# --- output ------------------------------------------------------------------------------------------


HEADS = ("error", "ms", "unfused ms", "NumPy ms", "x NumPy", "kernels", "share", "nests", "compile s")
NARROW = 96  # below this many columns of text the last two stay away; they are in results.json


def table_of(rows: Iterable[Row], width: int) -> Table:
    table = Table(
        title="polyfuse on the CPU", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        collapse_padding=True,
    )  # fmt: skip
    table.add_column("operator", no_wrap=True)
    shown = len(HEADS) if width >= NARROW else len(HEADS) - 2
    for head in HEADS[:shown]:
        table.add_column(head, justify="right")
    for r in rows:
        error = "[red]wrong[/]" if r.problems else f"[green]{r.worst_error_ratio:.1g}[/]"
        cells = [error, *(f"{1e3 * s:.3g}" for s in (r.seconds, r.unfused_s, r.numpy_s))]
        cells += [f"[bold]{r.numpy_s / r.seconds:.1f}[/]", f"{r.kernels_before} → {r.kernels_after}"]
        cells += [f"{r.share:.0%}", f"{r.nests_before} → {r.nests_after}", f"{r.compile_s:.2f}"]
        table.add_row(r.title, *cells[:shown])
    return table


def line_of(row: Row) -> str:
    """What was checked, and how it went."""
    if row.problems:
        return f"[red]wrong [/] {row.title}"
    return (
        f"[green]agrees[/] {row.title}: error {row.worst_error_ratio:.1g} of the bound on {row.checked}; "
        f"{row.elements:,} elements finite and near NumPy's"
    )


def write_json(path: Path, rows: list[Row], quick: bool, bandwidth: BandwidthReport) -> None:
    machine = {"processor": platform.processor() or platform.machine(), "bandwidth": asdict(bandwidth)}
    versions = {"polyfuse": pf.__version__, "numpy": np.__version__, "python": platform.python_version()}
    found = [{**asdict(r), "bandwidth_share": r.share, "over_numpy": r.numpy_s / r.seconds} for r in rows]
    content = {"quick": quick, "versions": versions, "machine": machine, "rows": found}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def run_all(cases: list[Case], quick: bool, folder: Path, console: Console) -> list[Row]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    rows = []
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=4 * len(cases))
        for k, case in enumerate(cases):
            where = f"{k + 1}/{len(cases)} {case.title}"

            def stage(what: str, where: str = where) -> None:
                progress.update(bar, description=f"{where}: {what}", advance=1)

            row, before, after = run_case(case, quick, stage)
            (folder / f"{case.name}.svg").write_text(
                before_after_svg(before.scheduled, after.scheduled), encoding="utf-8"
            )
            rows.append(row)
            progress.console.print(line_of(row), highlight=False)
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Eight operators: checked, timed, compared with NumPy.")
    parser.add_argument("--quick", action="store_true", help="small sizes; the times mean little then")
    parser.add_argument("--only", choices=[c.name for c in CASES], help="one operator")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for what is written")
    chosen = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    chosen.output.mkdir(parents=True, exist_ok=True)
    cases = [c for c in CASES if chosen.only in (None, c.name)]
    try:
        rows = run_all(cases, chosen.quick, chosen.output, console)
    except pf.PolyfuseError as error:
        console.print(str(error), markup=False)
        return 1
    return report(rows, chosen.quick, chosen.output, console)


def report(rows: list[Row], quick: bool, folder: Path, console: Console) -> int:
    console.print(table_of(rows, console.width))
    bandwidth = rates(working_set_class(max(r.working_set for r in rows)))
    console.print(
        f"{bandwidth.threads} threads; for {format_bytes(bandwidth.working_set_bytes)} measured: "
        f"read {bandwidth.read:.1f}, copy {bandwidth.copy:.1f} GB/s",
        highlight=False,
    )
    write_json(folder / "results.json", rows, quick, bandwidth)
    console.print(f"numbers: {folder / 'results.json'}", highlight=False)
    console.print(f"schedule tree before and after: {folder / rows[0].name}.svg", highlight=False)
    problems = [f"{r.title}: {p}" for r in rows for p in r.problems]
    for p in problems:
        console.print(p, style="red", markup=False)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
