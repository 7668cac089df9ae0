"""`polyfuse build`: an operator as a shared library, or as machine code of a GPU, with a C header."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfuse.cli import files, screen, settings


def build(
    file: settings.File,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="Where the library and its header go.")
    ] = ".",
    op: settings.Op = None,
    size: settings.Sizes = None,
    dtype: settings.Dtypes = None,
    rank: settings.Ranks = None,
    without: settings.Without = None,
    layers: settings.Layers = "loop,stitch,pack",
    target: Annotated[
        str, typer.Option("--target", "-t", metavar="TARGET", help="cpu, or cuda: cubins and their launches.")
    ] = "cpu",
    device: settings.Device = None,
    checked: Annotated[
        bool,
        typer.Option("--checked", metavar="", help="Calls fail where an index from data is out of range."),
    ] = False,
) -> None:
    """Write an operator as a library with a C header, for the CPU or a GPU.

    The library needs neither Python nor polyfuse. Sizes that are not given are arguments of the function.
    With --target cuda it is machine code for a GPU, a description of its launches, and a C header.

    Examples:

      polyfuse build stdlib:softmax -o out

      polyfuse build norms.pf --op layer_norm -s H=768 -o out

      polyfuse build stdlib:softmax --target cuda --device sm_90 -o out
    """
    from polyfuse.cli.compiler import Options, compile, export

    operator = files.open_operator(file, op, without)
    if operator.signature.is_open:
        operator = operator.without()
    choice = settings.choice(operator, size, dtype, rank)
    settings.check_sizes(operator, choice.sizes, operator.graph(choice.dtypes, choice.ranks).sizes)
    if target not in ("cpu", "cuda"):
        raise typer.BadParameter(f"operators are written for cpu or cuda, not for {target}")
    settings.target_of(target, device)
    options = Options(checked=checked, device=device)
    made = settings.layers_of(layers)
    function = compile(operator, target="cuda" if target == "cuda" else "cpu", layers=made, options=options)
    path = Path(output, f"{operator.name}.{'so' if target == 'cpu' else 'json'}")
    with screen.working("compiling"):
        header = export(function, path, dtypes=choice.dtypes, ranks=choice.ranks, sizes=choice.sizes)
    screen.show(f"{path}\n{header}")
