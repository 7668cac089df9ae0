"""How far cases are from their bars, by machine code: `python -m benchmarks.gpu_bars [--only TEXT]`.

A bar is the time on an H200 that hand-written kernels of the same work reached, or the best peer. Each case
is compiled to machine code here, without a GPU.  Told are

    wide       the share of bytes of global memory that accesses of 16 bytes a lane move
    narrow     narrower accesses in the innermost loops (in all code where there is none), of so many
    divisions  of integers in innermost loops, and elsewhere
    spills     bytes a thread
    registers, threads, occupancy, bytes in flight on a multiprocessor

`benchmarks/baseline/gpu_bars.json` has what was reached; `--update` writes it.  A test compares.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, prod
from pathlib import Path

import polyfuse as pf
from benchmarks.gpu_cases import GpuCase, cases
from benchmarks.gpu_limits import BARS
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.cost.device import WARP, Device, Occupancy, occupancy
from polyfuse.driver.machine_work import LaunchWork, works_of
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.driver.targets import chip
from polyfuse.options import Options
from polyfuse.runtime.cuda.compiler import Cubin, compile_cuda

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "benchmarks" / "baseline" / "gpu_bars.json"
DEVICE = "H200"


@dataclass(frozen=True, slots=True)
class Reached:
    """What the machine code of a case is like: of all its kernels, by their bytes or the worst one."""

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


HEADINGS = ("case", "wide", "narrow", "divisions", "spills", "registers", "threads", "occupancy", "in flight")


def compiled(case: GpuCase) -> tuple[CudaCode, Cubin, Device]:
    """A case's source and machine code for the GPU of the tables."""
    options = Options(device=DEVICE, progress=False, verify=False, dump=None)
    layers = {"stitching": pf.Stitching(), "packing": pf.Packing()}
    wanted = Compilation(case.graph, case.sizes, pf.LoopFusion(), options, target="emulate", **layers)
    _, code = emitted(Watch(options), wanted)
    assert isinstance(code, CudaCode)
    device = chip(options)
    return code, compile_cuda(code.source, device.arch, options=options), device


def reached(case: GpuCase) -> Reached:
    """What a case's kernels are like."""
    code, cubin, device = compiled(case)
    works = works_of(code.plan, cubin.cubin)
    taken = [cubin.resources[w.launch.function] for w in works]
    fits = [
        occupancy(device, prod(w.launch.threads), r.registers or 0, (r.shared or 0) + w.launch.dynamic_bytes)
        for w, r in zip(works, taken, strict=True)
    ]
    nbytes = [_moved(w) for w in works]
    wide = sum(n * w.warp.wide for n, w in zip(nbytes, works, strict=True)) / max(1.0, sum(nbytes))
    flying = [w.warp.in_flight * _warps(w, f, device) for w, f in zip(works, fits, strict=True)]
    return Reached(
        wide=round(wide, 3),
        narrow=sum(w.hot.narrow for w in works),
        accesses=sum(w.hot.accesses for w in works),
        divisions=sum(w.hot.divisions for w in works),
        divisions_outside=sum(w.hot.divisions_outside for w in works),
        spills=sum((r.spill_stores or 0) + (r.spill_loads or 0) for r in taken),
        registers=max(r.registers or 0 for r in taken),
        threads=max(prod(w.launch.threads) for w in works),
        occupancy=round(min(f.fraction for f in fits), 3),
        in_flight=round(min(flying)),
    )


def _warps(work: LaunchWork, fits: Occupancy, device: Device) -> float:
    """Resident warps of a multiprocessor."""
    blocks = min(fits.blocks_per_sm, ceil(int(str(work.launch.blocks)) / device.sms))
    return blocks * ceil(prod(work.launch.threads) / WARP)


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
    )


def line(cells: Sequence[str]) -> str:
    widths = (34, 7, 9, 10, 7, 10, 8, 10, 10)
    return "".join(
        c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(cells, widths, strict=True))
    )


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
    if options.update:
        kept = {n: asdict(found[n]) for n in BARS if n in found}
        FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
