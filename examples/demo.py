"""Eight operators: compiled, checked against the float64 reference, timed, and compared with NumPy.

    python examples/demo.py            full sizes, about a minute with an empty cache
    python examples/demo.py --quick    small sizes, some seconds

The operators are the files beside this one.  For each, the table shows

    error       largest |difference| from the float64 reference, in units of the bound on rounding errors that
                comes with the reference: below 1 agrees.  It is evaluated for a part of the results, such as
                every 8th row; all elements must be finite and close to NumPy's (relative 1e-3).
    ms          time of a call, median of warm calls; "unfused" is the same without any layer
    x NumPy     how much faster than the function of `demo_numpy.py`
    kernels     kernels launched, without and with fusion
    share       the least bytes that must be moved (every input and output once) over the time, as a share
                of the bandwidth that was measured on this machine for a working set of that size
    nests       loop nests, without and with fusion
    compile s   from the checked program to loaded kernels (the cache keeps them: next time it is less)

Pictures of the schedule trees and the numbers (`results.json`) go to the folder `demo-output`.  The exit
status is 1 if anything disagrees.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from demo_cases import CASES, Case
from demo_table import LEGEND, line_of, table_of, write_json
from demo_trial import Row, rates, run_case
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import polyfuse as pf
from polyfuse.decisions import format_bytes
from polyfuse.runtime.machine.probe import working_set_class
from polyfuse.visualize.schedule import before_after_svg


def run_all(cases: list[Case], quick: bool, folder: Path, console: Console) -> list[Row]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    rows = []
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=4 * len(cases))
        for k, case in enumerate(cases):
            where = f"{k + 1}/{len(cases)} {case.title}"

            def stage(what: str, where: str = where) -> None:
                progress.update(bar, description=f"{where}: {what}", advance=1)

            row, before, after = run_case(case, quick, stage)
            (folder / f"{case.name}.svg").write_text(
                before_after_svg(before.scheduled, after.scheduled), encoding="utf-8"
            )
            rows.append(row)
            progress.console.print(line_of(row), highlight=False)
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Eight operators: checked, timed, compared with NumPy.")
    parser.add_argument("--quick", action="store_true", help="small sizes; the times mean little then")
    parser.add_argument("--only", choices=[c.name for c in CASES], help="one operator")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for what is written")
    chosen = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    chosen.output.mkdir(parents=True, exist_ok=True)
    cases = [c for c in CASES if chosen.only in (None, c.name)]
    console.print(intro(len(cases), chosen.quick), highlight=False)
    try:
        rows = run_all(cases, chosen.quick, chosen.output, console)
    except pf.PolyfuseError as error:
        console.print(str(error), markup=False)
        return 1
    return report(rows, chosen.quick, chosen.output, console)


def intro(count: int, quick: bool) -> str:
    operators = f"{count} operators" if count > 1 else "One operator"
    takes = "some seconds" if quick else "about a minute"
    return (
        f"{operators} of examples/*.pf: compiled, checked against a float64 reference, "
        f"timed beside NumPy ({takes})"
    )


def report(rows: list[Row], quick: bool, folder: Path, console: Console) -> int:
    console.print(table_of(rows, console.width))
    console.print(LEGEND, highlight=False)
    bandwidth = rates(working_set_class(max(r.working_set for r in rows)))
    console.print(
        f"{bandwidth.threads} threads of this machine read {format_bytes(bandwidth.working_set_bytes)} "
        f"at {bandwidth.read:.1f} GB/s and copy at {bandwidth.copy:.1f} GB/s",
        highlight=False,
    )
    write_json(folder / "results.json", rows, quick, bandwidth)
    console.print(f"numbers: {folder / 'results.json'}", highlight=False)
    picture = folder / f"{rows[0].name}.svg"
    console.print(f"pictures of schedules before and after fusion, such as {picture}", highlight=False)
    console.print(
        "what to try next: .venv/bin/polyfuse run stdlib:softmax, README.md, docs/course/index.md",
        highlight=False,
    )
    problems = [f"{r.title}: {p}" for r in rows for p in r.problems]
    for p in problems:
        console.print(p, style="red", markup=False)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
