"""Hot loops of the workloads against a baseline: `python -m benchmarks.counts [--update] [--only CASE ...]`.

The baseline, one for each compiler, is benchmarks/baseline/hot_loops.json.  Continuous integration
compares with it (`tests/integration/test_hot_loops.py`).  After a change that is meant to move counts,
--update writes it and docs/lab/hot_loops.md anew; the difference is read like that of any golden file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hot_loops import MARCHES, Counts, compiler_key, disassembled, hot_loops, missing, total
from benchmarks.workload import Workload, select
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.runtime.toolchain.compiler import find_compiler

BASELINE = Path(__file__).parent / "baseline" / "hot_loops.json"
PAGE = Path(__file__).parents[1] / "docs" / "lab" / "hot_loops.md"
MARK = "<!-- counted -->"
THREADS = 2
# A count may grow by this share and so many instructions before it is called worse: register allocation and
# the order of instructions differ between minor versions of a compiler.
SHARE, FEW = 1.1, 3
SMALLEST_SHARE_OF_VECTORS = 0.1
WORSE = ("instructions", "loads", "stores", "gathers", "scalar", "divisions", "calls", "around")


# The core that code for each kind of machine is made for.
CORES = {"x86-64-v3": AVX2, "x86-64-v4": Core()}


def source_of(graph: TensorGraph, sizes: Mapping[str, int], march: str) -> str:
    """C++ of an operator at known sizes, with all layers, for two threads of a kind of machine."""
    compilation = Compilation(
        graph,
        sizes,
        LoopFusion(),
        Options(threads=THREADS),
        stitching=Stitching(),
        packing=Packing(),
        knobs=CpuKnobs(core=CORES[march]),
    )
    return emitted(Watch(Options(dump=None, verify=False)), compilation)[1].source


def counted(workload: Workload, case: str, march: str) -> Counts:
    """All hot loops of a workload's code."""
    source = source_of(workload.graph, workload.cases[case], march)
    return total(hot_loops(disassembled(source, march)))


def baseline() -> dict[str, dict[str, dict[str, dict[str, int]]]]:
    """compiler -> kind of machine -> case -> counts."""
    found: dict[str, dict[str, dict[str, dict[str, int]]]] = json.loads(BASELINE.read_text("utf-8"))
    return found


def worse(now: Counts, then: Mapping[str, int]) -> list[str]:
    """What of a workload is worse than in the baseline, in words."""
    found = [
        f"{name}: {value} instead of {then[name]}"
        for name in WORSE
        if (value := getattr(now, name)) > then[name] * SHARE + FEW
        or (name == "calls" and value > then[name])
    ]
    was = (then["vector"] + then["packed"]) / max(1, then["instructions"] + then["around"])
    share = (now.vector + now.packed) / max(1, now.instructions + now.around)
    if share < was - SMALLEST_SHARE_OF_VECTORS:
        found.append(f"vector instructions: {share:.0%} of all instead of {was:.0%}")
    return found


def table(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Rows of cases in Markdown."""
    names = list(Counts().as_json())
    lines = ["| workload | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for case, row in sorted(counts.items()):
        lines.append(f"| {case} | " + " | ".join(str(row[n]) for n in names) + " |")
    return lines


def write(key: str, found: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
    """The baseline of a compiler, and the page of all compilers."""
    known: dict[str, Any] = baseline() if BASELINE.exists() else {}
    mine = known.setdefault(key, {})
    for march, rows in found.items():
        mine[march] = dict(sorted({**mine.get(march, {}), **rows}.items()))
    BASELINE.parent.mkdir(exist_ok=True)
    BASELINE.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", "utf-8")
    head = PAGE.read_text("utf-8").split(MARK)[0]
    lines = []
    for compiler, marches in sorted(known.items()):
        for march, rows in sorted(marches.items()):
            lines += [f"## {compiler}, {march}", "", *table(rows), ""]
    PAGE.write_text(head + MARK + "\n\n" + "\n".join(lines), "utf-8")


def main(words: Sequence[str] | None = None) -> int:
    """0 if nothing is worse than the baseline, or it was written."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.counts", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--update", action="store_true", help="write the baseline and the page")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="workloads or cases")
    given = parser.parse_args(words)
    if why := missing():
        print(why)
        return 2
    key = compiler_key()
    print(f"{find_compiler().version}: {key}")
    found: dict[str, dict[str, dict[str, int]]] = {march: {} for march in MARCHES}
    for workload, case in select(given.only):
        for march in MARCHES:
            found[march][case] = counted(workload, case, march).as_json()
    for march in MARCHES:
        print(f"\n{march}\n", *table(found[march]), sep="\n")
    if given.update:
        write(key, found)
        return 0
    known = baseline().get(key, {}) if BASELINE.exists() else {}
    bad = [
        f"{case}, {march}: {what}"
        for march in MARCHES
        for case, row in found[march].items()
        if case in known.get(march, {})
        for what in worse(Counts(**row), known[march][case])
    ]
    print(
        *(bad or ["nothing is worse than the baseline" if known else f"there is no baseline for {key}"]),
        sep="\n",
    )
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
