"""What the demo prints and writes of its rows."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from demo_trial import Row
from rich import box
from rich.table import Table

import polyfuse as pf
from polyfuse.runtime.machine.probe import BandwidthReport

HEADS = ("error", "ms", "unfused ms", "NumPy ms", "x NumPy", "kernels", "share", "nests", "compile s")
LEGEND = """\
error: of what rounding allows (below 1 agrees)   unfused ms: without fusion   x NumPy: times as fast
kernels, nests: without fusion → with it   share: the least time that memory allows, of the time taken
More about these columns: at the top of examples/demo.py
"""
NARROW = 96  # below this many columns of text the last two stay away; they are in results.json


def table_of(rows: Iterable[Row], width: int) -> Table:
    table = Table(
        title="polyfuse on the CPU", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        collapse_padding=True,
    )  # fmt: skip
    table.add_column("operator", no_wrap=True)
    shown = len(HEADS) if width >= NARROW else len(HEADS) - 2
    for head in HEADS[:shown]:
        table.add_column(head, justify="right")
    for r in rows:
        error = "[red]wrong[/]" if r.problems else f"[green]{r.worst_error_ratio:.1g}[/]"
        cells = [error, *(f"{1e3 * s:.3g}" for s in (r.seconds, r.unfused_s, r.numpy_s))]
        cells += [f"[bold]{r.numpy_s / r.seconds:.1f}[/]", f"{r.kernels_before} → {r.kernels_after}"]
        cells += [f"{r.share:.0%}", f"{r.nests_before} → {r.nests_after}", f"{r.compile_s:.2f}"]
        table.add_row(r.title, *cells[:shown])
    return table


def line_of(row: Row) -> str:
    """What was checked, and how it went."""
    if row.problems:
        return f"[red]wrong [/] {row.title}"
    return (
        f"[green]agrees[/] {row.title}: error {row.worst_error_ratio:.1g} of what rounding allows "
        f"({row.checked}); {row.elements:,} elements near NumPy's"
    )


def write_json(path: Path, rows: list[Row], quick: bool, bandwidth: BandwidthReport) -> None:
    machine = {"processor": platform.processor() or platform.machine(), "bandwidth": asdict(bandwidth)}
    versions = {"polyfuse": pf.__version__, "numpy": np.__version__, "python": platform.python_version()}
    found = [{**asdict(r), "bandwidth_share": r.share, "over_numpy": r.numpy_s / r.seconds} for r in rows]
    content = {"quick": quick, "versions": versions, "machine": machine, "rows": found}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
