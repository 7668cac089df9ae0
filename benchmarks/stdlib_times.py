"""Times of the standard library's operators at typical sizes, those farthest from their floor first.

`python -m benchmarks.stdlib_times [--only OPERATOR ...]`.  The floor is compulsory traffic at the bandwidth
that this process reaches (`benchmarks.floor`); operators that gather have the whole table in it.  There are
no peers here: it finds operators that code generation serves badly.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import polyfuse as pf
from benchmarks.floor import compulsory
from benchmarks.stdlib_sizes import arguments, table
from benchmarks.stdlib_sizes import given as given_sizes
from polyfuse.runtime.machine.probe import measure

SECONDS = 0.3
FEWEST_CALLS = 5
# Sizes that integer arrays index, in operators that have such arrays.
_INDEXED = ("V", "N", "C", "P", "K")


@dataclass(frozen=True)
class Found:
    """Milliseconds of the fastest call, and the floor."""

    name: str
    ms: float
    floor_ms: float

    @property
    def ratio(self) -> float:
        return self.ms / self.floor_ms if self.floor_ms else float("inf")


def inputs(name: str) -> dict[str, Any]:
    """Random arguments; integers are sorted indices, or where bags begin."""
    sizes = table()[name]
    rng = np.random.default_rng(0)
    below = min((sizes[n][0] for n in _INDEXED if n in sizes), default=1)

    def filled(key: str, a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if a.dtype.kind == "f":
            return rng.random(a.shape, a.dtype)
        if a.dtype.kind == "b":
            return rng.random(a.shape) < 0.5
        if key == "start":
            return np.linspace(0, sizes["E"][0], a.size).astype(a.dtype)
        return np.sort(rng.integers(0, below, a.shape), axis=None).reshape(a.shape)

    signature = pf.stdlib.op(name).signature
    given = arguments(signature, sizes)
    found = {k: filled(k, a) if isinstance(a, np.ndarray) and a.shape else a for k, a in given.items()}
    return found | given_sizes(signature, sizes)


def timed(name: str) -> Found:
    """Compile, call for a while, and compare with the floor."""
    given = inputs(name)
    f = pf.compile(pf.stdlib, name)
    f(**given)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < FEWEST_CALLS or time.perf_counter() - start < SECONDS:
        begin = time.perf_counter()
        f(**given)
        times.append(time.perf_counter() - begin)
    made = f.built(**given).compilation
    need = compulsory(made.graph, made.sizes)
    rates: Mapping[str, Any] = asdict(measure(need.working_set))
    return Found(name, 1e3 * min(times), 1e3 * need.seconds(rates))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stdlib_times", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--only", nargs="+", default=list(table()), metavar="OPERATOR")
    names = parser.parse_args(arguments).only
    console = Console()
    found = [timed(n) for n in track(names, "operators", console=console, transient=True)]
    shown = Table("operator", "ms", "floor", "ms / floor")
    for x in sorted(found, key=lambda x: x.ratio, reverse=True):
        shown.add_row(x.name, f"{x.ms:.3g}", f"{x.floor_ms:.3g}", f"{x.ratio:.2f}")
    console.print(shown)


if __name__ == "__main__":
    main()
