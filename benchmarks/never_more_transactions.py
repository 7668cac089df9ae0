"""Does fusion ever move more memory on a GPU? `python -m benchmarks.never_more_transactions [--count 40]`.

The random programs of `never_slower`, with fewer elements, in the emulator of CUDA: it counts the sectors of
32 bytes that warps load and store.  A program counts as slower where the default touches more than 1.25 times
as many as the best of no fusion and each single layer.  No time is measured: the same program has the same
counts on every machine.  "With caches" is the ratio as if each block's cache held all that the block loads.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from rich.console import Console
from rich.progress import Progress

import polyfuse as pf
from benchmarks.never_slower import BOUND, OTHERS, PAGE, PLANS, geomean, parser_of
from benchmarks.pages import write_measured
from benchmarks.random_programs import TRANSPOSED, Drawn, draw
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.launch_plan import Kind
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.emulator.report import Sectors

COUNT = 40
LEAST_ELEMENTS, MOST_ELEMENTS = 2**13, 2**17
"""Fewer than on a CPU: every access is a call."""
PART = "gpu"


@dataclass(frozen=True)
class Row:
    """A program, and what each plan's kernels touch."""

    number: int
    kinds: tuple[str, ...]
    text: str
    touched: dict[str, tuple[Sectors, ...]]

    def total(self, plan: str) -> int:
        """Sectors loaded and stored."""
        return sum(s.loads + s.stores for s in self.touched[plan])

    @property
    def ratio(self) -> float:
        """The default over the best of the others."""
        return self.total("default") / self.total(self.rival)

    @property
    def over_unfused(self) -> float:
        """The default over no fusion."""
        return self.total("default") / self.total("none")

    @property
    def beyond(self) -> float:
        """The ratio as if each block's cache held all that the block loads: loads again are not counted."""
        totals = {p: sum(s.fetched + s.stores for s in t) for p, t in self.touched.items()}
        return totals["default"] / min(totals[p] for p in OTHERS)

    @property
    def rival(self) -> str:
        """The one of the others that touches the fewest."""
        return min(OTHERS, key=self.total)


def touched(code: CudaCode, arrays: dict[str, np.ndarray]) -> tuple[Sectors, ...]:
    """What one call of kernels touches, by launch and buffer; raises where a race or the like is found."""
    memory = {
        b.name: arrays[b.name]
        if b.name in arrays
        else np.zeros([evaluate(e, {}) for e in b.shape], b.dtype.numpy)
        for b in code.plan.buffers
        if b.kind is not Kind.WORKSPACE
    }
    kernels = EmulatedKernels(code, sectors=True, order="forward")
    kernels.run(memory)
    return kernels.report.sectors


def measure(program: Drawn) -> Row:
    """Compile and count every plan."""
    arrays = program.arrays()
    found = {}
    for name, layers in PLANS.items():
        code = pf.compile(program.text, layers=layers, target="emulate").built(**arrays).code
        assert isinstance(code, CudaCode)
        found[name] = touched(code, arrays)
    return Row(program.number, program.kinds, program.text, found)


def collect(
    count: int, seed: int, only: Sequence[int], told: Callable[[int], None]
) -> tuple[list[Row], list[str]]:
    """So many rows, and what was left out; `told` hears how many there are."""
    rows: list[Row] = []
    left: list[str] = []
    drawn = draw(seed, LEAST_ELEMENTS, MOST_ELEMENTS)
    count = len(only) or count
    while len(rows) + (len(left) if only else 0) < count:
        program = next(drawn)
        if only and program.number not in only:
            continue
        try:
            rows.append(measure(program))
        except pf.PolyfuseError as error:
            left.append(f"{program.number}: {error}")
        told(len(rows))
    return rows, left


def report(rows: Sequence[Row], worst: int) -> str:
    """A summary, and the rows in which the default touches most beside the others, as Markdown."""
    groups = {
        "all": rows,
        "with a transposed result": [r for r in rows if TRANSPOSED in r.kinds],
        "without": [r for r in rows if TRANSPOSED not in r.kinds],
    }
    lines = [
        f"| programs | number | default / none | default / best | above {BOUND} | above 2 | with caches |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, some in groups.items():
        slow = " | ".join(str(sum(r.ratio > bound for r in some)) for bound in (BOUND, 2))
        over = f"{geomean([r.over_unfused for r in some]):.2f} | {geomean([r.ratio for r in some]):.2f}"
        cached = sum(r.beyond > BOUND for r in some)
        lines.append(f"| {name} | {len(some)} | {over} | {slow} | {cached} |")
    lines += ["", "| program | default / best | with caches | " + " | ".join(PLANS) + " | has |"]
    lines.append("|---:|---:|---:|" + "---:|" * len(PLANS) + "---|")
    for r in sorted(rows, key=lambda r: -r.ratio)[:worst]:
        totals = " | ".join(str(r.total(p)) for p in PLANS)
        lines.append(f"| {r.number} | {r.ratio:.2f} | {r.beyond:.2f} | {totals} | {', '.join(r.kinds)} |")
    return "\n".join(lines)


def profile(row: Row) -> str:
    """The text of a program, and what the default and its rival touch, by launch and buffer."""
    lines = [f"\n# {row.number}: {row.ratio:.2f} of {row.rival}", row.text]
    for plan in ("default", row.rival):
        lines.append(f"{plan}: {row.total(plan)}")
        lines += [
            f"  {s.launch} {s.function} {s.buffer}: {s.loads} loads ({s.fetched} fetched), {s.stores} stores"
            for s in row.touched[plan]
        ]
    return "\n".join(lines)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    about = "python -m benchmarks.never_more_transactions", __doc__ or ""
    return parser_of(*about, count=COUNT, worst=12, shown="the profile").parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, print, save. 1 if the default touches more than the bound allows anywhere."""
    chosen, console = options(arguments), Console(stderr=True)
    warnings.simplefilter("ignore", pf.PolyfuseWarning)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("programs", total=len(chosen.only) or chosen.count)
        rows, left = collect(
            chosen.count, chosen.seed, chosen.only, lambda n: progress.update(bar, completed=n)
        )
    found = report(rows, chosen.worst)
    head = f"Sectors of 32 bytes, seed {chosen.seed}; {len(left)} programs were left out.\n\n"
    print(head + found, *left, sep="\n")
    if chosen.show:
        print(*(profile(r) for r in rows if r.ratio > BOUND or chosen.only), sep="\n")
    if chosen.out:
        chosen.out.write_text(json.dumps({"rows": [asdict(r) for r in rows], "left": left}))
    if chosen.write:
        write_measured(PAGE, head + found, PART)
    return 1 if any(r.ratio > BOUND for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
