"""Short rows one by one and several at a time: `python -m benchmarks.short_rows [--seconds S] [--write]`.

The same operator with other `CpuKnobs`, all variants in one process, one thread, in turns; a table of
nanoseconds for each row, of the fastest of many calls.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import write_measured
from benchmarks.surroundings import load_average, surroundings
from benchmarks.workload import at_line, load
from polyfuse import parse
from polyfuse.driver.pipeline import Compilation, run
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.launch_plan import Kind
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.runtime.cpu.executable import CpuExecutable

PAGE = Path(__file__).resolve().parents[1] / "docs" / "lab" / "short_rows.md"
LOG_SOFTMAX = """op log_softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = max[h](x[t, h])
  d[t] = sum[h](exp(x[t, h] - m[t]))
  y[t, h] = x[t, h] - m[t] - log(d[t])
}"""
RMS_NORM = """op rms_norm(x: f32[T, H], g: f32[H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h] ** 2) / H
  y[t, h] = x[t, h] * rsqrt(s[t] + 1e-5) * g[h]
}"""
TEXTS = {
    "softmax": load("softmax").text,
    "softmax f64": load("softmax").text.replace("f32", "f64"),
    "log-softmax": LOG_SOFTMAX,
    "LayerNorm": load("ln_fwd").text,
    "LayerNorm f16": load("ln_fwd").text.replace("f32", "f16"),
    "bias, residual, LayerNorm": load("res_ln").text,
    "RMSNorm": RMS_NORM,
    "sum": "op row_sum(x: f32[T, H]) -> (s: f32[T]) { s[t] = sum[h](x[t, h]) }",
}
COLUMNS = (4, 8, 16, 30, 64, 100, 128, 200, 256)
# Elements of x: they stay in L2 together with the results, and they do not.
ELEMENTS = (1 << 16, 3 << 20)
VARIANTS: Mapping[str, CpuKnobs] = {
    "one by one": CpuKnobs(rows=1), "2": CpuKnobs(rows=2), "4": CpuKnobs(rows=4),
    "at once": CpuKnobs(jointly=True), "by the rule": CpuKnobs(),
}  # fmt: skip
CALLS = 4
Call = Callable[[], None]


def calls_of(graph: TensorGraph, sizes: Mapping[str, int]) -> dict[str, Call]:
    """A call of each variant, all on the same arrays: where these lie in memory matters as well."""
    options = Options(threads=1, verify=False, dump=None)
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    calls: dict[str, Call] = {}
    for name, knobs in VARIANTS.items():
        built = run(Compilation(graph, sizes, LoopFusion(), options, stitching=Stitching(), knobs=knobs))
        assert built.code is not None and isinstance(built.executable, CpuExecutable)
        for b in built.code.plan.buffers:
            if b.kind is not Kind.WORKSPACE and b.name not in arrays:
                shape = tuple(evaluate(e, sizes) for e in b.shape)
                default = graph.tensor(b.name).default
                value = rng.standard_normal(shape) if default is None else np.full(shape, default)
                arrays[b.name] = at_line(np.asarray(value, b.dtype.numpy))
        calls[name] = built.executable.bind(arrays)
    return calls


def measured(calls: Mapping[str, Call], seconds: float) -> dict[str, float]:
    """Seconds of the fastest call of each, in turns."""
    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            for _ in range(CALLS):
                start = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def row_of(name: str, columns: int, elements: int, seconds: float) -> str:
    """One row of the table."""
    programs = parse(TEXTS[name]).programs
    graph = instantiate(programs, programs[-1].ops[-1].name)
    sizes = {"T": elements // columns, "H": columns}
    best = measured(calls_of(graph, sizes), seconds)
    cells = [f"{best[v] / sizes['T'] * 1e9:.1f}" for v in VARIANTS]
    gain = best["by the rule"] / best["one by one"] - 1
    return f"| {name} | {sizes['T']} x {columns} | {' | '.join(cells)} | {gain:+.0%} |"


def table(seconds: float, only: str) -> str:
    """All operators with a name like that at all sizes, as Markdown."""
    where = surroundings()
    lines = [
        f"{where['cpu']}, {where['date'][:10]}, load average {load_average():.1f}; one thread, ns for a row.",
        "",
        f"| operator | rows | {' | '.join(VARIANTS)} | gain |",
        f"|---|---|{'---:|' * (len(VARIANTS) + 1)}",
    ]
    for name in (x for x in TEXTS if only in x):
        for elements in ELEMENTS:
            for columns in COLUMNS:
                lines.append(row_of(name, columns, elements, seconds))
                print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and with --write put the table into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line of the table")
    parser.add_argument("--only", default="", help="operators with this in their names")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    chosen = parser.parse_args()
    found = table(chosen.seconds, chosen.only)
    print(found)
    if chosen.write:
        write_measured(PAGE, found)


if __name__ == "__main__":
    main()
