"""Partitions compared by the model: `python -m benchmarks.partitions [--target cpu cuda] [--more 1.05]`.

For every operator of the standard library and of the models in examples/models, at sizes that are chosen for
it: the kernels that `partition="connect"` and `partition="search"` give, and what the speed-of-light model
says of them, for a CPU of two threads and for a GPU of the table.  Nothing is emitted, and nothing runs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import polyfuse as pf
from polyfuse.cost.speed_of_light import estimate
from polyfuse.driver.partitions import passes_of
from polyfuse.driver.pipeline import Compilation, Watch
from polyfuse.driver.targets import ON_GPU, chip, this_cpu
from polyfuse.ir.layouts import Layouts
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.runtime.inputs import default_sizes

MODELS = Path(__file__).parents[1] / "examples" / "models"
NAMES = ("connect", "search")
THREADS = 2


@dataclass(frozen=True)
class Figures:
    """Kernels of an operator, and seconds by the model, for each of `NAMES`."""

    name: str
    kernels: tuple[int, ...]
    seconds: tuple[float, ...]


def operators() -> Iterator[pf.Operator]:
    """All that are compared, in 32-bit numbers, with one axis for each rank that is open."""
    for program in (*map(pf.parse, sorted(MODELS.glob("*.pf"))), pf.stdlib):
        yield from map(program.op, program.ops)


def figures(operator: pf.Operator, target: str) -> Figures:
    """Of one operator on one target."""
    graph = operator.graph()
    sizes = default_sizes(graph, {})
    options = Options(threads=THREADS)
    device = chip(options) if target in ON_GPU else this_cpu(THREADS)
    kernels, seconds = [], []
    for name in NAMES:
        fusion, clustering = passes_of(name, LoopFusion(), None)
        made = Compilation(
            graph, sizes, fusion, options, Layouts(), target, Stitching(), Packing(),
            clustering or pf.Clustering(),
        ).lowered(Watch(options))  # fmt: skip
        kernels.append(len(made.kernels.kernels))
        seconds.append(estimate(made.kernels, device).seconds)
    return Figures(operator.name, tuple(kernels), tuple(seconds))


def show(target: str, more: float) -> None:
    """The sums of a target, and the operators whose times differ by a factor of `more`."""
    found = [figures(o, target) for o in operators()]
    for f in found:
        if max(f.seconds) > more * min(f.seconds):
            print(f"  {f.name:32}", *(f"{1e6 * s:10.1f} us" for s in f.seconds), *f.kernels)
    kernels = [sum(f.kernels[k] for f in found) for k in range(len(NAMES))]
    seconds = [sum(f.seconds[k] for f in found) for k in range(len(NAMES))]
    for name, count, s in zip(NAMES, kernels, seconds, strict=True):
        print(f"{target} {name}: {len(found)} operators, {count} kernels, {1e3 * s:.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", nargs="+", default=["cpu", "cuda"], choices=["cpu", "cuda"])
    parser.add_argument("--more", type=float, default=1.05, help="show operators that differ by more")
    given = parser.parse_args()
    with TemporaryDirectory(prefix="polyfuse-bench-") as folder:
        os.environ["POLYFUSE_CACHE_DIR"] = folder  # lessons of earlier compilations change nothing here
        for target in given.target:
            show(target, given.more)


if __name__ == "__main__":
    main()
