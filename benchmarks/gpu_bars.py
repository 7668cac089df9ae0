"""How far cases are from their bars, by machine code: `python -m benchmarks.gpu_bars [--only TEXT]`.

A bar is the time on an H200 that hand-written kernels of the same work reached, or the best peer. Each case
is compiled to machine code here, without a GPU.  Told are

    wide       the share of bytes of global memory that accesses of 16 bytes a lane move
    narrow     narrower accesses in the innermost loops (in all code where there is none), of so many
    divisions  of integers in innermost loops, and elsewhere
    spills     bytes a thread
    registers, threads, occupancy, bytes in flight on a multiprocessor
    projected  milliseconds, by the projected model (docs/lab/gpu_projection.md), what limits them, and
               how many times the bar that is

`benchmarks/baseline/gpu_bars.json` has what was reached; `--update` writes it.  A test compares.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from statistics import geometric_mean

import polyfuse as pf
from benchmarks.gpu_cases import GpuCase, cases
from benchmarks.gpu_limits import BARS
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.cost.device import WARP
from polyfuse.cost.speed_of_light import estimate
from polyfuse.driver.machine_work import LaunchProjection, LaunchWork, projections
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.driver.targets import chip
from polyfuse.options import Options
from polyfuse.runtime.cuda.compiler import compile_cuda

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "benchmarks" / "baseline" / "gpu_bars.json"
DEVICE = "H200"
# A projected time of so many bars is as good as one.
WITHIN = 1.1


@dataclass(frozen=True, slots=True)
class Reached:
    """What the machine code of a case is like: of all its kernels; from `registers` on of the slowest one."""

    wide: float
    narrow: int
    accesses: int
    divisions: int
    divisions_outside: int
    spills: int
    registers: int
    threads: int
    occupancy: float
    in_flight: int
    projected: float
    limit: str

    def ratio(self, bar: float) -> float:
        """Of the projected time to a bar."""
        return self.projected / bar


HEADINGS = (
    "case", "wide", "narrow", "divisions", "spills", "registers", "threads", "occupancy", "in flight",
    "projected", "limit", "bar", "ratio",
)  # fmt: skip
WIDTHS = (34, 7, 9, 10, 7, 10, 8, 10, 11, 10, 9, 8, 7)


def of_case(case: GpuCase) -> tuple[LaunchProjection, ...]:
    """A case's kernels for the GPU of the tables: their machine code, and what is projected."""
    options = Options(device=DEVICE, progress=False, verify=False, dump=None)
    layers = {"stitching": pf.Stitching(), "packing": pf.Packing()}
    wanted = Compilation(case.graph, case.sizes, pf.LoopFusion(), options, target="emulate", **layers)
    low, code = emitted(Watch(options), wanted)
    assert isinstance(code, CudaCode)
    device = chip(options)
    cubin = compile_cuda(code.source, device.arch, options=options)
    return projections(code.plan, cubin, estimate(low.kernels, device), device)


def reached(case: GpuCase) -> Reached:
    """What a case's kernels are like."""
    found = of_case(case)
    most = max(found, key=lambda p: p.time.seconds)
    nbytes = [_moved(p.work) for p in found]
    wide = sum(n * p.work.warp.wide for n, p in zip(nbytes, found, strict=True)) / max(1.0, sum(nbytes))
    return Reached(
        wide=round(wide, 3),
        narrow=sum(p.work.hot.narrow for p in found),
        accesses=sum(p.work.hot.accesses for p in found),
        divisions=sum(p.work.hot.divisions for p in found),
        divisions_outside=sum(p.work.hot.divisions_outside for p in found),
        spills=sum((p.taken.spill_stores or 0) + (p.taken.spill_loads or 0) for p in found),
        registers=most.taken.registers or 0,
        threads=prod(most.work.launch.threads),
        occupancy=round(most.fits.fraction, 3),
        in_flight=round(most.time.in_flight),
        projected=round(1e3 * sum(p.time.seconds for p in found), 4),
        limit=most.time.limit,
    )


def _moved(work: LaunchWork) -> float:
    """Bytes that all warps of a launch ask for."""
    launch = work.launch
    return work.warp.nbytes * prod(launch.threads) / WARP * int(str(launch.blocks))


def chosen(only: Sequence[str]) -> list[GpuCase]:
    """The cases that have bars, in the order of these."""
    found = {c.label: c for c in cases()}
    return [found[n] for n in BARS if not only or any(text in n for text in only)]


def row(label: str, r: Reached) -> tuple[str, ...]:
    """The cells of `HEADINGS`."""
    return (
        label,
        f"{r.wide:.1%}",
        f"{r.narrow} of {r.accesses}",
        f"{r.divisions}+{r.divisions_outside}",
        str(r.spills),
        str(r.registers),
        str(r.threads),
        f"{r.occupancy:.0%}",
        f"{r.in_flight / 1024:.1f} KiB",
        f"{r.projected:.4f}",
        r.limit,
        f"{BARS[label]:g}",
        f"{r.ratio(BARS[label]):.2f}",
    )


def line(cells: Sequence[str]) -> str:
    """Cells in columns."""
    first, *rest = (c.rjust(w) for c, w in zip(cells[1:], WIDTHS[1:], strict=True))
    return "".join([cells[0].ljust(WIDTHS[0]), first, *rest])


def recorded() -> dict[str, Reached]:
    """What the file holds."""
    if not FILE.exists():
        return {}
    return {n: Reached(**r) for n, r in json.loads(FILE.read_text(encoding="utf-8")).items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="cases with this in their names"
    )
    parser.add_argument("--update", action="store_true", help=f"write {FILE.name}")
    options = parser.parse_args(arguments)
    print(line(HEADINGS))
    found = recorded()
    for case in chosen(options.only):
        found[case.label] = reached(case)
        print(line(row(case.label, found[case.label])), flush=True)
    ratios = [found[c.label].ratio(BARS[c.label]) for c in chosen(options.only)]
    met = sum(r <= WITHIN for r in ratios)
    print(
        f"geometric mean of the ratios {geometric_mean(ratios):.2f}; {met} of {len(ratios)} within {WITHIN:g}"
    )
    if options.update:
        kept = {n: asdict(found[n]) for n in BARS if n in found}
        FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
