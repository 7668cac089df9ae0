"""Ordinary operators that are no workloads, or row workloads in 16 bits, beside PyTorch and JAX.

`python -m benchmarks.operator_peers [--half] [--only WORD ...] [--list] [--turns N] [--out DIR] [--write]`.

What engineers write every day (`benchmarks/operators`), or with --half the row workloads in f16 and bf16:
this project, PyTorch eager and compiled, and `jax.jit`, each in a process of its own with all cores.  They
compute on request, in turns; those that wait are stopped, and the fastest turn counts.  All cases are gone
through twice, minutes apart: another program may have a processor for as long as all turns of a case.
Results of the first calls are compared.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.operator_contenders import cases_of
from benchmarks.operators import Case
from benchmarks.pages import write_measured
from benchmarks.surroundings import load_average, surroundings
from benchmarks.turns import NEEDS, OURS, PEERS, TUNABLES, Child, ContenderError, environment

LAB = Path(__file__).resolve().parents[1] / "docs" / "lab"
PAGES = {"ordinary": LAB / "operators.md", "half": LAB / "half_precision_peers.md"}
TURNS = 3
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}
"""By the dtype of the inputs: of the largest value of a result."""


@dataclass
class Row:
    """Seconds by contender, and what went wrong."""

    case: Case
    seconds: dict[str, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def with_more(self, other: Row) -> Row:
        """With what was measured at another time."""
        every = {*self.seconds, *other.seconds}
        fastest = {n: min(r.seconds.get(n, math.inf) for r in (self, other)) for n in every}
        ordered = {n: fastest[n] for n in PEERS if n in fastest}
        return Row(self.case, ordered, list(dict.fromkeys((*self.errors, *other.errors))))

    @property
    def best(self) -> tuple[str, float] | None:
        """The fastest peer."""
        others = [(t, name) for name, t in self.seconds.items() if name != OURS]
        return min(others)[::-1] if others else None

    @property
    def gain(self) -> float | None:
        """The fastest peer's time by ours."""
        return self.best[1] / self.seconds[OURS] if self.best and OURS in self.seconds else None


def chosen(words: Sequence[str], kind: str = "ordinary") -> list[int]:
    """The numbers of the cases whose names have one of the words. Raises KeyError where none has a word."""
    cases = cases_of(kind)
    for word in words:
        if not any(word in c.name for c in cases):
            names = "\n  ".join(c.name for c in cases)
            raise KeyError(f"no operator has '{word}' in its name; there are\n  {names}")
    return [k for k, c in enumerate(cases) if not words or any(word in c.name for word in words)]


def tolerance(case: Case, arrays: Sequence[np.ndarray[Any, Any]]) -> float:
    """How far a result may be from others, as a part of the largest value: integers are exact."""
    if case.tolerance is not None:
        return case.tolerance
    if not any(a.dtype.kind == "f" for a in arrays):
        return 0.0
    floats = [TOLERANCES[a.dtype.name] for a in case.arguments() if a.dtype.name in TOLERANCES]
    return max(floats, default=TOLERANCES["float32"])


def disagreements(case: Case, results: Mapping[str, Sequence[np.ndarray[Any, Any]]]) -> list[str]:
    """What contenders say of the others' results: values, whatever their dtypes are."""
    counts = {name: len(r) for name, r in results.items()}
    if len(set(counts.values())) > 1:
        return [f"numbers of results differ: {counts}"]
    found = []
    for k, arrays in enumerate(zip(*results.values(), strict=True)):
        named = dict(zip(results, arrays, strict=True))
        shapes = {name: a.shape for name, a in named.items()}
        if len(set(shapes.values())) > 1:
            found.append(f"shapes of result {k} differ: {shapes}")
        else:
            found += [f"result {k}: {e}" for e in apart(named, tolerance(case, arrays))]
    return found


def apart(results: Mapping[str, np.ndarray[Any, Any]], close: float) -> list[str]:
    """Contenders that are not near the middle of all, which one that is wrong does not move."""
    values = {name: a.astype("f8") for name, a in results.items()}
    middle = np.sort(np.stack(list(values.values())), axis=0)[(len(values) - 1) // 2]  # NaN comes last
    finite = np.isfinite(middle)
    scale = float(np.abs(middle[finite]).max(initial=0.0)) or 1.0
    found = []
    for name, v in values.items():
        off = float(np.abs(v[finite] - middle[finite]).max(initial=0.0))
        same = np.array_equal(v[~finite], middle[~finite], equal_nan=True)
        if not (same and off <= close * scale):  # NaN is not near
            found.append(f"{name} is off by {off:.2g}, where values are up to {scale:.2g}")
    return found


def measured(kind: str, k: int, children: Mapping[str, Child], turns: int) -> Row:
    """A case by all contenders; one that fails is left out of it."""
    row, results, ready = Row(cases_of(kind)[k]), {}, []
    for name, child in children.items():
        with TemporaryDirectory(prefix="polyfuse-operators-") as folder:
            try:
                count = child.ask(do="prepare", kind=kind, case=k, folder=folder)
                results[name] = [np.load(Path(folder) / f"{i}.npy") for i in range(count)]
                ready.append(name)
            except ContenderError as error:
                row.errors.append(str(error))
    row.errors += disagreements(row.case, results)
    for _ in range(turns):
        for name in ready:
            spent = children[name].ask(do="turn")
            row.seconds[name] = min(spent, row.seconds.get(name, math.inf))
    return row


def progress(row: Row) -> str:
    """One line."""
    times = ", ".join(f"{name} {1e3 * t:.4g}" for name, t in row.seconds.items())
    gain = "" if row.gain is None else f"{row.gain:.2f}"
    return "\n".join([f"{row.case.name}: {gain} ({times})", *(f"  error: {e}" for e in row.errors)])


def table(rows: Sequence[Row]) -> str:
    """As Markdown, the slowest beside the fastest peer first."""
    peers = [p for p in PEERS[1:] if any(p in r.seconds for r in rows)]
    heads = ["operator", OURS, *peers, "fastest peer / ours"]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for row in sorted(rows, key=lambda r: math.inf if r.gain is None else r.gain):
        times = [f"{1e3 * row.seconds[p]:.4g}" if p in row.seconds else "" for p in (OURS, *peers)]
        gain = "" if row.gain is None else f"{row.gain:.2f}"
        lines.append(f"| {' | '.join([row.case.name, *times, gain])} |")
    gains = [r.gain for r in rows if r.gain is not None]
    if gains:
        mean = math.exp(math.fsum(map(math.log, gains)) / len(gains))
        below = sum(g < 1 for g in gains)
        lines += ["", f"{len(gains)} operators: geometric mean {mean:.2f}, {below} below 1."]
    wrong = [f"- {row.case.name}: {e}" for row in rows for e in row.errors]
    return "\n".join([*lines, *(["", "Errors:", "", *wrong] if wrong else [])])


def seats() -> list[str]:
    """Us, and the peers whose library is installed."""
    missing = sorted({n for n in NEEDS.values() if importlib.util.find_spec(n) is None})
    for name in missing:
        print(f"left out: {name} is not installed (pip install '.[bench]' has it)", file=sys.stderr)
    return [p for p in PEERS if NEEDS.get(p) not in missing]


def started(peer: str, threads: int) -> Child:
    """The process of a contender. Peers have the allocator that is better for large results."""
    tuned = {} if peer == OURS else {"GLIBC_TUNABLES": TUNABLES}
    command = ["benchmarks.operator_contenders", peer, str(threads)]
    return Child(peer, command, environment(threads, **tuned))


def report(kind: str, numbers: Sequence[int], turns: int) -> tuple[str, bool]:
    """All cases as a page, and whether nothing went wrong."""
    where, load = surroundings(), load_average()
    threads, rows = int(where["cores"]), dict[int, Row]()
    with ExitStack() as stack:
        children = {p: stack.enter_context(started(p, threads)) for p in seats()}
        versions = {n: v for c in children.values() for n, v in c.greeting.items()}
        for k in (*numbers, *numbers):
            row = measured(kind, k, children, turns)
            rows[k] = rows[k].with_more(row) if k in rows else row
            print(progress(rows[k]), file=sys.stderr, flush=True)
    named = ", ".join(f"{n} {v}" for n, v in versions.items())
    about = f"{where['cpu']}, {threads} threads, {where['date'][:10]}, load average {load:.1f}; {named}.\n"
    about += f"Milliseconds of the fastest call in twice {turns} turns."
    return f"{about}\n\n{table([*rows.values()])}\n", not any(r.errors for r in rows.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. 1 if a contender failed or disagreed with the others."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operator_peers", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--half", action="store_true", help="the row workloads in f16 and bf16")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="in the name of an operator")
    parser.add_argument("--list", action="store_true", help="name the operators and end")
    parser.add_argument("--turns", type=int, default=TURNS, metavar="N", help=f"of each contender ({TURNS})")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="save the table there")
    parser.add_argument("--write", action="store_true", help="write it into the reference's page")
    asked = parser.parse_args(arguments)
    kind = "half" if asked.half else "ordinary"
    try:
        numbers = chosen(asked.only, kind)
    except KeyError as error:
        print(error.args[0], file=sys.stderr)
        return 2
    if asked.list:
        print("\n".join(cases_of(kind)[k].name for k in numbers))
        return 0
    found, right = report(kind, numbers, max(1, asked.turns))
    print(found)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / PAGES[kind].name).write_text(found, encoding="utf-8")
    if asked.write:
        write_measured(PAGES[kind], found)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
