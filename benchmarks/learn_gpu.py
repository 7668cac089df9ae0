"""Samples of a GPU for the learned cost model: `python -m benchmarks.learn_gpu RESULTS [--device NAME]`.

`make gpu ARGS="--part plans"` times the plans of all cases of `benchmarks.gpu_cases` on a GPU and keeps each
turn (`gpu.part_plans`).  This makes samples of its `results.json`: kernels are made again, without a device,
and their features are those of the GPU of the tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_cases import cases, compilation_of
from benchmarks.learn import DATA, summary
from benchmarks.surroundings import slug
from polyfuse.cost.device import Device, device
from polyfuse.cost.speed_of_light import estimate
from polyfuse.driver.pipeline import Compilation, Watch
from polyfuse.learn.gpu_features import gpu_graphs
from polyfuse.learn.samples import VARIANTS, Sample, collected
from polyfuse.learn.timing import FEWEST, NOISY, spread
from polyfuse.options import Options
from polyfuse.tuning.candidates import compilation_of as changed
from polyfuse.tuning.table import Variant


def samples_of(label: str, rows: Sequence[Mapping[str, Any]], machine: Device) -> Iterator[Sample]:
    """The plans of a case that were timed often enough."""
    case = next((c for c in cases() if c.label == label), None)
    if case is None:
        return
    options = Options(device=machine.name, progress=False, verify=False, dump=None)
    base = replace(compilation_of(case, "emulate"), options=options)
    for row in rows:
        seconds = [ms * 1e-3 for ms in row.get("turns", ())]
        if len(seconds) >= FEWEST:
            way = changed(base, Variant(tuple(row["changes"])).known())
            yield _sample(label, row["plan"], way, seconds, machine)


def _sample(label: str, plan: str, way: Compilation, seconds: Sequence[float], machine: Device) -> Sample:
    kernels = way.lowered(Watch(Options(progress=False, verify=False, dump=None))).kernels
    graphs, projected = gpu_graphs(kernels, machine), estimate(kernels, machine).seconds
    middle, apart = statistics.median(seconds), spread(seconds)
    default = not plan or plan == str(Variant())
    return Sample(label, "workload", VARIANTS, plan, default, middle, apart, projected, graphs)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("results", type=Path, nargs="+", help="results.json of `make gpu`")
    parser.add_argument("--device", default="H200", help="the GPU of the tables that they are of")
    parser.add_argument("--out", type=Path, help="the file of samples")
    given = parser.parse_args(arguments)
    machine = device(given.device)
    found: list[Sample] = []
    for file in given.results:
        data = json.loads(file.read_text(encoding="utf-8"))
        for label, item in data["parts"].get("plans", {}).get("items", {}).items():
            found += samples_of(label, item.get("rows", ()), machine)
    kept = [s for s in found if s.spread <= NOISY]
    about = {"machine": machine.name, "timed": len(kept), "noisy": len(found) - len(kept)}
    samples = collected(kept, about, "gpu")
    out = given.out or DATA / f"gpu_{slug(machine.name)}.xz"
    samples.save(out)
    print(f"{out}: {summary(samples)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
