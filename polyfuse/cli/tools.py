"""`polyfuse doctor`, `polyfuse cache` and `polyfuse lsp`: the installation."""

from __future__ import annotations

import json as json_format
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from polyfuse.cli import screen
from polyfuse.diagnostics import install

if TYPE_CHECKING:
    from polyfuse.runtime.machine.doctor import Finding


cache = typer.Typer(
    name="cache", help="The folder of compiled kernels: ls, clear, verify.", no_args_is_help=True
)


def doctor(
    measure: Annotated[
        bool,
        typer.Option("--measure", metavar="", help="Also measure bandwidth and arithmetic (some seconds)."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")] = False,
) -> None:
    """Say what is installed, what is missing, and how to get it.

    Exit code 1 if something is missing that polyfuse needs to compile.

    Examples:

      polyfuse doctor

      polyfuse doctor --measure --json
    """
    from polyfuse.runtime.machine import doctor as examination

    with screen.working("looking"):
        findings = examination.examine()
    rates = []
    if measure and examination.can_measure(findings):
        with screen.working("measuring"):
            rates = examination.measurements()
    if json:
        screen.show(json_format.dumps(examination.as_dict(findings, rates), indent=2))
    else:
        _show(findings)
        if rates:
            screen.show("")
            _show_rates(rates)
    if any(f.state == "missing" for f in findings):
        raise typer.Exit(1)


def lsp() -> None:
    """Start the language server for an editor, on standard input and output.

    Needs pygls: pip install '.[lsp]' in a clone of polyfuse. docs/howto/editors.md says how editors use it.
    """
    from importlib.util import find_spec

    if find_spec("pygls") is None:
        raise typer.BadParameter(f"the language server needs pygls: {install('lsp')}")
    from polyfuse.lsp.server import main

    main()


_STYLES = {"ok": "green", "missing": "bold red", "note": "yellow", "info": ""}


def _show(findings: Sequence[Finding]) -> None:
    from rich.text import Text

    out, group = screen.out(), ""
    width = max(len(f.name) for f in findings)
    for f in findings:
        if f.group != group:
            out.print(("\n" if group else "") + f.group, style="bold")
            group = f.group
        line = Text(f"  {f.name:{width}}  ")
        line.append(f"{'' if f.state == 'info' else f.state:7}", style=_STYLES[f.state])
        line.append(f"  {f.detail}")
        out.print(line, soft_wrap=True)
        if f.remedy:
            out.print(Text(f"  {'':{width}}  {'':7}  -> {f.remedy}", style="yellow"), soft_wrap=True)


def _show_rates(rates: list[dict[str, float]]) -> None:
    from polyfuse.decisions import format_bytes

    names = ("read", "copy", "fill", "fill_nt", "map", "map_nt")
    table = screen.table("Bandwidth, GB/s", [("working set", "right"), *((n, "right") for n in names)])
    for r in rates:
        table.add_row(format_bytes(r["working_set_bytes"]), *(f"{r[n]:.3g}" for n in names))
    screen.out().print(table)
    best = max(r["fma_gflops"] for r in rates)
    screen.show(f"arithmetic: {best:.0f} GFLOP/s in f32 with {rates[0]['threads']:.0f} threads")


@cache.command("ls")
def cache_ls() -> None:
    """List the entries, oldest first."""
    from polyfuse.decisions import format_bytes
    from polyfuse.runtime.cache.disk import Cache

    opened = Cache.open_default()
    entries = opened.ls()
    table = screen.table("", [("key", "left"), ("made", "left"), ("size", "right"), ("what", "left")])
    for e in entries:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(e.created))
        table.add_row(e.key[:12], made, format_bytes(e.size), e.meta.get("what", ""))
    if entries:
        screen.out().print(table)
    total = format_bytes(sum(e.size for e in entries))
    screen.show(f"{_entries(len(entries))}, {total} in {opened.root}")


@cache.command("clear")
def cache_clear() -> None:
    """Remove all entries; they are made again when they are needed."""
    from polyfuse.runtime.cache.disk import Cache

    opened = Cache.open_default()
    screen.show(f"removed {_entries(opened.clear())} from {opened.root}")


@cache.command("verify")
def cache_verify() -> None:
    """Check every entry against its digests and remove the damaged ones (exit code 1 if there were any)."""
    from polyfuse.runtime.cache.disk import Cache

    opened = Cache.open_default()
    with screen.working("verifying"):
        report = opened.verify()
    for key, reason in report.corrupt:
        screen.show(f"removed {key[:12]}: {reason}")
    screen.show(f"{_entries(report.checked)} checked, {len(report.corrupt)} damaged, in {opened.root}")
    if report.corrupt:
        raise typer.Exit(1)


def _entries(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"
