"""The row workloads in half precision, beside f32.

`python -m benchmarks.half_precision [--only WORKLOAD ...]`.  Each is the public operator with another word
for `f32`, called in turns with the others.  Half of the bytes should take no longer where those of f32 do not
fit L2, and not much longer (1.25) where they do and conversions are what is left.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import polyfuse as pf
from benchmarks.pages import write_measured
from benchmarks.surroundings import load_average, surroundings
from benchmarks.workload import Workload, at_line, load
from polyfuse.runtime.cpu.pool import Pool
from polyfuse.runtime.machine.probe import cache_sizes

PAGE = Path(__file__).parents[1] / "docs" / "lab" / "half_precision.md"
ROWS: tuple[Mapping[str, int], ...] = ({"T": 64, "H": 768}, {"T": 1024, "H": 64}, {"T": 20_000, "H": 100})
IN_L2: dict[str, tuple[Mapping[str, int], ...]] = {
    "astitch_768": ROWS,
    "bias_gelu": ROWS,
    "dropout_residual": ROWS,
    "emb_sum_ln": ({"V": 100, "P": 64, "K": 2, "B": 1, "S": 64, "D": 768},),
    "gelu_bwd_dbias": ROWS,
    "ln_bwd": ROWS,
    "ln_fwd": ROWS,
    "lstm_cell": ({"B": 32, "H": 64},),
    "msoftmax": ({"N": 1, "A": 8, "S": 64, "T": 64}, {"N": 2, "A": 16, "S": 1000, "T": 1000}),
    "res_ln": ROWS,
    "rms_swiglu": ({"T": 64, "H": 384}, {"T": 10_000, "H": 50}),
    "rope": ({"N": 1, "A": 8, "S": 64, "D": 32}, {"N": 1, "A": 32, "S": 2048, "D": 64}),
    "softmax": ROWS,
    "xent_fwd": ({"N": 512, "C": 100}, {"N": 4096, "C": 1000}),
}
"""Row workloads, with shapes beside their public ones; the first ones fit L2."""
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
BATCH_SECONDS = 2e-4
Call = Callable[[], Any]


def sizes_of(w: Workload) -> dict[str, Mapping[str, int]]:
    """The sizes that are timed, by the name of the case."""
    others = {f"{w.name} {' '.join(f'{n}={v}' for n, v in s.items())}": s for s in IN_L2[w.name]}
    return {**w.cases, **others}


def in_dtype(w: Workload, sizes: Mapping[str, int], dtype: str) -> tuple[Call, int]:
    """A call of the operator with its floats in a dtype, and the bytes of its arrays and results."""
    f = pf.compile(w.text.replace("f32", dtype), w.name)
    given = [
        at_line(a.astype(DTYPES[dtype])) if isinstance(a, np.ndarray) and a.dtype == np.float32 else a
        for a in w.inputs(sizes).values()
    ]
    results = f(*given)
    results = results if isinstance(results, tuple) else (results,)
    return lambda: f(*given), sum(np.asarray(a).nbytes for a in (*given, *results) if a is not None)


def fastest(calls: Sequence[Call], seconds: float) -> list[float]:
    """Seconds of the fastest of each, in turns of several calls."""
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    first = True
    while first or time.perf_counter() < end:
        first = False
        for k, call in enumerate(calls):
            until = time.perf_counter() + BATCH_SECONDS
            while True:
                start = time.perf_counter()
                call()
                now = time.perf_counter()
                best[k] = min(best[k], now - start)
                if now > until:
                    break
    return best


def row_of(w: Workload, case: str, sizes: Mapping[str, int], seconds: float) -> tuple[str, bool]:
    """A row of the table, and whether both ratios are within their bar."""
    made = [in_dtype(w, sizes, d) for d in DTYPES]
    f32, *halves = fastest([c for c, _ in made], seconds)
    nbytes = made[0][1]
    bar = 1.0 if nbytes > cache_sizes().l2 * Pool.get().threads else 1.25
    ratios = [h / f32 for h in halves]
    met = all(r <= bar for r in ratios)
    cells = " | ".join(f"{r:.2f}" for r in ratios)
    return (
        f"| {case} | {nbytes / 1e6:.2f} | {1e6 * f32:.1f} | {cells} | {bar:g}{'' if met else ', missed'} |",
        met,
    )


def table(only: Sequence[str], seconds: float) -> str:
    """All workloads, as Markdown."""
    where = surroundings()
    lines = [
        f"{where['cpu']}, {where['date'][:10]}, load average {load_average():.1f}.",
        "",
        "| workload | f32, MB | f32, us | f16 / f32 | bf16 / f32 | bar |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    missed = 0
    for w in map(load, only):
        for case, sizes in sizes_of(w).items():
            row, met = row_of(w, case, sizes, seconds)
            missed += not met
            lines.append(row)
            print(row, file=sys.stderr, flush=True)
    return "\n".join([*lines, "", f"Beyond their bar: {missed} of {len(lines) - 4}."])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write put the table into the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.half_precision", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--only", nargs="+", choices=IN_L2, default=list(IN_L2), metavar="WORKLOAD")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="for each line (1)")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    chosen = parser.parse_args(arguments)
    found = table(chosen.only, chosen.seconds)
    print(found)
    if chosen.write:
        write_measured(PAGE, found)


if __name__ == "__main__":
    main()
