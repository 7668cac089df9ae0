"""What single choices of code generation bring: `python -m benchmarks.choices [--only WORD] [--write]`.

Each choice can be left out: a pass that does nothing, or another number.  Its cases are compiled with and
without it in this process, and called in turns, so that what else the machine does meets both; compared are
the fastest medians of short series of calls.  Nothing comes from the cache of plans.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import polyfuse as pf
from benchmarks.half_precision import DTYPES
from benchmarks.pages import write_measured
from benchmarks.surroundings import load_average, surroundings
from benchmarks.workload import Workload, at_line, load
from polyfuse.codegen import common_passes
from polyfuse.codegen.cpu import emit
from polyfuse.codegen.cpu import pipeline as lower
from polyfuse.codegen.cpu.vectorize import half_precision, predicated_epilogues
from polyfuse.codegen.math import prelude
from polyfuse.codegen.transforms import software_pipelining, strength_reduction
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.driver import pipeline
from polyfuse.driver.targets import knobs_for
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.layers.graph.one_pass import online
from polyfuse.layers.mapping import reductions, targets
from polyfuse.runtime.cpu import executable as run_cpu
from polyfuse.runtime.toolchain import compiler as toolchain

PAGE = Path(__file__).resolve().parents[1] / "docs" / "lab" / "choices.md"
SERIES, SECONDS = 9, 6.0
Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """A workload at one of its sizes, or at others, with its floats in a dtype."""

    workload: str
    sizes: Mapping[str, int] | None = None
    dtype: str = "f32"

    def __str__(self) -> str:
        shown = "x".join(map(str, self.of(load(self.workload)).values()))
        return f"{self.workload} {shown}" + (f" {self.dtype}" if self.dtype != "f32" else "")

    def of(self, workload: Workload) -> Mapping[str, int]:
        return self.sizes or next(iter(workload.cases.values()))

    def program(self, workload: Workload) -> pf.Program:
        return pf.parse(workload.text.replace("f32", self.dtype))

    def arguments(self, workload: Workload) -> list[Any]:
        given = workload.inputs(self.of(workload))
        found = [given[n] for n in workload.graph.inputs if n in given]
        kind = DTYPES[self.dtype]
        wide = [isinstance(a, np.ndarray) and a.dtype == np.float32 for a in found]
        return [at_line(a.astype(kind)) if f else a for a, f in zip(found, wide, strict=True)]


@dataclass(frozen=True)
class Choice:
    """Something that the compiler does, the attributes to replace so that it does not, and where that shows.

    `knobs` are what code is varied by; they are for what a number decides.
    """

    name: str
    cases: tuple[Case, ...]
    replaced: tuple[tuple[Any, str, Any], ...] = ()
    knobs: CpuKnobs = field(default_factory=CpuKnobs)

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Compile without it. Raises AttributeError if what is replaced has another name now."""
        patches = [mock.patch.object(owner, name, new) for owner, name, new in self.replaced]
        patches.append(mock.patch.object(pipeline, "knobs_for", self._knobs))
        for p in patches:
            p.start()
        try:
            yield
        finally:
            for p in reversed(patches):
                p.stop()

    def _knobs(self, target: str, options: pf.Options) -> CpuKnobs:
        return replace(self.knobs, core=knobs_for(target, options).core)


def rows(columns: int, dtype: str = "f32") -> Case:
    """Softmax of short rows, 100,000 elements."""
    return Case("softmax", {"T": 100_000 // columns, "H": columns}, dtype)


def unchanged(kernel: Any, block: Any, *_: Any) -> Any:
    """A pass over a block that does nothing."""
    return block


def _with_unroll_and_jam(source: str, compiler: toolchain.Compiler) -> tuple[str, ...]:
    """The flags of a source, without the one that keeps gcc from it."""
    return tuple(f for f in _FLAGS_FOR(source, compiler) if f != "-fno-loop-unroll-and-jam")


_FLAGS_FOR = toolchain.flags_for
CHOICES = (
    Choice(
        "accumulators of four vectors, not of eight",
        (Case("xent_fwd"), Case("softmax")),
        knobs=CpuKnobs(lane_bytes=512),
    ),
    Choice(
        "accumulators of four vectors, not of one",
        (Case("xent_fwd"), Case("ln_fwd"), Case("softmax")),
        knobs=CpuKnobs(lane_bytes=64),
    ),
    Choice(
        "what is left of a row in lanes under masks",
        tuple(map(rows, (36, 100, 127, 129, 1000))),
        ((predicated_epilogues, "FEWEST_LANES", 1 << 30),),
    ),
    Choice(
        "functions of all lanes at once",
        (Case("softmax"), Case("lstm_cell"), Case("rms_swiglu"), Case("xent_fwd")),
        ((half_precision, "calls_rows", lambda body, lane="": False),),
    ),
    Choice(
        "neighbouring vectors interleaved",
        (Case("bias_gelu"), Case("lstm_cell"), Case("softmax"), Case("msoftmax"), Case("rms_swiglu")),
        ((prelude, "TAKES_TURNS", ()),),
    ),
    Choice(
        "constants in the coefficients of erf",
        (Case("bias_gelu"), Case("gelu_bwd_dbias")),
        (
            (half_precision, "scale_moved_inward", lambda e: e),
            (half_precision, "scaled_function", lambda e: None),
        ),
    ),
    Choice(
        "no search for NaN where its absence cannot be seen",
        (Case("msoftmax"), Case("softmax"), Case("xent_fwd")),
        ((common_passes, "nan_free_extremes", unchanged),),
    ),
    Choice(
        "functions of what a loop does not change, before it",
        (Case("astitch_768"), Case("bn_train_relu")),
        ((lower, "hoist", unchanged),),
    ),
    Choice(
        "quotients by one number as corrected products, where lanes divide more",
        (Case("adamw"), Case("adam50_small")),
        ((lower, "divide_by_reciprocals", lambda kernel, block, numbers: block),),
    ),
    Choice(
        "quotients that become 16 bits as products",
        tuple(
            Case("softmax", {"T": 100_000 // h, "H": h}, d)
            for h in (32, 64, 128, 256)
            for d in ("f16", "bf16")
        ),
        ((strength_reduction, "HALVES", ()),),
    ),
    Choice(
        "rests of 16 bits in sixteens, not in pairs of them",
        (
            Case("bias_gelu", {"T": 1000, "H": 80}, "f16"),
            Case("bias_gelu", {"T": 1000, "H": 80}, "bf16"),
            Case("bias_gelu", {"T": 300, "H": 10}, "bf16"),
            Case("gelu_bwd_dbias", {"T": 20_000, "H": 100}, "bf16"),
        ),
        ((half_precision, "STEP", 32),),
    ),
    Choice(
        "two rows of 16 bits in turns",
        tuple(Case(n, None, d) for n in ("res_ln", "softmax") for d in ("f16", "bf16")),
        ((FITTED, "interleaved_rows_most_bytes_of_halves", FITTED.interleaved_rows_most_bytes),),
    ),
    Choice(
        "mean and variance of a row in one pass about a pivot",
        (
            Case("ln_fwd"),
            Case("ln_fwd", {"T": 512, "H": 4096}),
            Case("res_ln"),
            Case("res_ln", {"T": 4096, "H": 768}),
            Case("residual_chain"),
            Case("bn_train_relu"),
        ),
        ((online, "_without_pivot", lambda *given: ""),),
    ),
    Choice(
        "sums across memory inside of a row, four terms at a time",
        (Case("dien_attention"),),
        knobs=CpuKnobs(disabled=("unroll-and-jam:reductions",)),
    ),
    Choice(
        "the first phase of the next row before the last of a row",
        (
            Case("ln_fwd"),
            Case("res_ln"),
            Case("res_ln", {"T": 4096, "H": 768}),
            Case("astitch_768"),
            Case("ln_fwd", {"T": 256, "H": 768}),
        ),
        knobs=CpuKnobs(skew=False),
    ),
    Choice(
        "software pipelining with prefetch in a loop that waits for none",
        (Case("ln_fwd"), Case("res_ln", {"T": 4096, "H": 768}), Case("astitch_768")),
        ((software_pipelining, "_prefetching", lambda parts, rows: parts),),
    ),
    Choice(
        "sixteen short rows at once",
        tuple(Case(name, {"T": 100_000, "H": 16}) for name in ("ln_fwd", "softmax", "res_ln", "ln_bwd")),
        knobs=CpuKnobs(jointly=False),
    ),
    Choice(
        "outer-loop vectorization of short rows",
        (
            Case("softmax", {"T": 50_000, "H": 5}),
            Case("ln_fwd", {"T": 50_000, "H": 7}),
            Case("rms_swiglu", {"T": 50_000, "H": 3}),
            Case("rms_swiglu", {"T": 50_000, "H": 5}),
        ),
        ((lower, "vectorize_short_rows", lambda kernel, tasks, knobs: ((), tuple(tasks))),),
    ),
    Choice(
        "rows shorter than a vector in vectors of several lengths",
        tuple(Case("rope", {"N": 1, "A": 4, "S": 7500, "D": d}) for d in (5, 7, 9, 12, 15)),
        ((lower, "narrow_vectors", lambda kernel, task: task),),
    ),
    Choice(
        "owners of short rows that a scatter updates",
        (
            Case("gnn_segsum", {"N": 100_000, "E": 300_000, "F": 4}),
            Case("gnn_segsum", {"N": 50_000, "E": 50_000, "F": 7}),
            Case("gnn_segsum", {"N": 500_000, "E": 2_000_000, "F": 4}),
        ),
        ((FITTED, "scatters_fewest_owned", 16),),
    ),
    Choice(
        "rows in registers until the key changes",
        (Case("gnn_segsum"), Case("gnn_segsum", {"N": 20_000, "E": 200_000, "F": 16})),
        ((FITTED, "scatter_runs_held_bytes", 0),),
    ),
    Choice(
        "rows that add to the same long sums, four at a time",
        (
            Case("ln_bwd", {"T": 64, "H": 30_000}),
            Case("ln_bwd", {"T": 512, "H": 8192}),
            Case("ln_bwd", {"T": 1024, "H": 4096}),
        ),
        knobs=CpuKnobs(disabled=("unroll-and-jam:shared-sums",)),
    ),
    Choice(
        "prefetch of the next row",
        (Case("ln_fwd"), Case("rms_swiglu"), Case("xent_fwd")),
        knobs=CpuKnobs(ahead=0),
    ),
    Choice(
        "rows beyond L1, and rows in order in L3, not prefetched",
        (Case("ln_fwd", {"T": 64, "H": 30_000}), Case("ln_fwd", {"T": 512, "H": 8192}), Case("ln_bwd")),
        knobs=CpuKnobs(ahead=1),
    ),
    Choice(
        "partial sums that begin at lines",
        (Case("ln_bwd", {"T": 300, "H": 1023}),),
        ((reductions, "_to_lines", lambda target: target.shape),),
    ),
    Choice(
        "no unroll-and-jam",
        (
            Case("ln_fwd", {"T": 300, "H": 1024}),
            Case("ln_fwd", {"T": 777, "H": 1023}),
            Case("res_ln"),
            Case("rms_swiglu", {"T": 200, "H": 1000}),
        ),
        ((toolchain, "flags_for", _with_unroll_and_jam),),
    ),
    Choice(
        "prefetch of lines shortly before use",
        (Case("residual_chain"), Case("softmax"), Case("ln_fwd"), Case("bn_train_relu")),
        ((targets, "prefetched_lines", lambda kernels, *_: kernels),),
    ),
    Choice(
        "strips in place that begin at cache lines",
        (Case("adamw"),),
        ((emit, "strip_of", lambda kernel, task: None),),
    ),
    Choice(
        "non-temporal stores of results",
        (
            Case("bias_gelu", {"T": 4096, "H": 3072}),
            Case("residual_chain"),
            Case("ln_bwd"),
            Case("res_ln", {"T": 4096, "H": 768}),
            Case("astitch_768"),
        ),
        knobs=CpuKnobs(stream=False),
    ),
    Choice(
        "what is left of a row of functions under masks",
        (
            Case("rms_swiglu", {"T": 1200, "H": 50}),
            Case("rms_swiglu", {"T": 600, "H": 100}),
            Case("rms_swiglu", {"T": 200, "H": 300}),
            Case("rms_swiglu", {"T": 5000, "H": 300}),
        ),
        ((half_precision, "has_masked_end", lambda body, lane="": False),),
    ),
    Choice(
        "unroll-and-jam of longer rows of functions",
        (
            Case("rms_swiglu", {"T": 600, "H": 100}),
            Case("rms_swiglu", {"T": 15_000, "H": 100}),
            Case("rms_swiglu", {"T": 200, "H": 300}),
            rows(256),
            rows(512),
        ),
        (
            (
                FITTED,
                "interleaved_rows_most_bytes_of_functions",
                (FITTED.interleaved_rows_most_bytes_in_l2, FITTED.interleaved_rows_most_bytes),
            ),
        ),
    ),
    Choice(
        "unroll-and-jam of sixteen longer rows of functions",
        (
            Case("xent_fwd", {"N": 200, "C": 100}),
            Case("xent_fwd", {"N": 200, "C": 300}),
            Case("xent_fwd", {"N": 15_000, "C": 100}),
            Case("xent_fwd", {"N": 6000, "C": 250}),
        ),
        (
            (FITTED, "batched_rows_longest_without_turns", (128, 128)),
            (FITTED, "batched_rows_longest_of_totals", (1024, 256)),
        ),
    ),
    Choice(
        "unroll-and-jam of rows of small kernels",
        (
            Case("softmax", {"T": 93, "H": 64}),
            Case("softmax", {"T": 60, "H": 100}),
            Case("ln_fwd", {"T": 26, "H": 768}),
            Case("astitch_768", {"T": 26, "H": 768}),
        ),
        ((FITTED, "mapping_smallest_rows", 1 << 40), (run_cpu, "PARALLEL_WORK", 1 << 40)),
    ),
    Choice(
        "small kernels shared out by their work",
        (
            Case("softmax", {"T": 200, "H": 64}),
            Case("bias_gelu", {"T": 100, "H": 256}),
            Case("lstm_cell", {"B": 100, "H": 64}),
        ),
        ((FITTED, "mapping_smallest_rows", 1 << 40), (FITTED, "mapping_smallest_parallel", 1 << 40)),
    ),
    Choice(
        "plain stores of smaller operators",
        (Case("ln_fwd"), Case("softmax"), Case("bias_gelu", {"T": 1024, "H": 3072})),
        knobs=CpuKnobs(stream=True),
    ),
)


def compiled(case: Case, workload: Workload, arguments: Sequence[Any]) -> tuple[Callable[[], Any], object]:
    """A call, and the source that it runs with the flags of its compiler."""
    program, options = case.program(workload), pf.Options(verify=True, progress=False)
    f = pf.compile(program, workload.name, options=options)
    f(*arguments)
    code = f.built(*arguments).code
    assert code is not None
    return (lambda: f(*arguments)), (code.source, toolchain.flags_for(code.source, toolchain.find_compiler()))


def both(choice: Choice, case: Case) -> tuple[Calls, bool]:
    """Calls with and without the choice, on the same arrays, and whether their code differs."""
    workload = load(case.workload)
    arguments = case.arguments(workload)
    chosen, source = compiled(case, workload, arguments)
    with choice.left_out():
        other, without = compiled(case, workload, arguments)
    return {"with": chosen, "without": other}, source != without


def seconds(calls: Calls, budget: float) -> dict[str, float]:
    """The fastest median of each call's series, in turns for so many seconds."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    end = time.monotonic() + budget
    while time.monotonic() < end or not spent["with"]:
        for name, call in calls.items():
            call()
            times = []
            for _ in range(SERIES):
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            spent[name].append(statistics.median(times))
    return {name: min(times) for name, times in spent.items()}


def table(chosen: list[Choice], budget: float) -> str:
    """A row for each choice and case."""
    where = surroundings()
    lines = [
        f"{where['cpu']}, {where['cores']} cores, {where['date'][:10]}, load average {load_average():.1f};",
        f"microseconds, the fastest of series of {SERIES} calls in turns (their medians).",
        "",
        "| choice | workload | with | without | without / with |",
        "|---|---|---|---|---|",
    ]
    for choice in chosen:
        for case in choice.cases:
            calls, differ = both(choice, case)
            if not differ:
                line = f"| {choice.name} | {case} | | | makes no difference here |"
            else:
                chosen_s, other_s = seconds(calls, budget).values()
                times = f"{1e6 * chosen_s:.4g} | {1e6 * other_s:.4g} | {other_s / chosen_s:.2f}"
                line = f"| {choice.name} | {case} | {times} |"
            lines.append(line)
            print(line, file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and with --write put the table into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", default="", metavar="WORD", help="choices whose name has the word")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each row")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    asked = parser.parse_args()
    found = table([c for c in CHOICES if asked.only in c.name], asked.seconds)
    print(found)
    if asked.write:
        write_measured(PAGE, found)


if __name__ == "__main__":
    main()
