"""Matrix products in tiles beside NumPy's BLAS, PyTorch and JAX.

`python -m benchmarks.contractions [--all-cores] [--peers] [--write]`.

[M, K] x [K, N] in f32, alone and with bias and GELU behind each element, by tiles (`library="never"`) and by
`numpy.matmul`; on one core, and if asked for on all, each in a process of its own, so that BLAS has as many
threads.  Calls take turns, and the fastest counts, on one core by time of the processor: what else runs there
matters little, while all cores have to be quiet.  Each result is compared with float64.  With `--peers` many
shapes beside PyTorch and JAX as well (`benchmarks.product_peers`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import product_peers
from benchmarks.pages import write_measured

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "lab" / "contractions.md"
SHAPES = (
    (128, 128, 128), (512, 512, 512), (1000, 1000, 1000), (1024, 768, 3072), (2048, 2048, 2048),
    (64, 4096, 4096), (4096, 64, 4096), (8, 1024, 1024),
)  # fmt: skip
PRODUCT = """op f(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) {
  c[m, n] = sum[k](a[m, k] * b[k, n])
}"""
FOLLOWED = """op f(a: f32[M, K], b: f32[K, N], s: f32[N]) -> (y: f32[M, N]) {
  z[m, n] = sum[k](a[m, k] * b[k, n]) + s[n]
  y[m, n] = 0.5 * z[m, n] * (1.0 + erf(z[m, n] * 0.70710678))
}"""
HEADS = ("tiles", "NumPy", "tiles, GELU", "error")
SECONDS = 2.0


def fastest(
    calls: dict[str, Callable[[], Any]], seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    """The fastest of each in turns."""
    best = dict.fromkeys(calls, float("inf"))
    end = time.monotonic() + seconds
    while time.monotonic() < end or float("inf") in best.values():
        for name, call in calls.items():
            for _ in range(3):
                start = clock()
                call()
                best[name] = min(best[name], clock() - start)
    return best


def measured(shape: tuple[int, int, int], threads: int, seconds: float) -> dict[str, float]:
    """GFLOP/s of each, and how large the error of tiles is beside that of NumPy."""
    import numpy as np

    import polyfuse as pf
    from benchmarks.workload import at_line

    m, k, n = shape
    rng = np.random.default_rng(0)
    a, b = at_line(rng.standard_normal((m, k), "f4")), at_line(rng.standard_normal((k, n), "f4"))
    s, options = rng.standard_normal(n, "f4"), pf.Options(threads=threads, library="never", progress=False)
    alone, followed = (pf.compile(pf.parse(text), "f", options=options) for text in (PRODUCT, FOLLOWED))
    calls: dict[str, Callable[[], Any]] = {
        "tiles": alone.bind(a, b),
        "NumPy": lambda: a @ b,
        "tiles, GELU": followed.bind(a, b, s),
    }
    exact = a.astype("f8") @ b.astype("f8")
    errors = [float(np.abs(found - exact).max()) for found in (alone(a, b), a @ b)]
    clock = time.perf_counter if threads > 1 else time.process_time
    rates = {name: 2e-9 * m * k * n / t for name, t in fastest(calls, seconds, clock).items()}
    return {**rates, "error": errors[0] / errors[1]}


def in_process(threads: int, seconds: float) -> list[dict[str, float]]:
    """All shapes, in a process that has so many cores and threads."""
    own = [f"--threads={threads}", f"--seconds={seconds}"]
    command = [sys.executable, "-m", "benchmarks.contractions", *own]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    limits = {f"{library}_NUM_THREADS": str(threads) for library in ("OPENBLAS", "MKL", "OMP")}
    whole = ["taskset", "-c", cores, *command]
    done = subprocess.run(whole, cwd=ROOT, env={**os.environ, **limits}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: list[dict[str, float]] = json.loads(done.stdout)
    return found


def table(threads: int, seconds: float) -> str:
    cores = f"{threads} threads" if threads > 1 else "One thread"
    heads = f"| M, K, N | {' | '.join(HEADS)} |"
    lines = [f"{cores}, GFLOP/s:", "", heads, "|---|---|---|---|---|"]
    for shape, row in zip(SHAPES, in_process(threads, seconds), strict=True):
        rates = " | ".join(f"{row[name]:.0f}" for name in HEADS[:-1])
        lines.append(f"| {', '.join(map(str, shape))} | {rates} | {row['error']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print; with --write also into the page."""
    import numpy as np

    from benchmarks.surroundings import load_average, surroundings

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each shape")
    parser.add_argument("--all-cores", action="store_true", help="a second table, for all cores")
    parser.add_argument("--peers", action="store_true", help="a table of all cores beside PyTorch and JAX")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.threads:
        print(json.dumps([measured(shape, asked.threads, asked.seconds) for shape in SHAPES]))
        return
    where, load = surroundings(), load_average()
    about = f"{where['cpu']}, {where['date'][:10]}, NumPy {np.__version__}, load average {load:.1f}."
    cores = [1, int(where["cores"])] if asked.all_cores else [1]
    tables = [table(threads, asked.seconds) for threads in cores]
    if asked.peers:
        tables.append(product_peers.table(int(where["cores"]), asked.seconds))
    found = "\n\n".join([about, *tables])
    print(found)
    if asked.write:
        write_measured(PAGE, found)


if __name__ == "__main__":
    main()
