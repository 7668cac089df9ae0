"""`polyfuse tune`: a search for the fastest plan of an operator, and the file that keeps it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from polyfuse.cli import completion, files, screen, settings, stages
from polyfuse.options import SEARCHES

if TYPE_CHECKING:
    from polyfuse.cli.compiler import Tuned

Out = Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="Where the plan is written.")]
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def tune(
    file: settings.File,
    op: settings.Op = None,
    size: settings.Sizes = None,
    dtype: settings.Dtypes = None,
    rank: settings.Ranks = None,
    without: settings.Without = None,
    layers: settings.Layers = "loop,stitch,pack",
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="For the whole search: 60s, 10m; none: by --steps alone.")
    ] = "60s",
    search: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="anneal (from plan to plan beside it) or random (plans that have nothing in common).",
            autocompletion=completion.words(*SEARCHES),
        ),
    ] = "anneal",
    cost: settings.Cost = "auto",
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Plans that the model is asked about at most.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the search.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads; else all cores.")] = None,
    no_measure: Annotated[
        bool, typer.Option("--no-measure", metavar="", help="The model decides; nothing is run.")
    ] = False,
    out: Out = None,
) -> None:
    """Search for the fastest way to fuse and print an operator on this machine's CPU, and keep it as a plan.

    A cost model ranks plans first; the likeliest are compiled and timed in turns with what the compiler does
    on its own, which stays unless another is faster by more than the noise. Ctrl-C ends the search and keeps
    the best so far. A plan is taken by --plan FILE of run and explain, and by plan= in Python.

    Examples:

      polyfuse tune stdlib:layer_norm --size B_0=4096 --size H=768 --budget 60s --out plan.json

      polyfuse run stdlib:layer_norm --size B_0=4096 --size H=768 --plan plan.json

      polyfuse tune norms.pf --search random --cost learned --budget 10m --threads 1
    """
    from polyfuse.cli.compiler import tune as search_plan

    if search not in SEARCHES:
        raise typer.BadParameter(f"there is no search '{search}'; there are {', '.join(SEARCHES)}")
    seconds, operator = seconds_of(budget), files.open_operator(file, op, without)
    choice = settings.choice(operator, size, dtype, rank)
    sizes = stages.sizes_of(operator, choice)
    with screen.working(f"tuning {operator.name}"):
        found = search_plan(
            operator,
            sizes=sizes,
            dtypes=choice.dtypes,
            ranks=choice.ranks,
            budget=seconds,
            search=search,  # type: ignore[arg-type]
            seed=seed,
            steps=steps,
            measure=not no_measure,
            layers=settings.layers_of(layers),
            cost=settings.cost_of(cost, "cpu"),
            threads=threads,
        )
    show(found)
    if out is not None:
        screen.note(f"the plan is in {found.save(out)}; --plan {out} takes it")


def show(found: Tuned) -> None:
    """The table of a search, and what it is about."""
    from rich.text import Text

    tuning = found.tuning
    at = ", ".join(f"{n}={v}" for n, v in tuning.sizes)
    model = f"{tuning.judge} us"
    table = screen.table(
        f"{tuning.operator}({at})",
        [("", "left"), ("plan", "left"), (model, "right"), ("measured us", "left")],
    )
    for r in found.table:
        mark = "*" if r.variant == found.plan else ""
        table.add_row(*map(Text, (mark, str(r.variant), f"{1e6 * r.predicted:.1f}", r.shown)))
    screen.out().print(table)
    what = f"{found.asked} plans by the {tuning.judge} model, {len(tuning.timed)} measured"
    end = "; interrupted" if found.interrupted else f"; {tuning.note}" if tuning.note else ""
    screen.out().print(f"{what} in {tuning.seconds:.0f} s{end}", soft_wrap=True)
    if len(tuning.timed) > 1:
        kept = "what the compiler does on its own stays" if found.plan.is_model else f"{found.plan}"
        gain = "" if found.plan.is_model else f": {found.speedup:.2f} times as fast"
        screen.out().print(f"{kept}{gain}", soft_wrap=True)


def seconds_of(text: str) -> float | None:
    """`60s`, `2m`, `90` as seconds; None for `none`."""
    if text == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or not float(match[1]):
        raise typer.BadParameter(f"--budget takes a time, as 60s or 10m, or none, not '{text}'")
    return float(match[1]) * _UNITS[match[2]]
