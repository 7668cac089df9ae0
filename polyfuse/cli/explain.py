"""`polyfuse explain` and `polyfuse passes`: what the compiler decided, and with which options."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Annotated

import typer

from polyfuse.cli import files, pages, run, screen, settings, stages


def explain(
    file: settings.FileOrCode,
    first: Annotated[
        str | None, typer.Argument(metavar="STMT", help="A statement, as `emit` names it.")
    ] = None,
    second: Annotated[str | None, typer.Argument(metavar="STMT", help="Another one.")] = None,
    op: settings.Op = None,
    size: settings.Sizes = None,
    dtype: settings.Dtypes = None,
    rank: settings.Ranks = None,
    without: settings.Without = None,
    layers: settings.Layers = "loop,stitch,pack",
    partition: settings.Partition = "connect",
    target: settings.Target = "auto",
    device: settings.Device = None,
    tune: settings.Tune = "model",
    cost: settings.Cost = "auto",
    plan: settings.Plan = None,
) -> None:
    """Say what the compiler decided and why; for two statements, which loops they share and why no more; for
    the code of an error, when it happens and how to mend it.

    A line that begins with + is something done, one with - something considered and not done. With --tune
    measure a table of the variants that were timed follows, with --cost learned one of their learned times.

    Examples:

      polyfuse explain stdlib:layer_norm --size B_0=4096 --size H=768

      polyfuse explain stdlib:layer_norm mu__sum y

      polyfuse explain PF402

      polyfuse explain stdlib:softmax --target cuda --device A100

      polyfuse explain stdlib:softmax --partition search

      polyfuse explain stdlib:softmax --tune measure --cost learned
    """
    if pages.CODE.fullmatch(file):
        if first is not None:
            raise typer.BadParameter("an error has no statements")
        screen.show(pages.page(file))
        return
    from polyfuse.cli.compiler import Options

    made_for, applied = settings.target_of(target, device), settings.layers_of(layers)
    cut = settings.partition_of(partition, applied)
    if first is not None and second is None:
        raise typer.BadParameter("give two statements, or none")
    if first is not None and cut == "search":
        raise typer.BadParameter("two statements are explained in one schedule: --partition connect or rules")
    operator = files.open_operator(file, op, without)
    how, model = settings.tune_of(tune, made_for), settings.cost_of(cost, made_for)
    if (how == "measure" or model == "learned" or plan) and first is None:
        case = run.prepare(operator, settings.choice(operator, size, dtype, rank), 0)
        options = Options(tune=how, cost=model, device=device, plan=settings.path_of(plan))  # type: ignore[arg-type]
        on = made_for if made_for == "cuda" else "cpu"
        screen.show(run.compiled(operator, on, applied, options, cut).explain(**case.inputs, **case.given))
        return
    choice = settings.choice(operator, size, dtype, rank)
    graph = operator.graph(choice.dtypes, choice.ranks)
    settings.check_sizes(operator, choice.sizes, graph.sizes)
    if first is not None and second is not None:
        specialized = operator.specialize(choice.dtypes, choice.ranks, **choice.sizes)
        screen.show(stages.schedule(specialized, applied, cut).explain(first, second))  # type: ignore[attr-defined]
        return
    kernels = stages.lowered(operator, choice, applied, made_for, Options(device=device), cut)
    screen.show(f"{kernels.scheduled.shape}\n{kernels.explain()}")


def passes() -> None:
    """List the passes of the compiler, in order, and the options of layer I.

    Passes over the graph come first, then those over the loops of kernels, for a CPU and for a GPU. All but
    those that others need can be switched off; results are as right without them:

      POLYFUSE_DISABLE=unswitch,unroll-and-jam polyfuse run stdlib:softmax

      pf.compile(program, options=pf.Options(disable=["unroll-and-jam:stencils"]))

    A name up to its colon stands for all rules of one idea.
    """
    from polyfuse.cli.compiler import LoopFusion, passes_by_list

    for made in (LoopFusion,):
        about, options = _documented(inspect.getdoc(made) or "")
        screen.out().print(f"{made.__name__}: {about}", style="bold", soft_wrap=True)
        table = screen.table("", [("option", "left"), ("default", "left"), ("meaning", "left")])
        for f in dataclasses.fields(made):
            table.add_row(f.name, repr(f.default), options.get(f.name, ""))
        screen.out().print(table)
    screen.show("In Python: pf.compile(program, fusion=pf.LoopFusion(rematerialise=False))")
    for name, found in passes_by_list().items():
        screen.out().print(f"\n{TITLES.get(name, name)}", style="bold", soft_wrap=True)
        for p in found:
            cpu_only = "" if getattr(p, "on_gpu", True) else " (CPU only)"
            screen.show(f"{' ' if p.optional else '!'} {p.name:{NAME_WIDTH}} {p.does}{cpu_only}")
    screen.show(
        "\n! is needed by others. The rest can be switched off, by name or by the name up to the colon:"
        "\nPOLYFUSE_DISABLE=unswitch,unroll-and-jam, or pf.Options(disable=['unswitch', 'unroll-and-jam'])"
    )


NAME_WIDTH = 38
TITLES = {
    "graph": "Over the graph",
    "cpu loops": "CPU, over the loops of a kernel",
    "cpu owners": "CPU, where a worker owns a share of a scatter's result",
    "cpu functions": "CPU, over the functions that loops become",
    "gpu loops": "GPU, over the loops of a kernel",
    "gpu threads": "GPU, over what the threads of a function do together",
    "gpu accesses": "GPU, over what one thread does",
}
"""Headings of the lists of passes."""


def _documented(doc: str) -> tuple[str, dict[str, str]]:
    """The first line of a docstring in numpydoc's form, and its parameters with their meanings."""
    lines = doc.splitlines()
    found: dict[str, str] = {}
    names: list[str] = []
    first = lines.index("Parameters") + 2
    for line in lines[first:]:
        if re.fullmatch("-+", line):  # the heading of the next section is no parameter
            for name in names:
                del found[name]
            break
        if line and not line.startswith(" "):
            names = [n.strip() for n in line.split(",")]
            found |= dict.fromkeys(names, "")
        for name in names if line.startswith(" ") else ():
            found[name] = f"{found[name]} {line.strip()}".strip()
    return lines[0].rstrip("."), found
